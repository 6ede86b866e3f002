//! Waiting for other threads.

use crate::entry::call;
use crate::errno::{Errno, Result};
use crate::{arch, time};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Sleeps until `word` is no longer `seen`, someone wakes it, or `nanos` are over:
/// then the answer is true.
pub fn futex_wait(word: &AtomicU32, seen: u32, nanos: u32) -> bool {
    wait_by(
        libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
        word,
        seen,
        nanos,
    )
}

fn wait_by(how: i32, word: &AtomicU32, seen: u32, nanos: u32) -> bool {
    let timeout = [0u64, u64::from(nanos)];
    match call!(libc::SYS_futex, word.as_ptr(), how, seen, timeout.as_ptr()) {
        Err(Errno::PERM) => wait_awake(word, seen, nanos),
        woken => woken == Err(Errno::TIMEDOUT),
    }
}

/// The same where a filter forbids to sleep.
#[cold]
#[inline(never)]
fn wait_awake(word: &AtomicU32, seen: u32, nanos: u32) -> bool {
    /// Nanoseconds of a nap, at first and at the most.
    const NAPS: (u64, u64) = (50_000, 10_000_000);
    let since = arch::ticks();
    let mut long = NAPS.0;
    while word.load(Relaxed) == seen {
        let left = u64::from(nanos).saturating_sub(time::nanos(arch::ticks().wrapping_sub(since)));
        if left == 0 {
            return true;
        }
        nap(long.min(left));
        long = (long * 2).min(NAPS.1);
    }
    false
}

/// Wakes one sleeper on `word`; says whether there was one.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32) -> bool {
    let woken = call!(
        libc::SYS_futex,
        word.as_ptr(),
        libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
        1
    );
    woken == Ok(1)
}

/// Wakes all sleepers on `word`.
pub fn futex_wake_all(word: &core::sync::atomic::AtomicU32) {
    let _ = call!(
        libc::SYS_futex,
        word.as_ptr(),
        libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
        i32::MAX
    );
}

/// As [`futex_wait`], on a word that other processes have mapped, too.
pub fn futex_wait_shared(word: &core::sync::atomic::AtomicU32, seen: u32, nanos: u32) -> bool {
    wait_by(libc::FUTEX_WAIT, word, seen, nanos)
}

/// Wakes all sleepers on such a word, in whatever process.
pub fn futex_wake_shared(word: &core::sync::atomic::AtomicU32) {
    let _ = call!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
}

/// Sleeps for `nanos` (less than a second), less if a signal comes; only gives the processor away
/// where filters forbid every way to sleep.
pub fn nap(nanos: u64) {
    let time = [0u64, nanos];
    if call!(libc::SYS_nanosleep, time.as_ptr(), 0) == Err(Errno::PERM) {
        nap_otherwise(&time);
    }
}

#[cold]
#[inline(never)]
fn nap_otherwise(time: &[u64; 2]) {
    static NOBODY_WAKES: AtomicU32 = AtomicU32::new(0);
    let (word, how) = (
        NOBODY_WAKES.as_ptr(),
        libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
    );
    let at = time.as_ptr();
    let done = |slept: Result<u64>| slept != Err(Errno::PERM);
    let slept = done(call!(
        libc::SYS_clock_nanosleep,
        libc::CLOCK_MONOTONIC,
        0,
        at,
        0
    )) || done(call!(libc::SYS_ppoll, 0, 0, at, 0, 8))
        || done(call!(libc::SYS_futex, word, how, 0, at));
    if !slept {
        yield_now();
    }
}

/// Gives the processor away.
pub fn yield_now() {
    if call!(libc::SYS_sched_yield).is_err() {
        core::hint::spin_loop();
    }
}
