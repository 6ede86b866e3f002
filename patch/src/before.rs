//! What of a file was mapped before it was searched, so that the search leaves nothing else.
//!
//! A search reads the text, and the tables that say where functions are. Each access maps what
//! is in the page cache around it. Afterwards what was not in the page tables is taken out
//! again; the page cache keeps it. Only pages that are the file's own are taken out. A page
//! that somebody has written to (a patch, a breakpoint, a uprobe) is a copy that nobody else
//! has, and MADV_DONTNEED would lose it: the kernel is asked about each page right before.

use super::modules::{Group, SEGMENTS_MAX};
use super::windows::{drop_pages, each_run, MAPPED};
use regall_directory::addr::{PageRange, PAGE};
use regall_sys::pagemap::{Pagemap, FILE, PRESENT};

/// Pages of a group at the most: 2 GiB. Of what is behind them, what is touched stays mapped.
const PAGES: usize = 512 << 10;
const WORDS: usize = PAGES / 64;
/// Pages that the kernel is asked about at a time: 1 KiB of stack.
const MANY: u64 = 128;

/// Pages of one group of mappings that were in the page tables.
pub struct Before {
    bits: [u64; WORDS],
    /// What may be taken out, and where its bits begin.
    parts: [Option<(PageRange, usize)>; SEGMENTS_MAX],
}

impl Before {
    /// A state in which nothing is taken out.
    pub const fn new() -> Self {
        Self {
            bits: [0; WORDS],
            parts: [None; SEGMENTS_MAX],
        }
    }

    /// Forgets the group that was looked at last.
    pub fn clear(&mut self) {
        self.parts = [None; SEGMENTS_MAX];
    }

    /// Takes down what of `group` is mapped now. Without `pagemap` nothing will be taken out.
    pub fn look(&mut self, group: &Group, pagemap: Option<&Pagemap>) {
        self.nothing(group);
        let Self { bits, parts } = self;
        for part in parts {
            let Some((range, first)) = *part else {
                continue;
            };
            let known = each_present(range, pagemap, |from, words| {
                for (n, _) in words.iter().enumerate().filter(|(_, w)| **w & MAPPED != 0) {
                    let page = (from.saturating_sub(range.start()) / PAGE) as usize + n;
                    if let Some(word) = bits.get_mut(first + page / 64) {
                        *word |= 1 << (page % 64);
                    }
                }
            });
            if !known {
                *part = None;
            }
        }
    }

    /// Takes it that nothing of `group` was mapped.
    fn nothing(&mut self, group: &Group) {
        self.clear();
        let mut first = 0;
        for (part, range) in self.parts.iter_mut().zip(group.unwritten()) {
            let end = first + ((range.len() / PAGE) as usize).div_ceil(64);
            let Some(bits) = self.bits.get_mut(first..end) else {
                return;
            };
            bits.fill(0);
            *part = Some((range, first));
            first = end;
        }
    }

    /// Takes out of the page tables what has come into them in `range`, or everywhere.
    pub fn give_back(&self, range: Option<PageRange>, pagemap: Option<&Pagemap>) {
        for &(part, first) in self.parts.iter().flatten() {
            let within = range.map_or(Some(part), |range| range.intersection(part));
            let Some(within) = within else {
                continue;
            };
            let was = |at: u64| {
                let page = (at.saturating_sub(part.start()) / PAGE) as usize;
                let word = self.bits.get(first + page / 64);
                word.is_none_or(|word| word & 1 << (page % 64) != 0)
            };
            each_present(within, pagemap, |from, words| {
                let pages = (from..).step_by(PAGE as usize).zip(words);
                let new = pages.map(|(at, word)| {
                    let files = word & (PRESENT | FILE) == PRESENT | FILE;
                    files && !was(at)
                });
                let end = from.saturating_add(words.len() as u64 * PAGE);
                if let Some(asked) = PageRange::new(from, end) {
                    // SAFETY: the kernel says that they are the file's.
                    each_run(asked, new, |run| unsafe {
                        drop_pages(run.start(), run.len())
                    });
                }
            });
        }
    }
}

