//! Files: what is read from /proc and written under /dev/shm. Descriptors are
//! closed again at once: programs close whatever they find open.

use crate::entry::call;
use crate::errno::{Errno, Result};
use crate::filter;
use crate::memory::{Access, Segment};
use crate::text::Text;
use core::ffi::CStr;
use core::mem::ManuallyDrop;
use core::ops::Deref;

mod numbers;
mod own_table;
mod owner;
mod stat;

pub use crate::links::read_link;
pub use numbers::*;
pub use own_table::*;
pub use owner::*;
pub use stat::*;

/// An open descriptor; closed when dropped.
pub struct Fd(i32);

impl Fd {
    /// Opens `path` (with its NUL) close-on-exec. `flags` and `mode` as open(2)'s.
    pub fn open(path: &CStr, flags: i32, mode: u32) -> Result<Self> {
        Self::open_at(libc::AT_FDCWD, path, flags, mode)
    }

    /// Opens `path` below the folder `dir`.
    pub fn open_in(dir: &Self, path: &CStr, flags: i32, mode: u32) -> Result<Self> {
        Self::open_at(dir.0, path, flags, mode)
    }

    fn open_at(dir: i32, path: &CStr, flags: i32, mode: u32) -> Result<Self> {
        // What can't be closed again is not opened.
        if !filter::lets(libc::SYS_close, [0; 6]) {
            return Err(Errno::PERM);
        }
        loop {
            match call!(
                libc::SYS_openat,
                dir as i64,
                path.as_ptr(),
                flags | libc::O_CLOEXEC,
                mode
            ) {
                Err(Errno::INTR) => (),
                other => return other.map(|fd| Self(fd as i32)),
            }
        }
    }

    /// The number.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// A descriptor that the kernel has just given us, and that nobody else closes.
    pub fn owned(fd: i32) -> Self {
        Self(fd)
    }

    /// The same file at a high number; see [`duplicate_high`].
    pub fn high(self) -> Result<Self> {
        duplicate_high(self.0).map(Self)
    }

    /// The same file at a high number, beside this one; see [`duplicate_high`].
    pub fn duplicate_high(&self) -> Result<Self> {
        duplicate_high(self.0).map(Self)
    }

    /// The number, for who closes it himself.
    pub fn leak(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }

    /// Reads into `buf` what is at `at`, and moves that behind it; 0 at the end. Another thread may close this
    /// number and put a pipe under it: that is ESPIPE, and neither loses its bytes nor is waited for.
    pub fn read_on(&self, at: &mut u64, buf: &mut [u8]) -> Result<usize> {
        loop {
            match self.read_at(buf, *at) {
                Err(Errno::INTR) => (),
                read => {
                    let n = read?;
                    *at += n as u64;
                    return Ok(n);
                }
            }
        }
    }

    /// Reads into `buf` what comes next through a descriptor that is not a file's; 0 at the end.
    pub fn read(&self, buf: &mut [u8]) -> Result<usize> {
        loop {
            match call!(libc::SYS_read, self.0, buf.as_mut_ptr(), buf.len()) {
                Err(Errno::INTR) => (),
                other => return other.map(|n| n as usize),
            }
        }
    }

