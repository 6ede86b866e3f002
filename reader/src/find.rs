//! Finds the files of processes: by what each of them has mapped, as the kernel tells it. What
//! lies in a folder under a process's name says nothing of that process.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::error::OpenError;
use super::file::{Directory, HeaderView};
use super::foreign::Foreign;
use super::process::{self, Mapping, Process};
use super::procfs;
use super::turns::{Again, Turns};
use regall_directory::addr::PAGE;
use regall_directory::layout::{
    segment_offset, HEADER_BYTES, NAMELESS, SEGMENTS, SLOT_BYTES, UNPUBLISHED,
};
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
/// Lines of a process's mappings that are read at first: most have fewer.
const FEW: usize = 2048;
/// How long a line takes to be read, about.
const LINE: Duration = Duration::from_micros(1);
/// Names in /dev/shm that are read: as many as a process's directory may have lines.
const MOST_NAMES: usize = 65_531;

/// Opens the directory of `pid`.
pub fn open(pid: u32) -> Result<Directory, OpenError> {
    open_in(Path::new(FOLDER_ROOT), pid)
}

/// Opens a directory with the users' folders under `root` instead of [`FOLDER_ROOT`].
pub fn open_in(root: &Path, pid: u32) -> Result<Directory, OpenError> {
    let process = Process::find(pid)?;
    first(root, &process, &mapped(&process, usize::MAX)?.named)
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

/// What was read of a process's mappings.
struct Mapped {
    /// What it has mapped the beginning of, and what is named as its directory is.
    named: Vec<Mapping>,
    lines: usize,
    /// There are more lines.
    cut: bool,
}

/// Reads a process's mappings, up to `most` lines.
fn mapped(process: &Process, most: usize) -> Result<Mapped, OpenError> {
    let (mut named, mut lines) = (Vec::new(), 0);
    process.each_mapping(|line| {
        lines += 1;
        if line.offset == 0 && line.inode != 0 && is_directory(line, process) {
            named.push(Mapping::from(*line));
        }
        // It has one. Others are somebody's jest.
        match named.len() < 4 && lines <= most {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    })?;
    let cut = lines > most;
    Ok(Mapped { named, lines, cut })
}

fn is_directory(line: &maps::Line<'_>, process: &Process) -> bool {
    is_nameless(line.name) || silence(line.name).is_some() || {
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
    memory_file(name) == Some(NAMELESS.to_bytes())
}

/// The errno for which the process that has it mapped has no directory.
fn silence(name: &[u8]) -> Option<i32> {
    let errno = memory_file(name)?.strip_prefix(UNPUBLISHED.as_bytes())?;
    std::str::from_utf8(errno).ok()?.parse().ok()
}

/// What a file that memfd_create(2) has made is called.
fn memory_file(name: &[u8]) -> Option<&[u8]> {
    let name = name.strip_prefix(b"/memfd:")?;
    name.strip_suffix(b" (deleted)")
}

fn opened(root: &Path, process: &Process, mapping: &Mapping) -> Result<Directory, OpenError> {
    if let Some(errno) = silence(mapping.name.as_bytes()) {
        return Err(OpenError::Silent(errno));
    }
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
    /// How long a look at it may take: it has so many mappings, and so long a directory.
    pub cost: Duration,
}

impl Seen {
    /// Returns whether it is still there.
    pub fn alive(&self) -> bool {
        process::start_time(self.pid).is_ok_and(|start| start == self.start_time)
    }
}

/// What a search for processes has found.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Search {
    /// The processes that have a directory, in order of their pids.
    pub seen: Vec<Seen>,
    /// Of these users, how many processes no time was left for.
    pub left: Vec<(u32, usize)>,
}

/// The processes that have a directory of this /dev/shm mapped, or could make none there, in order
/// of their pids: this user's own, or everybody's if it is root. Some may end or execute another program meanwhile: [`open`] says so.
pub fn published() -> Result<Vec<Seen>, OpenError> {
    search(None, None).map(|found| found.seen)
}

/// Looks for the processes that have a directory of this /dev/shm mapped: `user`'s, or everybody's.
/// Users take turns, until time is over.
pub fn search(user: Option<u32>, until: Option<Instant>) -> Result<Search, OpenError> {
    let us = Process::find(std::process::id())?;
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(owner) = owner(pid, user) {
            pids.push((owner, Duration::ZERO, (pid, FEW)));
        }
    }
    let mut found = Search::default();
    let mut folders = Folders::default();
    let mut turns = Turns::new(pids, until);
    let Ok(()) = turns.each(|_, _, (pid, most)| {
        Ok::<_, Infallible>(match seen(pid, most, &us, &mut folders) {
            Ok(seen) => {
                let seen = seen.filter(|seen| user.is_none_or(|user| seen.uid == user));
                found.seen.extend(seen);
                None
            }
            Err(Long) => Some(Again {
                pause: Duration::ZERO,
                cost: LINE * procfs::most_mappings() as u32,
                one: (pid, usize::MAX),
            }),
        })
    });
    let mut left = BTreeMap::new();
    for (owner, _) in turns.left() {
        *left.entry(owner).or_default() += 1;
    }
    found.left.extend(left);
    found.seen.sort_unstable_by_key(|seen| seen.pid);
    Ok(found)
}

/// Whose turn a look at `pid` takes; none if it can't be `user`'s. What somebody starts who becomes
/// another user by it is his own doing.
fn owner(pid: u32, user: Option<u32>) -> Option<u32> {
    let owner = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    // (Root's is also what must not be traced.)
    if user.is_none() && owner != 0 {
        return Some(owner);
    }
    let uids = process::uids(pid).ok()?;
    let [effective, real, _] = uids;
    let meant = user.is_none_or(|user| uids.contains(&user));
    meant.then_some(if effective == 0 { real } else { effective })
}

/// A process has more mappings than were to be read.
struct Long;

/// The process `pid`, if it has a directory of this /dev/shm, by the first `most` lines of its
/// mappings.
fn seen(pid: u32, most: usize, us: &Process, folders: &mut Folders) -> Result<Option<Seen>, Long> {
    let Ok(process) = Process::listed(pid, us.namespace) else {
        return Ok(None);
    };
    let named = |found: &Mapped| {
        let mut all = found.named.iter();
        all.any(|m| !is_nameless(m.name.as_bytes()))
    };
    let [effective, ..] = process.uids;
    let (uid, steps) = match mapped(&process, most) {
        Ok(found) if found.cut => return Err(Long),
        Ok(found) if named(&found) => {
            match first(Path::new(FOLDER_ROOT), &process, &found.named) {
                Ok(directory) => (directory.user(), found.lines + directory.slots()),
                // A container's, with a /dev/shm of its own; or it executes another program by now.
                Err(OpenError::Elsewhere | OpenError::Inert) => return Ok(None),
                Err(OpenError::Silent(_)) if !process.sees_what_we_see() => return Ok(None),
                Err(_) => (effective, found.lines),
            }
        }
        // Of those that have one it is to be said that they can't be looked at.
        Err(OpenError::Foreign | OpenError::Denied(_) | OpenError::TooLong)
            if folders.name(&process, us) =>
        {
            (effective, 0)
        }
        _ => return Ok(None),
    };
    Ok(Some(Seen {
        pid,
        start_time: process.start_time,
        uid,
        cost: LINE * u32::try_from(steps).unwrap_or(u32::MAX),
    }))
}

/// The folders of users, each looked for once: others can make it take long.
#[derive(Default)]
struct Folders(BTreeMap<u32, Vec<PathBuf>>);

impl Folders {
    /// Returns whether a folder of a process's users has a file of its name, as far as that
    /// concerns `us`: nobody but root asks for others.
    fn name(&mut self, process: &Process, us: &Process) -> bool {
        let [own, ..] = us.uids;
        if own != 0 && !process.uids.contains(&own) {
            return false;
        }
        let name = process.file_name();
        process.uids.iter().any(|uid| {
            let folders = self.0.entry(*uid).or_insert_with(|| folders(*uid));
            let mut paths = folders.iter().map(|folder| folder.join(&name));
            paths.any(|path| path.symlink_metadata().is_ok())
        })
    }
}

/// A user's folders, no more than there are names that can be foreseen.
fn folders(uid: u32) -> Vec<PathBuf> {
    let mut all = Vec::new();
    folder::each(folder::ROOT, uid, |_, folder| {
        if all.len() < MOST_FOLDERS {
            all.push(OsStr::from_bytes(folder.path().as_bytes()).into());
        }
    });
    all
}

impl Process {
    /// Whether its /dev/shm is ours: by the mount namespace.
    fn sees_what_we_see(&self) -> bool {
        let mounts = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        mounts("self") == mounts(&self.pid.to_string())
    }

    /// What its directory is called.
    pub(crate) fn file_name(&self) -> String {
        let (pid, start, namespace) = (self.own_pid, self.start_time, self.namespace);
        format!("{pid}.{start}.{namespace}")
    }
}

fn is_private(is: &fs::Metadata) -> bool {
    is.is_dir() && is.mode() & 0o077 == 0
}

/// What can't be seen from here.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Unseen {
    /// Of these users, how many processes with a directory are in other pid namespaces.
    pub processes: Vec<(u32, usize)>,
    /// Users of whose names in /dev/shm not all were looked through: they may have more.
    pub unknown: Vec<u32>,
}

