//! The begin and the end of each function of the interface.

use crate::intercept::strict;
use crate::sys::Errno;
use crate::track;
use core::ffi::c_int;

/// Returns what a function returns for an errno.
pub const fn error(e: Errno) -> c_int {
    -e.0
}

/// The value that functions return in a process that is not tracked.
pub const INERT: c_int = error(Errno::NOSYS);

/// Is called before anything else is done for a child of a tracked process.
#[cold]
#[inline(never)]
pub fn bring_in() {
    let _pass = strict::pass();
    track::fork::check();
    track::inherited::bring_in();
}
