//! Every system call that the shim makes fails, jumps leave it at any moment, and what it
//! lives on is taken away: the program does not notice.
//!
//! Elsewhere: RLIMIT_MEMLOCK lowered by the program itself, RLIMIT_AS, filters and a lack of
//! descriptors in tests/programs.rs (mlock_limit, unprivileged, address_limit, seccomp,
//! descriptors); requests to an adapter that fail in tests/rdma.rs.

#[path = "faults/inject.rs"]
mod inject;
#[path = "faults/jumps.rs"]
mod jumps;
#[path = "faults/scarcity.rs"]
mod scarcity;
