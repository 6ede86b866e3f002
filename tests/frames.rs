//! Whoever walks the stack through a hooked call finds the frames that are there without the
//! shim: libgcc's unwinder (backtrace(), exceptions, cancellation), libunwind, gdb, perf.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::{build, missing, skip};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The calls that `step` knows.
const CALLS: [&str; 9] = [
    "mmap", "munmap", "mprotect", "madvise", "mremap", "brk", "syscall", "getpid", "fails",
];

/// A program of c-tests/frames; none if what it is made with is missing.
fn program(name: &str, needs: &str) -> Option<PathBuf> {
    let path = build::program(&format!("frames/{name}"));
    if !path.exists() {
        skip(&format!("{needs} is not installed"));
        return None;
    }
    Some(path)
}

fn run(program: &Path, args: &[&str], mode: Mode) -> Outcome {
    let mut command = Command::new(program);
    mode.apply(command.args(args));
    child::run(&mut command, TIMEOUT)
}

/// At every instruction of each call the walk comes to its caller with the caller's registers.
fn at_every_instruction(program: &Path) {
    for call in CALLS {
        for mode in [Mode::Plain, Mode::Inert, Mode::Populate, Mode::Off] {
            run(program, &[call], mode).must_succeed_at(format_args!("{call} {mode:?}"));
        }
    }
}

#[test]
fn libgcc_finds_the_caller_at_every_instruction() {
    at_every_instruction(&build::program("frames/step"));
}

#[test]
fn libunwind_finds_the_caller_at_every_instruction() {
    if let Some(program) = program("step_libunwind", "libunwind-dev") {
        at_every_instruction(&program);
    }
}

/// Destructors of cancelled threads run, and what a signal handler throws is caught.
#[test]
fn cancellation_and_exceptions_come_through_a_hook() {
    let Some(program) = program("unwound", "g++") else {
        return;
    };
    let plain = run(&program, &[], Mode::Plain);
    plain.must_succeed();
    for mode in [Mode::Populate, Mode::OnFault, Mode::Off] {
        let outcome = run(&program, &[], mode);
        assert_eq!(outcome.differences(&plain), [""; 0], "{mode:?}");
    }
}

/// A cancellation that comes right before a system call is not lost.
#[test]
fn cancelled_reads_end() {
    let program = build::program("frames/cancelled_reads");
    for mode in [Mode::Plain, Mode::Populate, Mode::Strict] {
        run(&program, &[], mode).must_succeed_at(format_args!("{mode:?}"));
    }
}

/// gdb's commands: steps from `inner` until it has returned, and looks at the stack each time.
const GDB: &str = r#"
import gdb
gdb.execute("break inner")
gdb.execute("run")
gdb.execute("delete")
steps, lost = 0, []
while True:
    gdb.execute("stepi", to_string=True)
    names, frame = [], gdb.newest_frame()
    while frame is not None and len(names) < 40:
        names.append(frame.name())
        frame = frame.older()
    if names[0] == "outer":
        break
    steps += 1
    if names[-3:] != ["inner", "outer", "main"]:
        lost.append((hex(gdb.newest_frame().pc()), names))
print("lost %d, stepped through the calls: %s" % (len(lost), steps > 10), lost[:3])
"#;

#[test]
fn gdb_finds_the_caller_at_every_instruction() {
    if missing("gdb") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("step.py");
    std::fs::write(&script, GDB).expect("a script");
    for env in [&[][..], &[("REGALL", "1"), ("REGALL_PIN", "off")]] {
        let mut command = Command::new("gdb");
        Mode::Plain.apply(command.args(["-nx", "-batch", "-ex", "set startup-with-shell off"]));
        if !env.is_empty() {
            let preload = format!("set environment LD_PRELOAD {}", build::shim().display());
            command.args(["-ex", &preload]);
        }
        for (name, value) in env {
            command.args(["-ex", &format!("set environment {name} {value}")]);
        }
        command.arg("-x").arg(&script).arg("--args");
        command.arg(build::program("frames/loop")).arg("0");
        let outcome = child::run(&mut command, TIMEOUT);
        outcome.must_succeed();
        let expected = "lost 0, stepped through the calls: True []";
        assert!(outcome.stdout.contains(expected), "{outcome:?}");
    }
}

/// strace unwinds from outside, by libunwind.
#[test]
fn strace_finds_the_caller() {
    if missing("strace") {
        return;
    }
    for mode in [Mode::Plain, Mode::Populate] {
        let mut command = Command::new("strace");
        command.args(["-k", "-e", "trace=munmap"]);
        for (name, value) in mode.settings() {
            command.args(["-E", &format!("{name}={value}")]);
        }
        command.arg(build::program("frames/loop")).arg("0");
        let outcome = child::run(&mut command, TIMEOUT);
        if !outcome.stderr.contains("(_start+") {
            return skip("this strace does not unwind");
        }
        let calls = outcome.stderr.split("munmap(0x").skip(1);
        let stacks: Vec<&str> = calls.filter(|s| s.contains("(main+")).collect();
        let whole = |stack: &&&str| {
            let at = ["munmap+", "(inner+", "(outer+", "(main+"].map(|name| stack.find(name));
            at.is_sorted() && at.iter().all(Option::is_some)
        };
        let (all, whole) = (stacks.len(), stacks.iter().filter(whole).count());
        assert!(
            all >= 100 && whole == all,
            "{mode:?}: {whole} of {all}\n{}",
            stacks[0]
        );
    }
}

/// Of the stacks that perf recorded of `loop`, all and those that come to main.
fn recorded(how: &str, mode: Mode, folder: &Path) -> Option<(usize, usize)> {
    let data = folder.join("perf.data");
    let mut record = Command::new("perf");
    record.args([
        "record",
        "-q",
        "-e",
        "cpu-clock",
        "-F",
        "1000",
        "--call-graph",
        how,
        "-o",
    ]);
    record.arg(&data).arg("--").arg("env");
    // The shim is for the program alone.
    record.args(
        mode.settings()
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    record.arg(build::program("frames/loop")).arg("1");
    Mode::Plain.apply(&mut record);
    let outcome = child::run(&mut record, TIMEOUT);
    if outcome.end() != "exit 0" {
        skip(&format!("perf can't record here: {}", outcome.stderr));
        return None;
    }
    let mut script = Command::new("perf");
    script
        .args(["script", "--comm", "loop", "-F", "ip,sym", "-i"])
        .arg(&data);
    let outcome = child::run(&mut script, TIMEOUT);
    let stacks: Vec<&str> = outcome.stdout.split("\n\n").collect();
    let whole = |stack: &&&str| stack.lines().any(|line| line.ends_with(" main"));
    Some((stacks.len(), stacks.iter().filter(whole).count()))
}

#[test]
fn perf_finds_main() {
    if missing("perf") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    // Hooks have deeper stacks than the 8 KiB that perf takes unasked.
    for how in ["dwarf,16384", "fp"] {
        for mode in [Mode::Plain, Mode::Off] {
            let Some((all, whole)) = recorded(how, mode, folder.path()) else {
                return;
            };
            // Some are of before main: on a busy machine, many of the few.
            assert!(whole * 2 >= all, "{how} {mode:?}: {whole} of {all}");
        }
    }
}
