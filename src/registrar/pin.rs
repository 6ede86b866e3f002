//! The pin set: memory locked with mlock(2), whose locked bytes the kernel
//! counts and shows (VmLck, `lo` in smaps).

use super::Registrar;
use crate::policy::Want;
use crate::sys::{self, Errno, Result};
use regall_directory::addr::{PageRange, PAGE};

/// The one pin set of the process.
pub struct PinSet;

impl Registrar for PinSet {
    fn register(&self, range: PageRange, how: Want) -> Result<()> {
        let onfault = match how {
            Want::Leave(_) => return Ok(()),
            Want::OnFault => true,
            Want::Populate => false,
        };
        sys::lock_memory(range.start(), range.len(), onfault)
    }

    fn deregister(&self, range: PageRange) -> Result<()> {
        // What stays locked makes the application's next call fail: what kept the kernel from
        // it may have been of the moment (ENOMEM, EINTR).
        let unlock = || sys::unlock_memory(range.start(), range.len());
        unlock().or_else(|_| unlock())
    }
}

/// Where the part of a file mapping that can be touched ends: its pages beyond
/// the end of the file would be SIGBUS. `None`: all of it can be.
pub fn end_of_file(range: PageRange) -> Option<u64> {
    if sys::readable(range.end() - PAGE) {
        return None;
    }
    let (mut good, mut bad) = (range.start(), range.end() - PAGE);
    if !sys::readable(good) {
        return Some(good);
    }
    // Pages below `good` can be touched, those from `bad` on can't.
    while bad - good > PAGE {
        let middle = good + (bad - good) / 2 / PAGE * PAGE;
        if sys::readable(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Some(bad)
}

/// Whether a failure to lock means that a limit is reached (mlock(2): ENOMEM and
/// EPERM for RLIMIT_MEMLOCK, EAGAIN for memory that can't be had).
pub fn is_limit(errno: Errno) -> bool {
    matches!(errno, Errno::NOMEM | Errno::PERM | Errno::AGAIN)
}
