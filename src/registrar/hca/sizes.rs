//! How much memory becomes one region.
//!
//! A device has so many regions and no more, and each costs a system call: large memory becomes few
//! of them. But what is left of a region around a hole is registered again, so memory that was cut
//! once has small ones from then on.

use super::{Domain, DomainId, Hca};
use regall_directory::addr::{PageRange, PAGE};

/// Bytes of one region at the most, of memory that was cut or that grows.
pub const CHUNK: u64 = 64 << 20;
/// The most bytes of a region where nothing is pinned.
const LAZY: u64 = 1 << 30;
/// The most bytes of any other: so much UCX registers at once.
const MOST: u64 = 2 << 30;
/// The same, of one that nobody has asked for: a call about its memory waits while it is registered
/// or rotated.
const UNASKED: u64 = 640 << 20;
/// It has no more than this part of the budget. Lent for a page, it keeps all of its memory.
const BUDGET: u64 = 64;
/// What one hole has registered again at the most, of a mapping however large.
const HOLE: u64 = 256 << 20;
/// The part of a mapping that it may be.
const PART: u64 = 64;

/// What a hole in a mapping of `len` bytes has registered again at the most, in bytes.
pub const fn around_hole(len: u64) -> u64 {
    let part = (len / PART) & !(PAGE - 1);
    match part {
        ..CHUNK => CHUNK,
        CHUNK..HOLE => part,
        HOLE.. => HOLE,
    }
}

/// What of `parts`, which lie before and behind a hole and held one region with it, is registered
/// again: `most` bytes of what is next to the hole.
pub fn next_to_hole(parts: [Option<PageRange>; 2], most: u64) -> [Option<PageRange>; 2] {
    let [before, behind] = parts;
    let len = |part: Option<PageRange>| part.map_or(0, |p| p.len());
    let half = (most / 2) & !(PAGE - 1);
    // One side may have what the other does not need.
    let mine = half.max(most.saturating_sub(len(behind)));
    let theirs = half.max(most.saturating_sub(len(before)));
    [
        before.map(|p| p.after(p.end().saturating_sub(mine)).unwrap_or(p)),
        behind.map(|p| p.before(p.start().saturating_add(theirs)).unwrap_or(p)),
    ]
}

/// Memory whose registration took so long that another call went on without waiting for it: its
/// regions are small from then on. The last few.
pub struct Hurried {
    ranges: [Option<PageRange>; 8],
    next: usize,
}

impl Hurried {
    /// Without any.
    pub(super) const fn new() -> Self {
        Self {
            ranges: [None; 8],
            next: 0,
        }
    }

    /// `range` is one.
    pub fn add(&mut self, range: PageRange) {
        let many = self.ranges.len();
        if let Some(place) = self.ranges.get_mut(self.next) {
            *place = Some(range);
        }
        self.next = (self.next + 1) % many;
    }

    fn has(&self, addr: u64) -> bool {
        self.ranges.iter().flatten().any(|r| r.contains(addr))
    }
}

impl Domain {
    /// Bytes of one region at the most, in a mapping of `len` bytes and with a budget of `total`;
    /// `cut`: of memory in which there was a hole.
    pub fn most_of(&self, len: u64, cut: bool, total: u64) -> u64 {
        let most = match (self.on_demand(), cut, self.waits) {
            (true, ..) => LAZY,
            (_, true, _) => CHUNK,
            // What is not next to a hole waits until it is asked for.
            (_, _, true) => (total / BUDGET).clamp(CHUNK, UNASKED),
            (_, _, false) => around_hole(len),
        };
        self.takes(most)
    }

    /// Bytes that are registered as one region at the most for who asks for them.
    pub fn most_asked(&self) -> u64 {
        self.takes(MOST)
    }

    /// So many bytes, as far as the device registers them at once.
    fn takes(&self, bytes: u64) -> u64 {
        bytes.min(self.most_bytes)
    }
}

impl Hca {
    /// The first part of `piece` that no node of domain `d` covers; `None`: there are nodes
    /// everywhere.
    pub fn first_gap(&self, d: DomainId, piece: PageRange) -> Option<PageRange> {
        let mut at = piece.start();
        while at < piece.end() {
            let end = match self.next_from(d, at) {
                Some((node, _)) if node.range.start() <= at => {
                    at = node.range.end();
                    continue;
                }
                Some((node, _)) => node.range.start().min(piece.end()),
                None => piece.end(),
            };
            return PageRange::new(at, end);
        }
        None
    }

