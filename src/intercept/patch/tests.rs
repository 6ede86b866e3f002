//! Tests of the patcher: golden pairs assembled by gcc, the C library that this
//! machine has against objdump's opinion of it, random bytes, and patched code
//! that is run.

use super::apply::{Patches, Writer};
use super::decode::{boundary, Boundary, Effect, Flow, Insn, RAX};
use super::discover::{inspect, inspect_in, next_syscall, Text, Verdict};
use super::elf::{Bounds, Module};
use super::function::{Function, Numbers, Room};
use super::modules::{groups, is_libc, Group, Origin, BUFFER_BYTES};
use super::plan::{kind_of, Entry, Kind, Plan, ZoneLayout, TRAMPOLINE_BYTES};
use super::*;
use crate::arch::trampoline::{site_of_end, END_BYTES};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

fn room() -> Box<Room> {
    Box::new(Room::new())
}

fn insn(bytes: &[u8]) -> Insn {
    Insn::decode(bytes).unwrap()
}

// --- instructions ---------------------------------------------------------

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

// --- golden pairs ----------------------------------------------------------

const BASE: u64 = 0x10000;
const ZONE: u64 = BASE + 0x1000;
const TRAMPOLINE: usize = 0x1400;
const LAYOUT: ZoneLayout = ZoneLayout {
    call_slot: ZONE,
    full_slot: ZONE + 8,
    table: ZONE + 64,
};

fn run(command: &mut Command) -> String {
    let out = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        out.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8(out.stdout).unwrap()
}

/// The bytes of `source`'s text, and the offset of its label `function_end`.
fn assemble(source: &Path, scratch: &Path) -> (Vec<u8>, Option<usize>) {
    let name = source.file_name().unwrap();
    let object = scratch.join(name).with_extension("o");
    let image = scratch.join(name).with_extension("bin");
    run(Command::new("gcc")
        .args(["-c", "-x", "assembler", "-o"])
        .arg(&object)
        .arg(source));
    run(Command::new("objcopy")
        .args(["-O", "binary", "-j", ".text"])
        .arg(&object)
        .arg(&image));
    let symbols = run(Command::new("nm").arg(&object));
    let end = symbols.lines().find(|l| l.ends_with(" function_end"));
    let end = end.map(|l| usize::from_str_radix(l.split(' ').next().unwrap(), 16).unwrap());
    (std::fs::read(image).unwrap(), end)
}

/// What the patcher makes of `code`, as one image with the trampolines behind it.
fn patched(text: &Text<'_>, bounds: Option<Bounds>) -> (Vec<u8>, Vec<Verdict>) {
    let mut image = text.bytes.to_vec();
    image.resize(TRAMPOLINE, 0);
    let mut verdicts = Vec::new();
    let mut from = 0;
    while let Some(at) = next_syscall(text.bytes, from) {
        from = at + 2;
        let whole = inspect(text, at, &mut room());
        let verdict = if bounds.is_some() {
            inspect_in(text, at, bounds, &mut room())
        } else {
            whole
        };
        verdicts.push(verdict);
        let Verdict::Patch(plan, ..) = verdict else {
            continue;
        };
        let slot = image.len().next_multiple_of(TRAMPOLINE_BYTES);
        let trampoline = plan.trampoline(BASE + slot as u64, &LAYOUT).unwrap();
        let jump = plan.patch(trampoline.start()).unwrap();
        let start = (plan.start() - BASE) as usize;
        image[start..start + jump.bytes().len()].copy_from_slice(jump.bytes());
        image.resize((trampoline.start() - BASE) as usize, 0);
        image.extend(trampoline.bytes());
    }
    (image, verdicts)
}

fn golden(input: &Path, scratch: &Path) {
    let name = input.file_name().unwrap().to_str().unwrap().to_owned();
    let source = std::fs::read_to_string(input).unwrap();
    let marks: BTreeSet<&str> = source
        .lines()
        .next()
        .unwrap()
        .split(['#', ',', ' '])
        .filter(|w| !w.is_empty())
        .collect();
    let (code, end) = assemble(input, scratch);
    let config = Config {
        strict: marks.contains("strict"),
        ioctl: marks.contains("ioctl"),
    };
    let text = Text {
        base: BASE,
        bytes: &code,
        libc: marks.contains("libc"),
        module: None,
        config,
    };
    let end = BASE + end.unwrap_or(code.len()) as u64;
    let bounds = marks.contains("function").then_some(Bounds {
        start: BASE,
        end,
        lands: false,
    });
    let (image, verdicts) = patched(&text, bounds);
    if name.starts_with("refuse_") {
        let refused = match name.as_str() {
            "refuse_cancellable.in.S" => Verdict::Cancellable,
            _ => Verdict::Refuse,
        };
        assert!(
            !verdicts.is_empty() && verdicts.iter().all(|v| *v == refused),
            "{name}: {verdicts:x?}"
        );
    } else if name.starts_with("ignore_") {
        assert!(
            !verdicts.is_empty() && verdicts.iter().all(|v| *v == Verdict::Nothing),
            "{name}: {verdicts:x?}"
        );
    } else {
        let output = PathBuf::from(input.to_str().unwrap().replace(".in.S", ".out.S"));
        let (expected, _) = assemble(&output, scratch);
        assert!(
            image == expected,
            "{name}: {verdicts:x?}\n     got {image:02x?}\nexpected {expected:02x?}"
        );
    }
}

#[test]
fn golden_pairs() {
    let folder = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/intercept/patch/golden"
    ));
    let scratch = std::env::temp_dir().join(format!("regall-golden-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let mut inputs: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().path())
        .collect();
    inputs.retain(|p| p.to_str().unwrap().ends_with(".in.S"));
    assert!(inputs.len() > 20, "{inputs:?}");
    inputs.iter().for_each(|input| golden(input, &scratch));
    std::fs::remove_dir_all(scratch).unwrap();
}

// --- the C library of this machine ------------------------------------------

fn group_named(stem: &str) -> (Group, PathBuf) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps
        .lines()
        .find(|l| l.contains(stem) && l.contains(" 00000000 "))
        .unwrap();
    let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let path = PathBuf::from(&line[line.find('/').unwrap()..]);
    let mut found = None;
    groups(&mut [0; BUFFER_BYTES], |group| {
        if group.segments().any(|s| s.range.start() == start) {
            found = Some(*group);
        }
        true
    })
    .unwrap();
    (found.unwrap(), path)
}

