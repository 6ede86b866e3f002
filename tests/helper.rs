//! The shim's own threads: the helper, which copies where the kernel lets no peer at a
//! process's memory, and the copier, which carries out copies that are not waited for.

use std::fs;
use std::process::Command;
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::quiet::Watcher;
use regall_tests::{build, skip};

/// The programs end themselves after 100 s: nothing of theirs may hang.
const TIMEOUT: Duration = Duration::from_secs(120);

fn run(program: &str, args: &[&str], copy: &str, mode: Mode) -> Outcome {
    let mut command = Command::new(build::program(program));
    mode.apply(command.args(args));
    command.env("REGALL_COPY", copy);
    child::run(&mut command, TIMEOUT)
}

/// Runs `bridge/helped what`, which says nothing unless something is wrong.
fn helped(what: &str, copy: &str, mode: Mode) {
    let mut command = Command::new(build::program("bridge/helped"));
    mode.apply(command.arg(what));
    // With `auto` a rank has a helper, where peers need one.
    command.env("REGALL_COPY", copy).env("PMI_RANK", "0");
    let done = child::run(&mut command, TIMEOUT);
    if done.end() == "exit 77" {
        return skip(&format!("{what}: {}", done.stdout.trim()));
    }
    done.must_succeed();
}

#[test]
fn it_alone_copies_every_byte() {
    helped("copy", "helper", Mode::Populate);
    helped("copy", "helper", Mode::Strict);
}

#[test]
fn it_copies_what_any_mechanism_must() {
    let done = run("bridge/copy", &[], "helper", Mode::Populate);
    done.must_succeed();
}

#[test]
fn it_is_there_under_a_seccomp_filter() {
    helped("seccomp", "auto", Mode::Populate);
}

#[test]
fn a_filter_that_kills_is_not_tried() {
    helped("kills", "auto", Mode::Populate);
}

#[test]
fn what_the_program_has_open_is_not_touched() {
    helped("inherits", "auto", Mode::Populate);
    helped("inherits-old", "auto", Mode::Populate);
}

#[test]
fn it_reaches_who_is_not_dumpable() {
    helped("undumpable", "cma,helper", Mode::Populate);
}

/// More processes than it has places for.
#[test]
fn three_hundred_readers_have_their_turns() {
    let done = run("bridge/turns", &["300"], "helper", Mode::Populate);
    assert_eq!(done.stdout, "");
    done.must_succeed();
}

#[test]
fn it_reaches_into_other_user_namespaces() {
    helped("namespaces", "auto", Mode::Populate);
}

#[test]
fn owners_that_die_stop_exec_fork_and_close_descriptors() {
    helped("life", "helper", Mode::Populate);
}

#[test]
fn hostile_peers_do_not_hurt_it() {
    helped("hostile", "helper", Mode::Populate);
}

#[test]
fn queues_of_copies() {
    for copy in ["cma", "helper"] {
        for mode in [Mode::Populate, Mode::Strict, Mode::Inert] {
            let done = run("bridge/queues", &[], copy, mode);
            done.must_succeed_at(format_args!("{copy} {mode:?}"));
        }
    }
}

/// UCX's posix shared memory doesn't work there, and over TCP MPICH 4.0.2 now and then never
/// comes back from MPI_Finalize, without the shim too: System V segments do. Nor do other users' limits on locked memory
/// bind there less than here: libraries are left out, so that there is room for the rest.
#[test]
fn mpi_ranks_in_user_namespaces_of_their_own() {
    if !build::have("mpirun.mpich") || !build::have("mpicc.mpich") {
        return skip("MPICH is not installed");
    }
    let unshare = |c: &mut Command| child::run(c.args(["-U", "true"]), TIMEOUT).end();
    if unshare(&mut Command::new("unshare")) != "exit 0" {
        return skip("no user namespaces");
    }
    let mut command = Command::new("mpirun.mpich");
    Mode::Plain.apply(&mut command);
    command.args(["-np", "3", "env", "REGALL=1", "REGALL_EXCLUDE=*.so*"]);
    command.arg(format!("LD_PRELOAD={}", build::shim().display()));
    command
        .args(["unshare", "-U"])
        .arg(build::program("apart.mpich"));
    command.env("UCX_TLS", "sysv,self");
    let done = child::run(&mut command, TIMEOUT);
    done.must_succeed();
    assert!(
        done.stdout.contains("apart: 3 ranks, 0 errors"),
        "{}",
        done.stdout
    );
}

