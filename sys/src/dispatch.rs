//! Syscall User Dispatch (Linux 5.11): a thread's system calls arrive as SIGSYS.

use crate::entry::call;
use crate::errno::Result;

const PR_SET_SYSCALL_USER_DISPATCH: i32 = 59;
const PR_SYS_DISPATCH_OFF: i32 = 0;
const PR_SYS_DISPATCH_ON: i32 = 1;

/// Turns it on in this thread: calls from outside of `text` (start, bytes) are dispatched
/// whenever `selector` says so.
///
/// # Safety
/// There is a handler of SIGSYS, and the byte is there for as long as this thread, or until
/// [`turn_off`].
pub unsafe fn turn_on([start, bytes]: [u64; 2], selector: *const u8) -> Result<()> {
    call!(
        libc::SYS_prctl,
        PR_SET_SYSCALL_USER_DISPATCH,
        PR_SYS_DISPATCH_ON,
        start,
        bytes,
        selector
    )
    .map(drop)
}

/// Turns it off in this thread.
pub fn turn_off() -> Result<()> {
    call!(
        libc::SYS_prctl,
        PR_SET_SYSCALL_USER_DISPATCH,
        PR_SYS_DISPATCH_OFF,
        0,
        0,
        0
    )
    .map(drop)
}
