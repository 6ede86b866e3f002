//! The connection to a peer's helper ([`crate::serve`]): requests and answers, a bounce buffer
//! for the bytes of copies, and descriptors of the peer's files.

use crate::find;
use crate::kind::No;
use crate::lock::Lock;
use crate::process::Process;
use crate::wire::{Answer, Request, ANSWER, BOUNCE, BOX_EVENT, BOX_FILE, DESCRIPTOR, HELLO};
use regall_sys::arch::ticks;
use regall_sys::file::{self, borrow, Borrowed, Fd};
use regall_sys::socket::{self, Message, Room};
use regall_sys::text::Text;
use regall_sys::{rlimit, time, Errno, Result};

/// How long a helper may answer nobody, in nanoseconds. It is stopped then, or waits for a page of
/// its own memory.
const PATIENCE: u64 = 900_000_000;
/// How long to wait before its owner's health is looked at, in nanoseconds.
pub(crate) const LOOK: u64 = 100_000_000;
/// One that was not used for so long may have been ended by the helper, to make room for others
/// (`crate::serve::places`), in nanoseconds.
const UNUSED: u64 = 5_000_000;
/// How long to wait for a turn, or for an answer, where the helper is busy with others, in
/// nanoseconds.
const TURN: u64 = 10_000_000_000;
/// Between two tries to have one, at first and at the most, in nanoseconds.
const SOON: u64 = 1_000_000;
const LATER: u64 = 50_000_000;
/// Between two looks at one that ends, in nanoseconds.
const GLANCE: u64 = 500_000;

/// The connection to a peer's helper.
pub struct Link {
    /// A child has to make its own.
    open: Option<Open>,
}

/// How the helper at the other end does.
pub(crate) trait Health {
    /// Requests that it has answered, whosoever.
    fn answered(&self) -> u64;
    /// Returns what is to be said when it does not answer. ESRCH: its process is gone.
    fn gone(&self) -> Errno;
}

impl Health for Process {
    fn answered(&self) -> u64 {
        Self::answered(self)
    }

    fn gone(&self) -> Errno {
        Self::gone(self)
    }
}

/// What there is of a link.
pub(crate) struct Open {
    socket: Fd,
    /// The process that made it: children may have it, too.
    process: u32,
    /// The bounce buffer, after [`Open::greet`].
    bounce: Option<Fd>,
    /// Their inodes: the application may have closed our descriptors and opened others.
    inodes: (u64, u64),
    /// Of the last request and the last answer.
    asked: u64,
    answered: u64,
    /// When it was last made ready, in ticks.
    used: u64,
}

impl Link {
    /// Not made yet.
    pub const fn none() -> Self {
        Self { open: None }
    }

    /// Closes it, unless it is the parent's, which has it open still.
    pub fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let made_here = open.is_made_here();
        let ours = made_here || !file::are_inherited_shared();
        if made_here {
            open.end();
        }
        if !ours {
            core::mem::forget(open);
        }
    }

    /// The link as it can be used now.
    pub(crate) fn ready(
        &mut self,
        peer: &Process,
        abandoned: bool,
    ) -> core::result::Result<&mut Open, No> {
        // Beyond it a put would be SIGXFSZ, which is nobody's business.
        if rlimit(libc::RLIMIT_FSIZE).is_ok_and(|(soft, _)| soft < BOUNCE) {
            return Err(No::NotThis);
        }
        let is_inherited = |open: &Open| !open.is_made_here();
        if abandoned || self.open.as_ref().is_some_and(is_inherited) {
            self.close();
        }
        if let Some(open) = self.open.take() {
            match open.is_ours() {
                true => self.open = Some(open),
                // Whose they are now we don't know: not ours to close.
                false => core::mem::forget(open),
            }
        }
        let now = ticks();
        if self.open.as_ref().is_some_and(|open| open.was_ended(now)) {
            self.close();
        }
        if self.open.is_none() {
            self.open = Some(Open::new(peer)?);
        }
        let open = self.open.as_mut().ok_or(No::NotThis)?;
        open.used = now;
        Ok(open)
    }
}

impl Open {
    /// Connects and introduces us; waits for a turn. EAGAIN: it did not come.
    fn new(peer: &Process) -> core::result::Result<Self, No> {
        let (since, mut nap) = (time::now(), SOON);
        loop {
            if let Some(open) = Self::try_new(peer)? {
                return Ok(open);
            }
            let late = time::now().saturating_sub(since) > TURN;
            if let Some(e) = went(peer).or(late.then_some(Errno::AGAIN)) {
                return Err(No::Failed(e));
            }
            regall_sys::nap(nap);
            nap = (nap * 2).min(LATER);
        }
    }

