#![doc = include_str!("../README.md")]
//!
//! # How
//!
//! The file is read with pread instead of being mapped, so that one that is cut
//! short meanwhile is an error and not SIGBUS: [`open`] finds a process's file,
//! and [`Directory::snapshot`] takes it.
//!
//! A crate of its own because it uses std: features of a crate are united over
//! a build, and `regall-directory` is part of a shim that has no std.

mod error;
mod file;
mod find;
pub mod foreign;
mod locked;
mod newest;
mod process;
pub mod procfs;
mod soon;
mod turns;

pub use error::OpenError;
pub use file::{Directory, HeaderView, Inflight, Snapshot};
pub use find::{
    kept_free, open, open_in, published, search, unseen, Search, Seen, Unseen, FOLDER_ROOT,
};
pub use process::{Mapping, Process};
pub use soon::{published_soon, Soon};
pub use turns::{Again, Turns};

pub use regall_directory::reader::{
    decode, read_slot, Corrupt, Entry, Published, Region, SLOT_WORDS,
};
