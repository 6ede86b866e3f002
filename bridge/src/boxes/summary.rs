//! What has come to a box, in two words: a bit for each ring and for each cell of the mailbox.
//! So to look costs the same however many could send.
//!
//! A receiver that goes to sleep says so in the same words: whoever sets a bit learns of it by the
//! same step. Of the two that change one word, one is the first, so no wake is lost.

use crate::atomic::{AtomicU64, Ordering::*};

/// The receiver sleeps on the box's sequence.
pub const SLEEPS: u64 = 1 << 63;
/// The receiver waits for its descriptor.
pub const EVENT: u64 = 1 << 62;
/// Both: the other bits are of rings or cells.
pub const WAYS: u64 = SLEEPS | EVENT;

/// The two words.
#[repr(C)]
pub struct Summary {
    rings: AtomicU64,
    cells: AtomicU64,
}

impl Summary {
    /// Nothing has come.
    pub const fn new() -> Self {
        Self {
            rings: AtomicU64::new(0),
            cells: AtomicU64::new(0),
        }
    }

    /// Something has come in ring `n`, where the receiver does not look; how it wants to be woken.
    #[must_use]
    pub fn ring(&self, n: usize) -> u64 {
        self.rings.fetch_or(1 << (n & 63), AcqRel) & WAYS
    }

    /// Something has come in cell `n`; how the receiver wants to be woken.
    #[must_use]
    pub fn cell(&self, n: usize) -> u64 {
        self.cells.fetch_or(1 << (n & 63), AcqRel) & WAYS
    }

    /// Returns how the receiver wants to be woken.
    pub fn ways(&self) -> u64 {
        self.cells.load(Acquire) & WAYS
    }

    /// Returns whether something has come in cell `n` that was not taken.
    pub fn has_cell(&self, n: usize) -> bool {
        self.cells.load(Acquire) >> (n & 63) & 1 != 0
    }

    /// Takes the rings that something has come in, those of `bits`.
    #[inline]
    pub fn take_rings(&self, bits: u64) -> u64 {
        take(&self.rings, bits)
    }

    /// Takes the cells, likewise.
    #[inline]
    pub fn take_cells(&self, bits: u64) -> u64 {
        take(&self.cells, bits)
    }

    /// Who sets a bit from now on is told of `ways`. Whether there are bits already: then the
    /// receiver has to look.
    pub fn arm(&self, ways: u64) -> bool {
        let rings = self.rings.fetch_or(ways, AcqRel);
        let cells = self.cells.fetch_or(ways, AcqRel);
        (rings | cells) & !WAYS != 0
    }

    /// Nobody is told of `ways` any more.
    pub fn disarm(&self, ways: u64) {
        self.rings.fetch_and(!ways, AcqRel);
        self.cells.fetch_and(!ways, AcqRel);
    }

    /// Whether there are bits.
    #[inline]
    pub fn has_any(&self) -> bool {
        (self.rings.load(Acquire) | self.cells.load(Acquire)) & !WAYS != 0
    }
}

impl Default for Summary {
    fn default() -> Self {
        Self::new()
    }
}

#[inline]
fn take(word: &AtomicU64, bits: u64) -> u64 {
    match word.load(Acquire) & bits {
        0 => 0,
        found => word.fetch_and(!found, AcqRel) & found,
    }
}
