use super::*;
use std::vec::Vec;

struct Room {
    slots: Vec<Slot>,
    next: AtomicU64,
    high: AtomicU64,
}

impl Room {
    fn new(slots: usize) -> Self {
        Self {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            next: AtomicU64::new(0),
            high: AtomicU64::new(0),
        }
    }

    fn table(&self) -> Table<'_> {
        Table::new(&self.slots, &self.next, &self.high)
    }
}

fn at(start: u64, end: u64, handle: u64) -> Registration {
    Registration {
        start,
        end,
        handle,
        ..Registration::default()
    }
}

/// The slot of the only registration.
fn only(room: &Room) -> &Slot {
    room.slots
        .iter()
        .find(|s| s.read().is_some())
        .expect("a registration")
}

#[test]
fn registrations_come_and_go() {
    let room = Room::new(2);
    let table = room.table();
    assert_eq!(table.add(&at(0x1000, 0x2000, 7), |_| ()), Some((0, 1)));
    assert_eq!(table.add(&at(0x1000, 0x2000, 8), |_| ()), Some((1, 2)));
    assert_eq!(table.add(&at(0x1000, 0x2000, 9), |_| ()), None);
    assert!(table.take(9).is_none());
    let (slot, was, lost) = table.take(7).unwrap();
    assert_eq!((slot, was.serial, lost), (0, 1, 0));
    assert!(table.take(7).is_none());
    assert!(!table.holds(0, 1) && table.holds(1, 2));
    // The real call has failed.
    assert_eq!(table.put_back(&was, |_| ()), Some(0));
    assert_eq!(table.take(7).unwrap().1, was);
    table.forget();
    let mut left = 0;
    table.each(|_, _, _| left += 1);
    assert_eq!(left, 0);
}

#[test]
fn who_was_there_before_is_known_by_the_number() {
    let room = Room::new(4);
    let table = room.table();
    let (_, before) = table.add(&at(0x1000, 0x2000, 1), |_| ()).unwrap();
    let now = table.now();
    let (_, after) = table.add(&at(0x1000, 0x2000, 2), |_| ()).unwrap();
    assert!(before < now && now <= after);
}

#[test]
fn a_range_is_said_to_be_gone_once() {
    let room = Room::new(1);
    room.table().add(&at(0x1000, 0x9000, 1), |_| ()).unwrap();
    let slot = only(&room);
    let gone = |start, end| slot.lose(1, (start, end), How::Unmapped, false);
    assert_eq!(gone(0x1000, 0x3000), Noted::New(0));
    slot.said(0, 42);
    assert_eq!(gone(0x1000, 0x3000), Noted::Known);
    assert_eq!(gone(0x2000, 0x3000), Noted::Known);
    assert_eq!(gone(0x2000, 0x4000), Noted::New(1));
    assert_eq!(gone(0x4000, 0x5000), Noted::New(2));
    assert_eq!(gone(0x5000, 0x6000), Noted::New(3));
    assert_eq!(gone(0x6000, 0x7000), Noted::Full);
    assert_eq!(slot.lost().next().unwrap().id, 42);
    assert_eq!(room.table().take(1).unwrap().2, 42);
    // The next one in the slot has lost nothing.
    room.table().add(&at(0x1000, 0x9000, 2), |_| ()).unwrap();
    assert_eq!(only(&room).lost().count(), 0);
}

#[test]
fn what_leaves_the_pages_is_said_once_and_takes_no_place() {
    let room = Room::new(1);
    room.table().add(&at(0x1000, 0x9000, 1), |_| ()).unwrap();
    let slot = only(&room);
    for how in [How::Inaccessible, How::Freed] {
        let said = slot.lose(1, (0x1000, 0x2000), how, false);
        assert_eq!(said, Noted::New(LOSSES));
        assert_eq!(slot.lose(1, (0x3000, 0x4000), how, false), Noted::Known);
    }
    assert_eq!(slot.lost().count(), 0);
    assert_eq!(slot.used(0x1000, 0x2000), None);
}

