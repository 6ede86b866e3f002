//! Which processes have a directory, and whose it is.

use crate::wire;
use regall_directory::layout::{segment_offset, HEADER_BYTES, SEGMENTS};
use regall_sys::credentials;
use regall_sys::file::Fd;
use regall_sys::folder::{self, Folder};
use regall_sys::process::{own_namespace, Identity, Stat};
use regall_sys::text::{number, Text};
use regall_sys::{file, Errno, Result};

/// A process under the shim, as it is found from outside.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its pid, as we see it.
    pub pid: u32,
    /// Who it is, as it sees itself.
    pub identity: Identity,
    /// Whose its folder is, as we see it.
    pub uid: u32,
    /// The folder, named as it sees itself.
    pub folder: Folder,
}

impl Found {
    /// Where its helper listens.
    pub fn socket(&self) -> Text<108> {
        let name = name(&self.identity);
        wire::socket_path(self.folder.path().as_bytes(), name.as_bytes())
    }
}

/// Finds the process `pid`.
///
/// ESRCH: there is none; EXDEV: there is one of that number in another pid namespace
/// that shares /dev/shm with us, and it can't be reached by its pid from here.
pub fn process(pid: u32) -> Result<Found> {
    let path: Text<32> = Text::of(format_args!("/proc/{pid}/status"));
    let opened = path.as_cstr().ok_or(Errno::SRCH);
    let opened = opened.and_then(|path| Fd::open(path, libc::O_RDONLY, 0));
    let (uid, own) = match opened.and_then(|file| numbers(&file)) {
        Ok(found) => found,
        Err(e) if is_shortage(e) => return Err(e),
        Err(_) => return Err(elsewhere(pid)),
    };
    // The numbers in /proc are others where a process was put into a pid namespace of its own
    // without a /proc of its own, and process_vm_readv would reach somebody else.
    if !credentials::is_proc_ours() {
        return Err(Errno::XDEV);
    }
    let (uid, own) = (uid.ok_or(Errno::SRCH)?, own.unwrap_or(u64::from(pid)));
    let namespace: Text<32> = Text::of(format_args!("/proc/{pid}/ns/pid"));
    // That of a process which can't be traced isn't shown: it is ours, most likely. If not,
    // its directory is not found.
    let namespace = namespace
        .as_cstr()
        .and_then(|path| file::stat_path(path, false).ok())
        .map_or_else(own_namespace, |s| Ok(s.inode))?;
    let identity = Identity {
        pid: own as u32,
        start: started(pid)?,
        namespace,
    };
    let uid = uid as u32;
    let folder = folder_of(&identity, uid);
    Ok(Found {
        pid,
        identity,
        uid,
        folder,
    })
}

/// The folder in which `identity` has its directory. It belongs to `uid`, as we see it, but
/// in another user namespace the user has another number, and that is in the name.
fn folder_of(identity: &Identity, uid: u32) -> Folder {
    let name = name(identity);
    let first = Folder { uid, n: 0 };
    match has(first, uid, &name) {
        true => first,
        false => search(uid, &name, first).unwrap_or(first),
    }
}

/// The same process with another folder, if there is one: a directory in the first may be
/// what it has left that was in another user namespace before an exec.
#[cold]
pub fn another(found: &Found) -> Option<Found> {
    let folder = search(found.uid, &name(&found.identity), found.folder)?;
    Some(Found { folder, ..*found })
}

fn has(folder: Folder, uid: u32, name: &Text<96>) -> bool {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    open_in(folder, uid, name, flags).is_ok()
}

/// A folder of `uid`'s that has it, other than `not`.
#[cold]
fn search(uid: u32, name: &Text<96>, not: Folder) -> Option<Folder> {
    let mut found = None;
    let other = |folder: &Folder| *folder != not;
    folder::each_named(folder::ROOT, uid, other, |folder| {
        found = has(folder, uid, name).then_some(folder);
        found.is_none()
    });
    found
}

/// What the directory of `identity` is called.
fn name(identity: &Identity) -> Text<96> {
    let Identity {
        pid,
        start,
        namespace,
    } = identity;
    Text::of(format_args!("{pid}.{start}.{namespace}"))
}

fn open_in(folder: Folder, uid: u32, name: &Text<96>, flags: i32) -> Result<Fd> {
    let path = folder.path();
    let folder = folder::open_existing(path.as_cstr().ok_or(Errno::INVAL)?, uid)?;
    Fd::open_in(&folder, name.as_cstr().ok_or(Errno::INVAL)?, flags, 0)
}

