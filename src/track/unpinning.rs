//! Letting go of what is pinned, for calls that locked memory makes fail or that are charged for it.

use super::overtaken::{finish_at, may_be_late, were_any_overtaken};
use super::reading::read;
use super::turns::{is_some_taken, lock_alone, lock_for, postpone};
use super::{flight, flight::Flight, lock, lock::Guard, work, State};
use crate::base::counters;
use crate::ledger::Entry;
use crate::policy;
use crate::registrar::pin::{self, PinSet};
use core::ops::ControlFlow;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::Counter;
use regall_directory::vocab::{Attr, Flags, Kind};

/// Pins in `range` are let go (not those that the application asked for), since
/// the call that follows fails on locked memory or is charged for it. They come
/// back with [`settle`](super::settling::settle). Says whether there was anything.
pub fn let_go(range: PageRange) -> bool {
    let_go_by(range, pinned_by_us)
}

/// All of `part` if it may be pinned, as `attr` says, and not be about to be the application's.
fn pinned_by_us(guard: &Guard, part: PageRange, attr: Attr) -> Option<PageRange> {
    let may_be = attr.pin.held()
        || policy::may_be_locked(attr, pin::holding()) && !flight::is_being_locked(guard, part);
    may_be.then_some(part)
}

/// As [`let_go`], of what `which` names of each part that is locked, with the lock held.
pub fn let_go_of(
    range: PageRange,
    mut which: impl FnMut(&Guard, PageRange, Attr) -> Option<PageRange>,
) -> bool {
    let locked = |guard: &Guard, part, attr: Attr| match attr.pin.held() {
        true => which(guard, part, attr),
        false => None,
    };
    let_go_by(range, locked)
}

fn let_go_by(
    range: PageRange,
    mut which: impl FnMut(&Guard, PageRange, Attr) -> Option<PageRange>,
) -> bool {
    let mut any = false;
    let mut rest = lock_grown(range).map(|_| range);
    while let Some(range) = rest {
        let Some((mut guard, whole)) = lock_whole(range) else {
            break;
        };
        let some = Handful::take(&mut guard, range, whole, &mut which);
        rest = some.rest;
        if let Some(hull) = some.hull() {
            any = true;
            some.carry_out(guard, hull);
        }
    }
    any
}

/// Takes the lock when nobody is pinning or unpinning anything in `range`, nor in what is locked
/// and unlocked together with its ends. Returns all of that, too.
fn lock_whole(range: PageRange) -> Option<(Guard, PageRange)> {
    let guard = lock_for(&[Some(range)])?;
    let whole = with_rests(&guard, range);
    if whole == range {
        return Some((guard, range));
    }
    drop(guard);
    let guard = lock_for(&[Some(whole)])?;
    // What the application is locking of the rest is left alone: the kernel divides it.
    let whole = match flight::is_being_locked(&guard, whole) {
        true => range,
        false => whole,
    };
    Some((guard, whole))
}

/// As [`lock_for`], when what stacks have grown by in `range` is entered.
fn lock_grown(range: PageRange) -> Option<Guard> {
    let mut guard = lock_for(&[Some(range)])?;
    enter_grown(&mut guard, range);
    Some(guard)
}

/// Enters what mappings that grow downwards have grown by in `range`, which no call has told: the kernel has locked
/// it as they are. What is ours of that is pinned again at the end of the call.
#[inline]
pub fn enter_grown(guard: &mut Guard, range: PageRange) {
    let mut rest = Some(range);
    while let Some(part) = rest {
        let Some(entry) = guard.ledger.next_from(part.start()) else {
            return;
        };
        let (above, flags) = (entry.range, entry.attr.flags);
        rest = range.after(above.end());
        let grown = PageRange::new(part.start(), above.start().min(range.end()));
        if let (Some(grown), true) = (grown, flags.has(Flags::GROWSDOWN)) {
            postpone(read(guard, grown, flags));
        }
    }
}

/// `range` with the whole of what is at its ends, where that is not divided.
fn with_rests(state: &State, range: PageRange) -> PageRange {
    let last = range.end() - PAGE;
    [range.start(), last].into_iter().fold(range, |all, at| {
        let entry = state.ledger.get(at);
        match entry.filter(|e| policy::stays_divided(e.attr)) {
            Some(entry) => all.hull(entry.range),
            None => all,
        }
    })
}

