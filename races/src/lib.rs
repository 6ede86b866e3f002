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

#[path = "../../src/ledger/index.rs"]
pub mod index;

/// What `bridge/src/lock.rs` takes from the crate of that name.
extern crate self as regall_sys;
#[path = "../../bridge/src/lock.rs"]
pub mod lock;

/// This process.
pub fn getpid() -> u32 {
    7
}

/// Sleeps while the word is `value`: here, another thread comes first.
pub fn futex_wait(word: &atomic::AtomicU32, value: u32, _nanos: u32) -> bool {
    if word.load(atomic::Ordering::Relaxed) == value {
        loom::thread::yield_now();
    }
    true
}

/// Nobody sleeps for good.
pub fn futex_wake(_word: &atomic::AtomicU32) {}
