//! What a call has taken out of the ledger, for the case that it fails.

use super::aside::{AsideRoom, Part};
use super::settling::settle;
use super::state::State;
use super::{lock, resync};
use crate::base::{claims::Claim, settings};
use crate::ledger::Entry;
use crate::policy;
use crate::registrar::pin::PinSet;
use crate::share;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use regall_directory::addr::PageRange;
use regall_directory::vocab::{Attr, Flags, Kind};

/// How often mlockall(2) and munlockall(2) have changed the locks of everything that is mapped,
/// times 4, and in the lower bits what the last of them has left ([`LOCKED`], [`LAZY`]).
static ALL_CHANGED: AtomicU64 = AtomicU64::new(0);
const LOCKED: u64 = 1;
const LAZY: u64 = 2;

/// Calls that have unlocked everything and are not yet through with locking it again.
static LOCKING: AtomicU32 = AtomicU32::new(0);

/// Everything is being locked again from here on, until [`all_are_locked`].
pub fn lock_all_again() {
    LOCKING.fetch_add(1, AcqRel);
}

/// The change of all locks is done.
pub fn all_are_locked() {
    let _ = LOCKING.fetch_update(AcqRel, Relaxed, |n| n.checked_sub(1));
}

/// A child of fork has none of its parent's calls.
pub fn child() {
    LOCKING.store(0, Relaxed);
}

/// The kernel has changed all locks: everything has `locks` of the application's now. What other
/// calls have taken out of the ledger is put right when they put it back. Called with the lock
/// held that the ledger is gone through with.
pub fn all_locks_changed(locks: Flags) {
    let locked = locks.has(Flags::APP_LOCKED);
    let lazy = locks.has(Flags::APP_ONFAULT);
    let low = if locked { LOCKED } else { 0 } | if lazy { LAZY } else { 0 };
    let next = |old: u64| Some((old | 3).wrapping_add(1) | low);
    let _ = ALL_CHANGED.fetch_update(AcqRel, Acquire, next);
}

/// Parts that are remembered here for the case that the call fails; the others are set aside.
pub const REMEMBERED: usize = 8;

/// What was taken out of the ledger.
pub struct Taken {
    parts: [Option<Part>; REMEMBERED],
    count: usize,
    /// Bytes of all parts.
    bytes: u64,
    /// Flags that any of them had, remembered or not.
    flags: Flags,
    /// The application's locks that each of them had.
    locks: Flags,
    /// Of those that are set aside ([`super::aside`]).
    rest: Option<Claim>,
    /// [`ALL_CHANGED`] when the first of them was taken.
    since: u64,
    /// Of files behind it.
    pub files: share::Left,
}

impl Default for Taken {
    fn default() -> Self {
        Self::new()
    }
}

impl Taken {
    /// Nothing is taken out.
    pub const fn new() -> Self {
        Self {
            parts: [None; REMEMBERED],
            count: 0,
            bytes: 0,
            flags: Flags::EMPTY,
            locks: Flags::APP_LOCKS,
            rest: None,
            since: 0,
            files: share::Left::new(),
        }
    }

    /// Takes `range` out of the ledger.
    #[inline]
    pub fn take(&mut self, state: &mut State, range: PageRange) {
        if share::any() {
            self.files.take(&mut state.shared, range);
        }
        if self.count == 0 {
            self.since = ALL_CHANGED.load(Acquire);
        }
        state.take_apart(range, |room, part, entry| {
            if !self.add(part, entry) {
                self.set_aside(room, range, part, entry);
            }
        });
        state.is_gone(range);
        if self.has_more() {
            state.adopt_own_memory();
        }
    }

    /// Adds a part. Whether there was a place for it.
    #[inline]
    pub fn add(&mut self, range: PageRange, entry: &Entry) -> bool {
        let place = self.parts.get_mut(self.count);
        let there = place.is_some();
        if let Some(place) = place {
            *place = Some((range, entry.attr, entry.origin));
        }
        self.count += 1;
        self.bytes += range.len();
        self.flags = self.flags.with(entry.attr.flags);
        self.locks = locks_of(self.locks.bits() & entry.attr.flags.bits());
        there
    }

