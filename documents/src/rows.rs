//! Tables: a job's figures, what a machine allows, an address space.

use std::collections::{BTreeMap, BTreeSet};

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// `regall report --json`, and `regall run --report FILE.json`: what the ranks of a job have
/// written at exit.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// The version of this format.
    #[schemars(extend("const" = crate::version()))]
    pub version: u32,
    /// How many processes are counted: one for each rank.
    pub counted: u64,
    /// The number of ranks; null: no launcher says.
    pub ranks: Option<u64>,
    /// The nodes.
    pub hosts: BTreeSet<String>,
    /// Processes that ranks have started, which are not counted.
    pub children: u64,
    /// The library's name and version, and in how many processes.
    pub libraries: BTreeMap<String, u64>,
    /// Ranks that wrote nothing.
    pub missing: Vec<u64>,
    /// Files that were left out, because they could not be read or are no process's.
    pub left_out: u64,
    /// Groups of processes that are alike; the largest one comes first.
    pub alike: Vec<Alike>,
    /// The processes that are in none of these groups, by rank; the first 10,000 of them.
    pub unlike: Vec<Unlike>,
    /// How many these are.
    pub different: u64,
    /// The figures over all ranks.
    pub figures: Vec<Figure>,
    /// What was refused or limited, and how to mend it.
    pub advice: Vec<String>,
}

/// Processes that are alike: the same program under the same settings, with figures that differ
/// by less than half or twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Alike {
    /// How many they are.
    pub count: u64,
    /// On how many nodes.
    pub nodes: u64,
    /// The file that they execute.
    pub exe: String,
    /// In what they differ from the first group.
    pub differs: Vec<Different>,
}

/// A process that is in no group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Unlike {
    /// Its MPI rank; null: no launcher says.
    pub rank: Option<u64>,
    /// Its pid.
    pub pid: u32,
    /// The name of its node.
    pub host: String,
    /// In what it differs from the first group; the largest difference comes first.
    pub differs: Vec<Different>,
}

/// In what a process or a group differs from the first group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Different {
    /// The figure's place in a process's document, or `library`, `exe`, `settings.pin` and so on.
    pub figure: String,
    /// What is there.
    pub has: Value,
    /// The first group's median, or its word; null: it has none.
    pub others: Value,
}

/// One figure over all ranks.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Where it is in a process's document: `counters.served`.
    pub figure: String,
    /// `number`, `bytes` or `ns`.
    pub unit: String,
    /// The least.
    pub min: u64,
    /// The one in the middle.
    pub median: u64,
    /// The most.
    pub max: u64,
    /// Who is furthest from the median; null: all are the same.
    pub outlier: Option<String>,
}

/// `regall doctor --json`: what this machine allows.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Doctor {
    /// The version of this format.
    #[schemars(extend("const" = crate::version()))]
    pub version: u32,
    /// What was found, in the order in which it matters.
    pub findings: Vec<Finding>,
}

/// What was found of one thing.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Finding {
    /// The thing.
    pub name: String,
    /// `good`, `absent`, `limits`, `not checked` or `unknown`.
    pub standing: String,
    /// What was found.
    pub found: String,
    /// What follows from it; null: nothing.
    pub effect: Option<String>,
    /// Figures; their names end in their unit (`_bytes`, `_ns`, `_ms`).
    #[schemars(with = "IndexMap<String, Measure>")]
    pub measured: Map<String, Value>,
    /// How to mend it.
    pub mend: Vec<Cure>,
}

/// A figure of a finding's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Measure {
    /// Whether it is so.
    Is(bool),
    /// How much.
    Number(f64),
    /// A word.
    Word(String),
    /// Words.
    Words(Vec<String>),
}

/// How to mend something.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cure {
    /// Who can.
    pub who: String,
    /// By which line.
    pub line: String,
}

/// `regall maps --json`: an address space.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Maps {
    /// The version of this format.
    #[schemars(extend("const" = crate::version()))]
    pub version: u32,
    /// The process.
    pub pid: u32,
    /// The mappings, each cut where what is said of it changes.
    pub rows: Vec<Row>,
    /// The memory regions of all protection domains.
    pub regions: Vec<Region>,
}

/// A mapping, or as much of it as one thing is said of.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// The first address, in hexadecimal.
    pub start: String,
    /// The first address behind it.
    pub end: String,
    /// How many bytes these are.
    pub bytes: u64,
    /// The kernel's protection, as in /proc/PID/maps.
    pub prot: String,
    /// `registered`, `excluded` or `gap`.
    pub state: String,
    /// Why it is excluded; null: it is not.
    pub reason: Option<String>,
    /// What it is: `anon`, `file`, `heap` and others; null: a gap.
    pub kind: Option<String>,
    /// What the pin set says: `yes` or a reason; null: a gap.
    pub pin: Option<String>,
    /// What the HCA registrar says; null: a gap.
    pub hca: Option<String>,
    /// The local key of the memory region that holds it; null: none does.
    pub lkey: Option<String>,
    /// Its remote key; null: there is none.
    pub rkey: Option<String>,
    /// What is mapped.
    pub name: String,
}

/// A memory region.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Region {
    /// The first address, in hexadecimal.
    pub start: String,
    /// The first address behind it.
    pub end: String,
    /// How many bytes these are.
    pub bytes: u64,
    /// The number of its domain.
    pub domain: u32,
    /// Whether the keys of the rows are of this domain.
    pub primary: bool,
    /// The kernel's handle of its protection domain.
    pub pd: u32,
    /// What it may be used for.
    pub access: String,
    /// Its local key, in hexadecimal; null: there is none.
    pub lkey: Option<String>,
    /// Its remote key; null: there is none.
    pub rkey: Option<String>,
}