    /// Reads into `buf` from `offset` bytes on, once.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        call!(
            libc::SYS_pread64,
            self.0,
            buf.as_mut_ptr(),
            buf.len(),
            offset
        )
        .map(|n| n as usize)
    }

    /// Writes `buf` at `offset` bytes, once.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<usize> {
        call!(libc::SYS_pwrite64, self.0, buf.as_ptr(), buf.len(), offset).map(|n| n as usize)
    }

    /// Reads into `len` bytes at `addr` from `offset` on, or writes from there; once.
    ///
    /// # Safety
    /// The memory is the caller's to be read, and to be written by [`Access::Read`]. What isn't
    /// mapped is EFAULT.
    #[inline]
    pub unsafe fn copy_at(&self, access: Access, addr: u64, len: u64, offset: u64) -> Result<u64> {
        let nr = match access {
            Access::Read => libc::SYS_pread64,
            Access::Write => libc::SYS_pwrite64,
        };
        call!(nr, self.0, addr, len, offset)
    }

    /// The same with several pieces of memory: preadv(2) or pwritev(2).
    ///
    /// # Safety
    /// As [`Fd::copy_at`].
    #[inline]
    pub unsafe fn copy_all_at(
        &self,
        access: Access,
        segments: &[Segment],
        offset: u64,
    ) -> Result<u64> {
        let nr = match access {
            Access::Read => libc::SYS_preadv,
            Access::Write => libc::SYS_pwritev,
        };
        let (parts, many) = (segments.as_ptr(), segments.len());
        call!(nr, self.0, parts, many, offset, 0)
    }

    /// Writes the first `bytes` of a driver's command, once.
    ///
    /// # Safety
    /// There are as many, and what the command names is there for the driver to read and write.
    pub unsafe fn write_command<T>(&self, command: *const T, bytes: usize) -> Result<()> {
        call!(libc::SYS_write, self.0, command, bytes).map(drop)
    }

    /// ioctl(2).
    ///
    /// # Safety
    /// `argument` is what the file's driver takes for `request`, and what it names is there for
    /// the driver to read and write.
    #[inline]
    pub unsafe fn ioctl<T>(&self, request: u64, argument: *mut T) -> Result<u64> {
        call!(libc::SYS_ioctl, self.0, request, argument)
    }

    /// Makes the file `bytes` long. EFBIG beyond RLIMIT_FSIZE.
    pub fn truncate(&self, bytes: u64) -> Result<()> {
        within_limit(bytes)?;
        call!(libc::SYS_ftruncate, self.0, bytes).map(drop)
    }

    /// Whether nobody on this machine can write to this file of our user's, which is open here to
    /// be read: there is no such descriptor, and no shared mapping that was made by one. False
    /// where the kernel does not tell.
    pub fn is_written_by_nobody(&self) -> bool {
        // A lease to read (fcntl(2)) is given under this condition alone, and goes with the
        // descriptor. Who breaks it has a signal sent to its holder, which ends processes unless it
        // is one that is ignored.
        const F_SETSIG: i32 = 10; // of all processors
        let signal = call!(libc::SYS_fcntl, self.0, F_SETSIG, libc::SIGURG);
        signal.is_ok() && call!(libc::SYS_fcntl, self.0, libc::F_SETLEASE, libc::F_RDLCK).is_ok()
    }

    /// The seals of a file in memory (fcntl(2), F_SEAL_*); EINVAL: it is none.
    pub fn seals(&self) -> Result<i32> {
        call!(libc::SYS_fcntl, self.0, libc::F_GET_SEALS).map(|seals| seals as i32)
    }

    /// Adds `seals` to them.
    pub fn seal(&self, seals: i32) -> Result<()> {
        call!(libc::SYS_fcntl, self.0, libc::F_ADD_SEALS, seals).map(drop)
    }

    /// The first offset from `from` on that has data. ENXIO: there is none.
    pub fn next_data(&self, from: u64) -> Result<u64> {
        const SEEK_DATA: i32 = 3;
        call!(libc::SYS_lseek, self.0, from, SEEK_DATA)
    }

    /// The first offset from `from` on that has none.
    pub fn next_hole(&self, from: u64) -> Result<u64> {
        const SEEK_HOLE: i32 = 4;
        call!(libc::SYS_lseek, self.0, from, SEEK_HOLE)
    }

    /// Gives back what bytes `offset..offset + len` take: they are zeroes from now on.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        loop {
            match call!(libc::SYS_fallocate, self.0, how, offset, len) {
                Err(Errno::INTR) => (),
                other => return other.map(drop),
            }
        }
    }

    /// Writes all of `buf` at the file's position. EAGAIN where that would wait, of a file that
    /// was opened with O_NONBLOCK; EPIPE and EFBIG are no signals.
    pub fn write_all(&self, mut buf: &[u8]) -> Result<()> {
        while !buf.is_empty() {
            let n = write_once(self.0, buf)?;
            buf = buf.get(n..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// As [`Fd::write_all`]; waits up to a second for who reads a pipe, each time that it is full.
    pub fn write_all_patiently(&self, mut buf: &[u8]) -> Result<()> {
        while !buf.is_empty() {
            match write_once(self.0, buf) {
                Err(Errno::AGAIN) if self.has_room_within(1000) => (),
                other => buf = buf.get(other?..).unwrap_or(&[]),
            }
        }
        Ok(())
    }

    fn has_room_within(&self, milliseconds: u64) -> bool {
        // struct pollfd: descriptor, what is asked for, what there is.
        let mut poll = [self.0 as u64 & 0xffff_ffff | (libc::POLLOUT as u64) << 32];
        // Signals may come all the while.
        const TRIES: u32 = 64;
        for _ in 0..TRIES {
            match call!(libc::SYS_poll, poll.as_mut_ptr(), 1, milliseconds) {
                Err(Errno::INTR) => (),
                other => return other == Ok(1),
            }
        }
        false
    }

    /// The file's metadata (fstat(2)).
    pub fn stat(&self) -> Result<Stat> {
        stat_fd(self.0)
    }

    /// Makes sure that bytes `offset..offset + len` exist and have their space. EFBIG
    /// beyond RLIMIT_FSIZE.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        within_limit(offset.saturating_add(len))?;
        loop {
            match call!(libc::SYS_fallocate, self.0, 0, offset, len) {
                Err(Errno::INTR) => (),
                other => return other.map(drop),
            }
        }
    }

    /// Maps `len` bytes at `offset`, shared, readable and writable.
    pub fn map_shared(&self, offset: u64, len: u64) -> Result<u64> {
        self.map_shared_near(0, offset, len)
    }

    /// Maps the file for the shim's own use: where the application's holes are not.
    pub fn map_apart(&self, offset: u64, len: u64) -> Result<u64> {
        self.map_shared_near(crate::memory::apart(len), offset, len)
    }

    /// As [`Fd::map_shared`], at `hint` if nothing is there.
    pub fn map_shared_near(&self, hint: u64, offset: u64, len: u64) -> Result<u64> {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        self.map_shared_as(prot, hint, offset, len)
    }

    /// As [`Fd::map_shared_near`], with the protection `prot`.
    pub fn map_shared_as(&self, prot: i32, hint: u64, offset: u64, len: u64) -> Result<u64> {
        // SAFETY: without MAP_FIXED nothing is replaced.
        unsafe { crate::memory::map(hint, len, prot, libc::MAP_SHARED, self.0, offset) }
    }

    /// Calls `f` with the name of each entry of this folder, of the first `most`, until it says no.
    /// Errors: the kernel's.
    pub fn each_entry(&self, most: usize, mut f: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let mut buf = [0u8; 2048];
        let mut left = most;
        loop {
            let n = call!(libc::SYS_getdents64, self.0, buf.as_mut_ptr(), buf.len())?;
            let mut rest = buf.get(..n as usize).unwrap_or(&[]);
            if rest.is_empty() {
                return Ok(());
            }
            while let Some((name, tail)) = next_entry(rest) {
                rest = tail;
                if left == 0 || !f(name) {
                    return Ok(());
                }
                left -= 1;
            }
        }
    }

    /// Makes a named pipe `name` below this folder.
    pub fn make_pipe(&self, name: &CStr, mode: u32) -> Result<()> {
        let mode = libc::S_IFIFO | mode;
        call!(libc::SYS_mknodat, self.0, name.as_ptr(), mode, 0).map(drop)
    }

    /// Removes the file `name` below this folder.
    pub fn unlink(&self, name: &CStr) -> Result<()> {
        call!(libc::SYS_unlinkat, self.0, name.as_ptr(), 0).map(drop)
    }
}

/// A descriptor by a number that somebody else closes, or has closed.
pub struct Borrowed(ManuallyDrop<Fd>);

/// The descriptor `fd`, which stays open.
#[inline]
pub fn borrow(fd: i32) -> Borrowed {
    Borrowed(ManuallyDrop::new(Fd(fd)))
}

impl Deref for Borrowed {
    type Target = Fd;

    #[inline]
    fn deref(&self) -> &Fd {
        &self.0
    }
}

/// Locks byte `at` of `fd`'s file for `fd`'s description, without waiting (F_OFD_SETLK).
///
/// # Errors
/// EAGAIN, EACCES: another description has it locked.
pub fn lock_byte(fd: i32, at: u64) -> Result<()> {
    set_lock(fd, libc::F_WRLCK, at)
}

/// Unlocks it again.
pub fn unlock_byte(fd: i32, at: u64) {
    let _ = set_lock(fd, libc::F_UNLCK, at);
}

fn set_lock(fd: i32, kind: i32, at: u64) -> Result<()> {
    // SAFETY: all zeroes is a valid `struct flock`; l_pid has to be 0.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (at as i64, 1);
    call!(libc::SYS_fcntl, fd, libc::F_OFD_SETLK, &raw const lock).map(drop)
}

/// memfd_create(2): a file that is memory, and has no name but for people to read.
pub fn in_memory(name: &CStr, flags: u32) -> Result<Fd> {
    call!(libc::SYS_memfd_create, name.as_ptr(), flags).map(|fd| Fd(fd as i32))
}

/// A descriptor from which signals of `mask`, which are blocked, can be read (signalfd(2)).
/// Reading it never waits.
pub fn of_signals(mask: u64) -> Result<Fd> {
    let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
    call!(libc::SYS_signalfd4, -1i64, &raw const mask, 8, flags).map(|fd| Fd(fd as i32))
}

/// Removes the file `path`.
pub fn unlink(path: &CStr) -> Result<()> {
    let here = libc::AT_FDCWD as i64;
    call!(libc::SYS_unlinkat, here, path.as_ptr(), 0).map(drop)
}

/// `struct pollfd`: what is to be waited for.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Poll {
    fd: i32,
    events: i16,
    /// What has come.
    pub found: i16,
}

