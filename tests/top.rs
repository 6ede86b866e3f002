//! `regall top`, in a terminal and without one.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use regall_tests::apart::private_shm;
use regall_tests::child::{self, Beside, Outcome};
use regall_tests::mode::Mode;
use regall_tests::screen::Screen;
use regall_tests::{build, coverage, skip};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(60);

/// What maps and unmaps all the time.
const BUSY: &str = "import mmap, time
while True:
    for n in range(20): mmap.mmap(-1, 1 << 20).close()
    time.sleep(0.02)
";

/// A program with the shim on, and its directory published.
fn start(program: &str, arguments: &[&str], env: &[(&str, &str)]) -> Beside {
    let mut command = Command::new(program);
    Mode::Populate.apply(&mut command);
    let beside = Beside::start(command.args(arguments).envs(env.iter().copied()));
    let began = Instant::now();
    while coverage::dump(beside.pid()).is_err() {
        assert!(began.elapsed() < TIMEOUT, "{program} never was published");
        std::thread::sleep(Duration::from_millis(20));
    }
    beside
}

fn busy(env: &[(&str, &str)]) -> Beside {
    start("/usr/bin/python3", &["-c", BUSY], env)
}

fn sleeper(env: &[(&str, &str)]) -> Beside {
    start("/bin/sleep", &["1000"], env)
}

fn regall(arguments: &[&str]) -> Outcome {
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    child::run(command.args(arguments), TIMEOUT)
}

/// What `regall top --once --json` says of a process.
fn figures(beside: &Beside) -> Value {
    let done = regall(&["top", "--once", "--json", "--interval", "0.5"]);
    let all: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let all = all["processes"].as_array().expect("an array");
    let one = all.iter().find(|p| p["pid"] == beside.pid());
    one.unwrap_or_else(|| panic!("{} is missing: {all:#?}", beside.pid()))
        .clone()
}

/// Bytes of the dump whose state or reason is `word`.
fn dumped(beside: &Beside, word: &str) -> u64 {
    let lines = coverage::dump(beside.pid()).expect("a dump");
    let these = lines.iter().filter(|l| l.state == word || l.reason == word);
    these.map(|l| l.end - l.start).sum()
}

