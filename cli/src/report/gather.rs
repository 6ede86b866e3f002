//! The files of a job, and which rank each is of. Nothing that stands in them is trusted:
//! they may be half written, and lie where others write.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use serde_json::error::Category;
use serde_json::Value;

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
    rank: Option<u64>,
    all: Value,
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
    let mut listed: Vec<PathBuf> = listed.unwrap_or_else(|e: std::io::Error| {
        problems.push(format!("{}: {e}", place.display()));
        Vec::new()
    });
    listed.retain(|p| p.is_file());
    listed.sort();
    listed
}

fn process(file: &Path) -> anyhow::Result<Process> {
    let length = fs::metadata(file)?.len();
    if length > LONGEST {
        bail!("no statistics of a process: too long");
    }
    let text = fs::read(file)?;
    let all: Value = serde_json::from_slice(&text).map_err(|e| unreadable(e.classify(), &text))?;
    let (Some(pid), true) = (all["pid"].as_u64(), all["counters"].is_object()) else {
        bail!("no statistics of a process");
    };
    let rank = all["rank"].as_u64();
    let host: String = all["host"]
        .as_str()
        .unwrap_or("?")
        .chars()
        .filter(|c| !c.is_control())
        .collect();
    let place = match rank {
        Some(rank) => format!("rank {rank} on {host}"),
        None => format!("pid {pid} on {host}"),
    };
    Ok(Process { place, rank, all })
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
    /// By its name: `mappings`, `counters.served`. A reason that nothing is left out for
    /// is not written, which is 0; what is null is not there.
    pub fn figure(&self, name: &str) -> Option<u64> {
        match name.split_once('.') {
            None => self.all[name].as_u64(),
            Some((group, key)) => Some(self.all[group][key].as_u64().unwrap_or(0)),
        }
    }

    /// A list of words.
    pub fn words(&self, name: &str) -> Vec<&str> {
        let all = self.all[name].as_array();
        all.into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect()
    }

    fn text(&self, name: &str) -> String {
        let text = self.all[name].as_str().unwrap_or("?");
        text.chars().filter(|c| !c.is_control()).collect()
    }

    /// What a rank's own process has least of: it started its children.
    fn age(&self) -> (bool, u64) {
        let forked = self.all["forked"].as_bool().unwrap_or(false);
        (forked, self.figure("start_time").unwrap_or(u64::MAX))
    }
}

impl Job {
    fn of(mut processes: Vec<Process>) -> Self {
        let size = processes
            .iter()
            .filter_map(|p| p.figure("ranks"))
            .filter(|n| *n <= MOST)
            .max();
        processes.sort_by_key(|p| (p.rank.is_none(), p.rank, p.age()));
        let all = processes.len();
        // The first one of each rank; without a rank each is its own.
        processes.dedup_by(|later, first| later.rank.is_some() && later.rank == first.rank);
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
        let there: BTreeSet<_> = self.ranks.iter().filter_map(|p| p.rank).collect();
        (0..self.size.unwrap_or(0))
            .filter(|n| !there.contains(n))
            .collect()
    }

    pub fn hosts(&self) -> BTreeSet<String> {
        self.ranks.iter().map(|p| p.text("host")).collect()
    }

    /// What the library calls itself, and in how many processes.
    pub fn versions(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for p in &self.ranks {
            *all.entry(p.text("version")).or_default() += 1;
        }
        all
    }

    /// The names in a group, in the order of the files.
    pub fn keys(&self, group: &str) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for p in &self.ranks {
            for (key, _) in p.all[group].as_object().into_iter().flatten() {
                let plain = key
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
                if plain && !all.contains(key) {
                    all.push(key.clone());
                }
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn process(rank: Option<u64>, start: u64, forked: bool) -> Process {
        let all = json!({"rank": rank, "ranks": 4, "start_time": start, "forked": forked, "host": "h\u{1b}"});
        Process {
            place: format!("{start}"),
            rank,
            all,
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
        p.all["ranks"] = json!(u64::MAX);
        assert!(Job::of(vec![p]).missing().is_empty());
    }
}
