//! The ordered array under the ledger: one writer, any number of readers that
//! take no lock and make no system call.
//!
//! Two levels. A *leaf* holds up to [`LEAF_ROWS`] rows in the order of their
//! start addresses. The *top* holds every leaf's first start and its pointer, in
//! order, under a small tree of samples (every 8th key, every 64th, ...): a look-up
//! counts, cache line by cache line, the keys that are not above the address,
//! without a branch that depends on the data.
//!
//! **Readers and the writer.** The top and every leaf has a version, odd while the
//! writer is in it. A reader takes the top's version, finds the leaf, takes the
//! leaf's version, *then* looks whether the top's is still the same: at that
//! moment the leaf was the one for the address. Only the leaf's own version has to
//! hold from there on. Every word that a reader reads is an atomic, and no memory
//! is ever given back, so a late reader reads nonsense at the worst, and the
//! version tells it so.
//!
//! **Versions only go up**, also when a leaf leaves the top and is used again
//! elsewhere. That is what makes a [`Hint`] valid by its leaf's version alone.
//!
//! **Memory** is taken in [`Index::reserve`] alone. A change that needs a leaf
//! takes it from the pool that was filled there.

use core::marker::PhantomData;
use core::mem::{align_of, size_of};
use core::ptr::{self, NonNull};

use crate::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use crate::atomic::{compiler_fence, fence, AtomicBool, AtomicPtr, AtomicU32, AtomicU64};

/// Rows in a leaf: as many as there are 4-bit numbers in [`Leaf::order`].
pub const LEAF_ROWS: usize = 16;
/// Keys in a node of the top: one cache line.
const FAN: usize = 8;
/// Levels of the top at the most: 8^6 leaves, over four million mappings.
const MAX_DEPTH: usize = 6;
/// Levels that the first top has.
const FIRST_DEPTH: usize = 2;
/// A leaf this small looks for a neighbour to merge with ...
const SMALL: usize = 4;
/// ... if the two together are no more than this. Far enough below
/// [`LEAF_ROWS`] that a split and a merge never follow each other.
const MERGED: usize = 10;
/// A split leaves at least this many rows, and as much room, on each side.
const SPLIT_MARGIN: usize = 2;
/// Key of a place that holds none: above every row's.
const NO_KEY: u64 = i64::MAX as u64;
/// Tries of a reader before it says [`Busy`].
const TRIES: usize = 10_000;
/// Ranges that a [`Hint`] remembers.
const WAYS: usize = 16;
/// Misses in a row after which a hint is consulted only now and then ...
const COLD_AFTER: u64 = 64;
/// ... namely for one look-up in this many.
const COLD_EVERY: u64 = 8;

/// Where the ledger's memory comes from.
///
/// # Safety
/// A block that `alloc` returns must be zeroed, aligned to 64 bytes, `bytes` long,
/// used by nobody else, and stay mapped for as long as the process lives.
pub unsafe trait Memory {
    /// `bytes` of memory as above; `None` if there is none.
    fn alloc(&mut self, bytes: usize) -> Option<NonNull<u8>>;
}

/// A reader met the writer on every try; most likely it runs in a signal handler
/// that interrupted the writer, and would wait for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

/// A row: one range and what is said of it, as plain words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Packed attributes.
    pub attr: u64,
    /// Unique number.
    pub id: u64,
    /// Slot in the directory.
    pub slot: u32,
    /// Which mapping it is of, or a part of: rows that were split off each other have the same.
    pub origin: u32,
}

impl Row {
    /// All zeros.
    pub const NONE: Self = Self::halves(0);

    #[inline]
    const fn slot_and_origin(&self) -> u64 {
        (self.origin as u64) << 32 | self.slot as u64
    }

    /// Nothing but what [`Row::slot_and_origin`] said.
    #[inline]
    const fn halves(word: u64) -> Self {
        Self {
            start: 0,
            end: 0,
            attr: 0,
            id: 0,
            slot: word as u32,
            origin: (word >> 32) as u32,
        }
    }
}

