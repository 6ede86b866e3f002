//! One look at a process: what it published and what the kernel says, together.

use std::convert::Infallible;

use regall_directory::addr::PageRange;
use regall_directory::settings::{self, Setting};
use regall_directory::vocab::{Column, Flags, Kind, Reason};
use regall_reader::{self as reader, Entry, HeaderView, Mapping, OpenError, Process, Region};

use crate::check;
use crate::regions::{pieces, Regions};

/// What was seen.
pub struct Look {
    /// The header, as it was with these entries.
    pub header: HeaderView,
    /// Sorted, without overlaps; growable ones as far as they have grown.
    pub entries: Vec<Entry>,
    /// The memory regions, as they were with these entries.
    pub regions: Regions,
    /// /proc/PID/maps, read after the entries.
    pub mappings: Vec<Mapping>,
    /// Of the memory that is said to be pinned, what the kernel has not locked is among these
    /// mappings, if that was asked. Empty where as much is locked as is said. An error: it can't be
    /// told.
    pub unlocked: Result<Vec<PageRange>, OpenError>,
    /// Hooked calls in progress when the entries were read.
    pub busy: usize,
    /// No hooked call was in progress before the mappings were read, nor after.
    pub quiet: bool,
    /// ... and none was handled in between either: both lists are of one time.
    pub clean: bool,
    /// When the process started, in clock ticks since boot.
    pub start_time: u64,
    /// Whose the process is.
    pub uid: u32,
}

/// Looks at `pid`; one that has just been forked or started has a moment to publish what it
/// has.
pub fn look(pid: u32) -> Result<Look, OpenError> {
    reader::published_soon(pid, || look_now(pid))
}

/// Looks at `pid` as it is, and asks the kernel what it has locked.
pub fn look_at_locks(pid: u32) -> Result<Look, OpenError> {
    see(pid, true)
}

/// Looks at `pid` as it is.
pub fn look_now(pid: u32) -> Result<Look, OpenError> {
    see(pid, false)
}

fn see(pid: u32, locks: bool) -> Result<Look, OpenError> {
    let directory = reader::open(pid)?;
    let snapshot = directory.snapshot()?;
    let mappings = directory.mappings()?;
    let regions = Regions::new(snapshot.regions, &snapshot.header);
    let header = snapshot.header;
    let entries = grown(
        snapshot.entries,
        &mappings,
        header.stack_floor,
        regions.primary(),
    );
    let mut unlocked = Ok(Vec::new());
    if locks {
        let same = |after: HeaderView| header.generation == after.generation;
        let still = directory.header().is_ok_and(same);
        unlocked = not_locked(directory.process(), &entries, &mappings, still);
    }
    let after = directory.header()?;
    let quiet = snapshot.stable && snapshot.busy == 0 && directory.busy(&after) == 0;
    let unchanged = header.generation == after.generation && header.image == after.image;
    Ok(Look {
        entries,
        regions,
        busy: snapshot.busy,
        quiet,
        clean: quiet && unchanged,
        start_time: directory.process().start_time,
        uid: directory.user(),
        header,
        mappings,
        unlocked,
    })
}

/// Mappings that the kernel has not locked, unless it has locked as much as is said. `still`: no
/// call has been handled since the lists were read. If so, more than is said may be other memory,
/// behind which as much of what is said hides.
fn not_locked(
    process: &Process,
    entries: &[Entry],
    mappings: &[Mapping],
    still: bool,
) -> Result<Vec<PageRange>, OpenError> {
    let said = check::locked(entries, mappings);
    if said == 0 {
        return Ok(Vec::new());
    }
    let counted = process.locked()?;
    // The list that says it of each mapping takes its time.
    if counted < said || still && counted != said {
        process.unlocked()
    } else {
        Ok(Vec::new())
    }
}

/// Growable entries as far down as the kernel has let them grow since they
/// were published: no call tells the shim of that. Never below `floor`, nor
/// over another entry.
///
/// A lock grows with the mapping, a memory region does not: what has grown out of
/// the `primary` domain's regions is an entry of its own, with HCA `off`.
fn grown(
    mut entries: Vec<Entry>,
    mappings: &[Mapping],
    floor: u64,
    primary: &[Region],
) -> Vec<Entry> {
    let mut parts = Vec::new();
    let mut below = 0; // the end of the entry before
    for entry in &mut entries {
        let free_from = std::mem::replace(&mut below, entry.range.end());
        let Some(more) = growth(entry, free_from, mappings, floor) else {
            continue;
        };
        let held = |(_, region): (_, Option<&Region>)| region.is_some();
        if !entry.attr.hca.held() || pieces(more, primary).all(held) {
            let whole = PageRange::new(more.start(), entry.range.end());
            entry.range = whole.unwrap_or(entry.range);
            continue;
        }
        let mut part = *entry;
        part.range = more;
        part.attr.hca = Column::no(Reason::Off);
        parts.push(part);
    }
    if !parts.is_empty() {
        entries.append(&mut parts);
        entries.sort_unstable_by_key(|e| e.range);
    }
    entries
}

