//! Memory cgroups: what is left of the limits that this process is under, and who shares it.

use crate::sys::file;
use crate::text::{number, Text};

/// One cgroup with a limit, on the way from this process's own to the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Group<'a> {
    /// Its path below the root of its hierarchy.
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
        let mut buf = [0u8; 2048];
        match path.as_cstr().map(|p| file::read_small(p, &mut buf)) {
            Some(Ok(text)) => own_lines(text).any(|(v1, path)| v1 == self.v1 && self.holds(path)),
            _ => false,
        }
    }
}

/// The paths in /proc/PID/cgroup that are about memory, and whether each is version 1's.
fn own_lines(text: &[u8]) -> impl Iterator<Item = (bool, &[u8])> {
    text.split(|b| *b == b'\n').filter_map(|line| {
        let mut fields = line.splitn(3, |b| *b == b':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let v1 = controllers.split(|b| *b == b',').any(|c| c == b"memory");
        (v1 || controllers.is_empty()).then_some((v1, path))
    })
}

/// Calls `f` with each group that this process is in and that has a limit.
pub fn each(mut f: impl FnMut(Group)) {
    let mut buf = [0u8; 2048];
    let Ok(text) = file::read_small(c"/proc/self/cgroup", &mut buf) else {
        return;
    };
    for (v1, path) in own_lines(text) {
        let mut path = path;
        loop {
            let files = if v1 { &V1 } else { &V2 };
            let limits = files.limits.iter();
            let limits = limits.filter_map(|file| read_number(files, path, file));
            if let Some(limit) = limits.min().filter(|l| *l < NONE) {
                f(Group { path, v1, limit });
            }
            match path.iter().rposition(|b| *b == b'/') {
                Some(cut) if path.len() > 1 => path = path.get(..cut.max(1)).unwrap_or(b"/"),
                _ => break,
            }
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

    #[test]
    fn lines_about_memory() {
        let text = b"9:name=systemd:/a\n4:cpu,memory:/job/1\n2:cpuacct:/b\n0::/unified\n";
        let all: Vec<_> = own_lines(text).collect();
        assert_eq!(all, [(true, &b"/job/1"[..]), (false, b"/unified")]);
        assert_eq!(own_lines(b"nonsense\n::\n").count(), 1);
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
