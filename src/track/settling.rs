//! Having everything in a range pinned and registered that is to be.

use super::turns::Whose;
use super::waiting::Reach;
use super::{flight, pinning, registering, unpinning};
use crate::sys;
use crate::thread;
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;

/// Has everything in `range` pinned that is to be. Called without the lock, in a
/// call that is about `range`, after the ledger knows it.
pub fn settle(range: PageRange) {
    settle_part(range, Whose::Own, Reach::Resident);
}

/// As [`settle`], for memory that is new: nothing of it is resident.
#[inline]
pub fn settle_new(range: PageRange) {
    settle_part(range, Whose::Own, Reach::Small);
}

/// As [`settle`], for what was read from the kernel: some of it may be another
/// call's.
pub fn settle_read(range: PageRange) {
    settle_part(range, Whose::Read, Reach::Resident);
}

/// As [`settle_read`], from outside of any call that is about `range`.
pub fn settle_foreign(range: PageRange) {
    settle_part(range, Whose::Foreign, Reach::Resident);
}

/// Pins what this thread's calls have postponed, now that none is in progress.
#[inline]
pub fn settle_postponed() {
    let thread = thread::current();
    if thread.postponed.get().1 != 0 && thread.flights[0].get() == 0 {
        settle_postponed_slowly(thread);
    }
}

#[cold]
#[inline(never)]
fn settle_postponed_slowly(thread: &thread::Thread) {
    // A child of vfork has this from its parent, whose rights may be others.
    if !sys::is_memory_owner() {
        return;
    }
    let (flight, _) = flight::begin(Call::Mmap);
    let (start, end) = thread.postponed.replace((0, 0));
    if let Some(range) = PageRange::new(start, end) {
        settle_foreign(range);
        unpinning::let_go_of_late(range);
    }
    drop(flight);
}

fn settle_part(range: PageRange, whose: Whose, reach: Reach) {
    pinning::pin(range, whose);
    registering::settle(range, whose, reach);
}

/// As [`pinning::repin`]; what could not be pinned again is settled.
pub fn repin(range: PageRange) {
    if !pinning::repin(range) {
        settle(range);
    }
}