impl Unseen {
    /// Returns whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.unknown.is_empty()
    }
}

/// How many processes there are with a directory in a pid namespace that can't be seen from here,
/// by their users: `user`'s, or everybody's, who take turns until time is over. None can be hidden
/// from the first namespace.
pub fn unseen(user: Option<u32>, until: Option<Instant>) -> Unseen {
    match Process::find(std::process::id()) {
        Ok(us) if us.namespace != ALL_PROCESSES => {
            unseen_in(Path::new(FOLDER_ROOT), us.namespace, user, until)
        }
        _ => Unseen::default(),
    }
}

fn unseen_in(root: &Path, ours: u64, user: Option<u32>, until: Option<Instant>) -> Unseen {
    let (folders, mut unknown) = all_folders(root);
    let meant = |uid: &u32| user.is_none_or(|user| user == *uid);
    let folders = folders.into_iter().filter(|(uid, _)| meant(uid));
    let folders = folders.map(|(uid, folder)| (uid, Duration::ZERO, folder));
    let known = inner(ours);
    let mut all: BTreeMap<u32, usize> = BTreeMap::new();
    let mut turns = Turns::new(folders, until);
    let Ok(()) = turns.each(|_, uid, folder: PathBuf| {
        let mut files = fs::read_dir(folder).into_iter().flatten().flatten();
        let elsewhere = files.by_ref().take(MOST).filter(|file| {
            let name = file.file_name();
            let name = name.to_string_lossy();
            let of = parse_name(&name).filter(|namespace| *namespace != ours);
            of.is_some() && !known.contains(&*name) && is_written(&file.path())
        });
        *all.entry(uid).or_default() += elsewhere.count();
        unknown.extend(files.next().map(|_| uid));
        Ok::<_, Infallible>(None)
    });
    unknown.extend(turns.left().map(|(uid, _)| uid));
    unknown.retain(meant);
    all.retain(|_, sum| *sum > 0);
    Unseen {
        processes: all.into_iter().collect(),
        unknown: unknown.into_iter().collect(),
    }
}

