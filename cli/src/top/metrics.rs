//! The processes of the node as metrics: OpenMetrics, or the text format that Prometheus'
//! node exporter reads from files.
//!
//! A rank of a user's is a time series: what its processes have is added up. Job and rank are what
//! a process's environment says, so nobody's figures are added to another user's. No mapping's name
//! is in it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

use anyhow::Context;
use regall_directory::layout::Counter;
use regall_documents::Process;

use crate::files;
use crate::launched::host;
use crate::manual::counters;

/// In which form they are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// OpenMetrics 1.0.
    Open,
    /// Prometheus' text format, version 0.0.4.
    Text,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
}

/// Labels as they are written: a rank's, which all of its series have in common, and one more.
type Labels = (Rc<str>, String);
/// Ranks of a user that are told apart. The figures of all others are one series, which has no
/// rank: what a process's environment says can't make any number of series.
const MOST_RANKS: usize = 512;
/// What stands for the job of these others.
const OTHERS: &str = "(others)";

/// One metric.
struct Family {
    name: String,
    kind: Kind,
    help: String,
    samples: BTreeMap<Labels, u64>,
}

/// All metrics, in the order in which they are written.
#[derive(Default)]
pub struct Metrics {
    all: Vec<Family>,
    /// The ranks of each user, by their labels.
    ranks: BTreeMap<u32, BTreeSet<Rc<str>>>,
}

impl Metrics {
    /// Of these processes; `blind` others of these users could not be looked at.
    pub fn of(
        processes: impl Iterator<Item = Process>,
        blind: impl Iterator<Item = (u32, usize)>,
    ) -> Self {
        let mut all = Self::default();
        for (user, n) in blind {
            all.unreadable(user, n);
        }
        let meanings = counters::all();
        for process in processes {
            if let Some(live) = &process.live {
                all.unreadable(live.user, 0);
            }
            let rank = all.rank(&process);
            all.process(&process, &rank);
            all.counters(&process, &rank, &meanings);
        }
        all
    }

    fn unreadable(&mut self, user: u32, n: usize) {
        let labels = [("host", host()), ("user", user.to_string())];
        let labels = (written(&labels).into(), String::new());
        let help = "processes with the shim on that could not be looked at";
        self.gauge("unreadable_processes", help, &labels, n as u64);
    }

    /// The labels of a process's rank.
    fn rank(&mut self, p: &Process) -> Labels {
        let live = p.live.as_ref();
        let user = live.map(|l| l.user);
        let mut labels = vec![("host", p.host.clone())];
        labels.extend(user.map(|user| ("user", user.to_string())));
        let users = labels.len();
        labels.extend(live.and_then(|l| l.job.clone()).map(|job| ("job", job)));
        labels.extend(p.rank.map(|n| ("rank", n.to_string())));
        let known = self.ranks.entry(user.unwrap_or_default()).or_default();
        let mut rank = written(&labels);
        if known.len() >= MOST_RANKS && !known.contains(&*rank) {
            labels.truncate(users);
            labels.push(("job", OTHERS.to_string()));
            rank = written(&labels);
        }
        let rank: Rc<str> = match known.get(&*rank) {
            Some(same) => same.clone(),
            None => rank.into(),
        };
        known.insert(rank.clone());
        (rank, String::new())
    }

    fn add(&mut self, kind: Kind, name: &str, help: &str, labels: &Labels, value: u64) {
        let at = self.all.iter().position(|f| f.name == name);
        let at = at.unwrap_or_else(|| {
            self.all.push(Family {
                name: name.to_string(),
                kind,
                help: help.to_string(),
                samples: BTreeMap::new(),
            });
            self.all.len() - 1
        });
        if let Some(family) = self.all.get_mut(at) {
            let sum = family.samples.entry(labels.clone()).or_default();
            *sum = sum.saturating_add(value);
        }
    }

    fn gauge(&mut self, name: &str, help: &str, labels: &Labels, value: u64) {
        self.add(Kind::Gauge, name, help, labels, value);
    }

