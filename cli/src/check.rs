//! What is wrong with coverage at one look. Pure: lists in, gaps out.

use std::fmt;

use regall_directory::addr::PageRange;
use regall_directory::vocab::{Attr, Column, Flags, Kind, Prot, Reason};
use regall_documents as documents;
use regall_reader::{Entry, Mapping, Region};

use crate::cover::Cover;
use crate::regions::{is_implicit, Regions};
use crate::swap::Swap;

/// What a gap is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrong {
    /// No entry says anything of these bytes.
    Uncovered,
    /// The entry says another protection than the kernel.
    Protection(Prot),
    /// With `--strict`: the pin set does not hold it.
    Pin(Column),
    /// With `--strict`: the HCA registrar does not hold it.
    Hca(Column),
    /// The HCA column says that it is registered, and no region of the primary
    /// domain holds it.
    Unheld,
    /// A region holds it, and it is not mapped.
    Unmapped(Region),
    /// The PIN column says that it is pinned, and the kernel has not locked it.
    Unlocked,
    /// The PIN column says that it is held without a lock, and it may be written to swap space.
    Swap,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Uncovered => f.write_str("not covered"),
            Self::Protection(published) => write!(f, "wrong protection: published as {published}"),
            Self::Pin(column) => write!(f, "pin: {column}"),
            Self::Hca(column) => write!(f, "hca: {column}"),
            Self::Unheld => f.write_str("said to be registered, but no region holds it"),
            Self::Unmapped(r) => write!(
                f,
                "region of memory that is not mapped: domain {} pd {} lkey {:#x}",
                r.domain, r.pd, r.lkey
            ),
            Self::Unlocked => f.write_str("said to be pinned, but the kernel has not locked it"),
            Self::Swap => f.write_str("said to be kept, but swap has come since"),
        }
    }
}

/// Bytes of which not the right thing is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gap {
    /// The bytes.
    pub range: PageRange,
    /// What is wrong.
    pub wrong: Wrong,
    /// The kernel's line that they are in; none if they are not mapped.
    pub mapping: Option<Mapping>,
    /// The entry that is wrong; none if they are not covered.
    pub entry: Option<Entry>,
}

impl Gap {
    /// For programs.
    pub fn told(&self) -> documents::Gap {
        let mapping = self.mapping.as_ref();
        documents::Gap {
            start: format!("{:#x}", self.range.start()),
            end: format!("{:#x}", self.range.end()),
            bytes: self.range.len(),
            prot: mapping.map(|m| m.prot.to_string()),
            name: mapping.map(|m| m.name.clone()),
            wrong: match self.wrong {
                Wrong::Uncovered => documents::Wrong::Uncovered,
                Wrong::Protection(_) => documents::Wrong::Protection,
                Wrong::Pin(_) => documents::Wrong::Pin,
                Wrong::Hca(_) => documents::Wrong::Hca,
                Wrong::Unheld => documents::Wrong::Unheld,
                Wrong::Unmapped(_) => documents::Wrong::Unmapped,
                Wrong::Unlocked => documents::Wrong::Unlocked,
                Wrong::Swap => documents::Wrong::Swap,
            },
            text: self.wrong.to_string(),
        }
    }
}

/// What counts as a gap beside bytes that no entry covers.
#[derive(Clone, Copy)]
pub struct Rules {
    /// Registrars must hold all that could be held.
    pub strict: bool,
    /// The user switched the pin set off.
    pub pin_off: bool,
    /// A protection domain is adopted, or a device is named: the HCA column counts.
    pub hca: bool,
    /// The memory that may be written to swap space.
    pub swap: Swap,
}

/// The page that the kernel maps, without a call, when a uprobe is hit for the first time. It
/// can't be registered: that nothing is published of it yet is no gap.
const UPROBES: &str = "[uprobes]";

/// Gaps of a process that are remembered and told.
pub const MOST: usize = 500;

