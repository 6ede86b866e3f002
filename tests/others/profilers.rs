//! Profilers.

use super::*;

/// The stacks of its samples, with unwind information and by frame pointers, and what it traces.
#[test]
fn perf() {
    Script::new("perf", &["perf"]).same();
}

/// Uprobes on the functions that the shim patches, while programs run and after. They are in
/// every process of the machine, so nothing else runs meanwhile (.config/nextest.toml).
#[test]
fn bpftrace() {
    Script::new("bpftrace", &["bpftrace"]).same();
}
