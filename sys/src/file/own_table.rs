//! Files that are opened without a number of the program's: in a table of descriptors of one's own.

use super::stat::threads;
use crate::entry::call;
use crate::errno::{check, Errno, Result};
use crate::identity::{gettid, is_alone, is_memory_owner};
use crate::links::read_link;
use crate::signal::Undisturbed;
use crate::{arch, filter};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Whether the program runs, whose descriptors these are.
static IN_USE: AtomicBool = AtomicBool::new(false);

/// Says that descriptors are the program's from now on.
pub fn are_in_use() {
    IN_USE.store(true, Relaxed);
}

/// Threads of the shim's own with tables of their own; 0: none.
static APART: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// Says that this thread is one of the shim's own, with a table of its own, until [`ends_apart`].
pub fn begins_apart() {
    let me = gettid();
    let _ = APART
        .iter()
        .any(|place| place.compare_exchange(0, me, Relaxed, Relaxed).is_ok());
}

/// Says that this thread is about to end.
pub fn ends_apart() {
    let me = gettid();
    for place in &APART {
        let _ = place.compare_exchange(me, 0, Relaxed, Relaxed);
    }
}

/// Forgets them, in a child of fork, where none of them is.
pub fn forget_apart() {
    APART.iter().for_each(|place| place.store(0, Relaxed));
}

/// Returns whether another thread may want the numbers of what this one opens.
pub fn is_beside_others() -> bool {
    if !IN_USE.load(Relaxed) || is_alone() || !is_memory_owner() {
        // (Who shares the memory of another process has a table of its own.)
        return false;
    }
    let me = gettid();
    let apart = me != 0 && APART.iter().any(|place| place.load(Relaxed) == me);
    // (Containers forbid unshare(2), by which it is known who is alone.)
    !apart && threads() != Ok(1)
}

/// Calls `f`, which opens files and closes them, where no other thread finds their numbers: another
/// thread may want the lowest one that is free. In a process with one thread, with signals held back;
/// else in a child that shares this process's memory, as after vfork(2), with a table of its own, which is
/// empty. There /proc/self is the child's. Where no child can be made, in this thread.
pub fn with_own_table<T>(mut f: impl FnMut() -> T) -> T {
    if !IN_USE.load(Relaxed) {
        return f();
    }
    let _undisturbed = Undisturbed::new();
    if !is_beside_others() {
        return f();
    }
    let mut task = Task { f, returned: None };
    task.run_in_child();
    task.returned.unwrap_or_else(task.f)
}

/// Holds what is to be done, and what came of it.
struct Task<F, T> {
    f: F,
    returned: Option<T>,
}

impl<F: FnMut() -> T, T> Task<F, T> {
    extern "C" fn in_child(this: *mut ()) {
        // What the kernel copies all the same is closed at once: what other threads close is to be closed.
        let _ = close_range(0, u32::MAX, libc::CLOSE_RANGE_UNSHARE);
        // SAFETY: from `run_in_child`, which waits.
        let this = unsafe { &mut *this.cast::<Self>() };
        this.returned = Some((this.f)());
    }

    fn run_in_child(&mut self) {
        let flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES) as u64;
        let ends = filter::makes(libc::SYS_exit) && filter::makes(libc::SYS_wait4);
        if !ends || !filter::lets(libc::SYS_clone, [flags, 0, 0, 0, 0, 0]) {
            return;
        }
        if !can_leave_descriptors() || !stays_here() || !may_be_closed() {
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

/// Returns whether nobody is told that copies of the first [`COPIED`] descriptors are closed. File systems
/// that are not on a device of this machine may be: Lustre tells the first who closes a file that writing has
/// failed, and NFS writes back. So may devices of the kernel's graphics (DRM).
fn may_be_closed() -> bool {
    const DRM: u32 = 226;
    (0..COPIED).all(|fd| {
        // SAFETY: all zeroes is a valid `struct statx`.
        let mut stat: libc::statx = unsafe { core::mem::zeroed() };
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        let (name, asked) = (c"".as_ptr(), libc::STATX_TYPE);
        let told = call!(libc::SYS_statx, fd, name, flags, asked, &raw mut stat);
        match told {
            Ok(_) => match u32::from(stat.stx_mode) & libc::S_IFMT {
                libc::S_IFREG => stat.stx_dev_major != 0,
                libc::S_IFCHR => stat.stx_rdev_major != DRM,
                _ => true,
            },
            Err(e) => e == Errno::BADF,
        }
    })
}

/// Returns whether a child is in this process's pid namespace: the first in a new one would end that
/// with itself.
fn stays_here() -> bool {
    let (mut own, mut next) = ([0; 32], [0; 32]);
    let own = read_link(c"/proc/thread-self/ns/pid", &mut own);
    own.is_ok() && own == read_link(c"/proc/thread-self/ns/pid_for_children", &mut next)
}

/// Returns whether there is the call that makes a new table without what is in the old one (Linux 5.9).
pub fn can_leave_descriptors() -> bool {
    close_range(u32::MAX, u32::MAX, 0).is_ok()
}

/// Gives this thread a table of descriptors of its own, in which there are the first [`COPIED`] alone.
///
/// # Errors
/// ENOMEM; ENOSYS before Linux 5.9.
pub fn leave_descriptors() -> Result<()> {
    close_range(COPIED, u32::MAX, libc::CLOSE_RANGE_UNSHARE)
}

/// Descriptors that the kernel copies into every new table (NR_OPEN_DEFAULT); of those above it can be
/// told to copy none.
pub const COPIED: u32 = 64;

/// Closes the descriptors `first..=last`; `flags` as close_range(2)'s.
fn close_range(first: u32, last: u32, flags: u32) -> Result<()> {
    call!(libc::SYS_close_range, first, last, flags).map(drop)
}
