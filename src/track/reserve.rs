//! Memory that is reserved first and made accessible a little at a time, as malloc's arenas are.
//!
//! A lock needs no access, and stays when access changes. So with the first part of a mapping
//! that is opened, the rest of it is locked on fault, too ([`Column::LOCKED_NO_ACCESS`]): nothing
//! becomes resident by it, and parts are opened and closed without another call.
//!
//! Memory without access that lies side by side is all locked, or none of it. So the kernel makes
//! as few mappings of it as without the shim. A call that brings locked and unlocked memory
//! together has the unlocked one locked ([`even`]). What is to be locked, or to be looked at again,
//! may be locked by then ([`Column::TO_LOCK_NO_ACCESS`]): it is unlocked before it is left alone.
//!
//! Only where a lock on memory without pages costs nothing: with REGALL_PIN=auto, a budget that
//! is for page cache alone, no swap that what nobody can access could be written to, and no
//! RLIMIT_MEMLOCK that binds. Once that is not so, or the kernel refuses to lock or to unlock
//! (before Linux 5.18; where there are as many mappings as there may be), all these locks go and
//! none comes back. From then on the ledger's word that something is locked makes nothing pinned.

use super::lock::Guard;
use super::turns::{in_the_way_of, postpone};
use super::{flight, State};
use crate::ledger::Entry;
use crate::limits;
use crate::policy::{self, Want};
use crate::sys;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering::*};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::{Attr, Column, Flags, Reason};

/// Entries that are looked at in each direction.
const MANY: usize = 64;

/// Memory without access is not locked any more.
static OVER: AtomicBool = AtomicBool::new(false);
/// Some is locked, or may be.
static ANY: AtomicBool = AtomicBool::new(false);

/// A child of fork has none of its parent's locks.
pub fn child() {
    ANY.store(false, Relaxed);
}

/// Tries on a page whether the kernel locks memory without access on fault. Before Linux 5.18 it
/// marks all of it as locked, refuses then, and goes through it page by page to unlock it: that
/// is not to be tried on a reserve.
pub fn try_a_page() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, where the kernel has room for it.
    let page = unsafe { sys::map(0, PAGE, libc::PROT_NONE, flags, -1, 0) };
    let locked = page.and_then(|at| {
        let locked = sys::lock_memory(at, PAGE, true);
        // SAFETY: the page that has just been mapped.
        let _ = unsafe { sys::unmap(at, PAGE) };
        locked
    });
    if locked.is_err() {
        is_over();
    }
}

/// Whether memory without access may be locked. Called with the lock held.
#[inline]
pub fn is_on(state: &State) -> bool {
    if OVER.load(Relaxed) {
        return false;
    }
    let may = state.only_cache && !limits::bound();
    if !may {
        OVER.store(true, Relaxed);
    }
    may
}

/// Memory without access is not to be locked any more. What is locked is still to be let go of.
#[cold]
pub fn is_over() {
    OVER.store(true, Relaxed);
}

/// Memory without access is locked, or may be.
#[inline]
pub fn there_is() {
    // Looked at first: other threads read it all the time.
    if !ANY.load(Relaxed) {
        ANY.store(true, Relaxed);
    }
}

/// Whether memory without access is locked, or may be.
pub fn is_any() -> bool {
    ANY.load(Relaxed)
}

/// Whether there are locks that have to go.
#[inline]
pub fn is_due() -> bool {
    OVER.load(Relaxed) && ANY.load(Relaxed)
}

/// Whether there may be some that is locked, which is nobody else's to let go of from here on.
pub fn take_any() -> bool {
    is_over();
    ANY.swap(false, AcqRel)
}

/// Whether `attr` is that of memory without access that is not locked, or is to be, and could be.
fn is_free(attr: Attr) -> bool {
    attr.pin != Column::LOCKED_NO_ACCESS && may_be_locked(attr)
}

/// Whether `attr` is that of memory without access that nobody locks but us.
fn may_be_locked(attr: Attr) -> bool {
    attr.prot.is_none() && policy::is_reserve(attr) && !attr.flags.has(Flags::APP_LOCKED)
}

