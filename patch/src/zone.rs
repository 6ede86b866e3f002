//! Zones: pieces of memory with trampolines in them, near the code that jumps there.

use super::modules;
use super::plan::{ZoneLayout, TABLE_BYTES, TRAMPOLINE_BYTES};
use regall_directory::addr::{PageRange, PAGE};
use regall_sys::{self as sys, Errno, Result};

/// Bytes of a zone that is mapped.
const ZONE_BYTES: u64 = 64 << 10;
/// Bytes at a zone's start that hold the entry stubs' addresses and the table.
pub const HEADER_BYTES: u64 = 1024;
pub(super) const TABLE_OFFSET: u64 = 64;
const TRAMPOLINES: usize = ((ZONE_BYTES - HEADER_BYTES) / TRAMPOLINE_BYTES as u64) as usize;
const WORDS: usize = TRAMPOLINES.div_ceil(64);
/// Farthest that a zone's bytes may be from a site: the reach of `jmp rel32`
/// less a page.
const REACH: u64 = (2 << 30) - PAGE;
/// Addresses below this are left alone, whatever vm.mmap_min_addr is.
const LOWEST: u64 = 1 << 20;
/// User addresses end here (47 bits; nothing is placed higher unasked).
const HIGHEST: u64 = 0x7fff_ffff_f000;
/// Room above the program break and below [stack] that is theirs to grow into.
const GROWTH_ROOM: u64 = 16 << 30;

const _: () = assert!(modules::BUFFER_BYTES >= HEADER_BYTES as usize);
const _: () = assert!(TABLE_OFFSET as usize + TABLE_BYTES <= HEADER_BYTES as usize);

/// A piece of memory with trampolines in it.
#[derive(Clone, Copy)]
pub(super) struct Zone {
    pub(super) range: PageRange,
    /// Whether it is the library's own pool, and not mapped by the patcher.
    pub(super) is_pool: bool,
    used: [u64; WORDS],
}

impl Zone {
    pub(super) fn new(range: PageRange, is_pool: bool) -> Self {
        Self {
            range,
            is_pool,
            used: [0; WORDS],
        }
    }

    pub(super) fn layout(&self) -> ZoneLayout {
        let at = self.range.start();
        ZoneLayout {
            call_slot: at,
            full_slot: at.saturating_add(8),
            table: at.saturating_add(TABLE_OFFSET),
        }
    }

    /// Address of trampoline `n`.
    pub(super) fn address(&self, n: usize) -> u64 {
        let offset = (n as u64).saturating_mul(TRAMPOLINE_BYTES as u64);
        self.range
            .start()
            .saturating_add(HEADER_BYTES)
            .saturating_add(offset)
    }

    pub(super) fn reaches(&self, site: u64) -> bool {
        reaches(self.range, site)
    }

    pub(super) fn free(&self) -> Option<usize> {
        let used = |n: &usize| {
            self.used
                .get(n / 64)
                .is_none_or(|w| w & (1 << (n % 64)) != 0)
        };
        let slots = self.range.len().saturating_sub(HEADER_BYTES) / TRAMPOLINE_BYTES as u64;
        (0..TRAMPOLINES.min(slots as usize)).find(|n| !used(n))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.used.iter().all(|word| *word == 0)
    }

    pub(super) fn set(&mut self, n: usize, used: bool) {
        let Some(word) = self.used.get_mut(n / 64) else {
            return;
        };
        let bit = 1u64 << (n % 64);
        *word = if used { *word | bit } else { *word & !bit };
    }
}

fn reaches(range: PageRange, site: u64) -> bool {
    range.start().abs_diff(site) < REACH && range.end().abs_diff(site) < REACH
}

/// The place for a zone in the gap `low..high` nearest to `site`: right below
/// what is above the gap, or right above what is below it.
fn place_in(low: u64, high: u64, site: u64) -> Option<u64> {
    let top = high.checked_sub(ZONE_BYTES).filter(|&top| top >= low)?;
    let nearest = if site < low { low } else { top };
    let range = PageRange::new(nearest, nearest.checked_add(ZONE_BYTES)?)?;
    reaches(range, site).then_some(nearest)
}

/// Maps a zone that reaches `site`, in the nearest gap that nothing grows into.
pub(super) fn place_zone(site: u64, buffer: &mut [u8]) -> Result<PageRange> {
    let mut failed: [u64; 4] = [0; 4];
    let mut errno = Errno::NOMEM;
    for tried in 0..failed.len() {
        let at = nearest_gap(site, buffer, failed.get(..tried).unwrap_or(&[]))?.ok_or(errno)?;
        match sys::map_at(at, ZONE_BYTES, libc::PROT_READ | libc::PROT_EXEC) {
            Ok(at) => return PageRange::new(at, at.saturating_add(ZONE_BYTES)).ok_or(Errno::INVAL),
            Err(e) => errno = e,
        }
        if let Some(slot) = failed.get_mut(tried) {
            *slot = at;
        }
    }
    Err(errno)
}

/// The address nearest to `site` where a zone fits, but for those in `failed`.
fn nearest_gap(site: u64, buffer: &mut [u8], failed: &[u64]) -> Result<Option<u64>> {
    let mut best: Option<u64> = None;
    let mut low = LOWEST;
    let mut consider = |low: u64, high: u64| {
        let place = place_in(low, high, site).filter(|at| !failed.contains(at));
        if let Some(at) = place {
            if best.is_none_or(|b| at.abs_diff(site) < b.abs_diff(site)) {
                best = Some(at);
            }
        }
    };
    let heap_end = regall_directory::addr::round_up(sys::current_brk()).unwrap_or(0);
    let mut consider_gap = |low: u64, high: u64| {
        if low <= heap_end && heap_end <= high {
            consider(low, heap_end.saturating_sub(PAGE));
            consider(heap_end.saturating_add(GROWTH_ROOM), high);
        } else {
            consider(low, high);
        }
    };
    modules::lines(buffer, |line| {
        let below_stack = line.name == b"[stack]";
        let high = line.range.start().min(HIGHEST);
        consider_gap(
            low,
            if below_stack {
                high.saturating_sub(GROWTH_ROOM)
            } else {
                high
            },
        );
        low = line.range.end().max(LOWEST);
        low < HIGHEST
    })?;
    consider_gap(low, HIGHEST);
    Ok(best)
}