/// Every verdict about a module's text, by address in the file.
fn verdicts(group: &Group, config: Config) -> Vec<(u64, Verdict)> {
    let module = Module::open(group).unwrap();
    let mut all = Vec::new();
    for segment in group.segments().filter(|s| s.prot.executable()) {
        let bytes = module
            .memory()
            .bytes(segment.range.start(), segment.range.len() as usize)
            .unwrap();
        let text = Text {
            base: segment.range.start(),
            bytes,
            libc: true,
            module: Some(&module),
            config,
        };
        let mut from = 0;
        while let Some(at) = next_syscall(bytes, from) {
            from = at + 2;
            all.push((
                text.base + at as u64 - module.bias,
                inspect(&text, at, &mut room()),
            ));
        }
    }
    all
}

/// Addresses of the `syscall` behind each `mov $NR,%eax` whose number matters,
/// and of all others, as objdump sees them.
fn by_objdump(path: &Path, config: Config) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let listing = run(Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(path));
    let (mut wrappers, mut others) = (BTreeSet::new(), BTreeSet::new());
    let mut number = None;
    for line in listing.lines() {
        let Some((at, code)) = line.split_once(":\t") else {
            continue;
        };
        if code.trim() == "syscall" {
            let at = u64::from_str_radix(at.trim(), 16).unwrap();
            let matters = number.is_some_and(|nr| kind_of(nr, config) != Kind::Pass);
            if matters { &mut wrappers } else { &mut others }.insert(at);
        }
        let loaded = code
            .trim()
            .strip_prefix("mov    $0x")
            .and_then(|c| c.strip_suffix(",%eax"));
        number = loaded.and_then(|n| u32::from_str_radix(n, 16).ok());
    }
    (wrappers, others)
}

#[test]
fn the_sites_of_libc_are_those_that_objdump_sees() {
    for (stem, at_least) in [("/libc.so.6", 20), ("/ld-linux-x86-64.so.2", 4)] {
        for strict in [false, true] {
            let config = Config {
                strict,
                ioctl: strict,
            };
            let (group, path) = group_named(stem);
            let (expected, others) = by_objdump(&path, config);
            assert!(expected.len() >= at_least, "{stem} {expected:x?}");
            let mut found = BTreeSet::new();
            for (at, verdict) in verdicts(&group, config) {
                let known = expected.contains(&at) || others.contains(&at);
                assert!(
                    known || verdict == Verdict::Nothing,
                    "{stem} {at:x} is no syscall: {verdict:x?}"
                );
                match verdict {
                    Verdict::Patch(plan, function, _)
                        if plan.number.is_some() && expected.contains(&at) =>
                    {
                        assert_eq!(plan.moved_len, if plan.landing == 0 { 5 } else { 0 });
                        // Where a function begins with its call, its first bytes stay.
                        assert!(plan.start() != function, "{at:x} {plan:x?}");
                        // Nothing tells the bounds of clone and clone3.
                        assert!(
                            function != 0 || matches!(plan.number, Some(56 | 435)),
                            "{at:x}"
                        );
                        found.insert(at);
                    }
                    Verdict::Patch(plan, ..) => assert!(others.contains(&at), "{at:x} {plan:x?}"),
                    Verdict::Refuse | Verdict::Cancellable => {
                        assert!(others.contains(&at), "{stem} {at:x} refused")
                    }
                    Verdict::Nothing => assert!(!expected.contains(&at), "{at:x}"),
                }
            }
            assert_eq!(found, expected, "{stem}");
        }
    }
}

#[test]
fn the_hot_wrappers_do_without_vector_state() {
    let (group, _) = group_named("/libc.so.6");
    for (at, verdict) in verdicts(&group, Config::default()) {
        let Verdict::Patch(plan, ..) = verdict else {
            continue;
        };
        if let Some(9..=12 | 25 | 28) = plan.number {
            let moved_alone = at != 0;
            assert!(moved_alone && plan.entry == Entry::Call, "{at:x} {plan:x?}");
        }
    }
}

#[test]
fn libc_syscall_is_a_site() {
    let syscall = find_function("syscall").unwrap();
    let (group, _) = group_named("/libc.so.6");
    let bias = Module::open(&group).unwrap().bias;
    let sites: Vec<_> = verdicts(&group, Config::default());
    let near = |at: u64| (syscall - bias..syscall - bias + 64).contains(&at);
    let verdict = sites.iter().find(|(at, _)| near(*at)).unwrap().1;
    assert!(
        matches!(verdict, Verdict::Patch(Plan { kind: Kind::Any, entry: Entry::Call, .. }, f, false) if f == syscall)
    );
}

#[test]
fn functions_are_found_by_name() {
    for name in [
        c"mmap",
        c"munmap",
        c"sbrk",
        c"dlopen",
        c"fork",
        c"__errno_location",
        c"posix_madvise",
    ] {
        // SAFETY: a NUL-terminated name.
        let expected = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) } as u64;
        assert_eq!(
            find_function(name.to_str().unwrap()),
            Some(expected),
            "{name:?}"
        );
    }
    for none in ["", "no_such_function", "memcpy\0", "environ"] {
        assert_eq!(find_function(none), None, "{none:?}");
    }
}

#[test]
fn bounds_of_functions() {
    let (group, _) = group_named("/libc.so.6");
    let module = Module::open(&group).unwrap();
    let mmap = find_function("mmap").unwrap();
    let bounds = module.function(mmap + 3).unwrap();
    assert_eq!(bounds.start, mmap);
    assert!(bounds.end > mmap + 20 && bounds.end < mmap + 256);
    assert_eq!(module.function(0), None);
    assert_eq!(module.function(u64::MAX), None);
    assert_eq!(module.function(module.bias), None);
}

#[test]
fn our_own_text_and_the_kernels_are_told_apart() {
    let mut origins = Vec::new();
    groups(&mut [0; BUFFER_BYTES], |group| {
        origins.push(group.origin);
        true
    })
    .unwrap();
    for origin in [
        Origin::Libc,
        Origin::File,
        Origin::Anonymous,
        Origin::Stack,
        Origin::Kernel,
    ] {
        assert!(origins.contains(&origin), "{origin:?}");
    }
    assert_eq!(origins.iter().filter(|o| **o == Origin::Libc).count(), 2);
}

