//! The account of what is mapped, and its changes.

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use regall_directory::addr::PageRange;
use regall_directory::layout::SlotRef;
use regall_directory::planted;
use regall_directory::vocab::Attr;

#[cfg(test)]
use crate::entry::mergeable;
use crate::entry::{joins, slot, tag, unpack, Entry, Origin, Totals, ODD, REASONS};
use crate::index::{Index, Memory, Pos, Row, Spot, View};
use crate::plan::{Plan, Rows};

/// Where the ledger's changes go: the directory in real life, a recorder in tests.
pub trait Sink {
    /// `range` is from now on said to be `attr`. Returns the slot that says so; `None` if
    /// there is none left, which the ledger keeps and gives to `retire` like any other.
    fn publish(&mut self, range: PageRange, attr: Attr, id: u64) -> Option<SlotRef>;
    /// What `slot` says is no longer so. Comes after `publish` of what replaces it.
    fn retire(&mut self, slot: Option<SlotRef>, range: PageRange, attr: Attr);
}

/// The pool of leaves ran short before the change came to address `at`. What lies
/// below `at` is changed, what lies above is not, and the ledger is whole. Reserve
/// and make the same call again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short {
    /// First address, in bytes, that the change has not come to.
    pub at: u64,
}

/// The account of what is mapped. See the module's text.
pub struct Ledger {
    pub(crate) index: Index,
    totals: Totals,
    /// Atomic so that its value is in memory, not in a register, when a change is
    /// left half-way by siglongjmp: an id is never given twice.
    last_id: AtomicU64,
}

impl Ledger {
    /// An empty one, whose readers use `view`. A view has one ledger: a second
    /// one's [`Ledger::reserve`] says no, and so it stays empty.
    pub const fn new(view: &'static View) -> Self {
        Self {
            index: Index::new(view),
            totals: Totals {
                bytes: 0,
                registered: 0,
                pin: [0; REASONS],
                hca: [0; REASONS],
                app_locked: 0,
                shm: 0,
            },
            last_id: AtomicU64::new(0),
        }
    }

    /// Makes sure that the `changes` calls that follow don't run [`Short`]: a
    /// `remove` or `insert` needs one leaf (704 bytes) at the most, an `update` one
    /// for every piece that it changes at the most, and one in sixteen as a rule.
    /// `false` if there is no memory; the ledger is then as it was.
    #[inline]
    pub fn reserve(&mut self, memory: &mut impl Memory, changes: usize) -> bool {
        self.index.reserve(memory, changes)
    }

    /// Whether there is room for `changes` calls already: [`Ledger::reserve`] would ask
    /// for no memory.
    #[inline]
    pub fn is_reserved(&self, changes: usize) -> bool {
        self.index.is_reserved(changes)
    }

