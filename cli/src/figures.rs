//! What is counted of a process at one look, for `stats`, `top` and `verify`.

use regall_directory::layout::{Call, Counter, SETTING_FORKED, SETTING_GAVE_UP};
use regall_directory::vocab::Reason;
use regall_documents::{self as documents, Counts, Live, Process, Rates, Sites};
use regall_reader::{Entry, HeaderView};

use crate::launched::{host, Launched};
use crate::look::{Look, Settings};
use crate::words::{reason, state};

/// Words that are told apart: the kernel has not that many errnos for one process.
const MOST_WORDS: usize = 64;

/// Bytes by state, by reason, and by each registrar's word.
#[derive(Clone, Debug, Default)]
pub struct Tally(pub documents::Bytes);

impl Tally {
    /// Of all entries.
    pub fn of(entries: &[Entry]) -> Self {
        let mut tally = documents::Bytes::default();
        let add = |sums: &mut Counts, word: String, bytes: u64| {
            let known = sums.len() < MOST_WORDS || sums.contains_key(&word);
            let other = || Reason::Refused.word().to_string();
            let sum = sums.entry(if known { word } else { other() }).or_default();
            *sum = sum.saturating_add(bytes);
        };
        for Entry { range, attr, .. } in entries {
            add(&mut tally.state, state(attr).to_string(), range.len());
            add(&mut tally.pin, attr.pin.to_string(), range.len());
            add(&mut tally.hca, attr.hca.to_string(), range.len());
            if !attr.registered() {
                add(&mut tally.reason, reason(attr), range.len());
            }
        }
        for sums in [
            &mut tally.state,
            &mut tally.reason,
            &mut tally.pin,
            &mut tally.hca,
        ] {
            sums.sort_unstable_keys();
        }
        Self(tally)
    }

    /// Bytes that at least one registrar holds.
    pub fn registered(&self) -> u64 {
        self.0.state.get("registered").copied().unwrap_or(0)
    }

    /// Bytes that are left out for a named reason.
    pub fn excluded(&self) -> u64 {
        self.0.state.get("excluded").copied().unwrap_or(0)
    }

    /// Bytes that the pin set holds.
    pub fn pinned(&self) -> u64 {
        self.0.pin.get("yes").copied().unwrap_or(0)
    }

    /// Bytes of the shim's own.
    pub fn shim(&self) -> u64 {
        self.0.reason.get("shim").copied().unwrap_or(0)
    }

    /// Bytes that are left out because they are over the limit.
    pub fn over_limit(&self) -> u64 {
        self.0.reason.get("limit").copied().unwrap_or(0)
    }

    /// Bytes that the adapter has not, since nobody has touched them or asked for them.
    pub fn untouched(&self) -> u64 {
        let word = Reason::Untouched.word();
        self.0.hca.get(word).copied().unwrap_or(0)
    }
}

/// The HCA registrar's counters.
pub const HCA: [Counter; 15] = [
    Counter::Domains,
    Counter::Registrations,
    Counter::Deregistrations,
    Counter::Served,
    Counter::Passed,
    Counter::HcaRotated,
    Counter::PdWaits,
    Counter::PdLeftOut,
    Counter::DomainsFull,
    Counter::HcaRefused,
    Counter::HcaLimited,
    Counter::HcaBytes,
    Counter::RetiredBytes,
    Counter::AheadBytes,
    Counter::HcaNanos,
];

/// All that is counted of one process.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Its pid, as we see it.
    pub pid: u32,
    /// Whose it is.
    pub uid: u32,
    /// Its directory's header.
    pub header: HeaderView,
    /// Hooked calls in progress.
    pub busy: usize,
    /// Lines in /proc/PID/maps.
    pub mappings: usize,
    /// Ranges that it published.
    pub entries: usize,
    /// Memory regions that it published.
    pub regions: usize,
    /// The bytes of these ranges.
    pub bytes: Tally,
    /// Of these the shim's, those that are kept free for its directory.
    pub kept_free: u64,
}

impl Figures {
    /// From a look at `pid`.
    pub fn of(pid: u32, look: &Look) -> Self {
        Self {
            pid,
            uid: look.uid,
            busy: look.busy,
            mappings: look.mappings.len(),
            entries: look.entries.len(),
            regions: look.regions.all().len(),
            bytes: Tally::of(&look.entries),
            kept_free: regall_reader::kept_free(&look.header, &look.mappings),
            header: look.header.clone(),
        }
    }

    /// A counter's value; the header has not what the ranges tell.
    pub fn counter(&self, counter: Counter) -> u64 {
        match counter {
            Counter::PinnedBytes => return self.bytes.pinned(),
            Counter::ShimBytes => return self.bytes.shim().saturating_sub(self.kept_free),
            Counter::Ranges => return self.entries as u64,
            _ => {}
        }
        let counters = &self.header.counters;
        counters.get(counter as usize).copied().unwrap_or(0)
    }

