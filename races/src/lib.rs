//! The lock-free parts, compiled once more with the atomics of loom, which runs a test in every
//! order of its threads, and lets every load see each value that the memory orderings allow: so
//! also what a processor of ours never does. The sources are those of the other crates, not
//! copies; they name their atomics `crate::atomic`.
//!
//! A test runs with up to two or three preemptions. Those of the directory, the cookies, the
//! boxes and the bridge's lock are complete; the others stop after 6 or 8 seconds, `calls` and `notes` with orders
//! of two preemptions, after all with one as far as the time lasts. Around the ledger's lock the
//! system is made up (`sys`): a sleeper is woken only by a wake, so a missed one is a deadlock, or,
//! where the code counts on being awake again, by a clock; threads die and leave what they held.
//! There are two places for calls and two notes, so both run out. loom takes SeqCst for AcqRel: what
//! needs more is ordered by fences. The bridge's peers and queues are not here: what is shared there
//! belongs to whoever holds a slot, or a lock of those above.

#![cfg(feature = "models")]
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
#[path = "../../directory/src/planted.rs"]
pub mod planted;
#[path = "../../directory/src/reader.rs"]
pub mod reader;
#[path = "../../directory/src/vocab.rs"]
pub mod vocab;
#[path = "../../directory/src/writer.rs"]
pub mod writer;

#[path = "../../ledger/src/index/mod.rs"]
pub mod index;

pub mod boxes;
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

/// Processes: there is one.
pub mod process {
    /// Whether it is there.
    pub fn exists(_pid: u64) -> bool {
        true
    }
}

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
