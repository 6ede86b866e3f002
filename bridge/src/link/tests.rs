//! What a process does with what a helper answers.

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

struct Fine;

impl Health for Fine {
    fn answered(&self) -> u64 {
        0
    }

    fn gone(&self) -> Errno {
        Errno::STALE
    }
}

/// Whether a greeting that is answered so, with `given`, is a success.
fn greeted(errno: u32, number: u64, given: &Fd) -> bool {
    let [near, far] = pair();
    let mut open = Open::on(near).unwrap();
    let answer = Answer {
        magic: crate::wire::MAGIC,
        errno,
        number,
        bytes: 0,
        reserved: 0,
    };
    socket::send(&far, &answer.to_bytes(), Some(given.raw())).unwrap();
    matches!(open.greet(0, &Fine), Ok(Ok(())))
}

#[test]
fn a_bounce_buffer_is_memory_of_its_size() {
    let memory = file::in_memory(c"bounce", 0).unwrap();
    memory.truncate(BOUNCE).unwrap();
    assert!(greeted(0, 1, &memory));
    for (errno, number) in [(libc::EPERM as u32, 1), (0, 2), (5000, 1)] {
        assert!(!greeted(errno, number, &memory), "{errno} {number}");
    }
    for bytes in [BOUNCE - 1, BOUNCE + 1] {
        memory.truncate(bytes).unwrap();
        assert!(!greeted(0, 1, &memory), "{bytes}");
    }

    // Nobody has what is no memory afterwards.
    let [reads, writes] = pipe();
    assert!(!greeted(0, 1, &writes));
    drop(writes);
    assert_eq!(reads.read(&mut [0]), Ok(0));
}
