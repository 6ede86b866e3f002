//! The owner's side: makes and destroys regions, and takes those out of use whose memory
//! goes.
//!
//! Others may write into the file (they claim single uses there), so nothing is read back
//! from it but what they are to write. What a region is (its rights and segments, and whether
//! it can be used) is in private memory in the same layout; which slots and segments are taken
//! is known privately, too. The hooks only look at it ([`Owner::leave`]), without a lock.

use super::entry::{segment, BEING_MADE};
use super::layout::*;
use super::{Cookie, Rights};
use crate::host::Host;
use crate::lock::Lock;
use crate::mechanism::knem;
use crate::vector::Segment;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use regall_directory::addr::PageRange;
use regall_directory::planted;
use regall_sys::file::Fd;
use regall_sys::{Errno, Result};

/// Cookies that are tried for a slot of one part before the next part is.
const TRIES: usize = 8;
/// Where the file is.
pub trait Place {
    /// Opens it, made anew if `anew`.
    fn open(&self, anew: bool) -> Result<Fd>;
    /// [`regall_directory::layout::Header::image`].
    fn image(&self) -> u64;
    /// Our pid.
    fn pid(&self) -> u32;
}

/// 2 MiB pieces of memory are told apart by a hash of so many values.
const FILTER_BITS: u64 = 4096;
const FILTER_SHIFT: u32 = 21;

/// All regions of this process.
pub struct Owner {
    /// Regions that have been made and not destroyed.
    count: AtomicUsize,
    /// Which memory any of them may lie in. Bits are never cleared while there is a region.
    filter: [AtomicU64; FILTER_BITS as usize / 64],
    /// Addresses of the file's parts that are mapped; 0: not yet.
    parts: [AtomicU64; PARTS],
    /// Addresses of the same parts in private memory.
    own: [AtomicU64; PARTS],
    taken: Lock<[Option<Taken>; PARTS]>,
    /// Whether the KNEM module was given any of them.
    shadowed: AtomicBool,
}

/// What is taken of a part; it lies in memory of the host's.
struct Taken {
    slots: Bits,
    units: Bits,
    of: &'static mut [Of],
}

/// What is known of a region beside what is in the file.
#[repr(C)]
struct Of {
    cookie: Cookie,
    /// The first of its units of segments.
    unit: u32,
    /// How many it has.
    units: u32,
    /// The KNEM module's cookie for it; 0: none.
    knem: u64,
}

/// Segments that are given out together.
const UNIT: usize = 16;

impl Default for Owner {
    fn default() -> Self {
        Self::new()
    }
}