#[test]
fn memory_comes_back_once_and_only_where_it_was_gone() {
    let room = Room::new(1);
    room.table().add(&at(0x1000, 0x9000, 1), |_| ()).unwrap();
    let slot = only(&room);
    slot.lose(1, (0x2000, 0x3000), How::Unmapped, false);
    let back = |start, end| {
        let mut seen = 0;
        slot.regain(start, end, |_| seen += 1);
        seen
    };
    assert_eq!(back(0x1000, 0x2000), 0);
    assert_eq!(back(0x3000, 0x9000), 0);
    assert_eq!(back(0x2fff, 0x4000), 1);
    assert_eq!(back(0x2000, 0x3000), 0);
}

#[test]
fn a_request_is_wrong_only_where_memory_is_gone() {
    let room = Room::new(1);
    room.table().add(&at(0x1000, 0x9000, 1), |_| ()).unwrap();
    let slot = only(&room);
    slot.lose(1, (0x2000, 0x3000), How::Discarded, true);
    assert_eq!(slot.used(0x1000, 0x2000), None);
    assert_eq!(slot.used(0x3000, 0x4000), None);
    assert!(slot.used(0x2800, 0x2801).is_some());
    // Said once.
    assert_eq!(slot.used(0x2800, 0x2801), None);
}

/// Its pages are where the program has them now, until other memory is at the old address.
#[test]
fn what_was_moved_may_be_named_until_others_come() {
    let room = Room::new(1);
    room.table().add(&at(0x1000, 0x9000, 1), |_| ()).unwrap();
    let slot = only(&room);
    slot.lose(1, (0x1000, 0x9000), How::Moved, false);
    assert_eq!(slot.used(0x1000, 0x2000), None);
    slot.regain(0x1000, 0x2000, |_| ());
    assert!(slot.used(0x1000, 0x2000).is_some());
}

/// Whoever was about to note it comes too late: the slot is another registration's.
#[test]
fn a_loss_of_one_that_has_ended_is_not_the_next_ones() {
    let room = Room::new(1);
    let table = room.table();
    let (_, old) = table.add(&at(0x1000, 0x9000, 1), |_| ()).unwrap();
    table.take(1).unwrap();
    table.add(&at(0x1000, 0x9000, 2), |_| ()).unwrap();
    let slot = only(&room);
    slot.lose(old, (0x1000, 0x9000), How::Unmapped, true);
    assert_eq!(slot.lost().count(), 0);
    assert_eq!(slot.used(0x1000, 0x2000), None);
}

/// Many threads at one table: each gets back what it put in.
#[test]
fn threads_do_not_disturb_each_other() {
    let room = Room::new(8);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let room = &room;
            scope.spawn(move || {
                for n in 0..2000u64 {
                    let mine = at(thread << 32, (thread << 32) + n + 1, thread + 1);
                    let (slot, serial) = room.table().add(&mine, |_| ()).expect("room");
                    let (was, found, _) = room.table().take(thread + 1).expect("mine");
                    assert_eq!((was, found), (slot, Registration { serial, ..mine }));
                }
            });
        }
    });
    assert!(room.slots.iter().all(|s| s.read().is_none()));
}

#[test]
fn what_was_registered_before_is_found() {
    let room = Room::new(4);
    let table = room.table();
    let with = |of: Registration, serial| Registration { serial, ..of };
    let first = with(at(0x1000, 0x2000, 7), 1);
    table.add(&first, |_| ());
    assert_eq!(table.earlier(&first), None, "itself");
    table.add(&at(0x1000, 0x3000, 8), |_| ());
    let again = with(at(0x1000, 0x2000, 9), 3);
    assert_eq!(table.earlier(&again), Some((0, first)));
    for other in [
        Registration { pd: 1, ..again },
        Registration { access: 1, ..again },
        Registration {
            end: 0x2001,
            ..again
        },
    ] {
        assert_eq!(table.earlier(&other), None);
    }
    table.take(7);
    assert_eq!(table.earlier(&again), None);
}

/// All words of a registration come back, by each way to it.
#[test]
fn a_registration_is_whole() {
    let room = Room::new(2);
    let table = room.table();
    let new = Registration {
        start: 0x1000,
        end: 0x2000,
        keys: 1,
        access: 2,
        shift: 3,
        handle: 4,
        pd: 5,
        context: 6,
        serial: 0,
    };
    let mut prepared = Vec::new();
    table.add(&at(0, 1, 9), |n| prepared.push(n)).unwrap();
    table.add(&new, |n| prepared.push(n)).unwrap();
    let whole = Registration { serial: 2, ..new };
    let mut each = Vec::new();
    table.each(|n, slot, found| each.push((n, slot.read() == Some(*found), *found)));
    assert_eq!(each[1], (1, true, whole));
    assert_eq!((each.len(), each[0].0), (2, 0));
    assert_eq!(table.take(4), Some((1, whole, 0)));
    table.put_back(&whole, |n| prepared.push(n)).unwrap();
    assert_eq!(prepared, [0, 1, 1]);
    assert_eq!(table.take(4), Some((1, whole, 0)));
    // What is being filled is not a registration.
    room.slots[1].serial.store(BUSY, Relaxed);
    assert!(room.slots[1].read().is_none() && table.take(4).is_none());
    assert_eq!(table.now(), 3);
}

