//! The readers' side, which trusts nothing that it reads: the file belongs to
//! another process, which may be stopped half-way, dead, or hostile.
//!
//! [`decode`] and [`read_slot`] need no allocation and serve any reader. Finding
//! and reading files is the crate `regall-reader`.

use core::sync::atomic::{fence, Ordering};

use crate::addr::PageRange;
use crate::layout::{Slot, SLOT_BYTES};
use crate::vocab::{Attr, Kind};

/// 64-bit words in a slot.
pub const SLOT_WORDS: usize = SLOT_BYTES / 8;

/// No user address is this high, not even with 5-level page tables.
const USER_END: u64 = 1 << 56;

/// What a process published about one range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The event that published it; the higher one is right where two overlap.
    pub generation: u64,
    /// The addresses.
    pub range: PageRange,
    /// What is said of them.
    pub attr: Attr,
    /// The ledger's number for it.
    pub id: u64,
    /// lkey | rkey << 32; 0: none.
    pub keys: u64,
}

impl Entry {
    /// The local key, if there are keys.
    pub const fn lkey(&self) -> Option<u32> {
        if self.keys == 0 {
            return None;
        }
        Some(self.keys as u32)
    }

    /// The remote key, if there are keys.
    pub const fn rkey(&self) -> Option<u32> {
        if self.keys == 0 {
            return None;
        }
        Some((self.keys >> 32) as u32)
    }
}

/// The file says what no writer writes; the text says what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Corrupt(pub &'static str);

/// The entry in a slot's words, of which a whole copy was had; `Ok(None)` if
/// the slot is free.
pub fn decode(words: &[u64; SLOT_WORDS]) -> Result<Option<Entry>, Corrupt> {
    let [generation, start, end, attr, id, keys, ..] = *words;
    if generation == 0 {
        return Ok(None);
    }
    let range = PageRange::new(start, end).ok_or(Corrupt("an entry's addresses"))?;
    let attr = Attr::unpack(attr).ok_or(Corrupt("an entry's attributes"))?;
    if end > USER_END && attr.kind != Kind::Kernel {
        return Err(Corrupt("an entry beyond user addresses"));
    }
    Ok(Some(Entry {
        generation,
        range,
        attr,
        id,
        keys,
    }))
}

/// The entry in a slot that is mapped, which its writer may be changing:
/// lock-free, whole or not at all. `Ok(None)` if the slot is free, or was being
/// changed each time that it was tried.
pub fn read_slot(slot: &Slot) -> Result<Option<Entry>, Corrupt> {
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
            0,
            0,
        ];
        fence(Ordering::Acquire);
        if slot.generation.load(Ordering::Relaxed) == generation {
            return decode(&words);
        }
    }
    Ok(None)
}