impl Owner {
    /// No regions, and no file.
    pub const fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            filter: [const { AtomicU64::new(0) }; FILTER_BITS as usize / 64],
            parts: [const { AtomicU64::new(0) }; PARTS],
            own: [const { AtomicU64::new(0) }; PARTS],
            taken: Lock::new([const { None }; PARTS]),
            shadowed: AtomicBool::new(false),
        }
    }

    /// In a child of fork, which has none of its parent's regions: as new.
    ///
    /// # Safety
    /// No other thread uses it.
    pub unsafe fn forget(&self) {
        // SAFETY: by the contract above.
        unsafe { knem::forget() };
        self.shadowed.store(false, Relaxed);
        // SAFETY: by the contract above.
        unsafe { self.taken.reset() };
        self.count.store(0, Relaxed);
        self.filter.iter().for_each(|w| w.store(0, Relaxed));
        let parts = self.parts.iter().chain(&self.own);
        parts.for_each(|p| p.store(0, Relaxed));
        *self.taken.lock() = [const { None }; PARTS];
    }

    /// Whether there has been a file since [`Owner::new`].
    pub fn has_file(&self) -> bool {
        self.part(0).is_some()
    }

    /// Where its parts are; 0: not yet.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> [u64; PARTS] {
        core::array::from_fn(|k| self.part(k).map_or(0, |part| part.at))
    }

    /// Part `k` of the file.
    fn part(&self, k: usize) -> Option<Part> {
        mapped(&self.parts, k)
    }

    /// Part `k` as only this process writes it.
    fn own(&self, k: usize) -> Option<Part> {
        mapped(&self.own, k)
    }

    /// Makes a region of `segments`, which `memory` says it may have: that is asked when
    /// a peer could see the region already, so that memory which goes at the same time is
    /// noticed by one of the two.
    ///
    /// Where `pinnable` says of each segment that what is in its pages stays in them until this
    /// process's doing replaces them, the KNEM module has it, too, if there is one.
    ///
    /// What `memory` says; EINVAL: no segments; ENOMEM, ENOSPC: no room for so many regions or
    /// segments; errors of open(2), fallocate(2) and mmap(2).
    pub fn create(
        &self,
        host: &dyn Host,
        place: &dyn Place,
        segments: &[Segment],
        rights: Rights,
        pinnable: &dyn Fn(&Segment) -> bool,
        memory: &mut dyn FnMut(&Segment) -> Result<()>,
    ) -> Result<Cookie> {
        let length = length(segments)?;
        let mut taken = self.taken.lock();
        let at = self.find_room(host, place, &mut taken, segments.len())?;
        let own = self.own(at.part.k).ok_or(Errno::NOMEM)?;
        let both = [at.part, own].map(|part| Some((part, part.slot(at.slot)?)));
        for (part, slot) in both.into_iter().flatten() {
            slot.take(at.cookie.0, at.cookie.place(), || Terms {
                rights: rights.bits,
                length,
                first: at.write(part, segments),
                count: segments.len() as u64,
            });
        }
        self.count.fetch_add(1, Relaxed);
        segments.iter().for_each(|s| self.note(s));
        // The file's first: who takes memory away takes out of the file what it finds here.
        for (_, slot) in both.into_iter().flatten() {
            slot.go_live(at.cookie.0);
        }
        for segment in segments.iter().filter(|s| s.len > 0) {
            if let Err(e) = memory(segment) {
                self.give_back(&mut taken, at.part, at.slot);
                return Err(e);
            }
        }
        if segments.iter().filter(|s| s.len > 0).all(pinnable) {
            self.shadow(&mut taken, &at, segments);
        }
        Ok(at.cookie)
    }

    /// Gives the region to the KNEM module as well. Pages that are replaced meanwhile
    /// ([`Owner::replaced`]) are those of before or after, and it is not known which: so that
    /// is looked for from before on.
    fn shadow(&self, taken: &mut [Option<Taken>; PARTS], at: &Room, segments: &[Segment]) {
        let (Some(slot), Some(Some(t))) = (at.part.slot(at.slot), taken.get_mut(at.part.k)) else {
            return;
        };
        self.shadowed.store(true, SeqCst);
        slot.knem.store(BEING_MADE, SeqCst);
        let cookie = knem::create(segments);
        if let Some(of) = t.of.get_mut(at.slot) {
            of.knem = cookie;
        }
        let _ = slot
            .knem
            .compare_exchange(BEING_MADE, cookie, SeqCst, Relaxed);
    }

    /// Destroys a region. EINVAL: there is none of that cookie here.
    pub fn destroy(&self, cookie: Cookie) -> Result<()> {
        let mut taken = self.taken.lock();
        let (part, n) = self.find(&taken, cookie).ok_or(Errno::INVAL)?;
        self.give_back(&mut taken, part, n);
        Ok(())
    }

    /// What `tell` says of a region; EINVAL: there is none of that cookie here.
    pub fn with<T>(&self, cookie: Cookie, tell: impl FnOnce(&Slot) -> T) -> Result<T> {
        let taken = self.taken.lock();
        let (part, n) = self.find(&taken, cookie).ok_or(Errno::INVAL)?;
        part.slot(n).map(tell).ok_or(Errno::INVAL)
    }

    /// Calls `tell` for each region that there is, until it says false.
    pub fn each(&self, mut tell: impl FnMut(Cookie, &Slot) -> bool) {
        let taken = self.taken.lock();
        for part in (0..PARTS).map_while(|k| self.part(k)) {
            // A part that only others lie behind may have been passed over so far.
            let Some(Some(t)) = taken.get(part.k) else {
                continue;
            };
            let regions = t.of.iter().enumerate().filter(|(n, _)| t.slots.has(*n));
            for (n, of) in regions {
                if part.slot(n).is_some_and(|slot| !tell(of.cookie, slot)) {
                    return;
                }
            }
        }
    }

    /// Memory goes (before it does): regions that lie in it can't be used any more. Called
    /// by hooks: no lock, no system call, and one load where there are no regions.
    ///
    /// The caller holds a lock that `memory` of [`Owner::create`] takes, and has taken the
    /// memory out of what that asks: so one of the two sees what the other has done.
    #[inline]
    pub fn leave(&self, range: PageRange) {
        if self.count.load(SeqCst) > 0 && self.may_hold(range) {
            self.take_out(range);
        }
    }

    /// Whether the KNEM module was given any region.
    pub fn is_shadowed(&self) -> bool {
        self.shadowed.load(Relaxed)
    }

    /// The pages of memory are replaced, which stays where it is (before they are): the KNEM
    /// module has the old ones.
    #[inline]
    pub fn replaced(&self, range: PageRange) {
        if self.shadowed.load(SeqCst) && self.may_hold(range) {
            let gone = |shared: &Slot| shared.knem.store(0, SeqCst);
            self.each_in(range, |shared, _, _| {
                planted!("knem-old-pages", (), gone(shared))
            });
        }
    }

    #[cold]
    #[inline(never)]
    fn take_out(&self, range: PageRange) {
        // Unless the slot has been given to another region meanwhile.
        self.each_in(range, |shared, own, live| {
            if own.live.compare_exchange(live, 0, SeqCst, Relaxed).is_ok() {
                let gone = planted!("cookie-stays-live", live, 0);
                let _ = shared.live.compare_exchange(live, gone, SeqCst, Relaxed);
            }
        });
    }

    /// Calls `tell` for each region that can be used and lies in `range`, with its slot in the
    /// file, its own one, and its cookie.
    fn each_in(&self, range: PageRange, tell: impl Fn(&Slot, &Slot, u64)) {
        let parts = (0..PARTS).map_while(|k| self.part(k).zip(self.own(k)));
        for (part, own) in parts {
            let all = (0..slots(part.k)).filter_map(|n| part.slot(n).zip(own.slot(n)));
            for (shared, slot) in all {
                let Some(live) = slot.live() else { continue };
                let hit = |s: Segment| {
                    s.len > 0 && s.addr < range.end() && range.start() < s.addr.wrapping_add(s.len)
                };
                let count = slot.count.load(Relaxed) as usize;
                if (0..count).map_while(|n| segment(own, slot, n)).any(hit) {
                    tell(shared, slot, live);
                }
            }
        }
    }

    fn may_hold(&self, range: PageRange) -> bool {
        pieces(range.start(), range.len()).any(|(word, bit)| {
            self.filter
                .get(word)
                .is_some_and(|w| w.load(Relaxed) & bit != 0)
        })
    }

    fn note(&self, segment: &Segment) {
        for (word, bit) in pieces(segment.addr, segment.len) {
            if let Some(w) = self.filter.get(word) {
                w.fetch_or(bit, Relaxed);
            }
        }
    }

    fn find(&self, taken: &[Option<Taken>; PARTS], cookie: Cookie) -> Option<(Part, usize)> {
        for part in (0..PARTS).map_while(|k| self.part(k)) {
            let Some(Some(t)) = taken.get(part.k) else {
                continue;
            };
            let here =
                |n: &usize| t.slots.has(*n) && t.of.get(*n).is_some_and(|of| of.cookie == cookie);
            if let Some(n) = window(cookie.place(), part.k).find(here) {
                return Some((part, n));
            }
        }
        None
    }

    fn give_back(&self, taken: &mut [Option<Taken>; PARTS], part: Part, n: usize) {
        let both = [self.own(part.k), Some(part)];
        let slots = both.into_iter().flatten().filter_map(|part| part.slot(n));
        slots.for_each(Slot::give_back);
        if let Some(Some(t)) = taken.get_mut(part.k) {
            t.slots.set(n, 1, false);
            if let Some(of) = t.of.get_mut(n) {
                t.units.set(of.unit as usize, of.units as usize, false);
                knem::destroy(core::mem::take(&mut of.knem));
            }
        }
        if self.count.fetch_sub(1, Relaxed) == 1 {
            self.filter.iter().for_each(|w| w.store(0, Relaxed));
        }
    }

    /// A slot that a new cookie may be at, and segments in the same part.
    fn find_room(
        &self,
        host: &dyn Host,
        place: &dyn Place,
        taken: &mut [Option<Taken>; PARTS],
        count: usize,
    ) -> Result<Room> {
        let units = match count {
            1 => 0,
            n => n.div_ceil(UNIT),
        };
        for (k, taken) in taken.iter_mut().enumerate() {
            if units * UNIT > segments(k) {
                continue;
            }
            for below in 0..=k {
                if self.part(below).is_none() {
                    self.grow(host, place, below)?;
                }
            }
            let part = self.part(k).ok_or(Errno::NOMEM)?;
            let taken = match taken {
                Some(taken) => taken,
                None => taken.insert(Taken::new(host, k)?),
            };
            if let Some(room) = taken.room(part, place.pid(), units) {
                return Ok(room);
            }
        }
        Err(Errno::NOSPC)
    }

    /// Maps part `k`, which there was not yet.
    fn grow(&self, host: &dyn Host, place: &dyn Place, k: usize) -> Result<()> {
        let fd = place.open(k == 0)?;
        // The head is mapped with part 0.
        let offset = match k {
            0 => 0,
            k => part_offset(k),
        };
        let bytes = (part_offset(k) + part_bytes(k) - offset) as u64;
        fd.allocate(offset as u64, bytes)?;
        let at = host.map_file(&fd, offset as u64, bytes, true)?;
        // A child must not write into its parent's regions.
        // SAFETY: new memory, of which a child keeps nothing.
        let _ = unsafe { regall_sys::advise_any(at, bytes, libc::MADV_DONTFORK) };
        let part = match k {
            0 => at + HEAD_BYTES as u64,
            _ => at,
        };
        if k == 0 {
            // SAFETY: fresh pages of that size.
            let head = unsafe { &*(at as *const Head) };
            head.image.store(place.image(), Relaxed);
            head.parts.store(1, Relaxed);
            head.magic.store(MAGIC, Release);
        } else if let Some(first) = self.part(0) {
            // SAFETY: the head is in front of part 0.
            let head = unsafe { &*((first.at - HEAD_BYTES as u64) as *const Head) };
            head.parts.store(k as u64 + 1, Release);
        }
        let own = host.map(part_bytes(k) as u64)?;
        for (parts, at) in [(&self.own, own), (&self.parts, part)] {
            if let Some(place) = parts.get(k) {
                place.store(at, Release);
            }
        }
        Ok(())
    }
}

