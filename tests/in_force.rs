//! The settings that are in force, as the line at `info`, `regall stats` and the statistics
//! at exit tell them: the same ones, those that were asked for, and not those that can't be.

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use regall_tests::filter::{self, Fate};
use regall_tests::mode::Mode;
use regall_tests::quiet::Watcher;
use regall_tests::{build, child};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(30);

/// Setting and value.
type Told = BTreeMap<String, String>;

/// What each of them says of one run of hello.
struct Run {
    line: Told,
    stats: Told,
    at_exit: Told,
}

/// The line's words, without the limit, which has a counter of its own elsewhere.
fn of_line(lines: &[&str]) -> (Told, String) {
    let on: Vec<_> = lines.iter().filter(|l| l.contains(" info: on: ")).collect();
    assert_eq!(on.len(), 1, "{lines:?}");
    let (_, said) = on[0].split_once(" info: on: ").expect("the line");
    let (settings, program) = said.split_once(" in ").expect("a program");
    assert!(program.ends_with("/hello"), "{said}");
    let pairs = settings
        .split(' ')
        .map(|w| w.split_once('=').expect("NAME=VALUE"));
    let mut told: Told = pairs.map(|(n, v)| (n.into(), v.into())).collect();
    let limit = told.remove("limit").expect("a limit");
    (told, limit)
}

/// The strings of a JSON object.
fn of_json(settings: &Value) -> Told {
    let all = settings.as_object().expect("settings");
    let strings = all.iter().filter_map(|(n, v)| Some((n, v.as_str()?)));
    strings.map(|(n, v)| (n.clone(), v.to_string())).collect()
}

fn run(env: &[(&str, &str)], prepare: impl Fn(&mut Command)) -> Run {
    let stats = Arc::new(Mutex::new(None));
    let told = Arc::clone(&stats);
    let watcher = Watcher::new(move |point| {
        let mut command = Command::new(build::regall());
        Mode::Plain.apply(&mut command);
        command.args(["stats", "--json", &point.pid.to_string()]);
        let done = child::run(&mut command, TIMEOUT);
        *told.lock().expect("the lock") = serde_json::from_str::<Value>(&done.stdout).ok();
        Vec::new()
    });
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("stats");
    let mut command = Command::new(build::program("hello"));
    Mode::Auto.apply(&mut command);
    command
        .env("QUIET_SOCKET", watcher.socket())
        .env("REGALL_STATS_FILE", &file)
        .env("REGALL_LOG", "info")
        .envs(env.iter().copied());
    prepare(&mut command);
    let outcome = child::run(&mut command, TIMEOUT);
    assert_eq!(watcher.finish().looks, 1, "{}", outcome.stderr);
    let (line, limit) = of_line(&outcome.regall_lines());
    let stats = stats.lock().expect("the lock").take().expect("statistics");
    let budget = stats["budget_bytes"].as_u64();
    assert_eq!(
        limit,
        budget.map_or("none".into(), |b| format!("{}M", b >> 20))
    );
    let at_exit = std::fs::read_to_string(&file).expect("statistics");
    let at_exit: Value = serde_json::from_str(&at_exit).expect("JSON");
    Run {
        line,
        stats: of_json(&stats["settings"]),
        at_exit: of_json(&at_exit["settings"]),
    }
}

impl Run {
    /// All three agree; their settings but for those that `but` names.
    fn agreed(self, but: &[&str]) -> Vec<String> {
        assert_eq!(self.line, self.stats);
        assert_eq!(self.line, self.at_exit);
        let others = self.line.iter().filter(|(n, _)| !but.contains(&n.as_str()));
        others.map(|(n, v)| format!("{n}={v}")).collect()
    }
}

/// What is in force with no variable set, whatever the machine.
const DEFAULTS: [&str; 12] = [
    "access=local",
    "copy=auto",
    "fork=inherit",
    "hca=adopt",
    "hca_mode=pinned",
    "huge=off",
    "intercept=patch",
    "keys=mapping",
    "on_limit=skip",
    "pin=auto",
    "scope=all",
    "share=off",
];

#[test]
fn the_defaults() {
    assert_eq!(run(&[], |_| ()).agreed(&[]), DEFAULTS);
}

/// Each value of each variable changes what is told of it, and nothing else.
#[test]
fn every_value() {
    for (variable, values) in [
        ("REGALL_PIN", &["onfault", "populate", "off"][..]),
        ("REGALL_HCA", &["off", "no_such_device"]),
        ("REGALL_HCA_MODE", &["odp"]),
        ("REGALL_SCOPE", &["data"]),
        ("REGALL_KEYS", &["exact"]),
        (
            "REGALL_ACCESS",
            &["remote-read", "remote-write", "remote-atomic"],
        ),
        ("REGALL_ON_LIMIT", &["fail"]),
        ("REGALL_INTERCEPT", &["symbols", "strict"]),
        ("REGALL_FORK", &["all"]),
        ("REGALL_COPY", &["off", "cma", "helper,map", "knem,cma"]),
        ("REGALL_SHARE", &["always"]),
    ] {
        let name = variable
            .strip_prefix("REGALL_")
            .expect("it")
            .to_ascii_lowercase();
        for value in values {
            let told = run(&[(variable, value)], |_| ()).agreed(&[]);
            let mut expected: Vec<_> = DEFAULTS.iter().map(|d| d.to_string()).collect();
            let one = expected
                .iter_mut()
                .find(|d| d.starts_with(&(name.clone() + "=")));
            *one.expect("the setting") = format!("{name}={value}");
            assert_eq!(told, expected, "{variable}={value}");
        }
    }
    // It is in force where the kernel leaves huge pages to programs.
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let left = enabled.is_ok_and(|words| words.contains("[madvise]"));
    let all = run(&[("REGALL_HUGE", "advise")], |_| ()).agreed(&[]);
    let expected = if left { "huge=advise" } else { "huge=off" };
    assert!(all.contains(&expected.to_string()), "{all:?}");
}

