//! A process as /proc shows it: who it is, its mappings, its threads.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::time::Duration;

use super::OpenError;
use regall_directory::addr::PageRange;
use regall_directory::maps;
use regall_directory::vocab::Prot;
use regall_sys::process::Stat;

/// Ticks a second of the times in /proc/PID/stat: USER_HZ, which is part of the kernel's ABI.
const CLOCK_TICKS: f64 = 100.0;

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
        let start_time = start_time(pid)?;
        let status = status(format!("/proc/{pid}/status"))?;
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name));
            line.map(str::split_ascii_whitespace)
                .into_iter()
                .flatten()
                .filter_map(|n| n.parse::<u32>().ok())
                .collect::<Vec<_>>()
        };
        let [real, effective, saved, ..] = field("Uid:")[..] else {
            return Err(OpenError::Io(0));
        };
        Ok(Self {
            pid,
            own_pid: field("NSpid:").last().copied().unwrap_or(pid),
            start_time,
            namespace: namespace(pid)?,
            uids: [effective, real, saved],
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
        let ending = |task: fs::DirEntry| {
            let tid = task.file_name().to_str().and_then(|tid| tid.parse().ok());
            let stat = tid.map(|tid: u64| Stat::of_thread(self.pid.into(), tid));
            !stat.is_some_and(|stat| stat.is_ok_and(|stat| !stat.exiting))
        };
        Ok(tasks.into_iter().all(ending))
    }

    /// Whether the file of its directory has been removed, while it is mapped: the shim does so
    /// when the process ends, and somebody may have cleared /dev/shm.
    pub fn has_lost_its_directory(&self) -> Result<bool, OpenError> {
        let (pid, start, namespace) = (self.own_pid, self.start_time, self.namespace);
        let name = format!("/{pid}.{start}.{namespace} (deleted)");
        let mappings = self.mappings()?;
        Ok(mappings.iter().any(|m| m.name.ends_with(&name)))
    }

    /// How long ago it was started, or forked; None if that can't be told.
    pub fn age(&self) -> Option<Duration> {
        let uptime = fs::read_to_string("/proc/uptime").ok()?;
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
    /// is ending (or a kernel thread).
    ///
    /// The kernel hands them out a few dozen at a time, so a list that was
    /// changed meanwhile mixes before and after.
    pub fn mappings(&self) -> Result<Vec<Mapping>, OpenError> {
        self.mapped().map_err(|why| why.of(self.pid))
    }

    fn mapped(&self) -> Result<Vec<Mapping>, OpenError> {
        let mut text = Vec::new();
        fs::File::open(format!("/proc/{}/maps", self.pid))?.read_to_end(&mut text)?;
        if text.is_empty() {
            text = self.threads_maps()?;
        }
        if text.is_empty() || !self.alive() {
            return Err(OpenError::NoSuchProcess);
        }
        let lines = text.split(|&b| b == b'\n').filter(|l| !l.is_empty());
        let parsed = lines.map(|l| maps::parse(l).map(Mapping::from));
        parsed.collect::<Option<Vec<_>>>().ok_or(OpenError::Io(0))
    }

    /// The maps as another thread than the first has them: a first thread that
    /// called pthread_exit is a zombie without memory while the process lives.
    fn threads_maps(&self) -> Result<Vec<u8>, OpenError> {
        for task in fs::read_dir(format!("/proc/{}/task", self.pid))?.flatten() {
            match fs::read(task.path().join("maps")) {
                Ok(text) if !text.is_empty() => return Ok(text),
                _ => continue,
            }
        }
        Ok(Vec::new())
    }

    /// Whether it has a thread of this number, as it sees its threads itself.
    pub fn has_thread(&self, tid: u32) -> bool {
        let task = format!("/proc/{}/task", self.pid);
        if self.own_pid == self.pid {
            return tid != 0 && fs::exists(format!("{task}/{tid}")).unwrap_or(true);
        }
        // Another pid namespace: its numbers are not ours.
        let Ok(tasks) = fs::read_dir(task) else {
            return true;
        };
        tasks.flatten().any(|t| {
            let status = status(t.path().join("status")).unwrap_or_default();
            let line = status.lines().find_map(|l| l.strip_prefix("NSpid:"));
            let own = line.and_then(|l| l.split_ascii_whitespace().last());
            own.and_then(|n| n.parse().ok()) == Some(tid)
        })
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

/// The text of a status file of /proc. The name in it need not be UTF-8: a program can call itself
/// anything, and the kernel cuts a longer one off at its 15th byte.
pub(crate) fn status(path: impl AsRef<Path>) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// What is needed of /proc/PID/stat.
fn stat(pid: u32) -> Result<Stat, OpenError> {
    let read = Stat::of(pid.into());
    read.map_err(|e| io::Error::from_raw_os_error(e.0).into())
}

/// When `pid` started; an error if it is not there, or only its corpse is.
fn start_time(pid: u32) -> Result<u64, OpenError> {
    match stat(pid)? {
        stat if stat.over() => Err(OpenError::NoSuchProcess),
        stat => Ok(stat.start),
    }
}

/// Inode number of `pid`'s pid namespace.
fn namespace(pid: u32) -> Result<u64, OpenError> {
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
    let of = |pid: &str| status(format!("/proc/{pid}/status"));
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
        assert!(us.has_thread(us.own_pid) && !us.has_thread(0));
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
