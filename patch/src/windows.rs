//! Goes through code a window at a time, and leaves no memory resident that was not.
//!
//! A program may map far more code than it runs. What is searched is touched, and what is
//! touched is resident, charged to the program's cgroup, and locked. So memory that holds
//! nothing is not touched at all, and what was not mapped before a window was searched is
//! taken out of the page tables behind that. The file's pages stay in the page cache, where
//! they can be reclaimed.

use super::memory::Memory;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::{Flags, Kind};
use regall_sys::{
    self as sys,
    pagemap::{self, Pagemap},
    DONTNEED_LOCKED,
};

/// Bytes that are searched at a time.
pub const WINDOW: u64 = 2 << 20;
/// Bytes on either side that are only there to be decoded.
const MARGIN: u64 = 16 << 10;
/// Bytes on either side that the kernel may map too: it maps what is in the page cache around
/// what is touched, and a large folio as a whole (Linux 6.18).
const REACH: u64 = 2 << 20;
const PAGES: usize = ((WINDOW + 2 * REACH) / PAGE) as usize;

/// A page is mapped, or in swap.
pub const MAPPED: u64 = pagemap::PRESENT | pagemap::SWAPPED;

/// What is known of a window's pages.
pub struct Pages {
    /// /proc/self/pagemap's words.
    map: [u64; PAGES],
    /// The pages that these are of.
    of: Option<PageRange>,
    /// mincore(2)'s bytes, of shared memory.
    cached: [u8; PAGES],
}

/// What is done with a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Skips what holds nothing, or what nobody has in memory.
    Skip,
    /// Reads the window.
    Read,
    /// Reads the window, and unmaps it afterwards.
    Borrow,
}

/// Calls `f` with the parts of `range` that hold something and can be read: a window's with
/// what is around it, and the window.
pub fn each(
    range: PageRange,
    shared: bool,
    memory: Memory,
    pages: &mut Pages,
    mut f: impl FnMut(PageRange, PageRange),
) {
    let pagemap = Pagemap::open().ok();
    if let Some(pagemap) = pagemap
        .as_ref()
        .filter(|_| !shared && is_own(range, memory))
    {
        // No file's pages come with what is read, and none are given back.
        return pages.held(range, pagemap, |run, present| match present {
            true => f(run, run),
            false => each_readable(run, |part| f(part, part)),
        });
    }
    pages.of = None;
    let mut from = range.start();
    while let Some(rest) = range.after(from) {
        let end = (from & !(WINDOW - 1)).saturating_add(WINDOW);
        let inner = rest.before(end.min(range.end())).unwrap_or(rest);
        from = inner.end();
        let with = |margin: u64| {
            let low = inner.start().saturating_sub(margin).max(range.start());
            let high = inner.end().saturating_add(margin).min(range.end());
            PageRange::new(low, high)
        };
        let (Some(around), Some(wide)) = (with(MARGIN), with(REACH)) else {
            return;
        };
        pages.look(wide, shared, pagemap.as_ref());
        let all = |way| way != Way::Skip;
        pages.runs(wide, shared, memory, all, |run| {
            let run = run
                .before(around.end())
                .and_then(|r| r.after(around.start()));
            if let Some(run) = run {
                each_readable(run, |part| f(part, inner));
            }
        });
        let borrowed = |way| way == Way::Borrow;
        pages.runs(wide, shared, memory, borrowed, |run| {
            give_back(run, shared, pagemap.as_ref());
        });
    }
}

/// Calls `f` with each run of pages from the start of `around` on that `wanted` says yes to.
pub fn each_run(
    around: PageRange,
    wanted: impl Iterator<Item = bool>,
    mut f: impl FnMut(PageRange),
) {
    let mut start = None;
    let pages = (around.start()..around.end()).step_by(PAGE as usize);
    for (at, wanted) in pages.zip(wanted) {
        match (wanted, start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                start = None;
                PageRange::new(from, at).into_iter().for_each(&mut f);
            }
            _ => (),
        }
    }
    let last = start.and_then(|from| PageRange::new(from, around.end()));
    last.into_iter().for_each(f);
}

impl Pages {
    /// A state in which nothing is known.
    pub const fn new() -> Self {
        Self {
            map: [0; PAGES],
            of: None,
            cached: [0; PAGES],
        }
    }

