//! A connection to another process, which may belong to another user and hand over any descriptor
//! at any time. The last one to let go of a socket may wait for as long as its SO_LINGER says, so
//! such a descriptor is never taken, and the connection that it came by is never closed.

use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use regall_sys::credentials::Credentials as Process;
use regall_sys::file::Fd;
use regall_sys::socket::{self, Credentials, Handed, Message, Room};
use regall_sys::text::Text;
use regall_sys::{Errno, Result};

/// A connection.
pub(crate) struct Connection {
    socket: ManuallyDrop<Fd>,
    /// The user at the other end, unless that is our own: [`Met::other_user`].
    other_user: Option<u32>,
    /// The process that made it: children may have it, too.
    process: u32,
    /// What has come by it is not to be let go of.
    stays: bool,
}

/// Where two processes have found each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Met {
    /// In a folder that only its user can enter.
    InFolder,
    /// At an abstract name, where anybody can come.
    ByName,
}

impl Met {
    /// The user `uid` at the other end, unless that is proven to be our own user, `own`. That the
    /// numbers are equal is no proof by itself: in a user namespace without a map every user has
    /// the same.
    fn other_user(self, uid: u32, own: u32) -> Option<u32> {
        Some(uid).filter(|uid| self == Self::ByName || *uid != own)
    }
}

impl Connection {
    /// On a socket by which nothing was received yet. EPERM: the user at its other end has handed
    /// over what it should not have.
    pub fn on(socket: Fd, met: Met) -> Result<Self> {
        let who = socket::peer(&socket);
        let uid = who.map_or(NOBODY, |who| who.uid);
        let made = Self {
            socket: ManuallyDrop::new(socket),
            other_user: met.other_user(uid, regall_sys::geteuid()),
            process: regall_sys::getpid(),
            stays: false,
        };
        match made.other_user {
            Some(uid) if is_distrusted(uid) => Err(Errno::PERM),
            _ => who.map(|_| made),
        }
    }

    /// The same at a high number.
    pub fn high(mut self) -> Result<Self> {
        let other = self.socket.duplicate_high()?;
        // The other one holds what was handed over.
        *self.socket = other;
        Ok(self)
    }

    /// Whether this process has made it.
    pub fn is_made_here(&self) -> bool {
        self.process == regall_sys::getpid()
    }

    /// Whether another user is at the other end.
    pub fn is_to_other_user(&self) -> bool {
        self.other_user.is_some()
    }

    /// Who is at the other end.
    pub fn peer(&self) -> Result<Credentials> {
        socket::peer(&self.socket)
    }

    /// Receives one message into `buffer`. EPROTO: descriptors come with it; errors as
    /// [`socket::receive`]'s.
    pub fn receive(&mut self, buffer: &mut [u8], room: Room) -> Result<Message> {
        if self.other_user.is_some() && socket::look(&self.socket, buffer, room, true)?.has_files {
            self.distrust();
            return Err(Errno::PROTO);
        }
        socket::receive(&self.socket, buffer, room)
    }

    /// Reads the next message into `buffer` and leaves it there; its bytes.
    pub fn look(&self, buffer: &mut [u8]) -> Result<usize> {
        socket::look(&self.socket, buffer, Room::Nothing, true).map(|seen| seen.bytes)
    }

    /// As [`Connection::receive`], with the descriptor of memory that comes with it. EMFILE: there
    /// is no room for it; EPROTO: that is not what comes.
    pub fn receive_memory(&mut self, buffer: &mut [u8]) -> Result<(Message, Fd)> {
        self.receive_file(buffer, is_of_memory)
    }

    /// As [`Connection::receive_memory`], with the descriptor of a pipe, to which nobody makes
    /// this process wait. EPERM: another user's.
    pub fn receive_pipe(&mut self, buffer: &mut [u8]) -> Result<(Message, Fd)> {
        match self.other_user {
            None => {
                let (message, passed) = self.receive_file(buffer, is_pipe)?;
                // Without /proc it is as the peer has it.
                match never_waiting(&passed) {
                    Err(Errno::NOENT) => Ok((message, passed)),
                    own => own.map(|own| (message, own)),
                }
            }
            Some(_) => Err(Errno::PERM),
        }
    }

