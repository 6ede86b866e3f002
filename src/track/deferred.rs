//! What a signal handler does whose own thread holds the lock, and what is left to do about
//! its notes ([`super::notes`]) once the lock is free and the thread has no call in progress.

use super::{flight, hiding, lock, notes, resync, subscribers, taken};
use crate::atomic::{AtomicU64, Ordering::*};
use crate::thread;
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;

/// The thread that works notes off.
static DRAINING: AtomicU64 = AtomicU64::new(0);

/// After fork.
pub fn reset() {
    hiding::reset();
    notes::reset();
    DRAINING.store(0, Relaxed);
}

/// `range` is about to be unmapped: every directory entry that touches it
/// becomes invisible now. What was hidden with it and stays comes back with the
/// note.
#[cold]
pub fn gone(range: PageRange) {
    flight::overrun(range);
    subscribers::memory_leaves(range);
    hiding::hide(range);
    taken::may_divide_segments();
    notes::gone(range);
    flight::look_again();
}

/// Does what is left to do about the notes. Called without the lock.
#[inline]
pub fn drain() {
    // Inside of another call of this thread's (in a handler) it is left to that
    // one: it waits for others' claims, which must not wait for this thread's.
    if notes::any() && thread::current().flights[0].get() == 0 {
        drain_slowly();
    }
}

#[cold]
fn drain_slowly() {
    // Whoever was at it and left for good (siglongjmp) is not waited for: notes
    // are taken one by one, so two at a time do no harm.
    let me = thread::current() as *const thread::Thread as u64;
    if DRAINING.swap(me, Acquire) == me {
        return DRAINING.store(0, Release);
    }
    // (Who leaves it for good, or ends in it, leaves everything to be read anew.)
    let (flight, _) = flight::begin(Call::Mmap);
    // On top of the lock's holder, which need not have a flight, notes are not in the
    // ledger yet. With the lock they get there.
    if lock().is_none() {
        return DRAINING.store(0, Release);
    }
    if notes::is_everything_unread() {
        resync::audit();
    }
    notes::work_off(|range, hidden| {
        if hidden {
            resync::republish(range);
        }
        resync::foreign(range);
    });
    drop(flight);
    DRAINING.store(0, Release);
}
