//! Who a process is, from /proc.

use crate::entry::call;
use crate::errno::{Errno, Result};
use crate::file::{self, with_own_table, Fd};
use crate::filter;
use crate::memory::PAGE;
use crate::text::{number, Text};
use core::ffi::CStr;

/// Who a process is: a pid can come again, pid and start time together don't.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its pid, as it sees itself.
    pub pid: u32,
    /// Field 22 of /proc/PID/stat, clock ticks since boot.
    pub start: u64,
    /// Inode of the pid namespace.
    pub namespace: u64,
}

impl Identity {
    /// The identity of this process.
    pub fn own() -> Result<Self> {
        Ok(Self {
            pid: crate::identity::getpid(),
            start: Stat::own()?.start,
            namespace: own_namespace()?,
        })
    }
}

/// From the kernel's include/linux/sched.h.
const PF_EXITING: u64 = 4;
/// SIGKILL, among the signals that a thread has not taken yet.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);

/// Inode of this process's pid namespace.
pub fn own_namespace() -> Result<u64> {
    file::stat_path(c"/proc/self/ns/pid", false).map(|s| s.inode)
}

/// Whether this process's first thread has ended: a zombie has no memory, and so no program. `None`:
/// /proc does not say. No descriptor is made.
pub fn first_thread_has_ended() -> Option<bool> {
    match file::read_link(c"/proc/self/exe", &mut [0]) {
        Ok(_) => Some(false),
        // Or there is no /proc.
        Err(Errno::NOENT) if file::stat_path(c"/proc/self/task", false).is_ok() => Some(true),
        Err(_) => None,
    }
}

/// What is needed of a /proc/PID/stat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// Field 3: `R`, `S`, `T`, `Z`...
    pub state: u8,
    /// Whether its first thread is on its way out (PF_EXITING in field 9), or will be as soon
    /// as it runs (SIGKILL in field 31): its memory goes before it becomes a zombie.
    pub exiting: bool,
    /// Field 20: threads. A zombie with others than its first is a process still.
    pub threads: u64,
    /// Field 22: when it started, in clock ticks since boot.
    pub start: u64,
    /// Fields 23 and 24: bytes that are mapped and not resident.
    pub absent: u64,
    /// Field 52: how its first thread has ended, as wait(2) has it; 0 if it has not, or
    /// nobody may know.
    pub ended: u64,
}

impl Stat {
    /// The status of this process. Opened in the table of its descriptors: a child that opened it in
    /// another one would read its own.
    pub fn own() -> Result<Self> {
        let mut buf = [0u8; 1024];
        Self::parse(file::read_small_here(c"/proc/self/stat", &mut buf)?)
    }

    /// The status of `pid`, as [`Stat::read`].
    pub fn of(pid: u64) -> Result<Self> {
        let path: Text<64> = Text::of(format_args!("/proc/{pid}/stat"));
        Self::read(path.as_cstr().ok_or(Errno::SRCH)?)
    }

    /// The status of `pid`'s thread `tid`, likewise.
    pub fn of_thread(pid: u64, tid: u64) -> Result<Self> {
        let path: Text<64> = Text::of(format_args!("/proc/{pid}/task/{tid}/stat"));
        Self::read(path.as_cstr().ok_or(Errno::SRCH)?)
    }

    /// Reads it. EINVAL: it is not what the kernel writes; and the errors of open(2) and
    /// read(2).
    fn read(path: &CStr) -> Result<Self> {
        let mut buf = [0u8; 1024];
        Self::parse(file::read_small(path, &mut buf)?)
    }

    /// From what is in it. EINVAL: it is not what the kernel writes.
    pub fn parse(text: &[u8]) -> Result<Self> {
        // The name in field 2 may hold anything, parentheses too: count from its end.
        let after = text.iter().rposition(|b| *b == b')').ok_or(Errno::INVAL)?;
        let rest = text.get(after + 1..).unwrap_or(&[]);
        // Behind the parenthesis: an empty piece, field 3, ...
        let field = |n: usize| rest.split(|b| *b == b' ').nth(n - 2).ok_or(Errno::INVAL);
        let count = |n| number(field(n)?.trim_ascii_end()).ok_or(Errno::INVAL);
        Ok(Self {
            state: *field(3)?.first().ok_or(Errno::INVAL)?,
            exiting: count(9)? & PF_EXITING != 0 || count(31).unwrap_or(0) & KILLED != 0,
            threads: count(20)?,
            start: count(22)?,
            absent: count(23)?.saturating_sub(count(24)?.saturating_mul(PAGE)),
            ended: count(52).unwrap_or(0),
        })
    }

    /// Whether it has ended, and only waits to be waited for.
    pub fn over(&self) -> bool {
        matches!(self.state, b'Z' if self.threads <= 1) || matches!(self.state, b'X' | b'x')
    }
}

