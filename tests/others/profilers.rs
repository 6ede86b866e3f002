//! Profilers.

use super::*;

/// The stacks of its samples, with unwind information and by frame pointers, and what it traces.
#[test]
fn perf() {
    Script::new("perf", &["perf"]).same();
}
