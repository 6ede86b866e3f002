//! The processes of a job. A process's document is taken apart when it comes: what is the same in
//! many is kept once, and a figure is eight bytes a process, or none while all have the same. So
//! 100,000 ranks fit where their documents would not.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use anyhow::{bail, Context};
use regall_documents::{self as documents, Column, Kind, Known, Merged};

use super::columns::{Figures, Values};
use super::distinct::Distinct;
use super::figure::group;
use super::kind::plain;
use super::others::{Others, TOO_MUCH_TEXT};
use crate::units::printable;
use crate::wanted::fits;

/// More processes than that are no job's: a number that somebody made up.
const MOST: u64 = 1 << 24;
/// The same in folders of other users, of which no more processes than 8,192 are taken in.
const MOST_OF_OTHERS: u64 = 1 << 16;
/// More settings or kinds of calls than that no version has.
const MOST_WORDS: usize = 256;
/// What tells processes apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Who {
    rank: Known,
    start: u64,
    pid: u32,
    host: u32,
    kind: u32,
}

/// A job's processes.
#[derive(Default)]
pub struct Job {
    /// In the order in which they came.
    all: Vec<Who>,
    /// The places in `all` of one process for each rank, by rank; see [`Job::settle`].
    ranks: Vec<u32>,
    known: HashSet<Who>,
    hosts: Distinct<String>,
    kinds: Distinct<Kind>,
    figures: Figures,
    /// How many ranks there were, if a launcher said so.
    pub size: Option<u64>,
    /// The same, of files in folders of other users: it counts if nobody else says it.
    others_size: Option<u64>,
    /// Processes that ranks have started.
    pub children: u64,
    /// What has come from files of other users.
    pub others: Others,
}

impl Job {
    /// Returns the figures that are told, in their order. (`ranges` are mappings.)
    pub fn figures(&self) -> Vec<String> {
        let mut all: Vec<String> = vec!["mappings".into(), "bytes.state.registered".into()];
        for group in ["bytes.reason", "events", "counters"] {
            let names = self.names(group).into_iter();
            all.extend(names.map(|name| format!("{group}.{name}")));
        }
        all.retain(|name| name != "counters.ranges");
        all.extend(["sites.refused".into(), "budget_bytes".into()]);
        all
    }

    /// Takes in what a process wrote; one that is there already counts once.
    pub fn add(&mut self, told: documents::Process) -> anyhow::Result<()> {
        version(told.version)?;
        let kind = Kind {
            library: told.library,
            exe: told.exe,
            forked: told.forked,
            gave_up: told.gave_up,
            settings: told.settings.into_iter().collect(),
            selftest_missed: told.selftest_missed,
        };
        let who = Who {
            rank: told.rank.into(),
            start: told.start_time,
            pid: told.pid,
            host: self.host_of(&told.host)?,
            kind: self.kind_of(kind)?,
        };
        self.has_size(told.ranks);
        let Some(at) = self.enter(who)? else {
            return Ok(());
        };
        let figures = &mut self.figures;
        figures.set("", "mappings", at, told.mappings.into());
        figures.set("", "unpublished", at, told.unpublished.into());
        figures.set("", "budget_bytes", at, told.budget_bytes.into());
        figures.set("", "memlock_bytes", at, told.memlock_bytes.into());
        for (group, counts) in [
            ("bytes.state", &told.bytes.state),
            ("bytes.reason", &told.bytes.reason),
            ("bytes.pin", &told.bytes.pin),
            ("bytes.hca", &told.bytes.hca),
            ("events", &told.events),
            ("counters", &told.counters),
        ] {
            for (name, n) in counts {
                figures.set(group, name, at, (*n).into());
            }
        }
        figures.set("sites", "patched", at, told.sites.patched.into());
        figures.set("sites", "refused", at, told.sites.refused.into());
        Ok(())
    }