/// Where a row is: leaf number in the top, row number in the leaf. Valid until
/// the next change. A row number one past the leaf's last is a place to insert.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pos {
    leaf: usize,
    row: usize,
}

impl Pos {
    /// Number of the leaf.
    #[inline]
    pub const fn leaf(self) -> usize {
        self.leaf
    }

    /// The same place after `leaves` leaves were added before it.
    #[inline]
    pub const fn moved(self, leaves: usize) -> Self {
        Self {
            leaf: self.leaf.wrapping_add(leaves),
            row: self.row,
        }
    }
}

/// A row with its leaf at hand. Most changes stay within one leaf and need not look
/// for it again; what does not goes by [`Pos`]. Valid until the next change. Two
/// words, so that it is handed on in registers.
#[derive(Clone, Copy)]
pub struct Spot {
    leaf: &'static Leaf,
    /// Number of the leaf and, in the lowest bits, of the row.
    at: usize,
}

impl Spot {
    #[inline]
    const fn new(leaf: &'static Leaf, number: usize, row: usize) -> Self {
        let at = number.wrapping_mul(LEAF_ROWS) | (row % LEAF_ROWS);
        Self { leaf, at }
    }

    #[inline]
    const fn row_number(self) -> usize {
        self.at % LEAF_ROWS
    }

    #[inline]
    const fn leaf_number(self) -> usize {
        self.at / LEAF_ROWS
    }

    /// Where it is.
    #[inline]
    pub const fn pos(self) -> Pos {
        Pos {
            leaf: self.leaf_number(),
            row: self.row_number(),
        }
    }

    /// The row.
    #[inline]
    pub fn row(self) -> Row {
        self.leaf.read(self.row_number())
    }

    /// The row before it, if that is in the same leaf.
    #[inline]
    pub fn before(self) -> Option<Self> {
        let at = self.at.wrapping_sub(1);
        (self.row_number() != 0).then_some(Self { at, ..self })
    }

    /// The row behind it, if that is in the same leaf.
    #[inline]
    pub fn behind(self) -> Option<Self> {
        let at = self.at.wrapping_add(1);
        let more = self.row_number().wrapping_add(1) < self.leaf.count();
        more.then_some(Self { at, ..self })
    }

    /// Whether its leaf can take `more` rows than it has.
    #[inline]
    pub fn has_room_for(self, more: usize) -> bool {
        self.leaf.count().saturating_add(more) <= LEAF_ROWS
    }
}

/// A version: odd while the writer is at work on what it guards.
struct Version(AtomicU64);

impl Version {
    #[inline]
    fn begin(&self) {
        let v = self.0.load(Relaxed);
        debug_assert!(v & 1 == 0, "the writer is in here already");
        self.0.store(v.wrapping_add(1), Relaxed);
        fence(Release);
    }

    #[inline]
    fn end(&self) {
        let v = self.0.load(Relaxed);
        debug_assert!(v & 1 == 1, "the writer is not in here");
        self.0.store(v.wrapping_add(1), Release);
    }

    /// Makes everything read under the version void.
    #[inline]
    fn bump(&self) {
        self.begin();
        self.end();
    }

    /// [`Version::begin`] after a change that was left half-way, too.
    fn begin_anyhow(&self) {
        self.0.store(self.0.load(Relaxed) | 1, Relaxed);
        fence(Release);
    }

    /// The version before a read; `None` while the writer is in.
    #[inline]
    fn enter(&self) -> Option<u64> {
        let v = self.0.load(Acquire);
        (v & 1 == 0).then_some(v)
    }

    /// Whether all that was read since [`Version::enter`] said `seen` is whole.
    #[inline]
    fn still(&self, seen: u64) -> bool {
        fence(Acquire);
        self.0.load(Relaxed) == seen
    }
}

