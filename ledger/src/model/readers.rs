//! Readers that race with a writer.

use super::*;

/// Gives every entry a slot that says its start and its length.
struct Encode;

impl Sink for Encode {
    fn publish(&mut self, range: PageRange, _: Attr, _: u64) -> Option<SlotRef> {
        code(range.start(), range.end())
    }

    fn retire(&mut self, slot: Option<SlotRef>, range: PageRange, _: Attr) {
        assert_eq!(slot, code(range.start(), range.end()));
    }
}

fn code(start: u64, end: u64) -> Option<SlotRef> {
    let code = (((start - BASE) / PAGE) as u32) << 14 ^ ((end - start) / PAGE) as u32 | 1 << 31;
    NonZeroU32::new(code).map(SlotRef::from_raw)
}

/// Pages that come and go.
const SPAN: u64 = 6000;

/// Looks pages up until it is told to stop, and says how many it found, found unmapped, and found
/// busy.
fn read(t: u64, view: &View, stop: &AtomicBool) -> (u64, u64, u64) {
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
}

/// Maps and unmaps for a while, but never the last page of every 50.
fn write(l: &mut Ledger) {
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
}

/// Readers race with a writer. Every entry's slot encodes its start and its length,
/// so a row put together from two is noticed, and pages that are never unmapped,
/// whatever is inserted over them, must always be found.
#[test]
fn readers_find_nothing_that_was_never_there() {
    let view: &'static View = Box::leak(Box::new(View::new()));
    let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let mut l = Ledger::new(view);
    assert!(l.reserve(&mut plenty(), 1));
    // The pages that stay are there before anybody may miss them: one entry over all.
    l.insert(pages(0, SPAN), attr(2), &mut Encode).unwrap();
    let readers: Vec<_> = (0..3)
        .map(|t| std::thread::spawn(move || read(t, view, stop)))
        .collect();
    write(&mut l);
    stop.store(true, SeqCst);
    l.check();
    for r in readers {
        let (found, none, busy) = r.join().expect("a reader found something wrong");
        println!("found {found}, none {none}, busy {busy}");
        assert!(found > 1000 && none > 100);
    }
}