    /// Takes in what was merged before.
    pub fn add_merged(&mut self, told: Merged) -> anyhow::Result<()> {
        version(told.version)?;
        let count = told.pid.len();
        let each = |column: &Column| match column {
            Column::Same(_) => true,
            Column::Each(all) => all.len() == count,
        };
        let within = |places: &[u32], all: usize| places.iter().all(|n| (*n as usize) < all);
        let whole = told.merged == count as u64
            && [told.host.len(), told.kind.len(), told.start_time.len()] == [count; 3]
            && told.rank.len() == count
            && within(&told.host, told.hosts.len())
            && within(&told.kind, told.kinds.len())
            && told.figures.values().all(each);
        if !whole {
            bail!("no merged statistics: its columns do not fit together");
        }
        self.has_size(told.ranks);
        self.children = self.children.saturating_add(told.children);
        let hosts = told.hosts.iter().map(|host| self.host_of(host));
        let hosts = hosts.collect::<anyhow::Result<Vec<_>>>()?;
        let kinds = told.kinds.into_iter().map(|kind| self.kind_of(kind));
        let kinds = kinds.collect::<anyhow::Result<Vec<_>>>()?;
        let mut places = Vec::with_capacity(count);
        let who = (told.rank.iter().zip(&told.start_time)).zip(&told.pid);
        for (((rank, start), pid), (host, kind)) in who.zip(told.host.iter().zip(&told.kind)) {
            let at = |all: &[u32], n: u32| all.get(n as usize).copied().unwrap_or(0);
            places.push(self.enter(Who {
                rank: *rank,
                start: *start,
                pid: *pid,
                host: at(&hosts, *host),
                kind: at(&kinds, *kind),
            })?);
        }
        for (name, column) in told.figures {
            let (group, name) = group(&name);
            for (n, at) in places
                .iter()
                .enumerate()
                .filter_map(|(n, at)| Some((n, (*at)?)))
            {
                let value = match &column {
                    Column::Same(value) => Some(value),
                    Column::Each(all) => all.get(n),
                };
                if !self
                    .figures
                    .set(group, name, at, *value.unwrap_or(&Known::NOT))
                {
                    break;
                }
            }
        }
        Ok(())
    }

    fn host_of(&mut self, host: &str) -> anyhow::Result<u32> {
        let room = |host: &String| self.others.text(host.len());
        let place = self.hosts.place(printable(host), room);
        place.context(TOO_MUCH_TEXT)
    }

    fn kind_of(&mut self, kind: Kind) -> anyhow::Result<u32> {
        if kind.settings.len().max(kind.selftest_missed.len()) > MOST_WORDS {
            bail!("more settings, or more kinds of calls, than any version has");
        }
        let room = |kind: &Kind| self.others.kind(kind);
        self.kinds.place(plain(kind), room).context(TOO_MUCH_TEXT)
    }

    fn has_size(&mut self, size: Option<u64>) {
        let (most, known) = match self.others.count() {
            true => (MOST_OF_OTHERS, &mut self.others_size),
            false => (MOST, &mut self.size),
        };
        *known = (*known).max(size.filter(|n| *n <= most));
    }

    /// A place for a process; none if it is there already.
    fn enter(&mut self, who: Who) -> anyhow::Result<Option<usize>> {
        if !self.known.insert(who) {
            return Ok(None);
        }
        if self.all.len() as u64 >= MOST {
            bail!("more processes than a job has");
        }
        self.others.process()?;
        self.all.push(who);
        Ok(Some(self.all.len() - 1))
    }

    /// All have been taken in: of each rank the first process counts, which started its others.
    /// Without a rank each is its own.
    pub fn settle(&mut self) {
        self.known = HashSet::new();
        self.size = self.size.or(self.others_size);
        let forked = |who: &Who| {
            self.kinds
                .all
                .get(who.kind as usize)
                .is_some_and(|k| k.forked)
        };
        let mut order: Vec<u32> = (0..self.all.len() as u32).collect();
        let of = |n: &u32| self.all.get(*n as usize);
        order.sort_by_cached_key(|n| of(n).map(|w| (w.rank, forked(w), w.start)));
        order.dedup_by(|later, first| match (of(later), of(first)) {
            (Some(later), Some(first)) => later.rank == first.rank && later.rank.get().is_some(),
            _ => false,
        });
        self.children += (self.all.len() - order.len()) as u64;
        self.ranks = order;
    }

    /// Leaves out all processes but those that have all of these words, after [`Job::settle`].
    pub fn keep(&mut self, words: &str) {
        let mut ranks = std::mem::take(&mut self.ranks);
        ranks.retain(|n| {
            let at = *n as usize;
            let exe = self.kind(at).map_or("", |(_, kind)| kind.exe.as_str());
            let name = exe.rsplit('/').next().unwrap_or(exe);
            fits(words, self.pid(at), name, "", self.rank(at))
        });
        self.ranks = ranks;
    }

