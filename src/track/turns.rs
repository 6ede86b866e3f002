//! Taking turns: the kernel pins and registers without the lock being held, so whoever does so
//! says in its flight on what memory, and whoever else is about to do something there waits.

use super::lock::Guard;
use super::{flight, lock, quiet};
use crate::sys;
use crate::thread;
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;

/// Takes the lock when nobody is pinning or unpinning anything in `ranges`.
#[inline]
pub fn lock_for(ranges: &[Option<PageRange>]) -> Option<Guard> {
    let guard = lock()?;
    if is_free(&guard, ranges, false) {
        return Some(guard);
    }
    drop(guard);
    wait_for(ranges, false)
}

#[inline]
fn is_free(guard: &Guard, ranges: &[Option<PageRange>], claims: bool) -> bool {
    let mut ranges = ranges.iter().flatten();
    !ranges.any(|r| flight::in_the_way(guard, *r, claims))
}

/// Others' pinning takes as long as the kernel's page faults do. One that was
/// left half-way is not waited for longer than this, in naps. If it was not left but
/// slow, it finds that it was overtaken, and what came of it does not count.
const NAPS: u32 = if cfg!(feature = "impatient") { 1 } else { 400 };
/// The first naps only let others go on.
const YIELDS: u32 = 16;
/// Once in so many naps it is asked whether the threads that are waited for are still there.
const LOOK: u32 = 64;

#[cold]
fn wait_for(ranges: &[Option<PageRange>], claims: bool) -> Option<Guard> {
    for nap in 0..NAPS {
        let guard = lock()?;
        if is_free(&guard, ranges, claims) {
            return Some(guard);
        }
        drop(guard);
        pause(nap);
    }
    let guard = lock()?;
    flight::sweep(&guard);
    for range in ranges.iter().flatten() {
        flight::overtake(&guard, *range);
    }
    Some(guard)
}

/// What has become of calls that have taken memory out of the ledger.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// There were none, or they have taken too long.
    Nothing,
    /// All are done.
    Done,
    /// A thread has ended in the midst of one: what is there now only the kernel knows.
    Left,
}

/// Waits for calls that have taken memory in `range` out of the ledger to replace it, to move it or
/// to unmap it: until the kernel has done that, our pins are there, and nobody but that call knows of
/// them.
#[cold]
#[inline(never)]
pub fn wait_for_what_is_taken(range: PageRange) -> Taken {
    for nap in 0..NAPS {
        let Some(guard) = lock() else {
            return Taken::Nothing;
        };
        if !is_some_taken(&guard, range) {
            return match nap {
                0 => Taken::Nothing,
                _ => Taken::Done,
            };
        }
        if nap % LOOK == YIELDS && flight::sweep(&guard) {
            return Taken::Left;
        }
        drop(guard);
        pause(nap);
    }
    Taken::Nothing
}

/// Whether another call has taken bytes of `range` out of the ledger.
pub fn is_some_taken(guard: &Guard, range: PageRange) -> bool {
    let about = |from, end| {
        let hole = PageRange::new(from, end);
        hole.is_some_and(|hole| flight::is_being_replaced(guard, hole))
    };
    let (mut from, mut taken) = (range.start(), false);
    guard.ledger.for_each(range, |part, _| {
        taken = about(from, part.start());
        from = part.end();
        match taken {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    taken || about(from, range.end())
}

/// Lets others go on, for longer from nap to nap.
fn pause(nap: u32) {
    quiet::waiting(|| match nap < YIELDS {
        true => sys::yield_now(),
        false => sys::nap(250_000),
    });
}

/// Takes the lock when no other call is about `range`, nor pins anything there.
#[cold]
#[inline(never)]
pub fn lock_alone(range: PageRange) -> Option<Guard> {
    let guard = lock()?;
    if is_free(&guard, &[Some(range)], true) {
        return Some(guard);
    }
    drop(guard);
    wait_for(&[Some(range)], true)
}

/// Waits while another call locks memory in `range` for the application, [`NAPS`] times at most. Calls that
/// move or unmap memory there are not waited for: they may be waiting here, too.
#[cold]
#[inline(never)]
pub fn wait_for_locks(range: PageRange) {
    for nap in 0..NAPS {
        if !lock().is_some_and(|guard| flight::is_being_locked(&guard, range)) {
            return;
        }
        pause(nap);
    }
}

/// Whose memory it may be that is to be pinned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The call's own, and nobody else's.
    Own,
    /// Read from the kernel by a call that is about some of it. Entries are pinned
    /// whole: what is populated in two goes stays two mappings to the kernel. What
    /// other calls are about is postponed until this one is done: to wait for them
    /// here could be to wait for each other.
    Read,
    /// Outside of any call that is about it: waits for those that are.
    Foreign,
}

/// Works through a range where others may be at work, too.
pub struct Clear {
    rest: Option<PageRange>,
    all: PageRange,
    whose: Whose,
    patient: bool,
}

/// The way through `range`.
pub fn stand_clear(range: PageRange, whose: Whose) -> Clear {
    Clear {
        rest: Some(range),
        all: range,
        whose,
        patient: true,
    }
}

impl Clear {
    /// What is still to be looked at.
    pub fn rest(&self) -> PageRange {
        self.rest.unwrap_or(self.all)
    }

    /// What lies below `addr` is done.
    pub fn pass(&mut self, addr: u64) {
        self.rest = self.rest().after(addr);
    }

    /// All of it is done.
    pub fn finish(&mut self) {
        self.rest = None;
    }

    /// Whether nothing is.
    pub fn is_done(&self) -> bool {
        self.rest.is_none()
    }

    /// The lock back if nobody is in the way of work on `part`. Otherwise it has been
    /// waited for, or `part` is left for later: what is to be done is looked at afresh.
    pub fn of(&mut self, guard: Guard, part: PageRange) -> Option<Guard> {
        let claims = self.whose != Whose::Own;
        if !self.patient || !flight::in_the_way(&guard, part, claims) {
            self.patient = true;
            return Some(guard);
        }
        if self.whose == Whose::Read && !flight::in_the_way(&guard, part, false) {
            drop(guard);
            postpone(part);
            self.rest = self.rest().after(part.end());
            return None;
        }
        drop(guard);
        let claims = self.whose == Whose::Foreign;
        if let Some(guard) = wait_for(&[Some(part)], claims) {
            // A call that its thread has left for good must not hold up others for ever.
            self.patient = !flight::in_the_way(&guard, part, claims);
        }
        None
    }
}

/// Whether another call is about bytes of `range`, or pins something there.
pub fn in_the_way_of(guard: &Guard, range: PageRange) -> bool {
    flight::in_the_way(guard, range, true)
}

/// Leaves `part` for when this thread has no call in progress any more.
pub fn postpone(part: PageRange) {
    let postponed = &thread::current().postponed;
    let (start, end) = match postponed.get() {
        (_, 0) => (part.start(), part.end()),
        (start, end) => (start.min(part.start()), end.max(part.end())),
    };
    postponed.set((start, end));
}
