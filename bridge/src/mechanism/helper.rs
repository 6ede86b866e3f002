//! A thread of the owner's copies, for when the kernel does not let us do it ourselves:
//! see [`crate::serve`]. The bytes go through a bounce buffer, memory of its, in chunks
//! of which some are under way while others are taken out or put in.
//!
//! Our side copies by preadv(2) and pwritev(2), too: memory that is not ours to write or
//! to read is EFAULT.

use super::No;
use crate::find;
use crate::peer::Peer;
use crate::transfer::Way;
use crate::vector::{Cursor, Few, Segment};
use crate::wire::{Answer, Request, ANSWER, ATTACH_GET, ATTACH_PUT, BOUNCE, CHUNK, SLOTS};
use crate::wire::{DESCRIPTOR, GET, HELLO, PUT};
use regall_sys::file::{self, Fd};
use regall_sys::socket::{self, Message, Room};
use regall_sys::text::Text;
use regall_sys::{call, rlimit, time, Errno, Result};

/// How long a helper may leave us without an answer, in nanoseconds. It is stopped then,
/// or waits for a page of its own memory.
const PATIENCE: u64 = 900_000_000;
/// How long to wait before its owner's health is looked at, in nanoseconds.
pub(crate) const LOOK: u64 = 100_000_000;
/// Between two looks at one that ends, in nanoseconds.
const GLANCE: u64 = 500_000;

/// Where a helper listens, for a directory named `name` in the folder `folder`.
pub fn address(folder: &[u8], name: &[u8]) -> Text<108> {
    let mut path = Text::new();
    for part in [folder, b"/", name, b".", KIND.as_bytes()] {
        path.push(part);
    }
    path
}

/// What the name of a helper's socket ends in.
pub const KIND: &str = "sock";

/// The connection to a peer's helper.
pub struct Link {
    open: Option<Open>,
    /// The pid of the process that made it: a child has to make its own.
    process: u32,
}

/// What there is of a link.
pub(crate) struct Open {
    socket: Fd,
    /// The bounce buffer, after [`Open::greet`].
    bounce: Option<Fd>,
    /// Their inodes: the application may have closed our descriptors and opened others.
    inodes: (u64, u64),
    /// Of the last request and the last answer.
    asked: u64,
    answered: u64,
}

impl Link {
    /// Not made yet.
    pub const fn none() -> Self {
        Self {
            open: None,
            process: 0,
        }
    }

    /// Closes it, unless it is the parent's, which has it open still.
    pub fn close(&mut self) {
        let ours = self.process == regall_sys::getpid() || !file::are_inherited_shared();
        if let (Some(open), false) = (self.open.take(), ours) {
            core::mem::forget(open);
        }
    }

    /// The link as it can be used now.
    fn ready(&mut self, peer: &Peer, orphaned: bool) -> core::result::Result<&mut Open, No> {
        // Beyond it a put would be SIGXFSZ, which is nobody's business.
        if rlimit(libc::RLIMIT_FSIZE).is_ok_and(|(soft, _)| soft < BOUNCE) {
            return Err(No::NotThis);
        }
        let process = regall_sys::getpid();
        if orphaned || self.process != process {
            self.close();
        }
        if let Some(open) = self.open.take() {
            match open.is_ours() {
                true => self.open = Some(open),
                // Whose they are now we don't know: not ours to close.
                false => core::mem::forget(open),
            }
        }
        if self.open.is_none() {
            self.open = Some(Open::new(peer)?);
            self.process = process;
        }
        self.open.as_mut().ok_or(No::NotThis)
    }
}

impl Open {
    /// Connects and introduces us.
    fn new(peer: &Peer) -> core::result::Result<Self, No> {
        let found = peer.found();
        let path = found.socket();
        let path = path.as_cstr().ok_or(No::Never)?;
        let socket = socket::connect(path, LOOK).map_err(|e| match e {
            // None yet, or no more.
            Errno::NOENT => No::NotThis,
            Errno(libc::ECONNREFUSED) => left(peer).map_or(No::NotThis, No::Failed),
            Errno::AGAIN => No::Failed(peer.gone()),
            e if find::is_shortage(e) => No::Failed(e),
            _ => No::Never,
        })?;
        // Whoever listens there must be the process that we want.
        let who = socket::peer(&socket).map_err(|_| No::NotThis)?;
        if who.pid != peer.pid() || who.uid != found.uid {
            return Err(No::Never);
        }
        let mut open = Self::on(socket).map_err(No::Failed)?;
        match open.greet(peer.image(), || peer.gone()) {
            Ok(Ok(())) => Ok(open),
            Ok(Err(Errno(libc::ESTALE))) => Err(No::Failed(Errno(libc::ESTALE))),
            Ok(Err(_)) => Err(No::Never),
            Err(Lost::Silent) => Err(No::Failed(peer.gone())),
            Err(Lost::NoRoom) => Err(No::Failed(Errno(libc::EMFILE))),
            // It did not like our user, or has as many peers as it can have.
            Err(Lost::Closed) => Err(left(peer).map_or(No::NotThis, No::Failed)),
        }
    }

