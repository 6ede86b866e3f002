//! The bridge, from outside: programs of c-tests/bridge that get and put each other's
//! memory, `regall peek`, and what containers, users and hostile files make of them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::{build, skip};

#[path = "bridge/apart.rs"]
mod apart;

const TIMEOUT: Duration = Duration::from_secs(120);
const PAGE: u64 = 4096;

/// Runs a program of c-tests/bridge, which says nothing as long as all is well.
fn quiet(program: &str, args: &[&str], mode: Mode) {
    let outcome = run(program, args, mode);
    if let Some(why) = outcome.stdout.trim().strip_prefix("SKIPPED: ") {
        return skip(why);
    }
    assert_eq!(outcome.stdout, "", "{program} {args:?} {mode:?}");
    outcome.must_succeed();
    assert_eq!(outcome.stderr, "", "{program} {args:?} {mode:?}");
}

fn run(program: &str, args: &[&str], mode: Mode) -> Outcome {
    let mut command = Command::new(build::program(&format!("bridge/{program}")));
    mode.apply(command.args(args));
    child::run(&mut command, TIMEOUT)
}

/// One that says what it has done.
fn counting(program: &str, args: &[&str], mode: Mode) {
    let outcome = run(program, args, mode);
    outcome.must_succeed();
    println!("{}", outcome.stdout);
}

fn is_root() -> bool {
    // SAFETY: a system call without arguments.
    unsafe { libc::geteuid() == 0 }
}

// ---- getting and putting ----

#[test]
fn copies() {
    quiet("copy", &[], Mode::Populate);
}

#[test]
fn copies_of_an_untracked_reader() {
    // Preloaded, but REGALL is not 1.
    quiet("copy", &[], Mode::Inert);
}

#[test]
fn descriptors_that_were_closed_and_are_files_now() {
    quiet("descriptors", &[], Mode::Populate);
    quiet("descriptors", &["zero"], Mode::Populate);
    quiet("descriptors", &["none"], Mode::Populate);
}

/// A thread that gives memory back is held up as it comes out of munmap; another is given its
/// address meanwhile.
#[test]
fn memory_given_out_again_keeps_its_descriptor() {
    if !build::have("strace") {
        return skip("a munmap that returns late: no strace");
    }
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=munmap"]);
    command.args(["-e", "inject=munmap:delay_exit=100000"]);
    for (name, value) in Mode::Populate.settings() {
        command.args(["-E", &format!("{name}={value}")]);
    }
    let program = build::program("bridge/descriptors");
    let outcome = child::run(command.arg(program).arg("freed"), TIMEOUT);
    if let Some(why) = outcome.stdout.trim().strip_prefix("SKIPPED: ") {
        return skip(why);
    }
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    assert_eq!((outcome.end().as_str(), said.as_str()), ("exit 0", ""));
}

#[test]
fn copies_pinned_on_fault() {
    quiet("copy", &[], Mode::OnFault);
}

#[test]
fn beyond_two_gigabytes() {
    let memory = fs::read_to_string("/proc/meminfo").expect("meminfo");
    let available = memory
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))
        .and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
    if available.unwrap_or(0) < 6 << 20 {
        return skip("more than 2 GiB at once: less than 6 GiB of memory is free");
    }
    quiet("copy", &["big"], Mode::Inert);
}

#[test]
fn a_million_gets_from_a_busy_owner() {
    counting("race", &["1000000"], Mode::OnFault);
}

#[test]
fn gets_from_a_busy_owner_that_populates() {
    counting("race", &["100000"], Mode::Populate);
}

// ---- life and death ----

#[test]
fn owners_are_killed() {
    quiet("life", &["kill-owner", "200"], Mode::Populate);
}

#[test]
fn readers_are_killed() {
    quiet("life", &["kill-reader", "200"], Mode::Populate);
}

#[test]
fn an_owner_is_stopped() {
    quiet("life", &["stop"], Mode::Populate);
}

