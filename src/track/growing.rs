//! Mappings that grow downwards, where RLIMIT_MEMLOCK may come to bind.
//!
//! The kernel charges a locked mapping for what it grows by, and answers with SIGSEGV beyond the
//! limit (mm/mmap.c, acct_stack_growth). So our locks on such mappings go before each call from
//! which on the limit may bind ([`super::limited`]), and none is taken while such a call is in
//! progress.

use crate::limits;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use regall_directory::vocab::{Attr, Flags};

/// Whether a mapping that grows downwards has been locked.
static LOCKED: AtomicBool = AtomicBool::new(false);
/// Calls in progress from which on the limit may bind.
static CHANGING: AtomicU32 = AtomicU32::new(0);
/// After such a call the limit did bind its thread.
static BOUND: AtomicBool = AtomicBool::new(false);

/// Whether the application has locked a mapping that grows downwards, under a limit.
static LEAVE_ROOM: AtomicBool = AtomicBool::new(false);

/// From now on nothing of ours takes from the limit what a mapping may grow by that the application has
/// locked.
pub fn leave_room() {
    LEAVE_ROOM.store(true, Relaxed);
}

/// Returns whether the limit is the application's alone.
#[inline]
pub fn leaves_room() -> bool {
    LEAVE_ROOM.load(Relaxed) && limits::memlock().is_some()
}

/// Whether mappings that grow downwards stay unlocked. Called with the lock held.
pub fn stay_unlocked() -> bool {
    CHANGING.load(SeqCst) != 0
        || limits::memlock().is_some()
        || BOUND.load(Relaxed) && limits::has_memlock()
}

/// Whether what has just been locked, described by `attr`, may stay so: a call that unlocks
/// may have begun since, and it sees what is written down. Called with the lock held.
#[inline]
pub fn may_stay(attr: Attr) -> bool {
    if !attr.flags.has(Flags::GROWSDOWN) {
        return true;
    }
    LOCKED.store(true, SeqCst);
    !stay_unlocked()
}

/// A child of fork has none of its parent's locks, nor of its calls.
pub fn child() {
    LOCKED.store(false, Relaxed);
    LEAVE_ROOM.store(false, Relaxed);
    CHANGING.store(0, Relaxed);
}

/// A call begins from which on the limit may bind. Whether there may be locks that have to go
/// before it. [`change_ends`] comes behind it.
#[inline]
pub fn change_begins() -> bool {
    CHANGING.fetch_add(1, SeqCst);
    LOCKED.load(SeqCst)
}

/// The change that began has been made.
#[inline]
pub fn change_ends() {
    CHANGING.fetch_sub(1, SeqCst);
}

/// Whether a mapping that grows downwards may be locked from now on, until [`may_stay`] says so.
pub fn note_locked(locked: bool) {
    LOCKED.store(locked, Relaxed);
}

/// The limit has bound the thread that made such a call.
pub fn note_bound() {
    BOUND.store(true, Relaxed);
}
