//! What is in slots, as lists in which each byte has one entry.

use std::collections::BinaryHeap;

use super::error::OpenError;
use regall_directory::addr::PageRange;
use regall_directory::layout::Generation;
use regall_directory::reader::{decode, Entry, Published, Region, SLOT_WORDS};

/// What is in slots: sorted, and each byte has one entry only, and one region of
/// each domain.
pub fn lists(
    slots: impl Iterator<Item = [u64; SLOT_WORDS]>,
) -> Result<(Vec<Entry>, Vec<Region>), OpenError> {
    let (mut entries, mut regions) = (Vec::new(), Vec::new());
    for slot in slots {
        match decode(&slot)? {
            Some(Published::Range(entry)) => entries.push(entry),
            Some(Published::Region(region)) => regions.push(region),
            None => {}
        }
    }
    entries.sort_unstable_by_key(|e| (e.range, e.generation, e.id));
    // To the end, so that the order is the same in every look.
    regions.sort_unstable_by_key(|r| {
        let what = (r.access.bits(), r.pd, r.lkey, r.rkey);
        (r.domain, r.range, r.generation, r.id, what)
    });
    if overlap(&entries) {
        entries = newest(&entries);
    }
    Ok((entries, of_each_domain(regions)))
}

/// [`newest`] of each domain's. `sorted` is by domain and start.
fn of_each_domain(sorted: Vec<Region>) -> Vec<Region> {
    let domains = || sorted.chunk_by(|a, b| a.domain == b.domain);
    if !domains().any(overlap) {
        return sorted;
    }
    domains().flat_map(newest).collect()
}

/// Whether any two have a byte in common: only if something is being replaced.
/// `sorted` is by start.
fn overlap<T: Dated>(sorted: &[T]) -> bool {
    let pair = |w: &[T]| matches!(w, [a, b] if b.range().start() < a.range().end());
    sorted.windows(2).any(pair)
}

/// What is published of a range, and replaced by what is newer.
trait Dated: Copy {
    fn range(&self) -> PageRange;
    /// Higher is newer.
    fn age(&self) -> (Generation, u64);
    /// A line that is the same, but about `range`.
    fn of(self, range: PageRange) -> Self;
}

impl Dated for Entry {
    fn range(&self) -> PageRange {
        self.range
    }
    fn age(&self) -> (Generation, u64) {
        (self.generation, self.id)
    }
    fn of(self, range: PageRange) -> Self {
        Self { range, ..self }
    }
}

impl Dated for Region {
    fn range(&self) -> PageRange {
        self.range
    }
    fn age(&self) -> (Generation, u64) {
        (self.generation, self.id)
    }
    fn of(self, range: PageRange) -> Self {
        Self { range, ..self }
    }
}

/// Gives each byte to the newest that has it. `sorted` is by start.
///
/// A sweep with those at the present address in a heap, so that no input costs
/// more than n log n.
fn newest<T: Dated>(sorted: &[T]) -> Vec<T> {
    let mut out: Vec<(usize, T)> = Vec::with_capacity(sorted.len());
    let mut here = BinaryHeap::new();
    let mut coming = sorted.iter().enumerate().peekable();
    let mut at = 0;
    loop {
        while let Some((n, e)) = coming.next_if(|(_, e)| e.range().start() <= at) {
            here.push((e.age(), n, e.range().end()));
        }
        while here.peek().is_some_and(|&(.., end)| end <= at) {
            here.pop();
        }
        let next = coming.peek().map(|(_, e)| e.range().start());
        let Some(&(_, n, end)) = here.peek() else {
            let Some(next) = next else {
                return out.into_iter().map(|(_, e)| e).collect();
            };
            at = next;
            continue;
        };
        let stop = next.map_or(end, |next| next.min(end));
        let piece = PageRange::new(at, stop).zip(sorted.get(n));
        match (out.last_mut(), piece) {
            (Some((same, last)), Some((piece, _))) if *same == n && last.range().end() == at => {
                let joined = PageRange::new(last.range().start(), piece.end());
                *last = last.of(joined.unwrap_or(piece));
            }
            (_, Some((range, e))) => out.push((n, e.of(range))),
            (_, None) => {}
        }
        at = stop;
    }
}

/// Bytes as the words that they are.
pub fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = bytes
        .chunks_exact(8)
        .map(|w| w.try_into().unwrap_or([0; 8]));
    words.map(u64::from_ne_bytes)
}

#[cfg(test)]
mod tests;
