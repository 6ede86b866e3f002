//! Which processes of a job are alike, and in what the others differ.
//!
//! Processes are alike if they run the same program with the same library and the same settings,
//! and each figure of one is at most twice that of the other. Small differences don't count, but
//! whether something was limited does, however little. A group is what is alike to the process in
//! the middle, figure by figure; who is in no group is named.

use std::collections::{BTreeMap, HashSet};
use std::fmt;

use regall_documents::{Alike, Different, Kind, Unlike};
use serde_json::Value;

use super::columns::Values;
use super::figure::{plain, spans, unit, Unit};
use super::job::Job;

/// Processes in no group that are named in the document; the others are counted.
const MOST_NAMED: usize = 10_000;
/// Differences of all of them that are told.
const MOST_TOLD: usize = 100_000;
/// Lines of groups, and lines of processes that are in none.
const MOST_LINES: usize = 10;
/// Figures of a line.
const MOST_FIGURES: usize = 3;
/// Groups of one program.
const MOST_GROUPS: usize = 8;

/// What the processes of a job fall into.
#[derive(Default)]
pub struct Groups {
    /// The largest one first.
    pub alike: Vec<Alike>,
    /// Those in no group, by rank.
    pub unlike: Vec<Unlike>,
    /// How many they are.
    pub different: u64,
}

/// How two values of a figure are compared.
#[derive(Clone, Copy)]
enum Judge {
    /// They must be the same.
    Exactly,
    /// There must be some in both, or none.
    Whether,
    /// A difference up to this does not count.
    From(u64),
}

impl Judge {
    /// Of a figure.
    fn of(name: &str) -> Self {
        match name {
            "sites.refused" => Self::Exactly,
            "bytes.reason.limit"
            | "counters.pin_limited"
            | "counters.hca_limited"
            | "counters.retried"
            | "unpublished" => Self::Whether,
            _ => Self::From(match unit(name) {
                Unit::Number => 100,
                Unit::Bytes => 16 << 20,
                Unit::Nanoseconds => 250_000_000,
            }),
        }
    }

    fn alike(self, a: Option<u64>, b: Option<u64>) -> bool {
        let (a, b) = match (a, b) {
            (Some(a), Some(b)) => (a, b),
            (a, b) => return a == b,
        };
        match self {
            Self::Exactly => a == b,
            Self::Whether => (a == 0) == (b == 0),
            Self::From(small) => a.abs_diff(b) <= small.max(a.min(b)),
        }
    }
}

/// The figures that not all processes have the same of.
struct Compared<'a>(Vec<(String, &'a Values, Judge)>);

/// What the process in the middle has of each.
type Middle = Vec<Option<u64>>;

struct Group {
    kind: u32,
    middle: Middle,
    count: usize,
    nodes: usize,
}

impl Groups {
    pub fn of(job: &Job) -> Self {
        if job.count() < 2 {
            return Self::default();
        }
        let compared = Compared::of(job);
        let mut kinds: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for at in job.ranks() {
            let kind = job.kind(at).map_or(0, |(n, _)| n);
            kinds.entry(kind).or_default().push(at);
        }
        // Fewer are named one by one.
        let least = 2.max(job.count() / 100);
        let (mut groups, mut others) = (Vec::new(), Vec::new());
        for (kind, mut left) in kinds {
            for _ in 0..MOST_GROUPS {
                if left.len() < least {
                    break;
                }
                let middle = compared.middle(&left);
                let (inside, outside): (Vec<_>, Vec<_>) =
                    left.iter().partition(|at| compared.alike(**at, &middle));
                if inside.len() < least {
                    break;
                }
                left = outside;
                let nodes = inside
                    .iter()
                    .map(|at| job.host(*at))
                    .collect::<HashSet<_>>();
                groups.push(Group {
                    kind,
                    middle,
                    count: inside.len(),
                    nodes: nodes.len(),
                });
            }
            others.extend(left);
        }
        groups.sort_by_key(|g: &Group| std::cmp::Reverse(g.count));
        if groups.is_empty() {
            // No two are alike: the others are compared with the first one.
            let first = others.remove(0);
            groups.push(Group {
                kind: job.kind(first).map_or(0, |(n, _)| n),
                middle: compared.middle(&[first]),
                count: 1,
                nodes: 1,
            });
        }
        others.sort_by_key(|at| (job.rank(*at).is_none(), job.rank(*at)));
        compared.told(job, &groups, &others)
    }
}