// --- random bytes ----------------------------------------------------------

/// A plan must be what its own bytes say.
fn check_plan(text: &Text<'_>, at: usize, plan: &Plan) {
    let moved = usize::from(plan.moved_len);
    assert!((5..=19).contains(&moved));
    assert_eq!(plan.site, text.base + at as u64);
    assert_eq!(&text.bytes[at..at + 2], [0x0f, 5]);
    let before = &text.bytes[at - moved..at];
    assert_eq!(&plan.moved[..moved], before);
    let mut rest = before;
    while !rest.is_empty() {
        let insn = insn(rest);
        assert!(insn.movable());
        rest = &rest[usize::from(insn.len)..];
    }
    if let [.., 0xb8, a, b, c, d] = *before {
        if plan.number == Some(u32::from_le_bytes([a, b, c, d])) {
            assert_ne!(kind_of(plan.number.unwrap(), text.config), Kind::Pass);
        }
    }
    assert_ne!(plan.kind, Kind::Pass);
    let code = plan.trampoline(ZONE + 1024, &LAYOUT).unwrap();
    assert!(code.bytes().len() <= TRAMPOLINE_BYTES && code.bytes().starts_with(before));
    // Whoever is called there finds the site again by what follows the call.
    let ends = code.bytes().windows(END_BYTES).enumerate();
    let sites: Vec<_> = ends
        .filter_map(|(n, end)| {
            let at = code.start() + n as u64;
            site_of_end(at, end.try_into().unwrap())
        })
        .collect();
    assert_eq!(sites, [plan.site]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_are_no_danger(mut bytes in proptest::collection::vec(any::<u8>(), 2..300),
                                  at in any::<proptest::sample::Index>(), with_bounds in any::<bool>(),
                                  number in 0u32..600, shape in 0u8..4, strict in any::<bool>()) {
        let at = at.index(bytes.len() - 1);
        bytes[at..at + 2].copy_from_slice(&[0x0f, 5]);
        if shape > 0 && at >= 5 {
            let [a, b, c, d] = number.to_le_bytes();
            bytes[at - 5..at].copy_from_slice(&[0xb8, a, b, c, d]);
        }
        if shape > 1 {
            bytes[..at.saturating_sub(5)].fill(0x90);
        }
        let config = Config { strict, ioctl: strict };
        let text = Text { base: BASE, bytes: &bytes, libc: shape == 3, module: None, config };
        let bounds = with_bounds.then_some(Bounds { start: BASE, end: BASE + bytes.len() as u64, lands: false });
        let mut from = 0;
        while let Some(at) = next_syscall(&bytes, from) {
            from = at + 1;
            let verdict = inspect_in(&text, at, bounds, &mut room());
            if let Verdict::Patch(plan, ..) = verdict {
                check_plan(&text, at, &plan);
            }
            let _ = inspect(&text, at, &mut room());
        }
    }

    #[test]
    fn random_functions_are_no_danger(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        let mut ops = room();
        if let Some(function) = Function::decode(1, &bytes, &mut ops) {
            for index in 0..bytes.len() {
                let _ = (function.numbers(index), function.room_before(index), function.is_syscall(index));
            }
        }
    }
}

#[test]
fn what_is_left_alone() {
    for strict in [false, true] {
        let config = Config {
            strict,
            ioctl: strict,
        };
        for nr in [libc::SYS_vfork, libc::SYS_read, libc::SYS_getpid, 512, 9999] {
            assert_eq!(kind_of(nr as u32, config), Kind::Pass, "{nr}");
        }
        let only_then = if strict { Kind::Hook } else { Kind::Pass };
        assert_eq!(kind_of(libc::SYS_rt_sigaction as u32, config), only_then);
        assert_eq!(kind_of(libc::SYS_clone as u32, config), Kind::Clone);
        assert_eq!(kind_of(libc::SYS_clone3 as u32, config), Kind::Hook);
    }
}

#[test]
fn a_mutated_library_is_no_danger() {
    // The file's segments as they are in memory, copied, and bytes of its
    // headers and tables changed.
    let (group, _) = group_named("/ld-linux-x86-64.so.2");
    let module = Module::open(&group).unwrap();
    let first = group.segments().next().unwrap().range;
    let image = module
        .memory()
        .bytes(first.start(), first.len() as usize)
        .unwrap();
    let copy = sys::map_private(image.len()).unwrap().as_ptr();
    let range = PageRange::new(copy as u64, copy as u64 + image.len() as u64).unwrap();
    let copied = Group::single(range);
    let mut seed = 1u32;
    for _ in 0..3000 {
        // SAFETY: `copy` is a fresh mapping of that length.
        let bytes = unsafe { core::slice::from_raw_parts_mut(copy, image.len()) };
        bytes.copy_from_slice(image);
        for _ in 0..8 {
            seed = seed.wrapping_mul(1664525).wrapping_add(1013904223);
            let limit = if seed & 1 == 0 { 512 } else { image.len() };
            bytes[(seed >> 8) as usize % limit] = seed as u8;
        }
        if let Some(module) = Module::open(&copied) {
            let _ = (
                module.function(range.start() + 0x1000),
                module.symbol(b"_dl_open"),
                module.dynamic(5),
            );
        }
    }
    super::unmap(range);
}

// --- patched code that runs --------------------------------------------------

/// What a site had in its registers when it arrived at [`test_entry`].
static ARRIVED: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

// Counts an arrival, records the registers, answers 4711, and keeps everything
// but rax, rcx and r11.
core::arch::global_asm!(
    ".globl regall_test_entry",
    "regall_test_entry:",
    "lea rcx, [rip + {arrived}]",
    "mov [rcx], rax",
    "mov [rcx + 8], rdi",
    "mov [rcx + 16], rsi",
    "mov [rcx + 24], rdx",
    "mov [rcx + 32], r10",
    "mov [rcx + 40], r8",
    "mov [rcx + 48], r9",
    "inc qword ptr [rcx + 56]",
    "mov eax, 4711",
    "ret",
    arrived = sym ARRIVED,
);

unsafe extern "C" {
    fn regall_test_entry();
}

/// Tests that run patched code take turns: the patcher's state is one.
static TURN: Mutex<()> = Mutex::new(());

pub fn alone() -> std::sync::MutexGuard<'static, ()> {
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn with_test_entry() -> std::sync::MutexGuard<'static, ()> {
    let turn = alone();
    let mut guard = loop {
        if let Some(guard) = Guard::take() {
            break guard;
        }
    };
    let state = guard.state();
    state.patches.entries = [regall_test_entry as *const () as u64; 2];
    turn
}