#[test]
fn json_says_what_the_dump_says() {
    let ranked = sleeper(&[("OMPI_COMM_WORLD_RANK", "5")]);
    let limited = sleeper(&[("REGALL_LIMIT", "4M")]);
    limited.signal(libc::SIGSTOP);
    for one in [&ranked, &limited] {
        let said = figures(one);
        for (name, word) in [
            ("state", "registered"),
            ("state", "excluded"),
            ("reason", "limit"),
        ] {
            let dumped = dumped(one, word);
            let bytes = said["bytes"][name][word].as_u64().unwrap_or(0);
            assert_eq!(bytes, dumped, "{word}: {said:#}");
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", one.pid()));
        let status = status.expect("a process");
        let locked = status.lines().find_map(|l| l.strip_prefix("VmLck:"));
        let kib: u64 = locked
            .and_then(|l| l.trim().trim_end_matches(" kB").parse().ok())
            .expect("VmLck");
        assert_eq!(said["counters"]["pinned_bytes"], kib << 10, "{said:#}");
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", one.pid()));
        assert_eq!(said["mappings"], maps.expect("maps").lines().count());
        assert!(said["exe"].as_str().is_some_and(|e| e.ends_with("/sleep")));
        assert_eq!(said["live"]["rates"]["events_per_second"], 0.0, "{said:#}");
    }
    let said = figures(&ranked);
    assert_eq!(
        (&said["rank"], &said["live"]["activity"]),
        (&5.into(), &"sleeping".into())
    );
    assert!(said["bytes"]["reason"]["limit"].is_null(), "{said:#}");
    let said = figures(&limited);
    assert_eq!(
        (&said["rank"], &said["live"]["activity"]),
        (&Value::Null, &"stopped".into())
    );
    assert_eq!(said["budget_bytes"], 4 << 20);
    assert!(
        said["bytes"]["reason"]["limit"].as_u64() > Some(1 << 20),
        "{said:#}"
    );
}

#[test]
fn rates_are_those_of_a_busy_process() {
    let busy = busy(&[]);
    let (before, began) = (figures(&busy), Instant::now());
    let mut after = figures(&busy);
    // The time of one call in some is taken: on a busy machine there may be none between two looks.
    let timed = |said: &Value| said["counters"]["hook_ns"].as_u64();
    while timed(&after) == timed(&before) && began.elapsed() < TIMEOUT {
        after = figures(&busy);
    }
    for (group, name) in [("events", "mmap"), ("counters", "hook_ns")] {
        let (before, after) = (&before[group][name], &after[group][name]);
        assert!(after.as_u64() > before.as_u64(), "{name}: {after}");
    }
    let rates = &after["live"]["rates"];
    for name in ["events_per_second", "shim_percent"] {
        assert!(rates[name].as_f64() > Some(0.0), "{name}: {after:#}");
    }
    // 40 calls in about 20 ms; a machine with other work to do takes longer.
    let events = rates["events_per_second"].as_f64().expect("a number");
    assert!((10.0..10_000.0).contains(&events), "{events}");
}

#[test]
fn once_is_plain_text() {
    // Other tests forge directories, which it would tell of.
    let _ = private_shm(64);
    let (one, other) = (sleeper(&[]), busy(&[]));
    let done = regall(&["top", "--once", "--interval", "0.2", "--sort", "maps"]);
    assert_eq!((done.end().as_str(), done.stderr.as_str()), ("exit 0", ""));
    let head = done.stdout.lines().next().expect("a line");
    let heads: Vec<_> = head.split_whitespace().collect();
    let first =
        "PID RANK EXE S MAPS REG EXCL LIMIT PINNED EV/S SHIM% SERVED PASSED HCA UNUSED BUDGET";
    assert!(heads.join(" ").starts_with(first), "{head}");
    assert!(!done.stdout.contains('\x1b'), "{}", done.stdout);
    let line = |beside: &Beside| {
        let pid = beside.pid().to_string();
        let mut lines = done.stdout.lines();
        let found = lines.position(|l| l.split_whitespace().next() == Some(&pid));
        found.unwrap_or_else(|| panic!("{pid} is missing: {}", done.stdout))
    };
    assert!(line(&other) < line(&one), "the most mappings come first");
    let only = ["top", "--once", "--interval", "0.1", "--filter"];
    let pid = one.pid().to_string();
    let filtered = regall(&[&only[..], &[&pid]].concat());
    assert_eq!(filtered.stdout.lines().count(), 2, "{}", filtered.stdout);
}

#[test]
fn what_can_not_be_done_is_said() {
    for (arguments, said) in [
        (&["top"][..], "not a terminal"),
        (
            &["top", "--once", "--sort", "NONSENSE"],
            "no column NONSENSE",
        ),
        (&["top", "--json"], "--once"),
        (&["top", "--interval", "0"], "more than 0"),
    ] {
        let done = regall(arguments);
        assert_eq!(done.end(), "exit 2", "{arguments:?}");
        assert!(done.stderr.contains(said), "{arguments:?}: {}", done.stderr);
    }
}

/// A screen with `regall top` in it.
struct Top {
    screen: Screen,
    folder: tempfile::TempDir,
    before: String,
}

/// A program of its own name, so that others' processes are not in the table.
fn named(folder: &tempfile::TempDir, name: &str) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::copy("/bin/sleep", &path).expect("a copy");
    path
}

impl Top {
    fn start(width: u16, arguments: &str, env: &[(&str, &str)]) -> Self {
        let screen = Screen::new(width, 24, env);
        let folder = tempfile::tempdir().expect("a folder");
        let before = screen.settings(folder.path());
        let top = Self {
            screen,
            folder,
            before,
        };
        top.again(arguments);
        top
    }

