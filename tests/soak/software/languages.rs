//! Languages with heaps of their own.

use super::*;

fn rounds(short: u64, long: u64) -> String {
    regall_tests::soak::rounds(short, long).to_string()
}

/// The virtual machine reserves its heap, and gives back and takes what it needs of it.
#[test]
fn java() {
    if lacks("java", &["java", "javac"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut javac = Command::new("javac");
    javac.arg("-d").arg(folder.path()).arg(source("Work.java"));
    compiled(javac);
    let collectors = ["-XX:+UseG1GC", "-XX:+UseSerialGC", "-XX:+UseZGC"];
    for collector in &collectors[..if thorough() { 3 } else { 1 }] {
        let command = || {
            let mut java = Command::new("java");
            java.args(["-Xmx256m", collector, "-cp"]).arg(folder.path());
            java.args(["Work", &rounds(1, 20)]);
            java
        };
        Case::new(&format!("java {collector}"), "java", &command).same();
    }
}

/// It compiles to memory that it makes executable, and reserves gigabytes for WebAssembly.
#[test]
fn node() {
    if lacks("node", &["node"]) {
        return;
    }
    let command = || {
        let mut node = Command::new("node");
        node.arg("--expose-gc")
            .arg(source("work.js"))
            .arg(rounds(1, 30));
        node
    };
    Case::new("node", "node", &command).same();
}

/// Go's runtime makes its system calls itself, from the program's own text.
#[test]
fn go() {
    if lacks("go", &["go", "gcc"]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("work-go");
    let mut build = Command::new("go");
    build.env("GOCACHE", folder.path().join("cache"));
    build.env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "1");
    build
        .args(["build", "-o"])
        .arg(&program)
        .arg(source("work.go"));
    compiled(build);
    let command = |words: &'static [&'static str]| {
        let program = program.clone();
        move || {
            let mut go = Command::new(&program);
            go.arg(rounds(8, 200)).args(words);
            go
        }
    };
    let plain_go = command(&[]);
    let case = Case::new("go with cgo", "work-go", &plain_go);
    let plain = case.plain();
    for mode in modes().iter().filter(|m| **m != Mode::Strict) {
        case.check(&plain, *mode);
    }

    let raw = command(&["raw"]);
    let mut case = Case::new("go, package syscall", "work-go", &raw);
    // As docs/limits.md says.
    case.gaps = true;
    let plain = case.plain();
    case.check(&plain, Mode::Populate);
    case.says = &["a Go program's stacks are too small for REGALL_INTERCEPT=strict"];
    case.check(&plain, Mode::Strict);
}
