//! The command against live processes: `examples/publisher.rs` stands in for
//! one with the shim, and does wrong on purpose.

mod common;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{regall, text, Publisher, REGALL};

#[test]
fn no_gap_and_one_made_on_purpose() {
    let mut p = Publisher::new();
    assert!(p.both_say(0).contains(": ok, "));
    p.tell("-");
    let said = p.both_say(1);
    assert!(said.contains("rw-p (anonymous): not covered"), "{said}");
    p.tell("u");
    assert!(p.verify(&[]).1.contains("3 ranges unpublished"));
    p.tell("+").both_say(0);
    p.tell("r");
    assert!(p.both_say(1).contains("wrong protection"));
}

#[test]
fn strictly() {
    let mut p = Publisher::new();
    assert_eq!(p.verify(&["--strict"]).0, 0);
    p.tell("l").both_say(0);
    let (code, said) = p.verify(&["--strict"]);
    assert_eq!(code, 1);
    assert!(said.contains("pin: limit"), "{said}");
}

#[test]
fn a_stack_that_grew_is_no_gap() {
    let mut p = Publisher::new();
    p.tell("s").both_say(0);
}

#[test]
fn a_busy_process_is_good_without_gaps_and_busy_with_one() {
    let mut p = Publisher::new();
    p.tell("b").both_say(0);
    p.tell("-");
    let began = Instant::now();
    assert!(p.verify(&[]).1.contains("busy for 5 s"));
    assert!(began.elapsed() >= Duration::from_secs(5));
    assert_eq!(p.script(), 2);
    p.tell("B").both_say(1);
}

#[test]
fn a_process_that_never_rests() {
    let mut p = Publisher::new();
    p.tell("C");
    for _ in 0..5 {
        let (code, said) = p.verify(&[]);
        assert_ne!(code, 1, "{said}");
    }
}

#[test]
fn a_stopped_process_answers() {
    let p = Publisher::new();
    p.signal(libc::SIGSTOP);
    p.both_say(0);
    let (code, dump) = regall(&["dump", &p.pid()]);
    assert_eq!(code, 0);
    assert!(dump.starts_with(&format!("# regall 1 pid {} start ", p.pid())));
}

#[test]
fn what_cannot_be_looked_at() {
    let mut p = Publisher::new();
    p.tell("G");
    assert_eq!(p.verify(&[]).0, 2);
    let mut p = Publisher::new();
    p.tell("a");
    assert!(p.both_say(2).contains("corrupt: an entry's attributes"));
    let mut p = Publisher::new();
    p.tell("t");
    assert!(p.both_say(2).contains("corrupt"));
    let mut p = Publisher::new();
    p.tell("x");
    std::thread::sleep(Duration::from_millis(100));
    assert!(p.both_say(2).contains("runs without regall"));
    let p = Publisher::new();
    p.signal(libc::SIGKILL); // and it is not waited for
    assert!(p.both_say(2).contains("no such process"));
    for command in ["verify", "dump", "maps", "stats"] {
        assert_eq!(regall(&[command, "4194305"]).0, 2);
    }
}

#[test]
fn two_beats_one_beats_nought() {
    let (good, mut bad) = (Publisher::new(), Publisher::new());
    bad.tell("-");
    let (good, bad) = (good.pid(), bad.pid());
    assert_eq!(regall(&["verify", &bad, &good]).0, 1);
    assert_eq!(regall(&["verify", "4194305", &bad, &good]).0, 2);
}

#[test]
fn watching_until_they_end() {
    let p = Publisher::new();
    let watch = |pid: &str| {
        let mut command = Command::new(REGALL);
        command.args(["verify", "--watch", "0.1", pid]);
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let child = watch(&p.pid());
    std::thread::sleep(Duration::from_millis(500));
    drop(p);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert!(text(&out).lines().count() > 1);

    let mut p = Publisher::new();
    p.tell("-");
    let child = watch(&p.pid());
    std::thread::sleep(Duration::from_millis(500));
    p.tell("+");
    std::thread::sleep(Duration::from_millis(300));
    drop(p);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(1));
    assert_eq!(regall(&["verify", "--watch", "0.1", "4194305"]).0, 2);
}

#[test]
fn dump_has_its_format() {
    let p = Publisher::new();
    let (_, dump) = regall(&["dump", &p.pid()]);
    let mut lines = dump.lines();
    let header: Vec<_> = lines.next().unwrap().split(' ').collect();
    assert_eq!(header[..4], ["#", "regall", "1", "pid"]);
    assert_eq!(
        (header[5], header[7], header[9]),
        ("start", "generation", "busy")
    );
    let lines: Vec<Vec<_>> = lines.map(|l| l.split(' ').collect()).collect();
    assert!(lines.iter().all(|l| l.len() == 8));
    let keys = lines.iter().find(|l| l[4] != "-").unwrap();
    assert_eq!(
        keys[1..],
        ["rw-p", "registered", "-", "0x11", "0x22", "yes", "off"]
    );
    let kernel = lines.iter().find(|l| l[0].starts_with("ffff")).unwrap();
    assert_eq!(
        kernel[1..],
        ["--xp", "excluded", "kernel", "-", "-", "kernel", "off"]
    );
}

#[test]
fn dump_is_quick_with_many_mappings() {
    let p = Publisher::with(20_000);
    p.signal(libc::SIGSTOP);
    // The best of some: other programs may be busy on the machine.
    let took = (0..10).map(|_| {
        let began = Instant::now();
        let (code, dump) = regall(&["dump", &p.pid()]);
        assert_eq!(code, 0);
        assert!(dump.lines().count() > 20_000);
        began.elapsed()
    });
    let took = took.min().unwrap();
    // An unoptimised build has ten times the time.
    let limit = if cfg!(debug_assertions) { 1000 } else { 100 };
    assert!(took < Duration::from_millis(limit), "{took:?}");
    p.both_say(0);
}

#[test]
fn maps_and_stats_say_the_same_in_all_forms() {
    let p = Publisher::new();
    let (code, table) = regall(&["maps", &p.pid()]);
    assert_eq!(code, 0);
    assert!(
        table.contains("0x11/0x22") && table.contains("[stack]"),
        "{table}"
    );
    let (_, json) = regall(&["maps", "--json", &p.pid()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json.as_array().unwrap().len(), table.lines().count() - 1);
    let file = std::env::temp_dir().join(format!("regall-{}.svg", p.pid()));
    assert_eq!(
        regall(&["maps", "--svg", file.to_str().unwrap(), &p.pid()]).0,
        0
    );
    let svg = std::fs::read_to_string(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(svg.matches("<g>").count(), table.lines().count() - 1);

    let (_, json) = regall(&["stats", "--json", &p.pid()]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["calls"]["mmap"], 42);
    assert_eq!(json["selftest_missed"][0], "brk");
    assert!(json["bytes"]["state"]["registered"].as_u64().unwrap() > 1 << 20);
    assert!(regall(&["stats", &p.pid()]).1.contains("calls.mmap"));
}

#[test]
fn a_reader_of_our_output_that_leaves_changes_nothing() {
    let mut p = Publisher::new();
    p.tell("-");
    for (arguments, code) in [(["verify"], 1), (["dump"], 0)] {
        let mut command = Command::new(REGALL);
        let mut child = command
            .args(arguments)
            .arg(p.pid())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let out = child.wait_with_output().unwrap();
        assert_eq!((out.status.code(), text(&out)), (Some(code), String::new()));
    }
}
