//! Runs sequences of memory calls without the shim and with it, and shortens those that differ.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::rows::{self, Account, Pin, Row, Share, User};
use crate::sequence::{self, Limit};
use crate::{build, child, number};

/// Ends what hangs.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Runs sequences.
#[derive(Debug)]
pub struct Runner {
    account: Account,
    program: PathBuf,
    folder: tempfile::TempDir,
}

/// Says where a run with the shim differs from the one without it.
#[derive(Debug)]
pub struct Find {
    /// The way to run it.
    pub row: Row,
    /// The shortest sequence that still differs.
    pub sequence: Vec<String>,
    /// What was said of one call.
    pub difference: String,
}

impl Default for Runner {
    fn default() -> Self {
        Self::new()
    }
}

impl Runner {
    /// Begins: the program is compiled, and a user who can't read it gets a copy.
    pub fn new() -> Self {
        let program = build::program("differ");
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("rights");
        Self {
            account: Account::new(&program),
            program,
            folder,
        }
    }

    /// Returns what is said of a sequence: lines of output, and how it ended.
    fn run(&self, sequence: &[String], user: User, row: Option<Row>) -> io::Result<Vec<String>> {
        let file = self.folder.path().join("sequence");
        fs::write(&file, sequence.join("\n") + "\n")?;
        fs::set_permissions(&file, Permissions::from_mode(0o644))?;
        let mut command = self.account.command(&self.program, user, row)?;
        let done = child::run(command.arg(&file), TIMEOUT);
        let mut said: Vec<String> = done.stdout.lines().map(str::to_owned).collect();
        said.push(format!("= the end: {}{}", done.end(), done.others_stderr()));
        Ok(said)
    }

    /// Returns the first difference that a row makes; none where there is no such user here.
    pub fn difference(&self, sequence: &[String], row: Row) -> Option<String> {
        let plain = self.run(sequence, row.user, None).ok()?;
        let other = self.run(sequence, row.user, Some(row)).ok()?;
        let (plain, mut other) = (compared(&plain, row), compared(&other, row));
        let plain = comparable(&plain, &mut other, row);
        let mut pairs = plain.iter().zip(&other);
        let at = pairs.position(|(was, is)| was != is);
        let at =
            at.or_else(|| (plain.len() != other.len()).then(|| plain.len().min(other.len())))?;
        let call = plain[..at].iter().rev().find(|l| l.starts_with('-'));
        let of = |lines: &[&String]| lines.get(at).map_or("nothing".into(), |l| (*l).clone());
        Some(format!(
            "after `{}`\nplain {}\nshim  {}",
            call.map_or("", |c| c.as_str()),
            of(plain),
            of(&other)
        ))
    }

    /// Shortens what differs, and differs a second time.
    fn find(&self, sequence: &[String], row: Row) -> Option<Find> {
        self.difference(sequence, row)?;
        self.difference(sequence, row)?;
        // What differs by itself says nothing.
        let plain = || self.run(sequence, row.user, None).ok();
        if plain() != plain() {
            return None;
        }
        let sequence = sequence::shorten(sequence, |s| self.difference(s, row).is_some());
        let difference = self.difference(&sequence, row)?;
        Some(Find {
            row,
            sequence,
            difference,
        })
    }
}

impl std::fmt::Display for Find {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (lines, c) = (self.sequence.join("\n"), sequence::as_c(&self.sequence));
        write!(f, "{:?}\n{}\n{lines}\n\n{c}", self.row, self.difference)
    }
}

/// Returns whether the kernel's locks are the program's alone: the shim locks nothing. With TESTS_SWAP it is taken
/// to lock by default, as its versions before 2026-11-28 do.
fn locks_nothing(row: Row) -> bool {
    let swaps = || fs::read_to_string("/proc/swaps").is_ok_and(|s| s.lines().count() > 1);
    row.pin == Pin::Off || row.pin == Pin::Auto && number("TESTS_SWAP").is_none() && !swaps()
}