/// Whether an error says that this process has nothing left to look with, and so nothing of
/// what it wants to look at.
pub fn is_shortage(e: Errno) -> bool {
    matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

/// Field 22 of /proc/PID/stat; ESRCH if there is no such process, or it has ended; EMFILE,
/// ENFILE, ENOMEM: it can't be looked at.
pub fn started(pid: u32) -> Result<u64> {
    stat(pid).map(|stat| stat.start)
}

/// Reads a process's /proc/PID/stat; errors as [`started`]'s.
pub fn stat(pid: u32) -> Result<Stat> {
    match Stat::of(pid.into()) {
        Ok(stat) if !stat.over() => Ok(stat),
        Err(e) if is_shortage(e) => Err(e),
        _ => Err(Errno::SRCH),
    }
}

/// Of a status file: the effective user, and the pid as the process sees it.
fn numbers(status: &Fd) -> Result<(Option<u64>, Option<u64>)> {
    let (mut uid, mut own) = (None, None);
    credentials::each_line(status, |line| {
        uid = uid.or_else(|| field(line, b"Uid:", 1));
        own = own.or_else(|| field(line, b"NSpid:", usize::MAX));
    })?;
    Ok((uid, own))
}

/// Number `n` (from 0) of the numbers in a line that begins with `name`; its last if there are
/// fewer.
fn field(line: &[u8], name: &[u8], n: usize) -> Option<u64> {
    let numbers = line
        .strip_prefix(name)?
        .split(|b| b.is_ascii_whitespace())
        .filter(|w| !w.is_empty());
    numbers.take(n.saturating_add(1)).last().and_then(number)
}

/// What is to be said of a pid that is not in our /proc.
fn elsewhere(pid: u32) -> Errno {
    let here = own_namespace();
    let mut foreign = false;
    each_file(regall_sys::geteuid(), |it, _| {
        foreign |= it.pid == pid && Ok(it.namespace) != here;
    });
    match foreign {
        true => Errno::XDEV,
        false => Errno::SRCH,
    }
}

/// Opens the directory of `found`; ENOENT if it runs without the shim, or has not published
/// anything yet.
pub fn open_directory(found: &Found) -> Result<Fd> {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let fd = open_in(found.folder, found.uid, &name(&found.identity), flags)?;
    let stat = fd.stat()?;
    let plain = stat.mode & libc::S_IFMT == libc::S_IFREG && stat.uid == found.uid;
    let fits = (HEADER_BYTES as u64..=segment_offset(SEGMENTS) as u64).contains(&stat.size);
    match plain && fits {
        true => Ok(fd),
        // Just created: its writer allocates its first part in one step.
        false if plain && stat.size == 0 => Err(Errno::NOENT),
        false => Err(Errno::PERM),
    }
}

/// Opens the file of `found` beside its directory that is named as it with `.kind` behind.
pub fn open_file(found: &Found, kind: &str, flags: i32) -> Result<Fd> {
    let mut name = name(&found.identity);
    name.push(b".");
    name.push(kind.as_bytes());
    open_in(found.folder, found.uid, &name, flags)
}

/// Calls `tell` for each process of this user, in this pid namespace, that has a
/// directory and is alive.
pub fn each(mut tell: impl FnMut(&Found)) {
    let uid = regall_sys::geteuid();
    let here = own_namespace();
    each_file(uid, |it, folder| {
        let alive = Ok(it.namespace) == here && started(it.pid) == Ok(it.start);
        if alive {
            tell(&Found {
                pid: it.pid,
                identity: *it,
                uid,
                folder,
            });
        }
    });
}

/// Calls `tell` for each file in `uid`'s folders that is named as a directory.
fn each_file(uid: u32, mut tell: impl FnMut(&Identity, Folder)) {
    folder::each(folder::ROOT, uid, |opened, folder| {
        each_name(&opened, |name| {
            let mut fields = name.split(|b| *b == b'.').map(number);
            let mut next = || fields.next().flatten();
            if let (Some(pid), Some(start), Some(namespace)) = (next(), next(), next()) {
                let identity = Identity {
                    pid: pid as u32,
                    start,
                    namespace,
                };
                if fields.next().is_none() {
                    tell(&identity, folder);
                }
            }
        });
    });
}

/// Calls `tell` for each name in an open folder.
fn each_name(folder: &Fd, mut tell: impl FnMut(&[u8])) {
    let _ = folder.each_entry(usize::MAX, |name| {
        tell(name);
        true
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn we_are_found() {
        let pid = std::process::id();
        let found = process(pid).unwrap();
        assert_eq!(found.identity, Identity::own().unwrap());
        assert_eq!(found.uid, regall_sys::geteuid());
        assert_eq!(process(u32::MAX).unwrap_err(), Errno::SRCH);
    }

    #[test]
    fn numbers_behind_many_groups_and_many_namespaces() {
        let text = |groups: usize, depth: usize| {
            let groups = " 4294967294".repeat(groups);
            let pids = "\t4194303".repeat(depth);
            format!("Name:\tx\nUid:\t1\t2\t3\t4\nGroups:\t{groups}\nNSpid:{pids}\t3\n")
        };
        for (groups, depth) in [(0, 0), (1, 1), (300, 1), (65536, 32)] {
            let path = std::env::temp_dir().join(format!("regall-find-{}", std::process::id()));
            std::fs::write(&path, text(groups, depth)).unwrap();
            let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
            let found = Fd::open(&c_path, libc::O_RDONLY, 0).and_then(|file| numbers(&file));
            std::fs::remove_file(&path).unwrap();
            assert_eq!(found, Ok((Some(2), Some(3))), "{groups} {depth}");
        }
    }
}
