//! brk(2): the heap.
//!
//! Where huge pages are asked for, a heap that has become large grows in steps of one, so
//! that pages are huge from their first touch. The kernel's break is then ahead of the one
//! that the application was told, and what lies between is in the ledger like the rest.

use super::pinning::{lock_for, relent, settle};
use super::unmap::{put_back, Taken};
use super::{close, deferred, future_flags, lock, open, over_budget, real, registering, resync};
use crate::arch::Frame;
use crate::huge::{self, HUGE_PAGE};
use crate::policy;
use crate::startup;
use crate::sys::{self, Errno};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use regall_directory::addr::{round_up, PageRange};
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags, Kind, Prot};

/// The program break as the application was last told; written under the lock.
static TOLD: AtomicU64 = AtomicU64::new(0);
/// As the kernel last said: the same, or further up.
static BREAK: AtomicU64 = AtomicU64::new(0);
/// Where it was when tracking began.
static FIRST: AtomicU64 = AtomicU64::new(0);

/// What libc moves the break by, at the least.
const LIBC_STEP: u64 = 1 << 20;
/// A heap grows in huge pages once it has so many bytes.
const LARGE: u64 = 1 << 20;
const NOMEM: i64 = -(Errno::NOMEM.0 as i64);

/// Tracking starts with the program break at `brk`.
pub fn begin_at(brk: u64) {
    for place in [&TOLD, &BREAK, &FIRST] {
        place.store(brk, Relaxed);
    }
}

/// The heap's attributes before it is pinned.
fn attr() -> Attr {
    let config = startup::config();
    let mut flags = future_flags();
    let exclude = config.exclude.as_bytes();
    if !exclude.is_empty() && crate::glob::matches_any(exclude, b"[heap]") {
        flags = flags.with(Flags::EXCLUDED);
    }
    policy::described(
        policy::fresh(Prot::from_call(3, false), Kind::Heap, flags),
        config.pin,
    )
}

/// Whole pages between two breaks.
fn between(from: u64, to: u64) -> Option<PageRange> {
    round_up(from)
        .zip(round_up(to))
        .and_then(|(from, to)| PageRange::new(from, to))
}

/// Where the break is put for an application that wants it at `wanted`.
fn step(wanted: u64) -> u64 {
    let large = wanted.saturating_sub(FIRST.load(Relaxed)) >= LARGE;
    if !large || !huge::on() || startup::config().fail_on_limit || limited() {
        return wanted;
    }
    wanted.checked_next_multiple_of(HUGE_PAGE).unwrap_or(wanted)
}

/// Whether the application has so much and no more: not a byte is taken from that.
#[cold]
#[inline(never)]
fn limited() -> bool {
    let finite = |resource| !matches!(sys::rlimit(resource), Ok((u64::MAX, _)));
    finite(libc::RLIMIT_DATA) || finite(libc::RLIMIT_AS)
}

/// brk(2).
#[inline(never)]
pub fn brk(frame: &mut Frame) -> i64 {
    let wanted = frame.args[0];
    let flight = open(Call::Brk);
    let ahead = TOLD.load(Relaxed) <= wanted && wanted <= BREAK.load(Relaxed);
    if ahead && TOLD.load(Relaxed) != BREAK.load(Relaxed) {
        if let Some(guard) = lock() {
            if wanted <= BREAK.load(Relaxed) {
                TOLD.store(wanted, Relaxed);
                drop(guard);
                return wanted as i64;
            }
        }
    }
    let mut shrunk = None;
    let mut taken = Taken::new();
    let down = |from| between(wanted, from).filter(|_| wanted != 0);
    let mut before = BREAK.load(Relaxed);
    // A heap that grows needs the lock only after the call.
    let guard = down(before).and_then(|range| lock_for(&[Some(range)]));
    if let Some(mut guard) = guard {
        before = BREAK.load(Relaxed);
        // A break below its beginning is refused; what we don't know we don't touch.
        shrunk = down(before).filter(|r| guard.at(r.start()).is_some_and(|a| a.kind == Kind::Heap));
        if let Some(range) = shrunk {
            flight.claim(&guard, range);
            guard.remove(range, |part, attr| taken.add(part, attr));
        }
    }
    if let Some(range) = shrunk {
        registering::retract(range);
    }
    let told = TOLD.load(Relaxed);
    let grows = wanted > before && before != 0;
    if grows && over_budget(wanted - before) {
        return told as i64;
    }
    let mut target = if grows { step(wanted) } else { wanted };
    let mut value = 0;
    if target != wanted {
        let mut further = *frame;
        further.args[0] = target;
        value = real(&further);
    }
    if value as u64 != target || target == wanted {
        target = wanted;
        value = real(frame);
    }
    if wanted > before && (value as u64) < wanted && relent(NOMEM) {
        value = real(frame);
    }
    let now = value as u64;
    if let (Some(range), true) = (shrunk, now != wanted) {
        put_back(range, &taken);
    }
    // Refused, or only asked: the application is told what it knows.
    let answer = match now {
        _ if now == target => wanted,
        _ if now == before => told,
        _ => now,
    };
    let mut grown = None;
    match lock() {
        Some(mut guard) => {
            let from = BREAK.load(Relaxed);
            BREAK.store(now, Relaxed);
            TOLD.store(answer, Relaxed);
            grown = between(from, now).filter(|_| from != 0);
            if let Some(range) = grown {
                flight.touch(&guard, range);
                guard.insert(range, attr());
            }
            drop(guard);
            // Another thread has moved it up since it was looked at.
            let lost = between(now, from).filter(|_| shrunk.is_none());
            if let Some(range) = lost {
                resync::range(range, true);
            }
        }
        // In a handler on top of the lock's holder: the heap is read anew.
        None => {
            BREAK.store(now, Relaxed);
            TOLD.store(answer, Relaxed);
            let moved = PageRange::covering(now.min(before), now.abs_diff(before).max(LIBC_STEP));
            if let (Some(heap), true) = (moved, wanted != 0) {
                deferred::later(heap);
            }
        }
    }
    if let Some(range) = grown {
        if target != wanted {
            huge::advise(range);
        }
        settle(range);
    }
    if let Some(range) = shrunk.or(grown) {
        close(flight, range);
    }
    answer as i64
}