/// Part `k`, if `places` say where it is.
fn mapped(places: &[AtomicU64; PARTS], k: usize) -> Option<Part> {
    let at = places.get(k)?.load(Acquire);
    (at != 0).then_some(Part { at, k })
}

/// Room for a region.
struct Room {
    part: Part,
    slot: usize,
    /// First of its segments, if they are not in the slot.
    first: usize,
    cookie: Cookie,
}

impl Room {
    /// Writes the segments into `part`, the file's or our own; [`Slot::first`].
    fn write(&self, part: Part, segments: &[Segment]) -> u64 {
        if let [one] = segments {
            return one.addr;
        }
        for (n, s) in segments.iter().enumerate() {
            if let Some([addr, len]) = part.segment(self.first + n) {
                addr.store(s.addr, Relaxed);
                len.store(s.len, Relaxed);
            }
        }
        self.first as u64
    }
}

impl Taken {
    fn new(host: &dyn Host, k: usize) -> Result<Self> {
        let bits = slots(k) / 64 + segments(k) / UNIT / 64;
        let bytes = bits * 8 + slots(k) * size_of::<Of>();
        let bytes = bytes.checked_next_multiple_of(4096).ok_or(Errno::NOMEM)?;
        let at = host.map(bytes as u64)? as *mut u64;
        let units = at.wrapping_add(slots(k) / 64);
        let of = at.wrapping_add(bits);
        // SAFETY: three parts of fresh memory, never given back, zeroed: all valid.
        unsafe {
            Ok(Self {
                slots: Bits(core::slice::from_raw_parts_mut(at, slots(k) / 64)),
                units: Bits(core::slice::from_raw_parts_mut(
                    units,
                    segments(k) / UNIT / 64,
                )),
                of: core::slice::from_raw_parts_mut(of.cast(), slots(k)),
            })
        }
    }

