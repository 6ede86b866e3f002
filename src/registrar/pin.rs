//! The pin set: memory locked with mlock(2), whose locked bytes the kernel
//! counts and shows (VmLck, `lo` in smaps).

use crate::policy::{Holding, Want};
use crate::sys::{self, filter, Errno, Result};
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use regall_directory::addr::{PageRange, PAGE};

/// The one pin set of the process.
pub struct PinSet;

/// How memory is held: a [`Holding`].
static HOLDING: AtomicU8 = AtomicU8::new(Holding::Off as u8);

/// Returns how memory is held here and now.
#[inline]
pub fn holding() -> Holding {
    const ALL: [Holding; 6] = [
        Holding::Off,
        Holding::Kept,
        Holding::KeptPrivate,
        Holding::Touched,
        Holding::OnFault,
        Holding::Populate,
    ];
    let n = usize::from(HOLDING.load(Relaxed));
    ALL.get(n).copied().unwrap_or(Holding::Off)
}

/// Returns whether any memory is locked by us.
#[inline]
pub fn locks() -> bool {
    holding().locks()
}

/// From here on memory is held as `holding` says. With the ledger's lock held, or at start-up.
pub fn hold(holding: Holding) {
    HOLDING.store(holding as u8, Relaxed);
}

// Called without any lock held, with nothing of libc at hand.
impl PinSet {
    /// Locks `range` as `how` says. On failure it may be locked in part: the caller knows
    /// whether it may [`PinSet::deregister`] it. Errors: the kernel's.
    pub fn register(&self, range: PageRange, how: Want) -> Result<()> {
        let onfault = match how {
            Want::Leave(_) => return Ok(()),
            Want::OnFault => true,
            Want::Populate => false,
        };
        if !can_be_undone() {
            return Err(Errno::NOSYS);
        }
        pieces(range).try_for_each(|(at, bytes)| sys::lock_memory(at, bytes, onfault))
    }

    /// Unlocks `range`. On failure some of it may be locked still.
    pub fn deregister(&self, range: PageRange) -> Result<()> {
        let mut done = Ok(());
        for (at, bytes) in pieces(range) {
            done = unlock(at, bytes).and(done);
        }
        // Where there may be no more mappings none can be cut. What is wrong in the kernel's count
        // then is less than memory that stays locked.
        if done.is_err() && range.len() > AT_ONCE {
            done = unlock(range.start(), range.len());
        }
        done
    }
}

/// The most bytes for one call: the kernel counts its pages in an int (mm/mlock.c, mlock_fixup), and
/// from 8 TiB on what it holds against RLIMIT_MEMLOCK is wrong from then on.
pub const AT_ONCE: u64 = 1 << 42;

/// `range` by parts that are no more than that: addresses and bytes.
#[inline]
fn pieces(range: PageRange) -> impl Iterator<Item = (u64, u64)> {
    let (start, end) = (range.start(), range.end());
    let more = (start..end).step_by(AT_ONCE as usize);
    more.map(move |at| (at, AT_ONCE.min(end - at)))
}

/// munlock(2). What stays locked makes the application's next call fail: what kept the kernel
/// from it may have been of the moment (ENOMEM, EINTR).
fn unlock(at: u64, bytes: u64) -> Result<()> {
    let once = || sys::unlock_memory(at, bytes);
    let done = once().or_else(|_| once());
    // (A filter that is known says it again for each thread, and it may be over this one alone.)
    if matches!(done, Err(Errno::PERM | Errno::NOSYS)) && this_thread_may() {
        UNDOING.store(FORBIDDEN, Relaxed);
    }
    done
}

/// Whether the filters over this thread that are known have the kernel make munlock(2).
#[inline]
fn this_thread_may() -> bool {
    filter::makes(libc::SYS_munlock)
}

/// Whether the kernel lets munlock(2) be called: not known yet, [`ALLOWED`] or [`FORBIDDEN`].
static UNDOING: AtomicU8 = AtomicU8::new(0);
const ALLOWED: u8 = 1;
const FORBIDDEN: u8 = 2;

/// What can't be unpinned is not pinned: advice that the application gives would fail. A
/// filter may forbid munlock and not mlock.
#[inline]
fn can_be_undone() -> bool {
    match UNDOING.load(Relaxed) {
        _ if !this_thread_may() => false,
        ALLOWED => true,
        FORBIDDEN => false,
        _ => try_to_undo(),
    }
}

/// Whether it has been seen that what is pinned can't be unpinned, by this thread at least.
pub fn is_forbidden_to_undo() -> bool {
    UNDOING.load(Relaxed) == FORBIDDEN || !this_thread_may()
}

#[cold]
fn try_to_undo() -> bool {
    // Nothing, which is always unlocked.
    let _ = unlock(0, 0);
    let _ = UNDOING.compare_exchange(0, ALLOWED, Relaxed, Relaxed);
    !is_forbidden_to_undo()
}

/// Where the part of a file mapping that can be touched ends: its pages beyond
/// the end of the file would be SIGBUS. `None`: all of it can be.
pub fn end_of_file(range: PageRange) -> Option<u64> {
    // What a filter hides is no end.
    if sys::can_read(range.end() - PAGE) != Some(false) {
        return None;
    }
    let (mut good, mut bad) = (range.start(), range.end() - PAGE);
    if !sys::readable(good) {
        return Some(good);
    }
    // Pages below `good` can be touched, those from `bad` on can't.
    while bad - good > PAGE {
        let middle = good + (bad - good) / 2 / PAGE * PAGE;
        if sys::readable(middle) {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Some(bad)
}

/// Whether a failure to lock means that a limit is reached (mlock(2): ENOMEM and
/// EPERM for RLIMIT_MEMLOCK, EAGAIN for memory that can't be had).
pub fn is_limit(errno: Errno) -> bool {
    matches!(errno, Errno::NOMEM | Errno::PERM | Errno::AGAIN)
}
