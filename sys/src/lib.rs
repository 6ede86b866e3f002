//! The only code that enters the kernel. Raw system calls: no libc, no errno,
//! nothing that takes a lock in user space.
#![cfg_attr(not(test), no_std)]

use arch::Frame;
use core::fmt;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use text::Text;

pub mod arch;
pub mod credentials;
mod descriptors;
pub mod dispatch;
pub mod file;
pub mod filter;
pub mod folder;
pub mod lasting;
pub mod mappings;
mod memory;
pub mod netlink;
mod own_table;
pub mod pagemap;
pub mod process;
pub mod scheduling;
pub mod signal;
pub mod socket;
pub mod text;
pub mod time;

pub use descriptors::*;
pub use memory::*;
pub use own_table::*;

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
    pub const MSGSIZE: Self = Self(libc::EMSGSIZE);
    pub const NAMETOOLONG: Self = Self(libc::ENAMETOOLONG);
    pub const NFILE: Self = Self(libc::ENFILE);
    pub const NOBUFS: Self = Self(libc::ENOBUFS);
    pub const NODEV: Self = Self(libc::ENODEV);
    pub const NOEXEC: Self = Self(libc::ENOEXEC);
    pub const NOSPC: Self = Self(libc::ENOSPC);
    pub const NOTCONN: Self = Self(libc::ENOTCONN);
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

/// Bytes of a page.
const PAGE: u64 = 4096;

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
/// u64. EPERM, too, if a filter of the program's does not let it through: it is not made then
/// ([`filter`]). Safe to write down, so it stays in this crate, whose functions answer for what the call
/// does to memory.
macro_rules! call {
    ($nr:expr $(, $a:expr)*) => { $crate::call!(@ $nr, [$($a as u64,)* 0, 0, 0, 0, 0, 0]) };
    (@ $nr:expr, [$a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr $(, $_rest:expr)*]) => {{
        let (nr, a, b, c, d, e, f) = ($nr as u64, $a, $b, $c, $d, $e, $f);
        // SAFETY: by the function that this stands in: what it can't answer for itself is in
        // its contract.
        $crate::check(unsafe { $crate::arch::enter([nr, a, b, c, d, e, f]) })
    }};
}
pub(crate) use call;

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

/// This process's id in its own namespace. Where filters keep it back, and all that it could be known
/// from, that of the process whose memory this is.
pub fn getpid() -> u32 {
    known_pid().unwrap_or_else(memory_owner)
}

/// This process's id, if it can be known.
fn known_pid() -> Option<u32> {
    match call!(libc::SYS_getpid) {
        Ok(pid) => Some(pid as u32),
        Err(_) => pid_otherwise(),
    }
}

/// The same where a filter keeps getpid(2) back. A child that shares memory has another thread id
/// than any of its parent's threads.
#[cold]
#[inline(never)]
fn pid_otherwise() -> Option<u32> {
    let owner = memory_owner();
    if let (Ok(tid), true) = (call!(libc::SYS_gettid), owner != 0) {
        if tid == u64::from(owner) || call!(libc::SYS_tgkill, owner, tid, 0).is_ok() {
            return Some(owner);
        }
    }
    let mut text = [0u8; 16];
    let text = file::read_link(c"/proc/self", &mut text).ok()?;
    core::str::from_utf8(text).ok()?.parse().ok()
}

/// This machine's name; empty if the kernel won't say.
pub fn host() -> Text<65> {
    name(|names| &names.nodename)
}

/// The kernel's release, as `uname -r` prints it; empty if the kernel won't say.
pub fn release() -> Text<65> {
    name(|names| &names.release)
}

/// Whether a release, as [`release`] says it (`6.1.0-28-amd64`), is this one or a later one.
pub fn is_since(release: &[u8], since: (u32, u32)) -> bool {
    let mut numbers = release.split(|b| !b.is_ascii_digit()).map(|digits| {
        let text = core::str::from_utf8(digits).ok()?;
        text.parse::<u32>().ok()
    });
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= since,
        _ => false,
    }
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

/// The id of this process's parent; 0: it is in another pid namespace, or nobody says.
pub fn getppid() -> u32 {
    call!(libc::SYS_getppid).unwrap_or(0) as u32
}

/// The process whose memory this is, as it sees itself. One that shares it (a child of vfork
/// or CLONE_VM) has another pid, and finds this one here.
static OWNER: AtomicU32 = AtomicU32::new(0);

/// This process's memory is its own from now on.
pub fn own_memory() {
    OWNER.store(0, Relaxed);
    // (Who begins has one thread.)
    let pid = known_pid().or_else(|| call!(libc::SYS_gettid).ok().map(|tid| tid as u32));
    OWNER.store(pid.unwrap_or(0), Relaxed);
}

/// Whether this process's memory may be its own: as [`is_memory_owner`], and where nobody knows.
pub fn may_own_memory() -> bool {
    known_pid().is_none_or(|pid| pid == memory_owner())
}

