//! Ids and capabilities: those of this thread by system calls, those of others from /proc.

use crate::entry::call;
use crate::errno::{Errno, Result};
use crate::file::{self, with_own_table, Fd};
use crate::process::may_be_filtered;
use crate::text::{number, Text};
use core::ffi::CStr;

/// What of a task's credentials decides who may trace it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Credentials {
    /// Real, effective, saved and file-system user.
    pub uids: [u32; 4],
    /// Real, effective, saved and file-system group ids.
    pub gids: [u32; 4],
    /// Capabilities that it may have.
    pub permitted: u64,
    /// Capabilities in effect.
    pub effective: u64,
    /// Capabilities that a program with the same in its file inherits.
    pub inheritable: u64,
    /// Capabilities that every executed program gets; 0 if not asked for.
    pub ambient: u64,
}

/// A user namespace: device and inode of its file under /proc/PID/ns.
pub type Namespace = (u64, u64);

/// Longer lines of a status file are cut; none that is looked for is longer: not the ids of a process
/// in 32 pid namespaces, which is as deep as they go.
const LINE: usize = 384;

impl Credentials {
    /// This thread's credentials, without the ambient set, and with the effective ids in the place of those
    /// for files: the kernel tells them to nobody but who calls setfsuid(2), which filters
    /// forbid. `None`: a system call was refused.
    pub fn current() -> Option<Self> {
        let mut uids = [0u32; 4];
        let mut gids = [0u32; 4];
        for (nr, ids) in [
            (libc::SYS_getresuid, &mut uids),
            (libc::SYS_getresgid, &mut gids),
        ] {
            let [real, effective, saved, files] = ids;
            call!(nr, &raw mut *real, &raw mut *effective, &raw mut *saved).ok()?;
            *files = *effective;
        }
        let mut header = [CAPABILITY_VERSION, 0];
        // Two of effective, permitted and inheritable: the low halves, then the high ones.
        let mut sets = [0u32; 6];
        call!(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()).ok()?;
        let [effective, permitted, inheritable, high @ ..] = sets;
        let set = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
        Some(Self {
            uids,
            gids,
            permitted: set(permitted, high[1]),
            effective: set(effective, high[0]),
            inheritable: set(inheritable, high[2]),
            ambient: 0,
        })
    }

    /// The credentials of process `pid`'s first thread, with the ids as this process's user
    /// namespace has them. ESRCH: there is none, or it can't be looked at.
    pub fn of(pid: u32) -> Result<Self> {
        let path: Text<32> = Text::of(format_args!("/proc/{pid}/status"));
        Self::read(path.as_cstr().ok_or(Errno::SRCH)?).ok_or(Errno::SRCH)
    }

    /// Reads a status file. `None`: it can't be read, or a line is missing.
    pub fn read(path: &CStr) -> Option<Self> {
        with_own_table(|| {
            let mut found = Self::default();
            let mut lines = 0;
            let all = each_line(&Fd::open(path, libc::O_RDONLY, 0).ok()?, |line| {
                lines += u32::from(found.take(line) == Some(true));
            });
            all.ok()?;
            (lines == 5).then_some(found)
        })
    }

    /// Takes a line in; whether it is one of those that every kernel has.
    fn take(&mut self, line: &[u8]) -> Option<bool> {
        let colon = line.iter().position(|b| *b == b':')?;
        let (name, value) = line.split_at(colon + 1);
        match name {
            b"Uid:" => self.uids = four(value)?,
            b"Gid:" => self.gids = four(value)?,
            b"CapInh:" => self.inheritable = hexadecimal(value)?,
            b"CapPrm:" => self.permitted = hexadecimal(value)?,
            b"CapEff:" => self.effective = hexadecimal(value)?,
            b"CapAmb:" => {
                self.ambient = hexadecimal(value)?;
                return Some(false);
            }
            _ => return None,
        }
        Some(true)
    }

    /// The effective user.
    pub fn uid(&self) -> u32 {
        self.uids[1]
    }

    /// The effective group.
    pub fn gid(&self) -> u32 {
        self.gids[1]
    }

    /// Whether all four users are one, and all four groups.
    pub fn agree(&self) -> bool {
        let one = |ids: &[u32; 4]| ids.iter().all(|id| *id == ids[0]);
        one(&self.uids) && one(&self.gids)
    }
}

/// The first 32 of the capabilities that are in effect for this thread.
pub fn effective() -> Result<u32> {
    let mut header = [CAPABILITY_VERSION, 0];
    let mut sets = [0u32; 6];
    call!(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr())?;
    Ok(sets[0])
}

/// Calls `f` while this thread does not have CAP_SYS_ADMIN in effect.
///
/// # Errors
/// EPERM: it has it, and a filter may forbid to lay it down.
pub fn without_sys_admin<T>(f: impl FnOnce() -> T) -> Result<T> {
    const SYS_ADMIN: u32 = 1 << 21;
    let mut header = [CAPABILITY_VERSION, 0];
    let mut sets = [0u32; 6];
    call!(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr())?;
    if sets[0] & SYS_ADMIN == 0 {
        return Ok(f());
    }
    if may_be_filtered() {
        return Err(Errno::PERM);
    }
    let set = |sets: &[u32; 6]| call!(libc::SYS_capset, header.as_ptr(), sets.as_ptr());
    let mut without = sets;
    without[0] &= !SYS_ADMIN;
    set(&without)?;
    let returned = f();
    // (There may be no memory for a moment.)
    let back = set(&sets).or_else(|_| set(&sets)).or_else(|_| set(&sets));
    back.map(|_| returned)
}

