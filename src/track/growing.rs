//! Mappings that grow downwards, where RLIMIT_MEMLOCK may come to bind.
//!
//! The kernel charges a locked mapping for what it grows by, and answers with SIGSEGV beyond the
//! limit (mm/mmap.c, acct_stack_growth). So our locks on such mappings go before each call from
//! which on the limit may bind, and come back behind it if it does not.

use super::pinning::{let_go, postpone, settle_postponed};
use super::{flight, lock, State, USER_END};
use crate::limits;
use crate::registrar::pin::PinSet;
use crate::registrar::Registrar;
use crate::sys;
use crate::track::resync;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags};

/// Whether a mapping that grows downwards has been locked.
static LOCKED: AtomicBool = AtomicBool::new(false);
/// Calls in progress from which on the limit may bind.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// After such a call the limit did bind its thread.
static BOUND: AtomicBool = AtomicBool::new(false);

/// Mappings that are looked at in one go.
const MANY: usize = 8;
/// A mapping may grow while it is unlocked: so often the kernel is asked where it begins.
const LOOKS: u32 = 4;

/// Whether mappings that grow downwards stay unlocked. Called with the lock held.
pub fn stay_unlocked() -> bool {
    CHANGING.load(SeqCst) != 0
        || limits::memlock().is_some()
        || BOUND.load(Relaxed) && limits::has_memlock()
}

/// Whether what has just been locked, described by `attr`, may stay so: a call that unlocks
/// may have begun since, and it sees what is written down. Called with the lock held.
#[inline]
pub fn may_stay(attr: Attr) -> bool {
    if !attr.flags.has(Flags::GROWSDOWN) {
        return true;
    }
    LOCKED.store(true, SeqCst);
    !stay_unlocked()
}

/// A child of fork has none of its parent's locks, nor of its calls.
pub fn child() {
    LOCKED.store(false, Relaxed);
    CHANGING.store(0, Relaxed);
}

/// Makes a call after which RLIMIT_MEMLOCK may bind this thread.
#[inline]
pub fn around(make: impl FnOnce() -> i64) -> i64 {
    CHANGING.fetch_add(1, SeqCst);
    if !LOCKED.load(SeqCst) {
        let value = make();
        CHANGING.fetch_sub(1, SeqCst);
        return value;
    }
    unlock();
    let value = make();
    // A child of vfork changes its own rights. Its parent's stack is locked again by what its
    // parent does next.
    let ours = sys::getpid() == sys::memory_owner();
    if ours && limits::memlock_now().is_some() {
        BOUND.store(true, Relaxed);
    } else {
        LOCKED.store(true, Relaxed);
    }
    CHANGING.fetch_sub(1, SeqCst);
    if ours {
        settle_postponed();
    }
    value
}

/// Lets go of all of our locks on mappings that grow downwards.
#[cold]
#[inline(never)]
fn unlock() {
    LOCKED.store(false, Relaxed);
    let (flight, _) = flight::begin(Call::Credentials);
    loop {
        let mut found = [None; MANY];
        let Some(guard) = lock() else {
            // In a handler on top of the lock's holder.
            LOCKED.store(true, Relaxed);
            break;
        };
        let count = growing(&guard, &mut found);
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
fn growing(state: &State, places: &mut [Option<PageRange>; MANY]) -> usize {
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
        let Some(grown) = resync::mapping_at(from).and_then(|m| m.before(from + PAGE)) else {
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
