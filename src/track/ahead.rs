//! Memory that adapters made resident before the program touched it counts against the headroom
//! until the program touches it.
//!
//! The kernel can't tell when that is: registering has touched every page. But such memory is
//! all zeroes until somebody writes to it. So a few pages of each region are read now and then,
//! and their share of written ones is taken for the region's.

use super::{lock, State};
use crate::base::counters;
use crate::registrar::hca::records::{Life, Record, RecordId};
use crate::sys::process::may_be_filtered;
use crate::sys::{self, time, Access, Segment};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::{Attr, Flags, Kind};

/// Regions that are looked at each time.
const REGIONS: usize = 32;
/// Records that are gone through for them.
const RECORDS: u32 = 4096;
/// Pages that are read of each region.
const SAMPLES: usize = 32;
/// Bytes that are read of each page.
const BYTES: usize = 64;
/// Regions are looked at no more often than this, in nanoseconds.
const PAUSE: u64 = 50_000_000;

/// When they were looked at last.
static LAST: AtomicU64 = AtomicU64::new(0);
/// The record to go on with.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Looks at some regions that were registered untouched. Called without the lock.
#[cold]
#[inline(never)]
pub fn notice() {
    let (now, last) = (time::now(), LAST.load(Relaxed));
    if last != 0 && now.saturating_sub(last) < PAUSE {
        return;
    }
    LAST.store(now, Relaxed);
    if !may_read() {
        return;
    }
    let mut chosen = [None; REGIONS];
    if let Some(state) = lock() {
        choose(&state, &mut chosen);
    }
    for (n, range) in chosen.into_iter().flatten() {
        let Some(most) = untouched(range, now) else {
            continue;
        };
        let Some(mut guard) = lock() else {
            return;
        };
        let same = |r: &Record| r.life == Life::Live && r.range == range;
        if guard.hca.records.get(n).is_some_and(same) {
            guard.hca.is_touched(n, most);
            guard.show_regions();
        }
    }
}

/// Whether memory may be read from outside of its own code: not where a seccomp filter may end
/// the process for the call, nor where a missing page waits for the application's userfaultfd.
/// Then nothing is given back before it is deregistered.
fn may_read() -> bool {
    !may_be_filtered() && !counters::faults_are_watched()
}

/// The next regions that have something ahead, with the numbers of their records.
fn choose(state: &State, chosen: &mut [Option<(RecordId, PageRange)>; REGIONS]) {
    let high = state.hca.records.high();
    let mut places = chosen.iter_mut();
    let from = NEXT.load(Relaxed);
    for i in 0..RECORDS.min(high) {
        let n = wrapped(from, i, high);
        let id = RecordId::from_raw(n);
        let Some(record) = state.hca.records.get(id) else {
            continue;
        };
        let fit = record.life == Life::Live && record.ahead != 0;
        // A file's pages are not zeroes; a page that is missing may be the application's business.
        let readable = |a: Attr| a.kind != Kind::File && !a.flags.has(Flags::KEEP_LAZY);
        if !fit || !state.at(record.range.start()).is_some_and(readable) {
            continue;
        }
        let Some(place) = places.next() else {
            return NEXT.store(n, Relaxed);
        };
        *place = Some((id, record.range));
    }
    NEXT.store(wrapped(from, RECORDS.min(high), high), Relaxed);
}

/// The number that is `by` behind `from`, of `high`.
fn wrapped(from: u32, by: u32, high: u32) -> u32 {
    from.wrapping_add(by).checked_rem(high).unwrap_or(0)
}

/// Bytes of `range` that hold nothing, by a sample; `None`: it can't be read.
fn untouched(range: PageRange, seed: u64) -> Option<u64> {
    let pages = range.len() / PAGE;
    let step = pages.div_ceil(SAMPLES as u64);
    let first = range.start() + seed.checked_rem(step).unwrap_or(0) * PAGE;
    let mut from = [Segment::default(); SAMPLES];
    let mut places = (first..range.end()).step_by((step * PAGE) as usize);
    let mut many = 0;
    for (place, at) in from.iter_mut().zip(&mut places) {
        *place = Segment {
            addr: at,
            len: BYTES as u64,
        };
        many += 1;
    }
    let mut read = [0u8; SAMPLES * BYTES];
    let into = Segment {
        addr: read.as_mut_ptr() as u64,
        len: read.len() as u64,
    };
    let from = from.get(..many)?;
    // SAFETY: a buffer of ours.
    let got = unsafe { sys::copy_between(Access::Read, sys::getpid(), &[into], from) };
    let samples = got.ok()? as usize / BYTES;
    let read = read.get(..samples * BYTES)?;
    let zero = |sample: &&[u8]| sample.iter().all(|b| *b == 0);
    let empty = read.chunks_exact(BYTES).filter(zero).count();
    match samples {
        0 => None,
        _ => Some(pages * empty as u64 / samples as u64 * PAGE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_tells_how_much_is_touched() {
        const PAGES: usize = 256;
        let mut memory = vec![0u8; (PAGES + 1) * PAGE as usize];
        let skip = memory.as_ptr().align_offset(PAGE as usize);
        let start = memory.as_ptr() as u64 + skip as u64;
        let range = PageRange::new(start, start + PAGES as u64 * PAGE).unwrap();
        for seed in [0, 1, 12345] {
            assert_eq!(untouched(range, seed), Some(range.len()));
        }
        for page in 0..PAGES / 2 {
            memory[skip + page * PAGE as usize] = 1;
        }
        for seed in [0, 1, 12345] {
            assert_eq!(untouched(range, seed), Some(range.len() / 2));
        }
        memory[skip..].iter_mut().for_each(|b| *b = 7);
        assert_eq!(untouched(range, 3), Some(0));
        let page = PageRange::new(start, start + PAGE).unwrap();
        assert_eq!(untouched(page, 99), Some(0));
    }

    #[test]
    fn what_is_gone_says_nothing() {
        let none = PageRange::new(PAGE, 4 * PAGE).unwrap();
        assert_eq!(untouched(none, 0), None);
    }
}