/// The names of processes that are in other pid namespaces and can be seen from here.
fn inner(ours: u64) -> HashSet<String> {
    let mut known = HashSet::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        let pid = pid.filter(|pid| process::namespace(*pid).is_ok_and(|of| of != ours));
        let process = pid.and_then(|pid| Process::find(pid).ok());
        known.extend(process.map(|p| p.file_name()));
    }
    known
}

/// All folders in `root`, with their users; and who has so many names there that some are left out.
fn all_folders(root: &Path) -> (Vec<(u32, PathBuf)>, BTreeSet<u32>) {
    let (mut found, mut unknown) = (Vec::new(), BTreeSet::new());
    let mut names: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    let mut entries = fs::read_dir(root).into_iter().flatten().flatten();
    for entry in entries.by_ref().take(MOST_NAMES) {
        let Ok(is) = entry.metadata() else { continue };
        let (all, folders) = names.entry(is.uid()).or_default();
        *all += 1;
        let name = entry.file_name();
        if !name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) || !is_private(&is) {
            continue;
        }
        *folders += 1;
        match *folders <= MOST_FOLDERS {
            true => found.push((is.uid(), entry.path())),
            false => drop(unknown.insert(is.uid())),
        }
    }
    // Whoever has made the most of them is why the others are not looked at.
    if entries.next().is_some() {
        let most = names.iter().max_by_key(|(_, (all, _))| *all);
        unknown.extend(most.map(|(uid, _)| *uid));
    }
    (found, unknown)
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
