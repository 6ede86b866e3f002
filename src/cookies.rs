//! This process's regions, and those of others that were used: what of the bridge's state
//! is the shim's.

use crate::base::{process, settings, withheld::withheld};
use crate::host::Shim;
use crate::ledger::Found;
use crate::memory::{steady, touchable};
use crate::store::{REGIONS, USES};
use crate::sys::file::{self, Fd, Kept};
use crate::sys::{Errno, Result};
use crate::track;
use regall_bridge::cookie::circle::Circle;
use regall_bridge::cookie::owner::{Owner, Place};
use regall_bridge::cookie::{Cookie, Rights};
use regall_bridge::kind::Kind;
use regall_bridge::lock::Lock;
use regall_bridge::queue::{Job, Vector};
use regall_bridge::transfer::{Outcome, Way};
use regall_bridge::vector::Segment;
use regall_directory::addr::PageRange;
use regall_directory::vocab::{Flags, Prot};

static OWNER: Owner = Owner::new();
static CIRCLE: Circle = Circle::new();
/// The pipe through which we are told of uses.
static USES_FD: Lock<Option<Kept>> = Lock::new(None);

/// The file beside the directory.
struct Here;

impl Place for Here {
    fn open(&self, anew: bool) -> Result<Fd> {
        let guard = track::lock().ok_or(Errno::BUSY)?;
        let create = if anew { libc::O_CREAT } else { 0 };
        guard.store().open_beside(REGIONS, libc::O_RDWR | create)
    }

    fn image(&self) -> u64 {
        process::image()
    }

    fn pid(&self) -> u32 {
        crate::sys::getpid()
    }
}

/// Memory goes: see [`Owner::leave`]. The ledger's lock is held, as it is where a new
/// region asks for its memory: so one of the two sees the other.
#[inline]
pub fn leave(range: PageRange) {
    OWNER.leave(range);
}

/// Tells of memory whose pages are replaced, and that stays where it is.
#[inline]
pub fn replaced(range: PageRange) {
    OWNER.replaced(range);
}

/// Whether the KNEM module has pages of ours.
pub fn shadowed() -> bool {
    OWNER.is_shadowed()
}

/// A new process, or the child of one: no regions.
pub fn forget() {
    // SAFETY: the only thread of a child of fork, or the constructor.
    unsafe { OWNER.forget() };
    // SAFETY: likewise.
    unsafe { CIRCLE.forked() };
    // SAFETY: likewise.
    unsafe { USES_FD.reset() };
    // The pipe is the parent's; its descriptor is left alone.
    *USES_FD.lock() = None;
}

/// The process ends: the files go.
pub fn end() {
    if let (true, Some(guard)) = (OWNER.has_file(), track::lock()) {
        guard.store().remove_beside(REGIONS);
        guard.store().remove_beside(USES);
    }
}

/// Makes a region. As [`Owner::create`]; EFAULT also: some of it is not registered, or its
/// protection permits less than `rights`.
pub fn create(segments: &[Segment], rights: Rights) -> Result<Cookie> {
    if rights.has(Rights::NOTIFY) {
        uses_fd()?;
    }
    let knem = settings::config().copy.has(Kind::Knem) && !withheld();
    let pinnable = &|s: &Segment| knem && stays(s);
    let memory = &mut |s: &Segment| permitted(s, rights);
    track::subscribers::listen();
    let made = OWNER.create(&Shim, &Here, segments, rights, pinnable, memory);
    if knem && withheld() {
        crate::host::withdraw();
    }
    made
}

/// Whether a segment's pages can be replaced by this process's doing alone, and are there as soon
/// as somebody asks for them to be written. Pages of shared memory go when another process cuts
/// its file, or punches a hole into it. Memory that may not be paid for is not brought in.
fn stays(segment: &Segment) -> bool {
    let private = |found: &Found| {
        let attr = found.attr();
        !attr.prot.shared()
            && !attr.flags.has(Flags::NORESERVE)
            && !attr.flags.has(Flags::KEEP_LAZY)
    };
    touchable(segment.addr, segment.len, true, private) && steady(segment.addr, segment.len, true)
}

