//! Notes of calls that were made while the ledger's lock could not be had.

use regall_races::addr::PageRange;
use regall_races::atomic;
use regall_races::layout::Header;
use regall_races::sys;
use regall_races::track::{self, deferred, notes, tell, told, Told};
use regall_races::vocab::{Attr, Column, Flags, Kind, Prot, Reason};
use std::alloc::{alloc_zeroed, Layout};
use std::ptr::NonNull;
use std::time::Duration;

fn begin() {
    thread_local! {
        static HEADER: NonNull<Header> = {
            // SAFETY: not of no bytes; a header may be all zeroes.
            NonNull::new(unsafe { alloc_zeroed(Layout::new::<Header>()) }).expect("memory").cast()
        };
    }
    track::begin(HEADER.with(|h| *h), false);
}

fn check(test: impl Fn() + Sync + Send + 'static) {
    atomic::check(Duration::from_secs(6), test);
}

/// Range `n`, of which both ends tell the number.
fn range(n: u64) -> PageRange {
    PageRange::new(n << 20, (n << 20) + (n << 12)).expect("a range")
}

fn attr() -> Attr {
    Attr {
        prot: Prot::from_bits(3),
        kind: Kind::Anon,
        flags: Flags::from_bits(0),
        pin: Column::no(Reason::Off),
        hca: Column::no(Reason::Off),
    }
}

/// Somebody changes the memory of range `n` and can only note it.
fn changes(n: u64) {
    tell(Told::Changed(range(n)));
    notes::later(range(n));
}

/// Whether range `n` was read anew since it has changed.
fn was_read(n: u64) -> bool {
    let all = told();
    let since = all.iter().skip_while(|t| **t != Told::Changed(range(n)));
    let mut reads = since.filter(|t| **t == Told::Read(range(n)) || **t == Told::ReadAll);
    reads.next().is_some()
}

/// Nothing was told of a range that nobody noted.
fn all_whole(numbers: &[u64]) {
    for told in told() {
        let (Told::Changed(r) | Told::Mapped(r) | Told::Gone(r) | Told::Read(r)) = told else {
            continue;
        };
        assert!(numbers.iter().any(|n| range(*n) == r), "torn: {r:?}");
    }
}

#[test]
fn a_note_is_worked_off_whoever_comes_by() {
    check(|| {
        begin();
        let other = sys::spawn(1, || {
            changes(1);
            deferred::drain();
        });
        drop(track::lock());
        changes(2);
        deferred::drain();
        other.join().expect("the other one");
        deferred::drain();
        assert!(was_read(1) && was_read(2), "lost: {:?}", told());
        all_whole(&[1, 2]);
    });
}

/// One that has got its number and writes when the notes have been done with: the next one
/// gets the same number.
#[test]
fn two_may_have_one_number() {
    check(|| {
        begin();
        let other = sys::spawn(1, || changes(1));
        deferred::drain();
        changes(2);
        other.join().expect("the other one");
        deferred::drain();
        assert!(was_read(1) && was_read(2), "lost: {:?}", told());
        all_whole(&[1, 2]);
    });
}

#[test]
fn more_notes_than_there_is_room_for() {
    check(|| {
        begin();
        let other = sys::spawn(1, || {
            changes(1);
            changes(2);
        });
        changes(3);
        deferred::drain();
        other.join().expect("the other one");
        deferred::drain();
        assert!((1..=3).all(was_read), "lost: {:?}", told());
        all_whole(&[1, 2, 3]);
    });
}

#[test]
fn two_that_are_written_at_once_are_whole() {
    check(|| {
        begin();
        let other = sys::spawn(1, || notes::gone(range(2)));
        notes::mapped(range(1), attr());
        drop(track::lock());
        other.join().expect("the other one");
        drop(track::lock());
        assert!(told().contains(&Told::Gone(range(2))), "{:?}", told());
        all_whole(&[1, 2]);
    });
}

#[test]
fn what_was_mapped_is_in_the_ledger_before_it_is_read() {
    check(|| {
        begin();
        let other = sys::spawn(1, || {
            tell(Told::Changed(range(1)));
            notes::mapped(range(1), attr());
            deferred::drain();
        });
        drop(track::lock());
        deferred::drain();
        other.join().expect("the other one");
        deferred::drain();
        let told = told();
        let entered = told.iter().position(|t| *t == Told::Mapped(range(1)));
        let read = told.iter().rposition(|t| *t == Told::Read(range(1)));
        assert!(entered.is_some() && entered < read, "{told:?}");
        all_whole(&[1]);
    });
}
