//! Where pages may be missing of which the ledger does not know which: guard pages
//! (MADV_GUARD_INSTALL), and pages that a userfaultfd is to provide.

use super::VIEW;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::vocab::Kind;

/// Some are missing in thread stacks, and in other memory.
static GUARDED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// Pages may be missing in `range`.
pub fn guarded(range: PageRange) {
    let found = VIEW.lookup(range.start());
    let in_stack = matches!(found, Ok(Some(f)) if f.attr().kind == Kind::ThreadStack);
    let [stacks, others] = &GUARDED;
    let which = if in_stack { stacks } else { others };
    which.store(true, Relaxed);
}

/// As [`guarded`], of memory that may be anywhere.
pub fn guarded_somewhere() {
    for which in &GUARDED {
        which.store(true, Relaxed);
    }
}

/// Whether pages may be missing in thread stacks.
pub fn in_stacks() -> bool {
    let [stacks, _] = &GUARDED;
    stacks.load(Relaxed)
}

/// Whether pages may be missing in other memory.
pub fn elsewhere() -> bool {
    let [_, others] = &GUARDED;
    others.load(Relaxed)
}
