//! The directory's header and its counters, which calls in progress go to.

#[path = "../../src/base/counters.rs"]
pub mod counters;
