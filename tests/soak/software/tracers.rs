//! Debuggers and tracers: those that stop a program at its calls, and valgrind, which makes
//! another program of it.

use std::time::Instant;

use super::*;
use regall_tests::onlooker::descendants;

fn busy(folder: &Path, rounds: &str) -> Command {
    let mut command = Command::new(folder.join("work"));
    command.arg(rounds);
    command
}

#[test]
fn strace() {
    if lacks("strace -f", &["strace", "gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = work(folder.path(), &[]);
    let rounds = regall_tests::soak::rounds(30, 300).to_string();
    let command = || {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-o"]).arg(folder.path().join("trace"));
        strace.arg(&program).arg(&rounds);
        strace
    };
    let mut case = Case::new("strace -f", "work", &command);
    case.way = Way::Running;
    case.same();
}

/// gdb comes and goes while the program is in its memory calls, with breakpoints on them.
#[test]
fn gdb_attached() {
    if lacks("gdb attached", &["gdb", "gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    work(folder.path(), &[]);
    let rounds = regall_tests::soak::rounds(60, 2000).to_string();
    let plain = Case::new("gdb attached", "work", &|| busy(folder.path(), &rounds)).plain();
    for mode in modes() {
        let row = Row::begin("software", format!("gdb attached {mode:?}"));
        let mut command = busy(folder.path(), &rounds);
        mode.apply(&mut command);
        let onlooker = Onlooker::begin(Way::Running);
        let running = child::start(&mut command, TIMEOUT);
        let pid = running.pid();
        let mut stops = 0;
        let functions = ["mmap", "munmap", "malloc", "mprotect", "mremap"];
        for function in &functions[..if thorough() { 5 } else { 3 }] {
            if child_ended(pid) {
                break;
            }
            stops += usize::from(stopped_at(pid, function));
        }
        let outcome = running.finish();
        let seen = onlooker.finish();
        let mut wrong = seen.problems.clone();
        wrong.extend(outcome.differences(&plain));
        wrong.extend(outcome.complaints());
        if stops < 3 || seen.looks == 0 {
            wrong.push(format!("gdb stopped it {stops} times; {seen:?}"));
        }
        assert!(wrong.is_empty(), "{mode:?}: {}", wrong.join("\n"));
        row.passed(format!("{stops} times; {}", seen.words()));
    }
}

fn child_ended(pid: u32) -> bool {
    !descendants(std::process::id())
        .iter()
        .any(|(p, _)| *p == pid)
}

/// Attaches, goes on to `function`, and leaves. Whether the thread's calls down to it are
/// told right: up to the program's own.
fn stopped_at(pid: u32, function: &str) -> bool {
    let mut gdb = Command::new("gdb");
    Mode::Plain.apply(&mut gdb);
    gdb.args(["-nx", "-batch", "-iex", "set debuginfod enabled off", "-p"]);
    gdb.arg(pid.to_string());
    let break_there = format!("break {function}");
    for words in [
        break_there.as_str(),
        "continue",
        "backtrace",
        "delete",
        "stepi 40",
        "detach",
    ] {
        gdb.args(["-ex", words]);
    }
    let begun = Instant::now();
    let done = child::run(&mut gdb, Duration::from_secs(120));
    let said = format!("{}{}", done.stdout, done.stderr);
    let stopped = said.contains(", ") && said.contains("hit Breakpoint 1");
    let told = said.contains(" in thread (") || said.contains(" in start_thread (");
    if stopped && !told {
        panic!("gdb after {:?}: {said}", begun.elapsed());
    }
    stopped
}

/// From its start: gdb's breakpoint is there before the shim, on the first byte of the code
/// that it would patch. It can't tell the code for what it is, and says so.
#[test]
fn gdb_from_the_start() {
    if lacks("gdb from the start", &["gdb", "gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = work(folder.path(), &[]);
    let under_gdb = |words: &'static [&'static str]| {
        let program = program.clone();
        move || {
            let mut gdb = Command::new("gdb");
            gdb.args(["-nx", "-batch", "-iex", "set debuginfod enabled off"]);
            gdb.args(["-ex", "set breakpoint pending on"]);
            gdb.args(words.iter().flat_map(|w| ["-ex", w]));
            gdb.arg("--args").arg(&program).arg("2");
            gdb
        }
    };
    let result = |outcome: &Outcome| {
        // (Behind what gdb says on the same line, perhaps.)
        let sums = outcome.stdout.lines();
        let sums = sums.filter_map(|l| l.find("sum ").and_then(|at| l.get(at..)));
        let ends = outcome
            .stdout
            .lines()
            .filter(|l| l.contains("exited normally"));
        format!("{:?} {}", sums.collect::<Vec<_>>(), ends.count())
    };
    let just_run = under_gdb(&["run"]);
    let mut case = Case::new("gdb, run", "work", &just_run);
    case.way = Way::Running;
    case.result = &result;
    case.same();

    // It is there before the shim is, and stays.
    let with_breakpoint = under_gdb(&["break munmap", "ignore 1 1000000", "run"]);
    let mut case = Case::new("gdb, break munmap, run", "work", &with_breakpoint);
    case.way = Way::Running;
    case.result = &result;
    case.same();
}

/// Not served: one line, and the program runs on as without the shim.
#[test]
fn valgrind() {
    if lacks("valgrind", &["valgrind", "gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = work(folder.path(), &[]);
    for tool in ["memcheck", "none"] {
        let command = || {
            let mut valgrind = Command::new("valgrind");
            valgrind.args(["-q", &format!("--tool={tool}")]);
            valgrind.arg(&program).arg("1");
            valgrind
        };
        let title = format!("valgrind --tool={tool}");
        let mut case = Case::new(&title, "", &command);
        case.says = &["valgrind translates this program's code"];
        let plain = case.plain();
        case.check(&plain, Mode::Populate);
    }
}
