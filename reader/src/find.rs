//! Finds the files of processes: by what each of them has mapped, as the kernel tells it. What
//! lies in a folder under a process's name says nothing of that process.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::file::Directory;
use super::foreign::Foreign;
use super::process::{self, Mapping, Process};
use super::{HeaderView, OpenError};
use regall_directory::addr::PAGE;
use regall_directory::layout::{segment_offset, HEADER_BYTES, NAMELESS, SEGMENTS, SLOT_BYTES};
use regall_directory::maps;
use regall_sys::file::Fd;
use regall_sys::folder;

/// Where the folders are, one for each user: `regall-UID`; see [`folder::Folder`].
pub const FOLDER_ROOT: &str = "/dev/shm";
/// What the name of each folder begins with.
const PREFIX: &str = "regall-";
/// Inode number of the first pid namespace, in which all processes are (PROC_PID_INIT_INO).
const ALL_PROCESSES: u64 = 0xefff_fffc;
/// Folders of a user's, and files of each, that are looked through for processes of other pid
/// namespaces.
const MOST_FOLDERS: usize = 8;
const MOST: usize = 4096;

/// Opens the directory of `pid`.
pub fn open(pid: u32) -> Result<Directory, OpenError> {
    open_in(Path::new(FOLDER_ROOT), pid)
}

/// Opens a directory with the users' folders under `root` instead of [`FOLDER_ROOT`].
pub fn open_in(root: &Path, pid: u32) -> Result<Directory, OpenError> {
    let process = Process::find(pid)?;
    first(root, &process, &mapped(&process)?)
}

/// The first directory among these mappings.
fn first(root: &Path, process: &Process, mappings: &[Mapping]) -> Result<Directory, OpenError> {
    let mut wrong = OpenError::Inert;
    for mapping in mappings {
        match opened(root, process, mapping) {
            Ok(directory) => return Ok(directory),
            Err(why) => wrong = why,
        }
    }
    Err(wrong)
}

/// What a process has mapped the beginning of, and what is named as its directory is.
fn mapped(process: &Process) -> Result<Vec<Mapping>, OpenError> {
    let mut found = Vec::new();
    process.each_mapping(|line| {
        if line.offset == 0 && line.inode != 0 && is_directory(line, process) {
            found.push(Mapping::from(*line));
        }
        // It has one. Others are somebody's jest.
        match found.len() {
            0..4 => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        }
    })?;
    Ok(found)
}

fn is_directory(line: &maps::Line<'_>, process: &Process) -> bool {
    is_nameless(line.name) || {
        let mut parts = line.name.rsplit(|b| *b == b'/');
        let named = parts.next() == Some(process.file_name().as_bytes());
        named
            && parts
                .next()
                .is_some_and(|f| f.starts_with(PREFIX.as_bytes()))
    }
}

/// Whether it is the file without a name of a process whose directory is for root alone.
fn is_nameless(name: &[u8]) -> bool {
    let name = name
        .strip_prefix(b"/memfd:")
        .and_then(|n| n.strip_suffix(b" (deleted)"));
    name == Some(NAMELESS.to_bytes())
}

fn opened(root: &Path, process: &Process, mapping: &Mapping) -> Result<Directory, OpenError> {
    let (start, end) = (mapping.range.start(), mapping.range.end());
    let file = if is_nameless(mapping.name.as_bytes()) {
        // The kernel opens what a process has mapped for nobody but root.
        let path = format!("/proc/{}/map_files/{start:x}-{end:x}", process.pid);
        Foreign::at(Path::new(&path)).map_err(refused_is_roots)?
    } else {
        let folder = Path::new(&mapping.name).parent().and_then(Path::file_name);
        let folder = root.join(folder.unwrap_or_default());
        let folder = Foreign::named(&folder).map_err(missing_is_elsewhere)?;
        if !is_private(&folder.is) {
            return Err(OpenError::Corrupt("its folder is open to others"));
        }
        let file = folder.inside(&process.file_name());
        file.map_err(missing_is_elsewhere)?
    };
    if !mapping.is_of(&file.is) {
        return Err(OpenError::Elsewhere);
    }
    Directory::of(file.open()?, process)
}

/// Bytes of a process's mappings that are kept free for a directory without a name, which is
/// mapped as long as it can ever be; 0 for any other.
pub fn kept_free(header: &HeaderView, mappings: &[Mapping]) -> u64 {
    let all = segment_offset(SEGMENTS) as u64;
    let slots = header.high_water.saturating_mul(SLOT_BYTES as u64).min(all);
    let used = (slots + HEADER_BYTES as u64).next_multiple_of(PAGE);
    let mut nameless = mappings.iter().filter(|m| is_nameless(m.name.as_bytes()));
    let nameless = nameless.find(|m| m.offset == 0);
    nameless.map_or(0, |m| m.range.len().saturating_sub(used))
}

fn refused_is_roots(e: std::io::Error) -> OpenError {
    match e.kind() {
        std::io::ErrorKind::NotFound => OpenError::Inert,
        std::io::ErrorKind::PermissionDenied => OpenError::Denied(
            "its directory is for root alone, since it may do more than its user's other processes",
        ),
        _ => e.into(),
    }
}

fn missing_is_elsewhere(e: std::io::Error) -> OpenError {
    match e.kind() {
        std::io::ErrorKind::NotFound => OpenError::Elsewhere,
        _ => e.into(),
    }
}

