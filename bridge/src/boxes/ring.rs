//! One ring: what one process has for another, in order. Its memory is lines of 64 bytes. A message
//! begins with a line, whose first word says what it is and in which *lap* around the ring it was
//! written; behind it come the tag and the data.
//!
//! The receiver looks at one word alone: the first of the line at which the next message begins.
//! The sender makes sure, before it publishes a message, that the word behind it can't be taken for
//! one of this lap. To publish is one swap of that word. A receiver that stops looking leaves a
//! mark there (*quiet*), if nothing has come: the sender's swap finds it, and the sender sets the
//! ring's bit in the summary.
//!
//! The *lock* is the sender's threads' turn, and says whose the ring is. The receiver takes a ring
//! back by the same word, while nobody has the turn: so nobody writes there who does not have the
//! ring. No system call is made here, and nothing is waited for.

use super::copy::{copy_in, copy_out};
use super::message::{described, understood, Kind, LINE, RING_HEAD};
use crate::atomic::{AtomicU64, Ordering::*};
use core::marker::PhantomData;
use regall_directory::planted;

/// Words of a line.
const WORDS: u64 = LINE / 8;

/// What is shared of a ring beside its lines.
#[repr(C, align(128))]
pub struct Control {
    /// Whose it is: [`Turn`].
    lock: AtomicU64,
    /// When that process began, as it says.
    pub start: AtomicU64,
    _line0: [u64; 6],
    /// Lines that the receiver is done with; on a line of the receiver's.
    head: AtomicU64,
    _line1: [u64; 7],
}

/// The lock's word: generation, pid, messages for which room is kept, and the state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Turn(u64);

/// Nobody's. All others have the pid of a process in the word.
const FREE: u64 = 0;
/// Is being made.
const CLAIMED: u64 = 1;
/// A sender's, none of whose threads is at it.
const OPEN: u64 = 2;
/// One of them is.
const HELD: u64 = 3;
/// The receiver has taken it back.
const REVOKED: u64 = 4;
/// The sender has no more use for it.
const LEFT: u64 = 5;

const STATE: u64 = 7;
const KEPT: u32 = 3;
const KEPT_MOST: u64 = 0x7f;
const PID: u32 = 10;
const PID_MOST: u64 = (1 << 22) - 1;
const GENERATION: u32 = 32;
/// Generation and pid: they stay while a sender has the ring.
const WHOSE: u64 = !0 << PID;

impl Turn {
    /// The process that has it; 0: none.
    pub fn pid(self) -> u32 {
        (self.0 >> PID & PID_MOST) as u32
    }

    /// Generation and pid: what tells this use of the ring from all others.
    pub fn whose(self) -> u64 {
        self.0 & WHOSE
    }

    /// Whether a sender has it and has begun to send.
    pub fn is_in_use(self) -> bool {
        matches!(self.state(), OPEN | HELD | LEFT)
    }

    /// Whether its sender has left it.
    pub fn is_left(self) -> bool {
        self.state() == LEFT
    }

    /// Whether it is nobody's.
    pub fn is_free(self) -> bool {
        self.state() == FREE
    }

    /// Whether it can be taken back only if its sender is gone: it is at work on it.
    pub fn is_busy(self) -> bool {
        matches!(self.state(), CLAIMED | HELD) || self.kept() > 0
    }

    fn state(self) -> u64 {
        self.0 & STATE
    }

    fn kept(self) -> u64 {
        self.0 >> KEPT & KEPT_MOST
    }

    fn with_state(self, state: u64) -> Self {
        Self(self.0 & !STATE | state)
    }

    fn with_kept(self, kept: u64) -> Self {
        Self(self.0 & !(KEPT_MOST << KEPT) | kept << KEPT)
    }
}

/// Why a sender can't have the turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum No {
    /// Another thread has it.
    Busy,
    /// The ring is not this sender's any more.
    Gone,
}

impl Control {
    /// The word as it is.
    pub fn turn(&self) -> Turn {
        Turn(self.lock.load(Acquire))
    }

