//! Plausible statistics of many ranks on many nodes, made of those that one real process left.

use std::process::Command;
use std::time::Duration;

use regall_documents::Process;

use crate::child;
use crate::mode::Mode;

/// A job that there never was.
#[derive(Debug)]
pub struct Made {
    like: Process,
    /// The number of ranks.
    pub ranks: u64,
    /// How many are on each node.
    pub per_node: u64,
    state: u64,
}

impl Made {
    /// So many ranks, all like a process that is run for this.
    pub fn new(ranks: u64, per_node: u64) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("one");
        let mut command = Command::new("/bin/true");
        Mode::Auto.apply(&mut command);
        command.env("REGALL_STATS_FILE", &file);
        child::run(&mut command, Duration::from_secs(60)).must_succeed();
        let text = std::fs::read_to_string(file).expect("statistics");
        Self {
            like: serde_json::from_str(&text).expect("a process"),
            ranks,
            per_node,
            state: 1,
        }
    }

    /// 0 to `below`, the same in each run.
    fn random(&mut self, below: u64) -> u64 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.state >> 33) % below.max(1)
    }

    /// The nodes.
    pub fn nodes(&self) -> u64 {
        self.ranks.div_ceil(self.per_node)
    }

    /// What a rank writes: times, calls and bytes vary, as they do.
    pub fn rank(&mut self, rank: u64) -> Process {
        let mut p = self.like.clone();
        p.exe = "/shared/apps/solver".into();
        p.rank = Some(rank);
        p.ranks = Some(self.ranks);
        p.host = format!("n{:05}", rank / self.per_node);
        p.pid = 2000 + self.random(30_000) as u32;
        p.start_time = 1_000_000 + self.random(500);
        for (name, n) in p.counters.iter_mut().chain(p.events.iter_mut()) {
            let usual = match name.as_str() {
                "hook_ns" => 900_000_000,
                "pin_ns" => 300_000_000,
                "mmap" | "munmap" => 400,
                "pinned_bytes" | "pinned_bytes_total" => 3 << 30,
                "pins" | "unpins" => 250,
                _ => continue,
            };
            *n = usual + self.random(usual / 4);
        }
        for sums in [&mut p.bytes.state, &mut p.bytes.pin] {
            for (_, bytes) in sums {
                *bytes += (3 << 30) + (self.random(1 << 18) << 12);
            }
        }
        p
    }

    /// What sets one of ten apart.
    pub fn odd(&mut self, rank: u64) -> Process {
        let mut p = self.rank(rank);
        match rank % 3 {
            0 => drop(p.counters.insert("pin_limited".into(), 7)),
            1 => drop(p.counters.insert("hook_ns".into(), 60_000_000_000)),
            _ => p.exe = "/home/somebody/solver.old".into(),
        }
        p
    }
}
