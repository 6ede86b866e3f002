//! One process that sends to its own box: every part of it, without the shim.

use super::hold::Hold;
use super::inbox::{Inbox, Message, Out, IDLE};
use super::layout::{Head, Kind, Shape, CELLS, NAME, SMALL_CELLS};
use super::mailbox::{Holder, Mailbox, Place, Sender, Waiting};
use super::ring::{Control, Lines, No, Reader, Writer};
use super::summary::{Summary, EVENT, SLEEPS};
use crate::host::{Host, Plain};
use proptest::prelude::*;
use regall_sys::file::{self, Fd, Kept};
use std::collections::VecDeque;

/// Holds nothing.
struct Nobody;

impl Holder for Nobody {
    fn hold(&self, _: usize) -> regall_sys::Result<bool> {
        Ok(true)
    }

    fn let_go(&self, _: usize) {}
}

/// A box in memory of this process.
struct Home {
    at: u64,
    shape: Shape,
    file: Fd,
}

impl Home {
    fn new(shape: Shape) -> Self {
        let file = file::in_memory(NAME, libc::MFD_CLOEXEC).unwrap();
        file.truncate(shape.bytes()).unwrap();
        let at = Plain.map_file(&file, 0, shape.bytes(), true).unwrap();
        Self { at, shape, file }
    }

    fn inbox(&self) -> &'static Inbox {
        // SAFETY: mapped and zeroed; the tests that use it leave it there.
        let made = unsafe { Inbox::new(&Plain, self.at, self.shape, &self.file) };
        // SAFETY: never given back.
        unsafe { made.unwrap().as_ref() }
    }

    fn head(&self) -> &Head {
        // SAFETY: mapped above.
        unsafe { &*(self.at as *const Head) }
    }

    fn mailbox(&self) -> Mailbox<'_> {
        // SAFETY: likewise.
        unsafe { Mailbox::new(self.at, self.shape) }
    }

    /// A description of the file of its own.
    fn hold(&self) -> Hold {
        let path = format!("/proc/self/fd/{}\0", self.file.raw());
        let path = core::ffi::CStr::from_bytes_with_nul(path.as_bytes()).unwrap();
        Hold::new(|| Fd::open(path, libc::O_RDWR, 0)).unwrap().1
    }

    fn lines(&self, n: usize) -> Lines<'_> {
        // SAFETY: likewise.
        unsafe { Lines::new(self.at + self.shape.ring(n).unwrap(), self.shape.size) }
    }

    fn control(&self, n: usize) -> &Control {
        &self.head().controls[n]
    }

    /// Takes ring `n` for this process.
    fn ring(&self, n: usize) -> Ring<'_> {
        let (control, lines) = (self.control(n), self.lines(n));
        let turn = control.claim(std::process::id()).unwrap();
        let writer = Writer::new();
        writer.begin(&lines);
        control.open(turn);
        Ring {
            home: self,
            n,
            control,
            lines,
            writer,
            whose: turn.whose(),
        }
    }

    /// Leaves a message in the mailbox.
    fn post(&self, tag: u64, data: &[u8]) -> Option<u64> {
        let from = Sender {
            pid: std::process::id(),
            start: 0,
        };
        let mailbox = self.mailbox();
        let place = mailbox
            .take(&Nobody, (from.pid, data.len() as u64), 0)
            .unwrap()?;
        let bytes = (data.as_ptr() as u64, data.len() as u64);
        // SAFETY: a slice.
        Some(unsafe { mailbox.fill(&Nobody, place, from, (Kind::Data, tag), bytes) })
    }
}

/// A sender's ring.
struct Ring<'a> {
    home: &'a Home,
    n: usize,
    control: &'a Control,
    lines: Lines<'a>,
    writer: Writer,
    whose: u64,
}

impl Ring<'_> {
    /// Sends; whether there was room.
    fn send(&self, tag: u64, data: &[u8]) -> Result<bool, No> {
        let held = self.control.lock(self.whose)?;
        let bytes = (data.as_ptr() as u64, data.len() as u64);
        // SAFETY: a slice.
        let written = unsafe {
            self.writer
                .write(self.control, &self.lines, Kind::Data, tag, bytes)
        };
        self.control.unlock(held);
        if written == Some(true) {
            let _ = self.home.head().summary.ring(self.n);
        }
        Ok(written.is_some())
    }
}