    fn process(&mut self, p: &Process, rank: &Labels) {
        self.gauge("processes", "processes with the shim on", rank, 1);
        let help = "processes in which the shim no longer tracks";
        self.gauge("given_up_processes", help, rank, p.gave_up.into());
        self.gauge("mappings", "lines of /proc/PID/maps", rank, p.mappings);
        let busy = p.live.as_ref().map_or(0, |l| l.busy);
        self.gauge("busy_calls", "hooked calls in progress", rank, busy);
        let help = "ranges that could not be published: /dev/shm is full";
        self.gauge("unpublished_ranges", help, rank, p.unpublished);
        for (state, bytes) in &p.bytes.state {
            let help = "bytes by state";
            self.gauge("memory_bytes", help, &with(rank, "state", state), *bytes);
        }
        for (reason, bytes) in &p.bytes.reason {
            let help = "bytes that are excluded, by reason";
            self.gauge(
                "excluded_bytes",
                help,
                &with(rank, "reason", reason),
                *bytes,
            );
        }
        if let Some(budget) = p.budget_bytes {
            self.gauge("budget_bytes", "the most that may be pinned", rank, budget);
        }
        for (call, n) in p.events.iter().filter(|(_, n)| **n > 0) {
            let help = "calls that were handled";
            self.add(Kind::Counter, "events", help, &with(rank, "call", call), *n);
        }
    }

    fn counters(&mut self, p: &Process, rank: &Labels, meanings: &[(&str, String)]) {
        for counter in Counter::ALL {
            let word = counter.word();
            let value = p.counters.get(word).copied().unwrap_or(0);
            match transfers(word) {
                Some((mechanism, name)) => {
                    let help = match name {
                        "copies" => "transfers between peers, by mechanism",
                        _ => "bytes of transfers between peers, by mechanism",
                    };
                    let labels = with(rank, "mechanism", mechanism);
                    self.add(Kind::Counter, name, help, &labels, value);
                }
                None => {
                    let (kind, name) = family(*counter);
                    let meaning = meanings.iter().find(|(of, _)| *of == word);
                    let help = meaning.map_or("", |(_, text)| text);
                    self.add(kind, &name, help, rank, value);
                }
            }
        }
    }

    /// Writes them as text.
    pub fn print(&self, form: Form, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        self.all
            .iter()
            .try_for_each(|family| family.write(form, out))?;
        match form {
            Form::Open => writeln!(out, "# EOF"),
            Form::Text => Ok(()),
        }
    }

    /// Into `regall.prom` in a folder. Whoever reads it there sees the old file or the new one.
    pub fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let file = folder.join("regall.prom");
        // (Not through what somebody else has put there.)
        let done = files::replace(&file, |out| self.print(Form::Text, out));
        done.with_context(|| file.display().to_string())
    }
}

/// Labels as they are written.
fn written(labels: &[(&str, String)]) -> String {
    let label = |(name, value): &(&str, String)| format!("{name}=\"{}\"", escaped(value));
    let labels: Vec<_> = labels.iter().map(label).collect();
    labels.join(",")
}

/// One label more.
fn with(rank: &Labels, name: &str, value: &str) -> Labels {
    (rank.0.clone(), format!(",{name}=\"{}\"", escaped(value)))
}

/// `cma` and the metric of a counter of transfers: `copy_cma` is how often, `copy_cma_bytes`
/// how much.
fn transfers(counter: &str) -> Option<(&str, &'static str)> {
    let name = counter.strip_prefix("copy_")?;
    Some(match name.strip_suffix("_bytes") {
        Some(mechanism) => (mechanism, "copied_bytes"),
        None => (name, "copies"),
    })
}

/// What kind of metric a counter is, and its name.
fn family(counter: Counter) -> (Kind, String) {
    let word = counter.word();
    match counter {
        Counter::RetiredBytes => (Kind::Gauge, "retired_bytes".into()),
        Counter::PinnedBytes
        | Counter::Ranges
        | Counter::ShimBytes
        | Counter::Trampolines
        | Counter::Domains
        | Counter::HcaBytes
        | Counter::LazyBytes
        | Counter::AheadBytes => (Kind::Gauge, word.into()),
        // (`pinned_bytes` is what is pinned now.)
        Counter::PinnedBytesTotal => (Kind::Counter, "pinning_bytes".into()),
        _ => match word.strip_suffix("_ns") {
            Some(what) => (Kind::Counter, format!("{what}_seconds")),
            None => (Kind::Counter, word.into()),
        },
    }
}

