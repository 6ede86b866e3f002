//! The table of patched sites.

use super::plan;
use regall_directory::addr::PageRange;
use regall_sys::{self as sys, Errno, Result};

/// A patched site.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    /// Address of the `syscall`, or of the short jump in its place.
    pub site: u64,
    pub function: u64,
    /// Where the jump to the trampoline is, and where it goes.
    pub jump: u64,
    pub to: u64,
    /// The site's call number; -1: any.
    pub number: i32,
    /// Bytes that moved; 0: there is a short jump at the site.
    pub moved: u8,
    /// First byte of what moved.
    pub first: u8,
    pub libc: bool,
    /// Whether the code was a file's.
    pub file: bool,
    /// Whether something else has been mapped where the code was. Who moves text to huge pages
    /// puts back what was there, our jump with it: until then the trampoline stays what it is.
    pub displaced: bool,
    /// ... and it had been unmapped: its return is not waited for when places are needed.
    pub unmapped: bool,
    pub zone: u16,
    pub trampoline: u16,
}

impl Entry {
    /// The jump to the trampoline.
    pub(super) fn jump_bytes(&self) -> Option<[u8; plan::JUMP_BYTES]> {
        let behind = self.jump.wrapping_add(plan::JUMP_BYTES as u64);
        let distance = i32::try_from(self.to.wrapping_sub(behind) as i64).ok()?;
        let [a, b, c, d] = distance.to_le_bytes();
        Some([0xe9, a, b, c, d])
    }

    /// Whether `before` ends as what is before this site does.
    pub(super) fn is_copied(&self, before: &[u8]) -> bool {
        let moved = usize::from(self.moved);
        let start = before.len().checked_sub(moved).filter(|_| moved > 0);
        let there = start.and_then(|start| before.get(start..));
        match (there, self.jump_bytes()) {
            (Some(there), Some(jump)) => there
                .strip_prefix(&jump)
                .is_some_and(|rest| rest.iter().all(|byte| *byte == plan::BREAKPOINT)),
            _ => false,
        }
    }
}

/// The patched sites, in memory mapped for them.
#[derive(Clone, Copy)]
pub(super) struct Table {
    at: *mut Entry,
    room: usize,
    pub(super) len: usize,
}

/// Entries of the first table: two pages.
const TABLE_ROOM: usize = 8192 / size_of::<Entry>();

impl Table {
    pub(super) const fn new() -> Self {
        Self {
            at: core::ptr::null_mut(),
            room: 0,
            len: 0,
        }
    }

    pub(super) fn all(&self) -> &[Entry] {
        if self.at.is_null() {
            return &[];
        }
        // SAFETY: `at` points to `room` entries mapped by `grow`, of which the
        // first `len` are written; whoever holds the patcher's lock owns them.
        unsafe { core::slice::from_raw_parts(self.at, self.len) }
    }

    pub(super) fn range(&self) -> Option<PageRange> {
        PageRange::covering(
            self.at as u64,
            self.room.saturating_mul(size_of::<Entry>()) as u64,
        )
    }

    pub(super) fn is_full(&self) -> bool {
        self.len >= self.room
    }

    /// Whether it is worth a bigger one: not for a few entries.
    pub(super) fn is_crowded(&self) -> bool {
        self.len >= self.room - self.room / 4
    }

    /// A bigger one. The new table, and the old one, which is still mapped.
    pub(super) fn grow(&mut self) -> Result<Option<(PageRange, Option<PageRange>)>> {
        let room = self.room.checked_mul(2).unwrap_or(0).max(TABLE_ROOM);
        let bytes = room.checked_mul(size_of::<Entry>()).ok_or(Errno::NOMEM)?;
        let new = sys::map_private(bytes)?.cast::<Entry>().as_ptr();
        let old = self.range();
        // SAFETY: `new` has room for more than `len` entries and is not the old table.
        unsafe { core::ptr::copy_nonoverlapping(self.all().as_ptr(), new, self.len) };
        self.at = new;
        self.room = room;
        Ok(self.range().map(|new| (new, old)))
    }

    /// Adds an entry, for which `grow` made room.
    pub(super) fn push(&mut self, entry: Entry) {
        if self.len < self.room {
            // SAFETY: in bounds by the condition; the memory is mapped and ours.
            unsafe { self.at.add(self.len).write(entry) };
            self.len += 1;
        }
    }

    /// Says of entry `n` whether its code is there no more, and whether it was `unmapped`.
    pub(super) fn displace(&mut self, n: usize, displaced: bool, unmapped: bool) {
        if n < self.len {
            // SAFETY: n < len <= room; the memory is mapped and ours.
            let entry = unsafe { &mut *self.at.add(n) };
            (entry.displaced, entry.unmapped) = (displaced, unmapped);
        }
    }

    /// Takes entry `n` out; the last one takes its place.
    pub(super) fn remove(&mut self, n: usize) -> Option<Entry> {
        let gone = *self.all().get(n)?;
        let last = *self.all().last()?;
        // SAFETY: n < len <= room; the memory is mapped and ours.
        unsafe { self.at.add(n).write(last) };
        self.len -= 1;
        Some(gone)
    }
}
