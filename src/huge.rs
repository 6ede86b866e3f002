//! Transparent huge pages (REGALL_HUGE=advise): large private anonymous memory is advised
//! when it is new, where the kernel gives huge pages to those who ask (`madvise` in
//! /sys/kernel/mm/transparent_hugepage/enabled). What the application says of it later is
//! said later, and counts. Where the kernel gives them to everybody or nobody, nothing is
//! done.
//!
//! A heap of 1 MiB and more is advised as well for what it grows by at once, if a huge page fits.
//! Advice on each small step made a bare sbrk cost 3.7 times as much.

use crate::base::settings;
use crate::sys::{self, file};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::planted;

pub use crate::sys::HUGE_PAGE;

static ON: AtomicBool = AtomicBool::new(false);

/// Learns what the kernel does. At start-up.
pub fn init() {
    let mut buf = [0u8; 128];
    let asks = c"/sys/kernel/mm/transparent_hugepage/enabled";
    let on = settings::config().huge
        && file::read_small(asks, &mut buf)
            .is_ok_and(|text| text.split(|b| *b == b' ').any(|word| word == b"[madvise]"));
    ON.store(on, Relaxed);
}

/// Whether new memory is advised.
pub fn on() -> bool {
    ON.load(Relaxed)
}

/// Whether a huge page fits into `range`.
#[inline]
fn fits(range: PageRange) -> bool {
    let first = range.start().next_multiple_of(HUGE_PAGE);
    first
        .checked_add(HUGE_PAGE)
        .is_some_and(|end| end <= range.end())
}

/// `range` is new, private, anonymous and has been touched by nobody. Whether it is advised.
#[inline]
pub fn fresh(range: PageRange) -> bool {
    let fits = ON.load(Relaxed) && planted!("huge-not-advised", false, fits(range));
    if fits {
        advise(range);
    }
    fits
}

/// Asks for huge pages in `range`.
#[cold]
#[inline(never)]
fn advise(range: PageRange) {
    // EINVAL from a kernel without them, ENOMEM where the process has too many mappings.
    let _ = sys::advise(range.start(), range.len(), libc::MADV_HUGEPAGE);
}
