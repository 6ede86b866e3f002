//! The C library of this machine, against what objdump sees in it.

use super::*;

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
            landed: [0; 2],
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
                verbs: strict,
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
