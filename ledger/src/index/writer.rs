//! The writer's side.

use core::ptr;

use super::keys::{key, NO_KEY};
use super::leaf::{Leaf, LEAF_ROWS};
use super::place::{Pos, Spot};
use super::row::Row;
use super::top::Top;
use super::view::View;
use crate::atomic::Ordering::Relaxed;

/// A leaf this small looks for a neighbour to merge with ...
const SMALL: usize = 4;
/// ... if the two together are no more than this. Far enough below
/// [`LEAF_ROWS`] that a split and a merge never follow each other.
const MERGED: usize = 10;
/// A split leaves at least this many rows, and as much room, on each side.
const SPLIT_MARGIN: usize = 2;

/// Which way changes go, one beside the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    No,
    Up,
    Down,
}

/// The writer's side of a [`View`].
pub struct Index {
    pub(super) view: &'static View,
    /// Whether this is the view's one writer. Without it there is no pool, and
    /// without a pool nothing can be inserted.
    pub(super) owner: bool,
    /// Leaves in the top.
    pub(super) leaves: usize,
    /// Leaves in the pool.
    pub(super) pooled: usize,
    pub(super) pool: Option<&'static Leaf>,
    pub(super) rows: usize,
    /// Starts of the first and the last of the rows inserted last: runs of insertions
    /// are noticed by them.
    pub(super) last: (u64, u64),
    /// Number of the leaf changed last; whatever it says is checked.
    pub(super) recent: usize,
}

impl Index {
    /// An empty one that writes `view`. The first of several that reserves
    /// memory gets the view; the others can't reserve, so they stay empty.
    pub const fn new(view: &'static View) -> Self {
        Self {
            view,
            owner: false,
            leaves: 0,
            pooled: 0,
            pool: None,
            rows: 0,
            last: (0, 0),
            recent: 0,
        }
    }

