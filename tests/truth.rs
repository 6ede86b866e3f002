//! 0 missed: what the kernel saw against what went through the shim.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use regall_tests::child::Outcome;
use regall_tests::mode::{Mode, AS_ROOT};
use regall_tests::truth::{self, Truth};
use regall_tests::{build, child, missing, skip};

const TIMEOUT: Duration = Duration::from_secs(300);

/// At least this many memory calls, or the test shows nothing.
fn none_missed(outcome: &Outcome, truth: &Truth, exe: &str, least: usize) {
    outcome.must_succeed();
    let of_exe = |list: &[String]| list.iter().any(|e| e.ends_with(exe));
    assert!(
        of_exe(&truth.active) && !of_exe(&truth.never_active),
        "{exe} ran without the shim: {truth:?}"
    );
    println!(
        "{exe}: {} memory calls after start-up {:?}, {} missed",
        truth.total(),
        truth.calls,
        truth.missed.len()
    );
    let shown: Vec<_> = truth.missed.iter().take(20).cloned().collect();
    assert!(
        truth.missed.is_empty(),
        "{} of {} missed\n{}",
        truth.missed.len(),
        truth.total(),
        shown.join("\n")
    );
    assert!(
        truth.total() >= least,
        "only {} memory calls: {:?}",
        truth.total(),
        truth.calls
    );
}

fn own(program: &str, mode: Mode, least: usize) {
    let path = build::program(program);
    let (outcome, truth) = truth::trace(&[path.to_str().expect("a path")], &[], mode, TIMEOUT);
    none_missed(&outcome, &truth, program, least);
}

#[test]
fn second_libc() {
    own("second_libc", Mode::Off, 50);
}

#[test]
fn second_libc_pinned() {
    own("second_libc", Mode::Populate, 50);
}

#[test]
fn raw_calls() {
    own("raw_calls", Mode::Off, 20);
}

#[test]
fn raw_calls_strict() {
    own("raw_calls", Mode::Strict, 20);
}

#[test]
fn jit() {
    let path = build::program("jit");
    let command = [path.to_str().expect("a path"), "counted"];
    let (outcome, truth) = truth::trace(&command, &[], Mode::Off, TIMEOUT);
    none_missed(&outcome, &truth, "jit", 10);
}

#[test]
fn libraries() {
    own("libraries", Mode::Off, 200);
}

fn mpi(launcher: &str, options: &[&str], program: &str, env: &[(&str, &str)]) {
    if missing(launcher) {
        return;
    }
    let path = build::program(program);
    let mut command = vec![launcher, "-np", "2"];
    command.extend(options);
    command.push(path.to_str().expect("a path"));
    let env = [&AS_ROOT, env].concat();
    let (outcome, truth) = truth::trace(&command, &env, Mode::Off, TIMEOUT);
    assert!(
        outcome.stdout.contains("ring of 2: 0 errors"),
        "{}{}",
        outcome.stdout,
        outcome.stderr
    );
    none_missed(&outcome, &truth, program, 100);
}

const OPEN_MPI: &[&str] = &["--oversubscribe", "--bind-to", "none"];

#[test]
fn mpi_openmpi() {
    mpi("mpirun.openmpi", OPEN_MPI, "ring.openmpi", &[]);
}

#[test]
fn mpi_openmpi_ucx() {
    let ucx = [
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "opal_common_ucx_tls",
        "any",
        "--mca",
        "opal_common_ucx_devices",
        "any",
    ];
    mpi(
        "mpirun.openmpi",
        &[OPEN_MPI, &ucx].concat(),
        "ring.openmpi",
        &[("UCX_TLS", "posix,sysv,cma,self")],
    );
}

#[test]
fn mpi_mpich() {
    mpi("mpirun.mpich", &[], "ring.mpich", &[]);
}

#[test]
fn python_numpy() {
    let python = build::target().join("venv/bin/python");
    if !python.exists() {
        skip("no python with numpy (scripts/setup test makes target/venv)");
        return;
    }
    let code =
        "import numpy as n\na = n.ones((300, 300))\nfor i in range(20): a = a @ n.eye(300)\n\
                b = [n.zeros(100000 * (i % 7 + 1)) for i in range(60)]\nprint(a.sum(), len(b))";
    let command = [python.to_str().expect("a path"), "-c", code];
    let (outcome, truth) = truth::trace(
        &command,
        &[("OPENBLAS_NUM_THREADS", "2")],
        Mode::Off,
        TIMEOUT,
    );
    assert_eq!(outcome.stdout, "90000.0 60\n");
    none_missed(&outcome, &truth, "python", 100);
}

/// The same check sees what a run without the shim misses, and what symbols miss.
#[test]
fn can_fail() {
    let path = build::program("second_libc");
    let command = [path.to_str().expect("a path")];
    for mode in [Mode::Plain, Mode::Inert] {
        let (_, truth) = truth::trace(&command, &[], mode, TIMEOUT);
        assert_eq!(truth.never_active.len(), 1, "{mode:?}: {truth:?}");
    }
    let (_, truth) = truth::trace(&command, &[], Mode::Symbols, TIMEOUT);
    assert!(
        !truth.missed.is_empty() || !truth.never_active.is_empty(),
        "{truth:?}"
    );
}

/// The events of a run that makes `n` calls of each kind, by call.
fn counted(n: u32) -> (BTreeMap<String, u64>, bool) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("stats");
    let mut command = Command::new(build::program("counts"));
    Mode::Off.apply(command.arg(n.to_string()));
    command.env("REGALL_STATS_FILE", &file);
    let outcome = child::run(&mut command, TIMEOUT);
    outcome.must_succeed();
    let text = std::fs::read_to_string(&file).expect("REGALL_STATS_FILE");
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let events = json["events"].as_object().expect("events");
    let events = events
        .iter()
        .map(|(k, v)| (k.clone(), v.as_u64().expect("a number")))
        .collect();
    (events, outcome.stdout == "done\n")
}

/// Events are counted one for one.
#[test]
fn counters() {
    let ((few, _), (many, all)) = (counted(50), counted(150));
    let userfaults = all.then_some("uffdio_register");
    if !all {
        println!("uffdio_register: not counted, there is no userfaultfd");
    }
    for call in [
        "mmap",
        "munmap",
        "mremap",
        "mprotect",
        "madvise",
        "process_madvise",
        "mlock",
        "mlock2",
        "munlock",
        "mlockall",
        "munlockall",
        "remap_file_pages",
        "brk",
        "shmat",
        "shmdt",
        "msync",
    ]
    .into_iter()
    .chain(userfaults)
    {
        let grown = many.get(call).unwrap_or(&0) - few.get(call).unwrap_or(&0);
        assert_eq!(grown, 100, "{call}");
    }
}