/// Whether this process's memory is known to be its own: a child of vfork has its parent's. Not
/// where filters keep back all that it could be known from.
pub fn is_memory_owner() -> bool {
    known_pid().is_some_and(|pid| pid != 0 && pid == memory_owner())
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

/// Returns whether this thread is the only one that has this memory: unshare(2) says so, and does
/// nothing else with this flag. No where a filter, or a container, forbids it.
pub fn is_alone() -> bool {
    call!(libc::SYS_unshare, libc::CLONE_VM).is_ok()
}

/// `(soft, hard)` of a resource limit, in its own units; u64::MAX: none.
pub fn rlimit(resource: u32) -> Result<(u64, u64)> {
    let mut out = [0u64; 2];
    call!(libc::SYS_prlimit64, 0, resource, 0, out.as_mut_ptr())?;
    Ok((out[0], out[1]))
}

/// How much memory the machine has, and swap space: sysinfo(2).
pub fn machine() -> Result<libc::sysinfo> {
    // SAFETY: all zeroes is a valid `struct sysinfo`.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    call!(libc::SYS_sysinfo, &raw mut info)?;
    Ok(info)
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
pub fn futex_wait(word: &AtomicU32, seen: u32, nanos: u32) -> bool {
    wait_by(
        libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
        word,
        seen,
        nanos,
    )
}

fn wait_by(how: i32, word: &AtomicU32, seen: u32, nanos: u32) -> bool {
    let timeout = [0u64, u64::from(nanos)];
    match call!(libc::SYS_futex, word.as_ptr(), how, seen, timeout.as_ptr()) {
        Err(Errno::PERM) => wait_awake(word, seen, nanos),
        woken => woken == Err(Errno::TIMEDOUT),
    }
}

/// The same where a filter forbids to sleep.
#[cold]
#[inline(never)]
fn wait_awake(word: &AtomicU32, seen: u32, nanos: u32) -> bool {
    /// Nanoseconds of a nap, at first and at the most.
    const NAPS: (u64, u64) = (50_000, 10_000_000);
    let since = arch::ticks();
    let mut long = NAPS.0;
    while word.load(Relaxed) == seen {
        let left = u64::from(nanos).saturating_sub(time::nanos(arch::ticks().wrapping_sub(since)));
        if left == 0 {
            return true;
        }
        nap(long.min(left));
        long = (long * 2).min(NAPS.1);
    }
    false
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

/// As [`futex_wait`], on a word that other processes have mapped, too.
pub fn futex_wait_shared(word: &core::sync::atomic::AtomicU32, seen: u32, nanos: u32) -> bool {
    wait_by(libc::FUTEX_WAIT, word, seen, nanos)
}

/// Wakes all sleepers on such a word, in whatever process.
pub fn futex_wake_shared(word: &core::sync::atomic::AtomicU32) {
    let _ = call!(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
}

/// Sleeps for `nanos` (less than a second), less if a signal comes; only gives the processor away
/// where filters forbid every way to sleep.
pub fn nap(nanos: u64) {
    let time = [0u64, nanos];
    if call!(libc::SYS_nanosleep, time.as_ptr(), 0) == Err(Errno::PERM) {
        nap_otherwise(&time);
    }
}

#[cold]
#[inline(never)]
fn nap_otherwise(time: &[u64; 2]) {
    static NOBODY_WAKES: AtomicU32 = AtomicU32::new(0);
    let (word, how) = (
        NOBODY_WAKES.as_ptr(),
        libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
    );
    let at = time.as_ptr();
    let done = |slept: Result<u64>| slept != Err(Errno::PERM);
    let slept = done(call!(
        libc::SYS_clock_nanosleep,
        libc::CLOCK_MONOTONIC,
        0,
        at,
        0
    )) || done(call!(libc::SYS_ppoll, 0, 0, at, 0, 8))
        || done(call!(libc::SYS_futex, word, how, 0, at));
    if !slept {
        yield_now();
    }
}

/// Gives the processor away.
pub fn yield_now() {
    if call!(libc::SYS_sched_yield).is_err() {
        core::hint::spin_loop();
    }
}

/// Signals are held back from this thread while this lives: what is begun is finished,
/// whatever their handlers do (siglongjmp), or libc's cancellation.
pub struct Undisturbed {
    /// What was held back before; `None`: a filter keeps the mask as it is.
    mask: Option<u64>,
}

impl Undisturbed {
    /// From now on.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let mut mask = 0;
        let changed = signal::change_mask(libc::SIG_SETMASK, &u64::MAX, Some(&mut mask));
        Self {
            mask: changed.is_ok().then_some(mask),
        }
    }

    /// Goes on after this is gone. What was held back before; `None`: a filter keeps the mask as it is.
    pub fn into_mask(self) -> Option<u64> {
        core::mem::ManuallyDrop::new(self).mask
    }

    /// Takes up again what [`Undisturbed::into_mask`] was told of.
    pub fn of_mask(mask: Option<u64>) -> Self {
        Self { mask }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if let Some(mask) = &self.mask {
            let _ = signal::change_mask(libc::SIG_SETMASK, mask, None);
        }
    }
}
