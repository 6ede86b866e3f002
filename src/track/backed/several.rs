//! mremap of several mappings at once, of which some are a file's: each is moved by itself.
//!
//! From Linux 6.17 on the kernel moves all that is mapped in a range, if it goes to a fixed
//! address and keeps its size. It skips holes: what is behind them at the target stays. What it
//! refuses half-way stays where it is, and what it has moved before stays moved.

use super::touches;
use crate::arch::Frame;
use crate::sys::{self, Errno, Undisturbed};
use crate::track::pieces::{OneMapping, FAULT};
use crate::track::{failed, lock, resync, seals, State};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::vocab::Kind;

const NOMEM: i64 = -(Errno::NOMEM.0 as i64);
const HOW: u64 = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED) as u64;

/// mremap(2) from `source` to `target`, which is as large; `None`: it is not of several mappings,
/// or nothing of them is a file's, or the kernel refuses it. `mremap` moves each of them.
#[cold]
#[inline(never)]
pub fn move_each(
    frame: &Frame,
    source: PageRange,
    target: PageRange,
    mremap: fn(&mut Frame) -> i64,
) -> Option<i64> {
    let [old, _, _, flags, new_addr, _] = frame.args;
    let wrong = flags & !(libc::MREMAP_DONTUNMAP as u64) != HOW
        || (old | new_addr) % PAGE != 0
        || source.intersection(target).is_some();
    if wrong || !touches(source) && !touches(target) || is_one(source) {
        return None;
    }
    if !kernel_can() {
        return None;
    }
    // A hole is what is no mapping of the kernel's.
    resync::range(source, false);
    let mut from = source.start();
    while let Some(rest) = source.after(from) {
        let Some(guard) = lock() else {
            return Some(NOMEM);
        };
        let next = next_part(&guard, rest);
        let segment = is_segment(&guard, rest);
        drop(guard);
        let first = from == source.start();
        let Some(part) = next else {
            return Some(if first { FAULT } else { new_addr as i64 });
        };
        if part == source {
            return None;
        }
        // (A System V segment is moved only by itself: vma_multi_allowed.)
        if first && part.start() != source.start() || segment {
            return Some(FAULT);
        }
        let there = target.start() + (part.start() - source.start());
        let mut one = *frame;
        one.args = [part.start(), part.len(), part.len(), flags, there, 0];
        let value = mremap(&mut one);
        if failed(value) {
            return Some(value);
        }
        from = part.end();
    }
    Some(new_addr as i64)
}

/// Whether `source` is one mapping to the application, and may be moved.
fn is_one(source: PageRange) -> bool {
    let one = |state: &State| {
        state.shared.now.is_uniform(source) && OneMapping::in_ledger(state, source).is_some()
    };
    !seals::touches(source) && lock().is_some_and(|guard| one(&guard))
}

/// What is mapped first in `range`, as far as it is of one kind and of one file.
fn next_part(state: &State, range: PageRange) -> Option<PageRange> {
    let mut found = None;
    state.ledger.for_each(range, |part, _| {
        found = part.intersection(range);
        ControlFlow::Break(())
    });
    let part = found?;
    match state.shared.now.find(part) {
        Some(file) if file.range.start() == part.start() => Some(file.range),
        Some(file) => part.before(file.range.start()),
        None => Some(part),
    }
}

/// Returns whether what is mapped first in `range` is a System V segment's.
fn is_segment(state: &State, range: PageRange) -> bool {
    let next = state.ledger.next_from(range.start());
    next.is_some_and(|entry| entry.range.start() < range.end() && entry.attr.kind == Kind::Shm)
}

/// The first release whose mremap does so.
const SINCE: (u32, u32) = (6, 17);

const UNKNOWN: u8 = 0;
const CAN: u8 = 1;
const CAN_NOT: u8 = 2;

/// Whether the kernel moves several mappings at once: it is asked once, with two that nobody has.
/// Where these can't be had, its release tells.
fn kernel_can() -> bool {
    static ANSWER: AtomicU8 = AtomicU8::new(UNKNOWN);
    match ANSWER.load(Relaxed) {
        UNKNOWN => (),
        answer => return answer == CAN,
    }
    let Ok(can) = try_it() else {
        return sys::is_since(sys::release().as_bytes(), SINCE);
    };
    ANSWER.store(if can { CAN } else { CAN_NOT }, Relaxed);
    can
}

fn try_it() -> Result<bool, Errno> {
    let _undisturbed = Undisturbed::new();
    // Whoever reads the kernel's list for the ledger has the lock.
    let _guard = lock().ok_or(Errno::NOMEM)?;
    let at = sys::map_fresh(4 * PAGE, libc::PROT_NONE, libc::MAP_PRIVATE)?;
    // SAFETY: what has just been mapped, and nobody uses it.
    let two = unsafe { sys::protect(at, PAGE, libc::PROT_READ) };
    let moved = two.and_then(|()| {
        // SAFETY: both halves are part of that.
        unsafe { sys::move_mapping(at, 2 * PAGE, at + 2 * PAGE) }
    });
    // SAFETY: likewise.
    let _ = unsafe { sys::unmap(at, 4 * PAGE) };
    match moved {
        Ok(_) => Ok(true),
        Err(Errno::FAULT) => Ok(false),
        Err(errno) => Err(errno),
    }
}
