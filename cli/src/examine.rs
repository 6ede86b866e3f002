//! Looks at one process until it is clear whether it has gaps.
//!
//! A process that runs changes its mappings while one looks. A gap is believed
//! only if the same bytes are found wrong in the same way, with the kernel's
//! line and the entry unchanged, in two looks during which no hooked call was in
//! progress or handled ([`crate::look::Look::clean`]). A process that is never
//! at rest for that long is believed to have a gap that stands in many looks
//! over seconds: chance can't leave the same picture so often.

use std::time::{Duration, Instant};

use regall_directory::layout::SETTING_GAVE_UP;
use regall_reader::OpenError;

use crate::check::{self, Gap, Rules};
use crate::figures::Tally;
use crate::look::{look_at_locks, Look, Settings};

/// How long a process may be busy before that is the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A gap that stands so long ...
const STANDING: Duration = Duration::from_secs(2);
/// ... in so many looks is believed though no look was clean.
const STANDING_LOOKS: u32 = 30;

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
    /// Hooked calls were in progress all the time.
    Busy,
    /// The shim no longer tracks.
    GaveUp,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable(e) => e.fmt(f),
            Self::Busy => write!(f, "busy for {} s", PATIENCE.as_secs()),
            Self::GaveUp => f.write_str("the shim has given up"),
        }
    }
}

/// Looks at `pid` until it is clear.
pub fn examine(pid: u32, strict: bool) -> Verdict {
    let began = Instant::now();
    let mut evidence = Evidence::default();
    loop {
        let look = match look_at_locks(pid) {
            Ok(look) => look,
            Err(e) => return Verdict::Failed(Failure::Unreadable(e)),
        };
        if look.header.settings & SETTING_GAVE_UP != 0 {
            return Verdict::Failed(Failure::GaveUp);
        }
        let rules = Rules {
            strict,
            pin_off: look.header.pin_off(),
            hca_off: look.header.hca_off(),
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
            return Verdict::Failed(Failure::Unreadable(why.clone()));
        }
        if gaps.is_empty() {
            return Verdict::Good(Box::new(summary(&look)));
        }
        let proven = evidence.add(gaps, &look, began.elapsed());
        if !proven.is_empty() {
            return Verdict::Gaps(proven, look.header.unpublished);
        }
        if began.elapsed() > PATIENCE {
            return Verdict::Failed(Failure::Busy);
        }
        std::thread::sleep(evidence.pause());
    }
}

/// What the looks so far have shown.
#[derive(Default)]
struct Evidence {
    /// Gaps of the last clean look.
    clean: Vec<Gap>,
    /// Gaps that stood in all of the last quiet looks, and in how many.
    standing: Vec<(Gap, u32)>,
    looks: u32,
}

impl Evidence {
    /// Takes a look's gaps in; returns those that are proven now.
    fn add(&mut self, gaps: Vec<Gap>, look: &Look, elapsed: Duration) -> Vec<Gap> {
        self.looks += 1;
        if !look.quiet {
            return Vec::new();
        }
        let looks_before = |gap: &Gap| {
            let same = self.standing.iter().find(|(g, _)| g == gap);
            same.map_or(0, |&(_, looks)| looks)
        };
        let counted: Vec<_> = gaps.iter().map(|g| looks_before(g) + 1).collect();
        self.standing = gaps.iter().cloned().zip(counted).collect();
        if look.clean {
            let before = std::mem::replace(&mut self.clean, gaps);
            let twice = |g: &&Gap| before.contains(g);
            return self.clean.iter().filter(twice).cloned().collect();
        }
        if elapsed < STANDING {
            return Vec::new();
        }
        let standing = self.standing.iter();
        let often = standing.filter(|(_, looks)| *looks >= STANDING_LOOKS);
        often.map(|(gap, _)| gap.clone()).collect()
    }

    /// A few milliseconds, never twice the same in a row, so as not to keep
    /// step with a program that does something periodically.
    fn pause(&self) -> Duration {
        Duration::from_micros(2000 + u64::from(self.looks * 977 % 5000))
    }
}

fn summary(look: &Look) -> Summary {
    Summary {
        mappings: look.mappings.len(),
        bytes: Tally::of(&look.entries),
    }
}
