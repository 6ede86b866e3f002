//! Memory regions beside ranges: which of them hold which bytes. Pure.

use regall_directory::addr::PageRange;
use regall_directory::vocab::Access;
use regall_reader::{HeaderView, Region};

/// The memory regions that a process published: all, and which are of the domain
/// that the HCA column is about.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    /// Sorted by domain and address, within a domain without overlaps.
    all: Vec<Region>,
    /// Where in `all` the primary domain's begin and end.
    primary: (usize, usize),
}

impl Regions {
    /// From a snapshot's regions and its header.
    pub fn new(all: Vec<Region>, header: &HeaderView) -> Self {
        Self::of_primary(all, header.primary)
    }

    /// From a snapshot's regions and the number of the primary domain.
    pub fn of_primary(all: Vec<Region>, primary: u64) -> Self {
        let from = all.partition_point(|r| u64::from(r.domain) < primary);
        let to = all.partition_point(|r| u64::from(r.domain) <= primary);
        Self {
            all,
            primary: (from, to),
        }
    }

    /// All of them.
    pub fn all(&self) -> &[Region] {
        &self.all
    }

    /// The primary domain's, sorted and without overlaps.
    pub fn primary(&self) -> &[Region] {
        let (from, to) = self.primary;
        self.all.get(from..to).unwrap_or(&[])
    }

    /// The regions of all other domains.
    pub fn others(&self) -> impl Iterator<Item = &Region> {
        let (from, to) = self.primary;
        let before = self.all.get(..from).unwrap_or(&[]);
        before.iter().chain(self.all.get(to..).unwrap_or(&[]))
    }
}

/// `range` cut where regions begin and end; each piece with the region that holds
/// it. `regions` is sorted and without overlaps.
pub fn pieces(
    range: PageRange,
    regions: &[Region],
) -> impl Iterator<Item = (PageRange, Option<&Region>)> {
    let from = regions.partition_point(|r| r.range.end() <= range.start());
    let mut coming = regions.get(from..).unwrap_or(&[]).iter().peekable();
    let mut left = Some(range);
    std::iter::from_fn(move || {
        let rest = left?;
        let Some(&region) = coming.peek().filter(|r| r.range.overlaps(rest)) else {
            left = None;
            return Some((rest, None));
        };
        if let Some(hole) = rest.before(region.range.start()) {
            left = rest.after(hole.end());
            return Some((hole, None));
        }
        coming.next();
        left = rest.after(region.range.end());
        let held = rest.before(region.range.end())?;
        Some((held, Some(region)))
    })
}

/// Whether a region is one for the whole address space, whatever is mapped in
/// it: such a one takes pages when they are used, and begins where nothing is.
pub fn is_implicit(region: &Region) -> bool {
    region.access.has(Access::ON_DEMAND) && region.range.start() == 0
}

/// The remote key; a region that no peer may use has none on some adapters, which
/// then say 0.
pub fn rkey(region: &Region) -> Option<u32> {
    (region.rkey != 0).then_some(region.rkey)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::fixtures::*;

    /// First and last page of each piece, and the region's lkey, 0 for none.
    fn cut(range: PageRange, regions: &[Region]) -> Vec<(u64, u64, u32)> {
        let all = pieces(range, regions);
        all.map(|(p, r)| (p.start() >> 12, p.end() >> 12, r.map_or(0, |r| r.lkey)))
            .collect()
    }

    #[test]
    fn a_range_is_cut_where_regions_begin_and_end() {
        let r = |start, end, key| region(1, start, end, key);
        assert_eq!(cut(range(10, 20), &[]), [(10, 20, 0)]);
        assert_eq!(cut(range(10, 20), &[r(10, 20, 1)]), [(10, 20, 1)]);
        assert_eq!(cut(range(10, 20), &[r(5, 30, 1)]), [(10, 20, 1)]);
        assert_eq!(
            cut(range(10, 20), &[r(5, 10, 1), r(20, 30, 2)]),
            [(10, 20, 0)]
        );
        assert_eq!(
            cut(range(10, 20), &[r(5, 12, 1), r(12, 14, 2), r(18, 30, 3)]),
            [(10, 12, 1), (12, 14, 2), (14, 18, 0), (18, 20, 3)]
        );
        assert_eq!(
            cut(range(10, 20), &[r(1, 2, 9), r(12, 14, 1), r(50, 60, 9)]),
            [(10, 12, 0), (12, 14, 1), (14, 20, 0)]
        );
    }

    #[test]
    fn a_region_may_hold_several_ranges() {
        let wide = [region(1, 5, 40, 7)];
        let all: Vec<_> = [range(10, 20), range(20, 30), range(38, 45)]
            .into_iter()
            .flat_map(|r| cut(r, &wide))
            .collect();
        assert_eq!(all, [(10, 20, 7), (20, 30, 7), (38, 40, 7), (40, 45, 0)]);
    }

    #[test]
    fn the_primary_domain_is_told_from_the_others() {
        let all = vec![
            region(1, 10, 20, 1),
            region(2, 10, 20, 2),
            region(2, 30, 40, 3),
            region(5, 10, 20, 4),
        ];
        let keys = |primary| {
            let r = Regions::of_primary(all.clone(), primary);
            let keys = |r: &Region| r.lkey;
            let primary: Vec<_> = r.primary().iter().map(keys).collect();
            (primary, r.others().map(keys).collect::<Vec<_>>())
        };
        assert_eq!(keys(2), (vec![2, 3], vec![1, 4]));
        assert_eq!(keys(5), (vec![4], vec![1, 2, 3]));
        for none in [0, 3, 6, 1 << 32, u64::MAX] {
            assert_eq!(keys(none), (vec![], vec![1, 2, 3, 4]));
        }
    }
}
