//! The ledger against models that can't be wrong in the same way: one word for each
//! page, `rangemap`, a replay of what the sink was told, and readers that race.

use std::alloc::{alloc_zeroed, Layout};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use proptest::prelude::*;
use regall_directory::addr::PAGE;
use regall_directory::vocab::*;
use std::ptr::NonNull;

use core::ops::ControlFlow;

use regall_directory::addr::PageRange;

use super::*;

/// Pages that the random tests play with.
const PAGES: u64 = 200;
const BASE: u64 = 0x7f00_0000_0000;

/// Leaks, as real memory is never given back; `left` bounds it.
struct Leak {
    left: usize,
}

// SAFETY: zeroed, aligned to 64, fresh, and never freed.
unsafe impl Memory for Leak {
    fn alloc(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        self.left = self.left.checked_sub(1)?;
        let layout = Layout::from_size_align(bytes, 64).unwrap();
        // SAFETY: `bytes` is not 0.
        NonNull::new(unsafe { alloc_zeroed(layout) })
    }
}

fn plenty() -> Leak {
    Leak { left: usize::MAX }
}

/// Replays what it is told, and takes offence at what no ledger may say.
#[derive(Default)]
struct Recorder {
    live: HashMap<u32, (PageRange, Attr, u64)>,
    last: u32,
    full: bool,
    /// What happened in the current change: true: publish.
    told: Vec<(bool, PageRange)>,
}

impl Sink for Recorder {
    fn publish(&mut self, range: PageRange, attr: Attr, id: u64) -> u32 {
        self.told.push((true, range));
        if self.full {
            return 0;
        }
        self.last += 1;
        self.live.insert(self.last, (range, attr, id));
        self.last
    }

    fn retire(&mut self, slot: u32, range: PageRange, attr: Attr) {
        self.told.push((false, range));
        if slot == 0 {
            return;
        }
        let was = self.live.remove(&slot).expect("retired, but not live");
        assert_eq!((was.0, was.1), (range, attr), "slot {slot}");
    }
}

fn ledger() -> Ledger {
    Ledger::new(Box::leak(Box::new(View::new())))
}

fn pages(from: u64, to: u64) -> PageRange {
    PageRange::new(BASE + from * PAGE, BASE + to * PAGE).unwrap()
}

fn attr(n: u8) -> Attr {
    let (kind, prot) = match n % 4 {
        0 => (Kind::Anon, 3),
        1 => (Kind::Anon, 0),
        2 => (Kind::File, 3), // merges with parts of itself alone
        _ => (Kind::Heap, 3),
    };
    let pin = if prot == 0 {
        Column::no(Reason::NoAccess)
    } else {
        Column::YES
    };
    Attr {
        prot: Prot::from_call(prot, false),
        kind,
        flags: Flags::EMPTY,
        pin,
        hca: Column::no(Reason::Off),
    }
}

/// A ledger with its sink, and everything checked after each change.
struct Rig {
    ledger: Ledger,
    sink: Recorder,
    hint: Hint,
}

impl Rig {
    fn new() -> Self {
        Self {
            ledger: ledger(),
            sink: Recorder::default(),
            hint: Hint::new(),
        }
    }

    fn insert(&mut self, range: PageRange, attr: Attr) {
        self.insert_part(range, attr, None);
    }

    fn insert_part(&mut self, range: PageRange, attr: Attr, origin: Option<Origin>) {
        assert!(self.ledger.reserve(&mut plenty(), 1));
        self.sink.told.clear();
        self.ledger
            .insert_part(range, attr, origin, &mut self.sink)
            .unwrap();
        let first_retire = self
            .sink
            .told
            .iter()
            .position(|t| !t.0)
            .unwrap_or(usize::MAX);
        let last_publish = self.sink.told.iter().rposition(|t| t.0).unwrap();
        assert!(
            last_publish < first_retire,
            "retired before its replacement was published"
        );
    }

