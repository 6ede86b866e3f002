//! What packagers get: the source archive, recipes, and what was built on other releases of
//! Debian. In `make soak` alone: it takes minutes, and a network for the releases.

use std::path::Path;
use std::process::Command;

use regall_tests::soak::Row;
use regall_tests::{build, skip};

const PART: &str = "packages";

fn is_soak() -> bool {
    std::env::var_os("SOAK_SECONDS").is_some()
}

/// Runs what must succeed, or end with 77: it can't be tried here. What it said.
fn tried(row: Row, command: &mut Command) {
    let out = command
        .current_dir(build::root())
        .env("CARGO_TARGET_DIR", build::target())
        .env_remove("MAKEFLAGS")
        .output()
        .expect("a command");
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    if out.status.code() == Some(77) {
        row.skipped(&said);
        return skip(said.trim());
    }
    let wrong = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{command:?}\n{said}{wrong}");
    row.passed(said.trim());
}

#[test]
fn recipes() {
    if is_soak() {
        let row = Row::begin(PART, "rpm and Spack");
        tried(row, &mut Command::new(build::script("check-packaging")));
    }
}

#[test]
fn releases_of_debian() {
    if !is_soak() {
        return;
    }
    for release in ["bullseye", "bookworm", "trixie", "sid"] {
        let row = Row::begin(PART, release);
        tried(
            row,
            Command::new(build::script("try-releases")).arg(release),
        );
    }
}

/// The same bytes twice, and it builds and installs where there is no network.
#[test]
fn source_archive() {
    if !is_soak() || !Path::new(build::root()).join(".git").exists() {
        return;
    }
    let row = Row::begin(PART, "make dist, built without a network");
    let script = r#"set -e
        work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
        archive=$(scripts/make-dist); cp "$archive" "$work/first"
        cmp "$(scripts/make-dist)" "$work/first"
        tar -xf "$work/first" -C "$work"; cd "$work"/regall-*
        unset CARGO_TARGET_DIR
        CARGO_HOME=$work/cargo unshare -n make -s build >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
        make -s install PREFIX=/opt/regall DESTDIR="$work/root"
        "$work/root/opt/regall/bin/regall" run -- grep -q libregall /proc/self/maps
        "$work/root/opt/regall/bin/regall" --version"#;
    tried(row, Command::new("bash").args(["-c", script]));
}
