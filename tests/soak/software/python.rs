//! CPython's own tests of what has to do with memory, threads and processes.

use super::*;

/// Which of them passed, failed and were skipped. Times and pids differ.
fn results(outcome: &Outcome) -> String {
    let said = outcome.stdout.lines();
    let summary = said.skip_while(|l| !l.starts_with("== Tests result"));
    let lines = summary.take_while(|l| !l.starts_with("Total duration"));
    lines.map(|l| format!("{l}\n")).collect()
}

/// Debian's Python, which its tests are for. In make test those of `quick`, or those cases
/// of the others that are called that.
fn python(tests: &[&str], quick: &str) {
    if !Path::new("/usr/lib/python3.11/test/test_mmap.py").exists() {
        regall_tests::skip("libpython3.11-testsuite is not installed");
        return Row::begin("software", "CPython's tests").skipped("not installed");
    }
    for test in tests {
        let folder = tempfile::tempdir().expect("a folder");
        let command = || {
            let mut python = Command::new("/usr/bin/python3");
            python.args(["-m", "test", "--timeout", "600", test]);
            if !thorough() && !quick.is_empty() {
                python.args(["-m", quick]);
            }
            python.current_dir(folder.path());
            python.env("TMPDIR", folder.path());
            python
        };
        let title = format!("CPython {test}");
        let mut case = Case::new(&title, "python3.11", &command);
        case.result = &results;
        // Some of these tests stop and continue their children and look at that.
        case.way = Way::Running;
        let plain = case.plain();
        assert!(results(&plain).contains("SUCCESS"), "{}", plain.stdout);
        // Populated, what test_mmap maps of files is 6 GiB.
        let quick = [Mode::OnFault];
        for mode in if thorough() { modes() } else { &quick } {
            case.check(&plain, *mode);
        }
    }
}

/// A test for each group: some run for minutes in each mode, and all together for longer than
/// a test may.
#[test]
fn python_memory_and_threads() {
    let quick = [
        "test_mmap",
        "test_ctypes",
        "test_threading_local",
        "test_thread",
    ];
    python(&quick, "");
}

#[test]
fn python_threading() {
    python(&["test_threading", "test_threadsignals"], "test_*lock*");
}

#[test]
fn python_processes_by_fork() {
    python(&["test_multiprocessing_fork"], "test_import");
}

#[test]
fn python_processes_by_a_server() {
    python(&["test_multiprocessing_forkserver"], "test_import");
}

#[test]
fn python_processes_that_are_started() {
    python(&["test_multiprocessing_spawn"], "test_import");
}

#[test]
fn python_processes_main_modules() {
    python(&["test_multiprocessing_main_handling"], "test_*module*");
}

#[test]
fn python_programs() {
    python(&["test_subprocess"], "test_call_*");
}
