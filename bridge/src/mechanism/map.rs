//! The peer's memory, mapped here, where it can be mapped: no system call, no page pinned.
//!
//! What is mapped is copied with memcpy. A destination of this process's own that is not
//! mapped would be a signal then, so it is looked up first ([`Host::ours`]); where it is not
//! known to be good the kernel copies, and says EFAULT. What another thread unmaps
//! meanwhile is a signal, as in any memcpy.
//!
//! A file that could be cut short is read with pread(2), never touched.
//!
//! [`Host::ours`]: crate::host::Host::ours

use super::{any_memory, Copied, Endpoints, Features, Job, Mechanism};
use crate::kind::{Kind, No, Order};
use crate::process::Process;
use crate::vector::{Cursor, Segment, Way};
use crate::window::{By, Bytes, Hold, Wanted, Windows};
use regall_sys::{file, Access, Errno, Result};

/// The mechanism by mapping the peer's memory.
pub struct Map;

impl Mechanism for Map {
    const FEATURES: Features = Features::NONE;

    type Endpoint = Windows;

    fn endpoint(all: &Endpoints) -> &Self::Endpoint {
        &all.map
    }

    #[inline]
    unsafe fn copy(job: &Job, windows: &Self::Endpoint) -> core::result::Result<Copied, No> {
        let by = job.endpoints.by_file(job.order);
        // SAFETY: by the contract above.
        let copied = unsafe { through(by, windows, job) };
        copied.map(Copied::unproven)
    }
}

/// A peer's memory where it is mapped here, for who has a use for it beside copying; attached now
/// if it is not and that pays, or if `eager`. `None`: it is not mapped, or the order of mechanisms
/// leaves mapping out.
pub fn hold<'a>(
    peer: &Process,
    (endpoints, order): (&'a Endpoints, &Order),
    (addr, bytes): (u64, u64),
    write: bool,
    eager: bool,
) -> Option<(u64, Hold<'a>)> {
    if !order.has(Kind::Map) {
        return None;
    }
    let wanted = Wanted {
        by: endpoints.by_file(order),
        addr,
        bytes,
        write,
        eager: eager || !order.is_auto() || !endpoints.kernel_copies(),
        mapped: true,
    };
    let hold = endpoints.map.hold(peer, &wanted).ok()?;
    match hold.bytes() {
        Ok(Bytes::At(at)) => Some((at, hold)),
        _ => None,
    }
}

/// Copies from or to what is mapped, by either way in which memory is mapped.
///
/// # Safety
/// As [`super::copy`].
#[inline]
pub(super) unsafe fn through(
    by: By,
    windows: &Windows,
    job: &Job,
) -> core::result::Result<u64, No> {
    let (mut here, mut there) = (Cursor::new(job.local), Cursor::new(job.remote));
    let mut done = 0;
    while let (Some(own), Some(theirs)) = (here.here(), there.here()) {
        let len = own.len.min(theirs.len);
        // SAFETY: by the contract above.
        match unsafe { one(by, windows, job, own.addr, theirs.addr, len) } {
            Ok(bytes) => {
                done += bytes;
                here.advance(bytes);
                there.advance(bytes);
            }
            // The rest comes again, and says why.
            Err(_) if done > 0 => break,
            Err(no) => return Err(no),
        }
    }
    Ok(done)
}

#[inline]
unsafe fn one(
    by: By,
    windows: &Windows,
    job: &Job,
    own: u64,
    theirs: u64,
    len: u64,
) -> core::result::Result<u64, No> {
    let wanted = Wanted {
        by,
        addr: theirs,
        bytes: len,
        write: job.way == Way::Put,
        eager: !job.order.is_auto() || !job.endpoints.kernel_copies(),
        mapped: false,
    };
    let hold = windows.hold(job.peer, &wanted)?;
    // SAFETY: by the caller's contract.
    unsafe { move_bytes(job, own, &hold, len.min(hold.len)) }
}

#[inline]
unsafe fn move_bytes(job: &Job, own: u64, hold: &Hold, len: u64) -> core::result::Result<u64, No> {
    let way = job.way;
    let at = match hold.bytes() {
        Ok(Bytes::At(at)) => at,
        Ok(Bytes::In(fd, offset)) => return read_file(job, fd, own, offset, len),
        Err(_) => return Err(No::NotThis),
    };
    if !job.peer.host().ours(own, len, way == Way::Get) {
        match by_kernel(way, own, at, len) {
            Ok(bytes) => return Ok(bytes),
            // Not allowed here: it is as good as any memcpy then.
            Err(Errno::PERM | Errno::NOSYS) => (),
            Err(e) => return Err(No::Failed(e)),
        }
    }
    let (from, to) = match way {
        Way::Get => (at, own),
        Way::Put => (own, at),
    };
    // SAFETY: the hold has `len` bytes mapped, to be written if `way` says so, and the
    // caller vouches for his own. They may overlap: they may be the same memory.
    unsafe { core::ptr::copy(from as *const u8, to as *mut u8, len as usize) };
    Ok(len)
}

/// Reads from a file. Memory behind its end, up to the end of the page, is there and is
/// not the file's: that is for others.
#[cold]
fn read_file(job: &Job, fd: i32, to: u64, offset: u64, len: u64) -> core::result::Result<u64, No> {
    // SAFETY: the caller's own memory, which it vouches for.
    match unsafe { file::borrow(fd).copy_at(Access::Read, to, len, offset) } {
        Ok(0) if any_memory(job.order) => Err(No::NotThis),
        Ok(0) => Err(No::Failed(Errno::FAULT)),
        Ok(bytes) => Ok(bytes),
        Err(Errno::FAULT) => Err(No::Failed(Errno::FAULT)),
        Err(_) => Err(No::NotThis),
    }
}

/// Copies between two places of this process, or says EFAULT where memcpy would be a signal.
#[cold]
fn by_kernel(way: Way, own: u64, at: u64, len: u64) -> Result<u64> {
    let [local, remote] = [own, at].map(|addr| Segment { addr, len });
    let pid = regall_sys::getpid();
    // SAFETY: the caller vouches for his own memory; the other is held.
    unsafe { regall_sys::copy_between(way.access(), pid, &[local], &[remote]) }
}