    /// A part of `all` that there was no place for.
    #[cold]
    #[inline(never)]
    pub fn set_aside(
        &mut self,
        aside: &mut AsideRoom,
        all: PageRange,
        part: PageRange,
        entry: &Entry,
    ) {
        if self.rest.is_none() {
            self.rest = all.after(part.start()).map(|rest| aside.begin(rest));
        }
        let _ = aside.put((part, entry.attr, entry.origin));
    }

    /// Whether some parts are set aside.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.rest.is_some()
    }

    /// `part` with the locks that it has now. Called with the lock held, to enter it.
    fn up_to_date(&self, part: Part) -> Part {
        let now = ALL_CHANGED.load(Acquire);
        let (range, attr, origin) = part;
        if now == self.since {
            return match LOCKING.load(Acquire) {
                0 => part,
                // It may have come from where it was still to be locked.
                _ => (range, policy::unsettled(attr), origin),
            };
        }
        let mut flags = attr.flags.without(Flags::APP_LOCKS);
        for (bit, flag) in [(LOCKED, Flags::APP_LOCKED), (LAZY, Flags::APP_ONFAULT)] {
            if now & bit != 0 {
                flags = flags.with(flag);
            }
        }
        (range, policy::unsettled(Attr { flags, ..attr }), origin)
    }

    /// The first part that ends above `addr`.
    pub fn next(&self, state: &mut State, addr: u64) -> Option<Part> {
        self.next_taken(state, addr)
            .map(|part| self.up_to_date(part))
    }

    fn next_taken(&self, state: &mut State, addr: u64) -> Option<Part> {
        let here = self.parts.iter().flatten().copied();
        let mut here = here.filter(|(range, ..)| range.end() > addr);
        here.next().or_else(|| {
            let rest = self.rest?;
            state.aside().next(rest, addr)
        })
    }

    /// Whether each of the parts is known: there was memory for them.
    pub fn is_known(&self, state: &mut State) -> bool {
        if self.rest.is_none() {
            return self.count <= REMEMBERED;
        }
        let (mut bytes, mut from) = (0, 0);
        while let Some((range, ..)) = self.next(state, from) {
            bytes += range.len();
            from = range.end();
        }
        bytes == self.bytes
    }

    /// The last part, if it is known.
    pub fn last_part(&self, state: &mut State) -> Option<Part> {
        let last = match self.rest {
            Some(rest) => state.aside().last(rest),
            None => *self.parts.get(self.count.checked_sub(1)?)?,
        };
        last.map(|part| self.up_to_date(part))
    }

    /// Whether it was not all of `range`.
    pub fn has_holes(&self, range: PageRange) -> bool {
        self.bytes < range.len()
    }

    /// Whether the application had locked any of it.
    pub fn is_app_locked(&self) -> bool {
        self.flags.has(Flags::APP_LOCKED)
    }

    /// The application's locks that all of it had.
    pub fn locks(&self) -> Flags {
        self.locks
    }

    /// Whether the application has locked some of it in another way than the rest: then it is
    /// more than one mapping of the kernel's, but for our pins, which may make one of them.
    pub fn is_divided_by_locks(&self) -> bool {
        self.count != 0 && self.locks != locks_of(self.flags.bits())
    }

    /// Whether it may be one mapping of the kernel's without our pins: all of `range`, of one
    /// protection, and all private anonymous memory or of one kind. (MAP_STACK is nothing to
    /// the kernel before Linux 6.7.)
    pub fn may_be_one(&self, range: Option<PageRange>) -> bool {
        let Some(range) = range.filter(|_| !self.has_more()) else {
            return true;
        };
        let mut end = range.start();
        let mut same = None;
        for (part, attr, _) in self.parts.iter().flatten() {
            let file = matches!(attr.kind, Kind::File | Kind::Shm | Kind::Huge);
            let own = !attr.prot.shared() && (!file || attr.flags.has(Flags::BACKED));
            let kind = (!own).then_some(attr.kind);
            let locks = locks_of(attr.flags.bits());
            let told = (kind, attr.prot.bits() & 7, attr.prot.shared(), locks);
            if part.start() != end || *same.get_or_insert(told) != told {
                return false;
            }
            end = part.end();
        }
        end == range.end()
    }

    /// Lets go of our pins on what was taken; says whether there were any.
    pub fn unpin(&mut self) -> bool {
        let mut any = false;
        for (range, attr, _) in self.parts.iter_mut().flatten() {
            if is_ours(*attr) {
                any = true;
                *attr = policy::unsettled(*attr);
                let _ = PinSet.deregister(*range);
            }
        }
        self.unpin_rest() || any
    }

    #[cold]
    fn unpin_rest(&self) -> bool {
        let (mut any, mut from) = (false, 0);
        while let Some(rest) = self.rest {
            let Some(mut guard) = lock() else {
                return any;
            };
            let Some((part, attr, origin)) = guard.aside().next(rest, from) else {
                return any;
            };
            from = part.end();
            if is_ours(attr) {
                any = true;
                guard.aside().put((part, policy::unsettled(attr), origin));
                guard.adopt_own_memory();
                drop(guard);
                let _ = PinSet.deregister(part);
            }
        }
        any
    }

    /// Whether there may have been code.
    pub fn has_code(&self) -> bool {
        let mut parts = self.parts.iter().flatten();
        self.count > REMEMBERED || parts.any(|(_, a, _)| a.prot.executable())
    }

    /// Whether any of it was a mapping that grows without a call.
    pub fn grows(&self) -> bool {
        self.flags.has(Flags::GROWABLE)
    }

    /// Puts everything back.
    pub fn restore(&self, state: &mut State) {
        self.files.restore(&mut state.shared);
        let mut from = 0;
        while let Some((range, attr, origin)) = self.next(state, from) {
            from = range.end();
            state.ready();
            state.insert_part(range, policy::unregistered(attr), Some(origin));
        }
        if let Some(rest) = self.rest {
            state.forget_aside(rest);
        }
    }

    /// The call has been made.
    #[inline]
    pub fn done(&mut self) {
        self.files
            .done(|claim| lock().and_then(|mut guard| guard.shared.next_aside(claim)));
        self.forget();
    }

    /// What it was need not be known any more.
    #[inline]
    pub fn forget(&mut self) {
        if let Some(rest) = self.rest.take() {
            if let Some(mut guard) = lock() {
                guard.forget_aside(rest);
            }
        }
    }
}

/// The application's locks among these flags.
const fn locks_of(bits: u16) -> Flags {
    Flags::from_bits(bits & Flags::APP_LOCKS.bits())
}

/// Whether it is pinned, and nobody but us has asked for that.
fn is_ours(attr: Attr) -> bool {
    policy::may_be_locked(attr, settings::config().pin) && !attr.flags.has(Flags::APP_LOCKED)
}

/// As [`put_back`], where the kernel has changed nothing: what was taken is what is there. It
/// costs no more than the parts do, however many mappings there are elsewhere.
#[cold]
#[inline(never)]
pub fn put_back_unchanged(range: PageRange, taken: &Taken) {
    let restored = lock().is_some_and(|mut guard| {
        let known = taken.is_known(&mut guard);
        if known {
            taken.restore(&mut guard);
        }
        known
    });
    match restored {
        true => settle(range),
        false => put_back(range, taken),
    }
}

/// A call that was to take `range` away failed, and may have changed a part of it before.
#[cold]
#[inline(never)]
pub fn put_back(range: PageRange, taken: &Taken) {
    if let Some(mut guard) = lock() {
        taken.restore(&mut guard);
    }
    resync::range(range, false); // and pins what is not
}
