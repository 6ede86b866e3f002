//! Looks at one process until it is clear whether it has gaps.
//!
//! A process that runs changes its mappings while one looks. A gap is believed
//! only if the same bytes are found wrong in the same way, with the kernel's
//! line and the entry unchanged, in two looks during which no hooked call was in
//! progress or handled ([`crate::look::Look::clean`]). A process that is never
//! at rest for that long is believed to have a gap that stands in many looks
//! over seconds: chance can't leave the same picture so often.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use regall_directory::layout::SETTING_GAVE_UP;
use regall_directory::vocab::Reason;
use regall_reader::{Again, Entry, OpenError, Seen, Soon, Turns};

use crate::check::{self, Gap, Rules};
use crate::figures::Tally;
use crate::look::{look_at_locks, Look, Settings};
use crate::swap::Swap;
use crate::words::NO_TIME;

/// How long a process may be busy before that is the answer.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// A gap that stands so long ...
const STANDING: Duration = Duration::from_secs(2);
/// ... in so many looks is believed though no look was clean.
const STANDING_LOOKS: u32 = 30;
/// Busy processes that are looked at again.
const MOST_BUSY: usize = 2048;

/// What became clear of a process.
pub enum Verdict {
    /// One look found no gap. If it was clean ([`Look::clean`]), all that was mapped at one time
    /// was accounted for at that time. If it was not, as of a process that never rests, the two
    /// lists may be of different moments, each even of several: each mapping listed then had
    /// entries, but a gap that came or went between the readings may have been missed. A gap that
    /// stays is found by any look. Nothing is shown of mappings that come later.
    Good(Box<Summary>),
    /// Gaps, and the entries that the shim could not publish.
    Gaps(Vec<Gap>, u64),
    /// The process could not be looked at.
    Failed(Failure),
}

/// What a process without gaps has.
pub struct Summary {
    /// Lines in /proc/PID/maps.
    pub mappings: usize,
    /// Bytes by what is said of them.
    pub bytes: Tally,
}

/// Why a process could not be looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// There is no directory to look at.
    Unreadable(OpenError),
    /// Hooked calls were in progress all of this time.
    Busy(Duration),
    /// It has had no turn.
    NoTime,
    /// The shim no longer tracks.
    GaveUp,
    /// /proc does not tell whether there is swap space.
    NoSwapTold,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable(e) => e.fmt(f),
            Self::Busy(time) => write!(f, "busy for {:.0} s", time.as_secs_f64()),
            Self::NoTime => f.write_str(NO_TIME),
            Self::GaveUp => f.write_str("the shim has given up"),
            Self::NoSwapTold => f.write_str("/proc does not tell whether there is swap space"),
        }
    }
}

/// Looks at `pid` until it is clear.
pub fn examine(pid: u32, strict: bool) -> Verdict {
    let began = Instant::now();
    let mut examination = Examination::new(pid, None, strict);
    loop {
        if let Some(verdict) = examination.look() {
            return verdict;
        }
        if began.elapsed() > PATIENCE {
            return examination.not_clear();
        }
        std::thread::sleep(examination.evidence.pause());
    }
}

/// Looks at each of these processes once, and calls `clear` with what became clear of it. Those
/// of which nothing did are then looked at again, all of them together, for as long as one may be
/// busy. Users take turns, so that nobody has others not reached. If time is over, nobody is looked
/// at any more.
pub fn examine_all(
    all: &[Seen],
    strict: bool,
    until: Option<Instant>,
    mut clear: impl FnMut(&Seen, &Verdict) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut waiting = Waiting::default();
    let mut first = all.len();
    let new = all.iter().map(|seen| {
        let (seen, so_far) = (*seen, None);
        (seen.uid, seen.cost, Looked { seen, so_far })
    });
    let mut turns = Turns::new(new, until);
    turns.each(|turns, user, mut one| {
        let known = one.so_far.is_some();
        let so_far = one
            .so_far
            .get_or_insert_with(|| Box::new(Examination::of(&one.seen, strict)));
        let verdict = so_far.look();
        let pause = so_far.evidence.pause();
        if !known {
            first -= 1;
        }
        if first == 0 {
            turns.end_by(Instant::now() + PATIENCE);
        }
        if let Some(verdict) = verdict {
            waiting.less(user, known);
            clear(&one.seen, &verdict)?;
            return Ok::<_, std::io::Error>(None);
        }
        let largest = waiting.more(user, known);
        if largest == Some(user) {
            one.give_up(&mut clear)?;
            return Ok(None);
        }
        if let Some(last) = largest.and_then(|largest| turns.take_last(largest)) {
            last.give_up(&mut clear)?;
        }
        let cost = one.seen.cost;
        Ok(Some(Again { pause, cost, one }))
    })?;
    let mut left = turns.left();
    left.try_for_each(|(_, one)| one.give_up(&mut clear))
}

