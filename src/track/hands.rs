//! Descriptors of ours that exist for one call each ([`super::reaching`]). A child of fork gets a copy of
//! those that other threads have at that moment, and closes it: it would keep the adapter open. So each
//! has a place, and while a process forks none comes or goes: the kernel copies the descriptors and the
//! memory one after the other.

use super::descriptors;
use super::tags::{self, Tag};
use crate::arch::Frame;
use crate::registrar::hca::files::FileId;
use crate::sys::{self, file, Errno, Result};
use crate::thread::{Kept, Thread};
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

/// How many there may be at a time.
const MANY: usize = 128;
/// There is none.
const FREE: i32 = -1;
/// One is being made, or closed.
const CHANGES: i32 = -2;
/// The program has put another file there: whoever has it finds that, and makes it free.
const REPLACED: i32 = -3;

static PLACES: [AtomicI32; MANY] = [const { AtomicI32::new(FREE) }; MANY];

/// How many threads are making a child.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// How many threads wait for that to end.
static WAIT: AtomicU32 = AtomicU32::new(0);

/// None of them has had a lower number; i32::MAX: there was none.
static LOWEST: AtomicI32 = AtomicI32::new(i32::MAX);

/// A descriptor of ours, which is closed in the end.
pub struct Held {
    fd: i32,
    /// Which file it is, and of which device, once that is known.
    file: FileId,
    rdev: Option<u64>,
    place: &'static AtomicI32,
}

/// A fork is waited for, and waits, so often at the most (for more than a second): who is in its midst
/// may have been jumped away from, or be stopped.
const TRIES: u32 = 20_000;
/// In nanoseconds.
const MOMENT: u64 = 50_000;
/// So often does a fork let others go first who wait, and could: where one follows the other they would
/// never.
const FIRST: u32 = 200;

/// What was `from` changes from now on, and no fork is in progress. Whether it was.
fn begin_change(place: &AtomicI32, from: i32) -> bool {
    if FORKS.load(SeqCst) == 0 {
        return change(place, from);
    }
    WAIT.fetch_add(1, SeqCst);
    let changes = change(place, from);
    WAIT.fetch_sub(1, SeqCst);
    changes
}

fn change(place: &AtomicI32, from: i32) -> bool {
    for n in 0..=TRIES {
        if FORKS.load(SeqCst) != 0 {
            if n < TRIES {
                sys::nap(MOMENT);
                continue;
            }
            // Nobody waits for it again.
            FORKS.store(0, SeqCst);
        }
        if place
            .compare_exchange(from, CHANGES, SeqCst, SeqCst)
            .is_err()
        {
            return false;
        }
        if FORKS.load(SeqCst) == 0 || n == TRIES {
            return true;
        }
        place.store(from, SeqCst);
    }
    false
}

/// A duplicate of `fd`. Errors: EBADF, and others: there can be none.
pub fn duplicate(fd: i32) -> Result<Held> {
    let mut free = PLACES.iter().filter(|place| place.load(SeqCst) == FREE);
    let place = free.find(|place| begin_change(place, FREE));
    let place = place.ok_or(Errno::MFILE)?;
    LOWEST.fetch_min(file::FROM_HERE, SeqCst);
    let own = file::duplicate_for_a_moment(fd);
    LOWEST.fetch_min(own.unwrap_or(i32::MAX), SeqCst);
    place.store(own.unwrap_or(FREE), SeqCst);
    Ok(Held {
        fd: own?,
        file: FileId::NONE,
        rdev: None,
        place,
    })
}

impl Held {
    /// Its number.
    pub const fn fd(&self) -> i32 {
        self.fd
    }

    /// It is `file`, of device `rdev` if that is known.
    pub fn is(&mut self, file: FileId, rdev: Option<u64>) {
        (self.file, self.rdev) = (file, rdev);
    }

