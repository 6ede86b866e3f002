//! mpi4py's own test suite, two ranks, with the shim as without it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regall_tests::mode::{Mode, AS_ROOT};
use regall_tests::unittest::{self, Results};
use regall_tests::{build, child, skip, thorough};

/// Left out with and without the shim: of which MPI (or all), which, and why.
const LEFT_OUT: &[(&str, &str, &str)] = &[
    (
        "",
        "test_spawn",
        "each spawn waits for minutes where two ranks fill the machine",
    ),
    ("", "test_dynproc", "as test_spawn"),
    ("", "test_util_pool", "starts its workers by MPI_Comm_spawn"),
    (
        "mpich",
        "test_util_sync",
        "hangs in MPICH 4.0.2 without the shim too",
    ),
];

/// Messages between two, collective ones, one-sided ones and files: all that `make test` has time for.
const SOME: &[&str] = &["test_p2p_buf", "test_cco_buf", "test_rma$", "test_io"];

fn left_out(mpi: &str) -> impl Iterator<Item = (&'static str, &'static str)> + '_ {
    let of_this = move |(which, ..): &&(&str, _, _)| which.is_empty() || *which == mpi;
    LEFT_OUT
        .iter()
        .filter(of_this)
        .map(|(_, module, why)| (*module, *why))
}

fn suite(mpi: &str, mode: Mode) -> Result<Results, String> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(format!("mpirun.{mpi}"));
    command.args(["-np", "2"]);
    if mpi == "openmpi" {
        command.args(["--oversubscribe", "--bind-to", "none"]);
    }
    mode.apply(&mut command);
    command
        .envs(AS_ROOT)
        .env("MPI4PY_MPIABI", mpi)
        .env("LD_LIBRARY_PATH", build::target().join("mpi4py/lib"));
    // Each rank writes a file of its own.
    let script = "exec \"$@\" > \"$0.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\" 2>&1";
    command
        .args(["sh", "-c", script])
        .arg(folder.path().join("rank"));
    command
        .arg(build::target().join("venv/bin/python"))
        .arg("test/main.py")
        .arg("-v");
    for (module, _) in left_out(mpi) {
        command.args(["-e", module]);
    }
    if !thorough() {
        command.args(SOME.iter().flat_map(|module| ["-i", module]));
    }
    command.current_dir(build::target().join("mpi4py/source"));
    let done = child::run(&mut command, Duration::from_secs(400));
    let mut all = Results::new();
    for rank in 0..2 {
        let log =
            std::fs::read_to_string(folder.path().join(format!("rank.{rank}"))).unwrap_or_default();
        let of_rank = unittest::results(&log);
        all.extend(
            of_rank
                .into_iter()
                .map(|(id, end)| (format!("rank {rank} {id}"), end)),
        );
        if done.end() != "exit 0" {
            let tail: Vec<_> = log.lines().rev().take(15).collect();
            println!(
                "rank {rank} ends with (last line first):\n{}",
                tail.join("\n")
            );
        }
    }
    match done.end().as_str() {
        "exit 0" | "exit 1" => Ok(all),
        end => Err(format!(
            "{mpi} {mode:?}: {end} after {} results: {}",
            all.len(),
            done.stderr
        )),
    }
}

fn same(mpi: &str) {
    let needed = [
        build::target().join("venv/bin/python"),
        build::target().join("mpi4py/source/test/main.py"),
        Path::new("/usr/bin").join(format!("mpirun.{mpi}")),
    ];
    if let Some(missing) = needed.iter().find(|p| !p.exists()) {
        skip(&format!(
            "mpi4py under {mpi}: {} is not there",
            missing.display()
        ));
        return;
    }
    for (module, why) in left_out(mpi) {
        println!("left out: {module}: {why}");
    }
    let plain = suite(mpi, Mode::Plain).expect("the suite without the shim");
    let passes = plain.values().filter(|v| *v == "ok").count();
    println!(
        "{mpi}: {} results without the shim, {passes} of them ok",
        plain.len()
    );
    let enough = if thorough() { 1500 } else { 150 };
    assert!(passes > enough, "only {passes} tests pass without the shim");
    // For a moment in make test: one mode each.
    let modes = match (std::env::var_os("SOAK_SECONDS"), mpi) {
        (Some(_), _) => &[Mode::Auto, Mode::Populate, Mode::Heap][..],
        (None, "openmpi") => &[Mode::Populate],
        (None, _) => &[Mode::Heap],
    };
    for mode in modes {
        compare(&plain, mpi, *mode);
    }
}

fn compare(plain: &Results, mpi: &str, mode: Mode) {
    let other = suite(mpi, mode).expect("the suite with the shim");
    let differs = |(id, end): &(&String, &String)| other.get(*id) != Some(*end);
    let changed: Vec<_> = plain
        .iter()
        .filter(differs)
        .map(|(id, end)| format!("{id}: {end}, now {:?}", other.get(id)))
        .collect();
    assert!(
        changed.is_empty(),
        "{mode:?}: {} results differ\n{}",
        changed.len(),
        changed[..changed.len().min(20)].join("\n")
    );
    assert_eq!(plain.len(), other.len());
}

#[test]
fn openmpi() {
    same("openmpi");
}

#[test]
fn mpich() {
    same("mpich");
}
