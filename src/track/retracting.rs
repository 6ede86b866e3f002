//! Taking regions out: before memory goes, or becomes other memory, and where what is registered
//! is not what is mapped.
//!
//! The order: what survives of a region is registered anew → published → the region leaves its
//! domain and the directory → it is deregistered, or *retired* while the application still has
//! its key → the application's call.

use super::deregistering::{deregister, Deregistrations};
use super::entering::{leave, publish, refusal, retract_slot, say};
use super::lock::Guard;
use super::registering::{active, register};
use super::turns::{in_the_way_of, lock_for, postpone};
use super::work::{self, Finished};
use super::{flight, lock, notes, owed, subscribers, State};
use crate::base::{counters, settings};
use crate::policy::{self, Registering};
use crate::registrar::hca::records::{Life, Record};
use crate::registrar::hca::regions::Node;
use crate::registrar::hca::sizes::{around_hole, next_to_hole};
use crate::registrar::hca::{numbers, Device, Domain, DomainId};
use crate::uverbs::Mr;
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;
use regall_directory::layout::Counter;
use regall_directory::vocab::{Column, Reason};

/// A region that changes each time that it was waited for is worked on all the same
/// after this many.
const TRIES: usize = 8;

/// Takes `range` out of every domain: called before memory goes, or becomes other
/// memory, by a call that is about `range` and has claimed it.
#[inline]
pub fn retract(range: PageRange) {
    if active() {
        retract_from(range, true);
    }
}

/// As [`retract`], where the addresses stay and have other pages or rights: what an
/// adapter pages on demand follows by itself.
#[inline]
pub fn refresh(range: PageRange) {
    subscribers::pages_replaced(range);
    if active() {
        retract_from(range, false);
    }
}

/// Returns whether [`refresh`] of `range` has anything to take out.
pub fn concerns(state: &State, range: PageRange) -> bool {
    let there = |d: &DomainId| touched(state, *d, range).is_some();
    let pinned = |d: DomainId| {
        state
            .hca
            .domain(d)
            .is_some_and(|x| !x.implicit && !x.on_demand())
    };
    active() && numbers().filter(there).any(pinned)
}

#[cold]
#[inline(never)]
fn retract_from(range: PageRange, on_demand: bool) {
    for d in numbers() {
        let Some(guard) = lock() else {
            return spoiled(range);
        };
        let domain = guard.hca.domain(d).filter(|d| !d.implicit);
        let concerned = domain.is_some_and(|d| on_demand || !d.on_demand());
        drop(guard);
        if !concerned {
            continue;
        }
        let mut rest = Some(range);
        while let Some(todo) = rest {
            rest = retract_one(d, todo);
        }
    }
}

/// Notes that the regions of `range` could not be taken out in time: when the lock is free, and by this
/// thread's call when that is made.
#[cold]
fn spoiled(range: PageRange) {
    notes::spoiled(range);
    flight::look_again();
}

/// A region that is to be taken out, with what is left of it on both sides.
struct Cut {
    node: Node,
    record: Record,
    device: Device,
    /// What it is to go from.
    todo: PageRange,
    /// What lies before that and behind it.
    parts: [Option<PageRange>; 2],
    /// What is left of that: it is not next to the hole. It waits until somebody asks for it, or
    /// becomes small regions when the call is done.
    left: [Option<PageRange>; 2],
    /// Which of it is registered anew: what another call is about that will see to itself.
    survivors: [Option<PageRange>; 2],
}

/// The first region of domain `d` that touches `todo`.
fn touched(state: &State, d: DomainId, todo: PageRange) -> Option<(Node, Record)> {
    let (node, record) = state.hca.next_from(d, todo.start())?;
    node.range.intersection(todo)?;
    Some((node, *record))
}

/// Takes the first region of domain `d` that touches `todo` out; what is left to do.
fn retract_one(d: DomainId, todo: PageRange) -> Option<PageRange> {
    let (guard, node, record) = wait_for_first(d, todo)?;
    flight::overtake_pins(&guard, node.range);
    let both = [
        node.range.before(todo.start()),
        node.range.after(todo.end()),
    ];
    let parts = next_to(&guard, d, &record, both);
    let [before, behind] = parts;
    let left = [
        both[0].zip(before).and_then(|(b, p)| b.before(p.start())),
        both[1].zip(behind).and_then(|(b, p)| b.after(p.end())),
    ];
    let sound = record.life != Life::Spoiled;
    let cut = Cut {
        node,
        record,
        // What is closing is emptied by who closes it.
        device: guard.hca.alive(d)?.device?,
        todo,
        parts,
        left,
        survivors: parts.map(|part| part.filter(|p| sound && !in_the_way_of(&guard, *p))),
    };
    let overtaken = carry_out(guard, d, &cut)?;
    // The other call may be one that leaves its part as it is.
    let left = |p: &Option<PageRange>| overtaken || !cut.survivors.contains(p);
    for part in parts.into_iter().filter(left).flatten() {
        postpone(part);
    }
    todo.after(node.range.end())
}

