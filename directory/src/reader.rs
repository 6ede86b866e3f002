//! The readers' side, which trusts nothing that it reads: the file belongs to
//! another process, which may be stopped half-way, dead, or hostile.
//!
//! [`decode`] and [`read_slot`] need no allocation and serve any reader. Finding
//! and reading files is the crate `regall-reader`.

use crate::addr::PageRange;
use crate::atomic::{fence, Ordering};
use crate::layout::{Generation, Slot, SLOT_BYTES};
use crate::vocab::{Access, Attr, Kind};

/// 64-bit words in a slot.
pub const SLOT_WORDS: usize = SLOT_BYTES / 8;

/// No user address is this high, not even with 5-level page tables.
const USER_END: u64 = 1 << 56;

/// What a process published about one range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The event that published it; the higher one is right where two overlap.
    pub generation: Generation,
    /// The addresses.
    pub range: PageRange,
    /// What is said of them.
    pub attr: Attr,
    /// The ledger's number for it.
    pub id: u64,
}

/// What a process published about one memory region.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// The event that published it; the higher one is right where two of one
    /// domain overlap.
    pub generation: Generation,
    /// The addresses.
    pub range: PageRange,
    /// Number of its domain, from 1.
    pub domain: u32,
    /// The kernel's handle of the domain's protection domain.
    pub pd: u32,
    /// What it may be used for.
    pub access: Access,
    /// Its own number.
    pub id: u64,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
}

/// What a slot in use is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Published {
    /// A range.
    Range(Entry),
    /// A memory region.
    Region(Region),
}

/// The file says what no writer writes; the text says what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt(pub &'static str);

/// What is in a slot's words, of which a whole copy was had; `Ok(None)` if the
/// slot is free.
pub fn decode(words: &[u64; SLOT_WORDS]) -> Result<Option<Published>, Corrupt> {
    let [generation, .., domain, _] = *words;
    let published = match (generation, domain) {
        (0, _) => return Ok(None),
        (_, 0) => Published::Range(range(words)?),
        _ => Published::Region(region(words)?),
    };
    Ok(Some(published))
}

fn range(words: &[u64; SLOT_WORDS]) -> Result<Entry, Corrupt> {
    let [generation, start, end, attr, id, ..] = *words;
    let range = PageRange::new(start, end).ok_or(Corrupt("an entry's addresses"))?;
    let attr = Attr::unpack(attr).ok_or(Corrupt("an entry's attributes"))?;
    if end > USER_END && attr.kind != Kind::Kernel {
        return Err(Corrupt("an entry beyond user addresses"));
    }
    Ok(Entry {
        generation: Generation::from_raw(generation),
        range,
        attr,
        id,
    })
}

fn region(words: &[u64; SLOT_WORDS]) -> Result<Region, Corrupt> {
    let [generation, start, end, access, id, keys, domain, _] = *words;
    let range = PageRange::new(start, end).ok_or(Corrupt("a region's addresses"))?;
    if end > USER_END {
        return Err(Corrupt("a region beyond user addresses"));
    }
    let access = Access::from_bits(access).ok_or(Corrupt("a region's access"))?;
    let (domain, pd) = (domain as u32, (domain >> 32) as u32);
    if domain == 0 {
        return Err(Corrupt("a region's domain"));
    }
    Ok(Region {
        generation: Generation::from_raw(generation),
        range,
        domain,
        pd,
        access,
        id,
        lkey: keys as u32,
        rkey: (keys >> 32) as u32,
    })
}

/// What is in a slot that is mapped, which its writer may be changing:
/// lock-free, whole or not at all. `Ok(None)` if the slot is free, or was being
/// changed each time that it was tried.
pub fn read_slot(slot: &Slot) -> Result<Option<Published>, Corrupt> {
    for _ in 0..64 {
        let generation = slot.generation.load(Ordering::Acquire);
        if generation == 0 {
            return Ok(None);
        }
        let words = [
            generation,
            slot.start.load(Ordering::Relaxed),
            slot.end.load(Ordering::Relaxed),
            slot.attr.load(Ordering::Relaxed),
            slot.id.load(Ordering::Relaxed),
            slot.keys.load(Ordering::Relaxed),
            slot.domain.load(Ordering::Relaxed),
            0,
        ];
        fence(Ordering::Acquire);
        if slot.generation.load(Ordering::Relaxed) == generation {
            return decode(&words);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocab::{Column, Flags, Prot, Reason};

    fn attr(kind: Kind) -> u64 {
        let attr = Attr {
            prot: Prot::from_call(1, false),
            kind,
            flags: Flags::EMPTY,
            pin: Column::YES,
            hca: Column::no(Reason::Off),
        };
        attr.pack()
    }

    #[test]
    fn what_no_writer_writes_of_a_range() {
        let words = |start, end, attr| [9, start, end, attr, 5, 0, 0, 0];
        let top = USER_END;
        for (words, wrong) in [
            (
                words(0x1001, 0x2000, attr(Kind::Anon)),
                "an entry's addresses",
            ),
            (words(0x1000, 0x2000, 0xff00), "an entry's attributes"),
            (
                words(top, top + 0x1000, attr(Kind::Anon)),
                "an entry beyond user addresses",
            ),
        ] {
            assert_eq!(decode(&words), Err(Corrupt(wrong)));
        }
        for (words, kind) in [
            (words(top - 0x1000, top, attr(Kind::Anon)), Kind::Anon),
            (words(top, top + 0x1000, attr(Kind::Kernel)), Kind::Kernel),
        ] {
            let Ok(Some(Published::Range(entry))) = decode(&words) else {
                panic!("{words:x?}");
            };
            assert_eq!((entry.attr.kind, entry.id), (kind, 5));
            assert_eq!(entry.generation, Generation::from_raw(9));
            assert_eq!(
                (entry.range.start(), entry.range.end()),
                (words[1], words[2])
            );
        }
    }

    #[test]
    fn what_no_writer_writes_of_a_region() {
        let words = |start, end, access, domain| [9, start, end, access, 5, 6 | 7 << 32, domain, 0];
        let top = USER_END;
        for (words, wrong) in [
            (words(0x1000, 0x1000, 0, 1), "a region's addresses"),
            (
                words(top, top + 0x1000, 0, 1),
                "a region beyond user addresses",
            ),
            (words(0x1000, 0x2000, 1 << 10, 1), "a region's access"),
            (words(0x1000, 0x2000, 0, 1 << 32), "a region's domain"),
        ] {
            assert_eq!(decode(&words), Err(Corrupt(wrong)));
        }
        let Ok(Some(Published::Region(region))) = decode(&words(top - 0x1000, top, 4, 2 | 3 << 32))
        else {
            panic!("a region");
        };
        assert_eq!((region.domain, region.pd, region.id), (2, 3, 5));
        assert_eq!((region.lkey, region.rkey), (6, 7));
        assert_eq!(region.access, Access::REMOTE_READ);
        assert_eq!(region.generation, Generation::from_raw(9));
    }

    #[test]
    fn a_free_slot_says_nothing() {
        assert_eq!(decode(&[0, 1, 2, 3, 4, 5, 6, 7]), Ok(None));
    }
}
