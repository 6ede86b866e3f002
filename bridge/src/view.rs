//! A peer's directory, mapped to be read.

use crate::find::{self, Found};
use crate::host::Host;
use core::ptr::NonNull;
use core::sync::atomic::{fence, AtomicU64, Ordering::*};
use regall_directory::addr::PageRange;
use regall_directory::layout::{
    locate, segment_bytes, segment_offset, Generation, Header, Slot, MAGIC, SEGMENT0_SLOTS,
    SEGMENTS,
};
use regall_sys::file::{Fd, Stat};
use regall_sys::{Errno, Result};

/// What of it is mapped: the header and segment 0 as one, the others as they are needed.
pub struct View {
    found: Found,
    file: Stat,
    parts: [Option<PageRange>; SEGMENTS],
}

impl View {
    /// Maps the beginning of the directory of `found`.
    ///
    /// ENOENT: it runs without the shim, executes another program by now, or has not published
    /// anything yet; ENOEXEC: what is there is not a directory of this version; and the errors of open(2) and
    /// mmap(2).
    pub fn open(host: &dyn Host, found: &Found) -> Result<Self> {
        let fd = find::open_directory(found)?;
        let file = fd.stat()?;
        let mut view = Self {
            found: *found,
            file,
            parts: [None; SEGMENTS],
        };
        view.map(host, &fd, 0)?;
        match view.valid() {
            Ok(()) => Ok(view),
            Err(e) => {
                view.close(host);
                Err(e)
            }
        }
    }

    fn valid(&self) -> Result<()> {
        let (id, h) = (&self.found.identity, self.header().ok_or(Errno::NOEXEC)?);
        let magic = h.magic.load(Acquire);
        let is_its = h.pid.load(Relaxed) == u64::from(id.pid)
            && h.start_time.load(Relaxed) == id.start
            && h.pid_namespace.load(Relaxed) == id.namespace;
        match magic {
            MAGIC if is_its => Ok(()),
            // Its writer stores that last: it is being made.
            0 => Err(Errno::NOENT),
            _ => Err(Errno::NOEXEC),
        }
    }

    /// The file: device, inode and size when it was opened.
    pub fn file(&self) -> &Stat {
        &self.file
    }

    fn map(&mut self, host: &dyn Host, fd: &Fd, k: usize) -> Result<()> {
        let (offset, end) = match k {
            0 => (0, segment_offset(0) + segment_bytes(0)),
            k => (segment_offset(k), segment_offset(k) + segment_bytes(k)),
        };
        let stat = fd.stat()?;
        if stat.inode != self.file.inode || stat.dev != self.file.dev {
            return Err(Errno::NOENT);
        }
        if stat.size < end as u64 {
            return Err(Errno::NOEXEC);
        }
        let bytes = (end - offset) as u64;
        let at = host.map_file(fd, offset as u64, bytes, false)?;
        if let Some(part) = self.parts.get_mut(k) {
            *part = PageRange::new(at, at + bytes);
        }
        Ok(())
    }

    /// The header.
    #[inline]
    pub fn header(&self) -> Option<&Header> {
        let at = (*self.parts.first()?)?.start();
        // SAFETY: mapped as long as `self` is, and all atomics.
        Some(unsafe { &*(at as *const Header) })
    }

    /// Slots that may have been used; their segments are mapped.
    ///
    /// ENOEXEC if that can't be; other errors as [`View::open`].
    pub fn used(&mut self, host: &dyn Host) -> Result<usize> {
        let used = self.header().map_or(0, |h| h.high_water.load(Acquire)) as usize;
        let Some(last) = used.checked_sub(1) else {
            return Ok(0);
        };
        let (segments, _) = locate(last);
        if segments >= SEGMENTS {
            return Err(Errno::NOEXEC);
        }
        for k in 0..=segments {
            if self.parts.get(k).is_some_and(Option::is_none) {
                let fd = find::open_directory(&self.found)?;
                self.map(host, &fd, k)?;
            }
        }
        Ok(used)
    }

    /// Slot number `n`, if it is mapped.
    #[inline]
    pub fn slot(&self, n: usize) -> Option<NonNull<Slot>> {
        let (k, i) = locate(n);
        let part = (*self.parts.get(k)?)?;
        let base = match k {
            0 => part.start() + segment_offset(0) as u64,
            _ => part.start(),
        };
        debug_assert!(i < SEGMENT0_SLOTS << k);
        NonNull::new((base as *mut Slot).wrapping_add(i))
    }

    /// Unmaps the directory.
    pub fn close(&mut self, host: &dyn Host) {
        for part in &mut self.parts {
            if let Some(part) = part.take() {
                // SAFETY: mapped by `open`, and this is the last that knows of it.
                unsafe { host.unmap(part.start(), part.len()) };
            }
        }
    }
}

/// The generation of an entry when it was looked at, and where it stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    at: NonNull<AtomicU64>,
    /// What stood there.
    word: u64,
}

impl Stamp {
    /// The stamp of `slot`.
    pub fn of(slot: NonNull<Slot>, generation: Generation) -> Self {
        // SAFETY: a slot's first word; only its address is taken.
        let at = unsafe { &raw const (*slot.as_ptr()).generation };
        Self {
            at: NonNull::new(at.cast_mut()).unwrap_or(NonNull::dangling()),
            word: generation.get(),
        }
    }

    /// The stamp of a word that stays the same as long as all is well.
    pub fn of_word(word: &AtomicU64, value: u64) -> Self {
        Self {
            at: NonNull::from(word),
            word: value,
        }
    }

    /// Whether the entry still is what it was.
    ///
    /// # Safety
    /// The view that it is from is still mapped.
    #[inline]
    pub unsafe fn holds(&self) -> bool {
        // What was copied from mapped memory was read before this is: a load alone, whatever
        // its order, keeps only what comes behind it in its place.
        fence(Acquire);
        // SAFETY: by the contract above.
        unsafe { self.at.as_ref() }.load(Acquire) == self.word
    }

    /// The number of the entry in its owner's ledger, if it still is what it was.
    ///
    /// # Safety
    /// As [`Stamp::holds`].
    pub unsafe fn id(&self) -> Option<u64> {
        let slot = self.at.as_ptr().cast::<Slot>();
        // SAFETY: by the contract above; the generation is a slot's first word.
        let id = unsafe { &(*slot).id }.load(Acquire);
        // SAFETY: by the contract above.
        unsafe { self.holds() }.then_some(id)
    }

    /// Where it stands.
    pub fn at(&self) -> NonNull<AtomicU64> {
        self.at
    }

    /// The generation.
    pub fn generation(&self) -> Generation {
        Generation::from_raw(self.word)
    }
}
