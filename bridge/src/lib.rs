//! One-sided access of a node's processes to each other's registered memory.
//!
//! A [`peer`] is a process, known by its pid and start time. What it has registered is
//! in its directory, of which the [`snapshot`] is a sorted copy and the [`view`] the live
//! original. [`transfer`] gets and puts: it checks each piece against the snapshot,
//! has a [`mechanism`] copy it, and checks the generations of the entries that it used
//! in the view afterwards; what is mapped here of the peer's memory ([`window`]) stays
//! for the next one. Nothing that is read from another process is trusted.
//!
//! [`word`] operates on single words, atomically.
//!
//! Without std and without an allocator, as the shim that it is part of; memory and
//! counters are the [`host`]'s.
#![cfg_attr(not(test), no_std)]

// What races/ checks names its atomics so; see there.
use core::sync::atomic;

pub mod boxes;
pub mod cookie;
pub mod find;
pub mod host;
pub mod kind;
pub mod link;
pub mod lock;
pub mod maps;
pub mod mechanism;
pub mod memory;
pub mod notify;
pub mod operate;
pub mod peer;
pub mod pool;
pub mod process;
pub mod process_vm;
pub mod queue;
pub mod rights;
pub mod serve;
pub mod snapshot;
mod staging;
pub mod transfer;
pub mod vector;
pub mod view;
pub mod window;
pub mod wire;
pub mod word;
pub mod xpmem;
