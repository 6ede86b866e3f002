//! What a process does with descriptors that a helper should not have handed over.

use super::*;

fn pair() -> [Fd; 2] {
    let mut pair = [0i32; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: room for two.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, pair.as_mut_ptr()) };
    assert_eq!(made, 0);
    pair.map(Fd::owned)
}

/// A pipe's end that can be read when nobody has the other end any more; and that one.
fn pipe() -> [Fd; 2] {
    let mut ends = [0i32; 2];
    // SAFETY: room for two.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK) };
    assert_eq!(made, 0);
    ends.map(Fd::owned)
}

/// What comes of a greeting that is answered so, with that descriptor; and whether this process
/// has it still.
fn greeted(errno: u32, number: u64) -> (bool, bool) {
    let [near, far] = pair();
    let [reads, writes] = pipe();
    let mut open = Open::on(near).unwrap();
    let answer = Answer {
        magic: crate::wire::MAGIC,
        errno,
        number,
        bytes: 0,
        reserved: 0,
    };
    socket::send(&far, &answer.to_bytes(), Some(writes.raw())).unwrap();
    drop(writes);
    let good = matches!(open.greet(0, || Errno::STALE), Ok(Ok(())));
    let kept = reads.read(&mut [0]) == Err(Errno::AGAIN);
    (good, kept)
}

#[test]
fn no_descriptor_comes_with_what_has_none() {
    for (errno, number) in [(libc::EPERM as u32, 1), (0, 2), (5000, 1)] {
        assert_eq!(greeted(errno, number), (false, false), "{errno} {number}");
    }
}

#[test]
fn what_is_no_memory_is_not_closed_and_its_user_not_asked_again() {
    assert_eq!(greeted(0, 1), (false, true));
    // Our own user is one party with us.
    assert!(!is_distrusted(regall_sys::geteuid()));
    let other = regall_sys::geteuid() + 1;
    assert!(!is_distrusted(other + 1));
    distrust(other);
    assert!(is_distrusted(other) && !is_distrusted(other + 1));
    // No more than so many.
    for user in 0..16 {
        distrust(other + 100 + user);
    }
    assert!(is_distrusted(other + 1) && !is_distrusted(regall_sys::geteuid()));
}
