//! What fits without the shim fits with it, with all defaults: programs that map much and
//! touch little, each in a memory cgroup (or on a file system) that is just large enough.
//! Exit status, output and peak memory are as without it, and nobody is killed. tests/rdma.rs
//! has the same in cgroups of version 2.

use std::process::Command;
use std::time::Duration;

use regall_tests::child;
use regall_tests::fits::{compared, compared_words, MIB};
use regall_tests::mode::Mode;
use regall_tests::{build, procfs, skip};

const TIMEOUT: Duration = Duration::from_secs(60);

fn no_groups() {
    skip("no memory cgroup may be made here, or there are no mount namespaces");
}

fn fits_at(row: &str, place: &str, limit: u64, prepare: &str) {
    match compared(row, place, limit, prepare, Mode::Auto) {
        Some(problems) => assert!(problems.is_empty(), "{row}: {problems:#?}"),
        None => no_groups(),
    }
}

fn fits(row: &str, limit: u64) {
    fits_at(row, "-", limit, "");
}

#[test]
fn large_allocations() {
    fits("large", 64 * MIB);
}

#[test]
fn a_sparse_matrix() {
    fits("sparse", 64 * MIB);
}

#[test]
fn reserves_and_threads() {
    fits("reserves", 96 * MIB);
}

/// What the program itself has populated or locked is resident, as without the shim.
#[test]
fn what_the_program_populates() {
    fits("resident", 64 * MIB);
}

#[test]
fn a_heap() {
    fits("heap", 64 * MIB);
}

/// What is given back by MADV_FREE can be reclaimed.
#[test]
fn freed_memory() {
    fits("freed", 64 * MIB);
}

#[test]
fn processes_that_share_a_cgroup() {
    fits("ranks", 128 * MIB);
}

/// The symmetric heaps of two OpenSHMEM PEs are large, and shared.
#[test]
fn symmetric_heaps() {
    let program = build::program("openshmem/symmetric");
    if !program.exists() {
        return skip("no oshcc");
    }
    let program = program.display().to_string();
    let words = ["oshrun", "--oversubscribe", "-np", "2", &program];
    match compared_words("openshmem", &words, 1024 * MIB, "", Mode::Auto) {
        Some(problems) => assert!(problems.is_empty(), "{problems:#?}"),
        None => no_groups(),
    }
}

/// What is mounted is this test's alone.
const SMALL: &str = "mount -t tmpfs -o size=64m none /mnt || exit 99;";

#[test]
fn a_segment_larger_than_its_file_system() {
    fits_at("segment", "/mnt", 256 * MIB, SMALL);
}

fn fits_with_a_file(row: &str, bytes: u64, limit: u64) {
    let folder = build::root().join("target");
    let file = tempfile::NamedTempFile::new_in(folder).expect("a file");
    file.as_file().set_len(bytes).expect("its length");
    let path = file.path().to_str().expect("a path");
    fits_at(row, path, limit, "");
}

/// Page cache can be reclaimed as long as nobody locks it.
#[test]
fn a_file_larger_than_memory() {
    fits_with_a_file("file", 256 * MIB, 64 * MIB);
}

/// What is searched for system calls is as resident as it was.
#[test]
fn code_that_is_not_run() {
    fits_with_a_file("code", 32 * MIB, 96 * MIB);
}

/// Code in a sparse file is found, and its holes stay holes.
#[test]
fn code_among_holes() {
    fits_with_a_file("holes", MIB, 96 * MIB);
}

/// Page cache, which nobody locks, and the program's own memory that comes after it, or is touched
/// after it.
#[test]
fn a_file_and_memory_of_its_own() {
    let folder = build::root().join("target");
    let file = tempfile::NamedTempFile::new_in(folder).expect("a file");
    file.as_file().set_len(160 * MIB).expect("its length");
    let path = file.path().to_str().expect("a path");
    for row in ["mix", "mix-first", "grows"] {
        match compared(row, path, 200 * MIB, "", Mode::Auto) {
            Some(problems) => assert!(problems.is_empty(), "{row}: {problems:#?}"),
            None => return no_groups(),
        }
    }
}

