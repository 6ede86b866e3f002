//! Messages between processes: programs of c-tests/bridge that send to each other's boxes.

use std::process::Command;
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::{build, skip};

/// The programs end themselves after 100 s.
const TIMEOUT: Duration = Duration::from_secs(120);

fn run(program: &str, args: &[&str], mode: Mode, settings: &[(&str, &str)]) -> Outcome {
    let mut command = Command::new(build::program(&format!("bridge/{program}")));
    mode.apply(command.args(args));
    command.envs(settings.iter().map(|(n, v)| (format!("REGALL_{n}"), v)));
    child::run(&mut command, TIMEOUT)
}

/// Runs one that says nothing as long as all is well.
fn quiet(program: &str, args: &[&str], settings: &[(&str, &str)]) {
    let outcome = run(program, args, Mode::OnFault, settings);
    if let Some(why) = outcome.stdout.trim().strip_prefix("SKIPPED: ") {
        return skip(why);
    }
    assert_eq!(outcome.stdout, "", "{program} {args:?} {settings:?}");
    outcome.must_succeed();
}

#[test]
fn every_message_comes_once_whole_and_in_its_senders_order() {
    quiet("boxes", &["many"], &[]);
    // By the mailbox alone, and by rings alone that are small.
    quiet("boxes", &["many"], &[("BOX_MAX", "0")]);
    let small = [("BOX_THRESHOLD", "0"), ("BOX_SIZE", "1")];
    quiet("boxes", &["many"], &small);
    // More threads than rings.
    quiet(
        "boxes",
        &["many"],
        &[("BOX_MAX", "2"), ("BOX_THRESHOLD", "3")],
    );
}

#[test]
fn a_full_box_says_so_and_wrong_arguments_are_told() {
    quiet("boxes", &["full"], &[]);
    quiet("boxes", &["full"], &[("BOX_THRESHOLD", "0")]);
    quiet("boxes", &["full"], &[("BOX_MAX", "0")]);
    quiet("boxes", &["errors"], &[]);
    let inert = run("boxes", &["errors"], Mode::Inert, &[]);
    assert_eq!(inert.stdout, "");
    inert.must_succeed();
}

#[test]
fn children_and_executed_programs_are_other_peers() {
    for settings in [[].as_slice(), &[("FORK", "all")]] {
        quiet("boxes", &["fork"], settings);
    }
    quiet("boxes", &["exec"], &[]);
}

#[test]
fn who_waits_for_the_descriptor_misses_nothing() {
    quiet("boxes", &["event"], &[]);
    quiet("boxes", &["event"], &[("BOX_THRESHOLD", "0")]);
    let helpless = run("boxes", &["event"], Mode::OnFault, &[("COPY", "map,cma")]);
    assert_eq!(helpless.stdout, "SKIPPED: no helper thread\n");
    helpless.must_succeed();
}

/// 256 peers for 32 rings, which come and go; a box is small again when they are quiet.
#[test]
fn a_crowd_shares_the_rings_and_leaves_a_small_box() {
    quiet("boxes", &["crowd", "256"], &[]);
    quiet(
        "boxes",
        &["crowd", "10"],
        &[("BOX_MAX", "3"), ("BOX_THRESHOLD", "5")],
    );
}

#[test]
fn what_a_dead_sender_had_not_finished_is_not_delivered() {
    for (what, place) in [
        ("dies", "mail"),
        ("dies", "ring"),
        ("stops", "mail"),
        ("stops", "ring"),
    ] {
        quiet("boxes_end", &[what, place], &[("BOX_MAX", "4")]);
    }
}

/// By locks that the kernel drops: the receiver can't ask for the senders by their numbers.
#[test]
fn the_dead_leave_no_cell_taken_in_any_pid_namespace() {
    for place in ["beside", "apart"] {
        quiet("boxes_cells", &[place], &[("BOX_MAX", "0")]);
    }
}

#[test]
fn a_dead_receiver_is_told() {
    let outcome = run("boxes_end", &["receiver"], Mode::OnFault, &[]);
    outcome.must_succeed();
    println!("{}", outcome.stdout);
}

#[test]
fn the_end_of_a_peer_without_a_box_is_told() {
    quiet("boxes_end", &["boxless"], &[]);
}

#[test]
fn a_box_is_for_its_own_user() {
    quiet("boxes_users", &["others"], &[]);
    quiet("boxes_users", &["others"], &[("COPY", "map,cma,helper")]);
}

#[test]
fn who_has_no_descriptors_is_told_so() {
    quiet("boxes_users", &["few"], &[]);
}

/// What the kernel keeps apart the helper brings together, unless there is to be none.
#[test]
fn a_process_that_hides_is_reached_by_its_helper_alone() {
    quiet(
        "boxes_users",
        &["hidden", "sent"],
        &[("COPY", "map,cma,helper")],
    );
    quiet(
        "boxes_users",
        &["hidden", "refused"],
        &[("COPY", "map,cma")],
    );
}

#[test]
fn a_notice_comes_behind_its_bytes_by_every_mechanism() {
    for copy in ["auto", "map,cma", "cma", "helper"] {
        for kind in ["shared", "private"] {
            quiet("notify", &[kind], &[("COPY", copy)]);
        }
    }
}