    fn again(&self, arguments: &str) {
        let pid = self.folder.path().join("pid");
        self.screen.line(&format!(
            "clear; (echo $(exec sh -c 'echo $PPID') >{}; exec {} top --interval 0.1 {arguments}); echo code=$?",
            pid.display(),
            build::regall().display()
        ));
        self.screen.wait("the table", |seen| has(seen, "SHIM%"));
    }

    fn pid(&self) -> i32 {
        let text = std::fs::read_to_string(self.folder.path().join("pid"));
        text.expect("a pid").trim().parse().expect("a number")
    }

    /// It has ended with `code`, and the terminal is as it was.
    fn ended(&self, code: i32) {
        let code = format!("code={code}");
        self.screen.wait(&code, |seen| seen.contains(&code));
        assert_eq!(self.screen.state(), (false, true), "screen and cursor");
        assert_eq!(self.screen.settings(self.folder.path()), self.before);
    }
}

fn has(seen: &[String], text: &str) -> bool {
    seen.iter().any(|l| l.contains(text))
}

/// Whether anything has a colour: 30 to 37 and 90 to 97, or 38;5;N.
fn coloured(painted: &str) -> bool {
    let sequences = painted.split("\x1b[").skip(1);
    let mut codes = sequences.flat_map(|s| s.split('m').next().unwrap_or("").split(';'));
    codes.any(|c| matches!(c.parse(), Ok(30..=38 | 90..=97)))
}

/// The number of the line that begins with this process.
fn row(seen: &[String], beside: &Beside) -> Option<usize> {
    let pid = beside.pid().to_string();
    let is = |l: &String| {
        let line = l.trim_start_matches(['>', ' ']);
        line.split_whitespace().next() == Some(&pid)
    };
    seen.iter().position(is)
}

fn no_tmux() -> bool {
    let none = !build::have("tmux");
    if none {
        skip("tmux is not installed");
    }
    none
}

#[test]
fn live_in_eighty_columns() {
    if no_tmux() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let name = format!("victim{}", std::process::id());
    let program = named(&folder, &name);
    let program = program.to_str().expect("a path");
    let small = start(program, &["1000"], &[("REGALL_LIMIT", "1M")]);
    let large = start(program, &["1000"], &[]);
    let top = Top::start(80, &format!("--filter {name}"), &[]);
    let screen = &top.screen;

    let seen = screen.wait("both", |s| {
        row(s, &small).is_some() && row(s, &large).is_some()
    });
    assert!(seen.iter().all(|l| l.chars().count() <= 80), "{seen:#?}");
    let heads: Vec<_> = seen[2].split_whitespace().collect();
    let expected = "PID RANK EXE S MAPS REG EXCL LIMIT PINNED EV/S SHIM% SERVED";
    assert_eq!(heads.join(" "), expected);
    assert!(
        seen[23].starts_with("q quit") && seen[23].ends_with("? help"),
        "{seen:#?}"
    );
    let painted = screen.painted();
    assert!(coloured(&painted), "{painted:?}");

    // By what is registered: PID, RANK, EXE, S, MAPS, REG.
    screen.keys(&["s", "s", "s", "s", "s"]);
    screen.wait("the order", |s| {
        has(s, "sorted by REG, largest first") && row(s, &large) < row(s, &small)
    });
    screen.keys(&["r"]);
    screen.wait("the other order", |s| row(s, &small) < row(s, &large));

    // One that stops, one that comes and goes.
    large.signal(libc::SIGSTOP);
    screen.wait("a T", |s| {
        row(s, &large).is_some_and(|n| s[n].contains(" T "))
    });
    let guest = start(program, &["1000"], &[]);
    screen.wait("the third", |s| row(s, &guest).is_some());
    drop(guest);
    screen.wait("two", |s| has(s, "2 match"));

    screen.keys(&["/"]);
    screen.keys(&["-l", " stopped"]);
    screen.wait("the filter", |s| {
        has(s, "filter: ") && row(s, &small).is_none()
    });
    screen.keys(&["Enter"]);
    screen.wait("one", |s| has(s, "1 match") && row(s, &large).is_some());
    screen.keys(&["Enter"]);
    let title = format!("process {}: stopped", large.pid());
    let seen = screen.wait("the detail", |s| has(s, &title));
    assert!(
        has(&seen, "not mapped").eq(&false) && has(&seen, "registered"),
        "{seen:#?}"
    );
    assert!(seen.iter().all(|l| l.chars().count() <= 80), "{seen:#?}");
    drop(large);
    screen.wait("its end", |s| has(s, "it has ended"));
    screen.keys(&["Escape"]);
    screen.wait("nothing left", |s| has(s, "no process matches the filter"));
    screen.keys(&["q"]);
    top.ended(0);
}

