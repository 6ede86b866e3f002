//! Looks at all processes. They are whatever runs on the machine, so these tests have a file (and
//! thereby a time) of their own, and mind what is said of our processes alone.

mod common;

use std::ffi::OsStr;
use std::process::Command;

use common::{regall, Publisher, REGALL};

#[test]
fn all_are_those_that_run_with_the_shim() {
    let (good, mut bad, mut gone) = (Publisher::new(), Publisher::new(), Publisher::new());
    bad.tell("-");
    gone.tell("x");
    std::thread::sleep(std::time::Duration::from_millis(100));
    let (code, said) = regall(&["verify", "--all"]);
    assert_ne!(code, 0, "{said}");
    assert!(said.contains(&format!("{}: ok, ", good.pid())), "{said}");
    assert!(said.contains(&format!("{}: gap ", bad.pid())), "{said}");
    assert!(!said.contains(&format!("{}:", gone.pid())), "{said}");
}

/// The processes in a command's document, and whether it says that there is none.
fn told(command: &[&str], words: &[&str]) -> (Vec<u64>, bool) {
    let mut regall = Command::new(REGALL);
    let out = regall.args(command).args(words).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    let document: serde_json::Value = serde_json::from_slice(&out.stdout)
        .unwrap_or_else(|e| panic!("{command:?} {words:?}: {e}: {said}"));
    let all = document["processes"].as_array().unwrap();
    let pids = all.iter().map(|p| p["pid"].as_u64().unwrap());
    let none = said.contains("no process with the shim on");
    if none {
        assert_eq!(out.status.code(), Some(2), "{command:?} {words:?}");
    }
    (pids.collect(), none)
}

fn user() -> String {
    // SAFETY: no arguments, can't fail.
    unsafe { libc::geteuid() }.to_string()
}

/// The same words leave others out in each command.
#[test]
fn words_say_which_processes_are_meant() {
    let job = format!("{}.here", std::process::id());
    let (one, other) = (
        Publisher::of_job(&job, 70_001),
        Publisher::of_job(&job, 70_002),
    );
    let named = Publisher::called(OsStr::new("Somebody"));
    let pid = |p: &Publisher| p.pid().parse::<u64>().unwrap();
    let user = user();
    for command in [
        &["verify", "--all", "--json"][..],
        &["top", "--once", "--json", "--interval", "0.1"],
        &["stats", "--all", "--json"],
    ] {
        // (Root's look at everybody's processes has an end, on a busy machine before it comes to
        // these.)
        let said = |words: &[&str]| told(command, &[words, &["--user", &user]].concat()).0;
        let both = [pid(&one), pid(&other)];
        let mut found = said(&["--job", &job]);
        found.sort();
        assert_eq!(found, both, "{command:?}");
        assert_eq!(
            said(&["--job", &job, "--filter", "RANK=70002 sleep"]),
            [both[1]]
        );
        assert_eq!(said(&["--filter", "rank=70001"]), [both[0]]);
        let found = said(&["--filter", &one.pid()]);
        assert!(
            found.contains(&both[0]) && !found.contains(&pid(&named)),
            "{command:?}"
        );
        let found = said(&[]);
        assert!(
            [&one, &other, &named]
                .iter()
                .all(|p| found.contains(&pid(p))),
            "{command:?}"
        );
        let last = command[0] != "top";
        for words in [
            &["--job", "nobody's", "--user", &user][..],
            &["--user", "4294967290"],
            &["--filter", "rank=70001 rank=70002", "--user", &user],
            &["--job", &job, "--user", "4294967290"],
        ] {
            assert_eq!(
                told(command, words),
                (vec![], last),
                "{command:?} {words:?}"
            );
        }
        let (code, said) = regall(&[command, &["--user", "no such user"]].concat());
        assert_eq!((code, said.as_str()), (2, "regall: no user no such user\n"));
    }
    // (The table has the name that a process says, the other ones that of its file.)
    let found = told(
        &["verify", "--all", "--json", "--user", &user],
        &["--filter", "somebody"],
    )
    .0;
    assert_eq!(found, [pid(&named)]);
    // They are about all, not about one that is named.
    for command in ["verify", "stats"] {
        for word in ["--user", "--job", "--filter"] {
            let (code, said) = regall(&[command, &one.pid(), word, "1"]);
            assert!(code == 2 && said.contains("cannot be used with"), "{said}");
            let (code, _) = regall(&[command, word, "1"]);
            assert_eq!(code, 2, "{command} {word}");
        }
    }
}

/// For people: the counters of each, with an empty line between two.
#[test]
fn counters_of_all_are_apart() {
    let job = format!("{}.there", std::process::id());
    let all = [1, 2].map(|rank| Publisher::of_job(&job, rank));
    let mut command = Command::new(REGALL);
    let out = command
        .args(["stats", "--all", "--job", &job, "--user", &user()])
        .output();
    let said = String::from_utf8(out.unwrap().stdout).unwrap();
    let parts: Vec<_> = said.split("\n\n").collect();
    assert_eq!(parts.len(), 2, "{said}");
    for one in &all {
        let line = format!("{:<34} {}\n", "pid", one.pid());
        assert_eq!(
            parts.iter().filter(|p| p.contains(&line)).count(),
            1,
            "{said}"
        );
        let (code, alone) = regall(&["stats", &one.pid()]);
        assert_eq!((code, alone.lines().next()), (0, parts[0].lines().next()));
    }
}