    /// Leaves it open. The number of its place, for [`close_kept`].
    pub fn leave(self) -> u32 {
        let held = core::mem::ManuallyDrop::new(self);
        let at = |place: &AtomicI32| core::ptr::eq(place, held.place);
        PLACES.iter().position(at).unwrap_or(MANY) as u32
    }

    /// What was left open as `kept`.
    fn again(kept: Kept) -> Option<Self> {
        Some(Self {
            fd: kept.fd,
            file: FileId::from_raw(kept.file),
            rdev: Some(kept.rdev),
            place: place_of(kept)?,
        })
    }

    /// Returns whether the program may have put another file there by a call that nobody saw.
    fn is_replaced(&self) -> bool {
        // Its tag may be forgotten.
        self.file != FileId::NONE
            && tags::is_another(self.fd, self.file)
            && self
                .rdev
                .is_none_or(|rdev| file::is_no_device(self.fd, rdev))
    }
}

/// Closes the descriptor of ours that `thread`, which is this one, has kept, if it has.
pub fn close_kept(thread: &Thread) {
    let kept = thread.way.get();
    if kept.place != 0 {
        thread.way.set(Kept::NONE);
        drop(Held::again(kept));
    }
}

fn place_of(kept: Kept) -> Option<&'static AtomicI32> {
    PLACES.get(kept.place.checked_sub(1)? as usize)
}

/// Returns whether `kept` is what it was, or one of the program's.
pub fn is_there(kept: Kept) -> bool {
    place_of(kept).is_none_or(|place| place.load(SeqCst) == kept.fd)
}

impl Drop for Held {
    fn drop(&mut self) {
        // In a child that a signal handler has made just now it is closed.
        if begin_change(self.place, self.fd) {
            if !self.is_replaced() {
                file::close(self.fd);
            }
            self.place.store(FREE, SeqCst);
        } else {
            let _ = self.place.compare_exchange(REPLACED, FREE, SeqCst, SeqCst);
        }
    }
}

/// Whether `fd` is one of them.
pub fn has(fd: i32) -> bool {
    PLACES.iter().any(|place| place.load(SeqCst) == fd)
}

/// While it lives none comes or goes.
pub struct Still(());

impl Still {
    /// From now on.
    pub fn begin() -> Self {
        let mut free = 0;
        for _ in 0..TRIES {
            // Forks that overlap would be in progress all the time.
            free += u32::from(FORKS.load(SeqCst) == 0);
            if WAIT.load(SeqCst) == 0 || free > FIRST {
                break;
            }
            sys::nap(MOMENT);
        }
        FORKS.fetch_add(1, SeqCst);
        let changes = |place: &AtomicI32| place.load(SeqCst) == CHANGES;
        for _ in 0..TRIES {
            if !PLACES.iter().any(changes) {
                return Self(());
            }
            sys::nap(MOMENT);
        }
        // Nobody waits for those again.
        for place in PLACES.iter().filter(|place| changes(place)) {
            let _ = place.compare_exchange(CHANGES, FREE, SeqCst, SeqCst);
        }
        Self(())
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        // A child has begun anew.
        let _ = FORKS.fetch_update(SeqCst, SeqCst, |forks| forks.checked_sub(1));
    }
}

const BADF: i64 = -(Errno::BADF.0 as i64);

/// Makes a call of the program's about descriptors by `make`. To the program there are none of ours, so
/// closing one is EBADF, and what replaces one, or closes many, waits until it is not needed any more.
#[inline]
pub fn around(frame: &Frame, make: impl Fn(&Frame) -> i64) -> i64 {
    let Some((from, to)) = descriptors::changes(frame).map(RangeInclusive::into_inner) else {
        return make(frame);
    };
    let lowest = LOWEST.load(SeqCst) as u32;
    if lowest == i32::MAX as u32 || to < lowest {
        return make(frame);
    }
    let mut rest = *frame;
    if from < lowest {
        // Nobody else has to stand still for these, whose closing may take long.
        rest.args[1] = u64::from(lowest - 1);
        let value = make(&rest);
        if value != 0 {
            return value;
        }
        rest.args = frame.args;
        rest.args[0] = u64::from(lowest);
    }
    around_ours(&rest, from.max(lowest)..=to, make)
}

