//! Regions that nobody borrows any more, whose keys peers still have: which they are, and since
//! when. Time is counted in ticks, which a thread of the shim's counts while there are such
//! regions: to lend and give back a region costs no look at a clock.

use super::records::{Life, Record, Records};
use super::Deregistration;
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
    /// It is rotated unless somebody borrows it before.
    Later,
    /// It is rotated.
    Now,
}

impl Record {
    /// What is to be done about it in tick `now`, if so many ticks have to pass.
    pub fn due(&self, now: u32, ticks: u32) -> Due {
        let there = matches!(self.life, Life::Live | Life::Spoiled);
        if self.idle == 0 || self.borrowers != 0 || !there {
            return Due::Never;
        }
        // After an overrun of the count (years) a region waits once more, and no longer.
        match now.checked_sub(self.idle) {
            Some(passed) if passed < ticks => Due::Later,
            _ => Due::Now,
        }
    }
}

/// Records that are looked at while the lock is held.
const AT_ONCE: u32 = 32;

/// What was found among some records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Looked {
    /// A region that is to be rotated.
    pub found: Option<u32>,
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
            match self.get(n).map_or(Due::Never, |r| r.due(now, ticks)) {
                Due::Never => (),
                Due::Later => later = true,
                Due::Now => {
                    return Looked {
                        found: Some(n),
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

/// Regions that the kernel would not forget yet.
pub struct Bound {
    places: [Option<Deregistration>; BOUND],
}

/// The most of them.
pub const BOUND: usize = 32;

impl Bound {
    /// None.
    pub const fn new() -> Self {
        Self {
            places: [None; BOUND],
        }
    }

    /// Keeps one. False: there are too many.
    pub fn keep(&mut self, it: Deregistration) -> bool {
        let place = self.places.iter_mut().find(|place| place.is_none());
        place.map(|place| *place = Some(it)).is_some()
    }

    /// Whether there are any.
    pub fn any(&self) -> bool {
        self.places.iter().any(Option::is_some)
    }

    /// Takes number `n` out, if it is of the context behind descriptor `fd`, where one is named.
    /// [`Bound::keep`] puts it back where it was, or further in front.
    pub fn take(&mut self, n: usize, fd: Option<i32>) -> Option<Deregistration> {
        let of = |it: &Deregistration| fd.is_none_or(|fd| it.channel.fd() == fd);
        self.places.get_mut(n)?.take_if(|it| of(it))
    }
}

impl Default for Bound {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::DomainId;
    use super::*;
    use regall_directory::addr::PageRange;
    use regall_directory::vocab::Access;

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
        let mut lent = record(1);
        lent.borrowers = 1;
        assert_eq!(lent.due(9, 3), Due::Never);
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
