//! Places, sorted by address, and windows, in one piece of memory of the host's.

use super::hold::{let_go, Hold, Window};
use super::wanted::{Extent, How, Wanted, BYTES, WINDOW, WINDOWS};
use crate::host::Host;
use crate::snapshot::Known;
use crate::view::Stamp;
use crate::xpmem;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::*};
use regall_directory::addr::round_up;
use regall_directory::layout::Generation;
use regall_sys::{Errno, Result};

/// Places, at the most. One more takes the place of any.
const PLACES: usize = 512;
/// An attachment has to be worth so much before it is made: a point for each time that
/// it would have been used, and one for each page copied. Making one takes as long as
/// some twenty small transfers, or as copying the pages that it is for by another way.
const WORTH: u32 = 64;

/// Where a stretch of the peer's addresses is, or why not.
#[derive(Clone, Copy)]
struct Place {
    /// First address.
    start: u64,
    /// First address behind it.
    end: u64,
    /// Where the generation of the entry stands that it lies in, in the peer's directory,
    at: *const AtomicU64,
    /// and what it was.
    generation: Generation,
    /// Bytes of the window before it.
    into: u64,
    /// Number of its window, from 1; 0: none.
    window: u32,
    /// How much an attachment would have been worth by now.
    worth: u32,
    /// Not to be had to read, or to write.
    refused: [bool; 2],
}

impl Place {
    const NONE: Self = Self {
        start: 0,
        end: 0,
        at: core::ptr::null(),
        generation: Generation::NONE,
        into: 0,
        window: 0,
        worth: 0,
        refused: [false; 2],
    };

    /// Whether the entry still is what it was.
    #[inline]
    fn holds(&self) -> bool {
        // SAFETY: in the peer's directory, which is mapped as long as the peer is open, and
        // so are its attachments.
        let now = unsafe { self.at.as_ref() }.map(|g| Generation::from_raw(g.load(Acquire)));
        now == Some(self.generation)
    }

    #[inline]
    fn has(&self, addr: u64) -> bool {
        self.start <= addr && addr < self.end
    }
}

/// Window `n`; the peer has its bytes from `skip` on at `start`, `len` of them.
pub(super) struct Attached {
    pub(super) n: usize,
    pub(super) start: u64,
    pub(super) len: u64,
    pub(super) skip: u64,
}

/// All of them. All zeroes is an empty one.
pub struct Table {
    /// Turns, by which the age of windows is told.
    turn: u64,
    used: usize,
    /// The place that was found last.
    last: usize,
    /// The first `used`, by address; none overlaps another.
    places: [Place; PLACES],
    windows: [Window; WINDOWS],
}

/// An empty one.
pub fn make(host: &dyn Host) -> Result<NonNull<Table>> {
    let bytes = round_up(size_of::<Table>() as u64).ok_or(Errno::NOMEM)?;
    NonNull::new(host.map(bytes)? as *mut Table).ok_or(Errno::NOMEM)
}

/// Gives its memory back.
pub fn free(host: &dyn Host, table: NonNull<Table>) {
    let bytes = round_up(size_of::<Table>() as u64).unwrap_or(0);
    // SAFETY: from `make`, and given back once.
    unsafe { host.unmap(table.as_ptr() as u64, bytes) };
}

impl Table {
    fn places(&self) -> &[Place] {
        self.places.get(..self.used).unwrap_or(&[])
    }

    fn index(&mut self, addr: u64) -> Option<usize> {
        let places = self.places.get(..self.used)?;
        if places.get(self.last).is_some_and(|p| p.has(addr)) {
            return Some(self.last);
        }
        let n = places
            .partition_point(|p| p.start <= addr)
            .checked_sub(1)
            .filter(|n| places.get(*n).is_some_and(|p| p.has(addr)))?;
        self.last = n;
        Some(n)
    }

    /// A hold on what is wanted, if it is attached, and its entry still is what it was.
    #[inline]
    pub fn find<'a>(&mut self, host: &dyn Host, addr: u64, write: bool) -> Option<Hold<'a>> {
        let n = self.index(addr)?;
        let place = self.places.get(n).filter(|p| p.holds())?;
        let window = self
            .windows
            .get_mut((place.window as usize).checked_sub(1)?)?;
        if write && !window.writable {
            return None;
        }
        let into = place.into + (addr - place.start);
        if window.how == How::Xpmem && !xpmem::is_attached(host, window.at + into, window.owner) {
            return None;
        }
        self.turn += 1;
        window.used = self.turn;
        // It grows from 0 with the lock held alone, and so does whoever unmaps look.
        window.users.fetch_add(1, Relaxed);
        Some(Hold {
            users: NonNull::from(&window.users),
            how: window.how,
            at: match window.how {
                How::Open => window.at,
                _ => window.at + into,
            },
            len: place.end - addr,
            inode: window.owner,
            offset: window.of.offset + into,
            table: PhantomData,
        })
    }

    /// The place of what is wanted: if there is none, one that takes what is free of its
    /// entry in this stretch of addresses.
    fn noted(&mut self, entry: &Known, stamp: &Stamp, addr: u64) -> Option<&mut Place> {
        let known = self.index(addr);
        if let Some(n) = known.filter(|n| self.places().get(*n).is_some_and(Place::holds)) {
            return self.places.get_mut(n);
        }
        self.purge();
        if self.used == PLACES {
            let any = self.turn as usize % PLACES;
            self.places.copy_within(any + 1.., any);
            self.used -= 1;
        }
        let n = self.places().partition_point(|p| p.start <= addr);
        let chunk = addr & !(WINDOW - 1);
        let before = n.checked_sub(1).and_then(|n| self.places().get(n));
        let floor = before.map_or(0, |p| p.end).max(chunk);
        let behind = self.places().get(n).map_or(u64::MAX, |p| p.start);
        let place = Place {
            start: entry.start.max(floor),
            end: entry.end.min(chunk.saturating_add(WINDOW)).min(behind),
            at: stamp.at().as_ptr(),
            generation: stamp.generation(),
            ..Place::NONE
        };
        self.places.copy_within(n..self.used, n + 1);
        self.used += 1;
        self.last = n;
        let at = self.places.get_mut(n)?;
        *at = place;
        Some(at)
    }

