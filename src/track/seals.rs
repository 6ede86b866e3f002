//! Sealed memory (mseal(2)): the kernel lets nobody unmap, move or replace it.
//!
//! A call that the kernel is going to refuse for that is made at once: nothing leaves the ledger
//! for it, and no pin, lock or registration is let go and made again.

use super::{failed, lock, real, resync};
use crate::arch::Frame;
use crate::base::counters::count_call;
use crate::share;
use crate::sys::Errno;
use core::ops::ControlFlow;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU64, AtomicUsize};
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;
use regall_directory::vocab::Flags;

/// Stretches that are known; calls on further ones are treated as all others are.
const MOST: usize = 1024;

struct Stretch {
    start: AtomicU64,
    end: AtomicU64,
}

static STRETCHES: [Stretch; MOST] = [const {
    Stretch {
        start: AtomicU64::new(0),
        end: AtomicU64::new(0),
    }
}; MOST];
/// How many there are. They are never taken away, since no seal is ever broken; empty ones stay.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// `range` has been sealed.
#[cold]
#[inline(never)]
pub fn add(range: PageRange) {
    // Only one thread adds at a time; who looks needs no lock.
    let Some(guard) = lock() else {
        return;
    };
    // A child has none of it, and may have other memory there.
    let mut inherited = true;
    guard.ledger.for_each(range, |_, entry| {
        inherited &= !entry.attr.flags.has(Flags::NOT_FORKED);
        ControlFlow::Continue(())
    });
    if !inherited {
        return;
    }
    let count = COUNT.load(Relaxed);
    for stretch in STRETCHES.iter().take(count) {
        let (start, end) = (stretch.start.load(Relaxed), stretch.end.load(Relaxed));
        if range.start() >= start && range.end() <= end {
            return;
        }
        if range.start() >= start && range.start() <= end {
            stretch.end.store(range.end(), Release);
            return;
        }
    }
    if let Some(new) = STRETCHES.get(count) {
        new.start.store(range.start(), Relaxed);
        new.end.store(range.end(), Relaxed);
        COUNT.store(count + 1, Release);
    }
}

/// A child will not have `range`, and may have other memory there.
#[cold]
#[inline(never)]
pub fn forget(range: PageRange) {
    let Some(_guard) = lock() else {
        return;
    };
    let count = COUNT.load(Relaxed);
    for stretch in STRETCHES.iter().take(count) {
        let (start, end) = (stretch.start.load(Relaxed), stretch.end.load(Relaxed));
        if range.start() < end && start < range.end() {
            stretch.end.store(start, Release);
        }
    }
}

/// Whether some of `range` is known to be sealed.
#[inline]
pub fn touches(range: PageRange) -> bool {
    let count = COUNT.load(Acquire);
    STRETCHES.iter().take(count).any(|stretch| {
        range.start() < stretch.end.load(Relaxed) && stretch.start.load(Relaxed) < range.end()
    })
}

/// The answer to a call that is to take away one of `ranges`, if some of that is sealed.
#[inline]
pub fn refused(call: Call, frame: &Frame, ranges: [Option<PageRange>; 2]) -> Option<i64> {
    if COUNT.load(Relaxed) == 0 {
        return None;
    }
    ask(call, frame, ranges)
}

#[cold]
#[inline(never)]
fn ask(call: Call, frame: &Frame, ranges: [Option<PageRange>; 2]) -> Option<i64> {
    if !ranges.iter().flatten().any(|range| touches(*range)) {
        return None;
    }
    let value = real(frame);
    // Several mappings to the kernel that are one to the application: mremap moves each.
    let several = share::any() && !ranges[0].is_some_and(touches);
    if several && value == -i64::from(Errno::FAULT.0) {
        return None;
    }
    count_call(call);
    if !failed(value) {
        // It was not sealed, which nothing that is known of explains: the kernel is asked.
        resync::audit();
    }
    Some(value)
}
