//! Files: what is read from /proc and written under /dev/shm. Descriptors are
//! closed again at once: programs close whatever they find open.

use crate::text::Text;
use crate::{call, Errno, Result};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// An open descriptor; closed when dropped.
pub struct Fd(i32);

impl Fd {
    /// Opens `path` (with its NUL) close-on-exec. `flags` and `mode` as open(2)'s.
    pub fn open(path: &core::ffi::CStr, flags: i32, mode: u32) -> Result<Self> {
        Self::open_at(libc::AT_FDCWD, path, flags, mode)
    }

    /// Opens `path` below the folder `dir`.
    pub fn open_in(dir: &Self, path: &core::ffi::CStr, flags: i32, mode: u32) -> Result<Self> {
        Self::open_at(dir.0, path, flags, mode)
    }

    fn open_at(dir: i32, path: &core::ffi::CStr, flags: i32, mode: u32) -> Result<Self> {
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

    /// A descriptor that nobody else closes.
    pub fn own(fd: i32) -> Self {
        Self(fd)
    }

    /// The number.
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// A descriptor that the kernel has just given us.
    pub fn owned(fd: i32) -> Self {
        Self(fd)
    }

    /// The same file at a high number; see [`duplicate_high`].
    pub fn high(self) -> Result<Self> {
        duplicate_high(self.0).map(Self)
    }

    /// The number, for who closes it himself.
    pub fn leak(self) -> i32 {
        let fd = self.0;
        core::mem::forget(self);
        fd
    }

    /// Reads into `buf`; 0 at the end.
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

    /// Writes all of `buf` at the file's position.
    pub fn write_all(&self, mut buf: &[u8]) -> Result<()> {
        while !buf.is_empty() {
            let n = write_once(self.0, buf)?;
            buf = buf.get(n..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// The file's metadata (fstat(2)).
    pub fn stat(&self) -> Result<Stat> {
        stat_fd(self.0)
    }

    /// Makes sure that bytes `offset..offset + len` exist and have their space. EFBIG
    /// beyond RLIMIT_FSIZE, where the kernel would send SIGXFSZ, which is nobody's business.
    pub fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        match crate::rlimit(libc::RLIMIT_FSIZE) {
            Ok((soft, _)) if soft < offset.saturating_add(len) => return Err(Errno::FBIG),
            _ => (),
        }
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
        self.map_shared_near(crate::apart(len), offset, len)
    }

    /// As [`Fd::map_shared`], at `hint` if nothing is there.
    pub fn map_shared_near(&self, hint: u64, offset: u64, len: u64) -> Result<u64> {
        call!(
            libc::SYS_mmap,
            hint,
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            self.0,
            offset
        )
    }

    /// Raw directory entries (getdents64), 0 at the end.
    pub fn entries(&self, buf: &mut [u8]) -> Result<usize> {
        call!(libc::SYS_getdents64, self.0, buf.as_mut_ptr(), buf.len()).map(|n| n as usize)
    }

    /// Makes a named pipe `name` below this folder.
    pub fn make_pipe(&self, name: &core::ffi::CStr, mode: u32) -> Result<()> {
        let mode = libc::S_IFIFO | mode;
        call!(libc::SYS_mknodat, self.0, name.as_ptr(), mode, 0).map(drop)
    }

    /// Removes the file `name` below this folder.
    pub fn unlink(&self, name: &core::ffi::CStr) -> Result<()> {
        call!(libc::SYS_unlinkat, self.0, name.as_ptr(), 0).map(drop)
    }
}

/// Descriptors of ours that are kept lie below this, or as high as the soft limit lets
/// them. Higher, and fork would have a larger table to copy.
const HIGH: u64 = 1024;
/// How many of them there is room for.
const RESERVED: u64 = 64;

/// A duplicate of `fd` at a high number, close-on-exec: programs that close what they
/// find begin at the low ones.
pub fn duplicate_high(fd: i32) -> Result<i32> {
    let (soft, _) = super::rlimit(libc::RLIMIT_NOFILE)?;
    let lowest = soft.min(HIGH).saturating_sub(RESERVED);
    let high = call!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, lowest);
    high.or_else(|_| call!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0))
        .map(|fd| fd as i32)
}

/// What `open` opens, at a high number, where a duplicate would not do: all numbers below are
/// taken meanwhile. For a process with one thread, and a table that nobody shares. Where there is
/// no room, at any number.
pub fn above_the_low(open: impl FnOnce() -> Result<Fd>) -> Result<Fd> {
    let (soft, _) = super::rlimit(libc::RLIMIT_NOFILE)?;
    let lowest = soft.min(HIGH).saturating_sub(RESERVED);
    // Closing it does nothing.
    let filler = Fd::open(c"/", libc::O_PATH, 0)?;
    let mut taken = [0u64; HIGH as usize / 64];
    while let Ok(n) = call!(libc::SYS_fcntl, filler.raw(), libc::F_DUPFD_CLOEXEC, 0) {
        match taken.get_mut(n as usize / 64) {
            Some(word) if n < lowest => *word |= 1 << (n % 64),
            _ => {
                close(n as i32);
                break;
            }
        }
    }
    let opened = open();
    for (n, word) in taken.iter().enumerate() {
        for bit in (0..64).filter(|bit| word >> bit & 1 != 0) {
            close((n * 64 + bit) as i32);
        }
    }
    opened
}

/// Whether this is a child that shares its parent's table of descriptors.
static SHARED: AtomicBool = AtomicBool::new(false);

/// In a child, before anything of its parent's is let go: whether both have one table of
/// descriptors (CLONE_FILES). What is closed in it is closed for the parent.
pub fn inherited_are_shared(yes: bool) {
    SHARED.store(yes, Relaxed);
}

/// Whether what this process has inherited is its parent's to close.
pub fn are_inherited_shared() -> bool {
    SHARED.load(Relaxed)
}

/// Closes a descriptor that a child has from its parent, unless it is the parent's own.
pub fn close_inherited(fd: i32) {
    if !are_inherited_shared() {
        close(fd);
    }
}

/// Closes a descriptor of ours; -1 is none.
pub fn close(fd: i32) {
    if fd >= 0 {
        let _ = call!(libc::SYS_close, fd);
    }
}

/// A descriptor of ours that stays open, and of which file it is: a program may close what it
/// finds and be given the number for a file of its own, which is none of our business.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    fd: i32,
    file: (u64, u64),
}

