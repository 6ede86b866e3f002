//! The C interface to mapped memory: a peer's, mapped here, and ours, so that peers can
//! map it.

use super::entry::{bring_in, error};
use crate::base::phase;
use crate::host::Shim;
use crate::huge::HUGE_PAGE;
use crate::intercept::strict;
use crate::limits;
use crate::sys::file::{Fd, Kept};
use crate::sys::{self, Errno};
use crate::track::map;
use core::ffi::{c_int, c_uint};
use regall_bridge::lock::Lock;
use regall_bridge::peer::Peer;
use regall_bridge::window::{How, Lease};
use regall_directory::addr::{round_up, PageRange};
use regall_directory::layout::Generation;
use regall_directory::vocab::{Kind, Prot};

/// REGALL_MAP_WRITE.
const WRITE: c_uint = 1;
/// REGALL_MAP_UNSEALED.
const UNSEALED: c_uint = 2;

/// `struct regall_mapping`.
#[repr(C)]
#[derive(Default)]
pub struct Mapping {
    at: u64,
    len: u64,
    generation: Generation,
    base: u64,
    bytes: u64,
    slot: u32,
    how: u32,
    spare: u64,
}

/// See regall.h.
///
/// # Safety
/// `peer` is NULL or an open peer, `out` is NULL or valid for writing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_map(
    peer: *const Peer,
    addr: u64,
    len: usize,
    flags: c_uint,
    out: *mut Mapping,
) -> c_int {
    // SAFETY: by the contract above.
    let (Some(peer), false) = (unsafe { peer.as_ref() }, out.is_null()) else {
        return error(Errno::INVAL);
    };
    if flags & !(WRITE | UNSEALED) != 0 {
        return error(Errno::INVAL);
    }
    let _pass = strict::pass();
    let (write, unsealed) = (flags & WRITE != 0, flags & UNSEALED != 0);
    let taken = peer
        .check(crate::arch::ticks())
        .and_then(|()| Lease::take(peer, addr, len as u64, write, unsealed));
    let lease = match taken {
        Ok(lease) => lease,
        Err(e) => return error(e),
    };
    let mapping = Mapping {
        at: lease.at,
        len: len as u64,
        generation: lease.generation,
        base: lease.base,
        bytes: lease.bytes,
        slot: lease.slot,
        how: lease.how as u32,
        spare: 0,
    };
    // SAFETY: by the contract above.
    unsafe { out.write(mapping) };
    0
}

/// How it is mapped. `None`: it is not.
fn how(mapping: &Mapping) -> Option<How> {
    let is = |how: &How| mapping.how == *how as u32;
    [How::Mapped, How::Segment].into_iter().find(is)
}

/// See regall.h.
///
/// # Safety
/// `peer` is NULL or an open peer, `mapping` is NULL or from [`regall_map`] of that peer.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_map_check(peer: *const Peer, mapping: *const Mapping) -> c_int {
    // SAFETY: by the contract above.
    let (Some(peer), Some(mapping)) = (unsafe { (peer.as_ref(), mapping.as_ref()) }) else {
        return error(Errno::INVAL);
    };
    if how(mapping).is_none() {
        return error(Errno::INVAL);
    }
    let _pass = strict::pass();
    if !peer.publishes(mapping.slot, mapping.generation) {
        return error(Errno::STALE);
    }
    match peer.still() {
        Ok(()) => 0,
        Err(e) => error(e),
    }
}

/// See regall.h.
///
/// # Safety
/// `mapping` is NULL or from [`regall_map`], and its memory is not used any more.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_unmap(mapping: *mut Mapping) -> c_int {
    // SAFETY: by the contract above.
    let Some(mapping) = (unsafe { mapping.as_mut() }) else {
        return error(Errno::INVAL);
    };
    let Some(how) = how(mapping) else {
        return error(Errno::INVAL);
    };
    let _pass = strict::pass();
    let Mapping {
        at,
        base,
        bytes,
        slot,
        generation,
        ..
    } = *mapping;
    let lease = Lease {
        at,
        base,
        bytes,
        how,
        slot,
        generation,
    };
    lease.give_back(&Shim);
    *mapping = Mapping::default();
    0
}

