//! Single changes, and what becomes of the entries beside them.

use super::*;

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
fn a_full_directory_gives_no_slot() {
    let mut rig = Rig::new();
    rig.sink.full = true;
    rig.insert(pages(0, 10), attr(0));
    rig.remove(pages(3, 4));
    assert!(rig.entries().iter().all(|e| e.slot.is_none()));
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