impl<'a> Compared<'a> {
    fn of(job: &'a Job) -> Self {
        let all = job.figures().into_iter().chain(["unpublished".to_string()]);
        let column = |name: String| {
            let figure = job.figure(&name)?;
            let judge = Judge::of(&name);
            job.same(figure).is_none().then_some((name, figure, judge))
        };
        Self(all.filter_map(column).collect())
    }

    fn middle(&self, of: &[usize]) -> Middle {
        let one = |(_, figure, _): &(String, &Values, Judge)| {
            let mut values: Vec<_> = of.iter().map(|at| figure.get(*at)).collect();
            let middle = values.len().saturating_sub(1) / 2;
            // One that a process has: between two groups there is nobody.
            (!values.is_empty()).then(|| values.select_nth_unstable(middle).1.get())?
        };
        self.0.iter().map(one).collect()
    }

    fn alike(&self, at: usize, middle: &Middle) -> bool {
        let mut pairs = self.0.iter().zip(middle);
        pairs.all(|((_, figure, judge), m)| judge.alike(figure.get(at).get(), *m))
    }

    fn told(&self, job: &Job, groups: &[Group], others: &[usize]) -> Groups {
        let kinds: BTreeMap<u32, &Kind> = job.ranks().filter_map(|at| job.kind(at)).collect();
        let first = groups.first();
        let words = |kind: u32| match (first.and_then(|g| kinds.get(&g.kind)), kinds.get(&kind)) {
            (Some(first), Some(kind)) => words(kind, first),
            _ => Vec::new(),
        };
        let differs = |kind: u32, has: &Middle| {
            let mut all = words(kind);
            if let Some(first) = first {
                all.extend(self.figures(has, &first.middle));
            }
            all
        };
        let alike = groups.iter().map(|g| Alike {
            count: g.count as u64,
            nodes: g.nodes as u64,
            exe: kinds.get(&g.kind).map_or(String::new(), |k| k.exe.clone()),
            differs: differs(g.kind, &g.middle),
        });
        let unlike = others.iter().take(MOST_NAMED).map(|&at| {
            let has = self.0.iter().map(|(_, figure, _)| figure.get(at).get());
            Unlike {
                rank: job.rank(at),
                pid: job.pid(at),
                host: job.host(at).to_string(),
                differs: differs(job.kind(at).map_or(0, |(n, _)| n), &has.collect()),
            }
        });
        let mut told = 0;
        let unlike = unlike.take_while(|one| {
            told += one.differs.len();
            told <= MOST_TOLD
        });
        Groups {
            alike: alike.collect(),
            unlike: unlike.collect(),
            different: others.len() as u64,
        }
    }

    /// The figures of which there is more or less than in the middle, the largest ratio first.
    fn figures(&self, has: &Middle, middle: &Middle) -> Vec<Different> {
        let each = self.0.iter().zip(has.iter().zip(middle));
        let mut all: Vec<_> = each
            .filter(|((_, _, judge), (a, b))| !judge.alike(**a, **b))
            .map(|((name, _, _), (a, b))| {
                let (a, b) = (*a, *b);
                let number = |n: Option<u64>| n.map_or(f64::INFINITY, |n| n.max(1) as f64);
                let ratio = (number(a) / number(b)).max(number(b) / number(a));
                let one = Different {
                    figure: name.clone(),
                    has: a.into(),
                    others: b.into(),
                };
                (ratio, one)
            })
            .collect();
        all.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        all.into_iter().map(|(_, one)| one).collect()
    }
}

