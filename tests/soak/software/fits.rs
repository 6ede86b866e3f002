//! Applications in memory cgroups that are just large enough: with all defaults they fit.

use regall_tests::fits::{compared_words, MIB};
use regall_tests::skip;

use super::*;

/// Runs `words`, if there is what `probe` looks for.
fn fits(name: &str, probe: &[&str], words: &[&str], limit: u64) {
    let row = Row::begin("software", name);
    let there = child::run(Command::new(probe[0]).args(&probe[1..]), TIMEOUT);
    if there.end() != "exit 0" {
        skip(&format!("{name} is not installed"));
        return row.skipped("not installed");
    }
    match compared_words(name, words, limit * MIB, "", Mode::Auto) {
        Some(problems) => {
            assert!(problems.is_empty(), "{name}: {problems:#?}");
            row.passed(format!("fits into {limit} MiB"));
        }
        None => row.skipped("no memory cgroups here"),
    }
}

#[test]
fn a_java_machine_fits() {
    let words = ["java", "-Xmx64m", "-version"];
    fits("jvm", &["java", "-version"], &words, 192);
}

/// Debian's: another Python may be first on the path.
const PYTHON: &str = "/usr/bin/python3";

fn python_fits(name: &str, module: &str, text: &str, limit: u64) {
    let probe = [PYTHON, "-c", module];
    fits(name, &probe, &[PYTHON, "-c", text], limit);
}

#[test]
fn a_sparse_array_of_numpys_fits() {
    let text =
        "import numpy; a = numpy.zeros((40000, 40000)); a[::4000, ::4000] = 1; print(a.sum())";
    python_fits("numpy", "import numpy", text, 256);
}

#[test]
fn torch_fits() {
    let text = "import torch; print(torch.ones(1000, 1000).sum().item())";
    python_fits("torch", "import torch", text, 700);
}

const WATER: &str = "start water; geometry; O 0 0 0; H 0 1.4 1.1; H 0 -1.4 1.1; end\n\
                     basis; * library 3-21g; end\ntask scf energy\n";

#[test]
fn nwchem_fits() {
    let folder = tempfile::tempdir().expect("a folder");
    let input = folder.path().join("water.nw");
    std::fs::write(&input, WATER.replace("; ", "\n")).expect("its input");
    let run = format!(
        "cd {} && mpirun --oversubscribe -np 2 nwchem water.nw | grep 'Total SCF energy'",
        folder.path().display()
    );
    fits(
        "nwchem",
        &["sh", "-c", "command -v nwchem"],
        &["sh", "-c", &run],
        700,
    );
}

const ALLREDUCE: &str = "import numpy\n\
    from mpi4py import MPI\n\
    here = numpy.full(1000000, MPI.COMM_WORLD.rank + 1.0)\n\
    all = numpy.empty_like(here)\n\
    MPI.COMM_WORLD.Allreduce(here, all)\n\
    if MPI.COMM_WORLD.rank == 0: print(MPI.Get_library_version(), all.sum())\n";

/// Its ranks reserve more of /dev/shm than there is, and use little.
#[test]
fn intel_mpi_fits_a_small_dev_shm() {
    let folder = build::root().join("target/apps/venv");
    let run = "mount -t tmpfs -o size=256m none /dev/shm || exit 99\n\
               export LD_LIBRARY_PATH=\"$0/lib\" MPI4PY_MPIABI=mpich\n\
               exec \"$0/bin/mpiexec.hydra\" -np 2 \"$0/bin/python\" -c \"$1\"";
    let folder = folder.display().to_string();
    let launcher = format!("{folder}/bin/mpiexec.hydra");
    fits(
        "intel-mpi",
        &["test", "-x", &launcher],
        &["sh", "-c", run, &folder, ALLREDUCE],
        512,
    );
}
