//! What becomes of locks and unlocks that others did not wait for: nobody knows what is locked there
//! then, and it is settled again.

use super::lock::Guard;
use super::turns::postpone;
use super::work::{Finished, Ran};
use super::{flight, notes};
use crate::policy;
use crate::registrar::pin;
use crate::thread;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_directory::addr::PageRange;

/// Whether any thread ever was: a lock of ours may be where the ledger does not say so.
static EVER_OVERTAKEN: AtomicBool = AtomicBool::new(false);

/// Others have gone on with memory that this thread was locking or unlocking.
pub(super) fn overtaken() {
    thread::current().overtaken.set(true);
    EVER_OVERTAKEN.store(true, Relaxed);
}

/// Whether a lock of ours may have come late, and be where the ledger does not say so.
pub fn may_be_late() -> bool {
    EVER_OVERTAKEN.load(Relaxed)
}

/// Whether others have gone on with memory that this thread was locking or unlocking, since it
/// was asked last.
pub fn were_any_overtaken() -> bool {
    thread::current().overtaken.replace(false)
}

/// Others have gone on with `range`, and nobody knows what is locked there now: it is settled again
/// after this call.
pub(super) fn settle_again(mut guard: Guard, range: PageRange) {
    guard.update(range, |_, a| policy::unsettled(a, pin::holding()));
    drop(guard);
    overtaken();
    postpone(range);
}

/// Locks or unlocks in `range` are done. If others did not wait for that, nobody knows
/// what is locked there now: it is settled again after this call. Whether it was so, and what
/// came of the work.
pub fn finish_at<T>(range: PageRange, ran: Ran<T>) -> (bool, T) {
    match ran.finish() {
        Finished::Overtaken(guard, outcome, mark) => {
            settle_again(guard, range);
            mark.end();
            (true, outcome)
        }
        Finished::Alone(guard, outcome, mark) => {
            drop(guard);
            mark.end();
            (false, outcome)
        }
        Finished::Unlocked(outcome, mark) => {
            let we_are = flight::were_we_overtaken();
            if we_are {
                overtaken();
                notes::unlocked(range);
                postpone(range);
            }
            mark.end();
            (we_are, outcome)
        }
    }
}