#[test]
fn without_colour() {
    if no_tmux() {
        return;
    }
    let limited = sleeper(&[("REGALL_LIMIT", "1M")]);
    for (arguments, env) in [
        ("--no-colour", &[][..]),
        ("--no-color", &[]),
        ("", &[("NO_COLOR", "1")]),
    ] {
        let filter = format!("--filter {} {arguments}", limited.pid());
        let top = Top::start(80, &filter, env);
        top.screen.wait("it", |s| row(s, &limited).is_some());
        let painted = top.screen.painted();
        assert!(!coloured(&painted), "{arguments} {env:?}: {painted:?}");
        assert!(
            painted.contains(";7m"),
            "the selected row is reversed: {painted:?}"
        );
        assert!(has(&top.screen.seen(), ">"), "... and marked");
    }
}

#[test]
fn any_size_and_back() {
    if no_tmux() {
        return;
    }
    let one = sleeper(&[]);
    let top = Top::start(80, &format!("--filter {}", one.pid()), &[]);
    let screen = &top.screen;
    screen.resize(132, 40);
    screen.wait("more columns", |s| {
        has(s, "BUDGET") && s.len() == 40 && s[39].starts_with("q quit")
    });
    screen.resize(40, 10);
    screen.wait("less", |s| {
        s.len() == 10 && s[9].starts_with("q quit") && has(s, "PID") && !has(s, "BUDGET")
    });
    screen.keys(&["Right", "Right", "Right"]);
    screen.wait("others", |s| has(s, "LIMIT") && !has(s, "MAPS"));
    screen.resize(3, 2);
    screen.wait("hardly any room", |s| s.len() == 2);
    screen.resize(80, 24);
    screen.wait("all again", |s| {
        row(s, &one).is_some() && s[23].starts_with("q quit")
    });
    screen.keys(&["?"]);
    screen.wait("help", |s| {
        has(s, "bytes excluded because they are over the limit")
    });
    screen.keys(&["q"]);
    top.ended(0);
}

#[test]
fn the_terminal_is_given_back() {
    if no_tmux() {
        return;
    }
    let one = sleeper(&[]);
    let filter = format!("--filter {}", one.pid());
    let top = Top::start(80, &filter, &[]);
    top.screen.keys(&["C-c"]);
    top.ended(0);
    for (signal, code) in [(libc::SIGTERM, 143), (libc::SIGHUP, 129)] {
        top.again(&filter);
        assert!(top.screen.state().0, "its own screen");
        // SAFETY: a system call without memory; the process waits for keys.
        assert_eq!(unsafe { libc::kill(top.pid(), signal) }, 0);
        top.ended(code);
    }
}

#[test]
fn it_ends_with_its_terminal() {
    if no_tmux() {
        return;
    }
    let one = sleeper(&[]);
    let top = Top::start(80, &format!("--filter {}", one.pid()), &[]);
    let process = PathBuf::from(format!("/proc/{}", top.pid()));
    assert!(process.exists());
    drop(top);
    let began = Instant::now();
    while process.exists() {
        assert!(began.elapsed() < TIMEOUT, "{process:?} is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}
