//! The ledger's index: one writer, and look-ups that take no lock.

use core::ptr::NonNull;
use loom::model::Builder;
use loom::thread;
use regall_races::atomic::{begin, know, time_for};
use regall_races::index::{Hint, Index, Memory, Row, View, LEAF_ROWS};
use std::alloc::{alloc_zeroed, Layout};
use std::time::Duration;

/// Memory that loom is told of, the same in each run.
struct Ground {
    at: NonNull<u8>,
    used: usize,
}

const GROUND: usize = 64 << 10;

thread_local! {
    static GROUNDS: NonNull<u8> = {
        let layout = Layout::from_size_align(GROUND, 64).expect("a size");
        // SAFETY: not of no bytes.
        NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory")
    };
}

impl Ground {
    fn new() -> Self {
        let at = GROUNDS.with(|g| *g);
        // SAFETY: as many bytes, which nobody uses any more.
        unsafe { at.write_bytes(0, GROUND) };
        Self { at, used: 0 }
    }

    /// Zeroed, and of a type that is valid so.
    fn one<T>(&mut self) -> &'static T {
        let at = self.alloc(size_of::<T>()).expect("room");
        // SAFETY: as the callers say; it stays for the run.
        unsafe { at.cast::<T>().as_ref() }
    }
}

// SAFETY: zeroed, aligned to 64, given out once in a run, and never freed.
unsafe impl Memory for Ground {
    fn alloc(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let from = self.used;
        self.used += bytes.next_multiple_of(64);
        assert!(self.used <= GROUND);
        // SAFETY: within it.
        let at = unsafe { self.at.add(from) };
        know(at.as_ptr(), bytes);
        Some(at)
    }
}

/// Row number `n`, of which all fields tell the number; `version` tells what it was changed to.
fn row(n: u64, version: u64) -> Row {
    Row {
        start: n << 20,
        end: (n << 20) + 4096,
        attr: n * 1000 + version,
        id: n * 1000 + version,
        tag: (n * 1000 + version) as u32,
        origin: (n * 1000 + version) as u32,
    }
}

/// What a look-up of row `n` finds must be it as a whole, in one of these versions.
fn found(view: &View, n: u64, versions: &[u64]) -> Option<u64> {
    // Busy: it met the writer each time.
    let found = view.row_at((n << 20) + 17).ok()?;
    let version = found.map(|r| r.id - n * 1000);
    match (found, version) {
        (Some(r), Some(v)) => {
            assert_eq!(r, row(n, v), "torn");
            assert!(versions.contains(&v), "version {v} of {n}");
        }
        _ => assert!(versions.contains(&NONE), "{n} is missing"),
    }
    Some(version.unwrap_or(NONE))
}

/// What stands for no row.
const NONE: u64 = u64::MAX;

/// An index with rows of these numbers.
fn index(rows: &[u64]) -> (&'static View, Index) {
    with_hint(rows).0
}

/// With a hint for it.
fn with_hint(rows: &[u64]) -> ((&'static View, Index), &'static Hint) {
    begin();
    let mut ground = Ground::new();
    let view: &'static View = ground.one();
    let hint: &'static Hint = ground.one();
    let mut index = Index::new(view);
    assert!(index.reserve(&mut ground, 3));
    for n in rows {
        put(&mut index, &row(*n, 0));
    }
    ((view, index), hint)
}

/// As the ledger does.
fn put(index: &mut Index, row: &Row) {
    let at = index.find(row.start).map(|at| index.behind(at));
    index.splice(at.unwrap_or(Index::FIRST), 0, &[*row]);
}

/// In every order, as far as the time lasts: the first thousands of orders of a long change.
fn check(seconds: u64, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.max_branches = 100_000;
    builder.max_duration = Some(time_for(Duration::from_secs(seconds)));
    builder.check(test);
}

#[test]
fn a_row_is_replaced() {
    check(8, || {
        let (view, mut index) = index(&[1, 2]);
        let reader = thread::spawn(move || {
            found(view, 2, &[0, 1]);
        });
        let spot = index.spot(2 << 20).expect("it is there");
        index.replace(spot, &row(2, 1));
        reader.join().expect("a reader");
    });
}

#[test]
fn rows_come_and_go_in_front() {
    check(8, || {
        let (view, mut index) = index(&[2, 3]);
        let reader = thread::spawn(move || {
            found(view, 2, &[0]);
            found(view, 1, &[NONE, 0]);
        });
        put(&mut index, &row(1, 0));
        reader.join().expect("a reader");
    });
}

#[test]
fn a_row_is_taken_out() {
    check(8, || {
        let (view, mut index) = index(&[1, 2, 3]);
        let reader = thread::spawn(move || {
            found(view, 3, &[0]);
            found(view, 2, &[0, NONE]);
        });
        let spot = index.spot(2 << 20).expect("it is there");
        index.take_out(spot);
        reader.join().expect("a reader");
    });
}

#[test]
fn a_leaf_is_split() {
    let all: Vec<u64> = (1..=LEAF_ROWS as u64).map(|n| n * 2).collect();
    check(8, move || {
        let (view, mut index) = index(&all);
        let reader = thread::spawn(move || {
            found(view, 2 * LEAF_ROWS as u64, &[0]);
        });
        put(&mut index, &row(9, 0));
        reader.join().expect("a reader");
    });
}

#[test]
fn a_leaf_goes_and_comes_back_elsewhere() {
    let all: Vec<u64> = (1..=LEAF_ROWS as u64 + 1).map(|n| n * 2).collect();
    check(8, move || {
        let (view, mut index) = index(&all);
        let last = *all.last().expect("a last one");
        let reader = thread::spawn(move || {
            found(view, last, &[0, NONE]);
            found(view, 2, &[0]);
        });
        // The second leaf goes with all its rows.
        let from = index.find(9 << 20).expect("it is there");
        let to = index.find(last << 20).expect("it is there");
        let to = index.behind(to);
        index.cut(index.behind(from), to);
        reader.join().expect("a reader");
    });
}

#[test]
fn what_a_hint_remembers_is_true_or_forgotten() {
    check(8, || {
        let ((view, mut index), hint) = with_hint(&[1, 2]);
        let seen = view.row_at_hinted((2 << 20) + 1, hint);
        assert_eq!(seen, Ok(Some(row(2, 0))));
        struct Ours(&'static Hint);
        // SAFETY: one thread uses it from here on.
        unsafe impl Send for Ours {}
        let ours = Ours(hint);
        let reader = thread::spawn(move || {
            let ours = ours;
            let first = view.row_at_hinted((2 << 20) + 1, ours.0);
            let second = view.row_at_hinted((2 << 20) + 1, ours.0);
            for seen in [first, second].into_iter().flatten() {
                assert!([Some(row(2, 0)), Some(row(2, 1))].contains(&seen), "torn");
            }
            // Time does not go back.
            if first == Ok(Some(row(2, 1))) {
                assert_ne!(second, Ok(Some(row(2, 0))));
            }
        });
        let spot = index.spot(2 << 20).expect("it is there");
        index.replace(spot, &row(2, 1));
        reader.join().expect("a reader");
    });
}
