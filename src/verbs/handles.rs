//! What the application gets instead of a region of its own: a `struct ibv_mr` over
//! one that is there. It copies the whole of what it stands for, since providers look
//! behind the public part, and it is never given to libibverbs.

use crate::ledger::index::Memory;
use crate::registrar::hca::files::FileId;
use crate::registrar::hca::records::RecordId;
use crate::track::lending::Loan;
use crate::uverbs::abi::{Context, Mr, Pd, VerbsMr};
use crate::uverbs::MrHandle;
use core::ffi::c_void;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
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
    /// The open file in which its number stands for it, if it is known by that.
    file: FileId,
}

const _: () = assert!(size_of::<Handle>() == 128);

/// Handles in the first chunk. Each further one has as many as all before it, so that so few
/// chunks have all numbers there are, and to look through them takes no longer the more there
/// are.
const FIRST: u32 = 2048;
/// Chunks for all numbers.
const CHUNKS: usize = (u32::BITS - FIRST.trailing_zeros()) as usize + 1;

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

/// Chunk `n`: the number of its first handle, and how many there are.
const fn chunk(n: usize) -> (u32, u32) {
    match n {
        0 => (0, FIRST),
        n => (FIRST << (n - 1), FIRST << (n - 1)),
    }
}

/// The chunk that handle `n` is in.
const fn chunk_of(n: u32) -> usize {
    (u32::BITS - (n / FIRST).leading_zeros()) as usize
}

fn place(n: u32) -> Option<NonNull<Handle>> {
    let c = chunk_of(n);
    let base = TABLE.get(c)?.load(Relaxed) as *mut Handle;
    let offset = n - chunk(c).0;
    // SAFETY: it is a chunk's, by `chunk_of`; null stays null only for the first of a
    // chunk that is not there, and NonNull says so of it.
    NonNull::new(base).map(|base| unsafe { base.add(offset as usize) })
}

/// The number of the handle at `mr`, if it is one of ours.
fn number(mr: *const c_void) -> Option<u32> {
    let at = mr as u64;
    let size = size_of::<Handle>() as u64;
    let used = chunk_of(USED.load(Relaxed)) + 1;
    TABLE.iter().take(used).enumerate().find_map(|(c, base)| {
        let (first, many) = chunk(c);
        let base = base.load(Relaxed);
        let offset = at.checked_sub(base)?;
        let here = base != 0 && offset < u64::from(many) * size && offset % size == 0;
        here.then(|| first + (offset / size) as u32)
    })
}

/// A handle for `loan`. `None`: there is no memory for one. Called with the track lock held.
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
        // A free one is remembered by its number plus 1.
        let used = n.checked_add(1)?;
        let base = TABLE.get(chunk_of(n))?;
        if base.load(Relaxed) == 0 {
            let (_, many) = chunk(chunk_of(n));
            let fresh = memory.alloc(many as usize * size_of::<Handle>())?;
            base.store(fresh.as_ptr() as u64, Relaxed);
        }
        USED.store(used, Relaxed);
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
        file: FileId::NONE,
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

/// Numbers of ours begin here; the kernel counts from 0, and gives none that is as high.
const FIRST_NUMBER: u32 = 1 << 31;
/// No record: a region of the application's own.
const REAL: RecordId = RecordId::from_raw(0);

/// Whether a number was ever given.
static NUMBERED: AtomicBool = AtomicBool::new(false);

/// Whether a number was ever given.
#[inline]
pub fn has_numbers() -> bool {
    NUMBERED.load(Relaxed)
}

/// Whether `number` is one of ours.
#[inline]
pub const fn is_number(number: u32) -> bool {
    number >= FIRST_NUMBER
}

/// The handle at `made`, which is new, is known by a number in `file`, which is returned; `asked`
/// is the access that was asked for. Called with the track lock held.
pub fn give_number(made: NonNull<Mr>, file: FileId, asked: Access) -> Option<u32> {
    let n = number(made.as_ptr().cast()).filter(|n| !is_number(*n));
    let Some((n, mut at)) = n.and_then(|n| Some((n, place(n)?))) else {
        free(made.as_ptr().cast());
        return None;
    };
    // SAFETY: in a chunk; nobody knows it yet.
    let handle = unsafe { at.as_mut() };
    NUMBERED.store(true, Relaxed);
    handle.file = file;
    handle.provider[0] = asked.bits().into();
    Some(FIRST_NUMBER + n)
}

/// What a number of ours stands for.
pub enum Stands {
    /// A region that is lent.
    Lent(Loan),
    /// A region of the application's own, by the kernel's number.
    Real(MrHandle),
    /// Something of the parent's, in its child.
    Parents,
}

