//! What is done again and again for a day needs no more of the shim's memory, ranges,
//! descriptors or places for trampolines at its end than at its beginning.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use regall_tests::build;
use regall_tests::child;
use regall_tests::figures::{self, Figures};
use regall_tests::mode::Mode;
use regall_tests::quiet::Watcher;
use regall_tests::soak::{self, Row};

/// A piece of the shim's own memory.
const PIECE: u64 = 256 << 10;
/// Ranges that are one mapping to the kernel: the end of a file within a page, or what was
/// pinned at another time; and files of shared memory.
const FEW: u64 = 20;

const MODES: [Mode; 4] = [Mode::Populate, Mode::OnFault, Mode::Off, Mode::Heap];

/// What c-tests/scale/flat.c can do, and how often in `make test`: none of it takes long.
const THINGS: [(&str, u64); 15] = [
    ("protect", 1000),
    ("lock", 1000),
    ("advise", 1000),
    ("move", 1000),
    ("overlay", 500),
    ("beside", 1000),
    ("children", 100),
    ("generations", 200),
    ("threads", 200),
    ("libraries", 400),
    ("generated", 400),
    ("segments", 1000),
    ("heap", 1000),
    ("arenas", 1000),
    ("interface", 400),
];

/// What is not as it was, or never was as it has to be.
fn grown(warm: Figures, after: Figures) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |what: &str, is: u64, allowed: u64| {
        if is > allowed {
            wrong.push(format!("{what}: {is}, of {allowed} at the most"));
        }
    };
    check("the shim's own bytes", after.own, warm.own + PIECE);
    check("ranges", warm.ranges, warm.mappings + FEW);
    check("ranges", after.ranges, after.mappings + FEW);
    check("descriptors", after.descriptors, warm.descriptors + FEW);
    check("sites refused", after.refused, warm.refused);
    wrong
}

fn flat(what: &str, turns: u64, mode: Mode) {
    let row = Row::begin("scale", format!("flat: {what}, {mode:?}"));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&seen);
    let watcher = Watcher::new(move |point| {
        let figures = figures::of(point.pid);
        theirs.lock().expect("a list").push(figures);
        let mut verify = Command::new(build::regall());
        let done = child::run(
            verify.args(["verify", &point.pid.to_string()]),
            Duration::from_secs(60),
        );
        match done.end().as_str() {
            "exit 0" => Vec::new(),
            end => vec![format!("regall verify: {end}: {}", done.stdout)],
        }
    });
    let mut command = Command::new(build::program("scale/flat"));
    mode.apply(command.args([what, &turns.to_string()]));
    command.env("QUIET_SOCKET", watcher.socket());
    let done = child::run(&mut command, Duration::from_secs(120 + turns / 20));
    let findings = watcher.finish();
    let said = format!("{what}: {turns} turns\n");
    assert_eq!(
        (done.end().as_str(), &done.stdout),
        ("exit 0", &said),
        "{what} {mode:?}: {}",
        done.stderr
    );
    assert_eq!(done.regall_lines(), [""; 0]);
    assert_eq!(findings.problems, [""; 0], "{what} {mode:?}");
    let seen = seen.lock().expect("a list");
    let [warm, after] = seen[..] else {
        panic!("{what} {mode:?}: {seen:?}");
    };
    let wrong = grown(warm, after);
    assert!(
        wrong.is_empty(),
        "{what} {mode:?}, {turns} turns: {}\nafter a quarter {warm:?}\nat the end {after:?}",
        wrong.join("; ")
    );
    row.passed(format!(
        "{turns} turns; {} KiB of the shim's own, {} ranges for {} mappings",
        after.own >> 10,
        after.ranges,
        after.mappings
    ));
}

/// In `make test` each in one mode, in `make soak` in all.
#[test]
fn nothing_grows() {
    let long = std::env::var_os("SOAK_SECONDS").is_some();
    for (n, (what, turns)) in THINGS.into_iter().enumerate() {
        for (m, mode) in MODES.into_iter().enumerate() {
            if long || n % MODES.len() == m {
                flat(what, soak::rounds(turns, turns * 40), mode);
            }
        }
    }
}
