//! The C interface with arbitrary arguments, under the shim and where it is inert.

use std::process::Command;
use std::time::Duration;

use regall_tests::build;
use regall_tests::child;
use regall_tests::mode::Mode;
use regall_tests::soak::{self, Row};

fn arguments(mode: Mode) {
    let row = Row::begin("fuzz", format!("C interface, {mode:?}"));
    let seconds = match std::env::var_os("SOAK_SECONDS") {
        Some(_) => soak::duration().as_secs() * 10,
        None => soak::duration().as_secs(),
    };
    let mut command = Command::new(build::program("bridge/arguments"));
    mode.apply(command.arg(seconds.to_string()));
    let outcome = child::run(&mut command, Duration::from_secs(seconds + 300));
    outcome.must_succeed();
    assert_eq!(outcome.stderr, "");
    row.passed(outcome.stdout.trim());
}

#[test]
fn any_arguments() {
    arguments(Mode::Populate);
}

#[test]
fn any_arguments_while_it_is_inert() {
    arguments(Mode::Inert);
}