    fn remove(&mut self, range: PageRange) -> Vec<(Entry, PageRange)> {
        assert!(self.ledger.reserve(&mut plenty(), 1));
        self.sink.told.clear();
        let mut out = Vec::new();
        let n = self
            .ledger
            .remove(range, &mut self.sink, |e, part| out.push((*e, part)))
            .unwrap();
        assert_eq!(n, out.len());
        // What is published here is a remnant of the entry that is retired next.
        for (n, (publish, range)) in self.sink.told.iter().enumerate() {
            if *publish {
                let next = self.sink.told[n..]
                    .iter()
                    .find(|t| !t.0)
                    .expect("a remnant without its entry");
                assert!(next.1.covers(*range));
            }
        }
        out
    }

    fn update(&mut self, range: PageRange, f: impl FnMut(PageRange, Attr) -> Attr) {
        assert!(self.ledger.reserve(&mut plenty(), PAGES as usize));
        self.ledger.update(range, &mut self.sink, f).unwrap();
    }

    fn entries(&self) -> Vec<Entry> {
        let mut all = Vec::new();
        let everything = PageRange::new(0, 1 << 62).unwrap();
        self.ledger.for_each(everything, |piece, e| {
            assert_eq!(piece, e.range);
            all.push(*e);
            ControlFlow::Continue(())
        });
        all
    }

    fn ranges(&self) -> Vec<(u64, u64)> {
        let of = |a: u64| (a - BASE) / PAGE;
        self.entries()
            .iter()
            .map(|e| (of(e.range.start()), of(e.range.end())))
            .collect()
    }

    /// Invariants, and the sink's view is the ledger's.
    fn check(&self) {
        self.ledger.check();
        let entries = self.entries();
        assert_eq!(entries.len(), self.ledger.len());
        assert_eq!(
            entries.iter().map(|e| e.range.len()).sum::<u64>(),
            self.ledger.bytes()
        );
        let mine: BTreeMap<_, _> = entries
            .iter()
            .map(|e| (e.slot, (e.range, e.attr, e.id)))
            .collect();
        let told: BTreeMap<_, _> = self.sink.live.iter().map(|(s, v)| (*s, *v)).collect();
        assert_eq!(mine, told, "the sink's view");
    }

    /// Every page, asked in every way, is what the model says.
    fn agrees(&self, model: &[Option<Attr>]) {
        let view = self.ledger.view();
        let mut registered = 0;
        for (n, &want) in model.iter().enumerate() {
            let addr = BASE + n as u64 * PAGE + 77;
            let got = self.ledger.get(addr);
            assert_eq!(got.map(|e| e.attr), want, "page {n}");
            let found = view.lookup(addr).unwrap();
            assert_eq!(
                found.map(|f| (f.attr(), f.id, f.slot)),
                got.map(|e| (e.attr, e.id, e.slot))
            );
            assert_eq!(view.lookup_hinted(addr, &self.hint).unwrap(), found);
            registered += want.map_or(0, |a| if a.registered() { PAGE } else { 0 });
            let next = self
                .ledger
                .next_from(addr)
                .map(|e| e.range.start().max(addr - 77));
            let want_next = (n..model.len())
                .find(|&n| model[n].is_some())
                .map(|n| BASE + n as u64 * PAGE);
            assert_eq!(next, want_next);
        }
        assert_eq!(self.ledger.totals().registered, registered);
    }
}

#[test]
fn a_hole_can_be_at_each_side_in_the_middle_and_everywhere() {
    for (from, to, left) in [
        (10, 12, vec![(12, 20)]),
        (18, 20, vec![(10, 18)]),
        (14, 15, vec![(10, 14), (15, 20)]),
        (10, 20, vec![]),
        (5, 25, vec![]),
        (20, 25, vec![(10, 20)]),
        (5, 10, vec![(10, 20)]),
    ] {
        let mut rig = Rig::new();
        rig.insert(pages(10, 20), attr(2));
        let out = rig.remove(pages(from, to));
        assert_eq!(rig.ranges(), left, "{from}-{to}");
        let cut = pages(from, to).intersection(pages(10, 20));
        assert_eq!(
            out.iter().map(|o| o.1).collect::<Vec<_>>(),
            cut.into_iter().collect::<Vec<_>>()
        );
        rig.check();
    }
}

