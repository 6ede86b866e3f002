//! Memory of a peer's, mapped here.
//!
//! A *window* is a piece of a file, or of a peer's address space, that is mapped or held
//! open here; windows are few, and the one that was not used for the longest time makes
//! room for the next. A *place* says where in which window a stretch of the peer's addresses
//! is. It is good for one entry of the peer's directory: an entry that has changed has
//! another generation, and no place. So a window can't be taken for what is mapped at its
//! addresses now, however long it lives. What can't be mapped is a place, too.
//!
//! A window keeps its file alive, so while it lives no other file has its number.
//!
//! Nothing here is about to be SIGBUS: what is mapped, nobody can cut short
//! ([`source::is_steady`]). Other files are held open, to be read with pread(2).
//!
//! What the XPMEM driver has attached it detaches by itself when a program closes any descriptor
//! of the device that it has. Such a window is looked at before it is used: it is what it was,
//! or it is none ([`xpmem::is_attached`]).

pub mod mark;
pub mod source;
mod table;

use crate::host::Host;
use crate::lock::Lock;
use crate::mechanism::{helper, xpmem, Kind, No};
use crate::peer::Peer;
use crate::picture::Known;
use crate::view::Stamp;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use regall_directory::addr::{round_up, PAGE};
use regall_sys::file::{self, Fd};
use regall_sys::{Errno, Result};
use source::{Backing, FileId};
use table::Table;

/// Windows of one peer, at the most.
pub const WINDOWS: usize = 64;
/// Bytes of them, at the most. (Addresses: the memory is the owner's.)
pub const BYTES: u64 = 2 << 30;
/// A mapping larger than this is attached in pieces of so many bytes.
pub const WINDOW: u64 = 64 << 20;

/// By which way memory is mapped here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Through {
    /// The file that it is of.
    File = 1,
    /// The XPMEM driver.
    Xpmem = 2,
}

/// How a window is had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum How {
    /// Not at all.
    #[default]
    Free = 0,
    /// Mapped from a file.
    Mapped = 1,
    /// A System V segment, attached.
    Segment = 2,
    /// Attached by the XPMEM driver.
    Xpmem = 3,
    /// Not mapped: a descriptor to read from.
    Open = 4,
}

/// What a window is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// The file; for XPMEM the generation of the entry that it was attached for.
    pub file: FileId,
    /// First byte, there; for XPMEM the peer's address.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// A window.
#[derive(Default)]
pub struct Window {
    /// Those who are copying from or to it.
    users: AtomicU32,
    how: How,
    writable: bool,
    of: Extent,
    /// Where it is mapped; of an open file its descriptor.
    at: u64,
    /// Of an open file its inode as fstat(2) has it, of an attachment by the XPMEM driver
    /// what stands for it ([`xpmem::is_attached`]).
    owner: u64,
    /// When it was last used, in turns of the table.
    used: u64,
}

impl Window {
    fn serves(&self, of: &Extent, write: bool) -> bool {
        let end = self.of.offset.saturating_add(self.of.len);
        self.how != How::Free
            && self.of.file == of.file
            && self.of.offset <= of.offset
            && of.offset.saturating_add(of.len) <= end
            && (self.writable || !write)
    }

    fn idle(&self) -> bool {
        self.users.load(Acquire) == 0
    }
}

/// Gives back what was mapped, or opened. `owner` is as [`Window`]'s.
fn let_go(host: &dyn Host, how: How, at: u64, bytes: u64, owner: u64) {
    match how {
        How::Free => (),
        How::Mapped => host.unmap(at, bytes),
        How::Segment => host.detach_segment(at),
        How::Xpmem => xpmem::detach(host, at, bytes, owner),
        // A program may have closed it, and have another file by its number.
        How::Open if file::stat_fd(at as i32).is_ok_and(|s| s.inode == owner) => {
            file::close(at as i32);
        }
        How::Open => (),
    }
}

/// A part of a window, in use: it stays until this is dropped.
pub struct Hold<'a> {
    users: NonNull<AtomicU32>,
    how: How,
    at: u64,
    /// Bytes from there on.
    pub len: u64,
    inode: u64,
    offset: u64,
    table: PhantomData<&'a Attachments>,
}

/// Where the bytes of a [`Hold`] are.
pub enum Bytes {
    /// Here, mapped.
    At(u64),
    /// In an open file, from an offset on.
    In(i32, u64),
}

