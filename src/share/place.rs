//! Maps a file in the place of memory.

use crate::sys::{self, Result};
use regall_directory::addr::PageRange;

/// Maps `file` from `offset` on in the place of what is mapped in `range`; `how`: MAP_SHARED
/// or MAP_PRIVATE. If that fails, what was there is still there.
pub fn place(range: PageRange, prot: u64, how: i32, fd: i32, offset: u64) -> Result<()> {
    let flags = how | libc::MAP_FIXED;
    let (at, len, prot) = (range.start(), range.len(), (prot & 7) as i32);
    let was = sys::is_locked(at);
    // SAFETY: what is there is to be replaced; whoever says so has seen to what it holds.
    unsafe { sys::map(at, len, prot, flags, fd, offset) }?;
    unlock_as(was, range);
    Ok(())
}

/// Unlocks `range`, which has been mapped in the program's name, if what it stands for was not locked:
/// the program's mlockall(MCL_FUTURE) holds for it, too.
pub fn unlock_as(was: Option<bool>, range: PageRange) {
    if was == Some(false) && sys::is_locked(range.start()) == Some(true) {
        let _ = sys::unlock_memory(range.start(), range.len());
    }
}
