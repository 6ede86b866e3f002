//! Every variable, well and badly set, seen from outside.

use std::process::{Command, Stdio};
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::coverage::{self, Expected};
use regall_tests::mode::Mode;
use regall_tests::quiet::{Findings, Point, Watcher};
use regall_tests::{build, quiet, thorough};

const TIMEOUT: Duration = Duration::from_secs(30);

fn hello(mode: Mode, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(build::program("hello"));
    mode.apply(&mut command);
    command.envs(env.iter().copied());
    command
}

/// Runs hello with `look` at its quiet point.
fn watched(
    mode: Mode,
    env: &[(&str, &str)],
    look: impl Fn(&Point) -> Vec<String> + Send + 'static,
) -> (Outcome, Findings) {
    let watcher = Watcher::new(look);
    let mut command = hello(mode, env);
    command.env("QUIET_SOCKET", watcher.socket());
    let outcome = child::run(&mut command, TIMEOUT);
    let findings = watcher.finish();
    assert_eq!(findings.looks, 1, "{}{}", outcome.stdout, outcome.stderr);
    (outcome, findings)
}

/// Problems unless the process is inert: no directory, nothing locked.
fn inert(point: &Point) -> Vec<String> {
    let mut problems = Vec::new();
    if coverage::dump(point.pid).is_ok() {
        problems.push("there is a directory".into());
    }
    let mut verify = Command::new(build::regall());
    let code = child::run(verify.args(["verify", &point.pid.to_string()]), TIMEOUT).end();
    if code != "exit 2" {
        problems.push(format!("regall verify: {code}"));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", point.pid)).unwrap_or_default();
    if !status
        .lines()
        .any(|l| l.starts_with("VmLck:") && l.ends_with(" 0 kB"))
    {
        problems.push("memory is locked".into());
    }
    problems
}

fn plain() -> Outcome {
    child::run(&mut hello(Mode::Plain, &[]), TIMEOUT)
}

fn unchanged(outcome: &Outcome, what: &str) {
    let plain = plain();
    assert_eq!(outcome.end(), plain.end(), "{what}: {}", outcome.stderr);
    assert_eq!(outcome.stdout, plain.stdout, "{what}");
    assert_eq!(outcome.others_stderr(), plain.stderr, "{what}");
}

/// Two copies would patch each other: the one that comes later stays off, and says so.
#[test]
fn another_copy_stays_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("another.so");
    std::fs::copy(build::shim(), &copy).expect("a copy");
    for pin in ["auto", "off"] {
        let mut command = hello(Mode::Plain, &[("REGALL", "1"), ("REGALL_PIN", pin)]);
        let both = format!("{}:{}", build::shim().display(), copy.display());
        command.env("LD_PRELOAD", both);
        let outcome = child::run(&mut command, TIMEOUT);
        assert_eq!(outcome.end(), plain().end(), "{}", outcome.stderr);
        let says = |line: &&str| line.contains("another copy of libregall.so is on");
        assert_eq!(
            outcome.stderr.lines().filter(says).count(),
            1,
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn malformed_values_leave_it_inert() {
    for (name, values) in [
        ("REGALL_PIN", &["", "on", "Populate", "populate ", "1"][..]),
        ("REGALL_HCA", &["", "mlx5/0", "a b"]),
        ("REGALL_HCA_MODE", &["", "ODP", "x"]),
        ("REGALL_HCA_FORK", &["", "no"]),
        ("REGALL_HCA_FILL", &["", "never", "Later"]),
        ("REGALL_SCOPE", &["", "text"]),
        ("REGALL_KEYS", &["", "both"]),
        ("REGALL_VERBS", &["", "both"]),
        (
            "REGALL_REVOKE_MS",
            &["", "never", "1.5", "100ms", "3600001"],
        ),
        ("REGALL_ACCESS", &["", "remote", "rw"]),
        (
            "REGALL_LIMIT",
            &[
                "",
                "ten",
                "10X",
                "0%",
                "101%",
                "-1",
                "1.5G",
                "99999999999999999999",
                "99999999999T",
                "1 G",
            ],
        ),
        ("REGALL_ON_LIMIT", &["", "abort"]),
        ("REGALL_INTERCEPT", &["", "seccomp", "patch,strict"]),
        ("REGALL_FORK", &["", "none"]),
        ("REGALL_COPY", &["", "cma,", "cma,bogus", "auto,cma"]),
        ("REGALL_PTRACER", &["", "all"]),
        ("REGALL_SHARE", &["", "all", "never"]),
        ("REGALL_HUGE", &["", "always"]),
        ("REGALL_CHECK", &["", "memory", "1"]),
        ("REGALL_CHECK_EXIT", &["", "256", "-1"]),
        ("REGALL_LOG", &["", "loud", "WARNING"]),
    ]
    .into_iter()
    .step_by(if thorough() { 1 } else { 3 })
    {
        // (The parser's unit tests have all of them.)
        let few = if thorough() { values.len() } else { 1 };
        for value in values.iter().rev().take(few) {
            let what = format!("{name}={value}");
            let (outcome, findings) = watched(Mode::Populate, &[(name, value)], inert);
            assert!(
                findings.problems.is_empty(),
                "{what}: {:?}",
                findings.problems
            );
            unchanged(&outcome, &what);
            let lines = outcome.regall_lines();
            assert_eq!(lines.len(), 1, "{what}: {lines:?}");
            assert!(lines[0].contains(name), "{what}: {lines:?}");
        }
    }
}

/// Only 1 turns the shim on. What may be meant as yes is told, in one line.
#[test]
fn values_that_do_not_turn_it_on() {
    let said = |value: &str| {
        let (outcome, findings) = watched(Mode::Populate, &[("REGALL", value)], inert);
        assert!(
            findings.problems.is_empty(),
            "{value}: {:?}",
            findings.problems
        );
        unchanged(&outcome, value);
        outcome.regall_lines().len()
    };
    for value in ["true", "yes", "11", "1 "] {
        assert_eq!(said(value), 1, "{value}");
    }
    assert_eq!(said("no"), 0);
}

#[test]
fn too_long_values_leave_it_inert() {
    let long = "x".repeat(100_000);
    for name in [
        "REGALL_EXCLUDE",
        "REGALL_STATS_FILE",
        "REGALL_LOG_FILE",
        "REGALL_CHECK_FILE",
        "REGALL_PIN",
        "REGALL_HCA",
    ] {
        let (outcome, findings) = watched(Mode::Populate, &[(name, &long)], inert);
        assert!(
            findings.problems.is_empty(),
            "{name}: {:?}",
            findings.problems
        );
        unchanged(&outcome, name);
        let lines = outcome.regall_lines();
        assert_eq!(lines.len(), 1, "{name}: {lines:?}");
        assert!(
            lines[0].len() < 1000,
            "{name}: a line of {} bytes",
            lines[0].len()
        );
    }
}

#[test]
fn bytes_that_are_no_text_leave_it_inert() {
    use std::os::unix::ffi::OsStrExt;
    let mut command = hello(Mode::Populate, &[]);
    command.env(
        "REGALL_PIN",
        std::ffi::OsStr::from_bytes(b"\xff\xfe\x01\n\x1b[31m"),
    );
    let outcome = child::run(&mut command, TIMEOUT);
    unchanged(&outcome, "bytes");
    let lines = outcome.regall_lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].bytes().all(|b| b >= 0x20),
        "control characters reach the terminal: {lines:?}"
    );
}

#[test]
fn an_unknown_variable_is_one_warning() {
    let (outcome, findings) = watched(Mode::Populate, &[("REGALL_PINN", "off")], |point| {
        quiet::look(point, &Expected::of(Mode::Populate))
    });
    assert!(findings.problems.is_empty(), "{:#?}", findings.problems);
    unchanged(&outcome, "REGALL_PINN");
    let lines = outcome.regall_lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("REGALL_PINN"), "{lines:?}");
}

