//! Slots as a writer may leave them, and as nobody would.

use proptest::prelude::*;

use super::*;
use regall_directory::vocab::{Attr, Column, Flags, Kind, Prot, Reason};

fn attr() -> Attr {
    Attr {
        prot: Prot::from_call(3, false),
        kind: Kind::Anon,
        flags: Flags::EMPTY,
        pin: Column::YES,
        hca: Column::no(Reason::Off),
    }
}

fn slots(words: &[u64]) -> impl Iterator<Item = [u64; SLOT_WORDS]> + '_ {
    let slots = words.chunks_exact(SLOT_WORDS);
    slots.map(|slot| slot.try_into().unwrap())
}

/// Words such as a slot has, some of them absurd.
fn any_slot() -> impl Strategy<Value = [u64; SLOT_WORDS]> {
    let page = || prop_oneof![4 => (0u64..64).prop_map(|p| p << 12), 1 => any::<u64>()];
    let word = prop_oneof![
        4 => Just(attr().pack()),
        4 => 0u64..64,
        1 => any::<u64>()
    ];
    let domain = prop_oneof![
        4 => Just(0),
        4 => (0u64..3, 1u64..4).prop_map(|(pd, n)| pd << 32 | n),
        1 => any::<u64>()
    ];
    (
        0u64..20,
        page(),
        page(),
        word,
        0u64..4,
        any::<u64>(),
        domain,
    )
        .prop_map(|(g, start, end, attr, id, keys, d)| [g, start, end, attr, id, keys, d, 0])
}

/// Slots as a writer may leave them: domain (0: a range), start, length and
/// generation by small numbers, with the id from their order.
fn good_slots(all: &[(u64, u64, u64, u64)]) -> Vec<u64> {
    let slot = |(id, &(domain, start, len, generation)): (usize, &(u64, u64, u64, u64))| {
        let what = if domain == 0 { attr().pack() } else { 1 };
        let (start, end) = (start << 12, (start + len) << 12);
        [generation, start, end, what, id as u64, 0, domain, 0]
    };
    all.iter().enumerate().flat_map(slot).collect()
}

proptest! {
    #[test]
    fn random_words_never_make_it_panic(words in proptest::collection::vec(any::<u64>(), 0..2000)) {
        let _ = lists(slots(&words));
    }

    #[test]
    fn random_slots_come_out_sorted_or_corrupt(all in proptest::collection::vec(any_slot(), 0..40)) {
        // All at once are mostly corrupt, each half of them and each alone less so.
        let (half, alone) = (all.len() / 2 + 1, 1);
        for part in [all.len().max(1), half, alone].into_iter().flat_map(|n| all.chunks(n)) {
            let Ok((entries, regions)) = lists(part.iter().copied()) else { continue };
            prop_assert!(entries.windows(2).all(|w| w[0].range.end() <= w[1].range.start()));
            prop_assert!(regions.iter().all(|r| r.domain != 0));
            let apart = |w: &[Region]| match w[0].domain.cmp(&w[1].domain) {
                std::cmp::Ordering::Less => true,
                std::cmp::Ordering::Equal => w[0].range.end() <= w[1].range.start(),
                std::cmp::Ordering::Greater => false,
            };
            prop_assert!(regions.windows(2).all(apart));
        }
    }

    #[test]
    fn each_page_has_its_newest_of_each_list(
        all in proptest::collection::vec((0u64..4, 0u64..60, 1u64..20, 1u64..30), 0..40)
    ) {
        let (entries, regions) = lists(slots(&good_slots(&all))).unwrap();
        for (domain, page) in (0..4).flat_map(|d| (0..90).map(move |p| (d, p))) {
            let slots = all.iter().enumerate();
            let has = |&(_, &(d, start, len, _)): &(usize, &(u64, u64, u64, u64))| {
                d == domain && start <= page && page < start + len
            };
            let newest = slots.filter(has).map(|(id, s)| (s.3, id as u64)).max();
            let expected: Vec<u64> = newest.map(|(_, id)| id).into_iter().collect();
            let at = page << 12;
            let found: Vec<u64> = match domain {
                0 => entries.iter().filter(|e| e.range.contains(at)).map(|e| e.id).collect(),
                d => regions.iter().filter(|r| u64::from(r.domain) == d)
                    .filter(|r| r.range.contains(at)).map(|r| r.id).collect(),
            };
            prop_assert_eq!(found, expected);
        }
    }
}