impl Kept {
    /// A duplicate of `fd`, as [`duplicate_high`] makes it. Of a file with an inode of its
    /// own: all eventfds have one together.
    pub fn new(fd: &Fd) -> Result<Self> {
        let Stat { dev, inode, .. } = fd.stat()?;
        let fd = duplicate_high(fd.raw())?;
        let file = (dev, inode);
        Ok(Self { fd, file })
    }

    /// The number, whatever it stands for now.
    pub fn raw(&self) -> i32 {
        self.fd
    }

    /// The number, as long as it is our file's.
    pub fn ours(&self) -> Option<i32> {
        let stat = stat_fd(self.fd).ok()?;
        ((stat.dev, stat.inode) == self.file).then_some(self.fd)
    }

    /// Closes it, if it is ours.
    pub fn close(&self) {
        self.ours().into_iter().for_each(close);
    }
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

fn write_once(fd: i32, buf: &[u8]) -> Result<usize> {
    loop {
        match call!(libc::SYS_write, fd, buf.as_ptr(), buf.len()) {
            Err(Errno::INTR) => (),
            other => return other.map(|n| n as usize),
        }
    }
}

/// Writes `buf` once to a descriptor that is not ours (standard error). A pipe
/// that nobody reads is no reason for a SIGPIPE.
pub fn write_foreign(fd: i32, buf: &[u8]) {
    let pipe = 1u64 << (libc::SIGPIPE - 1);
    let (mut before, mut pending) = (0u64, 0u64);
    let _ = call!(
        libc::SYS_rt_sigprocmask,
        libc::SIG_BLOCK,
        &raw const pipe,
        &raw mut before,
        8
    );
    let _ = call!(libc::SYS_rt_sigpending, &raw mut pending, 8);
    let broken = write_once(fd, buf) == Err(Errno::PIPE);
    if broken && pending & pipe == 0 {
        // Takes away the one that we caused.
        let now = [0u64; 2];
        let _ = call!(
            libc::SYS_rt_sigtimedwait,
            &raw const pipe,
            0,
            now.as_ptr(),
            8
        );
    }
    let _ = call!(
        libc::SYS_rt_sigprocmask,
        libc::SIG_SETMASK,
        &raw const before,
        0,
        8
    );
}

/// The name of the first of the kernel's directory entries, and the rest.
pub fn next_entry(entries: &[u8]) -> Option<(&[u8], &[u8])> {
    // struct linux_dirent64: inode, offset, length of the entry, type, name.
    let length = u16::from_ne_bytes([*entries.get(16)?, *entries.get(17)?]) as usize;
    let name = entries.get(19..length)?;
    let end = name.iter().position(|b| *b == 0)?;
    Some((name.get(..end)?, entries.get(length..)?))
}

/// What is needed of `struct stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Device, as stat(2) has it.
    pub dev: u64,
    /// Inode number.
    pub inode: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Device number of a device file.
    pub rdev: u64,
    /// Bytes.
    pub size: u64,
    /// What of it is there, in 512 bytes.
    pub blocks: u64,
    /// Names that it has; of a folder, its subfolders and two.
    pub links: u64,
}

