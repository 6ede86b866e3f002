//! Regions that were given back, whose keys peers still have: which they are, and since when. Time
//! is counted in ticks, a quarter of REGALL_REVOKE_MS each, which a thread of the shim's counts while
//! there are such regions: to lend and give back a region costs no look at a clock.

use super::records::{Life, Record, RecordId, Records};
use super::Deregistration;
use crate::ledger::index::Memory;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Ticks so far.
static TICK: AtomicU32 = AtomicU32::new(1);

/// The tick that it is. Never 0.
#[inline]
pub fn now() -> u32 {
    TICK.load(Relaxed)
}

/// The next tick begins.
pub fn tick() {
    TICK.store(now().checked_add(1).unwrap_or(1), Relaxed);
}

/// What is to be done about a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Due {
    /// Nothing: it is borrowed, or its keys may stay.
    Never,
    /// The region is rotated unless somebody borrows it before.
    Later,
    /// The region is rotated.
    Now,
}

/// Ticks from the moment at which a region was first given back: then nobody gets it any more, and
/// it goes, as soon as nobody has it. (The first tick may be as good as over.)
pub const KEPT: u32 = 4;

impl Record {
    /// Notes that a borrower has given it back: its keys are to go.
    pub fn begin_to_go(&mut self) {
        if self.idle == 0 {
            self.idle = now();
        }
    }

    /// Ticks since then. `None`: its keys may stay. After an overrun of the count (years) they go at
    /// once.
    fn passed(&self, now: u32) -> Option<u32> {
        (self.idle != 0).then(|| now.checked_sub(self.idle).unwrap_or(u32::MAX))
    }

    /// Returns whether its keys are about to go, so that nobody else gets them.
    pub fn is_to_go(&self) -> bool {
        self.passed(now()).is_some_and(|passed| passed >= KEPT)
    }

    /// What is to be done about it in tick `now`, if so many ticks have to pass.
    pub fn due(&self, now: u32, ticks: u32) -> Due {
        let there = matches!(self.life, Life::Live | Life::Spoiled);
        match self.passed(now) {
            Some(passed) if there && passed < ticks => Due::Later,
            Some(_) if there && self.borrowers == 0 => Due::Now,
            // Who gives it back last has the thread look at it.
            _ => Due::Never,
        }
    }
}

/// Records that are looked at while the lock is held.
const AT_ONCE: u32 = 32;

/// What was found among some records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Looked {
    /// A region that is to be rotated.
    pub found: Option<RecordId>,
    /// Whether there are some that will be.
    pub later: bool,
    /// Where to go on; 0: these were the last.
    pub next: u32,
}

impl Records {
    /// Looks for regions to be rotated, from number `from` on, as far as it goes at once.
    pub fn look(&self, from: u32, now: u32, ticks: u32) -> Looked {
        let from = from.max(1);
        let end = self.high().min(from.saturating_add(AT_ONCE));
        let mut later = false;
        for n in from..end {
            let id = RecordId::from_raw(n);
            match self.get(id).map_or(Due::Never, |r| r.due(now, ticks)) {
                Due::Never => (),
                Due::Later => later = true,
                Due::Now => {
                    return Looked {
                        found: Some(id),
                        later: true,
                        next: n + 1,
                    }
                }
            }
        }
        Looked {
            found: None,
            later,
            next: if end < self.high() { end } else { 0 },
        }
    }
}

/// Regions that the kernel would not forget yet: a list of blocks that never shrinks.
pub struct Bound<T = Deregistration> {
    places: [Option<T>; BLOCK],
    next: Option<NonNull<Self>>,
}

// SAFETY: a block belongs to the list alone.
unsafe impl<T: Send> Send for Bound<T> {}

/// Places in a block.
const BLOCK: usize = 32;

impl<T: Copy> Bound<T> {
    /// No regions.
    pub const fn new() -> Self {
        Self {
            places: [None; BLOCK],
            next: None,
        }
    }

    /// The blocks. (In a loop: hooks run on small stacks.)
    fn blocks(&self) -> impl Iterator<Item = &Self> {
        core::iter::successors(Some(self), |block| {
            // SAFETY: a block of the list, written by `reserve`, that goes no earlier than this.
            block.next.map(|next| unsafe { next.as_ref() })
        })
    }