#[test]
fn the_part_of_a_range_that_is_covered() {
    let mr = at(0x2000, 0x5000, 1);
    for (start, end, part) in [
        (0x1000, 0x3000, Some((0x2000, 0x3000))),
        (0x4000, 0x9000, Some((0x4000, 0x5000))),
        (0x1000, 0x9000, Some((0x2000, 0x5000))),
        (0x1000, 0x2000, None),
        (0x5000, 0x6000, None),
        (0x4fff, 0x5000, Some((0x4fff, 0x5000))),
    ] {
        assert_eq!(mr.part(start, end), part);
    }
}

#[test]
fn a_child_starts_anew() {
    let room = Room::new(3);
    let table = room.table();
    for n in 0..3 {
        table.add(&at(0, 1, n), |_| ()).unwrap();
    }
    assert!(table.holds(2, 3) && !table.holds(2, 2) && !table.holds(3, 0));
    table.forget();
    assert_eq!(room.high.load(Relaxed), 0);
    assert!(room.slots.iter().all(|s| s.serial.load(Relaxed) == 0));
    assert_eq!(table.add(&at(0, 1, 7), |_| ()), Some((0, 4)));
    assert_eq!(room.high.load(Relaxed), 1);
}

/// Each range as it went, and the record's id beside it.
#[test]
fn a_loss_is_told_as_it_was() {
    let room = Room::new(1);
    room.table().add(&at(0x1000, 0x9000, 1), |_| ()).unwrap();
    let slot = only(&room);
    slot.lose(1, (0x2000, 0x3000), How::Shrunk, false);
    slot.lose(1, (0x4000, 0x5000), How::Replaced, true);
    slot.said(1, 0x1234_5678_9abc);
    slot.said(LOSSES, 1);
    let lost = |start, end, how, id, back| Lost {
        start,
        end,
        how,
        id,
        back,
    };
    let all: Vec<_> = slot.lost().collect();
    let expected = [
        lost(0x2000, 0x3000, How::Shrunk, 0, false),
        lost(0x4000, 0x5000, How::Replaced, 0x1234_5678_9abc, true),
    ];
    assert_eq!(all, expected);
    let mut back = Vec::new();
    slot.regain(0x2fff, 0x4001, |l| back.push(l));
    assert_eq!(back, expected[..1]);
    assert!(slot.lost().all(|l| l.back));
    // The record that tells of a use has the first range that it meets.
    assert_eq!(slot.used(0x2fff, 0x4001).map(|l| l.start), Some(0x2000));
    assert_eq!(slot.used(0x2fff, 0x4001).map(|l| l.start), Some(0x4000));
    assert_eq!(slot.used(0x2fff, 0x4001), None);
    assert_eq!(room.table().take(1).unwrap().2, 0x1234_5678_9abc);
}

/// A part that sticks out of what was lost is not known yet.
#[test]
fn what_was_said_covers_the_whole_range() {
    let room = Room::new(1);
    room.table().add(&at(0x1000, 0x9000, 1), |_| ()).unwrap();
    let slot = only(&room);
    let gone = |start, end| slot.lose(1, (start, end), How::Unmapped, false);
    assert_eq!(gone(0x3000, 0x5000), Noted::New(0));
    assert_eq!(gone(0x2000, 0x5000), Noted::New(1));
    assert_eq!(gone(0x2000, 0x6000), Noted::New(2));
    assert_eq!(gone(0x3000, 0x6000), Noted::Known);
    // A place that is being filled is not one.
    slot.losses[3].end.store(BUSY, Relaxed);
    assert_eq!(slot.lost().count(), 3);
    assert_eq!(gone(0x1000, 0x2000), Noted::Full);
}