/// In what two programs differ that is no figure.
fn words(kind: &Kind, first: &Kind) -> Vec<Different> {
    let text = |text: &str| Value::from(text);
    let library = |k: &Kind| k.library.clone().unwrap_or_default();
    let mut all = vec![
        ("exe".to_string(), text(&kind.exe), text(&first.exe)),
        (
            "library".into(),
            library(kind).into(),
            library(first).into(),
        ),
        ("gave_up".into(), kind.gave_up.into(), first.gave_up.into()),
        ("forked".into(), kind.forked.into(), first.forked.into()),
        (
            "selftest_missed".into(),
            kind.selftest_missed.join(",").into(),
            first.selftest_missed.join(",").into(),
        ),
    ];
    for (name, word) in &kind.settings {
        let other = first.settings.iter().find(|(n, _)| n == name);
        let other = other.map_or(Value::Null, |(_, word)| text(word));
        all.push((format!("settings.{name}"), text(word), other));
    }
    all.retain(|(_, has, others)| has != others);
    let each = all.into_iter();
    each.map(|(figure, has, others)| Different {
        figure,
        has,
        others,
    })
    .collect()
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for group in self.alike.iter().take(MOST_LINES) {
            let (count, nodes) = (group.count, group.nodes);
            let nodes = match nodes {
                1 => "1 node".to_string(),
                n => format!("{n} nodes"),
            };
            write!(f, "alike: {count} of {} on {nodes}", group.exe)?;
            match group.differs.is_empty() {
                true => writeln!(f)?,
                false => writeln!(f, "; {}", listed(&group.differs))?,
            }
        }
        let lines = self.lines();
        for (ranks, host, differs) in lines.iter().take(MOST_LINES) {
            writeln!(f, "differs: {ranks} on {host}: {differs}")?;
        }
        let groups = self
            .alike
            .iter()
            .skip(MOST_LINES)
            .fold(0, |sum: u64, g| sum.saturating_add(g.count));
        let named: u64 = self
            .runs()
            .iter()
            .take(MOST_LINES)
            .map(|run| run.len() as u64)
            .sum();
        match groups.saturating_add(self.different.saturating_sub(named)) {
            0 => Ok(()),
            more => writeln!(f, "differs: {more} more, which --json names"),
        }
    }
}

impl Groups {
    /// Those that differ, neighbours on a node in the same figures together.
    fn runs(&self) -> Vec<&[Unlike]> {
        let figures = |u: &Unlike| -> Vec<String> {
            let names = u.differs.iter().take(MOST_FIGURES);
            let mut names: Vec<_> = names.map(|d| d.figure.clone()).collect();
            names.sort();
            names
        };
        let together = |a: &Unlike, b: &Unlike| a.host == b.host && figures(a) == figures(b);
        self.unlike.chunk_by(together).collect()
    }

    /// Of each run: its ranks, its node, and in what the first of it differs.
    fn lines(&self) -> Vec<(String, &str, String)> {
        self.runs().into_iter().filter_map(line).collect()
    }
}

fn line(run: &[Unlike]) -> Option<(String, &str, String)> {
    let first = run.first()?;
    let ranks: Vec<_> = run.iter().filter_map(|u| u.rank).collect();
    let who = match (ranks.as_slice(), run.len()) {
        ([], 1) => format!("pid {}", first.pid),
        ([], n) => format!("{n} processes"),
        ([rank], 1) => format!("rank {rank}"),
        (ranks, _) => format!("ranks {}", spans(ranks)),
    };
    Some((who, first.host.as_str(), listed(&first.differs)))
}

