//! Nobody gains rights: by regall a process reaches no other that the kernel's rules on
//! credentials keep it from. What is proven here is in SECURITY.md.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::{build, skip};

/// The program ends itself after 60 s.
const TIMEOUT: Duration = Duration::from_secs(70);
/// The user that the program's owners become.
const USER: u32 = 54321;

fn run(args: &[&str], copy: &str, mode: Mode) -> Outcome {
    let mut command = Command::new(build::program("bridge/rights"));
    mode.apply(command.args(args));
    // (Ranks have a helper where peers need one.)
    command.env("REGALL_COPY", copy).env("PMI_RANK", "0");
    command.env("COMMAND", build::regall());
    child::run(&mut command, TIMEOUT)
}

/// Whether this is root, and another user can run what is tested here.
fn possible() -> bool {
    // SAFETY: a system call without arguments.
    if unsafe { libc::geteuid() } != 0 {
        skip("becoming another user: not root");
        return false;
    }
    let mut command = Command::new(build::regall());
    let can = command.arg("--version").uid(USER).gid(USER).output();
    let library = Command::new("test")
        .arg("-r")
        .arg(build::shim())
        .uid(USER)
        .gid(USER)
        .status();
    let can = can.is_ok_and(|done| done.status.success());
    if !can || !library.is_ok_and(|done| done.success()) {
        skip("becoming another user: it can't run programs from here");
        return false;
    }
    true
}

/// An owner that becomes `USER` in that way, and a process of `USER`, which reaches it by no
/// means, though the helper is asked for; without the shim either.
fn reach(how: &str) {
    if !possible() {
        return;
    }
    for (mode, copy) in [
        (Mode::Plain, "auto"),
        (Mode::Populate, "auto"),
        (Mode::Populate, "map,cma,helper"),
    ] {
        run(&["reach", how], copy, mode).must_succeed_at(format_args!("{how} {mode:?} {copy}"));
    }
}

#[test]
fn users_behind_a_filter_reach_each_other() {
    reach("user");
}

#[test]
fn another_group_is_somebody_else() {
    reach("group");
}

#[test]
fn who_was_root_is_not_reached() {
    for how in ["seteuid", "saved", "real", "setuid", "raw"] {
        reach(how);
    }
}

#[test]
fn servers_that_change_their_users_for_files_are_not_reached() {
    reach("files");
}

#[test]
fn who_has_capabilities_is_not_reached_by_who_has_none() {
    for how in ["kept", "ambient"] {
        reach(how);
    }
}

/// Calls that end the helper of who is root.
const CALLS: [&str; 16] = [
    "setuid",
    "setgid",
    "seteuid",
    "setreuid",
    "setregid",
    "setresuid",
    "setresgid",
    "setfsuid",
    "setfsgid",
    "capset",
    "raw setuid",
    "raw setfsuid",
    "raw setresgid",
    "threads setuid",
    "threads seteuid",
    "threads raw setuid",
];

#[test]
fn the_first_change_of_credentials_ends_the_helper() {
    if !possible() {
        return;
    }
    for call in CALLS {
        for mode in [Mode::Populate, Mode::Strict, Mode::Symbols] {
            // What is neither libc's function nor its syscall() is seen by who looks.
            let done = run(&["ends", call], "cma,helper", mode);
            done.must_succeed_at(format_args!("{call} {mode:?}"));
        }
    }
}

#[test]
fn what_changes_no_credentials_leaves_it_alone() {
    if possible() {
        for mode in [Mode::Populate, Mode::Strict, Mode::Symbols] {
            run(&["stays"], "cma,helper", mode).must_succeed_at(format_args!("{mode:?}"));
        }
    }
}

#[test]
fn a_filter_that_kills_for_sockets_does_not_kill_for_a_change() {
    if possible() {
        for mode in [Mode::Populate, Mode::Strict, Mode::Symbols] {
            run(&["filtered"], "cma,helper", mode).must_succeed_at(format_args!("{mode:?}"));
        }
    }
}

#[test]
fn threads_that_leave_the_table_leave_nothing_in_it() {
    for mode in [Mode::Populate, Mode::Strict, Mode::Symbols] {
        run(&["unshares"], "cma,helper", mode).must_succeed_at(format_args!("{mode:?}"));
    }
}

#[test]
fn nothing_stands_of_a_program_that_executed_one_which_lends_nothing() {
    if possible() {
        run(&["stands"], "cma,helper", Mode::Populate).must_succeed();
    }
}

#[test]
fn root_is_not_reached_from_a_user_namespace() {
    if !possible() {
        return;
    }
    let done = run(&["namespaces"], "auto", Mode::Populate);
    match done.end().as_str() {
        "exit 77" => skip(done.stdout.trim()),
        _ => done.must_succeed(),
    }
}

