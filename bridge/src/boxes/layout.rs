//! A box: the memory to which others send messages for one process. It is a file in memory that
//! the receiver makes, and that each sender maps: a head, the mailbox's cells, and rings.
//!
//! Whoever may map it may write anything there. So each word is copied once and checked before it
//! is used, on both sides; only what is private says where something is.

pub use super::message::{Kind, LINE};
use crate::atomic::{AtomicU32, AtomicU64, Ordering::*};

const PAGE: u64 = 4096;

/// First word of a box that is ready; the last digit is the version.
pub const MAGIC: u64 = 0x7265_6761_6c6c_6202;
/// What the file is called (memfd_create(2)).
pub const NAME: &core::ffi::CStr = c"regall.box";

/// Rings of a box at the most: each has a bit in a word, which has two for other things.
pub const RINGS: usize = 62;
/// Cells of a mailbox: so many small ones, and so many in which the longest message has room.
pub const SMALL_CELLS: usize = 24;
/// See [`SMALL_CELLS`].
pub const LARGE_CELLS: usize = 8;
/// All of them.
pub const CELLS: usize = SMALL_CELLS + LARGE_CELLS;
/// Bytes in front of a cell's data.
pub const CELL_HEAD: u64 = 32;
/// Bytes of a small cell, with those.
pub const SMALL_CELL: u64 = 256;

/// The longest message that a box can be made for, in bytes.
pub const MOST_LIMIT: u64 = 64 << 10;
/// The largest ring, in bytes.
pub const MOST_SIZE: u64 = 1 << 20;
/// The smallest ring, in bytes.
pub const LEAST_SIZE: u64 = PAGE;
/// The most messages before there is a ring.
pub const MOST_THRESHOLD: u64 = 1 << 20;

/// What the receiver has chosen for its box. It never changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Bytes of the longest message.
    pub limit: u64,
    /// Bytes of a ring: a power of two.
    pub size: u64,
    /// Rings.
    pub rings: u64,
    /// Messages to this box by the mailbox before a sender has a ring.
    pub threshold: u64,
}

impl Shape {
    /// The shape nearest to what is wanted: a ring has room for four of the longest messages.
    pub fn near(limit: u64, size: u64, rings: u64, threshold: u64) -> Self {
        let limit = limit.clamp(1, MOST_LIMIT);
        let least = (4 * (limit + 2 * LINE)).max(LEAST_SIZE);
        Self {
            limit,
            size: size.clamp(least, MOST_SIZE).next_power_of_two(),
            rings: rings.min(RINGS as u64),
            threshold: threshold.min(MOST_THRESHOLD),
        }
    }

    /// Whether a box can have it.
    pub fn is_sound(&self) -> bool {
        *self == Self::near(self.limit, self.size, self.rings, self.threshold)
    }

    fn large_cell(&self) -> u64 {
        (CELL_HEAD + self.limit).next_multiple_of(LINE)
    }

    /// Where cell `n` is, and for how many bytes of data it has room. `None`: there is none.
    pub fn cell(&self, n: usize) -> Option<(u64, u64)> {
        let large = n.checked_sub(SMALL_CELLS).map(|n| n as u64);
        let begin = size_of::<Head>() as u64;
        let behind = begin + SMALL_CELLS as u64 * SMALL_CELL;
        match large {
            None => Some((begin + n as u64 * SMALL_CELL, SMALL_CELL - CELL_HEAD)),
            Some(n) if n < LARGE_CELLS as u64 => Some((behind + n * self.large_cell(), self.limit)),
            Some(_) => None,
        }
    }

    /// Where the first ring is: what is in front of it is always there.
    pub fn first_ring(&self) -> u64 {
        let small = size_of::<Head>() as u64 + SMALL_CELLS as u64 * SMALL_CELL;
        (small + LARGE_CELLS as u64 * self.large_cell()).next_multiple_of(PAGE)
    }

    /// Where ring `n` is. `None`: there is none.
    pub fn ring(&self, n: usize) -> Option<u64> {
        ((n as u64) < self.rings).then(|| self.first_ring() + n as u64 * self.size)
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.first_ring() + self.rings * self.size
    }

    /// The bits of all rings.
    pub fn ring_bits(&self) -> u64 {
        (1u64 << self.rings.min(RINGS as u64)) - 1
    }
}

/// A box begins with this.
#[repr(C, align(4096))]
pub struct Head {
    /// [`MAGIC`]; stored last when the box is made.
    pub magic: AtomicU64,
    shape: [AtomicU64; 4],
    /// Not 0 once the receiver has had a descriptor to wait on: it may wait for that.
    pub has_event: AtomicU64,
    _line0: [u64; 2],
    /// What has come.
    pub summary: super::summary::Summary,
    _line1: [u64; 6],
    /// Counts wakes; the receiver sleeps on it.
    pub sequence: AtomicU32,
    _half: u32,
    _line2: [u64; 7],
    /// Numbers messages of the mailbox.
    pub tickets: AtomicU64,
    /// Set by a sender that has found no free ring, or no free cell.
    pub wanted: AtomicU64,
    _line3: [u64; 6],
    /// Of each cell.
    pub cells: [AtomicU64; CELLS],
    _to_page: [u64; 512 - 4 * 8 - CELLS],
    /// Of each ring.
    pub controls: [super::ring::Control; RINGS],
    _end: [u64; 32],
}

const _: () = assert!(size_of::<Head>() == 3 * PAGE as usize);

impl Head {
    /// Fills in what never changes. The memory is zeroed, and nobody else has it yet.
    pub fn begin(&self, shape: &Shape) {
        let Shape {
            limit,
            size,
            rings,
            threshold,
        } = *shape;
        for (word, value) in self.shape.iter().zip([limit, size, rings, threshold]) {
            word.store(value, Relaxed);
        }
        self.magic.store(MAGIC, Release);
    }

    /// The shape of a box that is in a file of so many bytes. `None`: it is none, or not ready.
    pub fn shape(&self, file: u64) -> Option<Shape> {
        if self.magic.load(Acquire) != MAGIC {
            return None;
        }
        let [limit, size, rings, threshold] = self.shape.each_ref().map(|word| word.load(Relaxed));
        let shape = Shape {
            limit,
            size,
            rings,
            threshold,
        };
        (shape.is_sound() && shape.bytes() <= file).then_some(shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_end_with_the_file() {
        for (limit, size, rings) in [
            (4096, 32 << 10, 32),
            (1, 0, 62),
            (64 << 10, 0, 1),
            (100, 1 << 30, 0),
        ] {
            let shape = Shape::near(limit, size, rings, 16);
            assert!(shape.is_sound(), "{shape:?}");
            assert!(shape.size >= 4 * (shape.limit + 2 * LINE) && shape.size <= MOST_SIZE);
            let mut end = size_of::<Head>() as u64;
            for n in 0..CELLS {
                let (at, room) = shape.cell(n).unwrap();
                assert!(at >= end && at % 8 == 0, "{n}");
                end = at + CELL_HEAD + room;
            }
            assert_eq!(shape.cell(CELLS), None);
            assert!(shape.first_ring() >= end);
            for n in 0..shape.rings as usize {
                assert_eq!(
                    shape.ring(n),
                    Some(shape.first_ring() + n as u64 * shape.size)
                );
            }
            assert_eq!(shape.ring(shape.rings as usize), None);
        }
    }

    #[test]
    fn a_quiet_box_is_small() {
        let shape = Shape::near(4096, 32 << 10, 32, 16);
        assert!(shape.first_ring() <= 56 << 10, "{}", shape.first_ring());
    }
}
