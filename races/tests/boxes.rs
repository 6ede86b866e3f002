//! A box: a sender and its receiver at the ring, its turn, the summary and the mailbox.

use regall_races::boxes::layout::{Head, Kind, Shape, CELL_HEAD};
use regall_races::boxes::mailbox::{Holder, Mailbox, Sender, Waiting};
use regall_races::boxes::ring::{Control, Found, Lines, No, Reader, Writer};
use regall_races::boxes::summary::{Summary, EVENT, SLEEPS};
use regall_races::{atomic, hint, sys};
use std::alloc::{alloc_zeroed, Layout};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Lines of the ring: one is always free.
const LINES: usize = 4;
const LIMIT: u64 = 200;
const PID: u32 = 7;

/// A ring and its summary.
#[repr(C, align(128))]
struct Ring {
    lines: [[u64; 8]; LINES],
    control: Control,
    summary: Summary,
}

/// Where a ring is, with a turn in it.
#[derive(Clone, Copy)]
struct At {
    ring: &'static Ring,
    whose: u64,
}

fn check(test: impl Fn() + Sync + Send + 'static) {
    atomic::check(Duration::from_secs(6), test);
}

impl At {
    /// A ring that was claimed, at whose beginning nobody looks.
    fn begin() -> (Self, &'static Writer) {
        thread_local! {
            static RING: NonNull<Ring> = {
                // SAFETY: not of no bytes; all of it may be zeroes.
                NonNull::new(unsafe { alloc_zeroed(Layout::new::<Ring>()) }).expect("memory").cast()
            };
        }
        sys::begin(false);
        let at = RING.with(|r| *r);
        atomic::know(at.as_ptr().cast(), size_of::<Ring>());
        // SAFETY: never freed; what changes are atomics.
        let ring = unsafe { at.as_ref() };
        let writer = Box::leak(Box::new(Writer::new()));
        atomic::know((&raw const *writer).cast(), size_of::<Writer>());
        let turn = ring.control.claim(PID).expect("a free ring");
        let whose = turn.whose();
        let at = Self { ring, whose };
        writer.begin(&at.lines());
        ring.control.open(turn);
        (at, writer)
    }

    fn lines(&self) -> Lines<'static> {
        // SAFETY: they stay.
        unsafe { Lines::new(&raw const self.ring.lines as u64, (LINES * 64) as u64) }
    }

    /// Sends a message without data; whether there was room.
    fn send(&self, writer: &Writer, tag: u64) -> Result<bool, No> {
        let control = &self.ring.control;
        let held = loop {
            match control.lock(self.whose) {
                Err(No::Busy) => hint::spin_loop(),
                other => break other?,
            }
        };
        // SAFETY: no data.
        let written = unsafe { writer.write(control, &self.lines(), Kind::Data, tag, (0, 0)) };
        control.unlock(held);
        if written == Some(true) {
            let _ = self.ring.summary.ring(0);
        }
        Ok(written.is_some())
    }

    fn send_all(&self, writer: &Writer, tags: impl Iterator<Item = u64>) {
        for tag in tags {
            while !self.send(writer, tag).expect("a ring") {
                hint::spin_loop();
            }
        }
    }

    /// The next message, if there is one.
    fn take(&self, reader: &mut Reader) -> Option<Found> {
        let found = reader.peek(&self.lines(), LIMIT)?.expect("a message");
        // SAFETY: it has no data.
        unsafe { reader.take(&self.ring.control, &self.lines(), &found, 0) };
        Some(found)
    }
}

