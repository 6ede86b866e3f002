//! Unix sockets that keep messages apart (SOCK_SEQPACKET) and can hand a descriptor over.

use crate::entry::call;
use crate::errno::{Errno, Result};
use crate::file::Fd;
use core::ffi::CStr;

/// Who is at the other end, as the kernel noted it: of whoever connected, or of whoever
/// listens, or sends; in the reader's namespaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Credentials {
    /// Process; 0 if it has no number here.
    pub pid: u32,
    /// Effective user; the real one of who sends.
    pub uid: u32,
    /// Effective group; the real one of who sends.
    pub gid: u32,
}

/// What may come with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// Nothing but the bytes.
    Nothing,
    /// Who sends it, on connections to a listener.
    Sender,
    /// A descriptor.
    File,
}

impl Room {
    /// Bytes of it.
    const fn bytes(self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Sender => 32,
            Self::File => size_of::<Ancillary>(),
        }
    }
}

/// A message that has come.
pub struct Message {
    /// Bytes of it; 0: the other end is closed.
    pub bytes: usize,
    /// The process that sent it, with its real user and group ([`Room::Sender`]).
    pub sender: Option<Credentials>,
    /// It was longer than the buffer.
    pub cut: bool,
    /// Descriptors came with it.
    pub has_files: bool,
    /// The descriptor that came with it ([`Room::File`]). `None`, and they came: there were several,
    /// or this process has no free one.
    pub file: Option<Fd>,
}

/// One descriptor with its header (cmsg(3)): CMSG_SPACE(sizeof(int)) bytes.
#[repr(C, align(8))]
struct Ancillary {
    len: usize,
    level: i32,
    kind: i32,
    fd: i32,
    padding: i32,
}

/// CMSG_LEN(sizeof(int)).
const ONE_FD: usize = 20;
/// Bytes in front of what a message of the kernel's holds.
const HEAD: usize = 16;
/// Words for CMSG_SPACE(sizeof(struct ucred)).
const ROOM: usize = 4;

/// What has come with a message: the sender, and the descriptors.
struct Extras {
    sender: Option<Credentials>,
    /// The first descriptor. The others are closed.
    fd: Option<Fd>,
    many: usize,
}

impl Extras {
    /// Takes them out of `words`, of which the kernel has filled `bytes` bytes.
    fn of(words: &[u64; ROOM], bytes: usize) -> Self {
        let mut found = Self {
            sender: None,
            fd: None,
            many: 0,
        };
        let int = |at: usize| {
            let word = words.get(at / 8).copied().unwrap_or(0);
            (word >> (at % 8 * 8)) as i32
        };
        let mut at = 0;
        while at + HEAD <= bytes {
            let len = (int(at) as u32 as usize).clamp(HEAD, bytes - at);
            match (int(at + 8), int(at + 12)) {
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) => {
                    let [pid, uid, gid] = [0, 4, 8].map(|n| int(at + HEAD + n) as u32);
                    found.sender = Some(Credentials { pid, uid, gid });
                }
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for n in 0..(len - HEAD) / 4 {
                        let fd = Fd::owned(int(at + HEAD + 4 * n));
                        found.fd = found.fd.or(Some(fd));
                        found.many += 1;
                    }
                }
                _ => (),
            }
            at += len.next_multiple_of(8);
        }
        found
    }
}

fn new(flags: i32) -> Result<Fd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | flags;
    call!(libc::SYS_socket, libc::AF_UNIX, kind, 0).map(|fd| Fd::owned(fd as i32))
}

/// `path` as an address. EINVAL if it is longer than 107 bytes.
fn address(path: &CStr) -> Result<(libc::sockaddr_un, usize)> {
    let bytes = path.to_bytes_with_nul();
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    let room = address.sun_path.get_mut(..bytes.len());
    for (to, from) in room.ok_or(Errno::INVAL)?.iter_mut().zip(bytes) {
        *to = *from as core::ffi::c_char;
    }
    Ok((address, 2 + bytes.len()))
}

/// A socket to listen with. Of each message on connections to it the kernel says which process
/// sent it (SO_PASSCRED). Only who has CAP_SYS_ADMIN over its own pid namespace can name another
/// process there, and only one of that namespace. And who sends a descriptor gets EPERM, where
/// the kernel can do that (SO_PASSRIGHTS, Linux 6.16).
fn new_listener() -> Result<Fd> {
    const PASS_RIGHTS: i32 = 83;
    let socket = new(libc::SOCK_NONBLOCK)?;
    set(&socket, libc::SO_PASSCRED, 1)?;
    let _ = set(&socket, PASS_RIGHTS, 0);
    Ok(socket)
}

fn set(socket: &Fd, option: i32, value: i32) -> Result<()> {
    call!(
        libc::SYS_setsockopt,
        socket.raw(),
        libc::SOL_SOCKET,
        option,
        &raw const value,
        size_of_val(&value)
    )
    .map(drop)
}

