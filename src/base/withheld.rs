//! Whether anything of this process is lent to others of its user.

use core::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Whether nothing is lent to anybody: the credentials forbid it, or have changed.
static WITHHELD: AtomicBool = AtomicBool::new(true);

/// Whether nothing of this process is lent to others of its user.
pub fn withheld() -> bool {
    WITHHELD.load(SeqCst)
}

/// At start-up: whether something is lent.
pub fn begin(lends: bool) {
    WITHHELD.store(!lends, SeqCst);
}

/// From now on nothing is lent.
pub fn withhold() {
    WITHHELD.store(true, SeqCst);
}