#[test]
fn an_insertion_replaces_several() {
    let mut rig = Rig::new();
    for n in 0..8 {
        rig.insert(pages(n * 10, n * 10 + 10), attr(2));
    }
    rig.insert(pages(15, 55), attr(0));
    assert_eq!(
        rig.ranges(),
        [(0, 10), (10, 15), (15, 55), (55, 60), (60, 70), (70, 80)]
    );
    rig.check();
    rig.insert(pages(30, 31), attr(2)); // a hole of another kind in the middle
    assert_eq!(rig.ranges()[2..5], [(15, 30), (30, 31), (31, 55)]);
    rig.check();
}

#[test]
fn equal_neighbours_merge_if_they_may_and_ids_are_unique() {
    let mut rig = Rig::new();
    rig.insert(pages(10, 20), attr(0));
    rig.insert(pages(30, 40), attr(0));
    rig.insert(pages(20, 30), attr(0));
    assert_eq!(rig.ranges(), [(10, 40)]);
    rig.insert(pages(40, 50), attr(2));
    rig.insert(pages(50, 60), attr(2));
    assert_eq!(rig.ranges(), [(10, 40), (40, 50), (50, 60)]);
    let e = rig.entries();
    assert!(e[1].id != e[2].id && e[1].attr == e[2].attr);
    rig.check();
}

#[test]
fn parts_of_a_file_that_say_the_same_again_are_one() {
    let mut rig = Rig::new();
    rig.insert(pages(0, 100), attr(2));
    rig.insert(pages(100, 200), attr(2));
    for n in (0..200).rev().step_by(3).chain(0..200) {
        rig.update(pages(n, n + 1), |_, _| attr(1));
        assert!(rig.ledger.len() <= 5);
        rig.update(pages(n, n + 1), |_, _| attr(2));
        assert_eq!(rig.ranges(), [(0, 100), (100, 200)]);
    }
    // Another in its middle is another, whatever it says.
    rig.insert(pages(50, 60), attr(2));
    rig.update(pages(40, 70), |_, _| attr(1));
    assert_eq!(rig.ranges(), [(0, 40), (40, 70), (70, 100), (100, 200)]);
    rig.check();
}

/// Page `page` of file `inode`, mapped at page `at`.
fn of_file(inode: u64, page: u64, at: u64) -> Option<Origin> {
    Some(Origin::of_file(
        (8, 1),
        inode,
        page * PAGE,
        BASE + at * PAGE,
    ))
}

#[test]
fn pages_of_a_file_that_lie_as_in_the_file_are_one_entry() {
    for pin in [attr(2), attr(1)] {
        let mut rig = Rig::new();
        for n in [3, 1, 0, 2, 5, 4] {
            rig.insert_part(pages(n, n + 1), pin, of_file(7, n + 10, n));
        }
        assert_eq!(rig.ranges(), [(0, 6)]);
        // Of another file, or not the pages that come next: others.
        rig.insert_part(pages(6, 7), attr(2), of_file(8, 16, 6));
        rig.insert_part(pages(7, 8), attr(2), of_file(7, 18, 7));
        rig.insert(pages(8, 9), attr(2));
        assert_eq!(rig.ranges(), [(0, 6), (6, 7), (7, 8), (8, 9)]);
        rig.check();
    }
}

