//! Writes to code, as a debugger does or through mprotect, and says what may be seen meanwhile.

use super::modules;
use super::plan::{self, fits_at_once, LINE_BYTES, STORE_BYTES};
use regall_directory::addr::PageRange;
use regall_sys::file::Fd;
use regall_sys::{self as sys, Errno, Result};

/// Whether anybody may be running the code that is written to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Code that does not run yet.
    Fresh,
    /// At any time: it must not stop being executable.
    Shared,
    /// These very bytes, at any time: they change at once.
    Running,
    /// These very bytes, at any time, and they may be unmapped at any moment.
    Left,
}

impl Use {
    /// Whether what is written must be seen as a whole.
    pub fn at_once(self) -> bool {
        matches!(self, Self::Running | Self::Left)
    }
}

/// Writes to memory that is not writable. Opens nothing until there is
/// something to write.
#[derive(Default)]
pub struct Writer {
    mem: Option<Fd>,
    opened: bool,
}

impl Writer {
    /// Writes `bytes` at `at`. /proc/self/mem ignores protection and leaves it
    /// as it is; where that is forbidden the pages are made writable for a moment.
    pub fn write(&mut self, at: u64, bytes: &[u8], in_use: Use) -> Result<()> {
        let written = self.with_mem(|mem| mem.write_at(bytes, at));
        if written == Some(Ok(bytes.len())) {
            return Ok(());
        }
        write_unprotected(at, bytes, in_use)
    }

    /// Whether `there` is at `at`. Something else may have been mapped there, or written, by
    /// the program or for another site, since it was searched.
    pub(super) fn holds(&mut self, at: u64, there: &[u8], in_use: Use) -> bool {
        if in_use == Use::Fresh {
            // SAFETY: it was read there to be searched, and is in the hands of whoever waits
            // for that.
            let now = |n: usize| unsafe { (at as *const u8).wrapping_add(n).read_volatile() };
            return there.iter().enumerate().all(|(n, byte)| now(n) == *byte);
        }
        let mut now = [0; plan::MOVED_MAX];
        let now = now.get_mut(..there.len());
        now.is_some_and(|now| self.read(at, now) && now == there)
    }

    /// Writes `bytes` beside code, where nobody runs, in the place of `there`.
    pub(super) fn put(&mut self, at: u64, there: &[u8], bytes: &[u8], in_use: Use) -> Result<()> {
        if !self.holds(at, there, in_use) {
            return Err(Errno::FAULT);
        }
        if in_use != Use::Left {
            return self.write(at, bytes, Use::Shared);
        }
        // A store of ours would be a signal where it is gone.
        match self.with_mem(|mem| mem.write_at(bytes, at)) {
            Some(Ok(len)) if len == bytes.len() => Ok(()),
            _ => Err(Errno::FAULT),
        }
    }

    /// Writes a jump, and what is to stand behind it, in the place of the code `there`. Where
    /// others may be running it the jump is written alone, at once: nobody comes to what is
    /// behind it.
    pub(super) fn patch(&mut self, at: u64, there: &[u8], bytes: &[u8], in_use: Use) -> Result<()> {
        if !in_use.at_once() {
            return match self.holds(at, there, in_use) {
                true => self.write(at, bytes, in_use),
                false => Err(Errno::FAULT),
            };
        }
        let jump = bytes
            .get(..bytes.len().min(plan::JUMP_BYTES))
            .unwrap_or(&[]);
        if !fits_at_once(at, jump.len()) {
            return Err(Errno::INVAL);
        }
        let word = word_around(at);
        let mut new = [0; STORE_BYTES as usize];
        if !self.read(word, &mut new) {
            return Err(Errno::FAULT);
        }
        let place = new.get_mut(at.wrapping_sub(word) as usize..);
        let place = place.and_then(|rest| rest.get_mut(..jump.len()));
        let place = place.ok_or(Errno::INVAL)?;
        // As in `holds`, of what is stored.
        if !there.starts_with(place) {
            return Err(Errno::FAULT);
        }
        place.copy_from_slice(jump);
        // The kernel stores eight bytes as one, and does not fault where they are gone.
        let written = self.with_mem(|mem| mem.write_at(&new, word));
        match written {
            Some(Ok(len)) if len == new.len() => Ok(()),
            _ if in_use == Use::Running => store_at_once(at, jump),
            _ => Err(Errno::FAULT),
        }
    }

    /// Has `f` use /proc/self/mem: opened for that beside other threads, else once.
    fn with_mem<T>(&mut self, mut f: impl FnMut(&Fd) -> T) -> Option<T> {
        let open = || Fd::open(c"/proc/self/mem", libc::O_RDWR, 0).ok();
        if self.mem.is_none() && sys::is_beside_others() {
            return sys::with_own_table(|| open().map(|mem| f(&mem)));
        }
        if !self.opened {
            self.opened = true;
            self.mem = open();
        }
        self.mem.as_ref().map(f)
    }

