//! Handlers that jump out of memory calls, and threads that are cancelled in them.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use regall_tests::child;
use regall_tests::coverage::Expected;
use regall_tests::mode::Mode;
use regall_tests::quiet::Watcher;
use regall_tests::soak::{self, Row};
use regall_tests::{build, figures, quiet};

/// A piece of the shim's own memory, of which a jump may lose the rest, and some.
const SLACK: u64 = 1 << 20;

/// Descriptors that a jump may have left open, all in all.
const FEW: u64 = 3;

/// c-tests/faults/jumps.c: `times` jumps and as many cancellations.
fn jump(mode: Mode, times: u64) {
    let row = Row::begin("faults", format!("jumps and cancellations, {mode:?}"));
    let expected = Expected::of(mode);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&seen);
    let watcher = Watcher::new(move |point| {
        let figures = figures::of(point.pid);
        theirs.lock().expect("a list").push(figures);
        quiet::look(point, &expected)
    });
    let mut command = Command::new(build::program("faults/jumps"));
    mode.apply(command.arg(times.to_string()));
    command.env("QUIET_SOCKET", watcher.socket());
    let done = child::run(&mut command, Duration::from_secs(120 + times / 50));
    let findings = watcher.finish();
    let said = format!("jumps {times}\ncancellations {times}\n");
    assert_eq!(
        (done.end().as_str(), &done.stdout),
        ("exit 0", &said),
        "{mode:?}: {}",
        done.stderr
    );
    assert_eq!(findings.looks, 10);
    assert!(findings.problems.is_empty(), "{:#?}", findings.problems);
    // What is left half-way is begun anew, in the same memory: so many times would need much.
    let seen = seen.lock().expect("a list");
    let own = seen.iter().map(|f| f.own).max().expect("figures");
    let descriptors = seen.iter().map(|f| f.descriptors).max().expect("figures");
    let first = seen[0];
    assert!(own <= first.own + SLACK, "the shim's own bytes: {seen:?}");
    assert!(descriptors <= first.descriptors + FEW, "{seen:?}");
    row.passed(format!(
        "{times} of each; {} KiB of the shim's own, {descriptors} descriptors at most",
        own >> 10
    ));
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