    /// The first block that `which` says yes to.
    fn find(&mut self, which: impl Fn(&Self) -> bool) -> Option<&mut Self> {
        let mut block = self;
        while !which(block) {
            // SAFETY: as in `blocks`, and exclusively.
            block = unsafe { block.next?.as_mut() };
        }
        Some(block)
    }

    fn has_room(&self) -> bool {
        self.places.iter().any(Option::is_none)
    }

    /// Sees to it that the next [`Bound::keep`] has room. False: there is no memory.
    pub fn reserve(&mut self, memory: &mut impl Memory) -> bool {
        let Some(last) = self.find(|block| block.has_room() || block.next.is_none()) else {
            return false;
        };
        if last.has_room() {
            return true;
        }
        last.next = memory.alloc(size_of::<Self>()).map(NonNull::cast::<Self>);
        if let Some(block) = last.next {
            // SAFETY: fresh memory of that size, aligned to 64 bytes.
            unsafe { block.write(Self::new()) };
        }
        last.next.is_some()
    }

    /// Keeps one. False: there is no room.
    pub fn keep(&mut self, it: T) -> bool {
        let block = self.find(Self::has_room);
        let place = block.and_then(|block| block.places.iter_mut().find(|place| place.is_none()));
        place.map(|place| *place = Some(it)).is_some()
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.blocks()
            .any(|block| block.places.iter().any(Option::is_some))
    }

    /// How many places there are.
    pub fn room(&self) -> usize {
        self.blocks().count() * BLOCK
    }

    /// Takes number `n` out, if `which` says yes to it. [`Bound::keep`] puts it back where it was,
    /// or further in front.
    pub fn take(&mut self, n: usize, which: impl Fn(&T) -> bool) -> Option<T> {
        let mut block = self;
        for _ in 0..n / BLOCK {
            // SAFETY: as in `find`.
            block = unsafe { block.next?.as_mut() };
        }
        block.places.get_mut(n % BLOCK)?.take_if(|it| which(it))
    }

    /// There are none any more.
    pub fn clear(&mut self) {
        for n in 0..self.room() {
            let _ = self.take(n, |_| true);
        }
    }
}

impl<T: Copy> Default for Bound<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::DomainId;
    use super::*;
    use crate::registrar::heap::Heap;
    use regall_directory::addr::PageRange;
    use regall_directory::vocab::Access;

    #[test]
    fn as_many_are_bound_as_there_are() {
        let mut bound = Bound::new();
        for n in 0..100 {
            assert!(bound.reserve(&mut Heap) && bound.keep(n), "{n}");
        }
        assert!(bound.take(40, |n| *n != 40).is_none(), "not asked for");
        let taken = bound.take(40, |_| true).expect("number 40");
        assert!(bound.keep(taken), "it has its place back");
        let all: Vec<u32> = (0..bound.room())
            .filter_map(|n| bound.take(n, |_| true))
            .collect();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
        assert!(!bound.any());
    }

    fn record(idle: u32) -> Record {
        let range = PageRange::new(0x1000, 0x2000).expect("a page");
        let mut record = Record::new(range, DomainId(0), Access::LOCAL_WRITE, Life::Live);
        record.idle = idle;
        record
    }

    #[test]
    fn what_is_due() {
        assert_eq!(record(0).due(9, 0), Due::Never);
        assert_eq!(record(7).due(9, 3), Due::Later);
        assert_eq!(record(6).due(9, 3), Due::Now);
        assert_eq!(record(9).due(9, 0), Due::Now);
        assert_eq!(record(9).due(2, 3), Due::Now, "the count began anew");
        let mut lent = record(7);
        lent.borrowers = 1;
        assert_eq!(lent.due(9, 3), Due::Later);
        assert_eq!(lent.due(10, 3), Due::Never, "who has it gives it back");
        for (life, due) in [
            (Life::Retired, Due::Never),
            (Life::Refused(1), Due::Never),
            (Life::Spoiled, Due::Now),
        ] {
            let mut other = record(1);
            other.life = life;
            assert_eq!(other.due(9, 3), due, "{life:?}");
        }
    }
}
