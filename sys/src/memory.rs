//! Memory: mapped, moved, protected, locked, copied and asked about.

use crate::entry::call;
use crate::errno::{Errno, Result};
use crate::identity::getpid;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;

/// How far below the first of it the shim's own memory is, bytes, and how much of that it
/// takes before it begins anew. Not so far that sanitizers take it for their shadow.
const APART: u64 = 256 << 30;
const APART_ROOM: u64 = 64 << 30;

/// Where the shim's own memory goes, once known, and how much has gone there.
static APART_FROM: AtomicU64 = AtomicU64::new(0);
static APART_USED: AtomicU64 = AtomicU64::new(0);

/// Where to ask the kernel for `bytes` for the shim itself: far from where it puts what the
/// application maps. In a hole that the application has made it would be replaced by what
/// the application, which knows nothing of it, maps there next (MAP_FIXED). 0: anywhere.
pub fn apart(bytes: u64) -> u64 {
    let from = APART_FROM.load(Relaxed);
    let pages = bytes.saturating_add(4095) & !4095;
    match from {
        0 => 0,
        _ => from + APART_USED.fetch_add(pages, Relaxed) % APART_ROOM,
    }
}

/// Bytes in a huge page (x86-64, Documentation/admin-guide/mm/transhuge.rst).
pub const HUGE_PAGE: u64 = 2 << 20;

/// The same for a file's part at `offset`, such that huge pages of the file's can be mapped as
/// that: the kernel sees to it only where it has the choice.
pub fn apart_for(bytes: u64, offset: u64) -> u64 {
    if bytes < HUGE_PAGE {
        return apart(bytes);
    }
    match apart(bytes.saturating_add(HUGE_PAGE)) {
        0 => 0,
        at => at + (offset.wrapping_sub(at) & (HUGE_PAGE - 1)),
    }
}

/// Anonymous private memory of `bytes` (whole pages), zeroed, for the shim
/// itself.
pub fn map_private(bytes: usize) -> Result<NonNull<u8>> {
    let hint = apart(bytes as u64);
    let at = call!(
        libc::SYS_mmap,
        hint,
        bytes,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        -1i64,
        0
    )?;
    if hint == 0 && at > 2 * APART {
        APART_FROM.store(at - APART, Relaxed);
    }
    NonNull::new(at as *mut u8).ok_or(Errno::NOMEM)
}

/// Anonymous memory of `bytes` (whole pages) that is shared with children, for the shim itself.
pub fn map_shared(bytes: u64) -> Result<u64> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    call!(libc::SYS_mmap, apart(bytes), bytes, prot, flags, -1i64, 0)
}

/// Anonymous memory at `at` exactly, if that is free (Linux 4.17). `prot` as mmap's.
pub fn map_at(at: u64, bytes: u64, prot: i32) -> Result<u64> {
    let got = call!(
        libc::SYS_mmap,
        at,
        bytes,
        prot,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE,
        -1i64,
        0
    )?;
    if got != at {
        // An older kernel takes the flag for a mere hint.
        // SAFETY: what has just been mapped.
        let _ = unsafe { unmap(got, bytes) };
        return Err(Errno::EXIST);
    }
    Ok(got)
}

/// New memory of `bytes` at a place of the kernel's choice, zeroed. `prot` and `flags` as mmap's,
/// of which MAP_ANONYMOUS and no place are a matter of course.
pub fn map_fresh(bytes: u64, prot: i32, flags: i32) -> Result<u64> {
    let flags = (flags | libc::MAP_ANONYMOUS) & !(libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE);
    call!(libc::SYS_mmap, 0, bytes, prot, flags, -1i64, 0)
}

/// mmap(2), as it is.
///
/// # Safety
/// With MAP_FIXED what is mapped from `at` on is the caller's to replace.
#[inline]
pub unsafe fn map(at: u64, bytes: u64, prot: i32, flags: i32, fd: i32, offset: u64) -> Result<u64> {
    call!(libc::SYS_mmap, at, bytes, prot, flags, fd, offset)
}

/// Moves what is mapped at `from` to `to`, in the place of what is there (mremap(2)).
///
/// # Safety
/// Both ranges are the caller's to take away.
#[inline]
pub unsafe fn move_mapping(from: u64, bytes: u64, to: u64) -> Result<()> {
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    call!(libc::SYS_mremap, from, bytes, bytes, how, to).map(drop)
}

/// munmap(2).
///
/// # Safety
/// Nobody uses what is mapped there any more: it is the caller's to take away.
pub unsafe fn unmap(at: u64, bytes: u64) -> Result<()> {
    call!(libc::SYS_munmap, at, bytes).map(drop)
}

/// mprotect(2).
///
/// # Safety
/// Nobody relies on an access that the memory loses.
pub unsafe fn protect(at: u64, bytes: u64, prot: i32) -> Result<()> {
    call!(libc::SYS_mprotect, at, bytes, prot).map(drop)
}

