//! Sequences of memory calls: each call returns the same with the shim as without, and leaves the same
//! contents, protections, mappings, resident pages and locks.

use std::fs;
use std::process::Command;
use std::time::Duration;

use regall_tests::beside;
use regall_tests::differ::{self, Runner};
use regall_tests::mode::Mode;
use regall_tests::{build, child, number, rows, thorough};

/// Sequences that have found something, or are of a kind that has: separated by empty lines.
const KNOWN: &str = include_str!("differ/known.txt");

/// Each that found something once: in every row that there is.
#[test]
fn known() {
    let runner = Runner::new();
    let mut problems = Vec::new();
    for text in KNOWN.split("\n\n") {
        let lines = text
            .lines()
            .filter(|l| !l.starts_with('#') && !l.is_empty());
        let sequence: Vec<String> = lines.map(str::to_owned).collect();
        assert!(!sequence.is_empty(), "{text}");
        let fits = |row: &rows::Row| differ::fits(&sequence, *row);
        for row in differ::rows().into_iter().filter(fits) {
            if let Some(difference) = runner.difference(&sequence, row) {
                problems.push(format!("{row:?}\n{text}\n{difference}"));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

/// Sequences that are drawn, others with each commit. TESTS_SEED and TESTS_SEQUENCES say which and how many.
#[test]
fn of_the_commit() {
    let first = number("TESTS_SEED").unwrap_or_else(differ::commit);
    let usual = if thorough() { 1_000 } else { 150 };
    let most = number("TESTS_SEQUENCES").unwrap_or(usual);
    differ::must_find_nothing(first, most, None);
}

/// Threads carry out sequences beside each other, and get signals: others with each commit.
#[test]
fn in_threads() {
    let first = number("TESTS_SEED").unwrap_or_else(differ::commit);
    let most = number("TESTS_SEQUENCES").unwrap_or(if thorough() { 100 } else { 10 });
    beside::must_find_nothing(first, most, None);
}

/// What is compared has a lock in it: who lies about mlock is noticed.
#[test]
fn a_lock_that_is_not_there_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("sequence");
    fs::write(&file, "mmap a+0 3000 3 100022 0 0\nmlock a+0 1000\nlook\n").expect("a sequence");
    let run = |preload: Option<&str>| {
        let mut command = Command::new(build::program("differ"));
        Mode::Plain.apply(command.arg(&file));
        if let Some(name) = preload {
            command.env("LD_PRELOAD", build::program(name));
        }
        let done = child::run(&mut command, Duration::from_secs(60));
        done.must_succeed();
        done.stdout
    };
    let (plain, lied) = (run(None), run(Some("liar.so")));
    let lines = plain.lines().zip(lied.lines());
    let kinds: Vec<_> = lines
        .filter(|(was, is)| was != is)
        .map(|(was, _)| &was[..1])
        .collect();
    assert!(kinds.contains(&"K") && kinds.contains(&"L"), "{kinds:?}");
    assert_eq!(plain, run(None));
}