#[test]
fn parts_that_were_moved_away_and_back_are_one_entry_again() {
    let mut rig = Rig::new();
    rig.insert(pages(0, 100), attr(2)); // whatever it is of
    for n in (0..100).rev().step_by(3).chain(0..100) {
        let taken = rig.remove(pages(n, n + 1));
        let (from, to) = (BASE + n * PAGE, BASE + 150 * PAGE);
        let there = taken[0].0.origin.moved(from, to);
        rig.insert_part(pages(150, 151), attr(2), Some(there));
        let taken = rig.remove(pages(150, 151));
        let back = taken[0].0.origin.moved(to, from);
        rig.insert_part(pages(n, n + 1), attr(2), Some(back));
        assert_eq!(rig.ranges(), [(0, 100)]);
    }
    // Several in a new place, one after another, are one there.
    for n in 20..30 {
        let taken = rig.remove(pages(n, n + 1));
        let (from, to) = (BASE + n * PAGE, BASE + (n + 150) * PAGE);
        let there = taken[0].0.origin.moved(from, to);
        rig.insert_part(pages(n + 150, n + 151), attr(2), Some(there));
    }
    assert_eq!(rig.ranges(), [(0, 20), (30, 100), (170, 180)]);
    rig.check();
}

#[test]
fn a_heap_that_grows_a_thousand_times_is_one_entry() {
    let mut rig = Rig::new();
    for n in 0..1000 {
        rig.insert(pages(n * 64, n * 64 + 64), attr(3));
    }
    assert_eq!(rig.ranges(), [(0, 64_000)]);
    rig.check();
}

#[test]
fn an_arena_that_grows_by_mprotect_is_two_entries() {
    let mut rig = Rig::new();
    rig.insert(pages(0, 16384), attr(1));
    for n in 0..1000 {
        rig.update(pages(n * 2, n * 2 + 2), |_, _| attr(0));
        assert_eq!(rig.ledger.len(), 2);
    }
    assert_eq!(rig.ranges(), [(0, 2000), (2000, 16384)]);
    rig.check();
}

#[test]
fn an_update_leaves_alone_what_stays_the_same() {
    let mut rig = Rig::new();
    rig.insert(pages(0, 10), attr(2));
    rig.insert(pages(10, 20), attr(0));
    let before = rig.entries();
    rig.update(pages(5, 15), |_, a| a);
    assert_eq!(rig.entries(), before);
    let mut asked = Vec::new();
    rig.update(pages(5, 30), |piece, a| {
        asked.push(piece);
        if a.kind == Kind::File {
            a
        } else {
            attr(1)
        }
    });
    assert_eq!(
        asked,
        [pages(5, 10), pages(10, 15), pages(15, 20)][..1]
            .iter()
            .copied()
            .chain([pages(10, 20)])
            .collect::<Vec<_>>()
    );
    assert_eq!(rig.ranges(), [(0, 10), (10, 20)]);
    assert!(!rig.ledger.covered(pages(0, 21)) && rig.ledger.covered(pages(3, 20)));
    rig.check();
}

#[test]
fn a_full_directory_gives_slot_0() {
    let mut rig = Rig::new();
    rig.sink.full = true;
    rig.insert(pages(0, 10), attr(0));
    rig.remove(pages(3, 4));
    assert!(rig.entries().iter().all(|e| e.slot == 0));
    rig.sink.full = false;
    rig.insert(pages(0, 10), attr(2));
    rig.check();
}

