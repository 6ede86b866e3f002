//! Pages of a peer's memory whose words were operated on lately: where they are mapped here, so
//! that the next operation needs neither the directory's copy nor the table.
//!
//! A *spot* is used by one thread at a time. Who finds it taken goes the long way, and waits for
//! nobody. The one locked instruction that takes it is all that keeps its window: the window counts
//! the spot as a user, so it stays mapped until the spot lets go of it, which takes its turn, too.

use super::hold::Hold;
use crate::lock;
use crate::view::Stamp;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_directory::addr::PAGE;

/// Spots of a peer. A page has one place among them.
const SPOTS: usize = 4;
const FREE: u32 = 0;

/// A page that is mapped here.
pub struct Page {
    /// Its address in the peer.
    start: u64,
    /// Where it is mapped.
    at: u64,
    /// Of the entry that it lies in.
    pub stamp: Stamp,
    /// Of its window, which counts this as one.
    users: NonNull<AtomicU32>,
    /// Whether it may be read, and written, as far as that was asked for.
    allowed: [bool; 2],
    /// When the clock was looked at last, in ticks.
    pub clocked: u64,
    /// Operations to come for which it is not.
    pub unclocked: u8,
    /// How many have followed each other quickly.
    pub quick: u8,
}

impl Page {
    /// Where the word at `addr` is, if it is in this page and may be read, or written.
    #[inline]
    pub fn place(&self, addr: u64, write: bool) -> Option<u64> {
        let into = addr.wrapping_sub(self.start);
        let allowed = self.allowed.get(usize::from(write)) == Some(&true);
        (into < PAGE && allowed).then_some(self.at.wrapping_add(into))
    }
}

#[repr(align(64))]
struct Spot {
    /// The process one of whose threads has it; [`FREE`]: none.
    turn: AtomicU32,
    page: UnsafeCell<Option<Page>>,
}

/// All spots of a peer.
pub struct Spots([Spot; SPOTS]);

// SAFETY: a page is reached by who has the turn alone; what it points to are atomics, of the peer's
// directory and of the table, which are there as long as the peer is open.
unsafe impl Send for Spots {}
// SAFETY: likewise.
unsafe impl Sync for Spots {}

/// A spot, taken.
pub struct Taken<'a>(&'a Spot);

impl Spots {
    /// None has a page.
    pub const fn new() -> Self {
        Self([const { Spot::new() }; SPOTS])
    }

    /// Takes the spot for an address, unless another thread has it.
    #[inline]
    pub fn take(&self, addr: u64) -> Option<Taken<'_>> {
        self.0.get((addr / PAGE) as usize % SPOTS)?.take()
    }

    /// An operation at `addr` has been carried out on what `hold` has mapped at `at`: the next one
    /// finds it here.
    pub fn keep(&self, addr: u64, write: bool, stamp: Stamp, (at, hold): (u64, Hold)) {
        let Some(mut spot) = self.take(addr) else {
            return;
        };
        let into = addr % PAGE;
        let (start, at) = (addr - into, at - into);
        match &mut *spot {
            Some(page) if page.start == start && page.at == at && page.stamp == stamp => {
                if let Some(allowed) = page.allowed.get_mut(usize::from(write)) {
                    *allowed = true;
                }
            }
            other => {
                let page = Page {
                    start,
                    at,
                    stamp,
                    users: hold.into_users(),
                    allowed: [!write, write],
                    clocked: 0,
                    unclocked: 0,
                    quick: 0,
                };
                if let Some(before) = other.replace(page) {
                    let_go(&before);
                }
            }
        }
    }

    /// Lets go of all pages, but of one that is operated on at this moment.
    pub fn clear(&self) {
        for spot in &self.0 {
            if let Some(mut spot) = spot.take() {
                spot.clear();
            }
        }
    }
}

impl Default for Spots {
    fn default() -> Self {
        Self::new()
    }
}

impl Spot {
    const fn new() -> Self {
        Self {
            turn: AtomicU32::new(FREE),
            page: UnsafeCell::new(None),
        }
    }

