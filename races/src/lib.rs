//! The lock-free parts, compiled once more with the atomics of loom, which runs a test in every
//! order of its threads, and lets every load see each value that the memory orderings allow: so
//! also what a processor of ours never does. The sources are those of the other crates, not
//! copies; they name their atomics `crate::atomic`.

// What is not called here is called where it comes from.
#![allow(dead_code, missing_docs)]

pub mod atomic;

/// As core's.
pub mod hint {
    /// Somebody else comes first.
    pub fn spin_loop() {
        loom::thread::yield_now();
    }
}

#[path = "../../directory/src/addr.rs"]
pub mod addr;
#[path = "../../directory/src/layout.rs"]
pub mod layout;
#[path = "../../directory/src/reader.rs"]
pub mod reader;
#[path = "../../directory/src/vocab.rs"]
pub mod vocab;
#[path = "../../directory/src/writer.rs"]
pub mod writer;

#[path = "../../ledger/src/index/mod.rs"]
pub mod index;

#[path = "../../bridge/src/cookie/layout.rs"]
pub mod cookie;
#[path = "../../bridge/src/lock.rs"]
pub mod lock;

pub mod base;
#[path = "../../src/thread.rs"]
pub mod thread;
pub mod track;
pub use real_sys::text;

pub mod sys;
pub use sys::*;

// What the sources take from crates of these names.
extern crate self as regall_directory;
extern crate self as regall_sys;

/// The processor, as `src/thread.rs` and `src/track` see it.
pub mod arch {
    pub use crate::sys::{stack_pointer, tls_block, TLS_BYTES};

    /// The registers of an arrival, which are nobody's business here.
    pub struct Frame(());
}

/// The ledger, as `src/thread.rs` sees it.
pub mod ledger {
    pub use crate::index::Hint;
}

/// Registrars: no adapter.
pub mod registrar {
    /// Adapters.
    pub mod hca {
        /// Whether there are any.
        pub fn active() -> bool {
            false
        }
    }
}
