//! What a process does with descriptors that another user's process should not have handed over.

use super::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time, with nobody distrusted yet.
fn begun() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    LEFT_OPEN.store(0, Relaxed);
    DISTRUSTED
        .iter()
        .for_each(|place| place.store(NOBODY, Relaxed));
    one
}

pub(crate) fn pair() -> [Fd; 2] {
    let mut pair = [0i32; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) };
    assert_eq!(made, 0);
    pair.map(Fd::owned)
}

/// A connection to a user that is not ours, and its other end.
fn to_another_user(uid: u32) -> (Connection, Fd) {
    let [near, far] = pair();
    let mut connection = Connection::on(near, Met::InFolder).unwrap();
    connection.other_user = Some(uid);
    (connection, far)
}

/// A descriptor that would have to be waited for is not closed, nor is the connection by which it
/// came. Its user is not trusted any more.
fn let_go_of_by_nobody<T>(uid: u32, act: impl FnOnce(&mut Connection) -> T) -> T {
    let (mut connection, far) = to_another_user(uid);
    // (Any socket will do: it ends when it is closed.)
    let [seen, given] = pair();
    socket::send(&far, b"x", None).unwrap();
    socket::send(&far, b"y", Some(given.raw())).unwrap();
    drop(given);
    let got = act(&mut connection);
    drop(connection);
    drop(far);
    assert!(!socket::has_ended(&seen), "it was closed");
    assert!(is_distrusted(uid));
    got
}

#[test]
fn what_lingers_is_not_taken() {
    let _alone = begun();
    let user = regall_sys::geteuid() + 1000;
    let mut buffer = [0];
    // It is closed unread.
    let_go_of_by_nobody(user, |_| ());
    let got = let_go_of_by_nobody(user + 1, |c| {
        assert_eq!(c.receive(&mut buffer, Room::Nothing).unwrap().bytes, 1);
        c.receive(&mut buffer, Room::Nothing).err()
    });
    assert_eq!(got, Some(Errno::PROTO));
    let got = let_go_of_by_nobody(user + 2, |c| {
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
        let in_child = connection.raw();
        connection.process = 0;
        if waits {
            socket::send(&far, b"x", Some(memory.raw())).unwrap();
        }
        drop(connection);
        assert!(!socket::has_ended(&far) && !is_distrusted(user + 3));
        assert!(regall_sys::file::stat_fd(in_child).is_ok(), "closed");
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
    let _alone = begun();
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
    let _alone = begun();
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
    let _alone = begun();
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
    let _alone = begun();
    let us = std::process::id();
    let uid = regall_sys::geteuid();
    assert_eq!(may_ask(us), Ok(()));
    // (As another user would have it.)
    DISTRUSTED[0].store(uid, Relaxed);
    assert_eq!(may_ask(us), Err(Errno::PERM));
}

/// Where there is no free descriptor, a bounce buffer can't be told from what has to be waited for.
#[test]
fn who_can_not_be_judged_is_not_distrusted() {
    let _alone = begun();
    let uid = regall_sys::geteuid() + 7000;
    let (mut connection, far) = to_another_user(uid);
    let (kept, other_far) = to_another_user(uid);
    let memory = regall_sys::file::in_memory(c"bounce", 0).unwrap();
    for socket in [&far, &other_far] {
        socket::send(socket, b"x", Some(memory.raw())).unwrap();
    }
    let mut before = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let set = |limit: &libc::rlimit| {
        // SAFETY: a limit that outlives the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) }, 0);
    };
    // SAFETY: room for a limit.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut before) };
    set(&libc::rlimit {
        rlim_cur: 0,
        ..before
    });
    let none = connection.receive_memory(&mut [0]).err();
    drop(kept);
    set(&before);
    assert_eq!(none, Some(Errno::MFILE));
    assert!(!is_distrusted(uid) && LEFT_OPEN.load(Relaxed) == 1);
    // It is known by now what waits there.
    drop(connection);
    assert!(socket::has_ended(&far));
    assert!(!is_distrusted(uid) && LEFT_OPEN.load(Relaxed) == 1);
}
