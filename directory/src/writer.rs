//! The one writer's side: the shim, which calls this inside hooks.
//!
//! So there is no allocation, no system call outside [`Writer::reserve`], and
//! nothing that can panic. What the writer needs to remember lies in private
//! memory; from the shared file it never reads back what it relies on, since
//! any process of the same user can scribble over it.
//!
//! # Order of stores
//! A slot is a small seqlock whose sequence is its generation. Retiring stores
//! 0, with release, so that whoever sees it also sees the entry that was
//! published in its place. Filling the slot anew issues a release fence (so that the 0 is seen before any
//! new field), stores the fields, and stores the new generation with release
//! (so that the fields are seen before it). A reader that finds the same
//! generation before and after it read the fields has a whole entry:
//! [`crate::reader::read_slot`].

use core::num::NonZeroU32;
use core::ptr::NonNull;

use crate::addr::PageRange;
use crate::atomic::{fence, AtomicU64, Ordering};
use crate::layout::{
    locate, segment_offset, Generation, Header, Slot, SlotRef, SEGMENT0_SLOTS, SEGMENTS, SLOT_BYTES,
};
use crate::planted;
use crate::vocab::{Access, Attr};

/// Where the writer's memory comes from; the shim does it with raw system calls.
pub trait Backing {
    /// Makes room for segment `k` ([`crate::layout::segment_bytes`] at
    /// [`crate::layout::segment_offset`]) in the file, its space *allocated*, so
    /// that a store can't be SIGBUS, and maps it. `None`: no room.
    ///
    /// The mapping must stay until the writer is attached anew or forgotten.
    fn segment(&mut self, k: usize) -> Option<NonNull<Slot>>;

    /// `bytes` of zeroed private memory, which stay for as long as there is the writer, in
    /// children of fork, too. `None`: no memory.
    fn private(&mut self, bytes: usize) -> Option<NonNull<u32>>;
}

/// What [`Segment::links`] says of a slot that is in use.
const IN_USE: u32 = u32::MAX;

/// A segment as the writer has it.
#[derive(Clone, Copy)]
struct Segment {
    slots: Option<NonNull<Slot>>,
    /// For each slot the next one in the list of free slots (number plus 1, 0
    /// at the end), or [`IN_USE`].
    links: Option<NonNull<u32>>,
}

/// What a slot says beyond its range, if it is a memory region's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// See [`Slot::domain`].
    pub domain: u64,
    /// See [`Slot::keys`].
    pub keys: u64,
}

const NO_REGION: Region = Region { domain: 0, keys: 0 };

/// The single writer of a directory.
pub struct Writer {
    header: Option<NonNull<Header>>,
    segments: [Segment; SEGMENTS],
    /// Segments that both have room in the file and links.
    ready: usize,
    /// The slot that was freed last, plus 1; 0: none is. Taking that one keeps
    /// its cache line warm and the slots in use low.
    last_freed: u32,
    /// Slots `0..fresh` have been used at some time.
    fresh: usize,
    /// Slots in all ready segments that are not in use.
    free: usize,
    unpublished: u64,
    /// What the header says; see [`Writer::next_generation`].
    generation: Generation,
}

// SAFETY: the pointers are to memory of the process that no thread owns more
// than another; all changes go through `&mut self`.
unsafe impl Send for Writer {}

impl Writer {
    /// A writer that has nothing to write to yet.
    pub const fn new() -> Self {
        const NONE: Segment = Segment {
            slots: None,
            links: None,
        };
        Self {
            header: None,
            segments: [NONE; SEGMENTS],
            ready: 0,
            last_freed: 0,
            fresh: 0,
            free: 0,
            unpublished: 0,
            generation: Generation::NONE,
        }
    }

    /// Begins with a new, empty file, and forgets whatever was before: nothing
    /// is freed or unmapped (after fork it isn't the child's). Private memory is used again:
    /// a program may be left half-way by siglongjmp any number of times. Generations go on: the
    /// file may be the same, and readers know the entries that it had.
    ///
    /// # Safety
    /// `header` must be mapped, writable, zeroed where this type writes, and
    /// stay mapped until the next `attach` or as long as the writer is used.
    pub unsafe fn attach(&mut self, header: NonNull<Header>) {
        let links = self.segments.map(|segment| segment.links);
        *self = Self {
            header: Some(header),
            generation: self.generation,
            ..Self::new()
        };
        for (segment, links) in self.segments.iter_mut().zip(links) {
            segment.links = links;
        }
    }