/// mprotect(2) with a protection key: pkey_mprotect(2).
///
/// # Safety
/// Nobody relies on an access that the memory loses.
pub unsafe fn protect_by_key(at: u64, bytes: u64, prot: i32, key: u64) -> Result<()> {
    call!(libc::SYS_pkey_mprotect, at, bytes, prot, key).map(drop)
}

/// The NUMA policy of the memory at `at`: its mode; `nodes` gets a bit for each node.
pub fn numa_policy(at: u64, nodes: &mut [u64]) -> Result<u32> {
    // MPOL_F_ADDR: of an address.
    const OF_ADDRESS: u64 = 2;
    let (mut mode, bits) = (0u32, nodes.len() * 64);
    call!(
        libc::SYS_get_mempolicy,
        &raw mut mode,
        nodes.as_mut_ptr(),
        bits,
        at,
        OF_ADDRESS
    )?;
    Ok(mode)
}

/// Sets it, likewise (mbind(2)).
pub fn set_numa_policy(at: u64, bytes: u64, mode: u32, nodes: &[u64]) -> Result<()> {
    // The kernel takes one bit less than it is told.
    let bits = nodes.len() * 64 + 1;
    call!(libc::SYS_mbind, at, bytes, mode, nodes.as_ptr(), bits, 0).map(drop)
}

/// Advice that [`advise`] passes on: what memory holds, and who has access to it, stay.
const HARMLESS: [i32; 14] = [
    libc::MADV_NORMAL,
    libc::MADV_RANDOM,
    libc::MADV_SEQUENTIAL,
    libc::MADV_WILLNEED,
    libc::MADV_HUGEPAGE,
    libc::MADV_NOHUGEPAGE,
    libc::MADV_MERGEABLE,
    libc::MADV_UNMERGEABLE,
    libc::MADV_DODUMP,
    libc::MADV_DONTDUMP,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    libc::MADV_POPULATE_READ,
    libc::MADV_POPULATE_WRITE,
];

/// madvise(2), of advice that changes neither what memory holds nor who has access to it. EINVAL:
/// it is none such.
pub fn advise(at: u64, bytes: u64, advice: i32) -> Result<()> {
    match HARMLESS.contains(&advice) {
        // SAFETY: by the condition.
        true => unsafe { advise_any(at, bytes, advice) },
        false => Err(Errno::INVAL),
    }
}

/// MADV_DONTNEED for locked memory (Linux 5.18).
pub const DONTNEED_LOCKED: i32 = 24;

/// madvise(2), of any advice.
///
/// # Safety
/// What the memory loses by it, here or in a child (MADV_DONTNEED, MADV_DONTFORK), is the
/// caller's to take away.
pub unsafe fn advise_any(at: u64, bytes: u64, advice: i32) -> Result<()> {
    call!(libc::SYS_madvise, at, bytes, advice).map(drop)
}

/// mincore(2): a byte for each page from `at` on; its lowest bit: the page is resident.
pub fn residency(at: u64, pages: &mut [u8]) -> Result<()> {
    let bytes = pages.len() as u64 * 4096;
    call!(libc::SYS_mincore, at, bytes, pages.as_mut_ptr()).map(drop)
}

/// mlock2(2): locks and populates, or with `onfault` locks what is touched later.
pub fn lock_memory(at: u64, bytes: u64, onfault: bool) -> Result<()> {
    if onfault {
        call!(libc::SYS_mlock2, at, bytes, libc::MLOCK_ONFAULT).map(drop)
    } else {
        call!(libc::SYS_mlock, at, bytes).map(drop)
    }
}

/// munlock(2).
pub fn unlock_memory(at: u64, bytes: u64) -> Result<()> {
    call!(libc::SYS_munlock, at, bytes).map(drop)
}

/// munlockall(2).
pub fn unlock_all() {
    let _ = call!(libc::SYS_munlockall);
}

/// A piece of memory, as `struct iovec`: of this process or of another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct Segment {
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
}

const _: () = assert!(size_of::<Segment>() == size_of::<libc::iovec>());

/// What a call does with what it is about: a file, or another process's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Reads it, into this process's memory.
    Read,
    /// Writes it, from this process's memory.
    Write,
}

/// process_vm_readv(2) of `remote` in process `pid`, or process_vm_writev(2) to it; bytes.
///
/// # Safety
/// `local` is the caller's to be read, and to be written by [`Access::Read`]. In this process
/// itself `remote` likewise, the other way around.
#[inline]
pub unsafe fn copy_between(
    access: Access,
    pid: u32,
    local: &[Segment],
    remote: &[Segment],
) -> Result<u64> {
    let nr = match access {
        Access::Read => libc::SYS_process_vm_readv,
        Access::Write => libc::SYS_process_vm_writev,
    };
    let (from, to) = (local.as_ptr(), remote.as_ptr());
    call!(nr, pid, from, local.len(), to, remote.len(), 0)
}

