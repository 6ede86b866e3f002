//! Letting go of what is pinned, for calls that locked memory makes fail or that are charged for it.

use super::pinning::{finish_at, were_any_overtaken};
use super::turns::{lock_alone, lock_for};
use super::{flight, lock, lock::Guard, work};
use crate::base::{counters, settings};
use crate::policy;
use crate::registrar::pin::PinSet;
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;
use regall_directory::layout::Counter;
use regall_directory::vocab::{Attr, Column, Flags, Kind, Reason};

/// Pins in `range` are let go (not those that the application asked for), since
/// the call that follows fails on locked memory or is charged for it. They come
/// back with [`settle`](super::settling::settle). Says whether there was anything.
pub fn let_go(range: PageRange) -> bool {
    let_go_by(range, pinned_by_us)
}

/// All of `part` if it may be pinned, as `attr` says, and not be about to be the application's.
fn pinned_by_us(guard: &Guard, part: PageRange, attr: Attr) -> Option<PageRange> {
    let may_be = attr.pin.held()
        || policy::may_be_locked(attr, settings::config().pin)
            && !flight::is_being_locked(guard, part);
    may_be.then_some(part)
}

/// As [`let_go`], of what `which` names of each part that is pinned, with the lock held.
pub fn let_go_of(
    range: PageRange,
    mut which: impl FnMut(&Guard, PageRange, Attr) -> Option<PageRange>,
) -> bool {
    let_go_by(range, |guard, part, attr| match attr.pin.held() {
        true => which(guard, part, attr),
        false => None,
    })
}

fn let_go_by(
    range: PageRange,
    mut which: impl FnMut(&Guard, PageRange, Attr) -> Option<PageRange>,
) -> bool {
    let mut any = false;
    let mut rest = Some(range);
    while let Some(range) = rest {
        let Some(guard) = lock_for(&[Some(range)]) else {
            break;
        };
        let (begun, some) = work::begin(guard, range, |guard| {
            Handful::take(guard, range, &mut which)
        });
        finish_at(range, begun.run(|| some.unlock()));
        any |= some.many != 0;
        rest = some.rest;
    }
    any
}

/// Makes a call about `ranges`, all of which lie in `all`, with none of our pins there. Who is
/// about to pin something in `all` waits until it is made, while behind [`let_go`] it may come in
/// between. Whether somebody has not waited, and what came of the call. `None`: the lock can't be
/// had, or another thread is locking memory there for the application, whose lock may be what was
/// in the way. Then the call is not made.
#[cold]
#[inline(never)]
pub fn call_unpinned(
    all: PageRange,
    ranges: impl Iterator<Item = PageRange>,
    call: impl FnOnce() -> i64,
) -> Option<(bool, i64)> {
    let guard = lock_for(&[Some(all)])?;
    if flight::is_being_locked(&guard, all) {
        return None;
    }
    let (begun, ()) = work::begin(guard, all, |_| ());
    let ran = begun.run(|| {
        for range in ranges {
            let mut rest = Some(range);
            while let (Some(range), Some(mut guard)) = (rest, lock()) {
                // Whether the ledger knows of them or not: a lock of ours may have come late.
                let some = Handful::take(&mut guard, range, |guard, part, _| {
                    Some(part).filter(|_| !flight::is_being_locked(guard, part))
                });
                drop(guard);
                some.unlock();
                rest = some.rest;
            }
        }
        call()
    });
    Some(finish_at(all, ran))
}

/// A handful of our pins that are to go: the kernel unlocks without the lock being held.
struct Handful {
    parts: [Option<PageRange>; 8],
    many: usize,
    /// Where there may be more.
    rest: Option<PageRange>,
}

impl Handful {
    /// The first of our pins in `range`, as far as `which` names them. The ledger says that they
    /// are gone.
    fn take(
        guard: &mut Guard,
        range: PageRange,
        mut which: impl FnMut(&Guard, PageRange, Attr) -> Option<PageRange>,
    ) -> Self {
        let mut some = Self {
            parts: [None; 8],
            many: 0,
            rest: None,
        };
        guard.ledger.for_each(range, |part, entry| {
            let piece = match entry.attr.flags.has(Flags::APP_LOCKED) {
                true => None,
                false => which(guard, part, entry.attr),
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
            guard.update(*part, |_, a| match a.pin.held() {
                true => Attr {
                    pin: Column::no(Reason::Off),
                    ..a
                },
                false => a,
            });
        }
        some
    }

    fn unlock(&self) {
        for part in self.parts.iter().flatten() {
            counters::count(Counter::Unpins);
            let _ = PinSet.deregister(*part);
        }
    }
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
        let kept = a.pin.held() || a.pin.reason == Reason::Off;
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
        let Some(guard) = lock_alone(part) else {
            return;
        };
        let (begun, some) = work::begin(guard, part, |guard| {
            Handful::take(guard, part, |guard, part, attr| {
                Some(part).filter(|_| not_to_be(attr) && !flight::is_being_locked(guard, part))
            })
        });
        finish_at(part, begun.run(|| some.unlock()));
    }
}
