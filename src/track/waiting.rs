//! What a domain leaves alone until it is asked for or touched (REGALL_PIN=auto).
//!
//! Memory of files, shared memory, threads' stacks and what can't be written are `on-request`: programs
//! seldom send from them, and others may change them unseen. They are registered exactly as they are asked for, by
//! the program itself; the C interface has shared memory registered so, too.
//!
//! For private memory: registering makes it resident, and a program that fits without the shim has
//! to fit with it. So a domain registers at once what is small against the headroom; the rest says
//! `untouched` in the HCA column, and has no region, until somebody asks for it or it is seen to be
//! resident.
//!
//! - *Small* is a gap between regions of at most 1/64 of the headroom (1 MiB at the least), as long
//!   as all regions together have at most 1/16 of it that nobody has touched. What another domain
//!   has pinned is resident already, and does not count again. Huge pages that are not reserved are
//!   never small: their pool may have less room than the mapping.
//! - A *request* is widened to 1/64 of the headroom (1 to 64 MiB) where that fits the 1/16, else it
//!   registers the very bytes. One of more than 2 GiB goes to the real call.
//! - What was a large region and is *not next to a hole* waits likewise, though it is resident.
//! - What is *resident* is registered at audits, near a request, and near a region that has just
//!   been registered. /proc/self/pagemap is asked without the lock, behind PAGEMAP_SCAN (Linux 6.7);
//!   what it says is a hint. A page of private memory counts if it is this process's own: not the
//!   zero page, not one that a child of fork has too. mincore says "resident" of the zero page, so
//!   it is asked only where /proc can't be read.
//!
//! The headroom is the budget less what is resident or registered. /proc/self/statm is read for it
//! at requests, at audits and after registrations, never in a call that registers nothing. A device
//! in REGALL_HCA, regall_register_all, `populate` and `onfault` do not wait.

use super::{ahead, budget, lock, State, USER_END};
use crate::limits;
use crate::policy;
use crate::registrar::hca::sizes::CHUNK;
use crate::registrar::hca::{numbers, DomainId};
use crate::sys::{
    self,
    pagemap::{self, Pagemap},
    Undisturbed,
};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Reason};

/// How much of what nobody holds is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// What is small against the headroom.
    Small,
    /// What is small, and what is resident: the kernel is asked.
    Resident,
    /// Everything: it holds these bytes, which were asked for.
    Asked(PageRange),
}

/// What is done with memory that no region holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The range is registered. So many bytes of it may be resident for that alone.
    Register(PageRange, u64),
    /// The kernel is asked what of it is resident.
    Look(Backing),
    /// The memory waits.
    Wait,
}

/// What the pages of memory are, for [`resident`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Pages of this process's own.
    Private,
    /// Pages of a file of the shim's (REGALL_SHARE).
    Shared,
}

impl Backing {
    fn of(attr: Attr) -> Self {
        match attr.prot.shared() {
            false => Self::Private,
            true => Self::Shared,
        }
    }

    /// Returns whether a page with this word of /proc/self/pagemap is resident, and stays the only
    /// copy when it is registered. The zero page would be copied.
    const fn has(self, word: u64) -> bool {
        const OWN: u64 = pagemap::PRESENT | pagemap::EXCLUSIVE;
        match self {
            Self::Private => word & (OWN | pagemap::FILE) == OWN,
            Self::Shared => word & pagemap::PRESENT != 0,
        }
    }
}

/// One mapping that is registered at once may have this part of the headroom ...
const ONE: u64 = 64;
/// ... or so many bytes ...
const FLOOR: u64 = 1 << 20;
/// ... and all together this part.
const ALL: u64 = 16;
/// The kernel is asked about so many pages at a time.
const WINDOW: usize = 512;
/// So much resident memory is one region at the most, and is looked at at a time.
const MOST_SEEN: u64 = 1 << 30;
/// How far around a region its neighbours are looked at, in bytes.
const NEAR: u64 = 16 << 20;
/// Resident memory between untouched memory is registered from this size on: what is
/// smaller would be a region for each page.
const RUN: u64 = 64 << 10;

/// Whether anything has waited in this process so far.
static WAITED: AtomicBool = AtomicBool::new(false);

