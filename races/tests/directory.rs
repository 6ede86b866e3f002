//! One writer of a directory and its readers.

use core::ptr::NonNull;
use loom::model::Builder;
use loom::thread;
use regall_races::addr::PageRange;
use regall_races::atomic::{begin, know, time_for};
use regall_races::layout::{segment_bytes, Generation, Header, Slot, SlotRef, HEADER_BYTES};
use regall_races::reader::{read_slot, Published};
use regall_races::vocab::{Attr, Column, Flags, Kind, Prot, Reason};
use regall_races::writer::{Backing, Writer};
use std::alloc::{alloc_zeroed, Layout};
use std::time::Duration;

/// Slots that the tests use.
const SLOTS: usize = 2;

fn zeroed<T>(bytes: usize) -> NonNull<T> {
    let layout = Layout::from_size_align(bytes, 64).expect("a size");
    // SAFETY: not of no bytes.
    NonNull::new(unsafe { alloc_zeroed(layout) })
        .expect("memory")
        .cast()
}

/// Memory that is used in all runs; loom knows its words anew in each.
#[derive(Clone, Copy)]
struct Files {
    header: NonNull<Header>,
    slots: NonNull<Slot>,
    links: NonNull<u32>,
}

// SAFETY: nothing but atomics is shared; the links are the writer's alone.
unsafe impl Send for Files {}
// SAFETY: likewise.
unsafe impl Sync for Files {}

impl Files {
    fn new() -> Self {
        Self {
            header: zeroed(HEADER_BYTES),
            slots: zeroed(segment_bytes(0)),
            links: zeroed(segment_bytes(0) / 16),
        }
    }

    /// A writer of an empty directory.
    fn writer(mut self) -> Writer {
        begin();
        know(self.header.as_ptr().cast(), 16 * 8);
        know(self.slots.as_ptr().cast(), SLOTS * size_of::<Slot>());
        let mut writer = Writer::new();
        // SAFETY: never freed, and zeroed as far as loom is told; the links of what was used
        // are written before they are read.
        unsafe {
            std::ptr::write_bytes(self.links.as_ptr(), 0, segment_bytes(0) / 64);
            writer.attach(self.header);
        }
        assert!(writer.reserve(&mut self, SLOTS));
        writer
    }

    fn slot(&self, n: usize) -> &'static Slot {
        // SAFETY: one of the segment's, which is never freed.
        unsafe { self.slots.add(n).as_ref() }
    }
}

impl Backing for Files {
    fn segment(&mut self, _: usize) -> Option<NonNull<Slot>> {
        Some(self.slots)
    }
    fn private(&mut self, _: usize) -> Option<NonNull<u32>> {
        Some(self.links)
    }
}

fn attr() -> Attr {
    Attr {
        prot: Prot::from_bits(3),
        kind: Kind::Anon,
        flags: Flags::from_bits(0),
        pin: Column::YES,
        hca: Column::no(Reason::Off),
    }
}

/// The entry of which all fields tell the number.
fn publish(writer: &mut Writer, generation: u64, n: u64) -> SlotRef {
    let range = PageRange::new(n << 20, (n << 20) + (n << 12)).expect("a range");
    writer
        .publish(Generation::from_raw(generation), range, attr(), n)
        .expect("a slot")
}

/// Its number, if the slot has one; it must be whole.
fn number(slot: &Slot) -> Option<u64> {
    let Published::Range(entry) = read_slot(slot).expect("nothing that no writer writes")? else {
        panic!("a region");
    };
    let n = entry.id;
    assert_eq!(entry.range.start(), n << 20, "torn");
    assert_eq!(entry.range.len(), n << 12, "torn");
    assert_eq!(entry.attr, attr());
    Some(n)
}

/// In every order, unless that takes longer than it may.
fn check(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    builder.max_duration = Some(time_for(Duration::from_secs(20)));
    builder.check(test);
}

#[test]
fn an_entry_is_whole_or_not_there() {
    let files = Files::new();
    check(move || {
        let mut writer = files.writer();
        let first = publish(&mut writer, 1, 1);
        let reader = thread::spawn(move || {
            if let Some(n) = number(files.slot(0)) {
                assert!(n == 1 || n == 2);
            }
        });
        writer.retire(first);
        publish(&mut writer, 2, 2);
        reader.join().expect("a reader");
    });
}

#[test]
fn who_misses_an_entry_sees_what_has_replaced_it() {
    let files = Files::new();
    check(move || {
        let mut writer = files.writer();
        let first = publish(&mut writer, 1, 1);
        let reader = thread::spawn(move || {
            let (old, new) = (number(files.slot(0)), number(files.slot(1)));
            assert!(old.is_some() || new == Some(2));
        });
        publish(&mut writer, 2, 2);
        writer.retire(first);
        reader.join().expect("a reader");
    });
}

/// What two entries of one generation would come to: so the model sees it, and so the writer's
/// caller must never give one twice.
#[test]
#[should_panic(expected = "torn")]
fn a_generation_used_twice_tears() {
    let files = Files::new();
    check(move || {
        let mut writer = files.writer();
        let first = publish(&mut writer, 1, 1);
        let reader = thread::spawn(move || {
            number(files.slot(0));
        });
        writer.retire(first);
        publish(&mut writer, 1, 2);
        reader.join().expect("a reader");
    });
}
