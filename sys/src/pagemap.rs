//! Which pages of this process are resident, by /proc/self/pagemap.
//!
//! mincore(2) is no answer to that: it says "resident" of the zero page, which holds nothing,
//! and of every page of a file that the process may not write.

use crate::errno::{Errno, Result};
use crate::file::Fd;
use crate::lasting::PAGEMAP;
use crate::memory::{Access, PAGE};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The page is in this process's page tables.
pub const PRESENT: u64 = 1 << 63;
/// The page is in swap space.
pub const SWAPPED: u64 = 1 << 62;
/// The page is a file's or shared, and no copy of this process's own.
pub const FILE: u64 = 1 << 61;
/// No other process maps the page. Never so of the zero page.
pub const EXCLUSIVE: u64 = 1 << 56;

/// The file.
pub struct Pagemap(());

/// `struct pm_scan_arg` (linux/fs.h).
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    regions: u64,
    many_regions: u64,
    most_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    told: u64,
}

/// PAGEMAP_SCAN: `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<Scan>() as u64) << 16 | (b'f' as u64) << 8 | 16;
/// What [`Pagemap::held`] tells of pages that are in the page tables (PAGE_IS_PRESENT).
pub const IS_PRESENT: u64 = 1 << 3;
/// PAGE_IS_SWAPPED and PAGE_IS_PFNZERO.
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
/// Words of a `struct page_region`: start, end, and what the pages are.
const REGION: usize = 3;
/// The kernel has no PAGEMAP_SCAN (before Linux 6.7), or a filter forbids it.
static CANNOT_SCAN: AtomicBool = AtomicBool::new(false);

impl Pagemap {
    /// Opens it. Fails where /proc is not mounted, and in a process that may not be dumped.
    pub fn open() -> Result<Self> {
        PAGEMAP.is_readable().map(Self)
    }

    /// Reads the words of the pages from `at` on.
    pub fn read(&self, at: u64, words: &mut [u64]) -> Result<()> {
        let bytes = size_of_val(words) as u64;
        let from = at / PAGE * size_of::<u64>() as u64;
        let at = words.as_mut_ptr() as u64;
        // SAFETY: any words are valid ones.
        let read = &mut |file: &Fd| unsafe { file.copy_at(Access::Read, at, bytes, from) };
        let n = PAGEMAP.ask(read)?;
        (n == bytes).then_some(()).ok_or(Errno::FAULT)
    }

    /// The first page from `at` on, below `end`, that is in the page tables; `end`: there is
    /// none. Where the kernel can't be asked for it, `at`.
    pub fn next_present(&self, at: u64, end: u64) -> u64 {
        if CANNOT_SCAN.load(Relaxed) {
            return at;
        }
        let mut region = [0u64; 3];
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: at,
            end,
            regions: region.as_mut_ptr() as u64,
            many_regions: 1,
            most_pages: 1,
            all_of: IS_PRESENT,
            told: IS_PRESENT,
            ..Scan::default()
        };
        match self.scan(&mut scan) {
            Ok(0) => end,
            Ok(_) => region[0].clamp(at, end),
            Err(Errno::INTR) => at,
            Err(_) => {
                CANNOT_SCAN.store(true, Relaxed);
                at
            }
        }
    }

    fn scan(&self, scan: &mut Scan) -> Result<u64> {
        // SAFETY: a struct pm_scan_arg, and as much room for regions as it says.
        PAGEMAP.ask(&mut |file| unsafe { file.ioctl(PAGEMAP_SCAN, &raw mut *scan) })
    }

    /// Fills `words` with regions of pages from `from` on, below `end`, that are in the page
    /// tables or in swap and are not the zero page. Those regions, three words each: start, end,
    /// and what the pages are; and up to where it has looked. `None`: the kernel can't be asked.
    pub fn held<'a>(&self, from: u64, end: u64, words: &'a mut [u64]) -> Option<(&'a [u64], u64)> {
        if CANNOT_SCAN.load(Relaxed) {
            return None;
        }
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start: from,
            end,
            regions: words.as_mut_ptr() as u64,
            many_regions: (words.len() / REGION) as u64,
            inverted: IS_ZERO,
            all_of: IS_ZERO,
            any_of: IS_PRESENT | IS_SWAPPED,
            told: IS_PRESENT | IS_SWAPPED,
            ..Scan::default()
        };
        let found = self.scan(&mut scan);
        let count = usize::try_from(found.ok()?).ok()?;
        let told = words.get(..count.checked_mul(REGION)?)?;
        (scan.walk_end > from).then_some((told, scan.walk_end.min(end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(bytes: usize) -> *mut u8 {
        // SAFETY: fresh memory at a place of the kernel's choice.
        let p = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(p, libc::MAP_FAILED);
        p.cast()
    }

    #[test]
    fn what_is_touched_is_told_from_what_is_read() {
        let p = map(64 << 20);
        let at = p as u64;
        let page = PAGE as usize;
        // SAFETY: within the mapping; huge pages would be more than what is touched.
        unsafe {
            libc::madvise(p.cast(), 64 << 20, libc::MADV_NOHUGEPAGE);
            p.add(5000 * page).write_volatile(1);
            p.add(5001 * page).read_volatile();
        }
        let pagemap = Pagemap::open().expect("/proc/self/pagemap");
        let mut words = [0u64; 3];
        pagemap.read(at + 4999 * PAGE, &mut words).expect("words");
        assert_eq!(words[0] & PRESENT, 0);
        assert_eq!(words[1] & (PRESENT | EXCLUSIVE | FILE), PRESENT | EXCLUSIVE);
        assert_eq!(words[2] & (PRESENT | EXCLUSIVE), PRESENT);

        let end = at + (64 << 20);
        let first = pagemap.next_present(at, end);
        assert!([at, at + 5000 * PAGE].contains(&first));
        let rest = at + 5002 * PAGE;
        assert!([rest, end].contains(&pagemap.next_present(rest, end)));
        // SAFETY: mapped above.
        unsafe { libc::munmap(p.cast(), 64 << 20) };
    }

    #[test]
    fn what_is_held_is_told_in_regions() {
        let p = map(64 << 20);
        let (at, page) = (p as u64, PAGE as usize);
        let written = [3, 4, 5, 700, 702, 16383];
        // SAFETY: within the mapping; huge pages would be more than what is touched.
        unsafe {
            libc::madvise(p.cast(), 64 << 20, libc::MADV_NOHUGEPAGE);
            for n in written {
                p.add(n * page).write_volatile(1);
            }
            // The zero page holds nothing.
            p.add(9000 * page).read_volatile();
        }
        let pagemap = Pagemap::open().expect("/proc/self/pagemap");
        let (mut from, end) = (at, at + (64 << 20));
        let mut found = Vec::new();
        while from < end {
            // Room for two at a time.
            let mut words = [0; 6];
            let Some((regions, to)) = pagemap.held(from, end, &mut words) else {
                eprintln!("skipped: no PAGEMAP_SCAN");
                break;
            };
            for region in regions.chunks_exact(3) {
                let pages = (region[0] - at) / PAGE..(region[1] - at) / PAGE;
                found.extend(pages.map(|n| n as usize));
            }
            from = to;
        }
        assert!(from < end || found == written, "{found:?}");
        // SAFETY: mapped above.
        unsafe { libc::munmap(p.cast(), 64 << 20) };
    }
}