/// What is done with `gap`, which says `attr` and of which `first` may be one region, in a domain
/// that waits. `there`: so many bytes of it are resident in any case. `known`: what was just seen to
/// be resident.
pub fn verdict(
    state: &State,
    attr: Attr,
    (gap, there): (PageRange, u64),
    first: PageRange,
    (reach, known): (Reach, Option<PageRange>),
) -> Verdict {
    if let Reach::Asked(bytes) = reach {
        let wanted = first.intersection(bytes).map_or(0, |part| part.len());
        return Verdict::Register(first, first.len() - wanted);
    }
    let seen = known.and_then(|k| k.intersection(first));
    if let Some(part) = seen.filter(|part| part.start() == gap.start()) {
        return Verdict::Register(part, 0);
    }
    if !may_lack_room(attr) && is_small(state, gap.len() - there) {
        return Verdict::Register(first, first.len());
    }
    if reach == Reach::Resident {
        return Verdict::Look(Backing::of(attr));
    }
    WAITED.store(true, Relaxed);
    Verdict::Wait
}

/// Returns whether memory that says `attr` is huge pages that are not reserved: there may be fewer
/// than all of it needs. Resident before it is touched, it would take what others are about to
/// touch.
pub fn may_lack_room(attr: Attr) -> bool {
    attr.kind == Kind::Huge && attr.flags.has(Flags::NORESERVE)
}

/// Returns whether `len` bytes are small against the headroom, and may become resident untouched.
pub fn is_small(state: &State, len: u64) -> bool {
    len <= (state.hca.headroom / ONE).max(FLOOR) && fits_ahead(state, len)
}

/// Whether `len` more bytes may become resident that nobody has touched.
fn fits_ahead(state: &State, len: u64) -> bool {
    state.hca.ahead.saturating_add(len) <= state.hca.headroom / ALL
}

/// Whether there may be memory that waits.
#[inline]
pub fn any() -> bool {
    WAITED.load(Relaxed)
}

/// `range` and what lies near it.
pub fn around(range: PageRange) -> PageRange {
    let start = range.start().saturating_sub(NEAR).max(PAGE);
    PageRange::new(start, range.end().saturating_add(NEAR).min(USER_END)).unwrap_or(range)
}

/// What of `gap` waits from here on: its HCA column says so, where domain `d` is the one
/// that it is about.
pub fn waits(state: &mut State, d: DomainId, gap: PageRange) {
    if state.hca.primary() == Some(d) {
        state.update(gap, |_, a| {
            let why = match policy::is_on_request(a) {
                true => Reason::OnRequest,
                false => Reason::Untouched,
            };
            match a.hca == Column::no(Reason::Off) && !a.prot.is_none() {
                true => Attr {
                    hca: Column::no(why),
                    ..a
                },
                false => a,
            }
        });
    }
}

/// The part of `bytes`' chunk that is registered with them: as much more as may become
/// resident untouched.
pub fn chunk_of(state: &State, bytes: PageRange) -> PageRange {
    if bytes.len() >= CHUNK {
        return bytes;
    }
    let size = (state.hca.headroom / ONE).clamp(FLOOR, CHUNK);
    let size = 1 << size.ilog2();
    let entry = |addr| state.ledger.get(addr);
    let (Some(first), Some(last)) = (entry(bytes.start()), entry(bytes.end() - PAGE)) else {
        return bytes;
    };
    // The chunk goes no further than the mappings that the bytes begin and end in.
    let start = match may_lack_room(first.attr) {
        true => bytes.start(),
        false => (bytes.start() & !(size - 1)).max(first.range.start()),
    };
    let end = match may_lack_room(last.attr) {
        true => bytes.end(),
        false => bytes
            .end()
            .checked_next_multiple_of(size)
            .unwrap_or(bytes.end())
            .min(last.range.end()),
    };
    match PageRange::new(start, end) {
        Some(wide) if fits_ahead(state, wide.len() - bytes.len()) => wide,
        _ => bytes,
    }
}

/// The headroom is reckoned anew. Called without the lock.
#[cold]
#[inline(never)]
pub fn refresh() {
    if limits::is_shared() {
        budget::reckon();
    }
    let resident = limits::resident();
    let Some(mut guard) = lock() else {
        return;
    };
    let state = &mut *guard;
    let domains = numbers().filter_map(|d| state.hca.domain(d));
    let registered = domains.map(|d| d.bytes).max().unwrap_or(0);
    state.hca.headroom = state.total.saturating_sub(resident.max(registered));
    let tight = state.hca.ahead > state.hca.headroom / ALL / 2;
    drop(guard);
    if tight {
        ahead::notice();
    }
}

