//! Atomic operations on words of other processes: what they do, whether histories of them are
//! linearizable, and what becomes of them where memory or its owner goes.

use std::process::Command;
use std::time::Duration;

use regall_tests::build;
use regall_tests::child;
use regall_tests::missing;
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
    quiet(&["semantics", "mapped"], "map", Mode::Populate);
    quiet(&["semantics", "mapped"], "auto", Mode::OnFault);
    quiet(&["semantics", "mapped"], "map", Mode::Strict);
}

#[test]
fn what_the_owner_does() {
    quiet(&["semantics", "helped"], "helper", Mode::Populate);
    quiet(&["semantics", "helped"], "map,helper", Mode::OnFault);
    quiet(&["semantics", "helped"], "helper", Mode::Strict);
}

/// On a node with more to do than processors the helper's thread gets its turn late.
#[test]
fn a_helper_that_starts_slowly() {
    if missing("strace") {
        return;
    }
    let mut strace = Mode::Populate.under_strace("bind", "delay_enter=300000");
    strace.arg("--env=REGALL_COPY=helper");
    strace.arg(build::program("bridge/atomics"));
    strace.args(["semantics", "helped"]);
    let done = child::run(&mut strace, TIMEOUT);
    done.must_succeed();
    assert_eq!(done.stdout, "");
}

#[test]
fn histories_by_instructions_here_are_linearizable() {
    let args = ["histories", "shared", "mapped", "400"];
    quiet(&args, "map", Mode::Populate);
}

#[test]
fn histories_by_the_owner_are_linearizable() {
    let args = ["histories", "private", "helped", "60"];
    quiet(&args, "helper", Mode::Populate);
}

#[test]
fn both_ways_on_one_word_are_linearizable() {
    let args = ["histories", "shared", "both", "100"];
    quiet(&args, "map,helper", Mode::Populate);
}

/// A get and a put of what comes of it: the check of the histories finds that out.
#[test]
fn what_is_not_atomic_is_found_out() {
    let args = ["histories", "shared", "broken", "60"];
    quiet(&args, "cma,map", Mode::Populate);
}

/// What is remembered of a page is not used for another one, and keeps nothing.
#[test]
fn mapped_memory_that_is_replaced() {
    quiet(&["moves"], "map", Mode::Populate);
    quiet(&["moves", "checked"], "map", Mode::Populate);
    quiet(&["moves"], "auto", Mode::OnFault);
}

#[test]
fn memory_that_goes_and_owners_that_stop_or_end() {
    quiet(&["troubles"], "helper", Mode::Populate);
}
