//! What the kernel has locked of a process's memory. Where a directory says that memory is pinned,
//! this is what it can be held against.

use std::fs;
use std::io::{BufRead, BufReader};

use regall_directory::addr::PageRange;
use regall_directory::maps;

use crate::{Mapping, Process};

/// What mlock(2) leaves as it is (`VmFlags` of smaps, proc(5)): huge pages, which stay anyway, and
/// mappings of devices and of the kernel's own.
const NEVER_LOCKED: [&str; 5] = ["ht", "io", "pf", "mm", "de"];

impl Process {
    /// Bytes that count as locked (`VmLck` in /proc/PID/status). `None`: it can't be read.
    pub fn locked(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix("VmLck:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    }

    /// Mappings that could be locked and are not, in order. The kernel looks at each page table for
    /// it: some 5 ms for each resident GiB. `None`: it can't be read.
    pub fn unlocked(&self) -> Option<Vec<PageRange>> {
        let smaps = fs::File::open(format!("/proc/{}/smaps", self.pid)).ok()?;
        read(BufReader::with_capacity(1 << 16, smaps))
    }
}

fn read(smaps: impl BufRead) -> Option<Vec<PageRange>> {
    let mut found = Vec::new();
    let mut mapping: Option<Mapping> = None;
    for line in smaps.split(b'\n') {
        let line = line.ok()?;
        let Some(flags) = line.strip_prefix(b"VmFlags:") else {
            mapping = maps::parse(&line).map(Mapping::from).or(mapping);
            continue;
        };
        let flags = std::str::from_utf8(flags).ok()?;
        let locked = flags.split_ascii_whitespace().any(|flag| flag == "lo");
        let could = |m: &Mapping| {
            let mut flags = flags.split_ascii_whitespace();
            // Files that are memory themselves (DAX) have huge pages wherever they can.
            let never = |flag: &str| NEVER_LOCKED.contains(&flag) || flag == "hg" && m.inode != 0;
            !flags.any(never)
        };
        found.extend(
            mapping
                .take()
                .filter(|m| !locked && could(m))
                .map(|m| m.range),
        );
    }
    Some(found)
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
7ffe00000000-7ffe00001000 r-xp 00000000 00:00 0 [vdso]\n\
VmFlags: rd ex mr mw me de sd \n";

    #[test]
    fn what_could_be_locked_and_is_not() {
        let page = PageRange::new(0x7f00_0000_2000, 0x7f00_0000_3000);
        assert_eq!(read(SMAPS.as_bytes()), Some(Vec::from_iter(page)));
        assert_eq!(read(&b""[..]), Some(Vec::new()));
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
