//! A corrupt or hostile directory file: the command line says so and ends.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{chown, DirBuilderExt, FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use regall_tests::mode::Mode;
use regall_tests::quiet::Watcher;
use regall_tests::{build, child};

/// Words of the header (directory/src/layout.rs).
pub const PID: usize = 1;
const START: usize = 2;
pub const HIGH_WATER: usize = 7;
const SEGMENTS: usize = 8;
pub const HEADER: usize = 8192;
/// The name of the executable.
const EXE: usize = 16 + 64 + 48 + 256;
/// The calls in progress: the first word, and how many.
pub const INFLIGHT: (usize, usize) = (16 + 64 + 48, 256);

/// A real process without the shim, and a forged file that says it has one.
pub struct Victim {
    pub process: Child,
    pub file: PathBuf,
    pub good: Vec<u8>,
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        remove(&self.file);
    }
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir(path);
}

pub fn start_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
    let rest = stat.rsplit_once(')').expect("a name").1;
    rest.split_whitespace()
        .nth(19)
        .and_then(|s| s.parse().ok())
        .expect("a start time")
}

pub fn put(bytes: &mut [u8], word: usize, value: u64) {
    bytes[word * 8..word * 8 + 8].copy_from_slice(&value.to_ne_bytes());
}

/// What a directory of hello's says.
pub fn hellos() -> Vec<u8> {
    // SAFETY: a system call without arguments.
    let uid = unsafe { libc::geteuid() };
    let folder = PathBuf::from(format!("/dev/shm/regall-{uid}"));
    let (send, receive) = mpsc::channel();
    let in_watcher = folder.clone();
    let watcher = Watcher::new(move |point| {
        let prefix = format!("{}.", point.pid);
        let mine = fs::read_dir(&in_watcher).into_iter().flatten().flatten();
        let file = mine.map(|e| e.path()).find(|p| {
            p.file_name()
                .is_some_and(|n| n.to_string_lossy().starts_with(&prefix))
        });
        let _ = send.send(file.and_then(|f| fs::read(f).ok()));
        Vec::new()
    });
    let mut command = Command::new(build::program("hello"));
    Mode::Populate.apply(&mut command);
    command.env("QUIET_SOCKET", watcher.socket());
    child::run(&mut command, Duration::from_secs(30));
    watcher.finish();
    let file = receive.recv().expect("a look");
    file.expect("hello's directory file")
}

impl Victim {
    pub fn new() -> Self {
        // SAFETY: a system call without arguments.
        Self::of(unsafe { libc::geteuid() }, &hellos(), &[])
    }

    /// A user's process, with `good` as its directory.
    pub fn of(uid: u32, good: &[u8], arguments: &[&str]) -> Self {
        Self::executing(&build::program("victim"), uid, good, arguments)
    }

