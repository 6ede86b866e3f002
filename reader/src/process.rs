//! A process as /proc shows it: who it is, its mappings, its threads.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use super::error::OpenError;
use super::procfs;
use regall_directory::addr::PageRange;
use regall_directory::maps;
use regall_directory::vocab::Prot;
use regall_sys::file::{major, minor};
use regall_sys::process::Stat;

/// Ticks a second of the times in /proc/PID/stat: USER_HZ, which is part of the kernel's ABI.
const CLOCK_TICKS: f64 = 100.0;

/// Bytes of all names of a process's mappings, at the most.
const LONGEST_NAMES: usize = 8 << 20;
/// Threads of a process that are looked at one by one.
pub(crate) const MOST_THREADS: usize = 4096;

/// Who a process is; a pid alone can be used again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its pid, as we see it.
    pub pid: u32,
    /// Its pid as it sees itself (in its pid namespace).
    pub own_pid: u32,
    /// Field 22 of /proc/PID/stat: clock ticks from boot to its start.
    pub start_time: u64,
    /// Inode number of its pid namespace.
    pub namespace: u64,
    /// Its effective, real and saved uids. One of them owns its file: the
    /// effective one unless it changed that since.
    pub uids: [u32; 3],
}

/// A line of /proc/PID/maps that outlives the text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Its addresses.
    pub range: PageRange,
    /// Protection and sharing.
    pub prot: Prot,
    /// Offset into the file, in bytes.
    pub offset: u64,
    /// Device of the file, major and minor.
    pub device: (u32, u32),
    /// Inode of the file.
    pub inode: u64,
    /// Path or `[heap]`-like name; bytes that are not UTF-8 are replaced.
    pub name: String,
}

impl Process {
    /// Looks up `pid`. Zombies are not there.
    pub fn find(pid: u32) -> Result<Self, OpenError> {
        Self::found(pid).map_err(|why| why.of(pid))
    }

    fn found(pid: u32) -> Result<Self, OpenError> {
        Self::of(pid, namespace)
    }

    /// Looks up a process that may not be looked at: it is taken to be in pid namespace `ours`,
    /// if it does not show in which it is.
    pub(crate) fn listed(pid: u32, ours: u64) -> Result<Self, OpenError> {
        Self::of(pid, |pid| match namespace(pid) {
            Err(OpenError::Foreign) => Ok(ours),
            other => other,
        })
    }

    fn of(pid: u32, namespace: impl Fn(u32) -> Result<u64, OpenError>) -> Result<Self, OpenError> {
        let start_time = start_time(pid)?;
        let status = procfs::text(format!("/proc/{pid}/status"))?;
        Ok(Self {
            pid,
            own_pid: field(&status, "NSpid:").last().copied().unwrap_or(pid),
            start_time,
            namespace: namespace(pid)?,
            uids: uids_in(&status)?,
        })
    }

    /// Whether it is still there, and not another one that got its pid.
    pub fn alive(&self) -> bool {
        start_time(self.pid).is_ok_and(|t| t == self.start_time)
    }

