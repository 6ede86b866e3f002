//! Looks at all processes of the node, one round after the other: what each has,
//! and how fast that changed since the round before.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::time::{Duration, Instant};

use regall_directory::layout::{Call, Counter, CALLS, COUNTERS};
use regall_documents as documents;
use regall_reader::{self as reader, OpenError, Seen, Turns};

use crate::answer::Blind;
use crate::figures::Figures;
use crate::launched::Launched;
use crate::look::look_now;
use crate::output::complain;
use crate::wanted::{self, Wanted};

/// Processes of a user's that are looked at: each takes some 20 KiB.
const MOST_OF_A_USER: usize = 2048;
/// So long processes are searched for before those that were found are looked at.
const SEARCH: Duration = Duration::from_secs(1);
/// ... and so long for those that can't be seen.
const UNSEEN: Duration = Duration::from_millis(250);
/// So long a round may take. (With `--once` there are two.)
const ROUND: Duration = Duration::from_millis(2500);

/// A process, whatever other one gets its pid: pid and start time.
pub type Id = (u32, u64);

/// One process at one time.
#[derive(Clone, Debug)]
pub struct Sample {
    /// What is counted of it.
    pub figures: Figures,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
    /// Where in a job it is, and what it does.
    pub launched: Launched,
    /// How fast its counters change; none in the first round that it is seen in.
    pub rates: Option<Rates>,
}

/// By how much counters grew, and in what time.
#[derive(Clone, Debug)]
pub struct Rates {
    seconds: f64,
    calls: [u64; CALLS],
    counters: [u64; COUNTERS],
}

/// What a round has brought.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// The processes that could be looked at, by pid.
    pub samples: Vec<Sample>,
    /// Processes that could not be looked at, and why.
    pub blind: Vec<(Seen, OpenError)>,
    /// Those that nothing was looked at of.
    pub unreached: Blind,
    /// Of these users, how many more there are than are looked at.
    pub more: Vec<(u32, usize)>,
}

impl Round {
    /// Names the users of whom processes were not looked at.
    pub fn unreached(&self) -> Vec<String> {
        let more = |(uid, n): &(u32, usize)| {
            format!("user {uid}: {n} more than {MOST_OF_A_USER} processes: not looked at")
        };
        let mut all = self.unreached.lines();
        all.extend(self.more.iter().map(more));
        all
    }

    /// Says of which processes nothing is known, and why.
    pub fn complain(&self) {
        for (Seen { pid, .. }, why) in &self.blind {
            complain(&format!("{pid}: {why}"));
        }
        self.unreached().iter().for_each(|line| complain(line));
    }

    /// Returns whether all processes were looked at.
    pub fn is_whole(&self) -> bool {
        self.blind.is_empty() && self.unreached.is_empty() && self.more.is_empty()
    }
}

/// Makes one round after the other.
pub struct Sampler {
    user: Option<u32>,
    wanted: Wanted,
    before: HashMap<Id, Before>,
}

/// A process in the round before.
struct Before {
    at: Instant,
    image: u64,
    calls: [u64; CALLS],
    counters: [u64; COUNTERS],
}

/// What takes time in the shim, while a program runs.
pub const PARTS: [(Counter, &str); 3] = [
    (Counter::HookNanos, "hooks"),
    (Counter::PinNanos, "pinning"),
    (Counter::HcaNanos, "registering"),
];

impl Sampler {
    /// Of the processes of a user and a job, if these are said.
    pub fn of(wanted: &Wanted) -> anyhow::Result<Self> {
        Ok(Self {
            user: wanted.user()?,
            wanted: wanted.clone(),
            before: HashMap::new(),
        })
    }

