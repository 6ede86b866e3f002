//! Memory that is held without a lock, because there is no swap space that it could be written to
//! (REGALL_PIN=auto), and the end of that: then it is locked.
//!
//! Swap space, what the cgroup may use of it and which cgroup it is are looked at together: at
//! audits, and at most once a second at the end of a call. A process that makes no call does not
//! look.

use super::settling::settle_foreign;
use super::{flight, lock, USER_END};
use crate::arch;
use crate::config::Pin;
use crate::policy::{self, Holding};
use crate::registrar::pin;
use crate::swap;
use crate::sys::{self, time};
use crate::thread;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;

/// When it is to be looked at again, in ticks; 0: never.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// The last look could not tell.
static UNKNOWN: AtomicBool = AtomicBool::new(false);

/// Nanoseconds between two looks at the end of calls.
const INTERVAL: u64 = 1_000_000_000;

/// Nanoseconds between the moment from which on calls look for locks and the first lock.
const GRACE: u64 = 1_000_000;

/// The process begins with REGALL_PIN set to `how`.
pub fn begin(how: Pin) {
    if how != Pin::Auto {
        return pin::hold(Holding::with_swap(how));
    }
    swap::begin();
    let (holding, _) = swap::found();
    pin::hold(holding);
    if holding != Holding::Touched {
        wait();
    }
}

fn wait() {
    let next = arch::ticks().wrapping_add(time::ticks(INTERVAL));
    NEXT.store(next.max(1), Relaxed);
}

/// Asks for a look at the end of the call that is in progress.
pub fn look_soon() {
    if NEXT.load(Relaxed) != 0 {
        NEXT.store(1, Relaxed);
    }
}

/// Looks whether memory is still held without a lock, if it is time. To be called at the end of a
/// call.
#[inline]
pub fn look() {
    let next = NEXT.load(Relaxed);
    if next != 0 && arch::ticks() >= next && thread::current().flights[0].get() == 0 {
        look_now();
    }
}

#[cold]
#[inline(never)]
fn look_now() {
    // A child of vfork has this from its parent, whose cgroup may be another.
    if !sys::is_memory_owner() {
        return;
    }
    wait();
    let (found, known) = swap::found();
    // What can't be told may be so for a moment (no descriptor is left): the second time it counts.
    let doubtful = !known && !UNKNOWN.load(Relaxed);
    UNKNOWN.store(!known, Relaxed);
    if is_more(found) && !doubtful {
        lock_all(found);
    }
}

/// Whether more is to be locked than is. What was written to swap space once may be there still:
/// there is no way back.
fn is_more(found: Holding) -> bool {
    found as u8 > pin::holding() as u8
}

/// There is swap space: what was held without a lock is locked, as `holding` says.
fn lock_all(holding: Holding) {
    let Some(all) = PageRange::new(0, USER_END) else {
        return;
    };
    let (flight, _) = flight::begin(Call::Mmap);
    let Some(mut guard) = lock() else {
        return look_soon();
    };
    if !is_more(holding) {
        return;
    }
    pin::hold(holding);
    guard.update(all, |_, a| policy::described(a, holding));
    drop(guard);
    // Advice that has found no locks is given before there are any. (A signal ends a nap.)
    let until = time::now().saturating_add(GRACE);
    while time::now() < until {
        sys::nap(GRACE);
    }
    if holding == Holding::Touched {
        NEXT.store(0, Relaxed);
    }
    log::info!("there is swap space: what is touched is locked from here on");
    settle_foreign(all);
    drop(flight);
}