impl Hold<'_> {
    /// Where they are. ESTALE: the descriptor is not that file's any more; programs
    /// close what they find open.
    #[inline]
    pub fn bytes(&self) -> Result<Bytes> {
        if self.how != How::Open {
            return Ok(Bytes::At(self.at));
        }
        let fd = self.at as i32;
        let stat = file::stat_fd(fd)?;
        match stat.inode == self.inode {
            true => Ok(Bytes::In(fd, self.offset)),
            false => Err(Errno(libc::ESTALE)),
        }
    }
}

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the table is as old as the attachments, which are still there.
        unsafe { self.users.as_ref() }.fetch_sub(1, Release);
    }
}

/// All that is attached of one peer.
pub struct Attachments {
    /// By the file, and by XPMEM.
    tables: [Attachment; 2],
    unshared: Unshared,
}

/// One way's.
struct Attachment {
    table: Lock<Option<NonNull<Table>>>,
    /// Whether there is one.
    any: AtomicBool,
}

impl Attachment {
    const fn new() -> Self {
        Self {
            table: Lock::new(None),
            any: AtomicBool::new(false),
        }
    }
}

// SAFETY: the table is this one's own, and behind the lock; only the windows' counts
// of users are changed without it, and those are atomic.
unsafe impl Send for Attachments {}
// SAFETY: likewise.
unsafe impl Sync for Attachments {}

impl Default for Attachments {
    fn default() -> Self {
        Self::new()
    }
}

/// What somebody wants to get at.
#[derive(Clone, Copy)]
pub struct Wanted {
    /// By which way.
    pub through: Through,
    /// The peer's address.
    pub addr: u64,
    /// Bytes that he is about to copy.
    pub bytes: u64,
    /// To write there.
    pub write: bool,
    /// Even if it does not pay.
    pub eager: bool,
    /// Mapped, or not at all.
    pub mapped: bool,
}

impl Attachments {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            tables: [Attachment::new(), Attachment::new()],
            unshared: Unshared::new(),
        }
    }

    fn by(&self, through: Through) -> &Attachment {
        let [file, xpmem] = &self.tables;
        match through {
            Through::File => file,
            Through::Xpmem => xpmem,
        }
    }

    /// A hold on the memory at an address, attached now if that is wanted or pays.
    ///
    /// Fails with [`No::NotThis`] if it isn't attached.
    #[inline]
    pub fn hold<'a>(&'a self, peer: &Peer, wanted: &Wanted) -> core::result::Result<Hold<'a>, No> {
        let own = self.by(wanted.through);
        if !wanted.eager && self.unshared.has(wanted.addr) {
            return Err(No::NotThis);
        }
        if own.any.load(Acquire) {
            if let Some(mut table) = *own.table.lock() {
                // SAFETY: ours, and the lock is held.
                let table = unsafe { table.as_mut() };
                if let Some(hold) = table.find(peer.host(), wanted.addr, wanted.write) {
                    return Ok(hold);
                }
            }
        }
        self.hold_new(peer, wanted)
    }

    #[cold]
    #[inline(never)]
    fn hold_new<'a>(&'a self, peer: &Peer, wanted: &Wanted) -> core::result::Result<Hold<'a>, No> {
        let (entry, stamp) = peer.known_at(wanted.addr).map_err(|_| No::NotThis)?;
        if wanted.through == Through::File && !entry.shared() {
            self.unshared.note(entry.start, entry.end);
            return Err(No::NotThis);
        }
        let own = self.by(wanted.through);
        let mut table = own.table.lock();
        if table.is_none() {
            *table = Some(table::make(peer.host()).map_err(|_| No::NotThis)?);
            own.any.store(true, Release);
        }
        let mut at = table.ok_or(No::NotThis)?;
        // SAFETY: as above.
        let table = unsafe { at.as_mut() };
        if let Some(hold) = table.find(peer.host(), wanted.addr, wanted.write) {
            return Ok(hold);
        }
        if !table.pays(&entry, &stamp, wanted) {
            return Err(No::NotThis);
        }
        attach(table, peer, (&entry, &stamp), wanted);
        let found = table.find(peer.host(), wanted.addr, wanted.write);
        found.ok_or(No::NotThis)
    }

    fn each(&self, mut what: impl FnMut(&mut Table)) {
        for own in &self.tables {
            if let Some(mut table) = *own.table.lock() {
                // SAFETY: as above.
                what(unsafe { table.as_mut() });
            }
        }
    }

    /// Lets go of what is of entries that have changed since.
    pub fn tidy(&self, host: &dyn Host) {
        self.each(|table| table.sweep(host));
    }

    /// Detaches what is attached by the XPMEM driver and not in use.
    pub fn detach_idle(&self, host: &dyn Host) {
        if let Some(mut table) = *self.by(Through::Xpmem).table.lock() {
            // SAFETY: as above.
            unsafe { table.as_mut() }.clear(host);
        }
    }

    /// Lets go of everything that is not in use.
    pub fn clear(&self, host: &dyn Host) {
        self.each(|table| table.clear(host));
    }

    /// Gives everything back. Nobody uses it any more.
    pub fn release(&self, host: &dyn Host) {
        for own in &self.tables {
            if let Some(mut at) = own.table.lock().take() {
                // SAFETY: as above.
                unsafe { at.as_mut() }.clear(host);
                table::free(host, at);
            }
        }
    }

    /// Windows that there are now, and their bytes.
    pub fn count(&self) -> (usize, u64) {
        let (mut windows, mut bytes) = (0, 0);
        self.each(|table| {
            let (n, sum) = table.count();
            (windows, bytes) = (windows + n, bytes + sum);
        });
        (windows, bytes)
    }
}