impl Family {
    fn write(&self, form: Form, out: &mut (impl Write + ?Sized)) -> io::Result<()> {
        let name = format!("regall_{}", self.name);
        let (kind, end) = match self.kind {
            Kind::Gauge => ("gauge", ""),
            Kind::Counter => ("counter", "_total"),
        };
        // OpenMetrics names a counter without what its samples end in.
        let family = match form {
            Form::Open => name.clone(),
            Form::Text => format!("{name}{end}"),
        };
        let help = self.help.replace('\\', "\\\\").replace('"', "'");
        writeln!(out, "# HELP {family} {help}\n# TYPE {family} {kind}")?;
        let unit = ["bytes", "seconds"].into_iter().find(|u| name.ends_with(u));
        if let (Form::Open, Some(unit)) = (form, unit) {
            writeln!(out, "# UNIT {family} {unit}")?;
        }
        for ((rank, more), value) in &self.samples {
            write!(out, "{name}{end}{{{rank}{more}}} ")?;
            match unit {
                Some("seconds") => {
                    let (seconds, nanos) = (value / 1_000_000_000, value % 1_000_000_000);
                    writeln!(out, "{seconds}.{nanos:09}")?;
                }
                _ => writeln!(out, "{value}")?,
            }
        }
        Ok(())
    }
}

fn escaped(value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"");
    value.replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::sample::fixtures::sample;

    #[test]
    fn no_two_counters_are_one_metric() {
        let all = Counter::ALL
            .iter()
            .filter(|c| transfers(c.word()).is_none());
        let mut names: Vec<_> = all.map(|c| family(*c).1).collect();
        names.sort();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before, "{names:?}");
        assert!(names
            .iter()
            .all(|n| !n.ends_with("_total") && !n.ends_with("_ns")));
    }

    #[test]
    fn a_rank_is_one_series() {
        let told = |pid: u32, user, rank| {
            let mut one = sample(pid, "/bin/a", 3);
            one.figures.uid = user;
            one.launched.rank = rank;
            one.launched.job = Some("7\"".into());
            one.figures.header.counters[Counter::HookNanos as usize] = 1_000_000_001;
            let mut told = one.told();
            told.host = "h".into();
            told
        };
        let all = [
            told(1, 7, Some(0)),
            told(2, 7, Some(0)),
            told(3, 7, None),
            // Whoever gives his process another user's job and rank.
            told(4, 8, Some(0)),
        ];
        let metrics = Metrics::of(all.into_iter(), [(8, 1)].into_iter());
        let text = |form| {
            let mut text = Vec::new();
            metrics.print(form, &mut text).unwrap();
            String::from_utf8(text).unwrap()
        };
        let (open, text) = (text(Form::Open), text(Form::Text));
        for said in [&open, &text] {
            let has = |line: &str| assert!(said.lines().any(|l| l == line), "{line}: {said}");
            let of = |user| format!("host=\"h\",user=\"{user}\",job=\"7\\\"\"");
            has(&format!("regall_mappings{{{},rank=\"0\"}} 6", of(7)));
            has(&format!("regall_mappings{{{}}} 3", of(7)));
            has(&format!("regall_mappings{{{},rank=\"0\"}} 3", of(8)));
            let hooks = "regall_hook_seconds_total";
            has(&format!("{hooks}{{{},rank=\"0\"}} 2.000000002", of(7)));
            for (user, n) in [(7, 0), (8, 1)] {
                let labels = format!("host=\"{}\",user=\"{user}\"", host());
                has(&format!("regall_unreadable_processes{{{labels}}} {n}"));
            }
        }
        assert!(open.ends_with("\n# EOF\n") && !text.contains("EOF"));
        assert!(open.contains("# TYPE regall_hook_seconds counter\n"));
        assert!(text.contains("# TYPE regall_hook_seconds_total counter\n"));
    }
    /// A user whose processes say that they are ranks of many jobs makes no more series by that.
    #[test]
    fn the_series_of_a_user_have_a_bound() {
        let told = |pid: u32, user| {
            let mut one = sample(pid, "/bin/a", 3);
            one.figures.uid = user;
            one.launched.rank = Some(u64::from(pid));
            one.told()
        };
        let most = MOST_RANKS as u32;
        let all = (0..3 * most).map(|pid| told(pid, 7)).chain([told(9, 8)]);
        let metrics = Metrics::of(all, std::iter::empty());
        let family = metrics.all.iter().find(|f| f.name == "mappings").unwrap();
        assert_eq!(family.samples.len(), MOST_RANKS + 2);
        let of = |rank: &str| {
            family
                .samples
                .iter()
                .find(|(labels, _)| labels.0.contains(rank))
        };
        assert_eq!(
            of("job=\"(others)\"").unwrap().1,
            &(3 * 2 * u64::from(most))
        );
        assert_eq!(of("user=\"8\",rank=\"9\"").unwrap().1, &3);
    }
}
