//! Directory entries that a signal handler hides on top of the lock's holder, when the memory
//! that they tell of is about to go: it can't wait for the lock, and must not touch the writer.

use crate::atomic::{AtomicBool, AtomicPtr, Ordering::*};
use regall_directory::addr::PageRange;
use regall_directory::layout::{Slot, SEGMENT0_SLOTS, SEGMENTS};

/// The writer's segments, for [`hide`].
static SEGMENT: [AtomicPtr<Slot>; SEGMENTS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; SEGMENTS];

/// Whether anything was hidden since everything was published anew.
static HIDDEN: AtomicBool = AtomicBool::new(false);

/// Something is hidden, and may stay so.
pub fn some() {
    HIDDEN.store(true, SeqCst);
}

/// Whether something may be: by who is told so, and publishes everything anew.
pub fn take_some() -> bool {
    HIDDEN.load(SeqCst) && HIDDEN.swap(false, SeqCst)
}

/// Segment `k` is at `base`.
pub fn know_segment(k: usize, base: *mut Slot) {
    if let Some(place) = SEGMENT.get(k) {
        place.store(base, Release);
    }
}

/// There are none any more: after fork.
pub fn reset() {
    for s in &SEGMENT {
        s.store(core::ptr::null_mut(), Relaxed);
    }
}

/// Every directory entry that touches `range` becomes invisible now. What is hidden with it and
/// stays is published anew by who works the note off ([`super::notes`]).
pub fn hide(range: PageRange) {
    some();
    for (k, segment) in SEGMENT.iter().enumerate() {
        let base = segment.load(Acquire);
        if base.is_null() {
            break;
        }
        for i in 0..SEGMENT0_SLOTS << k {
            // SAFETY: a mapped segment has this many slots, all atomics.
            let slot = unsafe { &*base.add(i) };
            let seen = slot.generation.load(Acquire);
            if seen != 0
                && slot.start.load(Relaxed) < range.end()
                && range.start() < slot.end.load(Relaxed)
            {
                // (Not if it has become another's meanwhile.)
                let _ = slot.generation.compare_exchange(seen, 0, Release, Relaxed);
            }
        }
    }
}