/// What of `both`, which lie before and behind a hole in a region of domain `d`, is registered anew.
fn next_to(
    state: &State,
    d: DomainId,
    record: &Record,
    both: [Option<PageRange>; 2],
) -> [Option<PageRange>; 2] {
    // On demand nothing is pinned, and how much it is costs nothing.
    if state.hca.domain(d).is_none_or(Domain::on_demand) || record.life != Life::Live {
        return both;
    }
    let mapping = |part: &PageRange| state.ledger.get(part.start()).map(|e| e.range.len());
    let len = both.iter().flatten().filter_map(mapping).max();
    next_to_hole(both, around_hole(len.unwrap_or(0)))
}

/// The lock, when nobody works on the first region that touches `todo`, and the region.
fn wait_for_first(d: DomainId, todo: PageRange) -> Option<(Guard, Node, Record)> {
    let Some(mut guard) = lock() else {
        spoiled(todo);
        return None;
    };
    let (mut node, mut record) = touched(&guard, d, todo)?;
    for _ in 0..TRIES {
        if !flight::in_the_way(&guard, node.range, false) {
            break;
        }
        drop(guard);
        let Some(free) = lock_for(&[Some(node.range)]) else {
            spoiled(todo);
            return None;
        };
        guard = free;
        (node, record) = touched(&guard, d, todo)?;
    }
    Some((guard, node, record))
}

/// Registers what survives and takes the region out. Whether somebody has gone on with its
/// memory meanwhile; `None`: it stays until the range is read anew.
fn carry_out(guard: Guard, d: DomainId, cut: &Cut) -> Option<bool> {
    let Cut { node, record, .. } = cut;
    let begun = work::begin_in(d, guard, node.range, |guard| {
        if record.life == Life::Live {
            for part in cut.survivors.iter().flatten() {
                guard.hca.charge(d, part.len());
            }
        }
    });
    let ran = begun.run(|| cut.survivors.map(|part| register_survivor(cut, part?)));
    let mut leaving = Deregistrations::new();
    let (mut guard, registered, mark, overtaken) = match ran.finish() {
        Finished::Alone(guard, registered, mark) => (guard, registered, mark, false),
        Finished::Overtaken(guard, registered, mark) => (guard, registered, mark, true),
        Finished::Unlocked(registered, mark) => {
            for keys in registered.iter().flatten().filter_map(|(_, k)| k.ok()) {
                leaving.add(cut.device.deregistration(keys.handle));
            }
            if record.life == Life::Live {
                for part in cut.survivors.iter().flatten() {
                    owed::charged(d, part.len());
                }
            }
            leaving.deregister();
            mark.end();
            spoiled(cut.todo);
            return None;
        }
    };
    let ours = |part: &PageRange| !overtaken && !in_the_way_of(&guard, *part);
    let quiet = cut.left.map(|part| part.is_some_and(|p| ours(&p)));
    let state = &mut *guard;
    let there = state.hca.next_from(d, node.range.start());
    let still = there.is_some_and(|(n, _)| n == *node);
    if still {
        replace(state, d, cut, &registered, overtaken, &mut leaving);
    } else {
        // Whoever went on meanwhile has done this, too.
        drop_survivors(state, d, cut.device, &registered, &mut leaving);
    }
    if state.hca.primary() == Some(d) {
        let gone = node.range.intersection(cut.todo);
        let parts = cut.parts.into_iter();
        let left = parts.filter(|p| !cut.survivors.contains(p));
        for range in left.chain([gone]).flatten() {
            say(state, range, Column::no(Reason::Off));
        }
    }
    if still {
        leave_alone(state, d, cut, quiet);
    }
    state.show_regions();
    drop(guard);
    leaving.deregister();
    mark.end();
    Some(overtaken)
}

/// What of `cut` is not next to the hole waits, if the domain does and `quiet` says that nobody else
/// is about it, or becomes small regions when the call is done.
fn leave_alone(state: &mut State, d: DomainId, cut: &Cut, quiet: [bool; 2]) {
    let waits = state.hca.domain(d).is_some_and(|domain| domain.waits);
    for (part, quiet) in cut.left.into_iter().zip(quiet) {
        let Some(part) = part else {
            continue;
        };
        let why = match waits && quiet {
            true => Reason::Untouched,
            false => Reason::Off,
        };
        if state.hca.primary() == Some(d) {
            say(state, part, Column::no(why));
        }
        if why == Reason::Off {
            postpone(part);
        }
    }
}

/// Registers `part` as all of the region was. Without the lock.
fn register_survivor(cut: &Cut, part: PageRange) -> Option<Survivor> {
    let keys = match cut.record.life {
        Life::Live => register(cut.device, part, cut.record.access).map_err(|e| e.byte()),
        Life::Refused(errno) => Err(errno),
        _ => return None,
    };
    Some((part, keys))
}