/// Whether all of a segment is registered, with protection enough.
fn permitted(segment: &Segment, rights: Rights) -> Result<()> {
    let range = PageRange::covering(segment.addr, segment.len).ok_or(Errno::FAULT)?;
    let enough = |prot: Prot| {
        (!rights.permits(false) || prot.readable()) && (!rights.permits(true) || prot.writable())
    };
    let guard = track::lock().ok_or(Errno::BUSY)?;
    let mut upto = range.start();
    guard.ledger.for_each(range, |part, entry| {
        let good = part.start() == upto && entry.attr.registered() && enough(entry.attr.prot);
        if !good {
            return core::ops::ControlFlow::Break(());
        }
        upto = part.end();
        core::ops::ControlFlow::Continue(())
    });
    match upto == range.end() {
        true => Ok(()),
        false => Err(Errno::FAULT),
    }
}

/// Destroys a region of ours. EINVAL: there is none of that cookie; EPERM: it is another
/// process's.
pub fn destroy(cookie: Cookie) -> Result<()> {
    match OWNER.destroy(cookie) {
        Err(Errno::INVAL) if ![0, crate::sys::getpid()].contains(&cookie.pid()) => Err(Errno::PERM),
        other => other,
    }
}

/// How often a region of ours with [`Rights::NOTIFY`] was used. EINVAL: there is none.
pub fn uses(cookie: Cookie) -> Result<u64> {
    OWNER.with(cookie, |slot| slot.uses.count())
}

/// The descriptor that can be read when regions with [`Rights::NOTIFY`] were used. Another
/// one, if the program has closed the last.
pub fn uses_fd() -> Result<i32> {
    // One at a time: the pipe that has the name must be the one that is read.
    let mut uses_fd = USES_FD.lock();
    if let Some(fd) = uses_fd.and_then(|kept| kept.ours()) {
        return Ok(fd);
    }
    let pipe = track::lock()
        .ok_or(Errno::BUSY)?
        .store()
        .pipe_beside(USES)?;
    let kept = Kept::new(&pipe)?;
    *uses_fd = Some(kept);
    Ok(kept.raw())
}

/// Tells `tell` of each region with [`Rights::NOTIFY`] that was used and how often, until it
/// says that it has heard enough; the descriptor can be read again when there is more.
pub fn used(mut tell: impl FnMut(Cookie, u64) -> bool) {
    if let Some(uses_fd) = USES_FD.lock().and_then(|kept| kept.ours()) {
        let uses = file::borrow(uses_fd);
        while let Ok(1..) = uses.read(&mut [0; 512]) {}
    }
    OWNER.each(|cookie, slot| {
        let count = slot.uses.count();
        count == 0 || tell(cookie, count)
    });
}

/// Reads or writes a region; see [`Circle::transfer`].
///
/// # Safety
/// The local segments are valid to be written (get) or read (put).
pub unsafe fn transfer(way: Way, cookie: Cookie, offset: u64, local: &[Segment]) -> Outcome {
    let order = settings::config().copy;
    // SAFETY: by the contract above.
    unsafe { CIRCLE.transfer(&Shim, order, way, (cookie, offset), local) }
}

/// Copies between regions; see [`Circle::copy`].
pub fn copy(from: (Cookie, u64), to: (Cookie, u64), length: u64) -> Outcome {
    CIRCLE.copy(&Shim, settings::config().copy, from, to, length)
}

/// As [`transfer`], to be put into a queue.
pub fn transfer_job(way: Way, region: (Cookie, u64), local: Vector) -> Job {
    Job::Region {
        circle: &CIRCLE,
        order: settings::config().copy,
        way,
        region,
        local,
    }
}

/// As [`copy`], to be put into a queue.
pub fn copy_job(from: (Cookie, u64), to: (Cookie, u64), length: u64) -> Job {
    Job::Regions {
        circle: &CIRCLE,
        order: settings::config().copy,
        from,
        to,
        length,
    }
}