    /// The same without waiting. `None`: the helper has as many peers as it can have.
    fn try_new(peer: &Process) -> core::result::Result<Option<Self>, No> {
        let found = peer.found();
        // In another user's folder anybody may listen, and hand over what takes long to close. That
        // user's helper serves this one in no case.
        if found.uid != regall_sys::geteuid() {
            return Err(No::Never);
        }
        let path = found.socket();
        let path = path.as_cstr().ok_or(No::Never)?;
        let socket = match socket::connect(path, LOOK) {
            Ok(socket) => socket,
            Err(Errno::AGAIN) if !is_stopped(peer) => return Ok(None),
            Err(e) => {
                return Err(match e {
                    // None yet, or no more.
                    Errno::NOENT => No::NotThis,
                    Errno::CONNREFUSED => left(peer).map_or(No::NotThis, No::Failed),
                    Errno::AGAIN => No::Failed(peer.gone()),
                    e if find::is_shortage(e) => No::Failed(e),
                    _ => No::Never,
                });
            }
        };
        let mut open = Self::on(socket).map_err(No::Failed)?;
        // Whoever listens there must be the process that we want.
        let who = socket::peer(&open.socket).map_err(|_| No::NotThis)?;
        if who.pid != peer.pid() || who.uid != found.uid {
            return Err(No::Never);
        }
        match open.greet(peer.image(), peer) {
            Ok(Ok(())) => Ok(Some(open)),
            Ok(Err(Errno::STALE)) => Err(No::Failed(Errno::STALE)),
            Ok(Err(_)) => Err(No::Never),
            Err(Lost::Silent) => Err(No::Failed(peer.gone())),
            Err(Lost::Late) => Err(No::Failed(Errno::AGAIN)),
            Err(Lost::NoRoom) => Err(No::Failed(Errno::MFILE)),
            Err(Lost::Closed) => Ok(None),
            Err(Lost::Nonsense) => Err(No::NotThis),
        }
    }

    /// On a socket over which nothing was said yet. EMFILE: there is no free descriptor.
    fn on(socket: Fd) -> Result<Self> {
        let socket = socket.high()?;
        let inodes = (socket.stat()?.inode, 0);
        Ok(Self {
            socket,
            process: regall_sys::getpid(),
            bounce: None,
            inodes,
            asked: 0,
            answered: 0,
            used: ticks(),
        })
    }

    fn is_made_here(&self) -> bool {
        self.process == regall_sys::getpid()
    }

    /// Introduces us, who have read of this image, and takes the bounce buffer; or what the
    /// helper has against us.
    pub(crate) fn greet(
        &mut self,
        image: u64,
        health: &impl Health,
    ) -> core::result::Result<Result<()>, Lost> {
        let hello = Request {
            image,
            len: BOUNCE,
            ..Request::new(HELLO)
        };
        self.send(hello)?;
        let (answer, bounce) = self.receive(health, Comes::Memory)?;
        match (answer.errno, bounce) {
            // (Whoever closes it last frees what is in it: no more than this.)
            (0, Some(bounce)) if bounce.stat().is_ok_and(|s| s.size == BOUNCE) => {
                let bounce = bounce.high().map_err(|_| Lost::NoRoom)?;
                self.inodes.1 = bounce.stat().map_or(0, |s| s.inode);
                self.bounce = Some(bounce);
                Ok(Ok(()))
            }
            (e @ 1.., _) => Ok(Err(Errno(e as i32))),
            (0, _) => Ok(Err(Errno::PERM)),
        }
    }

    /// The bounce buffer; if there is none, a file that can't be read or written.
    pub(crate) fn bounce(&self) -> Borrowed {
        borrow(self.bounce.as_ref().map_or(-1, Fd::raw))
    }

    fn is_ours(&self) -> bool {
        let inode = |fd: &Fd| fd.stat().map_or(0, |s| s.inode);
        (inode(&self.socket), self.bounce.as_ref().map_or(0, inode)) == self.inodes
    }

    /// Ends it. What was asked for and is not answered is taken back: the helper finds nothing in
    /// the bounce buffer any more, whatever it waits for or was stopped at.
    pub(crate) fn end(&self) {
        if !self.is_ours() {
            return;
        }
        let takes_back = self.asked > self.answered;
        if let (Some(bounce), true) = (&self.bounce, takes_back) {
            let _ = bounce.truncate(0);
        }
        // Children may have the descriptor, too: the helper must see the end all the same.
        socket::shut_down(&self.socket);
    }

