//! Where in a job a process is, by what its launcher put into its environment, and what it
//! does.

use regall_directory::settings::{JOBS, RANKS, SIZES};
use regall_reader::{procfs, Process};
use regall_settings::names;

use crate::settings::STATS_FILE;

/// What is known of a process beside its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Its MPI rank.
    pub rank: Option<u64>,
    /// The number of ranks.
    pub ranks: Option<u64>,
    /// The number of its batch job.
    pub job: Option<String>,
    /// The name under which its statistics stay on the node ([`names::on_node`]); empty, too, if
    /// they don't.
    pub kept: String,
    /// Its state's letter, as in proc(5); `?` if that could not be seen.
    pub state: char,
}

impl Launched {
    /// Nothing is known of it.
    #[cfg(test)]
    pub const UNKNOWN: Self = Self {
        rank: None,
        ranks: None,
        job: None,
        kept: String::new(),
        state: '?',
    };

    /// Of `pid`.
    pub fn of(pid: u32) -> Self {
        // (What is longer is not known.)
        let environ = procfs::whole(format!("/proc/{pid}/environ")).unwrap_or_default();
        let state = Process::find(pid).and_then(|p| p.state());
        Self {
            state: state.unwrap_or('?'),
            ..Self::in_environ(&environ)
        }
    }

    fn in_environ(environ: &[u8]) -> Self {
        let value = |name: &&[u8]| {
            let mut all = environ.split(|b| *b == 0);
            let value = all.find_map(|v| v.strip_prefix(*name)?.strip_prefix(b"="))?;
            std::str::from_utf8(value).ok()
        };
        let number = |name: &&[u8]| value(name)?.parse().ok();
        // A label, and nothing that could be mistaken for more.
        let plain =
            |job: &&str| (1..=64).contains(&job.len()) && job.bytes().all(|b| b.is_ascii_graphic());
        Self {
            rank: RANKS.iter().find_map(number),
            ranks: SIZES.iter().find_map(number),
            job: JOBS
                .iter()
                .filter_map(value)
                .find(plain)
                .map(str::to_string),
            kept: kept(value(&STATS_FILE.as_bytes()).unwrap_or_default()),
            state: '?',
        }
    }

    /// The word for its state.
    pub fn activity(&self) -> &'static str {
        match self.state {
            'R' => "running",
            'S' | 'I' => "sleeping",
            'D' => "waiting",
            'T' => "stopped",
            't' => "traced",
            'Z' => "ending",
            _ => "unknown",
        }
    }
}

/// The name that a value of REGALL_STATS_FILE has for what stays on the node.
pub fn kept(stats_file: &str) -> String {
    let name = names::on_node(stats_file.as_bytes()).unwrap_or_default();
    String::from_utf8_lossy(name.as_bytes()).into_owned()
}

/// The name of this node.
pub fn host() -> String {
    String::from_utf8_lossy(regall_sys::host().as_bytes()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_is_the_mpi_librarys() {
        let of = |text: &str| Launched::in_environ(text.replace(' ', "\0").as_bytes());
        let rank = |text: &str| of(text).rank;
        assert_eq!(rank("A=1 PMI_RANK=3 B=2"), Some(3));
        assert_eq!(rank("SLURM_PROCID=0 OMPI_COMM_WORLD_RANK=7"), Some(7));
        assert_eq!(rank("SLURM_PROCID=2"), Some(2));
        assert_eq!(rank("XPMI_RANK=3 PMI_RANK=x PMI_RANKS=4 PMI_RANK"), None);
        assert_eq!(Launched::in_environ(b"PMI_RANK=\xff\0").rank, None);
        assert_eq!(of(""), Launched::UNKNOWN);
        assert_eq!(of("PMI_SIZE=4 PBS_JOBID=7.host").ranks, Some(4));
        assert_eq!(of("PBS_JOBID=7.host").job.as_deref(), Some("7.host"));
        assert_eq!(of("SLURM_JOB_ID= PBS_JOBID=\u{e4}").job, None);
        assert_eq!(of("REGALL_STATS_FILE=node:a/b").kept, "a_b");
        assert_eq!(of("REGALL_STATS_FILE=a:b").kept, "");
    }
}