#[test]
fn owners_execute_another_program() {
    quiet("life", &["exec", "100"], Mode::Populate);
}

#[test]
fn an_owner_forks() {
    quiet("life", &["fork"], Mode::Populate);
}

#[test]
fn pids_are_taken_by_others() {
    quiet("life", &["reuse", "24"], Mode::Populate);
}

#[test]
fn opening_and_closing_leaves_nothing() {
    quiet("life", &["open-close", "200"], Mode::Populate);
    quiet("life", &["open-close", "200"], Mode::Inert);
}

#[test]
fn a_child_of_fork_uses_its_parents_peer() {
    quiet("life", &["child", "200"], Mode::Populate);
}

// ---- the command line ----

/// `copy owner`: a process with memory of all kinds.
struct Owner {
    process: Child,
    areas: Vec<(String, u64, u64)>,
    _to: ChildStdin,
    _from: BufReader<ChildStdout>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Owner {
    fn new() -> Self {
        Self::by(Command::new(build::program("bridge/copy")).arg("owner"))
    }

    fn by(command: &mut Command) -> Self {
        Mode::Populate.apply(command);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("an owner");
        let to = process.stdin.take().expect("a pipe");
        let mut from = BufReader::new(process.stdout.take().expect("a pipe"));
        let mut areas = Vec::new();
        loop {
            let mut line = String::new();
            from.read_line(&mut line).expect("a line");
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["."] => break,
                [name, at, bytes] => {
                    let number = |text: &str| text.parse().expect("a number");
                    areas.push((name.into(), number(at), number(bytes)));
                }
                _ => panic!("the owner says {line:?}"),
            }
        }
        Self {
            process,
            areas,
            _to: to,
            _from: from,
        }
    }

    fn pid(&self) -> String {
        self.process.id().to_string()
    }

    fn at(&self, name: &str) -> u64 {
        let area = self.areas.iter().find(|(n, ..)| n == name);
        area.expect("an area of that name").1
    }
}

/// What stands at an offset of each area (c-tests/bridge/copy.c).
fn pattern(offset: u64) -> u8 {
    let x = (offset + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x >> 56 ^ x >> 24) as u8
}

struct Said {
    code: Option<i32>,
    bytes: Vec<u8>,
    stderr: String,
}

