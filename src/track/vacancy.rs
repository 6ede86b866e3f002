//! Waiting for a place among the calls in progress. There are fewer places than threads may
//! have calls (thousands that end at once). A call without one is made all the same, but its
//! range has to be read anew from the kernel's list, and a thousand such readers stall each
//! other for minutes: it is cheaper to wait a moment for one of the calls before.

use crate::sys;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// Somebody may be asleep on [`TURN`].
static WANTED: AtomicBool = AtomicBool::new(false);
/// Counts places that became free while somebody waited.
static TURN: AtomicU32 = AtomicU32::new(0);

/// How long a sleeper sleeps at the most, in nanoseconds: a wake may be missed, since who
/// frees a place looks for sleepers without a fence. Thousands may be asleep here, so it is
/// not short.
const NAP: u32 = 50_000_000;
/// Naps in which no place at all was freed, after which the call is made without one: holders
/// may be parked until this very thread goes on.
const NAPS: u32 = 20;

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
}

/// Sleeps until `take` has got a place. `stuck` is called while nothing moves: threads may
/// have ended and left theirs.
#[cold]
#[inline(never)]
pub fn wait(mut take: impl FnMut() -> Option<u32>, stuck: impl Fn()) -> Option<u32> {
    let mut naps = 0;
    while naps < NAPS {
        let turn = TURN.load(SeqCst);
        WANTED.store(true, SeqCst);
        if let Some(place) = take() {
            return Some(place);
        }
        let overslept = sys::futex_wait(&TURN, turn, NAP);
        if TURN.load(SeqCst) != turn {
            naps = 0;
        } else if overslept {
            naps += 1;
            stuck();
        }
    }
    None
}
