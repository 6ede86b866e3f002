//! process_vm_readv and process_vm_writev of unmodified programs: as the kernel has them,
//! byte for byte, quicker where the peer's memory can be mapped, and possible where the
//! kernel forbids them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::mode::{launch, Mode};
use regall_tests::{build, missing, skip};

/// The programs end themselves after 100 s.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Where processes leave their counters.
struct Counters(tempfile::TempDir);

impl Counters {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("%p")
    }

    /// The sum of a counter over all processes.
    fn sum(&self, name: &str) -> u64 {
        let files = std::fs::read_dir(self.0.path()).expect("a folder");
        let texts = files.map(|f| std::fs::read_to_string(f.expect("a file").path()));
        let all: Vec<serde_json::Value> = texts
            .map(|t| serde_json::from_str(&t.expect("counters")).expect("JSON"))
            .collect();
        all.iter()
            .filter_map(|v| v["counters"][name].as_u64())
            .sum()
    }
}

fn run(program: &str, args: &[&str], mode: Mode, copy: &str, counters: &Counters) -> Outcome {
    let mut command = Command::new(build::program(program));
    mode.apply(command.args(args));
    // (Ranks have a helper where peers need one.)
    command.env("REGALL_COPY", copy).env("PMI_RANK", "0");
    command.env("REGALL_STATS_FILE", counters.file());
    child::run(&mut command, TIMEOUT)
}

/// Runs `copy/same` with and without the shim; the share of its calls that was served.
fn same(seed: &str, mode: Mode, copy: &str) -> f64 {
    let calls = "2000";
    let counters = Counters::new();
    let plain = run("copy/same", &[seed, calls], Mode::Plain, copy, &counters);
    plain.must_succeed();
    let shim = run("copy/same", &[seed, calls], mode, copy, &counters);
    let differences = shim.differences(&plain);
    assert!(differences.is_empty(), "{mode:?} {copy}: {differences:#?}");
    counters.sum("copy_map") as f64 / 2000.0
}

#[test]
fn calls_are_what_they_are_without_the_shim() {
    for (seed, mode) in [
        ("1", Mode::Populate),
        ("2", Mode::Strict),
        ("3", Mode::Symbols),
        ("4", Mode::Off),
    ] {
        let served = same(seed, mode, "map,cma");
        assert!(served > 0.25, "{mode:?}: only {served} of them were served");
    }
    same("5", Mode::Populate, "auto");
}

#[test]
fn without_map_every_call_is_the_kernels() {
    for copy in ["off", "cma"] {
        assert_eq!(same("6", Mode::Populate, copy), 0.0, "{copy}");
    }
}

/// Runs `copy/life what`, which says nothing unless something is wrong.
fn life(what: &str, copy: &str) {
    for mode in [Mode::Populate, Mode::Strict] {
        let done = run("copy/life", &[what], mode, copy, &Counters::new());
        if done.end() == "exit 77" {
            return skip(&format!("{what}: {}", done.stdout.trim()));
        }
        done.must_succeed_at(format_args!("{mode:?}"));
    }
}

#[test]
fn owners_that_unmap_in_mid_copy() {
    life("unmaps", "map,cma");
}

#[test]
fn peers_that_die_in_mid_copy() {
    life("dies", "map,cma");
}

#[test]
fn peers_that_execute_another_program() {
    life("executes", "map,cma");
}

#[test]
fn pids_that_are_another_process_now() {
    life("reused", "map,cma");
}

#[test]
fn more_peers_than_are_kept() {
    life("many", "map,cma");
}

#[test]
fn children_begin_without_peers() {
    life("forks", "map,cma");
}

#[test]
fn signal_handlers_that_copy_while_their_thread_does() {
    life("signals", "map,cma");
}

#[test]
fn it_works_where_the_kernel_forbids_it() {
    life("forbidden", "auto");
}

/// Memory that peers can map: of the C interface, and malloc's with REGALL_SHARE=heap, in
/// ranks that know nothing of the shim.
const MEMORY: [&str; 2] = ["shared", "heap"];

/// The shim in ranks that `wrapper` starts, whose buffers are of `memory`.
fn ranks(
    launcher: &[&str],
    wrapper: &[&str],
    program: &str,
    memory: &str,
    counters: &Counters,
) -> Outcome {
    let (name, args) = launcher.split_first().expect("a launcher");
    let mut command = Command::new(name);
    command.args(args).args(["-np", "2", "env", "REGALL=1"]);
    command.arg(format!("REGALL_STATS_FILE={}", counters.file().display()));
    command.args(wrapper).arg("env");
    command.arg(format!("LD_PRELOAD={}", build::shim().display()));
    // Long enough that a peer that could not be opened at once is tried again.
    command.arg(build::program(program)).arg("400");
    match memory {
        "heap" => command.env("REGALL_SHARE", "heap"),
        other => command.arg(other),
    };
    command.env("UCX_TLS", "sysv,cma,self");
    launch(&mut command, TIMEOUT)
}

const OPENMPI: [&str; 8] = [
    "mpirun.openmpi",
    "--oversubscribe",
    "--bind-to",
    "none",
    "--mca",
    "pml",
    "ob1",
    "--allow-run-as-root",
];

fn exchanged(done: &Outcome, counters: &Counters) {
    let said = format!("{}{}", done.stdout, done.stderr);
    done.must_succeed();
    assert!(
        done.stdout.contains("exchange: 2 ranks, 0 errors"),
        "{said}"
    );
    assert!(
        !said.contains("Read -1") && !said.contains("not available"),
        "{said}"
    );
    let by = ["map", "cma", "helper"].map(|m| counters.sum(&format!("copy_{m}_bytes")));
    assert!(by[0] > 100 << 20, "by map, cma, helper: {by:?}; {said}");
}

#[test]
fn openmpi_copies_by_mapping() {
    if missing("mpirun.openmpi") || missing("mpicc.openmpi") {
        return;
    }
    for memory in MEMORY {
        let counters = Counters::new();
        let done = ranks(&OPENMPI, &[], "exchange.openmpi", memory, &counters);
        exchanged(&done, &counters);
    }
}

#[test]
fn openmpi_in_a_container() {
    if missing("mpirun.openmpi") || missing("mpicc.openmpi") {
        return;
    }
    let confined = build::program("copy/confined").display().to_string();
    for memory in MEMORY {
        let counters = Counters::new();
        let done = ranks(
            &OPENMPI,
            &[&confined],
            "exchange.openmpi",
            memory,
            &counters,
        );
        exchanged(&done, &counters);
    }
}

#[test]
fn mpich_in_a_container() {
    if missing("mpirun.mpich") || missing("mpicc.mpich") {
        return;
    }
    let confined = build::program("copy/confined").display().to_string();
    for memory in MEMORY {
        let counters = Counters::new();
        let done = ranks(
            &["mpirun.mpich"],
            &[&confined],
            "exchange.mpich",
            memory,
            &counters,
        );
        exchanged(&done, &counters);
    }
}

#[test]
fn mpich_in_user_namespaces_of_its_own() {
    if missing("mpirun.mpich") || missing("mpicc.mpich") {
        return;
    }
    let unshare = |c: &mut Command| child::run(c.args(["-U", "true"]), TIMEOUT).end();
    if unshare(&mut Command::new("unshare")) != "exit 0" {
        return skip("no user namespaces");
    }
    for memory in MEMORY {
        let counters = Counters::new();
        let done = ranks(
            &["mpirun.mpich"],
            &["unshare", "-U"],
            "exchange.mpich",
            memory,
            &counters,
        );
        exchanged(&done, &counters);
    }
}