/// What a poll finds: tags and data.
fn polled(inbox: &Inbox, room: usize) -> Vec<(u64, Vec<u8>)> {
    let mut buffer = vec![0u8; room];
    // SAFETY: so many bytes.
    let mut out = unsafe { Out::new(buffer.as_mut_ptr() as u64, room as u64) };
    inbox.poll(&Plain, &mut out);
    let count = out.count().unwrap();
    let (mut found, mut rest) = (Vec::new(), &buffer[..]);
    for _ in 0..count {
        let word = |n: usize| u64::from_ne_bytes(rest[8 * n..8 * n + 8].try_into().unwrap());
        let (size, bytes) = (word(0) as usize, word(2) as usize);
        let begin = size_of::<Message>();
        found.push((word(1), rest[begin..begin + bytes].to_vec()));
        rest = &rest[size..];
    }
    found
}

fn tags(found: &[(u64, Vec<u8>)]) -> Vec<u64> {
    found.iter().map(|(tag, _)| *tag).collect()
}

fn small() -> Shape {
    Shape::near(200, 4096, 4, 2)
}

#[test]
fn messages_come_out_of_a_ring_as_they_went_in() {
    let home = Home::new(small());
    let inbox = home.inbox();
    let ring = home.ring(1);
    let mut sent = 0u64;
    let mut come = 0u64;
    // Several laps, of all lengths, with the ring full now and then.
    while come < 3000 {
        let data = |n: u64| vec![n as u8; (n * 7 % 201) as usize];
        while sent < 3000 && ring.send(sent, &data(sent)).unwrap() {
            sent += 1;
        }
        for (tag, bytes) in polled(inbox, 3000) {
            assert_eq!((tag, bytes), (come, data(come)));
            come += 1;
        }
    }
    assert!(polled(inbox, 3000).is_empty());
}

#[test]
fn what_looks_like_a_message_in_anothers_data_is_none() {
    let home = Home::new(small());
    let inbox = home.inbox();
    let ring = home.ring(0);
    let check = |room| {
        for (tag, found) in polled(inbox, room) {
            let word = tag.to_ne_bytes();
            assert!(found.chunks(8).all(|part| part == word) && found.len() <= 200);
        }
    };
    // Every word of the data is the first word of a message, in this lap or the next, so each line
    // begins with one that is not at its beginning.
    for n in 0..2000u64 {
        let lap = (n / 40).saturating_sub(1) + n % 3;
        let word = (1 << 23 | lap) << 40 | 1 << 32 | 8;
        let data = word.to_ne_bytes().repeat((n % 26) as usize);
        while !ring.send(word, &data).unwrap() {
            check(1 << (9 + n % 4));
        }
        if n % 7 == 0 {
            check(1 << 12);
        }
    }
    check(1 << 16);
    assert!(polled(inbox, 1 << 12).is_empty());
}

#[test]
fn a_full_ring_says_so_and_keeps_what_is_kept() {
    let home = Home::new(small());
    let ring = home.ring(0);
    let held = ring.control.lock(ring.whose).unwrap();
    assert_eq!(ring.control.lock(ring.whose).err(), Some(No::Busy));
    let kept = ring
        .writer
        .keep(ring.control, &ring.lines, 8, held)
        .unwrap();
    ring.control.unlock(kept);
    let mut sent = 0;
    while ring.send(sent, &[]).unwrap() {
        sent += 1;
    }
    // 64 lines: one is kept, and one always free.
    assert_eq!(sent, 62);
    // It can't be taken back while something is kept.
    assert!(!ring.control.revoke(ring.whose));
    let held = ring.control.lock(ring.whose).unwrap();
    let held = ring.writer.let_go(8, held);
    let number = 77u64;
    let data = (&raw const number as u64, 8);
    // SAFETY: a number.
    let written = unsafe {
        ring.writer
            .write(ring.control, &ring.lines, Kind::Put, 5, data)
    };
    assert!(written.is_some());
    ring.control.unlock(held);
    assert!(!ring.send(0, &[]).unwrap());
    let found = polled(home.inbox(), 1 << 20);
    assert_eq!(found.len(), 63);
    assert!(ring.control.revoke(ring.whose));
    assert_eq!(ring.send(0, &[]), Err(No::Gone));
}

