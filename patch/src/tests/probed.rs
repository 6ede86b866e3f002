//! Breakpoints in the places of patches.

use super::rig::*;
use super::*;

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
