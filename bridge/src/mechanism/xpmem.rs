//! XPMEM, a module that maps any memory of a process in another one: `/dev/xpmem`, by its
//! public header (xpmem.h, 2.6).
//!
//! An owner makes one segment of its whole address space and publishes its number. A peer
//! gets leave to use it and attaches what it needs. The driver attaches for writing or not
//! at all, so only memory that its owner can write is attached.
//!
//! Memory that its owner unmaps while somebody copies from an attachment is SIGBUS for
//! him, which no check before can prevent. So this is for those who ask for it by name:
//! `auto` leaves it out.

use super::{map, No};
use crate::attach::Through;
use crate::host::Host;
use crate::lock::Lock;
use crate::peer::Peer;
use crate::transfer::Way;
use crate::vector::Segment;
use core::sync::atomic::{AtomicI64, AtomicU32, Ordering::*};
use regall_sys::file::{self, Fd};
use regall_sys::{call, Errno, Result};

const DEVICE: &core::ffi::CStr = c"/dev/xpmem";
// _IO('x', n).
const MAKE: u64 = 0x7801;
const GET: u64 = 0x7803;
const RELEASE: u64 = 0x7804;
const ATTACH: u64 = 0x7805;
const DETACH: u64 = 0x7806;
/// XPMEM_RDWR.
const READ_WRITE: i32 = 2;
/// XPMEM_PERMIT_MODE.
const BY_MODE: i32 = 1;
/// Who may get a segment: its owner's processes.
const MODE: u64 = 0o600;
/// XPMEM_MAXADDR_SIZE: up to the end of the address space.
const ALL: u64 = u64::MAX;

#[repr(C)]
struct Make {
    address: u64,
    size: u64,
    permit: i32,
    value: u64,
    segment: i64,
}

#[repr(C)]
struct Get {
    segment: i64,
    flags: i32,
    permit: i32,
    value: u64,
    access: i64,
}

#[repr(C)]
struct Attach {
    access: i64,
    offset: i64,
    size: u64,
    address: u64,
    fd: i32,
    flags: i32,
}

const _: () = assert!(size_of::<Make>() == 40 && size_of::<Get>() == 32);
const _: () = assert!(size_of::<Attach>() == 40);

/// This process's descriptor of the device: the driver knows processes by that they have
/// opened it, so a child of fork opens its own.
struct Device {
    fd: i32,
    pid: u32,
    /// Device, inode and device number of what was opened.
    file: (u64, u64, u64),
}

static OPENED: Lock<Device> = Lock::new(Device {
    fd: -1,
    pid: 0,
    file: (0, 0, 0),
});

/// Which file it is.
fn file_of(fd: i32) -> Result<(u64, u64, u64)> {
    file::stat_fd(fd).map(|s| (s.dev, s.inode, s.rdev))
}

/// The descriptor, opened if need be. A program may have closed it, and another file may
/// have its number: which one it is is looked at.
fn device() -> Result<i32> {
    let mut opened = OPENED.lock();
    let pid = regall_sys::getpid();
    let there = opened.fd >= 0 && file_of(opened.fd) == Ok(opened.file);
    if there && opened.pid == pid {
        return Ok(opened.fd);
    }
    let inherited = there && opened.pid != pid;
    // The driver ends all that a process has when *any* of its descriptors of the device is
    // closed. So none is closed once there is one of our own, not even a duplicate.
    if inherited {
        file::close(opened.fd);
        opened.fd = -1;
    }
    let fd = Fd::open(DEVICE, libc::O_RDWR, 0)?;
    *opened = Device {
        fd: fd.raw(),
        pid,
        file: file_of(fd.raw())?,
    };
    core::mem::forget(fd);
    Ok(opened.fd)
}

fn command<T>(nr: u64, argument: &mut T) -> Result<()> {
    call!(
        libc::SYS_ioctl,
        device()?,
        nr,
        core::ptr::from_mut(argument)
    )
    .map(drop)
}

/// Lets peers attach all memory of this process: the number to publish. Errors of open(2);
/// ENOENT where there is no such module.
///
/// # Safety
/// At the process's start, or that of a child of fork: no other thread is in here.
pub unsafe fn offer() -> Result<u64> {
    // SAFETY: by the contract above; who held it may be missing in a child.
    unsafe { OPENED.reset() };
    let mut make = Make {
        address: 0,
        size: ALL,
        permit: BY_MODE,
        value: MODE,
        segment: 0,
    };
    command(MAKE, &mut make)?;
    u64::try_from(make.segment).map_err(|_| Errno::INVAL)
}

/// Leave to attach a peer's memory, as this process has it.
pub struct Access {
    id: AtomicI64,
    pid: AtomicU32,
}

impl Default for Access {
    fn default() -> Self {
        Self::new()
    }
}

impl Access {
    /// None yet.
    pub const fn new() -> Self {
        Self {
            id: AtomicI64::new(0),
            pid: AtomicU32::new(0),
        }
    }

    fn get(&self, segment: u64) -> Result<i64> {
        let pid = regall_sys::getpid();
        let known = self.id.load(Acquire);
        if known != 0 && self.pid.load(Relaxed) == pid {
            return Ok(known);
        }
        let mut get = Get {
            segment: i64::try_from(segment).map_err(|_| Errno::INVAL)?,
            flags: READ_WRITE,
            permit: BY_MODE,
            value: 0,
            access: 0,
        };
        command(GET, &mut get)?;
        self.pid.store(pid, Relaxed);
        self.id.store(get.access, Release);
        Ok(get.access)
    }

    /// Gives it back.
    pub fn release(&self) {
        let mut id = self.id.swap(0, AcqRel);
        if id != 0 && self.pid.load(Relaxed) == regall_sys::getpid() {
            let _ = command(RELEASE, &mut id);
        }
    }
}

/// Attaches `bytes` (whole pages) of the peer's memory at `addr`.
///
/// ENOENT: it has not offered it, or there is no such module here; errors of the driver's.
pub fn attach(peer: &Peer, addr: u64, bytes: u64) -> Result<u64> {
    let segment = peer.offers_xpmem().ok_or(Errno::NOENT)?;
    let mut attach = Attach {
        access: peer.xpmem().get(segment)?,
        offset: i64::try_from(addr).map_err(|_| Errno::INVAL)?,
        size: bytes,
        address: 0,
        fd: 0,
        flags: 0,
    };
    command(ATTACH, &mut attach)?;
    peer.host().changed(attach.address, bytes);
    Ok(attach.address)
}

/// Gives an attachment back.
pub fn detach(host: &dyn Host, at: u64, bytes: u64) {
    let mut address = at;
    let _ = command(DETACH, &mut address);
    host.changed(at, bytes);
}

/// Copies; see [`super::copy`].
///
/// # Safety
/// As [`super::copy`].
pub unsafe fn copy(
    peer: &Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
) -> core::result::Result<u64, No> {
    if peer.order().is_auto() {
        return Err(No::NotThis);
    }
    if peer.offers_xpmem().is_none() || device().is_err() {
        return Err(No::Never);
    }
    // SAFETY: by the contract above.
    unsafe { map::through(Through::Xpmem, peer, way, local, remote) }
}
