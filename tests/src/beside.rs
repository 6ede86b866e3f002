//! Sequences of memory calls in threads, each in arenas beside those of the others, while signals come whose
//! handler gives memory back: what each thread sees is as without the shim.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::child;
use crate::coverage::Expected;
use crate::differ::{
    compared, has_flag, leaves_memory, limit, most_found, number_of, rows, Runner,
};
use crate::quiet::Watcher;
use crate::rows::{Intercept, Pin, Row, Share, User, DEFAULT};
use crate::sequence::{self, PAGE, PAGES};

/// Threads of a run.
const THREADS: u64 = 4;
/// Ends what hangs.
const TIMEOUT: Duration = Duration::from_secs(200);

/// MAP_GROWSDOWN.
const GROWSDOWN: u64 = 0x100;

/// Calls that concern the whole process.
const OF_ALL: [&str; 9] = [
    "fork",
    "join",
    "mlockall",
    "munlockall",
    "limit",
    "closes",
    "input",
    "brk",
    "grow",
];

/// Returns whether a thread can carry a call out so that no other thread's memory is concerned, and the kernel
/// has the same answer whatever these do: nothing reaches beyond the arena, or grows where it ends.
fn is_of_one(line: &str) -> bool {
    let line = line.trim_start_matches("handler ");
    let name = line.split(' ').next().unwrap_or_default();
    let mut words = line.split(' ').skip(1);
    let offset = words.next().and_then(|word| word.split_once('+'));
    let offset = offset.map(|(_, at)| u64::from_str_radix(at, 16).unwrap_or(u64::MAX));
    let numbers = words.map(|word| u64::from_str_radix(word, 16).unwrap_or(0));
    // (Lengths are the first numbers behind an address; mremap has two.)
    let longest = numbers
        .take(if name == "mremap" { 2 } else { 1 })
        .max()
        .unwrap_or(0);
    let target = line
        .rsplit_once('+')
        .map(|(_, at)| u64::from_str_radix(at, 16));
    let target = target.and_then(Result::ok).unwrap_or(0);
    let fits = |at: u64| at.saturating_add(longest) <= PAGES * PAGE;
    // (What grows downwards may grow into another arena.)
    let grows = number_of(line, "mprotect", 2).is_some_and(|prot| prot > 7)
        || has_flag(line, "mmap", GROWSDOWN);
    let is_named = OF_ALL.contains(&name);
    !is_named && !grows && !leaves_memory(line) && offset.is_none_or(fits) && fits(target)
}

/// Returns what threads carry out: a sequence each.
fn draw(seed: u64, user: User) -> Vec<Vec<String>> {
    let seeds = (0..THREADS).map(|n| seed.wrapping_mul(THREADS).wrapping_add(n));
    let all = seeds.map(|seed| sequence::draw(seed, limit(user)));
    all.map(|mut lines| {
        lines.retain(|line| is_of_one(line));
        lines
    })
    .collect()
}

/// Returns whether rows of this kind can be the same: what is populated at once, or is a file's behind the
/// program's back, is one mapping to mremap where other memory is several; and a limit counts what all threads
/// have locked.
fn fits(row: &Row) -> bool {
    let is_one = row.pin == Pin::Populate || row.share == Share::Always;
    !is_one && matches!(row.user, User::Root | User::Unlimited)
}

/// Returns what threads have said, and what was found by a look at the process in the end.
fn run(
    runner: &Runner,
    all: &[Vec<String>],
    row: Option<Row>,
    user: User,
) -> Option<(Vec<String>, Vec<String>)> {
    let mut command: Command = runner.command(all, user, row).ok()?;
    let covered = row.filter(|row| row.intercept != Intercept::Symbols);
    let watcher = covered.map(|row| Watcher::of_coverage(Expected::of(row.mode())));
    if let Some(watcher) = &watcher {
        command.env("QUIET_SOCKET", watcher.socket());
    }
    let done = child::run(&mut command, TIMEOUT);
    let mut said: Vec<String> = done.stdout.lines().map(str::to_owned).collect();
    said.push(format!("= the end: {}{}", done.end(), done.others_stderr()));
    let mut problems = watcher.map_or_else(Vec::new, |watcher| watcher.finish().problems);
    // (The program drops pages of what it has locked: MADV_DONTNEED_LOCKED.)
    problems.retain(|problem| !problem.contains(": locked, but only "));
    Some((said, problems))
}

