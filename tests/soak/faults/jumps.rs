//! Handlers that jump out of memory calls, and threads that are cancelled in them.

use std::process::Command;
use std::time::Duration;

use regall_tests::child;
use regall_tests::coverage::Expected;
use regall_tests::mode::Mode;
use regall_tests::quiet::Watcher;
use regall_tests::soak::{self, Row};
use regall_tests::{build, quiet};

/// c-tests/faults/jumps.c: `times` jumps and as many cancellations.
fn jump(mode: Mode, times: u64) {
    let row = Row::begin("faults", format!("jumps and cancellations, {mode:?}"));
    let expected = Expected::of(mode);
    let watcher = Watcher::new(move |point| quiet::look(point, &expected));
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
    row.passed(format!("{times} of each"));
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