/// What `entry` has grown by, if it can grow.
fn growth(entry: &Entry, free_from: u64, mappings: &[Mapping], floor: u64) -> Option<PageRange> {
    if !entry.attr.flags.has(Flags::GROWABLE) {
        return None;
    }
    // Only the main stack's floor is known; another growing mapping is as
    // large as the kernel has let it become.
    let floor = match entry.attr.kind {
        Kind::Stack => floor,
        _ => 1,
    };
    if floor == 0 {
        return None;
    }
    let published = entry.range.start();
    let n = mappings.partition_point(|m| m.range.end() <= published);
    let start = mappings.get(n)?.range.start();
    if start < floor || start < free_from {
        return None;
    }
    PageRange::new(start, published)
}

/// The settings that the header tells.
pub trait Settings {
    /// The name and the value of each, as it is in force.
    fn in_force(&self) -> Vec<(&'static str, String)>;
    /// Whether the user switched the pin set off.
    fn pin_off(&self) -> bool;
}

impl Settings for HeaderView {
    fn in_force(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        let _: Result<(), Infallible> =
            settings::each(self.settings, &self.device, |name, value| {
                all.push((name, value.to_string()));
                Ok(())
            });
        all
    }
    fn pin_off(&self) -> bool {
        Setting::PIN.word(self.settings) == "off"
    }
}

#[cfg(test)]
pub mod fixtures {
    //! Entries and mappings by page number.

    use super::*;
    use proptest::prelude::Strategy;
    use regall_directory::layout::Generation;
    use regall_directory::vocab::{Access, Attr, Prot};

    /// Pages that [`ranges`] may have.
    pub const PAGES: u64 = 24;

    /// Ranges without overlaps, in order, each with a number of its own choice.
    pub fn ranges() -> impl Strategy<Value = Vec<(u64, u64, u8)>> {
        let steps = proptest::collection::vec((0..4u64, 1..6u64, 0..4u8), 0..8);
        steps.prop_map(|steps| {
            let mut at = 0;
            let step = |(hole, len, kind)| {
                let start = at + hole;
                at = start + len;
                (start, at, kind)
            };
            let all: Vec<_> = steps.into_iter().map(step).collect();
            all.into_iter().filter(|r| r.1 <= PAGES).collect()
        })
    }

    pub fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(start << 12, end << 12).unwrap()
    }

    pub fn entry(start: u64, end: u64) -> Entry {
        Entry {
            generation: Generation::from_raw(1),
            range: range(start, end),
            attr: Attr {
                prot: Prot::from_call(3, false),
                kind: Kind::Anon,
                flags: Flags::EMPTY,
                pin: Column::YES,
                hca: Column::no(Reason::Off),
            },
            id: 1,
        }
    }

    /// With `key` and `key` + 1 for keys.
    pub fn region(domain: u32, start: u64, end: u64, key: u32) -> Region {
        Region {
            generation: Generation::from_raw(1),
            range: range(start, end),
            domain,
            pd: 7,
            access: Access::from_bits(1).unwrap(),
            id: key.into(),
            lkey: key,
            rkey: key + 1,
        }
    }

    pub fn mapping(start: u64, end: u64) -> Mapping {
        Mapping {
            range: range(start, end),
            prot: Prot::from_call(3, false),
            offset: 0,
            device: (0, 0),
            inode: 0,
            name: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::*;
    use super::*;

    #[test]
    fn a_stack_is_as_large_as_the_kernel_has_let_it_grow() {
        let mut stack = entry(50, 60);
        stack.attr.flags = Flags::GROWABLE;
        stack.attr.kind = Kind::Stack;
        let starts = |below: Option<Entry>, mapping_start, floor: u64| {
            let entries = below.into_iter().chain([stack]).collect();
            let all = grown(entries, &[mapping(mapping_start, 60)], floor << 12, &[]);
            all.last().unwrap().range.start() >> 12
        };
        assert_eq!(starts(None, 45, 40), 45);
        assert_eq!(starts(None, 45, 46), 50, "below the floor");
        assert_eq!(starts(None, 45, 0), 50, "no floor");
        assert_eq!(starts(None, 52, 40), 50, "it never shrinks");
        assert_eq!(starts(Some(entry(40, 45)), 45, 40), 45);
        assert_eq!(starts(Some(entry(40, 46)), 45, 40), 50, "another's bytes");
        stack.attr.flags = Flags::EMPTY;
        assert_eq!(grown(vec![stack], &[mapping(45, 60)], 1, &[]), [stack]);
    }
    #[test]
    fn no_region_grows_with_a_stack() {
        let mut stack = entry(50, 60);
        stack.attr.flags = Flags::GROWABLE;
        stack.attr.kind = Kind::Stack;
        stack.attr.hca = Column::YES;
        let said = |regions: &[Region]| {
            let all = grown(vec![stack], &[mapping(45, 60)], 40 << 12, regions);
            all.iter()
                .map(|e| {
                    (
                        e.range.start() >> 12,
                        e.range.end() >> 12,
                        e.attr.hca.held(),
                    )
                })
                .collect::<Vec<_>>()
        };
        let held = region(1, 50, 60, 1);
        assert_eq!(said(&[held]), [(45, 50, false), (50, 60, true)]);
        assert_eq!(said(&[region(1, 40, 60, 1)]), [(45, 60, true)]);
        assert_eq!(said(&[region(1, 46, 60, 1)])[0], (45, 50, false));
    }
}
