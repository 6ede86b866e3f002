//! What the library needs of a program that it is loaded into, and which programs it leaves alone.

use std::process::Command;
use std::time::Duration;

use regall_tests::mode::Mode;
use regall_tests::{build, child, missing};

const TIMEOUT: Duration = Duration::from_secs(30);

/// The library needs nothing that a program may lack.
#[test]
fn needs_only_libc() {
    let done = child::run(
        Command::new("readelf").arg("-dW").arg(build::shim()),
        TIMEOUT,
    );
    let needed: Vec<_> = done
        .stdout
        .lines()
        .filter(|l| l.contains("(NEEDED)"))
        .collect();
    for line in &needed {
        assert!(
            line.contains("[libc.so.6]") || line.contains("[ld-linux"),
            "{line}"
        );
    }
    assert!(done.stdout.contains("INITFIRST"), "{}", done.stdout);
    assert!(done.stdout.contains("NODELETE"), "{}", done.stdout);
}

/// musl's loader calls constructors without arguments.
#[test]
fn a_program_of_another_c_library_is_left_alone() {
    if missing("musl-gcc") {
        return;
    }
    let run = |mode: Mode| {
        let mut command = Command::new(build::program("musl/hello"));
        mode.apply(&mut command);
        child::run(&mut command, TIMEOUT)
    };
    let plain = run(Mode::Plain);
    plain.must_succeed();
    for mode in [Mode::Inert, Mode::Populate, Mode::Strict] {
        let outcome = run(mode);
        assert_eq!(outcome.differences(&plain), [""; 0], "{mode:?}");
        // One for it and one for what it executes.
        let lines = if mode == Mode::Inert { 0 } else { 2 };
        let said = outcome.regall_lines();
        assert_eq!(said.len(), lines, "{said:?}");
        assert!(
            said.iter().all(|line| line.contains("not glibc")),
            "{said:?}"
        );
    }
}
