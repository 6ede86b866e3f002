//! Any bytes in a box, changed by others while both sides use it: the receiver writes messages into
//! the room that it was given and nowhere else, ends, and says of each what is in it; a sender
//! stays within the box.
#![no_main]

use libfuzzer_sys::fuzz_target;
use regall as _;
use regall_bridge::boxes::inbox::{Inbox, Message, Out};
use regall_bridge::boxes::layout::{Head, Kind, Shape, CELLS, NAME, RINGS};
use regall_bridge::boxes::mailbox::{Mailbox, Sender};
use regall_bridge::boxes::ring::{Lines, Writer};
use regall_bridge::host::{Host, Plain};
use regall_sys::file;

const LIMIT: u64 = 300;
/// Room for messages at the most, and what is around it.
const ROOM: usize = 4096;
const AROUND: usize = 64;
const MARK: u8 = 0xa5;

struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn word(&mut self) -> u64 {
        let n = self.0.len().min(8);
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        let mut word = [0; 8];
        word[..n].copy_from_slice(head);
        u64::from_le_bytes(word)
    }
}

/// The box of this process: fresh for each input.
struct Home {
    at: u64,
    shape: Shape,
    inbox: &'static Inbox,
}

fn home() -> Home {
    let shape = Shape::near(LIMIT, 0, 3, 1);
    let file = file::in_memory(NAME, libc::MFD_CLOEXEC).unwrap();
    file.truncate(shape.bytes()).unwrap();
    let at = Plain.map_file(&file, 0, shape.bytes(), true).unwrap();
    // SAFETY: zeroed, and unmapped only when the inbox is used no more.
    let inbox = unsafe { Inbox::new(&Plain, at, shape, &file).unwrap().as_ref() };
    Home { at, shape, inbox }
}

impl Home {
    fn head(&self) -> &Head {
        // SAFETY: mapped.
        unsafe { &*(self.at as *const Head) }
    }

    /// Anything anywhere.
    fn scribble(&self, at: u64, word: u64) {
        let at = self.at + at % (self.shape.bytes() - 7);
        // SAFETY: in the box.
        unsafe { (at as *mut u64).write_unaligned(word) };
    }

    /// Takes messages, and checks what is said of them.
    fn poll(&self, room: usize) {
        let mut all = vec![MARK; ROOM + 2 * AROUND];
        let begin = all.as_mut_ptr() as u64 + AROUND as u64;
        // SAFETY: so many bytes.
        let mut out = unsafe { Out::new(begin, room as u64) };
        self.inbox.poll(&Plain, &mut out);
        assert!(all[..AROUND].iter().chain(&all[AROUND + room..]).all(|b| *b == MARK));
        let mut rest = &all[AROUND..AROUND + room];
        for _ in 0..out.count().unwrap_or(0) {
            let word = |n: usize| u64::from_ne_bytes(rest[8 * n..8 * n + 8].try_into().unwrap());
            let kind = u32::from_ne_bytes(rest[36..40].try_into().unwrap());
            let data = if kind == Kind::Data as u32 { word(2) } else { 0 };
            assert!((1..=3).contains(&kind) && data <= LIMIT);
            assert_eq!(word(0), (size_of::<Message>() as u64 + data).next_multiple_of(8));
            rest = &rest[word(0) as usize..];
        }
    }

    fn send(&self, n: usize, writer: &Writer, whose: &mut u64, len: u64) {
        let (Some(control), Some(at)) = (self.head().controls.get(n), self.shape.ring(n)) else {
            return;
        };
        // SAFETY: in the box.
        let lines = unsafe { Lines::new(self.at + at, self.shape.size) };
        let data = [7u8; LIMIT as usize];
        match control.lock(*whose) {
            Ok(held) => {
                let data = (data.as_ptr() as u64, len);
                // SAFETY: no more than there are.
                let written = unsafe { writer.write(control, &lines, Kind::Data, 1, data) };
                control.unlock(held);
                if written == Some(true) {
                    let _ = self.head().summary.ring(n);
                }
            }
            Err(_) => {
                if let Some(turn) = control.claim(std::process::id()) {
                    writer.begin(&lines);
                    control.open(turn);
                    *whose = turn.whose();
                }
            }
        }
    }

    fn post(&self, len: u64) {
        // SAFETY: the box.
        let mailbox = unsafe { Mailbox::new(self.at, self.shape) };
        let from = Sender { pid: 1, start: 0 };
        if let Some(place) = mailbox.take(1, len) {
            let data = [9u8; LIMIT as usize];
            let data = (data.as_ptr() as u64, len);
            // SAFETY: no more than there are.
            let _ = unsafe { mailbox.fill(place, from, (Kind::Data, 2), data) };
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let home = home();
    let writers = [const { Writer::new() }; 3];
    let mut whose = [0u64; 3];
    while let Some(act) = input.byte() {
        let n = usize::from(act >> 4) % 3;
        match act & 15 {
            0..=2 => home.scribble(input.word(), input.word()),
            // Where it tells: a word of the head, of a ring's lock, of a line's beginning.
            3 => home.scribble(u64::from(act >> 4) * 8 + 64, input.word()),
            4 => home.scribble(4096 + 128 * n as u64 + 64 * u64::from(act >> 7), input.word()),
            5 => {
                let line = u64::from(input.byte().unwrap_or(0)) % (home.shape.size / 64);
                let at = home.shape.ring(n).unwrap() + 64 * line;
                let lap = (1 << 23 | u64::from(act >> 6)) << 40;
                home.scribble(at, lap | input.word() & 0xff_ffff_ffff);
            }
            6 => {
                let (at, _) = home.shape.cell(input.word() as usize % CELLS).unwrap();
                home.scribble(at + 8 * u64::from(act >> 5), input.word());
            }
            7 => _ = home.head().summary.ring(input.word() as usize % RINGS),
            8 => _ = home.head().summary.cell(input.word() as usize % CELLS),
            9 | 10 => home.send(n, &writers[n], &mut whose[n], input.word() % (LIMIT + 1)),
            11 => home.post(input.word() % (LIMIT + 1)),
            _ => home.poll(input.word() as usize % (ROOM + 1)),
        }
    }
    home.poll(ROOM);
    assert!(home.head().shape(home.shape.bytes()).is_none_or(|s| s.is_sound()));
    home.inbox.file().close();
    // SAFETY: neither is used any more.
    unsafe {
        Plain.unmap(home.at, home.shape.bytes());
        Plain.unmap(std::ptr::from_ref(home.inbox) as u64, size_of::<Inbox>() as u64);
    }
});
