//! Cross Memory Attach: process_vm_readv(2) and process_vm_writev(2). A few bytes are
//! read through /proc/PID/mem, which is quicker for them, and which some sandboxes leave
//! where they forbid the system call.

use super::No;
use crate::peer::Peer;
use crate::transfer::Way;
use crate::vector::Segment;
use regall_sys::arch::ticks;
use regall_sys::{call, Errno, Result};

/// Up to so many bytes, /proc/PID/mem is quicker.
const FEW: u64 = 1 << 10;

/// Copies; see [`super::copy`], for `proven`, too: /proc/PID/mem is of no other memory.
///
/// # Safety
/// As [`super::copy`].
#[inline]
pub unsafe fn copy(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    proven: &mut bool,
) -> core::result::Result<u64, No> {
    if let (Way::Get, Some(fd), [one], [to]) = (way, peer.memory(), remote, local) {
        if one.len.min(to.len) <= FEW {
            // SAFETY: by the contract above.
            match unsafe { read_memory(fd, *to, *one) } {
                // The memory is gone: the pid is somebody else's, or another program's. Or
                // the descriptor is.
                Ok(0) => peer.check(ticks()).map_err(No::Failed)?,
                Ok(bytes) => {
                    *proven = true;
                    return Ok(bytes);
                }
                Err(_) => (),
            }
        }
    }
    // SAFETY: by the contract above.
    match unsafe { attach(peer.pid(), way, local, remote) } {
        Ok(bytes) => Ok(bytes),
        Err(e @ (Errno::PERM | Errno::NOSYS)) => {
            // SAFETY: by the contract above.
            unsafe { read_instead(peer, way, local, remote) }.ok_or(match e {
                Errno::PERM => refused(peer),
                _ => No::Never,
            })
        }
        Err(e) => Err(No::Failed(e)),
    }
}

/// EPERM of a process that is gone, whose pid somebody else's has, is no answer for
/// this one.
#[cold]
fn refused(peer: &Peer) -> No {
    match peer.check(ticks()) {
        Ok(()) => No::Never,
        Err(e) => No::Failed(e),
    }
}

/// One process_vm_readv or process_vm_writev.
unsafe fn attach(pid: u32, way: Way, local: &[Segment], remote: &[Segment]) -> Result<u64> {
    let nr = match way {
        Way::Get => libc::SYS_process_vm_readv,
        Way::Put => libc::SYS_process_vm_writev,
    };
    call!(
        nr,
        pid,
        local.as_ptr(),
        local.len(),
        remote.as_ptr(),
        remote.len(),
        0
    )
}

/// Where process_vm_readv is forbidden: through /proc/PID/mem, one segment. (Not the
/// other way: writing through that file ignores protection.)
#[cold]
unsafe fn read_instead(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
) -> Option<u64> {
    let (Way::Get, Some(fd), [from, ..], [to, ..]) = (way, peer.memory(), remote, local) else {
        return None;
    };
    // SAFETY: by the caller's contract.
    match unsafe { read_memory(fd, *to, *from) } {
        Ok(bytes @ 1..) => Some(bytes),
        _ => None,
    }
}

/// Reads one segment through /proc/PID/mem, whatever becomes of process_vm_readv. None: that
/// can't be; EFAULT: our memory is not as it must be; EIO: the peer's isn't.
///
/// # Safety
/// As [`super::copy`].
#[cold]
pub unsafe fn by_memory(
    peer: &Peer,
    way: Way,
    local: Segment,
    remote: Segment,
) -> Option<Result<u64>> {
    let fd = peer.memory().filter(|_| way == Way::Get)?;
    // SAFETY: by the contract above.
    Some(unsafe { read_memory(fd, local, remote) })
}

unsafe fn read_memory(fd: i32, to: Segment, from: Segment) -> Result<u64> {
    call!(
        libc::SYS_pread64,
        fd,
        to.addr,
        to.len.min(from.len),
        from.addr
    )
}
