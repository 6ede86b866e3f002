//! CPython's own tests of what has to do with memory, threads and processes.

use super::*;

/// In make test.
const QUICK: &[&str] = &[
    "test_mmap",
    "test_ctypes",
    "test_threading_local",
    "test_thread",
];
const ALL: &[&str] = &[
    "test_mmap",
    "test_threading",
    "test_threading_local",
    "test_thread",
    "test_threadsignals",
    "test_multiprocessing_fork",
    "test_multiprocessing_forkserver",
    "test_multiprocessing_spawn",
    "test_multiprocessing_main_handling",
    "test_ctypes",
    "test_subprocess",
];

/// Which of them passed, failed and were skipped. Times and pids differ.
fn results(outcome: &Outcome) -> String {
    let said = outcome.stdout.lines();
    let summary = said.skip_while(|l| !l.starts_with("== Tests result"));
    let lines = summary.take_while(|l| !l.starts_with("Total duration"));
    lines.map(|l| format!("{l}\n")).collect()
}

/// Debian's Python, which its tests are for.
#[test]
fn python() {
    if !Path::new("/usr/lib/python3.11/test/test_mmap.py").exists() {
        regall_tests::skip("libpython3.11-testsuite is not installed");
        return Row::begin("software", "CPython's tests").skipped("not installed");
    }
    let tests = if thorough() { ALL } else { QUICK };
    for test in tests {
        let folder = tempfile::tempdir().expect("a folder");
        let command = || {
            let mut python = Command::new("/usr/bin/python3");
            python.args(["-m", "test", "--timeout", "600", test]);
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
