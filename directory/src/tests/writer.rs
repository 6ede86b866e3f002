//! A directory in memory, written by its writer and read as readers do.

use crate::addr::PageRange;
use crate::layout::{segment_bytes, Header, Slot, SlotRef, HEADER_BYTES, SEGMENT0_SLOTS, SEGMENTS};
use crate::reader::{self, read_slot, Published};
use crate::vocab::{Access, Attr, Column, Flags, Kind, Prot, Reason};
use crate::writer::*;
use core::num::NonZeroU32;
use core::ptr::NonNull;
use std::alloc::{alloc_zeroed, Layout};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that is never given back; so many segments and lists of links.
struct Room {
    segments: usize,
    lists: usize,
    /// Bytes of each list, in the order in which they were asked for.
    asked: Vec<usize>,
}

impl Room {
    fn new(segments: usize, lists: usize) -> Self {
        Self {
            segments,
            lists,
            asked: Vec::new(),
        }
    }
}

fn zeroed<T>(bytes: usize) -> Option<NonNull<T>> {
    let layout = Layout::from_size_align(bytes, 64).unwrap();
    // SAFETY: nobody asks for 0 bytes.
    NonNull::new(unsafe { alloc_zeroed(layout) }.cast())
}

impl Backing for Room {
    fn segment(&mut self, k: usize) -> Option<NonNull<Slot>> {
        self.segments = self.segments.checked_sub(1)?;
        zeroed(segment_bytes(k))
    }

    fn private(&mut self, bytes: usize) -> Option<NonNull<u32>> {
        self.lists = self.lists.checked_sub(1)?;
        self.asked.push(bytes);
        zeroed(bytes)
    }
}

fn attached() -> Writer {
    let mut writer = Writer::default();
    // SAFETY: it is leaked.
    unsafe { writer.attach(zeroed(HEADER_BYTES).unwrap()) };
    writer
}

fn pages(from: u64, to: u64) -> PageRange {
    PageRange::new(from << 12, to << 12).unwrap()
}

fn attr() -> Attr {
    Attr {
        prot: Prot::from_call(3, false),
        kind: Kind::File,
        flags: Flags::TAIL,
        pin: Column::YES,
        hca: Column::no(Reason::Off),
    }
}

/// Publishes page `n`, as entry `n`.
fn publish(writer: &mut Writer, n: u64) -> Option<SlotRef> {
    let generation = writer.next_generation();
    writer.publish(generation, pages(n, n + 1), attr(), n)
}

/// Returns what a reader sees: ids of ranges by the numbers of their slots.
fn seen(writer: &Writer) -> Vec<(usize, u64)> {
    let slots = writer.segments().flatten().enumerate();
    let read = slots.filter_map(|(n, slot)| match read_slot(slot).unwrap()? {
        Published::Range(entry) => Some((n, entry.id)),
        Published::Region(_) => None,
    });
    read.collect()
}

fn word(writer: &Writer, of: impl Fn(&Header) -> &AtomicU64) -> u64 {
    of(writer.header().unwrap()).load(Ordering::Relaxed)
}

#[test]
fn what_is_published_is_read() {
    let mut writer = attached();
    assert!(writer.reserve(&mut Room::new(1, 1), 2));
    let generation = writer.next_generation();
    assert_eq!(generation.get(), 1);
    let slot = writer.publish(generation, pages(5, 9), attr(), 77).unwrap();
    assert_eq!(slot.number(), 0);
    let region = Region {
        domain: 3 | 8 << 32,
        keys: 0x11 | 0x22 << 32,
    };
    let access = Access::REMOTE_READ;
    let next = writer.next_generation();
    assert_eq!((next.get(), word(&writer, |h| &h.generation)), (2, 2));
    let slot = writer.publish_region(next, pages(6, 7), access, 78, region);
    assert_eq!(slot.unwrap().number(), 1);
    assert_eq!(word(&writer, |h| &h.high_water), 2);
    let first = writer.segments().next().unwrap();
    assert_eq!(first.len(), 2);
    assert_eq!(
        read_slot(&first[0]),
        Ok(Some(Published::Range(reader::Entry {
            generation,
            range: pages(5, 9),
            attr: attr(),
            id: 77,
        })))
    );
    assert_eq!(
        read_slot(&first[1]),
        Ok(Some(Published::Region(reader::Region {
            generation: next,
            range: pages(6, 7),
            domain: 3,
            pd: 8,
            access,
            id: 78,
            lkey: 0x11,
            rkey: 0x22,
        })))
    );
}

#[test]
fn a_slot_that_is_free_again_is_taken_first() {
    let mut writer = attached();
    assert!(writer.reserve(&mut Room::new(1, 1), 1));
    let slots: Vec<_> = (0..4).map(|n| publish(&mut writer, n).unwrap()).collect();
    assert_eq!(writer.free_slots(), SEGMENT0_SLOTS - 4);
    writer.retire(slots[2]);
    writer.retire(slots[0]);
    assert_eq!(seen(&writer), [(1, 1), (3, 3)]);
    assert_eq!(writer.free_slots(), SEGMENT0_SLOTS - 2);
    // Not in use any more, never in use, and not there.
    let far = |n| SlotRef::from_raw(NonZeroU32::new(n).unwrap());
    for slot in [slots[0], far(9), far(1 << 20), far(u32::MAX)] {
        writer.retire(slot);
    }
    assert_eq!(writer.free_slots(), SEGMENT0_SLOTS - 2);
    for n in [10, 11, 12] {
        publish(&mut writer, n).unwrap();
    }
    assert_eq!(seen(&writer), [(0, 10), (1, 1), (2, 11), (3, 3), (4, 12)]);
    assert_eq!(word(&writer, |h| &h.high_water), 5);
    assert_eq!(writer.free_slots(), SEGMENT0_SLOTS - 5);
}