    /// On a connection over which nothing was said yet.
    pub(crate) fn on(socket: Fd) -> Result<Self> {
        let socket = socket.high()?;
        let inodes = (socket.stat()?.inode, 0);
        Ok(Self {
            socket,
            bounce: None,
            inodes,
            asked: 0,
            answered: 0,
        })
    }

    /// Introduces us, who have read of this image, and takes the bounce buffer; or what the
    /// helper has against us.
    pub(crate) fn greet(
        &mut self,
        image: u64,
        gone: impl Fn() -> Errno,
    ) -> core::result::Result<Result<()>, Lost> {
        let hello = Request {
            image,
            len: BOUNCE,
            ..Request::new(HELLO)
        };
        self.send(hello)?;
        let (answer, bounce) = self.receive(gone, Room::Fd)?;
        match (answer.errno, bounce) {
            (0, Some(bounce)) if is_memory(&bounce) => {
                let bounce = bounce.high().map_err(|_| Lost::NoRoom)?;
                self.inodes.1 = bounce.stat().map_or(0, |s| s.inode);
                self.bounce = Some(bounce);
                Ok(Ok(()))
            }
            (e @ 1.., None) => Ok(Err(Errno(e as i32))),
            (_, other) => {
                // It stays open: to close what is no memory may wait for somebody, and may end
                // what this process has registered by such a file.
                core::mem::forget(other);
                Err(Lost::Closed)
            }
        }
    }

    /// The bounce buffer's number.
    pub(crate) fn bounce(&self) -> i32 {
        self.bounce.as_ref().map_or(-1, Fd::raw)
    }

    fn is_ours(&self) -> bool {
        let inode = |fd: &Fd| fd.stat().map_or(0, |s| s.inode);
        (inode(&self.socket), self.bounce.as_ref().map_or(0, inode)) == self.inodes
    }

    /// Asks for something.
    pub(crate) fn send(&mut self, request: Request) -> core::result::Result<(), Lost> {
        self.asked += 1;
        let numbered = Request {
            number: self.asked,
            ..request
        };
        socket::send(&self.socket, &numbered.to_bytes(), None).map_err(|e| match e {
            Errno::AGAIN => Lost::Silent,
            _ => Lost::Closed,
        })
    }

    /// The answer to the oldest request.
    pub(crate) fn receive(
        &mut self,
        gone: impl Fn() -> Errno,
        room: Room,
    ) -> core::result::Result<(Answer, Option<Fd>), Lost> {
        let since = time::now();
        loop {
            let mut bytes = [0; ANSWER];
            match socket::receive(&self.socket, &mut bytes, room) {
                Ok(message) => return self.understand(message, bytes, room),
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) if gone() == Errno::SRCH => return Err(Lost::Closed),
                Err(Errno::AGAIN) => (),
                Err(_) => return Err(Lost::Closed),
            }
            if time::now().saturating_sub(since) > PATIENCE {
                return Err(Lost::Silent);
            }
        }
    }

    fn understand(
        &mut self,
        message: Message,
        bytes: [u8; ANSWER],
        room: Room,
    ) -> core::result::Result<(Answer, Option<Fd>), Lost> {
        let answer = Answer::from_bytes(bytes).map_err(|_| Lost::Closed)?;
        self.answered += 1;
        if message.bytes == ANSWER && message.cut && room == Room::Fd && message.fd.is_none() {
            return Err(Lost::NoRoom);
        }
        match message.bytes == ANSWER && !message.cut && answer.number == self.answered {
            true => Ok((answer, message.fd)),
            false => Err(Lost::Closed),
        }
    }
}

/// Why there will be no more answers on this link.
pub(crate) enum Lost {
    /// The other end is closed, or speaks nonsense.
    Closed,
    /// No answer for too long.
    Silent,
    /// There is no free descriptor for what has come.
    NoRoom,
}

impl Lost {
    /// What is to be said of it.
    fn why(self, peer: &Peer) -> Errno {
        match self {
            Self::Closed => left(peer).unwrap_or_else(|| peer.gone()),
            Self::Silent => peer.gone(),
            Self::NoRoom => Errno(libc::EMFILE),
        }
    }
}

