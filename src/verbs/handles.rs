//! What the application gets instead of a region of its own: a `struct ibv_mr` over
//! one that is there. It copies the whole of what it stands for, since providers look
//! behind the public part, and it is never given to libibverbs.

use crate::ledger::index::Memory;
use crate::registrar::hca::records::RecordId;
use crate::track::lending::Loan;
use crate::uverbs::abi::{Context, Mr, Pd, VerbsMr};
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use regall_directory::vocab::Access;

/// Room behind the private part for what a provider keeps there; zeroes say "nothing
/// of mine" to all that are known.
const PROVIDERS: usize = 7;

#[repr(C, align(64))]
struct Handle {
    verbs: VerbsMr,
    provider: [u64; PROVIDERS],
    record: RecordId,
    /// Which process made it, counted over forks; 0: free.
    epoch: u32,
    next: u32,
}

const _: () = assert!(size_of::<Handle>() == 128);

/// Handles in a chunk.
const CHUNK: usize = 2048;
/// Chunks at the most.
const CHUNKS: usize = 64;

/// Where the chunks are. A handle is known by its address alone, in a child of fork
/// too, which has a copy of its parent's.
static TABLE: [AtomicU64; CHUNKS] = [const { AtomicU64::new(0) }; CHUNKS];
/// Grows with every fork.
static EPOCH: AtomicU32 = AtomicU32::new(1);
/// Handles that were ever used, and the one that was freed last, plus 1. Changed
/// under the track lock.
static USED: AtomicU32 = AtomicU32::new(0);
static FREE: AtomicU32 = AtomicU32::new(0);

/// In a child: what the parent lent is its parent's.
pub fn child() {
    EPOCH.fetch_add(1, Relaxed);
}

fn place(n: u32) -> Option<NonNull<Handle>> {
    let base = TABLE.get(n as usize / CHUNK)?.load(Relaxed) as *mut Handle;
    // SAFETY: a chunk has CHUNK handles; null stays null only for the first of a
    // chunk that is not there, and NonNull says so of it.
    NonNull::new(base).map(|base| unsafe { base.add(n as usize % CHUNK) })
}

/// The number of the handle at `mr`, if it is one of ours.
fn number(mr: *const c_void) -> Option<u32> {
    let at = mr as u64;
    let bytes = (CHUNK * size_of::<Handle>()) as u64;
    let used = USED.load(Relaxed) as usize / CHUNK + 1;
    TABLE
        .iter()
        .take(used)
        .enumerate()
        .find_map(|(chunk, base)| {
            let base = base.load(Relaxed);
            let offset = at.checked_sub(base).filter(|o| base != 0 && *o < bytes)?;
            let size = size_of::<Handle>() as u64;
            (offset % size == 0).then(|| (chunk * CHUNK) as u32 + (offset / size) as u32)
        })
}

/// A handle for `loan`. `None`: there are too many. Called with the track lock held.
pub fn make(
    memory: &mut impl Memory,
    loan: &Loan,
    pd: *mut Pd,
    context: *mut Context,
    addr: *mut c_void,
    length: usize,
) -> Option<NonNull<Mr>> {
    let n = match FREE.load(Relaxed) {
        0 => USED.load(Relaxed),
        n => n - 1,
    };
    if n == USED.load(Relaxed) {
        let chunk = TABLE.get(n as usize / CHUNK)?;
        if chunk.load(Relaxed) == 0 {
            let fresh = memory.alloc(CHUNK * size_of::<Handle>())?;
            chunk.store(fresh.as_ptr() as u64, Relaxed);
        }
        USED.store(n + 1, Relaxed);
    } else {
        // SAFETY: a handle in a chunk; free, so only the lock's holder looks at it.
        FREE.store(unsafe { place(n)?.as_ref() }.next, Relaxed);
    }
    let handle = Handle {
        verbs: VerbsMr {
            mr: Mr {
                context,
                pd,
                addr,
                length,
                handle: loan.handle,
                lkey: loan.lkey,
                rkey: loan.rkey,
            },
            kind: 0,
            access: loan.access.bits() as i32,
        },
        provider: [0; PROVIDERS],
        record: loan.record,
        epoch: EPOCH.load(Relaxed),
        next: 0,
    };
    let at = place(n)?;
    // SAFETY: as above.
    unsafe { at.write(handle) };
    Some(at.cast::<Mr>())
}

/// What is known of a pointer that the application gives.
pub enum Known {
    /// The handle is not one of ours.
    Foreign,
    /// A live handle.
    Ours(Loan),
    /// One of the parent's, in its child.
    Parents,
    /// One that was given back.
    Stale,
}

/// Looks at `mr`.
pub fn look(mr: *const c_void) -> Known {
    let Some(at) = number(mr).and_then(place) else {
        return Known::Foreign;
    };
    // SAFETY: in a chunk, which is never unmapped; the application, which owns the
    // handle, is in this very call.
    let handle = unsafe { at.as_ref() };
    if handle.epoch == 0 {
        return Known::Stale;
    }
    if handle.epoch != EPOCH.load(Relaxed) {
        return Known::Parents;
    }
    let mr = handle.verbs.mr;
    Known::Ours(Loan {
        record: handle.record,
        handle: mr.handle,
        lkey: mr.lkey,
        rkey: mr.rkey,
        access: Access::as_asked(handle.verbs.access as u32),
    })
}

/// The handle at `mr` is free. Called with the track lock held.
pub fn free(mr: *const c_void) {
    let Some(n) = number(mr) else {
        return;
    };
    if let Some(mut at) = place(n) {
        // SAFETY: as in `look`, and the lock is held.
        let handle = unsafe { at.as_mut() };
        if handle.epoch != 0 {
            handle.epoch = 0;
            handle.next = FREE.load(Relaxed);
            FREE.store(n + 1, Relaxed);
        }
    }
}

/// The handle at `mr` stands for something else from now on.
pub fn change(mr: *mut Mr, loan: &Loan, pd: *mut Pd, addr: *mut c_void, length: usize) {
    let Some(mut at) = number(mr.cast()).and_then(place) else {
        return;
    };
    // SAFETY: as in `look`.
    let handle = unsafe { at.as_mut() };
    handle.record = loan.record;
    handle.verbs.access = loan.access.bits() as i32;
    handle.verbs.mr = Mr {
        pd,
        addr,
        length,
        handle: loan.handle,
        lkey: loan.lkey,
        rkey: loan.rkey,
        ..handle.verbs.mr
    };
}