impl Stat {
    /// Major number of the device, as makedev(3) packs it into `st_dev`.
    pub const fn dev_major(&self) -> u32 {
        major(self.dev)
    }

    /// Minor number of the device.
    pub const fn dev_minor(&self) -> u32 {
        minor(self.dev)
    }
}

/// Major number of a device, as makedev(3) packs it.
pub const fn major(dev: u64) -> u32 {
    ((dev >> 8) & 0xfff) as u32 | ((dev >> 32) & 0xffff_f000) as u32
}

/// Minor number of a device, likewise.
pub const fn minor(dev: u64) -> u32 {
    (dev & 0xff) as u32 | ((dev >> 12) & 0xffff_ff00) as u32
}

impl From<&libc::stat> for Stat {
    fn from(s: &libc::stat) -> Self {
        Self {
            dev: s.st_dev,
            inode: s.st_ino,
            mode: s.st_mode,
            uid: s.st_uid,
            rdev: s.st_rdev,
            size: u64::try_from(s.st_size).unwrap_or(0),
            blocks: u64::try_from(s.st_blocks).unwrap_or(0),
            links: s.st_nlink,
        }
    }
}

/// Whether `fd`'s file is memory: tmpfs, a memfd, hugetlbfs. Only their files have seals, and
/// the file system is not asked, which another machine may answer for.
pub fn is_memory(fd: i32) -> bool {
    call!(libc::SYS_fcntl, fd, libc::F_GET_SEALS).is_ok()
}

/// Bytes that the file system of `fd`'s file has left for everybody.
pub fn room_fd(fd: i32) -> Result<u64> {
    // The type, the size of a block, and three numbers of blocks, of which the last is of
    // those that everybody can have.
    let mut words = [0u64; 15];
    call!(libc::SYS_fstatfs, fd, words.as_mut_ptr())?;
    let [_, block, _, _, left, ..] = words;
    Ok(left.saturating_mul(block))
}

const _: () = assert!(size_of::<libc::statfs>() <= size_of::<[u64; 15]>());

/// Metadata of any descriptor.
pub fn stat_fd(fd: i32) -> Result<Stat> {
    // SAFETY: all zeroes is a valid `struct stat`.
    let mut s: libc::stat = unsafe { core::mem::zeroed() };
    call!(libc::SYS_fstat, fd, &raw mut s)?;
    Ok((&s).into())
}

/// Type of the file system that a descriptor's file is on, as fstatfs(2) has it.
fn file_system(fd: i32) -> Result<u64> {
    // The first field of struct statfs, of 120 bytes.
    let mut stat = [0u64; 16];
    call!(libc::SYS_fstatfs, fd, stat.as_mut_ptr())?;
    Ok(stat[0])
}

/// Whether a descriptor is of a POSIX message queue.
pub fn is_message_queue(fd: i32) -> bool {
    // From the kernel's ipc/mqueue.c.
    const MQUEUE_MAGIC: u64 = 0x1980_0202;
    file_system(fd) == Ok(MQUEUE_MAGIC)
}

