//! A program with AddressSanitizer's runtime, which wants to be the first of all libraries.

use super::*;

/// What its runtime says of a library that comes before it.
const NOT_FIRST: &str = "ASan runtime does not come first in initial library list";
const FOUND: &str = "AddressSanitizer: heap-buffer-overflow";

fn runtime() -> String {
    let mut gcc = Command::new("gcc");
    let done = child::run(gcc.arg("-print-file-name=libasan.so"), TIMEOUT);
    done.stdout.trim().to_owned()
}

fn sanitized(folder: &Path) -> PathBuf {
    work(folder, &["-fsanitize=address"])
}

/// By `regall run`, and by hand with the runtime before the shim.
#[test]
fn address_sanitizer() {
    if lacks("AddressSanitizer", &["gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = sanitized(folder.path());
    let rounds = regall_tests::soak::rounds(10, 100).to_string();
    let command = || {
        let mut command = Command::new(&program);
        command.arg(&rounds);
        command
    };
    let mut case = Case::new("AddressSanitizer, first", "work", &command);
    let plain = case.plain();
    case.preload = Some(format!("{}:{}", runtime(), build::shim().display()));
    for mode in modes() {
        case.check(&plain, *mode);
    }

    let run = || {
        let mut command = Command::new(build::regall());
        command.args(["run", "--"]).arg(&program).arg(&rounds);
        command
    };
    let mut case = Case::new("AddressSanitizer, regall run", "work", &run);
    // `regall` needs no shim: it gives it to the program.
    case.preload = Some(String::new());
    for mode in modes() {
        case.check(&plain, *mode);
    }
}

/// It finds what it is there to find.
#[test]
fn address_sanitizer_finds_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = sanitized(folder.path());
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    command
        .args(["run", "--"])
        .arg(&program)
        .args(["1", "overrun"]);
    let done = child::run(&mut command, TIMEOUT);
    assert_eq!(done.end(), "exit 1", "{}", done.stderr);
    assert!(done.stderr.contains(FOUND), "{}", done.stderr);
}

/// As docs/limits.md and docs/troubleshooting.md say: the program ends before the shim runs.
#[test]
fn address_sanitizer_second_by_hand() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = sanitized(folder.path());
    let mut command = Command::new(program);
    Mode::Populate.apply(&mut command);
    let done = child::run(&mut command, TIMEOUT);
    assert_eq!(done.end(), "exit 1", "{}", done.stderr);
    assert!(done.stderr.contains(NOT_FIRST), "{}", done.stderr);
    for page in ["docs/limits.md", "docs/troubleshooting.md"] {
        let text = std::fs::read_to_string(build::root().join(page)).expect("a page");
        assert!(text.contains("verify_asan_link_order=0"), "{page}");
    }
}
