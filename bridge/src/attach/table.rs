//! Places and windows, in one piece of memory of the host's.

use super::{let_go, Attached, Extent, Hold, How, Wanted, Window, BYTES, WINDOW, WINDOWS};
use crate::host::Host;
use crate::picture::Known;
use core::marker::PhantomData;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::*;
use regall_directory::addr::round_up;
use regall_sys::{Errno, Result};

/// Places that a stretch of addresses can be noted at.
const WAYS: usize = 4;
/// Groups of so many places.
const GROUPS: usize = 64;
/// An attachment has to be worth so much before it is made: a point for each time that
/// it would have been used, and one for each page copied. Making one takes as long as
/// some twenty small transfers, or as copying the pages that it is for by another way.
const WORTH: u32 = 64;

/// Where a stretch of the peer's addresses is, or why not. All zeroes: of nothing.
#[derive(Clone, Copy, Default)]
pub struct Place {
    /// First address.
    start: u64,
    /// First address behind it.
    end: u64,
    /// Generation of the entry that it lies in; 0: no place.
    pub generation: u64,
    /// The entry's slot.
    pub slot: u32,
    /// Number of its window, from 1; 0: none.
    window: u32,
    /// Bytes of the window before it.
    into: u64,
    /// How much an attachment would have been worth by now.
    worth: u32,
    through: u8,
    /// Not to be had to read, or to write.
    refused: [bool; 2],
}

impl Place {
    #[inline]
    fn is_of(&self, entry: &Known, wanted: &Wanted) -> bool {
        self.start <= wanted.addr
            && wanted.addr < self.end
            && self.generation == entry.generation
            && self.slot == entry.slot()
            && self.through == wanted.through as u8
    }
}

/// All of them.
pub struct Table {
    /// Turns, by which the age of windows is told.
    turn: u64,
    /// The places' own, by group: which is replaced next.
    next: [u8; GROUPS],
    places: [[Place; WAYS]; GROUPS],
    windows: [Window; WINDOWS],
}

/// An empty one.
pub fn make(host: &dyn Host) -> Result<NonNull<Table>> {
    let bytes = round_up(size_of::<Table>() as u64).ok_or(Errno::NOMEM)?;
    // All zeroes is an empty table.
    NonNull::new(host.map(bytes)? as *mut Table).ok_or(Errno::NOMEM)
}

/// Gives its memory back.
pub fn free(host: &dyn Host, table: NonNull<Table>) {
    let bytes = round_up(size_of::<Table>() as u64).unwrap_or(0);
    host.unmap(table.as_ptr() as u64, bytes);
}

#[inline]
fn group(entry: &Known, addr: u64) -> usize {
    let mixed = (addr / WINDOW).wrapping_add(u64::from(entry.slot()));
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % GROUPS
}

impl Table {
    /// A hold on what is wanted, if it is attached.
    #[inline]
    pub fn find<'a>(&mut self, entry: &Known, wanted: &Wanted) -> Option<Hold<'a>> {
        let group = self.places.get(group(entry, wanted.addr))?;
        let place = group.iter().find(|p| p.is_of(entry, wanted))?;
        let window = self
            .windows
            .get_mut((place.window as usize).checked_sub(1)?)?;
        if wanted.write && !window.writable || window.how == How::Xpmem && !window.is_own() {
            return None;
        }
        self.turn += 1;
        window.used = self.turn;
        // Only with the lock held does it grow from 0, and so does whoever unmaps look.
        window.users.fetch_add(1, Relaxed);
        let into = place.into + (wanted.addr - place.start);
        Some(Hold {
            users: NonNull::from(&window.users),
            how: window.how,
            at: match window.how {
                How::Open => window.at,
                _ => window.at + into,
            },
            len: place.end - wanted.addr,
            inode: window.owner,
            offset: window.of.offset + into,
            table: PhantomData,
        })
    }

    /// The place of what is wanted, or else one that takes the whole of its entry in
    /// this group's stretch.
    fn noted(&mut self, entry: &Known, wanted: &Wanted) -> Option<&mut Place> {
        let n = group(entry, wanted.addr);
        let group = self.places.get_mut(n)?;
        let known = group.iter().position(|p| p.is_of(entry, wanted));
        let free = || group.iter().position(|p| p.generation == 0);
        let way = match known.or_else(free) {
            Some(way) => way,
            None => {
                let next = self.next.get_mut(n)?;
                *next = next.wrapping_add(1);
                usize::from(*next) % WAYS
            }
        };
        let place = group.get_mut(way)?;
        if known.is_none() {
            let chunk = wanted.addr & !(WINDOW - 1);
            *place = Place {
                start: entry.start.max(chunk),
                end: entry.end.min(chunk.saturating_add(WINDOW)),
                generation: entry.generation,
                slot: entry.slot(),
                through: wanted.through as u8,
                ..Place::default()
            };
        }
        Some(place)
    }

    /// Whether it is time to attach what is wanted, which isn't attached: it may be
    /// attached, and has been wanted often enough.
    pub fn pays(&mut self, entry: &Known, wanted: &Wanted) -> bool {
        let Some(place) = self.noted(entry, wanted) else {
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

    /// Notes where what is wanted is: window `n` has, from its byte `skip` on, `len` bytes of
    /// the peer's from `start` on.
    pub fn place(&mut self, entry: &Known, wanted: &Wanted, found: &Attached) {
        // A place lies within one entry and one stretch, or it would not be found.
        let chunk = wanted.addr & !(WINDOW - 1);
        let start = found.start.max(entry.start).max(chunk);
        let end = found.start.saturating_add(found.len).min(entry.end);
        if let Some(place) = self.noted(entry, wanted) {
            *place = Place {
                start,
                end: end.min(chunk.saturating_add(WINDOW)),
                window: found.n as u32 + 1,
                into: found.skip + (start - found.start),
                ..*place
            };
        }
    }

    /// Notes that it can't be attached, so that it isn't tried again.
    pub fn refuse(&mut self, entry: &Known, wanted: &Wanted) {
        if let Some(refused) = self
            .noted(entry, wanted)
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
            // Its count of users stays where it is: nobody has it, or will without the lock.
            (window.how, window.writable, window.owner) = (how, writable, owner);
            (window.of, window.at, window.used) = (of, at, used);
        }
    }

    fn close(&mut self, host: &dyn Host, n: usize) {
        for place in self.places.as_flattened_mut() {
            if place.window as usize == n + 1 {
                (place.window, place.worth) = (0, 0);
            }
        }
        if let Some(window) = self.windows.get_mut(n) {
            let_go(host, window.how, window.at, window.of.len);
            window.how = How::Free;
        }
    }

    /// Drops the places that are not `good`, and the windows that none is left of.
    pub fn sweep(&mut self, host: &dyn Host, good: impl Fn(&Place) -> bool) {
        let mut wanted = 0u64;
        for place in self.places.as_flattened_mut() {
            if place.generation != 0 && !good(place) {
                *place = Place::default();
            }
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
