//! Processes that have just been forked or executed, or are about to end: who looks at one is
//! never told that it runs without the shim, nor that its directory is corrupt.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

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
    let other = |answer: &&String| !["seen", "no such process"].contains(&answer.as_str());
    // One that ends on a busy machine has removed its directory, and may not have the processor
    // for long: 1 of 1,000 looks may meet that. Before, it was one of four.
    let others: u32 = answers
        .iter()
        .filter(|(a, _)| other(a))
        .map(|(_, n)| n)
        .sum();
    assert!(others * 1000 <= looks, "{answers:?}");
    assert!(looks >= CHILDREN && answers["seen"] > 0, "{answers:?}");
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
