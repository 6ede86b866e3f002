//! What domains have pinned of memory that nobody has touched: it counts once, however many domains
//! have it, and not where the application has asked for it.

use super::records::{Life, Record, RecordId};
use super::{numbers, DomainId, Hca, State};
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

    /// Region `n` is about to go. With its domain, what it has ahead stays resident where another
    /// domain has it pinned, and counts there.
    pub(super) fn hand_over(&mut self, n: RecordId) {
        let Some(record) = self.records.get(n).filter(|r| r.ahead != 0).copied() else {
            return;
        };
        if self
            .domain(record.domain)
            .is_none_or(|d| d.state != State::Closing)
        {
            return;
        }
        let mut left = record.ahead;
        let mut rest = Some(record.range);
        for _ in 0..PARTS {
            let Some((part, heir)) = rest.and_then(|r| self.pinned_next(record.domain, r)) else {
                break;
            };
            rest = record.range.after(part.end());
            let share = record.ahead_of(part.len()).min(left);
            if let Some(heir) = self.records.get_mut(heir) {
                let share = share.min(heir.range.len().saturating_sub(heir.ahead));
                heir.ahead += share;
                left -= share;
            }
        }
        if let Some(record) = self.records.get_mut(n) {
            record.ahead = left;
        }
    }

    /// The first part of `range` that a region of another domain than `d` has pinned, as far as
    /// the one does that reaches furthest.
    fn pinned_next(&self, d: DomainId, range: PageRange) -> Option<(PageRange, RecordId)> {
        let pins = |d: &DomainId| self.alive(*d).is_some_and(|x| !x.on_demand());
        let others = numbers().filter(|other| *other != d).filter(pins);
        let parts = others.filter_map(|other| {
            let mut at = range.start();
            let regions = core::iter::from_fn(|| {
                let (node, record) = self.next_from(other, at)?;
                at = node.range.end();
                Some((node, record.life))
            });
            let mut live = regions.take(PARTS).filter(|(_, life)| *life == Life::Live);
            let (node, _) = live.next()?;
            Some((node.range.intersection(range)?, node.record))
        });
        parts.min_by_key(|(part, _)| (part.start(), core::cmp::Reverse(part.end())))
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
    use super::super::trial::{self, account};
    use super::*;
    use regall_directory::addr::PAGE;
    use regall_directory::vocab::Access;

    #[test]
    fn what_regions_have_pinned_of_a_range_is_counted_once() {
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

    fn pages(from: u64, to: u64) -> PageRange {
        PageRange::new(from * PAGE, to * PAGE).unwrap()
    }

    /// A region of domain `d` with so many pages ahead.
    fn add(hca: &mut Hca, d: u32, range: PageRange, ahead: u64) -> RecordId {
        let mut record = Record::new(range, DomainId(d), Access::LOCAL_WRITE, Life::Live);
        record.ahead = ahead * PAGE;
        hca.ahead += record.ahead;
        trial::add(hca, record).record
    }

    #[test]
    fn what_another_domain_has_pinned_stays_in_the_account() {
        let mut hca = account(3);
        let gone = [
            add(&mut hca, 0, pages(0, 8), 8),
            add(&mut hca, 0, pages(8, 16), 4),
        ];
        // The same memory, in other pieces, and a part of it twice.
        let first = add(&mut hca, 1, pages(0, 4), 0);
        let all = add(&mut hca, 2, pages(2, 6), 0);
        let full = add(&mut hca, 1, pages(8, 16), 6);
        let left = |hca: &Hca| [first, all, full].map(|n| hca.records.get(n).unwrap().ahead / PAGE);
        // Memory that is unmapped is out of all domains: nothing is handed over.
        hca.hand_over(gone[0]);
        assert_eq!(left(&hca), [0, 0, 6]);
        hca.domains[0].state = State::Closing;
        assert!(hca.destroy(gone[0]).is_none(), "a domain without a device");
        // Pages 0 to 5 are pinned elsewhere, 6 and 7 by nobody.
        assert_eq!(left(&hca), [4, 2, 6]);
        assert_eq!(hca.ahead / PAGE, 4 + 2 + 6 + 4);
        // No region has more ahead than it has bytes.
        assert!(hca.destroy(gone[1]).is_none());
        assert_eq!(left(&hca), [4, 2, 8]);
        assert_eq!(hca.ahead / PAGE, 4 + 2 + 8);
        for n in [first, all, full] {
            let _ = hca.destroy(n);
        }
        assert_eq!(hca.ahead, 0);
    }
}