    /// How often a call was handled.
    pub fn calls(&self, call: Call) -> u64 {
        self.header.calls.get(call as usize).copied().unwrap_or(0)
    }

    /// The budget in bytes, if there is one.
    pub fn budget(&self) -> Option<u64> {
        (self.header.budget != u64::MAX).then_some(self.header.budget)
    }

    /// Whether the shim no longer tracks.
    pub fn gave_up(&self) -> bool {
        self.header.settings & SETTING_GAVE_UP != 0
    }

    /// The word for what it does.
    pub fn activity(&self, launched: &Launched) -> &'static str {
        match self.gave_up() {
            true => "gave up",
            false => launched.activity(),
        }
    }

    /// The kinds of calls that did not arrive in the self-test.
    pub fn missed(&self) -> Vec<&'static str> {
        let missed = |c: &&Call| self.header.selftest_missed >> (**c as u32) & 1 != 0;
        Call::ALL.iter().filter(missed).map(|c| c.word()).collect()
    }

    /// All that there is to say, in the order in which it is printed.
    pub fn told(&self, launched: &Launched, rates: Option<Rates>) -> Process {
        let h = &self.header;
        let text = |(name, value): (&str, String)| (name.to_string(), value);
        Process {
            version: documents::VERSION,
            library: None,
            pid: self.pid,
            exe: h.exe.clone(),
            host: host(),
            rank: launched.rank,
            ranks: launched.ranks,
            start_time: h.start_time,
            forked: h.settings & SETTING_FORKED != 0,
            gave_up: self.gave_up(),
            budget_bytes: self.budget(),
            memlock_bytes: None,
            unpublished: h.unpublished,
            mappings: self.mappings as u64,
            settings: h.in_force().into_iter().map(text).collect(),
            bytes: self.bytes.0.clone(),
            events: named(Call::ALL.iter().map(|c| (c.word(), self.calls(*c)))),
            counters: named(Counter::ALL.iter().map(|c| (c.word(), self.counter(*c)))),
            sites: Sites {
                patched: h.sites_patched,
                refused: h.sites_refused,
            },
            selftest_missed: self.missed().into_iter().map(str::to_string).collect(),
            live: Some(Live {
                user: self.uid,
                job: launched.job.clone(),
                activity: self.activity(launched).to_string(),
                generation: h.generation.get(),
                busy: self.busy as u64,
                regions: self.regions as u64,
                rates,
            }),
        }
    }
}

fn named(all: impl Iterator<Item = (&'static str, u64)>) -> Counts {
    all.map(|(name, n)| (name.to_string(), n)).collect()
}

#[cfg(test)]
pub mod fixtures {
    //! A process of which nothing is known.

    use super::*;
    use regall_directory::layout::Generation;

    /// With `pid`, executing `exe`.
    pub fn figures(pid: u32, exe: &str) -> Figures {
        Figures {
            pid,
            uid: 7,
            header: HeaderView {
                pid: pid.into(),
                start_time: 1,
                image: 1,
                pid_namespace: 1,
                uid: 0,
                generation: Generation::from_raw(1),
                high_water: 0,
                segments: 1,
                unpublished: 0,
                settings: 0,
                budget: u64::MAX,
                sites_patched: 0,
                sites_refused: 0,
                selftest_missed: 0,
                stack_floor: 0,
                counters: [0; regall_directory::layout::COUNTERS],
                calls: [0; regall_directory::layout::CALLS],
                inflight: Vec::new(),
                exe: exe.to_string(),
                primary: 0,
                device: String::new(),
            },
            busy: 0,
            mappings: 0,
            kept_free: 0,
            entries: 0,
            regions: 0,
            bytes: Tally::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::fixtures::entry;
    use regall_directory::vocab::{Column, Reason};

    #[test]
    fn bytes_are_counted_under_each_word() {
        let mut beyond = entry(20, 50);
        beyond.attr.pin = Column::no(Reason::Limit);
        let mut refused = entry(50, 51);
        refused.attr.pin = Column::refused(12);
        let tally = Tally::of(&[entry(10, 20), beyond, refused]);
        assert_eq!(tally.registered(), 10 << 12);
        assert_eq!(tally.excluded(), 31 << 12);
        assert_eq!(tally.over_limit(), 30 << 12);
        assert_eq!(tally.pinned(), 10 << 12);
        let tally = tally.0;
        let pages = |sums: &Counts| {
            let pages = sums.iter().map(|(word, bytes)| (word.clone(), bytes >> 12));
            pages.collect::<Vec<_>>()
        };
        assert_eq!(
            pages(&tally.reason),
            [("limit".into(), 30), ("refused:12".into(), 1)]
        );
        assert_eq!(pages(&tally.hca), [("off".into(), 41)]);
    }
}