/// A start address as it is stored, halved: the difference of two keys then
/// has the sign of their order (the vsyscall page is the one mapping above 2^63),
/// and counting signs is what a compiler makes good code of.
#[inline]
const fn key(addr: u64) -> u64 {
    addr >> 1
}

/// Keys in one cache line.
#[repr(C, align(64))]
struct Line([AtomicU64; FAN]);

impl Line {
    /// How many keys are not above `key`.
    #[inline]
    fn rank(&self, key: u64) -> usize {
        let next = key.wrapping_add(1);
        let below = |k: &AtomicU64| k.load(Relaxed).wrapping_sub(next) >> 63;
        let [a, b, c, d, e, f, g, h] = &self.0;
        let (ab, cd) = (below(a) + below(b), below(c) + below(d));
        let (ef, gh) = (below(e) + below(f), below(g) + below(h));
        (ab + cd + (ef + gh)) as usize
    }

    #[inline]
    fn first(&self) -> u64 {
        let [first, ..] = &self.0;
        first.load(Relaxed)
    }
}

/// The lines as one run of words.
#[inline]
fn words(lines: &[Line]) -> &[AtomicU64] {
    // SAFETY: Line is repr(C), 64 bytes long and nothing but its 8 words, so
    // n lines are 8 n words in a row; n * 8 can't overflow, the slice exists.
    unsafe { core::slice::from_raw_parts(lines.as_ptr().cast(), lines.len().wrapping_mul(FAN)) }
}

/// Moves the words `from..end` by `by` places towards the end.
#[inline]
fn move_up(words: &[AtomicU64], from: usize, end: usize, by: usize) {
    let (Some(old), Some(new)) = (
        words.get(from..end),
        words.get(from.wrapping_add(by)..end.wrapping_add(by)),
    ) else {
        return;
    };
    for (o, n) in old.iter().zip(new).rev() {
        n.store(o.load(Relaxed), Relaxed);
    }
}

/// Moves the words `from..end` by `by` places towards the beginning.
#[inline]
fn move_down(words: &[AtomicU64], from: usize, end: usize, by: usize) {
    let (Some(old), Some(new)) = (
        words.get(from..end),
        words.get(from.wrapping_sub(by)..end.wrapping_sub(by)),
    ) else {
        return;
    };
    for (o, n) in old.iter().zip(new) {
        n.store(o.load(Relaxed), Relaxed);
    }
}

/// Stores `value` in the words `from..end`.
#[inline]
fn fill(words: &[AtomicU64], from: usize, end: usize, value: u64) {
    for w in words.get(from..end).unwrap_or_default() {
        w.store(value, Relaxed);
    }
}

/// The lowest `n` of a word's sixteen 4-bit numbers, all bits set.
#[inline]
const fn low_numbers(n: usize) -> u64 {
    if n >= LEAF_ROWS {
        u64::MAX
    } else {
        (1 << (n * 4)) - 1
    }
}

const _: () = assert!(core::mem::offset_of!(Leaf, starts) == 64);

/// What of a row is not its key.
#[repr(C, align(32))]
struct Cells {
    end: AtomicU64,
    attr: AtomicU64,
    id: AtomicU64,
    /// The slot and, in the upper half, the origin.
    slot: AtomicU64,
}

/// Up to [`LEAF_ROWS`] rows. Only `starts` and `order` are kept in order; the
/// rest of a row stays where it was put, so that an insertion moves few words.
/// All bytes zero is a valid value, but [`Leaf::clear`] makes it an empty leaf.
#[repr(C, align(64))]
pub struct Leaf {
    version: Version,
    /// Which of the cells is row n's: the n-th number of 4 bits, counted from the
    /// lowest. Every number is there once; those behind the last row are of cells
    /// that are free. In the version's cache line, which a reader needs anyway.
    order: AtomicU64,
    count: AtomicU32,
    /// Next in the pool.
    next_free: AtomicPtr<Leaf>,
    /// Next of all leaves there are.
    next_ever: AtomicPtr<Leaf>,
    /// Start addresses in order, then [`NO_KEY`].
    starts: [Line; LEAF_ROWS / FAN],
    cells: [Cells; LEAF_ROWS],
}