/// What a receiver does that looks until nothing comes, and then at the summary alone.
#[test]
fn what_comes_while_nobody_looks_is_told_of() {
    check(|| {
        let (at, writer) = At::begin();
        let sender = sys::spawn(1, move || at.send_all(writer, 0..3));
        let (mut reader, mut looks, mut come) = (Reader::new(), false, 0);
        while come < 3 {
            if !looks {
                while at.ring.summary.take_rings(1) == 0 {
                    hint::spin_loop();
                }
                looks = true;
            }
            match at.take(&mut reader) {
                Some(found) => {
                    assert_eq!((found.tag, found.len), (come, 0));
                    come += 1;
                }
                None => looks = !reader.go_quiet(&at.ring.control, &at.lines()),
            }
        }
        sender.join().expect("a sender");
    });
}

/// More messages than there is room for: lines are used again, never too early.
#[test]
fn lines_are_used_again_once_they_were_read() {
    check(|| {
        let (at, writer) = At::begin();
        let sender = sys::spawn(1, move || at.send_all(writer, 0..5));
        let mut reader = Reader::new();
        for come in 0..5 {
            let found = loop {
                match at.take(&mut reader) {
                    Some(found) => break found,
                    None => hint::spin_loop(),
                }
            };
            assert_eq!(found.tag, come);
        }
        sender.join().expect("a sender");
    });
}

#[test]
fn threads_have_the_turn_one_after_another() {
    check(|| {
        let (at, writer) = At::begin();
        let others = [
            sys::spawn(1, move || at.send_all(writer, 10..11)),
            sys::spawn(2, move || at.send_all(writer, 20..21)),
        ];
        for other in others {
            other.join().expect("a sender");
        }
        let mut reader = Reader::new();
        let mut tags = [0; 2].map(|_| at.take(&mut reader).expect("a message").tag);
        tags.sort_unstable();
        assert_eq!(tags, [10, 20]);
    });
}

/// A ring that is taken back has what was sent by it, and nobody writes there any more.
#[test]
fn what_was_sent_before_a_ring_was_taken_back_is_there() {
    check(|| {
        let (at, writer) = At::begin();
        let sent = Arc::new(loom::sync::atomic::AtomicU64::new(0));
        let sender = {
            let sent = sent.clone();
            sys::spawn(1, move || {
                let mut count = 0;
                while count < 2 && at.send(writer, count) == Ok(true) {
                    count += 1;
                }
                sent.store(count, loom::sync::atomic::Ordering::SeqCst);
            })
        };
        let revoked = at.ring.control.revoke(at.whose);
        let (mut reader, mut come) = (Reader::new(), 0);
        if revoked {
            while let Some(found) = at.take(&mut reader) {
                assert_eq!(found.tag, come);
                come += 1;
            }
            at.ring.control.free();
            assert!(at.ring.control.claim(PID + 1).is_some());
        }
        sender.join().expect("a sender");
        let sent = sent.load(loom::sync::atomic::Ordering::SeqCst);
        assert!(!revoked || sent == come, "{sent} sent, {come} come");
        assert!(revoked || sent > 0);
    });
}

/// Who goes to sleep and who sets a bit: one of them knows of the other.
#[test]
fn nobody_sleeps_over_a_bit() {
    check(|| {
        let (at, _) = At::begin();
        let told = Arc::new(loom::sync::atomic::AtomicU64::new(0));
        let sender = {
            let told = told.clone();
            sys::spawn(1, move || {
                let ways = at.ring.summary.cell(3) | at.ring.summary.ring(0);
                told.store(ways, loom::sync::atomic::Ordering::SeqCst);
            })
        };
        let has_come = at.ring.summary.arm(SLEEPS | EVENT);
        sender.join().expect("a sender");
        let told = told.load(loom::sync::atomic::Ordering::SeqCst);
        assert!(has_come || told == SLEEPS | EVENT, "{told:#x}");
    });
}

/// Holds nothing: nobody dies here.
struct Nobody;

impl Holder for Nobody {
    fn hold(&self, _: usize) -> regall_races::Result<bool> {
        Ok(true)
    }

    fn let_go(&self, _: usize) {}
}

