//! Looks now and then whether somebody's breakpoints stand in the places of patches.

use super::patch;
use crate::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::base::numbers;
use crate::base::{counters, mode};
use crate::config::Intercept;
use crate::sys::time;
use crate::track;
use regall_directory::layout::Counter;

/// Nanoseconds between two looks at the least.
const INTERVAL: u64 = 250_000_000;

/// When somebody looked last.
static LAST: AtomicU64 = AtomicU64::new(0);
/// Whether there were probes that hide nothing.
static HARMLESS: AtomicBool = AtomicBool::new(false);
static SAID: AtomicBool = AtomicBool::new(false);

/// To be called every few hundred events, when nothing is in progress. What a breakpoint has
/// hidden is read anew.
#[cold]
pub fn look() {
    let (now, last) = (time::now(), LAST.load(Relaxed));
    let due = now.saturating_sub(last) >= INTERVAL && mode::mode() != Intercept::Symbols;
    if !due || LAST.compare_exchange(last, now, Relaxed, Relaxed).is_err() {
        return;
    }
    let seen = patch::check();
    // The kernel has mapped a page for them.
    if (seen.harmless > 0) != HARMLESS.swap(seen.harmless > 0, Relaxed) {
        track::audit();
    }
    if seen.standing == 0 && seen.mended == 0 {
        return;
    }
    counters::add(Counter::Probed, u64::from(seen.standing));
    if !SAID.swap(true, Relaxed) {
        let call = seen.number.and_then(|nr| numbers::call_of(u64::from(nr)));
        log::warn!(
            "a probe or a breakpoint is or was in the place of the hook of {}: what it hid is read anew from time to time",
            call.map_or("a call", |call| call.word())
        );
    }
    track::audit();
}