/// [`Leaf::order`] of an empty leaf.
const IN_ORDER: u64 = 0xfedc_ba98_7654_3210;

impl Leaf {
    #[inline]
    fn count(&self) -> usize {
        self.count.load(Relaxed) as usize
    }

    /// How many rows have a key that is not above `key`.
    #[inline]
    fn rank(&self, key: u64) -> usize {
        // Both lines at once: if they are not in the cache, the misses overlap.
        let [low, high] = &self.starts;
        low.rank(key) + high.rank(key)
    }

    #[inline]
    fn cells_of(&self, row: usize) -> usize {
        (self.order.load(Relaxed) >> (row % LEAF_ROWS * 4)) as usize % LEAF_ROWS
    }

    #[inline]
    fn key(&self, row: usize) -> u64 {
        words(&self.starts)
            .get(row)
            .map_or(NO_KEY, |s| s.load(Relaxed))
    }

    #[inline]
    fn start(&self, row: usize) -> u64 {
        self.key(row) << 1
    }

    /// Row number `row`; nonsense (but no fault) if there is none, or if the writer is in.
    #[inline]
    fn read(&self, row: usize) -> Row {
        let Some(cells) = self.cells.get(self.cells_of(row)) else {
            return Row::default();
        };
        Row {
            start: self.start(row),
            end: cells.end.load(Relaxed),
            attr: cells.attr.load(Relaxed),
            id: cells.id.load(Relaxed),
            ..Row::halves(cells.slot.load(Relaxed))
        }
    }

    /// Row number `row`, for the writer.
    #[inline]
    fn row(&self, row: usize) -> Option<Row> {
        (row < self.count()).then(|| self.read(row))
    }

    #[inline]
    fn write(&self, n: usize, row: &Row) {
        if let (Some(start), Some(cells)) =
            (words(&self.starts).get(n), self.cells.get(self.cells_of(n)))
        {
            start.store(key(row.start), Relaxed);
            cells.end.store(row.end, Relaxed);
            cells.attr.store(row.attr, Relaxed);
            cells.id.store(row.id, Relaxed);
            cells.slot.store(row.slot_and_origin(), Relaxed);
        }
    }