#[cold]
#[inline(never)]
fn around_ours(frame: &Frame, numbers: RangeInclusive<u32>, make: impl Fn(&Frame) -> i64) -> i64 {
    let is = |fd: i32| fd >= 0 && numbers.contains(&(fd as u32));
    let any = || PLACES.iter().any(|place| is(place.load(SeqCst)));
    let to = *numbers.end() as i32;
    // Who has a table of its own has at most copies there.
    let copies = || !sys::has_the_process_files();
    if !sys::is_memory_owner() {
        return make(frame);
    }
    if frame.nr as i64 == libc::SYS_close {
        // Of one in another thread's table there is only the number here.
        let ours = || matches!(tags::of(to), Tag::Ours(_) | Tag::Unknown);
        return match any() && ours() && !copies() {
            true => BADF,
            false => make(frame),
        };
    }
    for n in 0..TRIES {
        // A handler would wait for this.
        let undisturbed = sys::Undisturbed::new();
        let held = (Still::begin(), undisturbed);
        if !any() {
            // What the program has open is given to nobody else, and closing it may take long.
            let free = numbers.start() != numbers.end() || file::signal_of(to).is_err();
            let held = Some(held).filter(|_| free);
            let value = make(frame);
            drop(held);
            return value;
        }
        drop(held);
        if n == 0 && copies() {
            return make(frame);
        }
        sys::nap(MOMENT);
    }
    // Whoever has it was stopped, or left: it does not use or close it any more.
    for place in &PLACES {
        let fd = place.load(SeqCst);
        if is(fd) {
            let _ = place.compare_exchange(fd, REPLACED, SeqCst, SeqCst);
        }
    }
    make(frame)
}

/// In a child of fork: closes those that are `parents`.
pub fn child(parents: impl Fn(i32) -> bool) {
    for place in &PLACES {
        let fd = place.swap(FREE, SeqCst);
        if fd >= 0 && parents(fd) {
            file::close_inherited(fd);
        }
    }
    FORKS.store(0, SeqCst);
    WAIT.store(0, SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_is_below_ours_is_closed_first() {
        drop(duplicate(0).expect("a descriptor"));
        let args = [3, u64::MAX, 4, 0, 0, 0];
        let nr = libc::SYS_close_range as u64;
        for (value, parts) in [(0, 2), (-22, 1)] {
            let made = std::cell::RefCell::new(Vec::new());
            let make = |frame: &Frame| {
                made.borrow_mut().push(frame.args);
                value
            };
            assert_eq!(around(&Frame { nr, args }, make), value);
            let lowest = u64::from(LOWEST.load(SeqCst) as u32);
            let all = [[3, lowest - 1, 4, 0, 0, 0], [lowest, u64::MAX, 4, 0, 0, 0]];
            assert_eq!(made.into_inner(), all[..parts]);
        }
    }

    /// Many threads have descriptors for a moment, while others hold them still: none is left.
    #[test]
    fn none_is_left() {
        let file = std::fs::File::open("/dev/null").expect("a file");
        let fd = file.as_raw_fd();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let own = duplicate(fd).expect("a descriptor");
                        assert!(has(own.fd()));
                        drop(own);
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..20 {
                    let still = Still::begin();
                    let all = || PLACES.iter().map(|place| place.load(SeqCst));
                    let before: Vec<_> = all().collect();
                    sys::nap(200_000);
                    assert!(!before.contains(&CHANGES));
                    let now: Vec<_> = all().collect();
                    assert_eq!(before, now);
                    drop(still);
                }
            });
        });
        assert!(PLACES.iter().all(|place| place.load(SeqCst) == FREE));
    }
}