    /// Whether the helper has ended it since it was used, a while before `now`.
    fn was_ended(&self, now: u64) -> bool {
        let unused = time::nanos(now.wrapping_sub(self.used));
        unused >= UNUSED && socket::has_ended(&self.socket)
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

    /// The answer to the oldest request, with what comes along if it is a good one.
    pub(crate) fn receive(
        &mut self,
        health: &impl Health,
        comes: Comes,
    ) -> core::result::Result<(Answer, Option<Fd>), Lost> {
        let since = time::now();
        let (mut heard, mut answered) = (since, health.answered());
        loop {
            let mut bytes = [0; ANSWER];
            match self.take(&mut bytes, comes) {
                Ok((message, fd)) => return self.understand(&message, bytes, fd),
                Err(Errno::INTR) => (),
                Err(Errno::AGAIN) if health.gone() == Errno::SRCH => return Err(Lost::Closed),
                Err(Errno::AGAIN) => (),
                Err(Errno::MFILE) => return Err(Lost::NoRoom),
                Err(Errno::PROTO | Errno::PERM) => return Err(Lost::Nonsense),
                Err(_) => return Err(Lost::Closed),
            }
            let now = time::now();
            if core::mem::replace(&mut answered, health.answered()) != answered {
                heard = now;
            }
            match (now.saturating_sub(heard), now.saturating_sub(since)) {
                (quiet, _) if quiet > PATIENCE => return Err(Lost::Silent),
                (_, waited) if waited > TURN => return Err(Lost::Late),
                _ => (),
            }
        }
    }

    /// Takes the next message. A descriptor comes along only with what it belongs to. EPROTO: another
    /// one has come; EMFILE: there is no room for it.
    fn take(&self, bytes: &mut [u8; ANSWER], comes: Comes) -> Result<(Message, Option<Fd>)> {
        let room = match comes {
            Comes::Alone => Room::Nothing,
            Comes::Memory | Comes::Pipe => Room::File,
        };
        let mut message = socket::receive(&self.socket, bytes, room)?;
        let fd = match (message.file.take(), comes) {
            (Some(fd), Comes::Memory) if fd.seals().is_ok() => Some(fd),
            (Some(fd), Comes::Pipe) if is_pipe(&fd) => Some(never_waiting(fd)?),
            (None, Comes::Memory | Comes::Pipe) if message.has_files => return Err(Errno::MFILE),
            (None, _) if !message.has_files => None,
            _ => return Err(Errno::PROTO),
        };
        Ok((message, fd))
    }

    fn understand(
        &mut self,
        message: &Message,
        bytes: [u8; ANSWER],
        fd: Option<Fd>,
    ) -> core::result::Result<(Answer, Option<Fd>), Lost> {
        if message.bytes == 0 {
            return Err(Lost::Closed);
        }
        let answer = Answer::from_bytes(bytes).map_err(|_| Lost::Nonsense)?;
        self.answered += 1;
        let whole = message.bytes == ANSWER && !message.cut;
        let fits = fd.is_none() || answer.errno == 0;
        match whole && fits && answer.number == self.answered {
            true => Ok((answer, fd)),
            false => Err(Lost::Nonsense),
        }
    }
}

/// What comes with a good answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Comes {
    /// Nothing else.
    Alone,
    /// The descriptor of memory.
    Memory,
    /// The descriptor of a pipe.
    Pipe,
}

/// Returns whether it is a pipe.
fn is_pipe(fd: &Fd) -> bool {
    fd.stat()
        .is_ok_and(|s| s.mode & libc::S_IFMT == libc::S_IFIFO)
}

/// The pipe behind `passed`, opened anew so that nobody else says whether writing to it waits.
/// Without /proc it is as the peer has it.
fn never_waiting(passed: Fd) -> Result<Fd> {
    let path: Text<32> = Text::of(format_args!("/proc/self/fd/{}", passed.raw()));
    let path = path.as_cstr().ok_or(Errno::NOENT)?;
    let opened = match Fd::open(path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC, 0) {
        Err(Errno::NOENT) => return Ok(passed),
        opened => opened?,
    };
    let (was, is) = (passed.stat()?, opened.stat()?);
    match (was.dev, was.inode) == (is.dev, is.inode) {
        true => Ok(opened),
        false => Err(Errno::PERM),
    }
}