    fn receive_file(
        &mut self,
        buffer: &mut [u8],
        is_good: impl Fn(&Fd) -> bool,
    ) -> Result<(Message, Fd)> {
        let fd = match socket::handed(&self.socket)? {
            Handed::One(fd) if is_good(&fd) => fd,
            // What there would have been no room for is not known. It waits here still.
            Handed::NoRoom => return Err(Errno::MFILE),
            // It is a duplicate, which can be closed.
            Handed::One(_) | Handed::Other => {
                self.distrust();
                return Err(Errno::PROTO);
            }
        };
        let message = socket::receive(&self.socket, buffer, Room::Nothing)?;
        Ok((message, fd))
    }

    /// Nothing more is taken from here. Our own user could do whatever it likes to us.
    fn distrust(&mut self) {
        if let Some(uid) = self.other_user {
            self.stays = true;
            distrust(uid);
        }
    }

    /// Whether it can be closed without waiting for somebody. What can be is taken from it.
    fn waits(&self) -> Waits {
        if self.other_user.is_none() {
            return Waits::Nothing;
        }
        if self.stays {
            return Waits::Somebody;
        }
        if !self.is_made_here() {
            // Its maker uses it: what waits there is left to him, and it can't be shut down. Who
            // looks whether something waits may look too early, and be the last that has it.
            return Waits::Unknown;
        }
        // Nothing more can come from here on.
        socket::shut_down(&self.socket);
        if socket::ask_for_senders(&self.socket).is_err() {
            return Waits::Unknown;
        }
        for _ in 0..MOST {
            match socket::look(&self.socket, &mut [], Room::Sender, false) {
                // Nothing has come, or this is the end.
                Err(_) | Ok(Message { sender: None, .. }) => return Waits::Nothing,
                Ok(message) if message.has_files => match self.drop_memory() {
                    Waits::Nothing => (),
                    other => return other,
                },
                Ok(_) => drop(socket::receive(&self.socket, &mut [], Room::Sender)),
            }
        }
        Waits::Somebody
    }

    /// Takes the next message, if a descriptor of memory is all that comes with it: an answer that
    /// came too late.
    fn drop_memory(&self) -> Waits {
        let fd = match socket::handed(&self.socket) {
            Ok(Handed::One(fd)) if is_of_memory(&fd) => fd,
            Ok(Handed::NoRoom) => return Waits::Unknown,
            _ => return Waits::Somebody,
        };
        let taken = socket::receive(&self.socket, &mut [], Room::Sender);
        // Our duplicate is closed behind it, as memory.
        drop(fd);
        match taken {
            Ok(_) => Waits::Nothing,
            Err(_) => Waits::Somebody,
        }
    }
}

/// What closing a connection would wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waits {
    Nothing,
    /// Whoever has handed over what waits there.
    Somebody,
    /// It can't be told: there is no free descriptor to look with, or another process uses it.
    Unknown,
}

/// Messages that wait in a connection at the most (net.unix.max_dgram_qlen, commonly 10 to 512).
const MOST: u32 = 1024;

impl Deref for Connection {
    type Target = Fd;

    fn deref(&self) -> &Fd {
        &self.socket
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let waits = self.waits();
        if waits == Waits::Nothing {
            // SAFETY: nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.socket) };
        } else if let (Some(uid), true) = (self.other_user, self.is_made_here()) {
            LEFT_OPEN.fetch_add(1, Relaxed);
            if waits == Waits::Somebody {
                // Each time could cost us one more descriptor.
                distrust(uid);
            }
        }
    }
}

/// Whether it is memory: reading, writing and closing it waits for nobody.
fn is_of_memory(fd: &Fd) -> bool {
    fd.seals().is_ok()
}

