//! The file of a process's regions, `PID.START.NAMESPACE.regions` beside its directory.
//! All fields are 64-bit words that are read and written atomically.
//!
//! ```text
//! 0              Head, HEAD_BYTES
//! HEAD_BYTES     part 0: PART0_SLOTS slots, then PART0_SEGMENTS segments
//! ...            part k: so many << k, right behind part k - 1
//! ```
//!
//! A region is found by its cookie alone: in one of the parts, at one of [`WINDOW`] slots
//! from the one on that the cookie's random bits name. The segments of a region of one
//! segment are in its slot, those of others in the same part.

use core::sync::atomic::{AtomicU64, Ordering::Acquire};

/// First word of the file: "regions" and the layout's version in the top byte.
pub const MAGIC: u64 = 0x01_73_6e_6f_69_67_65_72;
/// Bytes in front of the first part.
pub const HEAD_BYTES: usize = 4096;
/// Slots of part 0.
pub const PART0_SLOTS: usize = 256;
/// Segments of part 0.
pub const PART0_SEGMENTS: usize = 1024;
/// Parts at the most: 65,280 regions, and up to 131,072 segments in one.
pub const PARTS: usize = 8;
/// Slots that a cookie may be at.
pub const WINDOW: usize = 8;

const PART0_BYTES: usize = PART0_SLOTS * size_of::<Slot>() + PART0_SEGMENTS * 16;

/// The file begins with this.
#[repr(C)]
pub struct Head {
    /// [`MAGIC`], stored last.
    pub magic: AtomicU64,
    /// [`regall_directory::layout::Header::image`] of the image whose regions they are.
    pub image: AtomicU64,
    /// Parts that there are.
    pub parts: AtomicU64,
}

/// A region.
#[repr(C, align(64))]
pub struct Slot {
    /// The cookie while the region can be used, else 0. A transfer is good if it was the
    /// same before and after.
    pub live: AtomicU64,
    /// The cookie until it is destroyed.
    pub cookie: AtomicU64,
    /// [`super::Rights`].
    pub rights: AtomicU64,
    /// Bytes of all segments.
    pub length: AtomicU64,
    /// Of a region of one segment: its address. Else its first segment's number in the part.
    pub first: AtomicU64,
    /// Segments.
    pub count: AtomicU64,
    /// Written by peers: [`CLAIM`] once a single use is claimed; and [`USE`] more for each
    /// use that the owner is to be told of. Between them is [`mark`]: who comes too late must
    /// not claim, or count, what has been given the slot since.
    pub uses: AtomicU64,
    /// The cookie that the KNEM module has for it; 0: none.
    pub knem: AtomicU64,
}

impl Slot {
    /// Its cookie, while the region can be used.
    pub fn live(&self) -> Option<u64> {
        let live = self.live.load(Acquire);
        (live != 0).then_some(live)
    }
}

const _: () = assert!(size_of::<Slot>() == 64);

/// One more use, in [`Slot::uses`].
pub const USE: u64 = 1 << 32;
/// The one claim, in [`Slot::uses`].
pub const CLAIM: u64 = 1;
/// Bits of [`Slot::uses`] that say whose they are.
pub const MARK: u64 = USE - 2;

/// The region's, in [`Slot::uses`].
pub const fn mark(place: u64) -> u64 {
    place << 1 & MARK
}

/// Slots of part `k`.
pub const fn slots(k: usize) -> usize {
    PART0_SLOTS << k
}

/// Segments of part `k`.
pub const fn segments(k: usize) -> usize {
    PART0_SEGMENTS << k
}

/// Where part `k` begins in the file.
pub const fn part_offset(k: usize) -> usize {
    HEAD_BYTES + PART0_BYTES * ((1 << k) - 1)
}

/// Bytes of part `k`.
pub const fn part_bytes(k: usize) -> usize {
    PART0_BYTES << k
}

/// The slots of part `k` that a cookie with these random bits may be at.
pub fn window(place: u64, k: usize) -> impl Iterator<Item = usize> {
    // A multiplicative hash: cookies of one process differ in all bits anyway.
    let at = (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
    (0..WINDOW).map(move |n| (at + n) % slots(k))
}

/// A part that is mapped, and stays so as long as anything of it is used.
#[derive(Clone, Copy)]
pub struct Part {
    /// Where.
    pub at: u64,
    /// Which.
    pub k: usize,
}

impl Part {
    /// Slot `n` of it.
    pub fn slot<'a>(self, n: usize) -> Option<&'a Slot> {
        let at = (self.at as *const Slot).wrapping_add(n);
        // SAFETY: a part has this many, all atomics.
        (n < slots(self.k)).then(|| unsafe { &*at })
    }

    /// Address and length of segment `n` of it.
    pub fn segment<'a>(self, n: usize) -> Option<&'a [AtomicU64; 2]> {
        let first = self.at + (slots(self.k) * size_of::<Slot>()) as u64;
        let at = (first as *const [AtomicU64; 2]).wrapping_add(n);
        // SAFETY: likewise.
        (n < segments(self.k)).then(|| unsafe { &*at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_on_each_other() {
        let mut at = HEAD_BYTES;
        for k in 0..PARTS {
            assert_eq!(part_offset(k), at);
            assert_eq!(part_bytes(k), slots(k) * 64 + segments(k) * 16);
            assert_eq!(at % 4096, 0);
            at += part_bytes(k);
        }
    }
}