/// Whether there is something to be received at once, or the other end is closed.
pub fn has_more(socket: &Fd) -> bool {
    let mut byte = 0u8;
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let found = call!(
        libc::SYS_recvfrom,
        socket.raw(),
        &raw mut byte,
        1,
        flags as u32
    );
    found != Err(Errno::AGAIN)
}

/// Whether the other end is closed or shut down: what it sent before can still be received.
pub fn has_ended(socket: &Fd) -> bool {
    let mut poll = libc::pollfd {
        fd: socket.raw(),
        events: libc::POLLRDHUP,
        revents: 0,
    };
    let time = [0u64; 2];
    match call!(libc::SYS_ppoll, &raw mut poll, 1, time.as_ptr(), 0, 8) {
        Ok(0) | Err(Errno::INTR) => false,
        Ok(_) | Err(_) => true,
    }
}

/// Ends a connection for every process that has its descriptor.
pub fn shut_down(socket: &Fd) {
    // An error says that the connection has ended already.
    let _ = call!(libc::SYS_shutdown, socket.raw(), libc::SHUT_RDWR);
}

/// Listens at `path`, which must not exist yet; for its owner alone.
pub fn listen(path: &CStr, backlog: u32) -> Result<Fd> {
    let socket = new_listener()?;
    let (address, bytes) = address(path)?;
    call!(libc::SYS_bind, socket.raw(), &raw const address, bytes)?;
    // What bind(2) leaves is the umask's doing.
    call!(
        libc::SYS_fchmodat,
        libc::AT_FDCWD as i64,
        path.as_ptr(),
        0o600
    )?;
    call!(libc::SYS_listen, socket.raw(), backlog)?;
    Ok(socket)
}

/// Connects to `path`. Waiting for a listener that has no room for us, sending and
/// receiving end with EAGAIN after `patience` (nanoseconds).
pub fn connect(path: &CStr, patience: u64) -> Result<Fd> {
    let (address, bytes) = address(path)?;
    let socket = new(0)?;
    let time = [patience / 1_000_000_000, patience % 1_000_000_000 / 1000];
    for option in [libc::SO_SNDTIMEO, libc::SO_RCVTIMEO] {
        call!(
            libc::SYS_setsockopt,
            socket.raw(),
            libc::SOL_SOCKET,
            option,
            time.as_ptr(),
            size_of_val(&time)
        )?;
    }
    call!(libc::SYS_connect, socket.raw(), &raw const address, bytes)?;
    Ok(socket)
}

/// The next one that connects, if there is one now; else EAGAIN.
pub fn accept(listener: &Fd) -> Result<Fd> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    call!(libc::SYS_accept4, listener.raw(), 0, 0, flags).map(|fd| Fd::owned(fd as i32))
}