/// A process, and what the looks so far have shown.
struct Looked {
    seen: Seen,
    so_far: Option<Box<Examination>>,
}

impl Looked {
    /// There is no time, or no room, for another look.
    fn give_up(
        self,
        clear: &mut impl FnMut(&Seen, &Verdict) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let verdict = match &self.so_far {
            Some(so_far) => so_far.not_clear(),
            None => Verdict::Failed(Failure::NoTime),
        };
        clear(&self.seen, &verdict)
    }
}

/// How many processes of each user are to be looked at again.
#[derive(Default)]
struct Waiting {
    users: BTreeMap<u32, usize>,
    sum: usize,
}

impl Waiting {
    /// One is clear, which was `known` to wait.
    fn less(&mut self, user: u32, known: bool) {
        if let (true, Some(n)) = (known, self.users.get_mut(&user)) {
            *n -= 1;
            self.sum -= 1;
        }
    }

    /// One is not. Returns who has the most, if there are too many: one of those is to go.
    fn more(&mut self, user: u32, known: bool) -> Option<u32> {
        if !known {
            *self.users.entry(user).or_default() += 1;
            self.sum += 1;
        }
        if self.sum <= MOST_BUSY {
            return None;
        }
        let largest = self.users.iter().max_by_key(|(_, n)| **n);
        let largest = largest.map(|(user, _)| *user)?;
        self.less(largest, true);
        Some(largest)
    }
}

/// A process of which nothing is clear yet.
struct Examination {
    pid: u32,
    /// Which process of that pid.
    seen: Option<Seen>,
    strict: bool,
    began: Instant,
    soon: Soon,
    /// Why there was nothing to look at.
    absent: Option<OpenError>,
    evidence: Evidence,
}

impl Examination {
    /// Of a process that was found, whoever gets its pid.
    fn of(seen: &Seen, strict: bool) -> Self {
        Self::new(seen.pid, Some(*seen), strict)
    }

    fn new(pid: u32, seen: Option<Seen>, strict: bool) -> Self {
        Self {
            pid,
            seen,
            strict,
            began: Instant::now(),
            soon: Soon::new(pid),
            absent: None,
            evidence: Evidence::default(),
        }
    }

    /// Looks once; returns what is clear now.
    fn look(&mut self) -> Option<Verdict> {
        let verdict = self.look_at_pid();
        // Another process may have its pid by now, and be another user's.
        match self.seen.is_some_and(|seen| !seen.alive()) {
            true => Some(Verdict::Failed(Failure::Unreadable(
                OpenError::NoSuchProcess,
            ))),
            false => verdict,
        }
    }

    fn look_at_pid(&mut self) -> Option<Verdict> {
        let failed = |why| Some(Verdict::Failed(why));
        self.absent = None;
        let look = match look_at_locks(self.pid) {
            Ok(look) => look,
            Err(why) => match self.soon.wait_after(why.clone()) {
                Ok(()) => {
                    self.absent = Some(why);
                    return None;
                }
                Err(why) => return failed(Failure::Unreadable(why)),
            },
        };
        if look.header.settings & SETTING_GAVE_UP != 0 {
            return failed(Failure::GaveUp);
        }
        let swap = Swap::of(self.pid);
        let rules = Rules {
            strict: self.strict,
            pin_off: look.header.pin_off(),
            hca: look.header.primary != 0 || !look.header.device.is_empty(),
            swap: swap.unwrap_or(Swap::None),
        };
        let gaps = check::gaps(
            &look.entries,
            &look.regions,
            &look.mappings,
            look.unlocked.as_deref().unwrap_or(&[]),
            rules,
        );
        // Half an answer is none, unless it is that something is wrong.
        if let (true, Err(why)) = (gaps.is_empty(), &look.unlocked) {
            return failed(Failure::Unreadable(why.clone()));
        }
        let kept = |e: &Entry| e.attr.pin.reason == Reason::Kept;
        if gaps.is_empty() && swap.is_none() && look.entries.iter().any(kept) {
            return failed(Failure::NoSwapTold);
        }
        if gaps.is_empty() {
            return Some(Verdict::Good(Box::new(summary(&look))));
        }
        let proven = self.evidence.add(gaps, &look, self.began.elapsed());
        (!proven.is_empty()).then(|| Verdict::Gaps(proven, look.header.unpublished))
    }

