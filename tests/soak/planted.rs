//! Wrong versions of the shim's lines: each is noticed by the test that the table names. In
//! `make planted` and `make soak` alone: it takes minutes.

use std::process::Command;

use regall_tests::build;
use regall_tests::soak::{is_short, tried, Row};

#[test]
fn each_is_noticed() {
    if is_short() {
        return;
    }
    let row = Row::begin("planted", "wrong versions");
    tried(row, &mut Command::new(build::script("planted")));
}
