//! Clocks, read by system call: the vdso is code that we do not own.

use crate::entry::call;
use crate::errno::Result;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Nanoseconds of CLOCK_MONOTONIC.
pub fn now() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Days since 1970-01-01, in UTC.
pub fn day() -> u64 {
    read(libc::CLOCK_REALTIME) / (86_400 * 1_000_000_000)
}

/// Nanoseconds of processor time that this thread has had.
pub fn spent() -> u64 {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Nanoseconds for which thread `tid` of this process has had a processor; 0: nobody says.
pub fn spent_by(tid: u32) -> u64 {
    // CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED (linux/posix-timers.h).
    told(!(tid as i32) << 3 | 4 | 2).unwrap_or(0)
}

fn read(clock: i32) -> u64 {
    // A filter keeps it back: what differences are taken of goes on all the same.
    told(clock).unwrap_or_else(|_| nanos(crate::arch::ticks()))
}

fn told(clock: i32) -> Result<u64> {
    let mut ts = [0u64; 2];
    call!(libc::SYS_clock_gettime, clock, ts.as_mut_ptr())?;
    Ok(ts[0].wrapping_mul(1_000_000_000).wrapping_add(ts[1]))
}

/// Nanoseconds in 2^20 ticks of the time-stamp counter; 0: not known.
static RATE: AtomicU64 = AtomicU64::new(0);

/// Tells how long a tick is: so many `ticks` passed while the clock went on by `nanos`.
pub fn calibrate(ticks: u64, nanos: u64) {
    if let Some(rate) = (nanos << 20).checked_div(ticks) {
        RATE.store(rate, Relaxed);
    }
}

/// Nanoseconds as ticks, as [`nanos`] has it the other way round.
pub fn ticks(nanos: u64) -> u64 {
    let rate = u128::from(RATE.load(Relaxed));
    let ticks = (u128::from(nanos) << 20).checked_div(rate);
    ticks.map_or(nanos, |ticks| ticks as u64)
}

/// Ticks as nanoseconds; before [`calibrate`], as if the counter ran at 1 GHz.
pub fn nanos(ticks: u64) -> u64 {
    match RATE.load(Relaxed) {
        0 => ticks,
        rate => ((u128::from(ticks) * u128::from(rate)) >> 20) as u64,
    }
}