/// Whether `attr` is that of memory without access that may be locked, by nobody but us.
pub fn may_have_our_lock(attr: Attr) -> bool {
    may_be_locked(attr) && attr.pin != Column::no(Reason::NoAccess)
}

/// `part`, which says `attr` and is to be pinned as `want` says, and what is locked together with
/// it: the memory without access on both sides, which says from now on that it may be locked.
/// `None`: nothing is.
#[inline]
pub fn with_sides(guard: &mut Guard, part: PageRange, attr: Attr, want: Want) -> Option<PageRange> {
    if want != Want::OnFault || !policy::is_reserve(attr) {
        return None;
    }
    let is_side = |e: &Entry| is_free(e.attr);
    let below = guard.ledger.get(part.start().wrapping_sub(PAGE));
    let above = guard.ledger.get(part.end());
    let (below, above) = (below.filter(is_side), above.filter(is_side));
    if below.is_none() && above.is_none() {
        return None;
    }
    let own = guard.ledger.get(part.start())?;
    // Of another mapping it may never be opened: only what is without access itself takes it along.
    let closed = attr.prot.is_none();
    let goes_along = |e: &Entry| closed || e.origin == own.origin;
    match (below.filter(goes_along), above.filter(goes_along)) {
        (None, None) => None,
        (below, above) => sides(guard, part, (below.is_some(), above.is_some())),
    }
}

#[cold]
#[inline(never)]
fn sides(guard: &mut Guard, part: PageRange, (below, above): (bool, bool)) -> Option<PageRange> {
    if !is_on(guard) {
        return None;
    }
    let (mut start, mut end) = (part.start(), part.end());
    for _ in 0..MANY * usize::from(below) {
        match guard.ledger.get(start.wrapping_sub(PAGE)) {
            Some(e) if is_free(e.attr) => start = e.range.start(),
            _ => break,
        }
    }
    for _ in 0..MANY * usize::from(above) {
        match guard.ledger.get(end) {
            Some(e) if is_free(e.attr) => end = e.range.end(),
            _ => break,
        }
    }
    let all = PageRange::new(start, end)?;
    // A handler that advises it, and any other call, has to know that there may be a lock.
    there_is();
    for side in both_sides(all, part) {
        guard.update(side, |_, a| to_lock(a));
    }
    // Others who come later wait for what is being pinned, those who are there already do not.
    if !both_sides(all, part).any(|side| in_the_way_of(guard, side)) {
        // What this thread is unlocking there itself, below a handler, does not count.
        flight::overrun(all);
        return Some(all);
    }
    postpone(all);
    None
}

/// What of `all` lies beside `part`.
pub fn both_sides(all: PageRange, part: PageRange) -> impl Iterator<Item = PageRange> {
    let sides = [all.before(part.start()), all.after(part.end())];
    sides.into_iter().flatten()
}

/// `attr` with its lock still to come, if it is one of memory that could be locked and is not.
fn to_lock(attr: Attr) -> Attr {
    match is_free(attr) {
        true => policy::doubted(attr),
        false => attr,
    }
}

/// `all` has been locked, for the sake of `part`. Whether some of it is no longer what it was:
/// that is not to stay locked.
#[cold]
#[inline(never)]
pub fn enter(state: &mut State, all: PageRange, part: PageRange) -> bool {
    there_is();
    let (mut known, mut bytes) = (0, 0);
    for side in both_sides(all, part) {
        bytes += side.len();
        state.update(side, |piece, a| {
            if !may_be_locked(a) {
                return a;
            }
            known += piece.len();
            policy::locked(a)
        });
    }
    known < bytes
}

/// `all` is not locked: what lies beside `part` is left alone.
#[cold]
#[inline(never)]
pub fn leave_sides(state: &mut State, all: PageRange, part: PageRange) {
    for side in both_sides(all, part) {
        state.update(side, |_, a| match is_free(a) {
            true => policy::left_alone(a),
            false => a,
        });
    }
}

