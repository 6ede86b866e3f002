//! Tests that go on for as long as one likes: a few seconds each in `make test`, SOAK_SECONDS
//! each in `make soak`, which shows what came of them in one table.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::{build, number, skip};

/// How long each thing is tried: SOAK_SECONDS, or 3 seconds.
pub fn duration() -> Duration {
    Duration::from_secs(number("SOAK_SECONDS").unwrap_or(3))
}

/// How often each thing is tried: `short` times in `make test`, and `long` times in `make soak`,
/// if SOAK_SECONDS is 60; in proportion to it otherwise, though never less than `short`.
pub fn rounds(short: u64, long: u64) -> u64 {
    if std::env::var_os("SOAK_SECONDS").is_none() {
        return short;
    }
    (long * duration().as_secs() / 60).max(short)
}

/// Whether this is no soak; then the test is skipped: it takes minutes.
pub fn is_short() -> bool {
    let short = std::env::var_os("SOAK_SECONDS").is_none();
    if short {
        skip("it takes minutes: in make soak alone");
    }
    short
}

/// Runs what must succeed, or end with 77: it can't be tried here. What it said, if it ran.
pub fn tried(row: Row, command: &mut Command) -> Option<String> {
    let out = command
        .current_dir(build::root())
        .env("CARGO_TARGET_DIR", build::target())
        .env_remove("MAKEFLAGS")
        .output()
        .expect("a command");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let wrong = String::from_utf8_lossy(&out.stderr);
    if out.status.code() == Some(77) {
        let why = if said.is_empty() { &*wrong } else { &said };
        row.skipped(why);
        skip(why.trim());
        return None;
    }
    assert!(out.status.success(), "{command:?}\n{said}{wrong}");
    row.passed(said.trim());
    Some(said)
}

/// A line of the table. One that is dropped before anything good was said of it failed.
#[derive(Debug)]
pub struct Row {
    part: &'static str,
    what: String,
    since: Instant,
    said: bool,
}

impl Row {
    /// What is tried begins: `part` is the section of the table.
    pub fn begin(part: &'static str, what: impl Into<String>) -> Self {
        Self {
            part,
            what: what.into(),
            since: Instant::now(),
            said: false,
        }
    }

    /// It went well; `note` has the figures.
    pub fn passed(mut self, note: impl AsRef<str>) {
        self.write("passed", note.as_ref());
    }

    /// It can't be tried here, and why.
    pub fn skipped(mut self, note: impl AsRef<str>) {
        self.write("skipped", note.as_ref());
    }

    fn write(&mut self, outcome: &str, note: &str) {
        self.said = true;
        let seconds = self.since.elapsed().as_secs_f64();
        let line = format!(
            "{}\t{}\t{outcome}\t{seconds:.1}\t{}\n",
            self.part,
            self.what,
            note.replace(['\t', '\n'], " ")
        );
        print!("soak: {line}");
        let Some(table) = std::env::var_os("SOAK_TABLE") else {
            return;
        };
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(table)
            .expect("the table");
        // One write: other tests append, too.
        file.write_all(line.as_bytes()).expect("a line");
    }
}

impl Drop for Row {
    fn drop(&mut self) {
        if !self.said {
            self.write("FAILED", "see above");
        }
    }
}
