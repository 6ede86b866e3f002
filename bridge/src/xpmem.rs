//! XPMEM, a module that maps any memory of a process in another one: `/dev/xpmem`, by its
//! public header (xpmem.h, 2.6).
//!
//! An owner makes one segment of its whole address space and publishes its number. A peer
//! gets leave to use it and attaches what it needs. The driver attaches for writing or not
//! at all, so only memory that its owner can write is attached.
//!
//! Memory that its owner unmaps while somebody copies from an attachment is SIGBUS for
//! him, which no check before can prevent. So this is for those who ask for it by name:
//! `auto` leaves it out. What can be seen before is looked at before each copy: whether the
//! owner's memory is there, and whether the attachment is what it was.
//!
//! The driver knows processes, not descriptors: when a process closes *any* descriptor of the
//! device, it ends all that the process has, a program's own segments and attachments, too. So
//! nothing here closes one, and ours has a high number.
//!
//! A process that executes another program while it has something attached hangs in the driver
//! for ever (openucx 2.7.4 looks for the attachment in the new memory). So what is attached is
//! detached after each copy. For a thread that executes a program during another one's copy
//! there is a guard ([`guard`]): the process is killed then, and does not hang.

use crate::host::Host;
use crate::lock::Lock;
use crate::process::Process;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::*};
use regall_directory::addr::PAGE;
use regall_sys::file::{self, Fd};
use regall_sys::{Errno, Result};

/// The device.
pub const DEVICE: &core::ffi::CStr = c"/dev/xpmem";
// _IO('x', n).
const MAKE: u64 = 0x7801;
const REMOVE: u64 = 0x7802;
const GET: u64 = 0x7803;
const RELEASE: u64 = 0x7804;
const ATTACH: u64 = 0x7805;
const DETACH: u64 = 0x7806;
/// XPMEM_ERRNO_NOPROC: the driver does not know this process.
const UNKNOWN: Errno = Errno(2004);
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
pub(crate) fn device() -> Result<i32> {
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
        file::close_inherited(opened.fd);
        opened.fd = -1;
    }
    let fd = Fd::open(DEVICE, libc::O_RDWR, 0)?.leak();
    opened.is_now(fd)?;
    Ok(fd)
}

impl Device {
    fn is_now(&mut self, fd: i32) -> Result<()> {
        *self = Self {
            fd,
            pid: regall_sys::getpid(),
            file: file_of(fd)?,
        };
        Ok(())
    }
}

/// Opens the device once more: a program has closed a descriptor of it, and the driver knows
/// this process no longer. What was open stays so.
#[cold]
fn open_anew() -> Result<()> {
    let fd = Fd::open(DEVICE, libc::O_RDWR, 0)?.leak();
    OPENED.lock().is_now(fd)
}

/// Keeps the driver from hanging in execve(2), as long as the thread lives that calls it, which
/// has a table of descriptors of its own: the kernel ends all other threads before it lets go of
/// the old memory, their descriptors are closed, and the driver forgets the process.
pub fn guard() -> Result<()> {
    let fd = Fd::open(DEVICE, libc::O_RDWR, 0)?;
    let _ = fd.leak();
    Ok(())
}

/// # Safety
/// `argument` is what the driver takes for `nr`.
unsafe fn command<T>(nr: u64, argument: &mut T) -> Result<()> {
    let device = device()?;
    // SAFETY: by the contract above.
    unsafe { file::borrow(device).ioctl(nr, argument) }.map(drop)
}

/// A new process, or a child of fork: it has no part in its parent's attachments.
///
/// # Safety
/// No other thread is in here.
pub unsafe fn forget() {
    // SAFETY: by the contract above; who held it may be missing in a child.
    unsafe { OPENED.reset() };
    ENTRIES.iter().for_each(|e| e.number.store(0, Relaxed));
}

/// Lets peers attach all memory of this process: the number to publish. At the process's start,
/// or that of a child of fork, with a table of descriptors of its own. Errors of open(2); ENOENT
/// where there is no such module.
pub fn offer() -> Result<u64> {
    open_high()?;
    let mut make = Make {
        address: 0,
        size: ALL,
        permit: BY_MODE,
        value: MODE,
        segment: 0,
    };
    // SAFETY: the driver's `struct xpmem_cmd_make`.
    unsafe { command(MAKE, &mut make) }?;
    u64::try_from(make.segment).map_err(|_| Errno::INVAL)
}

/// Takes an offer back: what peers have attached of it is gone. A lock that another thread
/// holds, or this one further up its stack, is not waited for: EBUSY.
pub fn withdraw(segment: u64) -> Result<()> {
    let opened = OPENED.try_lock().ok_or(Errno::BUSY)?;
    let ours = opened.pid == regall_sys::getpid() && file_of(opened.fd) == Ok(opened.file);
    if !ours {
        // The driver took it back when the descriptor was closed.
        return Ok(());
    }
    let mut segment = segment;
    // SAFETY: the driver reads a number there.
    unsafe { file::borrow(opened.fd).ioctl(REMOVE, &raw mut segment) }.map(drop)
}