    /// All of it as a document, after [`Job::settle`].
    pub fn merged(&self) -> Merged {
        let who = || self.ranks.iter().filter_map(|n| self.all.get(*n as usize));
        let column = |column: &Values| match self.same(column) {
            Some(same) => Column::Same(same),
            None => Column::Each(self.ranks.iter().map(|n| column.get(*n as usize)).collect()),
        };
        let figures = self.figures.iter();
        Merged {
            version: documents::VERSION,
            merged: self.ranks.len() as u64,
            ranks: self.size,
            children: self.children,
            hosts: self.hosts.all.clone(),
            kinds: self.kinds.all.clone(),
            host: who().map(|w| w.host).collect(),
            kind: who().map(|w| w.kind).collect(),
            pid: who().map(|w| w.pid).collect(),
            start_time: who().map(|w| w.start).collect(),
            rank: who().map(|w| w.rank).collect(),
            figures: figures.map(|(name, c)| (name.clone(), column(c))).collect(),
        }
    }

    /// How many processes count.
    pub fn count(&self) -> usize {
        self.ranks.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// The processes that count, by rank.
    pub fn ranks(&self) -> impl Iterator<Item = usize> + Clone + '_ {
        self.ranks.iter().map(|n| *n as usize)
    }

    /// `rank 3 on host`, or `pid 77 on host`.
    pub fn place(&self, at: usize) -> String {
        let host = self.host(at);
        match self.rank(at) {
            Some(rank) => format!("rank {rank} on {host}"),
            None => format!("pid {} on {host}", self.pid(at)),
        }
    }

    pub fn rank(&self, at: usize) -> Option<u64> {
        self.all.get(at)?.rank.get()
    }

    pub fn pid(&self, at: usize) -> u32 {
        self.all.get(at).map_or(0, |w| w.pid)
    }

    pub fn host(&self, at: usize) -> &str {
        let host = self
            .all
            .get(at)
            .and_then(|w| self.hosts.all.get(w.host as usize));
        host.map_or("?", String::as_str)
    }

    /// What its program is, and a number for that.
    pub fn kind(&self, at: usize) -> Option<(u32, &Kind)> {
        let kind = self.all.get(at)?.kind;
        Some((kind, self.kinds.all.get(kind as usize)?))
    }

    /// A figure of all processes, by its place in their documents: `mappings`, `counters.served`.
    /// A reason that nothing is left out for is not written, which is 0; what is null is not
    /// there.
    pub fn figure(&self, name: &str) -> Option<&Values> {
        let (group, key) = group(name);
        self.figures.get(group, key)
    }

    /// A figure of one process.
    pub fn value(&self, at: usize, name: &str) -> Option<u64> {
        self.figure(name)?.get(at).get()
    }

    /// What all processes have of a figure, if that is the same.
    pub fn same(&self, figure: &Values) -> Option<Known> {
        figure.same(self.all.len())
    }

    /// The names in a group, in the order in which they came.
    pub fn names(&self, wanted: &str) -> Vec<String> {
        let all = self.figures.iter();
        let of = |name: &String| {
            let (g, key) = group(name);
            (g == wanted).then(|| key.to_string())
        };
        all.filter_map(|(name, _)| of(name)).collect()
    }

    /// Ranks of which there is no file.
    pub fn missing(&self) -> Vec<u64> {
        let mut there = self.ranks().filter_map(|at| self.rank(at)).peekable();
        let mut missing = Vec::new();
        for n in 0..self.size.unwrap_or(0) {
            while there.next_if(|r| *r < n).is_some() {}
            if there.peek() != Some(&n) {
                missing.push(n);
            }
        }
        missing
    }

    pub fn hosts(&self) -> BTreeSet<String> {
        let all = self.ranks().filter_map(|at| Some(self.all.get(at)?.host));
        let places: BTreeSet<_> = all.collect();
        let host = |n: &u32| self.hosts.all.get(*n as usize).cloned();
        places.iter().filter_map(host).collect()
    }

    /// What the library calls itself, and in how many processes.
    pub fn libraries(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for (_, kind) in self.ranks().filter_map(|at| self.kind(at)) {
            let name = kind.library.as_deref().unwrap_or("?");
            match all.get_mut(name) {
                Some(n) => *n += 1,
                None => {
                    all.insert(name.to_string(), 1);
                }
            }
        }
        all
    }
}

