//! A slot of a file of regions: its owner gives it to one region after another, and peers read
//! it and claim single uses.

use loom::sync::atomic::{AtomicU64, Ordering::SeqCst};
use regall_races::cookie::{Denied, Slot, Terms};
use regall_races::{atomic, sys};
use std::alloc::{alloc_zeroed, Layout};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// The slot, free.
fn begin() -> &'static Slot {
    thread_local! {
        static SLOT: NonNull<Slot> = {
            // SAFETY: not of no bytes; a slot may be all zeroes.
            NonNull::new(unsafe { alloc_zeroed(Layout::new::<Slot>()) }).expect("memory").cast()
        };
    }
    sys::begin(false);
    let slot = SLOT.with(|s| *s);
    atomic::know(slot.as_ptr().cast(), size_of::<Slot>());
    // SAFETY: never freed, and nothing but atomics.
    unsafe { slot.as_ref() }
}

fn check(test: impl Fn() + Sync + Send + 'static) {
    atomic::check(Duration::from_secs(6), test);
}

/// What is said of region `n`, of which all words tell the number.
fn terms(n: u64) -> Terms {
    Terms {
        rights: n,
        length: n << 12,
        first: n << 20,
        count: n,
    }
}

/// Region `n` has the slot; its cookie is its number, too.
fn make(slot: &Slot, n: u64) {
    slot.take(n, n, || terms(n));
    slot.go_live(n);
}

#[test]
fn a_region_is_whole_or_gone() {
    check(|| {
        let slot = begin();
        make(slot, 1);
        let reader = sys::spawn(1, || {
            let slot: &Slot = slot;
            if let Some(found) = slot.terms(1) {
                assert_eq!(found, terms(1), "torn");
            }
            if let Some(found) = slot.terms(2) {
                assert_eq!(found, terms(2), "torn");
            }
        });
        slot.give_back();
        make(slot, 2);
        reader.join().expect("a reader");
    });
}

#[test]
fn a_single_use_is_one_s() {
    check(|| {
        let slot = begin();
        make(slot, 1);
        let won = Arc::new(AtomicU64::new(0));
        let claims = || {
            let won = won.clone();
            move || match slot.uses.claim(1) {
                Ok(()) => _ = won.fetch_add(1, SeqCst),
                Err(denied) => assert_eq!(denied, Denied::Claimed),
            }
        };
        let others = [sys::spawn(1, claims()), sys::spawn(2, claims())];
        claims()();
        for other in others {
            other.join().expect("another one");
        }
        assert_eq!(won.load(SeqCst), 1);
    });
}

/// What is given back is had by one of those who come then, and uses are not lost over it.
#[test]
fn a_use_that_is_given_back_is_one_s() {
    check(|| {
        let slot = begin();
        make(slot, 1);
        assert_eq!(slot.uses.claim(1), Ok(()));
        let won = Arc::new(AtomicU64::new(0));
        let claims = || {
            let won = won.clone();
            move || {
                if slot.uses.claim(1).is_ok() {
                    won.fetch_add(1, SeqCst);
                    slot.uses.add(1);
                }
            }
        };
        let others = [sys::spawn(1, claims()), sys::spawn(2, claims())];
        slot.uses.unclaim(1);
        for other in others {
            other.join().expect("another one");
        }
        let won = won.load(SeqCst);
        assert!(won <= 1);
        assert_eq!(slot.uses.count(), won);
        assert_eq!(slot.uses.claim(1).is_ok(), won == 0);
    });
}

/// Who comes too late for a region does nothing to the one that has its slot then.
#[test]
fn who_is_late_claims_nothing_of_the_next() {
    check(|| {
        let slot = begin();
        make(slot, 1);
        assert_eq!(slot.uses.claim(1), Ok(()));
        let late = sys::spawn(1, || {
            slot.uses.unclaim(1);
            slot.uses.add(1);
            let claimed = slot.uses.claim(1);
            assert_ne!(claimed, Err(Denied::Claimed));
        });
        slot.give_back();
        make(slot, 2);
        let claimed = slot.uses.claim(2);
        assert_eq!(claimed, Ok(()), "it was claimed by whom it is not");
        late.join().expect("the late one");
        assert_eq!(
            slot.uses.claim(2),
            Err(Denied::Claimed),
            "it was given back"
        );
        assert_eq!(slot.uses.count(), 0);
    });
}