    /// The header, for the counters and all else that this type leaves alone
    /// (it writes `segments`, `high_water`, `unpublished` and `generation`).
    #[inline]
    pub fn header(&self) -> Option<&Header> {
        // SAFETY: `attach`'s caller promised that it stays mapped; a Header is
        // all atomics, so that others may write it meanwhile.
        self.header.map(|h| unsafe { h.as_ref() })
    }

    /// A generation that this writer has not given before, which the header shows at once.
    /// Kept in private memory: whoever put an earlier one into the file could else have two
    /// entries share one.
    #[inline]
    pub fn next_generation(&mut self) -> Generation {
        let before = planted!("generation-not-raised", Generation::NONE, self.generation);
        let next = before.next();
        self.generation = next;
        if let Some(header) = self.header() {
            header.generation.store(next.get(), Ordering::Relaxed);
        }
        next
    }

    /// Slots that [`Writer::publish`] can fill before it needs more room.
    #[inline]
    pub fn free_slots(&self) -> usize {
        self.free
    }

    /// Sees to it that at least `n` slots are free; false if there is no room
    /// for them (some may have been added). The only part that makes system
    /// calls: to be called ahead of need.
    pub fn reserve(&mut self, backing: &mut impl Backing, n: usize) -> bool {
        while self.free < n {
            if self.header.is_none() || !self.add_segment(backing) {
                return false;
            }
        }
        true
    }

    /// Adds one segment; false if there is no room. What was got of a segment
    /// is kept for the next attempt.
    fn add_segment(&mut self, backing: &mut impl Backing) -> bool {
        let k = self.ready;
        let slots = SEGMENT0_SLOTS << k;
        let Some(segment) = self.segments.get_mut(k) else {
            return false;
        };
        match segment.links {
            // SAFETY: private memory for as many, which only this writer touches; what is
            // there may be of another directory.
            Some(links) => unsafe { links.write_bytes(0, slots) },
            None => segment.links = backing.private(slots * size_of::<u32>()),
        }
        if segment.links.is_some() && segment.slots.is_none() {
            segment.slots = backing.segment(k);
        }
        if segment.slots.is_none() {
            return false;
        }
        self.ready = k + 1;
        self.free += slots;
        if let Some(header) = self.header() {
            header.segments.store(k as u64 + 1, Ordering::Release);
        }
        true
    }

    /// Fills a free slot and makes it visible. `generation` is one that no
    /// entry has had. `None` if no slot is free: the entry counts as
    /// unpublished until [`Writer::unpublished_gone`].
    #[inline]
    pub fn publish(
        &mut self,
        generation: Generation,
        range: PageRange,
        attr: Attr,
        id: u64,
    ) -> Option<SlotRef> {
        self.fill(generation, range, attr.pack(), id, NO_REGION)
    }

    /// As [`Writer::publish`], of a memory region with `access`.
    pub fn publish_region(
        &mut self,
        generation: Generation,
        range: PageRange,
        access: Access,
        id: u64,
        region: Region,
    ) -> Option<SlotRef> {
        self.fill(generation, range, u64::from(access.bits()), id, region)
    }

    #[inline]
    fn fill(
        &mut self,
        generation: Generation,
        range: PageRange,
        attr: u64,
        id: u64,
        region: Region,
    ) -> Option<SlotRef> {
        let Some((taken, slot)) = self.take() else {
            self.count_unpublished(self.unpublished.saturating_add(1));
            return None;
        };
        // SAFETY: `take` gives slots of mapped segments only; all fields are
        // atomics, so that readers may look on.
        let slot = unsafe { slot.as_ref() };
        fence(Ordering::Release);
        slot.start.store(range.start(), Ordering::Relaxed);
        slot.end.store(range.end(), Ordering::Relaxed);
        slot.attr.store(attr, Ordering::Relaxed);
        slot.id.store(id, Ordering::Relaxed);
        slot.keys.store(region.keys, Ordering::Relaxed);
        slot.domain.store(region.domain, Ordering::Relaxed);
        slot.generation.store(generation.get(), Ordering::Release);
        Some(taken)
    }

