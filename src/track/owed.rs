//! What is to be given back of what was reserved for work with the kernel, by who can't have the
//! lock when the work is over: its holder is parked. Whoever has the lock next gives it back.

use super::state::State;
use crate::registrar::hca::{numbers, DomainId, DOMAINS};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};

static ANY: AtomicBool = AtomicBool::new(false);
/// Bytes of [`State::reserved`].
static RESERVED: AtomicU64 = AtomicU64::new(0);
/// Bytes that each domain was charged for.
static CHARGED: [AtomicU64; DOMAINS] = [const { AtomicU64::new(0) }; DOMAINS];
/// Calls that were at work in each domain, and are not any more.
static WORKED: [AtomicU32; DOMAINS] = [const { AtomicU32::new(0) }; DOMAINS];

/// `bytes` were reserved to be pinned, and are not pinned.
#[cold]
pub fn reserved(bytes: u64) {
    RESERVED.fetch_add(bytes, Relaxed);
    ANY.store(true, Release);
}

/// Domain `d` was charged for `bytes` that are not registered.
#[cold]
pub fn charged(d: DomainId, bytes: u64) {
    if let Some(owed) = CHARGED.get(d.index()) {
        owed.fetch_add(bytes, Relaxed);
        ANY.store(true, Release);
    }
}

/// A call's work in domain `d` is over.
#[cold]
pub fn worked(d: DomainId) {
    if let Some(owed) = WORKED.get(d.index()) {
        owed.fetch_add(1, Relaxed);
        ANY.store(true, Release);
    }
}

/// Gives back what is owed.
#[inline]
pub fn give_back(state: &mut State) {
    if ANY.load(Relaxed) {
        give_back_all(state);
    }
}

#[cold]
#[inline(never)]
fn give_back_all(state: &mut State) {
    ANY.swap(false, Acquire);
    let reserved = RESERVED.swap(0, Relaxed);
    state.reserved = state.reserved.saturating_sub(reserved);
    for ((d, bytes), calls) in numbers().zip(&CHARGED).zip(&WORKED) {
        state.hca.refund(d, bytes.swap(0, Relaxed));
        state.hca.work_has_ended(d, calls.swap(0, Relaxed));
    }
}

/// Nothing is reserved any more.
pub fn forget_reserved() {
    RESERVED.store(0, Relaxed);
}

/// Nothing is reserved, and no domain is charged: in a child of fork.
pub fn forget() {
    forget_reserved();
    CHARGED.iter().for_each(|owed| owed.store(0, Relaxed));
    WORKED.iter().for_each(|owed| owed.store(0, Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_given_back_once() {
        let mut state = State::new();
        state.reserved = 100;
        reserved(30);
        reserved(30);
        give_back(&mut state);
        assert_eq!(state.reserved, 40);
        give_back(&mut state);
        assert_eq!(state.reserved, 40);
        reserved(10);
        forget();
        give_back(&mut state);
        assert_eq!(state.reserved, 40);
    }
}
