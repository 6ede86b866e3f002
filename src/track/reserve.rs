//! Memory that is reserved first and made accessible a little at a time, as malloc's arenas are.
//!
//! A lock needs no access, and stays when there is access. So with the first part of a mapping
//! that is opened, what follows in that mapping is locked on fault, too: nothing becomes resident
//! by it, and the parts that are opened later cost no call ([`Column::LOCKED_NO_ACCESS`]).
//!
//! Only where a lock on memory without pages costs nothing: with REGALL_PIN=auto, a budget that
//! is for page cache alone, no swap that what nobody can access could be written to, and no
//! RLIMIT_MEMLOCK that binds.

use super::lock::Guard;
use super::{flight, growing, lock, State};
use crate::base::settings;
use crate::limits;
use crate::policy::{self, Want};
use crate::registrar::pin::PinSet;
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;
use regall_directory::vocab::{Attr, Column, Flags, Kind, Reason};

/// So much is locked beforehand at the most: a whole arena of malloc's.
const MOST: u64 = 64 << 20;
/// For less than this, a guard perhaps, it is not worth it.
const LEAST: u64 = 64 << 10;

/// What is to be locked together with `part`, which says `attr` and is to be pinned as `want`
/// says: what lies behind it in the same mapping and can't be accessed yet.
#[inline]
pub fn behind(guard: &Guard, part: PageRange, attr: Attr, want: Want) -> Option<PageRange> {
    let may = want == Want::OnFault && attr.kind == Kind::Anon && !attr.prot.shared();
    if !may || limits::bound() || guard.counts(attr) {
        return None;
    }
    let next = guard.ledger.get(part.end())?;
    let rest = next.range.after(part.end())?;
    if !is_reserve(next.attr) || !is_like(next.attr, attr) || rest.len() < LEAST {
        return None;
    }
    let ahead = rest.before(part.end() + MOST).unwrap_or(rest);
    let opened = guard.ledger.get(part.start())?;
    let is_same = opened.origin == next.origin;
    // Others who come later wait for what is being pinned, those who are there already do not.
    let is_free = is_same && !flight::in_the_way(guard, ahead, true);
    (is_free && !growing::stay_unlocked()).then_some(ahead)
}

/// Whether `attr` is that of memory that nobody can access and that is not locked.
fn is_reserve(attr: Attr) -> bool {
    let plain = attr.kind == Kind::Anon && !attr.prot.shared() && attr.prot.is_none();
    plain && attr.pin == Column::no(Reason::NoAccess) && !attr.flags.has(Flags::APP_LOCKED)
}

/// Whether both say the same but for how they can be accessed and whether they are pinned.
fn is_like(a: Attr, b: Attr) -> bool {
    a.flags.without(Flags::ONFAULT) == b.flags.without(Flags::ONFAULT)
}

/// `part` and what is locked together with it.
#[inline]
pub fn with(part: PageRange, ahead: Option<PageRange>) -> PageRange {
    let end = ahead.map_or(part.end(), |a| a.end());
    PageRange::new(part.start(), end).unwrap_or(part)
}

/// `ahead` has been locked. Whether some of it is no longer what it was: that is not to stay
/// locked.
#[cold]
#[inline(never)]
pub fn enter(state: &mut State, ahead: PageRange) -> bool {
    let mut known = 0;
    state.update(ahead, |piece, a| {
        if !is_reserve(a) {
            return a;
        }
        known += piece.len();
        Attr {
            pin: Column::LOCKED_NO_ACCESS,
            flags: a.flags.with(Flags::ONFAULT),
            ..a
        }
    });
    known < ahead.len()
}

/// Unlocks `part`, which says `attr`: it was locked beforehand, or may have been.
#[cold]
#[inline(never)]
pub fn release(part: PageRange, attr: Attr) {
    let _ = PinSet.deregister(part);
    if let Some(mut guard) = lock() {
        guard.update(part, |_, a| match a == attr {
            true => policy::released(a),
            false => a,
        });
    }
}

/// What making memory accessible finds.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Opens {
    /// All of it is locked already, as it is to be.
    Ready,
    /// Some of it is not.
    Unlocked,
    /// Some of it is, and is not to be any longer.
    Withdrawn,
}

/// What making `range` accessible as `prot` says finds.
#[inline]
pub fn opens(state: &State, range: PageRange, prot: u64) -> Opens {
    let mut ready = 0;
    let mut withdrawn = false;
    state.ledger.for_each(range, |part, entry| {
        let attr = entry.attr;
        if attr.pin == Column::LOCKED_NO_ACCESS {
            ready += part.len();
            withdrawn |= !may_stay(state, attr, prot);
        }
        match withdrawn {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    match ready == range.len() {
        _ if withdrawn => Opens::Withdrawn,
        true => Opens::Ready,
        false => Opens::Unlocked,
    }
}

/// Whether memory that says `attr` may stay locked when it can be accessed as `prot` says.
fn may_stay(state: &State, attr: Attr, prot: u64) -> bool {
    let open = Attr {
        prot: attr.prot.with_prot(prot),
        ..policy::released(attr)
    };
    let lazy = policy::wanted(open, settings::config().pin, false) == Want::OnFault;
    lazy && policy::has_our_lock(attr) && !state.counts(attr)
}