/// What is left of a region on one side of a hole, with its keys or why there are none.
type Survivor = (PageRange, core::result::Result<Mr, u8>);
type Survivors = [Option<Survivor>; 2];

/// Drops the survivors: they are not wanted after all.
fn drop_survivors(
    state: &mut State,
    d: DomainId,
    device: Device,
    survivors: &Survivors,
    leaving: &mut Deregistrations,
) {
    for (range, outcome) in survivors.iter().flatten() {
        if let Ok(keys) = outcome {
            leaving.add(device.deregistration(keys.handle));
            state.hca.refund(d, range.len());
        }
    }
}

/// The survivors of `cut`, with their keys or why there are none, take the region's place.
fn replace(
    state: &mut State,
    d: DomainId,
    cut: &Cut,
    survivors: &Survivors,
    overtaken: bool,
    leaving: &mut Deregistrations,
) {
    let (node, record) = (cut.node, &cut.record);
    let mut nodes = [None; 2];
    if overtaken {
        if let Some(device) = state.hca.domain(d).and_then(|x| x.device) {
            drop_survivors(state, d, device, survivors, leaving);
        }
    }
    for (place, survivor) in nodes.iter_mut().zip(survivors) {
        let Some((range, outcome)) = survivor.as_ref().filter(|_| !overtaken) else {
            continue;
        };
        let mut new = Record::new(*range, d, record.access, Life::Live);
        new.of_others = record.of_others;
        new.cut = true;
        new.growth = record.growth.cut();
        new.ahead = record.ahead_of(range.len());
        match outcome {
            Ok(keys) => new = new.with(*keys),
            Err(errno) => {
                new.life = Life::Refused(*errno);
                if record.life == Life::Live {
                    state.hca.refund(d, range.len());
                    counters::count(Counter::HcaRefused);
                    if state.hca.primary() == Some(d) {
                        say(state, *range, refusal(*errno));
                    }
                }
            }
        }
        if state.hca_ready(d) {
            *place = publish(state, d, new);
        }
    }
    if let Some(regions) = state.hca.regions_mut(d) {
        regions.split(node.range.start(), nodes);
    }
    retract_slot(state, node.record);
    if let Some(deregistration) = state.hca.retire(node.record) {
        leaving.add(deregistration);
    }
}

/// Takes out what is registered in `range` and is not mapped any more, or not as it
/// was: for changes that were not seen as they happened.
#[inline]
pub fn reconcile(range: PageRange) {
    if active() {
        reconcile_slowly(range);
    }
}

#[cold]
#[inline(never)]
fn reconcile_slowly(range: PageRange) {
    for d in numbers() {
        let mut from = range.start();
        loop {
            let Some(guard) = lock() else {
                return;
            };
            let Some((node, record)) = guard.hca.next_from(d, from) else {
                break;
            };
            if node.range.intersection(range).is_none() {
                break;
            }
            from = node.range.end();
            let (node, record) = (node, *record);
            let right = agrees(&guard, d, node.range, &record) || in_the_way_of(&guard, node.range);
            drop(guard);
            if !right {
                retract_from(node.range, true);
                postpone(node.range);
            }
        }
    }
}

/// Whether all of `range` is mapped and would be registered as `record` is.
fn agrees(state: &State, d: DomainId, range: PageRange, record: &Record) -> bool {
    let Some(domain) = state.hca.alive(d).filter(|d| !d.implicit) else {
        return true;
    };
    if record.life == Life::Spoiled {
        return false;
    }
    let (mut upto, mut same) = (range.start(), true);
    let scope = settings::config().scope_data;
    state.ledger.for_each(range, |piece, entry| {
        same &= piece.start() == upto
            && match policy::registering(entry.attr, entry.range.len(), domain.on_demand(), scope) {
                Registering::Leave(_) => false,
                Registering::With(writable) => {
                    record.life != Life::Live || domain.access_for(writable) == record.access
                }
            };
        upto = piece.end();
        if same {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    same && upto == range.end()
}

/// Takes everything out of domain `d`, which is closing.
pub fn clear(d: DomainId) {
    loop {
        let mut leaving = Deregistrations::new();
        {
            let Some(mut guard) = lock() else {
                return;
            };
            let state = &mut *guard;
            while let Some((node, _)) = state.hca.next_from(d, 0) {
                leave(state, d, node, false, &mut leaving);
                if leaving.is_full() {
                    break;
                }
            }
            state.show_regions();
        }
        if leaving.is_empty() {
            return;
        }
        leaving.deregister();
    }
}

/// Has the kernel forget what a ledger that was built anew knows nothing of any more.
pub fn deregister_forgotten() {
    while let Some(mut guard) = lock() {
        let forgotten = guard.hca.forgotten();
        drop(guard);
        match forgotten {
            Some(deregistration) => deregister(deregistration),
            None => return,
        }
    }
}