fn said(command: &mut Command) -> Said {
    let output = command.output().expect("a command");
    Said {
        code: output.status.code(),
        bytes: output.stdout,
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

fn peek(args: &[&str]) -> Said {
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    said(command.arg("peek").args(args))
}

/// In one line, without a panic.
fn one_line(said: &Said, what: &str) {
    assert_eq!(said.stderr.lines().count(), 1, "{what}: {}", said.stderr);
    assert!(!said.stderr.contains("panicked"), "{what}: {}", said.stderr);
}

#[test]
fn any_registered_address_is_read_and_no_other() {
    let owner = Owner::new();
    let pid = owner.pid();
    let (mixed, out) = (owner.at("mixed"), owner.at("out"));
    let want: Vec<u8> = (100..100_100).map(pattern).collect();
    let all = peek(&[&pid, &(mixed + 100).to_string(), "100000"]);
    assert_eq!(all.code, Some(0), "{}", all.stderr);
    assert!(all.bytes == want && all.stderr.is_empty());
    // Up to where memory was opted out, and not beyond.
    let from = format!("{:#x}", out + 4 * PAGE - 10);
    let part = peek(&["--raw", &pid, &from, "0x20"]);
    assert_eq!(part.code, Some(1));
    let want: Vec<u8> = (4 * PAGE - 10..4 * PAGE).map(pattern).collect();
    assert_eq!(part.bytes, want);
    one_line(&part, "opted out");
    assert!(
        part.stderr.contains(&format!("{:#x}", out + 4 * PAGE)),
        "{}",
        part.stderr
    );
    for (area, why) in [
        ("none", "not registered"),
        ("gone", "not registered"),
        ("write-only", "protection"),
    ] {
        let from = (owner.at(area) + 4 * PAGE).to_string();
        let refused = peek(&[&pid, &from, "1"]);
        assert_eq!(refused.code, Some(1), "{area}");
        assert!(refused.bytes.is_empty());
        one_line(&refused, area);
        assert!(refused.stderr.contains(why), "{}", refused.stderr);
    }
}

#[test]
fn peek_in_hexadecimal() {
    let owner = Owner::new();
    let (pid, at) = (owner.pid(), owner.at("big"));
    let dump = peek(&["--hex", &pid, &at.to_string(), "20"]);
    assert_eq!(dump.code, Some(0));
    let text = String::from_utf8(dump.bytes).expect("text");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    for (n, line) in lines.iter().enumerate() {
        let words: Vec<_> = line
            .split_once("  |")
            .expect("text")
            .0
            .split_whitespace()
            .collect();
        let n = n as u64;
        assert_eq!(words[0], format!("{:012x}", at + 16 * n));
        let bytes: Vec<_> = (16 * n..20.min(16 * n + 16))
            .map(|i| format!("{:02x}", pattern(i)))
            .collect();
        assert_eq!(words[1..], bytes);
    }
    // In blocks, and nothing of nothing.
    let long = peek(&[&pid, &at.to_string(), "3000000"]);
    assert!(long.code == Some(0) && long.bytes == (0..3_000_000).map(pattern).collect::<Vec<_>>());
    let empty = peek(&[&pid, &at.to_string(), "0"]);
    assert!(empty.code == Some(0) && empty.bytes.is_empty());
}

#[test]
fn what_peek_can_not_do() {
    let owner = Owner::new();
    let (pid, at) = (owner.pid(), owner.at("big").to_string());
    let us = std::process::id().to_string();
    let (pid, at) = (pid.as_str(), at.as_str());
    for args in [
        &["99999999", at, "1"][..],
        &["0", at, "1"],
        &[us.as_str(), at, "1"],
        &[pid, "0xffffffffffffffff", "2"],
    ] {
        let done = peek(args);
        assert_eq!(done.code, Some(2), "{args:?}: {}", done.stderr);
        assert!(done.bytes.is_empty());
        one_line(&done, &format!("{args:?}"));
    }
    for args in [
        &[] as &[&str],
        &[pid],
        &[pid, at],
        &[pid, at, "x"],
        &[pid, at, "-1"],
        &["x", at, "1"],
        &[pid, "1f", "1"],
        &["--hex", "--raw", pid, at, "1"],
        &[pid, at, "1", "2"],
        &[pid, at, "0x10000000000000000"],
    ] {
        let done = peek(args);
        assert_eq!(done.code, Some(2), "{args:?}: {}", done.stderr);
        assert!(done.bytes.is_empty() && !done.stderr.is_empty());
    }
    // No mechanism, and one that there is not.
    for (copy, what) in [("off", "no mechanism"), ("cma,cma", "REGALL_COPY")] {
        let mut command = Command::new(build::regall());
        Mode::Plain.apply(&mut command);
        let done = said(
            command
                .env("REGALL_COPY", copy)
                .args(["peek", pid, at, "1"]),
        );
        assert_eq!(done.code, Some(2), "{copy}: {}", done.stderr);
        assert!(done.stderr.contains(what), "{copy}: {}", done.stderr);
    }
}

// ---- hostile files ----

#[test]
fn a_hundred_thousand_forged_directories() {
    counting("hostile", &["100000"], Mode::Populate);
}

/// A process without the shim that has a forged directory mapped, and its memory.
#[test]
fn peek_reads_forged_directories() {
    let owner = Owner::new();
    // SAFETY: a system call without arguments.
    let uid = unsafe { libc::geteuid() };
    let folder = std::path::PathBuf::from(format!("/dev/shm/regall-{uid}"));
    let prefix = format!("{}.", owner.pid());
    let find = || {
        let mut all = fs::read_dir(&folder).expect("a folder").flatten();
        all.find(|e| e.file_name().to_string_lossy().starts_with(&prefix))
    };
    let real = fs::read(find().expect("its directory").path()).expect("its bytes");
    let draft = folder.join(format!("draft.{}", std::process::id()));
    fs::write(&draft, &real).expect("a file");
    let mut victim = Command::new(build::program("bridge/hostile"))
        .arg("victim")
        .arg(&draft)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a victim");
    let mut line = String::new();
    let mut from = BufReader::new(victim.stdout.take().expect("a pipe"));
    from.read_line(&mut line).expect("a line");
    let pid = victim.id();
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let start: u64 = stat
        .rsplit_once(')')
        .and_then(|(_, rest)| rest.split_whitespace().nth(19))
        .and_then(|s| s.parse().ok())
        .expect("a start time");
    let namespace = fs::metadata("/proc/self/ns/pid")
        .expect("a namespace")
        .ino();
    let file = folder.join(format!("{pid}.{start}.{namespace}"));
    fs::rename(&draft, &file).expect("a forged file");
    let mut state = 20_261_122u64;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    let (mut ends, mut cuts) = (Vec::new(), Vec::new());
    for round in 0..150 {
        let mut bytes = real.clone();
        let mut put = |word: u64, value: u64| {
            let at = word as usize * 8;
            if at + 8 <= bytes.len() {
                bytes[at..at + 8].copy_from_slice(&value.to_ne_bytes());
            }
        };
        put(1, pid.into());
        put(2, start);
        for _ in 0..draw(30) {
            let value = [draw(u64::MAX), 0, u64::MAX, draw(1 << 47) & !0xfff][draw(4) as usize];
            match draw(3) {
                0 => put(5 + draw(1000), value),
                _ => put(1024 + draw(64 * 8), value),
            }
        }
        // In place: it stays the file that is mapped.
        let mut open = fs::OpenOptions::new().write(true).open(&file).expect("it");
        open.write_all(&bytes).expect("it");
        let at = match draw(2) {
            0 => line.trim().to_owned(),
            _ => owner.at("big").to_string(),
        };
        let done = peek(&[&pid.to_string(), &at, "20000"]);
        assert!(
            matches!(done.code, Some(0..=2)) && !done.stderr.contains("panicked"),
            "round {round}: {:?} {}",
            done.code,
            done.stderr
        );
        ends.push(done.code.expect("a code"));
    }
    // Cut short at any moment, and whole again.
    let mut whole = real;
    whole[8..16].copy_from_slice(&u64::from(pid).to_ne_bytes());
    whole[16..24].copy_from_slice(&start.to_ne_bytes());
    let over = AtomicBool::new(false);
    let cut = || {
        let open = fs::OpenOptions::new().write(true).open(&file).expect("it");
        while !over.load(Relaxed) {
            open.set_len(0).expect("it");
            std::thread::sleep(Duration::from_micros(100));
            open.write_all_at(&whole, 0).expect("it");
            std::thread::sleep(Duration::from_micros(200));
        }
    };
    std::thread::scope(|s| {
        s.spawn(cut);
        for _ in 0..40 {
            let done = peek(&[&pid.to_string(), line.trim(), "20000"]);
            cuts.push((done.code, done.stderr));
        }
        over.store(true, Relaxed);
    });
    let _ = victim.kill();
    let _ = victim.wait();
    let _ = fs::remove_file(&file);
    assert!(ends.contains(&1), "nothing was taken for real: {ends:?}");
    let unanswered = |(code, _): &&(Option<i32>, String)| !matches!(code, Some(0..=2));
    assert_eq!(cuts.iter().find(unanswered), None);
    let seen = cuts.iter().filter(|(_, said)| said.contains("cut short"));
    println!("cut short in {} of {} looks", seen.count(), cuts.len());
}