    /// Reads as a debugger does: false where a load would be a signal. Only what can't be read otherwise
    /// takes a descriptor, if none is open.
    pub fn read(&mut self, at: u64, into: &mut [u8]) -> bool {
        let (to, len) = (into.as_mut_ptr(), into.len());
        // SAFETY: `into` is as long as that.
        if self.mem.is_none() && unsafe { sys::copy_checked(at, to, len) } == Ok(len) {
            return true;
        }
        self.with_mem(|mem| mem.read_at(into, at)) == Some(Ok(len))
    }

    /// Whether there is our jump from `at` to `to`, as far as anybody can tell: where it
    /// can't be read there is.
    pub(super) fn has_jump(&mut self, at: u64, to: u64) -> bool {
        self.goes(at).is_none_or(|found| found == to)
    }

    /// Where the jump at `at` would go, whatever its first byte is: that may be a debugger's
    /// breakpoint. `None`: it can't be read.
    pub(super) fn goes(&mut self, at: u64) -> Option<u64> {
        let mut distance = [0u8; plan::JUMP_BYTES - 1];
        let read = self.read(at.saturating_add(1), &mut distance);
        read.then(|| target(at, distance))
    }
}

/// Where a jump at `at` with this distance goes.
fn target(at: u64, distance: [u8; 4]) -> u64 {
    at.wrapping_add(plan::JUMP_BYTES as u64)
        .wrapping_add_signed(i64::from(i32::from_le_bytes(distance)))
}

/// Eight bytes of `at`'s line that begin there or before it.
fn word_around(at: u64) -> u64 {
    at.min((at & !(LINE_BYTES - 1)).saturating_add(LINE_BYTES - STORE_BYTES))
}

/// Writes `bytes`, two or five of them, to code that others may be running: they see what
/// was there or all of it.
pub(super) fn store_at_once(at: u64, bytes: &[u8]) -> Result<()> {
    if !fits_at_once(at, bytes.len()) {
        return Err(Errno::INVAL);
    }
    let word = word_around(at);
    let shift = at.wrapping_sub(word);
    let pages = PageRange::covering(word, STORE_BYTES).ok_or(Errno::INVAL)?;
    let before = protection(pages)?;
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    // SAFETY: it loses no access.
    unsafe { sys::protect(pages.start(), pages.len(), all) }?;
    // SAFETY: the page is mapped, and readable and writable now.
    let there = unsafe { (word as *const u64).read_unaligned() };
    let mut new = there.to_le_bytes();
    let place = new.iter_mut().skip(shift as usize);
    place.zip(bytes).for_each(|(to, from)| *to = *from);
    // SAFETY: as above. The word need not be aligned, which an `AtomicU64` must be: within a
    // line the processor stores it at once.
    unsafe {
        core::arch::asm!(
            "mov qword ptr [{at}], {new}",
            at = in(reg) word,
            new = in(reg) u64::from_le_bytes(new),
            options(nostack, preserves_flags),
        );
    }
    // SAFETY: the access that it had before.
    unsafe { sys::protect(pages.start(), pages.len(), before) }
}

/// Writes through mprotect. Read, write and execute at once where the system
/// allows it; else write without execute, unless somebody may be running there.
#[inline(never)] // for the stack's sake
pub(super) fn write_unprotected(at: u64, bytes: &[u8], in_use: Use) -> Result<()> {
    let pages = PageRange::covering(at, bytes.len() as u64).ok_or(Errno::INVAL)?;
    // SAFETY: reading and writing stay, and executing where somebody may be running there.
    let set = |prot| unsafe { sys::protect(pages.start(), pages.len(), prot) };
    let before = protection(pages)?;
    let open = libc::PROT_READ | libc::PROT_WRITE;
    set(open | libc::PROT_EXEC).or_else(|errno| match in_use {
        Use::Fresh => set(open),
        Use::Shared | Use::Running | Use::Left => Err(errno),
    })?;
    // SAFETY: the pages are mapped and writable now, and `bytes` is not in them:
    // it is on our stack.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    set(before)
}

/// The protection that all of `pages` has; an error if it is not the same.
fn protection(pages: PageRange) -> Result<i32> {
    let mut buffer = [0u8; 1024];
    let mut found = None;
    modules::lines_from(pages.start(), &mut buffer, |line| {
        if line.range.covers(pages) {
            found = Some(i32::from(line.prot.bits() & 7));
        }
        found.is_none() && line.range.start() < pages.end()
    })?;
    found.ok_or(Errno::INVAL)
}

/// Reads as a debugger does: false where a load would be a signal.
pub fn read_checked(at: u64, into: &mut [u8]) -> bool {
    sys::with_own_table(|| {
        let mem = Fd::open(c"/proc/self/mem", libc::O_RDONLY, 0);
        mem.is_ok_and(|mem| mem.read_at(into, at) == Ok(into.len()))
    })
}
