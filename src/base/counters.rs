//! The directory's header, once there is one, and the counters in it.

use crate::atomic::{AtomicPtr, Ordering::*};
use core::sync::atomic::AtomicU64;
use regall_directory::layout::{Call, Counter, Header};

/// The directory's header; null: there is no directory.
static HEADER: AtomicPtr<Header> = AtomicPtr::new(core::ptr::null_mut());

/// Calls after which memory is not touched as before, a bit each. Of a fork's child they are its
/// parent's, too: it has inherited what they did. (The header's numbers don't say this to the
/// owner: other processes of its user can write them.)
static REMEMBERED: AtomicU64 = AtomicU64::new(0);

/// Whether protection keys may be in use: what may be read is not in the page tables alone.
pub fn keys_in_use() -> bool {
    was_made(Call::PkeyMprotect)
}

/// Whether missing pages may be the business of a userfaultfd.
pub fn faults_are_watched() -> bool {
    was_made(Call::Userfault)
}

fn was_made(call: Call) -> bool {
    REMEMBERED.load(Relaxed) & 1 << call as u32 != 0
}

/// The header that counters and calls in progress go to.
#[inline]
pub fn header() -> Option<&'static Header> {
    // SAFETY: null, or a header that stays mapped as long as the process tracks.
    unsafe { HEADER.load(Relaxed).as_ref() }
}

/// Counters and calls in progress go to `header` from now on.
pub fn use_header(header: *mut Header) {
    HEADER.store(header, Release);
}

/// Adds one to a counter that many threads count.
#[inline]
pub fn count(counter: Counter) {
    add(counter, 1);
}

/// Adds `n` to a counter.
#[inline]
pub fn add(counter: Counter, n: u64) {
    if let Some(c) = header().and_then(|h| h.counters.get(counter as usize)) {
        c.fetch_add(n, Relaxed);
    }
}

/// Counts a call.
#[inline]
pub fn count_call(call: Call) {
    if matches!(call, Call::PkeyMprotect | Call::Userfault) {
        REMEMBERED.fetch_or(1 << call as u32, Relaxed);
    }
    if let Some(n) = header().and_then(|h| h.calls.get(call as usize)) {
        n.fetch_add(1, Relaxed);
    }
}
