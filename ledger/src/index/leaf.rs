//! Up to sixteen rows.

use super::keys::{fill, key, move_down, move_up, words, Line, FAN, NO_KEY};
use super::row::Row;
use super::version::Version;
use crate::atomic::Ordering::Relaxed;
use crate::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// Rows in a leaf: as many as there are 4-bit numbers in [`Leaf::order`].
pub const LEAF_ROWS: usize = 16;

/// The lowest `n` of a word's sixteen 4-bit numbers, all bits set.
#[inline]
pub(super) const fn low_numbers(n: usize) -> u64 {
    if n >= LEAF_ROWS {
        u64::MAX
    } else {
        (1 << (n * 4)) - 1
    }
}

const _: () = assert!(core::mem::offset_of!(Leaf, starts) == 64);

/// What of a row is not its key.
#[repr(C, align(32))]
pub(super) struct Cells {
    pub(super) end: AtomicU64,
    pub(super) attr: AtomicU64,
    pub(super) id: AtomicU64,
    /// The tag and, in the upper half, the origin.
    pub(super) halves: AtomicU64,
}

/// Up to [`LEAF_ROWS`] rows. Only `starts` and `order` are kept in order; the
/// rest of a row stays where it was put, so that an insertion moves few words.
/// All bytes zero is a valid value, but [`Leaf::clear`] makes it an empty leaf.
#[repr(C, align(64))]
pub struct Leaf {
    pub(super) version: Version,
    /// Which of the cells is row n's: the n-th number of 4 bits, counted from the
    /// lowest. Every number is there once; those behind the last row are of cells
    /// that are free. In the version's cache line, which a reader needs anyway.
    pub(super) order: AtomicU64,
    pub(super) count: AtomicU32,
    /// Next in the pool.
    pub(super) next_free: AtomicPtr<Leaf>,
    /// Next of all leaves there are.
    pub(super) next_ever: AtomicPtr<Leaf>,
    /// Start addresses in order, then [`NO_KEY`].
    pub(super) starts: [Line; LEAF_ROWS / FAN],
    pub(super) cells: [Cells; LEAF_ROWS],
}

/// [`Leaf::order`] of an empty leaf.
pub(super) const IN_ORDER: u64 = 0xfedc_ba98_7654_3210;

impl Leaf {
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.count.load(Relaxed) as usize
    }

    /// How many rows have a key that is not above `key`.
    #[inline]
    pub(super) fn rank(&self, key: u64) -> usize {
        // Both lines at once: if they are not in the cache, the misses overlap.
        let [low, high] = &self.starts;
        low.rank(key) + high.rank(key)
    }

    #[inline]
    pub(super) fn cells_of(&self, row: usize) -> usize {
        (self.order.load(Relaxed) >> (row % LEAF_ROWS * 4)) as usize % LEAF_ROWS
    }

    #[inline]
    pub(super) fn key(&self, row: usize) -> u64 {
        words(&self.starts)
            .get(row)
            .map_or(NO_KEY, |s| s.load(Relaxed))
    }

    #[inline]
    pub(super) fn start(&self, row: usize) -> u64 {
        self.key(row) << 1
    }

    /// Row number `row`; nonsense (but no fault) if there is none, or if the writer is in.
    #[inline]
    pub(super) fn read(&self, row: usize) -> Row {
        let Some(cells) = self.cells.get(self.cells_of(row)) else {
            return Row::default();
        };
        Row {
            start: self.start(row),
            end: cells.end.load(Relaxed),
            attr: cells.attr.load(Relaxed),
            id: cells.id.load(Relaxed),
            ..Row::halves(cells.halves.load(Relaxed))
        }
    }

    /// Row number `row`, for the writer.
    #[inline]
    pub(super) fn row(&self, row: usize) -> Option<Row> {
        (row < self.count()).then(|| self.read(row))
    }

    #[inline]
    pub(super) fn write(&self, n: usize, row: &Row) {
        if let (Some(start), Some(cells)) =
            (words(&self.starts).get(n), self.cells.get(self.cells_of(n)))
        {
            start.store(key(row.start), Relaxed);
            cells.end.store(row.end, Relaxed);
            cells.attr.store(row.attr, Relaxed);
            cells.id.store(row.id, Relaxed);
            cells.halves.store(row.tag_and_origin(), Relaxed);
        }
    }

    /// Replaces `gone` rows from number `at` on by `new`. The caller has begun the
    /// version and made sure of the room.
    #[inline]
    pub(super) fn splice(&self, at: usize, gone: usize, new: &[Row]) {
        let count = self.count();
        debug_assert!(at + gone <= count && count - gone + new.len() <= LEAF_ROWS);
        if gone < new.len() {
            self.open(at.wrapping_add(gone), new.len().wrapping_sub(gone));
        } else if gone > new.len() {
            self.close(at.wrapping_add(new.len()), gone.wrapping_sub(new.len()));
        }
        for (n, row) in new.iter().enumerate() {
            self.write(at.wrapping_add(n), row);
        }
    }

    /// Makes room for `more` rows at number `at`.
    #[inline]
    pub(super) fn open(&self, at: usize, more: usize) {
        let mut count = self.count();
        move_up(words(&self.starts), at, count, more);
        let mut order = self.order.load(Relaxed);
        for _ in 0..more {
            // The first free cells' number goes from behind the last row to `at`.
            let (before, upto) = (low_numbers(at), low_numbers(count));
            let moved = order & upto & !before;
            let behind = order & !low_numbers(count.wrapping_add(1));
            let cells = order >> (count % LEAF_ROWS * 4) & 0xf;
            order = order & before | cells << (at % LEAF_ROWS * 4) | moved << 4 | behind;
            count = count.wrapping_add(1);
        }
        self.order.store(order, Relaxed);
        self.count.store(count as u32, Relaxed);
    }

    /// Takes out `gone` rows from number `at` on.
    #[inline]
    pub(super) fn close(&self, at: usize, gone: usize) {
        let mut count = self.count();
        let starts = words(&self.starts);
        move_down(starts, at.wrapping_add(gone), count, gone);
        fill(starts, count.wrapping_sub(gone), count, NO_KEY);
        let mut order = self.order.load(Relaxed);
        for _ in 0..gone {
            // The cells' number goes from `at` to behind the last row.
            let before = low_numbers(at);
            let moved = order & low_numbers(count) & !low_numbers(at.wrapping_add(1));
            let behind = order & !low_numbers(count);
            let cells = order >> (at % LEAF_ROWS * 4) & 0xf;
            count = count.wrapping_sub(1);
            order = order & before | moved >> 4 | cells << (count % LEAF_ROWS * 4) | behind;
        }
        self.order.store(order, Relaxed);
        self.count.store(count as u32, Relaxed);
    }

    /// Makes it empty, whatever it was. The caller has begun the version.
    pub(super) fn clear(&self) {
        fill(words(&self.starts), 0, LEAF_ROWS, NO_KEY);
        self.order.store(IN_ORDER, Relaxed);
        self.count.store(0, Relaxed);
    }

    /// Appends the rows of `other` from number `from` on. Both versions are begun.
    pub(super) fn append(&self, other: &Leaf, from: usize) {
        for row in from..other.count() {
            self.splice(self.count(), 0, &[other.read(row)]);
        }
    }
}
