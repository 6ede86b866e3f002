//! Whether keys of each region were looked up, by the number of its record.
//!
//! Each record has a *mark*, which is read and written without the lock, by signal handlers, too.
//! Who looks keys up sets it before they are handed out. Who is about to replace the region
//! withholds them first: only one of both comes to pass.

use crate::ledger::index::Memory;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};

/// Marks in a chunk, as there are records in one.
pub const CHUNK: usize = 512;
/// Chunks at the most, for as many marks as there may be records.
pub const CHUNKS: usize = 512;

/// Each mark is 0, [`WITHHELD`], or the keys that were looked up of the record with its number.
static MARKS: [AtomicPtr<AtomicU64>; CHUNKS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS];
/// The keys are not handed out any more. No region has these.
const WITHHELD: u64 = u64::MAX;
/// So often a look-up tries to set a mark that others are changing.
const TRIES: usize = 8;

/// Sees to it that record `n` has a mark. `false`: there is no memory.
pub fn reserve(memory: &mut impl Memory, n: u32) -> bool {
    let Some(place) = MARKS.get(n as usize / CHUNK) else {
        return false;
    };
    if place.load(Relaxed).is_null() {
        let Some(chunk) = memory.alloc(CHUNK * size_of::<AtomicU64>()) else {
            return false;
        };
        place.store(chunk.as_ptr().cast(), Release);
    }
    true
}

/// The mark of record `n`.
fn mark(n: u32) -> Option<&'static AtomicU64> {
    let (chunk, at) = (n as usize / CHUNK, n as usize % CHUNK);
    let base = MARKS.get(chunk)?.load(Acquire);
    if base.is_null() {
        return None;
    }
    // SAFETY: a chunk has CHUNK marks, zeroed when it came, and is never given back.
    Some(unsafe { &*base.add(at) })
}

/// Record `n` is another region's.
pub fn forget(n: u32) {
    if let Some(mark) = mark(n) {
        mark.store(0, Release);
    }
}

/// The keys of region `n` are about to be handed out; `stands` says whether it is still there.
/// False: it may be about to be replaced, and is to be looked for again.
#[inline]
pub fn give(n: u32, keys: u64, stands: impl Fn() -> bool) -> bool {
    let Some(mark) = mark(n) else {
        return false;
    };
    // A mark that says so is this region's: it is changed only when the region has left.
    mark.load(Acquire) == keys || give_first(mark, keys, stands)
}

#[cold]
fn give_first(mark: &AtomicU64, keys: u64, stands: impl Fn() -> bool) -> bool {
    for _ in 0..TRIES {
        let now = mark.load(Acquire);
        if now == keys {
            return true;
        }
        // What was set for another region that had the number is not taken for this one's, nor is
        // it lost if this one has left.
        if now == WITHHELD || now != 0 && !stands() {
            return false;
        }
        if mark.compare_exchange(now, keys, AcqRel, Relaxed).is_ok() {
            return stands();
        }
    }
    false
}

/// Whether the keys of region `n` were handed out.
pub fn is_given(n: u32, keys: u64) -> bool {
    keys != 0 && mark(n).is_some_and(|mark| mark.load(Acquire) == keys)
}

/// The keys of region `n` are not handed out from now on. False: they were.
pub fn withhold(n: u32, keys: u64) -> bool {
    let set = |now| (now != keys).then_some(WITHHELD);
    keys == 0 || mark(n).is_none_or(|mark| mark.fetch_update(AcqRel, Acquire, set).is_ok())
}

/// They may be again.
pub fn release(n: u32) {
    if let Some(mark) = mark(n) {
        let _ = mark.compare_exchange(WITHHELD, 0, Release, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registrar::heap::Heap;

    const KEYS: u64 = 7 << 32 | 7;
    /// The first of a chunk that no other test comes to.
    const FIRST: u32 = (CHUNKS as u32 - 1) * CHUNK as u32;

    #[test]
    fn keys_are_handed_out_or_withheld() {
        assert!(!give(FIRST - 1, KEYS, || true), "there is no such mark");
        assert!(reserve(&mut Heap, FIRST));
        assert!(give(FIRST, KEYS, || true) && is_given(FIRST, KEYS));
        assert!(!withhold(FIRST, KEYS), "they were handed out");
        assert!(give(FIRST, KEYS, || panic!("it is known")));
        forget(FIRST);
        assert!(!is_given(FIRST, KEYS) && withhold(FIRST, KEYS));
        assert!(!give(FIRST, KEYS, || true) && !is_given(FIRST, KEYS));
        release(FIRST);
        assert!(give(FIRST, KEYS, || true) && is_given(FIRST, KEYS));
        // What has no keys has none to give.
        assert!(withhold(FIRST + 1, 0) && !is_given(FIRST + 1, 0));
    }

    /// A look-up that was held up meets the number as another region's.
    #[test]
    fn a_late_mark_is_of_no_use_to_another_region() {
        assert!(reserve(&mut Heap, FIRST));
        assert!(!give(FIRST + 2, KEYS, || false), "it has left");
        let other = KEYS + 1;
        assert!(!is_given(FIRST + 2, other));
        assert!(give(FIRST + 2, other, || true) && is_given(FIRST + 2, other));
        assert!(!give(FIRST + 2, KEYS, || false) && is_given(FIRST + 2, other));
        // One that nobody took back is not in the way.
        forget(FIRST + 2);
        assert!(!give(FIRST + 2, KEYS, || false));
        assert!(withhold(FIRST + 2, other));
    }
}