/// The hexadecimal number (one digit is decimal as well) behind `name` in this thread's
/// /proc/self/status.
pub fn own_status(name: &[u8]) -> Option<u64> {
    own_number(name, 16)
}

/// This process's parent, as /proc says: 0 if it is in another pid namespace. A seccomp filter may
/// trap a program's calls of getppid, and only those.
pub fn own_parent() -> Option<u64> {
    // (Not by a child, whose parent is this process.)
    read_own_number(b"PPid:", 10)
}

/// The number behind `name` in this thread's /proc/self/status, which may be long: the groups
/// that it is in come before much else.
fn own_number(name: &[u8], radix: u32) -> Option<u64> {
    with_own_table(|| read_own_number(name, radix))
}

fn read_own_number(name: &[u8], radix: u32) -> Option<u64> {
    let file = Fd::open(c"/proc/thread-self/status", libc::O_RDONLY, 0).ok()?;
    let mut buf = [0u8; 512];
    // How much of the name this line has so far; `None`: it is another one.
    let mut matched = Some(0);
    let (mut value, mut at) = (0u64, 0);
    loop {
        let used = file
            .read_on(&mut at, &mut buf)
            .ok()
            .filter(|used| *used > 0)?;
        for &byte in buf.get(..used)? {
            matched = match matched {
                Some(n) if n == name.len() => match char::from(byte).to_digit(radix) {
                    _ if byte == b'\n' => return Some(value),
                    Some(digit) => {
                        value = value.wrapping_mul(radix.into()).wrapping_add(digit.into());
                        matched
                    }
                    None => matched,
                },
                _ if byte == b'\n' => Some(0),
                Some(n) => (name.get(n) == Some(&byte)).then_some(n + 1),
                None => None,
            };
        }
    }
}

/// What /proc says of a thread under a seccomp filter (SECCOMP_MODE_FILTER).
const FILTER: u64 = 2;

/// Whether /proc says that this thread is under a seccomp filter, which may forbid any call, and
/// kill who makes it. Without /proc nobody says so.
pub fn is_filtered() -> bool {
    filter::count() != 0 || own_status(b"Seccomp:") == Some(FILTER)
}

/// Whether /proc says that this thread is under no seccomp filter.
pub fn is_free() -> bool {
    own_status(b"Seccomp:") == Some(0)
}

/// How many seccomp filters this thread is under, as /proc says. Linux before 5.9 says only
/// whether it is under any: that is 1.
pub fn filters() -> u64 {
    own_number(b"Seccomp_filters:", 10).unwrap_or_else(|| is_filtered().into())
}

/// As [`is_filtered`], for what can be left undone: without /proc there may be one.
pub fn may_be_filtered() -> bool {
    filter::count() != 0 || own_status(b"Seccomp:") != Some(0)
}

/// Whether this program has rights that whoever started it has not: setuid, setgid, or
/// capabilities of its file. The kernel's word (AT_SECURE); where that can't be read, as
/// what the program has.
pub fn is_privileged() -> bool {
    let mut buf = [0u8; 1024];
    if let Ok(vector) = file::read_small(c"/proc/self/auxv", &mut buf) {
        if let Some(secure) = auxiliary(vector, libc::AT_SECURE) {
            return secure != 0;
        }
    }
    let id = |call: i64| call!(call).unwrap_or(0);
    let user = id(libc::SYS_geteuid);
    id(libc::SYS_getuid) != user
        || id(libc::SYS_getgid) != id(libc::SYS_getegid)
        || user != 0 && permitted_capabilities() != 0
}

/// The value of `key` in an auxiliary vector.
fn auxiliary(vector: &[u8], key: u64) -> Option<u64> {
    let word = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).ok().map(u64::from_ne_bytes);
    let pair = vector
        .chunks_exact(16)
        .map(|pair| pair.split_at(8))
        .find(|(name, _)| word(name) == Some(key));
    pair.and_then(|(_, value)| word(value))
}

/// What this thread may have, the first 32 of them and the others.
fn permitted_capabilities() -> u64 {
    let mut header = [0x2008_0522u32, 0];
    // The kernel's version 3: two sets of effective, permitted and inheritable.
    let mut data = [0u32; 6];
    match call!(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()) {
        Ok(_) => u64::from(data[4]) << 32 | u64::from(data[1]),
        Err(_) => 0,
    }
}

/// Whether the process `pid` that was made here has ended: it may still have to be waited for,
/// or there is none. Nothing is taken from who will wait.
pub fn has_ended(pid: u64) -> bool {
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // struct siginfo: 128 bytes, si_pid behind three ints and padding.
    let mut info = [0u32; 32];
    let found = call!(
        libc::SYS_waitid,
        libc::P_PID,
        pid,
        info.as_mut_ptr(),
        options,
        0
    );
    match found {
        Ok(_) => info[4] != 0,
        // It has been waited for, or is its maker's parent's (CLONE_PARENT).
        Err(Errno::CHILD) => !lives(pid),
        Err(_) => false,
    }
}

