//! `regall verify`: an answer for each process, and one for all as exit code.

use std::io::Write;
use std::time::Duration;

use regall_reader::{self as reader, OpenError};

use crate::check::Gap;
use crate::examine::{examine, Failure, Verdict};
use crate::{complain, units, watch};

/// No gap.
pub const GOOD: u8 = 0;
/// A gap.
pub const GAP: u8 = 1;
/// Could not look.
pub const BLIND: u8 = 2;

pub const EXIT_CODES: &str = "Exit code: 0 no gap, 1 a gap (printed), 2 could not look \
    (vanished, foreign, inert, corrupt, busy for 5 s). 2 beats 1 beats 0. With --all it is 0, and \
    one line on stderr, if there is no process with the shim on.";

#[derive(clap::Args)]
pub struct Args {
    /// The processes
    #[arg(required_unless_present = "all")]
    pids: Vec<u32>,
    /// All processes that run with the shim and may be looked at
    #[arg(long, conflicts_with = "pids")]
    pub all: bool,
    /// What is over the limit, refused, off, untouched or inherited is a gap too
    #[arg(long)]
    pub strict: bool,
    /// Look every so many seconds until they have ended, and keep the worst code
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds)]
    watch: Option<Duration>,
}

pub fn verify(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    if let Some(pause) = args.watch {
        return watch::watch(args, pause, out);
    }
    let mut worst = GOOD;
    let mut nobody = true;
    for pid in args.processes()? {
        let verdict = examine(pid, args.strict);
        if args.all && vanished(&verdict) {
            continue;
        }
        nobody = false;
        worst = worst.max(report(pid, &verdict, out)?);
    }
    if nobody {
        said_of_nobody();
    }
    Ok(worst)
}

/// Nothing is wrong with nobody, but who reads the answer should know that it is of none.
pub fn said_of_nobody() {
    complain("no process with the shim on");
}

impl Args {
    /// The processes to look at, as of now.
    pub fn processes(&self) -> anyhow::Result<Vec<u32>> {
        match self.all {
            false => Ok(self.pids.clone()),
            true => Ok(reader::published()?),
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
            OpenError::NoSuchProcess | OpenError::Inert | OpenError::Unpublished
        ))
    )
}

/// Prints what became clear of a process; returns its exit code.
pub fn report(pid: u32, verdict: &Verdict, out: &mut impl Write) -> std::io::Result<u8> {
    match verdict {
        Verdict::Good(s) => {
            let (registered, excluded) = (units::bytes(s.registered), units::bytes(s.excluded));
            let mappings = s.mappings;
            write!(
                out,
                "{pid}: ok, {mappings} mappings, {registered} registered, {excluded} excluded"
            )?;
            if s.untouched != 0 {
                write!(out, ", {} untouched", units::bytes(s.untouched))?;
            }
            writeln!(out)?;
            Ok(GOOD)
        }
        Verdict::Gaps(gaps, unpublished) => {
            print_gaps(pid, gaps, *unpublished, out)?;
            Ok(GAP)
        }
        Verdict::Failed(why) => {
            complain(&format!("{pid}: {why}"));
            Ok(BLIND)
        }
    }
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
            Some(m) if m.name.is_empty() => (m.prot.to_string(), "(anonymous)"),
            Some(m) => (m.prot.to_string(), m.name.as_str()),
            None => ("----".to_string(), "(nothing)"),
        };
        writeln!(
            out,
            "{pid}: gap {start:08x}-{end:08x} {prot} {name}: {}",
            gap.wrong
        )?;
    }
    Ok(())
}