#[test]
fn a_ring_comes_behind_the_mailbox_that_its_sender_used_before() {
    let home = Home::new(small());
    let inbox = home.inbox();
    for tag in 0..3 {
        home.post(tag, b"by mail").unwrap();
    }
    let ring = home.ring(2);
    for tag in 3..6 {
        assert!(ring.send(tag, b"by ring").unwrap());
    }
    // One at a time.
    let mut all = Vec::new();
    while all.len() < 6 {
        let found = polled(inbox, size_of::<Message>() + 8);
        assert_eq!(found.len(), 1);
        all.extend(tags(&found));
    }
    assert_eq!(all, [0, 1, 2, 3, 4, 5]);
}

#[test]
fn a_ring_that_was_taken_back_comes_before_the_mailbox() {
    let home = Home::new(small());
    let inbox = home.inbox();
    let ring = home.ring(0);
    assert!(ring.send(0, b"").unwrap() && ring.send(1, b"").unwrap());
    assert_eq!(tags(&polled(inbox, 48)), [0]);
    assert!(ring.control.leave(ring.whose));
    let _ = home.head().summary.ring(0);
    // Is noticed, with nothing taken: there is no room.
    // SAFETY: room for nothing.
    let mut out = unsafe { Out::new(0, 0) };
    inbox.poll(&Plain, &mut out);
    assert!(out.count().is_err());
    home.post(2, b"").unwrap();
    assert_eq!(tags(&polled(inbox, 1 << 12)), [1, 2]);
    assert!(home.control(0).turn().is_free());
    // And can be had again.
    let again = home.ring(0);
    assert_ne!(again.whose, ring.whose);
    assert_eq!(ring.send(3, b""), Err(No::Gone));
    assert!(again.send(4, b"").unwrap());
    assert_eq!(tags(&polled(inbox, 1 << 12)), [4]);
}

#[test]
fn an_idle_ring_is_given_back_with_its_memory() {
    let home = Home::new(Shape::near(4096, 32 << 10, 8, 0));
    let inbox = home.inbox();
    regall_sys::time::calibrate(1 << 20, 1 << 20);
    let ring = home.ring(3);
    for n in 0..7 {
        assert!(ring.send(n, &[7; 4000]).unwrap());
    }
    assert_eq!(polled(inbox, 1 << 16).len(), 7);
    let held = home.file.stat().unwrap().blocks;
    let since = std::time::Instant::now();
    while !home.control(3).turn().is_free() {
        assert!(polled(inbox, 1 << 16).is_empty());
        assert!(since.elapsed().as_nanos() < 60 * u128::from(IDLE));
    }
    assert_eq!(ring.send(9, b""), Err(No::Gone));
    assert!(home.file.stat().unwrap().blocks < held);
}

#[test]
fn a_mailbox_has_room_for_so_many_and_for_long_ones() {
    let home = Home::new(small());
    let inbox = home.inbox();
    let mut sent = 0;
    while home.post(sent, b"short").is_some() {
        sent += 1;
    }
    assert_eq!(sent, CELLS as u64);
    assert_eq!(tags(&polled(inbox, 1 << 16)), (0..sent).collect::<Vec<_>>());
    let home = Home::new(Shape::near(4096, 0, 1, 2));
    let inbox = home.inbox();
    let long: Vec<u8> = (0..4096u32).map(|n| n as u8).collect();
    let mut sent = 0;
    while home.post(sent, &long).is_some() {
        sent += 1;
    }
    assert_eq!(sent, (CELLS - SMALL_CELLS) as u64);
    assert!(home.post(99, b"short").is_some());
    for (_, found) in polled(inbox, 1 << 17).iter().take(sent as usize) {
        assert_eq!(*found, long);
    }
}

/// Takes a cell for 8 bytes.
fn take(mailbox: &Mailbox, hold: &Hold) -> Place {
    let by = hold.file().unwrap();
    mailbox.take(&by, (0, 8), 0).unwrap().unwrap()
}

