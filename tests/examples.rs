//! The programs of examples/: compiled as a user compiles them, run, and compared.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use regall_tests::mode::Mode;
use regall_tests::{build, child, skip};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A compiler's command for an example, which becomes `program`.
fn compiler(cc: &str, name: &str, program: &Path) -> Command {
    let mut command = Command::new(cc);
    command.args("-std=gnu11 -O1 -Wall -Wextra -Werror -pthread".split(' '));
    command.arg("-o").arg(program);
    command.arg(build::root().join("examples").join(format!("{name}.c")));
    command
}

/// Compiles an example into `folder`.
fn compile(name: &str, folder: &Path) -> PathBuf {
    let libraries = build::shim().with_file_name("");
    let program = folder.join(name);
    let mut command = compiler("gcc", name, &program);
    command.arg("-I").arg(build::root().join("include"));
    command.arg(format!("-L{}", libraries.display()));
    command.arg(format!("-Wl,-rpath,{}", libraries.display()));
    child::run(command.arg("-lregall"), TIMEOUT).must_succeed();
    program
}

/// What it prints.
fn run(program: &Path, args: &[&str], copy: &str) -> String {
    let mut command = Command::new(program);
    Mode::Auto.apply(&mut command);
    command.args(args).env("REGALL_COPY", copy);
    let done = child::run(&mut command, TIMEOUT);
    done.must_succeed_at(format_args!("{args:?} {copy}"));
    done.stdout
}

#[test]
fn a_work_queue_does_each_task_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile("work_queue", folder.path());
    let alone = run(&program, &["0", "400"], "auto");
    assert!(alone.starts_with("400 tasks, checksum 0x"), "{alone}");
    for (workers, copy) in [("1", "auto"), ("4", "auto"), ("3", "map,helper")] {
        assert_eq!(
            run(&program, &[workers, "400"], copy),
            alone,
            "{workers} {copy}"
        );
    }
}

/// What the same by MPI prints, in `ranks` ranks of each MPI that is here.
fn by_mpi(name: &str, args: &[&str], ranks: usize, folder: &Path) -> Vec<(&'static str, String)> {
    let of = |mpi: &'static str| {
        let cc = format!("mpicc.{mpi}");
        if !build::have(&cc) {
            skip(&format!("{name} by {mpi}: no {cc}"));
            return None;
        }
        let program = folder.join(format!("{name}.{mpi}"));
        if !program.exists() {
            child::run(&mut compiler(&cc, name, &program), TIMEOUT).must_succeed();
        }
        let mut command = Command::new(format!("mpirun.{mpi}"));
        if mpi == "openmpi" {
            command.args(["--oversubscribe", "--allow-run-as-root"]);
        }
        command.args(["-np", &ranks.to_string()]);
        let done = child::run(command.arg(program).args(args), TIMEOUT);
        done.must_succeed_at(format_args!("{name} {args:?} by {mpi}"));
        Some((mpi, done.stdout))
    };
    ["openmpi", "mpich"].into_iter().filter_map(of).collect()
}

#[test]
fn a_halo_exchange_ends_as_by_mpi() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = run(&compile("halo", folder.path()), &[], "auto");
    assert!(ours.starts_with("checksum "), "{ours}");
    for (mpi, theirs) in by_mpi("halo_mpi", &[], 4, folder.path()) {
        assert_eq!(ours, theirs, "{mpi}");
    }
}

/// From 8 bytes to 16 MiB: short and long vectors, and parts of unequal length.
#[test]
fn an_allreduce_has_the_sums_of_mpi() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile("allreduce", folder.path());
    for ranks in [2, 4] {
        let of = |processes: usize| {
            let processes = processes.to_string();
            run(&program, &["sums", "16777216", &processes], "auto")
        };
        let ours = of(ranks);
        assert_eq!(ours.lines().count(), 8, "{ours}");
        assert_ne!(ours, of(ranks + 1), "the sum of one more");
        for (mpi, theirs) in by_mpi("allreduce_mpi", &["sums"], ranks, folder.path()) {
            assert_eq!(ours, theirs, "{mpi}, {ranks} ranks");
        }
    }
}