/// Copies `bytes` from `from` in this process to `to`, or says EFAULT where an
/// ordinary load would be a signal. Fails too where process_vm_readv is forbidden.
///
/// # Safety
/// `to` is valid for `bytes` of writes.
pub unsafe fn copy_checked(from: u64, to: *mut u8, bytes: usize) -> Result<usize> {
    let len = bytes as u64;
    let (local, remote) = (to as u64, Segment { addr: from, len });
    let local = Segment { addr: local, len };
    // SAFETY: by the contract above.
    let copied = unsafe { copy_between(Access::Read, getpid(), &[local], &[remote]) };
    copied.map(|n| n as usize)
}

/// Whether 8 bytes at `addr` are known to be readable: see [`can_read`].
pub fn readable(addr: u64) -> bool {
    can_read(addr) == Some(true)
}

/// Whether a load of 8 bytes at `addr` is none that is answered by a signal: beyond a file's
/// end, PROT_NONE, a guard, what a protection key denies. Grows a stack like any access.
/// `None`: nobody knows, since a seccomp filter refuses every call that could tell.
pub fn can_read(addr: u64) -> Option<bool> {
    // The kernel reads the new signal mask before it looks at `how`, which is nonsense here.
    match call!(libc::SYS_rt_sigprocmask, -1i64, addr, 0, 8) {
        Err(Errno::INVAL) => Some(true),
        Err(Errno::FAULT) => Some(false),
        _ => can_read_in_sandbox(addr),
    }
}

#[cold]
#[inline(never)]
fn can_read_in_sandbox(addr: u64) -> Option<bool> {
    let words = [addr & !3, addr.saturating_add(7) & !3];
    match words.map(can_compare) {
        [Some(first), Some(last)] => Some(first && last),
        _ => words
            .iter()
            .all(|word| populate_read(word & !(PAGE - 1), PAGE))
            .then_some(true),
    }
}

/// Whether the kernel can load the word at `addr`, for futex(2) with nobody to be woken.
fn can_compare(addr: u64) -> Option<bool> {
    let how = libc::FUTEX_CMP_REQUEUE | libc::FUTEX_PRIVATE_FLAG;
    let compare = |with: u32| call!(libc::SYS_futex, addr, how, 0, 0, addr, with);
    // It is not equal to both. A filter may say yes to everything.
    let answer = [0, 1].map(compare);
    match answer {
        [Err(Errno::FAULT), _] => Some(false),
        [Err(Errno::AGAIN), _] | [_, Err(Errno::AGAIN)] => Some(true),
        _ => None,
    }
}

/// Makes the pages from `at` on resident as a load would. Whether all of them can be read;
/// false too where the kernel (before Linux 5.14) or a filter refuses the call.
pub fn populate_read(at: u64, bytes: u64) -> bool {
    let populate = |at| advise(at, bytes, libc::MADV_POPULATE_READ);
    // A filter may say that advice is taken, and not have it taken: between pages it never is.
    populate(at).is_ok() && populate(at | 1).is_err()
}

/// The program break.
pub fn current_brk() -> u64 {
    call!(libc::SYS_brk, 0).unwrap_or(0)
}

/// Bytes of the System V segment `id`.
pub fn shm_bytes(id: u64) -> Result<u64> {
    // struct shmid64_ds of x86-64 and aarch64: 48 bytes of permissions, then the size.
    let mut out = [0u64; 16];
    call!(libc::SYS_shmctl, id, libc::IPC_STAT, out.as_mut_ptr())?;
    Ok(out[6])
}

/// Attaches the System V segment `id` where the kernel likes, `flags` as shmat(2)'s.
pub fn attach_segment(id: u64, flags: i32) -> Result<u64> {
    call!(libc::SYS_shmat, id, 0, flags)
}

/// Detaches the one at `at`: shmdt(2).
///
/// # Safety
/// Nobody uses it any more.
pub unsafe fn detach_segment(at: u64) -> Result<()> {
    call!(libc::SYS_shmdt, at).map(drop)
}

/// Returns whether the page at `at` is locked: msync(2) says so. `None`: nothing is mapped there, or
/// the kernel can't be asked.
pub fn is_locked(at: u64) -> Option<bool> {
    // Without MS_SYNC nothing is written, and MS_INVALIDATE does nothing else.
    match call!(
        libc::SYS_msync,
        at,
        4096,
        libc::MS_ASYNC | libc::MS_INVALIDATE
    ) {
        Ok(_) => Some(false),
        Err(Errno::BUSY) => Some(true),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_that_takes_something_away_is_not_passed_on() {
        let at = map_private(4096).unwrap();
        // SAFETY: a page of its own.
        unsafe { at.write(7) };
        for advice in [libc::MADV_DONTNEED, libc::MADV_FREE, libc::MADV_DONTFORK] {
            assert_eq!(advise(at.as_ptr() as u64, 4096, advice), Err(Errno::INVAL));
        }
        // SAFETY: likewise.
        assert_eq!(unsafe { at.read() }, 7);
        // SAFETY: likewise; nobody uses it any more.
        unsafe { unmap(at.as_ptr() as u64, 4096) }.unwrap();
    }
}
