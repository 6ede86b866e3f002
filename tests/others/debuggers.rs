//! Debuggers, tracers and what writes a program's memory down.

use super::*;

/// From its start, attached, and what it says of a core: its own and the kernel's.
#[test]
fn gdb() {
    Script::new("gdb", &["gdb", "gcore", "eu-stack"]).same();
}

/// The program's frames below whatever memory call it is in.
#[test]
fn tracers() {
    Script::new("tracers", &["gdb", "eu-stack", "ltrace"]).same();
}

/// The same of every memory call.
#[test]
fn strace() {
    Script::new("strace", &["strace"]).same();
}

/// A crash reporter: a child that shares its parent's descriptors, and traces it.
#[test]
fn dumper() {
    Script::new("dumper", &[]).same();
}

/// A recording, and what comes of it.
#[test]
fn rr() {
    Script::new("rr", &["rr"]).same();
}

/// A checkpoint, and the process that goes on from it.
#[test]
fn criu() {
    Script::new("criu", &["criu"]).same();
}
