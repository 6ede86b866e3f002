//! Words, and sets of bits.

use crate::vocab::*;

#[test]
fn attributes_survive_packing() {
    for &kind in Kind::ALL {
        for &reason in Reason::ALL {
            let a = Attr {
                prot: Prot::from_bits(kind as u8),
                kind,
                flags: Flags::from_bits(0xabc ^ kind as u16),
                pin: Column { reason, errno: 12 },
                hca: Column::no(Reason::Off),
            };
            assert_eq!(Attr::unpack(a.pack()), Some(a));
            let reasons = (reason as u8, Reason::Off as u8);
            assert_eq!(Attr::packed_reasons(a.pack()), reasons);
        }
    }
    assert_eq!(Attr::unpack(0xff00), None);
    assert_eq!(Attr::unpack(0x10), None);
}

#[test]
fn what_the_kernel_may_not_read_is_not_open() {
    let attr = |kind| Attr {
        prot: Prot::from_call(3, true),
        kind,
        flags: Flags::EMPTY,
        pin: Column::refused(22),
        hca: Column::no(Reason::Off),
    };
    assert!(attr(Kind::File).is_open());
    assert!(!attr(Kind::Special).is_open());
}

#[test]
fn words_are_the_designs() {
    assert_eq!(Column::refused(12).to_string(), "refused:12");
    assert_eq!(Column::YES.to_string(), "yes");
    assert_eq!(Column::no(Reason::NoAccess).to_string(), "no-access");
    assert_eq!(Prot::from_call(3, false).to_string(), "rw-p");
    assert_eq!(Prot::from_call(5, true).to_string(), "r-xs");
}

#[test]
fn access_is_a_list_of_words() {
    let said = |bits| Access::from_bits(bits).map(|a| a.to_string());
    assert_eq!(said(0).unwrap(), "read");
    assert_eq!(said(1).unwrap(), "local-write");
    assert_eq!(
        said(0x10_005f).unwrap(),
        "local-write,remote-write,remote-read,remote-atomic,mw-bind,on-demand,relaxed-ordering"
    );
    assert_eq!(said(1 | 1 << 21).unwrap(), "local-write,0x200000");
    assert_eq!(said(1 << 10), None);
    assert_eq!(said(1 << 30), None);
    assert_eq!(said(1 << 32), None);
}

#[test]
fn a_protection_is_its_bits() {
    for bits in 0..=255 {
        let prot = Prot::from_bits(bits);
        assert_eq!(prot.bits(), bits & 15);
        assert_eq!(prot.readable(), bits & 1 != 0);
        assert_eq!(prot.writable(), bits & 2 != 0);
        assert_eq!(prot.executable(), bits & 4 != 0);
        assert_eq!(prot.shared(), bits & 8 != 0);
        assert_eq!(prot.is_none(), bits & 7 == 0);
        assert_eq!(prot.with_prot(5).bits(), bits & 8 | 5);
        assert_eq!(prot.with_prot(!0).bits(), bits & 8 | 7);
    }
    assert_eq!(Prot::from_call(!0, false).bits(), 7);
    assert_eq!(Prot::from_call(2, true).bits(), 10);
    assert_eq!(Prot::from_bits(0).to_string(), "---p");
    assert_eq!(Prot::from_bits(15).to_string(), "rwxs");
}

#[test]
fn flags_are_sets() {
    let some = Flags::from_bits(0b1100_0001);
    assert_eq!(some.bits(), 0b1100_0001);
    assert!(some.has(Flags::NORESERVE) && some.has(Flags::from_bits(0b1000_0001)));
    assert!(!some.has(Flags::from_bits(0b11)) && !some.has(Flags::TEXT));
    assert!(some.has(Flags::EMPTY) && !Flags::EMPTY.has(Flags::CACHE));
    assert_eq!(some.with(Flags::from_bits(0b11)).bits(), 0b1100_0011);
    assert_eq!(some.without(Flags::from_bits(0b11)).bits(), 0b1100_0000);
    // Each has a bit of its own.
    let all = [
        Flags::NORESERVE,
        Flags::GROWSDOWN,
        Flags::APP_LOCKED,
        Flags::APP_ONFAULT,
        Flags::OPTED_OUT,
        Flags::INHERITED,
        Flags::ONFAULT,
        Flags::TAIL,
        Flags::EXCLUDED,
        Flags::KEEP_LAZY,
        Flags::GROWABLE,
        Flags::TEXT,
        Flags::BACKED,
        Flags::WIPED,
        Flags::NOT_FORKED,
        Flags::CACHE,
    ];
    let sum = all.iter().fold(0u16, |sum, f| sum + f.bits());
    assert_eq!(sum, u16::MAX);
    assert_eq!(Flags::APP_LOCKED.with(Flags::APP_ONFAULT), Flags::APP_LOCKS);
}

