//! The kernel's list of this process's mappings, line by line.

use crate::sys::file::Fd;
use crate::sys::{Result, Undisturbed};
use regall_directory::addr::PageRange;
use regall_directory::maps::{each_line, parse, Line, LineError, Lines};

/// Bytes of buffer to read the list with. A line longer than that (a path of
/// that length) is skipped.
pub const BUFFER_BYTES: usize = 6144;

/// Calls `each` with every line of /proc/self/maps until it says false.
pub fn lines(buffer: &mut [u8], each: impl FnMut(&Line<'_>) -> bool) -> Result<()> {
    // A handler that jumps away would leave it open.
    let _undisturbed = Undisturbed::new();
    let fd = Fd::open_maps()?;
    each_line(buffer, |room| fd.read(room), each)
}

/// The kernel's mapping that holds `addr`.
#[cold]
#[inline(never)]
pub fn mapping_at(addr: u64) -> Option<PageRange> {
    let mut buffer = [0u8; BUFFER_BYTES];
    let mut found = None;
    let _ = lines(&mut buffer, |line| {
        if line.range.contains(addr) {
            found = Some(line.range);
        }
        found.is_none()
    });
    found
}

/// Calls `f` with the part of each of the kernel's mappings that lies in `range`,
/// until it says no. Whether it never did.
#[cold]
#[inline(never)]
pub fn each_mapping(range: PageRange, mut f: impl FnMut(PageRange) -> bool) -> bool {
    let mut buffer = [0u8; BUFFER_BYTES];
    let mut never = true;
    let read = lines(&mut buffer, |line| {
        if let Some(part) = line.range.intersection(range) {
            never = f(part);
        }
        never && line.range.end() < range.end()
    });
    never && read.is_ok()
}

/// Calls `f` with the part of each of the kernel's mappings that lies in `range`, and with the words
/// for what it is (`VmFlags` in proc(5)), until it says no. The kernel looks at the pages of all
/// mappings before, too.
#[cold]
#[inline(never)]
pub fn each_with_flags(range: PageRange, mut f: impl FnMut(PageRange, &[u8]) -> bool) {
    let mut buffer = [0u8; BUFFER_BYTES];
    // A handler that jumps away would leave it open.
    let _undisturbed = Undisturbed::new();
    let Ok(fd) = Fd::open(c"/proc/self/smaps", libc::O_RDONLY, 0) else {
        return;
    };
    let mut mapping: Option<PageRange> = None;
    let mut lines = Lines::new(&mut buffer, |room| fd.read(room));
    while let Some(line) = lines.next_line() {
        let line = match line {
            Ok(line) => line,
            Err(LineError::TooLong) => continue,
            Err(LineError::Read(_)) => return,
        };
        let Some(flags) = line.strip_prefix(b"VmFlags:") else {
            mapping = parse(line).map(|line| line.range).or(mapping);
            continue;
        };
        let Some(mapping) = mapping.take() else {
            continue;
        };
        let wanted = mapping.intersection(range);
        let go_on = wanted.is_none_or(|part| f(part, flags));
        if !go_on || mapping.end() >= range.end() {
            return;
        }
    }
}

/// The mappings of the System V segment that was attached at `addr`: how many
/// there are, and as many of them as there are places for.
#[cold]
#[inline(never)]
pub fn attached(addr: u64, places: &mut [Option<PageRange>]) -> usize {
    let mut buffer = [0u8; BUFFER_BYTES];
    let (mut segment, mut count) = (None, 0);
    let _ = lines(&mut buffer, |line| {
        let begins = line.range.start().wrapping_sub(line.offset);
        let here = begins == addr && line.name.starts_with(b"/SYSV");
        // Another one's piece may seem to begin there: the first decides.
        if here && *segment.get_or_insert(line.inode) == line.inode {
            if let Some(place) = places.get_mut(count) {
                *place = Some(line.range);
            }
            count += 1;
        }
        true
    });
    count
}