/// Returns the first line that differs, with its thread and call.
fn first_difference(was: &[&String], is: &[&String]) -> Option<String> {
    let mut pairs = was.iter().zip(is);
    let at = pairs.position(|(was, is)| was != is);
    let at = at.or_else(|| (was.len() != is.len()).then(|| was.len().min(is.len())))?;
    let before = |what: &str| was[..at].iter().rev().find(|line| line.starts_with(what));
    let (thread, call) = (before("- thread"), before("- "));
    let of = |lines: &[&String]| lines.get(at).map_or("nothing".into(), |l| (*l).clone());
    Some(format!(
        "{thread:?} after {call:?}\nplain {}\nshim  {}",
        of(was),
        of(is)
    ))
}

/// Returns what is wrong whatever the kernel has chosen: how the program ended, a handler that was refused
/// something, what a look at the process has found.
fn always_wrong(first: &[String], said: &[String], problems: &[String]) -> Option<String> {
    let handlers = |line: &&String| line.starts_with("= handlers: ");
    let is_refused = |line: &String| *line != "= handlers: 0 were refused something";
    let refused = said.iter().filter(handlers).find(|line| is_refused(line));
    let ended = said.last().filter(|end| first.last() != Some(*end));
    let found = problems.first().map(|_| problems.join("\n"));
    found.or_else(|| ended.or(refused).cloned())
}

/// Returns what a row makes different. What may have another answer by itself counts if it is so twice, and the
/// plain run is the same three times.
fn difference(runner: &Runner, all: &[Vec<String>], row: Row) -> Option<String> {
    let plain = || run(runner, all, None, row.user).map(|(said, _)| said);
    let first = plain()?;
    let last = format!("- thread {}", THREADS - 1);
    assert!(first.contains(&last), "without the shim: {first:?}");
    for round in 0..2 {
        let (said, problems) = run(runner, all, Some(row), row.user)?;
        if let Some(wrong) = always_wrong(&first, &said, &problems) {
            return Some(wrong);
        }
        // (What MADV_PAGEOUT finds beside other threads is a matter of luck.)
        let of = |said| {
            let mut lines = compared(said, row, None);
            lines.retain(|line| !line.starts_with('R'));
            lines
        };
        let (was, is) = (of(&first), of(&said));
        let differs = first_difference(&was, &is)?;
        println!("{row:?}: {differs}");
        if round == 1 {
            return Some(differs);
        }
        if plain()? != first || plain()? != first {
            return None;
        }
    }
    None
}

/// Runs so many times threads with sequences that are drawn from a seed on, or until some time, and fails if
/// one differs. Returns how many were run.
pub fn must_find_nothing(first: u64, most: u64, until: Option<Instant>) -> u64 {
    println!("threads from TESTS_SEED={first} on");
    let runner = Runner::new();
    let others: Vec<_> = rows().into_iter().filter(fits).collect();
    let mut found = Vec::new();
    let mut run = 0;
    for seed in first..first + most {
        if until.is_some_and(|end| Instant::now() > end) || found.len() >= most_found() {
            break;
        }
        run += 1;
        for row in [DEFAULT, others[(seed % others.len() as u64) as usize]] {
            let all = draw(seed, row.user);
            if let Some(difference) = difference(&runner, &all, row) {
                let all: Vec<_> = all.iter().map(|lines| lines.join("\n")).collect();
                found.push(format!(
                    "seed {seed}: {row:?}\n{difference}\n{}",
                    all.join("\n\n")
                ));
                break;
            }
        }
    }
    println!("{run} times {THREADS} threads");
    assert!(
        found.is_empty(),
        "TESTS_SEED={first}\n{}",
        found.join("\n\n")
    );
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reaches_others_is_left_out() {
        for line in [
            "mmap a+0 3000 3 100022 0 0",
            "mmap a+2e000 2000 3 100022 0 0",
            "handler munmap b+1000 2000",
            "mremap a+0 1000 2000 3 b+3000",
            "look",
        ] {
            assert!(is_of_one(line), "{line}");
        }
        for line in [
            "mmap a+2f000 2000 3 100022 0 0",
            "mmap a+1000 2000 3 100122 0 0",
            "mremap a+2000 1000 2f000 1 0",
            "mremap a+0 2000 2000 3 b+2f000",
            "mremap a+0 1000 1000 5 b+3000",
            "handler mlockall 3",
            "fork",
        ] {
            assert!(!is_of_one(line), "{line}");
        }
        assert!(draw(1, User::Root).iter().all(|lines| lines.len() > 3));
    }
}
