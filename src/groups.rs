//! Memory cgroups: what is left of the limits that this process is under, and who shares it.

use crate::sys::file::{self, Fd};
use crate::sys::with_own_table;
use crate::text::{number, Text};
use core::ffi::CStr;

/// One cgroup with a limit, on the way from this process's own to the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group<'a> {
    /// The group's path below the root of its hierarchy.
    pub path: &'a [u8],
    /// Version 1's hierarchy, or version 2's.
    pub v1: bool,
    /// The limit, bytes.
    pub limit: u64,
}

/// What two files of a hierarchy say.
struct Files {
    root: &'static [u8],
    limits: &'static [&'static [u8]],
    used: &'static [u8],
    /// Lines of memory.stat: page cache that can be had back at once.
    cache: [&'static [u8]; 2],
}

const V1: Files = Files {
    root: b"/sys/fs/cgroup/memory",
    limits: &[b"/memory.limit_in_bytes"],
    used: b"/memory.usage_in_bytes",
    cache: [b"total_inactive_file ", b"total_active_file "],
};
const V2: Files = Files {
    root: b"/sys/fs/cgroup",
    limits: &[b"/memory.max", b"/memory.high"],
    used: b"/memory.current",
    cache: [b"inactive_file ", b"active_file "],
};
/// Version 1 says so for "no limit": a number of pages that nobody has.
const NONE: u64 = 1 << 62;

impl Group<'_> {
    const fn files(&self) -> &'static Files {
        if self.v1 {
            &V1
        } else {
            &V2
        }
    }

    /// Bytes that are charged to it and can't be had back at once.
    #[inline(never)]
    pub fn used(&self) -> u64 {
        let files = self.files();
        let used = read_number(files, self.path, files.used).unwrap_or(0);
        let mut buf = [0u8; 4096];
        let name = name(files, self.path, b"/memory.stat");
        let cache = match name.as_cstr().map(|p| file::read_small(p, &mut buf)) {
            Some(Ok(text)) => text
                .split(|b| *b == b'\n')
                .filter_map(|line| {
                    let value = |prefix: &&[u8]| line.strip_prefix(*prefix).and_then(number);
                    files.cache.iter().find_map(value)
                })
                .fold(0, u64::saturating_add),
            _ => 0,
        };
        used.saturating_sub(cache)
    }

    /// Whether a process that is at `path` in this hierarchy is in it, too.
    fn holds(&self, path: &[u8]) -> bool {
        match path.strip_prefix(self.path) {
            _ if self.path == b"/" => true,
            Some(rest) => rest.is_empty() || rest.first() == Some(&b'/'),
            None => false,
        }
    }

    /// Whether process `pid` is in it.
    pub fn has(&self, pid: u64) -> bool {
        let path: Text<64> = Text::of(format_args!("/proc/{pid}/cgroup"));
        let mut has = false;
        if let Some(path) = path.as_cstr() {
            each_path(path, |v1, path| has |= v1 == self.v1 && self.holds(path));
        }
        has
    }
}

/// Calls `f` with each path in a /proc/PID/cgroup that is about memory, and whether it is
/// version 1's. The file may have any length.
fn each_path(file: &CStr, mut f: impl FnMut(bool, &[u8])) {
    with_own_table(|| {
        let Ok(fd) = Fd::open(file, libc::O_RDONLY, 0) else {
            return;
        };
        let mut at = 0;
        each_line(
            |room| fd.read_on(&mut at, room).unwrap_or(0),
            |line| {
                if let Some((v1, path)) = about_memory(line) {
                    f(v1, path);
                }
            },
        );
    });
}

/// The longest line that counts.
const LINE: usize = 2048;

/// Calls `f` with each line of what `read` brings, 0 bytes at the end.
fn each_line(mut read: impl FnMut(&mut [u8]) -> usize, mut f: impl FnMut(&[u8])) {
    let mut buf = [0u8; LINE];
    let mut used = 0;
    // In the midst of a line that is too long.
    let mut skips = false;
    loop {
        let n = read(buf.get_mut(used..).unwrap_or(&mut []));
        used += n;
        let mut rest = buf.get(..used).unwrap_or(&[]);
        while let Some(end) = rest.iter().position(|b| *b == b'\n') {
            let (line, tail) = rest.split_at_checked(end).unwrap_or((rest, &[]));
            if !skips {
                f(line);
            }
            skips = false;
            rest = tail.get(1..).unwrap_or(&[]);
        }
        let left = rest.len();
        if n == 0 {
            if left != 0 && !skips {
                f(rest);
            }
            return;
        }
        let from = used - left;
        used = left;
        if left == LINE {
            (skips, used) = (true, 0);
        } else if left != 0 && from != 0 {
            buf.copy_within(from..from + left, 0);
        }
    }
}