/// `budget 1 GiB, not 8 GiB`
fn listed(all: &[Different]) -> String {
    let one = |d: &Different| {
        let show = |value: &Value| match value {
            Value::Null => "none".to_string(),
            Value::Number(n) => unit(&d.figure).show(n.as_u64().unwrap_or(0)),
            Value::String(text) if text.is_empty() => "none".to_string(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let name = match d.figure.strip_prefix("settings.") {
            Some(name) => name.to_string(),
            None => plain(&d.figure),
        };
        format!("{name} {}, not {}", show(&d.has), show(&d.others))
    };
    let mut words: Vec<_> = all.iter().take(MOST_FIGURES).map(one).collect();
    match all.len().saturating_sub(MOST_FIGURES) {
        0 => (),
        1 => words.push("and 1 more figure".into()),
        more => words.push(format!("and {more} more figures")),
    }
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use regall_documents as documents;

    fn process(rank: u64) -> documents::Process {
        let mut p = documents::Process {
            version: documents::VERSION,
            pid: rank as u32 + 1,
            exe: "/bin/app".into(),
            host: format!("n{}", rank / 100),
            rank: Some(rank),
            ranks: Some(1000),
            mappings: 100 + rank % 3,
            budget_bytes: Some(8 << 30),
            ..documents::Process::default()
        };
        p.counters
            .insert("hook_ns".into(), 2_000_000_000 + rank * 1_000_000);
        p.counters.insert("pin_limited".into(), 0);
        p
    }

    fn groups(change: impl Fn(u64, &mut documents::Process)) -> Groups {
        let mut job = Job::default();
        for rank in 0..1000 {
            let mut p = process(rank);
            change(rank, &mut p);
            job.add(p).unwrap();
        }
        job.settle();
        Groups::of(&job)
    }

    #[test]
    fn what_is_alike_is_one_line() {
        let all = groups(|_, _| ());
        assert_eq!(all.to_string(), "alike: 1000 of /bin/app on 10 nodes\n");
        assert!(all.unlike.is_empty());
    }

    #[test]
    fn each_that_is_not_is_named() {
        let all = groups(|rank, p| match rank {
            17 => drop(p.counters.insert("hook_ns".into(), 90_000_000_000)),
            440 => drop(p.counters.insert("pin_limited".into(), 1)),
            700 => p.exe = "/bin/other".into(),
            _ => (),
        });
        assert_eq!(
            all.to_string(),
            "alike: 997 of /bin/app on 10 nodes\n\
             differs: rank 17 on n0: time in hooks 90.0 s, not 2.5 s\n\
             differs: rank 440 on n4: pin limited 1, not 0\n\
             differs: rank 700 on n7: exe /bin/other, not /bin/app\n"
        );
        let ranks: Vec<_> = all.unlike.iter().filter_map(|u| u.rank).collect();
        assert_eq!((ranks, all.different), (vec![17, 440, 700], 3));
        assert_eq!(all.unlike[1].differs[0].figure, "counters.pin_limited");
    }

    #[test]
    fn many_that_are_alike_among_themselves_are_a_group() {
        let all = groups(|rank, p| {
            if (200..300).contains(&rank) {
                p.budget_bytes = Some(1 << 30);
            }
            if rank >= 600 {
                p.settings.insert("pin".into(), "off".into());
            }
        });
        assert_eq!(
            all.to_string(),
            "alike: 500 of /bin/app on 5 nodes\n\
             alike: 400 of /bin/app on 4 nodes; pin off, not none\n\
             alike: 100 of /bin/app on 1 node; budget 1 GiB, not 8 GiB\n"
        );
    }

    #[test]
    fn neighbours_are_one_line_and_a_screen_is_enough() {
        let all = groups(|rank, p| {
            if rank == 340 || rank == 341 {
                p.budget_bytes = Some(rank << 10);
            }
        });
        let said = all.to_string();
        let line = "differs: ranks 340-341 on n3: budget 340 KiB, not 8 GiB";
        assert!(said.contains(line), "{said}");
        let all = groups(|rank, p| p.mappings = 7 << (rank % 48));
        assert!(
            all.to_string().lines().count() <= 2 * MOST_LINES + 1,
            "{all}"
        );
        let counted: u64 = all.alike.iter().map(|g| g.count).sum();
        assert_eq!(counted + all.different, 1000);
    }

    #[test]
    fn small_differences_do_not_count() {
        let from = Judge::of("mappings");
        for (a, b, alike) in [
            (0, 100, true),
            (0, 101, false),
            (1000, 2000, true),
            (1000, 2001, false),
            (u64::MAX - 1, 0, false),
        ] {
            assert_eq!(from.alike(Some(a), Some(b)), alike, "{a} {b}");
            assert_eq!(from.alike(Some(b), Some(a)), alike, "{b} {a}");
        }
        assert!(!from.alike(None, Some(0)) && from.alike(None, None));
    }
}