/// All gaps, those of mapped memory first; of more than [`MOST`] about as many. The lists are sorted and without overlaps; `unlocked` is
/// what the kernel could lock and has not.
pub fn gaps(
    entries: &[Entry],
    regions: &Regions,
    mappings: &[Mapping],
    unlocked: &[PageRange],
    rules: Rules,
) -> Vec<Gap> {
    let covered = Cover::of(entries.iter().map(|e| e.range));
    let held = Cover::of(regions.primary().iter().map(|r| r.range));
    let mapped = Cover::of(mappings.iter().map(|m| m.range));
    let mut out = Vec::new();
    for mapping in mappings {
        if out.len() >= MOST {
            break;
        }
        let known = overlapping(entries, mapping.range);
        if mapping.name == UPROBES && known.is_empty() {
            continue;
        }
        let gap = |range, wrong, entry| Gap {
            range,
            wrong,
            mapping: Some(mapping.clone()),
            entry,
        };
        let room = MOST - out.len();
        let missed = covered.missing(mapping.range).into_iter().take(room);
        let mut found: Vec<_> = missed.map(|r| gap(r, Wrong::Uncovered, None)).collect();
        for entry in known {
            let left = room.saturating_sub(found.len());
            if left == 0 {
                break;
            }
            let Some(piece) = mapping.range.intersection(entry.range) else {
                continue;
            };
            if let Some(wrong) = rules.wrong(entry, mapping) {
                found.push(gap(piece, wrong, Some(*entry)));
                continue;
            }
            if entry.attr.hca.held() {
                let holes = held.missing(piece).into_iter().take(left);
                found.extend(holes.map(|hole| gap(hole, Wrong::Unheld, Some(*entry))));
            }
            if entry.attr.pin.held() {
                let from = unlocked.partition_point(|r| r.end() <= piece.start());
                let pieces = unlocked.get(from..).unwrap_or(&[]).iter();
                let pieces = pieces.map_while(|r| r.intersection(piece)).take(left);
                found.extend(pieces.map(|p| gap(p, Wrong::Unlocked, Some(*entry))));
            }
        }
        found.sort_by_key(|g| g.range);
        out.append(&mut found);
    }
    for region in regions.all().iter().filter(|r| !is_implicit(r)) {
        let room = MOST.saturating_sub(out.len());
        if room == 0 {
            break;
        }
        let holes = mapped.missing(region.range).into_iter().take(room);
        out.extend(holes.map(|range| Gap {
            range,
            wrong: Wrong::Unmapped(*region),
            mapping: None,
            entry: None,
        }));
    }
    out
}

/// Bytes that count as locked (`VmLck`) if it is as the entries say: what is pinned, and what the
/// program has locked itself.
pub fn locked(entries: &[Entry], mappings: &[Mapping]) -> u64 {
    let all = entries.iter().filter(|e| counts_as_locked(e.attr));
    let locked = Cover::of(all.map(|e| e.range));
    mappings.iter().map(|m| locked.bytes(m.range)).sum()
}

/// mlock(2) leaves some mappings as they are, and says yes. Huge pages stay anyway: they are pinned.
fn counts_as_locked(attr: Attr) -> bool {
    let never = matches!(
        attr.kind,
        Kind::Huge | Kind::Kernel | Kind::Device | Kind::Managed | Kind::Special
    );
    !never && (attr.pin.held() || attr.flags.has(Flags::APP_LOCKED))
}

/// The entries that have a byte in `range`.
pub fn overlapping(entries: &[Entry], range: PageRange) -> &[Entry] {
    let from = entries.partition_point(|e| e.range.end() <= range.start());
    let to = entries.partition_point(|e| e.range.start() < range.end());
    entries.get(from..to).unwrap_or(&[])
}

impl Rules {
    /// What is wrong with an entry that covers some of a mapping.
    fn wrong(self, entry: &Entry, mapping: &Mapping) -> Option<Wrong> {
        let attr = entry.attr;
        if attr.prot != mapping.prot {
            return Some(Wrong::Protection(attr.prot));
        }
        let swapped = match self.swap {
            Swap::None => false,
            Swap::Shared => attr.is_shmem(),
            Swap::All => true,
        };
        if swapped && attr.pin.reason == Reason::Kept {
            return Some(Wrong::Swap);
        }
        if !self.strict {
            return None;
        }
        if lacks(attr.pin, self.pin_off, attr.hca) {
            return Some(Wrong::Pin(attr.pin));
        }
        let lacking = self.hca && lacks(attr.hca, false, attr.pin);
        lacking.then_some(Wrong::Hca(attr.hca))
    }
}

