//! What is asked of `regall verify`, and what it says of one process.

use std::io::Write;

use regall_documents::{self as documents, Outcome, Verified, Verify};
use regall_reader::{self as reader, OpenError};

use crate::check::Gap;
use crate::examine::{Failure, Summary, Verdict};
use crate::{complain, units, words};

/// No gap.
pub const GOOD: u8 = 0;
/// A gap.
pub const GAP: u8 = 1;
/// Could not look.
pub const BLIND: u8 = 2;

/// Which processes, and how closely.
#[derive(clap::Args)]
pub struct Question {
    /// The processes
    #[arg(required_unless_present = "all")]
    pids: Vec<u32>,
    /// All processes that run with the shim and may be looked at
    #[arg(long, conflicts_with = "pids")]
    pub all: bool,
    /// With --all: exit code 0 although no process is found
    #[arg(long, conflicts_with_all = ["pids", "expect"])]
    allow_none: bool,
    /// With --all: exit code 2 if fewer than N processes are found; with --watch, in all rounds
    /// together
    #[arg(long, value_name = "N", conflicts_with = "pids")]
    expect: Option<usize>,
    /// What is over the limit, refused, off, untouched or inherited is a gap too
    #[arg(long)]
    pub strict: bool,
}

impl Question {
    /// The processes to look at, as of now.
    pub fn processes(&self) -> anyhow::Result<Vec<u32>> {
        match self.all {
            false => Ok(self.pids.clone()),
            true => Ok(reader::published()?),
        }
    }

    /// The exit code for how many processes were found, with a line on stderr if they are too
    /// few: a job that has not started is not a job without gaps.
    pub fn found(&self, found: usize) -> u8 {
        let least = match self.all {
            true => self.expect.unwrap_or(usize::from(!self.allow_none)),
            false => 0,
        };
        if found == 0 && self.all {
            complain("no process with the shim on");
        } else if found < least {
            let processes = if found == 1 { "process" } else { "processes" };
            complain(&format!(
                "{found} {processes} with the shim on, {least} expected"
            ));
        }
        if found < least {
            BLIND
        } else {
            GOOD
        }
    }
}

/// Whether it ended, executes something without the shim, or has published nothing yet: none
/// that `--all` means.
pub fn vanished(verdict: &Verdict) -> bool {
    use Failure::Unreadable;
    matches!(
        verdict,
        Verdict::Failed(Unreadable(
            OpenError::NoSuchProcess
                | OpenError::Inert
                | OpenError::Unpublished
                | OpenError::Removed
        ))
    )
}

/// What is said of processes: at once for people, in one document for programs.
pub enum Answers {
    /// A line or more for each.
    Text,
    /// What was said in this round.
    Json(Vec<Verified>),
}

impl Answers {
    /// As JSON or not.
    pub fn new(json: bool) -> Self {
        match json {
            true => Self::Json(Vec::new()),
            false => Self::Text,
        }
    }

    /// Says what became clear of a process; returns its exit code.
    pub fn report(
        &mut self,
        pid: u32,
        verdict: &Verdict,
        out: &mut impl Write,
    ) -> std::io::Result<u8> {
        if let Verdict::Failed(why) = verdict {
            complain(&format!("{pid}: {why}"));
        }
        let code = match verdict {
            Verdict::Good(_) => GOOD,
            Verdict::Gaps(..) => GAP,
            Verdict::Failed(_) => BLIND,
        };
        match (self, verdict) {
            (Self::Json(all), _) => all.push(told(pid, verdict)),
            (Self::Text, Verdict::Good(s)) => print_good(pid, s, out)?,
            (Self::Text, Verdict::Gaps(gaps, unpublished)) => {
                print_gaps(pid, gaps, *unpublished, out)?
            }
            (Self::Text, Verdict::Failed(_)) => (),
        }
        Ok(code)
    }

    /// The document on what was said since the last one.
    pub fn document(&mut self, exit_code: u8) -> Option<Verify> {
        match self {
            Self::Text => None,
            Self::Json(all) => Some(Verify {
                version: documents::VERSION,
                exit_code,
                processes: std::mem::take(all),
            }),
        }
    }
}

fn told(pid: u32, verdict: &Verdict) -> Verified {
    let empty = Verified {
        pid,
        outcome: Outcome::Ok,
        why: None,
        mappings: None,
        bytes: None,
        unpublished: 0,
        gaps: Vec::new(),
    };
    match verdict {
        Verdict::Good(s) => Verified {
            mappings: Some(s.mappings as u64),
            bytes: Some(s.bytes.0.clone()),
            ..empty
        },
        Verdict::Gaps(gaps, unpublished) => Verified {
            outcome: Outcome::Gaps,
            unpublished: *unpublished,
            gaps: gaps.iter().map(Gap::told).collect(),
            ..empty
        },
        Verdict::Failed(why) => Verified {
            outcome: Outcome::Unknown,
            why: Some(words(&why.to_string())),
            ..empty
        },
    }
}

fn print_good(pid: u32, s: &Summary, out: &mut impl Write) -> std::io::Result<()> {
    let bytes = &s.bytes;
    write!(
        out,
        "{pid}: ok, {} mappings, {} registered, {} excluded",
        s.mappings,
        units::bytes(bytes.registered()),
        units::bytes(bytes.excluded())
    )?;
    if bytes.untouched() != 0 {
        write!(out, ", {} untouched", units::bytes(bytes.untouched()))?;
    }
    writeln!(out)
}

fn print_gaps(
    pid: u32,
    gaps: &[Gap],
    unpublished: u64,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let bytes: u64 = gaps.iter().map(|g| g.range.len()).sum();
    write!(
        out,
        "{pid}: {}, {} in all",
        units::many(gaps.len(), "gap"),
        units::bytes(bytes)
    )?;
    if unpublished != 0 {
        write!(out, "; {unpublished} ranges unpublished (/dev/shm full)")?;
    }
    writeln!(out)?;
    for gap in gaps {
        let (start, end) = (gap.range.start(), gap.range.end());
        let (prot, name) = match &gap.mapping {
            Some(m) if m.name.is_empty() => (m.prot.to_string(), "(anonymous)".to_string()),
            Some(m) => (m.prot.to_string(), units::printable(&m.name)),
            None => ("----".to_string(), "(nothing)".to_string()),
        };
        writeln!(
            out,
            "{pid}: gap {start:08x}-{end:08x} {prot} {name}: {}",
            gap.wrong
        )?;
    }
    Ok(())
}
