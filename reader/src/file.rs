//! A process's file: found, checked, and read without mapping it.

use std::collections::BinaryHeap;
use std::fs::{self, File, OpenOptions};
use std::mem::offset_of;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::process::{Mapping, Process};
use super::{decode, Entry, OpenError, Published, Region, SLOT_WORDS};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::{
    segment_offset, Header, CALLS, COUNTERS, DEVICE_WORDS, EXE_WORDS, HEADER_BYTES, INFLIGHT,
    MAGIC, NAMELESS, SEGMENTS, SLOT_BYTES,
};
use regall_sys::file::{major, minor};
use regall_sys::folder::Folder;

/// Where the folders are, one for each user: `regall-UID`; see [`Folder`].
pub const FOLDER_ROOT: &str = "/dev/shm";

/// A snapshot that the writer keeps from settling is given up after this.
const PATIENCE: Duration = Duration::from_millis(30);

/// Of open(2), which std has no names for.
mod flags {
    pub const ELOOP: i32 = 40;
    pub const O_NONBLOCK: i32 = 0o4000;
    #[cfg(any(target_arch = "aarch64", target_arch = "arm"))]
    pub const O_NOFOLLOW: i32 = 0o100000;
    #[cfg(not(any(target_arch = "aarch64", target_arch = "arm")))]
    pub const O_NOFOLLOW: i32 = 0o400000;
}

/// A live process's directory, open.
#[derive(Debug)]
pub struct Directory {
    file: File,
    process: Process,
    path: PathBuf,
}

/// A hooked call in progress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inflight {
    /// Number of the call: an index of [`regall_directory::layout::Call::ALL`].
    pub call: u32,
    /// The thread, as the process sees it.
    pub tid: u32,
}

/// The header's values at one time.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)] // as in `Header`
pub struct HeaderView {
    pub pid: u64,
    pub start_time: u64,
    pub image: u64,
    pub pid_namespace: u64,
    pub uid: u64,
    pub generation: u64,
    pub high_water: u64,
    pub segments: u64,
    pub unpublished: u64,
    pub settings: u64,
    pub budget: u64,
    pub sites_patched: u64,
    pub sites_refused: u64,
    pub selftest_missed: u64,
    pub stack_floor: u64,
    pub counters: [u64; COUNTERS],
    pub calls: [u64; CALLS],
    /// Hooked calls that are marked as in progress, be their threads alive or not.
    pub inflight: Vec<Inflight>,
    /// Name of the executable.
    pub exe: String,
    /// Number of the domain that the HCA column is about; 0: none.
    pub primary: u64,
    /// The device that REGALL_HCA names; empty: none.
    pub device: String,
}

/// A picture of a directory.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The header as it was when the entries were these.
    pub header: HeaderView,
    /// Sorted, without overlaps: where two were published for the same bytes,
    /// the newer one has them.
    pub entries: Vec<Entry>,
    /// Sorted by domain and address, within a domain without overlaps, likewise.
    pub regions: Vec<Region>,
    /// Hooked calls in progress, of threads that are alive.
    pub busy: usize,
    /// Whether all entries and regions were there at one and the same time. If not, the
    /// writer changed them all the time; each entry is whole nevertheless.
    pub stable: bool,
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
    let directory = Directory {
        file,
        process: process.clone(),
        path,
    };
    directory.check_file(uid)?;
    directory.header()?;
    Ok(Some(directory))
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
    let directory = Directory {
        file,
        process: process.clone(),
        path,
    };
    directory.check_file(uid)?;
    directory.header()?;
    Ok(directory)
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