/// Whether it is memory, as a bounce buffer must be: reading and writing it waits for nobody.
fn is_memory(bounce: &Fd) -> bool {
    let sealable = call!(libc::SYS_fcntl, bounce.raw(), libc::F_GET_SEALS).is_ok();
    sealable && bounce.stat().is_ok_and(|s| s.size >= BOUNCE)
}

/// A helper that was there is there no more. It never ends alone: its process is killed, and
/// its other threads may not have come to it yet, or it executes another program. What that
/// was; `None` if it is not seen within [`LOOK`], or was something else.
#[cold]
fn left(peer: &Peer) -> Option<Errno> {
    let since = time::now();
    loop {
        if let Err(e) = peer.check(regall_sys::arch::ticks()) {
            return Some(e);
        }
        if peer.gone() == Errno::SRCH {
            return Some(Errno::SRCH);
        }
        if time::now().saturating_sub(since) > LOOK {
            return None;
        }
        regall_sys::nap(GLANCE);
    }
}

/// Copies; see [`super::copy`].
///
/// # Safety
/// As [`super::copy`].
#[cold]
#[inline(never)]
pub unsafe fn copy(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
) -> core::result::Result<u64, No> {
    // SAFETY: by the contract above.
    unsafe { copy_of(peer, way, local, remote, false) }
}

/// The same; `open`: of memory that need not be registered.
///
/// # Safety
/// As [`super::copy`].
#[cold]
#[inline(never)]
pub unsafe fn copy_of(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    open_memory: bool,
) -> core::result::Result<u64, No> {
    let mut link = peer.link();
    let orphaned = link.orphaned();
    let open = link.ready(peer, orphaned)?;
    let mut work = Work {
        way,
        open: open_memory,
        here: Cursor::new(local),
        there: Cursor::new(remote),
        left: Cursor::new(local)
            .left(u64::MAX)
            .min(Cursor::new(remote).left(u64::MAX)),
        chunks: [0; SLOTS as usize],
        sent: 0,
        taken: 0,
        bytes: 0,
        gap: false,
        stopped: None,
    };
    // SAFETY: by the contract above.
    match unsafe { work.carry_out(open, peer) } {
        // What is to come on this link would be answers to old requests.
        Err(lost) => {
            link.close();
            Err(No::Failed(lost.why(peer)))
        }
        Ok(()) => match (work.bytes, work.stopped) {
            (0, Some(e)) => Err(No::Failed(e)),
            (bytes, _) => Ok(bytes),
        },
    }
}

/// A copy in chunks: number n goes through the bounce buffer's part n modulo [`SLOTS`].
struct Work<'a> {
    way: Way,
    /// The peer's memory need not be registered.
    open: bool,
    /// Of a put: what is to be sent next. Of a get: where the next answer's bytes belong.
    here: Cursor<'a>,
    there: Cursor<'a>,
    /// Bytes not asked for yet.
    left: u64,
    /// Bytes of each chunk under way.
    chunks: [u64; SLOTS as usize],
    /// Chunks asked for, and chunks answered.
    sent: u64,
    taken: u64,
    /// From the beginning, copied.
    bytes: u64,
    /// Something is missing behind those: what else was copied does not count.
    gap: bool,
    /// Why nothing more is asked for.
    stopped: Option<Errno>,
}

