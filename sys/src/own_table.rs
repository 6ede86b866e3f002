//! Files that are opened without a number of the program's: in a table of descriptors of one's own.

use crate::{arch, call, check, filter, is_alone, is_memory_owner, Errno, Result, Undisturbed};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the program runs, whose descriptors these are.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Descriptors are the program's from now on.
pub fn are_in_use() {
    IN_USE.store(true, Relaxed);
}

/// Calls `f`, which opens files and closes them, where no other thread finds their numbers: another
/// thread may want the lowest one that is free. In a process with one thread, with signals held back;
/// else in a child that shares this process's memory, as after vfork(2), with a table of its own. There
/// /proc/self is the child's. Where no child can be made, in this thread.
pub fn with_own_table<T>(mut f: impl FnMut() -> T) -> T {
    if !IN_USE.load(Relaxed) {
        return f();
    }
    let _undisturbed = Undisturbed::new();
    // (Who shares the memory of another process has a table of its own.)
    if is_alone() || !is_memory_owner() {
        return f();
    }
    let mut task = Task { f, returned: None };
    task.run_in_child();
    task.returned.unwrap_or_else(task.f)
}

/// Something to be done, and what came of it.
struct Task<F, T> {
    f: F,
    returned: Option<T>,
}

impl<F: FnMut() -> T, T> Task<F, T> {
    extern "C" fn in_child(this: *mut ()) {
        let _ = leave_descriptors();
        // SAFETY: from `run_in_child`, which waits.
        let this = unsafe { &mut *this.cast::<Self>() };
        this.returned = Some((this.f)());
    }

    fn run_in_child(&mut self) {
        let shares = if can_leave_descriptors() {
            libc::CLONE_FILES
        } else {
            0
        };
        let flags = (libc::CLONE_VM | libc::CLONE_VFORK | shares) as u64;
        let calls = [
            (libc::SYS_clone, flags),
            (libc::SYS_exit, 0),
            (libc::SYS_wait4, 0),
        ];
        let lets = |(nr, first): (i64, u64)| filter::lets(nr, [first, 0, 0, 0, 0, 0]);
        if !calls.into_iter().all(lets) {
            return;
        }
        let this = core::ptr::from_mut(self).cast();
        // SAFETY: the child does what this thread may do, in its place.
        let made = check(unsafe { arch::call_in_child(flags, Self::in_child, this) });
        if let Ok(child) = made {
            // Its end is told to nobody, and it is no child to who waits for any.
            while call!(libc::SYS_wait4, child, 0, libc::__WCLONE, 0) == Err(Errno::INTR) {}
        }
    }
}

/// Returns whether there is the call that makes a new table without what is in the old one (Linux 5.9).
pub fn can_leave_descriptors() -> bool {
    close_range(u32::MAX, 0).is_ok()
}

/// Gives this thread a table of descriptors of its own, in which there are the first [`COPIED`] alone.
///
/// # Errors
/// ENOMEM; ENOSYS before Linux 5.9.
pub fn leave_descriptors() -> Result<()> {
    close_range(COPIED, libc::CLOSE_RANGE_UNSHARE)
}

/// Descriptors that the kernel copies into every new table (NR_OPEN_DEFAULT); of those above it can be
/// told to copy none.
pub const COPIED: u32 = 64;

fn close_range(first: u32, flags: u32) -> Result<()> {
    call!(libc::SYS_close_range, first, u32::MAX, flags).map(drop)
}