/// A page of executable code made of `code`, and its range.
fn page(code: &[u8]) -> PageRange {
    // Where the kernel puts what a program maps: the shim's own memory is elsewhere.
    let at = sys::map_fresh(4096, 3, libc::MAP_PRIVATE).unwrap() as *mut u8;
    // SAFETY: a fresh page; the code is shorter.
    unsafe { core::ptr::copy_nonoverlapping(code.as_ptr(), at, code.len()) };
    // SAFETY: nobody writes there any more.
    unsafe { sys::protect(at as u64, 4096, libc::PROT_READ | libc::PROT_EXEC) }.unwrap();
    PageRange::new(at as u64, at as u64 + 4096).unwrap()
}

/// A C function that passes its arguments on as a system call's, leaves
/// `before` right before the `syscall`, uses the red zone, and returns rax if the
/// red zone, the callee-saved registers and the stack are as they were.
fn caller(before: &[u8]) -> Vec<u8> {
    let mut code = vec![
        0x49, 0x89, 0xca, // mov r10, rcx
        0x48, 0xb9, 1, 2, 3, 4, 5, 6, 7, 8, // mov rcx, 0x0807060504030201
        0x48, 0x89, 0x4c, 0x24, 0xf8, // mov [rsp - 8], rcx
        0x48, 0x89, 0x4c, 0x24, 0x80, // mov [rsp - 128], rcx
    ];
    code.extend(before);
    code.extend([0x0f, 0x05]);
    code.extend([
        0x48, 0xb9, 1, 2, 3, 4, 5, 6, 7, 8, // mov rcx, 0x0807060504030201
        0x48, 0x3b, 0x4c, 0x24, 0xf8, // cmp rcx, [rsp - 8]
        0x75, 8, // jne bad
        0x48, 0x3b, 0x4c, 0x24, 0x80, // cmp rcx, [rsp - 128]
        0x75, 1,    // jne bad
        0xc3, // ret
        0x0f, 0x0b, // bad: ud2
    ]);
    code
}

fn mov_eax(nr: u32) -> Vec<u8> {
    let [a, b, c, d] = nr.to_le_bytes();
    vec![0xb8, a, b, c, d]
}

type Six = extern "C" fn(u64, u64, u64, u64, u64, u64) -> i64;

fn call(range: PageRange, args: [u64; 6]) -> i64 {
    call_at(range.start(), args)
}

fn call_at(at: u64, args: [u64; 6]) -> i64 {
    // SAFETY: a C function of that type was put there.
    let function: Six = unsafe { core::mem::transmute(at as *const ()) };
    let [a, b, c, d, e, f] = args;
    function(a, b, c, d, e, f)
}

fn arrivals() -> u64 {
    ARRIVED[7].load(Ordering::Relaxed)
}

fn scan_page(range: PageRange) -> Report {
    loop {
        let report = scan(range, range.end(), false);
        if !report.busy {
            return report;
        }
    }
}

fn drop_page(range: PageRange) {
    super::unmap(range);
    forget(range);
}

#[test]
fn a_patched_site_arrives_with_its_registers() {
    let _turn = with_test_entry();
    let range = page(&caller(&mov_eax(9)));
    let report = scan_page(range);
    assert_eq!(
        (report.patched, report.refused, report.write_errno),
        (1, 0, None),
        "{report:x?}"
    );
    let before = arrivals();
    assert_eq!(call(range, [1, 2, 3, 4, 5, 6]), 4711);
    assert_eq!(arrivals(), before + 1);
    let registers = ARRIVED.each_ref().map(|r| r.load(Ordering::Relaxed));
    assert_eq!(registers[..7], [9, 1, 2, 3, 4, 5, 6]);
    let again = scan_page(range);
    assert_eq!(
        (again.patched, again.already, again.refused),
        (0, 1, 0),
        "{again:x?}"
    );
    let mut seen = false;
    sites(|site| seen |= range.contains(site.address) && site.number == Some(9));
    assert!(seen);
    drop_page(range);
    sites(|site| assert!(!range.contains(site.address)));
}

/// A page that is a little ELF file: headers, a table of functions with one entry,
/// and `code`, which is that function. Also the address of the code.
fn elf_page(code: &[u8]) -> (PageRange, u64) {
    elf_page_of(&[code])
}

/// As [`elf_page`], with several functions one behind the other.
fn elf_page_of(functions: &[&[u8]]) -> (PageRange, u64) {
    const HEADER: usize = 256;
    const FRAME: usize = 320;
    const CODE: usize = 512;
    let mut image = vec![0u8; CODE];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    let word = |n: usize| (n as u32).to_le_bytes();
    put(0, b"\x7fELF\x02\x01\x01");
    put(32, &64u64.to_le_bytes());
    put(54, &[56, 0, 2, 0]);
    put(64, &1u32.to_le_bytes()); // PT_LOAD at offset and address 0
    put(120, &0x6474_e550u32.to_le_bytes());
    put(120 + 16, &(HEADER as u64).to_le_bytes());
    put(HEADER, &[1, 0x1b, 3, 0x3b]);
    put(HEADER + 8, &word(functions.len()));
    put(FRAME + 8, b"\x01zR\0");
    let mut at = CODE;
    for (n, code) in functions.iter().enumerate() {
        let (entry, frame) = (HEADER + 12 + 8 * n, FRAME + 32 + 32 * n);
        put(entry, &word(at - HEADER));
        put(entry + 4, &word(frame - HEADER));
        put(frame + 4, &word(frame + 4 - FRAME));
        put(frame + 8, &word(at - frame - 8));
        put(frame + 12, &word(code.len()));
        at += code.len();
    }
    image.extend(functions.concat());
    let range = page(&image);
    (range, range.start() + CODE as u64)
}