    /// Whether domain `d` leaves alone what is large, and no node of it covers some of
    /// `bytes`, which are no more than one region may have.
    pub fn is_waiting(&self, d: DomainId, bytes: PageRange) -> bool {
        let takes = |d: &Domain| d.waits && bytes.len() <= d.most_asked();
        self.alive(d).is_some_and(takes) && self.first_gap(d, bytes).is_some()
    }

    /// Whether `gap`, which has no region in domain `d`, lies beside one of the same mapping that
    /// was cut, or is memory that was. `same`: whether the byte at an address is of that mapping.
    pub fn is_cut(&self, d: DomainId, gap: PageRange, same: impl Fn(u64) -> bool) -> bool {
        let before = self.ending_at(d, gap.start());
        let behind = self
            .next_from(d, gap.end())
            .filter(|(node, _)| node.range.start() == gap.end());
        self.hurried.has(gap.start())
            || before.is_some_and(|(_, r)| r.cut) && same(gap.start() - PAGE)
            || behind.is_some_and(|(_, r)| r.cut) && same(gap.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    fn range(start: u64, end: u64) -> Option<PageRange> {
        PageRange::new(start * MIB, end * MIB)
    }

    fn domain(waits: bool) -> Domain {
        Domain {
            waits,
            most_bytes: u64::MAX,
            ..Domain::free()
        }
    }

    /// Regions of a mapping of `len` bytes.
    fn regions(domain: &Domain, len: u64) -> u64 {
        len.div_ceil(domain.most_of(len, false, 128 * GIB))
    }

    #[test]
    fn large_memory_is_few_regions() {
        let waits = domain(true);
        for mapping in [10, 100].map(|n| n * GIB) {
            let many = 100 * GIB / mapping * regions(&waits, mapping);
            assert!(many < 200, "{many} of {mapping}");
        }
        assert_eq!(regions(&waits, 1 << 40), 1639);
        assert_eq!(regions(&domain(false), 1 << 40), 4096);
        // A borrowed page keeps no more than 1/64 of the budget.
        assert_eq!(waits.most_of(GIB, false, 16 * GIB), 256 * MIB);
        assert_eq!(waits.most_of(GIB, false, GIB), 64 * MIB);
    }

    #[test]
    fn what_a_hole_costs_is_bounded() {
        assert_eq!(around_hole(MIB), 64 * MIB);
        assert_eq!(around_hole(8 * GIB), 128 * MIB);
        assert_eq!(around_hole(GIB << 10), 256 * MIB);
        assert_eq!(around_hole(8 * GIB + 1) % PAGE, 0);
        // Where nothing waits, a region is what a hole may cost.
        let at_once = domain(false);
        for len in [MIB, GIB, 8 * GIB, GIB << 10] {
            assert_eq!(at_once.most_of(len, false, GIB), around_hole(len));
        }
        assert_eq!(domain(true).most_of(GIB, true, 128 * GIB), 64 * MIB);
    }

    #[test]
    fn who_asks_for_much_has_one_region() {
        let rotates = Domain {
            rotates: true,
            ..domain(true)
        };
        for domain in [domain(true), domain(false), rotates] {
            assert_eq!(domain.most_asked(), 2 * GIB);
        }
    }

    #[test]
    fn what_was_hurried_is_known_for_a_while() {
        let mut hurried = Hurried::new();
        let range = |n| PageRange::new(n * GIB, n * GIB + MIB).unwrap();
        for n in 1..=9 {
            hurried.add(range(n));
        }
        assert!(!hurried.has(GIB) && !hurried.has(2 * GIB + MIB));
        assert!((2..=9).all(|n| hurried.has(n * GIB)));
    }

    #[test]
    fn a_device_may_take_less_at_once() {
        let small = Domain {
            most_bytes: 32 * MIB,
            ..domain(true)
        };
        for cut in [false, true] {
            assert_eq!(small.most_of(GIB, cut, 128 * GIB), 32 * MIB);
        }
    }

    #[test]
    fn what_lies_next_to_a_hole_is_kept() {
        let most = 64 * MIB;
        let kept = |before, behind| next_to_hole([before, behind], most);
        let (before, behind) = (range(0, 1000), range(1001, 2000));
        assert_eq!(kept(before, behind), [range(968, 1000), range(1001, 1033)]);
        // What one side does not need the other has.
        assert_eq!(
            kept(range(996, 1000), behind),
            [range(996, 1000), range(1001, 1061)]
        );
        assert_eq!(
            kept(before, range(1001, 1003)),
            [range(938, 1000), range(1001, 1003)]
        );
        assert_eq!(kept(None, behind), [None, range(1001, 1065)]);
        assert_eq!(kept(before, None), [range(936, 1000), None]);
        let small = [range(990, 1000), range(1001, 1011)];
        assert_eq!(next_to_hole(small, most), small);
    }
}
