//! What regall publishes about a process, and the words it uses for it.
//!
//! One file a process in a 0700 folder under `/dev/shm`. The shim writes it
//! through [`writer`], everybody else reads it through [`reader`] and trusts
//! nothing that is in it. [`addr`] and [`vocab`] are the vocabulary that the
//! ledger, the registrars and the readers share; [`maps`] parses the kernel's
//! own list, `/proc/PID/maps`.
#![cfg_attr(not(test), no_std)]

// What is lock-free names its atomics so: races/ puts its own in their place.
use core::sync::atomic;

pub mod addr;
pub mod layout;
pub mod maps;
pub mod numbers;
#[doc(hidden)]
pub mod planted;
pub mod reader;
pub mod settings;
#[cfg(test)]
mod tests;
pub mod vocab;
pub mod writer;