impl Directory {
    /// Whose it is.
    pub fn process(&self) -> &Process {
        &self.process
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn check_file(&self, uid: u32) -> Result<(), OpenError> {
        let meta = self.file.metadata()?;
        if !meta.is_file() {
            return Err(OpenError::Corrupt("its file is no regular file"));
        }
        if meta.uid() != uid {
            return Err(OpenError::Corrupt("its file belongs to someone else"));
        }
        if meta.len() == 0 {
            // Just created: its writer allocates its first part in one step.
            return Err(OpenError::Unpublished);
        }
        if meta.len() < HEADER_BYTES as u64 || meta.len() > segment_offset(SEGMENTS) as u64 {
            return Err(OpenError::Corrupt("its file's size"));
        }
        Ok(())
    }

    /// The process's mappings. [`OpenError::Inert`] if the file is not among
    /// them: then it is what an earlier image of the process left, which has
    /// executed another program since.
    pub fn mappings(&self) -> Result<Vec<Mapping>, OpenError> {
        let meta = self.file.metadata()?;
        let device = (major(meta.dev()), minor(meta.dev()));
        let mappings = self.process.mappings()?;
        let ours = |m: &Mapping| m.inode == meta.ino() && m.device == device;
        match mappings.iter().any(ours) {
            true => Ok(mappings),
            false => Err(OpenError::Inert),
        }
    }

    /// The header alone.
    pub fn header(&self) -> Result<HeaderView, OpenError> {
        let header: Vec<u64> = words(&self.read(0, HEADER_BYTES)?).collect();
        let header = HeaderView::from_words(&header)?;
        if header.pid != u64::from(self.process.own_pid)
            || header.start_time != self.process.start_time
            || header.pid_namespace != self.process.namespace
        {
            return Err(OpenError::Corrupt("it is another process's"));
        }
        Ok(header)
    }

    /// Calls in progress whose threads are alive.
    pub fn busy(&self, header: &HeaderView) -> usize {
        let alive = |i: &&Inflight| self.process.has_thread(i.tid);
        header.inflight.iter().filter(alive).count()
    }

    /// A picture of the whole.
    ///
    /// Copies are not atomic, so the slots are read until two copies in a row
    /// are equal, generations included. A generation is never used twice, so
    /// these are the entries that there were at each moment between the two
    /// copies, at one of which the header was read.
    pub fn snapshot(&self) -> Result<Snapshot, OpenError> {
        let began = Instant::now();
        let mut slots = self.slots()?;
        loop {
            let header = self.header()?;
            let (stable, changed) = self.reread(&mut slots)?;
            if stable || began.elapsed() > PATIENCE {
                self.settle(&mut slots, &changed)?;
                let (entries, regions) = lists(&slots)?;
                return Ok(Snapshot {
                    busy: self.busy(&header),
                    entries,
                    regions,
                    header,
                    stable,
                });
            }
        }
    }

    /// Makes a newer copy of an earlier one; whether they are equal, and the
    /// numbers of the slots that differ (of those that are new, from free ones).
    fn reread(&self, slots: &mut Vec<u8>) -> Result<(bool, Vec<usize>), OpenError> {
        let bytes = self.used()?;
        let as_many = slots.len() == bytes;
        slots.resize(bytes, 0);
        let mut changed = Vec::new();
        let mut block = vec![0; 1024 * SLOT_BYTES];
        for (k, known) in slots.chunks_mut(block.len()).enumerate() {
            let Some(new) = block.get_mut(..known.len()) else {
                continue;
            };
            let at = k * 1024;
            self.file
                .read_exact_at(new, (HEADER_BYTES + at * SLOT_BYTES) as u64)?;
            if *new == *known {
                continue;
            }
            let both = new
                .chunks_exact(SLOT_BYTES)
                .zip(known.chunks_exact(SLOT_BYTES));
            let differ = both.enumerate().filter(|(_, (new, known))| new != known);
            changed.extend(differ.map(|(n, _)| at + n));
            known.copy_from_slice(new);
        }
        Ok((as_many && changed.is_empty(), changed))
    }

    /// Reads each slot of these numbers until it is the same twice in a row; the
    /// copy loses the one that never is.
    fn settle(&self, slots: &mut [u8], changed: &[usize]) -> Result<(), OpenError> {
        for at in changed.iter().map(|n| n * SLOT_BYTES) {
            let Some(slot) = slots.get_mut(at..at + SLOT_BYTES) else {
                continue;
            };
            let mut settled = false;
            for _ in 0..100 {
                let mut again = [0; SLOT_BYTES];
                self.file
                    .read_exact_at(&mut again, (HEADER_BYTES + at) as u64)?;
                settled = *slot == again;
                slot.copy_from_slice(&again);
                if settled {
                    break;
                }
            }
            if !settled {
                slot.fill(0);
            }
        }
        Ok(())
    }

    /// A copy of the slots that have been used.
    fn slots(&self) -> Result<Vec<u8>, OpenError> {
        self.read(HEADER_BYTES, self.used()?)
    }

    /// Bytes of the slots that have been used.
    fn used(&self) -> Result<usize, OpenError> {
        let high_water = self.header()?.high_water;
        let bytes = high_water.saturating_mul(SLOT_BYTES as u64);
        let end = bytes.saturating_add(HEADER_BYTES as u64);
        let meta = self.file.metadata()?;
        // The writer allocates ahead; a sparse file could claim any size.
        if end > meta.len() || end > meta.blocks().saturating_mul(512) {
            return Err(OpenError::Corrupt("more slots than its file holds"));
        }
        Ok(bytes as usize)
    }

    /// `count` bytes of the file from byte `offset` on.
    fn read(&self, offset: usize, count: usize) -> Result<Vec<u8>, OpenError> {
        let mut bytes = vec![0; count];
        self.file.read_exact_at(&mut bytes, offset as u64)?;
        Ok(bytes)
    }
}

/// Bytes as the words that they are.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let words = bytes
        .chunks_exact(8)
        .map(|w| w.try_into().unwrap_or([0; 8]));
    words.map(u64::from_ne_bytes)
}