/// Makes a call about `range` with none of our pins there. Who is about to pin something there waits
/// until it is made, while behind [`let_go`] it may come in between. What came of the call. `None`: the
/// lock can't be had, or another thread is locking memory there for the application; `Some(None)`, if
/// `patient`: another call is about to replace some of it, where our pins may be still. Then the call is
/// not made.
#[cold]
#[inline(never)]
pub fn call_unpinned(
    flight: &Flight,
    range: PageRange,
    patient: bool,
    call: impl FnOnce() -> i64,
) -> Option<Option<i64>> {
    drop(lock_grown(range)?);
    let (guard, whole) = lock_whole(range)?;
    if flight::is_being_locked(&guard, whole) {
        return None;
    }
    // What this thread is locking there itself, below a handler, does not count.
    flight::overrun(whole);
    let (begun, ()) = work::begin(guard, whole, |_| ());
    let mut announced = whole;
    let ran = begun.run(|| {
        let mut rest = Some(range);
        while let (Some(range), Some(mut guard)) = (rest, lock()) {
            let some = Handful::take(&mut guard, range, whole, |guard, part, attr| {
                // A lock of ours may have come late to what the ledger does not say it of: from
                // a call that this one has met, or that others did not wait for.
                match flight.lost_track() || may_be_late() {
                    true => Some(part).filter(|_| !flight::is_being_locked(guard, part)),
                    false => pinned_by_us(guard, part, attr),
                }
            });
            drop(guard);
            if !some.unlock() {
                let parts = some.parts.iter().flatten();
                announced = parts.fold(announced, |all, part| unlock_like(*part, all));
            }
            rest = some.rest;
        }
        let taken = patient && lock().is_some_and(|guard| is_some_taken(&guard, range));
        (!taken).then(call)
    });
    Some(finish_at(announced, ran).1)
}

/// A handful of our pins that are to go: the kernel unlocks without the lock being held.
struct Handful {
    parts: [Option<PageRange>; 8],
    many: usize,
    /// Where there may be more.
    rest: Option<PageRange>,
}