#[test]
fn a_cell_that_nobody_holds_is_free_again_and_blocks_nobody() {
    let home = Home::new(small());
    let (mailbox, receiver, mut waiting) = (home.mailbox(), home.hold(), Waiting::new());
    let receiver = receiver.file().unwrap();
    let (lives, dies) = (home.hold(), home.hold());
    let (kept, lost) = (take(&mailbox, &lives), take(&mailbox, &dies));
    assert_ne!(kept, lost);
    home.post(1, b"").unwrap();
    let bits = home.head().summary.take_cells(!0 >> 2);
    assert_eq!(mailbox.collect(bits, &mut waiting), 0);
    assert_eq!(waiting.first(), Some(2));
    assert_eq!(mailbox.sweep(&receiver, &mut waiting, |_| false), 0);
    // As the kernel does it.
    dies.close();
    assert_eq!(mailbox.sweep(&receiver, &mut waiting, |_| false), 1);
    assert_eq!(mailbox.sweep(&receiver, &mut waiting, |_| false), 0);
    let again = home.hold();
    assert_eq!(take(&mailbox, &again), lost);
    // Two descriptions are two holders in one process, too; one is not its own rival.
    let by = again.file().unwrap();
    let all = kept.bit() | lost.bit();
    let other = mailbox.take(&by, (0, 8), all).unwrap().unwrap();
    assert_eq!(other.bit() & all, 0);
    mailbox.give_back(&by, other);
    let held = |by: &Kept, place: Place| by.hold(place.bit().trailing_zeros() as usize).unwrap();
    assert!(held(&receiver, other) && !held(&receiver, kept) && !held(&receiver, lost));
    lives.close();
    again.close();
}

#[test]
fn a_cell_whose_sender_is_known_is_its_own_while_that_lives() {
    let home = Home::new(small());
    let (mailbox, receiver, mut waiting) = (home.mailbox(), home.hold(), Waiting::new());
    let receiver = receiver.file().unwrap();
    let taken = mailbox.take(&None::<Kept>, (4_000_000, 8), 0).unwrap();
    assert_eq!(mailbox.sweep(&receiver, &mut waiting, |_| false), 0);
    let dead = |pid| pid == 4_000_000;
    assert_eq!(mailbox.sweep(&receiver, &mut waiting, dead), 1);
    assert_eq!(mailbox.take(&None::<Kept>, (5, 8), 0).unwrap(), taken);
}

#[test]
fn what_its_sender_has_filled_and_not_told_of_is_delivered_once() {
    let home = Home::new(small());
    let (mailbox, receiver, mut waiting) = (home.mailbox(), home.hold(), Waiting::new());
    let receiver = receiver.file().unwrap();
    home.post(1, b"").unwrap();
    // Told of: it comes by its bit.
    assert_eq!(mailbox.sweep(&receiver, &mut waiting, |_| true), 0);
    assert!(waiting.is_empty());
    assert_eq!(home.head().summary.take_cells(!0 >> 2), 1);
    assert_eq!(mailbox.sweep(&receiver, &mut waiting, |_| true), 0);
    assert_eq!(waiting.first(), Some(0));
    assert_eq!(mailbox.sweep(&receiver, &mut waiting, |_| true), 0);
    waiting.pop();
    assert!(waiting.is_empty());
}

#[test]
fn who_arms_learns_of_what_has_come_and_who_sends_learns_of_who_waits() {
    let summary = Summary::new();
    assert!(!summary.arm(SLEEPS));
    assert_eq!(summary.ring(3), SLEEPS);
    assert!(summary.arm(EVENT) && summary.has_any());
    assert_eq!(summary.cell(1), SLEEPS | EVENT);
    assert_eq!(summary.take_rings(1 << 3 | 1), 1 << 3);
    summary.disarm(SLEEPS | EVENT);
    assert_eq!((summary.ring(0), summary.take_cells(!0)), (0, 1 << 1));
}

#[test]
fn the_pipe_has_something_in_it_whenever_nobody_is_told_to_fill_it() {
    let home = Home::new(small());
    let inbox = home.inbox();
    let fd = inbox.wants_event().unwrap();
    let readable = || file::poll(&mut [file::Poll::readable(fd)], 0) == Ok(1);
    assert!(readable());
    assert!(polled(inbox, 1 << 12).is_empty() && !readable());
    assert_eq!(home.post(1, b""), Some(EVENT));
    // The sender would fill it now. Where it does not, the receiver does.
    assert_eq!(tags(&polled(inbox, 1 << 12)), [1]);
    assert!(readable());
    let ring = home.ring(1);
    assert!(polled(inbox, 1 << 12).is_empty() && !readable());
    assert!(ring.send(2, b"").unwrap());
    assert_eq!(tags(&polled(inbox, 1 << 12)), [2]);
    assert!(readable());
}