fn version(version: u32) -> anyhow::Result<()> {
    if version != documents::VERSION {
        bail!("statistics of another version ({version}): read them with the regall of that one");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(rank: Option<u64>, start: u64, forked: bool) -> documents::Process {
        documents::Process {
            version: documents::VERSION,
            rank,
            ranks: Some(4),
            start_time: start,
            forked,
            host: "h\u{1b}".into(),
            ..documents::Process::default()
        }
    }

    fn job(all: Vec<documents::Process>) -> Job {
        let mut job = Job::default();
        all.into_iter().for_each(|p| job.add(p).unwrap());
        job.settle();
        job
    }

    #[test]
    fn a_rank_is_the_process_that_started_its_others() {
        let mut all = vec![
            process(Some(2), 9, false),
            process(Some(0), 5, true),
            process(Some(0), 7, false),
            process(Some(0), 8, false),
            process(None, 1, false),
            process(None, 1, false),
        ];
        all[5].pid = 3;
        let job = job(all);
        let starts: Vec<_> = job.ranks().map(|at| job.all[at].start).collect();
        assert_eq!(starts, [7, 9, 1, 1]);
        assert_eq!((job.children, job.size), (2, Some(4)));
        assert_eq!(job.missing(), [1, 3]);
        assert_eq!(job.hosts().into_iter().collect::<Vec<_>>(), ["h?"]);
        assert_eq!(job.place(0), "rank 2 on h?");
    }

    #[test]
    fn a_number_of_ranks_that_nobody_has_is_not_believed() {
        let mut p = process(Some(0), 1, false);
        p.ranks = Some(u64::MAX);
        assert!(job(vec![p]).missing().is_empty());
    }

    #[test]
    fn a_process_counts_once() {
        let twice = || vec![process(Some(0), 1, false), process(Some(1), 2, false)];
        let first = job([twice(), twice()].concat());
        assert_eq!((first.count(), first.children), (2, 0));
        let told = first.merged();
        let mut fresh = Job::default();
        fresh.add_merged(told.clone()).unwrap();
        fresh.add_merged(told).unwrap();
        twice().into_iter().for_each(|p| fresh.add(p).unwrap());
        fresh.settle();
        assert_eq!((fresh.count(), fresh.children), (2, 0));
    }

    #[test]
    fn what_is_merged_is_what_was_told() {
        let told = |rank: u64| {
            let mut p = process(Some(rank), rank, false);
            p.host = format!("n{}", rank % 2);
            p.mappings = 100;
            p.counters.insert("served".into(), rank);
            p.budget_bytes = (rank == 1).then_some(5);
            p
        };
        let direct = job((0..4).map(told).collect());
        let parts = [vec![told(3), told(1)], vec![told(0), told(2)]];
        let mut tree = Job::default();
        for part in parts {
            let text = serde_json::to_string(&job(part).merged()).unwrap();
            tree.add_merged(serde_json::from_str(&text).unwrap())
                .unwrap();
        }
        tree.settle();
        for rank in 0..4 {
            let of = |job: &Job, name: &str| {
                let at = job.ranks().nth(rank).unwrap();
                (job.place(at), job.value(at, name))
            };
            for name in [
                "mappings",
                "counters.served",
                "budget_bytes",
                "bytes.state.x",
            ] {
                assert_eq!(of(&tree, name), of(&direct, name), "{name}");
            }
        }
        assert_eq!(tree.value(0, "bytes.state.x"), None);
        assert!(tree.missing().is_empty());
    }

    /// Whoever writes files with names of his own takes no place of a figure's.
    #[test]
    fn names_that_nobody_knows_push_out_none() {
        let mut junk = process(Some(0), 1, false);
        junk.counters = (0..10_000).map(|n| (format!("x{n}"), n)).collect();
        junk.bytes.reason = (0..10_000).map(|n| (format!("refused:{n}"), n)).collect();
        let mut real = process(Some(1), 2, false);
        real.counters.insert("served".into(), 5);
        real.bytes.reason.insert("refused:12".into(), 6);
        let job = job(vec![junk, real]);
        assert!(job.names("counters").len() < 200);
        for (name, value) in [("counters.served", 5), ("bytes.reason.refused:12", 6)] {
            assert_eq!(job.value(1, name), Some(value), "{name}");
        }
    }

    #[test]
    fn columns_that_do_not_fit_are_refused() {
        let good = job(vec![process(Some(0), 1, false)]).merged();
        let break_it: [fn(&mut Merged); 7] = [
            |m| m.merged = 2,
            |m| m.host.clear(),
            |m| m.host[0] = 1,
            |m| m.kind[0] = u32::MAX,
            |m| m.rank.push(Known::NOT),
            |m| m.version = 2,
            |m| {
                m.figures.insert("x".into(), Column::Each(Vec::new()));
            },
        ];
        for broken in break_it {
            let mut told = good.clone();
            broken(&mut told);
            assert!(Job::default().add_merged(told).is_err());
        }
        assert!(Job::default().add_merged(good).is_ok());
    }
}
