//! Patched code that runs.

use super::rig::*;
use super::*;

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
    assert_eq!(number(libc::SYS_fsync as u64, u64::MAX), -9);
    assert_eq!(number(511, 0), -38);
    assert_eq!(number(512, 0), -38);
    assert_eq!(number(1 << 30, 0), -38);
    assert_eq!(number(u64::MAX, 0), -38);
    assert_eq!(arrivals(), before);
    assert_eq!(number(libc::SYS_munmap as u64, 7), 4711);
    assert_eq!(number(5 << 32 | libc::SYS_munmap as u64, 7), 4711);
    assert_eq!(arrivals(), before + 2);
    assert_eq!(ARRIVED[0].load(Ordering::Relaxed), 11);
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
        .write(at, &data, write::Use::Fresh)
        .unwrap();
    let report = scan_page(range);
    // The function itself has a site.
    assert_eq!((report.patched, report.refused), (1, 0), "{report:x?}");
    // SAFETY: the page is mapped.
    assert_eq!(unsafe { *(at as *const [u8; 8]) }, data);
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
        .write(range.start(), &code, write::Use::Fresh)
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
    // Nor where something else comes to be there each time.
    let cycle = |_| {
        let range = page(&code);
        assert_eq!(scan_page(range).patched, 40);
        drop_page(range);
        sys::map_at(range.start(), range.len(), 3).unwrap();
        range
    };
    let there: Vec<_> = (0..300).map(cycle).collect();
    assert_eq!(memory(), before);
    there.into_iter().for_each(drop_page);
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

/// Text that is moved away and put back, our jumps with it, as often as it likes: its trampolines
/// are nobody else's.
#[test]
fn what_is_put_back_keeps_its_trampoline() {
    let _turn = with_test_entry();
    let code = caller(&mov_eax(9));
    let (long, short) = (elf_page(&code), padded_wrapper(9, 0xb8));
    for (range, function) in [long, short] {
        let running = range == short.0;
        let search = || match running {
            true => search_running(range, false),
            false => scan_page(range),
        };
        assert_eq!(search().patched, 1);
        let text = peek::<4096>(range.start());
        for _ in 0..3 {
            poke(range.start(), &[0; 4096]);
            forget(range);
            let other = page(&caller(&mov_eax(10)));
            assert_eq!(scan_page(other).patched, 1);
            poke(range.start(), &text);
            search();
            let before = arrivals();
            assert_eq!(call_at(function, [0; 6]), 4711, "{running}");
            assert_eq!(ARRIVED[0].load(Ordering::Relaxed), 9, "{running}");
            assert_eq!(arrivals(), before + 1);
            drop_page(other);
        }
        drop_page(range);
    }
}

/// As it was before it was patched: its file is mapped over it once more.
#[test]
fn code_that_comes_again_as_it_was_is_patched_again() {
    let _turn = with_test_entry();
    let (range, function) = padded_wrapper(9, 0xb8);
    let text = peek::<4096>(range.start());
    for _ in 0..2 {
        assert_eq!(search_running(range, false).patched, 1);
        let before = arrivals();
        assert_eq!(call_at(function, [0; 6]), 4711);
        assert_eq!(arrivals(), before + 1);
        poke(range.start(), &[0; 4096]);
        forget(range);
        poke(range.start(), &text);
    }
    drop_page(range);
}

/// Its text alone comes again, and the tables behind which our jump is a part of a function stay.
#[test]
fn text_that_comes_again_alone_is_patched_in_the_same_way() {
    let _turn = with_test_entry();
    let (range, function) = padded_wrapper(9, 0xb8);
    // The length of the function's description, which says nothing but where it is.
    poke(range.start() + 320 + 32, &20u32.to_le_bytes());
    let (text, file) = (peek::<64>(function), peek::<512>(range.start()));
    let mut tables = None;
    for round in 0..3 {
        assert_eq!(search_running(range, false).patched, 1);
        assert_eq!(peek(function), [0xb8, 9, 0, 0, 0, 0xeb, 7, 0x48], "{round}");
        let now = peek::<512>(range.start());
        assert_eq!(*tables.get_or_insert(now), now, "{round}");
        let before = arrivals();
        assert_eq!(call_at(function, [0; 6]), 4711);
        assert_eq!(arrivals(), before + 1);
        poke(function, &[0; 64]);
        forget(range);
        poke(function, &text);
    }
    assert_ne!(tables, Some(file), "unwinders know of the jump");
    drop_page(range);
}

/// Whoever moves text does not always say so: nothing that is searched becomes executable.
#[test]
fn text_that_is_moved_again_and_again_keeps_its_trampoline() {
    let _turn = with_test_entry();
    for unmapped in [false, true] {
        let (range, function) = padded_wrapper(9, 0xb8);
        assert_eq!(search_running(range, false).patched, 1);
        let text = peek::<4096>(range.start());
        for round in 0..3 {
            if unmapped {
                crate::unmap(range);
                forget(range);
                sys::map_at(range.start(), 4096, 7).unwrap();
            } else {
                poke(range.start(), &[0; 4096]);
                forget(range);
            }
            poke(range.start(), &text);
            let other = page(&caller(&mov_eax(10)));
            assert_eq!(scan_page(other).patched, 1);
            assert_eq!(call_at(function, [0; 6]), 4711, "{unmapped} {round}");
            assert_eq!(ARRIVED[0].load(Ordering::Relaxed), 9, "{unmapped} {round}");
            drop_page(other);
        }
        drop_page(range);
    }
}

#[test]
fn a_range_that_ends_early_is_not_read_further() {
    let _turn = with_test_entry();
    let range = page(&caller(&mov_eax(9)));
    assert_eq!(scan(range, range.start(), false).patched, 0);
    assert_eq!(scan(range, range.start() + 4095, false).patched, 0);
    drop_page(range);
}