/// Who is at the other end.
pub fn peer(socket: &Fd) -> Result<Credentials> {
    let mut found = Credentials {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut bytes = size_of::<Credentials>() as u32;
    call!(
        libc::SYS_getsockopt,
        socket.raw(),
        libc::SOL_SOCKET,
        libc::SO_PEERCRED,
        &raw mut found,
        &raw mut bytes
    )?;
    Ok(found)
}

/// Sends `message` as one, with a descriptor if there is one to be sent. Never SIGPIPE.
pub fn send(socket: &Fd, message: &[u8], fd: Option<i32>) -> Result<()> {
    let mut ancillary = Ancillary {
        len: ONE_FD,
        level: libc::SOL_SOCKET,
        kind: libc::SCM_RIGHTS,
        fd: fd.unwrap_or(-1),
        padding: 0,
    };
    let room = fd.map_or(0, |_| size_of::<Ancillary>());
    let mut part = [message.as_ptr() as u64, message.len() as u64];
    let header = header(&mut part, (&raw mut ancillary).cast(), room);
    let flags = libc::MSG_NOSIGNAL;
    let sent = again(|| {
        call!(
            libc::SYS_sendmsg,
            socket.raw(),
            &raw const header,
            flags as u32
        )
    })?;
    match sent as usize == message.len() {
        true => Ok(()),
        false => Err(Errno::PIPE),
    }
}

/// Receives one message into `buffer`. EAGAIN: none has come in time.
pub fn receive(socket: &Fd, buffer: &mut [u8], room: Room) -> Result<Message> {
    let mut extras = [0u64; ROOM];
    let mut part = [buffer.as_mut_ptr() as u64, buffer.len() as u64];
    let mut header = header(&mut part, extras.as_mut_ptr().cast(), room.bytes());
    let flags = libc::MSG_CMSG_CLOEXEC as u32;
    let bytes = call!(libc::SYS_recvmsg, socket.raw(), &raw mut header, flags)?;
    let extras = Extras::of(&extras, header.msg_controllen.min(room.bytes()));
    let lost_some = header.msg_flags & libc::MSG_CTRUNC != 0;
    Ok(Message {
        bytes: bytes as usize,
        sender: extras.sender,
        cut: header.msg_flags & libc::MSG_TRUNC != 0,
        has_files: lost_some || extras.many != 0,
        file: extras.fd.filter(|_| extras.many == 1 && !lost_some),
    })
}

fn header(part: &mut [u64; 2], extras: *mut u8, room: usize) -> libc::msghdr {
    // SAFETY: all zeroes is a valid header.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = part.as_mut_ptr().cast();
    header.msg_iovlen = 1;
    if room > 0 {
        header.msg_control = extras.cast();
        header.msg_controllen = room as _;
    }
    header
}

fn again(mut f: impl FnMut() -> Result<u64>) -> Result<u64> {
    loop {
        match f() {
            Err(Errno::INTR) => (),
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn one_descriptor_is_taken_and_no_other() {
        let mut pair = [0i32; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        let made = call!(
            libc::SYS_socketpair,
            libc::AF_UNIX,
            kind,
            0,
            pair.as_mut_ptr()
        );
        made.unwrap();
        let [near, far] = pair.map(Fd::owned);
        let mut buffer = [0; 1];
        let mut received = |many: usize, room| {
            let mut words = [16 + 4 * many as u64, 0, 0, 0];
            words[1] =
                u64::from(libc::SCM_RIGHTS as u32) << 32 | u64::from(libc::SOL_SOCKET as u32);
            words[2] = u64::from(near.raw() as u32) << 32 | u64::from(near.raw() as u32);
            words[3] = words[2];
            let mut part = [buffer.as_ptr() as u64, 1];
            let bytes = if many == 0 { 0 } else { 16 + 4 * many };
            let message = header(&mut part, words.as_mut_ptr().cast(), bytes);
            call!(libc::SYS_sendmsg, near.raw(), &raw const message, 0).unwrap();
            let got = receive(&far, &mut buffer, room).unwrap();
            assert!(got.bytes == 1 && got.has_files == (many != 0) && !has_more(&far));
            got.file
        };
        assert!(received(0, Room::File).is_none() && received(1, Room::Nothing).is_none());
        let fd = received(1, Room::File).expect("one was sent");
        assert_eq!(fd.stat().unwrap().inode, near.stat().unwrap().inode);
        drop(fd);
        for many in [2, 3] {
            assert!(received(many, Room::File).is_none(), "{many}");
        }
        // What the kernel has cut off is nothing to be read.
        assert!(Extras::of(&[u64::MAX; ROOM], 15).fd.is_none());
    }

    #[test]
    fn messages_and_descriptors_arrive() {
        let path = std::env::temp_dir().join(format!("regall-socket-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let path = CString::new(path.to_str().unwrap()).unwrap();
        let listener = listen(&path, 4).unwrap();
        let near = connect(&path, 20_000_000).unwrap();
        let far = accept(&listener).unwrap();
        assert_eq!(accept(&listener).err(), Some(Errno::AGAIN));
        let us = Credentials {
            pid: std::process::id(),
            uid: crate::identity::geteuid(),
            gid: peer(&far).unwrap().gid,
        };
        assert_eq!(peer(&near).unwrap(), us);
        assert_eq!(peer(&far).unwrap(), us);

        assert!(!has_more(&far));
        send(&near, b"one", None).unwrap();
        assert!(has_more(&far));
        send(&near, b"four", None).unwrap();
        let mut buffer = [0; 3];
        let first = receive(&far, &mut buffer, Room::Sender).unwrap();
        assert!(first.bytes == 3 && &buffer == b"one" && !first.cut);
        assert_eq!(first.sender, Some(us));
        let second = receive(&far, &mut buffer, Room::Sender).unwrap();
        assert!(second.bytes == 3 && second.cut);
        assert_eq!(second.sender, Some(us));
        // Nobody hands a listener's side a descriptor.
        match send(&near, b"fd", Some(listener.raw())) {
            Err(e) => assert_eq!(e, Errno::PERM),
            Ok(()) => {
                let got = receive(&far, &mut buffer, Room::Sender).unwrap();
                assert!(got.has_files && got.sender == Some(us));
            }
        }
        send(&far, b"two", Some(listener.raw())).unwrap();
        let other_way = receive(&near, &mut buffer, Room::File).unwrap();
        assert!(other_way.sender.is_none() && other_way.has_files);
        let fd = other_way.file.expect("one was sent");
        assert_eq!(fd.stat().unwrap().inode, listener.stat().unwrap().inode);
        let got = receive(&far, &mut buffer, Room::Sender);
        assert_eq!(got.err(), Some(Errno::AGAIN));
        let before = std::time::Instant::now();
        let got = receive(&near, &mut buffer, Room::Nothing);
        assert_eq!(got.err(), Some(Errno::AGAIN));
        assert!(before.elapsed().as_millis() >= 15);
        drop(near);
        let end = receive(&far, &mut buffer, Room::Sender).unwrap();
        assert!(end.bytes == 0 && end.sender.is_none());
        assert_eq!(send(&far, b"x", None).err(), Some(Errno::PIPE));
        let _ = std::fs::remove_file(path.to_str().unwrap());
    }
}
