//! What instructions do, and what a plan takes them for.

use super::*;

#[test]
fn what_instructions_leave_in_registers() {
    for (bytes, reg, effect) in [
        (&[0xb8, 9, 0, 0, 0][..], RAX, Effect::Constant(9)),
        (&[0xb8, 9, 0, 0, 0], 1, Effect::Keeps),
        (&[0x48, 0xc7, 0xc0, 15, 0, 0, 0], RAX, Effect::Constant(15)),
        (&[0x41, 0xb8, 9, 0, 0, 0], RAX, Effect::Keeps),
        (&[0x41, 0xb8, 9, 0, 0, 0], 8, Effect::Constant(9)),
        (&[0x31, 0xc0], RAX, Effect::Constant(0)),
        (&[0x44, 0x89, 0xc0], RAX, Effect::Copy(8)),
        (&[0xb0, 9], RAX, Effect::Unknown),
        (&[0x8b, 0x03], RAX, Effect::Unknown),
        (&[0xf7, 0xe1], RAX, Effect::Unknown), // mul ecx
        (&[0xf7, 0xe1], 2, Effect::Unknown),
        (&[0x0f, 0xa2], RAX, Effect::Unknown), // cpuid
        (&[0x0f, 0x05], RAX, Effect::Unknown),
        (&[0x0f, 0x05], 3, Effect::Keeps),
        (&[0xf0, 0x0f, 0xb1, 0x17], RAX, Effect::Unknown), // lock cmpxchg
        (&[0x0f, 0x44, 0xc1], RAX, Effect::Unknown),       // cmove
        (&[0x91], RAX, Effect::Unknown),                   // xchg
        (&[0x0f, 0xc1, 0xc8], 1, Effect::Unknown),         // xadd eax, ecx
        (&[0x58], RAX, Effect::Unknown),                   // pop
        (&[0x50], RAX, Effect::Keeps),
        (&[0x0f, 0x31], RAX, Effect::Unknown), // rdtsc
        (&[0x48, 0xad], RAX, Effect::Unknown), // lods
        (&[0xe8, 0, 0, 0, 0], RAX, Effect::Unknown),
        (&[0xe8, 0, 0, 0, 0], 3, Effect::Keeps),
    ] {
        assert_eq!(insn(bytes).effect(reg), effect, "{bytes:x?} {reg}");
    }
}

#[test]
fn where_instructions_go() {
    for (bytes, flow) in [
        (&[0x90][..], Flow::Next),
        (&[0xeb, 0xfe], Flow::Jump(-2)),
        (&[0xe9, 1, 0, 0, 0], Flow::Jump(1)),
        (&[0x75, 4], Flow::Branch(4)),
        (&[0x0f, 0x84, 0, 1, 0, 0], Flow::Branch(256)),
        (&[0xe2, 0xfe], Flow::Branch(-2)),
        (&[0xe3, 5], Flow::Branch(5)),
        (&[0xff, 0xe0], Flow::Indirect),
        (&[0x3e, 0xff, 0xe0], Flow::Indirect),
        (&[0xff, 0x25, 0, 0, 0, 0], Flow::Indirect),
        (&[0xff, 0xd0], Flow::Call),
        (&[0xc3], Flow::Stop),
        (&[0xf4], Flow::Stop),
        (&[0x0f, 0x0b], Flow::Stop),
        (&[0x0f, 0x05], Flow::Next),
    ] {
        assert_eq!(insn(bytes).flow(), flow, "{bytes:x?}");
    }
}

#[test]
fn what_can_move() {
    for (bytes, movable) in [
        (&[0xb8, 9, 0, 0, 0][..], true),
        (&[0x4c, 0x8b, 0x4c, 0x24, 8], true), // mov r9, [rsp + 8]
        (&[0x89, 0x04, 0x24], true),          // mov [rsp], eax
        (&[0x48, 0x8d, 0x35, 0, 0, 0, 0], true), // lea rsi, [rip]
        (&[0x48, 0x8b, 0x35, 0, 0, 0, 0], false),
        (&[0x8b, 0x05, 0, 0, 0, 0], false),
        (&[0x67, 0x8b, 0x05, 0, 0, 0, 0], false),
        (&[0x83, 0x3d, 0, 0, 0, 0, 1], false), // cmp dword ptr [rip], 1
        (&[0xe8, 0, 0, 0, 0], false),
        (&[0x75, 0], false),
        (&[0x50], false),
        (&[0x58], false),
        (&[0xc9], false),
        (&[0x48, 0x83, 0xec, 8], false),
        (&[0xf3, 0x0f, 0x1e, 0xfa], false), // endbr64
        (&[0xcd, 0x80], false),
        (&[0x0f, 0x05], false),
    ] {
        assert_eq!(insn(bytes).movable(), movable, "{bytes:x?}");
    }
}

#[test]
fn who_uses_vectors() {
    assert!(insn(&[0xf3, 0x0f, 0x6f, 0x06]).uses_vectors());
    assert!(
        insn(&[0xc5, 0xf8, 0x77]).uses_vectors() || insn(&[0xc5, 0xfd, 0x6f, 0x06]).uses_vectors()
    );
    assert!(insn(&[0x0f, 0x29, 0x04, 0x24]).uses_vectors());
    assert!(!insn(&[0xb8, 9, 0, 0, 0]).uses_vectors());
    assert!(!insn(&[0x64, 0x89, 0x01]).uses_vectors());
    assert!(!insn(&[0x48, 0xf7, 0xd8]).uses_vectors());
}

#[test]
fn decoding_falls_into_step() {
    let mut bytes = vec![0x90; 100];
    bytes.extend([0xb8, 9, 0, 0, 0, 0x0f, 0x05, 0xc3]);
    assert_eq!(boundary(&bytes, 105), Boundary::Yes);
    assert_eq!(boundary(&bytes, 103), Boundary::No);
    assert_eq!(boundary(&bytes, 0), Boundary::Yes);
    assert_eq!(boundary(&bytes[100..], 5), Boundary::Yes);
}

#[test]
fn the_search_finds_every_place() {
    for len in 0..70 {
        for at in 0..70 {
            let mut bytes = vec![0x0f; len];
            if at + 1 < len {
                bytes[at + 1] = 5;
            }
            let found = bytes.windows(2).position(|w| w == [0x0f, 5]);
            assert_eq!(next_syscall(&bytes, 0), found, "{len} {at}");
            assert_eq!(
                next_syscall(&bytes, at.min(len)),
                found.filter(|f| *f >= at)
            );
        }
    }
}

#[test]
fn names_of_libc() {
    for yes in [
        "/lib/x86_64-linux-gnu/libc.so.6",
        "/a/libc-2.31.so",
        "/lib64/ld-linux-x86-64.so.2",
        "ld-2.28.so",
    ] {
        assert!(is_libc(yes.as_bytes()), "{yes}");
    }
    for no in [
        "/lib/libcurl.so.4",
        "/lib/libc.musl-x86_64.so.1",
        "/libc.so.6/x",
        "",
    ] {
        assert!(!is_libc(no.as_bytes()), "{no}");
    }
}

#[test]
fn numbers_are_sets() {
    assert_eq!(Numbers::one(3).known(), [3]);
    assert!(Numbers::ANY.open && Numbers::ANY.known().is_empty());
    assert_eq!(
        plan::kind_of_all(&Numbers::default(), Config::default()).0,
        Kind::Pass
    );
    let _ = Patches::new();
}
