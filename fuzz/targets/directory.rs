//! Any directory, of which an input says what differs from an honest one: who reads it ends,
//! with a list in order or an error, and who gets what it names gets the owner's memory or an
//! error.
#![no_main]

#[path = "stage.rs"]
mod stage;

use libfuzzer_sys::fuzz_target;
use regall as _;
use regall_directory::layout::{segment_offset, Header, HEADER_BYTES, INFLIGHT, MAGIC, SEGMENTS};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Prot, Reason};
use stage::{with_scene, write, Input, Victim, FILLED, MEMORY};
use std::ffi::c_void;
use std::fs::File;
use std::mem::{offset_of, MaybeUninit};

/// Slots that an honest directory has.
const SLOTS: u64 = 24;

#[repr(C)]
#[derive(Default)]
struct Done {
    bytes: u64,
    generation: u64,
    mechanism: u32,
    reserved: u32,
}

extern "C" {
    fn regall_peer_open(pid: i32, start: u64, flags: u32, out: *mut *mut c_void) -> i32;
    fn regall_peer_close(peer: *mut c_void) -> i32;
    fn regall_peer_check(peer: *mut c_void) -> i32;
    fn regall_get(peer: *mut c_void, to: *mut u8, from: u64, len: usize, done: *mut Done) -> i32;
    fn regall_map(peer: *mut c_void, at: u64, len: usize, flags: u32, out: *mut Mapping) -> i32;
    fn regall_map_check(peer: *mut c_void, mapping: *const Mapping) -> i32;
    fn regall_unmap(mapping: *mut Mapping) -> i32;
}

#[repr(C)]
struct Mapping {
    at: u64,
    len: u64,
    generation: u64,
    internal: [u64; 4],
}

struct Scene {
    victim: Victim,
    file: File,
    buffer: Vec<u8>,
}

impl Scene {
    fn new() -> Self {
        let victim = Victim::new();
        let file = victim.directory();
        let mut scene = Self {
            victim,
            file,
            buffer: vec![0; 2 * MEMORY as usize],
        };
        scene.works();
        scene
    }

    /// With an honest one all is had, or the rest shows nothing.
    fn works(&mut self) {
        self.honest();
        let directory = regall_reader::open(self.victim.pid).expect("a directory");
        let snapshot = directory.snapshot().expect("a snapshot");
        let regions = SLOTS as usize / 6;
        assert_eq!(snapshot.regions.len(), regions);
        assert_eq!(snapshot.entries.len(), SLOTS as usize - regions);
        let (mut peer, mut done) = (std::ptr::null_mut(), Done::default());
        let (to, len) = (self.buffer.as_mut_ptr(), MEMORY as usize);
        // SAFETY: the buffer has as much room, and the rest is valid.
        unsafe {
            assert_eq!(regall_peer_open(self.victim.pid as i32, 0, 0, &mut peer), 0);
            assert_eq!(regall_get(peer, to, self.victim.memory, len, &mut done), 0);
            assert_eq!(regall_peer_close(peer), 0);
        }
        assert!(self.buffer[..len].iter().all(|b| *b == FILLED));
    }

    /// What the shim would have written.
    fn honest(&self) {
        // Whole again, and nothing of the last one is left.
        self.file.set_len(0).expect("a size");
        self.file.set_len(segment_offset(1) as u64).expect("a size");
        let mut header = [0; HEADER_BYTES / 8];
        header[0] = MAGIC;
        header[1] = u64::from(self.victim.pid);
        header[2] = self.victim.start;
        header[3] = 7;
        header[4] = self.victim.namespace;
        header[offset_of!(Header, generation) / 8] = 100;
        header[offset_of!(Header, high_water) / 8] = SLOTS;
        header[offset_of!(Header, segments) / 8] = 1;
        write(&self.file, 0, &header);
        let attr = Attr {
            prot: Prot::from_bits(Prot::READ | Prot::WRITE),
            kind: Kind::Anon,
            flags: Flags::from_bits(0),
            pin: Column::YES,
            hca: Column::no(Reason::Off),
        };
        let slots: Vec<_> = (0..SLOTS)
            .flat_map(|n| {
                let start = self.victim.memory + n * MEMORY;
                // One in six is a memory region.
                let region = u64::from(n % 6 == 5);
                let what = if region == 1 { 1 } else { attr.pack() };
                [
                    n + 1,
                    start,
                    start + MEMORY,
                    what,
                    n + 1,
                    5 * region,
                    region,
                    0,
                ]
            })
            .collect();
        write(&self.file, HEADER_BYTES as u64, &slots);
    }

