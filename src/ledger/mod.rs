//! What is mapped, and what is said of it: an ordered map from ranges that don't
//! overlap to attributes. Pure: it knows no registrar and makes no system call.
//!
//! It runs inside the hooks of mmap and munmap, under malloc's locks and in signal
//! handlers, so it takes no lock, allocates nothing while it changes (see
//! [`Ledger::reserve`]), recurses nowhere and can't panic. One thread at a time
//! changes it; any thread may look an address up meanwhile ([`View::lookup`]).
//!
//! Invariants:
//! * entries don't overlap, and every entry has an id of its own;
//! * no two entries that touch are equal *and* mergeable ([`mergeable`]) or parts of
//!   what was one mapping, so that a heap that has grown a thousand times is one entry,
//!   and so is a file of which each page was locked and unlocked;
//! * what the [`Sink`] was told to publish and not yet to retire is what the
//!   ledger holds; within one change, what replaces an entry is published before
//!   the entry is retired.

pub mod index;
#[cfg(test)]
mod model;

use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Prot, Reason};

pub use index::{Busy, Hint, Memory, View};
use index::{Index, Pos, Row, Spot};

/// One range and what is said of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The range.
    pub range: PageRange,
    /// What is said of every byte of it.
    pub attr: Attr,
    /// Its slot in the directory; 0: none.
    pub slot: u32,
    /// Unique for the ledger's life; from 1 up.
    pub id: u64,
    /// What it is a part of.
    pub origin: Origin,
}

/// What memory is a part of: parts of one mapping have the same, wherever each of them is
/// moved to and back, and so have mappings of one file that lie beside each other as their
/// bytes do in the file, which are one mapping to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin(u32);

/// Spreads numbers that are close to each other (2^64 divided by the golden ratio).
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Origin {
    /// Of a mapping that at `start` shows a file from `offset` on. Two files may have the
    /// same number, once in four thousand million; then what is said the same of both is
    /// one entry where they touch.
    pub const fn of_file(device: (u32, u32), inode: u64, offset: u64, start: u64) -> Self {
        let device = (device.0 as u64) << 32 | device.1 as u64;
        let file = (inode ^ device.wrapping_mul(ODD)).wrapping_mul(ODD);
        let page = offset.wrapping_sub(start) / PAGE;
        Self(((file >> 32) as u32).wrapping_add(page as u32))
    }

    /// Of a part that is moved from address `from` to `to`.
    pub const fn moved(self, from: u64, to: u64) -> Self {
        Self(self.0.wrapping_add((from.wrapping_sub(to) / PAGE) as u32))
    }
}

/// What a look-up without a lock finds: an [`Entry`], its words left packed until
/// somebody asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// [`Attr`], packed.
    pub packed: u64,
    /// Slot in the directory; 0: none.
    pub slot: u32,
    /// The entry's id.
    pub id: u64,
}

impl Found {
    /// What is said of the range.
    #[inline]
    pub fn attr(&self) -> Attr {
        unpack(self.packed)
    }

    /// The range. `None` can't be, but costs nothing to say.
    #[inline]
    pub fn range(&self) -> Option<PageRange> {
        PageRange::new(self.start, self.end)
    }

    #[inline]
    fn of(row: Row) -> Self {
        Self {
            start: row.start,
            end: row.end,
            packed: row.attr,
            slot: row.slot,
            id: row.id,
        }
    }
}

impl View {
    /// The entry that holds `addr`, as it was at some moment during the call.
    /// Any thread, at any time: no lock, no system call. [`Busy`] if a writer was in
    /// the way all the time, as it is for a signal handler that interrupted one.
    #[inline]
    pub fn lookup(&self, addr: u64) -> Result<Option<Found>, Busy> {
        Ok(self.row_at(addr)?.map(Found::of))
    }

    /// The same, looking first among the ranges that this thread found lately.
    #[inline]
    pub fn lookup_hinted(&self, addr: u64, hint: &Hint) -> Result<Option<Found>, Busy> {
        Ok(self.row_at_hinted(addr, hint)?.map(Found::of))
    }
}

/// Where the ledger's changes go: the directory in real life, a recorder in tests.
pub trait Sink {
    /// `range` is from now on said to be `attr`. Returns the slot that says so; 0 if
    /// there is none left, which the ledger keeps and gives to `retire` like any other.
    fn publish(&mut self, range: PageRange, attr: Attr, id: u64) -> u32;
    /// What `slot` says is no longer so. Comes after `publish` of what replaces it.
    fn retire(&mut self, slot: u32, range: PageRange, attr: Attr);
}

