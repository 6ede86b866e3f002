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

mod attach;
mod lease;
pub mod mark;
pub mod source;
mod spot;
mod table;

pub use lease::Lease;
pub use spot::{Page, Spots};

use crate::host::Host;
use crate::kind::No;
use crate::link::Link;
use crate::lock::Lock;
use crate::process::Process;
use crate::xpmem;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use regall_sys::file;
use regall_sys::{Errno, Result};
use source::FileId;
use table::Table;

/// Windows of one peer, at the most.
pub const WINDOWS: usize = 64;
/// Bytes of them, at the most. (Addresses: the memory is the owner's.)
pub const BYTES: u64 = 2 << 30;
/// A mapping larger than this is attached in pieces of so many bytes.
pub const WINDOW: u64 = 64 << 20;

/// By which way memory is mapped here.
#[derive(Clone, Copy)]
pub enum By<'a> {
    /// The file that it is of; where /proc does not say which that is, the peer's helper may.
    File(Option<&'a Lock<Link>>),
    /// The XPMEM driver, with leave to attach the peer's memory.
    Xpmem(&'a xpmem::Access),
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
    /// How many are copying from or to the window.
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
        // SAFETY: a window has no user when it is let go.
        How::Mapped => unsafe { host.unmap(at, bytes) },
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
    table: PhantomData<&'a Windows>,
}

/// Where the bytes of a [`Hold`] are.
pub enum Bytes {
    /// Mapped, at this address.
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
            false => Err(Errno::STALE),
        }
    }
}

impl Hold<'_> {
    /// Stays a user: whoever has the count of users is to take one off.
    fn into_users(self) -> NonNull<AtomicU32> {
        ManuallyDrop::new(self).users
    }
}

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the table is as old as the attachments, which are still there.
        unsafe { self.users.as_ref() }.fetch_sub(1, Release);
    }
}

/// All windows of one peer that are had by one way.
pub struct Windows {
    table: Lock<Option<NonNull<Table>>>,
    /// Whether there is a table.
    any: AtomicBool,
    unshared: Unshared,
    spots: Spots,
}

// SAFETY: the table is this one's own, and behind the lock; only the windows' counts
// of users are changed without it, and those are atomic.
unsafe impl Send for Windows {}
// SAFETY: likewise.
unsafe impl Sync for Windows {}

impl Default for Windows {
    fn default() -> Self {
        Self::new()
    }
}

/// What somebody wants to get at.
#[derive(Clone, Copy)]
pub struct Wanted<'a> {
    /// By which way.
    pub by: By<'a>,
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

impl Windows {
    /// A table without windows.
    pub const fn new() -> Self {
        Self {
            table: Lock::new(None),
            any: AtomicBool::new(false),
            unshared: Unshared::new(),
            spots: Spots::new(),
        }
    }

    /// Pages whose words were operated on lately.
    #[inline]
    pub fn spots(&self) -> &Spots {
        &self.spots
    }

    /// A hold on the memory at an address, attached now if that is wanted or pays.
    ///
    /// Fails with [`No::NotThis`] if it isn't attached.
    #[inline]
    pub fn hold<'a>(
        &'a self,
        peer: &Process,
        wanted: &Wanted,
    ) -> core::result::Result<Hold<'a>, No> {
        if !wanted.eager && self.unshared.has(wanted.addr) {
            return Err(No::NotThis);
        }
        if self.any.load(Acquire) {
            if let Some(mut table) = *self.table.lock() {
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
    fn hold_new<'a>(
        &'a self,
        peer: &Process,
        wanted: &Wanted,
    ) -> core::result::Result<Hold<'a>, No> {
        let (entry, stamp) = peer.known_at(wanted.addr).map_err(|_| No::NotThis)?;
        if matches!(wanted.by, By::File(_)) && !entry.shared() {
            self.unshared.note(entry.start, entry.end);
            return Err(No::NotThis);
        }
        let mut table = self.table.lock();
        if table.is_none() {
            *table = Some(table::make(peer.host()).map_err(|_| No::NotThis)?);
            self.any.store(true, Release);
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
        // Windows that only they have may be needed.
        self.spots.clear();
        attach::attach(table, peer, (&entry, &stamp), wanted);
        let found = table.find(peer.host(), wanted.addr, wanted.write);
        found.ok_or(No::NotThis)
    }

    /// Lets go of what is of entries that have changed since.
    pub fn tidy(&self, host: &dyn Host) {
        self.spots.clear();
        if let Some(mut table) = *self.table.lock() {
            // SAFETY: as above.
            unsafe { table.as_mut() }.sweep(host);
        }
    }

    /// Lets go of everything that is not in use.
    pub fn clear(&self, host: &dyn Host) {
        self.spots.clear();
        if let Some(mut table) = *self.table.lock() {
            // SAFETY: as above.
            unsafe { table.as_mut() }.clear(host);
        }
    }

    /// Gives everything back. Nobody uses it any more.
    pub fn release(&self, host: &dyn Host) {
        self.spots.clear();
        if let Some(mut at) = self.table.lock().take() {
            // SAFETY: as above.
            unsafe { at.as_mut() }.clear(host);
            table::free(host, at);
        }
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
    /// How often an answer is believed before it is looked at again.
    const TIMES: u32 = 256;

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
        here && believed % Self::TIMES != 0
    }

    fn note(&self, start: u64, end: u64) {
        self.start.store(start, Relaxed);
        self.end.store(end, Relaxed);
    }
}