impl HeaderView {
    /// From the file's first words; the first is written last.
    fn from_words(words: &[u64]) -> Result<Self, OpenError> {
        let word = |offset: usize| words.get(offset / 8).copied().unwrap_or(0);
        match word(offset_of!(Header, magic)) {
            MAGIC => {}
            0 => return Err(OpenError::Unpublished),
            _ => return Err(OpenError::Corrupt("its first word, or another version")),
        }
        let array = |offset: usize, i: usize| word(offset + i * 8);
        let inflight = (0..INFLIGHT)
            .map(|i| array(offset_of!(Header, inflight), i))
            .filter(|&w| w != 0)
            .map(|w| Inflight {
                call: (w >> 32) as u32,
                tid: w as u32,
            });
        let text = |offset: usize, words: usize| -> String {
            let bytes = (0..words).flat_map(|i| array(offset, i).to_ne_bytes());
            let bytes: Vec<u8> = bytes.take_while(|&b| b != 0).collect();
            String::from_utf8_lossy(&bytes).escape_debug().collect()
        };
        Ok(Self {
            pid: word(offset_of!(Header, pid)),
            start_time: word(offset_of!(Header, start_time)),
            image: word(offset_of!(Header, image)),
            pid_namespace: word(offset_of!(Header, pid_namespace)),
            uid: word(offset_of!(Header, uid)),
            generation: word(offset_of!(Header, generation)),
            high_water: word(offset_of!(Header, high_water)),
            segments: word(offset_of!(Header, segments)),
            unpublished: word(offset_of!(Header, unpublished)),
            settings: word(offset_of!(Header, settings)),
            budget: word(offset_of!(Header, budget)),
            sites_patched: word(offset_of!(Header, sites_patched)),
            sites_refused: word(offset_of!(Header, sites_refused)),
            selftest_missed: word(offset_of!(Header, selftest_missed)),
            stack_floor: word(offset_of!(Header, stack_floor)),
            counters: std::array::from_fn(|i| array(offset_of!(Header, counters), i)),
            calls: std::array::from_fn(|i| array(offset_of!(Header, calls), i)),
            inflight: inflight.collect(),
            exe: text(offset_of!(Header, exe), EXE_WORDS),
            primary: word(offset_of!(Header, primary)),
            device: text(offset_of!(Header, device), DEVICE_WORDS),
        })
    }
}