impl Handful {
    /// The first of our pins in `range`, as far as `which` names them, with what goes together with
    /// them in `whole`. The ledger says that they are gone.
    fn take(
        guard: &mut Guard,
        range: PageRange,
        whole: PageRange,
        mut which: impl FnMut(&Guard, PageRange, Attr) -> Option<PageRange>,
    ) -> Self {
        let mut some = Self {
            parts: [None; 8],
            many: 0,
            rest: None,
        };
        guard.ledger.for_each(range, |part, entry| {
            let attr = entry.attr;
            let rest = |piece| policy::with_rest(attr, piece, entry.range).intersection(whole);
            let piece = match attr.flags.has(Flags::APP_LOCKED) {
                true => None,
                false => rest(part)
                    .and_then(|part| which(guard, part, attr))
                    .and_then(rest),
            };
            if let (Some(piece), Some(place)) = (piece, some.parts.get_mut(some.many)) {
                *place = Some(piece);
                some.many += 1;
            }
            if some.many == some.parts.len() {
                some.rest = range.after(part.end());
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        for part in some.parts.iter().flatten() {
            guard.update(*part, |_, a| policy::released(a));
        }
        some
    }

    /// From the first of them to the last.
    fn hull(&self) -> Option<PageRange> {
        let parts = self.parts.iter().flatten().copied();
        parts.reduce(PageRange::hull)
    }

    /// Has the kernel unlock them: nobody else pins anything in `hull` meanwhile.
    fn carry_out(&self, guard: Guard, hull: PageRange) {
        if !self.try_to(guard, hull) {
            self.insist();
        }
    }

    fn try_to(&self, guard: Guard, hull: PageRange) -> bool {
        // What this thread is locking there itself, below a handler, does not count.
        flight::overrun(hull);
        let (begun, ()) = work::begin(guard, hull, |_| ());
        finish_at(hull, begun.run(|| self.unlock())).1
    }

    /// The kernel unlocks a part of a mapping only where there may be another mapping: the rest of
    /// it goes, too. (What a filter forbids is not tried in other ways.)
    #[cold]
    #[inline(never)]
    fn insist(&self) {
        if !pin::is_forbidden_to_undo() {
            for part in self.parts.iter().flatten() {
                let _ = unlock_around(*part);
            }
        }
    }

    /// Whether the kernel has unlocked all of them.
    fn unlock(&self) -> bool {
        let mut all = true;
        for part in self.parts.iter().flatten() {
            counters::count(Counter::Unpins);
            all &= PinSet.deregister(*part).is_ok();
        }
        all
    }
}

/// Unlocks all that is like `part` around it, and that nobody has locked but us. It is pinned again
/// at the end of the call. Whether the kernel has done it.
#[cold]
#[inline(never)]
pub fn unlock_around(part: PageRange) -> bool {
    let Some(mut guard) = lock_for(&[Some(part)]) else {
        return false;
    };
    let Some(all) = all_like(&guard, part).filter(|all| !flight::in_the_way(&guard, *all, true))
    else {
        return false;
    };
    guard.update(all, |_, a| policy::released(a));
    flight::overrun(all);
    let (begun, ()) = work::begin(guard, all, |_| ());
    let (_, done) = finish_at(all, begun.run(|| PinSet.deregister(all).is_ok()));
    postpone(all);
    done
}

/// As [`unlock_around`], for a call that has announced that it unlocks in `announced`. Returns what it
/// has announced then.
#[cold]
fn unlock_like(part: PageRange, announced: PageRange) -> PageRange {
    let Some(mut guard) = lock() else {
        return announced;
    };
    let Some(all) = all_like(&guard, part) else {
        return announced;
    };
    let sides = [all.before(announced.start()), all.after(announced.end())];
    let mut others = sides.iter().flatten();
    if others.any(|side| flight::in_the_way(&guard, *side, true)) {
        return announced;
    }
    sides.into_iter().flatten().for_each(flight::overrun);
    let announced = announced.hull(all);
    flight::pin_widens(&guard, announced);
    guard.update(all, |_, a| policy::released(a));
    drop(guard);
    let _ = PinSet.deregister(all);
    postpone(all);
    announced
}

/// `part`, and what around it can be accessed in the same way, is of the same kind, and may be
/// locked by us alone.
fn all_like(state: &State, part: PageRange) -> Option<PageRange> {
    let how = pin::holding();
    let own = state.at(part.start())?;
    if !policy::may_be_locked(own, how) || own.flags.has(Flags::APP_LOCKED) {
        return None;
    }
    let alike = |e: &Entry| {
        let same = (e.attr.prot, e.attr.kind) == (own.prot, own.kind);
        same && policy::may_be_locked(e.attr, how) && !e.attr.flags.has(Flags::APP_LOCKED)
    };
    let (mut start, mut end) = (part.start(), part.end());
    while let Some(e) = state.ledger.get(start.wrapping_sub(PAGE)).filter(alike) {
        start = e.range.start();
    }
    while let Some(e) = state.ledger.get(end).filter(alike) {
        end = e.range.end();
    }
    PageRange::new(start, end)
}

/// What has been postponed in `range` is settled. Where others had not waited, a lock of ours may
/// have come late to what is not to be pinned any more, as after mprotect to nothing.
pub fn let_go_of_late(range: PageRange) {
    if were_any_overtaken() {
        unlock_late(range);
    }
}

#[cold]
#[inline(never)]
fn unlock_late(range: PageRange) {
    let not_to_be = |a: Attr| {
        let kept = a.pin.held() || policy::is_pending(a);
        !kept && !a.flags.has(Flags::APP_LOCKED) && a.kind != Kind::Shim
    };
    let mut rest = Some(range);
    while let (Some(range), Some(guard)) = (rest, lock()) {
        let mut found = None;
        guard.ledger.for_each(range, |part, entry| {
            found = Some(part).filter(|_| not_to_be(entry.attr));
            match found {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        drop(guard);
        let Some(part) = found else {
            return;
        };
        rest = range.after(part.end());
        // Whoever is about it may be about to lock it for the application.
        let Some(mut guard) = lock_alone(part) else {
            return;
        };
        let some = Handful::take(&mut guard, part, part, |guard, part, attr| {
            Some(part).filter(|_| not_to_be(attr) && !flight::is_being_locked(guard, part))
        });
        if let Some(hull) = some.hull() {
            some.carry_out(guard, hull);
        }
    }
}
