//! Atomic operations on words of other processes: what they do, whether histories of them are
//! linearizable, and what becomes of them where memory or its owner goes.

use std::process::Command;
use std::time::Duration;

use regall_tests::build;
use regall_tests::child;
use regall_tests::mode::Mode;

/// The program ends itself after 100 s.
const TIMEOUT: Duration = Duration::from_secs(120);

fn quiet(args: &[&str], copy: &str, mode: Mode) {
    let mut command = Command::new(build::program("bridge/atomics"));
    mode.apply(command.args(args));
    command.env("REGALL_COPY", copy);
    let done = child::run(&mut command, TIMEOUT);
    done.must_succeed_at(format_args!("{args:?} {copy} {mode:?}"));
    assert_eq!(done.stdout + &done.stderr, "", "{args:?} {copy} {mode:?}");
}

#[test]
fn what_is_mapped_here() {
    quiet(&["semantics"], "map", Mode::Populate);
    quiet(&["semantics"], "auto", Mode::OnFault);
    quiet(&["semantics"], "map", Mode::Strict);
}

/// A helper does none of it.
#[test]
fn what_is_not_mapped_has_none() {
    quiet(&["semantics"], "map,helper", Mode::Populate);
}

#[test]
fn histories_by_instructions_here_are_linearizable() {
    let args = ["histories", "mapped", "400"];
    quiet(&args, "map", Mode::Populate);
}

/// A get and a put of what comes of it: the check of the histories finds that out.
#[test]
fn what_is_not_atomic_is_found_out() {
    let args = ["histories", "broken", "60"];
    quiet(&args, "cma,map", Mode::Populate);
}

/// What is remembered of a page is not used for another one, and keeps nothing.
#[test]
fn mapped_memory_that_is_replaced() {
    quiet(&["moves"], "map", Mode::Populate);
    quiet(&["moves", "checked"], "map", Mode::Populate);
    quiet(&["moves"], "auto", Mode::OnFault);
}