/// A handle that is known by a number.
pub struct Numbered {
    /// What it stands for.
    pub stands: Stands,
    /// The open file in which it does.
    pub file: FileId,
    /// The kernel's number of the protection domain.
    pub pd: u32,
    /// Address and length.
    pub bytes: (u64, u64),
    /// The access that was asked for.
    pub access: Access,
}

fn at_number(number: u32) -> Option<NonNull<Handle>> {
    let n = number.checked_sub(FIRST_NUMBER)?;
    place(n).filter(|_| n < USED.load(Relaxed))
}

/// What `number` stands for. `None`: nothing.
pub fn numbered(number: u32) -> Option<Numbered> {
    // SAFETY: in a chunk, which is never unmapped; the application, which owns the number, is in
    // this very call.
    let handle = unsafe { at_number(number)?.as_ref() };
    if handle.epoch == 0 || handle.file == FileId::NONE {
        return None;
    }
    let mr = handle.verbs.mr;
    let stands = match handle.epoch == EPOCH.load(Relaxed) {
        false => Stands::Parents,
        true if handle.record == REAL => Stands::Real(mr.handle),
        true => Stands::Lent(Loan {
            record: handle.record,
            handle: mr.handle,
            lkey: mr.lkey,
            rkey: mr.rkey,
            access: Access::as_asked(handle.verbs.access as u32),
        }),
    };
    Some(Numbered {
        stands,
        file: handle.file,
        pd: mr.pd as usize as u32,
        bytes: (mr.addr as u64, mr.length as u64),
        access: Access::as_asked(handle.provider[0] as u32),
    })
}

/// `number` is free. Called with the track lock held.
pub fn free_number(number: u32) {
    if let Some(at) = at_number(number) {
        free(at.as_ptr().cast());
    }
}

/// `number` is free, if it stands for `loan` still: another thread may have given that back. Whether
/// it did. Called with the track lock held.
pub fn take_number(number: u32, loan: &Loan) -> bool {
    let still = numbered(number).is_some_and(|found| match found.stands {
        Stands::Lent(now) => {
            (now.record, now.handle, now.lkey) == (loan.record, loan.handle, loan.lkey)
        }
        _ => false,
    });
    if still {
        free_number(number);
    }
    still
}

/// `number` stands for a region of the application's own. Called with the track lock held.
pub fn be_real(number: u32, region: MrHandle) {
    if let Some(mut at) = at_number(number) {
        // SAFETY: as in `numbered`, and the lock is held.
        let handle = unsafe { at.as_mut() };
        handle.record = REAL;
        handle.verbs.mr.handle = region;
    }
}

/// Frees the numbers of what was in `file`, which is closed. Called with the track lock held.
pub fn sweep(file: FileId) {
    let epoch = EPOCH.load(Relaxed);
    for at in (0..USED.load(Relaxed)).filter_map(place) {
        // SAFETY: as in `numbered`, and the lock is held.
        let handle = unsafe { at.as_ref() };
        if handle.epoch == epoch && handle.file == file {
            free(at.as_ptr().cast());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registrar::heap::Heap;

    #[test]
    fn a_chunk_has_as_many_as_all_before_it() {
        let mut next = 0u64;
        for n in 0..CHUNKS {
            let (first, many) = chunk(n);
            assert_eq!(u64::from(first), next);
            assert_eq!((chunk_of(first), chunk_of(first + (many - 1))), (n, n));
            next += u64::from(many);
        }
        assert_eq!(next, 1 << 32, "all numbers there are");
    }

    #[test]
    fn there_are_as_many_handles_as_are_asked_for() {
        const MANY: u32 = 300_000;
        let null = core::ptr::null_mut::<c_void>();
        let mut one = |key: u32| {
            let loan = Loan {
                record: RecordId::from_raw(1),
                handle: MrHandle(key),
                lkey: key,
                rkey: key,
                access: Access::LOCAL_WRITE,
            };
            let mr = make(&mut Heap, &loan, null.cast(), null.cast(), null, 0);
            mr.expect("a handle").as_ptr()
        };
        let all: Vec<_> = (0..MANY).map(&mut one).collect();
        for (key, mr) in (0..).zip(&all) {
            let Known::Ours(loan) = look(mr.cast()) else {
                panic!("handle {key} is not known");
            };
            assert_eq!(loan.lkey, key);
            let inside = mr.wrapping_byte_add(8);
            assert!(matches!(look(inside.cast()), Known::Foreign));
        }
        let last = all[MANY as usize - 1];
        free(last.cast());
        assert!(matches!(look(last.cast()), Known::Stale));
        assert_eq!(one(MANY), last, "it is used again");
    }
}