#[test]
fn who_sleeps_is_woken() {
    let home: &'static Home = Box::leak(Box::new(Home::new(small())));
    let inbox = home.inbox();
    let ring = home.ring(0);
    std::thread::scope(|s| {
        let waits = s.spawn(|| {
            let mut buffer = [0u8; 256];
            let mut got = 0;
            while got < 200 {
                // SAFETY: so many bytes.
                let mut out = unsafe { Out::new(buffer.as_mut_ptr() as u64, 256) };
                inbox.wait(&Plain, &mut out, None);
                got += out.count().unwrap();
            }
            got
        });
        for n in 0..200u64 {
            if n % 20 == 0 {
                std::thread::sleep(std::time::Duration::from_micros(500));
            }
            let held = ring.control.lock(ring.whose).unwrap();
            // SAFETY: no data.
            let written = unsafe {
                ring.writer
                    .write(ring.control, &ring.lines, Kind::Data, n, (0, 0))
            };
            ring.control.unlock(held);
            match written {
                None => std::thread::yield_now(),
                Some(quiet) => {
                    if quiet && home.head().summary.ring(0) & SLEEPS != 0 {
                        let sequence = &home.head().sequence;
                        sequence.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
                        regall_sys::futex_wake_shared(sequence);
                    }
                    continue;
                }
            }
            // Full: the last one again.
            while !ring.send(n, b"").unwrap() {
                std::thread::yield_now();
            }
        }
        assert_eq!(waits.join().unwrap(), 200);
    });
}

#[test]
fn threads_that_send_by_one_ring_take_turns() {
    let home: &'static Home = Box::leak(Box::new(Home::new(small())));
    let inbox = home.inbox();
    let ring = &home.ring(0);
    const EACH: u64 = 20_000;
    std::thread::scope(|s| {
        for thread in 0..3u64 {
            s.spawn(move || {
                for n in 0..EACH {
                    let data = [thread as u8; 100];
                    let data = &data[..(n % 100) as usize];
                    while !matches!(ring.send(thread << 32 | n, data), Ok(true)) {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let mut next = [0u64; 3];
        while next != [EACH; 3] {
            for (tag, data) in polled(inbox, 4096) {
                let thread = (tag >> 32) as usize;
                assert_eq!(tag as u32 as u64, next[thread]);
                assert!(data.len() as u64 == next[thread] % 100);
                assert!(data.iter().all(|b| *b as usize == thread));
                next[thread] += 1;
            }
        }
    });
}

#[derive(Clone, Debug)]
enum Act {
    Send(usize, usize),
    Mail(usize),
    Poll(usize),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        4 => (0usize..4, 0usize..200).prop_map(|(n, len)| Act::Send(n, len)),
        1 => (0usize..200).prop_map(Act::Mail),
        2 => (48usize..2000).prop_map(Act::Poll),
    ];
    prop::collection::vec(act, 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_sender_is_heard_in_its_order(acts in acts()) {
        let home = Home::new(small());
        let inbox = home.inbox();
        let rings: Vec<Ring> = (0..4).map(|n| home.ring(n)).collect();
        let mut sent: Vec<VecDeque<(u64, Vec<u8>)>> = vec![VecDeque::new(); 5];
        let mut number = 0u64;
        let hear = |sent: &mut Vec<VecDeque<(u64, Vec<u8>)>>, room| {
            let found = polled(inbox, room);
            for (tag, data) in &found {
                let first = sent[(tag >> 32) as usize].pop_front();
                assert_eq!(first, Some((*tag, data.clone())));
            }
            found.len()
        };
        for act in acts {
            number += 1;
            match act {
                Act::Send(n, len) => {
                    let (tag, data) = ((n as u64) << 32 | number, vec![number as u8; len]);
                    if rings[n].send(tag, &data).unwrap() {
                        sent[n].push_back((tag, data));
                    }
                }
                Act::Mail(len) => {
                    let (tag, data) = (4u64 << 32 | number, vec![number as u8; len]);
                    if home.post(tag, &data).is_some() {
                        sent[4].push_back((tag, data));
                    }
                }
                Act::Poll(room) => {
                    let mut buffer = vec![0; room];
                    // SAFETY: no room at all.
                    let mut out = unsafe { Out::new(buffer.as_mut_ptr() as u64, 0) };
                    inbox.poll(&Plain, &mut out);
                    hear(&mut sent, room.max(300));
                }
            }
        }
        while hear(&mut sent, 4096) > 0 {}
        assert!(sent.iter().all(VecDeque::is_empty));
        // SAFETY: nobody uses it any more.
        unsafe { Plain.unmap(home.at, home.shape.bytes()) };
    }
}

#[test]
fn a_reader_takes_nothing_of_a_ring_that_nobody_has_begun() {
    let home = Home::new(small());
    let lines = home.lines(0);
    assert!(Reader::new().peek(&lines, 200).is_none());
}
