//! The mailbox: cells in which every sender may leave a message that has no ring. A sender takes a
//! free cell in its own name, fills it, numbers it and sets its bit in the summary, and holds it all
//! the while ([`Holder`]). A cell whose sender stops half-way is in nobody's way but takes a place;
//! of one that has died it is freed.
//!
//! In order: a message's number is higher than those of all that its sender has sent before, and
//! their bits were set before. So whoever takes all bits there are at one time, and delivers by
//! number, delivers in each sender's order. No system call is made here but the holder's.

use super::copy::{copy_in, copy_out};
use super::layout::{Head, Shape, CELLS, CELL_HEAD};
use super::message::{described, understood, Kind};
use crate::atomic::{AtomicU64, Ordering::*};
use regall_sys::Result;

/// A cell's word in the head: the state, and above it the sender's pid.
const FREE: u64 = 0;
const TAKEN: u64 = 1;
const READY: u64 = 2;
const STATE: u64 = 3;
const PID: u32 = 2;

/// Words at the beginning of a cell.
#[repr(C)]
struct Cell {
    ticket: AtomicU64,
    what: AtomicU64,
    tag: AtomicU64,
    start: AtomicU64,
}

const _: () = assert!(size_of::<Cell>() == CELL_HEAD as usize);

/// A box's mailbox.
#[derive(Clone, Copy)]
pub struct Mailbox<'a> {
    head: &'a Head,
    shape: Shape,
    at: u64,
}

/// Lets cells be held: a file description of the box.
pub trait Holder {
    /// Takes hold of cell `n`. False: another one has it.
    ///
    /// # Errors
    /// fcntl(2)'s.
    fn hold(&self, n: usize) -> Result<bool>;

    /// Lets cell `n` go.
    fn let_go(&self, n: usize);
}

/// A cell that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(usize);

impl Place {
    /// Its bit, among those of all cells.
    pub fn bit(self) -> u64 {
        1 << (self.0 & 63)
    }
}

/// Who sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sender {
    /// Its pid, as it says; 0: the receiver could not tell who that is.
    pub pid: u32,
    /// When it began.
    pub start: u64,
}

/// A message in a cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Letter {
    /// The sender of the message.
    pub from: Sender,
    /// What it is.
    pub kind: Kind,
    /// Its tag.
    pub tag: u64,
    /// Bytes of its data.
    pub len: u64,
}

impl<'a> Mailbox<'a> {
    /// # Safety
    /// The box of this shape is mapped at `at`, to be read and written, as long as this is used.
    pub unsafe fn new(at: u64, shape: Shape) -> Self {
        // SAFETY: a box begins with its head, which is nothing but atomics.
        let head = unsafe { &*(at as *const Head) };
        Self { head, shape, at }
    }