/// Calls `f` with the first address and the words of each stretch of `range` that may have pages
/// in the page tables. Whether the kernel could be asked.
fn each_present(
    range: PageRange,
    pagemap: Option<&Pagemap>,
    mut f: impl FnMut(u64, &[u64]),
) -> bool {
    let Some(pagemap) = pagemap else {
        return false;
    };
    let mut words = [0u64; MANY as usize];
    let mut from = range.start();
    while from < range.end() {
        if range.end() - from > MANY * PAGE {
            from = pagemap.next_present(from, range.end());
        }
        let pages = (range.end().saturating_sub(from) / PAGE).min(MANY);
        let words = words.get_mut(..pages as usize).unwrap_or(&mut []);
        if words.is_empty() {
            break;
        }
        if pagemap.read(from, words).is_err() {
            return false;
        }
        f(from, words);
        from = from.saturating_add(pages * PAGE);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::windows::WINDOW;
    use crate::write::{Use, Writer};
    use crate::{modules, tests, Guard, Report, Scanner};
    use std::os::unix::fs::FileExt;
    use std::os::unix::io::{AsRawFd, FromRawFd};

    /// `mov $9, %eax; syscall; ret`.
    const SITE: [u8; 8] = [0xb8, 9, 0, 0, 0, 0x0f, 0x05, 0xc3];

    /// A private mapping of a file's first `bytes` bytes, with `code` at the places `at`.
    fn mapped(bytes: u64, code: &[(u64, &[u8])]) -> (std::fs::File, PageRange) {
        // SAFETY: the name ends with a NUL.
        let fd = unsafe { libc::memfd_create(c"code".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: just opened, and nobody else's.
        let file = unsafe { std::fs::File::from_raw_fd(fd) };
        file.write_all_at(&vec![0x90; bytes as usize], 0)
            .expect("filled");
        for (at, code) in code {
            file.write_all_at(code, *at).expect("written");
        }
        // SAFETY: fresh memory at a place of the kernel's choice.
        let at = unsafe {
            libc::mmap(
                core::ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_EXEC,
                libc::MAP_PRIVATE,
                file.as_raw_fd(),
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        (file, PageRange::new(at as u64, at as u64 + bytes).unwrap())
    }

    fn group_at(range: PageRange) -> Group {
        let mut buffer = vec![0; modules::BUFFER_BYTES];
        let mut found = None;
        modules::groups(&mut buffer, |group| {
            if group.segments().any(|s| s.range.overlaps(range)) {
                found = Some(*group);
            }
            found.is_none()
        })
        .unwrap();
        found.expect("a group")
    }

    fn present(range: PageRange, pagemap: &Pagemap) -> Vec<bool> {
        let mut words = vec![0; (range.len() / PAGE) as usize];
        pagemap.read(range.start(), &mut words).unwrap();
        words.iter().map(|word| word & PRESENT != 0).collect()
    }

    fn touch(at: u64) -> u8 {
        // SAFETY: the callers have it mapped.
        unsafe { (at as *const u8).read_volatile() }
    }

    /// Writes as a debugger does.
    fn poke(at: u64, byte: u8) {
        let mem = std::fs::File::options()
            .write(true)
            .open("/proc/self/mem")
            .expect("/proc/self/mem");
        mem.write_all_at(&[byte], at).expect("a breakpoint");
    }

    /// As at start-up. Calls `searched` with each part that has been.
    fn search(
        range: PageRange,
        pagemap: &Pagemap,
        mut searched: impl FnMut(Option<PageRange>),
    ) -> Report {
        let group = group_at(range);
        let mut report = Report::default();
        let mut before = Box::new(Before::new());
        let mut guard = std::iter::repeat_with(Guard::take)
            .find_map(|guard| guard)
            .expect("the lock");
        let state = guard.state();
        let mut scanner = Scanner {
            patches: &mut state.patches,
            room: &mut state.room,
            writer: &mut Writer::default(),
            report: &mut report,
            in_use: Use::Fresh,
        };
        before.look(&group, Some(pagemap));
        scanner.group(&group, |part| {
            before.give_back(part, Some(pagemap));
            searched(part);
        });
        report
    }

    #[test]
    fn what_was_not_mapped_is_not_afterwards_and_breakpoints_stay() {
        let (_file, range) = mapped(4 << 20, &[]);
        let page = |n: u64| range.start() + n * PAGE;
        let pagemap = Pagemap::open().unwrap();
        // One was hit before the search, one during it.
        poke(page(700), 0xcc);
        touch(page(3));
        let was = present(range, &pagemap);
        assert!(was[3] && was[700]);
        let mut before = Box::new(Before::new());
        before.look(&group_at(range), Some(&pagemap));
        assert!((0..1024).all(|n| touch(page(n)) == [0x90, 0xcc][usize::from(n == 700)]));
        poke(page(900), 0xcc);
        assert!(present(range, &pagemap).iter().all(|there| *there));

        before.give_back(PageRange::new(page(0), page(512)), Some(&pagemap));
        let now = present(range, &pagemap);
        assert_eq!(now[..512], was[..512]);
        assert!(now[512..].iter().all(|there| *there));

        before.give_back(None, Some(&pagemap));
        let now = present(range, &pagemap);
        for n in (0..1024).filter(|n| *n != 900) {
            assert_eq!(now[n], was[n], "page {n}");
        }
        assert!(now[900]);
        for n in 0..1024 {
            let there = [0x90, 0xcc][usize::from(n == 700 || n == 900)];
            assert_eq!(touch(page(n)), there, "page {n}");
        }
        crate::unmap(range);
    }

    #[test]
    fn nothing_is_taken_from_where_the_kernel_cannot_be_asked() {
        let (_file, range) = mapped(64 << 10, &[]);
        let pagemap = Pagemap::open().unwrap();
        let mut before = Box::new(Before::new());
        before.look(&group_at(range), None);
        touch(range.start());
        before.give_back(None, Some(&pagemap));
        assert!(present(range, &pagemap)[0]);
        crate::unmap(range);
    }

    #[test]
    fn sites_at_the_edges_of_windows_are_found_and_little_is_left_mapped() {
        let _turn = tests::with_test_entry();
        // The number before the border and the call behind it, the call's two bytes on either
        // side, one that begins a window, and one at the very end.
        let end = 3 * WINDOW;
        let call = &SITE[..7];
        let places = [WINDOW - 5, 2 * WINDOW - 6, 2 * WINDOW + 64, end - 7];
        let code = places.map(|at| (at, call));
        let (_file, range) = mapped(end, &code);
        let pagemap = Pagemap::open().unwrap();
        let mut parts = Vec::new();
        let report = search(range, &pagemap, |part| parts.push(part.map(|p| p.len())));
        assert_eq!(parts, [Some(WINDOW), Some(WINDOW), None]);
        assert_eq!(report.patched, 4, "{report:x?}");
        for at in places {
            assert_eq!(touch(range.start() + at), 0xe9, "{at:#x}");
            assert_eq!(touch(range.start() + at + 6), 0x05, "{at:#x}");
        }
        crate::unmap(range);
        crate::forget(range);
    }

    #[test]
    fn a_search_leaves_what_it_patched_and_nothing_else() {
        let _turn = tests::with_test_entry();
        let (_file, range) = mapped(4 * WINDOW, &[(WINDOW + 100, &SITE)]);
        let pagemap = Pagemap::open().unwrap();
        let was = present(range, &pagemap);
        let report = search(range, &pagemap, |_| ());
        assert_eq!(report.patched, 1, "{report:x?}");
        let now = present(range, &pagemap);
        let patched = (WINDOW / PAGE) as usize;
        for (n, (now, was)) in now.iter().zip(&was).enumerate() {
            assert_eq!(*now, *was || n == patched, "page {n}");
        }
        crate::unmap(range);
        crate::forget(range);
    }
}