/// What is in slots: sorted, and each byte has one entry only, and one region of
/// each domain.
fn lists(slots: &[u8]) -> Result<(Vec<Entry>, Vec<Region>), OpenError> {
    let (mut entries, mut regions) = (Vec::new(), Vec::new());
    for slot in slots.chunks_exact(SLOT_BYTES) {
        let mut all = [0; SLOT_WORDS];
        all.iter_mut().zip(words(slot)).for_each(|(w, n)| *w = n);
        match decode(&all)? {
            Some(Published::Range(entry)) => entries.push(entry),
            Some(Published::Region(region)) => regions.push(region),
            None => {}
        }
    }
    entries.sort_unstable_by_key(|e| (e.range, e.generation, e.id));
    // To the end, so that the order is the same in every look.
    regions.sort_unstable_by_key(|r| {
        let what = (r.access.bits(), r.pd, r.lkey, r.rkey);
        (r.domain, r.range, r.generation, r.id, what)
    });
    if overlap(&entries) {
        entries = newest(&entries);
    }
    Ok((entries, of_each_domain(regions)))
}

/// [`newest`] of each domain's. `sorted` is by domain and start.
fn of_each_domain(sorted: Vec<Region>) -> Vec<Region> {
    let domains = || sorted.chunk_by(|a, b| a.domain == b.domain);
    if !domains().any(overlap) {
        return sorted;
    }
    domains().flat_map(newest).collect()
}

/// Whether any two have a byte in common: only if something is being replaced.
/// `sorted` is by start.
fn overlap<T: Dated>(sorted: &[T]) -> bool {
    let pair = |w: &[T]| matches!(w, [a, b] if b.range().start() < a.range().end());
    sorted.windows(2).any(pair)
}

/// What is published of a range, and replaced by what is newer.
trait Dated: Copy {
    fn range(&self) -> PageRange;
    /// Higher is newer.
    fn age(&self) -> (u64, u64);
    /// A line that is the same, but about `range`.
    fn of(self, range: PageRange) -> Self;
}

impl Dated for Entry {
    fn range(&self) -> PageRange {
        self.range
    }
    fn age(&self) -> (u64, u64) {
        (self.generation, self.id)
    }
    fn of(self, range: PageRange) -> Self {
        Self { range, ..self }
    }
}

impl Dated for Region {
    fn range(&self) -> PageRange {
        self.range
    }
    fn age(&self) -> (u64, u64) {
        (self.generation, self.id)
    }
    fn of(self, range: PageRange) -> Self {
        Self { range, ..self }
    }
}

/// Gives each byte to the newest that has it. `sorted` is by start.
///
/// A sweep with those at the present address in a heap, so that no input costs
/// more than n log n.
fn newest<T: Dated>(sorted: &[T]) -> Vec<T> {
    let mut out: Vec<(usize, T)> = Vec::with_capacity(sorted.len());
    let mut here = BinaryHeap::new();
    let mut coming = sorted.iter().enumerate().peekable();
    let mut at = 0;
    loop {
        while let Some((n, e)) = coming.next_if(|(_, e)| e.range().start() <= at) {
            here.push((e.age(), n, e.range().end()));
        }
        while here.peek().is_some_and(|&(.., end)| end <= at) {
            here.pop();
        }
        let next = coming.peek().map(|(_, e)| e.range().start());
        let Some(&(_, n, end)) = here.peek() else {
            let Some(next) = next else {
                return out.into_iter().map(|(_, e)| e).collect();
            };
            at = next;
            continue;
        };
        let stop = next.map_or(end, |next| next.min(end));
        let piece = PageRange::new(at, stop).zip(sorted.get(n));
        match (out.last_mut(), piece) {
            (Some((same, last)), Some((piece, _))) if *same == n && last.range().end() == at => {
                let joined = PageRange::new(last.range().start(), piece.end());
                *last = last.of(joined.unwrap_or(piece));
            }
            (_, Some((range, e))) => out.push((n, e.of(range))),
            (_, None) => {}
        }
        at = stop;
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

#[cfg(test)]
mod tests;
