//! The ledger against models that can't be wrong in the same way: one word for each
//! page, `rangemap`, a replay of what the sink was told, and readers that race.

use std::alloc::{alloc_zeroed, Layout};
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use regall_directory::addr::PAGE;
use regall_directory::layout::SlotRef;
use regall_directory::vocab::*;
use std::ptr::NonNull;

use core::ops::ControlFlow;

use regall_directory::addr::PageRange;

use super::*;

mod changes;
mod random;
mod readers;

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
    live: HashMap<SlotRef, (PageRange, Attr, u64)>,
    last: u32,
    full: bool,
    /// What happened in the current change: true: publish.
    told: Vec<(bool, PageRange)>,
}

impl Sink for Recorder {
    fn publish(&mut self, range: PageRange, attr: Attr, id: u64) -> Option<SlotRef> {
        self.told.push((true, range));
        if self.full {
            return None;
        }
        self.last += 1;
        let slot = SlotRef::from_raw(NonZeroU32::new(self.last)?);
        self.live.insert(slot, (range, attr, id));
        Some(slot)
    }

    fn retire(&mut self, slot: Option<SlotRef>, range: PageRange, attr: Attr) {
        self.told.push((false, range));
        let Some(slot) = slot else {
            return;
        };
        let was = self.live.remove(&slot).expect("retired, but not live");
        assert_eq!((was.0, was.1), (range, attr), "{slot:?}");
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
            .map(|e| (e.slot.unwrap(), (e.range, e.attr, e.id)))
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

/// Page `page` of file `inode`, mapped at page `at`.
fn of_file(inode: u64, page: u64, at: u64) -> Option<Origin> {
    Some(Origin::of_file(
        (8, 1),
        inode,
        page * PAGE,
        BASE + at * PAGE,
    ))
}