    /// Takes the ring for process `pid`, if it is nobody's: as whose. It is made ready by
    /// [`Control::open`].
    pub fn claim(&self, pid: u32) -> Option<Turn> {
        let now = self.turn();
        let free = planted!("ring-of-two", true, now.is_free());
        if !free || pid == 0 || u64::from(pid) > PID_MOST {
            return None;
        }
        let generation = now.0 >> GENERATION << GENERATION;
        let ours = Turn(generation | u64::from(pid) << PID | CLAIMED);
        let taken = self.lock.compare_exchange(now.0, ours.0, AcqRel, Relaxed);
        taken.ok().map(|_| ours)
    }

    /// A ring that was claimed as `turn` can be used.
    pub fn open(&self, turn: Turn) {
        self.lock.store(turn.with_state(OPEN).0, Release);
    }

    /// A ring that was claimed as `turn` is not needed.
    pub fn give_up(&self, turn: Turn) {
        let free = turn.0 & !(PID_MOST << PID);
        self.lock.store(Turn(free).with_state(FREE).0, Release);
    }

    /// The sender's: takes the turn, in the ring that was claimed as `whose`.
    #[inline]
    pub fn lock(&self, whose: u64) -> Result<Turn, No> {
        let now = Turn(self.lock.load(Relaxed));
        match now.state() {
            _ if now.whose() != whose => Err(No::Gone),
            OPEN => {
                let held = now.with_state(HELD);
                let taken = self.lock.compare_exchange(now.0, held.0, Acquire, Relaxed);
                // Another thread was quicker, or the receiver.
                taken.map(|_| held).map_err(|_| No::Busy)
            }
            HELD => Err(No::Busy),
            _ => Err(No::Gone),
        }
    }

    /// Gives the turn back.
    #[inline]
    pub fn unlock(&self, held: Turn) {
        self.lock.store(held.with_state(OPEN).0, Release);
    }

    /// The sender's, when it has no more to send. Whether the receiver has to be told.
    pub fn leave(&self, whose: u64) -> bool {
        let now = self.turn();
        let ours = now.state() == OPEN && now.whose() == whose && now.kept() == 0;
        let left = now.with_state(LEFT);
        ours && self
            .lock
            .compare_exchange(now.0, left.0, AcqRel, Relaxed)
            .is_ok()
    }

    /// The receiver's: takes the ring back from the sender that has it as `whose`, if none of its
    /// threads is at it. What it has sent is there still.
    pub fn revoke(&self, whose: u64) -> bool {
        let now = self.turn();
        let idle = now.state() == OPEN && now.whose() == whose && now.kept() == 0;
        let revoked = now.with_state(REVOKED);
        idle && self
            .lock
            .compare_exchange(now.0, revoked.0, AcqRel, Relaxed)
            .is_ok()
    }

    /// The receiver's: takes it back from a sender that is gone, or sends rubbish.
    pub fn seize(&self) {
        let now = self.turn();
        self.lock.store(now.with_state(REVOKED).0, Release);
    }

    /// The receiver's: the ring is nobody's.
    pub fn free(&self) {
        self.head.store(0, Relaxed);
        let next = (self.turn().0 >> GENERATION).wrapping_add(1) << GENERATION;
        self.lock.store(next | FREE, Release);
    }
}

/// A ring's lines.
#[derive(Clone, Copy)]
pub struct Lines<'a> {
    at: *const AtomicU64,
    /// A power of two.
    count: u64,
    box_: PhantomData<&'a AtomicU64>,
}

// SAFETY: as a reference to atomics; data are copied by who has the turn, or reads.
unsafe impl Send for Lines<'_> {}
// SAFETY: likewise.
unsafe impl Sync for Lines<'_> {}

impl<'a> Lines<'a> {
    /// # Safety
    /// `bytes`, a power of two and some lines, are mapped at `at`, to be read and written, for as
    /// long as this is used.
    pub unsafe fn new(at: u64, bytes: u64) -> Self {
        Self {
            at: at as *const AtomicU64,
            count: bytes / LINE,
            box_: PhantomData,
        }
    }

