//! Any file of regions, of which an input says what differs from an honest one, and any
//! arguments of the functions about cookies: an error, or the owner's memory.
#![no_main]

#[path = "stage.rs"]
mod stage;

use libfuzzer_sys::fuzz_target;
use regall as _;
use regall_bridge::cookie::layout::{
    mark, part_bytes, part_offset, slots, window, HEAD_BYTES, MAGIC, PART0_SEGMENTS,
};
use regall_directory::layout::{Header, HEADER_BYTES, MAGIC as DIRECTORY};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Prot, Reason};
use stage::{with_scene, write, Input, Victim, FILLED, MEMORY};
use std::fs::File;
use std::mem::offset_of;

/// Regions that an honest file has.
const REGIONS: u64 = 8;
/// Bits of a cookie that are its owner's pid.
const PID_BITS: u32 = 22;

#[repr(C)]
#[derive(Default)]
struct Done {
    bytes: u64,
    generation: u64,
    mechanism: u32,
    reserved: u32,
}

#[repr(C)]
struct Segment {
    addr: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Use {
    cookie: u64,
    uses: u64,
}

extern "C" {
    fn regall_region_create(
        segments: *const Segment,
        count: usize,
        prot: u32,
        flags: u32,
        cookie: *mut u64,
    ) -> i32;
    fn regall_region_destroy(cookie: u64) -> i32;
    fn regall_region_read(c: u64, at: u64, to: *const Segment, n: usize, done: *mut Done) -> i32;
    fn regall_region_write(c: u64, at: u64, to: *const Segment, n: usize, done: *mut Done) -> i32;
    fn regall_region_copy(a: u64, at: u64, b: u64, there: u64, len: u64, done: *mut Done) -> i32;
    fn regall_region_used(out: *mut Use, room: usize) -> i32;
    fn regall_region_uses(cookie: u64) -> i64;
}

struct Scene {
    victim: Victim,
    directory: File,
    file: File,
    cookies: Vec<u64>,
    buffer: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let victim = Victim::new();
        let cookie = |n: u64| (n * 0x1_2345 + 1) << PID_BITS | u64::from(victim.pid);
        let mut scene = Self {
            directory: victim.directory(),
            file: victim.regions(),
            cookies: (0..REGIONS).map(cookie).collect(),
            buffer: vec![0; 2 * MEMORY as usize],
            victim,
        };
        scene.honest_directory();
        scene.works();
        scene
    }

    /// Honest regions can be read, or the rest shows nothing.
    fn works(&mut self) {
        self.honest();
        let to = Segment {
            addr: self.buffer.as_mut_ptr() as u64,
            len: 8192,
        };
        for cookie in self.cookies.clone() {
            let mut done = Done::default();
            self.buffer.fill(0);
            // SAFETY: the buffer has as much room, and the rest is valid.
            let read = unsafe { regall_region_read(cookie, 0, &to, 1, &mut done) };
            assert_eq!((read, done.bytes), (0, 8192));
            self.theirs(8192);
        }
    }

    /// All of the victim's memory is registered.
    fn honest_directory(&self) {
        let mut header = [0; HEADER_BYTES / 8];
        header[0] = DIRECTORY;
        header[1] = u64::from(self.victim.pid);
        header[2] = self.victim.start;
        header[3] = 7;
        header[4] = self.victim.namespace;
        header[offset_of!(Header, generation) / 8] = 100;
        header[offset_of!(Header, high_water) / 8] = 1;
        header[offset_of!(Header, segments) / 8] = 1;
        write(&self.directory, 0, &header);
        let attr = Attr {
            prot: Prot::from_bits(Prot::READ | Prot::WRITE),
            kind: Kind::Anon,
            flags: Flags::from_bits(0),
            pin: Column::YES,
            hca: Column::no(Reason::Off),
        };
        let (start, end) = (self.victim.memory, self.victim.memory + MEMORY);
        let slot = [1, start, end, attr.pack(), 1, 0, 0, 0];
        write(&self.directory, HEADER_BYTES as u64, &slot);
    }

    /// What an owner would have written. Every other region has two segments.
    fn honest(&self) {
        // Not cut short first: it is mapped here by now.
        self.file
            .set_len((part_offset(0) + part_bytes(0)) as u64)
            .expect("a size");
        write(&self.file, 0, &[MAGIC, 7, 1]);
        write(&self.file, HEAD_BYTES as u64, &vec![0; part_bytes(0) / 8]);
        for (n, cookie) in (0..).zip(&self.cookies) {
            let place = window(cookie >> PID_BITS, 0).next().expect("a window");
            let (first, count) = match n % 2 {
                0 => (self.victim.memory + n * 4096, 1),
                _ => (2 * n, 2),
            };
            // Each may be read and written; the last one once.
            let rights = 3 | u64::from(n == REGIONS - 1) << 32;
            let uses = mark(cookie >> PID_BITS);
            let slot = [*cookie, *cookie, rights, 8192, first, count, uses, 0];
            write(&self.file, (HEAD_BYTES + 64 * place) as u64, &slot);
            let two = [self.victim.memory, 4096, self.victim.memory + 8192, 4096];
            let segments = HEAD_BYTES as u64 + 64 * slots(0) as u64;
            write(&self.file, segments + 16 * 2 * n, &two);
        }
    }