    /// Looks at all these processes that may be looked at. Those that end meanwhile, or
    /// that execute something without the shim, are not there.
    pub fn round(&mut self) -> Result<Round, OpenError> {
        let began = Instant::now();
        // Who asks for one user's has asked for the time that they take.
        let until = |later: Duration| self.user.is_none().then(|| began + later);
        let search = reader::search(self.user, until(SEARCH))?;
        let mut round = Round::default();
        round.unreached.unseen = reader::unseen(self.user, until(SEARCH + UNSEEN));
        let mut left: BTreeMap<_, _> = search.left.into_iter().collect();
        let mut now = HashMap::new();
        let mut counts = BTreeMap::new();
        let all = search.seen.into_iter();
        let all = all.map(|seen| (seen.uid, seen.cost, seen));
        let mut turns = Turns::new(all, until(ROUND));
        let Ok(()) = turns.each(|_, user, seen| {
            let launched = Launched::of(seen.pid);
            if self.wanted.is_of_job(&launched) {
                let count: &mut usize = counts.entry(user).or_default();
                *count += 1;
                if *count <= MOST_OF_A_USER {
                    self.look(seen, launched, &mut round, &mut now);
                }
            }
            Ok::<_, Infallible>(None)
        });
        for (user, _) in turns.left() {
            *left.entry(user).or_default() += 1;
        }
        round.unreached.left = left.into_iter().collect();
        round.samples.sort_unstable_by_key(|s| s.figures.pid);
        round.blind.sort_unstable_by_key(|(seen, _)| seen.pid);
        self.before = now;
        let more = counts
            .into_iter()
            .map(|(uid, count)| (uid, count.saturating_sub(MOST_OF_A_USER)));
        round.more = more.filter(|(_, more)| *more > 0).collect();
        Ok(round)
    }

    /// Looks at one process.
    fn look(
        &self,
        seen: Seen,
        launched: Launched,
        round: &mut Round,
        now: &mut HashMap<Id, Before>,
    ) {
        let pid = seen.pid;
        let look = look_now(pid);
        if !seen.alive() {
            return;
        }
        let look = match look {
            Ok(look) => look,
            Err(OpenError::NoSuchProcess | OpenError::Inert | OpenError::Unpublished) => return,
            Err(e) => return round.blind.push((seen, e)),
        };
        let id = (pid, look.start_time);
        let this = Before {
            at: Instant::now(),
            image: look.header.image,
            calls: look.header.calls,
            counters: look.header.counters,
        };
        let rates = self.before.get(&id).and_then(|b| b.rates(&this));
        now.insert(id, this);
        round.samples.push(Sample {
            figures: Figures::of(pid, &look),
            start_time: look.start_time,
            launched,
            rates,
        });
    }
}

impl Before {
    /// The rates since; none if it executes another program now, or nothing can be said.
    fn rates(&self, now: &Self) -> Option<Rates> {
        let seconds = now.at.duration_since(self.at).as_secs_f64();
        if self.image != now.image || seconds <= 0.0 {
            return None;
        }
        Some(Rates {
            seconds,
            calls: grown(&self.calls, &now.calls),
            counters: grown(&self.counters, &now.counters),
        })
    }
}

fn grown<const N: usize>(before: &[u64; N], now: &[u64; N]) -> [u64; N] {
    let value = |all: &[u64; N], i| all.get(i).copied().unwrap_or(0);
    std::array::from_fn(|i| value(now, i).saturating_sub(value(before, i)))
}

impl Rates {
    /// All calls handled, a second.
    pub fn events(&self) -> f64 {
        let all = self.calls.iter().fold(0_u64, |n, c| n.saturating_add(*c));
        all as f64 / self.seconds
    }

    /// Calls of one kind, a second.
    pub fn calls(&self, call: Call) -> f64 {
        self.calls.get(call as usize).map_or(0.0, |n| *n as f64) / self.seconds
    }

    /// A counter's growth a second.
    pub fn counter(&self, counter: Counter) -> f64 {
        let grown = self.counters.get(counter as usize);
        grown.map_or(0.0, |n| *n as f64) / self.seconds
    }

    /// For programs.
    fn told(&self) -> documents::Rates {
        let rounded = |n: f64| (n * 100.0).round() / 100.0;
        documents::Rates {
            seconds: rounded(self.seconds),
            events_per_second: rounded(self.events()),
            shim_percent: rounded(self.shim()),
        }
    }

