//! libregall.so: keeps every mapping of an unmodified program registered.
//!
//! ARCHITECTURE.md has the picture; the order of the modules here is the order
//! of the data: a call arrives in [`intercept`], [`track`] turns it into
//! changes of the [`ledger`], has the [`registrar`] carry them out and
//! publishes the result through [`store`].
//!
//! Built without std and without an allocator: code that runs inside `mmap`
//! under malloc's lock can't call what isn't there.
#![cfg_attr(not(any(test, fuzzing, std_beside)), no_std)]
// The unit tests and the fuzzers (fuzz/) build the parts, not the whole: there the library
// is never loaded.
#![cfg_attr(any(test, fuzzing, std_beside), allow(dead_code))]

pub use regall_ledger as ledger;
pub use regall_patch as patch;
pub use regall_sys as sys;
pub use regall_sys::text;
pub use regall_uverbs as uverbs;

pub mod arch;
pub mod arena;
mod atomic;
pub mod base;
pub mod boxes;
pub mod capi;
pub mod check;
pub mod config;
pub mod cookies;
pub mod copier;
pub mod copying;
pub mod foreign;
pub mod glob;
pub mod groups;
pub mod guard;
pub mod helper;
pub mod host;
pub mod huge;
pub mod intercept;
pub mod limits;
pub mod logger;
pub mod memory;
pub mod mounts;
pub mod policy;
pub mod registrar;
pub mod rights;
mod root;
mod rotator;
pub mod share;
pub mod startup;
pub mod stats;
pub mod store;
pub mod swap;
pub mod thread;
pub mod threads;
pub mod track;
pub mod verbs;
pub mod version;
