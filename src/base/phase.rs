//! How far the shim is in its life in this process.

use core::sync::atomic::{AtomicU8, Ordering::*};

/// A stage of that life. A child of fork goes on where its parent was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Phase {
    /// The shim does nothing: it was not asked for, or start-up is not done.
    Inert = 0,
    /// Calls are tracked.
    Tracking = 1,
    /// Calls are not tracked any more: the shim could not go on.
    GivenUp = 2,
    /// A child of a fork that a signal handler made on top of the ledger's change: calls are not
    /// tracked until that change is done.
    Waiting = 3,
}

static PHASE: AtomicU8 = AtomicU8::new(Phase::Inert as u8);

/// The stage of this moment.
#[inline]
pub fn phase() -> Phase {
    match PHASE.load(Relaxed) {
        0 => Phase::Inert,
        1 => Phase::Tracking,
        3 => Phase::Waiting,
        _ => Phase::GivenUp,
    }
}

/// Whether calls are tracked.
#[inline]
pub fn tracking() -> bool {
    PHASE.load(Relaxed) == Phase::Tracking as u8
}

/// Tracking begins.
pub fn begin() {
    PHASE.store(Phase::Tracking as u8, Release);
}

/// Tracking has to wait in this process.
pub fn wait() {
    PHASE.store(Phase::Waiting as u8, Release);
}

/// The shim can't go on. Whether it was tracking until now.
pub fn give_up() -> bool {
    let tracking = Phase::Tracking as u8;
    let given_up = Phase::GivenUp as u8;
    PHASE
        .compare_exchange(tracking, given_up, Relaxed, Relaxed)
        .is_ok()
}