/// The capabilities that process `pid` may have, in its own user namespace. ESRCH: there is none.
pub fn permitted(pid: u32) -> Result<u64> {
    let header = [CAPABILITY_VERSION, pid];
    let mut sets = [0u32; 6];
    call!(libc::SYS_capget, header.as_ptr(), sets.as_mut_ptr())?;
    let [_, low, _, _, high, _] = sets;
    Ok(u64::from(high) << 32 | u64::from(low))
}

/// Whether a number means the same process in /proc as here. It does not where /proc is that of
/// an outer pid namespace: a process of this one has numbers in both, and there this one says so.
pub fn is_proc_ours() -> bool {
    with_own_table(|| {
        let (mut number_there, mut numbers) = (None, 1);
        let Ok(file) = Fd::open(c"/proc/self/status", libc::O_RDONLY, 0) else {
            return false;
        };
        let all = each_line(&file, |line| {
            if let Some(value) = line.strip_prefix(b"Pid:") {
                number_there = words(value).next().and_then(number);
            } else if let Some(value) = line.strip_prefix(b"NSpid:") {
                numbers = words(value).count();
            }
        });
        // (A child that reads it has a number of its own.)
        all.is_ok() && numbers == 1 && number_there == Some(u64::from(crate::identity::getpid()))
    })
}

/// The kernel's version 3 of capability sets.
pub const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Gives this thread `effective` and `permitted`, of those that it is permitted, and nothing to
/// pass on.
pub fn set_capabilities(effective: u64, permitted: u64) -> Result<()> {
    let header = [CAPABILITY_VERSION, 0];
    let (low, high) = (|set: u64| set as u32, |set: u64| (set >> 32) as u32);
    let sets = [
        low(effective),
        low(permitted),
        0,
        high(effective),
        high(permitted),
        0,
    ];
    call!(libc::SYS_capset, header.as_ptr(), sets.as_ptr()).map(drop)
}

/// The user namespace of `pid`; 0: this process's own. EACCES: whoever asks may not look at it.
pub fn user_namespace(pid: u32) -> Result<Namespace> {
    let path: Text<32> = match pid {
        0 => Text::of(format_args!("/proc/self/ns/user")),
        pid => Text::of(format_args!("/proc/{pid}/ns/user")),
    };
    let stat = file::stat_path(path.as_cstr().ok_or(Errno::SRCH)?, false)?;
    Ok((stat.dev, stat.inode))
}

/// Whose this process's user namespace is, as it sees it.
pub fn owner_of_namespace() -> Result<u32> {
    const NS_GET_OWNER_UID: u64 = 0xb704;
    let namespace = Fd::open(c"/proc/self/ns/user", libc::O_RDONLY, 0)?;
    let mut uid = u32::MAX;
    call!(
        libc::SYS_ioctl,
        namespace.raw(),
        NS_GET_OWNER_UID,
        &raw mut uid
    )?;
    Ok(uid)
}

fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value
        .split(|b| b.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
}

fn four(value: &[u8]) -> Option<[u32; 4]> {
    let mut ids = [0; 4];
    let mut found = words(value);
    for id in &mut ids {
        *id = u32::try_from(number(found.next()?)?).ok()?;
    }
    Some(ids)
}

fn hexadecimal(value: &[u8]) -> Option<u64> {
    words(value).next()?.iter().try_fold(0u64, |sum, byte| {
        let digit = char::from(*byte).to_digit(16)?;
        Some(sum << 4 | u64::from(digit))
    })
}

/// Calls `tell` for each line of a status file, cut to 384 bytes: that of the groups may be long.
/// Errors of pread(2): there may be more lines.
pub fn each_line(file: &Fd, mut tell: impl FnMut(&[u8])) -> Result<()> {
    let (mut buffer, mut line, mut used) = ([0u8; 512], [0u8; LINE], 0);
    let mut at = 0;
    loop {
        let bytes = file.read_on(&mut at, &mut buffer)?;
        if bytes == 0 {
            return Ok(());
        }
        for byte in buffer.iter().take(bytes) {
            match (byte, line.get_mut(used)) {
                (b'\n', _) => {
                    tell(line.get(..used).unwrap_or(&[]));
                    used = 0;
                }
                (byte, Some(place)) => {
                    *place = *byte;
                    used += 1;
                }
                (_, None) => (),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_says_of_itself_what_the_kernel_says_of_it() {
        let asked = Credentials::current().unwrap();
        let read = Credentials::read(c"/proc/thread-self/status").unwrap();
        assert_eq!(Credentials { ambient: 0, ..read }, asked);
        assert_eq!(Credentials::of(std::process::id()), Ok(read));
        assert_eq!(Credentials::of(u32::MAX), Err(Errno::SRCH));
        assert_eq!(permitted(std::process::id()), Ok(read.permitted));
        assert_eq!(permitted(i32::MAX as u32), Err(Errno::SRCH));
        assert!(is_proc_ours());
        assert_eq!(user_namespace(0), user_namespace(std::process::id()));
    }

    #[test]
    fn lines_are_taken_in() {
        let mut it = Credentials::default();
        assert_eq!(it.take(b"Uid:\t1000\t0\t1000\t7"), Some(true));
        assert_eq!(it.take(b"CapPrm:\t000001ffffffffff"), Some(true));
        assert_eq!(it.take(b"CapAmb:\t0000000000000002"), Some(false));
        assert_eq!(
            (it.take(b"Name:\tUid:"), it.take(b"Uid:\t1\t2")),
            (None, None)
        );
        assert_eq!(it.uids, [1000, 0, 1000, 7]);
        assert_eq!((it.permitted, it.ambient), ((1 << 41) - 1, 2));
        assert!(!it.agree() && Credentials::default().agree());
    }
}
