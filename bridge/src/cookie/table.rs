//! Another process's regions, as those who have a cookie see them.

use super::entry::Entry;
use super::layout::*;
use super::Cookie;
use crate::find::{self, Found};
use crate::host::Host;
use core::sync::atomic::{AtomicU64, Ordering::*};
use regall_sys::file::Fd;
use regall_sys::{Errno, Result};

/// The file of a process's regions, mapped; writable, because single uses are claimed there.
pub struct Table {
    found: Found,
    inode: u64,
    parts: [AtomicU64; PARTS],
}

impl Table {
    /// Opens that of `found`, if it is of the image of it that is meant.
    ///
    /// EINVAL: it has no regions; errors of open(2) and mmap(2).
    pub fn open(host: &dyn Host, found: &Found, image: u64) -> Result<Self> {
        let fd = open_file(found)?;
        let mut table = Self {
            found: *found,
            inode: fd.stat()?.inode,
            parts: [const { AtomicU64::new(0) }; PARTS],
        };
        table.map(host, &fd, 0)?;
        let valid = table
            .head()
            .is_some_and(|h| h.magic.load(Acquire) == MAGIC && h.image.load(Relaxed) == image);
        if !valid {
            table.close(host);
            return Err(Errno::INVAL);
        }
        Ok(table)
    }

    /// Over parts that are mapped already.
    #[cfg(test)]
    pub(super) fn over(parts: [u64; PARTS]) -> Self {
        use regall_sys::process::Identity;
        let (pid, uid) = (0, 0);
        let identity = Identity {
            pid,
            start: 0,
            namespace: 0,
        };
        Self {
            found: Found {
                pid,
                identity,
                uid,
                folder: regall_sys::folder::Folder { uid, n: 0 },
            },
            inode: 0,
            parts: parts.map(AtomicU64::new),
        }
    }

    fn map(&self, host: &dyn Host, fd: &Fd, k: usize) -> Result<()> {
        let (offset, head) = match k {
            0 => (0, HEAD_BYTES as u64),
            k => (part_offset(k), 0),
        };
        let end = (part_offset(k) + part_bytes(k)) as u64;
        let stat = fd.stat()?;
        if stat.size < end || stat.inode != self.inode {
            return Err(Errno::INVAL);
        }
        let at = host.map_file(fd, offset as u64, end - offset as u64, true)?;
        let part = self.parts.get(k).ok_or(Errno::INVAL)?;
        if part
            .compare_exchange(0, at + head, Release, Relaxed)
            .is_err()
        {
            // Another thread was quicker.
            // SAFETY: mapped above; nobody knows of it.
            unsafe { host.unmap(at, end - offset as u64) };
        }
        Ok(())
    }

    fn head(&self) -> Option<&Head> {
        let first = self.part(0)?;
        // SAFETY: the head is in front of part 0.
        Some(unsafe { &*((first.at - HEAD_BYTES as u64) as *const Head) })
    }

    fn part(&self, k: usize) -> Option<Part> {
        let at = self.parts.get(k)?.load(Acquire);
        (at != 0).then_some(Part { at, k })
    }

    /// Unmaps the file.
    pub fn close(&mut self, host: &dyn Host) {
        for k in 0..PARTS {
            if let Some(part) = self.part(k) {
                let head = match k {
                    0 => HEAD_BYTES as u64,
                    _ => 0,
                };
                let bytes = part_bytes(k) as u64 + head;
                // SAFETY: mapped by `map`, and `&mut self` is its only user.
                unsafe { host.unmap(part.at - head, bytes) };
            }
        }
        self.parts.iter().for_each(|p| p.store(0, Relaxed));
    }

    /// The region of that cookie. EINVAL: there is none; ESTALE: its memory has gone.
    #[inline(always)]
    pub fn find(&self, host: &dyn Host, cookie: Cookie) -> Result<Entry<'_>> {
        let (part, slot) = match self.find_here(0, cookie) {
            Some(found) => found,
            None => self.find_further(host, cookie)?,
        };
        Entry::read(part, slot, cookie)
    }

    /// Where it is in part `k`.
    #[inline(always)]
    fn find_here(&self, k: usize, cookie: Cookie) -> Option<(Part, &Slot)> {
        let part = self.part(k)?;
        let slots = window(cookie.place(), k).filter_map(|n| part.slot(n));
        let mut those = slots.filter(|slot| slot.cookie.load(Acquire) == cookie.0);
        those.next().map(|slot| (part, slot))
    }

    /// Not in the first part.
    #[cold]
    #[inline(never)]
    fn find_further(&self, host: &dyn Host, cookie: Cookie) -> Result<(Part, &Slot)> {
        let parts = self.head().map_or(0, |h| h.parts.load(Acquire)) as usize;
        for k in 1..parts.min(PARTS) {
            if self.part(k).is_none() {
                self.map(host, &open_file(&self.found)?, k)?;
            }
            if let Some(found) = self.find_here(k, cookie) {
                return Ok(found);
            }
        }
        Err(Errno::INVAL)
    }
}

fn open_file(found: &Found) -> Result<Fd> {
    let flags = libc::O_RDWR | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    match find::open_file(found, "regions", flags) {
        Err(Errno::NOENT) => Err(Errno::INVAL),
        other => other,
    }
}
