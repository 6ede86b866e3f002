//! Whether memory is left out.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::process::Bytes;

/// `regall verify --json`; with `--watch` one for each round, a line each, and a last one
/// without processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verify {
    /// The version of this format.
    #[schemars(extend("const" = crate::version()))]
    pub version: u32,
    /// The exit code; with `--watch` the worst so far.
    pub exit_code: u8,
    /// The processes that were looked at.
    pub processes: Vec<Verified>,
    /// What became clear of each user's, with `--all`.
    pub users: Vec<User>,
}

/// What became clear of a user's processes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The user's number.
    pub uid: u32,
    /// The user's name; null: it has none here.
    pub name: Option<String>,
    /// What the exit code would be if nobody else had processes.
    pub exit_code: u8,
    /// How many processes were found.
    pub processes: u64,
    /// How many more there are, or may be, that were not looked at: in pid namespaces that can't be
    /// seen from here, or for want of time.
    pub unseen: u64,
}

/// What became clear of a process.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Verified {
    /// Its pid.
    pub pid: u32,
    /// The number of its user; null: it was named by its pid.
    pub uid: Option<u32>,
    /// What became clear.
    pub outcome: Outcome,
    /// Why it could not be looked at; null: it could.
    pub why: Option<String>,
    /// The kernel's lines of it; null where there are gaps, or it could not be looked at.
    pub mappings: Option<u64>,
    /// Bytes, by what the directory says of them; null likewise, and with `--all` for a user's
    /// processes beyond 8 MiB.
    pub bytes: Option<Bytes>,
    /// Ranges that could not be published: /dev/shm is full.
    pub unpublished: u64,
    /// The gaps; of more than 500 the first. With `--all` none of a user's processes beyond 8 MiB.
    pub gaps: Vec<Gap>,
}

/// What became clear of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// There is no gap.
    Ok,
    /// There are gaps.
    Gaps,
    /// It could not be looked at.
    Unknown,
}

/// Bytes of which not the right thing is said.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// The first address, in hexadecimal.
    pub start: String,
    /// The first address behind it.
    pub end: String,
    /// How many bytes these are.
    pub bytes: u64,
    /// The kernel's protection, as in /proc/PID/maps; null: it is not mapped.
    pub prot: Option<String>,
    /// What is mapped; null: it is not mapped.
    pub name: Option<String>,
    /// What is wrong.
    pub wrong: Wrong,
    /// The same in words.
    pub text: String,
}

/// What is wrong with bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Wrong {
    /// Nothing is said of them.
    Uncovered,
    /// Another protection is published.
    Protection,
    /// With `--strict`: the pin set does not hold them.
    Pin,
    /// With `--strict`: the HCA registrar does not hold them.
    Hca,
    /// They are said to be registered, and no memory region holds them.
    Unheld,
    /// A memory region holds them, and they are not mapped.
    Unmapped,
    /// They are said to be pinned, and the kernel has not locked them.
    Unlocked,
    /// They are said to be held without a lock, and may be written to swap space.
    Swap,
}
