//! Regions by cookie: the programs of c-tests/bridge/region*.c, each chapter of them in
//! processes under the shim, which must have nothing to complain of.

use std::process::Command;
use std::time::Duration;

use regall_tests::coverage::Expected;
use regall_tests::mode::Mode;
use regall_tests::quiet::{self, Watcher};
use regall_tests::{build, child};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs a chapter.
fn chapter(mode: Mode, program: &str, name: &str) {
    let mut command = Command::new(build::program(&format!("bridge/{program}")));
    mode.apply(&mut command);
    let out = child::run(command.arg(name), TIMEOUT);
    assert_eq!(out.end(), "exit 0", "{name}: {}{}", out.stdout, out.stderr);
    assert_eq!(out.stdout + &out.stderr, "", "{name}");
}

macro_rules! chapters {
    ($($program:ident: $($test:ident $name:literal),+;)+) => {
        $($(#[test] fn $test() {
            chapter(Mode::Populate, stringify!($program), $name);
        })+)+
    };
}

chapters! {
    region:
        segments_offsets_and_rights "semantics",
        bad_ranges_are_refused "refusals",
        up_to_131072_segments "segments",
        thirty_thousand_at_once "many",
        a_third_process_needs_the_cookie_alone "third";
    region_use:
        a_single_use_is_one_of_eight_racers "single",
        who_may_not_use_it_does_not_use_it_up "claims",
        copies_between_any_two "copies",
        no_use_is_lost "notify";
    region_stale:
        memory_that_goes_takes_its_regions_with_it "stale",
        memory_that_stays_keeps_its_regions "usable",
        never_other_bytes "churn",
        a_copy_in_flight_finishes_or_fails "flights",
        readers_are_killed "kills",
        children_of_readers_read "forks",
        nothing_is_left "leftovers";
    region_hostile:
        a_million_guesses "guess";
}

/// What an attack has left of the ledger is looked at from outside, too.
#[test]
fn a_hostile_table_harms_nobody() {
    let expected = Expected::of(Mode::Populate);
    let watcher = Watcher::new(move |point| quiet::look(point, &expected));
    let mut command = Command::new(build::program("bridge/region_hostile"));
    Mode::Populate.apply(&mut command);
    command.arg("table").env("QUIET_SOCKET", watcher.socket());
    let out = child::run(&mut command, TIMEOUT);
    let findings = watcher.finish();
    assert_eq!(out.end(), "exit 0", "{}{}", out.stdout, out.stderr);
    assert_eq!(out.stdout + &out.stderr, "");
    assert_eq!(findings.problems, Vec::<String>::new());
    assert_eq!(findings.looks, 3, "two readers and the owner");
}

#[test]
fn other_modes() {
    for mode in [Mode::OnFault, Mode::Strict, Mode::Symbols] {
        chapter(mode, "region", "semantics");
        chapter(mode, "region_use", "claims");
    }
}