#[test]
fn a_site_of_any_number_lets_others_through() {
    let _turn = with_test_entry();
    // mov rdx, [rsp + 0]; mov eax, [rsi]: the number is in memory, and it takes two.
    let code = caller(&[0x48, 0x8b, 0x14, 0x24, 0x8b, 0x06]);
    let range = page(&code);
    let report = scan_page(range);
    // Nothing tells the function's bounds.
    assert_eq!((report.patched, report.refused), (0, 1));
    drop_page(range);

    let (range, function) = elf_page(&code);
    let report = scan_page(range);
    assert_eq!((report.patched, report.refused), (1, 0), "{report:x?}");
    sites(|site| {
        assert!(
            !range.contains(site.address) || (site.function == function && site.number.is_none())
        )
    });
    let number = |nr: u64, first: u64| {
        let cell = [nr];
        call_at(function, [first, cell.as_ptr() as u64, 0, 0, 0, 0])
    };
    let before = arrivals();
    assert_eq!(
        number(libc::SYS_getpid as u64, 0),
        i64::from(std::process::id())
    );
    assert_eq!(number(libc::SYS_close as u64, u64::MAX), -9);
    assert_eq!(number(511, 0), -38);
    assert_eq!(number(512, 0), -38);
    assert_eq!(number(1 << 30, 0), -38);
    assert_eq!(number(u64::MAX, 0), -38);
    assert_eq!(arrivals(), before);
    assert_eq!(number(libc::SYS_munmap as u64, 7), 4711);
    assert_eq!(number(5 << 32 | libc::SYS_munmap as u64, 7), 4711);
    assert_eq!(arrivals(), before + 2);
    assert_eq!(ARRIVED[0].load(Ordering::Relaxed), 11);
    // clone with CLONE_VM | CLONE_THREAD and a stack: the kernel's EINVAL.
    assert_eq!(number(libc::SYS_clone as u64, 0x10100), -22);
    assert_eq!(arrivals(), before + 2);
    drop_page(range);
}

/// A branch straight to the `syscall` brings another number than the one before it: it can't
/// be followed, and is not passed over.
#[test]
fn a_branch_past_a_number_that_does_not_matter_is_seen() {
    let _turn = with_test_entry();
    let far = [0x0f, 0x84, 5, 0, 0, 0]; // je, by 32 bits
    for (jump, other, refused) in [
        (&[0x74, 5][..], 11, 1),
        (&far, 11, 1),
        (&[0x74, 5], 39, 0),
        (&far, 39, 0),
        (&[0x74, 0], 11, 0),
    ] {
        let mut code = mov_eax(other);
        code.extend([0x48, 0x85, 0xff]); // test rdi, rdi
        code.extend(jump);
        code.extend(mov_eax(186)); // gettid
        code.extend([0x0f, 0x05, 0xc3]);
        let (range, function) = elf_page(&code);
        let report = scan_page(range);
        let found = (report.patched, report.refused);
        assert_eq!(found, (0, refused), "{jump:x?} {other}: {report:x?}");
        assert_eq!(peek::<5>(function)[..], mov_eax(other));
        drop_page(range);
    }
}

/// The quick look finds every branch that decoding finds, wherever the two stand.
#[test]
fn no_branch_to_a_call_is_overlooked() {
    let mut code = vec![0x90u8; 300];
    for (to, from) in (0..300)
        .step_by(23)
        .flat_map(|to| (0..290).map(move |at| (to, at)))
    {
        let distance = |len: i32| to - (from + len);
        let mut jumps = vec![[&[0x0f, 0x8f][..], &distance(6).to_le_bytes()].concat()];
        jumps.push([&[0xe9][..], &distance(5).to_le_bytes()].concat());
        if let Ok(short) = i8::try_from(distance(2)) {
            jumps.extend([0x70, 0x7f, 0xe3, 0xeb].map(|op| vec![op, short as u8]));
        }
        for jump in jumps {
            let at = from as usize;
            code[at..at + jump.len()].copy_from_slice(&jump);
            let (inside, next) = (
                to > from && to < from + jump.len() as i32,
                (to + 1) as usize,
            );
            let found = discover::may_branch_to(&code, to as usize);
            assert!(found || inside, "{to} {from} {jump:x?}");
            assert!(
                !discover::may_branch_to(&code, next),
                "{to} {from} {jump:x?}"
            );
            code[at..at + jump.len()].fill(0x90);
        }
    }
}

/// A wrapper as in the C library, with padding behind it, and the address of its function.
fn padded_wrapper(nr: u32, first: u8) -> (PageRange, u64) {
    let mut code = mov_eax(nr);
    // syscall; cmp rax, -4095; ret
    code.extend([0x0f, 0x05, 0x48, 0x3d, 0x01, 0xf0, 0xff, 0xff, 0xc3]);
    code[0] = first;
    let (range, function) = elf_page(&code);
    let nops = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    let behind = function + code.len() as u64;
    poke(behind, &nops);
    (range, function)
}

fn poke(at: u64, bytes: &[u8]) {
    Writer::default().write(at, bytes, Use::Fresh).unwrap();
}

fn peek<const N: usize>(at: u64) -> [u8; N] {
    // SAFETY: the tests look at pages that are mapped.
    unsafe { *(at as *const [u8; N]) }
}

/// Where a function begins with its system call, all that is not the call itself stays the
/// file's: a probe there hides nothing and leaves nothing behind.
#[test]
fn a_probe_on_the_first_byte_changes_nothing() {
    let _turn = with_test_entry();
    for standing in [false, true] {
        let first = if standing { 0xcc } else { 0xb8 };
        let (range, function) = padded_wrapper(9, first);
        let report = scan_page(range);
        assert_eq!((report.patched, report.refused), (1, 0), "{report:x?}");
        assert_eq!(peek(function), [first, 9, 0, 0, 0, 0xeb, 7, 0x48]);
        let harmless = u32::from(standing);
        assert_eq!(
            check(),
            probes::Seen {
                harmless,
                ..probes::Seen::default()
            }
        );
        // It goes, as the kernel does it.
        poke(function, &[0xb8]);
        let before = arrivals();
        assert_eq!(call_at(function, [1, 2, 3, 4, 5, 6]), 4711);
        assert_eq!(arrivals(), before + 1);
        let registers = ARRIVED.each_ref().map(|r| r.load(Ordering::Relaxed));
        // C passes the fourth argument in another register.
        assert_eq!(registers[..4], [9, 1, 2, 3]);
        assert_eq!(registers[5..7], [5, 6]);
        assert_eq!(scan_page(range).patched, 0);
        drop_page(range);
    }
}