#[test]
fn room_is_made_segment_by_segment() {
    let mut writer = attached();
    let mut room = Room::new(3, 3);
    assert!(writer.reserve(&mut room, 0));
    assert_eq!(word(&writer, |h| &h.segments), 0);
    assert!(writer.reserve(&mut room, SEGMENT0_SLOTS));
    assert_eq!(word(&writer, |h| &h.segments), 1);
    assert!(writer.reserve(&mut room, SEGMENT0_SLOTS + 1));
    assert_eq!(word(&writer, |h| &h.segments), 2);
    assert_eq!(writer.free_slots(), 3 * SEGMENT0_SLOTS);
    assert_eq!(room.asked, [4 * SEGMENT0_SLOTS, 8 * SEGMENT0_SLOTS]);
    assert!(writer.segment_base(1).is_some() && writer.segment_base(2).is_none());
    assert!(writer.segment_base(SEGMENTS).is_none());
    let all = SEGMENT0_SLOTS as u64 + 5;
    for n in 0..all {
        assert_eq!(publish(&mut writer, n).unwrap().number() as u64, n);
    }
    let lengths: Vec<_> = writer.segments().map(<[Slot]>::len).collect();
    assert_eq!(lengths, [SEGMENT0_SLOTS, 5]);
    assert_eq!(seen(&writer).last(), Some(&(all as usize - 1, all - 1)));
    let second = writer.segments().nth(1).unwrap();
    assert_eq!(
        Some(second.as_ptr()),
        writer.segment_base(1).map(|b| b.as_ptr().cast_const())
    );
}

#[test]
fn what_finds_no_slot_is_counted() {
    let mut writer = attached();
    assert_eq!(publish(&mut writer, 0), None);
    assert_eq!(
        (writer.unpublished(), word(&writer, |h| &h.unpublished)),
        (1, 1)
    );
    let mut room = Room::new(1, 2);
    assert!(writer.reserve(&mut room, 1));
    assert!(!writer.reserve(&mut room, SEGMENT0_SLOTS + 1));
    assert_eq!(word(&writer, |h| &h.segments), 1);
    for n in 0..SEGMENT0_SLOTS as u64 {
        publish(&mut writer, n).unwrap();
    }
    assert_eq!(publish(&mut writer, 0), None);
    assert_eq!((writer.unpublished(), writer.free_slots()), (2, 0));
    writer.unpublished_gone();
    assert_eq!(
        (writer.unpublished(), word(&writer, |h| &h.unpublished)),
        (1, 1)
    );
    writer.unpublished_gone();
    writer.unpublished_gone();
    assert_eq!(word(&writer, |h| &h.unpublished), 0);
    // The list that the failed attempt got is used now.
    let mut room = Room::new(1, 0);
    assert!(writer.reserve(&mut room, 1));
    assert_eq!(writer.free_slots(), 2 * SEGMENT0_SLOTS);
    assert!(!writer.reserve(&mut Room::new(1, 0), 2 * SEGMENT0_SLOTS + 1));
}

#[test]
fn there_is_no_room_in_no_file() {
    let mut writer = Writer::new();
    assert!(writer.header().is_none());
    assert!(!writer.reserve(&mut Room::new(1, 1), 1));
    assert_eq!(publish(&mut writer, 0), None);
    assert_eq!((writer.unpublished(), writer.free_slots()), (1, 0));
}

/// Generations go on, what was in use is not, and lists are used again.
#[test]
fn a_new_file_is_empty() {
    let mut writer = attached();
    let mut room = Room::new(2, 1);
    assert!(writer.reserve(&mut room, 1));
    let slots: Vec<_> = (0..3).map(|n| publish(&mut writer, n).unwrap()).collect();
    writer.retire(slots[1]);
    // SAFETY: it is leaked.
    unsafe { writer.attach(zeroed(HEADER_BYTES).unwrap()) };
    assert_eq!((writer.free_slots(), writer.segments().count()), (0, 0));
    // No slot of the file before is freed.
    writer.retire(slots[0]);
    assert_eq!(writer.free_slots(), 0);
    assert!(writer.reserve(&mut room, 1));
    assert_eq!(room.asked.len(), 1);
    writer.retire(slots[0]);
    assert_eq!(writer.free_slots(), SEGMENT0_SLOTS);
    assert_eq!(publish(&mut writer, 9).unwrap().number(), 0);
    assert_eq!(word(&writer, |h| &h.generation), 4);
    assert_eq!(seen(&writer), [(0, 9)]);
}

#[test]
fn counters_are_added_to() {
    let counter = AtomicU64::new(3);
    add(&counter, 4);
    assert_eq!(counter.load(Ordering::Relaxed), 7);
    add(&counter, 1_u64.wrapping_neg());
    assert_eq!(counter.load(Ordering::Relaxed), 6);
}
