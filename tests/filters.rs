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

/// What `c-tests/pinned_under` says in this case.
fn under(case: &str, env: &[(&str, &str)]) -> Vec<String> {
    let mut command = Command::new(build::program("pinned_under"));
    Mode::OnFault.apply(&mut command);
    command.arg(case).envs(env.iter().copied());
    command.stdin(std::fs::File::open("/dev/null").expect("an input"));
    let outcome = child::run(&mut command, TIMEOUT);
    outcome.must_succeed_at(format_args!("{case}"));
    outcome.stdout.lines().map(str::to_owned).collect()
}

fn all_pinned(case: &str, lines: usize) {
    let said = under(case, &[]);
    assert_eq!(said.len(), lines, "{said:?}");
    for line in &said {
        assert!(line.ends_with(": 16384 KiB"), "{said:?}");
    }
}

#[test]
fn a_thread_is_under_its_own() {
    all_pinned("ends", 4);
}

#[test]
fn a_probe_is_no_filter() {
    all_pinned("probes", 2);
}

#[test]
fn what_comes_twice_leaves_nothing_behind() {
    all_pinned("twice", 1);
}

#[test]
fn pinning_goes_on_where_a_handler_comes_between() {
    all_pinned("signals", 1);
    all_pinned("signals_for_all", 1);
}

#[test]
fn of_more_than_there_is_place_for_is_known_what_they_share() {
    assert_eq!(
        under("each", &[]),
        [
            "main: 16384 KiB",
            "a new thread: 16384 KiB",
            "under 70: 16384 KiB",
            "under what stops pinning: 0 KiB"
        ]
    );
}

/// (Of one thread of the program's, and the helper.)
#[test]
fn a_child_of_vfork_is_not_its_parent_where_getpid_is_kept_back() {
    let said = under("children", &[("REGALL_COPY", "helper")]);
    assert_eq!(
        said,
        ["before: 2 threads", "after a child of vfork: 2 threads"]
    );
}

#[test]
fn threads_end_before_what_they_can_not_live_under() {
    let said = under("for_all", &[("REGALL_COPY", "helper")]);
    assert_eq!(
        said,
        [
            "before: 2 threads",
            "under what lets them live: 2 threads",
            "under what does not: 1 threads"
        ]
    );
}

#[test]
fn a_call_that_a_filter_fakes_is_not_taken_for_made() {
    assert_eq!(under("faked", &[]), ["standard input is open"]);
}

/// A filter may go by the flags that a thread is made with.
#[test]
fn a_child_has_no_helper_where_its_flags_are_forbidden() {
    assert_eq!(
        under("flags", &[("REGALL_COPY", "helper")]),
        ["child: 0", "before: 2 threads"]
    );
}
