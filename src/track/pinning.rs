//! Carrying out what the ledger says is to be pinned, and letting go of it when
//! a call needs unlocked memory. The kernel works without the lock being held, so
//! whoever pins or unpins says so in its flight, and others wait ([`super::turns`]).

use super::overtaken::{finish_at, overtaken};
use super::real::spent;
use super::turns::{lock_for, postpone, stand_clear, Whose};
use super::work::{self, Finished};
use super::{budget, flight, growing, lock, lock::Guard, notes, owed, progress, reading, State};
use crate::arch;
use crate::base::counters;
use crate::limits;
use crate::policy::{self, Holding, Want};
use crate::registrar::pin::{self, PinSet};
use crate::sys::{self, Errno, Result};
use core::ops::ControlFlow;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::Counter;
use regall_directory::vocab::{Attr, Column, Flags, Kind, Reason};

/// The first part of `range` that is to be pinned and is not, and how.
///
/// With `whole`, all of the entry it is of: another call may be about to pin
/// that, and what is populated in two goes stays two mappings to the kernel.
fn next_to_pin(
    state: &State,
    range: PageRange,
    holding: Holding,
    whole: bool,
) -> Option<(PageRange, Attr, Want)> {
    let mut found = None;
    state.ledger.for_each(range, |part, entry| {
        let late = || entry.attr.pin.reason == Reason::Kept;
        if !policy::is_pending(entry.attr) && !late() {
            return ControlFlow::Continue(());
        }
        // The limit matters for growing stacks only: elsewhere the kernel says so.
        let grows = entry.attr.flags.has(Flags::GROWSDOWN);
        let binds = grows && growing::stay_unlocked();
        match policy::wanted(entry.attr, holding, binds) {
            Want::Leave(column) if column == entry.attr.pin => ControlFlow::Continue(()),
            want => {
                let part = match whole {
                    true => entry.range,
                    false => policy::with_rest(entry.attr, part, entry.range),
                };
                found = Some((part, entry.attr, want));
                ControlFlow::Break(())
            }
        }
    });
    found
}

/// Pins everything in `range` that is to be pinned and is not.
pub fn pin(range: PageRange, whose: Whose) {
    if !pin::locks() {
        return;
    }
    let whole = whose != Whose::Own;
    let mut looked = !limits::is_shared();
    let mut over = false;
    let mut clear = stand_clear(range, whose);
    // Each round settles one part; a racing call may put parts back, so the
    // number of rounds is bounded only by what the application maps.
    while !clear.is_done() {
        let Some(mut guard) = lock() else {
            return notes::later(clear.rest());
        };
        owed::give_back(&mut guard);
        let holding = pin::holding();
        let Some((part, attr, want)) = next_to_pin(&guard, clear.rest(), holding, whole) else {
            break;
        };
        // What lies before it is done: not to be gone through again for each part.
        clear.pass(part.start());
        let Some(mut guard) = clear.of(guard, part) else {
            continue;
        };
        if !policy::is_pending(attr) {
            // Described before there was swap space.
            guard.update(part, |_, a| policy::described(a, holding));
            continue;
        }
        let column = match admit(&guard, part, want, looked) {
            Admitted::No(column) => column,
            Admitted::Stale => {
                drop(guard);
                budget::reckon();
                looked = true;
                continue;
            }
            Admitted::Beyond => {
                counters::count(Counter::PinLimited);
                over = true;
                Column::no(Reason::Limit)
            }
            Admitted::Yes => {
                let (done, beyond) = carry_out(guard, part, attr, want);
                over |= beyond;
                match done {
                    Done::Written => (),
                    Done::Overtaken => clear.pass(part.end()),
                    Done::Unlocked => return notes::later(clear.rest()),
                }
                continue;
            }
        };
        guard.update(part, |_, a| Attr { pin: column, ..a });
    }
    if over {
        budget::is_exceeded();
    }
}

/// Whether a part may be pinned.
enum Admitted {
    /// As far as the budget goes.
    Yes,
    /// The part is not to be pinned.
    No(Column),
    /// The budget is to be reckoned anew first.
    Stale,
    /// The part is beyond the budget.
    Beyond,
}

/// Whether `part` may be pinned as `want` says. `looked`: the budget has just been reckoned.
#[inline]
fn admit(state: &State, part: PageRange, want: Want, looked: bool) -> Admitted {
    let after = state.pinned().saturating_add(part.len());
    match want {
        Want::Leave(column) => Admitted::No(column),
        _ if !looked && after > state.next_look => Admitted::Stale,
        _ if after > state.budget || growing::leaves_room() => Admitted::Beyond,
        _ => Admitted::Yes,
    }
}

/// How pinning a part went.
enum Done {
    /// The ledger says what came of it.
    Written,
    /// It is left for later: somebody else went on with the memory, or it is pinned with more.
    Overtaken,
    /// The lock can't be had.
    Unlocked,
}

