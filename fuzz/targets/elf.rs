//! Any bytes as a mapped ELF file: nothing beyond it is read, and nothing takes for ever.
#![no_main]

use libfuzzer_sys::fuzz_target;
use regall_patch::discover::{inspect, next_syscall, Text};
use regall_patch::elf::{tag, Module};
use regall_patch::function::Room;
use regall_patch::modules::Group;
use regall_patch::Config;
use regall_directory::addr::{PageRange, PAGE};
use std::cell::RefCell;

/// Pages that a file may have; in front of and behind them is nothing.
const PAGES: usize = 8;
const BYTES: usize = PAGES * PAGE as usize;

thread_local! {
    static STAGE: RefCell<(u64, Box<Room>)> = RefCell::new((reserve(), Box::new(Room::new())));
}

/// Memory between two pages that can't be touched.
fn reserve() -> u64 {
    let page = PAGE as usize;
    // SAFETY: a new private mapping, and a change of its middle.
    unsafe {
        let (none, private) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let at = libc::mmap(std::ptr::null_mut(), BYTES + 2 * page, none, private, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        let middle = at.cast::<u8>().add(page);
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        assert_eq!(libc::mprotect(middle.cast(), BYTES, rights), 0);
        middle as u64
    }
}

fuzz_target!(|data: &[u8]| {
    STAGE.with_borrow_mut(|(at, room)| look(*at, room, data));
});

/// An input is short: a zero in it is followed by how many more there are.
fn unfold(data: &[u8]) -> Vec<u8> {
    let mut all = Vec::new();
    let mut rest = data.iter();
    while let Some(&byte) = rest.next() {
        let zeros = if byte == 0 {
            rest.next().copied().unwrap_or(0)
        } else {
            0
        };
        all.push(byte);
        all.resize(all.len() + usize::from(zeros), 0);
    }
    all.truncate(BYTES);
    all
}

fn look(at: u64, room: &mut Room, data: &[u8]) {
    let data = &unfold(data)[..];
    let len = data.len().min(BYTES);
    // The last bytes stand right before what can't be read.
    let pages = len.div_ceil(PAGE as usize).max(1) as u64;
    let start = at + (PAGES as u64 - pages) * PAGE;
    // SAFETY: our own memory, of `pages` pages from `start` on.
    let bytes = unsafe {
        let bytes = std::slice::from_raw_parts_mut(start as *mut u8, (pages * PAGE) as usize);
        bytes.fill(0);
        bytes[..len].copy_from_slice(&data[..len]);
        &*bytes
    };
    let range = PageRange::new(start, start + pages * PAGE).expect("pages");
    let Some(module) = Module::open(&Group::single(range)) else {
        return;
    };
    for name in [&b"mmap"[..], b"", b"x", &[b'a'; 300]] {
        module.symbol(name);
    }
    for n in [
        tag::RELA,
        tag::RELASZ,
        tag::JMPREL,
        tag::PLTRELSZ,
        tag::STRTAB,
    ] {
        module.dynamic(n);
        module.pointer(n);
    }
    for n in [0, 1, 2, 1000, u32::MAX] {
        module.name_at(n);
        module.names(n, b"mmap");
    }
    module.memory().string(start + 1, 64);
    for offset in (0..bytes.len() as u64).step_by(509) {
        if let Some(bounds) = module.function(start + offset) {
            assert!(bounds.start <= start + offset && start + offset < bounds.end);
        }
    }
    // Code in it is inspected as the scanner does.
    let text = Text {
        base: start,
        bytes,
        libc: true,
        module: Some(&module),
        landed: [0; 2],
        config: Config::default(),
    };
    let mut from = 0;
    for _ in 0..16 {
        let Some(at) = next_syscall(bytes, from) else {
            break;
        };
        from = at + 1;
        room.clear();
        inspect(&text, at, room);
    }
}