#[test]
fn what_probes_leave_on_patches_is_mended() {
    let _turn = with_test_entry();
    let (range, function) = padded_wrapper(9, 0xb8);
    assert_eq!(scan_page(range).patched, 1);
    let seen = |standing, mended| probes::Seen {
        standing,
        mended,
        stuck: 0,
        harmless: 0,
        number: Some(9),
    };
    let (site, ours) = (function + 5, peek::<2>(function + 5));
    poke(site, &[0xcc]);
    assert_eq!(check(), seen(1, 0));
    assert_eq!(peek(site), [0xcc, 0x05]);
    assert_eq!(check(), seen(1, 0));
    poke(site, &[0x0f]);
    // Whoever searches meanwhile does not patch it a second time.
    assert_eq!(scan_page(range).already, 1);
    assert_eq!((check(), peek(site)), (seen(0, 1), ours));
    // It came and went between two looks.
    poke(site, &[0x0f]);
    assert_eq!((check(), peek(site)), (seen(0, 1), ours));
    assert_eq!(call_at(function, [0; 6]), 4711);
    drop_page(range);

    // Without padding the jump is in the place of the `mov`.
    let mut code = mov_eax(9);
    code.extend([0x0f, 0x05, 0xc3]);
    let (range, function) = elf_page(&code);
    assert_eq!(scan_page(range).patched, 1);
    let ours = peek::<5>(function);
    assert_eq!(ours[0], 0xe9);
    poke(function, &[0xb8]);
    assert_eq!((check(), peek(function)), (seen(0, 1), ours));
    poke(function, &[0xcc]);
    assert_eq!((check(), peek(function)), (seen(1, 0), [0xcc, 9, 0, 0, 0]));
    poke(function, &[0xb8]);
    assert_eq!((check(), peek(function)), (seen(0, 1), ours));
    assert_eq!(call_at(function, [0; 6]), 4711);
    drop_page(range);
}

/// A jump across two cache lines can't be put back at once: it is said to be gone for good.
#[test]
fn what_cannot_be_put_back_at_once_is_told() {
    let _turn = with_test_entry();
    let mut code = vec![0x90; 60];
    code.extend(mov_eax(9));
    code.extend([0x0f, 0x05, 0xc3]);
    let (range, function) = elf_page(&code);
    assert_eq!(scan_page(range).patched, 1);
    assert_eq!(check(), probes::Seen::default());
    poke(function + 60, &mov_eax(9));
    let stuck = probes::Seen {
        standing: 1,
        stuck: 1,
        number: Some(9),
        ..probes::Seen::default()
    };
    assert_eq!((check(), check()), (stuck, stuck));
    drop_page(range);
}

/// What is written where others run is seen as a whole: it may cross a word, but no line.
#[test]
fn what_fits_into_a_line_is_stored_at_once() {
    let _turn = alone();
    let range = page(&[0x90; 256]);
    let new = [0xe9, 1, 2, 3, 4];
    for offset in 64..128 {
        poke(range.start(), &[0x90; 256]);
        let stored = apply::store_at_once(range.start() + offset, &new).is_ok();
        assert_eq!(stored, offset <= 128 - 5, "{offset}");
        let mut expected = [0x90; 256];
        if stored {
            expected[offset as usize..][..5].copy_from_slice(&new);
        }
        assert_eq!(peek::<256>(range.start()), expected, "{offset}");
    }
    super::unmap(range);
}

/// Searches `range` as code that may be running: with its owner waiting, or left.
fn search_running(range: PageRange, left: bool) -> Report {
    let job = Job {
        range,
        running: true,
        patch: true,
        gone: false,
    };
    let mut report = Report::default();
    let mut guard = Guard::take().unwrap();
    match left {
        true => guard.state().search_copied(job, &mut report),
        false => guard.state().search(job, &mut report),
    }
    report
}

/// In what may be running one instruction changes, at once, or the site is refused.
#[test]
fn what_may_be_running_is_patched_at_once_or_not_at_all() {
    let _turn = with_test_entry();
    let cases = [(0, 1, 1), (59, 1, 1), (60, 1, 0), (8, 2, 0)];
    for (left, (offset, instructions, patched)) in [true, false]
        .into_iter()
        .flat_map(|l| cases.map(|c| (l, c)))
    {
        let mut code = vec![0x90; offset];
        match instructions {
            1 => code.extend(mov_eax(9)),
            _ => code.extend([0x41, 0x89, 0xca, 0x31, 0xc0, 0x83, 0xc8, 9]),
        }
        code.extend([0x0f, 0x05, 0xc3]);
        let range = page(&code);
        let report = search_running(range, left);
        assert_eq!(
            report.patched, patched,
            "{offset} {instructions}: {report:x?}"
        );
        let at = range.start() + offset as u64;
        let jump = peek::<1>(at) == [0xe9];
        assert_eq!(jump, patched == 1, "{offset} {instructions}");
        drop_page(range);
    }
}

/// What is left is taken apart by its file's tables, as all else is.
#[test]
fn what_was_left_is_known_by_its_files_tables() {
    let _turn = with_test_entry();
    let (range, function) = padded_wrapper(9, 0xb8);
    let report = search_running(range, true);
    assert_eq!((report.patched, report.refused), (1, 0), "{report:x?}");
    assert_eq!(peek(function), [0xb8, 9, 0, 0, 0, 0xeb, 7, 0x48]);
    let before = arrivals();
    assert_eq!(call_at(function, [0; 6]), 4711);
    assert_eq!(arrivals(), before + 1);
    drop_page(range);

    // movabs rbx, (mov eax, 9; syscall; ret): a number, and no code.
    let number = [0x48, 0xbb, 0xb8, 9, 0, 0, 0, 0x0f, 0x05, 0xc3, 0xc3];
    let (range, function) = elf_page(&number);
    let report = search_running(range, true);
    assert_eq!((report.patched, report.refused), (0, 0), "{report:x?}");
    assert_eq!(peek(function), number);
    drop_page(range);
}

