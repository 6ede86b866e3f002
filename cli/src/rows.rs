//! The lines of a process's address space: what is mapped, and what is said of it.

use regall_directory::addr::PageRange;
use regall_directory::layout::Generation;
use regall_reader::{Entry, Mapping, Region};

use crate::check::overlapping;
use crate::look::Look;
use crate::regions::pieces;
use crate::words::{reason, state};

/// A mapping, or as much of it as one thing is said of.
pub struct Row<'a> {
    pub range: PageRange,
    pub mapping: &'a Mapping,
    /// `None`: nothing is said of it, a gap.
    pub entry: Option<&'a Entry>,
    /// The primary domain's region that holds it.
    pub region: Option<&'a Region>,
}

/// Mappings cut where entries of different content meet, and where regions of
/// the primary domain begin and end.
pub fn rows(look: &Look) -> Vec<Row<'_>> {
    let mut rows = Rows(Vec::new());
    for mapping in &look.mappings {
        let first = rows.0.len();
        let mut add = |range, entry| {
            for (range, region) in pieces(range, look.regions.primary()) {
                let row = Row {
                    range,
                    mapping,
                    entry,
                    region,
                };
                rows.add(row, first);
            }
        };
        let mut left = Some(mapping.range);
        for entry in overlapping(&look.entries, mapping.range) {
            let Some(rest) = left else { break };
            if let Some(missed) = rest.before(entry.range.start()) {
                add(missed, None);
            }
            if let Some(piece) = mapping.range.intersection(entry.range) {
                add(piece, Some(entry));
            }
            left = rest.after(entry.range.end());
        }
        if let Some(missed) = left {
            add(missed, None);
        }
    }
    rows.0
}

struct Rows<'a>(Vec<Row<'a>>);

impl<'a> Rows<'a> {
    /// Adds a row, or joins it to the last one from number `first` on that says
    /// the same.
    fn add(&mut self, row: Row<'a>, first: usize) {
        let own = self.0.get_mut(first..).and_then(|r| r.last_mut());
        match own.filter(|last| last.says() == row.says()) {
            Some(last) => {
                let joined = PageRange::new(last.range.start(), row.range.end());
                last.range = joined.unwrap_or(row.range);
            }
            None => self.0.push(row),
        }
    }
}

#[cfg(test)]
impl<'a> Row<'a> {
    /// A whole mapping, of which one thing is said.
    pub fn new(mapping: &'a Mapping, entry: Option<&'a Entry>) -> Self {
        Self {
            range: mapping.range,
            mapping,
            entry,
            region: None,
        }
    }
}

impl Row<'_> {
    /// `registered`, `excluded` or `gap`.
    pub fn state(&self) -> &'static str {
        self.entry.map_or("gap", |e| state(&e.attr))
    }

    /// Why it is excluded, or `-`.
    pub fn reason(&self) -> String {
        self.entry.map_or("-".into(), |e| reason(&e.attr))
    }

    /// What rows that are one have in common.
    fn says(&self) -> (Option<u64>, Option<(Generation, u64)>) {
        let region = self.region.map(|r| (r.generation, r.id));
        (self.entry.map(|e| e.attr.pack()), region)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rangemap::RangeMap;
    use regall_directory::vocab::{Column, Reason};

    use super::*;
    use crate::figures::fixtures::figures;
    use crate::look::fixtures::*;
    use crate::regions::Regions;

    /// Says of what lies in `map` what `say` makes of what was said before.
    fn put<T: Copy + Eq>(map: &mut RangeMap<u64, T>, range: PageRange, say: impl Fn(T) -> T) {
        let within = range.start()..range.end();
        let had = map.overlapping(&within);
        let had = had.map(|(r, v)| (r.start.max(within.start)..r.end.min(within.end), *v));
        for (range, value) in had.collect::<Vec<_>>() {
            map.insert(range, say(value));
        }
    }

    proptest! {
        /// Rows are what a range map has of each mapping, into which entries and then regions
        /// are put: equal neighbours are one.
        #[test]
        fn as_a_range_map_has_them(said in ranges(), maps in ranges(), held in ranges()) {
            let entries: Vec<_> = said.iter().map(|&(start, end, kind)| {
                let mut e = entry(start, end);
                e.attr.pin = if kind < 2 { Column::YES } else { Column::no(Reason::Limit) };
                e
            }).collect();
            let held = held.iter().zip(1..).map(|(r, key)| region(1, r.0, r.1, key));
            let regions = Regions::of_primary(held.collect(), 1);
            let look = Look {
                uid: 0,
                header: figures(1, "a").header,
                mappings: maps.iter().map(|r| mapping(r.0, r.1)).collect(),
                entries,
                regions,
                unlocked: Ok(Vec::new()),
                busy: 0,
                quiet: true,
                clean: true,
                start_time: 1,
            };
            let mut expected = Vec::new();
            for mapping in &look.mappings {
                let mut map = RangeMap::new();
                map.insert(mapping.range.start()..mapping.range.end(), (None, None));
                for e in &look.entries {
                    put(&mut map, e.range, |_| (Some(e.attr.pack()), None));
                }
                for r in look.regions.primary() {
                    put(&mut map, r.range, |(entry, _)| (entry, Some((r.generation, r.id))));
                }
                expected.extend(map.into_iter().map(|(r, said)| (r.start, r.end, said)));
            }
            let rows = rows(&look);
            let rows: Vec<_> = rows.iter().map(|r| (r.range.start(), r.range.end(), r.says())).collect();
            prop_assert_eq!(rows, expected);
        }
    }
}
