//! Where the application may have locked memory. Known without the lock: a signal handler that gives
//! advice has to leave such memory to the kernel.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;

/// All that the application has ever locked, or was about to, lies between these addresses.
static LOWEST: AtomicU64 = AtomicU64::new(u64::MAX);
static HIGHEST: AtomicU64 = AtomicU64::new(0);

/// Returns whether the application may have locked anything.
pub fn are_there() -> bool {
    HIGHEST.load(Relaxed) != 0
}

/// Returns whether the application may have locked some of `range`, other than what that has grown by.
pub fn may_be_in(range: PageRange) -> bool {
    range.start() < HIGHEST.load(Relaxed) && LOWEST.load(Relaxed) < range.end()
}

/// Notes that the application locks `range`.
pub fn note(range: PageRange) {
    LOWEST.fetch_min(range.start(), Relaxed);
    HIGHEST.fetch_max(range.end(), Relaxed);
}
