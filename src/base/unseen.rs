//! Whether memory may change without a call that the shim sees. Then no region is lent: its pages
//! may be others than those that are mapped when the next request comes.

use super::{counters, mode};
use crate::config::Intercept;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_directory::layout::Counter;
use regall_directory::vocab::Prot;

/// A kernel thread may discard memory for this process (IORING_OP_MADVISE).
static RING: AtomicBool = AtomicBool::new(false);
/// Code may be written that makes system calls, and nobody looks for them there.
static CODE: AtomicBool = AtomicBool::new(false);

/// Notes that the process uses io_uring.
#[inline]
pub fn ring() {
    if !RING.load(Relaxed) {
        RING.store(true, Relaxed);
        log::info!("io_uring is used: registrations are made as they are asked for");
    }
}

/// Notes the protection of a mapping.
#[inline]
pub fn protection(prot: Prot) {
    if prot.writable() && prot.executable() && !CODE.load(Relaxed) {
        CODE.store(true, Relaxed);
    }
}

/// Returns why no region may be lent, as the counter of such requests. `None`: one may.
#[inline]
pub fn reason() -> Option<Counter> {
    match mode::mode() {
        _ if RING.load(Relaxed) => Some(Counter::UnlentRing),
        // The dispatcher sees the calls of any code.
        Intercept::Strict => None,
        Intercept::Patch => CODE.load(Relaxed).then_some(Counter::UnlentCode),
        Intercept::Symbols => Some(Counter::UnlentCode),
    }
}

/// Counts a request that is not served for `why`.
#[cold]
pub fn count(why: Counter) {
    counters::count(why);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_written_and_executed_at_once_ends_lending() {
        for bits in [3, 5, 1] {
            protection(Prot::from_bits(bits));
        }
        assert!(!CODE.load(Relaxed));
        protection(Prot::from_bits(7));
        assert!(CODE.load(Relaxed));
    }
}