/// The path in a line of /proc/PID/cgroup, if it is about memory, and whether it is version 1's.
fn about_memory(line: &[u8]) -> Option<(bool, &[u8])> {
    let mut fields = line.splitn(3, |b| *b == b':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let v1 = controllers.split(|b| *b == b',').any(|c| c == b"memory");
    (v1 || controllers.is_empty()).then_some((v1, path))
}

/// Calls `f` with each group that this process is in and that has a limit.
pub fn each(mut f: impl FnMut(Group)) {
    each_path(c"/proc/self/cgroup", |v1, path| {
        each_level(path, |path| {
            let files = if v1 { &V1 } else { &V2 };
            let limits = files.limits.iter();
            let limits = limits.filter_map(|file| read_number(files, path, file));
            if let Some(limit) = limits.min().filter(|l| *l < NONE) {
                f(Group { path, v1, limit });
            }
        });
    });
}

/// Returns a number for the cgroup of version 2 that this process is in: its path's. `None`: it is
/// not known.
pub fn own() -> Option<u64> {
    let mut own = None;
    each_path(c"/proc/self/cgroup", |v1, path| {
        if !v1 {
            // FNV-1a. The lowest bit is set: it is never 0.
            let add = |sum: u64, b: &u8| (sum ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
            own = Some(path.iter().fold(0xcbf2_9ce4_8422_2325, add) | 1);
        }
    });
    own
}

/// Returns whether `memory.swap.max` is 0 in this process's cgroup of version 2, or above it.
pub fn may_not_swap() -> bool {
    let mut none = false;
    each_path(c"/proc/self/cgroup", |v1, path| {
        // What lies outside of the process's namespace can't be read.
        let outside = path.windows(3).any(|part| part == b"/..");
        if !v1 && !outside {
            each_level(path, |path| {
                none |= read_number(&V2, path, b"/memory.swap.max") == Some(0);
            });
        }
    });
    none
}

/// Calls `f` with `path` and each path above it, up to the root.
fn each_level(path: &[u8], mut f: impl FnMut(&[u8])) {
    let mut path = path;
    loop {
        f(path);
        match path.iter().rposition(|b| *b == b'/') {
            Some(cut) if path.len() > 1 => path = path.get(..cut.max(1)).unwrap_or(b"/"),
            _ => break,
        }
    }
}

fn name(files: &Files, path: &[u8], file: &[u8]) -> Text<1024> {
    let mut name = Text::new();
    name.push(files.root);
    name.push(if path == b"/" { b"" } else { path });
    name.push(file);
    name
}

/// `None` also for `max`.
fn read_number(files: &Files, path: &[u8], file: &[u8]) -> Option<u64> {
    let mut buf = [0u8; 32];
    let name = name(files, path, file);
    let text = file::read_small(name.as_cstr()?, &mut buf).ok()?;
    number(text.strip_suffix(b"\n").unwrap_or(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of `text`, of which each read brings no more than `step` bytes.
    fn lines(mut text: &[u8], step: usize) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let read = |room: &mut [u8]| {
            let n = text.len().min(room.len()).min(step);
            room[..n].copy_from_slice(&text[..n]);
            text = &text[n..];
            n
        };
        each_line(read, |line| all.push(line.to_vec()));
        all
    }

    #[test]
    fn lines_about_memory() {
        let text = b"9:name=systemd:/a\n4:cpu,memory:/job/1\n2:cpuacct:/b\n0::/unified\n";
        for step in [1, 7, 4096] {
            let lines = lines(text, step);
            let all: Vec<_> = lines.iter().filter_map(|l| about_memory(l)).collect();
            assert_eq!(all, [(true, &b"/job/1"[..]), (false, b"/unified")]);
        }
        assert_eq!(about_memory(b"nonsense"), None);
        assert_eq!(about_memory(b"::"), Some((false, &b""[..])));
    }

    #[test]
    fn a_line_is_found_behind_any_number_of_others() {
        let many = b"7:name=other:/a/rather/long/path/of/another/hierarchy\n".repeat(100);
        let text = [
            &many[..],
            b"1:x:",
            &vec![b'y'; 3 * LINE],
            b"\n",
            &many,
            b"4:memory:/job",
        ];
        for step in [100, LINE, usize::MAX] {
            let lines = lines(&text.concat(), step);
            assert_eq!(lines.len(), 201);
            assert_eq!(about_memory(&lines[200]), Some((true, &b"/job"[..])));
        }
    }

    #[test]
    fn who_is_in_a_group() {
        let group = |path| Group {
            path,
            v1: true,
            limit: 1,
        };
        assert!(group(b"/").holds(b"/a/b"));
        assert!(group(b"/a").holds(b"/a"));
        assert!(group(b"/a").holds(b"/a/b"));
        assert!(!group(b"/a").holds(b"/ab"));
        assert!(!group(b"/a/b").holds(b"/a"));
    }
}