impl Work<'_> {
    /// # Safety
    /// As [`copy`].
    unsafe fn carry_out(&mut self, open: &mut Open, peer: &Peer) -> core::result::Result<(), Lost> {
        loop {
            while self.left > 0 && self.stopped.is_none() && self.sent - self.taken < SLOTS {
                // SAFETY: by the contract above.
                match unsafe { self.prepare(open, peer) } {
                    Ok(request) => open.send(request)?,
                    Err(e) => self.stopped = Some(e),
                }
            }
            if self.sent == self.taken {
                return Ok(());
            }
            let (answer, _) = open.receive(|| peer.gone(), Room::Nothing)?;
            // SAFETY: by the contract above.
            unsafe { self.take(open, &answer) }?;
        }
    }

    fn slot(n: u64) -> (usize, u64) {
        ((n % SLOTS) as usize, n % SLOTS * CHUNK)
    }

    /// The next chunk, as long as it lies in one entry of the owner's.
    unsafe fn prepare(&mut self, open: &Open, peer: &Peer) -> Result<Request> {
        let next = self.there.here().ok_or(Errno::FAULT)?;
        let (end, id) = peer.entry(next.addr, self.way == Way::Put, self.open)?;
        let mut len = next.len.min(end - next.addr).min(CHUNK).min(self.left);
        let (slot, offset) = Self::slot(self.sent);
        if self.way == Way::Put {
            let mut few = Few::new();
            few.fill(self.here, len);
            // SAFETY: memory to be read, by the caller's contract.
            len = unsafe { vectored(libc::SYS_pwritev, open.bounce(), few.as_slice(), offset) }?;
            self.here.advance(len);
        }
        if let (Some(chunk), 1..) = (self.chunks.get_mut(slot), len) {
            *chunk = len;
            self.sent += 1;
            self.left -= len;
            self.there.advance(len);
            return Ok(Request {
                addr: next.addr,
                len,
                id,
                offset,
                ..Request::new(match (self.way, self.open) {
                    (Way::Get, false) => GET,
                    (Way::Put, false) => PUT,
                    (Way::Get, true) => ATTACH_GET,
                    (Way::Put, true) => ATTACH_PUT,
                })
            });
        }
        Err(Errno::FAULT)
    }

    /// A chunk has been answered. After the first that is not whole, the others don't count;
    /// if one behind it could not even be asked for, it does, and so do those before.
    unsafe fn take(&mut self, open: &Open, answer: &Answer) -> core::result::Result<(), Lost> {
        let (slot, offset) = Self::slot(self.taken);
        let len = self.chunks.get(slot).copied().unwrap_or(0);
        self.taken += 1;
        if answer.bytes > len {
            return Err(Lost::Closed);
        }
        if self.gap {
            return Ok(());
        }
        let mut good = Ok(answer.bytes);
        if self.way == Way::Get && answer.bytes > 0 {
            // SAFETY: memory to be written, by the caller's contract.
            good = unsafe { self.take_out(open, offset, answer.bytes) };
        }
        self.bytes += good.unwrap_or(0);
        self.gap = good != Ok(len);
        if self.gap {
            self.stopped = Some(match (good, answer.errno) {
                (Err(e), _) => e,
                (_, 0) => Errno::FAULT,
                (_, e) => Errno(e as i32),
            });
        }
        Ok(())
    }

    /// From the bounce buffer to where it belongs; the bytes, less than asked for only if
    /// some of our memory can't be written.
    unsafe fn take_out(&mut self, open: &Open, offset: u64, bytes: u64) -> Result<u64> {
        let mut done = 0;
        while done < bytes {
            let mut few = Few::new();
            few.fill(self.here, bytes - done);
            // SAFETY: by the caller's contract.
            let part = unsafe {
                vectored(
                    libc::SYS_preadv,
                    open.bounce(),
                    few.as_slice(),
                    offset + done,
                )
            };
            match part {
                Ok(part @ 1..) => {
                    self.here.advance(part);
                    done += part;
                }
                Err(e) if done == 0 => return Err(e),
                _ => break,
            }
        }
        Ok(done)
    }
}

/// preadv(2) or pwritev(2).
pub(crate) unsafe fn vectored(
    nr: i64,
    file: i32,
    segments: &[Segment],
    offset: u64,
) -> Result<u64> {
    call!(nr, file, segments.as_ptr(), segments.len(), offset, 0)
}

/// The file behind the shared mapping at the peer's address `addr`, with the rights that
/// the mapping has, from the peer's helper; and where in the file that address is.
///
/// ENXIO: what is there is not shared; ENOENT: the peer has no descriptor of it; EPERM: there is no
/// helper, or it doesn't want us; EFAULT, EACCES, ESTALE, ESRCH: as [`crate::transfer::transfer`].
pub fn descriptor(peer: &Peer, addr: u64) -> Result<(Fd, u64)> {
    let (_, id) = peer.entry(addr, false, true)?;
    let mut link = peer.link();
    let orphaned = link.orphaned();
    let open = link.ready(peer, orphaned).map_err(|no| match no {
        No::Failed(e) => e,
        No::Never | No::NotThis => Errno::PERM,
    })?;
    let request = Request {
        addr,
        id,
        ..Request::new(DESCRIPTOR)
    };
    let answered = match open.send(request) {
        Ok(()) => open.receive(|| peer.gone(), Room::Fd),
        Err(lost) => Err(lost),
    };
    match answered {
        Ok((
            Answer {
                errno: 0, bytes, ..
            },
            Some(fd),
        )) => Ok((fd, bytes)),
        Ok((answer, _)) if answer.errno != 0 => Err(Errno(answer.errno as i32)),
        Ok(_) => {
            link.close();
            Err(peer.gone())
        }
        Err(lost) => {
            link.close();
            Err(lost.why(peer))
        }
    }
}
