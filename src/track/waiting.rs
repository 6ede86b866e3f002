//! What a domain leaves alone until it is asked for or touched (REGALL_PIN=auto).
//!
//! Registering makes memory resident, and a program that fits without the shim has to fit
//! with it. So a domain registers at once what is small against the headroom; the rest says
//! `untouched` in the HCA column, and has no region, until somebody asks for it or it is
//! seen to be resident.

use super::{lock, pinning, State, USER_END};
use crate::limits;
use crate::registrar::hca::{numbers, CHUNK};
use crate::sys;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::{Attr, Column, Kind, Reason};

/// How much of what nobody holds is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// What is small against the headroom.
    Small,
    /// That, and what is resident: the kernel is asked.
    Resident,
    /// Everything: it holds these bytes, which were asked for.
    Asked(PageRange),
}

/// What is done with memory that no region holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It is registered. So many bytes of it may be resident for that alone.
    Register(PageRange, u64),
    /// The kernel is asked what of it is resident.
    Look,
    /// It waits.
    Wait,
}

/// One mapping that is registered at once may have this part of the headroom ...
const ONE: u64 = 64;
/// ... or so many bytes ...
const FLOOR: u64 = 1 << 20;
/// ... and all together this part.
const ALL: u64 = 16;
/// The kernel is asked about so many pages at a time.
const WINDOW: usize = 4096;
/// So far around a region its neighbours are looked at.
const NEAR: u64 = WINDOW as u64 * PAGE;
/// Resident memory between untouched memory is registered from this size on: what is
/// smaller would be a region for each page.
const RUN: u64 = 64 << 10;

/// Whether anything has waited in this process so far.
static WAITED: AtomicBool = AtomicBool::new(false);

/// What is done with `gap`, which says `attr`, in a domain that waits. `known`: what was
/// just seen to be resident.
pub fn verdict(
    state: &State,
    attr: Attr,
    gap: PageRange,
    reach: Reach,
    known: Option<PageRange>,
) -> Verdict {
    let first = PageRange::new(gap.start(), gap.end().min(gap.start() + CHUNK)).unwrap_or(gap);
    if let Reach::Asked(bytes) = reach {
        let wanted = first.intersection(bytes).map_or(0, |part| part.len());
        return Verdict::Register(first, first.len() - wanted);
    }
    let there = known.and_then(|k| k.intersection(first));
    if let Some(part) = there.filter(|part| part.start() == gap.start()) {
        return Verdict::Register(part, 0);
    }
    // A file may have less room than its mapping.
    let of_file = attr.prot.shared() && attr.kind == Kind::File;
    if !of_file && is_small(state, gap.len()) {
        return Verdict::Register(first, first.len());
    }
    // What the kernel says of a private mapping of a file is said of the file's pages.
    let telling = attr.kind != Kind::File || attr.prot.shared();
    if reach == Reach::Resident && telling {
        return Verdict::Look;
    }
    WAITED.store(true, Relaxed);
    Verdict::Wait
}

fn is_small(state: &State, len: u64) -> bool {
    let headroom = state.hca.headroom;
    len <= (headroom / ONE).max(FLOOR) && fits_ahead(state, len)
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
pub fn waits(state: &mut State, d: usize, gap: PageRange) {
    if state.hca.primary() == Some(d) {
        state.update(gap, |_, a| {
            if a.hca == Column::no(Reason::Off) && !a.prot.is_none() {
                Attr {
                    hca: Column::no(Reason::Untouched),
                    ..a
                }
            } else {
                a
            }
        });
    }
}

/// The part of `bytes`' chunk that is registered with them: as much more as may become
/// resident untouched.
pub fn chunk_of(state: &State, bytes: PageRange) -> PageRange {
    let size = (state.hca.headroom / ONE).clamp(FLOOR, CHUNK);
    let size = 1 << size.ilog2();
    let entry = |addr| state.ledger.get(addr).map(|e| e.range);
    let (Some(first), Some(last)) = (entry(bytes.start()), entry(bytes.end() - PAGE)) else {
        return bytes;
    };
    let start = (bytes.start() & !(size - 1)).max(first.start());
    let end = bytes.end().checked_next_multiple_of(size);
    let end = end.unwrap_or(bytes.end()).min(last.end());
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
        pinning::reckon();
    }
    let resident = limits::resident();
    let Some(mut guard) = lock() else {
        return;
    };
    let state = &mut *guard;
    let domains = numbers().filter_map(|d| state.hca.domain(d));
    let registered = domains.map(|d| d.bytes).max().unwrap_or(0);
    state.hca.headroom = state.total.saturating_sub(resident.max(registered));
}

/// The first part of `gap` that is resident. The kernel is asked: called without the lock.
#[cold]
#[inline(never)]
pub fn resident(gap: PageRange) -> Option<PageRange> {
    let mut pages = [0u8; WINDOW];
    let (mut at, mut run) = (gap.start(), None);
    while at < gap.end() {
        let many = ((gap.end() - at) / PAGE).min(WINDOW as u64) as usize;
        let window = pages.get_mut(..many)?;
        if sys::residency(at, window).is_err() {
            // Some of it has gone meanwhile.
            break;
        }
        for page in window.iter() {
            match (page & 1 != 0, run) {
                (true, None) => run = Some(at),
                (false, Some(start)) if at - start >= RUN => return PageRange::new(start, at),
                (false, _) => run = None,
                _ => (),
            }
            at += PAGE;
            if run.is_some_and(|start| at - start >= CHUNK) {
                break;
            }
        }
        if run.is_some_and(|start| at - start >= CHUNK) {
            break;
        }
    }
    let start = run?;
    let whole = start == gap.start() && at == gap.end();
    PageRange::new(start, at).filter(|part| whole || part.len() >= RUN)
}
