//! The kernel's list of this process's mappings: line by line, or by address.

use crate::patch::modules::line_of;
use crate::sys::mappings::{List, Text, Wanted};
use crate::sys::{shm_bytes, Result};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::maps::{each_line, Line};
use regall_directory::vocab::Prot;

/// Bytes of buffer to read the list with. A line longer than that (a path of
/// that length) is skipped.
pub const BUFFER_BYTES: usize = 6144;

/// The kernel's list of this process's mappings, to be gone through.
pub struct Mappings(List);

impl Mappings {
    /// The list.
    ///
    /// # Errors
    /// open(2)'s.
    pub fn open() -> Result<Self> {
        List::open().map(Self)
    }

    /// Calls `each` with every mapping, in their order, until it says false.
    ///
    /// # Errors
    /// read(2)'s.
    pub fn each(&self, buffer: &mut [u8], mut each: impl FnMut(&Line<'_>) -> bool) -> Result<()> {
        // (The kernel is not asked for its own.)
        let kernels = KERNELS.load(Relaxed);
        if kernels == 0 {
            return self.each_by_text(buffer, each);
        }
        let (mut goes_on, mut listed) = (true, false);
        self.each_from(0, Wanted::Any, buffer, |line| {
            listed |= line.range.start() >= KERNEL;
            goes_on = each(line);
            goes_on
        })?;
        if let Some(line) = kernels_line(kernels).filter(|_| goes_on && !listed) {
            each(&line);
        }
        Ok(())
    }

    /// As [`Mappings::each`], from the list as text.
    fn each_by_text(
        &self,
        buffer: &mut [u8],
        mut each: impl FnMut(&Line<'_>) -> bool,
    ) -> Result<()> {
        let (mut text, mut kernels, mut goes_on) = (Text::open()?, KNOWN, true);
        each_line(
            buffer,
            |room| text.read(room),
            |line| {
                if line.range.start() >= KERNEL {
                    kernels = line.range.start() | u64::from(line.prot.bits() & 7) | KNOWN;
                }
                goes_on = each(line);
                goes_on
            },
        )?;
        if goes_on {
            KERNELS.store(kernels, Relaxed);
        }
        Ok(())
    }

    /// As [`Mappings::each`], of the mappings that end above `addr` and are `wanted`. That costs
    /// what is gone through; before Linux 6.11 what lies below, too. Of the kernel's own addresses
    /// only the whole list tells.
    ///
    /// # Errors
    /// read(2)'s.
    pub fn each_from(
        &self,
        addr: u64,
        wanted: Wanted,
        buffer: &mut [u8],
        mut each: impl FnMut(&Line<'_>) -> bool,
    ) -> Result<()> {
        let rest = self.0.each_from(addr, wanted, buffer, |mapping| {
            line_of(mapping).is_some_and(|line| each(&line))
        });
        match rest {
            None => Ok(()),
            Some(from) => self.each_by_text(buffer, |line| line.range.end() <= from || each(line)),
        }
    }
}

/// The first of the kernel's own addresses.
const KERNEL: u64 = 1 << 63;
/// Remembers what the kernel has mapped there for programs (the page \[vsyscall\], or nothing), and with which
/// protection: it stays as it is. 0: the list was not read yet.
static KERNELS: AtomicU64 = AtomicU64::new(0);
/// In [`KERNELS`]: the list was read.
const KNOWN: u64 = 1 << 11;

/// Returns the last line of the list, if it is of the kernel's own page.
fn kernels_line(kernels: u64) -> Option<Line<'static>> {
    let at = kernels & !(PAGE - 1);
    Some(Line {
        range: PageRange::new(at, at + PAGE).filter(|_| at != 0)?,
        prot: Prot::from_call(kernels & 7, false),
        offset: 0,
        dev_major: 0,
        dev_minor: 0,
        inode: 0,
        name: b"[vsyscall]",
    })
}

/// Calls `each` with every line of /proc/self/maps until it says false.
pub fn lines(buffer: &mut [u8], each: impl FnMut(&Line<'_>) -> bool) -> Result<()> {
    Mappings::open()?.each(buffer, each)
}

/// Calls `each` with every mapping that meets `range`, in their order, until it says false.
///
/// # Errors
/// The list can't be opened or read.
pub fn in_range(
    range: PageRange,
    buffer: &mut [u8],
    mut each: impl FnMut(&Line<'_>) -> bool,
) -> Result<()> {
    let mappings = Mappings::open()?;
    let mut meets = |line: &Line<'_>| line.range.start() < range.end() && each(line);
    match range.end() > i64::MAX as u64 {
        true => mappings.each(buffer, |line| {
            line.range.end() <= range.start() || meets(line)
        }),
        false => mappings.each_from(range.start(), Wanted::Any, buffer, meets),
    }
}

/// The kernel's mapping that holds `addr`.
#[cold]
#[inline(never)]
pub fn mapping_at(addr: u64) -> Option<PageRange> {
    let mut buffer = [0u8; BUFFER_BYTES];
    let mut found = None;
    let page = PageRange::covering(addr, 1)?;
    let _ = in_range(page, &mut buffer, |line| {
        found = Some(line.range);
        false
    });
    found
}

/// Calls `f` with the part of each of the kernel's mappings that lies in `range`,
/// until it says no. Whether it never did. No address comes twice: what `f` moves away leaves room
/// for a mapping of another thread's, and the kernel may merge that with the next.
#[cold]
#[inline(never)]
pub fn each_mapping(range: PageRange, mut f: impl FnMut(PageRange) -> bool) -> bool {
    let mut buffer = [0u8; BUFFER_BYTES];
    let (mut never, mut from) = (true, range.start());
    let read = in_range(range, &mut buffer, |line| {
        let part = line.range.intersection(range);
        if let Some(part) = part.and_then(|part| part.after(from)) {
            from = part.end();
            never = f(part);
        }
        never
    });
    never && read.is_ok()
}

/// The mappings of the System V segment that was attached at `addr`: how many
/// there are, and as many of them as there are places for. As the kernel looks for them (shmdt(2)):
/// from `addr` on, and no further than the segment is long.
#[cold]
#[inline(never)]
pub fn attached(addr: u64, places: &mut [Option<PageRange>]) -> usize {
    let (mut segment, mut count, mut end) = (None, 0, i64::MAX as u64 & !(PAGE - 1));
    // Whether there may be more.
    let note = |line: &Line<'_>| {
        let begins = line.range.start().wrapping_sub(line.offset);
        let here = begins == addr && line.name.starts_with(b"/SYSV");
        // Another one's piece may seem to begin there: the first decides.
        if here && *segment.get_or_insert(line.inode) == line.inode {
            if count == 0 {
                // (A segment's inode has the segment's number.)
                let bytes = shm_bytes(line.inode).ok();
                let behind = bytes.and_then(|bytes| addr.checked_add(bytes));
                end = behind.unwrap_or(end);
            }
            if let Some(place) = places.get_mut(count) {
                *place = Some(line.range);
            }
            count += 1;
        }
        line.range.end() < end
    };
    let mut buffer = [0u8; BUFFER_BYTES];
    let _ = Mappings::open().and_then(|all| all.each_from(addr, Wanted::Files, &mut buffer, note));
    count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;
    use std::vec::Vec;

    type Told = (PageRange, Prot, u64, u64, Vec<u8>);

    fn told(line: &Line<'_>) -> Told {
        (
            line.range,
            line.prot,
            line.offset,
            line.inode,
            line.name.to_vec(),
        )
    }

    #[test]
    fn by_address_as_by_line() {
        let mut buffer = [0; BUFFER_BYTES];
        // (Other tests' threads map memory meanwhile: a library stays.)
        let is_ours = |line: &Line<'_>| line.inode != 0 && line.name.starts_with(b"/");
        let (mut listed, mut asked) = (Vec::<Told>::new(), Vec::<Told>::new());
        let all = Mappings::open().unwrap();
        all.each_by_text(&mut buffer, |line| {
            listed.extend(Some(told(line)).filter(|_| is_ours(line)));
            true
        })
        .unwrap();
        let mut whole = Vec::<Told>::new();
        lines(&mut buffer, |line| {
            whole.extend(Some(told(line)).filter(|_| is_ours(line)));
            true
        })
        .unwrap();
        assert_eq!(whole, listed);
        assert!(listed.len() > 4);
        let (first, last) = (listed.first().unwrap().0, listed.last().unwrap().0);
        let all = PageRange::new(first.start(), last.end()).unwrap();
        in_range(all, &mut buffer, |line| {
            asked.extend(Some(told(line)).filter(|_| is_ours(line)));
            true
        })
        .unwrap();
        assert_eq!(asked, listed);
        for (range, ..) in &listed {
            assert_eq!(mapping_at(range.end() - 1), Some(*range));
        }
        // Not what only touches it, and no more than is wanted.
        let mut seen = 0;
        in_range(first, &mut buffer, |line| {
            seen += 1;
            assert_eq!(line.range, first);
            true
        })
        .unwrap();
        assert_eq!(seen, 1);
    }

    #[test]
    fn no_address_comes_twice() {
        let rights = [libc::PROT_READ, libc::PROT_NONE];
        let at = sys::map_fresh(4 * PAGE, rights[0], libc::MAP_PRIVATE).unwrap();
        // SAFETY: a part of what has just been mapped.
        unsafe { sys::protect(at + 2 * PAGE, 2 * PAGE, rights[1]) }.unwrap();
        let all = PageRange::from_call(at, 4 * PAGE).unwrap();
        let mut parts = Vec::new();
        assert!(each_mapping(all, |part| {
            if parts.is_empty() {
                // As where the first is moved away and another thread maps memory there, that the
                // kernel merges with the second.
                // SAFETY: a part of what the test has mapped.
                unsafe { sys::unmap(at, 2 * PAGE) }.unwrap();
                sys::map_at(at + PAGE, PAGE, rights[1]).unwrap();
                let merged = PageRange::from_call(at + PAGE, 3 * PAGE);
                assert_eq!(mapping_at(at + 3 * PAGE), merged);
            }
            parts.push(part);
            true
        }));
        let half = |n: u64| PageRange::from_call(at + n * 2 * PAGE, 2 * PAGE).unwrap();
        assert_eq!(parts, [half(0), half(1)]);
        // SAFETY: what the test has mapped.
        unsafe { sys::unmap(at, 4 * PAGE) }.unwrap();
    }

    #[test]
    fn the_kernels_own_addresses_are_listed() {
        let all = PageRange::new(0, !(PAGE - 1)).unwrap();
        let (mut buffer, mut listed, mut asked) = ([0; BUFFER_BYTES], Vec::new(), Vec::new());
        let is_there = |line: &Line<'_>| line.name == b"[vsyscall]";
        let by_text = Mappings::open().unwrap();
        by_text
            .each_by_text(&mut buffer, |line| {
                listed.extend(Some(told(line)).filter(|_| is_there(line)));
                true
            })
            .unwrap();
        // (What was listed is remembered.)
        assert_ne!(KERNELS.load(Relaxed), 0);
        in_range(all, &mut buffer, |line| {
            asked.extend(Some(told(line)).filter(|_| is_there(line)));
            true
        })
        .unwrap();
        assert_eq!(asked, listed);
    }
}