    /// Drops the places whose entries have changed.
    fn purge(&mut self) {
        let mut kept = 0;
        for n in 0..self.used {
            let Some(place) = self.places.get(n).copied().filter(Place::holds) else {
                continue;
            };
            if let Some(to) = self.places.get_mut(kept) {
                *to = place;
                kept += 1;
            }
        }
        self.used = kept;
    }

    /// Whether it is time to attach what is wanted, which isn't attached: it may be
    /// attached, and has been wanted often enough.
    pub fn pays(&mut self, entry: &Known, stamp: &Stamp, wanted: &Wanted) -> bool {
        let Some(place) = self.noted(entry, stamp, wanted.addr) else {
            return false;
        };
        if place.refused.get(usize::from(wanted.write)) == Some(&true) {
            return false;
        }
        let again = place.worth > 0;
        let pages = u32::try_from(wanted.bytes >> 12).unwrap_or(u32::MAX);
        place.worth = place.worth.saturating_add(pages).saturating_add(1);
        wanted.eager || again && place.worth >= WORTH
    }

    /// Notes where what is wanted is.
    pub fn place(&mut self, entry: &Known, stamp: &Stamp, wanted: &Wanted, found: &Attached) {
        let behind = found.start.saturating_add(found.len);
        if let Some(place) = self.noted(entry, stamp, wanted.addr) {
            place.start = place.start.max(found.start);
            place.end = place.end.min(behind);
            place.window = found.n as u32 + 1;
            place.into = found.skip + (place.start - found.start);
        }
    }

    /// Notes that it can't be attached, so that it isn't tried again.
    pub fn refuse(&mut self, entry: &Known, stamp: &Stamp, wanted: &Wanted) {
        if let Some(refused) = self
            .noted(entry, stamp, wanted.addr)
            .and_then(|p| p.refused.get_mut(usize::from(wanted.write)))
        {
            *refused = true;
        }
    }

    /// A window that has all of `of`.
    pub fn window(&self, of: &Extent, write: bool) -> Option<(usize, &Extent)> {
        let n = self.windows.iter().position(|w| w.serves(of, write))?;
        self.windows.get(n).map(|w| (n, &w.of))
    }

    /// A free window, with leave for `bytes` more. ENOMEM: all are in use, or it is more
    /// than may be attached.
    pub fn make_room(&mut self, host: &dyn Host, bytes: u64) -> Result<usize> {
        loop {
            let (_, used) = self.count();
            let free = self.windows.iter().position(|w| w.how == How::Free);
            if let (Some(n), true) = (free, used.saturating_add(bytes) <= BYTES) {
                return Ok(n);
            }
            let idle = self.windows.iter().enumerate();
            let idle = idle.filter(|(_, w)| w.how != How::Free && w.idle());
            let oldest = idle.min_by_key(|(_, w)| w.used).map(|(n, _)| n);
            self.close(host, oldest.filter(|_| bytes <= BYTES).ok_or(Errno::NOMEM)?);
        }
    }

    /// `window` is this from now on: how, whether it may be written and its owner, what it
    /// is of, and where it is.
    pub fn open(
        &mut self,
        window: usize,
        how: How,
        (writable, owner): (bool, u64),
        of: Extent,
        at: u64,
    ) {
        self.turn += 1;
        let used = self.turn;
        if let Some(window) = self.windows.get_mut(window) {
            // Its count of users stays what it is, 0: nobody gets it without the lock.
            (window.how, window.writable, window.owner) = (how, writable, owner);
            (window.of, window.at, window.used) = (of, at, used);
        }
    }

    fn close(&mut self, host: &dyn Host, n: usize) {
        for place in &mut self.places {
            if place.window as usize == n + 1 {
                (place.window, place.worth) = (0, 0);
            }
        }
        if let Some(window) = self.windows.get_mut(n) {
            let_go(host, window.how, window.at, window.of.len, window.owner);
            window.how = How::Free;
        }
    }

    /// Drops the places whose entries have changed, and the windows that none is left of;
    /// those in use stay until the next time.
    pub fn sweep(&mut self, host: &dyn Host) {
        self.purge();
        let mut wanted = 0u64;
        for place in self.places() {
            if let Some(n) = place.window.checked_sub(1) {
                wanted |= 1 << n;
            }
        }
        for n in 0..WINDOWS {
            let stays = |w: &Window| w.how == How::Free || !w.idle();
            if wanted >> n & 1 == 0 && !self.windows.get(n).is_none_or(stays) {
                self.close(host, n);
            }
        }
    }

    /// Drops all places, and the windows that nobody uses.
    pub fn clear(&mut self, host: &dyn Host) {
        self.used = 0;
        self.sweep(host);
    }

    /// Windows, and their bytes that are mapped.
    pub fn count(&self) -> (usize, u64) {
        let open = self.windows.iter().filter(|w| w.how != How::Free);
        open.fold((0, 0), |(n, sum), w| match w.how {
            How::Open => (n + 1, sum),
            _ => (n + 1, sum + w.of.len),
        })
    }
}

const _: () = assert!(WINDOWS <= 64, "one word has a bit for each");
