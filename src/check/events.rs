//! What becomes of memory: told before and after each call that changes it.

use super::area::{self, area, Area};
use super::registrations;
use super::writer::{head, write, Stacks};
use crate::base::maps::attached;
use crate::sys;
use crate::thread;
use crate::track::advice::{is_self, Batch};
use crate::track::discard::{takes_pages, GUARD_INSTALL};
use crate::track::{failed, VIEW};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_checking::record::{Head, How, Kind};
use regall_checking::table::{Lost, Noted, Registration, Slot};
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;

/// What has to be known of the time before a call: a number that all registrations that were
/// there have a lower one than (0: there was none), and a range.
pub type Before = [u64; 3];

/// Pieces of a System V segment that are told apart.
const PIECES: usize = 4;

/// libibverbs keeps registered memory from children by itself (ibv_fork_init).
static KEPT_FROM_CHILDREN: AtomicBool = AtomicBool::new(false);

/// A call is about to be made.
pub fn before(call: Call, args: &[u64; 6]) -> Before {
    let Some(area) = area().filter(|_| !registrations::none()) else {
        return [0; 3];
    };
    let now = area.table().now();
    match call {
        Call::Brk => [now, sys::current_brk(), 0],
        Call::Shmdt => {
            let mut pieces = [None; PIECES];
            attached(args[0], &mut pieces);
            let piece = pieces.into_iter().flatten().next();
            piece.map_or([now, 0, 0], |p| [now, p.start(), p.end()])
        }
        Call::Fork => {
            forks(area);
            [0; 3]
        }
        // Of other processes' memory, or about what takes nothing away: not looked at again.
        Call::ProcessMadvise if !takes_pages(args[3] as i32) || !is_self(args[0] as i32) => [0; 3],
        _ => [now, 0, 0],
    }
}

/// It has been made.
pub fn after(call: Call, args: &[u64; 6], before: Before, value: i64) {
    let [now, from, to] = before;
    // Over a hole the rest of the range is advised all the same.
    let partly = call == Call::Madvise && value == -i64::from(sys::Errno::NOMEM.0);
    let nothing = now == 0 || failed(value) && !partly;
    let (Some(area), false) = (area(), nothing) else {
        return;
    };
    let told = Told { area, now, call };
    let [first, len, ..] = *args;
    let range = PageRange::from_call(first, len);
    match call {
        Call::Munmap => told.gone(range, How::Unmapped, false),
        Call::Shmdt => told.gone(PageRange::new(from, to), How::Unmapped, false),
        Call::Mmap => told.mapped(args, value as u64),
        Call::Mremap => told.moved(args, value as u64),
        Call::Brk => told.heap(from, value as u64),
        Call::Madvise => told.advised(range, args[2] as i32),
        Call::ProcessMadvise => told.advised_all(args, value as u64),
        Call::Mprotect | Call::PkeyMprotect => match args[2] & 7 {
            0 => told.gone(range, How::Inaccessible, false),
            _ => told.back(range),
        },
        Call::RemapFilePages => told.gone(range, How::Replaced, true),
        Call::Shmat => {
            let range = sys::shm_bytes(first)
                .ok()
                .and_then(|bytes| PageRange::covering(value as u64, bytes));
            if args[2] & libc::SHM_REMAP as u64 != 0 {
                told.gone(range, How::Replaced, true);
            }
            told.back(range);
        }
        _ => (),
    }
}

/// A call that has been made.
struct Told {
    area: &'static Area,
    now: u64,
    call: Call,
}

impl Told {
    fn mapped(&self, args: &[u64; 6], at: u64) {
        let [_, len, prot, flags, ..] = *args;
        let set = |bit: i32| flags & bit as u64 != 0;
        let range = PageRange::from_call(at, len);
        let accessible = prot & 7 != 0;
        let fixed = set(libc::MAP_FIXED) && !set(libc::MAP_FIXED_NOREPLACE);
        // What the kernel has given away was nobody's any more.
        let how = if fixed { How::Replaced } else { How::Unseen };
        self.gone(range, how, accessible);
        if accessible {
            self.back(range);
        }
    }

    fn moved(&self, args: &[u64; 6], at: u64) {
        let [old, old_len, new_len, flags, ..] = *args;
        let set = |bit: i32| flags & bit as u64 != 0;
        let new = PageRange::from_call(at, new_len);
        if at != old {
            // Before it comes to its new place something else may have been there.
            let how = match set(libc::MREMAP_FIXED) {
                true => How::Replaced,
                false => How::Unseen,
            };
            self.gone(new, how, true);
            // An old length of 0 makes a second mapping of the same pages.
            let stays = set(libc::MREMAP_DONTUNMAP);
            self.gone(PageRange::from_call(old, old_len), How::Moved, stays);
            self.back(new);
            return;
        }
        let tail = |from: u64, to: u64| {
            let (from, to) = (old.checked_add(from)?, old.checked_add(to)?);
            PageRange::covering(from, to.checked_sub(from)?)
        };
        if new_len < old_len {
            let kept = new_len.next_multiple_of(regall_directory::addr::PAGE);
            self.gone(tail(kept, old_len), How::Unmapped, false);
        } else {
            self.back(tail(old_len, new_len));
        }
    }

