//! A job on two machines with adapters, guests of QEMU's, under Slurm: in `make soak` alone. All
//! that `make run-cluster` does is not tried here, but a program of each kind in one boot.

use std::process::Command;

use regall_tests::soak::{is_short, tried, Row};
use regall_tests::{build, missing};

/// NetPIPE under both MPIs, looked at on each node, and what one node reads of the other's
/// memory by published keys.
#[test]
fn a_job_on_two_nodes() {
    if is_short() || missing("qemu-system-x86_64") {
        return;
    }
    build::all_programs();
    let row = Row::begin("cluster", "a job on two nodes");
    // Of the tables, how long each took.
    let script = r#"log=$(mktemp); trap 'rm -f "$log"' EXIT
        scripts/run-cluster srun truth >"$log" || { status=$?; cat "$log"; exit $status; }
        grep -o '[^ ]* took .*' "$log""#;
    let mut command = Command::new("bash");
    command.args(["-c", script]);
    tried(row, command.env("TESTS_TARGET", build::target()));
}
