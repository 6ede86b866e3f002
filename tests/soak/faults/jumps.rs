//! Handlers that jump out of memory calls, threads that are cancelled in them, and threads that
//! sleep where they jumped to.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use regall_tests::child;
use regall_tests::coverage::Expected;
use regall_tests::figures::{self, Figures};
use regall_tests::mode::Mode;
use regall_tests::quiet::Watcher;
use regall_tests::soak::{self, Row};
use regall_tests::{build, quiet};

/// A piece of the shim's own memory, of which a jump may lose the rest, and some.
const SLACK: u64 = 1 << 20;

/// Descriptors that a jump may have left open, all in all.
const FEW: u64 = 3;

/// `program times`: it must say `said`, and is looked at so many times. What is left half-way is
/// begun anew, in the same memory: so many times would need much. The most of both that it had.
fn survives(program: &str, mode: Mode, times: u64, said: &str, looks: usize) -> String {
    let expected = Expected::of(mode);
    let seen = Arc::new(Mutex::new(Vec::<Figures>::new()));
    let theirs = Arc::clone(&seen);
    let watcher = Watcher::new(move |point| {
        let figures = figures::of(point.pid);
        theirs.lock().expect("a list").push(figures);
        quiet::look(point, &expected)
    });
    let mut command = Command::new(build::program(program));
    mode.apply(command.arg(times.to_string()));
    command.env("QUIET_SOCKET", watcher.socket());
    let done = child::run(&mut command, Duration::from_secs(120 + times / 20));
    let findings = watcher.finish();
    assert_eq!(
        (done.end().as_str(), done.stdout.as_str()),
        ("exit 0", said),
        "{mode:?}: {}",
        done.stderr
    );
    assert_eq!(findings.looks, looks);
    assert!(findings.problems.is_empty(), "{:#?}", findings.problems);
    let seen = seen.lock().expect("a list");
    let own = seen.iter().map(|f| f.own).max().expect("figures");
    let descriptors = seen.iter().map(|f| f.descriptors).max().expect("figures");
    let first = seen[0];
    assert!(own <= first.own + SLACK, "the shim's own bytes: {seen:?}");
    assert!(descriptors <= first.descriptors + FEW, "{seen:?}");
    let own = own >> 10;
    format!("{own} KiB of the shim's own, {descriptors} descriptors at most")
}

/// c-tests/faults/jumps.c: `times` jumps and as many cancellations.
fn jump(mode: Mode, times: u64) {
    let row = Row::begin("faults", format!("jumps and cancellations, {mode:?}"));
    let said = format!("jumps {times}\ncancellations {times}\n");
    let most = survives("faults/jumps", mode, times, &said, 10);
    row.passed(format!("{times} of each; {most}"));
}

/// c-tests/park.c: `times` jumps, after each of which the thread sleeps, and others go on.
fn park(mode: Mode, times: u64) {
    let row = Row::begin("faults", format!("jumps and sleep, {mode:?}"));
    let most = survives("park", mode, times, &format!("parked {times}\n"), 6);
    row.passed(format!("{times} times; {most}"));
}

#[test]
fn jumps_and_cancellations() {
    let long = std::env::var_os("SOAK_SECONDS").is_some();
    jump(Mode::Populate, soak::rounds(2_000, 100_000));
    jump(Mode::Strict, soak::rounds(500, 10_000));
    if long {
        for mode in [Mode::OnFault, Mode::Off, Mode::Heap] {
            jump(mode, soak::rounds(500, 10_000));
        }
    }
}

#[test]
fn jumps_and_sleep() {
    let long = std::env::var_os("SOAK_SECONDS").is_some();
    park(Mode::Populate, soak::rounds(1_000, 20_000));
    park(Mode::Strict, soak::rounds(1_000, 5_000));
    if long {
        for mode in [Mode::OnFault, Mode::Off, Mode::Heap] {
            park(mode, soak::rounds(1_000, 5_000));
        }
    }
}
