//! What is counted of one process.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::words::{self, Counts, Words};

/// What is counted of one process: `regall stats --json`, each process of
/// `regall top --once --json`, and what REGALL_STATS_FILE has written at exit.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// The version of this format.
    #[schemars(extend("const" = crate::version()))]
    pub version: u32,
    /// The library's name and version; null for a running process.
    pub library: Option<String>,
    /// Its pid: in REGALL_STATS_FILE as the process sees it, else as the reader does.
    pub pid: u32,
    /// The file that it executes.
    pub exe: String,
    /// The name of the node.
    pub host: String,
    /// Its MPI rank; null: no launcher says.
    pub rank: Option<u64>,
    /// The number of ranks; null: no launcher says.
    pub ranks: Option<u64>,
    /// When it started, in clock ticks since boot.
    pub start_time: u64,
    /// Whether it is a child of fork that leaves what it inherited alone.
    pub forked: bool,
    /// Whether the shim no longer tracks.
    pub gave_up: bool,
    /// The most that may be pinned; null: there is no such limit.
    pub budget_bytes: Option<u64>,
    /// RLIMIT_MEMLOCK where it binds; null where it does not, and for a running process.
    pub memlock_bytes: Option<u64>,
    /// Ranges that could not be published because /dev/shm is full; not 0: the directory is
    /// incomplete.
    pub unpublished: u64,
    /// Mappings: in REGALL_STATS_FILE as the shim counts them, else the kernel's lines.
    pub mappings: u64,
    /// The variables as they are in force, by name without REGALL_, in small letters.
    pub settings: Words,
    /// Bytes, by what the directory says of them.
    pub bytes: Bytes,
    /// How often each call was handled.
    #[schemars(transform = words::calls)]
    pub events: Counts,
    /// The other counters; regall-stats(1) explains each.
    #[schemars(transform = words::counters)]
    pub counters: Counts,
    /// Places in the program's code that make system calls.
    pub sites: Sites,
    /// The kinds of calls that the self-test made at start-up and that did not arrive in the
    /// shim. It makes most kinds, not all (not fork, for instance), and one of each function of
    /// libc.
    pub selftest_missed: Vec<String>,
    /// What is known of a running process only; null in REGALL_STATS_FILE.
    pub live: Option<Live>,
}

/// Bytes, by what the directory says of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bytes {
    /// By `registered` (at least one registrar holds them) and `excluded`.
    #[schemars(transform = words::states)]
    pub state: Counts,
    /// The excluded ones by the reason.
    #[schemars(transform = words::reasons)]
    pub reason: Counts,
    /// All bytes, by the pin set's answer: `yes` or a reason.
    #[schemars(transform = words::columns)]
    pub pin: Counts,
    /// All bytes, by the answer of the HCA registrar.
    #[schemars(transform = words::columns)]
    pub hca: Counts,
}

/// Places in the program's code that make system calls.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sites {
    /// Those that lead to the shim.
    pub patched: u64,
    /// Those of memory calls that can't be patched. Two, of libc's own, are normal.
    pub refused: u64,
}

/// What is known of a running process only.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Live {
    /// The number of its user.
    pub user: u32,
    /// The number of its batch job; null: no batch system says.
    pub job: Option<String>,
    /// What it does: `running`, `sleeping`, `waiting`, `stopped`, `traced`, `ending`,
    /// `gave up` (it runs, and the shim no longer tracks), or `unknown`.
    pub activity: String,
    /// Counts the directory's changes.
    pub generation: u64,
    /// Hooked calls in progress.
    pub busy: u64,
    /// Memory regions that are published.
    pub regions: u64,
    /// How fast its counters change; null: it was seen once.
    pub rates: Option<Rates>,
}

/// How fast counters change.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// The time between the two looks.
    pub seconds: f64,
    /// Calls that were handled.
    pub events_per_second: f64,
    /// Time in the shim, start-up not counted, in per cent of one CPU.
    pub shim_percent: f64,
}

/// `regall top --once --json` and `regall stats --all --json`: the processes of the node.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Top {
    /// The version of this format.
    #[schemars(extend("const" = crate::version()))]
    pub version: u32,
    /// In the order that was asked for.
    pub processes: Vec<Process>,
}