/// Pins `part`. In the second place: whether a limit was in the way.
#[inline]
fn carry_out(guard: Guard, part: PageRange, attr: Attr, want: Want) -> (Done, bool) {
    let bytes = part.len();
    let (begun, ()) = work::begin(guard, part, |guard| guard.reserved += bytes);
    let ran = begun.run(|| {
        let populated = match want {
            Want::Populate => progress::populate(part, attr),
            _ => part.len(),
        };
        (pin_part(part, attr, want), populated)
    });
    let beyond = ran.outcome().0.is_beyond();
    match ran.finish() {
        Finished::Unlocked(_, mark) => {
            owed::reserved(bytes);
            if flight::were_we_overtaken() {
                overtaken();
                postpone(part);
            }
            mark.end();
            (Done::Unlocked, beyond)
        }
        Finished::Overtaken(mut guard, _, mark) => {
            guard.reserved = guard.reserved.saturating_sub(bytes);
            drop(guard);
            overtaken();
            mark.end();
            postpone(part);
            (Done::Overtaken, beyond)
        }
        Finished::Alone(mut guard, (outcome, populated), mark) => {
            guard.reserved = guard.reserved.saturating_sub(bytes);
            let together = matches!(outcome, Outcome::Together);
            let replaced = record(&mut guard, part, attr, want, outcome);
            if limits::is_shared() {
                budget::tell_lazy(&guard);
            }
            let held = match replaced {
                true => {
                    undo(guard, part);
                    None
                }
                false => Some(guard),
            };
            mark.end();
            drop(held);
            progress::done(part.len() - populated);
            if together {
                postpone(part);
                return (Done::Overtaken, beyond);
            }
            (Done::Written, beyond)
        }
    }
}

