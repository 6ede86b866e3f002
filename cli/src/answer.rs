//! What is asked of `regall verify`, and what it says of one process.

use std::collections::BTreeMap;
use std::io::Write;

use regall_documents::{self as documents, Outcome, User, Verified, Verify};
use regall_reader::{OpenError, Unseen};

use crate::check::{self, Gap};
use crate::examine::{Failure, Summary, Verdict};
use crate::output::{complain, without_numbers};
use crate::wanted::Wanted;
use crate::words::{NO_PROCESS, NO_TIME};
use crate::{units, users};

/// No gap.
pub const GOOD: u8 = 0;
/// A gap.
pub const GAP: u8 = 1;
/// Could not look.
pub const BLIND: u8 = 2;

/// Bytes that one document takes to tell of a user's processes with `--all`; of others it tells
/// only what became clear.
const MOST_OF_A_USER: usize = 8 << 20;
/// Bytes that a word, or a gap, takes beside its text.
const A_WORD: usize = 96;

/// Which processes, and how closely.
#[derive(clap::Args)]
pub struct Question {
    /// The processes
    #[arg(required_unless_present = "all", conflicts_with_all = ["user", "job", "filter"])]
    pids: Vec<u32>,
    /// All processes that run with the shim and may be looked at
    #[arg(long, conflicts_with = "pids")]
    pub all: bool,
    #[command(flatten)]
    pub wanted: Wanted,
    /// With --all: exit code 0 although no process is found
    #[arg(long, conflicts_with_all = ["pids", "expect"])]
    allow_none: bool,
    /// With --all: exit code 2 if fewer than N processes are found; with --watch, in all rounds
    /// together
    #[arg(long, value_name = "N", conflicts_with = "pids")]
    expect: Option<usize>,
    /// What is over the limit, refused, off, page cache, untouched or inherited is a gap too
    #[arg(long)]
    pub strict: bool,
}

impl Question {
    /// The processes that are named.
    pub fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// The exit code for how many processes were found, with a line on stderr if they are too
    /// few: a job that has not started is not a job without gaps.
    pub fn found(&self, found: usize) -> u8 {
        let least = match self.all {
            true => self.expect.unwrap_or(usize::from(!self.allow_none)),
            false => 0,
        };
        if found == 0 && self.all {
            complain(NO_PROCESS);
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

/// The verdicts on each user's processes.
#[derive(Default)]
pub struct Users(BTreeMap<u32, User>);

impl Users {
    fn of(&mut self, uid: u32) -> &mut User {
        self.0.entry(uid).or_insert_with(|| User {
            uid,
            name: None,
            exit_code: GOOD,
            processes: 0,
            unseen: 0,
        })
    }

    /// Counts a process with this exit code.
    pub fn add(&mut self, uid: u32, code: u8) {
        let user = self.of(uid);
        user.processes += 1;
        user.exit_code = user.exit_code.max(code);
    }

    /// Says of whom there are, or may be, processes that were not looked at.
    pub fn add_blind(&mut self, blind: &Blind) {
        for (uid, n) in blind.unseen.processes.iter().chain(&blind.left) {
            let user = self.of(*uid);
            user.unseen += *n as u64;
            user.exit_code = BLIND;
        }
        for uid in &blind.unseen.unknown {
            self.of(*uid).exit_code = BLIND;
        }
    }

    /// Takes over what is worse in another round.
    pub fn worsen(&mut self, round: &Self) {
        for (uid, other) in &round.0 {
            let user = self.of(*uid);
            user.exit_code = user.exit_code.max(other.exit_code);
            user.unseen = user.unseen.max(other.unseen);
        }
    }

    /// The worst exit code of all, and how many processes there were.
    pub fn sums(&self) -> (u8, usize) {
        let codes = self.0.values().map(|user| user.exit_code);
        let found: u64 = self.0.values().map(|user| user.processes).sum();
        (codes.max().unwrap_or(GOOD), found as usize)
    }

    /// For programs.
    fn told(self) -> Vec<User> {
        let mut names = users::names(self.0.keys().copied());
        let named = |user: User| User {
            name: names.remove(&user.uid),
            ..user
        };
        self.0.into_values().map(named).collect()
    }
}

/// Processes that nothing was looked at of.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Blind {
    /// Those that can't be seen from here.
    pub unseen: Unseen,
    /// Of these users, how many no time was left for.
    pub left: Vec<(u32, usize)>,
}

impl Blind {
    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.unseen.is_empty() && self.left.is_empty()
    }

    /// Says whose they are, a line each.
    pub fn lines(&self) -> Vec<String> {
        let Self { unseen, left } = self;
        let processes = |n: usize| if n == 1 { "process" } else { "processes" };
        let unseen_line = |(uid, n): &(u32, usize)| {
            let processes = processes(*n);
            format!(
                "user {uid}: {n} more {processes} in pid namespaces that can't be seen from here"
            )
        };
        let unknown_line = |uid: &u32| {
            format!("user {uid}: not all names in /dev/shm were looked through for other pid namespaces")
        };
        let left_line =
            |(uid, n): &(u32, usize)| format!("user {uid}: {n} more {}: {NO_TIME}", processes(*n));
        let seen = unseen.processes.iter().map(unseen_line);
        let all = seen.chain(unseen.unknown.iter().map(unknown_line));
        all.chain(left.iter().map(left_line)).collect()
    }
}

/// What is said of processes: at once for people, in one document for programs.
pub enum Answers {
    /// A line or more for each.
    Text,
    /// What was said in this round, and of each user how many bytes that takes.
    Json(Vec<Verified>, BTreeMap<u32, usize>),
}

impl Answers {
    /// As JSON or not.
    pub fn new(json: bool) -> Self {
        match json {
            true => Self::Json(Vec::new(), BTreeMap::new()),
            false => Self::Text,
        }
    }