#[test]
fn without_regall_1_there_is_silence() {
    for env in [
        &[("REGALL_PIN", "nonsense"), ("REGALL_X", "y")][..],
        &[("REGALL", "0"), ("REGALL_PIN", "nonsense")],
        &[("REGALL", ""), ("REGALL_LIMIT", "?")],
        &[("REGALL", "off"), ("REGALL_LOG", "debug")],
    ] {
        let (outcome, findings) = watched(Mode::Inert, env, inert);
        assert!(
            findings.problems.is_empty(),
            "{env:?}: {:?}",
            findings.problems
        );
        unchanged(&outcome, &format!("{env:?}"));
        assert_eq!(outcome.regall_lines(), Vec::<&str>::new(), "{env:?}");
    }
}

#[test]
fn log_levels_and_files() {
    let outcome = child::run(&mut hello(Mode::Populate, &[]), TIMEOUT);
    unchanged(&outcome, "defaults");
    assert_eq!(
        outcome.regall_lines(),
        Vec::<&str>::new(),
        "the defaults say nothing of a run in which all went well"
    );
    for level in ["off", "error", "warn", "info", "debug", "trace"] {
        let outcome = child::run(
            &mut hello(Mode::Populate, &[("REGALL_LOG", level)]),
            TIMEOUT,
        );
        unchanged(&outcome, level);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log-%p");
    let env = [
        ("REGALL_LOG", "trace"),
        ("REGALL_LOG_FILE", path.to_str().expect("a path")),
    ];
    let running = child::start(&mut hello(Mode::Populate, &env), TIMEOUT);
    let file = folder.path().join(format!("log-{}", running.pid()));
    let outcome = running.finish();
    unchanged(&outcome, "REGALL_LOG_FILE");
    assert_eq!(outcome.regall_lines(), Vec::<&str>::new());
    let log = std::fs::read_to_string(&file).expect("the log file");
    assert!(log.lines().count() > 0);
    // A file that can't be written is no reason to change anything.
    let env = [("REGALL_LOG", "debug"), ("REGALL_LOG_FILE", "/nowhere/log")];
    unchanged(
        &child::run(&mut hello(Mode::Populate, &env), TIMEOUT),
        "/nowhere",
    );
}

#[test]
fn stats_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("stats-%p.json");
    let env = [("REGALL_STATS_FILE", path.to_str().expect("a path"))];
    let running = child::start(&mut hello(Mode::Populate, &env), TIMEOUT);
    let pid = running.pid();
    unchanged(&running.finish(), "REGALL_STATS_FILE");
    let text =
        std::fs::read_to_string(folder.path().join(format!("stats-{pid}.json"))).expect("the file");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["pid"], pid);
    assert!(
        json["exe"].as_str().is_some_and(|e| e.ends_with("hello")),
        "{text}"
    );
    assert!(json["mappings"].as_u64().is_some_and(|n| n > 10), "{text}");
    assert!(
        json["bytes"]["state"]["registered"].as_u64() > Some(64 << 20),
        "{text}"
    );
    assert!(
        json["bytes"]["reason"].is_object() && json["counters"]["pins"].as_u64().is_some(),
        "{text}"
    );
    assert!(
        json["events"]["mmap"].as_u64().is_some_and(|n| n >= 3),
        "{text}"
    );
    assert_eq!(
        json["selftest_missed"].as_array().map(Vec::len),
        Some(0),
        "{text}"
    );
    assert!(
        json["sites"]["patched"].as_u64().is_some_and(|n| n > 10),
        "{text}"
    );
    // Where it can't be written, nothing else changes.
    let env = [("REGALL_STATS_FILE", "/nowhere/%p")];
    unchanged(
        &child::run(&mut hello(Mode::Populate, &env), TIMEOUT),
        "/nowhere",
    );
}