    /// The box's summary.
    pub fn summary(&self) -> &'a super::summary::Summary {
        &self.head.summary
    }

    fn words(&self, n: usize) -> Option<&'a Cell> {
        let (at, _) = self.shape.cell(n)?;
        // SAFETY: the cell is in the box, which is mapped; atomics.
        Some(unsafe { &*((self.at + at) as *const Cell) })
    }

    fn data(&self, n: usize) -> u64 {
        self.at + self.shape.cell(n).map_or(0, |(at, _)| at) + CELL_HEAD
    }

    /// Takes a free cell with room for so many bytes for the process `pid`, but none of those whose
    /// bits are in `not`. It is held before it is taken, lest it be taken for a dead one's. `None`:
    /// there is none.
    ///
    /// # Errors
    /// The holder's.
    pub fn take(
        &self,
        holder: &impl Holder,
        (pid, len): (u32, u64),
        not: u64,
    ) -> Result<Option<Place>> {
        let taken = u64::from(pid) << PID | TAKEN;
        for (n, word) in self.head.cells.iter().enumerate() {
            let (place, room) = (Place(n), self.shape.cell(n).map_or(0, |(_, room)| room));
            let is_fit = len <= room && place.bit() & not == 0;
            if !is_fit || word.load(Relaxed) != FREE || !holder.hold(n)? {
                continue;
            }
            if word.compare_exchange(FREE, taken, Acquire, Relaxed).is_ok() {
                return Ok(Some(place));
            }
            holder.let_go(n);
        }
        Ok(None)
    }

    /// Gives it back, with nothing in it.
    pub fn give_back(&self, holder: &impl Holder, place: Place) {
        self.free(place.0);
        holder.let_go(place.0);
    }

    /// Fills it, publishes it and lets it go; how the receiver wants to be woken.
    ///
    /// # Safety
    /// `data` is valid for reading `len` bytes, for which the cell has room.
    pub unsafe fn fill(
        &self,
        holder: &impl Holder,
        place: Place,
        from: Sender,
        (kind, tag): (Kind, u64),
        (data, len): (u64, u64),
    ) -> u64 {
        let Place(n) = place;
        let (Some(cell), Some(word)) = (self.words(n), self.head.cells.get(n)) else {
            return 0;
        };
        // SAFETY: the cell is this thread's, and has room (`Mailbox::take`).
        unsafe { copy_in(data, self.data(n), len) };
        let ticket = self.head.tickets.fetch_add(1, AcqRel);
        cell.ticket.store(ticket, Relaxed);
        cell.what.store(described(kind, len), Relaxed);
        cell.tag.store(tag, Relaxed);
        cell.start.store(from.start, Relaxed);
        word.store(u64::from(from.pid) << PID | READY, Release);
        let ways = self.head.summary.cell(n);
        holder.let_go(n);
        ways
    }

    /// Adds the cells of `bits` to those that wait. What is no message is freed; how many.
    pub fn collect(&self, bits: u64, waiting: &mut Waiting) -> u64 {
        let mut rubbish = 0;
        for n in (0..CELLS).filter(|n| bits >> n & 1 != 0) {
            let (Some(word), Some(cell)) = (self.head.cells.get(n), self.words(n)) else {
                continue;
            };
            let ready = word.load(Acquire) & STATE == READY;
            let ticket = cell.ticket.load(Relaxed);
            // One that waits already is filled anew by nobody who keeps to the rules.
            rubbish += u64::from(!ready || !waiting.push(n, ticket));
        }
        rubbish
    }

    /// The message in cell `n`, which waits. `None`: it is none.
    pub fn look(&self, n: usize) -> Option<Letter> {
        let (word, cell) = (self.head.cells.get(n)?, self.words(n)?);
        let room = self.shape.cell(n).map_or(0, |(_, room)| room);
        let (kind, len) = understood(cell.what.load(Relaxed), room.min(self.shape.limit))?;
        let from = Sender {
            pid: (word.load(Relaxed) >> PID) as u32,
            start: cell.start.load(Relaxed),
        };
        let tag = cell.tag.load(Relaxed);
        Some(Letter {
            from,
            kind,
            tag,
            len,
        })
    }

    /// Copies its data to `to`.
    ///
    /// # Safety
    /// `to` is valid for writing as many bytes as [`Mailbox::look`] has said.
    pub unsafe fn copy(&self, n: usize, letter: &Letter, to: u64) {
        // SAFETY: `look` has checked that so many are in the cell; the caller's memory.
        unsafe { copy_out(self.data(n), to, letter.len) };
    }

    /// Cell `n` is free again.
    pub fn free(&self, n: usize) {
        if let Some(word) = self.head.cells.get(n) {
            word.store(FREE, Release);
        }
    }

    /// Frees the cells that senders have taken and not filled who have died: of whom `is_gone` says so
    /// by their pid, and those without a pid who hold theirs no more. Returns how many. What such a
    /// sender has filled and not told of waits now. The receiver's: nobody takes bits of the summary
    /// meanwhile.
    pub fn sweep(
        &self,
        holder: &impl Holder,
        waiting: &mut Waiting,
        is_gone: impl Fn(u32) -> bool,
    ) -> u64 {
        let mut freed = 0;
        for (n, word) in self.head.cells.iter().enumerate() {
            let seen = word.load(Acquire);
            let pid = (seen >> PID) as u32;
            if seen & STATE == FREE || waiting.has(n) || pid != 0 && !is_gone(pid) {
                continue;
            }
            // While the receiver holds it nobody without a pid has it, or gets it.
            let held = pid == 0 && holder.hold(n) == Ok(true);
            if pid == 0 && !held {
                continue;
            }
            let now = word.load(Acquire);
            match now & STATE {
                _ if now >> PID != seen >> PID => (),
                FREE => (),
                READY if self.head.summary.has_cell(n) => (),
                READY => {
                    let ticket = self.words(n).map_or(0, |cell| cell.ticket.load(Relaxed));
                    waiting.push(n, ticket);
                }
                _ => {
                    self.free(n);
                    freed += 1;
                }
            }
            if held {
                holder.let_go(n);
            }
        }
        freed
    }
}

/// Cells that were found full, by their numbers.
pub struct Waiting {
    order: [(u64, u8); CELLS],
    count: usize,
    bits: u64,
}

impl Waiting {
    /// None.
    pub const fn new() -> Self {
        Self {
            order: [(0, 0); CELLS],
            count: 0,
            bits: 0,
        }
    }

    /// Whether none waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn has(&self, n: usize) -> bool {
        self.bits >> n & 1 != 0
    }

    /// Puts cell `n` behind those with lower numbers. False: it is there already.
    fn push(&mut self, n: usize, ticket: u64) -> bool {
        if self.has(n) || self.count >= CELLS {
            return false;
        }
        let mut at = self.count;
        while let Some(before) = at.checked_sub(1).and_then(|b| self.order.get(b).copied()) {
            // The difference: numbers go round.
            if (ticket.wrapping_sub(before.0) as i64) >= 0 {
                break;
            }
            if let Some(place) = self.order.get_mut(at) {
                *place = before;
            }
            at -= 1;
        }
        if let Some(place) = self.order.get_mut(at) {
            *place = (ticket, n as u8);
        }
        self.count += 1;
        self.bits |= 1 << n;
        true
    }

    /// The first.
    pub fn first(&self) -> Option<usize> {
        let first = self.order.first().filter(|_| self.count > 0);
        first.map(|(_, n)| *n as usize)
    }

    /// Takes the first out.
    pub fn pop(&mut self) {
        if let Some(n) = self.first() {
            self.bits &= !(1 << n);
            self.order.copy_within(1..self.count, 0);
            self.count -= 1;
        }
    }
}

impl Default for Waiting {
    fn default() -> Self {
        Self::new()
    }
}