    fn edit(&self, input: &mut Input) {
        let what = input.byte();
        let word = match what % 4 {
            0 => u64::from(input.byte() % 4),
            1 => {
                let cookie = self.cookies[usize::from(input.byte()) % self.cookies.len()];
                let place = window(cookie >> PID_BITS, 0).nth(usize::from(input.byte() % 8));
                let slot = HEAD_BYTES + 64 * place.expect("a window of eight");
                slot as u64 / 8 + u64::from(input.byte() % 8)
            }
            2 => {
                let first = HEAD_BYTES + 64 * slots(0);
                first as u64 / 8 + input.number() % (2 * PART0_SEGMENTS as u64)
            }
            _ => input.number() % ((part_offset(0) + part_bytes(0)) as u64 / 8),
        };
        let (kind, value) = (input.byte(), input.number());
        let value = self.victim.word(kind, value, &self.cookies);
        write(&self.file, word * 8, &[value]);
    }

    fn cookie(&self, input: &mut Input) -> u64 {
        match input.byte() {
            n @ 0..=15 => self.cookies[usize::from(n) % self.cookies.len()],
            n => {
                let value = input.number();
                self.victim.word(n, value, &self.cookies)
            }
        }
    }

    fn call(&mut self, input: &mut Input) {
        let what = input.byte();
        let (cookie, offset) = (self.cookie(input), input.number());
        let half = self.buffer.len() / 2;
        let (at, len) = (self.buffer.as_mut_ptr(), input.number() as usize % half);
        let local = [
            Segment {
                addr: at as u64,
                len: len as u64,
            },
            Segment {
                addr: at as u64 + half as u64,
                len: input.number() % half as u64,
            },
        ];
        let local = &local[..usize::from(what >> 4) % 3];
        let result = match what % 8 {
            0..=4 => self.transfer(what % 8 == 4, cookie, offset, local),
            5 => {
                let (other, there) = (self.cookie(input), input.number());
                let (len, mut done) = (input.number(), Done::default());
                // SAFETY: of the process's own memory it writes `done` alone.
                let e =
                    unsafe { regall_region_copy(cookie, offset, other, there, len, &mut done) };
                assert!(done.bytes <= len);
                e
            }
            6 => {
                let mut made = 0;
                let (prot, flags) = (input.number() as u32, input.number() as u32);
                let (first, count) = (local.as_ptr(), local.len());
                // SAFETY: the segments are of the buffer. Nothing is registered here: the shim
                // is inert.
                let e = unsafe { regall_region_create(first, count, prot, flags, &mut made) };
                assert!(e < 0);
                e
            }
            _ => {
                let mut used = [Use::default(); 4];
                // SAFETY: there is room for four; the rest is numbers.
                unsafe {
                    assert_eq!(regall_region_used(used.as_mut_ptr(), used.len()), 0);
                    assert!(regall_region_uses(cookie) < 0);
                    regall_region_destroy(cookie)
                }
            }
        };
        assert!(result <= 0 && result > -134, "{result}");
    }

    /// Writes the buffer, filled as the victim is, or reads into it.
    fn transfer(&mut self, write: bool, cookie: u64, offset: u64, local: &[Segment]) -> i32 {
        let mut done = Done::default();
        self.buffer.fill(if write { FILLED } else { 0 });
        let (first, count) = (local.as_ptr(), local.len());
        // SAFETY: the segments are of the buffer.
        let e = unsafe {
            match write {
                true => regall_region_write(cookie, offset, first, count, &mut done),
                false => regall_region_read(cookie, offset, first, count, &mut done),
            }
        };
        assert!(done.bytes <= local.iter().map(|s| s.len).sum());
        if !write {
            let first = local.first().map_or(0, |s| s.len.min(done.bytes));
            self.theirs(first as usize);
        }
        e
    }

    /// What was read is the victim's, or, of addresses that are none of its, nothing.
    fn theirs(&self, bytes: usize) {
        assert!(self.buffer[..bytes].iter().all(|b| *b == FILLED));
    }
}

// Changes, and then calls.
fuzz_target!(|data: &[u8]| {
    with_scene(Scene::new, |scene| {
        let mut input = Input(data);
        scene.honest();
        for _ in 0..input.byte() % 8 {
            scene.edit(&mut input);
        }
        for _ in 0..4 {
            if input.more() {
                scene.call(&mut input);
            }
        }
    });
});