/// Whether a registrar's column says that it could hold a range and does not.
/// One that the user switched off is excused, if the other one has a word to
/// say of the range; whether that is good enough its own column decides.
fn lacks(column: Column, switched_off: bool, other: Column) -> bool {
    match column.reason {
        Reason::Limit
        | Reason::Refused
        | Reason::Inherited
        | Reason::Untouched
        | Reason::OnRequest
        | Reason::Cache => true,
        Reason::Off => !switched_off || other.reason == Reason::Off,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::look::fixtures::*;
    use proptest::prelude::*;
    use regall_directory::vocab::Access;

    const LOOSE: Rules = Rules {
        strict: false,
        pin_off: false,
        hca: true,
        swap: Swap::None,
    };

    fn uncovered(entries: &[Entry], mappings: &[Mapping]) -> Vec<(u64, u64)> {
        let all = gaps(entries, &Regions::default(), mappings, &[], LOOSE);
        assert!(all.iter().all(|g| g.wrong == Wrong::Uncovered));
        all.iter()
            .map(|g| (g.range.start() >> 12, g.range.end() >> 12))
            .collect()
    }

    #[test]
    fn every_byte_counts() {
        let maps = [mapping(10, 20), mapping(20, 30), mapping(40, 50)];
        assert_eq!(uncovered(&[], &maps), [(10, 20), (20, 30), (40, 50)]);
        assert_eq!(uncovered(&[entry(5, 60)], &maps), []);
        assert_eq!(uncovered(&[entry(10, 30), entry(40, 50)], &maps), []);
        assert_eq!(
            uncovered(&[entry(12, 14), entry(15, 41), entry(49, 50)], &maps),
            [(10, 12), (14, 15), (41, 49)]
        );
    }

    #[test]
    fn the_page_of_probes_comes_by_itself() {
        let mut page = mapping(30, 31);
        page.name = "[uprobes]".into();
        assert_eq!(uncovered(&[entry(10, 20)], &[mapping(10, 20), page]), []);
    }

    #[test]
    fn protection_must_be_the_kernels() {
        let mut changed = mapping(15, 20);
        changed.prot = Prot::from_call(1, false);
        let found = gaps(
            &[entry(10, 20)],
            &Regions::default(),
            &[mapping(10, 15), changed],
            &[],
            LOOSE,
        );
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].range, range(15, 20));
        assert_eq!(found[0].wrong, Wrong::Protection(Prot::from_call(3, false)));
    }

    #[test]
    fn what_is_said_to_be_pinned_is_locked() {
        let maps = [mapping(10, 20), mapping(20, 30)];
        let mut free = entry(20, 30);
        free.attr.pin = Column::no(Reason::Limit);
        let mut entries = [entry(10, 20), free];
        assert_eq!(locked(&entries, &maps), 10 << 12);
        entries[1].attr.flags = Flags::APP_LOCKED;
        assert_eq!(locked(&entries, &maps), 20 << 12, "the program's own lock");
        entries[0].attr.kind = Kind::Huge;
        assert_eq!(locked(&entries, &maps), 10 << 12, "huge pages don't count");
        entries[0].attr.kind = Kind::Anon;
        let unlocked = [range(15, 18), range(19, 30)];
        let found = gaps(&entries, &Regions::default(), &maps, &unlocked, LOOSE);
        let found: Vec<_> = found.iter().map(|g| (g.range, g.wrong)).collect();
        let wrong = Wrong::Unlocked;
        assert_eq!(found, [(range(15, 18), wrong), (range(19, 20), wrong)]);
    }

    #[test]
    fn what_is_kept_has_no_swap_space() {
        let map = mapping(10, 20);
        let mut kept = entry(10, 20);
        kept.attr.pin = Column::no(Reason::Kept);
        let found = |swap, shared, held| {
            let (mut e, mut m) = (kept, map.clone());
            m.prot = Prot::from_call(3, shared);
            e.attr.prot = m.prot;
            if held {
                e.attr.pin = Column::YES;
            }
            let rules = Rules { swap, ..LOOSE };
            let all = gaps(&[e], &Regions::default(), &[m], &[], rules);
            all.iter().map(|g| g.wrong).collect::<Vec<_>>()
        };
        assert_eq!(found(Swap::None, true, false), []);
        assert_eq!(found(Swap::Shared, false, false), []);
        assert_eq!(found(Swap::Shared, true, false), [Wrong::Swap]);
        assert_eq!(found(Swap::All, false, false), [Wrong::Swap]);
        assert_eq!(found(Swap::All, true, true), []);
    }

    #[test]
    fn strictly_both_registrars_must_hold_it() {
        let found = |pin, column, pin_off, hca| {
            let mut e = entry(10, 20);
            (e.attr.pin, e.attr.hca) = (pin, column);
            let rules = Rules {
                strict: true,
                pin_off,
                hca,
                swap: Swap::None,
            };
            let regions = Regions::of_primary(vec![region(1, 10, 20, 1)], 1);
            let all = gaps(&[e], &regions, &[mapping(10, 20)], &[], rules);
            all.first().map(|g| g.wrong)
        };
        let no = Column::no;
        let off = no(Reason::Off);
        assert_eq!(found(Column::YES, Column::YES, false, true), None);
        assert_eq!(found(Column::YES, off, false, false), None);
        assert_eq!(found(Column::YES, off, false, true), Some(Wrong::Hca(off)));
        assert_eq!(found(off, off, true, false), Some(Wrong::Pin(off)));
        assert_eq!(found(off, Column::YES, true, true), None);
        assert_eq!(found(off, Column::YES, false, true), Some(Wrong::Pin(off)));
        assert_eq!(found(no(Reason::NoAccess), off, false, false), None);
        let managed = no(Reason::Managed);
        assert_eq!(found(managed, managed, false, true), None);
        let kept = no(Reason::Kept);
        assert_eq!(found(kept, off, false, false), None);
        assert_eq!(found(kept, off, false, true), Some(Wrong::Hca(off)));
        for bad in [
            no(Reason::Limit),
            Column::refused(12),
            no(Reason::Inherited),
            no(Reason::Untouched),
            no(Reason::Cache),
        ] {
            assert_eq!(found(bad, Column::YES, false, true), Some(Wrong::Pin(bad)));
            assert_eq!(found(Column::YES, bad, false, true), Some(Wrong::Hca(bad)));
            assert_eq!(found(off, bad, true, true), Some(Wrong::Hca(bad)));
        }
    }

    /// Kind, first and last page of each gap.
    fn wrongs(entries: &[Entry], regions: Vec<Region>, maps: &[Mapping]) -> Vec<(char, u64, u64)> {
        let all = gaps(entries, &Regions::of_primary(regions, 1), maps, &[], LOOSE);
        let kind = |wrong| match wrong {
            Wrong::Unheld => 'h',
            Wrong::Unmapped(_) => 'm',
            _ => '?',
        };
        all.iter()
            .map(|g| (kind(g.wrong), g.range.start() >> 12, g.range.end() >> 12))
            .collect()
    }

    #[test]
    fn what_is_said_to_be_registered_lies_in_a_region() {
        let mut e = entry(10, 30);
        e.attr.hca = Column::YES;
        let maps = [mapping(10, 20), mapping(20, 30)];
        let found = |regions| wrongs(&[e], regions, &maps);
        assert_eq!(found(vec![region(1, 10, 30, 1)]), []);
        assert_eq!(found(vec![region(1, 10, 15, 1), region(1, 15, 30, 2)]), []);
        assert_eq!(found(vec![]), [('h', 10, 20), ('h', 20, 30)]);
        assert_eq!(
            found(vec![region(1, 12, 18, 1), region(1, 22, 30, 2)]),
            [('h', 10, 12), ('h', 18, 20), ('h', 20, 22)]
        );
        let other = found(vec![region(2, 10, 30, 1)]);
        assert_eq!(other, [('h', 10, 20), ('h', 20, 30)], "another domain's");
        // Only what is mapped counts, and only what is said to be registered.
        assert_eq!(wrongs(&[e], vec![], &[]), []);
        assert_eq!(wrongs(&[entry(10, 30)], vec![], &maps), []);
        let mut changed = maps.clone();
        changed[0].prot = Prot::from_call(1, false);
        assert_eq!(
            wrongs(&[e], vec![], &changed),
            [('?', 10, 20), ('h', 20, 30)]
        );
    }

    #[test]
    fn every_domains_regions_are_of_mapped_memory() {
        let maps = [mapping(10, 20), mapping(20, 30), mapping(40, 50)];
        let all = [entry(10, 30), entry(40, 50)];
        let found = |regions| wrongs(&all, regions, &maps);
        assert_eq!(found(vec![region(1, 10, 30, 1), region(2, 15, 25, 2)]), []);
        assert_eq!(
            found(vec![region(1, 5, 60, 1), region(2, 25, 42, 2)]),
            [('m', 5, 10), ('m', 30, 40), ('m', 50, 60), ('m', 30, 40)]
        );
        assert_eq!(
            found(vec![region(3, 1, 2, 1), region(4, 60, 61, 1)]),
            [('m', 1, 2), ('m', 60, 61)]
        );
        let mut whole = region(1, 0, 1 << 44, 1);
        assert_eq!(found(vec![whole]).len(), 3);
        whole.access = Access::ON_DEMAND;
        assert_eq!(found(vec![whole]), []);
    }

    proptest! {
        /// Each page is looked at on its own, and what is wrong with it is what is found.
        #[test]
        fn as_page_by_page(
            said in ranges(), maps in ranges(), held in ranges(), other in ranges(), strict: bool,
        ) {
            let prot = |kind| Prot::from_call(u64::from(kind % 2) + 1, false);
            let entries: Vec<_> = said.iter().map(|&(start, end, kind)| {
                let mut e = entry(start, end);
                e.attr.prot = prot(kind);
                e.attr.hca = if kind < 2 { Column::YES } else { Column::no(Reason::Limit) };
                e.attr.pin = if kind < 3 { Column::YES } else { Column::no(Reason::Limit) };
                e
            }).collect();
            let mappings: Vec<_> = maps.iter().map(|&(start, end, kind)| {
                let mut m = mapping(start, end);
                m.prot = prot(kind);
                m
            }).collect();
            let of = |domain, all: &[(u64, u64, u8)]| -> Vec<_> {
                all.iter().map(|r| region(domain, r.0, r.1, 1)).collect()
            };
            let regions = Regions::of_primary([of(1, &held), of(2, &other)].concat(), 1);
            let rules = Rules { strict, ..LOOSE };
            let (mut expected, mut pinned) = (Vec::new(), 0);
            for page in 0..PAGES {
                let at = |all: &[(u64, u64, u8)]| {
                    all.iter().find(|r| (r.0..r.1).contains(&page)).map(|r| r.2)
                };
                let (entry, map, region) = (at(&said), at(&maps), at(&held));
                pinned += u64::from(map.is_some() && matches!(entry, Some(..3)));
                match (map, entry) {
                    (Some(_), None) => expected.push((page, 'u')),
                    (Some(m), Some(e)) if m % 2 != e % 2 => expected.push((page, 'p')),
                    (Some(_), Some(2..)) if strict => expected.push((page, 's')),
                    (Some(_), Some(..2)) if region.is_none() => expected.push((page, 'h')),
                    (Some(_), Some(_)) => (),
                    (None, _) => {
                        let all = [region, at(&other)].into_iter().flatten();
                        expected.extend(all.map(|_| (page, 'm')));
                    }
                }
            }
            let mut found = Vec::new();
            for gap in gaps(&entries, &regions, &mappings, &[], rules) {
                let kind = match gap.wrong {
                    Wrong::Uncovered => 'u',
                    Wrong::Protection(_) => 'p',
                    Wrong::Pin(_) | Wrong::Hca(_) => 's',
                    Wrong::Unheld => 'h',
                    Wrong::Unmapped(_) => 'm',
                    Wrong::Unlocked => 'l',
                    Wrong::Swap => 'k',
                };
                found.extend((gap.range.start() >> 12..gap.range.end() >> 12).map(|p| (p, kind)));
            }
            found.sort_unstable();
            prop_assert_eq!(found, expected);
            prop_assert_eq!(locked(&entries, &mappings), pinned << 12);
        }
    }
}
