//! What a process does with descriptors that another user's process should not have handed over.

use super::*;
use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::time::{Duration, Instant};

pub(crate) fn pair() -> [Fd; 2] {
    let mut pair = [0i32; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) };
    assert_eq!(made, 0);
    pair.map(Fd::owned)
}

/// A socket whose last closer waits for five seconds, and the one that it is connected to.
fn lingering() -> (Fd, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    stream.set_nonblocking(true).unwrap();
    while stream.write(&[0; 1 << 16]).is_ok() {}
    let five = libc::linger {
        l_onoff: 1,
        l_linger: 5,
    };
    // SAFETY: a value of that size.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_LINGER,
            (&raw const five).cast(),
            size_of_val(&five) as u32,
        )
    };
    assert_eq!(set, 0);
    (Fd::owned(stream.into_raw_fd()), listener)
}

/// A connection to a user that is not ours, and its other end.
fn to_another_user(uid: u32) -> (Connection, Fd) {
    let [near, far] = pair();
    let mut connection = Connection::on(near, Met::InFolder).unwrap();
    connection.other_user = Some(uid);
    (connection, far)
}

/// What waits for the descriptor's last closer takes no time, nor does closing the connection. What
/// lingers is with its user.
fn at_once<T>(uid: u32, act: impl FnOnce(&mut Connection) -> T) -> T {
    let (mut connection, far) = to_another_user(uid);
    let (lingers, _listener) = lingering();
    socket::send(&far, b"x", None).unwrap();
    socket::send(&far, b"y", Some(lingers.raw())).unwrap();
    drop(lingers);
    let start = Instant::now();
    let got = act(&mut connection);
    drop(connection);
    drop(far);
    assert!(
        start.elapsed() < Duration::from_secs(2),
        "it was waited for"
    );
    assert!(is_distrusted(uid));
    got
}

#[test]
fn what_lingers_is_not_taken() {
    let user = regall_sys::geteuid() + 1000;
    let mut buffer = [0];
    // It is closed unread.
    at_once(user, |_| ());
    let got = at_once(user + 1, |c| {
        assert_eq!(c.receive(&mut buffer, Room::Nothing).unwrap().bytes, 1);
        c.receive(&mut buffer, Room::Nothing).err()
    });
    assert_eq!(got, Some(Errno::PROTO));
    let got = at_once(user + 2, |c| {
        assert_eq!(c.receive(&mut buffer, Room::Nothing).unwrap().bytes, 1);
        c.receive_memory(&mut buffer).err()
    });
    assert_eq!(got, Some(Errno::PROTO));

    // Who has done nothing is trusted still, and everything that it has sent is taken.
    let (connection, far) = to_another_user(user + 3);
    for _ in 0..4 {
        socket::send(&far, b"", None).unwrap();
    }
    drop(connection);
    assert!(socket::has_ended(&far) && !is_distrusted(user + 3));

    // Nor who has answered too late.
    let (connection, far) = to_another_user(user + 3);
    let memory = regall_sys::file::in_memory(c"late", 0).unwrap();
    socket::send(&far, b"x", Some(memory.raw())).unwrap();
    socket::send(&far, b"y", None).unwrap();
    drop(connection);
    assert!(socket::has_ended(&far) && !is_distrusted(user + 3));

    // A child of fork leaves it as it is: its parent uses it. Something may come at any moment.
    for waits in [false, true] {
        let (mut connection, far) = to_another_user(user + 3);
        let parents = connection.duplicate_high().unwrap();
        let childs = connection.raw();
        connection.process = 0;
        if waits {
            socket::send(&far, b"x", Some(memory.raw())).unwrap();
        }
        drop(connection);
        assert!(!socket::has_ended(&far) && !is_distrusted(user + 3));
        assert!(regall_sys::file::stat_fd(childs).is_ok(), "closed");
        if !waits {
            socket::send(&far, b"x", None).unwrap();
        }
        let seen = socket::receive(&parents, &mut buffer, Room::Nothing).unwrap();
        assert_eq!((seen.bytes, seen.has_files), (1, waits));
    }

    // No more than so many.
    for other in 0..16 {
        distrust(user + 100 + other);
    }
    assert!(is_distrusted(user + 4));
    let [near, _far] = pair();
    assert!(Connection::on(near, Met::InFolder).is_ok());
}