impl Poll {
    /// There is something to be read from `fd`; nothing if it is -1.
    pub const fn readable(fd: i32) -> Self {
        Self {
            fd,
            events: libc::POLLIN,
            found: 0,
        }
    }
}

/// Waits until something has come or `nanos` are over; of how many descriptors.
pub fn poll(polls: &mut [Poll], nanos: u64) -> Result<u64> {
    let time = [nanos / 1_000_000_000, nanos % 1_000_000_000];
    let (these, many) = (polls.as_mut_ptr(), polls.len());
    call!(libc::SYS_ppoll, these, many, time.as_ptr(), 0, 8)
}

/// A pipe by which to say that there is something to look at: both ends in one descriptor,
/// which is never waited for. So writing to it can't be SIGPIPE, and it has an inode of its
/// own. Errors of pipe(2), and of open(2): ENOENT without /proc.
pub fn pipe() -> Result<Fd> {
    let mut ends = [-1i32; 2];
    call!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC)?;
    let [out, _in] = ends.map(Fd::owned);
    let path: Text<64> = Text::of(format_args!("/proc/thread-self/fd/{}", out.raw()));
    let path = path.as_cstr().ok_or(Errno::NOENT)?;
    Fd::open(path, libc::O_RDWR | libc::O_NONBLOCK, 0)
}