/// Two functions with one piece of padding behind them: what was copied before either was
/// patched shows it to both, and only one can have it.
#[test]
fn padding_is_given_to_one_site() {
    let _turn = with_test_entry();
    for left in [false, true] {
        // The second one adds one to what it gets.
        let first = [mov_eax(9), vec![0x0f, 0x05, 0xc3]].concat();
        let second = [mov_eax(10), vec![0x0f, 0x05, 0x48, 0xff, 0xc0, 0xc3]].concat();
        let (range, function) = elf_page_of(&[&first, &second]);
        poke(function + 19, &[0x66, 0x0f, 0x1f, 0x44, 0, 0]);
        let report = search_running(range, left);
        assert!(report.patched >= 1, "{report:x?}");
        assert_eq!(report.patched + report.refused, 2, "{report:x?}");
        for (n, nr, value) in [(0, 9, 4711), (8, 10, 4712)] {
            ARRIVED[0].store(0, Ordering::Relaxed);
            let patched =
                peek::<1>(function + n) == [0xe9] || peek::<1>(function + n + 5) == [0xeb];
            if patched {
                assert_eq!(call_at(function + n, [0; 6]), value, "{left} {nr}");
                assert_eq!(ARRIVED[0].load(Ordering::Relaxed), nr, "{left}");
            }
        }
        drop_page(range);
    }
}

/// What has changed since it was searched is not overwritten, nor is what is beside it.
#[test]
fn what_has_changed_is_not_overwritten() {
    let _turn = with_test_entry();
    let (range, function) = padded_wrapper(9, 0xb8);
    let mut writer = Writer::default();
    for in_use in [Use::Fresh, Use::Shared, Use::Running, Use::Left] {
        let refused = writer.put(function, &[0xb8, 8], &[1, 2], in_use);
        assert!(refused.is_err() && peek(function) == [0xb8, 9]);
        writer
            .put(function, &[0xb8, 9], &[0xb8, 9], in_use)
            .unwrap();
    }
    drop_page(range);
}

/// In text that ld.so relocates after it was searched, nothing is moved but a plain number.
#[test]
fn what_ld_so_relocates_stays_where_it_is() {
    let _turn = with_test_entry();
    let movabs = [&[0x48, 0xbf][..], &[0; 8]].concat();
    for (tag, flags, refused) in [(22, 0, 1), (30, 4, 1), (30, 8, 0), (5, 0, 0)] {
        let late = [mov_eax(10), movabs.clone(), vec![0x0f, 0x05, 0xc3]].concat();
        let plain = [mov_eax(10), vec![0x0f, 0x05, 0xc3]].concat();
        let (range, function) = elf_page_of(&[&late, &plain]);
        // A third program header: PT_DYNAMIC.
        let dynamic = 480u64.to_le_bytes();
        poke(range.start() + 56, &[3]);
        poke(range.start() + 176, &2u32.to_le_bytes());
        poke(range.start() + 176 + 8, &dynamic);
        poke(range.start() + 176 + 32, &32u64.to_le_bytes());
        poke(range.start() + 480, &[tag, 0, 0, 0, 0, 0, 0, 0, flags]);
        let report = scan_page(range);
        assert_eq!(report.refused, refused, "{tag} {flags} {report:x?}");
        assert_eq!(report.patched, 2 - refused, "{tag} {flags} {report:x?}");
        let same = peek::<15>(function)[5..] == movabs;
        assert_eq!(same, refused == 1, "{tag} {flags}");
        drop_page(range);
    }
}

/// Bytes that only look like a site are never written to.
#[test]
fn data_is_left_alone() {
    let _turn = with_test_entry();
    let code = caller(&[0x90]);
    let (range, function) = elf_page(&code);
    // From libcrypto's tables: five bytes that could be an instruction, behind
    // the end of the only function.
    let data = [0x28, 0xaa, 0x3f, 0x07, 0x1f, 0x02, 0x0f, 0x05];
    let at = function + code.len() as u64 + 64;
    Writer::default()
        .write(at, &data, apply::Use::Fresh)
        .unwrap();
    let report = scan_page(range);
    // The function itself has a site.
    assert_eq!((report.patched, report.refused), (1, 0), "{report:x?}");
    // SAFETY: the page is mapped.
    assert_eq!(unsafe { *(at as *const [u8; 8]) }, data);
    drop_page(range);
}

#[test]
fn clone_goes_to_the_hook_only_with_memory_of_its_own() {
    let _turn = with_test_entry();
    let range = page(&caller(&mov_eax(56)));
    assert_eq!(scan_page(range).patched, 1);
    let before = arrivals();
    assert_eq!(call(range, [17, 0, 0, 0, 0, 0]), 4711);
    // CLONE_VFORK, and a stack.
    assert_eq!(call(range, [0x4011, 4096, 0, 0, 0, 0]), 4711);
    assert_eq!(arrivals(), before + 2);
    // CLONE_VM | CLONE_THREAD without CLONE_SIGHAND is EINVAL of the kernel's.
    assert_eq!(call(range, [0x10100, 0, 0, 0, 0, 0]), -22);
    assert_eq!(arrivals(), before + 2);
    drop_page(range);
}

#[test]
fn code_that_was_replaced_is_looked_at_anew() {
    let _turn = with_test_entry();
    let range = page(&caller(&mov_eax(9)));
    assert_eq!(scan_page(range).patched, 1);
    // A JIT writes other code over it, without unmapping.
    let code = caller(&mov_eax(10));
    Writer::default()
        .write(range.start(), &code, apply::Use::Fresh)
        .unwrap();
    let report = scan_page(range);
    assert_eq!((report.patched, report.already), (1, 0));
    assert_eq!(call(range, [0; 6]), 4711);
    assert_eq!(ARRIVED[0].load(Ordering::Relaxed), 10);
    let mut count = 0;
    sites(|site| count += u32::from(range.contains(site.address)));
    assert_eq!(count, 1);
    drop_page(range);
}

