//! Other allocators, preloaded as well.

use super::*;
use regall_tests::mode::AS_ROOT;

const ALLOCATORS: [&str; 3] = [
    "libjemalloc.so.2",
    "libmimalloc.so.2",
    "libtcmalloc_minimal.so.4",
];

/// Behind the shim, and before it.
fn preloads(allocator: &str) -> [String; 2] {
    let shim = build::shim().display().to_string();
    [format!("{shim}:{allocator}"), format!("{allocator}:{shim}")]
}

fn check(name: &str, program: &str, command: &dyn Fn() -> Command) {
    for allocator in ALLOCATORS {
        let with = || {
            let mut command = command();
            command.env("LD_PRELOAD", allocator);
            command
        };
        let title = format!("{name} with {allocator}");
        let mut case = Case::new(&title, program, &with);
        let plain = case.plain();
        let before = format!("{title}, first");
        for (n, preload) in preloads(allocator).into_iter().enumerate() {
            case.preload = Some(preload);
            case.name = if n == 0 { &title } else { &before };
            for mode in &modes()[..if n == 0 { modes().len() } else { 1 }] {
                case.check(&plain, *mode);
            }
        }
    }
}

/// An allocator that is not there is said on stderr by ld.so, so a missing one is noticed.
#[test]
fn malloc() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = work(folder.path(), &[]);
    let rounds = regall_tests::soak::rounds(10, 200).to_string();
    let command = || {
        let mut command = Command::new(&program);
        command.arg(&rounds);
        command
    };
    check("malloc", "work", &command);
}

#[test]
fn mpi_and_malloc() {
    if lacks("MPI with other allocators", &["mpirun.openmpi"]) {
        return;
    }
    let command = || {
        let mut command = Command::new("mpirun.openmpi");
        command.args(["--oversubscribe", "--bind-to", "none", "-np", "2"]);
        command.arg(build::program("ring.openmpi")).envs(AS_ROOT);
        command
    };
    check("MPI", "ring.openmpi", &command);
}
