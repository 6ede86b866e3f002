//! Runs sequences of memory calls without the shim and with it, and shortens those that differ.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::rows::{self, Account, Intercept, Pin, Row, Share, User};
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
        let mut command = self.command(&[sequence], user, row)?;
        let done = child::run(&mut command, TIMEOUT);
        let mut said: Vec<String> = done.stdout.lines().map(str::to_owned).collect();
        said.push(format!("= the end: {}{}", done.end(), done.others_stderr()));
        Ok(said)
    }

    /// Returns the command that carries sequences out, each in a thread if there are several.
    pub(crate) fn command<S: AsRef<[String]>>(
        &self,
        sequences: &[S],
        user: User,
        row: Option<Row>,
    ) -> io::Result<Command> {
        let mut command = self.account.command(&self.program, user, row)?;
        for (n, sequence) in sequences.iter().enumerate() {
            let file = self.folder.path().join(format!("sequence.{n}"));
            fs::write(&file, sequence.as_ref().join("\n") + "\n")?;
            fs::set_permissions(&file, Permissions::from_mode(0o644))?;
            command.arg(file);
        }
        Ok(command)
    }

    /// Returns the first difference that a row makes; none where there is no such user here.
    pub fn difference(&self, sequence: &[String], row: Row) -> Option<String> {
        let plain = self.run(sequence, row.user, None).ok()?;
        let other = self.run(sequence, row.user, Some(row)).ok()?;
        let end = self.end(sequence, row, (&plain, &other));
        let (plain, other) = (compared(&plain, row, end), compared(&other, row, end));
        let mut pairs = plain.iter().zip(&other);
        let at = pairs.position(|(was, is)| was != is);
        let at =
            at.or_else(|| (plain.len() != other.len()).then(|| plain.len().min(other.len())))?;
        let call = plain[..at].iter().rev().find(|l| l.starts_with('-'));
        let of = |lines: &[&String]| lines.get(at).map_or("nothing".into(), |l| (*l).clone());
        Some(format!(
            "after `{}`\nplain {}\nshim  {}",
            call.map_or("", |c| c.as_str()),
            of(&plain),
            of(&other)
        ))
    }

    /// Returns from which call on nothing can be compared: an mremap that is EFAULT, since it is of several
    /// mappings. What is populated at once is one where what is touched later is not, or several where the
    /// kernel says so of MAP_POPULATE, too; and what we lock again becomes one where MREMAP_DONTUNMAP has taken
    /// a lock of the program's from a part.
    fn end(&self, sequence: &[String], row: Row, said: (&[String], &[String])) -> Option<usize> {
        let populates = row.pin == Pin::Populate;
        let joined = populates || !locks_nothing(row) && takes_locks(sequence);
        let first = refused(said.0).filter(|_| joined);
        let divided =
            refused(said.1).filter(|at| populates && first.is_none_or(|first| at < &first));
        let by_kernel = |at: &usize| {
            let populated = self.run(&sequence::populated(sequence), row.user, None);
            populated.is_ok_and(|said| refused(&said) == Some(*at))
        };
        divided.filter(by_kernel).or(first)
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
pub(crate) fn locks_nothing(row: Row) -> bool {
    let swaps = || fs::read_to_string("/proc/swaps").is_ok_and(|s| s.lines().count() > 1);
    row.pin == Pin::Off || row.pin == Pin::Auto && number("TESTS_SWAP").is_none() && !swaps()
}

/// Returns which call is the first mremap that is EFAULT.
fn refused(said: &[String]) -> Option<usize> {
    let at = said.iter().position(|line| line == "= mremap: EFAULT")?;
    Some(calls(&said[..at]))
}

fn calls(said: &[String]) -> usize {
    said.iter().filter(|line| line.starts_with('-')).count()
}

/// Returns the lines that have to be the same in a row, up to call number `end`. Private memory that is a file's
/// is listed as such, and what is populated is resident, and stays accounted for when it can't be written any
/// more.
pub(crate) fn compared(said: &[String], row: Row, end: Option<usize>) -> Vec<&String> {
    let shared = row.share == Share::Always;
    let kept = |line: &&String| match line.chars().next() {
        Some('M' | 'R') => !shared && row.pin != Pin::Populate,
        // What we lock may be one mapping with what lies beside it: it is accounted for as that is, and a
        // child has what was only read of it.
        Some('K' | 'A' | 'C') => !shared && locks_nothing(row),
        _ => true,
    };
    let mut call = 0;
    let before = |line: &&String| {
        call += usize::from(line.starts_with('-'));
        end.is_none_or(|end| call < end)
    };
    said.iter().take_while(before).filter(kept).collect()
}

/// Returns whether a sequence can be the same in a row. Where RLIMIT_MEMLOCK binds, MCL_CURRENT counts
/// the shim's memory, too. With REGALL_PIN=populate, what is resident at once does not fault where a
/// userfaultfd watches, or what the program has only read is given back there; and pages of a file's private
/// mapping are copied: what becomes of the file later is not seen.
pub fn fits(sequence: &[String], row: Row) -> bool {
    let current = ["mlockall 1", "mlockall 3", "mlockall 5", "mlockall 7"];
    let has = |calls: &[&str]| {
        calls
            .iter()
            .any(|call| sequence.iter().any(|line| line.contains(call)))
    };
    let populates = row.pin == Pin::Populate && has(&["register", "punch", "truncate"]);
    let locks_all = limit(row.user) == Limit::Binds && has(&current);
    !(populates || locks_all)
}

/// Returns whether a sequence that nobody has looked at may differ in a row. MREMAP_DONTUNMAP takes locks from
/// all of the kernel's mapping, which may be another one where memory is populated at once, or in a child of who
/// has locked it. And a file's mapping is locked up to the file's end: in a child it stays two mappings to mremap,
/// whatever is locked there.
fn may_differ(sequence: &[String], row: Row) -> bool {
    let forks = sequence.iter().any(|line| line == "fork");
    // (RLIMIT_DATA may refuse the second of two mappings, and not one.)
    let limits = sequence.iter().any(|line| line.starts_with("limit 1"));
    let leaves = limits && sequence.iter().any(|line| leaves_memory(line));
    let populates = row.pin == Pin::Populate && (leaves || takes_locks(sequence));
    let divided = || takes_locks(sequence) || sequence.iter().any(|line| is_beyond(line));
    // (And a fork then maps what it shares.)
    let maps = row.share != Share::Off && limits && forks;
    // (What a lock grows by is charged, beside what the shim has locked. And memory of which a limit lets the shim
    // lock only a part again stays several mappings in a child.)
    let has = |call| sequence.iter().any(|line| line.contains(call));
    let charged = has("limit 0") && (forks || has("grow"));
    populates || maps || !locks_nothing(row) && (charged || forks && divided())
}

/// Returns a number of a call's, if it is that call.
pub(crate) fn number_of(line: &str, call: &str, nth: usize) -> Option<u64> {
    let mut words = line.trim_start_matches("handler ").split(' ');
    let word = words.next().filter(|word| *word == call);
    let word = word.and_then(|_| words.nth(nth))?;
    u64::from_str_radix(word, 16).ok()
}

/// Returns whether a call has flags, which it takes as its fourth argument.
pub(crate) fn has_flag(line: &str, call: &str, flag: u64) -> bool {
    number_of(line, call, 3).is_some_and(|flags| flags & flag != 0)
}

/// Returns whether a call is an mremap with MREMAP_DONTUNMAP.
pub(crate) fn leaves_memory(line: &str) -> bool {
    has_flag(line, "mremap", 4)
}

/// Returns whether there may be locks of the program's that MREMAP_DONTUNMAP takes.
fn takes_locks(sequence: &[String]) -> bool {
    const LOCKED: u64 = 0x2000;
    let locks = |line: &String| line.contains("mlock") || has_flag(line, "mmap", LOCKED);
    sequence.iter().any(|line| leaves_memory(line)) && sequence.iter().any(locks)
}

/// Returns whether a call maps a file beyond its end.
fn is_beyond(line: &str) -> bool {
    let of = |nth| number_of(line, "mmap", nth).unwrap_or(0);
    of(4) != 0 && of(1) + of(5) > sequence::FILE_PAGES * sequence::PAGE
}

pub(crate) fn limit(user: User) -> Limit {
    match user {
        User::Root | User::Unlimited => Limit::None,
        User::KiB64 | User::MiB8 => Limit::Binds,
    }
}

/// Returns all rows, and those of shared memory once more where it is shared: calls are patched.
pub fn rows() -> Vec<Row> {
    let mut all = rows::all();
    let shared = all.iter().filter(|row| row.share == Share::Always);
    let intercept = Intercept::Patch;
    let patched: Vec<_> = shared.map(|row| Row { intercept, ..*row }).collect();
    all.extend(patched.into_iter().filter(|row| !rows::all().contains(row)));
    all
}

/// Returns the rows of a seed: the defaults, and two of all.
fn rows_of(seed: u64) -> [Row; 3] {
    let all = rows();
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
            if !fits(&sequence, row) || may_differ(&sequence, row) {
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
pub(crate) fn most_found() -> usize {
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
