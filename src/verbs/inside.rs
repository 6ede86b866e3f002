//! Calls that libibverbs makes of its own functions.

use crate::thread::{self, here};

/// Returns whether the function that this is a part of is called by libibverbs itself. A jump out of
/// it (siglongjmp) leaves its mark, at a place of the stack that is no further out than what
/// is called afterwards.
#[inline(always)]
pub fn is_inside() -> bool {
    let entered = thread::current().in_verbs.get();
    entered != 0 && here() < entered
}