/// Returns the lines that have to be the same in a row. Private memory that is a file's is listed as such, and
/// what is populated is resident, and stays accounted for when it can't be written any more.
fn compared(said: &[String], row: Row) -> Vec<&String> {
    let shared = row.share == Share::Always;
    let kept = |line: &&String| match line.chars().next() {
        Some('M' | 'R') => !shared && row.pin != Pin::Populate,
        Some('K') => !shared && locks_nothing(row),
        _ => true,
    };
    said.iter().filter(kept).collect()
}

/// Leaves out what can't be the same: what is populated at once is one mapping more often than
/// what is touched later, and mremap of several is EFAULT.
fn comparable<'a>(plain: &'a [&'a String], other: &mut Vec<&String>, row: Row) -> &'a [&'a String] {
    let divided = |line: &&String| line.as_str() == "= mremap: EFAULT";
    match plain.iter().position(divided) {
        Some(end) if row.pin == Pin::Populate => {
            other.truncate(end);
            &plain[..end]
        }
        _ => plain,
    }
}

/// Returns whether a sequence can be the same in a row. Where RLIMIT_MEMLOCK binds, MCL_CURRENT counts
/// the shim's memory, too. With REGALL_PIN=populate, what is resident at once does not fault where a
/// userfaultfd watches, or what the program has only read is given back there; and beside a limit
/// that binds, locks of the program's that an mremap moves are counted otherwise (docs/testing.md has
/// the two sequences that are known).
pub fn fits(sequence: &[String], row: Row) -> bool {
    let has = |call| sequence.iter().any(|line| line.contains(call));
    let current = ["mlockall 1", "mlockall 3", "mlockall 5", "mlockall 7"];
    let binds = limit(row.user) == Limit::Binds;
    let populates = row.pin == Pin::Populate && (binds || has("register"));
    let locks_all = binds && current.into_iter().any(has);
    !(populates || locks_all)
}

fn limit(user: User) -> Limit {
    match user {
        User::Root | User::Unlimited => Limit::None,
        User::KiB64 | User::MiB8 => Limit::Binds,
    }
}

/// Returns the rows of a seed: the defaults, and two of all.
fn rows_of(seed: u64) -> [Row; 3] {
    let all = rows::all();
    let nth = |n: u64| all[(n % all.len() as u64) as usize];
    [rows::DEFAULT, nth(seed), nth(seed / 16 + 7 * seed + 5)]
}

/// Runs so many sequences from a seed on, or until some time. Returns how many it has run, and its finds.
fn search(first: u64, most: u64, until: Option<Instant>) -> (u64, Vec<Find>) {
    let runner = Runner::new();
    let mut found = Vec::new();
    for seed in first..first + most {
        if until.is_some_and(|end| Instant::now() > end) || found.len() >= most_found() {
            return (seed - first, found);
        }
        for row in rows_of(seed) {
            let sequence = sequence::draw(seed, limit(row.user));
            if !fits(&sequence, row) {
                continue;
            }
            if let Some(find) = runner.find(&sequence, row) {
                println!("seed {seed}: {find}");
                found.push(find);
                break;
            }
        }
    }
    (most, found)
}

/// Returns how many finds are shown: TESTS_FINDS.
fn most_found() -> usize {
    number("TESTS_FINDS").map_or(3, |n| n as usize)
}

/// Returns a number that each commit has another of.
pub fn commit() -> u64 {
    let mut git = Command::new("git");
    let git = git
        .arg("-C")
        .arg(build::root())
        .args(["rev-parse", "HEAD"])
        .output();
    let hash = git.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    let hash = hash.unwrap_or_default();
    u64::from_str_radix(hash.get(..10).unwrap_or("1"), 16).unwrap_or(1)
}

/// Runs so many sequences from a seed on, or until some time, and fails if one differs. Returns how many were
/// run.
pub fn must_find_nothing(first: u64, most: u64, until: Option<Instant>) -> u64 {
    println!("sequences from TESTS_SEED={first} on");
    let (run, found) = search(first, most, until);
    println!("{run} sequences");
    let all: Vec<_> = found.iter().map(Find::to_string).collect();
    assert!(all.is_empty(), "TESTS_SEED={first}\n{}", all.join("\n\n"));
    run
}
