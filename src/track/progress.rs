//! A line at `info` once a second while much is pinned or registered at once: a big
//! program at its start-up, or a protection domain that is adopted. It would seem to
//! hang.
//!
//! One such piece of work at a time is told of, that of one thread; without `info` no
//! more is done than to look at a word.

use super::State;
use crate::limits;
use crate::sys::{self, time};
use crate::thread;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::vocab::{Attr, Kind};

/// The thread that is at it; 0: none.
static WHOSE: AtomicU32 = AtomicU32::new(0);
/// Bytes that there are to do ...
static TOTAL: AtomicU64 = AtomicU64::new(0);
/// ... and that are done.
static DONE: AtomicU64 = AtomicU64::new(0);
/// When the last line was written or the work began, CLOCK_MONOTONIC.
static SAID: AtomicU64 = AtomicU64::new(0);

/// Nanoseconds between two lines.
const PAUSE: u64 = 1_000_000_000;
/// What is larger is populated in pieces of so much while it is told of.
const PIECE: u64 = 32 << 20;

/// Whether anybody is to be told.
#[inline]
pub fn wanted() -> bool {
    log::max_level() >= log::LevelFilter::Info
}

/// What `counts` of the ledger, in bytes.
pub fn sum(state: &State, mut counts: impl FnMut(Attr, u64) -> bool) -> u64 {
    let mut bytes = 0u64;
    if let Some(users) = PageRange::new(0, super::USER_END) {
        state.ledger.for_each(users, |part, entry| {
            if counts(entry.attr, entry.range.len()) {
                bytes = bytes.saturating_add(part.len());
            }
            ControlFlow::Continue(())
        });
    }
    bytes
}

/// This thread begins to work on `total` bytes.
pub fn begin(total: u64) {
    let this = thread::current().tid();
    // Whoever was left half-way by this thread is begun anew.
    let free = WHOSE.compare_exchange(0, this, Relaxed, Relaxed);
    if free.is_ok() || free == Err(this) {
        TOTAL.store(total, Relaxed);
        DONE.store(0, Relaxed);
        SAID.store(time::now(), Relaxed);
    }
}

/// This thread's work is done.
pub fn end() {
    let _ = WHOSE.compare_exchange(thread::current().tid(), 0, Relaxed, Relaxed);
}

/// In a child of fork nobody is at it.
pub fn forget() {
    WHOSE.store(0, Relaxed);
}

#[inline]
fn ours() -> bool {
    let whose = WHOSE.load(Relaxed);
    whose != 0 && whose == thread::current().tid()
}

/// `bytes` more are done. Not to be called with the lock held: it may write a line.
#[inline]
pub fn done(bytes: u64) {
    if ours() {
        add(bytes);
    }
}

#[cold]
#[inline(never)]
fn add(bytes: u64) {
    let done = DONE.fetch_add(bytes, Relaxed).saturating_add(bytes);
    let total = TOTAL.load(Relaxed);
    if done >= total {
        // Also where the work was left for good, and these are other calls.
        return end();
    }
    let now = time::now();
    if now.saturating_sub(SAID.load(Relaxed)) < PAUSE {
        return;
    }
    SAID.store(now, Relaxed);
    let (unit, shift) = if total >> 30 > 0 {
        ("GiB", 30)
    } else {
        ("MiB", 20)
    };
    let tenths = |bytes: u64| (bytes >> 10).saturating_mul(10) >> (shift - 10);
    let (done, total) = (tenths(done), tenths(total));
    log::info!(
        "registering: {}.{} of {}.{} {unit}",
        done / 10,
        done % 10,
        total / 10,
        total % 10
    );
}

/// Before `part`, private memory, is locked and populated in one long call: it is
/// populated piece by piece, so that there is something to tell. It stays one mapping.
/// Bytes that were done. Nothing where RLIMIT_MEMLOCK binds: what it does not let one
/// lock is not to become resident either.
#[inline]
pub fn populate(part: PageRange, attr: Attr) -> u64 {
    let private = matches!(attr.kind, Kind::Anon | Kind::Heap) && !attr.prot.shared();
    if part.len() <= PIECE || !ours() || !private || !attr.prot.writable() || limits::bound() {
        return 0;
    }
    in_pieces(part)
}

#[cold]
#[inline(never)]
fn in_pieces(part: PageRange) -> u64 {
    let mut at = part.start();
    while at < part.end() {
        let bytes = PIECE.min(part.end() - at);
        // What can't be populated so (a kernel before 5.14, a signal, no memory) is
        // left to the lock, which then says why.
        if sys::advise(at, bytes, libc::MADV_POPULATE_WRITE).is_err() {
            break;
        }
        at += bytes;
        done(bytes);
    }
    at - part.start()
}