    /// Word `n` of the line at a position.
    #[inline]
    fn word(&self, position: u64, n: u64) -> &'a AtomicU64 {
        let line = position & (self.count - 1);
        // SAFETY: a word of one of `count` lines, all of which are mapped (`Lines::new`).
        unsafe { &*self.at.add((line * WORDS + n % WORDS) as usize) }
    }

    /// Which lap a position is in, as it is in the first word of a message.
    #[inline]
    fn lap(&self, position: u64) -> u64 {
        (position >> self.count.trailing_zeros() | LAPS) << LAP
    }

    /// The mark that nobody looks at the position.
    #[inline]
    fn quiet(&self, position: u64) -> u64 {
        self.lap(position) | QUIET
    }

    /// Where byte `into` of a message at a position is, and how many bytes follow in one piece.
    #[inline]
    fn place(&self, position: u64, into: u64) -> (u64, u64) {
        let bytes = self.count * LINE;
        let offset = ((position & (self.count - 1)) * LINE + into) & (bytes - 1);
        (self.at as u64 + offset, bytes - offset)
    }
}

/// Where the lap is in a message's first word, and the mark's kind.
const LAP: u32 = 40;
/// Set in every lap's number: a word of zeroes is of none.
const LAPS: u64 = 1 << 23;
const QUIET: u64 = 0xff << 32;

/// Lines of a message with so many bytes of data.
#[inline]
pub fn lines_for(len: u64) -> u64 {
    (RING_HEAD + len).div_ceil(LINE)
}

/// The sender's side. Used by whoever has the turn; atomics, because the word that says whose turn
/// it is could be changed by others.
pub struct Writer {
    /// Lines that were written.
    tail: AtomicU64,
    /// Lines that the receiver was seen to be done with.
    head: AtomicU64,
    /// Lines that are kept for messages to come.
    kept: AtomicU64,
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

impl Writer {
    /// Of a ring that nobody has.
    pub const fn new() -> Self {
        Self {
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            kept: AtomicU64::new(0),
        }
    }

    /// Begins with a ring that was claimed. Nobody looks at it yet.
    pub fn begin(&self, lines: &Lines) {
        lines.word(0, 0).store(lines.quiet(0), Relaxed);
        self.tail.store(0, Relaxed);
        self.head.store(0, Relaxed);
        self.kept.store(0, Relaxed);
    }

    /// Whether there is room for so many lines, and one behind them.
    #[inline]
    fn has_room(&self, control: &Control, lines: &Lines, need: u64) -> bool {
        let (tail, kept) = (self.tail.load(Relaxed), self.kept.load(Relaxed));
        let fits = |head: u64| tail.wrapping_sub(head) + kept + need < lines.count;
        let seen = self.head.load(Relaxed);
        if fits(seen) {
            return true;
        }
        let head = control.head.load(Acquire);
        // Between what was seen and what was written, or it is rubbish.
        if head.wrapping_sub(seen) > tail.wrapping_sub(seen) {
            return false;
        }
        self.head.store(head, Relaxed);
        fits(head)
    }

    /// Writes a message, if there is room; whether the receiver has to be told (the ring was
    /// quiet). By who has the turn.
    ///
    /// # Safety
    /// `data` is valid for reading `len` bytes, and `len` is at most the box's limit.
    #[inline]
    pub unsafe fn write(
        &self,
        control: &Control,
        lines: &Lines,
        kind: Kind,
        tag: u64,
        (data, len): (u64, u64),
    ) -> Option<bool> {
        if !self.has_room(control, lines, lines_for(len)) {
            return None;
        }
        // SAFETY: by the contract above.
        Some(unsafe { self.put(lines, kind, tag, (data, len)) })
    }

