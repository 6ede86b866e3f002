//! Where the things under test are, and the C programs, compiled once.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The top of the work tree.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Where cargo puts things at the top, not where these tests are built.
pub fn target() -> PathBuf {
    let from_root = |path: PathBuf| root().join(path);
    let dir = std::env::var_os("TESTS_TARGET")
        .map_or_else(|| root().join("target"), |d| from_root(d.into()));
    std::fs::create_dir_all(&dir).expect("a target folder");
    dir.canonicalize().expect("a target folder")
}

/// libregall.so, built by `make build`; or the one that can be broken on purpose, if TESTS_PLANTED
/// says how it is to be.
pub fn shim() -> PathBuf {
    match std::env::var_os("TESTS_PLANTED") {
        Some(_) => planted(),
        None => built("libregall.so"),
    }
}

/// The `regall` command.
pub fn regall() -> PathBuf {
    built("regall")
}

fn built(name: &str) -> PathBuf {
    let path = target().join("release").join(name);
    assert!(
        path.exists(),
        "{} is not there: run `make build` first",
        path.display()
    );
    path
}

/// The shim that can be broken on purpose: TESTS_PLANTED chooses how (tests/planted.txt).
pub fn planted() -> PathBuf {
    target().join("planted").join("libregall.so")
}

/// Builds it where it is older than the shim, outside of the guest.
pub fn build_planted() {
    let done = Command::new(script("build-planted"))
        .env("TESTS_TARGET", target())
        .output()
        .expect("build-planted");
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// A script of ours.
pub fn script(name: &str) -> PathBuf {
    root().join("scripts").join(name)
}

/// A C program by its name (`mmap`, or `ring.openmpi` for one of c-tests/mpi, or
/// `bridge/knem_device`, or `rdma/keys` if all of them have been compiled).
pub fn program(name: &str) -> PathBuf {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED
        .get_or_init(|| compile(&["all", "bridge", "uverbs"]))
        .join(name)
}

/// Compiles those of c-tests/rdma, too.
pub fn all_programs() {
    compile(&["all", "bridge", "uverbs", "rdma"]);
}

/// Compiles those of c-tests/rdma for iWARP.
pub fn siw_programs() {
    compile(&["siw"]);
}

/// Compiles what is out of date. Several test processes come here at once: one
/// of them does it and the others wait. In the guest it is done, and can't be.
fn compile(goals: &[&str]) -> PathBuf {
    let out = target().join("c-tests");
    if inside_guest() {
        return out;
    }
    std::fs::create_dir_all(&out).expect("a folder for the programs");
    let done = Command::new("flock")
        .arg(out.join(".lock"))
        .args(["make", "-s", "-C"])
        .arg(root().join("c-tests"))
        .arg(format!("OUT={}", out.display()))
        .arg(format!("LIBRARY={}", shim().with_file_name("").display()))
        .args(goals)
        .env_remove("MAKEFLAGS")
        .env_remove("MAKELEVEL")
        .output()
        .expect("flock and make");
    assert!(
        done.status.success(),
        "c-tests: {}",
        String::from_utf8_lossy(&done.stderr)
    );
    out
}

/// In the environment of the tests in the guest: where they leave their results.
pub const IN_GUEST: &str = "TESTS_GUEST";

/// Whether this is the guest.
pub fn inside_guest() -> bool {
    std::env::var_os(IN_GUEST).is_some()
}

/// Whether a command is installed.
pub fn have(command: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(command).is_file())
}
