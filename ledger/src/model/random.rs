//! Random changes, against one word for each page, `rangemap` and a `BTreeMap`.

use super::*;
use proptest::prelude::*;

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
