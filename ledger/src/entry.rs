//! One range and what is said of it; bytes by what is said of them.

use core::num::NonZeroU32;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Prot, Reason};

use crate::index::{Busy, Hint, Row, View};
use regall_directory::layout::SlotRef;

/// One range and what is said of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The range.
    pub range: PageRange,
    /// What is said of every byte of it.
    pub attr: Attr,
    /// Its slot in the directory.
    pub slot: Option<SlotRef>,
    /// Unique for the ledger's life; from 1 up.
    pub id: u64,
    /// What it is a part of.
    pub origin: Origin,
}

/// What memory is a part of: parts of one mapping have the same, wherever each of them is
/// moved to and back, and so have mappings of one file that lie beside each other as their
/// bytes do in the file, which are one mapping to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin(pub(crate) u32);

/// Spreads numbers that are close to each other (2^64 divided by the golden ratio).
pub(crate) const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

impl Origin {
    /// Of a mapping that at `start` shows a file from `offset` on. Two files may have the
    /// same number, once in four thousand million; then what is said the same of both is
    /// one entry where they touch.
    pub const fn of_file(device: (u32, u32), inode: u64, offset: u64, start: u64) -> Self {
        let device = (device.0 as u64) << 32 | device.1 as u64;
        let file = (inode ^ device.wrapping_mul(ODD)).wrapping_mul(ODD);
        let page = offset.wrapping_sub(start) / PAGE;
        Self(((file >> 32) as u32).wrapping_add(page as u32))
    }

    /// Of a part that is moved from address `from` to `to`.
    pub const fn moved(self, from: u64, to: u64) -> Self {
        Self(self.0.wrapping_add((from.wrapping_sub(to) / PAGE) as u32))
    }
}

/// What a look-up without a lock finds: an [`Entry`], its words left packed until
/// somebody asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// [`Attr`], packed.
    pub packed: u64,
    /// Slot in the directory.
    pub slot: Option<SlotRef>,
    /// The entry's id.
    pub id: u64,
}

impl Found {
    /// What is said of the range.
    #[inline]
    pub fn attr(&self) -> Attr {
        unpack(self.packed)
    }

    /// The range. `None` can't be, but costs nothing to say.
    #[inline]
    pub fn range(&self) -> Option<PageRange> {
        PageRange::new(self.start, self.end)
    }

    #[inline]
    pub(crate) fn of(row: Row) -> Self {
        Self {
            start: row.start,
            end: row.end,
            packed: row.attr,
            slot: slot(&row),
            id: row.id,
        }
    }
}

impl View {
    /// The entry that holds `addr`, as it was at some moment during the call.
    /// Any thread, at any time: no lock, no system call. [`Busy`] if a writer was in
    /// the way all the time, as it is for a signal handler that interrupted one.
    #[inline]
    pub fn lookup(&self, addr: u64) -> Result<Option<Found>, Busy> {
        Ok(self.row_at(addr)?.map(Found::of))
    }

    /// As [`View::lookup`], for a signal handler that may have interrupted a writer: [`Busy`] at once.
    #[inline]
    pub fn lookup_now(&self, addr: u64) -> Result<Option<Found>, Busy> {
        Ok(self.row_now(addr)?.map(Found::of))
    }

    /// Looks `addr` up, first among the ranges that this thread found lately.
    #[inline]
    pub fn lookup_hinted(&self, addr: u64, hint: &Hint) -> Result<Option<Found>, Busy> {
        Ok(self.row_at_hinted(addr, hint)?.map(Found::of))
    }
}

/// Bytes mapped, by what is said of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// Bytes mapped.
    pub bytes: u64,
    /// Bytes held by at least one registrar, or by the absence of swap space.
    pub registered: u64,
    /// By the pin set's word; index is [`Reason`] as a number ([`Reason::None`]: held).
    pub pin: [u64; REASONS],
    /// By the HCA registrar's word, likewise.
    pub hca: [u64; REASONS],
    /// Bytes that the application has locked ([`Flags::APP_LOCKED`]).
    pub app_locked: u64,
    /// Bytes of System V segments ([`Kind::Shm`]).
    pub shm: u64,
}

/// The numbers that a [`Reason`] may have.
pub const REASONS: usize = 1 + Reason::Cache as usize;

impl Totals {
    /// `bytes` more, or fewer (its two's complement), are said to be `packed`.
    #[inline]
    pub(crate) fn change(&mut self, bytes: u64, packed: u64) {
        let (pin, hca) = Attr::packed_reasons(packed);
        self.bytes = self.bytes.wrapping_add(bytes);
        let kept = pin == Reason::Kept as u8;
        if kept || pin == Reason::None as u8 || hca == Reason::None as u8 {
            self.registered = self.registered.wrapping_add(bytes);
        }
        let flags = Flags::from_bits((packed >> 16) as u16);
        if flags.has(Flags::APP_LOCKED) {
            self.app_locked = self.app_locked.wrapping_add(bytes);
        }
        if (packed >> 8) as u8 == Kind::Shm as u8 {
            self.shm = self.shm.wrapping_add(bytes);
        }
        if let Some(n) = self.pin.get_mut(usize::from(pin)) {
            *n = n.wrapping_add(bytes);
        }
        if let Some(n) = self.hca.get_mut(usize::from(hca)) {
            *n = n.wrapping_add(bytes);
        }
    }
}

/// Whether touching ranges that both say `attr` are made one entry, wherever they come
/// from. Only for memory that is nothing but bytes: a file's ranges differ in what they
/// map, shared memory in who else has it, a stack in whose it is.
#[inline]
pub fn mergeable(attr: Attr) -> bool {
    matches!(attr.kind, Kind::Anon | Kind::Heap)
        && !attr.prot.shared()
        && !attr.flags.has(Flags::TEXT)
}

/// Whether `row`, which touches a part of mapping `origin` that says `attr`, becomes one with it.
#[inline]
pub(crate) fn joins(row: &Row, attr: Attr, origin: u32) -> bool {
    row.attr == attr.pack() && (row.origin == origin || mergeable(attr))
}

/// Attributes that no writer wrote. They can't come up, since only packed ones
/// are stored; a hook may not panic to say so.
const NONSENSE: Attr = Attr {
    prot: Prot::from_bits(0),
    kind: Kind::Special,
    flags: Flags::EMPTY,
    pin: Column::no(Reason::Off),
    hca: Column::no(Reason::Off),
};

/// The slot in the directory that says what `row` does: rows of the ledger are tagged with it.
#[inline]
pub(crate) fn slot(row: &Row) -> Option<SlotRef> {
    NonZeroU32::new(row.tag).map(SlotRef::from_raw)
}

/// What such a row is tagged with.
#[inline]
pub(crate) fn tag(slot: Option<SlotRef>) -> u32 {
    slot.map_or(0, |slot| slot.get().get())
}

#[inline]
pub(crate) fn unpack(word: u64) -> Attr {
    let attr = Attr::unpack(word);
    debug_assert!(attr.is_some());
    attr.unwrap_or(NONSENSE)
}

impl Entry {
    #[inline]
    pub(crate) fn of(row: Row) -> Option<Self> {
        let range = PageRange::new(row.start, row.end);
        debug_assert!(range.is_some());
        Some(Self {
            range: range?,
            attr: unpack(row.attr),
            slot: slot(&row),
            id: row.id,
            origin: Origin(row.origin),
        })
    }
}