    /// One change.
    fn edit(&self, input: &mut Input) {
        let header_words = HEADER_BYTES as u64 / 8;
        let what = input.byte();
        let word = match what % 5 {
            0 => 5 + u64::from(input.byte()) % 11,
            1 => u64::from(input.byte()) % 5,
            2 => {
                (offset_of!(Header, inflight) as u64) / 8
                    + u64::from(input.byte()) % INFLIGHT as u64
            }
            3 => input.number() % (header_words + 1024 * 8),
            _ => header_words + u64::from(input.byte()) % (8 * SLOTS),
        };
        if what == 255 {
            // Longer than it says, with holes, or cut short.
            let bytes = input.number() % (2 * segment_offset(SEGMENTS) as u64);
            self.file.set_len(bytes).expect("a size");
            return;
        }
        let (kind, value) = (input.byte(), input.number());
        let value = self.victim.word(kind, value, &[]);
        let size = self.file.metadata().expect("a size").len();
        if word * 8 + 8 <= size {
            write(&self.file, word * 8, &[value]);
        }
    }

    /// The command line's way.
    fn read(&self) {
        let Ok(directory) = regall_reader::open(self.victim.pid) else {
            return;
        };
        let Ok(snapshot) = directory.snapshot() else {
            return;
        };
        for pair in snapshot.entries.windows(2) {
            assert!(pair[0].range.end() <= pair[1].range.start());
        }
        for pair in snapshot.regions.windows(2) {
            let (a, b) = (&pair[0], &pair[1]);
            assert!(
                a.domain < b.domain || a.domain == b.domain && a.range.end() <= b.range.start()
            );
        }
        assert!(snapshot.busy <= INFLIGHT && snapshot.stable);
        assert!(!snapshot.header.exe.contains('\n'));
    }

    /// A peer's way.
    fn get(&mut self, input: &mut Input) {
        let mut peer = std::ptr::null_mut();
        // SAFETY: out is valid; the rest is numbers.
        let opened = unsafe { regall_peer_open(self.victim.pid as i32, 0, 0, &mut peer) };
        let expected = [
            0,
            -libc::ENOEXEC,
            -libc::ENOENT,
            -libc::EPERM,
            -libc::ENOMEM,
        ];
        assert!(expected.contains(&opened), "{opened}");
        if opened != 0 {
            return;
        }
        for _ in 0..3 {
            let (kind, value) = (input.byte(), input.number());
            let from = self.victim.word(kind, value, &[]);
            let len = input.number() as usize % self.buffer.len() + 1;
            self.buffer[..len].fill(0);
            let mut done = Done::default();
            // SAFETY: the buffer has len bytes, done is valid, and the peer is open.
            let got = unsafe { regall_get(peer, self.buffer.as_mut_ptr(), from, len, &mut done) };
            assert!(got <= 0 && got > -134 && done.bytes <= len as u64, "{got}");
            assert!(got != 0 || done.bytes == len as u64);
            // Whatever the directory says, it is the victim's memory.
            if from.wrapping_sub(self.victim.memory) < MEMORY {
                let there = self.victim.memory + MEMORY - from;
                let good = done.bytes.min(there) as usize;
                assert!(self.buffer[..good].iter().all(|b| *b == FILLED));
            }
        }
        let mut mapping = MaybeUninit::<Mapping>::uninit();
        let at = self.victim.memory.wrapping_add(input.number());
        // SAFETY: as above; what was mapped is unmapped.
        unsafe {
            let flags = u32::from(input.byte());
            let len = input.number() as usize;
            if regall_map(peer, at, len, flags, mapping.as_mut_ptr()) == 0 {
                regall_map_check(peer, mapping.as_ptr());
                assert_eq!(regall_unmap(mapping.as_mut_ptr()), 0);
            }
            assert_eq!(regall_peer_check(peer), 0);
            assert_eq!(regall_peer_close(peer), 0);
        }
    }
}

// Changes, and then what is to be got of it.
fuzz_target!(|data: &[u8]| {
    with_scene(Scene::new, |scene| {
        let mut input = Input(data);
        scene.honest();
        for _ in 0..input.byte() % 16 {
            scene.edit(&mut input);
        }
        scene.read();
        scene.get(&mut input);
    });
});
