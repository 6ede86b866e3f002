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
//! or it is none ([`crate::xpmem::is_attached`]).

mod attach;
mod hold;
mod lease;
pub mod mark;
pub mod source;
mod spot;
mod table;
mod wanted;

pub use hold::{Bytes, Hold, Window};
pub use lease::Lease;
pub use spot::{Page, Spots};
pub use wanted::{By, Extent, How, Wanted, BYTES, WINDOW, WINDOWS};

use crate::host::Host;
use crate::kind::No;
use crate::lock::Lock;
use crate::process::Process;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use table::Table;

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