    fn room(&mut self, part: Part, pid: u32, units: usize) -> Option<Room> {
        let unit = self.units.find(units)?;
        for _ in 0..TRIES {
            let cookie = Cookie::of(pid);
            let free = |n: &usize| !self.slots.has(*n);
            let Some(slot) = window(cookie.place(), part.k).find(free) else {
                continue;
            };
            self.slots.set(slot, 1, true);
            self.units.set(unit, units, true);
            if let Some(of) = self.of.get_mut(slot) {
                of.cookie = cookie;
                of.unit = unit as u32;
                of.units = units as u32;
            }
            return Some(Room {
                part,
                slot,
                first: unit * UNIT,
                cookie,
            });
        }
        None
    }
}

/// A bitmap of what is taken.
struct Bits(&'static mut [u64]);

impl Bits {
    fn has(&self, n: usize) -> bool {
        self.0.get(n / 64).is_some_and(|w| w >> (n % 64) & 1 != 0)
    }

    fn set(&mut self, from: usize, count: usize, to: bool) {
        for n in from..from + count {
            if let Some(word) = self.0.get_mut(n / 64) {
                match to {
                    true => *word |= 1 << (n % 64),
                    false => *word &= !(1 << (n % 64)),
                }
            }
        }
    }

    /// The first of `count` clear ones in a row.
    fn find(&self, count: usize) -> Option<usize> {
        let mut run = 0;
        let mut n = 0;
        while n < self.0.len() * 64 {
            if run >= count {
                break;
            }
            // Whole words that are full are passed over at once.
            if n % 64 == 0 && self.0.get(n / 64) == Some(&u64::MAX) {
                run = 0;
                n += 64;
                continue;
            }
            run = match self.has(n) {
                true => 0,
                false => run + 1,
            };
            n += 1;
        }
        (run >= count).then(|| n - run)
    }
}

/// Bytes of all segments; EINVAL if there are none, EFAULT if there can't be so many.
fn length(segments: &[Segment]) -> Result<u64> {
    let mut sum = 0u64;
    for s in segments {
        sum = sum.checked_add(s.len).ok_or(Errno::FAULT)?;
        s.addr.checked_add(s.len).ok_or(Errno::FAULT)?;
    }
    match segments.is_empty() {
        true => Err(Errno::INVAL),
        false => Ok(sum),
    }
}

/// Words and bits of the filter for memory; all of them if it is very much.
fn pieces(addr: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
    let first = addr >> FILTER_SHIFT;
    let last = addr.saturating_add(len.saturating_sub(1)) >> FILTER_SHIFT;
    let last = last.min(first + FILTER_BITS - 1);
    (first..=last).map(|piece| {
        let n = piece % FILTER_BITS;
        ((n / 64) as usize, 1 << (n % 64))
    })
}
