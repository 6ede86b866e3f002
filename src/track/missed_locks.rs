//! Remembers what the application has locked and unlocked where the ledger did not know of memory: another
//! call in progress may have taken it out, and enters it again with the locks that it has then.

use core::cmp::min;
use regall_directory::addr::PageRange;
use regall_directory::vocab::Flags;

/// A handler may make some during one call, other threads a few.
const MANY: usize = 64;

/// Says which locks a range has from then on.
#[derive(Clone, Copy)]
struct Missed {
    /// Counts from 1 on. 0: there is none.
    number: u64,
    /// Begins and ends at these addresses.
    pages: (u64, u64),
    locks: Flags,
}

/// Holds the last of them.
pub struct MissedLocks {
    missed: [Missed; MANY],
    /// How many there have been.
    count: u64,
}

impl MissedLocks {
    /// None yet.
    pub const fn new() -> Self {
        let none = Missed {
            number: 0,
            pages: (0, 0),
            locks: Flags::EMPTY,
        };
        Self {
            missed: [none; MANY],
            count: 0,
        }
    }

    /// How many there have been: what is taken out of the ledger now has missed these.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// All of `range` has `locks` now, and no others.
    pub fn add(&mut self, range: PageRange, locks: Flags) {
        self.count += 1;
        let new = Missed {
            number: self.count,
            pages: (range.start(), range.end()),
            locks,
        };
        // One that said something of these bytes alone counts no longer; else the oldest goes.
        let (start, end) = new.pages;
        let age = |old: &&mut Missed| match start <= old.pages.0 && old.pages.1 <= end {
            true => 0,
            false => old.number,
        };
        if let Some(place) = self.missed.iter_mut().min_by_key(age) {
            *place = new;
        }
    }

    /// Returns the beginning of `range` that has the same locks all over, and those, by what was missed after
    /// the first `count`. `None`: they are what they were.
    pub fn of(&self, range: PageRange, count: u64) -> (PageRange, Option<Flags>) {
        if self.count == count {
            return (range, None);
        }
        let mut end = range.end();
        let mut last: Option<Missed> = None;
        for one in self.missed.iter().filter(|one| one.number > count) {
            let (from, to) = one.pages;
            if from <= range.start() && range.start() < to {
                last = last.filter(|it| it.number > one.number).or(Some(*one));
            }
            for edge in [&from, &to] {
                if *edge > range.start() {
                    end = min(end, *edge);
                }
            }
        }
        (range.before(end).unwrap_or(range), last.map(|it| it.locks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange::new(start << 12, end << 12).unwrap()
    }

    #[test]
    fn the_last_counts_of_each_byte_and_only_what_came_since() {
        let mut locks = MissedLocks::new();
        let (locked, lazy) = (Flags::APP_LOCKED, Flags::APP_ONFAULT);
        locks.add(pages(0, 100), lazy);
        let before = locks.count();
        assert_eq!(locks.of(pages(2, 9), before), (pages(2, 9), None));
        locks.add(pages(4, 8), locked);
        locks.add(pages(4, 6), Flags::EMPTY);
        let parts = [
            (pages(2, 4), None),
            (pages(4, 6), Some(Flags::EMPTY)),
            (pages(6, 8), Some(locked)),
            (pages(8, 9), None),
        ];
        for (part, is) in parts {
            let rest = pages(part.start() >> 12, 9);
            assert_eq!(locks.of(rest, before), (part, is));
        }
        assert_eq!(locks.of(pages(8, 9), 0), (pages(8, 9), Some(lazy)));
        locks.add(pages(0, 100), lazy);
        assert_eq!(locks.of(pages(4, 9), before).1, Some(lazy));
    }

    #[test]
    fn many_of_the_same_bytes_take_one_place() {
        let mut locks = MissedLocks::new();
        locks.add(pages(1, 2), Flags::APP_LOCKED);
        for _ in 0..2 * MANY {
            locks.add(pages(4, 8), Flags::APP_LOCKED);
            locks.add(pages(4, 8), Flags::EMPTY);
        }
        let all = locks.of(pages(1, 2), 0);
        assert_eq!(all, (pages(1, 2), Some(Flags::APP_LOCKED)));
    }
}
