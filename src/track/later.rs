//! What is left for the thread that comes by next.

use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// A thread could not be started by who had to: another one looks after what is idle or bound.
static LATER: AtomicBool = AtomicBool::new(false);

/// What is idle or bound is looked after by the thread that comes by next.
#[cold]
pub fn later() {
    LATER.store(true, Relaxed);
}

/// Whether something waits for the next thread.
#[inline]
pub fn is_later() -> bool {
    LATER.load(Relaxed)
}

/// Whether something has waited, and this thread sees to it.
pub fn is_ours_now() -> bool {
    LATER.swap(false, Relaxed)
}
