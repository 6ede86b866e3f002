//! Calls that take memory away: out of the ledger and the directory first,
//! since another thread can be given the addresses the instant the kernel has
//! them back.

use super::aside::{AsideRoom, Part};
use super::headroom;
use super::settling::settle;
use super::subscribers;
use super::turns::lock_for;
use super::{close, deferred, failed, lock, open, real, registering, resync, seals, State};
use crate::arch::Frame;
use crate::base::claims::Claim;
use crate::base::maps::attached;
use crate::ledger::Entry;
use crate::policy;
use crate::registrar::pin::PinSet;
use crate::registrar::Registrar;
use crate::share;
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags, Kind};

/// Parts that are remembered here for the case that the call fails; the others are set aside.
const REMEMBERED: usize = 8;

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
    /// Of files behind it.
    pub files: share::Left,
}

impl Default for Taken {
    fn default() -> Self {
        Self::new()
    }
}

impl Taken {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            parts: [None; REMEMBERED],
            count: 0,
            bytes: 0,
            flags: Flags::EMPTY,
            rest: None,
            files: share::Left::new(),
        }
    }

    /// Takes `range` out of the ledger.
    #[inline]
    pub fn take(&mut self, state: &mut State, range: PageRange) {
        if share::any() {
            self.files.take(&mut state.shared, range);
        }
        state.remove_into(range, self);
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

    /// The first part that ends above `addr`.
    pub fn next(&self, state: &mut State, addr: u64) -> Option<Part> {
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
        match self.rest {
            Some(rest) => state.aside().last(rest),
            None => *self.parts.get(self.count.checked_sub(1)?)?,
        }
    }

    /// Whether the application had locked any of it.
    pub fn is_app_locked(&self) -> bool {
        self.flags.has(Flags::APP_LOCKED)
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
            let locked = attr.flags.has(Flags::APP_LOCKED);
            let told = (kind, attr.prot.bits() & 7, attr.prot.shared(), locked);
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

/// Whether it is pinned, and nobody but us has asked for that.
fn is_ours(attr: Attr) -> bool {
    attr.pin.held() && !attr.flags.has(Flags::APP_LOCKED)
}

/// munmap(2).
#[inline(never)]
pub fn munmap(frame: &mut Frame) -> i64 {
    let Some(range) = PageRange::from_call(frame.args[0], frame.args[1]) else {
        return real(frame); // EINVAL, by the kernel itself
    };
    if let Some(value) = seals::refused(Call::Munmap, frame, [Some(range), None]) {
        return value;
    }
    let flight = open(Call::Munmap);
    let mut taken = Taken::new();
    match lock_for(&[Some(range)]) {
        Some(mut guard) => {
            flight.claim(&guard, range);
            taken.take(&mut guard, range);
        }
        None => deferred::gone(range),
    }
    registering::retract(range);
    let value = headroom::retry_crowded(frame, real(frame));
    if failed(value) {
        put_back(range, &taken);
    } else {
        taken.done();
        headroom::unmapped(taken.is_app_locked());
        if has_code(&taken) {
            subscribers::code_gone(range);
        }
    }
    if taken.grows() {
        // It may have grown below what we knew, and that is still there.
        resync::around(range);
    }
    close(flight, range);
    value
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

fn has_code(taken: &Taken) -> bool {
    taken.count > REMEMBERED
        || taken
            .parts
            .iter()
            .flatten()
            .any(|(_, a, _)| a.prot.executable())
}

/// shmdt(2). The kernel detaches every piece of the segment that was attached at
/// the address, over holes, and nothing of a neighbouring one.
#[cold]
#[inline(never)]
pub fn shmdt(frame: &mut Frame) -> i64 {
    let flight = open(Call::Shmdt);
    let mut taken = Taken::new();
    let mut pieces = [None; REMEMBERED];
    let count = attached(frame.args[0], &mut pieces);
    let hull = pieces.iter().flatten().copied().reduce(|a: PageRange, b| {
        let (start, end) = (a.start().min(b.start()), a.end().max(b.end()));
        PageRange::new(start, end).unwrap_or(a)
    });
    if let (Some(hull), Some(mut guard)) = (hull, lock_for(&[hull])) {
        flight.claim(&guard, hull);
        for piece in pieces.iter().flatten() {
            guard.remove(*piece, |part, entry| {
                taken.add(part, entry);
            });
        }
    }
    for piece in pieces.iter().flatten() {
        registering::retract(*piece);
    }
    let value = real(frame);
    if count > REMEMBERED && !failed(value) {
        resync::audit();
    }
    let Some(hull) = hull else {
        return value;
    };
    if failed(value) {
        put_back(hull, &taken);
    }
    close(flight, hull);
    value
}