#[test]
fn a_change_that_runs_short_can_be_made_again() {
    let mut rig = Rig::new();
    let holes = 3000;
    rig.insert(pages(0, 4 * holes), attr(1));
    let whole = pages(0, 4 * holes);
    // Without a pool there is room in the leaf only.
    let (mut shorts, mut done) = (0, 0);
    while done < holes {
        match rig
            .ledger
            .remove(pages(4 * done + 1, 4 * done + 2), &mut rig.sink, |_, _| ())
        {
            Ok(_) => done += 1,
            Err(Short { at }) => {
                assert_eq!(at, pages(4 * done + 1, 4 * done + 2).start());
                shorts += 1;
                assert!(rig.ledger.reserve(&mut plenty(), 1));
            }
        }
    }
    assert!(shorts > 30);
    rig.check();
    // An update that changes every second page: f is asked once of each piece.
    let (mut asked, mut rest) = (Vec::new(), whole);
    let paint = |piece: PageRange, a: Attr| {
        if piece.start() / PAGE % 4 == 0 {
            attr(2)
        } else {
            a
        }
    };
    while let Err(Short { at }) = rig.ledger.update(rest, &mut rig.sink, |p, a| {
        asked.push(p);
        paint(p, a)
    }) {
        rest = rest.after(at).unwrap();
        assert!(rig.ledger.reserve(&mut plenty(), 1));
        rig.check();
    }
    assert_eq!(asked.len(), holes as usize + 1);
    assert!(asked.windows(2).all(|w| w[0].end() <= w[1].start()));
    rig.check();
}

#[test]
fn no_memory_is_said_and_changes_nothing() {
    let mut l = ledger();
    let mut sink = Recorder::default();
    assert_eq!(
        l.insert(pages(0, 1), attr(0), &mut sink),
        Err(Short { at: BASE })
    );
    assert!(sink.told.is_empty());
    for left in 0..3 {
        assert!(!l.reserve(&mut Leak { left }, 5));
    }
    assert!(l.reserve(&mut Leak { left: 9 }, 5));
    assert_eq!(l.insert(pages(0, 1), attr(0), &mut sink), Ok(()));
    l.check();
    // The view has its writer.
    assert!(!Ledger::new(l.view()).reserve(&mut plenty(), 1));
}

#[test]
fn sixty_thousand_come_and_go_in_every_order() {
    for order in 0..4 {
        let mut rig = Rig::new();
        let n = 60_000u64;
        for k in 0..n {
            let k = match order {
                0 => k,
                1 => n - 1 - k,
                2 => k * 7919 % n,
                _ => (k % 250) * 240 + k / 250,
            };
            rig.insert(pages(k * 2, k * 2 + 1), attr((k % 3) as u8));
        }
        rig.check();
        assert_eq!(rig.ledger.len(), n as usize);
        let fill = n as f64 / rig.ledger.leaves() as f64;
        println!("order {order}: {fill:.1} rows a leaf");
        assert!(
            fill > if order < 2 { 13.5 } else { 7.5 },
            "order {order}: {fill}"
        );
        let addr = |k: u64| BASE + k * 2 * PAGE;
        for k in 0..n {
            assert_eq!(
                rig.ledger.view().lookup(addr(k)).unwrap().map(|f| f.start),
                Some(addr(k))
            );
            assert_eq!(rig.ledger.view().lookup(addr(k) + PAGE).unwrap(), None);
        }
        rig.insert(pages(20_001, 60_000), attr(2)); // over 20,000
        rig.check();
        let out = rig.remove(pages(3, 2 * n - 3));
        assert_eq!(out.len(), 39_999);
        rig.check();
        rig.ledger.clear(&mut rig.sink);
        rig.check();
        assert!(rig.ledger.is_empty() && rig.sink.live.is_empty());
    }
}