    /// Makes an entry invisible and frees its slot. A slot that is not in use
    /// is left alone.
    #[inline]
    pub fn retire(&mut self, slot: SlotRef) {
        let Some((place, mut link)) = self.find(slot.number()) else {
            return;
        };
        // SAFETY: `find` gives links of mapped private memory, which only this
        // writer touches.
        let link = unsafe { link.as_mut() };
        if *link != IN_USE {
            return;
        }
        *link = self.last_freed;
        self.last_freed = slot.get().get();
        self.free += 1;
        // SAFETY: as in `publish`.
        let place = unsafe { place.as_ref() };
        let gone = planted!("retired-is-visible", false, true);
        if gone {
            place.generation.store(0, Ordering::Release);
        }
    }

    /// An entry for which [`Writer::publish`] found no slot has gone, or was
    /// published after all.
    pub fn unpublished_gone(&mut self) {
        self.count_unpublished(self.unpublished.saturating_sub(1));
    }

    /// Entries that could not be published and have not gone.
    #[inline]
    pub fn unpublished(&self) -> u64 {
        self.unpublished
    }

    /// The slots that are or were in use, a slice for each segment.
    ///
    /// A signal handler may look through them without the writer's lock, if it
    /// treats each as a reader does, and may store 0 to a generation to make an
    /// entry invisible ahead of its unmapping: the slot remains in use until
    /// the writer retires it. A handler that may interrupt a `&mut` method must
    /// not make a `&Writer`; it keeps the pointers from
    /// [`Writer::segment_base`] in atomics of its own.
    pub fn segments(&self) -> impl Iterator<Item = &[Slot]> + '_ {
        let used = |k: usize| {
            let before = (segment_offset(k) - segment_offset(0)) / SLOT_BYTES;
            self.fresh.saturating_sub(before).min(SEGMENT0_SLOTS << k)
        };
        let ready = self.segments.iter().take(self.ready).enumerate();
        ready.filter_map(move |(k, segment)| {
            let base = segment.slots?;
            // SAFETY: the segment is mapped with room for all its slots, of
            // which these are a part; slots are all atomics.
            Some(unsafe { core::slice::from_raw_parts(base.as_ptr(), used(k)) })
        })
    }

    /// Where segment `k` is mapped; it has `SEGMENT0_SLOTS << k` slots.
    #[inline]
    pub fn segment_base(&self, k: usize) -> Option<NonNull<Slot>> {
        self.segments.get(k).and_then(|s| s.slots)
    }

    /// Takes a free slot: the one freed last, else the lowest one never used.
    #[inline]
    fn take(&mut self) -> Option<(SlotRef, NonNull<Slot>)> {
        let freed = NonZeroU32::new(self.last_freed);
        let taken = match freed {
            Some(freed) => SlotRef::from_raw(freed),
            None => SlotRef::from_raw(NonZeroU32::new(u32::try_from(self.fresh + 1).ok()?)?),
        };
        let (slot, mut link) = self.find(taken.number())?;
        // SAFETY: `find` gives links of mapped private memory, which only this
        // writer touches.
        let link = unsafe { link.as_mut() };
        if freed.is_some() {
            self.last_freed = *link;
        } else {
            self.fresh += 1;
            if let Some(header) = self.header() {
                let used = planted!("high-water", self.fresh - 1, self.fresh) as u64;
                header.high_water.store(used, Ordering::Release);
            }
        }
        *link = IN_USE;
        self.free -= 1;
        Some((taken, slot))
    }

    /// Slot number `n` and its link, if its segment is ready.
    #[inline]
    fn find(&self, n: usize) -> Option<(NonNull<Slot>, NonNull<u32>)> {
        let (k, index) = locate(n);
        // One that has slots has links, too, and is ready.
        let segment = self.segments.get(k)?;
        // SAFETY: `locate` keeps the index below the segment's number of slots,
        // for which `Backing::segment` made room.
        let slot = unsafe { segment.slots?.add(index) };
        // SAFETY: likewise, for `Backing::private`.
        let link = unsafe { segment.links?.add(index) };
        Some((slot, link))
    }

    fn count_unpublished(&mut self, n: u64) {
        self.unpublished = n;
        if let Some(header) = self.header() {
            header.unpublished.store(n, Ordering::Release);
        }
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

/// Adds to a counter of the header that one writer alone adds to: a load and a
/// store, which cost a tenth of a locked addition.
#[inline]
pub fn add(counter: &AtomicU64, n: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(n);
    counter.store(sum, Ordering::Relaxed);
}