    /// Calls `f` with each run of pages in `range`, memory without a file, that hold something, and
    /// with whether all of them are present, hence without a guard.
    fn held(&mut self, range: PageRange, pagemap: &Pagemap, mut f: impl FnMut(PageRange, bool)) {
        let mut run: Option<(u64, u64, bool)> = None;
        let mut add = |start: u64, end: u64, present: bool| match &mut run {
            Some((_, to, all)) if *to == start => {
                *to = end;
                *all &= present;
            }
            _ => {
                if let Some((start, end, all)) = run.replace((start, end, present)) {
                    let done = PageRange::new(start, end);
                    done.into_iter().for_each(|run| f(run, all));
                }
            }
        };
        let mut from = range.start();
        while from < range.end() {
            from = match pagemap.held(from, range.end(), &mut self.map) {
                Some((regions, to)) => {
                    for region in regions.chunks_exact(3) {
                        if let &[start, end, what] = region {
                            add(start, end, what == pagemap::IS_PRESENT);
                        }
                    }
                    to
                }
                None => self.held_by_words(from, range.end(), pagemap, &mut add),
            };
        }
        // What is not followed by anything.
        add(u64::MAX, u64::MAX, false);
    }

    /// As [`Pages::held`], where the kernel has no other way to ask it: up to where it has
    /// looked.
    #[cold]
    fn held_by_words(
        &mut self,
        from: u64,
        end: u64,
        pagemap: &Pagemap,
        add: &mut impl FnMut(u64, u64, bool),
    ) -> u64 {
        let pages = (end.saturating_sub(from) / PAGE).min(PAGES as u64);
        let words = self.map.get_mut(..pages as usize).unwrap_or(&mut []);
        if pagemap.read(from, words).is_err() {
            // It is searched as a whole.
            words.fill(pagemap::SWAPPED);
        }
        for (at, word) in (from..).step_by(PAGE as usize).zip(words.iter()) {
            if word & MAPPED != 0 {
                let present = word & MAPPED == pagemap::PRESENT;
                add(at, at.saturating_add(PAGE), present);
            }
        }
        from.saturating_add(pages.max(1) * PAGE)
    }

    /// Learns what the pages in `around` are before they are searched. What the last look has told
    /// of them is not asked again: the search may have mapped them.
    fn look(&mut self, around: PageRange, shared: bool, pagemap: Option<&Pagemap>) {
        let count = (around.len() / PAGE) as usize;
        let known = self.keep(around);
        let at = around.start().saturating_add(known as u64 * PAGE);
        let map = self.map.get_mut(known..count).unwrap_or(&mut []);
        if !map.is_empty() && !read_map(at, map, pagemap) {
            // It is searched where it is, and stays.
            map.fill(u64::MAX);
        }
        self.of = Some(around);
        if !shared {
            return;
        }
        let cached = self.cached.get_mut(..count).unwrap_or(&mut []);
        if sys::residency(around.start(), cached).is_err() {
            cached.fill(1);
        }
    }

    /// Moves what is known of the first pages of `around` to the beginning; how many they are.
    fn keep(&mut self, around: PageRange) -> usize {
        let known = self.of.filter(|of| of.contains(around.start()));
        let Some(known) = known.filter(|of| of.end() <= around.end()) else {
            return 0;
        };
        let first = ((around.start() - known.start()) / PAGE) as usize;
        let end = ((known.end() - known.start()) / PAGE) as usize;
        self.map.copy_within(first..end, 0);
        end - first
    }

    /// Calls `f` with each run of pages whose way `wanted` says yes to.
    fn runs(
        &self,
        around: PageRange,
        shared: bool,
        memory: Memory,
        wanted: impl Fn(Way) -> bool,
        mut f: impl FnMut(PageRange),
    ) {
        let mut owner = Owner::new(memory);
        let pages = (around.start()..around.end()).step_by(PAGE as usize);
        let known = pages.zip(self.map.iter().zip(&self.cached));
        let ways = known.map(|(at, (map, cached))| match (map & MAPPED != 0, shared) {
            (true, _) => Way::Read,
            (false, true) if cached & 1 == 0 => Way::Skip,
            (false, true) => Way::Borrow,
            (false, false) => owner.way(at),
        });
        each_run(around, ways.map(wanted), &mut f);
    }
}

/// The private mapping that was looked up last.
struct Owner {
    memory: Memory,
    range: Option<PageRange>,
    way: Option<Way>,
}

impl Owner {
    fn new(memory: Memory) -> Self {
        let (range, way) = (None, None);
        Self { memory, range, way }
    }

    /// What is done with a page at `at` that is not mapped.
    fn way(&mut self, at: u64) -> Way {
        let known = self
            .way
            .filter(|_| self.range.is_some_and(|r| r.contains(at)));
        if let Some(way) = known {
            return way;
        }
        let Some(found) = self.memory.entry(at) else {
            return Way::Read;
        };
        let attr = found.attr();
        let elsewhere = attr.prot.shared() || attr.flags.has(Flags::BACKED);
        let way = match attr.kind {
            // What it holds may be in a file that is not mapped here.
            _ if elsewhere => Way::Read,
            Kind::Anon | Kind::Heap | Kind::Stack | Kind::ThreadStack => Way::Skip,
            // What others may be writing to is not taken from them.
            Kind::File if !attr.prot.writable() => Way::Borrow,
            _ => Way::Read,
        };
        (self.range, self.way) = (found.range(), Some(way));
        way
    }
}

