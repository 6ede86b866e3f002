//! What is under test, as `make install` puts it in its place.

use std::path::Path;
use std::process::{Command, Output};

use crate::build;

/// Runs something that must succeed; what it wrote to its standard output.
pub fn done(command: &mut Command) -> String {
    let out: Output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (said(&out.stdout), said(&out.stderr));
    assert!(out.status.success(), "{command:?}\n{stdout}{stderr}");
    stdout
}

/// `make GOAL` for a prefix, below another root or, if that is empty, this one.
pub fn make(goal: &str, prefix: &Path, root: &Path) {
    make_with(goal, prefix, root, &[]);
}

/// The same with further words for make.
pub fn make_with(goal: &str, prefix: &Path, root: &Path, words: &[&str]) {
    done(
        Command::new("make")
            .args(["-s", goal])
            .arg(format!("PREFIX={}", prefix.display()))
            .arg(format!("DESTDIR={}", root.display()))
            .args(words)
            .current_dir(build::root())
            .env("CARGO_TARGET_DIR", build::target())
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL"),
    );
}