/// Whether there is a process `pid` that has not ended.
fn lives(pid: u64) -> bool {
    let handle = match call!(libc::SYS_pidfd_open, pid, 0) {
        Ok(fd) => Fd::owned(fd as i32),
        Err(Errno::SRCH) => return false,
        Err(_) => return exists(pid),
    };
    // struct pollfd: descriptor, what is asked for, what there is. To be read from: it has ended.
    let mut poll = [handle.raw() as u64 & 0xffff_ffff | (libc::POLLIN as u64) << 32];
    call!(libc::SYS_poll, poll.as_mut_ptr(), 1, 0) != Ok(1)
}

/// Whether there is a process `pid` here, if only one that waits to be waited for.
pub fn exists(pid: u64) -> bool {
    call!(libc::SYS_kill, pid, 0) != Err(Errno::SRCH)
}

/// What prctl(2) says of PR_GET_DUMPABLE.
pub fn dumpable() -> Result<u64> {
    call!(libc::SYS_prctl, libc::PR_GET_DUMPABLE)
}

/// Lets every process trace this one as far as Yama goes (PR_SET_PTRACER). EINVAL without Yama.
pub fn permit_tracers() -> Result<()> {
    const ANY: u64 = u64::MAX;
    call!(libc::SYS_prctl, libc::PR_SET_PTRACER, ANY).map(drop)
}

/// Names this thread, by 15 bytes at the most.
pub fn name_thread(name: &CStr) {
    let _ = call!(libc::SYS_prctl, libc::PR_SET_NAME, name.as_ptr());
}

/// Waits for the child `pid`, so that nobody else has to.
pub fn reap(pid: u64) {
    let options = libc::WEXITED | libc::__WALL;
    while call!(libc::SYS_waitid, libc::P_PID, pid, 0, options, 0) == Err(Errno::INTR) {}
}

/// Ends this thread.
pub fn exit_thread(status: u32) -> ! {
    loop {
        let _ = call!(libc::SYS_exit, status);
        // A filter forbids it.
        crate::sleep::nap(500_000_000);
    }
}

/// Ends this process.
pub fn exit(status: i32) -> ! {
    loop {
        let _ = call!(libc::SYS_exit_group, status);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_our_status() {
        let us = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        for name in ["Seccomp:", "CapPrm:", "CapBnd:"] {
            let line = us.lines().find_map(|l| l.strip_prefix(name)).unwrap();
            let value = u64::from_str_radix(line.trim(), 16).unwrap();
            assert_eq!(own_status(name.as_bytes()), Some(value), "{name}");
        }
        assert_eq!(own_status(b"Nothing:"), None);
        let parent = std::os::unix::process::parent_id();
        assert_eq!(own_parent(), Some(parent.into()));
    }

    #[test]
    fn tests_are_not_privileged_and_their_user_is_in_the_auxiliary_vector() {
        assert!(!is_privileged());
        let vector = std::fs::read("/proc/self/auxv").unwrap();
        let user = u64::from(crate::identity::geteuid());
        assert_eq!(auxiliary(&vector, libc::AT_EUID), Some(user));
        assert_eq!(auxiliary(&vector, libc::AT_SECURE), Some(0));
        assert_eq!(auxiliary(&[], libc::AT_SECURE), None);
    }

    #[test]
    fn who_is_no_child_of_ours_lives_until_it_ends() {
        let mut child = std::process::Command::new("sleep")
            .arg("100")
            .spawn()
            .unwrap();
        let pid = u64::from(child.id());
        assert!(lives(pid) && !has_ended(pid));
        child.kill().unwrap();
        // Ended, and not waited for.
        while !has_ended(pid) {
            std::thread::yield_now();
        }
        assert!(!lives(pid));
        child.wait().unwrap();
        assert!(!lives(pid) && has_ended(pid));
        // SAFETY: asks for a number.
        let parent = unsafe { libc::getppid() };
        assert!(!has_ended(parent as u64), "no child of ours");
    }

    #[test]
    fn a_child_that_has_ended_is_over() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let path = std::ffi::CString::new(format!("/proc/{}/stat", child.id())).unwrap();
        assert!(Stat::read(&path).unwrap().over());
        child.wait().unwrap();
        assert_eq!(Stat::read(&path).unwrap_err(), Errno::NOENT);
        let us = Stat::own().unwrap();
        assert!(!us.over() && !us.exiting && us.threads >= 1 && us.start > 0);
    }
}
