//! Processes that have just been forked or executed, or are about to end: who looks at one is
//! told just that, never that it runs without the shim, nor that its directory is corrupt.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use regall_reader::{self as reader, OpenError, Process};
use regall_tests::mode::Mode;
use regall_tests::{build, child};

/// Some thousands of looks.
const CHILDREN: u32 = 800;

fn parent(children: u32) -> Child {
    let mut command = Command::new(build::program("newborn"));
    Mode::Populate.apply(command.arg(children.to_string()));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn().expect("a parent")
}

/// Every answer that was given of the children, and how often.
fn answers<T>(
    parent: &mut Child,
    look: impl Fn(u32) -> Result<T, OpenError>,
) -> BTreeMap<String, u32> {
    let said = BufReader::new(parent.stdout.take().expect("its output"));
    let mut answers = BTreeMap::new();
    for line in said.lines() {
        let pid = line.expect("a line").parse().expect("a pid");
        let Ok(whom) = Process::find(pid) else {
            continue;
        };
        while whom.alive() {
            let answer = look(pid).map_or_else(|why| why.to_string(), |_| "seen".into());
            *answers.entry(answer).or_insert(0) += 1;
        }
    }
    answers
}

fn seen(pid: u32) -> Result<usize, OpenError> {
    let directory = reader::open(pid)?;
    Ok(directory.snapshot()?.entries.len())
}

#[test]
fn a_child_is_seen_or_gone() {
    let mut parent = parent(CHILDREN);
    let answers = answers(&mut parent, |pid| reader::published_soon(pid, || seen(pid)));
    assert!(parent.wait().expect("an end").success());
    let looks: u32 = answers.values().sum();
    let known = ["seen", "no such process"].map(str::to_owned);
    assert!(answers.keys().all(|a| known.contains(a)), "{answers:?}");
    assert!(looks >= CHILDREN && answers["seen"] > 0, "{answers:?}");
}

/// Runs a child of newborn's up to the last moment before the kernel says that it is ending:
/// its destructors have run, and its directory is gone.
fn about_to_end() -> Child {
    let wait = |pid: i32| {
        let mut status = 0;
        // SAFETY: `status` is written, and is ours.
        let got = unsafe { libc::waitpid(pid, &mut status, libc::__WALL) };
        assert_eq!(got, pid);
        status
    };
    let mut command = Command::new(build::program("newborn"));
    Mode::Populate.apply(command.arg("child"));
    // SAFETY: a system call without memory, between fork and exec.
    let command = unsafe {
        command.pre_exec(|| {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            Ok(())
        })
    };
    let child = command.spawn().expect("a child");
    let pid = child.id() as i32;
    assert!(libc::WIFSTOPPED(wait(pid)), "at its exec");
    let options = libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_EXITKILL;
    // SAFETY: it is a tracee of this thread's, and is stopped; options are no address.
    unsafe { libc::ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options) };
    // It has no other threads that would be traced, and gets no signals.
    // SAFETY: as above.
    unsafe { libc::ptrace(libc::PTRACE_CONT, pid, 0, 0) };
    let status = wait(pid);
    assert_eq!(status >> 16, libc::PTRACE_EVENT_EXIT, "{status:x}");
    child
}

#[test]
fn one_that_is_about_to_end_is_told_from_one_without_the_shim() {
    let mut child = about_to_end();
    let pid = child.id();
    assert_eq!(seen(pid), Err(OpenError::Inert));
    // While it is new, and when it is not any more.
    for age in [0, 3] {
        while Process::find(pid).is_ok_and(|p| p.age() < Some(Duration::from_secs(age))) {
            std::thread::sleep(Duration::from_millis(50));
        }
        let answer = reader::published_soon(pid, || seen(pid));
        assert_eq!(answer, Err(OpenError::Removed), "after {age} s");
    }
    // SAFETY: a system call without memory; it is a tracee of this thread's, and is stopped.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, pid as i32, 0, 0) };
    child.wait().expect("its end");
}

/// The check above must be able to fail: without waiting, some have published nothing yet.
#[test]
fn who_does_not_wait_finds_nothing() {
    let mut parent = parent(CHILDREN / 4);
    let answers = answers(&mut parent, seen);
    assert!(parent.wait().expect("an end").success());
    let early = [OpenError::Inert, OpenError::Unpublished].map(|why| why.to_string());
    let found = early.iter().any(|why| answers.contains_key(why));
    assert!(found, "{answers:?}");
    assert!(
        !answers.keys().any(|a| a.contains("corrupt")),
        "{answers:?}"
    );
}

/// One that does not come to publish anything is waited for, and said to be new.
#[test]
fn the_command_says_what_it_waits_for() {
    let mut late = Command::new("sleep");
    let mut late = late.arg("30").env("REGALL", "1").spawn().expect("sleep");
    let mut verify = Command::new(build::regall());
    let verify = verify.args(["verify", &late.id().to_string()]);
    let done = child::run(verify, std::time::Duration::from_secs(20));
    late.kill().expect("killed");
    late.wait().expect("its end");
    assert_eq!(done.end(), "exit 2");
    assert!(
        done.stderr.contains("has published nothing yet"),
        "{}",
        done.stderr
    );
}
