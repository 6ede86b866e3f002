//! Letting go of locked page cache when not everything that is mapped fits any more
//! ([`super::fitting`]).

use super::budget::reckon;
use super::fitting::{is_due, is_ours, set_due};
use super::unpinning::let_go_of;
use super::{flight, lock, USER_END};
use crate::base::counters;
use crate::limits;
use crate::sys::time;
use crate::thread;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, Counter};
use regall_directory::vocab::{Attr, Column, Flags, Reason};

/// Nanoseconds between two looks at what others have, at the least.
const INTERVAL: u64 = 250_000_000;

/// Less page cache than this is not worth a look: a small program in a sandbox opens no files
/// that it has not opened without the shim.
const MUCH: u64 = 16 << 20;

/// When that was done last.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// Looks now and then whether others have taken the room in which page cache is locked. To be
/// called every few hundred events, when nothing is in progress.
#[cold]
#[inline(never)]
pub fn revisit() {
    if !limits::is_shared() {
        return;
    }
    let (now, last) = (time::now(), LOOKED.load(Relaxed));
    let due = now.saturating_sub(last) >= INTERVAL;
    if !due
        || LOOKED
            .compare_exchange(last, now, Relaxed, Relaxed)
            .is_err()
    {
        return;
    }
    if lock().is_some_and(|g| g.cache_to_give() >= MUCH) {
        set_due(true);
        keep();
    }
}

/// Lets go of page cache if not everything fits any more. To be called at the end of a call.
#[inline]
pub fn keep() {
    if is_due() && thread::current().flights[0].get() == 0 {
        keep_slowly();
    }
}

#[cold]
#[inline(never)]
fn keep_slowly() {
    set_due(false);
    reckon();
    let Some(over) = lock().map(|g| !g.fits()) else {
        return set_due(true);
    };
    if !over {
        return;
    }
    let (flight, _) = flight::begin(Call::Mmap);
    let_go_of_cache();
    drop(flight);
}

fn let_go_of_cache() {
    let Some(all) = PageRange::new(0, USER_END) else {
        return;
    };
    let mut busy = false;
    let any = let_go_of(all, |guard, part, attr| {
        let cache = attr.flags.has(Flags::CACHE);
        let others = cache && flight::in_the_way(guard, part, true);
        busy |= others;
        (cache && !others).then_some(part)
    });
    if any {
        counters::count(Counter::PinLimited);
    }
    let Some(mut guard) = lock() else {
        return set_due(true);
    };
    guard.update(all, |_, a| match a.pin.reason {
        Reason::Off if is_ours(a) => Attr {
            pin: Column::no(Reason::Limit),
            ..a
        },
        _ => a,
    });
    let kept = match busy {
        true => 0,
        false => guard.ledger.totals().cache,
    };
    guard.fitting.keep(kept);
    // What another call is about goes at the end of that one.
    set_due(busy);
}
