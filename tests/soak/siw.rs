//! Over software iWARP, whose library sends the kernel data of its own with each registration:
//! our programs, truth by DMA, other people's programs and NetPIPE. In `make soak` alone: a guest
//! and a module for its kernel are needed, and minutes.

use std::process::Command;

use regall_tests::soak::{is_short, rounds, tried, Row};
use regall_tests::{build, missing};

#[test]
fn programs_over_iwarp() {
    if is_short() || missing("qemu-system-x86_64") {
        return;
    }
    build::siw_programs();
    let row = Row::begin("siw", "programs over iWARP");
    // Of the table, how many rows there are of each kind.
    let script = r#"log=$(mktemp); trap 'rm -f "$log"' EXIT
        scripts/run-siw "$0" >"$log" || { status=$?; cat "$log"; exit $status; }
        cut -f 2 "$log" | sort | uniq -c | tr -s ' \n' ' '"#;
    let mut command = Command::new("bash");
    command.args(["-c", script, &rounds(20, 200).to_string()]);
    tried(row, command.env("TESTS_TARGET", build::target()));
}