impl Drop for Fd {
    fn drop(&mut self) {
        let _ = call!(libc::SYS_close, self.0);
    }
}

/// EFBIG for a file that would be longer than RLIMIT_FSIZE: the kernel would send SIGXFSZ, which
/// is nobody's business.
fn within_limit(bytes: u64) -> Result<()> {
    match crate::system::rlimit(libc::RLIMIT_FSIZE) {
        Ok((soft, _)) if soft < bytes => Err(Errno::FBIG),
        _ => Ok(()),
    }
}

/// Errors of a write which the kernel tells by a signal, too: nobody reads the pipe, the file
/// would be longer than RLIMIT_FSIZE.
const SIGNALLED: [(Errno, i32); 2] = [(Errno::PIPE, libc::SIGPIPE), (Errno::FBIG, libc::SIGXFSZ)];

/// Writes some of `buf`, without a signal: it is not the program that writes.
fn write_once(fd: i32, buf: &[u8]) -> Result<usize> {
    let bit = |signal: i32| 1u64 << (signal - 1);
    let all = SIGNALLED.iter().fold(0, |all, s| all | bit(s.1));
    let (mut before, mut pending) = (0u64, 0u64);
    let _ = call!(
        libc::SYS_rt_sigprocmask,
        libc::SIG_BLOCK,
        &raw const all,
        &raw mut before,
        8
    );
    let _ = call!(libc::SYS_rt_sigpending, &raw mut pending, 8);
    let written = loop {
        match call!(libc::SYS_write, fd, buf.as_ptr(), buf.len()) {
            Err(Errno::INTR) => (),
            other => break other.map(|n| n as usize),
        }
    };
    for (errno, signal) in SIGNALLED {
        if written == Err(errno) && pending & bit(signal) == 0 {
            // Takes away the one that we caused.
            let (ours, now) = (bit(signal), [0u64; 2]);
            let _ = call!(
                libc::SYS_rt_sigtimedwait,
                &raw const ours,
                0,
                now.as_ptr(),
                8
            );
        }
    }
    let _ = call!(
        libc::SYS_rt_sigprocmask,
        libc::SIG_SETMASK,
        &raw const before,
        0,
        8
    );
    written
}