    /// The part of the index that readers use.
    pub const fn view(&self) -> &'static View {
        self.view
    }

    /// Rows.
    pub const fn len(&self) -> usize {
        self.rows
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.rows == 0
    }

    #[inline]
    pub(super) fn leaf(&self, n: usize) -> Option<&'static Leaf> {
        self.view.top()?.leaf(n)
    }

    /// Rows in leaf `n`.
    #[inline]
    fn count(&self, n: usize) -> usize {
        self.leaf(n).map_or(0, Leaf::count)
    }

    /// The last row that starts at or below `addr`.
    #[inline]
    pub fn find(&self, addr: u64) -> Option<Pos> {
        self.spot(addr).map(Spot::pos)
    }

    /// As [`Index::find`], with the leaf.
    #[inline]
    pub fn spot(&self, addr: u64) -> Option<Spot> {
        let key = key(addr).min(NO_KEY - 1);
        let top = self.view.top()?;
        // What is mapped is often unmapped next: the leaf of the last change
        // first. Whether it is the one, the keys in the top say.
        let nth = |n: usize| top.keys().get(n).map_or(NO_KEY, |k| k.load(Relaxed));
        let recent = self.recent;
        let number = if nth(recent) <= key && key < nth(recent.wrapping_add(1)) {
            recent
        } else {
            top.find(key)?
        };
        let leaf = top.leaf(number)?;
        let row = leaf.rank(key).checked_sub(1)?;
        Some(Spot::new(leaf, number, row))
    }

    /// The row at `at`, if there is one, with its leaf.
    #[inline]
    pub fn spot_at(&self, at: Pos) -> Option<Spot> {
        let leaf = self.leaf(at.leaf)?;
        (at.row < leaf.count()).then_some(Spot::new(leaf, at.leaf, at.row))
    }

    /// Start of the first row behind `spot`'s leaf; beyond all addresses if there is none.
    #[inline]
    pub fn end_of_leaf(&self, spot: Spot) -> u64 {
        let next = spot.leaf_number().wrapping_add(1);
        let keys = self.view.top().map_or(&[][..], Top::keys);
        keys.get(next).map_or(NO_KEY, |k| k.load(Relaxed)) << 1
    }

    /// Puts `row` behind `spot`, whose leaf has room.
    #[inline]
    pub fn put_behind(&mut self, spot: Spot, row: &Row) {
        let at = spot.row_number().wrapping_add(1);
        spot.leaf.version.begin();
        spot.leaf.open(at, 1);
        spot.leaf.write(at, row);
        spot.leaf.version.end();
        self.rows = self.rows.wrapping_add(1);
        self.last = (row.start, row.start);
        self.recent = spot.leaf_number();
    }

    /// Says of `spot`'s row what `row` says, which starts where it does.
    #[inline]
    pub fn replace(&mut self, spot: Spot, row: &Row) {
        debug_assert!(spot.row().start == row.start);
        spot.leaf.version.begin();
        spot.leaf.write(spot.row_number(), row);
        spot.leaf.version.end();
        self.recent = spot.leaf_number();
    }

    /// Says of `spot`'s row and of the one behind it, in the same leaf, what `rows`
    /// say; the first starts where `spot`'s does.
    #[inline]
    pub fn replace_two(&mut self, spot: Spot, rows: [&Row; 2]) {
        let [first, second] = rows;
        debug_assert!(spot.row().start == first.start);
        spot.leaf.version.begin();
        spot.leaf.write(spot.row_number(), first);
        spot.leaf.write(spot.row_number().wrapping_add(1), second);
        spot.leaf.version.end();
        self.recent = spot.leaf_number();
    }

    /// Takes `spot`'s row out.
    #[inline]
    pub fn take_out(&mut self, spot: Spot) {
        if spot.row_number() == 0 {
            return self.cut(spot.pos(), self.behind(spot.pos()));
        }
        spot.leaf.version.begin();
        spot.leaf.close(spot.row_number(), 1);
        spot.leaf.version.end();
        self.rows = self.rows.wrapping_sub(1);
    }

    /// The first place.
    pub const FIRST: Pos = Pos { leaf: 0, row: 0 };

    /// Row number `at.row` of its leaf, if there is one. A place to insert holds none.
    #[inline]
    pub fn row(&self, at: Pos) -> Option<Row> {
        self.leaf(at.leaf)?.row(at.row)
    }

    /// The place right behind `at`, in the same leaf.
    #[inline]
    pub const fn behind(&self, at: Pos) -> Pos {
        Pos {
            leaf: at.leaf,
            row: at.row.wrapping_add(1),
        }
    }

    /// The place, as the first of the next leaf where it is a leaf's end.
    #[inline]
    pub fn settle(&self, at: Pos) -> Pos {
        if at.row >= self.count(at.leaf) && at.leaf < self.leaves {
            return Pos {
                leaf: at.leaf.wrapping_add(1),
                row: 0,
            };
        }
        at
    }

    /// The place of the row behind `at`.
    #[inline]
    pub fn next(&self, at: Pos) -> Pos {
        self.settle(self.behind(at))
    }

    /// The place of the row before `at`.
    #[inline]
    pub fn previous(&self, at: Pos) -> Option<Pos> {
        if let Some(row) = at.row.checked_sub(1) {
            return Some(Pos { leaf: at.leaf, row });
        }
        let leaf = at.leaf.checked_sub(1)?;
        Some(Pos {
            leaf,
            row: self.count(leaf).checked_sub(1)?,
        })
    }

    /// How many rows from `from` up to `to` lie in `from`'s leaf, and whether
    /// that is all of them.
    #[inline]
    pub fn in_leaf(&self, from: Pos, to: Pos) -> (usize, bool) {
        if to.leaf == from.leaf {
            return (to.row.saturating_sub(from.row), true);
        }
        let all = to.row == 0 && to.leaf == from.leaf.wrapping_add(1);
        (self.count(from.leaf).saturating_sub(from.row), all)
    }

    /// Whether the leaf at `at` can take `more` rows than it has (up to 2), if
    /// need be by a split, which takes one leaf from the pool.
    #[inline]
    pub fn has_room(&self, at: Pos, more: usize) -> bool {
        if self.leaves != 0 && self.count(at.leaf).saturating_add(more) <= LEAF_ROWS {
            return true;
        }
        self.pooled != 0
            && self
                .view
                .top()
                .is_some_and(|t| self.leaves < t.leaves.len())
    }

    /// Replaces the `gone` rows from `at` on, all of one leaf, by `new`: 1 to 3 rows
    /// in order, at most 2 more than go. [`Index::has_room`] has said yes. Readers see
    /// all of it at once. Returns where the last of `new` is.
    #[inline]
    pub fn splice(&mut self, at: Pos, gone: usize, new: &[Row]) -> Pos {
        let mut at = at;
        let many = self
            .count(at.leaf)
            .wrapping_sub(gone)
            .wrapping_add(new.len());
        if self.leaves == 0 {
            self.first_leaf();
        } else if many > LEAF_ROWS {
            at = self.split(at, gone);
        }
        let (Some(leaf), Some(first)) = (self.leaf(at.leaf), new.first()) else {
            return at; // can't be: there was room
        };
        let rekey = at.row == 0 && leaf.start(0) != first.start;
        if rekey {
            self.view.version.begin();
        }
        leaf.version.begin();
        leaf.splice(at.row, gone, new);
        leaf.version.end();
        if rekey {
            self.rekey(at.leaf);
            self.view.version.end();
        }
        self.rows = self.rows.wrapping_add(new.len()).wrapping_sub(gone);
        self.last = (first.start, new.last().unwrap_or(first).start);
        self.recent = at.leaf;
        Pos {
            leaf: at.leaf,
            row: at.row.wrapping_add(new.len()).wrapping_sub(1),
        }
    }

    fn first_leaf(&mut self) {
        let (Some(top), Some(leaf)) = (self.view.top(), self.take()) else {
            return;
        };
        self.view.version.begin();
        top.insert(0, 0, NO_KEY, ptr::from_ref(leaf).cast_mut());
        self.leaves = 1;
        self.view.version.end();
    }

    /// Tells the top of leaf `n`'s first start. The top's version is begun.
    fn rekey(&self, n: usize) {
        if let (Some(top), Some(leaf)) = (self.view.top(), self.leaf(n)) {
            if let Some(key) = top.keys().get(n) {
                key.store(leaf.key(0), Relaxed);
            }
            top.sample(n, n.wrapping_add(1));
        }
    }

    /// Whether a change of the rows from `from` up to `end` goes on where the last one
    /// left off.
    fn run(&self, leaf: &Leaf, from: usize, end: usize) -> Run {
        let (first, last) = self.last;
        // What was split by the last change may be split again: its rest is at one end.
        let rest = (from < end && first != last).then(|| leaf.start(from));
        let before = from.checked_sub(1).map(|row| leaf.start(row));
        if before == Some(last) || rest == Some(last) {
            Run::Up
        } else if leaf.start(end) == first || rest == Some(first) {
            Run::Down
        } else {
            Run::No
        }
    }

    /// Splits the leaf at `at` so that both halves have room; the `gone` rows from
    /// `at` on stay together. Returns where they are then.
    ///
    /// mmap hands out addresses downwards, a loader upwards, and an arena is cut up
    /// from one end: a run of changes keeps a leaf of its own, which it fills. What lies
    /// beyond it would else go from leaf to leaf ahead of it, and each that it leaves
    /// behind would have so much less in it.
    #[cold]
    fn split(&mut self, at: Pos, gone: usize) -> Pos {
        let (Some(top), Some(old), Some(new)) = (self.view.top(), self.leaf(at.leaf), self.take())
        else {
            return at;
        };
        let end = at.row.wrapping_add(gone);
        let run = self.run(old, at.row, end);
        let beyond = old.count().wrapping_sub(end);
        let mut middle = match run {
            Run::No => old.count() / 2,
            Run::Up if beyond >= SPLIT_MARGIN => end,
            // What is new goes behind the row before it: that one comes along.
            Run::Down if gone == 0 => at.row.saturating_sub(1),
            Run::Up | Run::Down => at.row,
        };
        middle = middle.clamp(SPLIT_MARGIN, LEAF_ROWS - SPLIT_MARGIN);
        if at.row < middle && middle < end {
            middle = end;
        }
        self.view.version.begin();
        old.version.begin();
        new.version.begin();
        new.append(old, middle);
        old.splice(middle, old.count().wrapping_sub(middle), &[]);
        top.insert(
            at.leaf.wrapping_add(1),
            self.leaves,
            new.key(0),
            ptr::from_ref(new).cast_mut(),
        );
        self.leaves = self.leaves.wrapping_add(1);
        new.version.end();
        old.version.end();
        self.view.version.end();
        if at.row < middle || (at.row == middle && gone == 0) {
            return at;
        }
        Pos {
            leaf: at.leaf.wrapping_add(1),
            row: at.row.wrapping_sub(middle),
        }
    }

    /// Takes out the rows from `from` up to, not including, `to`.
    #[inline]
    pub fn cut(&mut self, from: Pos, to: Pos) {
        let to = if to.leaf == from.leaf {
            self.settle(to)
        } else {
            to
        };
        if from >= to {
            return;
        }
        if from.leaf == to.leaf && from.row != 0 {
            if let Some(leaf) = self.leaf(from.leaf) {
                let gone = to.row.wrapping_sub(from.row);
                leaf.version.begin();
                leaf.splice(from.row, gone, &[]);
                leaf.version.end();
                self.rows = self.rows.wrapping_sub(gone);
            }
            return;
        }
        self.cut_leaves(from, to);
    }

    /// [`Index::cut`] where leaves' first rows go.
    fn cut_leaves(&mut self, from: Pos, to: Pos) {
        let Some(top) = self.view.top() else {
            return;
        };
        self.view.version.begin();
        let mut first = from.leaf;
        if from.row != 0 {
            self.cut_in(from.leaf, from.row, self.count(from.leaf));
            first = first.wrapping_add(1);
        }
        if to.row != 0 {
            self.cut_in(to.leaf, 0, to.row);
            self.rekey(to.leaf);
        }
        let end = to.leaf.min(self.leaves);
        for n in first..end {
            if let Some(leaf) = top.leaf(n) {
                self.rows = self.rows.wrapping_sub(leaf.count());
                self.give_back(leaf);
            }
        }
        if first < end {
            top.remove(first, end, self.leaves);
            self.leaves = self.leaves.wrapping_sub(end.wrapping_sub(first));
        }
        self.view.version.end();
    }

    fn cut_in(&mut self, n: usize, from: usize, to: usize) {
        if let Some(leaf) = self.leaf(n) {
            let gone = to.saturating_sub(from);
            leaf.version.begin();
            leaf.splice(from, gone, &[]);
            leaf.version.end();
            self.rows = self.rows.wrapping_sub(gone);
        }
    }

    /// Merges leaf `at.leaf` with a neighbour if both are small. To be called
    /// when rows have gone there and no [`Pos`] is needed any more.
    #[inline]
    pub fn tidy(&mut self, at: Pos) {
        if self.count(at.leaf) <= SMALL {
            self.merge(at.leaf);
        }
    }

    #[cold]
    fn merge(&mut self, n: usize) {
        for left in [n, n.wrapping_sub(1)] {
            let right = left.wrapping_add(1);
            let (Some(top), Some(to), Some(from)) =
                (self.view.top(), self.leaf(left), self.leaf(right))
            else {
                continue;
            };
            if right >= self.leaves || to.count().wrapping_add(from.count()) > MERGED {
                continue;
            }
            self.view.version.begin();
            to.version.begin();
            to.append(from, 0);
            top.remove(right, right.wrapping_add(1), self.leaves);
            self.leaves = self.leaves.wrapping_sub(1);
            self.give_back(from);
            to.version.end();
            self.view.version.end();
            return;
        }
    }

    /// Empty, from whatever state a change that was left half-way made of it.
    /// All leaves go to the pool. Readers may be at work.
    pub fn rebuild(&mut self) {
        self.view.version.begin_anyhow();
        if let Some(top) = self.view.top() {
            for n in 0..top.leaves.len() {
                top.set(n, NO_KEY, ptr::null_mut());
            }
            top.sample(0, top.leaves.len());
        }
        self.pool = None;
        (self.leaves, self.pooled, self.rows, self.last) = (0, 0, 0, (0, 0));
        let mut next = self.view.ever.load(Relaxed);
        // SAFETY: null or a leaf: `ever` and `next_ever` are only written by
        // `add_leaf`, the link before the head.
        while let Some(leaf) = unsafe { next.as_ref() } {
            leaf.version.begin_anyhow();
            leaf.version.end();
            self.give_back(leaf);
            next = leaf.next_ever.load(Relaxed);
        }
        self.view.version.end();
    }
}
