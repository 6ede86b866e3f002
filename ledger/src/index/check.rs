//! For tests: whether an index is as it has to be, and one that is not.

use core::ptr;

use super::keys::{move_up, words, NO_KEY};
use super::leaf::LEAF_ROWS;
use super::writer::Index;
use crate::atomic::Ordering::Relaxed;

impl Index {
    /// Leaves in the top.
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// Leaves the index as siglongjmp out of the middle of a change would.
    pub fn leave_half_way(&mut self, how: usize) {
        let leaf = self.leaf(0).unwrap();
        self.view.version.begin();
        if how == 0 {
            leaf.version.begin();
            leaf.count.store(99, Relaxed);
            leaf.order.store(0, Relaxed);
        }
        if how == 1 {
            let top = self.view.top().unwrap();
            move_up(top.keys(), 0, self.leaves - 1, 1);
            self.leaves = 77;
            self.pooled = 1 << 40;
            self.pool = self.leaf(1); // in the top as well
        }
        if how == 2 {
            self.rows = 0;
            leaf.next_free
                .store(ptr::from_ref(leaf).cast_mut(), Relaxed); // a ring
            self.pool = Some(leaf);
        }
    }

    /// Panics unless everything is as it has to be.
    pub fn check(&self) {
        let Some(top) = self.view.top() else {
            assert_eq!(self.rows, 0);
            return;
        };
        let key = |n: usize| top.keys()[n].load(Relaxed);
        let (mut rows, mut end) = (0, 0);
        for n in 0..self.leaves {
            let leaf = top.leaf(n).unwrap();
            assert!(leaf.count() > 0, "empty leaf in the top");
            assert_eq!(leaf.key(0), key(n), "key of leaf {n}");
            let cells = (0..LEAF_ROWS).fold(0u32, |set, r| set | 1 << leaf.cells_of(r));
            assert_eq!(cells, 0xffff, "cells");
            for r in 0..leaf.count() {
                let row = leaf.row(r).unwrap();
                assert!(row.start >= end && row.end > row.start, "order");
                end = row.end;
            }
            for r in leaf.count()..LEAF_ROWS {
                assert_eq!(leaf.key(r), NO_KEY);
            }
            rows += leaf.count();
        }
        assert_eq!(rows, self.rows);
        for n in self.leaves..top.leaves.len() {
            assert_eq!(key(n), NO_KEY);
            assert!(top.leaf(n).is_none());
        }
        for (below, level) in top.levels[..top.depth]
            .iter()
            .zip(top.levels[..top.depth].iter().skip(1))
        {
            for (n, line) in below.iter().enumerate() {
                assert_eq!(words(level)[n].load(Relaxed), line.first(), "sample {n}");
            }
        }
        let mut pooled = 0;
        let mut next = self.pool;
        while let Some(leaf) = next {
            pooled += 1;
            // SAFETY: see `take`.
            next = unsafe { leaf.next_free.load(Relaxed).as_ref() };
        }
        assert_eq!(pooled, self.pooled);
    }
}
