//! Looks now and then whether somebody's breakpoints stand in the places of patches.

use crate::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::base::{counters, mode};
use crate::config::Intercept;
use crate::patch;
use crate::sys::time;
use crate::track;
use regall_directory::layout::Counter;
use regall_directory::numbers;

/// Nanoseconds between two looks at the least, ...
const INTERVAL: u64 = 250_000_000;
/// ... and at the most, where a look costs much, or a patch can't be put back and hides calls
/// for good.
const LONGEST: u64 = 64 * INTERVAL;
/// A pause is so many times as long as the look before it took.
const SHARE: u64 = 100;

/// When somebody looked last.
static LAST: AtomicU64 = AtomicU64::new(0);
/// Nanoseconds from then to the next look.
static PAUSE: AtomicU64 = AtomicU64::new(INTERVAL);
/// Whether there were probes that hide nothing.
static HARMLESS: AtomicBool = AtomicBool::new(false);
static SAID: AtomicBool = AtomicBool::new(false);

/// To be called every few hundred events, when nothing is in progress. What a breakpoint has
/// hidden is read anew.
#[cold]
pub fn look() {
    let (now, last) = (time::now(), LAST.load(Relaxed));
    let pause = PAUSE.load(Relaxed);
    let due = now.saturating_sub(last) >= pause && mode::mode() != Intercept::Symbols;
    if !due || LAST.compare_exchange(last, now, Relaxed, Relaxed).is_err() {
        return;
    }
    let begun = time::spent();
    let stuck = look_now();
    let spent = time::spent().saturating_sub(begun);
    PAUSE.store(next_pause(pause, spent, stuck), Relaxed);
}

/// Nanoseconds to the next look behind one that took `spent`; `pause` came before it.
fn next_pause(pause: u64, spent: u64, stuck: bool) -> u64 {
    let grown = match stuck {
        true => pause.saturating_mul(2).min(LONGEST),
        false => INTERVAL,
    };
    grown.max(spent.saturating_mul(SHARE)).min(LONGEST)
}

/// Whether there is a patch that can't be put back.
fn look_now() -> bool {
    let seen = patch::check();
    // The kernel has mapped a page for them.
    if (seen.harmless > 0) != HARMLESS.swap(seen.harmless > 0, Relaxed) {
        track::audit();
    }
    if seen.standing == 0 && seen.mended == 0 {
        return false;
    }
    counters::add(Counter::Probed, u64::from(seen.standing));
    if !SAID.swap(true, Relaxed) {
        let call = seen.number.and_then(|nr| numbers::call_of(u64::from(nr)));
        log::warn!(
            "a probe or a breakpoint replaces the hook of {}: calls that it hides are noticed later, in the kernel's list of mappings",
            call.map_or("a call", |call| call.word())
        );
    }
    track::audit();
    seen.stuck > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_put_back_is_looked_at_less_and_less() {
        let mut pause = INTERVAL;
        let mut looks = 0;
        let mut passed = 0;
        while passed < 3600 * 4 * INTERVAL {
            pause = next_pause(pause, 100_000, true);
            passed += pause;
            looks += 1;
        }
        assert!((225..240).contains(&looks), "{looks} looks in an hour");
        assert_eq!(next_pause(pause, 100_000, false), INTERVAL);
        // One that takes 20 ms comes every other second.
        assert_eq!(next_pause(INTERVAL, 20_000_000, false), 8 * INTERVAL);
    }
}