/// RLIMIT_MEMLOCK binds a process from the moment on when it drops its rights, or is given a limit
/// that it had not: what is locked then, and grows downwards, dies of it.
#[test]
fn stacks_grow_after_rights_are_dropped() {
    for (how, locked) in [
        ("setresuid", "8192"),
        ("capset", "64"),
        ("unshare", "8192"),
        ("setrlimit", "unlimited"),
        ("prlimit", "unlimited"),
    ] {
        let limits = format!("ulimit -l {locked} && ulimit -s unlimited || exit 99;");
        for mode in [Mode::Auto, Mode::OnFault, Mode::Populate] {
            match compared("dropped", how, 256 * MIB, &limits, mode) {
                Some(problems) => assert!(problems.is_empty(), "{how} {mode:?}: {problems:#?}"),
                None => skip(&format!(
                    "{how}: no cgroup, or the limits can't be had here"
                )),
            }
        }
    }
}

/// Page cache, and others who take its room.
#[test]
fn a_file_and_another_process() {
    fits_with_a_file("beside", 100 * MIB, 200 * MIB);
}

/// Where a limit lets next to nothing be pinned, the user reads one line; nothing where nothing
/// is to be pinned.
#[test]
fn much_over_the_limit_is_one_line() {
    let Some(done) = under_a_limit(Mode::OnFault) else {
        return skip("this user can't become another one");
    };
    let said = done.regall_lines();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("RLIMIT_MEMLOCK is 64 KiB"), "{said:?}");
    if procfs::has_swap() {
        return skip("no warning without locks: there is swap space");
    }
    let done = under_a_limit(Mode::Auto).expect("another user, as before");
    assert!(done.regall_lines().is_empty(), "{}", done.stderr);
}

/// How a program with large memory ends for somebody whom the limit binds.
fn under_a_limit(mode: Mode) -> Option<child::Outcome> {
    let mut command = Command::new("setpriv");
    mode.apply(&mut command);
    command.env_remove("LD_PRELOAD").args(NOBODY);
    command.arg(format!("LD_PRELOAD={}", build::shim().display()));
    let program = build::program("fits/fits");
    let done = child::run(command.arg(program).args(["large", "-"]), TIMEOUT);
    if done.stderr.starts_with("setpriv: ") {
        return None;
    }
    done.must_succeed();
    Some(done)
}

/// Somebody whom the limit binds.
const NOBODY: [&str; 7] = [
    "--reuid=65534",
    "--regid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "prlimit",
    "--memlock=65536:65536",
    "env",
];

/// The checks above must be able to fail: with a huge page for each byte that is touched they do.
#[test]
fn can_fail() {
    match compared("sparse", "-", 64 * MIB, "", Mode::OnFault) {
        Some(problems) => assert!(!problems.is_empty(), "it fits all the same"),
        None => no_groups(),
    }
}

/// A file among the directories, removed when dropped.
struct Forged(std::path::PathBuf);

impl Drop for Forged {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// What a process of the same user claims to have locked leaves others their memory, if it has
/// not so much mapped.
#[test]
fn a_claim_beyond_what_is_mapped_counts_for_nothing() {
    let mut small = Command::new("sleep");
    Mode::Plain.apply(small.arg("60"));
    let small = child::Beside::start(&mut small);
    let who = regall_reader::Process::find(small.pid()).expect("a process");
    let folder = format!("/dev/shm/regall-{}", who.uids[0]);
    let name = format!("{}.{}.{}", who.own_pid, who.start_time, who.namespace);
    let forged = Forged(format!("{folder}/{name}").into());
    // Also makes the folder.
    let before = is_limited();
    std::fs::write(&forged.0, [0x7f; 73728]).expect("a directory");
    assert_eq!(is_limited(), before);
}

/// Whether something of a small process, all of which is to be pinned, is not.
fn is_limited() -> bool {
    let mut command = Command::new("sleep");
    Mode::Populate.apply(command.arg("60"));
    let beside = child::Beside::start(&mut command);
    let pid = beside.pid().to_string();
    let regall = |what: &str| {
        let mut command = Command::new(build::regall());
        child::run(command.args([what, &pid]), TIMEOUT)
    };
    // It waits for the process to publish what it has.
    regall("verify").must_succeed();
    regall("dump").stdout.contains("limit")
}
