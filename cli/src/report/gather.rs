//! The files of a job, and which rank each is of. Nothing that stands in them is trusted:
//! they may be half written, and lie where others write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use regall_documents::{self as documents, Counts};
use serde_json::error::Category;

/// What makes a file's name of each process of a job.
pub const PATTERN: &str = "%h.%p.json";

/// More ranks than that are no job's: a number that somebody made up.
const MOST: u64 = 1 << 24;
/// A statistics file has some 2 KiB.
const LONGEST: u64 = 1 << 20;

/// What one process wrote.
pub struct Process {
    /// `rank 3 on host`, or `pid 77 on host`.
    pub place: String,
    told: documents::Process,
}

/// A job's processes: one for each rank.
#[derive(Default)]
pub struct Job {
    /// By rank.
    pub ranks: Vec<Process>,
    /// How many ranks there were, if a launcher said so.
    pub size: Option<u64>,
    /// Processes that ranks have started.
    pub children: usize,
}

/// What was gathered, and what could not be read.
pub struct Gathered {
    pub job: Job,
    pub problems: Vec<String>,
}

/// Reads files, and all files in folders.
pub fn read(places: &[PathBuf]) -> Gathered {
    let (mut processes, mut problems) = (Vec::new(), Vec::new());
    for place in places {
        for file in files(place, &mut problems) {
            match process(&file) {
                Ok(process) => processes.push(process),
                Err(e) => problems.push(format!("{}: {e:#}", file.display())),
            }
        }
    }
    Gathered {
        job: Job::of(processes),
        problems,
    }
}

fn files(place: &Path, problems: &mut Vec<String>) -> Vec<PathBuf> {
    if !place.is_dir() {
        return vec![place.into()];
    }
    let listed = fs::read_dir(place).and_then(|all| all.map(|e| Ok(e?.path())).collect());
    let mut listed: Vec<PathBuf> = listed.unwrap_or_else(|e: io::Error| {
        problems.push(format!("{}: {e}", place.display()));
        Vec::new()
    });
    listed.retain(|p| p.is_file());
    listed.sort();
    listed
}

fn process(file: &Path) -> anyhow::Result<Process> {
    let text = contents(file)?;
    if text.len() as u64 > LONGEST {
        bail!("no statistics of a process: too long");
    }
    let told: documents::Process =
        serde_json::from_slice(&text).map_err(|e| unreadable(e.classify(), &text))?;
    if told.version != documents::VERSION {
        let version = told.version;
        bail!("statistics of another version ({version}): read them with the regall of that one");
    }
    Ok(Process::new(told))
}

/// What is in a file, up to one byte more than statistics can have. A pipe that nobody has open
/// to write is empty, and not waited for; else it is read to its end.
fn contents(file: &Path) -> io::Result<Vec<u8>> {
    let mut options = fs::OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(file)?;
    // SAFETY: no memory; the descriptor is open.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut text = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut text)?;
    Ok(text)
}

/// What is wrong with a file that is no JSON, in words of ours.
fn unreadable(kind: Category, text: &[u8]) -> anyhow::Error {
    let begun = text.trim_ascii_start().starts_with(b"{");
    let why = match (kind, begun) {
        _ if text.is_empty() => "empty: it ended while it wrote them, or the disk was full",
        (Category::Eof, true) => "cut off: it ended while it wrote them, or the disk was full",
        _ => "not the JSON object that REGALL_STATS_FILE has written",
    };
    anyhow!("no statistics of a process: {why}")
}

impl Process {
    fn new(told: documents::Process) -> Self {
        let host = plain(&told.host);
        let place = match told.rank {
            Some(rank) => format!("rank {rank} on {host}"),
            None => format!("pid {} on {host}", told.pid),
        };
        Self { place, told }
    }

