//! What domains have pinned of memory that nobody has touched: it counts once, however many domains
//! have it, and not where the application has asked for it.

use super::records::{Life, Record, RecordId};
use super::{numbers, DomainId, Hca};
use regall_directory::addr::PageRange;

/// Regions of another domain that are looked at for what is resident.
const PARTS: usize = 64;

impl Hca {
    /// Bytes of `range` that another domain than `d` has pinned, and those of them that it begins
    /// with: what the first [`PARTS`] regions of one domain have of it.
    pub fn pinned_elsewhere(&self, d: DomainId, range: PageRange) -> (u64, u64) {
        let pins = |d: &DomainId| self.alive(*d).is_some_and(|x| !x.on_demand());
        let others = numbers().filter(|other| *other != d).filter(pins);
        others.fold((0, 0), |most, other| {
            let mut at = range.start();
            let regions = core::iter::from_fn(|| {
                let (node, record) = self.next_from(other, at)?;
                at = node.range.end();
                Some((node.range, record.life))
            });
            let there = pinned_by(regions.take(PARTS), range);
            (most.0.max(there.0), most.1.max(there.1))
        })
    }

    /// Region `n` has no more than `ahead` bytes that nobody has touched.
    pub fn is_touched(&mut self, n: RecordId, ahead: u64) {
        if let Some(record) = self.records.get_mut(n).filter(|r| r.ahead > ahead) {
            self.ahead = self.ahead.saturating_sub(record.ahead - ahead);
            record.ahead = ahead;
        }
    }

    /// The application has asked for `bytes`, which region `n` holds. Without the shim its own
    /// registration had made them resident, so they are ahead in no domain.
    pub fn is_asked_for(&mut self, n: RecordId, bytes: PageRange) {
        let more = |r: &&mut Record| r.asked < bytes.len();
        let Some(record) = self.records.get_mut(n).filter(more) else {
            return;
        };
        record.asked = bytes.len();
        for d in numbers() {
            let Some((node, record)) = self.next_from(d, bytes.start()) else {
                continue;
            };
            if let (Some(part), true) = (node.range.intersection(bytes), record.ahead != 0) {
                self.is_touched(node.record, node.range.len() - part.len());
            }
        }
    }
}

/// Bytes of `range` that these regions, which ascend, have pinned, and those of them that it begins
/// with.
fn pinned_by(regions: impl Iterator<Item = (PageRange, Life)>, range: PageRange) -> (u64, u64) {
    let (mut bytes, mut end) = (0, range.start());
    for (region, life) in regions.take_while(|(r, _)| r.start() < range.end()) {
        let Some(part) = region.intersection(range).filter(|_| life == Life::Live) else {
            continue;
        };
        bytes += part.len();
        if part.start() == end {
            end = part.end();
        }
    }
    (bytes, end - range.start())
}

#[cfg(test)]
mod tests {
    use super::*;
    use regall_directory::addr::PAGE;

    #[test]
    fn what_regions_have_pinned_of_a_range_is_counted_once() {
        let pages = |from: u64, to: u64| PageRange::new(from * PAGE, to * PAGE).unwrap();
        let of = |regions: &[(PageRange, Life)], range| {
            let (bytes, first) = pinned_by(regions.iter().copied(), range);
            (bytes / PAGE, first / PAGE)
        };
        let range = pages(10, 20);
        assert_eq!(of(&[], range), (0, 0));
        assert_eq!(of(&[(pages(10, 20), Life::Live)], range), (10, 10));
        // It reaches out of it on both sides; so do two that meet.
        assert_eq!(of(&[(pages(1, 99), Life::Live)], range), (10, 10));
        let two = [(pages(1, 12), Life::Live), (pages(12, 30), Life::Live)];
        assert_eq!(of(&two, range), (10, 10));
        // A hole, and what lies behind the range.
        let parts = [12, 14, 25].map(|p| (pages(p, p + 1), Life::Live));
        assert_eq!(of(&parts, range), (2, 0));
        // What was refused, or may be other pages by now, is not pinned.
        for life in [Life::Refused(12), Life::Spoiled] {
            let first = [(pages(10, 12), life), (pages(12, 14), Life::Live)];
            assert_eq!(of(&first, range), (2, 0));
        }
    }
}