/// The pool of leaves ran short before the change came to address `at`. What lies
/// below `at` is changed, what lies above is not, and the ledger is whole. Reserve
/// and make the same call again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short {
    /// First address, in bytes, that the change has not come to.
    pub at: u64,
}

/// Bytes mapped, by what is said of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// All.
    pub bytes: u64,
    /// Those held by at least one registrar.
    pub registered: u64,
    /// By the pin set's word; index is [`Reason`] as a number ([`Reason::None`]: held).
    pub pin: [u64; REASONS],
    /// By the HCA registrar's word, likewise.
    pub hca: [u64; REASONS],
}

/// Values of [`Reason`].
pub const REASONS: usize = Reason::ALL.len();

impl Totals {
    /// `bytes` more, or fewer (its two's complement), are said to be `packed`.
    #[inline]
    fn change(&mut self, bytes: u64, packed: u64) {
        let (pin, hca) = Attr::packed_reasons(packed);
        self.bytes = self.bytes.wrapping_add(bytes);
        if pin == Reason::None as u8 || hca == Reason::None as u8 {
            self.registered = self.registered.wrapping_add(bytes);
        }
        if let Some(n) = self.pin.get_mut(usize::from(pin)) {
            *n = n.wrapping_add(bytes);
        }
        if let Some(n) = self.hca.get_mut(usize::from(hca)) {
            *n = n.wrapping_add(bytes);
        }
    }
}

/// Whether touching ranges that both say `attr` are made one entry, wherever they come
/// from. Only for memory that is nothing but bytes: a file's ranges differ in what they
/// map, shared memory in who else has it, a stack in whose it is.
#[inline]
pub fn mergeable(attr: Attr) -> bool {
    matches!(attr.kind, Kind::Anon | Kind::Heap)
        && !attr.prot.shared()
        && !attr.flags.has(Flags::TEXT)
}

/// Whether `row`, which touches a part of mapping `origin` that says `attr`, becomes one with it.
#[inline]
fn joins(row: &Row, attr: Attr, origin: u32) -> bool {
    row.attr == attr.pack() && (row.origin == origin || mergeable(attr))
}

/// Attributes that no writer wrote. They can't come up, since only packed ones
/// are stored; a hook may not panic to say so.
const NONSENSE: Attr = Attr {
    prot: Prot::from_bits(0),
    kind: Kind::Special,
    flags: Flags::EMPTY,
    pin: Column::no(Reason::Off),
    hca: Column::no(Reason::Off),
};

#[inline]
fn unpack(word: u64) -> Attr {
    let attr = Attr::unpack(word);
    debug_assert!(attr.is_some());
    attr.unwrap_or(NONSENSE)
}

impl Entry {
    #[inline]
    fn of(row: Row) -> Option<Self> {
        let range = PageRange::new(row.start, row.end);
        debug_assert!(range.is_some());
        Some(Self {
            range: range?,
            attr: unpack(row.attr),
            slot: row.slot,
            id: row.id,
            origin: Origin(row.origin),
        })
    }
}

/// Up to three rows, in order.
struct Rows {
    rows: [Row; 3],
    len: usize,
}

impl Rows {
    #[inline]
    const fn new() -> Self {
        Self {
            rows: [Row::NONE; 3],
            len: 0,
        }
    }

    #[inline]
    fn push(&mut self, row: Option<Row>) {
        if let (Some(row), Some(place)) = (row, self.rows.get_mut(self.len)) {
            *place = row;
            self.len = self.len.wrapping_add(1);
        }
    }

    #[inline]
    fn get(&self) -> &[Row] {
        self.rows.get(..self.len).unwrap_or_default()
    }
}

/// The account of what is mapped. See the module's text.
pub struct Ledger {
    index: Index,
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

