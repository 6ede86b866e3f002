//! The ledger's lock, and the table of calls in progress. It has two places here.

use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};
use regall_races::addr::PageRange;
use regall_races::layout::{Call, Header, INFLIGHT};
use regall_races::track::flight::{self, Flight};
use regall_races::track::{self, exclusively, lock};
use regall_races::{atomic, sys, thread};
use std::alloc::{alloc_zeroed, Layout};
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    static HEADER: NonNull<Header> = {
        // SAFETY: not of no bytes; a header may be all zeroes.
        NonNull::new(unsafe { alloc_zeroed(Layout::new::<Header>()) }).expect("memory").cast()
    };
    /// What the ledger says of the range that the calls are about.
    static LEDGER: Cell<u64> = const { Cell::new(0) };
}

fn header() -> &'static Header {
    // SAFETY: never freed, and nothing but atomics.
    unsafe { HEADER.with(|h| h.as_ref()) }
}

/// Sleepers that nobody wakes sleep for ever.
fn begin() {
    LEDGER.set(0);
    track::begin(HEADER.with(|h| *h), false);
}

/// Sleep is over when its time is.
fn begin_impatient() {
    LEDGER.set(0);
    track::begin(HEADER.with(|h| *h), true);
}

fn check(test: impl Fn() + Sync + Send + 'static) {
    atomic::check(Duration::from_secs(6), test);
}

fn range() -> PageRange {
    PageRange::new(1 << 20, 2 << 20).expect("a range")
}

/// The lock, and the ledger with it.
fn locked() -> lock::Guard {
    track::lock().expect("nobody is in a handler")
}

#[test]
fn the_lock_is_one_s_at_a_time_and_who_sleeps_is_woken() {
    check(|| {
        begin();
        let twice = || {
            for _ in 0..2 {
                let held = locked();
                exclusively();
                drop(held);
            }
        };
        let others = [sys::spawn(1, twice), sys::spawn(2, twice)];
        for other in others {
            other.join().expect("another one");
        }
        drop(locked());
        assert_eq!(track::rebuilt(), 0);
    });
}

#[test]
fn a_dead_one_s_lock_is_taken_by_one_and_the_ledger_read_anew() {
    check(|| {
        begin_impatient();
        let dies = sys::spawn(1, || {
            std::mem::forget(lock_in_time());
            sys::die();
        });
        dies.join().expect("it");
        let other = sys::spawn(2, || drop(lock_in_time()));
        drop(lock_in_time());
        other.join().expect("another one");
        assert_eq!(track::rebuilt(), 1);
    });
}

#[test]
fn a_parked_one_s_lock_is_taken_when_it_dies() {
    check(|| {
        begin_impatient();
        let parks = sys::spawn(1, || std::mem::forget(lock_in_time()));
        parks.join().expect("it");
        assert!(track::lock().is_none());
        sys::spawn(1, sys::die).join().expect("its end");
        drop(lock_in_time());
        assert_eq!(track::rebuilt(), 1);
    });
}

/// The lock; one who is asleep in it may be taken for parked, and one who is gone is not.
fn lock_in_time() -> lock::Guard {
    loop {
        if let Some(held) = track::lock() {
            exclusively();
            return held;
        }
        loom::thread::yield_now();
    }
}

/// A call that makes the kernel's memory `value`, and the ledger's, as `track` does it.
fn call(kernel: &AtomicU64, value: u64) {
    let (flight, _) = flight::begin(Call::Mmap);
    flight.claim(&locked(), range());
    kernel.store(value, SeqCst);
    let held = locked();
    LEDGER.set(value);
    drop(held);
    if flight.lost_track() {
        let held = locked();
        flight::disturb(range());
        LEDGER.set(kernel.load(SeqCst));
        drop(held);
    }
    drop(flight);
}

#[test]
fn of_calls_that_meet_the_last_one_leaves_the_ledger_right() {
    check(|| {
        begin();
        let kernel = Arc::new(AtomicU64::new(0));
        let theirs = kernel.clone();
        let other = sys::spawn(1, move || call(&theirs, 2));
        call(&kernel, 1);
        other.join().expect("the other one");
        assert_eq!(LEDGER.get(), kernel.load(SeqCst));
    });
}

/// Whether this thread's call has a place, which is its own.
fn has_its_place() -> bool {
    let thread = thread::current();
    let Some(n) = (thread.flights[0].get() as usize).checked_sub(1) else {
        return false;
    };
    let word = header().inflight[n].load(atomic::Ordering::Relaxed);
    assert_eq!(word as u32, thread.tid(), "somebody else's");
    true
}

fn all_places_are_free() {
    for place in &header().inflight {
        assert_eq!(place.load(atomic::Ordering::Relaxed), 0);
    }
}

#[test]
fn a_place_is_one_s_until_he_leaves_it() {
    check(|| {
        begin_impatient();
        let comes_and_goes = || {
            let (flight, _) = flight::begin(Call::Mmap);
            let had = has_its_place();
            loom::thread::yield_now();
            assert_eq!(has_its_place(), had);
            drop(flight);
        };
        let others = [sys::spawn(1, comes_and_goes), sys::spawn(2, comes_and_goes)];
        comes_and_goes();
        for other in others {
            other.join().expect("another one");
        }
        all_places_are_free();
    });
}

/// While others hold all places, a call waits for a while, and is made without one.
#[test]
fn who_finds_no_place_goes_on() {
    check(|| {
        begin_impatient();
        let held = [1, 2].map(|n| {
            let held = sys::spawn(n, || std::mem::forget(flight::begin(Call::Mmap).0));
            held.join().expect("it");
        });
        assert_eq!(held.len(), INFLIGHT);
        let (flight, _) = flight::begin(Call::Mmap);
        assert!(!has_its_place());
        assert!(flight.lost_track(), "it must read its range anew");
    });
}

/// What two find that a dead thread has left, they give back once: who takes the place then
/// keeps it, with what it is about.
#[test]
fn a_dead_one_s_place_is_given_back_once() {
    check(|| {
        begin();
        let dead = sys::spawn(1, || {
            std::mem::forget(flight::begin(Call::Mmap).0);
            sys::die();
        });
        dead.join().expect("it");
        let other = sys::spawn(2, || _ = flight::sweep(&locked()));
        flight::sweep(&locked());
        let (flight, _) = flight::begin(Call::Mmap);
        flight.claim(&locked(), range());
        assert!(has_its_place());
        other.join().expect("the other one");
        assert!(has_its_place());
        assert!(is_about(&flight), "what it is about was wiped off");
        drop(flight);
        all_places_are_free();
    });
}

#[test]
fn a_place_s_last_call_wipes_nothing_off_the_next() {
    check(|| {
        begin();
        let last = sys::spawn(1, || drop(flight::begin(Call::Mmap)));
        let (flight, _) = flight::begin(Call::Mmap);
        flight.claim(&locked(), range());
        last.join().expect("it");
        assert!(is_about(&flight), "what it is about was wiped off");
    });
}

/// Whether others see what the call is about.
fn is_about(_flight: &Flight) -> bool {
    let seen = Arc::new(AtomicU64::new(0));
    let theirs = seen.clone();
    let looks = sys::spawn(3, move || {
        let found = flight::in_the_way(&locked(), range(), true);
        theirs.store(found.into(), SeqCst);
    });
    looks.join().expect("it");
    seen.load(SeqCst) == 1
}
