//! Where one thread found its last ranges.

use core::marker::PhantomData;
use core::ptr;

use super::leaf::Leaf;
use super::place::Seen;
use super::row::Row;
use crate::atomic::Ordering::{Relaxed, SeqCst};
use crate::atomic::{compiler_fence, AtomicPtr, AtomicU64};

/// Ranges that a [`Hint`] remembers.
pub(super) const WAYS: usize = 16;

/// Where one thread found its last 16 different ranges. For use with one [`View`]
/// only. All bytes zero is an empty hint, so that it fits a zeroed thread-local.
///
/// A signal handler may use the hint that it interrupted: `seq` is odd while
/// the hint is being written, and then nobody uses it. A handler that leaves by
/// siglongjmp in that moment turns the hint off for good, which costs time only.
pub struct Hint {
    pub(super) seq: AtomicU64,
    /// Look-ups in a row that it did not help.
    pub(super) misses: AtomicU64,
    /// Which way to write next.
    pub(super) next: AtomicU64,
    pub(super) starts: [AtomicU64; WAYS],
    /// Bytes; 0: the way is empty.
    pub(super) lens: [AtomicU64; WAYS],
    pub(super) ways: [Way; WAYS],
    pub(super) one_thread: PhantomData<core::cell::Cell<()>>,
}

pub(super) struct Way {
    pub(super) leaf: AtomicPtr<Leaf>,
    pub(super) version: AtomicU64,
    pub(super) attr: AtomicU64,
    pub(super) id: AtomicU64,
    pub(super) halves: AtomicU64,
}

impl Hint {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            seq: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            next: AtomicU64::new(0),
            starts: [const { AtomicU64::new(0) }; WAYS],
            lens: [const { AtomicU64::new(0) }; WAYS],
            ways: [const {
                Way {
                    leaf: AtomicPtr::new(ptr::null_mut()),
                    version: AtomicU64::new(0),
                    attr: AtomicU64::new(0),
                    id: AtomicU64::new(0),
                    halves: AtomicU64::new(0),
                }
            }; WAYS],
            one_thread: PhantomData,
        }
    }

    #[inline]
    pub(super) fn get(&self, addr: u64) -> Option<Row> {
        let seq = self.seq.load(Relaxed);
        compiler_fence(SeqCst);
        let mut hits = 0u32;
        for (n, (start, len)) in self.starts.iter().zip(&self.lens).enumerate() {
            let hit = addr.wrapping_sub(start.load(Relaxed)) < len.load(Relaxed);
            hits |= u32::from(hit) << n;
        }
        // Stale ways may hit too; the one written last is no better a guess
        // than any other, so a void one only costs the full look-up.
        let n = hits.trailing_zeros() as usize;
        let way = self.ways.get(n)?;
        let start = self.starts.get(n)?.load(Relaxed);
        let row = Row {
            start,
            end: start.wrapping_add(self.lens.get(n)?.load(Relaxed)),
            attr: way.attr.load(Relaxed),
            id: way.id.load(Relaxed),
            ..Row::halves(way.halves.load(Relaxed))
        };
        let (leaf, version) = (way.leaf.load(Relaxed), way.version.load(Relaxed));
        compiler_fence(SeqCst);
        if seq & 1 != 0 || self.seq.load(Relaxed) != seq {
            return None;
        }
        // SAFETY: null, or a leaf that a look-up found; leaves are never unmapped.
        let leaf = unsafe { leaf.as_ref() }?;
        if leaf.version.enter()? != version {
            // Void for ever, since versions only go up.
            self.lens.get(n)?.store(0, Relaxed);
            return None;
        }
        Some(row)
    }

    #[inline]
    pub(super) fn put(&self, seen: &Seen) {
        let seq = self.seq.load(Relaxed);
        if seq & 1 != 0 {
            return;
        }
        self.seq.store(seq.wrapping_add(1), Relaxed);
        compiler_fence(SeqCst);
        let n = self.next.load(Relaxed);
        self.next.store(n.wrapping_add(1), Relaxed);
        let n = n as usize % WAYS;
        if let (Some(start), Some(len), Some(way)) =
            (self.starts.get(n), self.lens.get(n), self.ways.get(n))
        {
            start.store(seen.row.start, Relaxed);
            len.store(seen.row.end.wrapping_sub(seen.row.start), Relaxed);
            way.leaf.store(ptr::from_ref(seen.leaf).cast_mut(), Relaxed);
            way.version.store(seen.version, Relaxed);
            way.attr.store(seen.row.attr, Relaxed);
            way.id.store(seen.row.id, Relaxed);
            way.halves.store(seen.row.tag_and_origin(), Relaxed);
        }
        compiler_fence(SeqCst);
        self.seq.store(seq.wrapping_add(2), Relaxed);
    }
}

impl Default for Hint {
    fn default() -> Self {
        Self::new()
    }
}