    /// What readers use.
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
            at = self.next(at);
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
            self.keep(from, &first, first.range.before(range.start()), after, sink);
            if after.is_some() {
                return Ok(pieces);
            }
            from = self.next(from);
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
            to = self.next(to);
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
        let plan = self.plan(range, attr, origin);
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
        let mut at = self.index.settle(plan.from);
        while at < plan.to {
            let Some(row) = self.index.row(at) else {
                break;
            };
            self.retire(row, sink);
            at = self.next(at);
        }

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
                let plan = self.plan_within(at, row, piece, attr);
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
            at = self.next(at);
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
            _ => self.next(at),
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
    fn next(&self, at: Pos) -> Pos {
        self.index.settle(self.index.behind(at))
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
        let slot = sink.publish(range, attr, id);
        let packed = attr.pack();
        self.totals.change(range.len(), packed);
        Row {
            start: range.start(),
            end: range.end(),
            attr: packed,
            id,
            slot,
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
            sink.retire(row.slot, range, unpack(row.attr));
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

    /// What an insertion of `range` replaces, and by what. Works on packed rows:
    /// of the entries that it looks at, most are only neighbours.
    #[inline]
    fn plan(&self, range: PageRange, attr: Attr, origin: u32) -> Plan {
        let (start, end) = (range.start(), range.end());
        let joins = |row: &Row| joins(row, attr, origin);
        let mut plan = Plan {
            from: Index::FIRST,
            to: Index::FIRST,
            before: None,
            start,
            end,
            after: None,
        };

        // On the left: a row that straddles the start or touches it.
        if let Some(at) = self.index.find(start) {
            let row = self.index.row(at).unwrap_or_default();
            plan.from = if row.end > start {
                at
            } else {
                self.index.behind(at)
            };
            let left = if row.start == start {
                self.index
                    .previous(at)
                    .and_then(|at| Some((at, self.index.row(at)?)))
            } else {
                Some((at, row))
            };
            if let Some((at, row)) = left.filter(|(_, row)| row.end >= start) {
                if joins(&row) {
                    plan.from = at;
                    plan.start = row.start;
                    plan.end = end.max(row.end);
                } else if row.end > start {
                    plan.before = Some(row);
                }
            }
        }

        // On the right: the first row behind it, and the last one in it.
        plan.to = self.index.settle(plan.from);
        let mut next = self.index.row(plan.to);
        if next.is_some_and(|row| row.start < end) {
            let last = self.index.find(end.wrapping_sub(1)).unwrap_or(plan.to);
            plan.to = self.next(last);
            next = self.index.row(plan.to);
            if let Some(row) = self.index.row(last).filter(|row| row.end > end) {
                if joins(&row) {
                    plan.end = row.end;
                } else {
                    plan.after = Some(row);
                }
            }
        }
        if let Some(row) = next.filter(|row| row.start == end && joins(row)) {
            plan.end = row.end;
            plan.to = self.next(plan.to);
        }
        plan
    }

    /// As [`Ledger::plan`], for a piece of the one row at `at`: nothing is searched.
    #[inline]
    fn plan_within(&self, at: Pos, row: Row, piece: PageRange, attr: Attr) -> Plan {
        let (start, end) = (piece.start(), piece.end());
        let joins = |other: &Row| joins(other, attr, row.origin);
        let mut plan = Plan {
            from: at,
            to: self.next(at),
            before: (row.start < start).then_some(row),
            start,
            end,
            after: (end < row.end).then_some(row),
        };
        if plan.before.is_none() {
            let left = self.index.previous(at);
            let row = left.and_then(|at| self.index.row(at));
            if let (Some(at), Some(row)) = (left, row.filter(|r| r.end == start && joins(r))) {
                plan.from = at;
                plan.start = row.start;
            }
        }
        if plan.after.is_none() {
            let row = self.index.row(plan.to);
            if let Some(row) = row.filter(|r| r.start == end && joins(r)) {
                plan.to = self.next(plan.to);
                plan.end = row.end;
            }
        }
        plan
    }

    /// Leaves in use.
    #[cfg(test)]
    fn leaves(&self) -> usize {
        self.index.leaves()
    }

    /// See [`Index::leave_half_way`].
    #[cfg(test)]
    fn leave_half_way(&mut self, how: usize) {
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
            at = self.next(at);
        }
        assert_eq!(totals, self.totals);
    }
}

/// The rows from `from` up to `to` are replaced by what is left of the first, by the
/// new one, and by what is left of the last.
struct Plan {
    from: Pos,
    to: Pos,
    /// The row whose part before the range stays.
    before: Option<Row>,
    /// The new row's first address.
    start: u64,
    /// The first address behind the new row.
    end: u64,
    /// The row whose part behind the range stays.
    after: Option<Row>,
}

impl Plan {
    /// Rows that go where `from` is; `after` only if all that goes is `in_leaf`.
    fn rows_beside(&self, in_leaf: bool) -> usize {
        1 + usize::from(self.before.is_some()) + usize::from(self.after.is_some() && in_leaf)
    }
}