#[test]
fn a_number_alone_makes_nobody_our_own_user() {
    let unmapped = 65534;
    for (met, other) in [(Met::ByName, Some(unmapped)), (Met::InFolder, None)] {
        assert_eq!(met.other_user(unmapped, unmapped), other);
    }
    assert_eq!(Met::InFolder.other_user(7, 8), Some(7));

    // So what is no memory is not taken there, whoever sends it.
    let [near, far] = pair();
    let [_ours, given] = pair();
    let mut connection = Connection::on(near, Met::ByName).unwrap();
    socket::send(&far, b"x", Some(given.raw())).unwrap();
    let got = connection.receive(&mut [0], Room::Nothing);
    assert_eq!(got.err(), Some(Errno::PROTO));
}

/// Listens under an abstract name, as a kernel before Linux 6.16 lets it: connections may be handed
/// descriptors.
fn listener(name: &[u8]) -> Listener {
    // SAFETY: all zeroes is a valid address.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    for (to, from) in address.sun_path[1..].iter_mut().zip(name) {
        *to = *from as i8;
    }
    // SAFETY: an address of that size.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0);
        let bytes = 3 + name.len() as u32;
        assert_eq!(libc::bind(socket, (&raw const address).cast(), bytes), 0);
        assert_eq!(libc::listen(socket, 4), 0);
        Listener::on(Fd::owned(socket))
    }
}

#[test]
fn one_user_costs_no_more_than_so_many_descriptors() {
    let us = std::process::id();
    let uid = regall_sys::geteuid() + 5000;
    let name = format!("regall-test-{us}");
    let listener = listener(name.as_bytes());
    let [_reads, poison] = pair();
    let mut left = Vec::new();
    for n in 0..100 {
        assert_eq!(may_ask(us).is_ok(), n < MOST_LEFT);
        if listener.waits() == -1 {
            let refused = socket::connect_abstract(name.as_bytes(), 1_000_000);
            assert_eq!(refused.err(), Some(Errno::CONNREFUSED));
            continue;
        }
        let far = socket::connect_abstract(name.as_bytes(), 1_000_000).unwrap();
        // Sent before it is accepted.
        socket::send(&far, b"x", Some(poison.raw())).unwrap();
        let mut connection = Connection::on(listener.accept().unwrap(), Met::InFolder).unwrap();
        connection.other_user = Some(uid);
        drop(connection);
        assert!(is_distrusted(uid));
        left.push(far);
    }
    assert_eq!(left.len(), MOST_LEFT as usize);
}

#[test]
fn what_waits_in_a_listener_is_not_let_go_of() {
    let name = format!("regall-waits-{}", std::process::id());
    let listener = listener(name.as_bytes());
    let far = socket::connect_abstract(name.as_bytes(), 1_000_000).unwrap();
    let [near, given] = pair();
    socket::send(&far, b"x", Some(given.raw())).unwrap();
    drop(given);
    drop(listener);
    // It would have ended if it had been closed.
    assert!(!socket::has_ended(&near));
    let late = socket::connect_abstract(name.as_bytes(), 1_000_000);
    assert_eq!(late.err(), Some(Errno::CONNREFUSED));
}

#[test]
fn who_is_distrusted_is_not_asked() {
    let us = std::process::id();
    let uid = regall_sys::geteuid();
    assert_eq!(may_ask(us), Ok(()));
    // (As another user would have it.)
    DISTRUSTED[0].store(uid, Relaxed);
    assert_eq!(may_ask(us), Err(Errno::PERM));
    DISTRUSTED[0].store(NOBODY, Relaxed);
}
