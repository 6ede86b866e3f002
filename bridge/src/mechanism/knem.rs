//! The KNEM module, ABI 0xd: it takes hold of a region's pages when the region is made, and
//! copies by its own cookie for it. Its reference is its public header, knem_io.h.
//!
//! What it holds are pages, not addresses: when they are replaced (unmapped, thrown away), the
//! owner takes the cookie back from the region's slot first ([`Owner::replaced`]). Pages that are
//! not there yet have to come before it takes hold: of memory to be read alone it would take the
//! zero page, or a file's, and never see what is written later. So it is asked for write.
//!
//! [`Owner::replaced`]: crate::cookie::owner::Owner::replaced

use super::{Copied, Endpoints, Features, Job, Mechanism};
use crate::kind::No;
use crate::lock::Lock;
use crate::vector::{Segment, Way};
use regall_sys::file::{self, Fd, Kept};
use regall_sys::{Errno, Result};

const ABI: u32 = 0xd;
const GET_INFO: u32 = 0x4010_4b10;
const CREATE_REGION: u32 = 0xc020_4b21;
const DESTROY_REGION: u32 = 0x8008_4b22;
const INLINE_COPY: u32 = 0x8030_4b33;
/// `current_status` of a copy that is done.
const STATUS_SUCCESS: u32 = 1;

/// Segments of a region, at the most: from 65,533 on what the driver allocates for them is
/// larger than the kernel's largest piece, and the kernel complains of that in its log.
const SEGMENTS: usize = 65_000;

/// What is known of the device.
#[derive(Clone, Copy)]
enum Device {
    /// The device was not tried yet.
    Untried,
    /// The device can't be used.
    None,
    /// The device is open.
    Open(Kept),
}

/// This process's descriptor of the device. A child of fork opens its own.
static DEVICE: Lock<Device> = Lock::new(Device::Untried);

#[repr(C)]
struct Info {
    abi: u32,
    features: u32,
    ignored_flags: u32,
    forced_flags: u32,
}

#[repr(C)]
struct CreateRegion {
    segments: u64,
    count: u32,
    flags: u32,
    protection: u32,
    pad: u32,
    cookie: u64,
}

#[repr(C)]
struct InlineCopy {
    local: u64,
    count: u32,
    write: u32,
    cookie: u64,
    offset: u64,
    flags: u32,
    status: u32,
    async_index: u32,
    pad: u32,
}

const _: () = assert!(size_of::<Info>() == 16);
const _: () = assert!(size_of::<CreateRegion>() == 32);
const _: () = assert!(size_of::<InlineCopy>() == 48);

/// The descriptor, opened if need be. A program may have closed it, and another file may have
/// its number: then it is opened again, and what the module had of ours is gone.
fn device() -> Option<i32> {
    let mut device = DEVICE.lock();
    if let Device::Open(kept) = &*device {
        if let Some(fd) = kept.ours() {
            return Some(fd);
        }
    } else if matches!(*device, Device::None) {
        return None;
    }
    let opened = open();
    *device = opened.map_or(Device::None, Device::Open);
    opened.map(|kept| kept.raw())
}

#[cold]
fn open() -> Option<Kept> {
    let fd = Fd::open(c"/dev/knem", libc::O_RDWR, 0).ok()?;
    let mut info = Info {
        abi: 0,
        features: 0,
        ignored_flags: 0,
        forced_flags: 0,
    };
    // SAFETY: the module writes its `struct knem_cmd_info` there.
    unsafe { request(fd.raw(), GET_INFO, &raw mut info) }.ok()?;
    match info.abi {
        ABI => Kept::new(&fd).ok(),
        _ => None,
    }
}

/// # Safety
/// `argument` is what the module takes for `request`, and names memory that it can be given.
unsafe fn request<T>(fd: i32, request: u32, argument: *mut T) -> Result<u64> {
    // SAFETY: by the contract above.
    unsafe { file::borrow(fd).ioctl(request.into(), argument) }
}