    #[inline]
    fn take(&self) -> Option<Taken<'_>> {
        let us = lock::process();
        match self.turn.compare_exchange(FREE, us, Acquire, Relaxed) {
            Ok(_) if us != FREE => Some(Taken(self)),
            Ok(_) => None,
            Err(other) => self.inherit(other, us),
        }
    }

    /// Takes a spot that a thread had which this child of a fork has not got. What it has may be
    /// half written: it is forgotten, and its window stays.
    #[cold]
    #[inline(never)]
    fn inherit(&self, other: u32, us: u32) -> Option<Taken<'_>> {
        if other == us || us == FREE {
            return None;
        }
        let taken = self.turn.compare_exchange(other, us, Acquire, Relaxed);
        taken.ok()?;
        // SAFETY: this thread has the turn. A page owns nothing that would have to be dropped.
        unsafe { self.page.get().write(None) };
        Some(Taken(self))
    }
}

impl Taken<'_> {
    /// Lets go of the page.
    pub fn clear(&mut self) {
        if let Some(page) = self.take() {
            let_go(&page);
        }
    }
}

/// Its window has one user less.
fn let_go(page: &Page) {
    // SAFETY: the table is as old as the attachments, which are still there.
    unsafe { page.users.as_ref() }.fetch_sub(1, Release);
}

impl Deref for Taken<'_> {
    type Target = Option<Page>;

    #[inline]
    fn deref(&self) -> &Option<Page> {
        // SAFETY: this thread has the turn.
        unsafe { &*self.0.page.get() }
    }
}

impl DerefMut for Taken<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Option<Page> {
        // SAFETY: this thread has the turn.
        unsafe { &mut *self.0.page.get() }
    }
}

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        // Nobody sleeps on it: who finds it taken goes another way.
        self.0.turn.store(FREE, Release);
    }
}

const _: () = assert!(size_of::<Spot>() == 64, "a line each");

#[cfg(test)]
mod tests {
    use super::super::How;
    use super::*;
    use core::marker::PhantomData;
    use core::sync::atomic::AtomicU64;

    /// A hold on a window with so many users.
    fn hold(users: &AtomicU32) -> Hold<'static> {
        users.fetch_add(1, Relaxed);
        Hold {
            users: NonNull::from(users),
            how: How::Mapped,
            at: 0,
            len: PAGE,
            inode: 0,
            offset: 0,
            table: PhantomData,
        }
    }

    #[test]
    fn a_page_is_found_and_its_window_counts_it() {
        lock::in_some_process();
        let (users, word) = (AtomicU32::new(0), AtomicU64::new(7));
        let stamp = Stamp::of_word(&word, 7);
        let spots = Spots::new();
        spots.keep(0x5010, true, stamp, (0x9010, hold(&users)));
        assert_eq!(users.load(Relaxed), 1);
        let place = |addr, write| {
            let spot = spots.take(addr)?;
            spot.as_ref()?.place(addr, write)
        };
        assert_eq!(place(0x5ff8, true), Some(0x9ff8));
        // Nobody has asked whether it may be read; another page; the same spot for another page.
        assert_eq!(place(0x5ff8, false), None);
        assert_eq!(place(0x6000, true), None);
        assert_eq!(place(0x5010 + SPOTS as u64 * PAGE, true), None);
        spots.keep(0x5020, false, stamp, (0x9020, hold(&users)));
        assert_eq!(
            (place(0x5ff8, false), users.load(Relaxed)),
            (Some(0x9ff8), 1)
        );
        // The same page, mapped elsewhere by now.
        let other = AtomicU32::new(0);
        spots.keep(0x5020, false, stamp, (0xb020, hold(&other)));
        assert_eq!((users.load(Relaxed), other.load(Relaxed)), (0, 1));
        assert_eq!(place(0x5020, true), None);
        spots.clear();
        assert_eq!((other.load(Relaxed), place(0x5020, false)), (0, None));
    }

    #[test]
    fn who_finds_a_spot_taken_does_not_wait() {
        lock::in_some_process();
        let (users, word) = (AtomicU32::new(0), AtomicU64::new(7));
        let spots = Spots::new();
        spots.keep(0, true, Stamp::of_word(&word, 7), (0, hold(&users)));
        let taken = spots.take(0);
        assert!(taken.is_some() && spots.take(8).is_none());
        // What is operated on stays.
        spots.clear();
        assert_eq!(users.load(Relaxed), 1);
        drop(taken);
        // As a child of fork finds it.
        let first = spots.0.first().unwrap();
        first.turn.store(lock::process() ^ 1, Relaxed);
        assert!(spots.take(0).is_some_and(|spot| spot.is_none()));
        assert!(spots.take(0).is_some());
    }
}
