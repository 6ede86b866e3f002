//! Processes that have the shim on and no directory: /dev/shm is missing, full or read-only, or a
//! limit keeps them from making a file there.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use regall_tests::build;
use regall_tests::child::{self, Beside};
use regall_tests::mode::Mode;

use super::root::is_root;

const TIMEOUT: Duration = Duration::from_secs(60);
/// Its child ends after it.
const FORKS: &str = "import os, time; os.fork(); parent = os.getppid()\nwhile os.getppid() == parent: time.sleep(0.1)";

/// A program that forks, in a mount namespace of its own after `first`, a line for the shell.
fn begin(first: &str) -> (Beside, [u32; 2]) {
    let mut command = Command::new("unshare");
    Mode::Plain.apply(&mut command);
    let settings: Vec<_> = Mode::Auto.settings().into_iter().collect();
    let settings = settings
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let program = settings.collect::<Vec<_>>().join(" ");
    let line = format!("{first} && exec env {program} /usr/bin/python3 -c '{FORKS}'");
    let parent = Beside::start(command.args(["-m", "sh", "-c", &line]));
    let pid = parent.pid();
    let until = Instant::now() + TIMEOUT;
    loop {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children = children.unwrap_or_default();
        let is_python = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/comm"));
            name.is_ok_and(|name| name.starts_with("python3"))
        };
        let mut forked = children.split_whitespace().flat_map(str::parse);
        match forked.next().filter(|_| is_python(&pid)) {
            Some(forked) => return (parent, [pid, forked]),
            None => assert!(Instant::now() < until, "{line}: {children}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Every command says of each of them that it has no directory because of `errno`.
fn says(first: &str, errno: i32) {
    let (_parent, pids) = begin(first);
    for pid in pids.map(|pid| pid.to_string()) {
        let why = format!("{pid}: shim on, publishes nothing: errno {errno}");
        let said = |command: &mut Command| {
            let done = child::run(command, TIMEOUT);
            assert_eq!(done.end(), "exit 2", "{command:?}");
            assert!(done.stderr.contains(&why), "{command:?}: {}", done.stderr);
        };
        for command in ["verify", "dump", "maps", "stats"] {
            said(Command::new(build::regall()).args([command, &pid]));
        }
        said(Command::new(build::regall()).args(["peek", &pid, "0x1000", "16"]));
        let mut script = Command::new(build::script("verify-maps.sh"));
        said(script.arg(&pid).arg(build::regall()));
        // Where its /dev/shm is, it is one of all.
        let mut all = Command::new("nsenter");
        all.args(["-t", &pid, "-m"]).arg(build::regall());
        said(all.args(["verify", "--all"]));
    }
    // Elsewhere it is none.
    let all = Command::new(build::regall())
        .args(["verify", "--all", "--allow-none"])
        .output();
    let all = String::from_utf8_lossy(&all.expect("regall").stderr).into_owned();
    assert!(!all.contains(&format!("{}: ", pids[0])), "{all}");
}

#[test]
fn why_a_process_publishes_nothing() {
    if !is_root() {
        return;
    }
    says("mount -t tmpfs -o ro none /dev/shm", libc::EROFS);
    says("mount -t tmpfs -o size=64k none /dev/shm", libc::ENOSPC);
    says("mount -t tmpfs none /dev", libc::ENOENT);
    says("ulimit -f 8", libc::EFBIG);
}