    /// Replaces `gone` rows from number `at` on by `new`. The caller has begun the
    /// version and made sure of the room.
    #[inline]
    fn splice(&self, at: usize, gone: usize, new: &[Row]) {
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
    fn open(&self, at: usize, more: usize) {
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
    fn close(&self, at: usize, gone: usize) {
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
    fn clear(&self) {
        fill(words(&self.starts), 0, LEAF_ROWS, NO_KEY);
        self.order.store(IN_ORDER, Relaxed);
        self.count.store(0, Relaxed);
    }

    /// Appends the rows of `other` from number `from` on. Both versions are begun.
    fn append(&self, other: &Leaf, from: usize) {
        for row in from..other.count() {
            self.splice(self.count(), 0, &[other.read(row)]);
        }
    }
}

/// Every leaf's first start and its pointer, in order.
struct Top {
    /// `levels[0]` are the keys, `levels[k + 1]` every 8th of `levels[k]`; the
    /// highest is one line. Unused places are [`NO_KEY`].
    levels: [&'static [Line]; MAX_DEPTH],
    depth: usize,
    leaves: &'static [AtomicPtr<Leaf>],
}

impl Top {
    const fn capacity(depth: usize) -> usize {
        1 << (3 * depth)
    }

    /// A new, empty top.
    fn new(memory: &mut impl Memory, depth: usize) -> Option<&'static Top> {
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
    fn find(&self, key: u64) -> Option<usize> {
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
    fn leaf(&self, n: usize) -> Option<&'static Leaf> {
        let leaf = self.leaves.get(n)?.load(Relaxed);
        // SAFETY: only null or pointers to leaves made by `Index::add_leaf` are
        // ever stored here; leaves stay mapped and are shared through atomics alone.
        unsafe { leaf.as_ref() }
    }

    fn keys(&self) -> &'static [AtomicU64] {
        let [keys, ..] = self.levels;
        words(keys)
    }

    /// Stores key and pointer number `n`; samples are [`Top::sample`]'s business.
    fn set(&self, n: usize, key: u64, leaf: *mut Leaf) {
        if let (Some(k), Some(l)) = (self.keys().get(n), self.leaves.get(n)) {
            k.store(key, Relaxed);
            l.store(leaf, Relaxed);
        }
    }

    /// Puts right the samples of the keys number `from` to `end`.
    fn sample(&self, from: usize, end: usize) {
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
    fn insert(&self, n: usize, count: usize, key: u64, leaf: *mut Leaf) {
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
    fn remove(&self, from: usize, to: usize, count: usize) {
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

/// What readers see. Lives in a static, is shared by everybody, and is written
/// by the one [`Index`] that was made with it.
#[repr(align(64))]
pub struct View {
    version: Version,
    top: AtomicPtr<Top>,
    /// All leaves there are; only ever grows.
    ever: AtomicPtr<Leaf>,
    claimed: AtomicBool,
}

/// A row that a reader found, and by what it can tell that it is still true.
#[derive(Clone, Copy)]
struct Seen {
    row: Row,
    leaf: &'static Leaf,
    version: u64,
}

impl View {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            version: Version(AtomicU64::new(0)),
            top: AtomicPtr::new(ptr::null_mut()),
            ever: AtomicPtr::new(ptr::null_mut()),
            claimed: AtomicBool::new(false),
        }
    }

    #[inline]
    fn top(&self) -> Option<&'static Top> {
        let top = self.top.load(Acquire);
        // SAFETY: null, or made by Top::new, stored with Release, and never
        // unmapped nor written again but through atomics.
        unsafe { top.as_ref() }
    }

    /// One try. The outer `None`: the writer was in the way.
    #[inline]
    fn try_find(&self, addr: u64) -> Option<Option<Seen>> {
        let of_top = self.version.enter()?;
        let found = self.top().and_then(|top| top.leaf(top.find(key(addr))?));
        let Some(leaf) = found else {
            return self.version.still(of_top).then_some(None);
        };
        let version = leaf.version.enter()?;
        if !self.version.still(of_top) {
            return None;
        }
        let row = leaf.rank(key(addr)).checked_sub(1).map(|n| leaf.read(n));
        if !leaf.version.still(version) {
            return None;
        }
        Some(
            row.filter(|r| addr < r.end)
                .map(|row| Seen { row, leaf, version }),
        )
    }

    #[inline]
    fn find(&self, addr: u64) -> Result<Option<Seen>, Busy> {
        if key(addr) == NO_KEY {
            return Ok(None); // it would find the unused places
        }
        for _ in 0..TRIES {
            if let Some(answer) = self.try_find(addr) {
                return Ok(answer);
            }
            crate::hint::spin_loop();
        }
        Err(Busy)
    }

    /// The row that holds `addr`, as it was at some moment during the call. Any
    /// thread, at any time, in a signal handler too: no lock, no system call.
    #[inline]
    pub fn row_at(&self, addr: u64) -> Result<Option<Row>, Busy> {
        Ok(self.find(addr)?.map(|seen| seen.row))
    }

    /// [`View::row_at`] that looks first among the ranges found lately.
    #[inline]
    pub fn row_at_hinted(&self, addr: u64, hint: &Hint) -> Result<Option<Row>, Busy> {
        let misses = hint.misses.load(Relaxed);
        if misses > COLD_AFTER && misses % COLD_EVERY != 0 {
            hint.misses.store(misses.wrapping_add(1), Relaxed);
            return self.row_at(addr);
        }
        if let Some(row) = hint.get(addr) {
            if misses != 0 {
                hint.misses.store(0, Relaxed);
            }
            return Ok(Some(row));
        }
        hint.misses.store(misses.wrapping_add(1), Relaxed);
        let seen = self.find(addr)?;
        if let Some(seen) = &seen {
            hint.put(seen);
        }
        Ok(seen.map(|seen| seen.row))
    }
}

impl Default for View {
    fn default() -> Self {
        Self::new()
    }
}

/// Where one thread found its last 16 different ranges. For use with one [`View`]
/// only. All bytes zero is an empty hint, so that it fits a zeroed thread-local.
///
/// A signal handler may use the hint that it interrupted: `seq` is odd while
/// the hint is being written, and then nobody uses it. A handler that leaves by
/// siglongjmp in that moment turns the hint off for good, which costs time only.
pub struct Hint {
    seq: AtomicU64,
    /// Look-ups in a row that it did not help.
    misses: AtomicU64,
    /// Which way to write next.
    next: AtomicU64,
    starts: [AtomicU64; WAYS],
    /// Bytes; 0: the way is empty.
    lens: [AtomicU64; WAYS],
    ways: [Way; WAYS],
    one_thread: PhantomData<core::cell::Cell<()>>,
}

struct Way {
    leaf: AtomicPtr<Leaf>,
    version: AtomicU64,
    attr: AtomicU64,
    id: AtomicU64,
    slot: AtomicU64,
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
                    slot: AtomicU64::new(0),
                }
            }; WAYS],
            one_thread: PhantomData,
        }
    }

    #[inline]
    fn get(&self, addr: u64) -> Option<Row> {
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
            ..Row::halves(way.slot.load(Relaxed))
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
    fn put(&self, seen: &Seen) {
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
            way.slot.store(seen.row.slot_and_origin(), Relaxed);
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

/// Which way changes go, one beside the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    No,
    Up,
    Down,
}

/// The writer's side of a [`View`].
pub struct Index {
    view: &'static View,
    /// Whether this is the view's one writer. Without it there is no pool, and
    /// without a pool nothing can be inserted.
    owner: bool,
    /// Leaves in the top.
    leaves: usize,
    /// Leaves in the pool.
    pooled: usize,
    pool: Option<&'static Leaf>,
    rows: usize,
    /// Starts of the first and the last of the rows inserted last: runs of insertions
    /// are noticed by them.
    last: (u64, u64),
    /// Number of the leaf changed last; whatever it says is checked.
    recent: usize,
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

    /// What readers use.
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
    fn reserve_slowly(&mut self, memory: &mut impl Memory, leaves: usize) -> bool {
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
    fn move_top(&mut self, new: &'static Top) {
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

    fn add_leaf(&mut self, memory: &mut impl Memory) -> bool {
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
    fn give_back(&mut self, leaf: &'static Leaf) {
        leaf.version.bump();
        let next = self
            .pool
            .map_or(ptr::null_mut(), |l| ptr::from_ref(l).cast_mut());
        leaf.next_free.store(next, Relaxed);
        self.pool = Some(leaf);
        self.pooled = self.pooled.wrapping_add(1);
    }

    /// From the pool, emptied.
    fn take(&mut self) -> Option<&'static Leaf> {
        let leaf = self.pool?;
        // SAFETY: `next_free` of a pooled leaf is null or another pooled leaf.
        self.pool = unsafe { leaf.next_free.load(Relaxed).as_ref() };
        self.pooled = self.pooled.wrapping_sub(1);
        leaf.version.begin();
        leaf.clear();
        leaf.version.end();
        Some(leaf)
    }

    #[inline]
    fn leaf(&self, n: usize) -> Option<&'static Leaf> {
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

    /// The same place, as the first of the next leaf where it is a leaf's end.
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

    /// Leaves in the top.
    #[cfg(test)]
    pub fn leaves(&self) -> usize {
        self.leaves
    }

    /// As siglongjmp out of the middle of a change would leave it.
    #[cfg(test)]
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
    #[cfg(test)]
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
