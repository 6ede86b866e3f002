//! Who this process and this thread are, to themselves and to the kernel.

use crate::entry::call;
use crate::errno::Errno;
use crate::links::read_link;
use crate::text::Text;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

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
    let text = read_link(c"/proc/self", &mut text).ok()?;
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
