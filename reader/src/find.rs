//! Finds the files of processes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::file::{Directory, HeaderView};
use super::process::{Mapping, Process};
use super::OpenError;
use regall_directory::addr::PAGE;
use regall_directory::layout::{segment_offset, HEADER_BYTES, NAMELESS, SEGMENTS, SLOT_BYTES};
use regall_sys::folder::Folder;

/// Where the folders are, one for each user: `regall-UID`; see [`Folder`].
pub const FOLDER_ROOT: &str = "/dev/shm";

/// Of open(2), which std has no names for.
mod flags {
    pub const ELOOP: i32 = 40;
    pub const O_NONBLOCK: i32 = 0o4000;
    #[cfg(any(target_arch = "aarch64", target_arch = "arm"))]
    pub const O_NOFOLLOW: i32 = 0o100000;
    #[cfg(not(any(target_arch = "aarch64", target_arch = "arm")))]
    pub const O_NOFOLLOW: i32 = 0o400000;
}

/// Opens the directory of `pid`.
pub fn open(pid: u32) -> Result<Directory, OpenError> {
    open_in(Path::new(FOLDER_ROOT), pid)
}

/// Opens a directory with the users' folders under `root` instead of [`FOLDER_ROOT`].
pub fn open_in(root: &Path, pid: u32) -> Result<Directory, OpenError> {
    let directory = find_in(root, pid)?;
    directory.mappings()?;
    Ok(directory)
}

/// [`open`] for those who ask for [`Directory::mappings`] themselves, which
/// costs 20 ms of a process with 60,000: until they have, the file may be what
/// an earlier image of the process left.
pub fn find(pid: u32) -> Result<Directory, OpenError> {
    find_in(Path::new(FOLDER_ROOT), pid)
}

fn find_in(root: &Path, pid: u32) -> Result<Directory, OpenError> {
    let process = Process::find(pid)?;
    let mut found = some(&process, folders(root, &process));
    if found.directories.is_empty() {
        // Its maps may be long: they are read where they must be.
        found.merge(some(&process, former_folders(root, &process).into_iter()));
    }
    if found.directories.is_empty() {
        found.directories.extend(nameless(&process)?);
    }
    // An image from before exec, in another user namespace, may have left one, too.
    let mapped = |d: &Directory| d.mappings().is_ok();
    let n = match found.directories.len() {
        0 | 1 => 0,
        _ => found.directories.iter().position(mapped).unwrap_or(0),
    };
    let wrong = found.wrong.unwrap_or(OpenError::Inert);
    found.directories.into_iter().nth(n).ok_or(wrong)
}

/// What a search has found.
struct Found {
    directories: Vec<Directory>,
    /// What is wrong with the first file or folder that can't be right. It counts only if no
    /// place has a directory: anybody can make a folder of a user's name before that user
    /// does, who then takes another.
    wrong: Option<OpenError>,
}

impl Found {
    fn merge(&mut self, other: Self) {
        self.directories.extend(other.directories);
        self.wrong = self.wrong.take().or(other.wrong);
    }
}

/// The files of a process in those folders.
fn some(process: &Process, folders: impl Iterator<Item = (PathBuf, u32)>) -> Found {
    let mut found = Found {
        directories: Vec::new(),
        wrong: None,
    };
    for (folder, uid) in folders {
        match open_as(&folder, process, uid) {
            Ok(directory) => found.directories.push(directory),
            Err(OpenError::Inert) => (),
            Err(why) => found.wrong = found.wrong.or(Some(why)),
        }
    }
    found
}

/// The folders that may have a process's file, and whose they must be: those of its uids;
/// and those of its user that are named by other numbers, which the user has in another user
/// namespace.
fn folders<'a>(
    root: &'a Path,
    process: &'a Process,
) -> impl Iterator<Item = (PathBuf, u32)> + use<'a> {
    let uids = &process.uids;
    let first = |(n, uid): &(usize, &u32)| uids.iter().position(|u| u == *uid) == Some(*n);
    let own = move |(_, uid): (usize, &u32)| (root.join(format!("regall-{uid}")), *uid);
    let all = std::iter::once_with(move || fs::read_dir(root).into_iter().flatten().flatten());
    let renumbered = all.flatten().filter_map(|entry| {
        let folder = Folder::named(entry.file_name().as_encoded_bytes())?;
        let owner = entry.metadata().ok()?.uid();
        let renumbered = uids.contains(&owner) && (folder.n > 0 || !uids.contains(&folder.uid));
        renumbered.then(|| (entry.path(), owner))
    });
    uids.iter()
        .enumerate()
        .filter(first)
        .map(own)
        .chain(renumbered)
}

/// Where a process has its file that has become somebody else since: the file's name is in
/// its maps, and the uid of then in the folder's.
fn former_folders(root: &Path, process: &Process) -> Vec<(PathBuf, u32)> {
    let mappings = process.mappings().into_iter().flatten();
    let mut folders: Vec<_> = mappings
        .filter_map(|m| {
            let inside = m.name.strip_prefix(root.to_str()?)?.strip_prefix('/')?;
            let name = inside.split('/').next()?;
            let folder = Folder::named(name.as_bytes()).filter(|f| f.n == 0)?;
            Some((root.join(name), folder.uid))
        })
        .collect();
    folders.dedup();
    folders
}

