//! Random and damaged bytes.

use super::*;

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
        let config = Config { strict, ioctl: strict, verbs: strict };
        let text = Text { base: BASE, bytes: &bytes, libc: shape == 3, module: None, config, landed: [0; 2] };
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
            verbs: strict,
        };
        for nr in [libc::SYS_vfork, libc::SYS_read, libc::SYS_getpid, 512, 9999] {
            assert_eq!(kind_of(nr as u32, config), Kind::Pass, "{nr}");
        }
        let only_then = if strict { Kind::Hook } else { Kind::Pass };
        assert_eq!(kind_of(libc::SYS_rt_sigaction as u32, config), only_then);
        assert_eq!(kind_of(libc::SYS_clone as u32, config), Kind::Hook);
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
    crate::unmap(range);
}