/// A box of which the first two cells are used.
fn mailbox() -> Mailbox<'static> {
    let shape = Shape::near(LIMIT, 0, 1, 0);
    thread_local! {
        static HOME: NonNull<u8> = {
            let layout = Layout::from_size_align(64 << 10, 4096).expect("a size");
            // SAFETY: not of no bytes.
            NonNull::new(unsafe { alloc_zeroed(layout) }).expect("memory")
        };
    }
    sys::begin(false);
    let at = HOME.with(|h| *h).as_ptr();
    let known = [
        (offset_of!(Head, summary), 16),
        (offset_of!(Head, tickets), 8),
        (offset_of!(Head, cells), 16),
    ];
    let cells = (0..2).map(|n| {
        (
            shape.cell(n).expect("a cell").0 as usize,
            CELL_HEAD as usize,
        )
    });
    for (offset, bytes) in known.into_iter().chain(cells) {
        atomic::know(at.wrapping_add(offset), bytes);
    }
    // SAFETY: as large as it, and it stays.
    unsafe { Mailbox::new(at as u64, shape) }
}

fn post(mailbox: Mailbox, pid: u32, tag: u64) -> bool {
    let from = Sender { pid, start: tag };
    let place = mailbox.take(&Nobody, (pid, 0), 0).expect("no errors");
    place.is_some_and(|place| {
        // SAFETY: no data.
        let _ = unsafe { mailbox.fill(&Nobody, place, from, (Kind::Data, tag), (0, 0)) };
        true
    })
}

#[test]
fn two_senders_take_two_cells_and_each_is_read_in_its_order() {
    check(|| {
        let mailbox = mailbox();
        let senders = [1u32, 2].map(|pid| {
            sys::spawn(pid as usize, move || {
                assert!(post(mailbox, pid, u64::from(pid)));
            })
        });
        let (mut waiting, mut come) = (Waiting::new(), 0u32);
        while come < 2 {
            let bits = mailbox.summary().take_cells(3);
            if bits == 0 {
                hint::spin_loop();
            }
            assert_eq!(mailbox.collect(bits, &mut waiting), 0);
            while let Some(n) = waiting.first() {
                let letter = mailbox.look(n).expect("a message");
                assert_eq!(u64::from(letter.from.pid), letter.tag);
                assert_eq!(letter.from.start, letter.tag);
                waiting.pop();
                mailbox.free(n);
                come += 1;
            }
        }
        for sender in senders {
            sender.join().expect("a sender");
        }
    });
}

/// One sender's messages, the second of which is in the cell of a first that was read, or not.
#[test]
fn a_cell_is_filled_again_only_when_it_was_read() {
    check(|| {
        let mailbox = mailbox();
        let sender = sys::spawn(1, move || {
            assert!(post(mailbox, 1, 1) && post(mailbox, 1, 2));
        });
        let (mut waiting, mut next) = (Waiting::new(), 1);
        while next < 3 {
            let bits = mailbox.summary().take_cells(3);
            if bits == 0 {
                hint::spin_loop();
            }
            assert_eq!(mailbox.collect(bits, &mut waiting), 0);
            while let Some(n) = waiting.first() {
                assert_eq!(mailbox.look(n).expect("a message").tag, next);
                waiting.pop();
                mailbox.free(n);
                next += 1;
            }
        }
        sender.join().expect("a sender");
    });
}

/// A sender that goes on by a ring has left a message in the mailbox before: whoever has seen the
/// ring's bit finds that.
#[test]
fn a_ring_is_known_after_what_its_sender_has_left_in_the_mailbox() {
    check(|| {
        let mailbox = mailbox();
        let sender = sys::spawn(1, move || {
            assert!(post(mailbox, 1, 1));
            let _ = mailbox.summary().ring(0);
        });
        let rings = mailbox.summary().take_rings(1);
        let cells = mailbox.summary().take_cells(3);
        assert!(rings == 0 || cells == 1);
        sender.join().expect("a sender");
    });
}