    /// The part of the ledger that readers use.
    pub const fn view(&self) -> &'static View {
        self.index.view()
    }

    /// Entries.
    pub const fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether nothing is mapped.
    pub const fn is_empty(&self) -> bool {
        self.index.len() == 0
    }

    /// Bytes mapped.
    pub const fn bytes(&self) -> u64 {
        self.totals.bytes
    }

    /// Bytes mapped, by what is said of them.
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The entry that holds `addr`.
    #[inline]
    pub fn get(&self, addr: u64) -> Option<Entry> {
        let row = self.index.row(self.index.find(addr)?)?;
        Entry::of(row).filter(|e| e.range.contains(addr))
    }

    /// The first entry that ends above `addr`: the one that holds it, or the next.
    #[inline]
    pub fn next_from(&self, addr: u64) -> Option<Entry> {
        Entry::of(self.index.row(self.first_above(addr))?)
    }

    /// Tells `f` of every entry in `range`, in order, each with the piece of it that
    /// lies in `range`, until `f` breaks.
    pub fn for_each(
        &self,
        range: PageRange,
        mut f: impl FnMut(PageRange, &Entry) -> ControlFlow<()>,
    ) {
        let mut at = self.first_above(range.start());
        while let Some(entry) = self.entry(at) {
            let Some(piece) = entry.range.intersection(range) else {
                return;
            };
            if f(piece, &entry).is_break() {
                return;
            }
            at = self.index.next(at);
        }
    }

    /// Whether every byte of `range` is mapped.
    pub fn covered(&self, range: PageRange) -> bool {
        let mut upto = range.start();
        self.for_each(range, |piece, _| {
            if piece.start() != upto {
                return ControlFlow::Break(());
            }
            upto = piece.end();
            ControlFlow::Continue(())
        });
        upto == range.end()
    }

    /// Takes the bytes of `range` out; entries that straddle its ends are split.
    /// `each` is told of every piece taken out, with the entry it was of, so that
    /// the caller can restore it. Returns the number of pieces.
    ///
    /// # Errors
    /// [`Short`] if a hole in one entry needs a leaf and there is none; then
    /// nothing has changed.
    pub fn remove(
        &mut self,
        range: PageRange,
        sink: &mut impl Sink,
        mut each: impl FnMut(&Entry, PageRange),
    ) -> Result<usize, Short> {
        // Most often what is unmapped was mapped as such.
        if let Some(spot) = self.index.spot(range.start()) {
            if let Some(entry) = Entry::of(spot.row()).filter(|e| e.range == range) {
                each(&entry, range);
                self.retire_entry(&entry, sink);
                self.index.take_out(spot);
                self.index.tidy(spot.pos());
                return Ok(1);
            }
        }
        self.remove_pieces(range, sink, each)
    }

    /// [`Ledger::remove`], whatever lies in `range`.
    fn remove_pieces(
        &mut self,
        range: PageRange,
        sink: &mut impl Sink,
        mut each: impl FnMut(&Entry, PageRange),
    ) -> Result<usize, Short> {
        let mut pieces = 0usize;
        let mut from = self.first_above(range.start());
        let Some(first) = self.entry(from) else {
            return Ok(0);
        };
        if first.range.start() < range.start() {
            let Some(part) = first.range.intersection(range) else {
                return Ok(0);
            };
            let after = first.range.after(range.end());
            if after.is_some() && !self.index.has_room(from, 1) {
                return Err(Short { at: range.start() });
            }
            each(&first, part);
            pieces = 1;
            let behind = planted!("hole-takes-the-rest", None, after);
            self.keep(
                from,
                &first,
                first.range.before(range.start()),
                behind,
                sink,
            );
            if after.is_some() {
                return Ok(pieces);
            }
            from = self.index.next(from);
        }

        let mut to = from;
        while let Some(entry) = self.entry(to) {
            let Some(part) = entry.range.intersection(range) else {
                break;
            };
            pieces = pieces.wrapping_add(1);
            each(&entry, part);
            if let Some(after) = entry.range.after(range.end()) {
                self.keep(to, &entry, None, Some(after), sink);
                break;
            }
            self.retire_entry(&entry, sink);
            to = self.index.next(to);
        }
        if to != from {
            self.index.cut(from, to);
            self.index.tidy(from);
        }
        Ok(pieces)
    }

    /// Says `attr` of `range`; what was said of its bytes before is gone. Becomes
    /// one entry, under a new id, with neighbours that say the same, where that is
    /// allowed ([`mergeable`]).
    ///
    /// # Errors
    /// [`Short`] if this needs a leaf and there is none; then nothing has changed.
    #[inline]
    pub fn insert(
        &mut self,
        range: PageRange,
        attr: Attr,
        sink: &mut impl Sink,
    ) -> Result<(), Short> {
        self.insert_part(range, attr, None, sink)
    }

    /// As [`Ledger::insert`], of what is known to be a part of `origin`: with other parts of
    /// it that it touches, and that say the same, it becomes one entry.
    ///
    /// # Errors
    /// As [`Ledger::insert`].
    #[inline]
    pub fn insert_part(
        &mut self,
        range: PageRange,
        attr: Attr,
        origin: Option<Origin>,
        sink: &mut impl Sink,
    ) -> Result<(), Short> {
        let origin = origin.map_or_else(|| self.next_origin(), |Origin(number)| number);
        if self.insert_in_gap(range, attr, origin, sink) {
            return Ok(());
        }
        let plan = Plan::of(&self.index, range, attr, origin);
        self.carry_out(&plan, range, attr, origin, sink)
    }

    /// Of a mapping that is entered now. Far from the last one's: those of parts that are
    /// moved go up and down by pages.
    #[inline]
    fn next_origin(&self) -> u32 {
        let id = self.last_id.load(Relaxed).wrapping_add(1);
        (id.wrapping_mul(ODD) >> 32) as u32
    }

    /// [`Ledger::insert`] where nothing is mapped and one leaf is all that changes:
    /// a new entry, or the one before it grows (a heap).
    #[inline]
    fn insert_in_gap(
        &mut self,
        range: PageRange,
        attr: Attr,
        origin: u32,
        sink: &mut impl Sink,
    ) -> bool {
        let Some(left) = self.index.spot(range.start()) else {
            return false;
        };
        let (row, behind) = (left.row(), left.behind().map(Spot::row));
        let upto = behind.map_or_else(|| self.index.end_of_leaf(left), |r| r.start);
        let free = row.end <= range.start() && range.end() <= upto;
        let joins = |row: &Row| joins(row, attr, origin);
        if !free || range.end() == upto && behind.is_none_or(|r| joins(&r)) {
            return false;
        }
        if row.end == range.start() && joins(&row) {
            let Some(whole) = PageRange::new(row.start, range.end()) else {
                return false;
            };
            let grown = self.publish(whole, attr, row.origin, sink);
            self.retire(row, sink);
            self.index.replace(left, &grown);
            return true;
        }
        if !left.has_room_for(1) {
            return false;
        }
        let new = self.publish(range, attr, origin, sink);
        self.index.put_behind(left, &new);
        true
    }

    /// Replaces what `plan` says by `attr` of `range`.
    #[inline]
    fn carry_out(
        &mut self,
        plan: &Plan,
        range: PageRange,
        attr: Attr,
        origin: u32,
        sink: &mut impl Sink,
    ) -> Result<(), Short> {
        let gone = self.index.in_leaf(plan.from, plan.to);
        let more = plan.rows_beside(gone.1).saturating_sub(gone.0);
        if !self.index.has_room(plan.from, more) {
            return Err(Short { at: range.start() });
        }

        // All that comes is published before anything that goes is retired.
        let (start, end) = (range.start(), range.end());
        let before = plan
            .before
            .and_then(|row| self.publish_part(row, row.start, start, sink));
        let whole = PageRange::new(plan.start, plan.end).unwrap_or(range);
        let whole = self.publish(whole, attr, origin, sink);
        let after = plan
            .after
            .and_then(|row| self.publish_part(row, end, row.end, sink));
        self.retire_between(plan.from, plan.to, sink);

        let mut rows = Rows::new();
        rows.push(before);
        rows.push(Some(whole));
        let (in_first, all) = gone;
        if all {
            rows.push(after);
            let last = self.index.splice(plan.from, in_first, rows.get());
            if in_first > rows.len {
                self.index.tidy(last);
            }
            return Ok(());
        }
        // What goes lies in several leaves. A reader sees the new row first and the
        // old ones go after, so no moment shows a hole.
        let last = self.index.splice(plan.from, in_first, rows.get());
        let moved = last.leaf().wrapping_sub(plan.from.leaf());
        let mut to = plan.to.moved(moved);
        if after.is_some() {
            to = self.index.previous(to).unwrap_or(to); // this one is cut short below
        }
        let behind = self.index.settle(self.index.behind(last));
        self.index.cut(behind, to);
        if let Some(after) = after {
            self.index.splice(behind, 1, &[after]);
        }
        self.index.tidy(last);
        Ok(())
    }

    /// Tells the sink that all rows from `from` to `to` go.
    #[inline]
    fn retire_between(&mut self, from: Pos, to: Pos, sink: &mut impl Sink) {
        let mut at = self.index.settle(from);
        while at < to {
            let Some(row) = self.index.row(at) else {
                break;
            };
            self.retire(row, sink);
            at = self.index.next(at);
        }
    }

    /// Asks `f` for the new attributes of every mapped piece of `range`, in order.
    /// Where they are what they were, nothing is done; else the piece is split off
    /// and merged with neighbours that say the same, across the ends of `range` too.
    ///
    /// # Errors
    /// [`Short`] if a piece needs a leaf and there is none: `f` has been asked of
    /// everything below [`Short::at`] and of nothing above.
    pub fn update(
        &mut self,
        range: PageRange,
        sink: &mut impl Sink,
        mut f: impl FnMut(PageRange, Attr) -> Attr,
    ) -> Result<(), Short> {
        let mut rest = Some(range);
        while let Some(todo) = rest {
            let Some(spot) = self.spot_above(todo.start()) else {
                return Ok(());
            };
            let (at, row) = (spot.pos(), spot.row());
            let range = PageRange::new(row.start, row.end);
            let Some(piece) = range.and_then(|r| r.intersection(todo)) else {
                return Ok(());
            };
            if !spot.has_room_for(2) && !self.index.has_room(at, 2) {
                return Err(Short { at: piece.start() });
            }
            let attr = f(piece, unpack(row.attr));
            if attr.pack() != row.attr && !self.move_border(spot, row, piece, attr, sink) {
                let plan = Plan::within(&self.index, at, row, piece, attr);
                self.carry_out(&plan, piece, attr, row.origin, sink)?;
            }
            rest = todo.after(piece.end());
        }
        Ok(())
    }

    /// [`Ledger::update`] where a piece goes over to the entry before it, which says
    /// `attr` already (a thread's arena that grows), and both are in one leaf.
    #[inline]
    fn move_border(
        &mut self,
        spot: Spot,
        row: Row,
        piece: PageRange,
        attr: Attr,
        sink: &mut impl Sink,
    ) -> bool {
        let (from, border) = (piece.start(), piece.end());
        if row.start != from || row.end <= border {
            return false;
        }
        let Some(left) = spot.before() else {
            return false;
        };
        let grows = left.row();
        if grows.end != from || !joins(&grows, attr, row.origin) {
            return false;
        }
        let (Some(low), Some(high)) = (
            PageRange::new(grows.start, border),
            PageRange::new(border, row.end),
        ) else {
            return false;
        };
        let low = self.publish(low, attr, grows.origin, sink);
        let high = self.publish(high, unpack(row.attr), row.origin, sink);
        self.retire(grows, sink);
        self.retire(row, sink);
        self.index.replace_two(left, [&low, &high]);
        true
    }

    /// Retires everything. Keeps its memory.
    pub fn clear(&mut self, sink: &mut impl Sink) {
        let mut at = Index::FIRST;
        while let Some(row) = self.index.row(at) {
            self.retire(row, sink);
            at = self.index.next(at);
        }
        self.index.cut(Index::FIRST, at);
    }

    /// Empty, from whatever state a change that was left half-way (siglongjmp out
    /// of a signal handler) made of it. Keeps its memory, tells no sink: the
    /// directory has to be begun anew as well. Readers may be at work.
    pub fn rebuild(&mut self) {
        self.index.rebuild();
        self.totals = Totals::default();
    }

    /// The place of the first entry that ends above `addr`.
    #[inline]
    fn first_above(&self, addr: u64) -> Pos {
        let Some(at) = self.index.find(addr) else {
            return Index::FIRST;
        };
        match self.index.row(at) {
            Some(row) if row.end > addr => at,
            _ => self.index.next(at),
        }
    }

    /// The first entry that ends above `addr`.
    #[inline]
    fn spot_above(&self, addr: u64) -> Option<Spot> {
        match self.index.spot(addr) {
            Some(spot) if spot.row().end > addr => Some(spot),
            _ => self.index.spot_at(self.first_above(addr)),
        }
    }

    #[inline]
    fn entry(&self, at: Pos) -> Option<Entry> {
        Entry::of(self.index.row(at)?)
    }

    /// Publishes and counts; the row for the index.
    #[inline]
    fn publish(&mut self, range: PageRange, attr: Attr, origin: u32, sink: &mut impl Sink) -> Row {
        let id = self.last_id.load(Relaxed).wrapping_add(1);
        self.last_id.store(id, Relaxed);
        let tag = tag(sink.publish(range, attr, id));
        let packed = attr.pack();
        self.totals.change(range.len(), packed);
        Row {
            start: range.start(),
            end: range.end(),
            attr: packed,
            id,
            tag,
            origin,
        }
    }

    /// Publishes what is left of `row` between `start` and `end`.
    #[inline]
    fn publish_part(
        &mut self,
        row: Row,
        start: u64,
        end: u64,
        sink: &mut impl Sink,
    ) -> Option<Row> {
        let range = PageRange::new(start, end)?;
        Some(self.publish(range, unpack(row.attr), row.origin, sink))
    }

    #[inline]
    fn retire(&mut self, row: Row, sink: &mut impl Sink) {
        if let Some(range) = PageRange::new(row.start, row.end) {
            sink.retire(slot(&row), range, unpack(row.attr));
            self.totals.change(range.len().wrapping_neg(), row.attr);
        }
    }

    #[inline]
    fn retire_entry(&mut self, entry: &Entry, sink: &mut impl Sink) {
        sink.retire(entry.slot, entry.range, entry.attr);
        let len = entry.range.len();
        self.totals.change(len.wrapping_neg(), entry.attr.pack());
    }

    /// Of the entry at `at`, keeps what lies before and after a hole: at least one.
    fn keep(
        &mut self,
        at: Pos,
        entry: &Entry,
        before: Option<PageRange>,
        after: Option<PageRange>,
        sink: &mut impl Sink,
    ) {
        let mut rows = Rows::new();
        rows.push(before.map(|r| self.publish(r, entry.attr, entry.origin.0, sink)));
        rows.push(after.map(|r| self.publish(r, entry.attr, entry.origin.0, sink)));
        self.retire_entry(entry, sink);
        self.index.splice(at, 1, rows.get());
    }

    /// Leaves in use.
    #[cfg(test)]
    pub(crate) fn leaves(&self) -> usize {
        self.index.leaves()
    }

    /// See [`Index::leave_half_way`].
    #[cfg(test)]
    pub(crate) fn leave_half_way(&mut self, how: usize) {
        self.index.leave_half_way(how);
    }

    /// Panics unless everything is as it has to be.
    #[cfg(test)]
    pub fn check(&self) {
        self.index.check();
        let mut totals = Totals::default();
        let mut last: Option<Entry> = None;
        let mut ids = std::collections::HashSet::new();
        let mut at = Index::FIRST;
        while let Some(e) = self.entry(at) {
            totals.change(e.range.len(), e.attr.pack());
            assert!(ids.insert(e.id), "id {} twice", e.id);
            if let Some(l) = last {
                let twins = l.range.end() == e.range.start()
                    && l.attr == e.attr
                    && (mergeable(e.attr) || l.origin == e.origin);
                assert!(!twins, "not merged: {l:?} {e:?}");
            }
            last = Some(e);
            at = self.index.next(at);
        }
        assert_eq!(totals, self.totals);
    }
}
