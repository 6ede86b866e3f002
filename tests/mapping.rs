//! A peer's memory, mapped: what is read and written through it, and what becomes of it.

use std::process::Command;
use std::time::Duration;

use regall_tests::build;
use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::skip;

const TIMEOUT: Duration = Duration::from_secs(60);

/// `mapping SCENARIO`, with REGALL_COPY set so, and as an unprivileged user or not.
fn scenario(mode: Mode, name: &str, copy: &str, nobody: bool) -> Outcome {
    let mut command = Command::new(build::program("bridge/mapping"));
    mode.apply(&mut command);
    command.arg(name).env("REGALL_COPY", copy);
    if nobody {
        command.arg("nobody");
    }
    child::run(&mut command, TIMEOUT)
}

fn good(outcome: &Outcome, what: &str) {
    outcome.must_succeed_at(what);
    assert_eq!(outcome.stderr, "", "{what}");
}

/// Under each order of mechanisms.
fn orders(name: &str, orders: &[&str], nobody: bool) {
    for order in orders {
        let outcome = scenario(Mode::Populate, name, order, nobody);
        good(&outcome, &format!("{name}, REGALL_COPY={order}"));
    }
}

const ALL: &[&str] = &["map", "map,cma", "auto", "cma"];
const MAP: &[&str] = &["map", "map,cma", "auto"];

fn is_root() -> bool {
    // SAFETY: a system call without arguments.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn every_kind_of_memory() {
    orders("kinds", ALL, false);
}

#[test]
fn every_kind_of_memory_without_privileges() {
    match is_root() {
        true => orders("kinds", ALL, true),
        false => skip("not root: the other test is this one"),
    }
}

#[test]
fn in_place() {
    orders("mapped", &["auto"], false);
    if is_root() {
        orders("mapped", &["auto"], true);
    }
}

#[test]
fn other_files_at_the_same_addresses() {
    orders("replaced", ALL, false);
    if is_root() {
        orders("replaced", MAP, true);
    }
}

#[test]
fn files_that_come_and_go_meanwhile() {
    orders("flickers", MAP, false);
}

#[test]
fn files_that_are_cut_short_meanwhile() {
    orders("cut", ALL, false);
    if is_root() {
        orders("cut", MAP, true);
    }
}

#[test]
fn more_files_than_windows() {
    orders("many", &["map", "auto"], false);
}

#[test]
fn more_than_one_window() {
    orders("large", &["map", "auto"], false);
}

#[test]
fn bad_addresses_of_our_own() {
    orders("bad", MAP, false);
}

#[test]
fn a_peer_that_is_killed() {
    orders("ends", &["map"], false);
}

#[test]
fn children() {
    orders("forked", ALL, false);
}

#[test]
fn memory_to_be_mapped() {
    orders("allocated", &["auto"], false);
    good(
        &scenario(Mode::Strict, "kinds", "map", false),
        "intercepted strictly",
    );
    good(
        &scenario(Mode::OnFault, "kinds", "map", false),
        "pinned on fault",
    );
}

#[test]
fn where_the_system_call_is_forbidden() {
    orders("filtered", MAP, false);
    if is_root() {
        orders("filtered", &["auto"], true);
    }
}

#[test]
fn descriptors_that_are_not_ours_any_more() {
    orders("taken", MAP, false);
}
