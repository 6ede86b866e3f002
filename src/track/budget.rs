//! What may be pinned, and what is said of what may not. The budget is reckoned anew from time
//! to time, where others have a part in it.

use super::{lock, State, USER_END};
use crate::base::settings;
use crate::limits;
use crate::policy::Holding;
use crate::registrar::pin;
use crate::sys::time;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::layout::Counter;
use regall_directory::vocab::{Flags, Reason};

/// Whether it was said that much is over the limit.
static WARNED: AtomicBool = AtomicBool::new(false);

/// When what is over the limit was last looked at.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// Less than so many bytes over the limit is not worth a line.
const MUCH: u64 = 16 << 20;

/// Says once if more than a tenth of what could be pinned is over the limit. Called without
/// the lock.
#[cold]
#[inline(never)]
fn warn_of_limit() {
    if WARNED.load(Relaxed) {
        return;
    }
    let (Some(guard), Some(all)) = (lock(), PageRange::new(0, USER_END)) else {
        return;
    };
    let budget = guard.budget;
    // What is found below is a part of this, which costs nothing to know.
    let pin = &guard.ledger.totals().pin;
    let word = |reason: Reason| pin.get(reason as usize).copied().unwrap_or(0);
    let (limit, held) = (word(Reason::Limit), word(Reason::None));
    if limit < MUCH || limit.saturating_mul(9) <= held {
        return;
    }
    let now = time::now();
    if now.saturating_sub(LOOKED.load(Relaxed)) < PAUSE {
        return;
    }
    LOOKED.store(now, Relaxed);
    let (mut over, mut held) = (0u64, 0u64);
    guard.ledger.for_each(all, |part, entry| {
        // Nobody means to use all that is mapped so (AddressSanitizer maps 14 TiB).
        let reserved = entry.attr.flags.has(Flags::NORESERVE);
        match entry.attr.pin.reason {
            Reason::Limit if !reserved => over = over.saturating_add(part.len()),
            Reason::None => held = held.saturating_add(part.len()),
            _ => (),
        }
        ControlFlow::Continue(())
    });
    drop(guard);
    if over < MUCH || over.saturating_mul(9) <= held || WARNED.swap(true, Relaxed) {
        return;
    }
    let (over, all) = (over >> 20, over.saturating_add(held) >> 20);
    // A budget that comes from the limit is a part of it.
    match limits::memlock_now().filter(|limit| limit / 2 <= budget) {
        Some(limit) => log::warn!(
            "{over} of {all} MiB are not pinned: RLIMIT_MEMLOCK is {} KiB (ulimit -l)",
            limit >> 10
        ),
        None => log::warn!(
            "{over} of {all} MiB are not pinned: the budget is {} MiB (REGALL_LIMIT, or what \
             the cgroup or the node has left)",
            budget >> 20
        ),
    }
}

/// The budget is reckoned anew no more often than this, in nanoseconds: it takes a look at each
/// other process with the shim on.
const PAUSE: u64 = 100_000_000;

/// When it was; 0: it is to be at the next occasion.
static RECKONED: AtomicU64 = AtomicU64::new(0);

/// What was reckoned is not of this process: it is reckoned anew before anything else is pinned.
pub fn look_again(state: &mut State) {
    state.next_look = 0;
    RECKONED.store(0, Relaxed);
}

/// Reckons the budget anew, where others have a part in it.
#[cold]
#[inline(never)]
pub fn reckon() {
    let (now, last) = (time::now(), RECKONED.load(Relaxed));
    if last != 0 && now.saturating_sub(last) < PAUSE {
        return;
    }
    RECKONED.store(now, Relaxed);
    let Some(held) = lock().map(|g| held(&g)) else {
        return;
    };
    let budget = limits::budget(settings::config().limit, held);
    if let Some(mut guard) = lock() {
        guard.set_budget(budget);
    }
}

fn held(state: &State) -> limits::Held {
    limits::Held {
        pinned: state.pinned(),
        lazy: lazy(state),
    }
}

/// Bytes that are locked and that may become resident yet.
pub fn lazy(state: &State) -> u64 {
    match pin::holding() {
        Holding::Populate => 0,
        _ => state.pinned(),
    }
}

/// Others in the same cgroup leave room for it.
#[cold]
pub fn tell_lazy(state: &State) {
    let counters = state.header().map(|h| &h.counters);
    if let Some(place) = counters.and_then(|c| c.get(Counter::LazyBytes as usize)) {
        place.store(lazy(state), Relaxed);
    }
}

/// Whether an address space is being pinned, and what has to wait says `limit`.
static IN_ORDER: AtomicBool = AtomicBool::new(false);

/// Pins an address space, as `pin` does, in the order in which the budget is to be spent: what
/// is over the limit is said when it is done.
pub fn spend_in_order(pin: impl FnOnce()) {
    IN_ORDER.store(true, Relaxed);
    pin();
    IN_ORDER.store(false, Relaxed);
    warn_of_limit();
}

/// Something is over the limit.
#[inline]
pub fn is_exceeded() {
    if !IN_ORDER.load(Relaxed) {
        warn_of_limit();
    }
}

/// Whether the budget has no room for `bytes` more and the user asked for
/// ENOMEM in that case.
pub fn over_budget(bytes: u64) -> bool {
    let config = settings::config();
    config.fail_on_limit
        && pin::locks()
        && lock().is_some_and(|g| g.pinned().saturating_add(bytes) > g.budget)
}