    /// By its place in the document: `mappings`, `counters.served`. A reason that nothing is
    /// left out for is not written, which is 0; what is null is not there.
    pub fn figure(&self, name: &str) -> Option<u64> {
        let p = &self.told;
        let (group, key) = super::group(name);
        let of = |all: &Counts| Some(all.get(key).copied().unwrap_or(0));
        match (group, key) {
            ("bytes.state", _) => of(&p.bytes.state),
            ("bytes.reason", _) => of(&p.bytes.reason),
            ("events", _) => of(&p.events),
            ("counters", _) => of(&p.counters),
            ("sites", "refused") => Some(p.sites.refused),
            ("", "mappings") => Some(p.mappings),
            ("", "unpublished") => Some(p.unpublished),
            ("", "budget_bytes") => p.budget_bytes,
            ("", "memlock_bytes") => p.memlock_bytes,
            _ => None,
        }
    }

    /// The calls that did not arrive in the self-test.
    pub fn missed(&self) -> &[String] {
        &self.told.selftest_missed
    }

    /// What a rank's own process has least of: it started its children.
    fn age(&self) -> (bool, u64) {
        (self.told.forked, self.told.start_time)
    }
}

/// Text as it may be printed.
fn plain(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

impl Job {
    fn of(mut processes: Vec<Process>) -> Self {
        let size = processes
            .iter()
            .filter_map(|p| p.told.ranks)
            .filter(|n| *n <= MOST)
            .max();
        processes.sort_by_key(|p| (p.told.rank.is_none(), p.told.rank, p.age()));
        let all = processes.len();
        // The first one of each rank; without a rank each is its own.
        processes.dedup_by(|later, first| {
            later.told.rank.is_some() && later.told.rank == first.told.rank
        });
        Self {
            children: all - processes.len(),
            ranks: processes,
            size,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    /// Ranks of which there is no file.
    pub fn missing(&self) -> Vec<u64> {
        let there: BTreeSet<_> = self.ranks.iter().filter_map(|p| p.told.rank).collect();
        (0..self.size.unwrap_or(0))
            .filter(|n| !there.contains(n))
            .collect()
    }

    pub fn hosts(&self) -> BTreeSet<String> {
        self.ranks.iter().map(|p| plain(&p.told.host)).collect()
    }

    /// What the library calls itself, and in how many processes.
    pub fn libraries(&self) -> BTreeMap<String, u64> {
        let mut all = BTreeMap::new();
        for p in &self.ranks {
            let name = p.told.library.as_deref().unwrap_or("?");
            *all.entry(plain(name)).or_default() += 1;
        }
        all
    }

    /// The names in a group, in the order of the files.
    pub fn keys(&self, group: impl Fn(&documents::Process) -> &Counts) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for key in self.ranks.iter().flat_map(|p| group(&p.told).keys()) {
            let plain = key
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-:".contains(c));
            if plain && !all.contains(key) {
                all.push(key.clone());
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(rank: Option<u64>, start: u64, forked: bool) -> Process {
        let told = documents::Process {
            rank,
            ranks: Some(4),
            start_time: start,
            forked,
            host: "h\u{1b}".into(),
            ..documents::Process::default()
        };
        Process {
            place: format!("{start}"),
            told,
        }
    }

    #[test]
    fn a_rank_is_the_process_that_started_its_others() {
        let job = Job::of(vec![
            process(Some(2), 9, false),
            process(Some(0), 5, true),
            process(Some(0), 7, false),
            process(Some(0), 8, false),
            process(None, 1, false),
            process(None, 1, false),
        ]);
        let places: Vec<_> = job.ranks.iter().map(|p| p.place.as_str()).collect();
        assert_eq!(places, ["7", "9", "1", "1"]);
        assert_eq!(
            (job.children, job.size, job.missing()),
            (2, Some(4), vec![1, 3])
        );
        assert_eq!(job.hosts().into_iter().collect::<Vec<_>>(), ["h"]);
    }

    #[test]
    fn a_number_of_ranks_that_nobody_has_is_not_believed() {
        let mut p = process(Some(0), 1, false);
        p.told.ranks = Some(u64::MAX);
        assert!(Job::of(vec![p]).missing().is_empty());
    }
}