/// In a child of fork: regions are its parent's, and the module keeps their pages as long as
/// anybody has the descriptor that they were made by. So that is closed here.
///
/// # Safety
/// No other thread is in here.
pub unsafe fn forget() {
    // SAFETY: by the contract above; who held it may be missing in a child.
    unsafe { DEVICE.reset() };
    let mut device = DEVICE.lock();
    if let Device::Open(kept) = &*device {
        kept.close();
    }
    *device = Device::Untried;
}

/// Gives the module a region of this process, all of which can be written; its cookie, or 0 if
/// there is no module or it will not have it. Its cookie permits both ways, to processes of this
/// user: what the region permits is for those who use it to look at.
pub fn create(segments: &[Segment]) -> u64 {
    let (Some(fd), true) = (device(), segments.len() <= SEGMENTS) else {
        return 0;
    };
    let mut region = CreateRegion {
        segments: segments.as_ptr() as u64,
        count: segments.len() as u32,
        flags: 0,
        protection: (libc::PROT_READ | libc::PROT_WRITE) as u32,
        pad: 0,
        cookie: 0,
    };
    // SAFETY: segments of this process, which the module gets at as their pages.
    match unsafe { request(fd, CREATE_REGION, &raw mut region) } {
        Ok(_) => region.cookie,
        Err(_) => 0,
    }
}

/// Takes a region back; 0 is none.
pub fn destroy(cookie: u64) {
    if let (Some(fd), true) = (device(), cookie != 0) {
        let mut cookie = cookie;
        // SAFETY: the module reads a number there.
        let _ = unsafe { request(fd, DESTROY_REGION, &raw mut cookie) };
    }
}

/// Takes all regions back that this process has given: the module ends them with the descriptor.
/// A lock that another thread holds, or this one further up its stack, is not waited for: EBUSY.
pub fn withdraw() -> Result<()> {
    let mut device = DEVICE.try_lock().ok_or(Errno::BUSY)?;
    if let Device::Open(kept) = &*device {
        kept.close();
        *device = Device::Untried;
    }
    Ok(())
}

/// The mechanism by the KNEM module.
pub struct Knem;

impl Mechanism for Knem {
    const FEATURES: Features = Features {
        by_cookie: true,
        ..Features::NONE
    };

    /// The device is one for all peers.
    type Endpoint = ();

    fn endpoint(_: &Endpoints) -> &Self::Endpoint {
        &()
    }

    unsafe fn copy(job: &Job, (): &()) -> core::result::Result<Copied, No> {
        // SAFETY: by the contract above.
        let copied = unsafe { copy(job.way, job.local, job.remote, job.knem) };
        copied.map(Copied::unproven)
    }
}

/// Copies between the local segments and the region that the module has under
/// `region`'s cookie, from its offset on.
///
/// # Safety
/// As [`super::copy`].
unsafe fn copy(
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    region: Option<(u64, u64)>,
) -> core::result::Result<u64, No> {
    let Some((cookie @ 1.., offset)) = region else {
        return Err(No::NotThis);
    };
    let fd = device().ok_or(No::Never)?;
    let bytes = |side: &[Segment]| side.iter().map(|s| s.len).sum::<u64>();
    if bytes(local) > bytes(remote) {
        return Err(No::NotThis);
    }
    let mut copy = InlineCopy {
        local: local.as_ptr() as u64,
        count: local.len() as u32,
        write: u32::from(way == Way::Put),
        cookie,
        offset,
        flags: 0,
        status: 0,
        async_index: 0,
        pad: 0,
    };
    // SAFETY: `local` is the caller's, by the contract of `copy`.
    match unsafe { request(fd, INLINE_COPY, &raw mut copy) } {
        // All of it, to the end of the local side, which is the shorter one.
        Ok(_) if copy.status == STATUS_SUCCESS => Ok(bytes(local)),
        Ok(_) | Err(Errno::FAULT) => Err(No::Failed(Errno::FAULT)),
        // The owner's device is closed, or has another user's regions.
        Err(_) => Err(No::NotThis),
    }
}
