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

use super::{Kind, No};
use crate::attach::{Bytes, Hold, Through, Wanted};
use crate::peer::Peer;
use crate::transfer::Way;
use crate::vector::{Cursor, Segment};
use regall_sys::{call, Errno, Result};

/// Copies; see [`super::copy`].
///
/// # Safety
/// As [`super::copy`].
#[inline]
pub unsafe fn copy(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
) -> core::result::Result<u64, No> {
    // SAFETY: by the contract above.
    unsafe { through(Through::File, peer, way, local, remote) }
}

/// The same, by either way in which memory is mapped.
///
/// # Safety
/// As [`super::copy`].
#[inline]
pub unsafe fn through(
    through: Through,
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
) -> core::result::Result<u64, No> {
    let (mut here, mut there) = (Cursor::new(local), Cursor::new(remote));
    let mut done = 0;
    while let (Some(own), Some(theirs)) = (here.here(), there.here()) {
        let len = own.len.min(theirs.len);
        // SAFETY: by the contract above.
        match unsafe { one(through, peer, way, own.addr, theirs.addr, len) } {
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
    through: Through,
    peer: &Peer,
    way: Way,
    own: u64,
    theirs: u64,
    len: u64,
) -> core::result::Result<u64, No> {
    let wanted = Wanted {
        through,
        addr: theirs,
        bytes: len,
        write: way == Way::Put,
        eager: !peer.order().is_auto() || !peer.states().hopeful(Kind::Cma),
        mapped: false,
    };
    let hold = peer.attachments().hold(peer, &wanted)?;
    // SAFETY: by the caller's contract.
    unsafe { move_bytes(peer, way, own, &hold, len.min(hold.len)) }
}

#[inline]
unsafe fn move_bytes(
    peer: &Peer,
    way: Way,
    own: u64,
    hold: &Hold,
    len: u64,
) -> core::result::Result<u64, No> {
    let at = match hold.bytes() {
        Ok(Bytes::At(at)) => at,
        Ok(Bytes::In(fd, offset)) => return read_file(peer, fd, own, offset, len),
        Err(_) => return Err(No::NotThis),
    };
    if !peer.host().ours(own, len, way == Way::Get) {
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
fn read_file(
    peer: &Peer,
    fd: i32,
    to: u64,
    offset: u64,
    len: u64,
) -> core::result::Result<u64, No> {
    match call!(libc::SYS_pread64, fd, to, len, offset) {
        Ok(0) if peer.order().has(Kind::Cma) || peer.order().has(Kind::Helper) => Err(No::NotThis),
        Ok(0) => Err(No::Failed(Errno::FAULT)),
        Ok(bytes) => Ok(bytes),
        Err(Errno::FAULT) => Err(No::Failed(Errno::FAULT)),
        Err(_) => Err(No::NotThis),
    }
}

/// Copies between two places of this process, or says EFAULT where memcpy would be a signal.
#[cold]
fn by_kernel(way: Way, own: u64, at: u64, len: u64) -> Result<u64> {
    let nr = match way {
        Way::Get => libc::SYS_process_vm_readv,
        Way::Put => libc::SYS_process_vm_writev,
    };
    let (local, remote) = ([own, len], [at, len]);
    let pid = regall_sys::getpid();
    call!(nr, pid, local.as_ptr(), 1, remote.as_ptr(), 1, 0)
}
