//! What is known of each memory region, by number: a table that grows and never
//! moves. All of it is private memory under the track lock.

use super::growth::Growth;
use super::marks::{self, CHUNK, CHUNKS};
use super::DomainId;
use crate::ledger::index::Memory;
use crate::uverbs::{Mr, MrHandle};
use core::ptr::NonNull;
use regall_directory::addr::PageRange;
use regall_directory::layout::SlotRef;
use regall_directory::vocab::Access;

/// The number of a record, from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(transparent)]
pub struct RecordId(u32);

impl RecordId {
    /// What [`RecordId::get`] has given, or any number: a table may have no such record.
    #[inline]
    pub const fn from_raw(n: u32) -> Self {
        Self(n)
    }

    /// The number, to be kept.
    #[inline]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// What a record stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Life {
    /// The record is free.
    #[default]
    Free,
    /// A region of memory that is mapped now.
    Live,
    /// A region that has left the ledger and is still borrowed.
    Retired,
    /// A region whose memory has changed without its being told in time.
    Spoiled,
    /// Memory that was not registered: the errno, or 0 for the budget.
    Refused(u8),
}

/// One region.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Its memory.
    pub range: PageRange,
    /// The kernel's handle.
    pub handle: MrHandle,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    /// With what access it is registered.
    pub access: Access,
    /// Its domain.
    pub domain: DomainId,
    /// Handles that the application holds on it.
    pub borrowers: u32,
    /// When a borrower first gave it back, in ticks of [`super::idle`]; 0: nobody has, or its keys
    /// may stay.
    pub idle: u32,
    /// Its slot in the directory.
    pub slot: Option<SlotRef>,
    /// What it stands for.
    pub life: Life,
    /// Whether its memory is a file's or shared: others may change it, and nobody is told. It is
    /// not lent.
    pub of_others: bool,
    /// There was a hole beside it: it is not to be part of a large region.
    pub cut: bool,
    /// Bytes of it that nobody had touched, or asked for, before it was registered.
    pub ahead: u64,
    /// Bytes of the largest request that it has served.
    pub asked: u64,
    /// Whether it is made one with what its memory grows by.
    pub growth: Growth,
    next: u32,
}

/// The table of all regions' records: a quarter of a million at the most.
pub struct Records {
    chunks: [Option<NonNull<Record>>; CHUNKS],
    /// Numbers below this have been used.
    high: u32,
    /// The record that was freed last; 0: none.
    free: u32,
}

impl Records {
    /// An empty one.
    pub const fn new() -> Self {
        Self {
            chunks: [None; CHUNKS],
            high: 1,
            free: 0,
        }
    }

    fn place(&self, RecordId(n): RecordId) -> Option<NonNull<Record>> {
        let (chunk, at) = (n as usize / CHUNK, n as usize % CHUNK);
        let base = (*self.chunks.get(chunk)?)?;
        // SAFETY: a chunk has CHUNK records.
        Some(unsafe { base.add(at) })
    }

    fn is_used(&self, RecordId(n): RecordId) -> bool {
        n != 0 && n < self.high
    }

    /// Record `n`.
    pub fn get(&self, n: RecordId) -> Option<&Record> {
        let place = self.place(n).filter(|_| self.is_used(n))?;
        // SAFETY: within a chunk, below `high`, hence written by `add`; borrowed as long
        // as the table is.
        Some(unsafe { place.as_ref() })
    }

    /// Record `n`, to be changed.
    pub fn get_mut(&mut self, n: RecordId) -> Option<&mut Record> {
        let mut place = self.place(n).filter(|_| self.is_used(n))?;
        // SAFETY: as in `get`, and exclusively.
        Some(unsafe { place.as_mut() })
    }

    /// Sees to it that the next [`Records::add`] has room.
    pub fn reserve(&mut self, memory: &mut impl Memory) -> bool {
        if self.free != 0 {
            return true;
        }
        let Some(chunk) = self.chunks.get_mut(self.high as usize / CHUNK) else {
            return false;
        };
        if chunk.is_none() {
            *chunk = memory
                .alloc(CHUNK * size_of::<Record>())
                .map(NonNull::cast::<Record>);
        }
        chunk.is_some() && marks::reserve(memory, self.high)
    }

    /// Keeps `record`; its number, or `None` without room.
    pub fn add(&mut self, record: Record) -> Option<RecordId> {
        let n = if self.free != 0 {
            let n = RecordId(self.free);
            self.free = self.get(n)?.next;
            n
        } else {
            let n = RecordId(self.high);
            self.place(n)?;
            self.high += 1;
            n
        };
        let place = self.place(n)?;
        // SAFETY: within a chunk of memory that only this table uses.
        unsafe { place.write(record) };
        marks::forget(n.0);
        Some(n)
    }

    /// Record `n` stands for nothing any more.
    pub fn remove(&mut self, n: RecordId) {
        let free = self.free;
        let Some(record) = self.get_mut(n).filter(|r| r.life != Life::Free) else {
            return;
        };
        record.life = Life::Free;
        record.next = free;
        self.free = n.0;
    }

    /// Every record, with its number, that stands for something.
    pub fn each(&self) -> impl Iterator<Item = (RecordId, &Record)> {
        self.numbers()
            .filter_map(|n| Some((n, self.get(n)?)))
            .filter(|(_, r)| r.life != Life::Free)
    }

    /// The numbers that have been used.
    pub fn numbers(&self) -> impl Iterator<Item = RecordId> {
        (1..self.high).map(RecordId)
    }

    /// Numbers below this have been used.
    pub const fn high(&self) -> u32 {
        self.high
    }

    /// Forgets all of them; keeps the memory.
    pub fn clear(&mut self) {
        self.high = 1;
        self.free = 0;
    }
}

impl Default for Records {
    fn default() -> Self {
        Self::new()
    }
}

impl Record {
    /// A new one.
    pub const fn new(range: PageRange, domain: DomainId, access: Access, life: Life) -> Self {
        Self {
            range,
            handle: MrHandle(0),
            lkey: 0,
            rkey: 0,
            access,
            domain,
            borrowers: 0,
            idle: 0,
            slot: None,
            life,
            of_others: false,
            cut: false,
            ahead: 0,
            asked: 0,
            growth: Growth::NEW,
            next: 0,
        }
    }

    /// What a part of so many bytes has [`Record::ahead`], if it lies anywhere in it.
    pub fn ahead_of(&self, bytes: u64) -> u64 {
        let all = u128::from(self.range.len());
        let part = u128::from(self.ahead) * u128::from(bytes) / all;
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// The record with what the kernel says of it.
    pub const fn with(self, keys: Mr) -> Self {
        Self {
            handle: keys.handle,
            lkey: keys.lkey,
            rkey: keys.rkey,
            ..self
        }
    }

    /// Whether there is a region: [`Life::Refused`] has none.
    pub const fn has_region(&self) -> bool {
        match self.life {
            Life::Live | Life::Retired | Life::Spoiled => true,
            Life::Free | Life::Refused(_) => false,
        }
    }

    /// Both keys as the directory has them; 0 if nothing holds the memory.
    pub const fn keys(&self) -> u64 {
        match self.has_region() {
            true => self.lkey as u64 | (self.rkey as u64) << 32,
            false => 0,
        }
    }
}
