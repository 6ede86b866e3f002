//! What is in the file under one cookie, as it was when it was looked up.

use super::layout::*;
use super::{Cookie, Rights};
use crate::vector::Segment;
use crate::view::Stamp;
use core::sync::atomic::Ordering::*;
use regall_sys::{Errno, Result};

/// In [`Slot::knem`] while the KNEM module is asked: no cookie of its.
pub(super) const BEING_MADE: u64 = u64::MAX;

/// Segment `n` of a region.
pub(super) fn segment(part: Part, slot: &Slot, n: usize) -> Option<Segment> {
    let first = slot.first.load(Relaxed);
    if slot.count.load(Relaxed) == 1 {
        let len = slot.length.load(Relaxed);
        return (n == 0).then_some(Segment { addr: first, len });
    }
    let [addr, len] = part.segment(usize::try_from(first).ok()?.checked_add(n)?)?;
    Some(Segment {
        addr: addr.load(Relaxed),
        len: len.load(Relaxed),
    })
}

/// A region, as it was when it was looked up.
pub struct Entry<'a> {
    part: Part,
    slot: &'a Slot,
    cookie: Cookie,
    /// What may be done with it.
    pub rights: Rights,
    /// Bytes of it.
    pub length: u64,
    /// Segments of it.
    pub count: usize,
    /// The cookie that the KNEM module has for it; 0: none.
    pub knem: u64,
}

impl<'a> Entry<'a> {
    #[inline(always)]
    pub(super) fn read(part: Part, slot: &'a Slot, cookie: Cookie) -> Result<Self> {
        let terms = slot.terms(cookie.0).ok_or(Errno::STALE)?;
        let region = Self {
            part,
            slot,
            cookie,
            rights: Rights::from_bits(terms.rights),
            length: terms.length,
            count: usize::try_from(terms.count).map_err(|_| Errno::INVAL)?,
            knem: match slot.knem.load(Acquire) {
                BEING_MADE => 0,
                cookie => cookie,
            },
        };
        match region.stands() {
            true => Ok(region),
            false => Err(Errno::STALE),
        }
    }

    /// Whether it still is what it was; to be asked after its words were read.
    pub fn stands(&self) -> bool {
        self.slot.stands(self.cookie.0)
    }

    /// Holds as long as it can be used.
    pub fn stamp(&self) -> Stamp {
        Stamp::of_word(&self.slot.live, self.cookie.0)
    }

    /// Holds as long as the KNEM module has the region's pages, as they were.
    pub fn knem_stamp(&self) -> Stamp {
        Stamp::of_word(&self.slot.knem, self.knem)
    }

    /// Segment `n`; nonsense if it no longer [`stands`](Self::stands).
    pub fn segment(&self, n: usize) -> Option<Segment> {
        (n < self.count).then(|| segment(self.part, self.slot, n))?
    }

    /// Claims the one use that there is, if there is one only. EINVAL: it was claimed;
    /// ESTALE: the region was destroyed.
    #[inline]
    pub fn claim(&self) -> Result<()> {
        match self.rights.has(Rights::SINGLE_USE) {
            false => Ok(()),
            true => self.claim_the_one(),
        }
    }

    #[inline(never)]
    fn claim_the_one(&self) -> Result<()> {
        let claimed = self.slot.uses.claim(self.cookie.place());
        claimed.map_err(|denied| match denied {
            Denied::Claimed => Errno::INVAL,
            Denied::Gone => Errno::STALE,
        })
    }

    /// Gives back what was claimed and not used.
    #[cold]
    pub fn unclaim(&self) {
        if self.rights.has(Rights::SINGLE_USE) {
            self.slot.uses.unclaim(self.cookie.place());
        }
    }

    /// Counts a use; whether the owner wants to be told.
    #[inline]
    pub fn used(&self) -> bool {
        let tell = self.rights.has(Rights::NOTIFY);
        if tell {
            self.slot.uses.add(self.cookie.place());
        }
        tell
    }
}