/// Writes `buf` once to a descriptor that is not ours (standard error).
pub fn write_foreign(fd: i32, buf: &[u8]) {
    let _ = write_once(fd, buf);
}

/// The name of the first of the kernel's directory entries, and the rest.
fn next_entry(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    // struct linux_dirent64: inode, offset, length of the entry, type, name.
    let length = u16::from_ne_bytes([*entries.get(16)?, *entries.get(17)?]) as usize;
    let name = entries.get(19..length)?;
    let end = name.iter().position(|b| *b == 0)?;
    Some((name.get(..end)?, entries.get(length..)?))
}

/// Makes the folder `path` with permissions `mode`.
pub fn make_folder(path: &CStr, mode: u32) -> Result<()> {
    call!(
        libc::SYS_mkdirat,
        libc::AT_FDCWD as i64,
        path.as_ptr(),
        mode
    )
    .map(drop)
}

/// Removes the folder `path`, in which nothing is.
pub fn remove_folder(path: &CStr) -> Result<()> {
    let here = libc::AT_FDCWD as i64;
    call!(libc::SYS_unlinkat, here, path.as_ptr(), libc::AT_REMOVEDIR).map(drop)
}

/// Reads the whole of a small file, which is opened as by [`with_own_table`]; the bytes used of `buf`.
pub fn read_small<'a>(path: &CStr, buf: &'a mut [u8]) -> Result<&'a [u8]> {
    let used = with_own_table(|| read_small_here(path, buf).map(<[u8]>::len))?;
    Ok(buf.get(..used).unwrap_or(&[]))
}

/// As [`read_small`], in this thread's table of descriptors.
pub fn read_small_here<'a>(path: &CStr, buf: &'a mut [u8]) -> Result<&'a [u8]> {
    let fd = Fd::open(path, libc::O_RDONLY, 0)?;
    let mut used = 0;
    loop {
        let room = buf.get_mut(used as usize..).unwrap_or(&mut []);
        if room.is_empty() || fd.read_on(&mut used, room)? == 0 {
            break;
        }
    }
    Ok(buf.get(..used as usize).unwrap_or(&[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SIGPIPE of this thread's that waits to be delivered.
    fn pending() -> bool {
        let mut pending = 0u64;
        call!(libc::SYS_rt_sigpending, &raw mut pending, 8).unwrap();
        pending >> (libc::SIGPIPE - 1) & 1 != 0
    }

    #[test]
    fn a_signal_of_a_write_is_taken_away_and_another_is_not() {
        let mut ends = [-1i32; 2];
        call!(libc::SYS_pipe2, ends.as_mut_ptr(), libc::O_CLOEXEC).unwrap();
        let [out, into] = ends.map(Fd::owned);
        drop(out);
        // What is ignored is pending, too, where it is blocked.
        let _blocked = crate::signal::Undisturbed::new();
        assert_eq!(into.write_all(b"x"), Err(Errno::PIPE));
        assert!(!pending());
        call!(
            libc::SYS_tgkill,
            crate::identity::getpid(),
            crate::identity::gettid(),
            libc::SIGPIPE
        )
        .unwrap();
        assert_eq!(into.write_all(b"x"), Err(Errno::PIPE));
        assert!(pending());
    }
}
