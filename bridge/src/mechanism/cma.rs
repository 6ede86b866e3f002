//! Cross Memory Attach: process_vm_readv(2) and process_vm_writev(2). A few bytes are
//! read through /proc/PID/mem, which is quicker for them, and which some sandboxes leave
//! where they forbid the system call.

use super::{Copied, Endpoints, Features, Job, Mechanism};
use crate::kind::No;
use crate::process::Process;
use crate::vector::{Segment, Way};
use regall_sys::arch::ticks;
use regall_sys::{file, Access, Errno, Result};

/// Up to so many bytes, /proc/PID/mem is quicker.
const FEW: u64 = 1 << 10;

/// The mechanism by process_vm_readv and process_vm_writev.
pub struct Cma;

impl Mechanism for Cma {
    const FEATURES: Features = Features {
        any_memory: true,
        by_kernel: true,
        ..Features::NONE
    };

    /// The peer's memory as a file belongs to the process itself.
    type Endpoint = ();

    fn endpoint(_: &Endpoints) -> &Self::Endpoint {
        &()
    }

    /// What comes through /proc/PID/mem is proven: that is of no other memory.
    #[inline]
    unsafe fn copy(job: &Job, (): &()) -> core::result::Result<Copied, No> {
        let (peer, way, local, remote) = (job.peer, job.way, job.local, job.remote);
        if let (Way::Get, Some(fd), [one], [to]) = (way, peer.memory(), remote, local) {
            if one.len.min(to.len) <= FEW {
                // SAFETY: by the contract above.
                match unsafe { read_memory(fd, *to, *one) } {
                    // The memory is gone: the pid is somebody else's, or another program's. Or
                    // the descriptor is.
                    Ok(0) => peer.check(ticks()).map_err(No::Failed)?,
                    Ok(bytes) => {
                        let proven = true;
                        return Ok(Copied { bytes, proven });
                    }
                    Err(_) => (),
                }
            }
        }
        // SAFETY: by the contract above.
        match unsafe { attach(peer.pid(), way, local, remote) } {
            Ok(bytes) => Ok(Copied::unproven(bytes)),
            Err(e @ (Errno::PERM | Errno::NOSYS)) => {
                // SAFETY: by the contract above.
                let read = unsafe { read_instead(peer, way, local, remote) };
                read.map(Copied::unproven).ok_or(match e {
                    Errno::PERM => refused(peer),
                    _ => No::Never,
                })
            }
            Err(e) => Err(No::Failed(e)),
        }
    }
}

/// EPERM of a process that is gone, whose pid somebody else's has, is no answer for
/// this one.
#[cold]
fn refused(peer: &Process) -> No {
    match peer.check(ticks()) {
        Ok(()) => No::Never,
        Err(e) => No::Failed(e),
    }
}

/// One process_vm_readv or process_vm_writev.
unsafe fn attach(pid: u32, way: Way, local: &[Segment], remote: &[Segment]) -> Result<u64> {
    // SAFETY: by the caller's contract.
    unsafe { regall_sys::copy_between(way.access(), pid, local, remote) }
}

/// Where process_vm_readv is forbidden: through /proc/PID/mem, one segment. (Not the
/// other way: writing through that file ignores protection.)
#[cold]
unsafe fn read_instead(
    peer: &Process,
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
    peer: &Process,
    way: Way,
    local: Segment,
    remote: Segment,
) -> Option<Result<u64>> {
    let fd = peer.memory().filter(|_| way == Way::Get)?;
    // SAFETY: by the contract above.
    Some(unsafe { read_memory(fd, local, remote) })
}

unsafe fn read_memory(fd: i32, to: Segment, from: Segment) -> Result<u64> {
    let len = to.len.min(from.len);
    // SAFETY: by the caller's contract.
    unsafe { file::borrow(fd).copy_at(Access::Read, to.addr, len, from.addr) }
}
