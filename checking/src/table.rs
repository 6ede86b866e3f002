//! The table of live registrations. No lock and no wait: a signal handler may come on top of
//! anybody in here, and a thread may leave for good half-way (it takes one slot along).
//!
//! A slot's serial number says what is in it: 0 nothing, [`BUSY`] somebody is at it, else the
//! number of the registration. Whoever reads looks at it before and after.

use crate::record::How;
use core::sync::atomic::{fence, AtomicU64, Ordering::*};

/// A slot that is being filled or emptied.
const BUSY: u64 = u64::MAX;
/// Ranges of a registration that have gone away and are told apart.
pub const LOSSES: usize = 4;

/// A range of a registration that has gone away.
#[derive(Debug, Default)]
struct Loss {
    start: AtomicU64,
    /// 0: the place is free.
    end: AtomicU64,
    /// [`How`] in the low byte, [`BACK`], [`USED`], and the record's id above.
    word: AtomicU64,
    /// The registration that it is of: one that ended while this was noted leaves it to the next
    /// in its slot.
    serial: AtomicU64,
}

/// Other memory is there now.
const BACK: u64 = 1 << 8;
/// A work request has named it; said once.
const USED: u64 = 1 << 9;
const ID_SHIFT: u32 = 16;

/// A place for a registration. All zero: it is free.
#[derive(Debug, Default)]
pub struct Slot {
    serial: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
    keys: AtomicU64,
    access: AtomicU64,
    shift: AtomicU64,
    handle: AtomicU64,
    pd: AtomicU64,
    context: AtomicU64,
    /// [`How`]s that were said and leave the pages alone, a bit each.
    said: AtomicU64,
    losses: [Loss; LOSSES],
}

/// What is known of a registration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Registration {
    /// First byte.
    pub start: u64,
    /// First byte behind it.
    pub end: u64,
    /// Keys: local in the low half, remote in the high one.
    pub keys: u64,
    /// Access that was asked for.
    pub access: u64,
    /// What work requests call the first byte, less where it is.
    pub shift: u64,
    /// The `struct ibv_mr`.
    pub handle: u64,
    /// The protection domain.
    pub pd: u64,
    /// The device.
    pub context: u64,
    /// Its number.
    pub serial: u64,
}

impl Registration {
    /// The bytes of `start..end` that it covers.
    pub fn part(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (start, end) = (start.max(self.start), end.min(self.end));
        (start < end).then_some((start, end))
    }
}

/// A range that went away, as a record says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lost {
    /// First byte.
    pub start: u64,
    /// First byte behind it.
    pub end: u64,
    /// How it went.
    pub how: How,
    /// The record that says so; 0: none was written.
    pub id: u64,
    /// Other memory is there.
    pub back: bool,
}

/// What became of noting a loss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Noted {
    /// It is to be said; where to write the record's id.
    New(usize),
    /// It was said before.
    Known,
    /// There is no place for another range.
    Full,
}

/// The table, over memory that whoever makes it gives.
#[derive(Debug)]
pub struct Table<'a> {
    slots: &'a [Slot],
    next: &'a AtomicU64,
    /// Slots that were ever used.
    high: &'a AtomicU64,
}

impl<'a> Table<'a> {
    /// A table in `slots`, which are all free at first; `next` and `high` begin as 0.
    pub const fn new(slots: &'a [Slot], next: &'a AtomicU64, high: &'a AtomicU64) -> Self {
        Self { slots, next, high }
    }

    /// What the next registration's number will be, or a later one: whoever has a lower one was
    /// there before this call.
    pub fn now(&self) -> u64 {
        self.next.load(SeqCst) + 1
    }