/// What the shim writes on its own account ends no program and keeps none waiting: neither by
/// SIGXFSZ nor by SIGPIPE, nor at a pipe that nobody opens.
#[test]
fn what_can_not_be_written_is_left_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let script = |script: &str, name: &str, to: &str| {
        let mut command = Command::new("sh");
        Mode::Populate.apply(&mut command);
        command.env(name, to).args(["-c", script, &at("full")]);
        let done = child::run(&mut command, TIMEOUT);
        assert_eq!(done.end(), "exit 0", "{script} {name}={to} {}", done.stderr);
        done.stderr
    };
    let (log, stats) = ("REGALL_LOG_FILE", "REGALL_STATS_FILE");
    // There is no room for a directory, and none to say so.
    std::fs::write(at("full"), [b'x'; 4096]).expect("a file");
    script("ulimit -f 8; exec true 2>>\"$0\"", "REGALL_LOG", "warn");
    let text = std::fs::read(at("full")).expect("the file");
    assert_eq!(text.len(), 4096);
    // In the midst of a line, and of the statistics, of which nothing stays.
    script("ulimit -f 1; REGALL_LOG=debug exec true", log, &at("log"));
    let said = script("ulimit -f 1; exec true", stats, &at("stats"));
    assert!(
        said.contains("REGALL_STATS_FILE can't be written: errno 27"),
        "{said}"
    );
    let text = std::fs::read_to_string(at("stats")).expect("the file");
    assert_eq!(text, "");
    let made = Command::new("mkfifo").arg(at("pipe")).status();
    assert!(made.is_ok_and(|s| s.success()));
    script("REGALL_LOG=debug exec true", log, &at("pipe"));
    let said = script("exec true", stats, &at("pipe"));
    assert!(said.contains("can't be written: errno 6"), "{said}");
    // A pipe whose reader has gone.
    for name in [log, stats] {
        let mut reader = Command::new("true")
            .stdin(Stdio::piped())
            .spawn()
            .expect("true");
        let pipe = reader.stdin.take().expect("a pipe");
        assert!(reader.wait().is_ok_and(|s| s.success()));
        let mut command = Command::new("true");
        Mode::Populate.apply(&mut command);
        command.env("REGALL_LOG", "debug").env(name, "/dev/stdout");
        let status = command.stdout(pipe).stderr(Stdio::null()).status();
        let status = status.expect("true");
        assert!(status.success(), "{name}: {status}");
    }
}

