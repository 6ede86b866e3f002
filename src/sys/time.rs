//! Clocks, read by system call: the vdso is code that we do not own.

use super::call;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Nanoseconds of processor time that this thread has had.
pub fn spent() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn read(clock: i32) -> u64 {
    let mut ts = [0u64; 2];
    match call!(libc::SYS_clock_gettime, clock, ts.as_mut_ptr()) {
        Ok(_) => ts[0].wrapping_mul(1_000_000_000).wrapping_add(ts[1]),
        Err(_) => 0,
    }
}