/// What lies beyond a run of changes, in the leaf in which it begins, must not make
/// every leaf of the run emptier.
#[test]
fn a_run_fills_its_leaves_whatever_lies_beyond() {
    const CUTS: u64 = 2_000;
    let cut = |how: usize, beyond: u64| {
        let mut rig = Rig::new();
        for k in 0..beyond {
            rig.insert(pages(2 * k, 2 * k + 1), attr(0));
            rig.insert(pages(10_000 + 2 * k, 10_001 + 2 * k), attr(0));
        }
        let arena = pages(1_000, 1_000 + 2 * CUTS);
        if how >= 2 {
            rig.insert(arena, attr(2));
        }
        for k in 0..CUTS {
            let k = if how % 2 == 0 { k } else { CUTS - 1 - k };
            let page = pages(1_000 + 2 * k, 1_001 + 2 * k);
            match how / 2 {
                0 => rig.insert(page, attr(0)),
                1 => rig.update(page, |_, _| attr(1)),
                // As mprotect does with what is pinned: first unpinned, then said anew.
                2 => {
                    rig.update(page, |_, _| attr(0));
                    rig.update(page, |_, _| attr(1));
                }
                _ => drop(rig.remove(page)),
            }
        }
        rig.check();
        rig.ledger.len() as f64 / rig.ledger.leaves() as f64
    };
    for how in 0..8 {
        for beyond in 0..20 {
            let fill = cut(how, beyond);
            assert!(fill > 13.0, "way {how}, {beyond} beyond: {fill:.1} a leaf");
        }
    }
}

#[test]
fn a_hint_knows_when_its_leaf_has_gone_to_the_pool() {
    let mut rig = Rig::new();
    for k in 0..1000u64 {
        rig.insert(pages(k * 2, k * 2 + 1), attr(0));
    }
    let view = rig.ledger.view();
    let at = |k: u64| BASE + k * 2 * PAGE;
    for k in (0..1000).step_by(100) {
        assert!(view.lookup_hinted(at(k), &rig.hint).unwrap().is_some());
        assert!(view.lookup_hinted(at(k), &rig.hint).unwrap().is_some());
    }
    rig.remove(pages(100, 1900)); // whole leaves; nothing uses them again yet
    for k in (0..1000).step_by(100) {
        let here = !(50..950).contains(&k);
        let found = view.lookup_hinted(at(k), &rig.hint).unwrap();
        assert_eq!(found.is_some(), here, "{k}");
    }
    rig.check();
}

#[test]
fn a_rebuild_works_from_any_state() {
    let mut rig = Rig::new();
    for round in 0..3 {
        for k in 0..5000u64 {
            rig.insert(pages(k * 2, k * 2 + 1), attr(0));
        }
        rig.check();
        let before = rig.entries().last().unwrap().id;
        let hint = Hint::new();
        let view = rig.ledger.view();
        assert!(view.lookup_hinted(BASE, &hint).unwrap().is_some());
        rig.ledger.leave_half_way(round);
        rig.ledger.rebuild();
        rig.sink = Recorder::default();
        rig.check();
        assert_eq!(view.lookup_hinted(BASE, &hint), Ok(None));
        assert_eq!(view.lookup(BASE), Ok(None));
        rig.insert(pages(0, 1), attr(0));
        assert!(rig.entries()[0].id > before);
        rig.remove(pages(0, 1));
    }
}

#[test]
fn a_reader_that_interrupted_the_writer_gets_busy() {
    let mut rig = Rig::new();
    rig.insert(pages(0, 1), attr(0));
    rig.ledger.leave_half_way(0);
    assert_eq!(rig.ledger.view().lookup(BASE), Err(Busy));
    assert_eq!(rig.ledger.view().lookup_hinted(BASE, &rig.hint), Err(Busy));
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u64, u8),
    Remove(u64, u64),
    Update(u64, u64, u8, u8),
}

