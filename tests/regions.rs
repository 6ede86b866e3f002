//! Regions by cookie: the programs of c-tests/bridge/region*.c, each chapter of them in
//! processes under the shim, which must have nothing to complain of.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
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
    out.must_succeed_at(format_args!("{name}"));
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
        copies_between_any_two_that_are_mapped "mapped",
        no_use_is_lost "notify";
    region_stale:
        memory_that_goes_takes_its_regions_with_it "stale",
        memory_that_stays_keeps_its_regions "usable",
        never_other_bytes "churn",
        a_copy_in_flight_finishes_or_fails "flights",
        readers_are_killed "kills",
        children_of_readers_read "forks",
        nothing_is_left "leftovers";
    region_queues:
        copies_that_are_not_waited_for "async",
        owners_die_amid_copies "deaths";
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
    out.must_succeed();
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

/// The example of docs/c-interface.md: one process declares, others read, by C and by command.
#[test]
fn the_example_and_peek() {
    let example = build::program("bridge/example_region");
    let mut declare = Command::new(&example);
    Mode::Populate.apply(&mut declare);
    declare.arg("declare").stdout(Stdio::piped());
    let mut owner = declare.spawn().expect("the owner");
    let mut line = String::new();
    let stdout = owner.stdout.take().expect("a pipe");
    BufReader::new(stdout).read_line(&mut line).expect("a line");
    let cookie = line.trim();

    let read = |offset: &str, len: &str| {
        let mut command = Command::new(&example);
        Mode::Populate.apply(&mut command);
        let out = child::run(command.args(["read", cookie, offset, len]), TIMEOUT);
        (out.end(), out.stdout)
    };
    let peek = |words: &[&str]| {
        let mut command = Command::new(build::regall());
        Mode::Plain.apply(&mut command);
        let out = child::run(command.arg("peek").args(words), TIMEOUT);
        (out.end(), out.stdout, out.stderr)
    };
    let said = |end: &str, text: &str| (end.to_owned(), text.to_owned());
    assert_eq!(read("5", "100"), said("exit 0", "ered memory\n"));
    assert_eq!(read("0", "3"), said("exit 0", "sca"));
    assert_eq!(read("17", "3"), said("exit 0", ""));

    let whole = peek(&["--cookie", cookie, "0", "0x100"]);
    assert_eq!(whole.0, "exit 0", "{}", whole.2);
    assert_eq!(whole.1, "scattered memory\n");
    assert_eq!(peek(&["--cookie", cookie, "12", "3"]).1, "mor");
    assert_eq!(peek(&["--cookie", cookie, "17", "3"]).0, "exit 0");
    let hex = peek(&["--hex", "--cookie", cookie, "8", "4"]).1;
    assert!(hex.starts_with("000000000008  64 20 6d 65"), "{hex}");
    let other = peek(&["--cookie", "0x1234", "0", "1"]);
    assert_eq!(other.0, "exit 1");
    assert!(other.2.contains("no such cookie"), "{}", other.2);
    for bad in [&["--cookie", cookie, "0"][..], &[cookie, "0"], &["1"]] {
        assert_eq!(peek(bad).0, "exit 2", "{bad:?}");
    }
    // As before: a process, an address, bytes.
    let pid = owner.id().to_string();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let first = maps.lines().next().expect("a mapping");
    let address = format!("0x{}", first.split('-').next().unwrap_or(""));
    assert_eq!(peek(&[&pid, &address, "4"]).1, "\x7fELF");
    assert_eq!(peek(&[&pid, "0x1000", "4"]).0, "exit 1");

    owner.kill().expect("our child");
    owner.wait().expect("our child");
    assert_eq!(read("5", "100").0, "exit 1");
    assert_eq!(peek(&["--cookie", cookie, "0", "1"]).0, "exit 1");
}

/// The process's counters after a chapter, by mechanism: bytes copied.
fn copied(name: &str, copy: &str) -> [u64; 2] {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(build::program("bridge/region_queues"));
    Mode::Populate.apply(&mut command);
    // Forked workers leave theirs elsewhere.
    command.env("REGALL_STATS_FILE", folder.path().join("%p"));
    command.env("REGALL_COPY", copy);
    let mut child = command.arg(name).spawn().expect("the program");
    let status = child.wait().expect("its end");
    assert!(status.success(), "{name} {copy}: {status}");
    let file = folder.path().join(child.id().to_string());
    let text = std::fs::read_to_string(file).expect("statistics");
    let stats: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    ["copy_map_bytes", "copy_cma_bytes"].map(|counter| {
        let found = stats.pointer(&format!("/counters/{counter}"));
        found.and_then(serde_json::Value::as_u64).expect(counter)
    })
}

/// Four times 6 MiB between regions of two other processes: once each, and not by way of a buffer.
#[test]
fn a_third_party_copies_what_it_maps_once() {
    const ONCE: u64 = 24 << 20;
    assert_eq!(copied("both", "map"), [ONCE, 0]);
    assert_eq!(copied("source", "map,cma"), [0, ONCE]);
    assert_eq!(copied("target", "map,cma"), [0, ONCE]);
    // Neither way of mapping: into the buffer, and out of it.
    assert_eq!(copied("both", "cma"), [0, 2 * ONCE]);
    // At first it does not pay to map it.
    let [mapped, by_kernel] = copied("both", "auto");
    assert!(
        mapped + by_kernel < ONCE + ONCE / 4,
        "{mapped}, {by_kernel}"
    );
}