/// Threads that a process has at its quiet point, by name, and how many descriptors; all
/// of its memory is covered.
fn threads_of(copy: &'static str) -> (Vec<String>, usize) {
    let (send, receive) = std::sync::mpsc::channel();
    let watcher = Watcher::new(move |point| {
        let tasks = fs::read_dir(format!("/proc/{}/task", point.pid)).expect("tasks");
        let name = |t: fs::DirEntry| fs::read_to_string(t.path().join("comm")).expect("a name");
        let names: Vec<_> = tasks
            .flatten()
            .map(|t| name(t).trim().to_string())
            .collect();
        let verified = Command::new(build::regall())
            .args(["verify", &point.pid.to_string()])
            .output()
            .expect("regall");
        let fds = fs::read_dir(format!("/proc/{}/fd", point.pid)).expect("descriptors");
        let _ = send.send((names, verified.status.code(), fds.count()));
        takes_signals(point.pid)
    });
    let mut command = Command::new(build::program("hello"));
    Mode::Populate.apply(&mut command);
    command.env("REGALL_COPY", copy);
    command.env("QUIET_SOCKET", watcher.socket());
    let done = child::run(&mut command, TIMEOUT);
    assert_eq!(done.end(), "exit 7");
    let problems = watcher.finish().problems;
    assert!(problems.is_empty(), "{problems:?}");
    let (names, verified, fds) = receive.recv().expect("a look");
    assert_eq!(verified, Some(0), "{copy}: its memory has gaps");
    (names, fds)
}

/// Threads of the shim's that may be chosen for a signal of the program's: all are to be blocked.
fn takes_signals(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
    let takes = |task: fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).expect("a status");
        let of = |name| {
            status
                .lines()
                .find_map(|line: &str| line.strip_prefix(name))
        };
        let blocked = of("SigBlk:\t").and_then(|mask| u64::from_str_radix(mask, 16).ok());
        // (Nobody blocks SIGKILL and SIGSTOP.)
        let all = !(1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1));
        let is_ours = of("Name:\t").is_some_and(|name| name.starts_with("regall-"));
        (is_ours && blocked != Some(all)).then(|| format!("signals of {status}"))
    };
    tasks.flatten().filter_map(takes).collect()
}

#[test]
fn it_is_started_where_it_is_asked_for_alone() {
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    if status.lines().any(|l| l == "Seccomp:\t2") {
        return skip("processes without a helper: there is a seccomp filter here");
    }
    let (alone, fds) = threads_of("auto");
    assert_eq!(alone, ["hello"]);
    assert_eq!(threads_of("cma").0, ["hello"]);
    let (both, with_helper) = threads_of("cma,helper");
    assert_eq!(both, ["hello", "regall-helper"]);
    assert_eq!(with_helper, fds, "what it has open is not the program's");
}

/// What it maps to hand out bytes is its process's, and published as it is.
#[test]
fn all_memory_is_accounted_for_after_it_has_served() {
    let mut command = Command::new("sleep");
    Mode::OnFault.apply(command.arg("100"));
    command.env("REGALL_COPY", "helper");
    let beside = child::Beside::start(&mut command);
    let pid = beside.pid().to_string();
    let regall = |words: &[&str]| {
        let mut command = Command::new(build::regall());
        child::run(command.args(words).env("REGALL_COPY", "helper"), TIMEOUT)
    };
    let verified = || regall(&["verify", &pid]);
    while verified().end() != "exit 0" {
        std::thread::sleep(Duration::from_millis(10));
    }
    let dump = regall(&["dump", &pid]).stdout;
    let is_served = |line: &&str| line.contains(" rw-p registered ");
    let line = dump.lines().find(is_served).expect("registered memory");
    let address = format!("0x{}", line.split('-').next().unwrap_or_default());
    let peeked = || regall(&["peek", &pid, &address, "64"]);
    // The helper is started after memory is accounted for.
    while peeked().end() != "exit 0" {
        std::thread::sleep(Duration::from_millis(10));
    }
    for _ in 0..2 {
        peeked().must_succeed();
        verified().must_succeed();
    }
}

#[test]
fn nothing_is_left_of_it() {
    // SAFETY: a system call without arguments.
    let folder = format!("/dev/shm/regall-{}", unsafe { libc::geteuid() });
    let of = |pid: u32| {
        let prefix = format!("{pid}.");
        let all = fs::read_dir(&folder).into_iter().flatten().flatten();
        all.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix))
            .count()
    };
    let mut command = Command::new(build::program("bridge/helped"));
    Mode::Populate.apply(command.arg("owner"));
    command.env("REGALL_COPY", "helper");
    let ends_itself = child::start(&mut command, TIMEOUT);
    let pid = ends_itself.pid();
    assert_eq!(ends_itself.finish().end(), "exit 0");
    assert_eq!(of(pid), 0);

    command.stdin(std::process::Stdio::piped());
    let mut killed = command
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("an owner");
    while of(killed.id()) < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    killed.kill().expect("a process");
    killed.wait().expect("a process");
    // The next one that starts sweeps.
    let next = run("hello", &[], "auto", Mode::Populate);
    assert_eq!((next.end().as_str(), of(killed.id())), ("exit 7", 0));
}