    /// # Safety
    /// As [`Writer::write`].
    #[inline]
    unsafe fn put(&self, lines: &Lines, kind: Kind, tag: u64, (data, len): (u64, u64)) -> bool {
        let position = self.tail.load(Relaxed);
        lines.word(position, 1).store(tag, Relaxed);
        let (at, piece) = lines.place(position, RING_HEAD);
        let first = len.min(piece);
        // SAFETY: `first` bytes of the ring at `at`, and of the caller's data.
        unsafe { copy_in(data, at, first) };
        if first < len {
            let (at, _) = lines.place(position, RING_HEAD + first);
            // SAFETY: the rest, at the ring's beginning: less than the ring.
            unsafe { copy_in(data + first, at, len - first) };
        }
        let next = position.wrapping_add(lines_for(len));
        let behind = lines.word(next, 0);
        if behind.load(Relaxed) >> LAP == lines.lap(next) >> LAP {
            behind.store(0, Relaxed);
        }
        self.tail.store(next, Relaxed);
        let word = lines.lap(position) | described(kind, len);
        let old = lines.word(position, 0).swap(word, AcqRel);
        old == lines.quiet(position)
    }

    /// Keeps room for a message of so many bytes; the turn as it is then. `None`: there is none.
    pub fn keep(&self, control: &Control, lines: &Lines, len: u64, held: Turn) -> Option<Turn> {
        let need = lines_for(len);
        if held.kept() >= KEPT_MOST || !self.has_room(control, lines, need) {
            return None;
        }
        self.kept.store(self.kept.load(Relaxed) + need, Relaxed);
        Some(held.with_kept(held.kept() + 1))
    }

    /// Room that was kept is needed no longer; the turn as it is then.
    pub fn let_go(&self, len: u64, held: Turn) -> Turn {
        let kept = self.kept.load(Relaxed);
        self.kept
            .store(kept.saturating_sub(lines_for(len)), Relaxed);
        held.with_kept(held.kept().saturating_sub(1))
    }
}

/// The receiver's side.
#[derive(Clone, Copy)]
pub struct Reader {
    position: u64,
    /// The position of which the sender was told last.
    told: u64,
}

/// A message that has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// What it is.
    pub kind: Kind,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its data.
    pub len: u64,
}

impl Reader {
    /// At the beginning of a ring.
    pub const fn new() -> Self {
        Self {
            position: 0,
            told: 0,
        }
    }

    /// The next message. `Some(None)`: what is there is none.
    #[inline]
    pub fn peek(&self, lines: &Lines, limit: u64) -> Option<Option<Found>> {
        let word = lines.word(self.position, 0).load(Acquire);
        if !self.is_message(lines, word) {
            return None;
        }
        let found = understood(word, limit).map(|(kind, len)| Found {
            kind,
            tag: lines.word(self.position, 1).load(Relaxed),
            len,
        });
        Some(found)
    }

    #[inline]
    fn is_message(&self, lines: &Lines, word: u64) -> bool {
        word >> LAP == lines.lap(self.position) >> LAP && word != lines.quiet(self.position)
    }

    /// Takes the message that [`Reader::peek`] has found: copies its data to `to`.
    ///
    /// # Safety
    /// `to` is valid for writing as many bytes as it has.
    #[inline]
    pub unsafe fn take(&mut self, control: &Control, lines: &Lines, found: &Found, to: u64) {
        let (at, piece) = lines.place(self.position, RING_HEAD);
        let first = found.len.min(piece);
        // SAFETY: `first` bytes of the ring at `at`; the caller's memory, by the contract above.
        unsafe { copy_out(at, to, first) };
        if first < found.len {
            let (at, _) = lines.place(self.position, RING_HEAD + first);
            // SAFETY: the rest, at the ring's beginning: less than the ring.
            unsafe { copy_out(at, to + first, found.len - first) };
        }
        self.position = self.position.wrapping_add(lines_for(found.len));
        if self.position.wrapping_sub(self.told) >= lines.count / 4 {
            self.tell(control);
        }
    }

    /// Tells the sender how far this is.
    fn tell(&mut self, control: &Control) {
        self.told = self.position;
        control.head.store(self.position, Release);
    }

    /// Nobody looks at the ring from now on: whoever sends next says so. False: something has come.
    pub fn go_quiet(&mut self, control: &Control, lines: &Lines) -> bool {
        if self.told != self.position {
            self.tell(control);
        }
        let word = lines.word(self.position, 0);
        let now = word.load(Acquire);
        if self.is_message(lines, now) {
            return false;
        }
        let quiet = lines.quiet(self.position);
        word.compare_exchange(now, quiet, AcqRel, Relaxed).is_ok()
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}