/// What is said to be pinned in `range` is pinned again: the kernel has let go of
/// it, or there are new pages. Never seen as unpinned meanwhile, since another
/// thread that gives advice on it must know that there is a lock in its way. Whether the kernel
/// has refused none of it.
#[must_use]
pub fn repin(range: PageRange) -> bool {
    if !pin::locks() {
        return true;
    }
    let mut from = range.start();
    let mut refused = false;
    while let Some(rest) = range.after(from) {
        let mut parts = [None; 8];
        let mut n = 0;
        let Some(guard) = lock_for(&[Some(rest)]) else {
            notes::unlocked(rest);
            return true;
        };
        let (begun, ()) = work::begin(guard, rest, |guard| {
            guard.ledger.for_each(rest, |part, entry| {
                from = part.end();
                if entry.attr.pin.held() {
                    if let Some(place) = parts.get_mut(n) {
                        *place = Some((part, entry.attr));
                        n += 1;
                    }
                }
                if n == 8 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        });
        let ran = begun.run(|| {
            for (part, attr) in parts.iter().flatten() {
                refused |= !repin_part(*part, *attr);
            }
        });
        finish_at(rest, ran);
        if n < 8 {
            break;
        }
    }
    !refused
}

/// Whether it went well, or is noted; otherwise the ledger says that it is not pinned.
fn repin_part(part: PageRange, attr: Attr) -> bool {
    let lazy = attr.flags.has(Flags::ONFAULT);
    let want = if lazy { Want::OnFault } else { Want::Populate };
    if let Outcome::Held = pin_part(part, attr, want) {
        return true;
    }
    let Some(mut guard) = lock() else {
        notes::unlocked(part);
        return true;
    };
    guard.update(part, |_, a| match a == attr {
        true => policy::unsettled(a, pin::holding()),
        false => a,
    });
    false
}

/// What came of pinning a part.
enum Outcome {
    Held,
    /// Only up to this address: the file ends there.
    UpTo(u64),
    /// Not now: it is one mapping with what lies beside it, which is to be pinned, too, and there
    /// may be no more mappings.
    Together,
    No(Column),
}

impl Outcome {
    /// Whether a limit was in the way.
    fn is_beyond(&self) -> bool {
        matches!(self, Self::No(column) if column.reason == Reason::Limit)
    }
}

fn pin_part(part: PageRange, attr: Attr, want: Want) -> Outcome {
    let start = arch::ticks();
    let outcome = match lock_part(part, attr, want) {
        Ok(()) => Outcome::Held,
        Err(errno) => refused(part, attr, want, errno),
    };
    spent(Counter::PinNanos, start);
    if let Outcome::Held = outcome {
        counters::count(Counter::Pins);
        counters::add(Counter::PinnedBytesTotal, part.len());
    }
    outcome
}

/// Locks `part`. What the application has locked stays locked as it has done it: another kind of lock would make
/// it one mapping with other memory, and a second one would populate what the kernel leaves alone.
fn lock_part(part: PageRange, attr: Attr, want: Want) -> Result<()> {
    let literal = want == Want::Populate && pin::holding() == Holding::Populate;
    let theirs = match (
        attr.flags.has(Flags::APP_LOCKED),
        attr.flags.has(Flags::APP_ONFAULT),
    ) {
        (false, _) => return PinSet.register(part, want),
        (true, false) if literal => return PinSet.register(part, want),
        (true, true) if literal && !reading::knows_populate() => {
            return PinSet.register(part, want);
        }
        (true, false) => Want::Populate,
        (true, true) => Want::OnFault,
    };
    if !is_locked(part) {
        PinSet.register(part, theirs)?;
    }
    if literal {
        let written = attr.prot.writable() && !attr.prot.shared();
        let advice = match written {
            true => libc::MADV_POPULATE_WRITE,
            false => libc::MADV_POPULATE_READ,
        };
        // What can't be populated is locked as far as it is there.
        let _ = sys::advise(part.start(), part.len(), advice);
    }
    Ok(())
}

/// Returns whether the kernel has `part` locked, which is a mapping or several of the same kind.
fn is_locked(part: PageRange) -> bool {
    let ends = [part.start(), part.end() - PAGE];
    ends.iter().all(|at| sys::is_locked(*at) == Some(true))
}

fn refused(part: PageRange, attr: Attr, want: Want, errno: Errno) -> Outcome {
    if still_there(part, attr) {
        // The kernel marks the range locked before it populates it; what failed
        // half-way must not stay so, or calls like madvise fail.
        let _ = PinSet.deregister(part);
    }
    if attr.kind == Kind::File {
        if let Some(end) = pin::end_of_file(part) {
            return Outcome::UpTo(end);
        }
    }
    let limited = pin::is_limit(errno) && limits::memlock_now().is_some();
    if want == Want::Populate && !limited && PinSet.register(part, Want::OnFault).is_ok() {
        // The kernel will lock it but can't populate it (a write-protected
        // page, a guard, a userfaultfd): locked as far as it is there.
        return Outcome::Held;
    }
    if errno == Errno::NOMEM && !limited && is_part_of_pending(part) {
        return Outcome::Together;
    }
    counters::count(Counter::PinRefused);
    if limited {
        return Outcome::No(Column::no(Reason::Limit));
    }
    log::info!("mlock of {part:?} refused: {errno}");
    Outcome::No(Column::refused(errno.byte()))
}

/// Whether `part` is to be pinned, and more of the same beside it.
#[cold]
fn is_part_of_pending(part: PageRange) -> bool {
    lock().is_some_and(|guard| {
        let own = guard.ledger.get(part.start());
        own.is_some_and(|e| e.range.end() >= part.end() && e.range != part)
    })
}

/// Whether the ledger still says `attr` of all of `part`, which nobody locked but us.
fn still_there(part: PageRange, attr: Attr) -> bool {
    let mut bytes = 0;
    if let Some(guard) = lock() {
        guard.ledger.for_each(part, |piece, entry| {
            bytes += if entry.attr == attr { piece.len() } else { 0 };
            ControlFlow::Continue(())
        });
    }
    bytes == part.len() && !attr.flags.has(Flags::APP_LOCKED)
}

/// Writes down what came of pinning `part`. Says whether something of it is no
/// longer what it was: a racing call has replaced it, and what the kernel locked
/// is somebody else's.
fn record(state: &mut State, part: PageRange, attr: Attr, want: Want, outcome: Outcome) -> bool {
    let locked = matches!(outcome, Outcome::Held);
    let stays = !locked || growing::may_stay(attr);
    let lazy = want == Want::OnFault;
    let written = |a: Attr| {
        let (pin, flags) = match outcome {
            Outcome::Held if !stays => (Column::no(Reason::Limit), a.flags),
            Outcome::Held if lazy => return policy::locked(a),
            Outcome::Held => (Column::YES, a.flags.without(Flags::ONFAULT)),
            Outcome::No(column) => (column, a.flags),
            Outcome::UpTo(_) => {
                let flags = a.flags.with(Flags::TAIL);
                return policy::described(Attr { flags, ..a }, Holding::Populate);
            }
            Outcome::Together => return a,
        };
        Attr { pin, flags, ..a }
    };
    let concerned = match outcome {
        Outcome::UpTo(end) => part.after(end),
        _ => Some(part),
    };
    let mut known = 0;
    if let Some(range) = concerned {
        state.update(range, |piece, a| {
            let same = a.kind == attr.kind && policy::is_pending(a);
            known += if same || a.pin.held() { piece.len() } else { 0 };
            if same {
                written(a)
            } else {
                a
            }
        });
    }
    !stays || locked && known < part.len()
}

/// Lets go of what of `part` the ledger says is not to be pinned: a lock that
/// nobody knows of would split the application's mapping for the kernel. What the
/// ledger does not know, or another call is about, may not be done yet. Called
/// while the flight says that `part` is being pinned.
#[cold]
fn undo(guard: Guard, part: PageRange) {
    let mut others = [None; 8];
    let mut places = others.iter_mut();
    guard.ledger.for_each(part, |piece, entry| {
        // What is still to be pinned will be, by whom it belongs to.
        let settled = !entry.attr.pin.held() && !policy::is_pending(entry.attr);
        let ours = settled && !entry.attr.flags.has(Flags::APP_LOCKED);
        if ours && !flight::in_the_way(&guard, piece, true) {
            if let Some(place) = places.next() {
                *place = Some(piece);
            }
        }
        ControlFlow::Continue(())
    });
    drop(guard);
    for range in others.iter().flatten() {
        let _ = PinSet.deregister(*range);
    }
}
