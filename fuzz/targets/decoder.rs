//! Any bytes as code: every instruction is whole, and what is planned for a site can be done
//! there.
#![no_main]

use libfuzzer_sys::fuzz_target;
use regall_patch::decode::{boundary, Flow, Insn};
use regall_patch::discover::{inspect, inspect_in, next_syscall, Text, Verdict};
use regall_patch::elf::Bounds;
use regall_patch::function::{Function, Room};
use regall_patch::plan::{Plan, ZoneLayout, JUMP_BYTES, TRAMPOLINE_BYTES};
use regall_patch::Config;
use std::cell::RefCell;

/// Where the code is said to stand.
const BASE: u64 = 0x7000_0000_0000;
/// Where its trampolines are.
const ZONE: u64 = BASE + 0x100_0000;

thread_local! {
    static ROOM: RefCell<Box<Room>> = RefCell::new(Box::new(Room::new()));
}

// The first byte says how the rest is to be looked at.
fuzz_target!(|data: &[u8]| {
    let Some((&how, code)) = data.split_first() else {
        return;
    };
    for at in 0..code.len().min(64) {
        instruction(&code[at..]);
        boundary(code, at);
    }
    ROOM.with_borrow_mut(|room| sites(how, code, room));
});

/// One instruction says the same of itself however much follows it, and nothing cut short.
fn instruction(bytes: &[u8]) {
    let Some(insn) = Insn::decode(bytes) else {
        return;
    };
    let len = usize::from(insn.len);
    assert!((1..=15).contains(&len) && len <= bytes.len());
    let alone = Insn::decode(&bytes[..len]).expect("it is all there");
    assert_eq!((alone.len, alone.flow()), (insn.len, insn.flow()));
    assert!(Insn::decode(&bytes[..len - 1]).is_none());
    if insn.movable() {
        assert_eq!(insn.flow(), Flow::Next);
    }
    insn.uses_vectors();
    insn.is_nop();
    for reg in 0..16 {
        insn.effect(reg);
    }
}

fn sites(how: u8, code: &[u8], room: &mut Room) {
    let text = Text {
        base: BASE,
        bytes: code,
        libc: how & 1 != 0,
        module: None,
        landed: [0; 2],
        config: Config {
            strict: how & 2 != 0,
            ioctl: how & 4 != 0,
            verbs: how & 16 != 0,
        },
    };
    let bounds = Bounds {
        start: BASE + u64::from(how >> 5),
        end: BASE + code.len() as u64,
        lands: how & 8 != 0,
    };
    let mut from = 0;
    while let Some(at) = next_syscall(code, from) {
        let naive = code[from..].windows(2).position(|w| w == [0x0f, 5]);
        assert_eq!(naive.map(|n| n + from), Some(at));
        from = at + 1;
        room.clear();
        if let Verdict::Patch(plan, ..) = inspect(&text, at, room) {
            carried_out(&plan, at, code);
        }
        if let Verdict::Patch(plan, start, _) = inspect_in(&text, at, Some(bounds), room) {
            carried_out(&plan, at, code);
            if start == bounds.start {
                undisturbed(&plan, bounds, code, room);
            }
        }
    }
    assert!(!code
        .get(from..)
        .unwrap_or(&[])
        .windows(2)
        .any(|w| w == [0x0f, 5]));
}

/// What is overwritten stands right before the `syscall`, in whole instructions, and the
/// trampoline does it and comes back.
fn carried_out(plan: &Plan, at: usize, code: &[u8]) {
    let len = usize::from(plan.moved_len);
    assert_eq!(plan.site, BASE + at as u64);
    assert!(len >= JUMP_BYTES && plan.moved[..len] == code[at - len..at]);
    let patch = plan.patch(ZONE).expect("it is in reach");
    assert_eq!(patch.bytes().len(), len);
    let jump = Insn::decode(patch.bytes()).expect("a jump");
    assert_eq!(
        jump.flow(),
        Flow::Jump((ZONE - plan.start() - JUMP_BYTES as u64) as i32)
    );
    let zone = ZoneLayout {
        call_slot: ZONE + 0x1000,
        full_slot: ZONE + 0x1008,
        table: ZONE + 0x2000,
    };
    let trampoline = plan.trampoline(ZONE, &zone).expect("it fits");
    let (mut here, mut last, mut moved) = (0, Flow::Next, len as isize);
    let bytes = trampoline.bytes();
    assert_eq!(trampoline.start() + bytes.len() as u64, ZONE + TRAMPOLINE_BYTES as u64);
    assert_eq!(bytes[bytes.len() - 8..], (plan.site + 2).to_le_bytes());
    // Traps fill the room between the code and that word.
    let traps = |from: usize| bytes[from..bytes.len() - 8].iter().all(|b| *b == 0xcc);
    while !traps(here) {
        let insn = Insn::decode(&bytes[here..]).expect("instructions only");
        if moved > 0 {
            assert!(insn.movable());
            moved -= isize::from(insn.len);
            assert!(moved >= 0);
        }
        here += usize::from(insn.len);
        last = insn.flow();
    }
    let Flow::Jump(distance) = last else {
        panic!("it ends with {last:?}");
    };
    let to = (trampoline.start() + here as u64).wrapping_add_signed(i64::from(distance));
    assert!([plan.site, plan.site + 2].contains(&to));
}

/// No instruction of the function jumps between the first byte that changes and the `syscall`.
fn undisturbed(plan: &Plan, bounds: Bounds, code: &[u8], room: &mut Room) {
    let first = (bounds.start - BASE) as usize;
    let Some(function) = Function::decode(bounds.start, &code[first..], room) else {
        return;
    };
    let mut here = first;
    let mut begins = false;
    while here < code.len() {
        begins |= BASE + here as u64 == plan.start();
        assert!(function.index_at(here - first).is_some());
        let insn = Insn::decode(&code[here..]).expect("all of it is code");
        here += usize::from(insn.len);
        if let Flow::Jump(distance) | Flow::Branch(distance) = insn.flow() {
            let to = (BASE + here as u64).wrapping_add_signed(i64::from(distance));
            assert!(to <= plan.start() || to >= plan.site, "{to:x} is jumped to");
        }
    }
    assert!(begins);
}
