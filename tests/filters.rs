//! Programs that put themselves under a seccomp filter (`c-tests/filtered`), with threads of the
//! shim's own; and what the shim says of it. (As such, like every program: `programs.rs`.)

use std::process::Command;
use std::time::Duration;

use regall_tests::build;
use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;

const TIMEOUT: Duration = Duration::from_secs(120);

fn filtered(mode: Mode, env: &[(&str, &str)]) -> Outcome {
    let mut command = Command::new(build::program("filtered"));
    mode.apply(&mut command);
    command.envs(env.iter().copied());
    child::run(&mut command, TIMEOUT)
}

fn same(env: &[(&str, &str)]) -> Outcome {
    let plain = filtered(Mode::Plain, &[]);
    let other = filtered(Mode::Populate, env);
    let mut differences = other.differences(&plain);
    differences.retain(|difference| !difference.starts_with("stderr"));
    differences.truncate(20);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    other
}

/// A filter for all threads is for the helper, too, which waits by other calls than the program.
#[test]
fn with_a_helper() {
    same(&[("REGALL_COPY", "map,cma,helper")]);
}

#[test]
fn with_shared_memory_and_a_helper() {
    same(&[("REGALL_COPY", "helper"), ("REGALL_SHARE", "always")]);
}

/// What is left out is said, and of no filter that stops nothing.
#[test]
fn what_is_left_out_is_named() {
    let said = same(&[("REGALL_LOG", "info")]).stderr;
    let lines = said
        .lines()
        .filter(|l| l.contains("asks for a seccomp filter that stops"));
    let names: Vec<_> = lines
        .filter_map(|l| l.split_once("stops ")?.1.split_once(": "))
        .map(|(names, _)| names)
        .collect();
    for expected in ["openat", "process_vm_readv", "mlock"] {
        assert!(names.contains(&expected), "{expected} alone in {names:?}");
    }
    let all = names.iter().filter(|n| n.split(", ").count() > 6).count();
    assert!(all > 6, "{names:?}");
    // No word of a filter that lets calls fail, and so of none that is for getpid.
    assert!(!names.contains(&""), "{names:?}");
}
