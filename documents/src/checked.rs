//! What was noticed of a program's own registrations.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `regall check --json=FILE`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The version of this format.
    #[schemars(extend("const" = crate::version()))]
    pub version: u32,
    /// Findings that are errors.
    pub errors: u64,
    /// Findings that are worth knowing.
    pub notes: u64,
    /// Findings that the suppressions have left out.
    pub suppressed: u64,
    /// How often memory went away before its registration was deregistered, without a use in
    /// between; 0 with `--late`, which has these among the findings.
    pub late: u64,
    /// The program images that were checked.
    pub processes: Vec<Checked>,
    /// Errors first, and each once, however often it happened.
    pub findings: Vec<Fault>,
}

/// A program image that was checked.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checked {
    /// Its pid.
    pub pid: u32,
    /// Its executable.
    pub exe: String,
    /// What it counted; null: it did not come to its end (a signal, another program).
    pub counts: Option<Checks>,
    /// What it left is cut off or can't be read to its end.
    pub damaged: bool,
}

/// What a process counted while it was checked.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checks {
    /// Registrations that it made.
    pub registered: u64,
    /// Those that it deregistered.
    pub deregistered: u64,
    /// Registrations that were not followed: there were too many at a time.
    pub untracked: u64,
    /// Ranges that went away under a registration of which four were known already.
    pub crowded: u64,
    /// Records that were not written.
    pub dropped: u64,
    /// Devices whose work requests were looked at.
    pub devices: u64,
}

/// How bad it is.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Wrong data, or worse.
    Error,
    /// Worth knowing.
    Note,
}

/// Something that is wrong with a registration.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, in one word.
    pub kind: String,
    /// The same in a sentence.
    pub text: String,
    /// The processes in which it happened.
    pub pids: Vec<u32>,
    /// How often it happened in all of them.
    pub count: u64,
    /// The first registration to which it happened.
    pub registration: Registration,
    /// First byte of what it is about, in hexadecimal.
    pub start: String,
    /// First byte behind it.
    pub end: String,
    /// Call stacks, in the order of what happened.
    pub stacks: Vec<Stack>,
}

/// A registration of the program's.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Registration {
    /// First byte, in hexadecimal.
    pub addr: String,
    /// Bytes.
    pub bytes: u64,
    /// Local key, in hexadecimal.
    pub lkey: String,
    /// Remote key, in hexadecimal.
    pub rkey: String,
    /// Access that was asked for, the bits of IBV_ACCESS_ in hexadecimal.
    pub access: String,
}

/// A call stack, innermost frame first, without the frames of libregall.so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// What happened there.
    pub what: String,
    /// Whether it goes as far as the thread's first function.
    pub whole: bool,
    /// Its frames.
    pub frames: Vec<StackFrame>,
}

/// A frame of a call stack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StackFrame {
    /// The address, in hexadecimal.
    pub address: String,
    /// The function; null: it has no symbol.
    pub function: Option<String>,
    /// The source file; null: there is no debugging information.
    pub file: Option<String>,
    /// The line in it.
    pub line: Option<u32>,
    /// The file that is mapped there; null: none is.
    pub module: Option<String>,
    /// The address in that file, in hexadecimal, as for addr2line(1).
    pub offset: Option<String>,
    /// The file's build id.
    pub build_id: Option<String>,
}
