//! The directory's header, once there is one, and the counters in it.

use crate::atomic::{AtomicPtr, Ordering::*};
use regall_directory::layout::{Call, Counter, Header};

/// The directory's header; null: there is no directory.
static HEADER: AtomicPtr<Header> = AtomicPtr::new(core::ptr::null_mut());

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
    if let Some(n) = header().and_then(|h| h.calls.get(call as usize)) {
        n.fetch_add(1, Relaxed);
    }
}
