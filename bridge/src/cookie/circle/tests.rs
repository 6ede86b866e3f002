//! A table in memory, as peers see it: honest ones, and such as nobody has written.

use super::super::entry::Entry;
use super::super::layout::*;
use super::super::owner::{Owner, Place};
use super::super::Rights;
use super::held::Walk;
use super::*;
use crate::host::Plain;
use crate::vector::PIECE_SEGMENTS;
use core::mem::MaybeUninit;
use regall_directory::addr::PageRange;
use regall_sys::file::Fd;

/// A file for the owner, in /tmp.
struct Temporary(std::path::PathBuf);

impl Temporary {
    fn new(test: &str) -> Self {
        let name = format!("regall-table-{}-{test}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Place for Temporary {
    fn open(&self, anew: bool) -> Result<Fd> {
        let path = std::ffi::CString::new(self.0.to_str().unwrap()).unwrap();
        let create = if anew {
            libc::O_CREAT | libc::O_EXCL
        } else {
            0
        };
        Fd::open(&path, libc::O_RDWR | create, 0o600)
    }

    fn image(&self) -> u64 {
        7
    }

    fn pid(&self) -> u32 {
        // None that there is: nothing is found under it in /dev/shm.
        (1 << 22) - 1
    }
}

fn segments(count: u64) -> Vec<Segment> {
    let one = |n| Segment {
        addr: 0x10000 + n * 0x1000,
        len: n % 7 * 100,
    };
    (0..count).map(one).collect()
}

fn create(owner: &Owner, place: &Temporary, count: u64, flags: u32) -> Cookie {
    let rights = Rights::new(3, flags).unwrap();
    let made = owner.create(
        &Plain,
        place,
        &segments(count),
        rights,
        &|_| false,
        &mut |_| Ok(()),
    );
    made.unwrap()
}

/// Bytes that a walk comes by, and its steps.
fn walk(region: &Entry, offset: u64, length: u64) -> (u64, usize) {
    let mut walk = Walk::new(region, offset, length);
    let mut few = [const { MaybeUninit::uninit() }; PIECE_SEGMENTS];
    let (mut bytes, mut steps) = (0u64, 0);
    loop {
        let some = walk.take(region, &mut few);
        if some.is_empty() {
            return (bytes, steps);
        }
        steps += 1;
        bytes += some.iter().map(|s| s.len).sum::<u64>();
    }
}

#[test]
fn who_comes_too_late_claims_nothing() {
    let (owner, place) = (Owner::new(), Temporary::new("late"));
    let flags = Rights::SINGLE_USE | Rights::NOTIFY;
    let late = create(&owner, &place, 1, flags);
    let table = Table::over(owner.addresses());
    let region = table.find(&Plain, late).unwrap();
    owner.destroy(late).unwrap();
    // So many that one of them has its slot.
    let all: Vec<_> = (0..3000)
        .map(|_| create(&owner, &place, 1, flags))
        .collect();
    assert_eq!(region.claim(), Err(Errno::STALE));
    assert!(!region.stands());
    region.used();
    region.unclaim();
    let table = Table::over(owner.addresses());
    for cookie in all {
        let uses = || owner.with(cookie, |s| s.uses.count()).unwrap();
        assert_eq!(uses(), 0);
        let region = table.find(&Plain, cookie).unwrap();
        assert_eq!(region.claim(), Ok(()));
        assert_eq!(region.claim(), Err(Errno::INVAL));
        region.unclaim();
        assert_eq!(region.claim(), Ok(()));
        assert!(region.used() && uses() == 1);
    }
}

/// Others may write into the file. Where a region lies for its owner they do not change.
#[test]
fn what_others_write_moves_no_region() {
    let (owner, place) = (Owner::new(), Temporary::new("rewritten"));
    let one = Segment {
        addr: 0x20000,
        len: 100,
    };
    for some in [vec![one], segments(5)] {
        let last = some.len() - 1;
        let rights = Rights::new(1, 0).unwrap();
        let fine = &mut |_: &Segment| Ok(());
        let cookie = owner.create(&Plain, &place, &some, rights, &|_| false, fine);
        let cookie = cookie.unwrap();
        let [at, ..] = owner.addresses();
        let part = Part { at, k: 0 };
        let mut slots = (0..PART0_SLOTS).filter_map(|n| part.slot(n));
        let its = |slot: &&Slot| slot.cookie.load(Relaxed) == cookie.0;
        let slot = slots.find(its).unwrap();
        slot.rights.store(u64::MAX, Relaxed);
        slot.first.store(4096, Relaxed);
        slot.length.store(1 << 40, Relaxed);
        slot.count.store(1, Relaxed);
        owner.leave(PageRange::new(4096, 8192).unwrap());
        assert_eq!(slot.live.load(Relaxed), cookie.0);
        let page = some[last].addr;
        owner.leave(PageRange::new(page, page + 4096).unwrap());
        assert_eq!(slot.live.load(Relaxed), 0);
        owner.destroy(cookie).unwrap();
    }
}

#[test]
fn a_walk_is_what_is_there() {
    let (owner, place) = (Owner::new(), Temporary::new("walk"));
    let cookie = create(&owner, &place, 1000, 0);
    let table = Table::over(owner.addresses());
    let region = table.find(&Plain, cookie).unwrap();
    let whole: u64 = segments(1000).iter().map(|s| s.len).sum();
    for offset in [
        0,
        1,
        99,
        100,
        101,
        5000,
        whole - 1,
        whole,
        whole + 1,
        u64::MAX,
    ] {
        let left = whole.saturating_sub(offset);
        assert_eq!(walk(&region, offset, u64::MAX).0, left);
        assert_eq!(walk(&region, offset, 150).0, left.min(150));
    }
}

/// 100,000 tables with a few words that somebody has thought of: whatever is found in them
/// ends, and is no more than it says.
#[test]
fn tables_that_nobody_has_written() {
    let (owner, place) = (Owner::new(), Temporary::new("hostile"));
    let cookies: Vec<_> = [1, 2, 17, 100, 300]
        .map(|count| create(&owner, &place, count, Rights::SINGLE_USE | Rights::NOTIFY))
        .into();
    let table = Table::over(owner.addresses());
    let [at, ..] = owner.addresses();
    let words = part_bytes(0) / 8;
    // SAFETY: part 0, mapped as long as the process lives, all atomics.
    let part = unsafe { core::slice::from_raw_parts(at as *const AtomicU64, words) };
    // SAFETY: the head is in front of it.
    let head = unsafe { core::slice::from_raw_parts((at as *const AtomicU64).sub(512), 3) };
    let slots = PART0_SLOTS * 8;
    let live: Vec<usize> = (0..slots)
        .filter(|n| part[n / 8 * 8].load(Relaxed) != 0)
        .collect();
    let mut state = 88172645463325252u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 16) as usize % below
    };
    let mut found = 0;
    for turn in 0..100_000 {
        let cookie = cookies[draw(cookies.len())];
        let mut changed = Vec::new();
        for _ in 0..1 + draw(6) {
            let word = match draw(10) {
                0 => &head[draw(3)],
                1 => &part[draw(words)],
                2 => &part[slots + draw(words - slots)],
                _ => &part[live[draw(live.len())]],
            };
            let value = match draw(8) {
                0 => draw(8) as u64,
                1 => u64::MAX - draw(3) as u64,
                2 => cookie.0,
                3 => 1 << draw(64),
                4 => draw(1 << 20) as u64,
                5 => word.load(Relaxed) ^ 1 << draw(64),
                6 => word.load(Relaxed).wrapping_neg(),
                _ => draw(usize::MAX) as u64,
            };
            changed.push((word, word.load(Relaxed)));
            word.store(value, Relaxed);
        }
        if let Ok(region) = table.find(&Plain, cookie) {
            found += 1;
            let offset = [0, 1, 1000, u64::MAX][draw(4)];
            let most = [1, 4096, u64::MAX][draw(3)];
            let left = region.length.saturating_sub(offset).min(most);
            let (bytes, steps) = walk(&region, offset, most);
            assert!(bytes <= left && steps <= PART0_SEGMENTS, "turn {turn}");
            let _ = region.claim();
            region.used();
        }
        // The last one that was written first has the oldest value.
        for (word, was) in changed.into_iter().rev() {
            word.store(was, Relaxed);
        }
    }
    assert!(found > 10_000, "{found}");
}
