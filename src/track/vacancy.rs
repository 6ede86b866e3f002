//! Waiting for a place among the calls in progress. There are fewer places than threads may
//! have calls (thousands that end at once). A call without one is made all the same, but its
//! range has to be read anew from the kernel's list, and a thousand such readers stall each
//! other for minutes: it is cheaper to wait a moment for one of the calls before.

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use crate::sys::{self, time};

/// Somebody may be asleep on [`TURN`].
static WANTED: AtomicBool = AtomicBool::new(false);
/// Counts places that became free while somebody waited.
static TURN: AtomicU32 = AtomicU32::new(0);

/// Where [`TURN`] stood when somebody had waited in vain, and 1; 0: nowhere. While it stands
/// there nobody else waits: who holds the places is held up by something.
static IN_VAIN: AtomicU64 = AtomicU64::new(0);

/// When somebody looked last for threads that have ended and left their places, CLOCK_MONOTONIC.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// How long a sleeper sleeps at the most, in nanoseconds: a wake may be missed, since who
/// frees a place looks for sleepers without a fence. Thousands may be asleep here, so it is
/// not short.
const NAP: u32 = 50_000_000;
/// Nanoseconds in which no place at all was freed, after which the call is made without one:
/// holders may be parked until this very thread goes on.
const PATIENCE: u64 = 1_000_000_000;
/// However many are freed, for others: not for longer than this, in nanoseconds.
const LONGEST: u64 = 10_000_000_000;

/// A place is free again.
#[inline]
pub fn one_more() {
    if WANTED.load(Relaxed) {
        wake();
    }
}

#[cold]
fn wake() {
    WANTED.store(false, SeqCst);
    TURN.fetch_add(1, SeqCst);
    if sys::futex_wake(&TURN) {
        WANTED.store(true, SeqCst); // there may be others
    }
}

/// After fork: nobody else waits.
pub fn reset() {
    WANTED.store(false, Relaxed);
    IN_VAIN.store(0, Relaxed);
    LOOKED.store(0, Relaxed);
}

/// Whether this thread is to look for those that have ended: one at a time does, once in a [`NAP`].
fn is_to_look(now: u64) -> bool {
    let last = LOOKED.load(Relaxed);
    let due = now.saturating_sub(last) >= u64::from(NAP);
    due && LOOKED.compare_exchange(last, now, Relaxed, Relaxed).is_ok()
}

/// Sleeps until `take` has got a place. `stuck` is called while nothing moves: threads may
/// have ended and left theirs.
#[cold]
#[inline(never)]
pub fn wait(mut take: impl FnMut() -> Option<u32>, stuck: impl Fn()) -> Option<u32> {
    let begun = time::now();
    let mut moved = begun;
    loop {
        let turn = TURN.load(SeqCst);
        WANTED.store(true, SeqCst);
        if let Some(place) = take() {
            return Some(place);
        }
        if IN_VAIN.load(Relaxed) == u64::from(turn) + 1 {
            return None;
        }
        let _ = sys::futex_wait(&TURN, turn, NAP);
        // By the clock: a timer of the application's may end each nap.
        let now = time::now();
        if TURN.load(SeqCst) != turn {
            moved = now;
        } else if is_to_look(now) {
            stuck();
        }
        let idle = now.saturating_sub(moved) >= PATIENCE;
        if idle {
            IN_VAIN.store(u64::from(TURN.load(SeqCst)) + 1, Relaxed);
        }
        if idle || now.saturating_sub(begun) >= LONGEST {
            return None;
        }
    }
}
