//! The memory of an index: its leaves and its top.

use core::mem::size_of;
use core::ptr;

use super::keys::NO_KEY;
use super::leaf::Leaf;
use super::memory::Memory;
use super::top::{Top, FIRST_DEPTH, MAX_DEPTH};
use super::writer::Index;
use crate::atomic::Ordering::{Relaxed, Release};

impl Index {
    /// Makes sure that `leaves` leaves can be taken from the pool and put in the
    /// top. `false`: no memory (or another writer has the view); nothing is lost.
    #[inline]
    pub fn reserve(&mut self, memory: &mut impl Memory, leaves: usize) -> bool {
        self.is_reserved(leaves) || self.reserve_slowly(memory, leaves)
    }

    /// Whether [`Index::reserve`] has nothing to do.
    #[inline]
    pub fn is_reserved(&self, leaves: usize) -> bool {
        let needed = self.leaves.saturating_add(leaves.max(self.pooled));
        self.pooled >= leaves && self.view.top().is_some_and(|t| t.leaves.len() >= needed)
    }

    #[cold]
    pub(super) fn reserve_slowly(&mut self, memory: &mut impl Memory, leaves: usize) -> bool {
        if !self.owner {
            self.owner = !self.view.claimed.swap(true, Relaxed);
            if !self.owner {
                return false;
            }
        }
        let needed = self.leaves.saturating_add(leaves.max(self.pooled));
        let depth = (FIRST_DEPTH..=MAX_DEPTH).find(|&d| Top::capacity(d) >= needed);
        let Some(depth) = depth else {
            return false;
        };
        if self.view.top().is_none_or(|t| t.depth < depth) {
            let Some(new) = Top::new(memory, depth) else {
                return false;
            };
            self.move_top(new);
        }
        while self.pooled < leaves {
            if !self.add_leaf(memory) {
                return false;
            }
        }
        true
    }

    /// The old top is left as it is: a reader may be in it. All old tops
    /// together are a seventh of the new one.
    pub(super) fn move_top(&mut self, new: &'static Top) {
        if let Some(old) = self.view.top() {
            for n in 0..self.leaves {
                let leaf = old.leaf(n);
                let key = old.keys().get(n).map_or(NO_KEY, |k| k.load(Relaxed));
                new.set(
                    n,
                    key,
                    leaf.map_or(ptr::null_mut(), |l| ptr::from_ref(l).cast_mut()),
                );
            }
            new.sample(0, self.leaves);
        }
        self.view.version.begin();
        self.view.top.store(ptr::from_ref(new).cast_mut(), Release);
        self.view.version.end();
    }

    pub(super) fn add_leaf(&mut self, memory: &mut impl Memory) -> bool {
        let Some(block) = memory.alloc(size_of::<Leaf>()) else {
            return false;
        };
        // SAFETY: Memory's contract: zeroed (a valid Leaf), 64-byte aligned, long
        // enough, ours alone, and there for ever.
        let leaf: &'static Leaf = unsafe { block.cast::<Leaf>().as_ref() };
        // First among all leaves, then in the pool: `rebuild` starts from the former.
        leaf.next_ever.store(self.view.ever.load(Relaxed), Relaxed);
        self.view
            .ever
            .store(ptr::from_ref(leaf).cast_mut(), Release);
        self.give_back(leaf);
        true
    }

    /// To the pool, as it is.
    pub(super) fn give_back(&mut self, leaf: &'static Leaf) {
        leaf.version.bump();
        let next = self
            .pool
            .map_or(ptr::null_mut(), |l| ptr::from_ref(l).cast_mut());
        leaf.next_free.store(next, Relaxed);
        self.pool = Some(leaf);
        self.pooled = self.pooled.wrapping_add(1);
    }

    /// From the pool, emptied.
    pub(super) fn take(&mut self) -> Option<&'static Leaf> {
        let leaf = self.pool?;
        // SAFETY: `next_free` of a pooled leaf is null or another pooled leaf.
        self.pool = unsafe { leaf.next_free.load(Relaxed).as_ref() };
        self.pooled = self.pooled.wrapping_sub(1);
        leaf.version.begin();
        leaf.clear();
        leaf.version.end();
        Some(leaf)
    }
}
