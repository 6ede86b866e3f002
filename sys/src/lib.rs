//! The only code that enters the kernel. Raw system calls: no libc, no errno,
//! nothing that takes a lock in user space.
#![cfg_attr(not(test), no_std)]

use arch::Frame;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use text::Text;

pub mod arch;
pub mod credentials;
pub mod file;
pub mod folder;
pub mod netlink;
pub mod pagemap;
pub mod process;
pub mod socket;
pub mod text;
pub mod time;

/// An error number of the kernel, 1 to 4095. Unknown ones stay what they are.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct Errno(pub i32);

#[allow(missing_docs)]
impl Errno {
    pub const PERM: Self = Self(libc::EPERM);
    pub const NOENT: Self = Self(libc::ENOENT);
    pub const SRCH: Self = Self(libc::ESRCH);
    pub const INTR: Self = Self(libc::EINTR);
    pub const AGAIN: Self = Self(libc::EAGAIN);
    pub const NOMEM: Self = Self(libc::ENOMEM);
    pub const FAULT: Self = Self(libc::EFAULT);
    pub const BUSY: Self = Self(libc::EBUSY);
    pub const EXIST: Self = Self(libc::EEXIST);
    pub const INVAL: Self = Self(libc::EINVAL);
    pub const NOSYS: Self = Self(libc::ENOSYS);
    pub const TIMEDOUT: Self = Self(libc::ETIMEDOUT);
    pub const ACCES: Self = Self(libc::EACCES);
    pub const BADF: Self = Self(libc::EBADF);
    pub const CHILD: Self = Self(libc::ECHILD);
    pub const CONNREFUSED: Self = Self(libc::ECONNREFUSED);
    pub const FBIG: Self = Self(libc::EFBIG);
    pub const IO: Self = Self(libc::EIO);
    pub const MFILE: Self = Self(libc::EMFILE);
    pub const NAMETOOLONG: Self = Self(libc::ENAMETOOLONG);
    pub const NFILE: Self = Self(libc::ENFILE);
    pub const NOBUFS: Self = Self(libc::ENOBUFS);
    pub const NODEV: Self = Self(libc::ENODEV);
    pub const NOEXEC: Self = Self(libc::ENOEXEC);
    pub const NOSPC: Self = Self(libc::ENOSPC);
    pub const NOTTY: Self = Self(libc::ENOTTY);
    pub const NXIO: Self = Self(libc::ENXIO);
    pub const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    pub const PIPE: Self = Self(libc::EPIPE);
    pub const PROTO: Self = Self(libc::EPROTO);
    pub const PROTONOSUPPORT: Self = Self(libc::EPROTONOSUPPORT);
    pub const STALE: Self = Self(libc::ESTALE);
    pub const XDEV: Self = Self(libc::EXDEV);
    pub const NOTSUP: Self = Self(libc::ENOTSUP);

    /// The number in a byte, for a directory column (the kernel's user-visible
    /// numbers end at 133).
    pub fn byte(self) -> u8 {
        u8::try_from(self.0).unwrap_or(u8::MAX)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A kernel answer as a `Result`.
pub type Result<T> = core::result::Result<T, Errno>;

/// Splits what the kernel left in rax.
#[inline]
pub fn check(ret: i64) -> Result<u64> {
    if (-4095..0).contains(&ret) {
        Err(Errno(-(ret as i32)))
    } else {
        Ok(ret as u64)
    }
}

/// A raw system call: `call!(number, arguments...)`, up to six of them, each cast to
/// u64. Safe to write down, so whoever does answers for what the call does to memory.
#[macro_export]
macro_rules! call {
    ($nr:expr $(, $a:expr)*) => { $crate::call!(@ $nr, [$($a as u64,)* 0, 0, 0, 0, 0, 0]) };
    (@ $nr:expr, [$a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr $(, $_rest:expr)*]) => {{
        let (nr, a, b, c, d, e, f) = ($nr as u64, $a, $b, $c, $d, $e, $f);
        // SAFETY: forwarded to the caller of the function that this stands in;
        // each says why its call is sound.
        $crate::check(unsafe { $crate::arch::syscall6(nr, a, b, c, d, e, f) })
    }};
}
/// The application's own call, made for it: from this library's text, so that
/// `strace -k` shows that it came through here.
///
/// # Safety
/// Exactly as safe as the application's own system call was.
#[inline]
pub unsafe fn real(frame: &Frame) -> i64 {
    // SAFETY: by the contract above.
    unsafe { arch::application_call(frame) }
}

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
/// Bytes of a page.
const PAGE: u64 = 4096;

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
        let _ = unmap(got, bytes);
        return Err(Errno::EXIST);
    }
    Ok(got)
}

/// Unmaps memory that the shim mapped itself.
pub fn unmap(at: u64, bytes: u64) -> Result<()> {
    call!(libc::SYS_munmap, at, bytes).map(drop)
}

/// mprotect(2).
pub fn protect(at: u64, bytes: u64, prot: i32) -> Result<()> {
    call!(libc::SYS_mprotect, at, bytes, prot).map(drop)
}

