//! Whose turn it is to rewrite slots. A page of them is writable only meanwhile, and what its access is
//! otherwise is read from /proc/self/maps: of two threads at one time one would write to what the other
//! has just made read-only.

use crate::sys;
use core::sync::atomic::{AtomicU32, Ordering::*};

/// The process of which a thread rewrites slots. A child of fork may find its parent's here.
static WRITES: AtomicU32 = AtomicU32::new(0);
/// In nanoseconds.
const NAP: u64 = 50_000;

/// One thread's turn.
pub struct Turn {
    /// A handler would wait for its own thread.
    _undisturbed: sys::Undisturbed,
}

impl Turn {
    /// From when it is this thread's, which waits for that by so many naps. `None`: it is another's
    /// still.
    pub fn begin(naps: u32) -> Option<Self> {
        let _undisturbed = sys::Undisturbed::new();
        // 0 says that nobody rewrites; a process may have no number.
        let us = sys::memory_owner().max(1);
        for n in 0..=naps {
            let now = WRITES.load(Relaxed);
            if now != us && WRITES.compare_exchange(now, us, Acquire, Relaxed).is_ok() {
                return Some(Self { _undisturbed });
            }
            if n < naps {
                sys::nap(NAP);
            }
        }
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        WRITES.store(0, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let turn = Turn::begin(0);
        assert!(turn.is_some() && Turn::begin(1).is_none());
        drop(turn);
        WRITES.store(sys::memory_owner().max(1) + 1, Relaxed);
        // A parent's.
        assert!(Turn::begin(0).is_some());
    }
}