    /// Enters a registration, whose serial number is given here. `None`: there is no room.
    /// The slot's number, and the serial. `prepare` is called with the former before others see it.
    pub fn add(&self, new: &Registration, prepare: impl FnOnce(usize)) -> Option<(usize, u64)> {
        let (n, slot) = self.reserve()?;
        slot.fill(new);
        prepare(n);
        let serial = self.next.fetch_add(1, SeqCst) + 1;
        slot.serial.store(serial, Release);
        Some((n, serial))
    }

    /// Puts a registration back that was taken out, with the number that it had. What had gone
    /// away of it is forgotten. `prepare` as for [`Table::add`].
    pub fn put_back(&self, old: &Registration, prepare: impl FnOnce(usize)) -> Option<usize> {
        let (n, slot) = self.reserve()?;
        slot.fill(old);
        prepare(n);
        slot.serial.store(old.serial, Release);
        Some(n)
    }

    /// A free slot, which others don't look at.
    fn reserve(&self) -> Option<(usize, &'a Slot)> {
        let free = |s: &Slot| {
            s.serial.load(Relaxed) == 0
                && s.serial.compare_exchange(0, BUSY, Acquire, Relaxed).is_ok()
        };
        let n = self.slots.iter().position(free)?;
        self.high.fetch_max(n as u64 + 1, AcqRel);
        Some((n, self.slots.get(n)?))
    }

    /// Takes the registration with this handle out. Its slot's number, what it was, and the
    /// record of the first range that went away; 0: nothing did.
    pub fn take(&self, handle: u64) -> Option<(usize, Registration, u64)> {
        for (n, slot) in self.used() {
            let Some(found) = slot.read().filter(|r| r.handle == handle) else {
                continue;
            };
            let lost = slot.lost().map(|l| l.id).find(|id| *id != 0);
            if slot
                .serial
                .compare_exchange(found.serial, BUSY, AcqRel, Relaxed)
                .is_ok()
            {
                slot.serial.store(0, Release);
                return Some((n, found, lost.unwrap_or(0)));
            }
        }
        None
    }

    /// Calls `f` with each live registration and its slot's number.
    pub fn each(&self, mut f: impl FnMut(usize, &Slot, &Registration)) {
        for (n, slot) in self.used() {
            if let Some(found) = slot.read() {
                f(n, slot, &found);
            }
        }
    }

    /// A registration that was there before `new`, of the same memory in the same protection
    /// domain and with the same access, and its slot's number.
    pub fn earlier(&self, new: &Registration) -> Option<(usize, Registration)> {
        let what = |r: &Registration| (r.start, r.end, r.pd, r.access);
        self.used().find_map(|(n, slot)| {
            let found = slot.read()?;
            let same = what(&found) == what(new) && found.serial < new.serial;
            same.then_some((n, found))
        })
    }

    /// The slots that may be in use, with their numbers.
    fn used(&self) -> impl Iterator<Item = (usize, &'a Slot)> {
        let high = self.high.load(Acquire) as usize;
        self.slots.iter().take(high).enumerate()
    }

    /// Whether slot `n` still holds registration `serial`.
    pub fn holds(&self, n: usize, serial: u64) -> bool {
        fence(Acquire);
        self.slots
            .get(n)
            .is_some_and(|s| s.serial.load(Relaxed) == serial)
    }

    /// Forgets everything: a child of fork, which has one thread.
    pub fn forget(&self) {
        for (_, slot) in self.used() {
            slot.serial.store(0, Relaxed);
        }
        self.high.store(0, Release);
    }
}

impl Slot {
    fn fill(&self, new: &Registration) {
        for (word, value) in [
            (&self.start, new.start),
            (&self.end, new.end),
            (&self.keys, new.keys),
            (&self.access, new.access),
            (&self.shift, new.shift),
            (&self.handle, new.handle),
            (&self.pd, new.pd),
            (&self.context, new.context),
            (&self.said, 0),
        ] {
            word.store(value, Relaxed);
        }
        for loss in &self.losses {
            loss.end.store(0, Relaxed);
        }
    }