    /// The same, of a program that is victim by another name.
    fn executing(program: &Path, uid: u32, good: &[u8], arguments: &[&str]) -> Self {
        let mut good = good.to_vec();
        let mut process = Command::new(program);
        let mut process = process
            .args(arguments)
            .uid(uid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("victim");
        let folder = PathBuf::from(format!("/dev/shm/regall-{uid}"));
        let _ = fs::DirBuilder::new().mode(0o700).create(&folder);
        chown(&folder, Some(uid), None).expect("root, or the same user");
        let pid = process.id();
        let start = start_time(pid);
        put(&mut good, PID, pid.into());
        put(&mut good, START, start);
        let namespace = fs::metadata("/proc/self/ns/pid")
            .expect("a namespace")
            .ino();
        let file = folder.join(format!("{pid}.{start}.{namespace}"));
        // A file counts only if the process has it mapped.
        fs::write(&file, &good).expect("a forged file");
        chown(&file, Some(uid), None).expect("root, or the same user");
        let mut stdin = process.stdin.take().expect("a pipe");
        writeln!(stdin, "{}", file.display()).expect("a pipe");
        let mut said = [0; 7];
        process
            .stdout
            .as_mut()
            .expect("a pipe")
            .read_exact(&mut said)
            .expect("a word");
        assert_eq!(&said, b"mapped\n");
        Self {
            process,
            file,
            good,
        }
    }

    /// Puts the file there and runs every command that reads it.
    fn try_all(&self, bytes: &[u8], what: &str) -> Vec<String> {
        // In place: it stays the file that is mapped.
        fs::write(&self.file, bytes).expect("a forged file");
        self.commands(what)
    }

    fn commands(&self, what: &str) -> Vec<String> {
        let pid = self.process.id().to_string();
        let mut ends = Vec::new();
        let all: [&[&str]; 6] = [
            &["dump", &pid],
            &["verify", &pid],
            &["maps", &pid],
            &["maps", &pid, "--json"],
            &["stats", &pid, "--json"],
            &["verify", "--all"],
        ];
        for args in all {
            let done = child::run(
                Command::new(build::regall()).args(args),
                Duration::from_secs(30),
            );
            let fine = matches!(done.end().as_str(), "exit 0" | "exit 1" | "exit 2");
            assert!(
                fine,
                "{what}: regall {args:?}: {}: {}",
                done.end(),
                done.stderr
            );
            assert!(!done.stderr.contains("panicked"), "{what}: {}", done.stderr);
            if args[0] == "verify" && args[1] == pid {
                assert_ne!(
                    done.end(),
                    "exit 0",
                    "{what}: there is no shim, yet verify is content"
                );
            }
            if args[0] != "verify" && done.end() != "exit 0" {
                assert!(
                    !done.stderr.trim().is_empty(),
                    "{what}: regall {args:?} fails without a word"
                );
            }
            ends.push(done.end());
        }
        ends
    }

    fn refused(&self, what: &str) {
        let ends = self.commands(what);
        assert!(ends[..5].iter().all(|e| e != "exit 0"), "{what}: {ends:?}");
    }
}

#[test]
fn the_forgery_is_taken_for_real() {
    // Or the tests below would show nothing.
    let victim = Victim::new();
    let ends = victim.try_all(&victim.good, "a faithful copy");
    assert_eq!(ends[0], "exit 0");
    assert_eq!(ends[1], "exit 1", "hello's ranges are not the victim's");
}

#[test]
fn what_is_no_directory_is_refused() {
    let victim = Victim::new();
    for (what, bytes) in [
        ("an empty file", vec![]),
        ("one byte", vec![0]),
        ("half a header", victim.good[..HEADER / 2].to_vec()),
        ("zeros", vec![0; victim.good.len()]),
        ("all ones", vec![0xff; victim.good.len()]),
        ("text", b"hello ".repeat(10_000)),
    ] {
        fs::write(&victim.file, &bytes).expect("a file");
        victim.refused(what);
    }
    let mut wrong = victim.good.clone();
    wrong[7] ^= 2;
    fs::write(&victim.file, &wrong).expect("a file");
    victim.refused("another version");
    for (word, what) in [(PID, "another pid"), (START, "another start time")] {
        let mut wrong = victim.good.clone();
        put(&mut wrong, word, 12345);
        fs::write(&victim.file, &wrong).expect("a file");
        victim.refused(what);
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let victim = Victim::new();
    remove(&victim.file);
    fs::create_dir(&victim.file).expect("a folder");
    victim.refused("a folder");
    remove(&victim.file);
    std::os::unix::fs::symlink("/etc/passwd", &victim.file).expect("a link");
    victim.refused("a link");
    remove(&victim.file);
    let made = Command::new("mkfifo")
        .arg(&victim.file)
        .status()
        .expect("mkfifo");
    assert!(made.success());
    victim.refused("a fifo");
}

#[test]
fn numbers_beyond_reason() {
    let victim = Victim::new();
    for word in [HIGH_WATER, SEGMENTS] {
        for value in [0, 1, 13, 64, 1 << 20, 1 << 40, 1 << 63, u64::MAX] {
            let mut bytes = victim.good.clone();
            put(&mut bytes, word, value);
            victim.try_all(&bytes, &format!("word {word} is {value}"));
        }
    }
    for size in [
        HEADER,
        HEADER + 1,
        HEADER + 64,
        victim.good.len() - 1,
        victim.good.len() / 2,
    ] {
        victim.try_all(
            &victim.good[..size.min(victim.good.len())],
            &format!("cut to {size}"),
        );
    }
}

/// What a process says of itself, and what it maps, is text: no command prints what a terminal
/// obeys, or what turns the direction of reading.
#[test]
fn names_command_no_terminal() {
    let evil = "\u{1b}]0;title\u{7}\u{9b}31m\nFAKE\u{202e}";
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join(evil);
    fs::copy(build::program("victim"), &program).expect("a copy");
    let mut good = hellos();
    good[EXE * 8..EXE * 8 + evil.len()].copy_from_slice(evil.as_bytes());
    // SAFETY: a system call without arguments.
    let victim = Victim::executing(&program, unsafe { libc::geteuid() }, &good, &[]);
    let pid = victim.process.id().to_string();
    let svg = folder.path().join("svg");
    let svg = svg.to_str().expect("text");
    let all: [&[&str]; 7] = [
        &["maps", &pid],
        &["maps", &pid, "--svg", svg],
        &["verify", &pid],
        &["verify", "--all"],
        &["stats", &pid],
        &["top", "--once", "--interval", "0.1"],
        &["dump", &pid],
    ];
    let mut wrong = Vec::new();
    for arguments in all {
        let mut command = Command::new(build::regall());
        let done = child::run(command.args(arguments), Duration::from_secs(30));
        let mut said = format!("{}{}", done.stdout, done.stderr);
        if arguments.contains(&"--svg") {
            said = fs::read_to_string(svg).expect("a picture");
        }
        assert!(said.contains(&pid), "{arguments:?}: {said}");
        let obeyed = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
        if said.chars().any(obeyed) || said.lines().any(|line| line.starts_with("FAKE")) {
            wrong.push((arguments, said));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Neither a pipe that nobody writes nor a device without an end keeps a command that reads what
/// somebody else names.
#[test]
fn what_is_read_is_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let pipe = folder.path().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    for file in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
        for arguments in [&["check", "--read"][..], &["report"]] {
            let mut command = Command::new(build::regall());
            let done = child::run(command.args(arguments).arg(file), Duration::from_secs(10));
            let what = format!("{arguments:?} {}", file.display());
            assert_eq!(done.end(), "exit 2", "{what}: {}", done.stderr);
        }
    }
}

#[test]
fn random_bytes() {
    let victim = Victim::new();
    let seed = regall_tests::number("TESTS_SEED").unwrap_or(20_261_121);
    let mut state = seed;
    let mut draw = |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) % below
    };
    for round in 0..60 {
        let mut bytes = victim.good.clone();
        let (from, to) = match round % 3 {
            0 => (8, 8 + 15 * 8),
            1 => (HEADER, (HEADER + 64 * 64).min(bytes.len())),
            _ => (8, bytes.len()),
        };
        for _ in 0..=draw(64) {
            let at = from + draw((to - from) as u64) as usize;
            bytes[at] = draw(256) as u8;
        }
        put(&mut bytes, PID, victim.process.id().into());
        put(&mut bytes, START, start_time(victim.process.id()));
        victim.try_all(&bytes, &format!("seed {seed} round {round}"));
    }
}

#[test]
fn processes_that_are_not_there() {
    for pid in ["0", "4194304", "99999999", "-1", "x", ""] {
        for command in ["dump", "verify", "maps", "stats"] {
            let done = child::run(
                Command::new(build::regall()).args([command, pid]),
                Duration::from_secs(10),
            );
            assert_eq!(
                done.end(),
                "exit 2",
                "regall {command} {pid}: {}",
                done.stderr
            );
            assert!(!done.stderr.trim().is_empty());
        }
    }
}

/// What somebody else of the same user writes over the places for calls.
#[derive(Clone, Copy, PartialEq)]
enum Scribble {
    Nothing,
    /// Each is taken by the program's main thread.
    Taken,
    /// Each is free, whoever has it.
    Free,
}

/// torture's calls that read the kernel's list anew.
fn read_anew(how: Scribble) -> u64 {
    let scribble = how != Scribble::Nothing;
    let folder = tempfile::tempdir().expect("a folder");
    let stats = folder.path().join("stats");
    let mut command = Command::new(build::program("torture"));
    Mode::OnFault.apply(&mut command);
    command.args(["4000", "7"]).env("REGALL_STATS_FILE", &stats);
    let running = child::start(&mut command, Duration::from_secs(60));
    let pid = running.pid();
    // SAFETY: a system call without arguments.
    let at = format!("/dev/shm/regall-{}", unsafe { libc::geteuid() });
    let stop = std::sync::atomic::AtomicBool::new(!scribble);
    let done = std::thread::scope(|scope| {
        let scribbler = scope.spawn(|| {
            let word = match how {
                Scribble::Taken => 1 << 32 | u64::from(pid),
                _ => 0,
            };
            let words = word.to_ne_bytes().repeat(INFLIGHT.1);
            let mut written = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let all = fs::read_dir(&at).into_iter().flatten().flatten();
                let mut its = all.filter(|e| {
                    let name = e.file_name();
                    name.to_string_lossy().starts_with(&format!("{pid}."))
                });
                let file = its.find_map(|e| fs::File::options().write(true).open(e.path()).ok());
                let Some(file) = file else { continue };
                for _ in 0..100 {
                    let wrote = file.write_all_at(&words, INFLIGHT.0 as u64 * 8);
                    written += u32::from(wrote.is_ok());
                }
            }
            written
        });
        let done = running.finish();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let written = scribbler.join().expect("the scribbler");
        assert!(written > 100 || !scribble, "written {written} times");
        done
    });
    done.must_succeed();
    let stats = fs::read_to_string(stats).expect("statistics");
    let number = stats.split_once("\"resyncs\":").expect("resyncs").1;
    let digits = number.trim_start().split(|c: char| !c.is_ascii_digit());
    digits
        .into_iter()
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

#[test]
fn what_is_written_over_calls_in_progress_is_not_believed() {
    let undisturbed = read_anew(Scribble::Nothing);
    for how in [Scribble::Taken, Scribble::Free] {
        let scribbled = read_anew(how);
        assert!(
            scribbled < 2 * undisturbed + 300,
            "{scribbled}, without {undisturbed}"
        );
    }
}