/// The file without a name of a process whose directory is for root alone: the kernel opens
/// what a process has mapped for nobody else.
fn nameless(process: &Process) -> Result<Option<Directory>, OpenError> {
    let mappings = process.mappings().unwrap_or_default();
    let Some(mapping) = nameless_among(&mappings) else {
        return Ok(None);
    };
    let (start, end) = (mapping.range.start(), mapping.range.end());
    let path = PathBuf::from(format!("/proc/{}/map_files/{start:x}-{end:x}", process.pid));
    let file = File::open(&path).map_err(|e| match e.kind() {
        std::io::ErrorKind::PermissionDenied => OpenError::Foreign,
        _ => missing_is_inert(e),
    })?;
    let uid = file.metadata()?.uid();
    Directory::of(file, process, path, uid).map(Some)
}

fn nameless_among(mappings: &[Mapping]) -> Option<&Mapping> {
    let name = format!("/memfd:{} (deleted)", NAMELESS.to_string_lossy());
    mappings.iter().find(|m| m.name == name && m.offset == 0)
}

/// Bytes of a process's mappings that are kept free for a directory without a name, which is
/// mapped as long as it can ever be; 0 for any other.
pub fn kept_free(header: &HeaderView, mappings: &[Mapping]) -> u64 {
    let all = segment_offset(SEGMENTS) as u64;
    let slots = header.high_water.saturating_mul(SLOT_BYTES as u64).min(all);
    let used = (slots + HEADER_BYTES as u64).next_multiple_of(PAGE);
    nameless_among(mappings).map_or(0, |m| m.range.len().saturating_sub(used))
}

/// Opens the file that `process` made in a folder which must be `uid`'s.
fn open_as(folder: &Path, process: &Process, uid: u32) -> Result<Directory, OpenError> {
    let path = folder.join(format!(
        "{}.{}.{}",
        process.own_pid, process.start_time, process.namespace
    ));
    // A folder without a file of that name has no part in it, whatever else it is.
    check_folder(folder, uid).map_err(|why| match path.symlink_metadata() {
        Ok(_) => why,
        Err(_) => OpenError::Inert,
    })?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags::O_NOFOLLOW | flags::O_NONBLOCK)
        .open(&path)
        .map_err(|e| match e.raw_os_error() {
            Some(flags::ELOOP) => OpenError::Corrupt("its file is a symbolic link"),
            _ => missing_is_inert(e),
        })?;
    Directory::of(file, process, path, uid)
}

/// The folder must be the user's own: others can't have put anything into it.
fn check_folder(folder: &Path, uid: u32) -> Result<(), OpenError> {
    let meta = fs::symlink_metadata(folder).map_err(missing_is_inert)?;
    if !meta.is_dir() {
        return Err(OpenError::Corrupt("its folder is none"));
    }
    if meta.uid() != uid {
        return Err(OpenError::Corrupt("its folder belongs to someone else"));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(OpenError::Corrupt("its folder is open to others"));
    }
    Ok(())
}

fn missing_is_inert(e: std::io::Error) -> OpenError {
    match e.kind() {
        std::io::ErrorKind::NotFound => OpenError::Inert,
        _ => e.into(),
    }
}

/// The pids of all processes that have a file in a folder that this process may
/// look into, in order: its own user's, or everybody's if it is root. Some may
/// have ended, or execute another program now: [`open`] says so.
pub fn published() -> Result<Vec<u32>, OpenError> {
    let us = Process::find(std::process::id())?;
    let [uid, ..] = us.uids;
    let mut pids = Vec::new();
    let mut elsewhere = false;
    for folder in fs::read_dir(FOLDER_ROOT)?.flatten() {
        let ours = Folder::named(folder.file_name().as_encoded_bytes()).is_some();
        let Some(owner) = folder.metadata().ok().filter(|_| ours).map(|m| m.uid()) else {
            continue;
        };
        if (uid != 0 && owner != uid) || check_folder(&folder.path(), owner).is_err() {
            continue;
        }
        for file in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            match parse_name(&file.file_name().to_string_lossy()) {
                Some((pid, namespace)) if namespace == us.namespace => pids.push(pid),
                Some(_) => elsewhere = true,
                None => {}
            }
        }
    }
    if elsewhere {
        pids.extend(in_other_namespaces(us.namespace));
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

/// Pid and pid namespace in a file's name, `PID.STARTTIME.NAMESPACE`.
fn parse_name(name: &str) -> Option<(u32, u64)> {
    let mut parts = name.split('.');
    let pid = parts.next()?.parse().ok()?;
    let _start: u64 = parts.next()?.parse().ok()?;
    let namespace = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((pid, namespace))
}

/// Processes of namespaces other than `ours` whose file is there. Their own
/// pids say nothing here, so all processes are gone through.
fn in_other_namespaces(ours: u64) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(|d| d.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Process::find(pid).ok())
        .filter(|p| p.namespace != ours)
        .filter(|p| {
            let name = format!("{}.{}.{}", p.own_pid, p.start_time, p.namespace);
            folders(Path::new(FOLDER_ROOT), p)
                .any(|(folder, _)| fs::exists(folder.join(&name)).unwrap_or(false))
        })
        .map(|p| p.pid)
        .collect()
}