    /// What is in it, if that did not change meanwhile.
    fn read(&self) -> Option<Registration> {
        let serial = self.serial.load(Acquire);
        if serial == 0 || serial == BUSY {
            return None;
        }
        let found = Registration {
            start: self.start.load(Relaxed),
            end: self.end.load(Relaxed),
            keys: self.keys.load(Relaxed),
            access: self.access.load(Relaxed),
            shift: self.shift.load(Relaxed),
            handle: self.handle.load(Relaxed),
            pd: self.pd.load(Relaxed),
            context: self.context.load(Relaxed),
            serial,
        };
        fence(Acquire);
        (self.serial.load(Relaxed) == serial).then_some(found)
    }

    /// The ranges that have gone away.
    pub fn lost(&self) -> impl Iterator<Item = Lost> + '_ {
        let serial = self.serial.load(Acquire);
        self.losses.iter().filter_map(move |l| l.read(serial))
    }

    /// Notes that `start..end` of registration `serial` has gone away; `back`: other memory is
    /// there at once.
    pub fn lose(&self, serial: u64, (start, end): (u64, u64), how: How, back: bool) -> Noted {
        if !how.is_stale() {
            let bit = 1 << how as u64;
            return match self.said.fetch_or(bit, Relaxed) & bit {
                0 => Noted::New(LOSSES),
                _ => Noted::Known,
            };
        }
        let covers = |l: &Lost| l.start <= start && end <= l.end;
        if self.lost().any(|l| covers(&l)) {
            return Noted::Known;
        }
        for (n, loss) in self.losses.iter().enumerate() {
            let taken = loss.end.compare_exchange(0, BUSY, Acquire, Relaxed);
            if taken.is_err() {
                continue;
            }
            let word = how as u64 | if back { BACK } else { 0 };
            loss.start.store(start, Relaxed);
            loss.serial.store(serial, Relaxed);
            loss.word.store(word, Relaxed);
            loss.end.store(end, Release);
            return Noted::New(n);
        }
        Noted::Full
    }

    /// The record that says so of loss `n` is `id`.
    pub fn said(&self, n: usize, id: u64) {
        if let Some(loss) = self.losses.get(n) {
            loss.word.fetch_or(id << ID_SHIFT, Relaxed);
        }
    }

    /// Memory has come to `start..end`. Calls `f` with each lost range of which that is the first
    /// word.
    pub fn regain(&self, start: u64, end: u64, mut f: impl FnMut(Lost)) {
        let serial = self.serial.load(Acquire);
        for loss in &self.losses {
            let Some(lost) = loss.read(serial) else {
                continue;
            };
            let meets = lost.start < end && start < lost.end;
            if meets && !lost.back && loss.word.fetch_or(BACK, Relaxed) & BACK == 0 {
                f(lost);
            }
        }
    }

    /// A work request names `start..end`. The lost range that it meets, once.
    pub fn used(&self, start: u64, end: u64) -> Option<Lost> {
        let serial = self.serial.load(Acquire);
        self.losses.iter().find_map(|loss| {
            let lost = loss.read(serial)?;
            let meets = lost.start < end && start < lost.end;
            // What was moved is where the program has it now, until others come.
            let wrong = lost.back || lost.how != How::Moved;
            (meets && wrong && loss.word.fetch_or(USED, Relaxed) & USED == 0).then_some(lost)
        })
    }
}

impl Loss {
    /// A loss of registration `serial`.
    fn read(&self, serial: u64) -> Option<Lost> {
        let end = self.end.load(Acquire);
        if end == 0 || end == BUSY || self.serial.load(Relaxed) != serial {
            return None;
        }
        let word = self.word.load(Relaxed);
        Some(Lost {
            start: self.start.load(Relaxed),
            end,
            how: How::from_number(word & 0xff)?,
            id: word >> ID_SHIFT,
            back: word & BACK != 0,
        })
    }
}

#[cfg(test)]
mod tests;