/// Whether all of `range` is memory of this process's own, of no file.
fn is_own(range: PageRange, memory: Memory) -> bool {
    let mut at = range.start();
    while at < range.end() {
        let mut owner = Owner::new(memory);
        match (owner.way(at), owner.range) {
            (Way::Skip, Some(found)) if found.end() > at => at = found.end(),
            _ => return false,
        }
    }
    true
}

/// Reads the words of the pages from `at` on.
fn read_map(at: u64, words: &mut [u64], pagemap: Option<&Pagemap>) -> bool {
    pagemap.is_some_and(|map| map.read(at, words).is_ok())
}

/// Takes `run` out of the page tables. A private mapping's pages stay if they are copies, as
/// where something was patched.
fn give_back(run: PageRange, shared: bool, pagemap: Option<&Pagemap>) {
    const MANY: usize = 128;
    let mut words = [0u64; MANY];
    let mut from = run.start();
    loop {
        // Most of it was given back behind the window before.
        from = pagemap.map_or(from, |map| map.next_present(from, run.end()));
        let Some(rest) = run.after(from) else {
            return;
        };
        let end = from.saturating_add(MANY as u64 * PAGE).min(run.end());
        let part = rest.before(end).unwrap_or(rest);
        from = part.end();
        let words = words
            .get_mut(..(part.len() / PAGE) as usize)
            .unwrap_or(&mut []);
        if !read_map(part.start(), words, pagemap) {
            return;
        }
        let gone = |word: &u64| word & MAPPED != 0 && (shared || word & pagemap::FILE != 0);
        each_run(part, words.iter().map(gone), |run| {
            // SAFETY: the kernel says that they are the file's.
            unsafe { drop_pages(run.start(), run.len()) };
        });
    }
}

/// Takes pages out of the page tables.
///
/// # Safety
/// Of a private mapping they are the file's: copies are lost.
pub unsafe fn drop_pages(at: u64, bytes: u64) {
    // Linux before 5.18 can't do so with what is locked: it stays.
    for advice in [DONTNEED_LOCKED, libc::MADV_DONTNEED] {
        // SAFETY: the caller says so.
        if unsafe { sys::advise_any(at, bytes, advice) }.is_ok() {
            break;
        }
    }
}

/// Calls `f` with the parts of `range` that can be read: a page with a guard
/// (MADV_GUARD_INSTALL) is SIGSEGV whatever its protection, one beyond a file's end SIGBUS.
/// Populating is one call that says whether there is any, and what is populated is about to be
/// read; a page is asked about for less. Where a filter refuses whatever could tell, nothing is
/// read.
fn each_readable(range: PageRange, mut f: impl FnMut(PageRange)) {
    if range.len() > PAGE && sys::populate_read(range.start(), range.len()) {
        return f(range);
    }
    let mut from = range.start();
    while let Some(rest) = range.after(from) {
        let mut pages = (rest.start()..rest.end()).step_by(PAGE as usize);
        let end = pages.find(|at| !sys::readable(*at)).unwrap_or(rest.end());
        if let Some(part) = rest.before(end) {
            f(part);
        }
        from = end.saturating_add(PAGE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the kernel's scan and by words, what is written is found, in as few runs as there are.
    #[test]
    fn what_is_held_is_one_run_for_each_stretch() {
        let bytes = 40 << 20;
        let at = sys::map_private(bytes).unwrap().as_ptr() as u64;
        let range = PageRange::new(at, at + bytes as u64).unwrap();
        let _ = sys::advise(at, range.len(), libc::MADV_NOHUGEPAGE);
        // More stretches than there is room for at a time, the first page and the last.
        let stretches = (0..1000u64).map(|n| (n * 9, n * 9 + 1 + n % 3));
        let stretches: Vec<_> = stretches.chain([(10239, 10240)]).collect();
        for page in stretches.iter().flat_map(|(from, to)| *from..*to) {
            // SAFETY: within the mapping.
            unsafe { ((at + page * PAGE) as *mut u8).write_volatile(1) };
        }
        let pagemap = Pagemap::open().unwrap();
        let mut pages = Box::new(Pages::new());
        let mut found = Vec::new();
        let place = |run: PageRange| ((run.start() - at) / PAGE, (run.end() - at) / PAGE);
        pages.held(range, &pagemap, |run, present| {
            assert!(present, "{run:?}");
            found.push(place(run));
        });
        assert_eq!(found, stretches);
        let (mut from, mut words) = (range.start(), Vec::new());
        while from < range.end() {
            from = pages.held_by_words(from, range.end(), &pagemap, &mut |start, end, _| {
                words.extend((start - at) / PAGE..(end - at) / PAGE);
            });
        }
        let all = stretches.iter().flat_map(|(from, to)| *from..*to);
        assert!(words.into_iter().eq(all));
        crate::unmap(range);
    }
}