    fn heap(&self, from: u64, to: u64) {
        let up = |at: u64| at.next_multiple_of(regall_directory::addr::PAGE);
        let (from, to) = (up(from), up(to));
        if to < from {
            self.gone(PageRange::new(to, from), How::Shrunk, false);
        } else {
            self.back(PageRange::new(from, to));
        }
    }

    fn advised(&self, range: Option<PageRange>, advice: i32) {
        match advice {
            libc::MADV_DONTNEED | sys::DONTNEED_LOCKED | GUARD_INSTALL => {
                // Pages that are shared are only unmapped here, and stay.
                let shared = range
                    .and_then(|r| VIEW.lookup(r.start()).ok().flatten())
                    .is_some_and(|found| found.attr().prot.shared());
                if !shared {
                    self.gone(range, How::Discarded, true);
                }
            }
            libc::MADV_REMOVE => self.gone(range, How::Discarded, true),
            libc::MADV_FREE => self.gone(range, How::Freed, false),
            libc::MADV_DONTFORK if thread::current().in_verbs.get() != 0 => {
                KEPT_FROM_CHILDREN.store(true, Relaxed);
            }
            _ => (),
        }
    }

    /// process_madvise(2), which came as far as `bytes` of the ranges that its vector names. The
    /// kernel lets a process take pages away from itself alone, and from Linux 6.13 on.
    fn advised_all(&self, args: &[u64; 6], bytes: u64) {
        let [_, vector, count, advice, ..] = *args;
        let (mut n, mut rest) = (0, bytes);
        while let Some(batch) = Batch::read(vector, n, count) {
            for [at, len] in batch.known() {
                let len = (*len).min(rest);
                rest -= len;
                self.advised(PageRange::from_call(*at, len), advice as i32);
            }
            n += batch.known().len() as u64;
            if n >= count || rest == 0 {
                return;
            }
        }
    }

    /// Memory has gone from `range`; `back`: other memory is there at once.
    fn gone(&self, range: Option<PageRange>, how: How, back: bool) {
        let Some(range) = range else { return };
        self.area.table().each(|n, slot, found| {
            // Who came later registered what is there now.
            if found.serial >= self.now {
                return;
            }
            if let Some(part) = found.part(range.start(), range.end()) {
                if how != How::Unseen || !was_known(slot, part) {
                    self.lose(n, slot, found, part, how, back);
                }
            }
        });
    }

    fn lose(
        &self,
        n: usize,
        slot: &Slot,
        of: &Registration,
        part: (u64, u64),
        how: How,
        back: bool,
    ) {
        match slot.lose(of.serial, part, how, back) {
            Noted::New(place) => {
                if how.is_stale() {
                    area::lost();
                }
                let id = self.say(Kind::Gone, n, of, part, (how, 0));
                slot.said(place, id);
            }
            Noted::Known => (),
            Noted::Full => registrations::crowded(),
        }
    }

    /// There is memory at `range` that may be other than it was.
    fn back(&self, range: Option<PageRange>) {
        let Some(range) = range else { return };
        self.area.table().each(|n, slot, found| {
            if found.serial < self.now {
                slot.regain(range.start(), range.end(), |lost: Lost| {
                    let part = (lost.start, lost.end);
                    self.say(Kind::Returned, n, found, part, (lost.how, lost.id));
                });
            }
        });
    }

    fn say(
        &self,
        kind: Kind,
        n: usize,
        about: &Registration,
        part: (u64, u64),
        (how, of): (How, u64),
    ) -> u64 {
        let head = Head {
            start: part.0,
            end: part.1,
            how: how as u64,
            call: self.call as u64,
            of,
            ..head(kind, about)
        };
        let stacks = Stacks {
            saved: self.area.saved(n),
            here: true,
        };
        let serial = about.serial;
        write(head, stacks, &|| self.area.table().holds(n, serial))
    }
}

/// Whether a part of a registration is known to have gone.
fn was_known(slot: &Slot, (start, end): (u64, u64)) -> bool {
    slot.lost().any(|l| l.start < end && start < l.end)
}

/// The process is about to fork with live registrations.
fn forks(area: &'static Area) {
    let safe = KEPT_FROM_CHILDREN.load(Relaxed) || crate::uverbs::fork::copies();
    if safe {
        return;
    }
    let mut first = None;
    area.table().each(|n, _, found| {
        first.get_or_insert((n, *found));
    });
    if let Some((n, about)) = first {
        let told = Told {
            area,
            now: 0,
            call: Call::Fork,
        };
        told.say(
            Kind::Forked,
            n,
            &about,
            (about.start, about.end),
            (How::None, 0),
        );
    }
}