#[test]
fn only_names_the_programs_to_be_active_in() {
    for (pattern, active) in [
        ("hello", true),
        ("hell?", true),
        ("*o", true),
        ("other", false),
        ("other,hel*", true),
        ("x,y", false),
    ] {
        let (outcome, findings) =
            watched(Mode::Populate, &[("REGALL_ONLY", pattern)], move |point| {
                if active {
                    quiet::look(point, &Expected::of(Mode::Populate))
                } else {
                    inert(point)
                }
            });
        assert!(
            findings.problems.is_empty(),
            "{pattern}: {:#?}",
            findings.problems
        );
        unchanged(&outcome, pattern);
    }
}

/// Launchers and shells are left alone, what they start is not.
#[test]
fn shells_are_left_alone() {
    let hello_path = build::program("hello");
    let watcher = Watcher::of_coverage(Expected::of(Mode::Populate));
    let mut command = Command::new("sh");
    command
        .args(["-c", "grep VmLck /proc/$$/status; \"$0\"; echo $?"])
        .arg(&hello_path);
    Mode::Populate.apply(&mut command);
    command.env("QUIET_SOCKET", watcher.socket());
    let outcome = child::run(&mut command, TIMEOUT);
    let findings = watcher.finish();
    assert_eq!(findings.looks, 1);
    assert!(findings.problems.is_empty(), "{:#?}", findings.problems);
    let lines: Vec<_> = outcome.stdout.lines().collect();
    assert!(
        lines.first().is_some_and(|l| l.ends_with(" 0 kB")),
        "the shell is pinned: {lines:?}"
    );
    assert_eq!(lines.last(), Some(&"7"));
}

#[test]
fn exclude_leaves_mappings_out() {
    for (pattern, name) in [
        ("[heap]", "[heap]"),
        ("*/libc.so.6", "libc.so.6"),
        ("[stack],/nothing", "[stack]"),
    ] {
        let (outcome, findings) = watched(
            Mode::Populate,
            &[("REGALL_EXCLUDE", pattern)],
            move |point| {
                let mut expected = Expected::of(Mode::Populate);
                expected.opted_out = true;
                let mut problems = quiet::look(point, &expected);
                let lines = coverage::dump(point.pid).unwrap_or_default();
                let maps = regall_tests::procfs::smaps(point.pid).unwrap_or_default();
                for vma in maps
                    .iter()
                    .filter(|v| v.name.ends_with(name) && !v.prot.starts_with("---"))
                {
                    let inside = lines
                        .iter()
                        .filter(|l| l.start < vma.end && l.end > vma.start);
                    for line in inside.filter(|l| l.word() != "opted-out") {
                        problems.push(format!("{} is {}", vma.name, line.word()));
                    }
                    if vma.has("lo") {
                        problems.push(format!("{} is locked", vma.name));
                    }
                }
                let others = lines.iter().filter(|l| l.word() == "registered").count();
                if others < 5 {
                    problems.push("nothing else is registered".into());
                }
                problems
            },
        );
        assert!(
            findings.problems.is_empty(),
            "{pattern}: {:#?}",
            findings.problems
        );
        unchanged(&outcome, pattern);
    }
}