#[test]
fn accesses_are_sets() {
    let some = Access::as_asked(0b1010);
    assert_eq!(some.bits(), 0b1010);
    assert!(some.has(Access::REMOTE_WRITE) && some.has(Access::NONE));
    assert!(!some.has(Access::as_asked(0b11)));
    assert!(some.has_any(Access::as_asked(0b11)) && !some.has_any(Access::REMOTE_READ));
    assert!(!some.has_any(Access::NONE));
    assert_eq!(some.with(Access::as_asked(0b11)).bits(), 0b1011);
    assert_eq!(some.without(Access::as_asked(0b11)).bits(), 0b1000);
    assert_eq!(some.only(Access::as_asked(0b11)).bits(), 0b10);
    let taken = Access::from_bits(0x3ff0_03ff).unwrap();
    assert_eq!(taken.bits(), 0x3ff0_03ff);
    // What nobody may ask for is no access, and the kernel says so.
    assert_eq!(Access::as_asked(1 << 10).bits(), 1 << 10);
    for (n, word) in [
        (7, "huge-pages"),
        (8, "flush-global"),
        (9, "flush-persistent"),
    ] {
        assert_eq!(Access::as_asked(1 << n).to_string(), word);
    }
}

/// Attributes of private anonymous memory, by the two columns.
fn columns(pin: Column, hca: Column) -> Attr {
    Attr {
        prot: Prot::from_call(3, false),
        kind: Kind::Anon,
        flags: Flags::EMPTY,
        pin,
        hca,
    }
}

#[test]
fn one_registrar_or_no_swap_space_holds_a_range() {
    let (yes, off) = (Column::YES, Column::no(Reason::Off));
    assert!(yes.held() && !off.held() && !Column::no(Reason::Kept).held());
    assert_eq!((Column::refused(12).errno, off.errno), (12, 0));
    let kept = Column::no(Reason::Kept);
    for (pin, hca, registered) in [
        (yes, off, true),
        (off, yes, true),
        (yes, yes, true),
        (kept, off, true),
        (off, kept, false),
        (off, off, false),
    ] {
        let attr = columns(pin, hca);
        assert_eq!(attr.registered(), registered, "{pin} {hca}");
        let expected = if registered { yes } else { hca };
        assert_eq!(attr.reason(), expected, "{pin} {hca}");
    }
    let (limit, refused) = (Column::no(Reason::Limit), Column::refused(1));
    assert_eq!(columns(limit, refused).reason(), limit);
    assert_eq!(columns(off, refused).reason(), refused);
}

#[test]
fn shared_memory_is_what_is_on_no_disk() {
    let none = columns(Column::YES, Column::YES);
    assert!(!none.is_shmem());
    let shared = Prot::from_call(1, true);
    assert!(Attr {
        prot: shared,
        ..none
    }
    .is_shmem());
    let flags = Flags::BACKED;
    assert!(Attr { flags, ..none }.is_shmem());
    let kind = Kind::File;
    assert!(Attr { kind, ..none }.is_shmem());
    let flags = Flags::CACHE;
    assert!(!Attr {
        kind,
        flags,
        ..none
    }
    .is_shmem());
    assert!(!Attr { flags, ..none }.is_shmem());
}

#[test]
fn what_nobody_wished_away_is_open() {
    let closed = [
        Reason::OptedOut,
        Reason::Shim,
        Reason::Kernel,
        Reason::Device,
        Reason::Managed,
        Reason::NoAccess,
    ];
    for &reason in Reason::ALL {
        let attr = columns(Column::no(reason), Column::no(Reason::Off));
        assert_eq!(attr.is_open(), !closed.contains(&reason), "{reason:?}");
    }
}

/// Checks words that no writer writes: with a kind, or a reason of either column, that there is not.
#[test]
fn each_part_of_a_word_is_checked() {
    let good = Attr {
        prot: Prot::from_bits(9),
        kind: Kind::Shm,
        flags: Flags::from_bits(0x8421),
        pin: Column::refused(0x7f),
        hca: Column::no(Reason::Limit),
    };
    let word = good.pack();
    assert_eq!(word, 0x0007_7f0a_8421_0509);
    assert_eq!(Attr::unpack(word), Some(good));
    for (shift, bad) in [(8, 0xff), (32, 0xff), (48, 0xff)] {
        assert_eq!(Attr::unpack(word | bad << shift), None, "{shift}");
    }
    for bit in 4..8 {
        assert_eq!(Attr::unpack(word | 1 << bit), None, "{bit}");
    }
}
