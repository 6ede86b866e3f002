//! Which bytes a list of ranges has, and which it has not.

use rangemap::RangeSet;
use regall_directory::addr::PageRange;

/// The bytes of some ranges.
pub struct Cover(RangeSet<u64>);

impl Cover {
    /// Of ranges in any order; they may overlap.
    pub fn of(ranges: impl Iterator<Item = PageRange>) -> Self {
        Self(ranges.map(|r| r.start()..r.end()).collect())
    }

    /// The bytes of `range` that it has not, in order.
    pub fn missing(&self, range: PageRange) -> Vec<PageRange> {
        let within = range.start()..range.end();
        let gaps = self.0.gaps(&within);
        gaps.filter_map(|gap| PageRange::new(gap.start, gap.end))
            .collect()
    }

    /// How many bytes of `range` it has.
    pub fn bytes(&self, range: PageRange) -> u64 {
        let within = range.start()..range.end();
        let had = self.0.overlapping(&within);
        had.map(|r| r.end.min(within.end) - r.start.max(within.start))
            .sum()
    }
}