/// A range that was found not to be shared the last time, so that transfers which have
/// nothing to gain here lose next to nothing. It is a guess: should it be wrong, only time
/// is lost, and not for long.
struct Unshared {
    start: AtomicU64,
    end: AtomicU64,
    believed: AtomicU32,
}

impl Unshared {
    /// So often it is believed.
    const FAITH: u32 = 256;

    const fn new() -> Self {
        Self {
            start: AtomicU64::new(0),
            end: AtomicU64::new(0),
            believed: AtomicU32::new(0),
        }
    }

    #[inline]
    fn has(&self, addr: u64) -> bool {
        let here = self.start.load(Relaxed) <= addr && addr < self.end.load(Relaxed);
        // Not counted exactly: that would be the dearer part.
        let believed = self.believed.load(Relaxed).wrapping_add(1);
        self.believed.store(believed, Relaxed);
        here && believed % Self::FAITH != 0
    }

    fn note(&self, start: u64, end: u64) {
        self.start.store(start, Relaxed);
        self.end.store(end, Relaxed);
    }
}

/// Attaches what is wanted, or notes that it can't be. The entry is looked at again at
/// the end: only if it still is what it was, so is what was found by its addresses.
#[cold]
fn attach(table: &mut Table, peer: &Peer, (entry, stamp): (&Known, &Stamp), wanted: &Wanted) {
    table.sweep(peer.host());
    let attached = match wanted.through {
        Through::File => by_file(table, peer, entry, wanted),
        Through::Xpmem => by_xpmem(table, peer, entry, wanted),
    };
    // SAFETY: the peer's view is here.
    if !unsafe { stamp.holds() } {
        // Whatever has been opened is swept away the next time, before it is looked for.
        return;
    }
    match attached {
        Ok(found) => table.place(entry, stamp, wanted, &found),
        Err(_) => table.refuse(entry, stamp, wanted),
    }
}

/// Window `n`; the peer has its bytes from `skip` on at `start`, `len` of them.
struct Attached {
    n: usize,
    start: u64,
    len: u64,
    skip: u64,
}

/// The piece of `start..end` around `addr` that one window is for.
fn piece(addr: u64, start: u64, end: u64) -> (u64, u64) {
    if end - start <= WINDOW {
        return (start, end);
    }
    let from = addr & !(WINDOW - 1);
    (from.max(start), from.saturating_add(WINDOW).min(end))
}