/// Why there will be no more answers on this link.
pub(crate) enum Lost {
    /// The other end is closed: the helper has ended, or lets another peer have its turn.
    Closed,
    /// What has come is no answer.
    Nonsense,
    /// It answers nobody any more.
    Silent,
    /// It answers others, and not us.
    Late,
    /// There is no free descriptor for what has come.
    NoRoom,
}

impl Lost {
    /// Succeeds where what was asked for since `since`, of which nothing was answered, can be asked for
    /// once more, on a connection that is made anew; else fails with what is to be said of it.
    pub(crate) fn if_final(self, peer: &Process, since: u64) -> Result<()> {
        match self {
            Self::Closed if time::now().saturating_sub(since) <= TURN => Ok(()),
            Self::Closed => Err(went(peer).unwrap_or(Errno::AGAIN)),
            other => Err(other.why(peer)),
        }
    }

    /// What is to be said of it.
    pub(crate) fn why(self, peer: &Process) -> Errno {
        match self {
            Self::Closed | Self::Nonsense => left(peer).unwrap_or_else(|| peer.gone()),
            Self::Silent => peer.gone(),
            Self::Late => Errno::AGAIN,
            Self::NoRoom => Errno::MFILE,
        }
    }
}

/// A helper that was there is there no more. It never ends alone: its process is killed, and
/// its other threads may not have come to it yet, or it executes another program. What that
/// was; `None` if it is not seen within [`LOOK`], or was something else.
#[cold]
fn left(peer: &Process) -> Option<Errno> {
    let since = time::now();
    loop {
        let went = went(peer);
        if went.is_some() || time::now().saturating_sub(since) > LOOK {
            return went;
        }
        regall_sys::nap(GLANCE);
    }
}

/// Returns what has become of a process that is not what it was any more.
fn went(peer: &Process) -> Option<Errno> {
    match peer.check(ticks()) {
        Ok(()) => Some(peer.gone()).filter(|e| *e == Errno::SRCH),
        Err(e) => Some(e),
    }
}

/// Returns whether it can't be anybody's turn, because the process was stopped.
fn is_stopped(peer: &Process) -> bool {
    find::stat(peer.pid()).is_ok_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// The file behind the shared mapping at the peer's address `addr`, with the rights that
/// the mapping has, from the peer's helper; and where in the file that address is.
///
/// ENXIO: what is there is not shared; ENOENT: the peer has no descriptor of it; EPERM: there is no
/// helper, or it doesn't want us; EFAULT, EACCES, ESTALE, ESRCH: as a transfer's.
pub fn descriptor(peer: &Process, link: &Lock<Link>, addr: u64) -> Result<(Fd, u64)> {
    let (_, id) = peer.entry(addr, false, true)?;
    let request = Request {
        addr,
        id,
        ..Request::new(DESCRIPTOR)
    };
    file(peer, link, request, Comes::Memory)
}

/// The file of the peer's box, from its helper. ENOTCONN: it has no box; EPERM: there is no helper,
/// or it doesn't want us; others as [`descriptor`]'s.
pub fn box_file(peer: &Process, link: &Lock<Link>) -> Result<Fd> {
    file(peer, link, Request::new(BOX_FILE), Comes::Memory).map(|(fd, _)| fd)
}

/// The pipe by which the peer is woken that waits for messages, likewise.
pub fn box_event(peer: &Process, link: &Lock<Link>) -> Result<Fd> {
    file(peer, link, Request::new(BOX_EVENT), Comes::Pipe).map(|(fd, _)| fd)
}

/// What the helper hands over when it is asked for a file, and the number that it says with it.
fn file(peer: &Process, link: &Lock<Link>, request: Request, comes: Comes) -> Result<(Fd, u64)> {
    let mut link = link.lock();
    let mut abandoned = link.abandoned();
    let since = time::now();
    loop {
        let open = link.ready(peer, abandoned).map_err(|no| match no {
            No::Failed(e) => e,
            No::Never | No::NotThis => Errno::PERM,
        })?;
        abandoned = false;
        let answered = match open.send(request) {
            Ok(()) => open.receive(peer, comes),
            Err(lost) => Err(lost),
        };
        match answered {
            Ok((answer, Some(fd))) => return Ok((fd, answer.bytes)),
            Ok((answer, None)) if answer.errno != 0 => return Err(Errno(answer.errno as i32)),
            Ok((_, None)) => {
                link.close();
                return Err(Errno::PERM);
            }
            Err(lost) => {
                link.close();
                lost.if_final(peer, since)?;
            }
        }
    }
}

#[cfg(test)]
mod tests;