    /// Whether all of its threads are on their way out.
    pub fn is_ending(&self) -> Result<bool, OpenError> {
        let first = stat(self.pid)?;
        if !first.exiting || first.threads <= 1 {
            return Ok(first.exiting);
        }
        // Its first thread may have ended alone, by pthread_exit.
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid))?.flatten();
        // (More than are looked at are not all on their way out.)
        let mut left = MOST_THREADS;
        let ending = |task: fs::DirEntry| {
            if left == 0 {
                return false;
            }
            left -= 1;
            let tid = task.file_name().to_str().and_then(|tid| tid.parse().ok());
            let stat = tid.map(|tid: u64| Stat::of_thread(self.pid.into(), tid));
            !stat.is_some_and(|stat| stat.is_ok_and(|stat| !stat.exiting))
        };
        Ok(tasks.into_iter().all(ending))
    }

    /// Whether the file of its directory has been removed, while it is mapped: the shim does so
    /// when the process ends, and somebody may have cleared /dev/shm.
    pub fn has_lost_its_directory(&self) -> Result<bool, OpenError> {
        let name = format!("/{} (deleted)", self.file_name());
        let mut lost = false;
        self.each_mapping(|line| {
            lost = line.name.ends_with(name.as_bytes());
            match lost {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        Ok(lost)
    }

    /// How long ago it was started, or forked; None if that can't be told.
    pub fn age(&self) -> Option<Duration> {
        let uptime = procfs::text("/proc/uptime").ok()?;
        let seconds: f64 = uptime.split_ascii_whitespace().next()?.parse().ok()?;
        let age = seconds - self.start_time as f64 / CLOCK_TICKS;
        Some(Duration::try_from_secs_f64(age).unwrap_or_default())
    }

    /// What it is doing, as a letter of proc(5): `R` it runs, `S` it sleeps, `T` it
    /// is stopped, ...
    pub fn state(&self) -> Result<char, OpenError> {
        stat(self.pid).map(|stat| char::from(stat.state))
    }

    /// Its mappings, in order. [`OpenError::NoSuchProcess`] if it has none: it
    /// is ending (or a kernel thread). [`OpenError::TooLong`] if it has more than a process can
    /// have, or longer names than are worth their memory.
    ///
    /// The kernel hands them out a few dozen at a time, so a list that was
    /// changed meanwhile mixes before and after.
    pub fn mappings(&self) -> Result<Vec<Mapping>, OpenError> {
        let (mut all, mut named) = (Vec::new(), 0);
        self.each_mapping(|line| {
            named += line.name.len();
            all.push(Mapping::from(*line));
            match named > LONGEST_NAMES {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })?;
        match named > LONGEST_NAMES {
            true => Err(OpenError::TooLong),
            false => Ok(all),
        }
    }

    /// Calls `each` with each of its mappings, until it says so; errors as [`Self::mappings`].
    pub(crate) fn each_mapping(
        &self,
        mut each: impl FnMut(&maps::Line<'_>) -> ControlFlow<()>,
    ) -> Result<(), OpenError> {
        let mut told = || -> io::Result<usize> {
            match self.lines(format!("/proc/{}/maps", self.pid), &mut each)? {
                0 => self.threads_lines(&mut each),
                n => Ok(n),
            }
        };
        match told() {
            Ok(n) if n > 0 && self.alive() => Ok(()),
            Ok(_) => Err(OpenError::NoSuchProcess),
            Err(why) => Err(OpenError::from(why).of(self.pid)),
        }
    }

    fn lines(
        &self,
        path: impl AsRef<Path>,
        each: &mut impl FnMut(&maps::Line<'_>) -> ControlFlow<()>,
    ) -> io::Result<usize> {
        let mut strange = false;
        let n = procfs::each_line(path, procfs::most_mappings(), |line| {
            match maps::parse(line) {
                Some(line) => each(&line),
                None => {
                    strange = true;
                    ControlFlow::Break(())
                }
            }
        })?;
        match strange {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(n),
        }
    }

    /// The maps as another thread than the first has them: a first thread that
    /// called pthread_exit is a zombie without memory while the process lives.
    fn threads_lines(
        &self,
        each: &mut impl FnMut(&maps::Line<'_>) -> ControlFlow<()>,
    ) -> io::Result<usize> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid))?.flatten();
        for task in tasks.take(MOST_THREADS) {
            match self.lines(task.path().join("maps"), each) {
                Ok(0) | Err(_) => continue,
                n => return n,
            }
        }
        Ok(0)
    }

    /// How many of these threads it has, by their numbers as it sees them itself. Where they are
    /// others here, and it has more threads than are looked at, all of them are there.
    pub fn threads(&self, tids: &[u32]) -> usize {
        let task = format!("/proc/{}/task", self.pid);
        if self.own_pid == self.pid {
            let there =
                |tid: &&u32| **tid != 0 && fs::exists(format!("{task}/{tid}")).unwrap_or(true);
            return tids.iter().filter(there).count();
        }
        // Another pid namespace: its numbers are not ours.
        if tids.is_empty() {
            return 0;
        }
        let Ok(tasks) = fs::read_dir(task) else {
            return tids.len();
        };
        let mut own = HashSet::new();
        for (n, task) in tasks.flatten().enumerate() {
            if n == MOST_THREADS {
                return tids.len();
            }
            let status = procfs::text(task.path().join("status")).unwrap_or_default();
            let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"));
            let last = line.and_then(|l| l.split_ascii_whitespace().last());
            own.extend(last.and_then(|n| n.parse::<u32>().ok()));
        }
        tids.iter().filter(|tid| own.contains(tid)).count()
    }
}

impl Mapping {
    /// Whether it is of that very file.
    pub(crate) fn is_of(&self, file: &fs::Metadata) -> bool {
        let device = (major(file.dev()), minor(file.dev()));
        self.inode == file.ino() && self.device == device
    }
}

impl From<maps::Line<'_>> for Mapping {
    fn from(line: maps::Line<'_>) -> Self {
        Self {
            range: line.range,
            prot: line.prot,
            offset: line.offset,
            device: (line.dev_major, line.dev_minor),
            inode: line.inode,
            name: String::from_utf8_lossy(line.name).into_owned(),
        }
    }
}

/// The effective, real and saved uids of `pid`.
pub(crate) fn uids(pid: u32) -> Result<[u32; 3], OpenError> {
    uids_in(&procfs::text(format!("/proc/{pid}/status"))?)
}

fn uids_in(status: &str) -> Result<[u32; 3], OpenError> {
    match field(status, "Uid:")[..] {
        [real, effective, saved, ..] => Ok([effective, real, saved]),
        _ => Err(OpenError::Io(0)),
    }
}

/// The numbers of a line of /proc/PID/status.
fn field(status: &str, name: &str) -> Vec<u32> {
    let line = status.lines().find_map(|l| l.strip_prefix(name));
    let words = line.map(str::split_ascii_whitespace).into_iter().flatten();
    words.filter_map(|n| n.parse().ok()).collect()
}

/// What is needed of /proc/PID/stat.
fn stat(pid: u32) -> Result<Stat, OpenError> {
    let read = Stat::of(pid.into());
    read.map_err(|e| io::Error::from_raw_os_error(e.0).into())
}

/// When `pid` started; an error if it is not there, or only its corpse is.
pub(crate) fn start_time(pid: u32) -> Result<u64, OpenError> {
    match stat(pid)? {
        stat if stat.over() => Err(OpenError::NoSuchProcess),
        stat => Ok(stat.start),
    }
}

/// Inode number of `pid`'s pid namespace.
pub(crate) fn namespace(pid: u32) -> Result<u64, OpenError> {
    let link = fs::read_link(format!("/proc/{pid}/ns/pid"));
    if link.is_err() {
        // Of a process that is gone by now the kernel says EACCES.
        start_time(pid)?;
    }
    let link = link?;
    let link = link.to_string_lossy();
    let number = link.strip_prefix("pid:[").and_then(|l| l.strip_suffix(']'));
    number.and_then(|n| n.parse().ok()).ok_or(OpenError::Io(0))
}

impl OpenError {
    /// What the kernel means that refuses a look at `pid`.
    fn of(self, pid: u32) -> Self {
        match self {
            Self::Foreign => denied(pid),
            other => other,
        }
    }
}

/// Why the kernel lets this process not look at `pid`, as far as /proc tells everybody.
fn denied(pid: u32) -> OpenError {
    let of = |pid: &str| procfs::text(format!("/proc/{pid}/status"));
    match (of("self"), of(&pid.to_string())) {
        (Ok(ours), Ok(theirs)) => why_denied(&ours, &theirs),
        _ => OpenError::Foreign,
    }
}

/// The same from both /proc/PID/status: what ptrace_may_access in the kernel compares.
fn why_denied(ours: &str, theirs: &str) -> OpenError {
    const SYS_PTRACE: u64 = 1 << 19;
    let field = |text: &str, name: &str| -> String {
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        line.unwrap_or("").trim().to_string()
    };
    let capabilities = |text, name| u64::from_str_radix(&field(text, name), 16).unwrap_or_default();
    let own = capabilities(ours, "CapEff:");
    if own & SYS_PTRACE != 0 {
        return OpenError::Denied(
            "a security module forbids it, or it belongs to another user namespace; \
             CAP_SYS_PTRACE does not help here",
        );
    }
    let ids = |name: &str| -> Vec<String> {
        let all = field(theirs, name);
        all.split_whitespace().take(3).map(str::to_string).collect()
    };
    let file_id = |name| {
        field(ours, name)
            .split_whitespace()
            .last()
            .map(str::to_string)
    };
    for name in ["Uid:", "Gid:"] {
        if ids(name)
            .iter()
            .any(|id| Some(id) != file_id(name).as_ref())
        {
            return OpenError::Foreign;
        }
    }
    if capabilities(theirs, "CapPrm:") & !own != 0 {
        return OpenError::Denied("it has capabilities that this process has not; ask as root");
    }
    OpenError::Denied(
        "it must not be traced (it was setuid, or asked for that by prctl), or a security module \
         forbids it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_the_kernel_says_no() {
        let status = |uid: u32, capabilities: u64| {
            format!(
                "Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t7\t7\t7\t7\n\
                 CapPrm:\t{capabilities:016x}\nCapEff:\t{capabilities:016x}\n"
            )
        };
        let said = |ours: String, theirs: String| why_denied(&ours, &theirs).to_string();
        let foreign = OpenError::Foreign.to_string();
        assert_eq!(said(status(1, 0), status(0, !0)), foreign);
        assert!(said(status(0, 1), status(0, 3)).contains("capabilities that this process has not"));
        assert!(said(status(0, 3), status(0, 1)).contains("must not be traced"));
        // Whoever has it may trace anybody: neither can be the reason.
        let root = 1 << 19 | 1;
        for theirs in [status(0, !0), status(1, 0)] {
            assert!(said(status(0, root), theirs).contains("a security module"));
        }
    }

    #[test]
    fn we_are_there() {
        let us = Process::find(std::process::id()).unwrap();
        assert!(us.alive() && us.start_time > 0 && us.namespace > 0);
        assert!(us
            .mappings()
            .unwrap()
            .iter()
            .any(|m| m.name.starts_with("[stack")));
        assert!(us.age().is_some_and(|age| age < Duration::from_secs(600)));
        assert_eq!(us.threads(&[us.own_pid, 0]), 1);
        assert!(us.state().is_ok_and(|s| "RSD".contains(s)));
    }

    #[test]
    fn nobody_is_not() {
        assert_eq!(Process::find(u32::MAX), Err(OpenError::NoSuchProcess));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(100));
        // A zombie until it is waited for.
        assert_eq!(Process::find(child.id()), Err(OpenError::NoSuchProcess));
        child.wait().unwrap();
    }
}