/// Asked for, and not to be had.
#[test]
fn what_is_not_in_force() {
    let share = [("REGALL_SHARE", "always")];
    let without_cores_of_shared_memory = |command: &mut Command| {
        let write = || std::fs::write("/proc/self/coredump_filter", "0x31");
        // SAFETY: system calls alone, and a path that needs no memory.
        unsafe { command.pre_exec(write) };
    };
    let told = run(&share, without_cores_of_shared_memory).agreed(&[]);
    assert_eq!(told, DEFAULTS);

    // `heap` is for who has others to share with: a rank that is alone on its node has none.
    let heap = ("REGALL_SHARE", "heap");
    let alone = ("OMPI_COMM_WORLD_LOCAL_SIZE", "1");
    let told = run(&[heap, alone], |_| ()).agreed(&[]);
    assert_eq!(told, DEFAULTS);
    for env in [&[heap][..], &[heap, ("PMI_RANK", "0")]] {
        let told = run(env, |_| ()).agreed(&[]);
        assert!(
            told.contains(&"share=heap".to_string()),
            "{env:?}: {told:?}"
        );
    }

    let strict = [("REGALL_INTERCEPT", "strict")];
    let told = run(&strict, |_| ()).agreed(&[]);
    assert!(told.contains(&"intercept=strict".to_string()), "{told:?}");
    // prctl with a third argument: that of PR_SET_SYSCALL_USER_DISPATCH is an address.
    let told = run(&strict, |command| {
        let calls = [(libc::SYS_prctl, u32::MAX)];
        filter::forbid(command, &calls, Fate::Fails(libc::EPERM));
    });
    assert_eq!(told.agreed(&[]), DEFAULTS);
}

/// The line comes once in each program that is executed, not in a child that goes on with
/// it; never without `info`, and never where the shim is not on.
#[test]
fn the_line_comes_once() {
    let script = "exit unless fork; wait; exec '/bin/true'";
    let lines = |env: &[(&str, &str)]| {
        let mut command = Command::new("/usr/bin/perl");
        command.args(["-e", script]);
        Mode::Populate.apply(&mut command);
        command
            .env("REGALL_ONLY", "perl,true")
            .envs(env.iter().copied());
        let done = child::run(&mut command, TIMEOUT);
        done.must_succeed();
        let lines = done.regall_lines().into_iter().map(str::to_string);
        lines.collect::<Vec<_>>()
    };
    let said = lines(&[("REGALL_LOG", "info")]);
    let on: Vec<_> = said.iter().filter(|l| l.contains(" info: on: ")).collect();
    assert_eq!(on.len(), 2, "{said:?}");
    assert!(on[0].ends_with("/perl"), "{said:?}");
    assert!(on[1].ends_with("/true"), "{said:?}");
    // One process: the program that was executed has its predecessor's number.
    let who = |line: &str| line.split(']').next().map(str::to_string);
    assert_eq!(who(on[0]), who(on[1]));
    for env in [
        &[][..],
        &[("REGALL_LOG", "warn")],
        &[("REGALL_LOG", "info"), ("REGALL_ONLY", "other")],
        &[("REGALL_LOG", "info"), ("REGALL", "0")],
    ] {
        assert_eq!(lines(env), Vec::<String>::new(), "{env:?}");
    }
    // A bad setting: it is not on.
    let said = lines(&[("REGALL_LOG", "info"), ("REGALL_PIN", "x")]);
    assert!(
        said.iter().all(|l| l.contains("regall stays off")),
        "{said:?}"
    );
}

/// At `trace` a call has the arguments that it has, and no other registers.
#[test]
fn traced_calls_have_their_arguments() {
    let mut command = Command::new(build::program("hello"));
    Mode::Populate.apply(&mut command);
    let done = child::run(command.env("REGALL_LOG", "trace"), TIMEOUT);
    let lines = done.regall_lines();
    let of = |call: &str| {
        let start = format!(" {call}(");
        let line = lines.iter().find(|l| l.contains(&start))?;
        let (_, rest) = line.split_once(&start)?;
        Some(rest.strip_suffix(')')?.split(", ").count())
    };
    for (call, arguments) in [("mmap", 6), ("mprotect", 3)] {
        assert_eq!(of(call), Some(arguments), "{call}: {lines:#?}");
    }
}
