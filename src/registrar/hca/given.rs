//! Regions whose keys somebody has looked up. Nobody gives such keys back, so these regions are not
//! replaced by larger ones of the same memory.
//!
//! Each record has a *mark*, which is read and written without the lock, by signal handlers, too.
//! Who looks keys up sets it before they are handed out. Who is about to replace the region
//! withholds them first: only one of both comes to pass.

use super::records::RecordId;
use super::regions::Node;
use super::{DomainId, Hca, HIGH, PDS, VIEWS};
use crate::ledger::index::Memory;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering::*};
use regall_directory::addr::PageRange;

/// Marks in a chunk.
const CHUNK: usize = 512;
/// Chunks at the most, for as many marks as there may be records.
pub(super) const CHUNKS: usize = 512;

/// Each mark is 0, [`WITHHELD`], or the keys that were looked up of the record with its number.
static MARKS: [AtomicPtr<AtomicU64>; CHUNKS] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; CHUNKS];
/// The keys are not handed out any more. No region has these.
const WITHHELD: u64 = u64::MAX;
/// So often a look-up tries to set a mark that others are changing.
const TRIES: usize = 8;
/// So often one begins anew where the region is being replaced: it may be a signal handler on top of
/// who does that.
const AGAIN: usize = 1_000;

/// Sees to it that record `n` has a mark. `false`: there is no memory.
pub(super) fn reserve(memory: &mut impl Memory, n: u32) -> bool {
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
fn mark(n: RecordId) -> Option<&'static AtomicU64> {
    let (chunk, at) = (n.get() as usize / CHUNK, n.get() as usize % CHUNK);
    let base = MARKS.get(chunk)?.load(Acquire);
    if base.is_null() {
        return None;
    }
    // SAFETY: a chunk has CHUNK marks, zeroed when it came, and is never given back.
    Some(unsafe { &*base.add(at) })
}

/// Record `n` is another region's.
pub(super) fn forget(n: RecordId) {
    if let Some(mark) = mark(n) {
        mark.store(0, Release);
    }
}

/// The keys of region `n` are about to be handed out; `stands` says whether it is still there.
/// False: it may be about to be replaced, and is to be looked for again.
#[inline]
fn give(n: RecordId, keys: u64, stands: impl Fn() -> bool) -> bool {
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
fn is_given(n: RecordId, keys: u64) -> bool {
    keys != 0 && mark(n).is_some_and(|mark| mark.load(Acquire) == keys)
}

/// The keys of region `n` are not handed out from now on. False: they were.
fn withhold(n: RecordId, keys: u64) -> bool {
    let set = |now| (now != keys).then_some(WITHHELD);
    keys == 0 || mark(n).is_none_or(|mark| mark.fetch_update(AcqRel, Acquire, set).is_ok())
}

/// They may be again.
fn release(n: RecordId) {
    if let Some(mark) = mark(n) {
        let _ = mark.compare_exchange(WITHHELD, 0, Release, Relaxed);
    }
}

impl Node {
    /// Whether somebody has looked its keys up.
    pub fn is_given(&self) -> bool {
        is_given(self.record, self.keys)
    }
}

impl Hca {
    /// No look-up gives keys of regions of domain `d` in `range` from now on, since they are replaced
    /// at once. False: one has, and all may be looked up again.
    pub fn withhold(&self, d: DomainId, range: PageRange) -> bool {
        let all = || self.in_range(d, range);
        let given = all().find(|node| !withhold(node.record, node.keys));
        if let Some(given) = given {
            all()
                .take_while(|node| *node != given)
                .for_each(|node| release(node.record));
        }
        given.is_none()
    }

    /// They may be looked up again after all.
    pub fn release(&self, d: DomainId, range: PageRange) {
        self.in_range(d, range).for_each(|node| release(node.record));
    }

    /// The nodes of domain `d` that touch `range`.
    fn in_range(&self, d: DomainId, range: PageRange) -> impl Iterator<Item = Node> + '_ {
        let mut at = range.start();
        core::iter::from_fn(move || {
            let (node, _) = self.next_from(d, at)?;
            at = node.range.end();
            (node.range.start() < range.end()).then_some(node)
        })
    }
}

/// A region as it is found without the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// lkey | rkey << 32.
    pub keys: u64,
}

/// The region that holds all of `addr..end` in the protection domain at `pd` (0: our own), as it
/// was at some moment during the call. From then on it stays as long as its memory does. No lock, no
/// system call.
#[inline]
pub fn look(pd: u64, addr: u64, end: u64) -> Option<Held> {
    (0..AGAIN).find_map(|_| look_once(pd, addr, end))?
}

/// One try; the outer `None`: the region that was found is being replaced.
#[inline]
fn look_once(pd: u64, addr: u64, end: u64) -> Option<Option<Held>> {
    let all = PDS.iter().zip(&VIEWS).take(HIGH.load(Acquire) as usize);
    let mut found = all
        .filter(|(at, _)| at.load(Acquire) == pd)
        .filter_map(|(_, view)| {
            let row = view.row_at(addr).ok().flatten()?;
            (row.attr != 0).then_some((view, row))
        });
    let Some((view, row)) = found.next().filter(|(_, row)| end <= row.end) else {
        return Some(None);
    };
    let stands = || view.row_at(addr).is_ok_and(|now| now == Some(row));
    give(RecordId::from_raw(row.tag), row.attr, stands).then_some(Some(Held {
        start: row.start,
        end: row.end,
        keys: row.attr,
    }))
}
