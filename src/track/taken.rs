//! What a call has taken out of the ledger, for the case that it fails.

use super::aside::{AsideRoom, Part};
use super::overtaken::settle_again;
use super::reading::read;
use super::state::State;
use super::turns::wait_for_locks;
use super::work::{self, Finished};
use super::{flight, lock, program_locks, resync};
use crate::base::claims::Claim;
use crate::base::maps::each_mapping;
use crate::ledger::Entry;
use crate::policy;
use crate::registrar::pin;
use crate::share;
use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::{Attr, Flags, Kind};

/// A part of a System V segment may be attached whose beginning is not: another call than shmdt(2) has
/// taken some away.
static SEGMENTS_DIVIDED: AtomicBool = AtomicBool::new(false);

/// Memory is taken away that nobody has looked at.
pub fn may_divide_segments() {
    SEGMENTS_DIVIDED.store(true, Relaxed);
}

/// Returns whether a part of a System V segment may be attached whose beginning is not.
pub fn are_segments_divided() -> bool {
    SEGMENTS_DIVIDED.load(Relaxed)
}

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
    /// Of those that are set aside ([`super::aside`]).
    rest: Option<Claim>,
    /// How many locks had been missed when the first of them was taken ([`super::missed_locks`]).
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
            self.since = state.missed_locks.count();
        }
        state.take_apart(range, |room, part, entry| {
            if entry.attr.kind == Kind::Shm {
                may_divide_segments();
            }
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

    /// `part`, as far as its locks are the same all over, with those that it has now. Called with the lock held,
    /// to enter it.
    fn up_to_date(&self, state: &State, (range, attr, origin): Part) -> Part {
        let (part, locks) = state.missed_locks.of(range, self.since);
        let mut now = attr;
        if let Some(locks) = locks {
            now.flags = now.flags.without(Flags::APP_LOCKS).with(locks);
        }
        // (It may have come from where it was still to be locked.)
        let settled = locks.is_none() && LOCKING.load(Acquire) == 0;
        let now = match settled {
            true => now,
            false => policy::unsettled(now, pin::holding()),
        };
        (part, now, origin)
    }

    /// The first part that ends above `addr`, from there on.
    pub fn next(&self, state: &mut State, addr: u64) -> Option<Part> {
        let (range, attr, origin) = self.next_taken(state, addr)?;
        let part = (range.after(addr)?, attr, origin);
        Some(self.up_to_date(state, part))
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

    /// The last page, if it is known.
    pub fn last_page(&self, state: &mut State) -> Option<Part> {
        let last = match self.rest {
            Some(rest) => state.aside().last(rest),
            None => *self.parts.get(self.count.checked_sub(1)?)?,
        };
        let (range, attr, origin) = last?;
        let part = (range.after(range.end() - PAGE)?, attr, origin);
        Some(self.up_to_date(state, part))
    }

    /// Whether it was not all of `range`.
    pub fn has_holes(&self, range: PageRange) -> bool {
        self.bytes < range.len()
    }

    /// Whether the application had locked any of it.
    pub fn is_app_locked(&self) -> bool {
        self.flags.has(Flags::APP_LOCKED)
    }

    /// The application's locks that any of it had.
    pub fn locks_of_any(&self) -> Flags {
        Flags::from_bits(self.flags.bits() & Flags::APP_LOCKS.bits())
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

    /// What was moved has come to `range`, and was locked there before it was entered.
    pub fn set_missed_locks(&self, state: &mut State, range: PageRange) {
        let mut rest = Some(range);
        while let Some(range) = rest {
            let (part, locks) = state.missed_locks.of(range, self.since);
            if let Some(locks) = locks {
                state.set_locks(part, locks);
            }
            rest = range.after(part.end());
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

/// A call that was to take `range` away failed, and may have changed a part of it before: what the
/// kernel shows of it, and of the rest what it was.
#[cold]
#[inline(never)]
pub fn put_back(range: PageRange, taken: &Taken) {
    put_all_back(&[(Some(range), taken)], None);
}

/// As [`put_back`], of all that the call was about: what has not yet been put back would be read from
/// the kernel as memory that nobody knows. `locks`: none of our pins was there, and the kernel may have moved
/// some of several mappings; what is locked the application has locked so.
#[cold]
#[inline(never)]
pub fn put_all_back(all: &[(Option<PageRange>, &Taken)], locks: Option<Flags>) {
    if let Some(mut guard) = lock() {
        all.iter().for_each(|(_, taken)| taken.restore(&mut guard));
    }
    let ranges = || all.iter().filter_map(|(range, _)| *range);
    if let Some(locks) = locks {
        for range in ranges() {
            if let Some(mut guard) = lock() {
                let _ = read(&mut guard, range, Flags::EMPTY);
            }
            find_locks(range, locks);
        }
    }
    for range in ranges() {
        resync::range(range, false); // and pins what is not
    }
}

/// What is locked of `range`, where none of our pins is, the application has locked, as `locks` says: the
/// kernel is asked of each of its mappings. (One of the ledger's may be several of them.) Who is locking memory
/// there is waited for, once; who comes meanwhile waits.
#[cold]
#[inline(never)]
pub fn find_locks(range: PageRange, locks: Flags) {
    if locks != Flags::EMPTY {
        program_locks::note(range);
    }
    wait_for_locks(range);
    let mut rest = Some(range);
    while let (Some(range), Some(mut guard)) = (rest, lock()) {
        if flight::is_being_locked(&guard, range) {
            // It was waited for in vain: what it has locked is not known, and locked as it was.
            guard.update(range, |_, a| match a.flags.has(Flags::APP_LOCKED) {
                true => policy::unsettled(a, pin::holding()),
                false => a,
            });
            return;
        }
        let (begun, ()) = work::begin(guard, range, |_| ());
        match begun.run(|| first_locked(range)).finish() {
            Finished::Alone(mut guard, found, mark) => {
                if let Some((part, is)) = found {
                    guard.update(part, |_, a| found_locked(a, is, locks));
                }
                drop(guard);
                mark.end();
                rest = found.and_then(|(part, _)| range.after(part.end()));
            }
            Finished::Overtaken(guard, _, mark) => {
                settle_again(guard, range);
                mark.end();
                return;
            }
            Finished::Unlocked(_, mark) => return mark.end(),
        }
    }
}

/// Returns the kernel's first mapping in `range`, and whether it is locked.
fn first_locked(range: PageRange) -> Option<(PageRange, Option<bool>)> {
    let mut found = None;
    each_mapping(range, |part| {
        found = Some((part, sys::is_locked(part.start())));
        false
    });
    found
}

/// `a` with the application's locks as the kernel says.
fn found_locked(a: Attr, is: Option<bool>, locks: Flags) -> Attr {
    let with = |flags: Flags| Attr { flags, ..a };
    match is {
        // The kernel locks no huge pages, and says yes.
        _ if a.kind == Kind::Huge => a,
        // (Page cache that it has locked is held by that.)
        Some(true) if !a.flags.has(Flags::APP_LOCKED) => {
            policy::described(with(a.flags.with(locks)), pin::holding())
        }
        // Nor have we: what is to be locked by us is locked at the end of the call.
        Some(false) if a.flags.has(Flags::APP_LOCKED) => {
            policy::unsettled(with(a.flags.without(Flags::APP_LOCKS)), pin::holding())
        }
        _ => a,
    }
}
