//! Which parts of a new mapping of code hold anything.
//!
//! To read a file's hole through a private mapping is to fill it in the page cache, and in
//! memory files for good. So of a large file that is sparse the kernel is asked first. By the
//! application's descriptor, as it is: to close one of the same file that we had opened would
//! end the application's record locks, and to seek would move its position.

use crate::sys::file;
use crate::sys::process::own_status;
use regall_directory::addr::{PageRange, PAGE};

/// A file that lacks less is searched as it is.
const MUCH: u64 = 2 << 20;
/// A hole's least size: what is read of one in memory stays.
const STEP: u64 = 64 << 10;

/// Calls `f` with the parts of `code` that hold something, where the file at `fd` is mapped
/// from `offset` on. That is `file`, if anything is known of it.
pub fn each_part(
    code: PageRange,
    (fd, offset): (i32, u64),
    file: Option<file::Stat>,
    mut f: impl FnMut(PageRange),
) {
    match file.and_then(|file| File::sparse(code.len(), fd, file)) {
        Some(file) => file.each_part(code, offset, f),
        None => f(code),
    }
}

struct File {
    fd: i32,
    status: file::Stat,
    /// In memory: what is neither in the page cache nor in swap is a hole.
    memory: bool,
}

impl File {
    /// The file at `fd`, if `bytes` of it are worth asking.
    fn sparse(bytes: u64, fd: i32, status: file::Stat) -> Option<Self> {
        let there = status.blocks.saturating_mul(512);
        if bytes < 2 * MUCH || status.size.saturating_sub(there) < MUCH {
            return None;
        }
        let memory = file::is_memory(fd);
        // What has no block device may be another machine's, which would be asked. And a
        // filter may kill for calls that the program does not make.
        let here = memory || status.dev_major() != 0;
        (here && is_free()).then_some(Self { fd, status, memory })
    }

    fn each_part(&self, code: PageRange, offset: u64, mut f: impl FnMut(PageRange)) {
        let (mut at, mut from, mut step) = (code.start(), code.start(), STEP);
        while at < code.end() {
            let bytes = step.min(code.end() - at);
            let place = offset.saturating_add(at - code.start());
            let next = at.saturating_add(bytes);
            if self.is_hole(place, bytes) {
                PageRange::new(from, at).into_iter().for_each(&mut f);
                (at, from) = (next, next);
                step = step.saturating_mul(2);
            } else if step > STEP {
                step = (step / 4).max(STEP);
            } else {
                at = next;
            }
        }
        PageRange::new(from, at).into_iter().for_each(&mut f);
    }

    /// Whether there is nothing in it: no block of the disk's, and nothing that is still to be
    /// written. (What the search itself brings into the page cache around a part counts for
    /// nothing.) Where nobody says so, there is something.
    fn is_hole(&self, from: u64, bytes: u64) -> bool {
        let Ok(cached) = file::cached(self.fd, from, bytes) else {
            return false;
        };
        let empty = match self.memory {
            true => cached.pages == 0 && cached.evicted == 0,
            // In this order: what is being written meanwhile has its blocks then.
            false => cached.unwritten == 0 && file::extents(self.fd, from, bytes) == Ok(0),
        };
        // Another thread may have given the number to another file.
        empty && file::stat_fd(self.fd).is_ok_and(|now| now.is_same_file(&self.status))
    }
}

/// Whether there is no seccomp filter.
fn is_free() -> bool {
    own_status(b"Seccomp:") == Some(0)
}

const _: () = assert!(STEP % PAGE == 0);

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::{AsRawFd, FromRawFd};
    use std::os::unix::fs::FileExt;

    const BYTES: u64 = 4 << 30;

    fn parts(file: &File, offset: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let start = 1 << 40;
        let code = PageRange::new(start, start + BYTES - offset).unwrap();
        let (fd, status) = (file.as_raw_fd(), file::stat_fd(file.as_raw_fd()).ok());
        each_part(code, (fd, offset), status, |part| {
            found.push((part.start() - start, part.end() - start));
        });
        found
    }

    /// Every byte that is written is in a part, and little else is.
    fn finds_what_is_written(mut file: File) {
        file.set_len(BYTES).unwrap();
        if !parts(&file, 0).is_empty() {
            return eprintln!("skipped: the kernel does not tell holes here");
        }
        let pages = [0, 3, 511, 512, 70_000, 70_001, 300_000, 1_048_575];
        for page in pages {
            file.write_all_at(&[0x90], page * PAGE + 17).unwrap();
        }
        file.flush().unwrap();
        for offset in [0, 5 * PAGE, 512 * PAGE] {
            let found = parts(&file, offset);
            let holds = |page: &u64| {
                let at = (page * PAGE).wrapping_sub(offset);
                page * PAGE < offset || found.iter().any(|(s, e)| (*s..*e).contains(&at))
            };
            assert!(pages.iter().all(holds), "{found:?}");
            let sum: u64 = found.iter().map(|(s, e)| e - s).sum();
            assert!(sum <= 2 * pages.len() as u64 * STEP, "{found:?}");
        }
    }

    #[test]
    fn in_memory() {
        // SAFETY: a name and no flags.
        let fd = unsafe { libc::memfd_create(c"sparse".as_ptr(), 0) };
        assert!(fd >= 0);
        // SAFETY: nobody else's.
        finds_what_is_written(unsafe { File::from_raw_fd(fd) });
    }

    #[test]
    fn on_disk() {
        let path = std::env::current_exe().unwrap();
        let path = path.with_file_name("sparse-test");
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(true);
        let file = options.open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        finds_what_is_written(file);
    }
}
