//! What the kernel says of a process.

use std::fs;

/// A mapping, from /proc/PID/smaps.
#[derive(Clone, Debug)]
pub struct Vma {
    /// First address.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// As in /proc/PID/maps: `rw-p`.
    pub prot: String,
    /// Offset into the file.
    pub offset: u64,
    /// Path or `[heap]`-like name; empty if there is none.
    pub name: String,
    /// Resident bytes.
    pub rss: u64,
    /// The two-letter flags (proc_pid_smaps(5)).
    pub flags: Vec<String>,
}

impl Vma {
    /// Whether it has the flag.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|f| f == flag)
    }
}

/// All mappings of a process, in order.
pub fn smaps(pid: u32) -> Result<Vec<Vma>, String> {
    let path = format!("/proc/{pid}/smaps");
    let text = fs::read(&path).map_err(|e| format!("{path}: {e}"))?;
    let mut all: Vec<Vma> = Vec::new();
    for line in String::from_utf8_lossy(&text).lines() {
        match line.split_once(':') {
            Some((key, value)) if key.starts_with(|c: char| c.is_ascii_uppercase()) => {
                let Some(vma) = all.last_mut() else { continue };
                let kilobytes = || {
                    value
                        .trim()
                        .trim_end_matches(" kB")
                        .parse::<u64>()
                        .unwrap_or(0)
                        * 1024
                };
                match key {
                    "Rss" => vma.rss = kilobytes(),
                    "VmFlags" => vma.flags = value.split_whitespace().map(str::to_owned).collect(),
                    _ => (),
                }
            }
            _ => all.push(first_line(line).ok_or_else(|| format!("{path}: {line}"))?),
        }
    }
    Ok(all)
}

fn first_line(line: &str) -> Option<Vma> {
    let mut words = line.splitn(6, ' ');
    let (start, end) = words.next()?.split_once('-')?;
    let prot = words.next()?.to_owned();
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let name = words.nth(2).unwrap_or("").trim_start().to_owned();
    Some(Vma {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        prot,
        offset,
        name,
        rss: 0,
        flags: Vec::new(),
    })
}

/// The size of the file behind a mapping, if it can be asked.
pub fn file_size(pid: u32, vma: &Vma) -> Option<u64> {
    let link = format!("/proc/{pid}/map_files/{:x}-{:x}", vma.start, vma.end);
    fs::metadata(link).ok().map(|m| m.len())
}

/// Whether the process was forked and has not called exec since.
pub fn is_fork(pid: u32) -> bool {
    const PF_FORKNOEXEC: u64 = 0x40;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let flags = behind_name
        .split_whitespace()
        .nth(6)
        .and_then(|f| f.parse::<u64>().ok());
    flags.is_some_and(|f| f & PF_FORKNOEXEC != 0)
}

/// RLIMIT_MEMLOCK in bytes where it binds the process: no CAP_IPC_LOCK.
pub fn lock_limit(pid: u32) -> Option<u64> {
    const CAP_IPC_LOCK: u32 = 14;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let caps = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    if u64::from_str_radix(caps.trim(), 16).ok()? >> CAP_IPC_LOCK & 1 != 0 {
        return None;
    }
    let limits = fs::read_to_string(format!("/proc/{pid}/limits")).ok()?;
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max locked memory"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Whether a seccomp filter may refuse what the process asks for.
pub fn is_filtered(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status
        .lines()
        .any(|l| l.starts_with("Seccomp:") && l.ends_with('2'))
}

/// Whether there is swap space on this machine.
pub fn has_swap() -> bool {
    let info = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|l| l.strip_prefix("SwapTotal:"));
    total.is_none_or(|total| total.trim() != "0 kB")
}

/// Whether a mapping's file is on a file system that is memory alone, as its path says.
pub fn is_on_tmpfs(vma: &Vma) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        Some((words.next()?, words.next()?))
    });
    let below = |at: &str| {
        let rest = vma.name.strip_prefix(at.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.starts_with('/'))
    };
    let over = mounts.filter(|(at, _)| below(at));
    let nearest = over.max_by_key(|(at, _)| at.len());
    nearest.is_some_and(|(_, kind)| ["tmpfs", "devtmpfs", "ramfs"].contains(&kind))
}