    /// Time in the shim, in per cent of one CPU's.
    pub fn shim(&self) -> f64 {
        PARTS.iter().map(|(c, _)| self.counter(*c)).sum::<f64>() / 1e7
    }
}

impl Sample {
    /// Which process it is.
    pub fn id(&self) -> Id {
        (self.figures.pid, self.start_time)
    }

    /// The executable's file name.
    pub fn name(&self) -> &str {
        let exe = self.figures.header.exe.as_str();
        exe.rsplit('/').next().unwrap_or(exe)
    }

    /// The word for its state.
    pub fn state(&self) -> &'static str {
        self.figures.activity(&self.launched)
    }

    /// Returns whether all these words are in its pid, name, state or rank.
    pub fn fits(&self, words: &str) -> bool {
        let (pid, rank) = (self.figures.pid, self.launched.rank);
        wanted::fits(words, pid, self.name(), self.state(), rank)
    }

    /// For programs.
    pub fn told(&self) -> documents::Process {
        let rates = self.rates.as_ref().map(Rates::told);
        self.figures.told(&self.launched, rates)
    }
}

/// The bridge's counters of bytes, with the mechanism's name.
pub fn copied() -> impl Iterator<Item = (Counter, String)> {
    let all = Counter::ALL.iter();
    all.filter_map(|c| Some((*c, mechanism(c.word())?.to_string())))
}

/// `cma` of `copy_cma_bytes`; none if it is about something else (`copy_cma` is how often).
fn mechanism(counter: &str) -> Option<&str> {
    let name = counter.strip_prefix("copy_")?.strip_suffix("_bytes")?;
    (!name.is_empty() && !name.contains('_')).then_some(name)
}

#[cfg(test)]
pub mod fixtures {
    //! Processes that were never there.

    use super::*;
    use crate::figures::fixtures::figures;

    /// A process that sleeps, with this many mappings.
    pub fn sample(pid: u32, exe: &str, mappings: usize) -> Sample {
        let mut figures = figures(pid, exe);
        figures.mappings = mappings;
        Sample {
            figures,
            start_time: 1,
            launched: Launched {
                state: 'S',
                ..Launched::UNKNOWN
            },
            rates: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let began = Instant::now();
        let at = |seconds, image, mmap, hook| {
            let mut this = Before {
                at: began + Duration::from_secs(seconds),
                image,
                calls: [0; CALLS],
                counters: [0; COUNTERS],
            };
            this.calls[Call::Mmap as usize] = mmap;
            this.calls[Call::Brk as usize] = 5;
            this.counters[Counter::HookNanos as usize] = hook;
            this
        };
        let first = at(0, 1, 10, 0);
        let rates = first.rates(&at(2, 1, 30, 500_000_000)).unwrap();
        assert_eq!(rates.events(), 10.0);
        assert_eq!(rates.calls(Call::Mmap), 10.0);
        assert_eq!(rates.calls(Call::Brk), 0.0);
        assert_eq!(rates.shim(), 25.0);
        assert!(first.rates(&at(2, 2, 30, 0)).is_none(), "another program");
        assert!(
            first.rates(&at(0, 1, 30, 0)).is_none(),
            "no time has gone by"
        );
        // What runs backwards (a forged file) is no rate.
        assert_eq!(first.rates(&at(1, 1, 3, 0)).unwrap().events(), 0.0);
    }

    #[test]
    fn mechanisms_are_the_counters_of_bytes() {
        assert_eq!(mechanism("copy_cma_bytes"), Some("cma"));
        assert_eq!(mechanism("copy_knem_bytes"), Some("knem"));
        for other in [
            "copy_cma",
            "copy_bytes",
            "copy__bytes",
            "copy_",
            "copy_cma_calls",
            "copy_cma_ns",
            "copies",
            "pins",
        ] {
            assert_eq!(mechanism(other), None, "{other}");
        }
    }
}
