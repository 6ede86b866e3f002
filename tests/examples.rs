//! The programs of examples/: compiled as a user compiles them, run, and compared.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use regall_tests::mode::Mode;
use regall_tests::{build, child};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Compiles an example into `folder`.
fn compile(name: &str, folder: &Path) -> PathBuf {
    let root = build::root();
    let libraries = build::shim().with_file_name("");
    let program = folder.join(name);
    let mut command = Command::new("gcc");
    command.args([
        "-std=gnu11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pthread",
    ]);
    command.arg("-I").arg(root.join("include"));
    command.arg("-o").arg(&program);
    command.arg(root.join("examples").join(format!("{name}.c")));
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
    for (workers, copy) in [("1", "auto"), ("4", "auto"), ("3", "helper")] {
        assert_eq!(
            run(&program, &[workers, "400"], copy),
            alone,
            "{workers} {copy}"
        );
    }
}