/// madvise(2).
pub fn advise(at: u64, bytes: u64, advice: i32) -> Result<()> {
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

/// This process's id in its own namespace.
pub fn getpid() -> u32 {
    call!(libc::SYS_getpid).unwrap_or(0) as u32
}

/// This machine's name; empty if the kernel won't say.
pub fn host() -> Text<65> {
    name(|names| &names.nodename)
}

/// The kernel's release, as `uname -r` prints it; empty if the kernel won't say.
pub fn release() -> Text<65> {
    name(|names| &names.release)
}

/// One of uname(2)'s names; empty if it fails.
fn name(which: impl Fn(&libc::utsname) -> &[core::ffi::c_char; 65]) -> Text<65> {
    // SAFETY: all zeroes is a valid `struct utsname`.
    let mut names: libc::utsname = unsafe { core::mem::zeroed() };
    let mut name = Text::new();
    if call!(libc::SYS_uname, &raw mut names).is_ok() {
        let used = which(&names).iter().take_while(|c| **c != 0);
        used.for_each(|c| name.push(&[*c as u8]));
    }
    name
}

/// This thread's id.
pub fn gettid() -> u32 {
    call!(libc::SYS_gettid).unwrap_or(0) as u32
}

/// Effective user id.
pub fn geteuid() -> u32 {
    call!(libc::SYS_geteuid).unwrap_or(0) as u32
}

/// The process whose memory this is, as it sees itself. One that shares it (a child of vfork
/// or CLONE_VM) has another pid, and finds this one here.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// This process's memory is its own from now on.
pub fn own_memory() {
    OWNER.store(getpid(), Relaxed);
}

/// The process whose memory this is; 0: nobody has said.
#[inline]
pub fn memory_owner() -> u32 {
    OWNER.load(Relaxed)
}

/// Whether a thread with the id `tid` may still run in this memory: one of its owner's, or of
/// a process that shares it. To who only shares it everybody is alive: numbers may mean
/// something else to him, in a pid namespace of his own.
pub fn thread_alive(tid: u32) -> bool {
    let us = getpid();
    if call!(libc::SYS_tgkill, us, tid, 0) != Err(Errno::SRCH) || us != memory_owner() {
        return true;
    }
    const KCMP_VM: u64 = 1;
    match call!(libc::SYS_tkill, tid, 0) {
        Err(Errno::SRCH) => false,
        // Somebody else's: 0 is the same memory. Who must not ask does not judge.
        _ => call!(libc::SYS_kcmp, us, tid, KCMP_VM, 0, 0).unwrap_or(0) == 0,
    }
}

/// `(soft, hard)` of a resource limit, in its own units; u64::MAX: none.
pub fn rlimit(resource: u32) -> Result<(u64, u64)> {
    let mut out = [0u64; 2];
    call!(libc::SYS_prlimit64, 0, resource, 0, out.as_mut_ptr())?;
    Ok((out[0], out[1]))
}

/// Random 64 bits; the time-stamp counter where the kernel has none to give.
pub fn random() -> u64 {
    let mut out = 0u64;
    match call!(libc::SYS_getrandom, &raw mut out, 8, libc::GRND_NONBLOCK) {
        Ok(8) => out,
        _ => crate::arch::ticks(),
    }
}

/// Sleeps until `word` is no longer `seen`, someone wakes it, or `nanos` are over:
/// then the answer is true.
pub fn futex_wait(word: &core::sync::atomic::AtomicU32, seen: u32, nanos: u32) -> bool {
    let timeout = [0u64, u64::from(nanos)];
    let woken = call!(
        libc::SYS_futex,
        word.as_ptr(),
        libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
        seen,
        timeout.as_ptr()
    );
    woken == Err(Errno::TIMEDOUT)
}

/// Wakes one sleeper on `word`; says whether there was one.
pub fn futex_wake(word: &core::sync::atomic::AtomicU32) -> bool {
    let woken = call!(
        libc::SYS_futex,
        word.as_ptr(),
        libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
        1
    );
    woken == Ok(1)
}

/// Wakes all sleepers on `word`.
pub fn futex_wake_all(word: &core::sync::atomic::AtomicU32) {
    let _ = call!(
        libc::SYS_futex,
        word.as_ptr(),
        libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
        i32::MAX
    );
}

/// Sleeps for `nanos`, less if a signal comes.
pub fn nap(nanos: u64) {
    let time = [0u64, nanos];
    let _ = call!(libc::SYS_nanosleep, time.as_ptr(), 0);
}

/// Gives the processor away.
pub fn yield_now() {
    let _ = call!(libc::SYS_sched_yield);
}

/// Signals are held back from this thread while this lives: what is begun is finished,
/// whatever their handlers do (siglongjmp), or libc's cancellation.
pub struct Undisturbed {
    mask: u64,
}

impl Undisturbed {
    /// From now on.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let (all, mut mask) = (u64::MAX, 0u64);
        let _ = set_signal_mask(&raw const all, &raw mut mask);
        Self { mask }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        let _ = set_signal_mask(&raw const self.mask, core::ptr::null_mut());
    }
}

fn set_signal_mask(new: *const u64, old: *mut u64) -> Result<u64> {
    call!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, 8)
}

/// Copies `bytes` from `from` in this process to `to`, or says EFAULT where an
/// ordinary load would be a signal. Fails too where process_vm_readv is forbidden.
///
/// # Safety
/// `to` is valid for `bytes` of writes.
pub unsafe fn copy_checked(from: u64, to: *mut u8, bytes: usize) -> Result<usize> {
    let local = [to as u64, bytes as u64];
    let remote = [from, bytes as u64];
    call!(
        libc::SYS_process_vm_readv,
        getpid(),
        local.as_ptr(),
        1,
        remote.as_ptr(),
        1,
        0
    )
    .map(|n| n as usize)
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