    /// The verdict if there is no time for another look.
    fn not_clear(&self) -> Verdict {
        Verdict::Failed(match &self.absent {
            Some(why) => Failure::Unreadable(why.clone()),
            None => Failure::Busy(self.began.elapsed()),
        })
    }
}

/// What the looks so far have shown. Gaps are known again by a number: there may be many busy
/// processes.
#[derive(Default)]
struct Evidence {
    numbers: RandomState,
    /// Gaps of the last clean look.
    clean: Vec<u64>,
    /// Gaps that stood in all of the last quiet looks, and in how many.
    standing: Vec<(u64, u32)>,
    looks: u32,
}

impl Evidence {
    /// Takes a look's gaps in; returns those that are proven now.
    fn add(&mut self, gaps: Vec<Gap>, look: &Look, elapsed: Duration) -> Vec<Gap> {
        self.looks += 1;
        if !look.quiet {
            return Vec::new();
        }
        let number = |gap: &Gap| self.numbers.hash_one(format!("{gap:?}"));
        let numbers: Vec<_> = gaps.iter().map(number).collect();
        let looks = |number: &u64| {
            let same = self.standing.iter().find(|(n, _)| n == number);
            same.map_or(1, |(_, looks)| looks + 1)
        };
        self.standing = numbers.iter().map(|n| (*n, looks(n))).collect();
        let mut proven = Vec::new();
        if look.clean {
            proven = std::mem::replace(&mut self.clean, numbers.clone());
        } else if elapsed >= STANDING {
            let often = self.standing.iter();
            let often = often.filter(|(_, looks)| *looks >= STANDING_LOOKS);
            proven = often.map(|(number, _)| *number).collect();
        }
        let all = gaps.into_iter().zip(&numbers);
        let proven = all.filter(|(_, number)| proven.contains(number));
        proven.map(|(gap, _)| gap).collect()
    }

    fn pause(&self) -> Duration {
        pause(self.looks)
    }
}

/// A few milliseconds, never twice the same in a row, so as not to keep
/// step with a program that does something periodically.
fn pause(looks: u32) -> Duration {
    Duration::from_micros(2000 + u64::from(looks.wrapping_mul(977) % 5000))
}

fn summary(look: &Look) -> Summary {
    Summary {
        mappings: look.mappings.len(),
        bytes: Tally::of(&look.entries),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pid that a process had when it was found is another one's by now.
    #[test]
    fn who_has_got_the_pid_is_not_looked_at() {
        let seen = Seen {
            pid: std::process::id(),
            start_time: 1,
            uid: 0,
            cost: Duration::ZERO,
        };
        let mut examination = Examination::new(seen.pid, Some(seen), false);
        let gone = Failure::Unreadable(OpenError::NoSuchProcess);
        assert!(matches!(examination.look(), Some(Verdict::Failed(why)) if why == gone));
    }

    /// Each process that there is no time for is named.
    #[test]
    fn who_has_no_turn_is_named() {
        let us = regall_reader::Process::find(std::process::id()).unwrap();
        let seen = |uid| Seen {
            pid: us.pid,
            start_time: us.start_time,
            uid,
            cost: Duration::ZERO,
        };
        let all: Vec<_> = (0..5).map(seen).collect();
        let named = |until| {
            let mut named = Vec::new();
            let clear = |seen: &Seen, verdict: &Verdict| {
                let no_time = matches!(verdict, Verdict::Failed(Failure::NoTime));
                named.push((seen.uid, no_time));
                Ok(())
            };
            examine_all(&all, false, until, clear).unwrap();
            named
        };
        let expected = |no_time| (0..5).map(|uid| (uid, no_time)).collect::<Vec<_>>();
        assert_eq!(named(Some(Instant::now())), expected(true));
        assert_eq!(named(None), expected(false));
    }

    /// Of too many that wait, whoever has the most has one less.
    #[test]
    fn the_largest_crowd_gives_way() {
        let mut waiting = Waiting::default();
        let crowd = (0..MOST_BUSY - 1).filter_map(|_| waiting.more(7, false));
        assert_eq!(crowd.count(), 0);
        assert_eq!(waiting.more(8, false), None);
        assert_eq!(waiting.more(8, true), None);
        assert_eq!(waiting.more(9, false), Some(7));
        assert_eq!(waiting.more(7, false), Some(7));
        waiting.less(8, true);
        assert_eq!(waiting.more(7, false), None);
    }
}
