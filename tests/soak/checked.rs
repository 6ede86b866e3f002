//! Nothing is reported of what is right: mpi4py's own suite with UCX's registration cache, over an
//! adapter. In `make soak` alone: it takes most of an hour in the guest.

use std::process::Command;

use regall_tests::soak::{is_short, tried, Row};
use regall_tests::{build, missing};

fn suite(mpi: &str) {
    if is_short() || missing("qemu-system-x86_64") {
        return;
    }
    let row = Row::begin("checked", format!("mpi4py's suite, {mpi}"));
    // Of the table, how many rows there are of each kind, and the tests in all of them.
    let script = r#"log=$(mktemp); trap 'rm -f "$log"' EXIT
        scripts/run-checked "$0" >"$log" || { status=$?; cat "$log"; exit $status; }
        awk -F '\t' '{ n[$2]++; split($3, words, " "); tests += words[1] }
            END { for (kind in n) printf "%d %s, ", n[kind], kind; print tests " tests" }' "$log""#;
    let mut command = Command::new("bash");
    command.args(["-c", script, mpi]);
    tried(row, command.env("TESTS_TARGET", build::target()));
}

#[test]
fn openmpi() {
    suite("openmpi");
}

#[test]
fn mpich() {
    suite("mpich");
}
