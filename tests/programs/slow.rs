//! Calls that the kernel is slow to make, since strace holds them back: what takes one run in a thousand
//! otherwise happens in each.

use super::*;

/// `contended HOW` is as without the shim where strace does to each call of this name what is said.
fn contended(how: &str, call: &str, what: &str, runs: usize) {
    if missing("strace") {
        return;
    }
    let program = build::program("contended");
    let plain = run("contended", &[how], Mode::Plain);
    let mut strace = Mode::Auto.under_strace(call, what);
    strace.arg("--seccomp-bpf").arg(program).arg(how);
    for _ in 0..if thorough() { runs } else { runs.min(2) } {
        let slow = child::run(&mut strace, TIMEOUT);
        assert_eq!(slow.end(), plain.end(), "{}", slow.stderr);
        assert_eq!(slow.stdout, plain.stdout);
    }
}

/// Longer than some advice is given in.
const SLOW: &str = "delay_enter=60000:when=2+";

/// A mapping that the kernel is slow to replace stays pinned until it is replaced. Without the wait,
/// every other run is refused.
#[test]
fn contended_by_mmap() {
    contended("mmap", "mmap", SLOW, 4);
}

/// (This one is not refused often enough without the wait to fail.)
#[test]
fn contended_by_munmap() {
    contended("munmap", "munmap", SLOW, 2);
}

#[test]
fn contended_by_mremap() {
    contended("mremap", "mremap", SLOW, 4);
}

#[test]
fn contended_by_mremap_onto() {
    contended("onto", "mremap", SLOW, 4);
}

#[test]
fn contended_by_mremap_that_shrinks() {
    contended("shrink", "mremap", SLOW, 4);
}

#[test]
fn contended_by_two() {
    contended("two", "mmap", SLOW, 4);
}

/// Threads end at any moment, also in the midst of a call that fails.
#[test]
fn contended_by_threads_that_end() {
    let fails = "error=EINTR:delay_enter=60000:when=2+2";
    contended("ends", "munmap", fails, 1);
}

/// What a thread was about to unmap when it ended is still there, with our pins.
#[test]
fn contended_by_one_that_has_ended() {
    contended(
        "ended",
        "munmap",
        "error=EINTR:delay_enter=400000:when=1",
        1,
    );
}
