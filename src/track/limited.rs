//! Calls from which on RLIMIT_MEMLOCK may bind: our locks on mappings that grow downwards go
//! before them ([`growing`]), and come back behind them if it does not.

use super::settling::settle_postponed;
use super::turns::postpone;
use super::unpinning::let_go;
use super::{flight, growing, lock, State, USER_END};
use crate::base::maps::mapping_at;
use crate::limits;
use crate::registrar::pin::PinSet;
use crate::sys;
use core::ops::ControlFlow;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::vocab::Flags;

/// Mappings that are looked at in one go.
const MANY: usize = 8;

/// A mapping may grow while it is unlocked: so often the kernel is asked where it begins.
const LOOKS: u32 = 4;

/// Makes a call after which RLIMIT_MEMLOCK may bind this thread.
#[inline]
pub fn around(make: impl FnOnce() -> i64) -> i64 {
    if !growing::change_begins() {
        let value = make();
        growing::change_ends();
        if sys::is_memory_owner() {
            limits::memlock_now(); // for [`limits::bound`]
        }
        return value;
    }
    unlock();
    let value = make();
    // A child of vfork changes its own rights. Its parent's stack is locked again by what its
    // parent does next.
    let ours = sys::is_memory_owner();
    if ours && limits::memlock_now().is_some() {
        growing::note_bound();
    } else {
        growing::note_locked(true);
    }
    growing::change_ends();
    if ours {
        settle_postponed();
    }
    value
}

/// Lets go of all of our locks on mappings that grow downwards.
#[cold]
#[inline(never)]
fn unlock() {
    growing::note_locked(false);
    let (flight, _) = flight::begin(Call::Credentials);
    loop {
        let mut found = [None; MANY];
        let Some(guard) = lock() else {
            // In a handler on top of the lock's holder.
            growing::note_locked(true);
            break;
        };
        let count = locked(&guard, &mut found);
        drop(guard);
        for range in found.iter().flatten() {
            unlock_grown(*range);
            let_go(*range);
            postpone(*range);
        }
        if count < MANY {
            break;
        }
    }
    drop(flight);
}

/// Mappings that grow downwards and that we have locked; how many there were places for.
fn locked(state: &State, places: &mut [Option<PageRange>; MANY]) -> usize {
    let (mut places, mut count) = (places.iter_mut(), 0);
    let Some(all) = PageRange::new(0, USER_END) else {
        return 0;
    };
    state.ledger.for_each(all, |part, entry| {
        let attr = entry.attr;
        let ours = attr.pin.held() && !attr.flags.has(Flags::APP_LOCKED);
        if !ours || !attr.flags.has(Flags::GROWSDOWN) {
            return ControlFlow::Continue(());
        }
        match places.next() {
            Some(place) => {
                *place = Some(part);
                count += 1;
                ControlFlow::Continue(())
            }
            None => ControlFlow::Break(()),
        }
    });
    count
}

/// Unlocks what the mapping that `known` is the lower end of has grown by, which the ledger does
/// not know.
fn unlock_grown(known: PageRange) {
    let mut from = known.start();
    for _ in 0..LOOKS {
        let Some(grown) = mapping_at(from).and_then(|m| m.before(from + PAGE)) else {
            return;
        };
        if grown.start() < known.start() {
            let _ = PinSet.deregister(grown);
        }
        // Unlocked in part, what it has grown by meanwhile is a mapping of its own.
        from = match grown.start().checked_sub(PAGE) {
            Some(below) if lock().is_some_and(|g| g.at(below).is_none()) => below,
            _ => return,
        };
    }
}
