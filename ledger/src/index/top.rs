//! The leaves in order, under a small tree of samples.

use core::mem::{align_of, size_of};
use core::ptr;

use super::keys::{fill, move_down, move_up, words, Line, FAN, NO_KEY};
use super::leaf::Leaf;
use super::memory::Memory;
use crate::atomic::Ordering::Relaxed;
use crate::atomic::{AtomicPtr, AtomicU64};

/// Levels of the top at the most: 8^6 leaves, over four million mappings.
pub(super) const MAX_DEPTH: usize = 6;
/// Levels that the first top has.
pub(super) const FIRST_DEPTH: usize = 2;

/// Every leaf's first start and its pointer, in order.
pub(super) struct Top {
    /// `levels[0]` are the keys, `levels[k + 1]` every 8th of `levels[k]`; the
    /// highest is one line. Unused places are [`NO_KEY`].
    pub(super) levels: [&'static [Line]; MAX_DEPTH],
    pub(super) depth: usize,
    pub(super) leaves: &'static [AtomicPtr<Leaf>],
}

impl Top {
    pub(super) const fn capacity(depth: usize) -> usize {
        1 << (3 * depth)
    }

    /// A new, empty top.
    pub(super) fn new(memory: &mut impl Memory, depth: usize) -> Option<&'static Top> {
        const HEAD: usize = size_of::<Top>().next_multiple_of(64);
        const { assert!(align_of::<Top>() <= 64) };
        let places = Self::capacity(depth);
        let lines: usize = (0..depth).map(Self::capacity).sum();
        let lines_at = HEAD;
        let leaves_at = lines_at + lines * size_of::<Line>();
        let block = memory.alloc(leaves_at + places * size_of::<AtomicPtr<Leaf>>())?;

        let mut at = lines_at;
        let mut levels: [&'static [Line]; MAX_DEPTH] = [&[]; MAX_DEPTH];
        for (k, level) in levels.iter_mut().enumerate().take(depth) {
            let n = Self::capacity(depth - 1 - k);
            // SAFETY: the n lines at this offset lie in the block, behind the
            // head and the levels before, and no other slice covers them; the block
            // is zeroed (a valid Line), 64-byte aligned as `at` is, and stays
            // for ever (Memory's contract).
            *level = unsafe { core::slice::from_raw_parts(block.as_ptr().add(at).cast(), n) };
            fill(words(level), 0, n * FAN, NO_KEY);
            at += n * size_of::<Line>();
        }
        // SAFETY: as above; null pointers are valid AtomicPtrs.
        let leaves =
            unsafe { core::slice::from_raw_parts(block.as_ptr().add(leaves_at).cast(), places) };
        let top = block.cast::<Top>();
        // SAFETY: the block begins with HEAD bytes for the Top, aligned to 64, and
        // nobody else has it.
        unsafe {
            top.write(Top {
                levels,
                depth,
                leaves,
            })
        };
        // SAFETY: just written, never written again, never unmapped.
        Some(unsafe { &*top.as_ptr() })
    }

    /// Number of the last leaf whose first key is not above `key`.
    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<usize> {
        let mut n = 0;
        for level in self.levels.get(..self.depth)?.iter().rev() {
            let rank = level.get(n)?.rank(key);
            // Below the highest level a rank of 0 is a torn read, which the
            // reader's version check will find.
            n = (n * FAN).wrapping_add(rank.checked_sub(1)?);
        }
        Some(n)
    }

    #[inline]
    pub(super) fn leaf(&self, n: usize) -> Option<&'static Leaf> {
        let leaf = self.leaves.get(n)?.load(Relaxed);
        // SAFETY: only null or pointers to leaves made by `Index::add_leaf` are
        // ever stored here; leaves stay mapped and are shared through atomics alone.
        unsafe { leaf.as_ref() }
    }

    pub(super) fn keys(&self) -> &'static [AtomicU64] {
        let [keys, ..] = self.levels;
        words(keys)
    }

    /// Stores key and pointer number `n`; samples are [`Top::sample`]'s business.
    pub(super) fn set(&self, n: usize, key: u64, leaf: *mut Leaf) {
        if let (Some(k), Some(l)) = (self.keys().get(n), self.leaves.get(n)) {
            k.store(key, Relaxed);
            l.store(leaf, Relaxed);
        }
    }

    /// Puts right the samples of the keys number `from` to `end`.
    pub(super) fn sample(&self, from: usize, end: usize) {
        let (mut from, mut end) = (from, end);
        for (below, level) in self.levels.iter().zip(self.levels.iter().skip(1)) {
            (from, end) = (from / FAN, end.div_ceil(FAN));
            let lines = below.get(from..end.min(below.len())).unwrap_or_default();
            for (sample, line) in words(level).iter().skip(from).zip(lines) {
                sample.store(line.first(), Relaxed);
            }
        }
    }

    /// Puts `leaf` in place `n` of `count`.
    pub(super) fn insert(&self, n: usize, count: usize, key: u64, leaf: *mut Leaf) {
        move_up(self.keys(), n, count, 1);
        if let (Some(old), Some(new)) =
            (self.leaves.get(n..count), self.leaves.get(n + 1..count + 1))
        {
            for (o, n) in old.iter().zip(new).rev() {
                n.store(o.load(Relaxed), Relaxed);
            }
        }
        self.set(n, key, leaf);
        self.sample(n, count + 1);
    }

    /// Takes out the places `from..to` of `count`.
    pub(super) fn remove(&self, from: usize, to: usize, count: usize) {
        let gone = to - from;
        move_down(self.keys(), to, count, gone);
        if let (Some(old), Some(new)) = (
            self.leaves.get(to..count),
            self.leaves.get(from..count - gone),
        ) {
            for (o, n) in old.iter().zip(new) {
                n.store(o.load(Relaxed), Relaxed);
            }
        }
        for n in count - gone..count {
            self.set(n, NO_KEY, ptr::null_mut());
        }
        self.sample(from, count);
    }
}
