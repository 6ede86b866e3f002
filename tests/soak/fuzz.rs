//! What comes from outside of the process, made up: no parser of it breaks.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regall_tests::build;
use regall_tests::child::{self, Outcome};
use regall_tests::soak::{self, Row};

#[path = "fuzz/hostile.rs"]
mod hostile;
#[path = "fuzz/interface.rs"]
mod interface;

/// Runs a fuzzer of fuzz/: first on each input that is kept, then for a while on what it makes
/// of them, ten times as long as other things are tried. It stops at the first that breaks it.
fn fuzz(target: &str) {
    let row = Row::begin("fuzz", target);
    let built = run(Command::new(build::script("fuzz")).arg("build"), 1800);
    built.must_succeed();
    let again = fuzzer(target, "-runs=0", 600);
    let inputs = kept(target);
    let ran = figure(&again.stderr, "stat::number_of_executed_units:");
    assert!(inputs > 0 && ran >= inputs, "{ran} of {inputs} inputs");
    let seconds = match std::env::var_os("SOAK_SECONDS") {
        Some(_) => soak::duration().as_secs() * 10,
        None => soak::duration().as_secs(),
    };
    let tried = fuzzer(target, &format!("-max_total_time={seconds}"), seconds + 600);
    let ran = figure(&tried.stderr, "stat::number_of_executed_units:");
    assert!(ran > inputs, "nothing but what is kept was run");
    let branches = figure(&tried.stderr, "cov:");
    row.passed(format!(
        "{ran} inputs in {seconds} s, {inputs} of them kept; {branches} branches"
    ));
}

/// One run, which must find nothing.
fn fuzzer(target: &str, option: &str, seconds: u64) -> Outcome {
    let mut command = Command::new("nice");
    command.arg(build::script("fuzz"));
    let outcome = run(command.args([target, option]), seconds);
    let found = format!(
        "what broke it is under target/fuzz/found: {}",
        outcome.stderr
    );
    outcome.must_succeed_at(format_args!("{target}: {found}"));
    outcome
}

fn run(command: &mut Command, seconds: u64) -> Outcome {
    command
        .env_remove("LD_PRELOAD")
        .env("CARGO_TARGET_DIR", build::target());
    child::run(command, Duration::from_secs(seconds))
}

/// Inputs in a target's corpus.
fn kept(target: &str) -> u64 {
    let listed = Command::new("tar")
        .arg("-tf")
        .arg(build::root().join(format!("fuzz/corpus/{target}.tar.xz")))
        .output()
        .expect("tar");
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    names.lines().filter(|l| !l.ends_with('/')).count() as u64
}

/// The last number behind `name` in what libFuzzer says.
fn figure(said: &str, name: &str) -> u64 {
    let at = said
        .rfind(name)
        .unwrap_or_else(|| panic!("no {name} in {said}"));
    let rest = said[at + name.len()..].trim_start();
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|d| d.parse().ok()).expect("a number")
}

macro_rules! targets {
    ($($target:ident)*) => {
        $(
            #[test]
            fn $target() {
                fuzz(stringify!($target));
            }
        )*

        #[test]
        fn every_target_is_run() {
            let folder = build::root().join("fuzz/targets");
            let there = std::fs::read_dir(folder).expect("the targets");
            for entry in there.flatten() {
                let name = entry.file_name();
                let stem = Path::new(&name).file_stem().and_then(|s| s.to_str());
                let known = [$(stringify!($target)),*, "stage"];
                assert!(stem.is_some_and(|s| known.contains(&s)), "{name:?}");
            }
        }
    };
}

targets!(decoder elf maps environment directory cookies boxes);
