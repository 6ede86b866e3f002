//! What the directory is told of the ledger's changes.

use super::*;
use crate::ledger::Memory;
use core::ptr::NonNull;
use regall_directory::layout::{segment_bytes, Slot};
use regall_directory::vocab::Kind;
use regall_directory::writer::Backing;
use std::alloc::{alloc_zeroed, Layout};
use std::collections::HashSet;

struct Heap;

impl Heap {
    fn zeroed<T>(bytes: usize) -> Option<NonNull<T>> {
        let layout = Layout::from_size_align(bytes, 64).unwrap();
        // SAFETY: `bytes` is not 0.
        NonNull::new(unsafe { alloc_zeroed(layout) }).map(NonNull::cast)
    }
}

impl Backing for Heap {
    fn segment(&mut self, k: usize) -> Option<NonNull<Slot>> {
        Self::zeroed(segment_bytes(k))
    }
    fn private(&mut self, bytes: usize) -> Option<NonNull<u32>> {
        Self::zeroed(bytes)
    }
}

// SAFETY: zeroed, aligned to 64, fresh, and never freed.
unsafe impl Memory for Heap {
    fn alloc(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        Self::zeroed(bytes)
    }
}

/// Passes on, and looks at what stands in the slot.
struct Noting<'a> {
    to: Publish<'a>,
    seen: HashSet<(SlotRef, u64)>,
    again: usize,
}

impl Sink for Noting<'_> {
    fn publish(&mut self, range: PageRange, attr: Attr, id: u64) -> Option<SlotRef> {
        let slot = self.to.publish(range, attr, id)?;
        let base = self.to.writer.segment_base(0).unwrap();
        // SAFETY: a slot of the first segment, which the writer has just filled.
        let filled = unsafe { base.add(slot.number()).as_ref() };
        let generation = filled.generation.load(Relaxed);
        let highest = self.to.writer.header().unwrap().generation.load(Relaxed);
        assert!(generation <= highest);
        self.again += usize::from(self.seen.iter().any(|(s, _)| *s == slot));
        assert!(
            self.seen.insert((slot, generation)),
            "slot {slot:?} is filled again, as {generation}"
        );
        Some(slot)
    }

    fn retire(&mut self, slot: Option<SlotRef>, range: PageRange, attr: Attr) {
        self.to.retire(slot, range, attr);
    }
}

/// A peer takes a slot with the generation that it knows for the entry that it knows.
#[test]
fn no_two_entries_of_one_change_have_the_same_generation() {
    static VIEW: crate::ledger::View = crate::ledger::View::new();
    let mut writer = Writer::new();
    let header = Heap::zeroed(regall_directory::layout::HEADER_BYTES).unwrap();
    // SAFETY: zeroed, and never freed.
    unsafe { writer.attach(header) };
    assert!(writer.reserve(&mut Heap, 200));
    let mut ledger = Ledger::new(&VIEW);
    assert!(ledger.reserve(&mut Heap, 100));
    let generation = writer.next_generation();
    let mut sink = Noting {
        to: Publish {
            writer: &mut writer,
            generation,
        },
        seen: HashSet::new(),
        again: 0,
    };
    let of = |bits| Attr {
        prot: Prot::from_bits(bits),
        kind: Kind::Anon,
        flags: Flags::from_bits(0),
        pin: Column::YES,
        hca: Column::no(Reason::Off),
    };
    let pages =
        |from: u64, to: u64| PageRange::new(0x10000 + from * 4096, 0x10000 + to * 4096).unwrap();
    for n in 0..40 {
        let range = pages(n, n + 1);
        ledger
            .insert(range, of(1 + 2 * (n as u8 & 1)), &mut sink)
            .unwrap();
    }
    // mprotect over all of it: entry after entry becomes like the one before it, or like none.
    ledger
        .update(pages(0, 40), &mut sink, |part, attr| {
            match part.start() >> 12 & 4 {
                0 => of(3),
                _ => Attr {
                    prot: Prot::from_bits(attr.prot.bits() ^ 2),
                    ..attr
                },
            }
        })
        .unwrap();
    assert!(sink.again > 10, "slots are filled again in one change");
}

/// Every process of the same user can write the header.
#[test]
fn what_others_write_over_the_generation_is_not_taken_up() {
    let mut state = State::new();
    let header = Heap::zeroed(regall_directory::layout::HEADER_BYTES).unwrap();
    // SAFETY: zeroed, and never freed.
    unsafe { state.writer.attach(header) };
    let first = state.generation();
    state.header().unwrap().generation.store(0, Relaxed);
    let second = state.generation();
    assert!(second > first, "an entry gets the generation of another");
    let shown = state.header().unwrap().generation.load(Relaxed);
    assert_eq!(Generation::from_raw(shown), second);
    // The file is used again (a program that left its calls in progress behind).
    // SAFETY: as above.
    unsafe { state.writer.attach(header) };
    assert!(
        state.generation() > second,
        "entries before it had that one"
    );
}
