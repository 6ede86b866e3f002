//! A fixture that publishes into a folder of its own, well-behaved or not.

use std::ffi::c_void;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use proptest::prelude::*;

use super::*;
use crate::find::open_in;
use crate::{Published, SLOT_WORDS};
use regall_directory::addr::PageRange;
use regall_directory::layout::{segment_bytes, Slot, SEGMENT0_SLOTS};
use regall_directory::layout::{Generation, SlotRef};
use regall_directory::vocab::{Access, Attr, Column, Flags, Kind, Prot, Reason};
use regall_directory::writer::{self, Backing, Writer};

extern "C" {
    fn mmap(addr: *mut c_void, len: usize, prot: i32, flags: i32, fd: i32, off: i64)
        -> *mut c_void;
}

/// A file in a folder under a root of its own, mapped as the shim maps it.
pub(crate) struct Fixture {
    pub(crate) root: PathBuf,
    file: File,
    pub(crate) writer: Writer,
}

struct Mapped<'a>(&'a File);

impl Mapped<'_> {
    fn map<T>(&self, offset: usize, bytes: usize) -> Option<NonNull<T>> {
        use std::os::fd::AsRawFd;
        // SAFETY: a new shared mapping, which nothing else knows of.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                3,
                1,
                self.0.as_raw_fd(),
                offset as i64,
            )
        };
        NonNull::new(at.cast())
    }
}

impl Backing for Mapped<'_> {
    fn segment(&mut self, k: usize) -> Option<NonNull<Slot>> {
        self.0
            .write_all_at(&vec![0; segment_bytes(k)], segment_offset(k) as u64)
            .ok()?;
        self.map(segment_offset(k), segment_bytes(k))
    }
    fn private(&mut self, bytes: usize) -> Option<NonNull<u32>> {
        NonNull::new(Box::leak(vec![0u32; bytes / 4].into_boxed_slice()).as_mut_ptr())
    }
}

static FIXTURES: AtomicU32 = AtomicU32::new(0);