/// Code that the program has copied after it was patched: our jump in it goes wrong there, and
/// is replaced before anybody can run it.
#[test]
fn a_copy_of_patched_code_is_mended() {
    let _turn = with_test_entry();
    // One instruction that moves, and two.
    for before in [mov_eax(9), vec![0x41, 0x89, 0xca, 0x48, 0x8b, 0x06]] {
        let (original, function) = elf_page(&caller(&before));
        assert_eq!(scan_page(original).patched, 1);
        let number = [9u64];
        let args = [0, number.as_ptr() as u64, 0, 0, 0, 0];
        assert_eq!(call_at(function, args), 4711);
        let one = before.len() == plan::JUMP_BYTES;
        for left in [false, true] {
            let copy = page(&peek::<4096>(original.start()));
            let there = function - original.start() + copy.start();
            let report = match left {
                true => search_running(copy, true),
                false => scan_page(copy),
            };
            let found = (report.patched, report.refused);
            assert_eq!(found, (!left as u32, left as u32), "{one} {report:x?}");
            if !left {
                assert_eq!(call_at(there, args), 4711);
            } else if one {
                let site = there + 23;
                assert_eq!(peek::<7>(site)[..], [&before[..], &[0x0f, 0x05]].concat());
            }
            drop_page(copy);
        }
        assert_eq!(call_at(function, args), 4711);
        drop_page(original);
    }
}

#[test]
fn loading_and_unloading_does_not_grow() {
    let _turn = with_test_entry();
    let memory = || {
        let mut bytes = 0;
        zones(|z| bytes += z.len());
        bytes
    };
    let code: Vec<u8> = (0..40).flat_map(|_| caller(&mov_eax(11))).collect();
    let cycle = || {
        let range = page(&code);
        assert_eq!(scan_page(range).patched, 40);
        drop_page(range);
    };
    cycle();
    let before = memory();
    assert!(before > 0);
    (0..300).for_each(|_| cycle());
    assert_eq!(memory(), before);
}

#[test]
fn many_sites_need_more_tables_and_zones() {
    let _turn = with_test_entry();
    let code = caller(&mov_eax(12));
    let all: Vec<u8> = (0..4096 / code.len()).flat_map(|_| code.clone()).collect();
    let per_page = (4096 / code.len()) as u32;
    let pages: Vec<PageRange> = (0..20).map(|_| page(&all)).collect();
    for range in &pages {
        assert_eq!(scan_page(*range).patched, per_page);
    }
    for range in pages {
        assert_eq!(call(range, [0; 6]), 4711);
        drop_page(range);
    }
}

#[test]
fn shared_mappings_are_counted_and_left_alone() {
    let _turn = with_test_entry();
    let code = caller(&mov_eax(9));
    let range = page(&code);
    let report = scan_shared(range, range.end());
    assert_eq!((report.patched, report.refused), (0, 1));
    assert_eq!(report.first_refused[0], range.start() + 23 + 5);
    // SAFETY: the page is mapped.
    let now = unsafe { core::slice::from_raw_parts(range.start() as *const u8, code.len()) };
    assert_eq!(now, code);
    drop_page(range);
}

#[test]
fn the_lock_is_not_waited_for_by_its_owner() {
    let _turn = with_test_entry();
    let range = page(&caller(&mov_eax(9)));
    {
        let _guard = Guard::take().unwrap();
        assert!(scan(range, range.end(), false).busy);
    }
    // What the owner could not have searched itself is searched behind it.
    assert_eq!(scan_page(range).already, 1);
    drop_page(range);
}

/// Code that becomes executable while somebody keeps the lock is searched all the same:
/// by whoever keeps it, while its owner waits, and else before the lock is free again.
#[test]
fn what_is_left_is_searched_before_the_lock_is_given_back() {
    let _turn = with_test_entry();
    let ranges = [(); 3].map(|()| page(&caller(&mov_eax(9))));
    let mut report = Report::default();
    {
        let mut guard = Guard::take().unwrap();
        let waiting = std::thread::spawn(move || scan(ranges[0], ranges[0].end(), false));
        while !queue::pending() {
            std::thread::yield_now();
        }
        guard.state().search_left(&mut report);
        assert_eq!((report.patched, waiting.join().unwrap().busy), (1, false));
        // Nobody comes: its owner gives up waiting.
        let left = std::thread::spawn(move || scan(ranges[1], ranges[1].end(), false));
        assert!(left.join().unwrap().busy);
        // Somebody unmapped it meanwhile.
        let gone = std::thread::spawn(move || scan(ranges[2], ranges[2].end(), false));
        assert!(gone.join().unwrap().busy);
        super::unmap(ranges[2]);
    }
    settle(&mut report);
    assert_eq!((report.patched, report.refused), (2, 0), "{report:x?}");
    let before = arrivals();
    assert!(ranges[..2].iter().all(|r| call(*r, [0; 6]) == 4711));
    assert_eq!(arrivals(), before + 2);
    queue::overflow();
    settle(&mut report);
    ranges[..2].iter().for_each(|r| drop_page(*r));
}

/// Whoever forgets what it unmapped does not take the trampolines of what others have
/// mapped and patched there meanwhile.
#[test]
fn what_has_our_jump_keeps_its_trampoline() {
    let _turn = with_test_entry();
    let range = page(&caller(&mov_eax(9)));
    assert_eq!(scan_page(range).patched, 1);
    forget(range);
    let other = page(&caller(&mov_eax(10)));
    assert_eq!(scan_page(other).patched, 1);
    assert_eq!(call(range, [0; 6]), 4711);
    assert_eq!(ARRIVED[0].load(Ordering::Relaxed), 9);
    drop_page(range);
    drop_page(other);
}

#[test]
fn a_range_that_ends_early_is_not_read_further() {
    let _turn = with_test_entry();
    let range = page(&caller(&mov_eax(9)));
    assert_eq!(scan(range, range.start(), false).patched, 0);
    assert_eq!(scan(range, range.start() + 4095, false).patched, 0);
    drop_page(range);
}

#[test]
fn patches_apply_without_proc_mem() {
    let _turn = with_test_entry();
    let range = page(&caller(&mov_eax(9)));
    apply::write_unprotected(range.start(), &[0x90], apply::Use::Fresh).unwrap();
    // SAFETY: the page is mapped.
    assert_eq!(unsafe { *(range.start() as *const u8) }, 0x90);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps
        .lines()
        .find(|l| l.starts_with(&format!("{:x}-", range.start())))
        .unwrap();
    assert!(line.contains("r-xp"), "{line}");
    drop_page(range);
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