/// The first part of `gap`, which is memory of kind `backing`, that is resident. The kernel is
/// asked: called without the lock.
#[cold]
#[inline(never)]
pub fn resident(gap: PageRange, backing: Backing) -> Option<PageRange> {
    // A handler that jumps away would leave the descriptor open.
    let _undisturbed = Undisturbed::new();
    let pagemap = Pagemap::open().ok();
    let mut words = [0u64; WINDOW];
    let (mut at, mut run) = (gap.start(), None);
    'gap: while at < gap.end() {
        if let (None, Some(pagemap)) = (run, &pagemap) {
            at = pagemap.next_present(at, gap.end());
        }
        let many = ((gap.end() - at) / PAGE).min(WINDOW as u64) as usize;
        let window = words.get_mut(..many)?;
        if !look(pagemap.as_ref(), at, window, backing) {
            // Some of it has gone meanwhile.
            break;
        }
        for word in window.iter() {
            match (*word != 0, run) {
                (true, None) => run = Some(at),
                (false, Some(start)) if at - start >= RUN => return PageRange::new(start, at),
                (false, _) => run = None,
                _ => (),
            }
            at += PAGE;
            if run.is_some_and(|start| at - start >= MOST_SEEN) {
                break 'gap;
            }
        }
    }
    let start = run?;
    let whole = start == gap.start() && at == gap.end();
    PageRange::new(start, at).filter(|part| whole || part.len() >= RUN)
}

/// Makes each of `words` 1 if its page from `at` on is resident, else 0. False if the kernel
/// does not say.
fn look(pagemap: Option<&Pagemap>, at: u64, words: &mut [u64], backing: Backing) -> bool {
    let Some(pagemap) = pagemap else {
        return look_by_mincore(at, words);
    };
    let read = pagemap.read(at, words).is_ok();
    words.iter_mut().for_each(|w| *w = backing.has(*w).into());
    read
}

/// As [`look`], where /proc can't be read. Takes the zero page for resident.
#[cold]
#[inline(never)]
fn look_by_mincore(at: u64, words: &mut [u64]) -> bool {
    let mut pages = [0u8; WINDOW];
    let pages = pages.get_mut(..words.len()).unwrap_or(&mut []);
    let told = sys::residency(at, pages).is_ok();
    for (word, page) in words.iter_mut().zip(pages) {
        *word = u64::from(*page & 1);
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 4 << 20;

    /// A fresh mapping.
    fn mapped(prot: i32) -> (*mut u8, PageRange) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: fresh memory at a place of the kernel's choice. Huge pages would be
        // resident beyond what is touched.
        let p = unsafe {
            let p = libc::mmap(core::ptr::null_mut(), LEN, prot, flags, -1, 0);
            assert_ne!(p, libc::MAP_FAILED);
            libc::madvise(p, LEN, libc::MADV_NOHUGEPAGE);
            p.cast()
        };
        let start = p as u64;
        (p, PageRange::new(start, start + LEN as u64).unwrap())
    }

    fn pages(range: PageRange, from: u64, to: u64) -> Option<PageRange> {
        PageRange::new(range.start() + from * PAGE, range.start() + to * PAGE)
    }

    fn each_page(p: *mut u8, pages: core::ops::Range<usize>, write: bool) {
        for page in pages {
            // SAFETY: within the caller's mapping, which can be accessed so.
            unsafe {
                let at = p.add(page * PAGE as usize);
                match write {
                    true => at.write_volatile(1),
                    false => _ = at.read_volatile(),
                }
            }
        }
    }

    #[test]
    fn the_zero_page_is_not_resident() {
        let both = libc::PROT_READ | libc::PROT_WRITE;
        let (p, range) = mapped(both);
        each_page(p, 0..1024, false);
        assert_eq!(resident(range, Backing::Private), None);
        each_page(p, 600..800, true);
        assert_eq!(resident(range, Backing::Private), pages(range, 600, 800));
    }
}
