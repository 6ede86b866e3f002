//! Programs with ideas of their own about memory: as without the shim.
//!
//! Each is run without it and with it; exit status and output must be the same, while
//! somebody looks on whether every byte is accounted for. What can't be served is in
//! docs/limits.md, and is tried here, too.

#[path = "software/allocators.rs"]
mod allocators;
#[path = "software/fits.rs"]
mod fits;
#[path = "software/languages.rs"]
mod languages;
#[path = "software/postgres.rs"]
mod postgres;
#[path = "software/python.rs"]
mod python;
#[path = "software/sanitizer.rs"]
mod sanitizer;
#[path = "software/tracers.rs"]
mod tracers;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::onlooker::{Onlooker, Way};
use regall_tests::soak::Row;
use regall_tests::{apart, build, missing};

const TIMEOUT: Duration = Duration::from_secs(1200);

/// What is run, and what is to be seen of it.
struct Case<'a> {
    /// In the table.
    name: &'a str,
    /// Makes the command, without the shim.
    command: &'a dyn Fn() -> Command,
    /// What of an outcome must be the same.
    result: &'a dyn Fn(&Outcome) -> String,
    /// What it executes, and must have been looked at.
    program: &'a str,
    way: Way,
    /// Put into the environment after the mode's variables.
    preload: Option<String>,
    /// There are mappings that can't be seen.
    gaps: bool,
    /// The shim's lines that are right here.
    says: &'a [&'a str],
}

impl<'a> Case<'a> {
    fn new(name: &'a str, program: &'a str, command: &'a dyn Fn() -> Command) -> Self {
        Self {
            name,
            command,
            result: &whole,
            program,
            way: Way::Stopping,
            preload: None,
            gaps: false,
            says: &[],
        }
    }

    /// Runs it, and holds it against `plain` and to what must be seen.
    fn check(&self, plain: &Outcome, mode: Mode) {
        let row = Row::begin("software", format!("{} {mode:?}", self.name));
        let apart = apart::private_shm(1024).is_ok();
        let mut command = (self.command)();
        mode.apply(&mut command);
        if let Some(preload) = &self.preload {
            command.env("LD_PRELOAD", preload);
        }
        let onlooker = Onlooker::begin(self.way);
        let outcome = child::run(&mut command, TIMEOUT);
        let seen = onlooker.finish();

        let mut wrong = seen.problems.clone();
        wrong.retain(|problem| !self.gaps || !problem.contains(" not covered"));
        let results = [plain, &outcome].map(|o| (o.end(), (self.result)(o)));
        if results[0] != results[1] {
            let [was, is] = results;
            wrong.push(format!("{} instead of {}", is.0, was.0));
            wrong.push(format!("without the shim:\n{}\nwith it:\n{}", was.1, is.1));
            let said = outcome.others_stderr();
            let from = said.len().saturating_sub(3000);
            wrong.push(String::from_utf8_lossy(&said.as_bytes()[from..]).into_owned());
        }
        let lines = outcome.complaints();
        let expected = |line: &&String| self.says.iter().any(|says| line.contains(says));
        wrong.extend(lines.iter().filter(|l| !expected(l)).cloned());
        for says in self.says {
            if !lines.iter().any(|l| l.contains(says)) {
                wrong.push(format!("the shim did not say {says:?}"));
            }
        }
        if !self.program.is_empty() && !seen.programs.contains_key(self.program) {
            wrong.push(format!("nobody looked at {}: {seen:?}", self.program));
        }
        if apart {
            let left = apart::left_behind();
            if !left.is_empty() {
                wrong.push(format!("left behind: {left:?}"));
            }
        }
        assert!(
            wrong.is_empty(),
            "{} {mode:?}:\n{}",
            self.name,
            wrong.join("\n")
        );
        row.passed(seen.words());
    }

    /// Without the shim: it must succeed, or nothing can be said.
    fn plain(&self) -> Outcome {
        let mut command = (self.command)();
        Mode::Plain.apply(&mut command);
        let plain = child::run(&mut command, TIMEOUT);
        plain.must_succeed_at(format_args!("{} without the shim", self.name));
        plain
    }

    /// In the modes that there is time for.
    fn same(&self) {
        let plain = self.plain();
        for mode in modes() {
            self.check(&plain, *mode);
        }
    }
}

/// All that it said.
fn whole(outcome: &Outcome) -> String {
    format!("{}{}", outcome.stdout, outcome.others_stderr())
}

/// Those that there is time for.
fn modes() -> &'static [Mode] {
    if thorough() {
        &[Mode::Populate, Mode::Heap, Mode::OnFault, Mode::Strict]
    } else {
        &[Mode::Populate]
    }
}

/// Whether this is make soak.
fn thorough() -> bool {
    std::env::var_os("SOAK_SECONDS").is_some()
}

/// A program that is given to these tests as source.
fn source(name: &str) -> PathBuf {
    build::root().join("tests/soak/software").join(name)
}

/// work.c, compiled.
fn work(folder: &Path, flags: &[&str]) -> PathBuf {
    let program = folder.join("work");
    let mut command = Command::new("gcc");
    command
        .args(["-O1", "-g", "-Wall", "-Werror", "-pthread", "-o"])
        .arg(&program);
    command.args(flags).arg(source("work.c"));
    compiled(command);
    program
}

fn compiled(mut command: Command) {
    let done = child::run(&mut command, Duration::from_secs(300));
    done.must_succeed_at(format_args!("{command:?}"));
}

/// Whether one of these is not installed; then the test is skipped, and the table says so.
fn lacks(name: &str, commands: &[&str]) -> bool {
    let lacks = commands.iter().any(|c| missing(c));
    if lacks {
        Row::begin("software", name).skipped("not installed");
    }
    lacks
}
