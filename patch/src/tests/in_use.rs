//! Code that others may be running, or have taken away.

use super::rig::*;
use super::*;

/// What is written where others run is seen as a whole: it may cross a word, but no line.
#[test]
fn what_fits_into_a_line_is_stored_at_once() {
    let _turn = alone();
    let range = page(&[0x90; 256]);
    let new = [0xe9, 1, 2, 3, 4];
    for offset in 64..128 {
        poke(range.start(), &[0x90; 256]);
        let stored = write::store_at_once(range.start() + offset, &new).is_ok();
        assert_eq!(stored, offset <= 128 - 5, "{offset}");
        let mut expected = [0x90; 256];
        if stored {
            expected[offset as usize..][..5].copy_from_slice(&new);
        }
        assert_eq!(peek::<256>(range.start()), expected, "{offset}");
    }
    crate::unmap(range);
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
        crate::unmap(ranges[2]);
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

#[test]
fn patches_apply_without_proc_mem() {
    let _turn = with_test_entry();
    let range = page(&caller(&mov_eax(9)));
    write::write_unprotected(range.start(), &[0x90], write::Use::Fresh).unwrap();
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
