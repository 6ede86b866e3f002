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

#[test]
fn a_sparse_array_of_numpys_fits() {
    let text =
        "import numpy; a = numpy.zeros((40000, 40000)); a[::4000, ::4000] = 1; print(a.sum())";
    let words = ["python3", "-c", text];
    fits("numpy", &["python3", "-c", "import numpy"], &words, 256);
}

#[test]
fn torch_fits() {
    let words = [
        "python3",
        "-c",
        "import torch; print(torch.ones(1000, 1000).sum().item())",
    ];
    fits("torch", &["python3", "-c", "import torch"], &words, 700);
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

#[test]
fn intel_mpi_fits_a_small_dev_shm() {
    let run = "mount -t tmpfs -o size=256m none /dev/shm && mpiexec.hydra -np 2 hostname";
    let probe = ["sh", "-c", "mpiexec.hydra --version | grep -q Intel"];
    fits("intel-mpi", &probe, &["sh", "-c", run], 512);
}
