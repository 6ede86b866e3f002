//! What the kernel has locked of a process's memory. Where a directory says that memory is pinned,
//! this is what it can be held against.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use regall_directory::addr::PageRange;
use regall_directory::maps;

use crate::error::OpenError;
use crate::process::{Mapping, Process, MOST_THREADS};
use crate::procfs;

/// Lines that smaps has for a mapping, at the most.
const LINES: usize = 64;

/// What mlock(2) leaves as it is (`VmFlags` of smaps, proc(5)): huge pages, which stay anyway, and
/// mappings of devices and of the kernel's own.
const NEVER_LOCKED: [&str; 5] = ["ht", "io", "pf", "mm", "de"];

impl Process {
    /// Bytes that count as locked (`VmLck` in /proc/PID/status).
    pub fn locked(&self) -> Result<u64, OpenError> {
        self.told("status", |status| {
            let text = procfs::text(status).ok()?;
            let line = text.lines().find_map(|l| l.strip_prefix("VmLck:"))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        })
    }

    /// Mappings that could be locked and are not, in order. The kernel looks at each page table for
    /// it: some 5 ms for each resident GiB.
    pub fn unlocked(&self) -> Result<Vec<PageRange>, OpenError> {
        self.told("smaps", |smaps| read(Path::new(smaps)))
    }

    /// What is read from its file `name`, or from a thread's: a first thread that called
    /// pthread_exit has no memory any more.
    fn told<T>(&self, name: &str, f: impl Fn(&str) -> Option<T>) -> Result<T, OpenError> {
        let in_folder = |folder: &str| f(&format!("{folder}/{name}"));
        let own = format!("/proc/{}", self.pid);
        let of_threads = || {
            let tasks = fs::read_dir(format!("{own}/task")).ok()?.flatten();
            let mut told = tasks
                .take(MOST_THREADS)
                .map(|task| in_folder(task.path().to_str()?));
            told.find_map(|told| told)
        };
        let told = in_folder(&own).or_else(of_threads);
        told.ok_or_else(|| self.not_told())
    }

    /// Why it is not known: the process has ended, or the kernel has no such file, or something
    /// hides it.
    fn not_told(&self) -> OpenError {
        self.mappings().err().unwrap_or(OpenError::NoLocks)
    }
}

/// `None`: it says nothing of locks, or too much.
fn read(smaps: &Path) -> Option<Vec<PageRange>> {
    let mut found = Vec::new();
    let mut mapping: Option<Mapping> = None;
    let mut told = false;
    let most = procfs::most_mappings().saturating_mul(LINES);
    let mut each = |line: &[u8]| {
        let Some(flags) = line.strip_prefix(b"VmFlags:") else {
            mapping = maps::parse(line).map(Mapping::from).or(mapping.take());
            return;
        };
        told = true;
        let has = |flag: &str| {
            let mut flags = flags.split(u8::is_ascii_whitespace);
            flags.any(|f| f == flag.as_bytes())
        };
        let never = |m: &Mapping| {
            NEVER_LOCKED.iter().any(|flag| has(flag)) || has("hg") && is_on_a_device(m)
        };
        if let Some(mapping) = mapping.take().filter(|m| !has("lo") && !never(m)) {
            found.push(mapping.range);
        }
    };
    let read = procfs::each_line(smaps, most, |line| {
        each(line);
        ControlFlow::Continue(())
    });
    (read.is_ok() && told).then_some(found)
}

/// Whether it is a file that may be memory itself (DAX): such files have huge pages wherever they
/// can. tmpfs and its like, where `hg` is somebody's advice, are on no device.
fn is_on_a_device(mapping: &Mapping) -> bool {
    mapping.inode != 0 && (mapping.device.0 != 0 || mapping.name.starts_with("/dev/dax"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000002000 rw-p 00000000 00:00 0 \n\
Size:                  8 kB\n\
VmFlags: rd wr mr mw me lo ac sd \n\
7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n\
VmFlags: rd wr mr mw me ac sd \n\
7f0000200000-7f0000400000 rw-s 00000000 00:0f 12 /anon_hugepage (deleted)\n\
VmFlags: rd wr mr mw me de ht sd \n\
7f0000400000-7f0000600000 rw-s 00000000 00:01 13 /dev/zero (deleted)\n\
VmFlags: rd wr sh mr mw me ms sd hg \n\
7f0000600000-7f0000800000 rw-s 00000000 103:01 14 /pmem/file\n\
VmFlags: rd wr sh mr mw me ms sd hg \n\
7f0000800000-7f0000a00000 rw-s 00000000 00:05 15 /dev/dax0.0\n\
VmFlags: rd wr sh mr mw me ms sd hg \n\
7ffe00000000-7ffe00001000 r-xp 00000000 00:00 0 [vdso]\n\
VmFlags: rd ex mr mw me de sd \n";

    fn told(text: &str) -> Option<Vec<PageRange>> {
        let path = std::env::temp_dir().join(format!("regall-smaps-{}", std::process::id()));
        fs::write(&path, text).expect("a file");
        let told = read(&path);
        fs::remove_file(&path).expect("a file");
        told
    }

    #[test]
    fn what_could_be_locked_and_is_not() {
        let page = PageRange::new(0x7f00_0000_2000, 0x7f00_0000_3000);
        let advised = PageRange::new(0x7f00_0040_0000, 0x7f00_0060_0000);
        let expected: Vec<_> = page.into_iter().chain(advised).collect();
        assert_eq!(told(SMAPS), Some(expected));
    }

    #[test]
    fn a_list_without_a_word_of_locks_is_none() {
        let silent = SMAPS.lines().filter(|l| !l.starts_with("VmFlags"));
        let silent = silent.collect::<Vec<_>>().join("\n");
        assert_eq!(told(&silent), None);
        assert_eq!(told(""), None);
    }

    #[test]
    fn this_process() {
        let us = Process::find(std::process::id()).expect("this process");
        let at = regall_sys::map_private(1 << 20).expect("memory").as_ptr();
        let range = PageRange::new(at as u64, at as u64 + (1 << 20)).expect("a range");
        let unlocked = || {
            let all = us.unlocked().expect("our own smaps");
            all.iter().any(|r| r.overlaps(range))
        };
        assert!(unlocked());
        regall_sys::lock_memory(range.start(), range.len(), false).expect("to be let lock 1 MiB");
        assert!(!unlocked() && us.locked().expect("VmLck") >= 1 << 20);
    }
}
