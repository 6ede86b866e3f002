//! Making the ledger agree with the kernel's own list: when calls met on the same bytes or failed
//! half-way, and for what changes without a call.

use super::reading::{everything, read};
use super::settling::{self, settle_foreign, settle_read};
use super::{anew, flight, hiding, lock, lock::Guard, notes, registering, retracting, USER_END};
use crate::base::counters;
use core::ops::ControlFlow;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::Counter;
use regall_directory::vocab::Flags;

/// Makes the ledger agree with the kernel on `range`. With `repin`, what is
/// pinned there is pinned again: it may be other memory than it was.
#[cold]
pub fn range(range: PageRange, repin: bool) {
    let reach = match lock() {
        Some(mut guard) => read(&mut guard, range, Flags::EMPTY),
        None if repin => return notes::spoiled(range),
        None => return notes::later(range),
    };
    if repin {
        settling::repin(range);
        retracting::retract(range);
    }
    retracting::reconcile(reach);
    settle_read(reach);
}

/// As [`range`], for memory that other calls may be about at this moment: what
/// is pinned there is left to them.
#[cold]
pub fn foreign(range: PageRange) {
    let reach = match lock() {
        Some(mut guard) => read(&mut guard, range, Flags::EMPTY),
        None => return notes::later(range),
    };
    retracting::reconcile(reach);
    settle_foreign(reach);
}

/// As [`range`], for a call whose reach is not known: the whole of every
/// mapping that touches `range` or its neighbours.
#[cold]
pub fn around(range_: PageRange) {
    let slack = 64 << 20;
    let start = range_.start().saturating_sub(slack).max(PAGE);
    match PageRange::new(start, range_.end().saturating_add(slack).min(USER_END)) {
        Some(wide) => range(wide, false),
        None => audit(),
    }
}

/// Makes the ledger agree with the kernel everywhere.
#[cold]
pub fn audit() {
    if let Some(guard) = lock() {
        flight::sweep(&guard);
    }
    if registering::active() {
        retracting::deregister_forgotten();
    }
    if let Some(all) = everything() {
        if hiding::take_some() {
            republish(all);
        }
        foreign(all);
    }
}

/// Every entry that touches `range` gets a new place in the directory.
#[cold]
pub fn republish(range: PageRange) {
    let Some(mut guard) = lock() else {
        return hiding::some();
    };
    let mut from = range.start();
    loop {
        let mut found = None;
        if let Some(rest) = range.after(from) {
            guard.ledger.for_each(rest, |part, entry| {
                found = Some((part, *entry));
                ControlFlow::Break(())
            });
        }
        let Some((part, entry)) = found else {
            return;
        };
        from = part.end();
        guard.take_out(entry.range, |_, _| ());
        guard.insert_part(entry.range, entry.attr, Some(entry.origin));
        guard.ready();
    }
}

/// Nothing in the state can be trusted: begins anew, in place.
#[cold]
pub fn rebuild(guard: &mut Guard) {
    counters::count(Counter::Rebuilds);
    log::info!("the list of mappings was left incomplete and is read anew");
    anew::start_over(guard);
    if let Some(all) = everything() {
        let _ = read(guard, all, Flags::EMPTY);
        notes::later(all); // pinned again when the lock is free
    }
}
