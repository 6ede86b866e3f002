//! What readers see.

use core::ptr;

use super::hint::Hint;
use super::keys::{key, NO_KEY};
use super::leaf::Leaf;
use super::place::Seen;
use super::row::Row;
use super::top::Top;
use super::version::Version;
use crate::atomic::Ordering::{Acquire, Relaxed};
use crate::atomic::{AtomicBool, AtomicPtr, AtomicU64};

/// Tries of a reader before it says [`Busy`].
pub(super) const TRIES: usize = 10_000;
/// Misses in a row after which a hint is consulted only now and then ...
pub(super) const COLD_AFTER: u64 = 64;
/// ... namely for one look-up in this many.
pub(super) const COLD_EVERY: u64 = 8;

/// Says that a reader met the writer on every try; most likely it runs in a signal handler
/// that interrupted the writer, and would wait for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy;

/// What readers see. Lives in a static, is shared by everybody, and is written
/// by the one [`Index`] that was made with it.
#[repr(align(64))]
pub struct View {
    pub(super) version: Version,
    pub(super) top: AtomicPtr<Top>,
    /// All leaves there are; only ever grows.
    pub(super) ever: AtomicPtr<Leaf>,
    pub(super) claimed: AtomicBool,
}

impl View {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            version: Version(AtomicU64::new(0)),
            top: AtomicPtr::new(ptr::null_mut()),
            ever: AtomicPtr::new(ptr::null_mut()),
            claimed: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(super) fn top(&self) -> Option<&'static Top> {
        let top = self.top.load(Acquire);
        // SAFETY: null, or made by Top::new, stored with Release, and never
        // unmapped nor written again but through atomics.
        unsafe { top.as_ref() }
    }

    /// One try. The outer `None`: the writer was in the way.
    #[inline]
    pub(super) fn try_find(&self, addr: u64) -> Option<Option<Seen>> {
        let of_top = self.version.enter()?;
        let found = self.top().and_then(|top| top.leaf(top.find(key(addr))?));
        let Some(leaf) = found else {
            return self.version.still(of_top).then_some(None);
        };
        let version = leaf.version.enter()?;
        if !self.version.still(of_top) {
            return None;
        }
        let row = leaf.rank(key(addr)).checked_sub(1).map(|n| leaf.read(n));
        if !leaf.version.still(version) {
            return None;
        }
        Some(
            row.filter(|r| addr < r.end)
                .map(|row| Seen { row, leaf, version }),
        )
    }

    #[inline]
    pub(super) fn find(&self, addr: u64) -> Result<Option<Seen>, Busy> {
        if key(addr) == NO_KEY {
            return Ok(None); // it would find the unused places
        }
        for _ in 0..TRIES {
            if let Some(answer) = self.try_find(addr) {
                return Ok(answer);
            }
            crate::hint::spin_loop();
        }
        Err(Busy)
    }

    /// As [`View::row_at`], without waiting for a writer: it may be this very thread.
    pub fn row_now(&self, addr: u64) -> Result<Option<Row>, Busy> {
        match key(addr) == NO_KEY {
            true => Ok(None),
            false => Ok(self.try_find(addr).ok_or(Busy)?.map(|seen| seen.row)),
        }
    }

    /// The row that holds `addr`, as it was at some moment during the call. Any
    /// thread, at any time, in a signal handler too: no lock, no system call.
    #[inline]
    pub fn row_at(&self, addr: u64) -> Result<Option<Row>, Busy> {
        Ok(self.find(addr)?.map(|seen| seen.row))
    }

    /// [`View::row_at`] that looks first among the ranges found lately.
    #[inline]
    pub fn row_at_hinted(&self, addr: u64, hint: &Hint) -> Result<Option<Row>, Busy> {
        let misses = hint.misses.load(Relaxed);
        if misses > COLD_AFTER && misses % COLD_EVERY != 0 {
            hint.misses.store(misses.wrapping_add(1), Relaxed);
            return self.row_at(addr);
        }
        if let Some(row) = hint.get(addr) {
            if misses != 0 {
                hint.misses.store(0, Relaxed);
            }
            return Ok(Some(row));
        }
        hint.misses.store(misses.wrapping_add(1), Relaxed);
        let seen = self.find(addr)?;
        if let Some(seen) = &seen {
            hint.put(seen);
        }
        Ok(seen.map(|seen| seen.row))
    }
}

impl Default for View {
    fn default() -> Self {
        Self::new()
    }
}