fn by_file(table: &mut Table, peer: &Peer, entry: &Known, wanted: &Wanted) -> Result<Attached> {
    let (pid, host) = (peer.pid(), peer.host());
    let backing = match Backing::find(pid, wanted.addr) {
        // Its list of mappings is not for us.
        Err(Errno(libc::EACCES) | Errno::PERM) => return by_helper(table, peer, entry, wanted),
        found => found?,
    };
    let (start, end) = piece(wanted.addr, backing.start, backing.end);
    let mut of = Extent {
        file: backing.id(),
        offset: backing.offset + (start - backing.start),
        len: end - start,
    };
    let there = |n: usize, window: &Extent, len: u64| Attached {
        n,
        start,
        len,
        skip: of.offset - window.offset,
    };
    if let Some((n, window)) = table.window(&of, wanted.write) {
        return Ok(there(n, window, of.len));
    }
    if backing.is_segment() {
        let bytes = segment(pid, &backing)?;
        let whole = Extent {
            offset: 0,
            len: bytes,
            ..of
        };
        let len = bytes
            .checked_sub(of.offset)
            .ok_or(Errno::FAULT)?
            .min(of.len);
        let room = table.make_room(host, bytes)?;
        let at = host.attach_segment(backing.id().inode, bytes, wanted.write)?;
        if !source::is_here(at, &backing) {
            host.detach_segment(at);
            return Err(Errno::NOENT);
        }
        table.open(room, How::Segment, (wanted.write, 0), whole, at);
        return Ok(there(room, &whole, len));
    }
    let fd = source::open(pid, &backing, wanted.write)?;
    if !source::is_steady(&fd, &backing) {
        if wanted.write || wanted.mapped {
            // pwrite(2) could make it longer if somebody has just made it shorter.
            return Err(Errno::NOTSUP);
        }
        let room = table.make_room(host, 0)?;
        let high = file::duplicate_high(fd.raw())?;
        // (Which need not be the inode that the list of mappings has, on overlays.)
        let inode = fd.stat()?.inode;
        table.open(room, How::Open, (false, inode), of, high as u64);
        return Ok(there(room, &of, of.len));
    }
    of.len = covered(&fd, &of)?.min(of.len);
    mapped(table, host, &fd, (start, of), wanted)
}

/// Maps `of` of a steady file, as far as its size covers it: the peer has it at `start`.
/// (Beyond the file's end is SIGBUS, even if it can't come nearer.)
fn mapped(
    table: &mut Table,
    host: &dyn Host,
    fd: &Fd,
    (start, of): (u64, Extent),
    wanted: &Wanted,
) -> Result<Attached> {
    wanted
        .addr
        .checked_sub(start)
        .filter(|into| *into < of.len)
        .ok_or(Errno::FAULT)?;
    let room = table.make_room(host, of.len)?;
    let at = host.attach(fd, of.offset, of.len, wanted.write)?;
    mark::leave(fd);
    table.open(room, How::Mapped, (wanted.write, 0), of, at);
    Ok(Attached {
        n: room,
        start,
        len: of.len,
        skip: 0,
    })
}

/// As [`by_file`] where /proc tells us nothing of the peer: its helper passes the file's
/// descriptor, and says where in the file the address is.
#[cold]
fn by_helper(table: &mut Table, peer: &Peer, entry: &Known, wanted: &Wanted) -> Result<Attached> {
    if !peer.order().has(Kind::Helper) {
        return Err(Errno::PERM);
    }
    let (fd, at) = helper::descriptor(peer, wanted.addr)?;
    let stat = fd.stat()?;
    let (start, end) = piece(wanted.addr, entry.start, entry.end);
    let mut of = Extent {
        file: FileId {
            dev: u64::from(stat.dev_major()) << 32 | u64::from(stat.dev_minor()),
            inode: stat.inode,
            segment: false,
        },
        offset: at
            .checked_sub(wanted.addr - start)
            .filter(|o| o % PAGE == 0)
            .ok_or(Errno::INVAL)?,
        len: end - start,
    };
    if !source::is_sealed(&fd) {
        return Err(Errno::NOTSUP);
    }
    of.len = covered(&fd, &of)?.min(of.len);
    match table.window(&of, wanted.write) {
        Some((n, window)) => Ok(Attached {
            n,
            start,
            len: of.len,
            skip: of.offset - window.offset,
        }),
        None => mapped(table, peer.host(), &fd, (start, of), wanted),
    }
}

/// Bytes of `of` that the file's size covers, in whole pages.
fn covered(fd: &Fd, of: &Extent) -> Result<u64> {
    let size = round_up(fd.stat()?.size).ok_or(Errno::FAULT)?;
    size.checked_sub(of.offset)
        .filter(|n| *n > 0)
        .ok_or(Errno::FAULT)
}

/// Bytes of the System V segment behind `backing`, in whole pages.
fn segment(pid: u32, backing: &Backing) -> Result<u64> {
    if !source::same_segments(pid) {
        return Err(Errno::NOENT);
    }
    let bytes = regall_sys::shm_bytes(backing.id().inode)?;
    round_up(bytes).filter(|b| *b > 0).ok_or(Errno::INVAL)
}