/// Descriptors that are kept for peers, at the most. Memory beyond them is as good, but
/// peers without CAP_CHECKPOINT_RESTORE can't map it.
const KEPT: usize = 64;

/// A descriptor of memory that peers may map, and where that is: so one of the same user gets
/// at it.
static DESCRIPTORS: Lock<[Option<(u64, Kept)>; KEPT]> = Lock::new([None; KEPT]);

/// See regall.h.
///
/// # Safety
/// `out` is NULL or valid for writing a pointer.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_alloc_shared(size: usize, out: *mut u64) -> c_int {
    if size == 0 || out.is_null() {
        return error(Errno::INVAL);
    }
    let Some(bytes) = round_up(size as u64).filter(|b| i64::try_from(*b).is_ok()) else {
        return error(Errno::NOMEM);
    };
    let _pass = strict::pass();
    match allocate(bytes) {
        Ok(at) => {
            // SAFETY: by the contract above.
            unsafe { out.write(at) };
            0
        }
        Err(e) => error(e),
    }
}

fn allocate(bytes: u64) -> sys::Result<u64> {
    // The kernel refuses private memory that can't be, but not a file's: populating that would
    // go on until somebody is killed.
    if bytes > limits::all_memory() {
        return Err(Errno::NOMEM);
    }
    // No descriptor, or RLIMIT_FSIZE: a caller asks for memory, not for a file.
    let fd = sealed(bytes).map_err(|_| Errno::NOMEM)?;
    let at = fd.map_shared(0, bytes)?;
    if bytes >= HUGE_PAGE {
        let _ = sys::advise(at, bytes, libc::MADV_HUGEPAGE);
    }
    // Now or never: a page that can't be had later would be SIGBUS.
    let populated = match sys::advise(at, bytes, libc::MADV_POPULATE_WRITE) {
        Err(Errno::INVAL) => fd.allocate(0, bytes),
        other => other,
    };
    if populated.is_err() {
        // SAFETY: mapped above; nobody knows of it.
        let _ = unsafe { sys::unmap(at, bytes) };
        return Err(Errno::NOMEM);
    }
    if phase::tracking() {
        bring_in();
        if let Some(range) = PageRange::from_call(at, bytes) {
            map::own_allocation(range, Prot::from_call(3, true), Kind::File, false);
        }
    }
    keep(at, &fd);
    Ok(at)
}

/// A memfd of so many bytes that nobody can make shorter or longer.
fn sealed(bytes: u64) -> sys::Result<Fd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // MFD_NOEXEC_SEAL (Linux 6.3): some systems insist on it.
    let fd = create(flags | libc::MFD_NOEXEC_SEAL).or_else(|_| create(flags))?;
    fd.truncate(bytes)?;
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    fd.seal(seals)?;
    Ok(fd)
}

fn create(flags: c_uint) -> sys::Result<Fd> {
    regall_bridge::window::source::memory_file(flags)
}

/// Keeps a descriptor of the memory at `at`, if there is room.
fn keep(at: u64, fd: &Fd) {
    let mut kept = DESCRIPTORS.lock();
    let free = kept.iter_mut().find(|k| k.is_none());
    if let Some(place) = free {
        *place = Kept::new(fd).ok().map(|kept| (at, kept));
    }
}

/// In a child of fork, where who held the lock may be missing.
///
/// # Safety
/// It has no other thread yet.
pub unsafe fn child() {
    // SAFETY: by the contract above.
    unsafe { DESCRIPTORS.reset() };
}

/// What is mapped in `range` is about to be given back: its descriptors go, and with the last
/// of its mappings the memory. Not after it: the address may be other memory's by then.
pub(super) fn forget(range: PageRange) {
    let mut kept = DESCRIPTORS.lock();
    for place in kept.iter_mut() {
        let gone = |(at, _): &mut (u64, Kept)| range.start() <= *at && *at < range.end();
        if let Some((_, kept)) = place.take_if(gone) {
            kept.close();
        }
    }
}