/// Opens the device at a high number: programs that close what they find begin at the low ones,
/// and a duplicate will not do, as the original has to be closed then. So all that is below is
/// taken for a moment.
fn open_high() -> Result<()> {
    let mut opened = OPENED.lock();
    let pid = regall_sys::getpid();
    if opened.fd >= 0 && opened.pid != pid && file_of(opened.fd) == Ok(opened.file) {
        // The parent's, of which a child has no use. The driver does not know us yet.
        file::close(opened.fd);
    }
    file::stat_path(DEVICE, false)?;
    let fd = file::above_the_low(|| Fd::open(DEVICE, libc::O_RDWR, 0))?;
    opened.is_now(fd.leak())
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
    /// A device that is not open yet.
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
        // SAFETY: the driver's `struct xpmem_cmd_get`.
        unsafe { command(GET, &mut get) }?;
        self.pid.store(pid, Relaxed);
        self.id.store(get.access, Release);
        Ok(get.access)
    }

    /// Forgets a descriptor that is not valid any more.
    fn forget(&self) {
        self.id.store(0, Release);
    }

    /// Gives it back.
    pub fn release(&self) {
        let mut id = self.id.swap(0, AcqRel);
        if id != 0 && self.pid.load(Relaxed) == regall_sys::getpid() {
            // SAFETY: the driver reads a number there.
            let _ = unsafe { command(RELEASE, &mut id) };
        }
    }
}

/// Attaches `bytes` (whole pages) of the peer's memory at `addr`: where it is, and what stands
/// for it ([`is_attached`]).
///
/// ENOENT: it has not offered it, or there is no such module here; errors of the driver's.
pub fn attach(peer: &Process, access: &Access, addr: u64, bytes: u64) -> Result<(u64, u64)> {
    let segment = peer.offers_xpmem().ok_or(Errno::NOENT)?;
    if !peer.host().guards_attachments() {
        return Err(Errno::PERM);
    }
    let at = match try_to_attach(access, segment, addr, bytes) {
        Err(Errno::NOENT | UNKNOWN) => {
            access.forget();
            open_anew()?;
            try_to_attach(access, segment, addr, bytes)?
        }
        other => other?,
    };
    peer.host().changed(at, bytes);
    match enter(peer.host(), at, bytes) {
        Ok(mark) => Ok((at, mark)),
        Err(e) => {
            give_up(peer.host(), at, bytes);
            Err(e)
        }
    }
}

fn try_to_attach(access: &Access, segment: u64, addr: u64, bytes: u64) -> Result<u64> {
    let mut attach = Attach {
        access: access.get(segment)?,
        offset: i64::try_from(addr).map_err(|_| Errno::INVAL)?,
        size: bytes,
        address: 0,
        fd: 0,
        flags: 0,
    };
    // SAFETY: the driver's `struct xpmem_cmd_attach`; it maps where nothing is.
    unsafe { command(ATTACH, &mut attach) }?;
    Ok(attach.address)
}

/// Attachments of this process, at the most.
const MOST: usize = 256;

/// An attachment, as long as it is thought to be there.
struct Entry {
    /// Its number; 0: none. No number is given twice.
    number: AtomicU64,
    at: AtomicU64,
    bytes: AtomicU64,
    /// [`Host::sort`] of it.
    sort: AtomicU64,
}

impl Entry {
    const fn none() -> Self {
        Self {
            number: AtomicU64::new(0),
            at: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            sort: AtomicU64::new(0),
        }
    }

    fn is_at(&self, at: u64, bytes: u64) -> bool {
        let (start, len) = (self.at.load(Relaxed), self.bytes.load(Relaxed));
        start < at.saturating_add(bytes) && at < start.saturating_add(len)
    }
}

/// All of them. Changed with [`OPENED`] locked.
static ENTRIES: [Entry; MOST] = [const { Entry::none() }; MOST];
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// The place of an attachment's entry is in the low bits of what stands for it.
const PLACE: u64 = 0xffff;

/// Enters what has just been attached; what stands for it. What was entered for the same
/// addresses is gone. ENOMEM: there are too many.
fn enter(host: &dyn Host, at: u64, bytes: u64) -> Result<u64> {
    let _alone = OPENED.lock();
    for entry in ENTRIES.iter().filter(|e| e.is_at(at, bytes)) {
        entry.number.store(0, Release);
    }
    let mut free = ENTRIES.iter().enumerate();
    let free = free.find(|(_, e)| e.number.load(Relaxed) == 0);
    let (n, entry) = free.ok_or(Errno::NOMEM)?;
    let number = NUMBERS.fetch_add(1, Relaxed);
    entry.at.store(at, Relaxed);
    entry.bytes.store(bytes, Relaxed);
    entry.sort.store(host.sort(at), Relaxed);
    entry.number.store(number, Release);
    Ok(number << 16 | n as u64)
}

fn entry(mark: u64) -> Option<&'static Entry> {
    let entry = ENTRIES.get((mark & PLACE) as usize)?;
    (entry.number.load(Acquire) == mark >> 16).then_some(entry)
}

/// Whether the attachment that `mark` stands for still has the memory at `at`: it is mapped, and
/// not by the program or for another attachment since.
pub fn is_attached(host: &dyn Host, at: u64, mark: u64) -> bool {
    let page = at & !(PAGE - 1);
    // ENOMEM: nothing is mapped.
    entry(mark).is_some_and(|e| e.sort.load(Relaxed) == host.sort(at))
        && regall_sys::residency(page, &mut [0]).is_ok()
}

/// Gives an attachment back, if it still is what `mark` stands for: else it is somebody else's
/// memory by now.
pub fn detach(host: &dyn Host, at: u64, bytes: u64, mark: u64) {
    if is_attached(host, at, mark) {
        give_up(host, at, bytes);
    }
    if let Some(entry) = entry(mark) {
        entry.number.store(0, Release);
    }
}

fn give_up(host: &dyn Host, at: u64, bytes: u64) {
    let mut address = at;
    // SAFETY: the driver reads a number there; the attachment is ours to give back.
    let _ = unsafe { command(DETACH, &mut address) };
    host.changed(at, bytes);
}
