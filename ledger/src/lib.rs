//! What is mapped, and what is said of it: an ordered map from ranges that don't
//! overlap to attributes. Pure: it knows no registrar and makes no system call.
//!
//! It runs inside the hooks of mmap and munmap, under malloc's locks and in signal
//! handlers, so it takes no lock, allocates nothing while it changes (see
//! [`Ledger::reserve`]), recurses nowhere and can't panic. One thread at a time
//! changes it; any thread may look an address up meanwhile ([`View::lookup`]).
//!
//! Invariants:
//! * entries don't overlap, and every entry has an id of its own;
//! * no two entries that touch are equal *and* mergeable ([`mergeable`]) or parts of
//!   what was one mapping, so that a heap that has grown a thousand times is one entry,
//!   and so is a file of which each page was locked and unlocked;
//! * what the [`Sink`] was told to publish and not yet to retire is what the
//!   ledger holds; within one change, what replaces an entry is published before
//!   the entry is retired.
#![cfg_attr(not(test), no_std)]

/// What is lock-free names its atomics so: races/ puts its own in their place.
mod atomic {
    pub use core::sync::atomic::*;
}
/// As [`atomic`].
mod hint {
    pub use core::hint::spin_loop;
}
mod entry;
pub mod index;
mod ledger;
#[cfg(test)]
mod model;
mod plan;

pub use entry::{mergeable, Entry, Found, Origin, Totals, REASONS};
pub use index::{Busy, Hint, Memory, View};
pub use ledger::{Ledger, Short, Sink};
