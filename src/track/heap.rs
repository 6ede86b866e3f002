//! brk(2): the heap. The break is where the application puts it: a step further, to a whole
//! huge page, was tried, and gave it what it had mapped there itself.

use super::flight::Flight;
use super::headroom::{self, Charge};
use super::settling::settle_new;
use super::taken::{put_back, Taken};
use super::turns::lock_for;
use super::{
    backed, close, deferred, end, future_flags, lock, notes, open, over_budget, real, resync,
    retracting,
};
use crate::arch::Frame;
use crate::base::settings;
use crate::huge;
use crate::policy;
use crate::registrar::pin;
use crate::share;
use crate::sys::Errno;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use regall_directory::addr::{round_up, PageRange};
use regall_directory::layout::Call;
use regall_directory::planted;
use regall_directory::vocab::{Attr, Flags, Kind, Prot};

/// The program break as the kernel last said; written under the lock, or where that can't be had.
static BREAK: AtomicU64 = AtomicU64::new(0);
/// Where it was when tracking began.
static FIRST: AtomicU64 = AtomicU64::new(0);

/// What libc moves the break by, at the least.
const LIBC_STEP: u64 = 1 << 20;
/// What a heap grows by is advised, or shared, once it has so many bytes.
const LARGE: u64 = 1 << 20;

/// Tracking starts with the program break at `brk`.
pub fn begin_at(brk: u64) {
    BREAK.store(brk, Relaxed);
    FIRST.store(brk, Relaxed);
}

/// The heap's attributes before it is pinned.
fn attr() -> Attr {
    let config = settings::config();
    let mut flags = future_flags();
    let exclude = config.exclude.as_bytes();
    if !exclude.is_empty() && crate::glob::matches_any(exclude, b"[heap]") {
        flags = flags.with(Flags::EXCLUDED);
    }
    policy::described(
        policy::fresh(Prot::from_call(3, false), Kind::Heap, flags),
        pin::holding(),
    )
}

/// Whether it may be the heap's.
fn is_heap(attr: Attr) -> bool {
    attr.kind == Kind::Heap || attr.flags.has(Flags::BACKED)
}

/// Whole pages between two breaks.
fn between(from: u64, to: u64) -> Option<PageRange> {
    round_up(from)
        .zip(round_up(to))
        .and_then(|(from, to)| PageRange::new(from, to))
}

/// brk(2).
#[inline(never)]
pub fn brk(frame: &mut Frame) -> i64 {
    let wanted = frame.args[0];
    let flight = open(Call::Brk);
    let mut taken = Taken::new();
    let (before, top) = take_top(&flight, wanted, &mut taken);
    let shrunk = match top {
        Top::Taken(range) => Some(range),
        Top::Stays | Top::Noted(_) => None,
    };
    if let Some(range) = shrunk {
        retracting::retract(range);
    }
    if wanted > before && before != 0 && over_budget(wanted - before) {
        return before as i64;
    }
    let mut value = real(frame);
    if wanted > before && (value as u64) < wanted && before != 0 {
        let refused = |value: i64| (value as u64) < wanted;
        value = headroom::retry(frame, value, refused, Charge::future(wanted - before));
    }
    let now = value as u64;
    match shrunk {
        Some(range) if now != wanted => planted!("brk-refused", (), put_back(range, &taken)),
        _ => taken.done(),
    }
    let new = fresh(before, wanted, now);
    let grown = enter(&flight, before, now, new, shrunk.is_some());
    // In a handler on top of the lock's holder: the heap is read anew.
    if grown.is_err() && wanted != 0 {
        BREAK.store(now, Relaxed);
        let bytes = now.abs_diff(before).max(LIBC_STEP);
        if let Some(heap) = PageRange::covering(now.min(before), bytes) {
            notes::spoiled(heap);
        }
    }
    let grown = grown.unwrap_or(None);
    if let Some(range) = grown {
        settle_new(range);
    }
    if let Top::Noted(range) = top {
        // It may have been read again before the kernel has taken it.
        notes::spoiled(range);
    }
    match shrunk.or(grown) {
        Some(range) => close(flight, range),
        None => end(flight),
    }
    value
}

/// The end of the heap, where a call is about to set the break lower.
enum Top {
    /// It stays, or nobody knows it.
    Stays,
    /// It has been taken out of the ledger.
    Taken(PageRange),
    /// The mutex can't be had: it is hidden and noted.
    Noted(PageRange),
}

/// Returns where the break is, and takes the part of the heap that it is to leave out of the ledger.
#[inline]
fn take_top(flight: &Flight, wanted: u64, taken: &mut Taken) -> (u64, Top) {
    let down = |from| between(wanted, from).filter(|_| wanted != 0);
    let before = BREAK.load(Relaxed);
    // A heap that grows needs the lock only after the call.
    let Some(range) = down(before) else {
        return (before, Top::Stays);
    };
    let Some(mut guard) = lock_for(&[Some(range)]) else {
        // (A break below its beginning is refused.)
        let first = FIRST.load(Relaxed);
        if first == 0 || range.start() < first {
            return (before, Top::Stays);
        }
        deferred::gone(range);
        return (before, Top::Noted(range));
    };
    let before = BREAK.load(Relaxed);
    // A break below its beginning is refused; what we don't know we don't touch.
    let shrunk = down(before).filter(|r| guard.at(r.start()).is_some_and(is_heap));
    if let Some(range) = shrunk {
        flight.claim(&guard, range);
        taken.take(&mut guard, range);
    }
    (before, shrunk.map_or(Top::Stays, Top::Taken))
}

/// What the heap is that has come between two breaks. Nobody has been told of it yet.
#[inline]
fn fresh(before: u64, wanted: u64, now: u64) -> Attr {
    let mut new = attr();
    if let Some(range) = between(before, now).filter(|_| before != 0 && now == wanted) {
        if now.saturating_sub(FIRST.load(Relaxed)) >= LARGE {
            if share::on() {
                backed::fresh_heap(range, &mut new);
            }
            huge::fresh(range);
        }
    }
    new
}

/// The break is at `now`: enters what the heap has grown by. An error: the lock can't be had.
#[inline]
fn enter(
    flight: &Flight,
    before: u64,
    now: u64,
    new: Attr,
    shrunk: bool,
) -> Result<Option<PageRange>, Errno> {
    let mut guard = lock().ok_or(Errno::BUSY)?;
    let from = BREAK.load(Relaxed);
    BREAK.store(now, Relaxed);
    let grown = between(from, now).filter(|_| from != 0);
    if let Some(range) = grown {
        flight.touch(&guard, range);
        planted!("brk-not-entered", (), guard.insert(range, new));
    }
    drop(guard);
    // Another thread has moved it meanwhile: what is where the kernel knows.
    if let (Some(range), true) = (grown, from != before) {
        resync::range(range, true);
    }
    let lost = between(now, from).filter(|_| !shrunk);
    if let Some(range) = lost {
        resync::range(range, true);
    }
    Ok(grown)
}