fn op() -> impl Strategy<Value = Op> {
    let span = (0..PAGES, prop_oneof![3 => 1..4u64, 1 => 1..PAGES])
        .prop_map(|(a, n)| (a, (a + n).min(PAGES)));
    prop_oneof![
        4 => (span.clone(), 0..6u8).prop_map(|((a, b), n)| Op::Insert(a, b, n)),
        1 => span.clone().prop_map(|(a, b)| Op::Remove(a, b)),
        1 => (span, 0..4u8, 0..4u8).prop_map(|((a, b), n, m)| Op::Update(a, b, n, m)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn is_what_a_word_for_each_page_is(ops in prop::collection::vec(op(), 1..250)) {
        let mut rig = Rig::new();
        let mut model = vec![None; PAGES as usize];
        // A packed word for each address; rangemap merges all equal neighbours.
        let mut other: rangemap::RangeMap<u64, u64> = rangemap::RangeMap::new();
        for op in ops {
            match op {
                Op::Insert(a, b, n) => {
                    // Two files that are mapped, all over, as they are.
                    let (what, file) = if n < 4 { (attr(n), None) } else { (attr(2), of_file(n.into(), a, a)) };
                    rig.insert_part(pages(a, b), what, file);
                    model[a as usize..b as usize].fill(Some(what));
                    other.insert(pages(a, b).start()..pages(a, b).end(), what.pack());
                }
                Op::Remove(a, b) => {
                    let taken = rig.remove(pages(a, b));
                    let mut was = vec![None; PAGES as usize];
                    for (e, part) in taken {
                        assert!(e.range.covers(part));
                        let at = |x: u64| ((x - BASE) / PAGE) as usize;
                        was[at(part.start())..at(part.end())].fill(Some(e.attr));
                    }
                    let (a_, b_) = (a as usize, b as usize);
                    assert_eq!(&was[a_..b_], &model[a_..b_], "each was told of all that went");
                    model[a_..b_].fill(None);
                    other.remove(pages(a, b).start()..pages(a, b).end());
                }
                Op::Update(a, b, n, m) => {
                    let f = |old: Attr| if old == attr(m) { old } else { attr(n) };
                    let mut asked = 0;
                    rig.update(pages(a, b), |piece, old| { asked += piece.len() / PAGE; f(old) });
                    let mut mapped = 0;
                    for p in model[a as usize..b as usize].iter_mut().flatten() {
                        *p = f(*p);
                        mapped += 1;
                    }
                    assert_eq!(asked, mapped, "f is asked once of every mapped page");
                    let (s, e) = (pages(a, b).start(), pages(a, b).end());
                    let parts: Vec<_> = other.overlapping(s..e)
                        .map(|(r, v)| (r.start.max(s)..r.end.min(e), *v)).collect();
                    for (r, v) in parts {
                        other.insert(r, f(Attr::unpack(v).unwrap()).pack());
                    }
                }
            }
            rig.check();
        }
        rig.agrees(&model);
        // rangemap's account, with our neighbours that don't merge run together.
        let mut mine: Vec<(u64, u64, u64)> = Vec::new();
        for e in rig.entries() {
            match mine.last_mut() {
                Some(l) if l.1 == e.range.start() && l.2 == e.attr.pack() => l.1 = e.range.end(),
                _ => mine.push((e.range.start(), e.range.end(), e.attr.pack())),
            }
        }
        let theirs: Vec<_> = other.iter().map(|(r, v)| (r.start, r.end, *v)).collect();
        prop_assert_eq!(mine, theirs);
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// Compares the index with a BTreeMap over ten thousand entries, so that leaves split, merge
    /// and are
    /// replaced by the hundred.
    #[test]
    fn is_what_a_btree_is_across_many_leaves(seed in any::<u64>()) {
        let mut rig = Rig::new();
        let mut model: BTreeMap<u64, (u64, Attr)> = BTreeMap::new();
        let mut x = seed | 1;
        let mut random = move |n: u64| { x ^= x << 13; x ^= x >> 7; x ^= x << 17; x % n };
        for round in 0..400 {
            let (a, n) = (random(20_000), if round % 50 == 49 { random(9000) } else { random(60) } + 1);
            let grow = round % 100 < 70;
            if grow {
                for k in a..a + n {
                    rig.insert(pages(k, k + 1), attr(2));
                    model.insert(k, (k + 1, attr(2)));
                }
            } else {
                rig.remove(pages(a, a + n));
                for k in a..a + n { model.remove(&k); }
            }
            if round % 25 == 0 {
                let n = random(700) + 1;
                rig.insert(pages(a, a + n), attr(2));
                for k in a..a + n { model.remove(&k); }
                rig.remove(pages(a, a + n)); // one wide entry over many, and away
                rig.check();
            }
        }
        rig.check();
        let want: Vec<_> = model.iter().map(|(a, (b, _))| (*a, *b)).collect();
        prop_assert_eq!(rig.ranges(), want);
    }
}

/// Readers race with a writer. Every entry's slot encodes its start and its length,
/// so a row put together from two is noticed, and pages that are never unmapped,
/// whatever is inserted over them, must always be found.
#[test]
fn readers_find_nothing_that_was_never_there() {
    struct Encode;
    impl Sink for Encode {
        fn publish(&mut self, range: PageRange, _: Attr, _: u64) -> u32 {
            code(range.start(), range.end())
        }
        fn retire(&mut self, slot: u32, range: PageRange, _: Attr) {
            assert_eq!(slot, code(range.start(), range.end()));
        }
    }
    fn code(start: u64, end: u64) -> u32 {
        (((start - BASE) / PAGE) as u32) << 14 ^ ((end - start) / PAGE) as u32 | 1 << 31
    }
    const SPAN: u64 = 6000;
    let view: &'static View = Box::leak(Box::new(View::new()));
    let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let mut l = Ledger::new(view);
    assert!(l.reserve(&mut plenty(), 1));
    // The pages that stay are there before anybody may miss them: one entry over all.
    l.insert(pages(0, SPAN), attr(2), &mut Encode).unwrap();
    let readers: Vec<_> = (0..3)
        .map(|t| {
            std::thread::spawn(move || {
                let hint = Hint::new();
                let (mut x, mut found, mut none, mut busy) = (0x9e37_79b9u64 + t, 0u64, 0u64, 0u64);
                while !stop.load(SeqCst) {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    // The last page of every 50 is never unmapped, only overwritten.
                    let page = if x % 4 == 0 {
                        x % (SPAN / 50) * 50 + 49
                    } else {
                        x % SPAN
                    };
                    let addr = BASE + page * PAGE + 5;
                    let answer = if t == 0 {
                        view.lookup(addr)
                    } else {
                        view.lookup_hinted(addr, &hint)
                    };
                    match answer {
                        Ok(Some(f)) => {
                            assert!(
                                f.start <= addr && addr < f.end,
                                "not the one for the address"
                            );
                            assert_eq!(f.slot, code(f.start, f.end), "torn: {f:?}");
                            assert!(f.attr() == attr(2) && f.id != 0, "torn: {f:?}");
                            found += 1;
                        }
                        Ok(None) => {
                            assert!(page % 50 != 49, "page {page} is always mapped");
                            none += 1;
                        }
                        Err(Busy) => busy += 1,
                    }
                }
                (found, none, busy)
            })
        })
        .collect();
    let started = std::time::Instant::now();
    let mut x = 88_172_645_463_325_252u64;
    while started.elapsed().as_millis() < 1500 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let a = x % SPAN;
        let n = if x >> 40 & 63 == 0 {
            x >> 20 & 2047
        } else {
            x >> 20 & 15
        } + 1;
        let b = (a + n).min(SPAN);
        assert!(l.reserve(&mut plenty(), 4));
        if x >> 60 < 8 {
            l.insert(pages(a, b), attr(2), &mut Encode).unwrap();
        } else {
            // Up to the page that stays.
            let (a, b) = (a, b.min(a / 50 * 50 + 49));
            if a < b {
                l.remove(pages(a, b), &mut Encode, |_, _| ()).unwrap();
            }
        }
    }
    stop.store(true, SeqCst);
    l.check();
    for r in readers {
        let (found, none, busy) = r.join().expect("a reader found something wrong");
        println!("found {found}, none {none}, busy {busy}");
        assert!(found > 1000 && none > 100);
    }
}
