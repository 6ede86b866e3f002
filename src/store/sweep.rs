//! What processes that are no more have left in the folder of directories.

use crate::sys::credentials;
use crate::sys::file::Fd;
use crate::sys::folder::{self, Folder};
use crate::sys::process::{Identity, Stat};
use crate::sys::{self, Errno};
use crate::text::{number, Text};

/// Files that one start-up looks at, at the most.
pub const MOST: usize = 512;

/// Removes the files of processes that are no more.
pub fn all(folder: &Fd, me: &Identity) {
    let _ = folder.each_entry(MOST, |name| {
        if is_of_the_dead(name, me, folder) {
            let mut dead: Text<128> = Text::new();
            dead.push(name);
            let _ = dead.as_cstr().map(|name| folder.unlink(name));
        }
        true
    });
}

/// The same in this user's other folders with random names: of two processes that start at one
/// time, each may have made one.
#[cold]
pub fn others(own: Folder, me: &Identity) {
    folder::each_random(folder::ROOT, own.uid, |fd, other| {
        if other != own {
            all(&fd, me);
            other.leave(folder::ROOT);
        }
    });
}

/// Whether the process of this pid namespace that has this number began at `start`. In another
/// namespace's /proc the number is somebody else's, or nobody's: there it has to do alone.
fn is_alive(pid: u64, start: u64) -> bool {
    let listed = match Stat::of(pid) {
        Ok(now) => now.start == start,
        Err(e) => !matches!(e, Errno::NOENT | Errno::SRCH),
    };
    listed || !credentials::is_proc_ours() && sys::process::exists(pid)
}

fn is_of_the_dead(name: &[u8], me: &Identity, folder: &Fd) -> bool {
    // A directory, or one of the files beside it: a word comes behind.
    let mut fields = name.splitn(4, |b| *b == b'.').map(number);
    let mut next = || fields.next().flatten();
    let (Some(pid), Some(start), Some(namespace)) = (next(), next(), next()) else {
        return false;
    };
    match namespace == me.namespace {
        true => !is_alive(pid, start),
        false => nobody_writes(folder, &Text::of(format_args!("{pid}.{start}.{namespace}"))),
    }
}

/// Whether no process has the directory `name`: it is mapped, writable, as long as its process is
/// there. This tells of processes in pid namespaces that can't be seen from here, or are gone.
fn nobody_writes(folder: &Fd, name: &Text<96>) -> bool {
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let opened = name
        .as_cstr()
        .map(|name| Fd::open_in(folder, name, flags, 0));
    match opened {
        // What lies beside it is made after it, and of no use without it.
        Some(Err(Errno::NOENT)) => true,
        Some(Ok(fd)) => fd.is_written_by_nobody(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::DirBuilderExt as _;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    fn folder() -> PathBuf {
        let path = PathBuf::from(format!("/dev/shm/store-test-{}", sys::getpid()));
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .unwrap();
        path
    }

    /// Of a namespace that is gone, or of another container's: its numbers say nothing here.
    #[test]
    fn what_nobody_has_mapped_is_swept_up_in_any_namespace() {
        let path = folder();
        let me = Identity::own().unwrap();
        let other = me.namespace + 1;
        let make = |name: &str| {
            let file = path.join(name);
            std::fs::write(&file, [0; 4096]).unwrap();
            std::ffi::CString::new(file.to_str().unwrap()).unwrap()
        };
        let alive = make(&format!("1.7.{other}"));
        make(&format!("1.8.{other}"));
        make(&format!("1.9.{other}.regions"));
        make(&format!("{}.{}.{}", me.pid, me.start, me.namespace));
        make(&format!("{}.1.{}", me.pid, me.namespace));
        for n in [7, 8] {
            drop(UnixListener::bind(path.join(format!("1.{n}.{other}.socket"))).unwrap());
        }
        let mapped = Fd::open(&alive, libc::O_RDWR, 0)
            .unwrap()
            .map_shared(0, 4096)
            .unwrap();
        let c_path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        let left = || {
            let fd = Fd::open(&c_path, libc::O_RDONLY | libc::O_DIRECTORY, 0).unwrap();
            all(&fd, &me);
            let names = std::fs::read_dir(&path).unwrap().flatten();
            let mut names: Vec<_> = names
                .map(|e| e.file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        let ours = format!("{}.{}.{}", me.pid, me.start, me.namespace);
        let alive = format!("1.7.{other}");
        let mut expected = vec![format!("{alive}.socket"), alive, ours.clone()];
        expected.sort();
        let first = left();
        // SAFETY: mapped above.
        unsafe { sys::unmap(mapped, 4096) }.unwrap();
        // What lies beside may come before its directory in the folder.
        let _ = left();
        let last = left();
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(first, expected);
        assert_eq!(last, [ours]);
    }
}