/// Whether it is a pipe, which nobody waits for who does not block: our own user's.
fn is_pipe(fd: &Fd) -> bool {
    fd.stat()
        .is_ok_and(|s| s.mode & libc::S_IFMT == libc::S_IFIFO)
}

/// The pipe behind `passed`, opened anew so that nobody else says whether writing to it waits.
fn never_waiting(passed: &Fd) -> Result<Fd> {
    let path: Text<32> = Text::of(format_args!("/proc/self/fd/{}", passed.raw()));
    let path = path.as_cstr().ok_or(Errno::NOENT)?;
    let opened = Fd::open(path, libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC, 0)?;
    let (was, is) = (passed.stat()?, opened.stat()?);
    match (was.dev, was.inode) == (is.dev, is.inode) {
        true => Ok(opened),
        false => Err(Errno::PERM),
    }
}

/// Connections that stay open for what waits in them. Whose the next one is, that waits to be
/// accepted, nobody can tell; so after [`MOST_LEFT`] of them no other user's is accepted or made.
static LEFT_OPEN: AtomicU32 = AtomicU32::new(0);
const MOST_LEFT: u32 = 16;

/// Other users whose processes have handed over what is no memory; [`NOBODY`] where there is none.
static DISTRUSTED: [AtomicU32; MOST_LEFT as usize] =
    [const { AtomicU32::new(NOBODY) }; MOST_LEFT as usize];
/// No user has this number.
const NOBODY: u32 = u32::MAX;

/// Nothing has to do with other users' processes any more whose user is `uid`.
#[cold]
fn distrust(uid: u32) {
    if !is_distrusted(uid) {
        let put = |place: &AtomicU32| {
            place
                .compare_exchange(NOBODY, uid, Relaxed, Relaxed)
                .is_ok()
        };
        let _ = DISTRUSTED.iter().any(put);
    }
}

/// Whether nothing has to do with the processes of that other user. With none of other users', once
/// there are too many of them.
fn is_distrusted(uid: u32) -> bool {
    let mut users = DISTRUSTED.iter().map(|place| place.load(Relaxed));
    users.any(|user| user == uid) || no_more()
}

/// Whether nothing has to do with other users' processes any more.
fn no_more() -> bool {
    let all = || DISTRUSTED.iter().all(|place| place.load(Relaxed) != NOBODY);
    LEFT_OPEN.load(Relaxed) >= MOST_LEFT || all()
}

/// Whether process `pid`, of another user, may be connected to: what it sends at once costs a
/// descriptor. EPERM: it may not. Who can't be looked at may, as long as anybody may.
pub(crate) fn may_ask(pid: u32) -> Result<()> {
    let distrusted = |who: Process| who.uids.into_iter().any(is_distrusted);
    match no_more() || Process::of(pid).is_ok_and(distrusted) {
        true => Err(Errno::PERM),
        false => Ok(()),
    }
}

/// Where other users' processes connect. What waits in it is let go of by who closes it last, so
/// its thread leaves it open and ends: the kernel waits for no SO_LINGER in a thread that exits.
pub(crate) struct Listener(ManuallyDrop<Fd>);

impl Listener {
    /// On a socket that listens.
    pub fn on(socket: Fd) -> Self {
        Self(ManuallyDrop::new(socket))
    }

    /// The descriptor by which the next one's coming is seen; -1, and nobody connects any more,
    /// once nothing has to do with other users.
    pub fn waits(&self) -> i32 {
        if no_more() {
            socket::shut_down(&self.0);
            return -1;
        }
        self.0.raw()
    }

    /// Takes the next one; errors as [`socket::accept`]'s.
    pub fn accept(&self) -> Result<Fd> {
        socket::accept(&self.0)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Nobody connects any more.
        socket::shut_down(&self.0);
    }
}

#[cfg(test)]
pub(crate) mod tests;