/// Which kind of namespace a descriptor is of, as CLONE_NEW* has it; `None`: of no namespace.
pub fn namespace_kind(fd: i32) -> Result<Option<i32>> {
    // From the kernel's magic.h and nsfs.h.
    const NSFS_MAGIC: u64 = 0x6e73_6673;
    const NS_GET_NSTYPE: u64 = 0xb703;
    // To another file the number may mean anything.
    if file_system(fd)? != NSFS_MAGIC {
        return Ok(None);
    }
    call!(libc::SYS_ioctl, fd, NS_GET_NSTYPE).map(|kind| Some(kind as i32))
}

/// Whether a descriptor is of the device that has the number `rdev`.
pub fn is_device(fd: i32, rdev: u64) -> bool {
    stat_fd(fd).is_ok_and(|s| s.mode & libc::S_IFMT == libc::S_IFCHR && s.rdev == rdev)
}

/// Metadata of `path`; a link itself if `nofollow`.
pub fn stat_path(path: &core::ffi::CStr, nofollow: bool) -> Result<Stat> {
    // SAFETY: as above.
    let mut s: libc::stat = unsafe { core::mem::zeroed() };
    let flags = if nofollow {
        libc::AT_SYMLINK_NOFOLLOW
    } else {
        0
    };
    call!(
        libc::SYS_newfstatat,
        libc::AT_FDCWD as i64,
        path.as_ptr(),
        &raw mut s,
        flags
    )?;
    Ok((&s).into())
}

/// Makes the folder `path` with permissions `mode`.
pub fn make_folder(path: &core::ffi::CStr, mode: u32) -> Result<()> {
    call!(
        libc::SYS_mkdirat,
        libc::AT_FDCWD as i64,
        path.as_ptr(),
        mode
    )
    .map(drop)
}

/// Where the link `path` points to; the bytes used of `buf`.
pub fn read_link<'a>(path: &core::ffi::CStr, buf: &'a mut [u8]) -> Result<&'a [u8]> {
    let n = call!(
        libc::SYS_readlinkat,
        libc::AT_FDCWD as i64,
        path.as_ptr(),
        buf.as_mut_ptr(),
        buf.len()
    )?;
    Ok(buf.get(..n as usize).unwrap_or(&[]))
}

/// Reads the whole of a small file; the bytes used of `buf`.
pub fn read_small<'a>(path: &core::ffi::CStr, buf: &'a mut [u8]) -> Result<&'a [u8]> {
    let fd = Fd::open(path, libc::O_RDONLY, 0)?;
    let mut used = 0;
    loop {
        let room = buf.get_mut(used..).unwrap_or(&mut []);
        if room.is_empty() {
            break;
        }
        match fd.read(room)? {
            0 => break,
            n => used += n,
        }
    }
    Ok(buf.get(..used).unwrap_or(&[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_high_and_close_on_exec() {
        let null = Fd::open(c"/dev/null", libc::O_RDWR, 0).unwrap();
        let high = duplicate_high(null.raw()).unwrap();
        let (soft, _) = crate::rlimit(libc::RLIMIT_NOFILE).unwrap();
        assert!(high as u64 >= soft.min(HIGH) - RESERVED);
        let flags = call!(libc::SYS_fcntl, high, libc::F_GETFD).unwrap();
        assert_eq!(flags, libc::FD_CLOEXEC as u64);
        close(high);
    }

    #[test]
    fn what_was_closed_is_not_ours_though_its_number_is_there() {
        let (one, other) = (pipe().unwrap(), pipe().unwrap());
        let kept = Kept::new(&one).unwrap();
        assert_eq!(kept.ours(), Some(kept.raw()));
        assert_eq!(call!(libc::SYS_write, kept.raw(), b"x".as_ptr(), 1), Ok(1));
        let mut byte = [0];
        assert!(one.read(&mut byte) == Ok(1) && one.read(&mut byte) == Err(Errno::AGAIN));
        call!(libc::SYS_dup3, other.raw(), kept.raw(), 0).unwrap();
        assert_eq!(kept.ours(), None);
        kept.close();
        assert!(stat_fd(kept.raw()).is_ok());
        close(kept.raw());
        assert_eq!(kept.ours(), None);
    }
}
