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

use crate::atomic::{fence, AtomicU64, Ordering::*};

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
    /// Written by peers.
    pub uses: Uses,
    /// The cookie that the KNEM module has for it; 0: none.
    pub knem: AtomicU64,
}

/// What a slot says of a region, beside where it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// See [`Slot::rights`].
    pub rights: u64,
    /// See [`Slot::length`].
    pub length: u64,
    /// See [`Slot::first`].
    pub first: u64,
    /// See [`Slot::count`].
    pub count: u64,
}

impl Slot {
    /// Its cookie, while the region can be used.
    pub fn live(&self) -> Option<u64> {
        let live = self.live.load(Acquire);
        (live != 0).then_some(live)
    }

    /// Takes the region of that cookie, whose random bits are `place`, which can't be used
    /// before [`Slot::go_live`]. `write` writes its segments, and says what else it is.
    pub fn take(&self, cookie: u64, place: u64, write: impl FnOnce() -> Terms) {
        // Whoever still looks at the slot's last region must not see this one's half.
        self.live.store(0, Relaxed);
        fence(Release);
        let terms = write();
        self.rights.store(terms.rights, Relaxed);
        self.length.store(terms.length, Relaxed);
        self.count.store(terms.count, Relaxed);
        self.first.store(terms.first, Relaxed);
        self.uses.begin(place);
        self.knem.store(0, Relaxed);
        self.cookie.store(cookie, Release);
    }

    /// The region can be used. Who takes memory away looks for live regions after this, or is
    /// seen by who looks at the memory after this.
    pub fn go_live(&self, cookie: u64) {
        self.live.store(cookie, SeqCst);
        fence(SeqCst);
    }

    /// The region is no more.
    pub fn give_back(&self) {
        self.live.store(0, Release);
        self.cookie.store(0, Release);
    }

    /// What is said of the region of that cookie, as long as it can be used. What is read after
    /// this (segments, [`Slot::knem`]) is its own if it still [`stands`](Self::stands) then.
    #[inline(always)]
    pub fn terms(&self, cookie: u64) -> Option<Terms> {
        if self.live.load(Acquire) != cookie {
            return None;
        }
        let terms = Terms {
            rights: self.rights.load(Relaxed),
            length: self.length.load(Relaxed),
            first: self.first.load(Relaxed),
            count: self.count.load(Relaxed),
        };
        self.stands(cookie).then_some(terms)
    }

    /// Whether the region of that cookie can still be used; to be asked after its words were
    /// read.
    #[inline]
    pub fn stands(&self, cookie: u64) -> bool {
        fence(Acquire);
        self.live.load(Relaxed) == cookie
    }
}

const _: () = assert!(size_of::<Slot>() == 64);

/// How often a region was used: [`CLAIM`] once a single use is claimed; and [`USE`] more for each
/// use that the owner is to be told of. Between them is [`mark`]: who comes too late must not
/// claim, or count, what has been given the slot since.
#[repr(transparent)]
pub struct Uses(AtomicU64);

/// Why a single use can't be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// Somebody has it.
    Claimed,
    /// The region is no more.
    Gone,
}

impl Uses {
    /// Starts the counters of the region with these random bits at no use.
    fn begin(&self, place: u64) {
        // As whoever is late for the last one changes them: loom does not know that a plain
        // store between two exchanges is between them for all.
        self.0.swap(mark(place), Relaxed);
    }

    /// Uses that the owner is told of.
    pub fn count(&self) -> u64 {
        self.0.load(Acquire) / USE
    }

    /// Claims the one use that there is.
    #[inline]
    pub fn claim(&self, place: u64) -> Result<(), Denied> {
        match self.update(place, |uses| (uses & CLAIM == 0).then_some(uses | CLAIM)) {
            Ok(_) => Ok(()),
            Err(uses) if is_of(uses, place) => Err(Denied::Claimed),
            Err(_) => Err(Denied::Gone),
        }
    }

    /// Gives back what was claimed and not used.
    pub fn unclaim(&self, place: u64) {
        let _ = self.update(place, |uses| Some(uses & !CLAIM));
    }

    /// Counts one more use.
    #[inline]
    pub fn add(&self, place: u64) {
        let _ = self.update(place, |uses| Some(uses.wrapping_add(USE)));
    }

    /// Changes them while they are that region's.
    #[inline]
    fn update(&self, place: u64, f: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let f = |uses| f(uses).filter(|_| is_of(uses, place));
        self.0.fetch_update(AcqRel, Acquire, f)
    }
}

fn is_of(uses: u64, place: u64) -> bool {
    uses & MARK == mark(place)
}

/// One more use, in [`Uses`].
const USE: u64 = 1 << 32;
/// The one claim, in [`Uses`].
const CLAIM: u64 = 1;
/// Bits of [`Uses`] that say whose they are.
const MARK: u64 = USE - 2;

/// The region's, in [`Uses`].
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
    /// Where the part is in the file.
    pub at: u64,
    /// The part's number.
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