    /// Says what became clear of a process; returns its exit code.
    pub fn report(
        &mut self,
        pid: u32,
        uid: Option<u32>,
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
            (Self::Json(all, users), _) => {
                let mut told = told(pid, uid, verdict);
                if let Some(uid) = uid {
                    let bytes = users.entry(uid).or_default();
                    let more = size(&told);
                    match *bytes + more <= MOST_OF_A_USER {
                        true => *bytes += more,
                        false => (told.bytes, told.gaps) = (None, Vec::new()),
                    }
                }
                all.push(told);
            }
            (Self::Text, Verdict::Good(s)) => print_good(pid, s, out)?,
            (Self::Text, Verdict::Gaps(gaps, unpublished)) => {
                print_gaps(pid, gaps, *unpublished, out)?
            }
            (Self::Text, Verdict::Failed(_)) => (),
        }
        Ok(code)
    }

    /// The document on what was said since the last one.
    pub fn document(&mut self, exit_code: u8, users: Users) -> Option<Verify> {
        let Self::Json(all, users_bytes) = self else {
            return None;
        };
        users_bytes.clear();
        // With --all they come as they become clear.
        if !users.0.is_empty() {
            all.sort_by_key(|process| process.pid);
        }
        Some(Verify {
            version: documents::VERSION,
            exit_code,
            processes: std::mem::take(all),
            users: users.told(),
        })
    }
}

/// Bytes that it takes, about.
fn size(told: &Verified) -> usize {
    let words = told
        .bytes
        .iter()
        .flat_map(|b| [&b.state, &b.reason, &b.pin, &b.hca]);
    let words = words.flat_map(|words| words.keys()).map(String::len);
    let gaps = told.gaps.iter();
    let gaps = gaps.map(|gap| 2 * A_WORD + gap.name.as_ref().map_or(0, String::len));
    words.map(|len| len + A_WORD).chain(gaps).sum()
}

fn told(pid: u32, uid: Option<u32>, verdict: &Verdict) -> Verified {
    let empty = Verified {
        pid,
        uid,
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
            why: Some(without_numbers(&why.to_string())),
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
        "{pid}: {}{}, {} in all",
        units::many(gaps.len(), "gap"),
        if gaps.len() < check::MOST {
            ""
        } else {
            " and more"
        },
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