/// Sees to it that memory without access in `range`, which the ledger has just learnt about, and
/// what lies beside it are all locked or none of it. What is left to do in `range` is done when it
/// is settled, the rest at the end of the call. Whether there is something to be done in `range`.
#[inline]
pub fn even(state: &mut State, range: PageRange) -> bool {
    let (start, end) = (range.start(), range.end());
    let wide = PageRange::new(start.saturating_sub(PAGE), end.saturating_add(PAGE));
    let (mut from, mut upto) = (0, 0);
    let (mut locked, mut free) = (false, false);
    let mut uneven: Option<(u64, u64)> = None;
    state.ledger.for_each(wide.unwrap_or(range), |part, e| {
        if !may_be_locked(e.attr) {
            return ControlFlow::Continue(());
        }
        if part.start() != upto {
            (locked, free) = (false, false);
            from = e.range.start();
        }
        upto = part.end();
        match e.attr.pin == Column::LOCKED_NO_ACCESS {
            true => locked = true,
            false => free = true,
        }
        if locked && free {
            uneven = Some((uneven.map_or(from, |(from, _)| from), e.range.end()));
        }
        ControlFlow::Continue(())
    });
    let uneven = uneven.and_then(|(from, to)| PageRange::new(from, to));
    uneven.is_some_and(|uneven| lock_later(state, uneven, range))
}

/// What is free of `uneven` is to be locked: at the end of the call where it is not all of `range`.
/// Whether it is to be at all.
#[cold]
#[inline(never)]
fn lock_later(state: &mut State, uneven: PageRange, range: PageRange) -> bool {
    if !is_on(state) {
        return false;
    }
    there_is();
    state.update(uneven, |_, a| to_lock(a));
    if uneven.start() < range.start() || range.end() < uneven.end() {
        postpone(uneven);
    }
    true
}

/// The ledger has been read anew: it does not know what is locked.
#[cold]
pub fn is_forgotten(state: &mut State, all: PageRange) {
    if is_any() {
        state.update(all, |_, a| policy::doubted(a));
    }
}

/// The first stretch of memory without access from `from` on that may be locked, by nobody but us:
/// all of it.
pub fn next_run(state: &State, from: u64) -> Option<PageRange> {
    let mut at = from;
    let first = loop {
        let e = state.ledger.next_from(at)?;
        if may_have_our_lock(e.attr) {
            break e.range;
        }
        at = e.range.end();
    };
    let (mut start, mut end) = (first.start(), first.end());
    while let Some(e) = state.ledger.get(start.wrapping_sub(PAGE)) {
        if !may_have_our_lock(e.attr) {
            break;
        }
        start = e.range.start();
    }
    while let Some(e) = state.ledger.get(end) {
        if !may_have_our_lock(e.attr) {
            break;
        }
        end = e.range.end();
    }
    PageRange::new(start, end)
}

/// Whether memory without access that says `attr` is to be locked, as it says.
pub fn is_wanted(state: &State, attr: Attr) -> bool {
    may_be_locked(attr) && is_on(state)
}

/// Whether memory that says `attr` keeps its lock when nobody can access it any longer.
#[inline]
pub fn keeps(state: &State, attr: Attr) -> bool {
    policy::is_reserve(attr) && is_on(state)
}

/// What changing what `range` can be accessed for finds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// All of it is locked as it is to be, before and after.
    Ready,
    /// Some of it is to be pinned afterwards.
    Pins,
    /// Some of it may be pinned, and is not to be when nobody can access it.
    LetsGo,
}

/// What making `range` accessible as `prot` says finds.
#[inline]
pub fn change(state: &State, range: PageRange, prot: u64) -> Change {
    let closes = prot & 7 == 0;
    let on = is_on(state);
    let mut found = Change::Ready;
    state.ledger.for_each(range, |_, entry| {
        let attr = entry.attr;
        let reserve = on && policy::is_reserve(attr);
        let ready = match (attr.prot.is_none(), closes) {
            (true, true) => attr.pin != Column::TO_LOCK_NO_ACCESS,
            (false, true) => reserve && attr.pin.held(),
            (_, false) => reserve && policy::has_our_lock(attr),
        };
        if !ready {
            found = Change::Pins;
        }
        if closes && !reserve && !attr.prot.is_none() {
            found = Change::LetsGo;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    found
}
