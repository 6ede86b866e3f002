//! Clocks, read by system call: the vdso is code that we do not own.

use super::call;

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    let mut ts = [0u64; 2];
    match call!(libc::SYS_clock_gettime, libc::CLOCK_MONOTONIC, ts.as_mut_ptr()) {
        Ok(_) => ts[0].wrapping_mul(1_000_000_000).wrapping_add(ts[1]),
        Err(_) => 0,
    }
}
