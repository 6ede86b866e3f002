//! Events of a signal handler that came while its own thread held the lock.
//! The handler can't wait for it. Its call is made; what it was about is noted
//! and read anew from the kernel as soon as the lock is free. An unmapping is
//! taken out of the directory before its call all the same.

use super::{flight, resync};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering::*};
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, Counter, Slot, SEGMENT0_SLOTS, SEGMENTS};

const NOTES: usize = 64;
static NOTED: [(AtomicU64, AtomicU64); NOTES] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; NOTES];
static COUNT: AtomicUsize = AtomicUsize::new(0);
static DRAINING: AtomicBool = AtomicBool::new(false);

/// The writer's segments, for [`retract`], which must not touch the writer.
static SEGMENT: [AtomicPtr<Slot>; SEGMENTS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SEGMENTS];

/// Segment `k` is at `base`.
pub fn know_segment(k: usize, base: *mut Slot) {
    if let Some(place) = SEGMENT.get(k) {
        place.store(base, Release);
    }
}

/// After fork or a rebuild.
pub fn reset() {
    for s in &SEGMENT {
        s.store(core::ptr::null_mut(), Relaxed);
    }
    COUNT.store(0, Relaxed);
    DRAINING.store(false, Relaxed);
}

/// `range` has changed and is to be read anew.
#[cold]
pub fn later(range: PageRange) {
    flight::count(Counter::Deferred);
    let n = COUNT.fetch_add(1, AcqRel);
    if let Some((start, end)) = NOTED.get(n) {
        start.store(range.start(), Relaxed);
        end.store(range.end(), Release);
    }
}

/// `range` is about to be unmapped: every directory entry that touches it
/// becomes invisible now. What was wrongly hidden with it comes back when the
/// note is read.
#[cold]
pub fn retract(range: PageRange) {
    for (k, segment) in SEGMENT.iter().enumerate() {
        let base = segment.load(Acquire);
        if base.is_null() {
            break;
        }
        for i in 0..SEGMENT0_SLOTS << k {
            // SAFETY: a mapped segment has this many slots, all atomics.
            let slot = unsafe { &*base.add(i) };
            if slot.generation.load(Acquire) != 0
                && slot.start.load(Relaxed) < range.end()
                && range.start() < slot.end.load(Relaxed)
            {
                slot.generation.store(0, Release);
            }
        }
    }
    later(range);
}

/// Reads what was noted. Called wherever the lock has just been given back.
#[inline]
pub fn drain() {
    if COUNT.load(Acquire) != 0 {
        drain_slowly();
    }
}

#[cold]
fn drain_slowly() {
    if DRAINING.swap(true, Acquire) {
        return;
    }
    let (flight, _) = flight::open(Call::Mmap);
    let n = COUNT.load(Acquire);
    if n > NOTES {
        COUNT.store(0, Release);
        resync::audit();
    }
    for (start, end) in NOTED.iter().take(n.min(NOTES)) {
        let noted = PageRange::new(start.load(Relaxed), end.swap(0, AcqRel));
        if let Some(range) = noted {
            resync::republish(range);
            resync::foreign(range);
        }
    }
    // A handler that noted something meanwhile is read in the next round.
    let _ = COUNT.compare_exchange(n, 0, AcqRel, Relaxed);
    drop(flight);
    DRAINING.store(false, Release);
}