impl Fixture {
    pub(crate) fn new() -> Self {
        let us = Process::find(std::process::id()).unwrap();
        let n = FIXTURES.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("regall-test-{}-{n}", us.pid));
        let folder = root.join(format!("regall-{}", us.uids[0]));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let name = format!("{}.{}.{}", us.own_pid, us.start_time, us.namespace);
        let mut options = OpenOptions::new();
        let file = options
            .read(true)
            .write(true)
            .create_new(true)
            .open(folder.join(name))
            .unwrap();
        file.write_all_at(&[0; HEADER_BYTES], 0).unwrap();
        let header = Mapped(&file).map::<Header>(0, HEADER_BYTES).unwrap();
        let mut writer = Writer::new();
        // SAFETY: just mapped, zeroed, never unmapped.
        unsafe { writer.attach(header) };
        let h = writer.header().unwrap();
        h.pid.store(us.own_pid.into(), Ordering::Relaxed);
        h.start_time.store(us.start_time, Ordering::Relaxed);
        h.pid_namespace.store(us.namespace, Ordering::Relaxed);
        h.magic.store(MAGIC, Ordering::Release);
        Self { root, file, writer }
    }

    fn reserve(&mut self, n: usize) -> bool {
        self.writer.reserve(&mut Mapped(&self.file), n)
    }

    pub(crate) fn publish(&mut self, generation: u64, start: u64, end: u64) -> SlotRef {
        assert!(self.reserve(1));
        let range = PageRange::new(start << 12, end << 12).unwrap();
        self.writer
            .publish(Generation::from_raw(generation), range, attr(), generation)
            .unwrap()
    }

    /// A region of `domain` with all else from its generation.
    fn publish_region(&mut self, generation: u64, domain: u64, start: u64, end: u64) -> SlotRef {
        assert!(self.reserve(1));
        let range = PageRange::new(start << 12, end << 12).unwrap();
        let region = writer::Region {
            domain,
            keys: (generation + 1) << 32 | generation,
        };
        let of = Generation::from_raw(generation);
        self.writer
            .publish_region(of, range, Access::LOCAL_WRITE, generation, region)
            .unwrap()
    }

    pub(crate) fn open(&self) -> Result<Directory, OpenError> {
        open_in(&self.root, std::process::id())
    }

    /// What a reader gets: first and last page, and generation.
    pub(crate) fn seen(&self) -> Vec<(u64, u64, u64)> {
        let snapshot = self.open().unwrap().snapshot().unwrap();
        assert!(snapshot.stable);
        let all = snapshot.entries.iter();
        all.map(|e| {
            (
                e.range.start() >> 12,
                e.range.end() >> 12,
                e.generation.get(),
            )
        })
        .collect()
    }

    /// The same of the regions, with their domains in front.
    fn regions(&self) -> Vec<(u32, u64, u64, u64)> {
        let snapshot = self.open().unwrap().snapshot().unwrap();
        let page = |a| a >> 12;
        let all = snapshot.regions.iter().map(|r| (r.domain, r.range, r.id));
        all.map(|(d, r, id)| (d, page(r.start()), page(r.end()), id))
            .collect()
    }

    pub(crate) fn corrupt(&self) -> &'static str {
        match self.open().and_then(|d| d.snapshot()) {
            Err(OpenError::Corrupt(what)) => what,
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn attr() -> Attr {
    Attr {
        prot: Prot::from_call(3, false),
        kind: Kind::Anon,
        flags: Flags::EMPTY,
        pin: Column::YES,
        hca: Column::no(Reason::Off),
    }
}

#[test]
fn what_is_published_is_seen_until_it_is_retired() {
    let mut f = Fixture::new();
    let a = f.publish(1, 10, 20);
    let b = f.publish(2, 30, 40);
    assert_eq!((a.number(), b.number()), (0, 1));
    assert_eq!(f.seen(), [(10, 20, 1), (30, 40, 2)]);
    f.writer.retire(a);
    assert_eq!(f.seen(), [(30, 40, 2)]);
    f.writer.retire(a); // once is enough
    assert_eq!(f.publish(3, 5, 6), a);
    assert_eq!(f.seen(), [(5, 6, 3), (30, 40, 2)]);
    assert_eq!(f.open().unwrap().header().unwrap().high_water, 2);
}

#[test]
fn the_newer_entry_has_the_bytes() {
    let mut f = Fixture::new();
    f.publish(1, 10, 40);
    f.publish(3, 20, 30);
    f.publish(2, 25, 35);
    f.publish(4, 50, 60);
    f.publish(5, 50, 60);
    assert_eq!(
        f.seen(),
        [
            (10, 20, 1),
            (20, 30, 3),
            (30, 35, 2),
            (35, 40, 1),
            (50, 60, 5)
        ]
    );
}

#[test]
fn regions_are_lists_of_their_own() {
    let mut f = Fixture::new();
    f.publish(1, 10, 40);
    let pd = 7 << 32;
    f.publish_region(2, pd | 2, 10, 20);
    f.publish_region(3, pd | 1, 30, 50);
    let old = f.publish_region(4, pd | 1, 10, 30);
    f.publish_region(6, pd | 1, 20, 25);
    f.publish_region(5, pd | 1, 15, 22);
    assert_eq!(f.seen(), [(10, 40, 1)]);
    let all = [
        (1, 10, 15, 4),
        (1, 15, 20, 5),
        (1, 20, 25, 6),
        (1, 25, 30, 4),
        (1, 30, 50, 3),
        (2, 10, 20, 2),
    ];
    assert_eq!(f.regions(), all);
    let snapshot = f.open().unwrap().snapshot().unwrap();
    let expected = Region {
        generation: Generation::from_raw(3),
        range: PageRange::new(30 << 12, 50 << 12).unwrap(),
        domain: 1,
        pd: 7,
        access: Access::from_bits(1).unwrap(),
        id: 3,
        lkey: 3,
        rkey: 4,
    };
    assert_eq!(snapshot.regions[4], expected);
    f.writer.retire(old);
    assert_eq!(f.regions()[..2], [(1, 15, 20, 5), (1, 20, 25, 6)]);
    assert_eq!(snapshot.header.primary, 0);
    f.writer
        .header()
        .unwrap()
        .primary
        .store(2, Ordering::Relaxed);
    assert_eq!(f.open().unwrap().header().unwrap().primary, 2);
}

#[test]
fn impossible_regions_are_refused() {
    let f = |change: &dyn Fn(&mut [u64; SLOT_WORDS])| {
        let mut f = Fixture::new();
        f.publish_region(1, 7 << 32 | 1, 10, 20);
        let mut words = [1, 10 << 12, 20 << 12, 1, 1, 0x22_0000_0011, 7 << 32 | 1, 0];
        change(&mut words);
        let slot = words.map(u64::to_ne_bytes).concat();
        f.file.write_all_at(&slot, HEADER_BYTES as u64).unwrap();
        f
    };
    assert_eq!(f(&|_| ()).regions(), [(1, 10, 20, 1)]);
    assert_eq!(f(&|w| w[6] = 1).regions().len(), 1, "handles begin at 0");
    assert_eq!(f(&|w| w[2] = w[1]).corrupt(), "a region's addresses");
    assert_eq!(f(&|w| w[1] += 1).corrupt(), "a region's addresses");
    assert_eq!(
        f(&|w| w[2] = 1 << 57).corrupt(),
        "a region beyond user addresses"
    );
    assert_eq!(f(&|w| w[3] = attr().pack()).corrupt(), "a region's access");
    assert_eq!(f(&|w| w[3] = 1 << 10).corrupt(), "a region's access");
    assert_eq!(f(&|w| w[6] = 7 << 32).corrupt(), "a region's domain");
    // Not a region but a range, whose attributes these can't be.
    let range = f(&|w| (w[6], w[3]) = (0, u64::MAX));
    assert_eq!(range.corrupt(), "an entry's attributes");
}

#[test]
fn more_segments_as_needed_and_every_slot_once() {
    let mut f = Fixture::new();
    let n = SEGMENT0_SLOTS * 5;
    assert!(f.reserve(n));
    assert_eq!(f.writer.free_slots(), SEGMENT0_SLOTS * 7);
    let mut slots: Vec<_> = (1..=n as u64).map(|g| f.publish(g, g, g + 1)).collect();
    assert_eq!(f.seen().len(), n);
    assert_eq!(f.writer.segments().map(<[Slot]>::len).sum::<usize>(), n);
    slots.sort_by_key(|s| s.number());
    slots.dedup();
    assert_eq!(slots.len(), n);
    slots.into_iter().for_each(|s| f.writer.retire(s));
    assert_eq!(f.seen(), []);
    assert_eq!(f.writer.free_slots(), SEGMENT0_SLOTS * 7);
}

#[test]
fn without_room_it_is_counted() {
    struct Nothing;
    impl Backing for Nothing {
        fn segment(&mut self, _: usize) -> Option<NonNull<Slot>> {
            None
        }
        fn private(&mut self, _: usize) -> Option<NonNull<u32>> {
            None
        }
    }
    let mut f = Fixture::new();
    assert!(!f.writer.reserve(&mut Nothing, 1));
    let range = PageRange::new(0x1000, 0x2000).unwrap();
    assert_eq!(
        f.writer.publish(Generation::from_raw(1), range, attr(), 1),
        None
    );
    assert_eq!(f.open().unwrap().header().unwrap().unpublished, 1);
    f.writer.unpublished_gone();
    assert_eq!(f.open().unwrap().header().unwrap().unpublished, 0);
    assert!(f.reserve(1));
    f.publish(2, 1, 2);
    let mut detached = Writer::new();
    assert!(!detached.reserve(&mut Nothing, 1) && detached.header().is_none());
    detached.retire(SlotRef::from_raw(std::num::NonZeroU32::MAX));
}

#[test]
fn a_writer_that_stopped_half_way_left_no_gap() {
    let mut f = Fixture::new();
    f.publish(1, 10, 20);
    // It published the replacement, and was stopped before it retired the old.
    f.publish(2, 10, 15);
    assert_eq!(f.seen(), [(10, 15, 2), (15, 20, 1)]);
    // It began to fill a slot, and was stopped before the generation.
    let slot = f.publish(3, 30, 40);
    f.writer.retire(slot);
    assert_eq!(f.seen(), [(10, 15, 2), (15, 20, 1)]);
}

#[test]
fn busy_counts_living_threads_only() {
    let f = Fixture::new();
    let h = f.writer.header().unwrap();
    let us = Process::find(std::process::id()).unwrap();
    h.inflight[0].store(9 << 32 | u64::from(us.own_pid), Ordering::Relaxed);
    h.inflight[7].store(9 << 32 | 0x7fff_fff0, Ordering::Relaxed);
    let snapshot = f.open().unwrap().snapshot().unwrap();
    assert_eq!((snapshot.busy, snapshot.header.inflight.len()), (1, 2));
}

/// Whoever forges more than a process can have gets no answer, whatever memory it would take.
#[test]
fn more_than_a_process_can_have() {
    let mut f = Fixture::new();
    let most = procfs::most_mappings();
    assert!(f.reserve(most + 1));
    let slots = |domain: u64, n: usize| {
        let slot = |n| [n, n << 12, (n + 1) << 12, 1, n, 0, domain, 0];
        let all = (1..=n as u64).flat_map(slot);
        all.flat_map(u64::to_ne_bytes).collect::<Vec<_>>()
    };
    let h = f.writer.header().unwrap();
    let open = |domain, n: usize| {
        f.file
            .set_len((HEADER_BYTES + (n + 1) * SLOT_BYTES) as u64)
            .unwrap();
        let all = slots(domain, n);
        f.file.write_all_at(&all, HEADER_BYTES as u64).unwrap();
        h.high_water.store(n as u64, Ordering::Relaxed);
        let snapshot = f.open().unwrap().snapshot();
        snapshot.map(|s| s.entries.len() + s.regions.len())
    };
    assert_eq!(open(1, most * REGIONS), Ok(most * REGIONS));
    assert_eq!(open(1, most * REGIONS + 1), Err(OpenError::TooLong));
    assert_eq!(open(0, most + 1), Err(OpenError::TooLong));
}

#[test]
fn sizes_are_not_believed() {
    let mut f = Fixture::new();
    f.publish(1, 10, 20);
    let h = f.writer.header().unwrap();
    for claim in [u64::MAX, u64::MAX / 64, 1 << 40, SEGMENT0_SLOTS as u64 + 1] {
        h.high_water.store(claim, Ordering::Relaxed);
        assert_eq!(f.corrupt(), "more slots than its file holds");
    }
    f.file.set_len(segment_offset(8) as u64).unwrap();
    h.high_water
        .store(SEGMENT0_SLOTS as u64 * 100, Ordering::Relaxed);
    assert_eq!(f.corrupt(), "more slots than its file holds");
    f.file.set_len(1 << 40).unwrap();
    assert_eq!(f.corrupt(), "its file's size");
    let open = {
        f.file.set_len(segment_offset(1) as u64).unwrap();
        f.open().unwrap()
    };
    f.file.set_len(100).unwrap();
    assert_eq!(f.corrupt(), "its file's size");
    assert!(matches!(open.snapshot(), Err(OpenError::Corrupt(_))));
}

/// A range or, of every third number, a region, with attributes or keys that
/// follow from the number, so that a torn one shows.
fn publish_numbered(f: &mut Fixture, n: u64) -> SlotRef {
    if n % 3 == 0 {
        let (access, domain, keys) = (n % 32, domain(n), n << 32 | !n as u32 as u64);
        let region = writer::Region { domain, keys };
        let (of, access) = (Generation::from_raw(n), Access::as_asked(access as u32));
        let slot = f.writer.publish_region(of, numbered(n), access, n, region);
        return slot.unwrap();
    }
    let attr = Attr {
        pin: Column::refused((n % 100) as u8),
        ..attr()
    };
    let of = Generation::from_raw(n);
    f.writer.publish(of, numbered(n), attr, n).unwrap()
}

/// The domain word of region `n`.
fn domain(n: u64) -> u64 {
    (n % 5) << 32 | (n % 2 + 1)
}

fn check_numbered(p: &Published) {
    match p {
        Published::Range(e) => assert_eq!(e.range, check_number(e)),
        Published::Region(r) => assert_eq!(r.range, check_region(r)),
    }
}

/// Where entry `n` of [`publish_numbered`] is, if all else of `e` is that entry's.
fn check_number(e: &Entry) -> PageRange {
    let n = e.generation.get();
    assert_ne!(n % 3, 0);
    assert_eq!(e.id, n);
    assert_eq!(e.attr.pin.errno, (n % 100) as u8);
    numbered(n)
}

/// The same of a region.
fn check_region(r: &Region) -> PageRange {
    let n = r.generation.get();
    assert_eq!(n % 3, 0);
    let (access, word) = (r.access.bits(), u64::from(r.pd) << 32 | u64::from(r.domain));
    assert_eq!((r.id, u64::from(access), word), (n, n % 32, domain(n)));
    assert_eq!((r.rkey, r.lkey), (n as u32, !n as u32));
    numbered(n)
}

fn numbered(n: u64) -> PageRange {
    let start = (n % 97 + 1) << 20;
    PageRange::new(start, start + ((n % 13 + 1) << 12)).unwrap()
}

/// In a snapshot that takes a while an entry and a later one at the same place may
/// both be seen: then the later one has its bytes, and the rest is left of the other.
fn check_numbered_parts(snapshot: &Snapshot) {
    let entries = snapshot.entries.iter().map(|e| (e.range, check_number(e)));
    let regions = snapshot.regions.iter().map(|r| (r.range, check_region(r)));
    for (part, whole) in entries.chain(regions) {
        assert_eq!(part.intersection(whole), Some(part));
    }
}

/// Ends the writer, also when the reader's side of a test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn entries_are_whole_whatever_the_writer_does_meanwhile() {
    let mut f = Fixture::new();
    let reader = f.open().unwrap();
    assert!(f.reserve(64));
    let base = f.writer.segment_base(0).unwrap();
    // SAFETY: mapped for as long as the process lives.
    let slots = unsafe { std::slice::from_raw_parts(base.as_ptr(), 64) };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let mut live = std::collections::VecDeque::new();
            for n in 1.. {
                live.push_back(publish_numbered(&mut f, n));
                if live.len() > 40 {
                    f.writer.retire(live.pop_front().unwrap());
                }
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        let mut whole = 0;
        while whole < 100_000 {
            let found = slots.iter().filter_map(|s| crate::read_slot(s).unwrap());
            whole += found.inspect(check_numbered).count();
        }
        for _ in 0..20 {
            check_numbered_parts(&reader.snapshot().unwrap());
        }
    });
}

#[test]
fn a_range_that_is_replaced_again_and_again_is_never_missing() {
    let mut f = Fixture::new();
    let reader = f.open().unwrap();
    assert!(f.reserve(100));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            let mut old = f.publish(1, 10, 20);
            for n in 2.. {
                let new = f.publish(n, 10, 20);
                f.writer.retire(old);
                old = new;
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // Bursts with rests, in which a snapshot can settle.
                if n % 100 == 0 {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
        });
        let mut stable = 0;
        while stable < 50 {
            let snapshot = reader.snapshot().unwrap();
            if snapshot.stable && snapshot.header.high_water > 0 {
                assert_eq!(snapshot.entries.len(), 1, "{snapshot:?}");
                stable += 1;
            }
        }
    });
}

proptest! {
    #[test]
    fn random_files_never_make_it_panic(words in proptest::collection::vec(any::<u64>(), 0..2000)) {
        let _ = HeaderView::from_words(&words);
        let mut with_magic = words;
        if let Some(first) = with_magic.first_mut() { *first = MAGIC; }
        let _ = HeaderView::from_words(&with_magic);
    }
}