/// A process that has a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Its pid.
    pub pid: u32,
    /// Its start time, in clock ticks since boot: its pid may be another's by now.
    pub start_time: u64,
    /// Whose it is ([`Directory::user`]).
    pub uid: u32,
}

impl Seen {
    /// Returns whether it is still there.
    pub fn alive(&self) -> bool {
        process::start_time(self.pid).is_ok_and(|start| start == self.start_time)
    }
}

/// The processes that have a directory of this /dev/shm mapped, in order of their pids: this user's
/// own, or everybody's if it is root. Some may end or execute another program meanwhile: [`open`] says so.
pub fn published() -> Result<Vec<Seen>, OpenError> {
    let us = Process::find(std::process::id())?;
    let mut seen = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let Ok(process) = Process::listed(pid, us.namespace) else {
            continue;
        };
        let named = |found: &[Mapping]| found.iter().any(|m| !is_nameless(m.name.as_bytes()));
        let uid = match mapped(&process) {
            Ok(found) if named(&found) => match first(Path::new(FOLDER_ROOT), &process, &found) {
                Ok(directory) => directory.user(),
                // A container's, with a /dev/shm of its own; or it executes another program by now.
                Err(OpenError::Elsewhere | OpenError::Inert) => continue,
                Err(_) => process.uids[0],
            },
            // Of those that have one it is to be said that they can't be looked at.
            Err(OpenError::Foreign | OpenError::Denied(_) | OpenError::TooLong)
                if process.is_named(&us) =>
            {
                process.uids[0]
            }
            _ => continue,
        };
        let start_time = process.start_time;
        seen.push(Seen {
            pid,
            start_time,
            uid,
        });
    }
    seen.sort_unstable_by_key(|seen| seen.pid);
    Ok(seen)
}

impl Process {
    /// What its directory is called.
    pub(crate) fn file_name(&self) -> String {
        let (pid, start, namespace) = (self.own_pid, self.start_time, self.namespace);
        format!("{pid}.{start}.{namespace}")
    }

    /// Whether a folder of its user's has a file of its name, as far as that concerns `us`: nobody
    /// but root asks for others.
    fn is_named(&self, us: &Self) -> bool {
        let [own, ..] = us.uids;
        if own != 0 && !self.uids.contains(&own) {
            return false;
        }
        let name = self.file_name();
        let mut has = false;
        let mut uids = self.uids.to_vec();
        uids.dedup();
        for uid in uids {
            folder::each(folder::ROOT, uid, |_, folder| {
                let path = Path::new(OsStr::from_bytes(folder.path().as_bytes())).join(&name);
                has |= path.symlink_metadata().is_ok();
            });
        }
        has
    }
}

fn is_private(is: &fs::Metadata) -> bool {
    is.is_dir() && is.mode() & 0o077 == 0
}

/// How many processes there are with a directory in a pid namespace that can't be seen from here,
/// by their users. None can be hidden from the first namespace.
pub fn unseen() -> Vec<(u32, usize)> {
    let Ok(us) = Process::find(std::process::id()) else {
        return Vec::new();
    };
    if us.namespace == ALL_PROCESSES {
        return Vec::new();
    }
    let mut known = std::collections::HashSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        let process = pid.and_then(|pid| Process::find(pid).ok());
        known.extend(process.map(|p| p.file_name()));
    }
    // Of each user, how many folders were looked through, and how many processes there are.
    let mut all: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    let folders = fs::read_dir(FOLDER_ROOT).into_iter().flatten().flatten();
    for folder in folders {
        let name = folder.file_name();
        let ours = name.as_encoded_bytes().starts_with(PREFIX.as_bytes());
        let is = ours.then(|| folder.metadata().ok()).flatten();
        let Some(is) = is.filter(is_private) else {
            continue;
        };
        let (folders, sum) = all.entry(is.uid()).or_default();
        *folders += 1;
        if *folders > MOST_FOLDERS {
            continue;
        }
        let files = fs::read_dir(folder.path()).into_iter().flatten().flatten();
        let elsewhere = files.take(MOST).filter(|file| {
            let name = file.file_name();
            let name = name.to_string_lossy();
            let of = parse_name(&name).filter(|namespace| *namespace != us.namespace);
            of.is_some() && !known.contains(&*name) && is_written(&file.path())
        });
        *sum += elsewhere.count();
    }
    let all = all.into_iter().map(|(uid, (_, sum))| (uid, sum));
    all.filter(|(_, sum)| *sum > 0).collect()
}

/// The pid namespace in a file's name, `PID.STARTTIME.NAMESPACE`.
fn parse_name(name: &str) -> Option<u64> {
    let mut parts = name.split('.').map(|part| part.parse().ok());
    let (_pid, _start, namespace): (u64, u64, u64) =
        (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(namespace)
}

/// Whether a process has it mapped, and so is alive.
fn is_written(file: &Path) -> bool {
    use std::os::fd::IntoRawFd;
    // (Of a file with many names one would count as many processes.)
    let plain = |file: &Foreign| file.is.is_file() && file.is.nlink() == 1;
    let opened = Foreign::named(file).ok().filter(plain);
    let opened = opened.and_then(|file| file.open().ok());
    opened.is_some_and(|file| !Fd::owned(file.into_raw_fd()).is_written_by_nobody())
}

#[cfg(test)]
mod tests;