fn by_xpmem(table: &mut Table, peer: &Peer, entry: &Known, wanted: &Wanted) -> Result<Attached> {
    // The driver attaches for writing, and would do so to what can't be written.
    entry.permits(true)?;
    let (from, to) = if entry.without_file() {
        (entry.start, entry.end)
    } else {
        let backing = Backing::any(peer.pid(), wanted.addr)?;
        if !backing.is_steady(peer.pid()) {
            return Err(Errno::NOTSUP);
        }
        (entry.start.max(backing.start), entry.end.min(backing.end))
    };
    let (start, end) = piece(wanted.addr, from, to);
    let of = Extent {
        file: FileId {
            dev: u64::MAX,
            inode: entry.generation,
            segment: false,
        },
        offset: start,
        len: end - start,
    };
    let room = table.make_room(peer.host(), of.len)?;
    let (at, mark) = xpmem::attach(peer, start, of.len)?;
    table.open(room, How::Xpmem, (true, mark), of, at);
    Ok(Attached {
        n: room,
        start,
        len: of.len,
        skip: 0,
    })
}

/// Memory of a peer's that stays mapped here until it is given back, whatever
/// becomes of the peer.
pub struct Lease {
    /// Where the first byte is.
    pub at: u64,
    /// What was mapped for it: first address,
    pub base: u64,
    /// bytes,
    pub bytes: u64,
    /// and how.
    pub how: How,
    /// The entry that it is of: its slot,
    pub slot: u32,
    /// and its generation.
    pub generation: u64,
}

impl Lease {
    /// Maps `len` bytes at the peer's address `addr`, which must lie in one entry. `unsteady`:
    /// even a file that can be cut short, which is SIGBUS then.
    ///
    /// EOPNOTSUPP: it can't be mapped; EFAULT: not registered, or beyond the end of a file;
    /// EACCES: its protection says no; ESTALE: it has changed meanwhile; ENOMEM and other
    /// errors of mmap(2).
    pub fn take(peer: &Peer, addr: u64, len: u64, write: bool, unsteady: bool) -> Result<Self> {
        let end = addr
            .checked_add(len)
            .filter(|e| *e > addr)
            .ok_or(Errno::INVAL)?;
        let (entry, _) = peer.known_at(addr)?;
        entry.permits(write)?;
        if end > entry.end || !entry.shared() {
            return Err(Errno::NOTSUP);
        }
        let unmappable = |_| Errno::NOTSUP;
        let backing = Backing::find(peer.pid(), addr).map_err(unmappable)?;
        if backing.end < end {
            return Err(Errno::NOTSUP);
        }
        let host = peer.host();
        let offset = backing.offset + (addr - backing.start);
        let (base, bytes, how, into) = if backing.is_segment() {
            let bytes = segment(peer.pid(), &backing).map_err(unmappable)?;
            let base = host.attach_segment(backing.id().inode, bytes, write)?;
            (base, bytes, How::Segment, offset)
        } else {
            let into = offset % PAGE;
            let of = Extent {
                file: backing.id(),
                offset: offset - into,
                len: round_up(into + len).ok_or(Errno::INVAL)?,
            };
            let fd = source::open(peer.pid(), &backing, write).map_err(unmappable)?;
            if !unsteady && !source::is_steady(&fd, &backing) {
                return Err(Errno::NOTSUP);
            }
            if covered(&fd, &of)? < of.len {
                return Err(Errno::FAULT);
            }
            let base = host.attach(&fd, of.offset, of.len, write)?;
            mark::leave(&fd);
            (base, of.len, How::Mapped, into)
        };
        let lease = Self {
            at: base + into,
            base,
            bytes,
            how,
            slot: entry.slot(),
            generation: entry.generation,
        };
        let right = how != How::Segment
            || into.checked_add(len).is_some_and(|e| e <= bytes) && source::is_here(base, &backing);
        match (right, peer.publishes(lease.slot, lease.generation)) {
            (true, true) => Ok(lease),
            (right, _) => {
                lease.give_back(host);
                Err(if right {
                    Errno(libc::ESTALE)
                } else {
                    Errno::NOTSUP
                })
            }
        }
    }

    /// Unmaps it.
    pub fn give_back(&self, host: &dyn Host) {
        let_go(host, self.how, self.base, self.bytes, 0);
    }
}