/// Runs `bridge/table what`, which says nothing unless something is wrong.
fn table(what: &str, mode: Mode) {
    let mut command = Command::new(build::program("bridge/table"));
    mode.apply(command.arg(what));
    command.env("REGALL_COPY", "helper");
    let done = child::run(&mut command, TIMEOUT);
    match done.end().as_str() {
        "exit 77" => skip(done.stdout.trim()),
        _ => done.must_succeed_at(format_args!("{what} {mode:?}")),
    }
}

/// Runs `bridge/served what`, as root.
fn served(what: &str) {
    if possible() {
        beside_an_owner("bridge/served", what);
    }
}

/// Runs a program that says nothing unless something is wrong, where only the owner that it
/// starts has the library do something.
fn beside_an_owner(program: &str, what: &str) {
    let mut command = Command::new(build::program(program));
    Mode::Inert.apply(command.arg(what));
    command.env("REGALL_COPY", "helper");
    let done = child::run(&mut command, TIMEOUT);
    match done.end().as_str() {
        "exit 77" => skip(done.stdout.trim()),
        _ => done.must_succeed_at(format_args!("{what}")),
    }
}

#[test]
fn peers_that_give_rights_up_are_not_served_any_more() {
    served("drops");
}

#[test]
fn a_number_in_another_proc_says_nothing_of_a_peer() {
    served("numbers");
}

#[test]
fn what_peers_hand_over_is_not_taken() {
    served("files");
}

#[test]
fn a_process_keeps_no_other_of_its_user_out() {
    beside_an_owner("bridge/crowded", "");
}

#[test]
fn a_file_that_is_shared_makes_nobody_wait() {
    beside_an_owner("bridge/locked", "");
}

#[test]
fn children_that_share_descriptors_close_none_of_their_parents() {
    table("files", Mode::Plain);
    table("files", Mode::Populate);
}

#[test]
fn the_first_process_of_a_namespace_and_its_child_of_another() {
    table("first", Mode::Plain);
    table("first", Mode::Populate);
}

/// Anybody can make a folder of a user's name first. Whoever becomes that user is found
/// nevertheless: by the directory that it had as root, and by that of its next program.
#[test]
fn a_folder_of_somebody_elses_hides_nobody() {
    /// No other test has this user.
    const OTHER: u32 = 54331;
    const BECOME: &str = "setgid(54331); setuid(54331) or die; print qq(become\\n); sleep(60)";
    if !possible() {
        return;
    }
    let folder = |n: u32| match n {
        0 => format!("/dev/shm/regall-{OTHER}"),
        n => format!("/dev/shm/regall-{OTHER}-{n}"),
    };
    let remove = || (0..8).for_each(|n| drop(std::fs::remove_dir_all(folder(n))));
    remove();
    std::fs::create_dir(folder(0)).expect("root's folder");
    let mut becomes = Command::new("perl");
    becomes.args(["-MPOSIX", "-e", BECOME]);
    let mut executes = Command::new("setpriv");
    executes.args(["--reuid=54331", "--regid=54331", "--clear-groups"]);
    executes.args(["sleep", "60"]);
    for mut command in [becomes, executes] {
        Mode::OnFault.apply(&mut command);
        let beside = child::Beside::start(&mut command);
        let mut verify = Command::new(build::regall());
        verify.args(["verify", &beside.pid().to_string()]);
        let status = format!("/proc/{}/status", beside.pid());
        let is_other = || {
            let status = std::fs::read_to_string(&status).unwrap_or_default();
            status.contains(&format!("Uid:\t{OTHER}\t{OTHER}"))
        };
        let mut said = child::run(&mut verify, TIMEOUT);
        // It has to become the other user first.
        for _ in 0..1000 {
            let before = is_other();
            said = child::run(&mut verify, TIMEOUT);
            if before && said.end() == "exit 0" {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(is_other(), "{command:?}");
        said.must_succeed_at(format_args!("{command:?}"));
    }
    remove();
}

/// A process with more rights than its user has its directory for root alone: that is what is said,
/// not that it is somebody else's.
#[test]
fn whose_the_directory_of_a_privileged_process_is_is_told() {
    if !possible() {
        return;
    }
    let privileged = |program: &std::path::Path| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=54321", "--regid=54321", "--clear-groups"]);
        command.args(["--inh-caps=+ipc_lock", "--ambient-caps=+ipc_lock"]);
        command.arg(program);
        command
    };
    let mut sleeps = privileged("sleep".as_ref());
    Mode::OnFault.apply(sleeps.arg("60"));
    let beside = child::Beside::start(&mut sleeps);
    let mut said = String::new();
    // It has to become what it is first.
    for _ in 0..200 {
        let mut verify = privileged(&build::regall());
        let done = child::run(verify.args(["verify", &beside.pid().to_string()]), TIMEOUT);
        said = done.stderr;
        if said.contains("for root alone") {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{said}");
}