fn limited(limit: &'static str, bytes: u64) {
    let (outcome, findings) = watched(Mode::Populate, &[("REGALL_LIMIT", limit)], move |point| {
        let mut expected = Expected::of(Mode::Populate);
        expected.limited = true;
        let mut problems = quiet::look(point, &expected);
        let lines = coverage::dump(point.pid).unwrap_or_default();
        let sum = |word: &str| {
            lines
                .iter()
                .filter(|l| l.word() == word)
                .map(|l| l.end - l.start)
                .sum::<u64>()
        };
        if sum("registered") > bytes {
            problems.push(format!("{} bytes registered", sum("registered")));
        }
        if sum("limit") < 64 << 20 {
            problems.push(format!("only {} bytes are beyond the limit", sum("limit")));
        }
        // With room for them, small private mappings come first.
        if bytes >= 16 << 20 && sum("registered") < 1 << 20 {
            problems.push(format!("only {} bytes registered", sum("registered")));
        }
        problems
    });
    assert!(
        findings.problems.is_empty(),
        "{limit}: {:#?}",
        findings.problems
    );
    unchanged(&outcome, limit);
}

#[test]
fn limit_bounds_what_is_pinned() {
    limited("32M", 32 << 20);
    limited("1M", 1 << 20);
    limited("0", 0);
}

#[test]
fn on_limit_fail_makes_the_call_fail() {
    let env = [("REGALL_LIMIT", "32M"), ("REGALL_ON_LIMIT", "fail")];
    let outcome = child::run(&mut hello(Mode::Populate, &env), TIMEOUT);
    assert_eq!(outcome.end(), "exit 7", "{}", outcome.stderr);
    for said in ["64 MiB: ENOMEM", "64 MiB opened: ENOMEM"] {
        assert!(outcome.stdout.contains(said), "{}", outcome.stdout);
    }
    let env = [("REGALL_LIMIT", "512M"), ("REGALL_ON_LIMIT", "fail")];
    unchanged(
        &child::run(&mut hello(Mode::Populate, &env), TIMEOUT),
        "a limit that suffices",
    );
}

#[test]
fn fork_all_registers_what_is_inherited() {
    for all in [true, false] {
        let watcher = Watcher::new(move |point| {
            let mut problems = quiet::look(point, &Expected::of(Mode::Populate));
            let lines = coverage::dump(point.pid).unwrap_or_default();
            let left = lines.iter().any(|l| l.pin == "inherited");
            // Otherwise children leave it alone.
            let may_be = !all && point.label == "_Fork";
            if left != (!all && point.label.starts_with("child")) && !may_be {
                problems.push(format!("{}: left as inherited: {left}", point.label));
            }
            problems
        });
        let mut command = Command::new(build::program("fork"));
        Mode::Populate.apply(&mut command);
        if all {
            command.env("REGALL_FORK", "all");
        }
        command.env("QUIET_SOCKET", watcher.socket());
        let outcome = child::run(&mut command, Duration::from_secs(120));
        let findings = watcher.finish();
        outcome.must_succeed();
        let shown: Vec<_> = findings.problems.iter().take(20).collect();
        assert!(
            findings.problems.is_empty(),
            "REGALL_FORK=all {all}: {shown:#?}"
        );
    }
}

/// `regall run` gives the command the same environment as one sets by hand.
/// A bad value of a variable leaves the shim inert; a bad flag starts nothing.
#[test]
fn a_wrong_flag_starts_nothing() {
    for flags in [
        &["--limit", "10X"][..],
        &["--pin", "foo"],
        &["--share=yes"],
        &["--pni", "off"],
    ] {
        let mut command = Command::new(build::regall());
        command
            .arg("run")
            .args(flags)
            .args(["--", "echo", "started"]);
        let done = child::run(&mut command, TIMEOUT);
        assert_eq!(
            (done.end().as_str(), done.stdout.as_str()),
            ("exit 2", ""),
            "{flags:?}"
        );
        assert!(done.stderr.starts_with("error: "), "{}", done.stderr);
    }
}

#[test]
fn regall_run() {
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    let watcher = Watcher::of_coverage(Expected::of(Mode::OnFault));
    command
        .args(["run", "--pin", "onfault", "--"])
        .arg(build::program("hello"))
        .arg("word");
    command.env("QUIET_SOCKET", watcher.socket());
    let outcome = child::run(&mut command, TIMEOUT);
    let findings = watcher.finish();
    assert_eq!(outcome.end(), "exit 7", "{}", outcome.stderr);
    assert!(
        outcome
            .stdout
            .starts_with("hello, 1 arguments, last word\n"),
        "{}",
        outcome.stdout
    );
    assert_eq!(findings.looks, 1);
    assert!(findings.problems.is_empty(), "{:#?}", findings.problems);
}
