//! The whole address space: for the first time, and pinned in the order in which a budget is to
//! be spent.

use super::reading::{everything, read};
use super::settling::settle;
use super::{budget, growing, lock, progress, State, USER_END};
use crate::policy;
use crate::registrar::pin;
use crate::sys::Errno;
use regall_directory::addr::PageRange;
use regall_directory::vocab::{Attr, Column, Flags, Reason};

/// The whole address space, for the first time: private writable memory is
/// pinned first, text last, so that a budget goes to what messages are sent from.
#[cold]
#[inline(never)]
pub fn first(extra: Flags) {
    let Some(all) = everything() else {
        return;
    };
    if let Some(mut guard) = lock() {
        let _ = read(&mut guard, all, extra);
        guard.adopt_own_memory();
    }
    settle_all();
}

/// Pins everything that is to be, in the order in which a budget is to be spent.
#[cold]
#[inline(never)]
pub fn settle_all() {
    budget::spend_in_order(|| {
        if let Some(mut guard) = lock() {
            let binds = growing::stay_unlocked();
            if progress::wanted() {
                let total = to_populate(&guard, binds);
                progress::begin(total);
            }
            hold_back(&mut guard, binds);
        }
        for rank in 0..3 {
            release(rank);
            if let Some(users) = PageRange::new(0, USER_END) {
                settle(users);
            }
        }
        progress::end();
    });
}

/// Bytes that are to be populated now, as far as the budget goes.
#[cold]
fn to_populate(state: &State, binds: bool) -> u64 {
    let holding = pin::holding();
    let pending = |a: Attr| {
        a.pin.reason == Reason::Off && policy::wanted(a, holding, binds) == policy::Want::Populate
    };
    let bytes = progress::sum(state, |a, _| pending(a));
    bytes.min(state.budget.saturating_sub(state.pinned()))
}

/// Marks what is to be pinned later than rank 0 as over the limit for now.
fn hold_back(state: &mut State, binds: bool) {
    let holding = pin::holding();
    if !holding.locks() {
        return;
    }
    let Some(users) = PageRange::new(0, USER_END) else {
        return;
    };
    state.update(users, |_, a| {
        let pending = a.pin.reason == Reason::Off
            && !matches!(policy::wanted(a, holding, binds), policy::Want::Leave(_));
        if pending && policy::rank(a) > 0 {
            Attr {
                pin: HELD_BACK,
                ..a
            }
        } else {
            a
        }
    });
}

/// Not a word that anybody sees: between [`hold_back`] and [`release`].
const HELD_BACK: Column = Column {
    reason: Reason::Limit,
    errno: Errno::AGAIN.0 as u8,
};

fn release(rank: u8) {
    let (Some(mut guard), Some(users)) = (lock(), PageRange::new(0, USER_END)) else {
        return;
    };
    guard.update(users, |_, a| {
        if a.pin == HELD_BACK && policy::rank(a) <= rank {
            Attr {
                pin: Column::no(Reason::Off),
                ..a
            }
        } else {
            a
        }
    });
}
