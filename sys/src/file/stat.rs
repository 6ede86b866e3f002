//! What a file is: its metadata, its file system, and which device or namespace it stands for.

use crate::entry::call;
use crate::errno::Result;
use core::ffi::CStr;

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

    /// Returns whether `other` is the same file.
    pub const fn is_same_file(&self, other: &Self) -> bool {
        self.dev == other.dev && self.inode == other.inode
    }

    /// Whether it is a character device.
    pub const fn is_character_device(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFCHR
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

/// What of a file is in the page cache, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cached {
    /// All that is.
    pub pages: u64,
    /// What the disk does not have yet.
    pub unwritten: u64,
    /// What was there and is not; of a file in memory: it is in swap.
    pub evicted: u64,
}

/// What of the `bytes` from `from` on of `fd`'s file is in the page cache: cachestat(2), from
/// Linux 6.5. EPERM: the file is somebody else's and can't be written.
pub fn cached(fd: i32, from: u64, bytes: u64) -> Result<Cached> {
    // The same on all architectures, and unknown to older versions of libc.
    const SYS_CACHESTAT: i64 = 451;
    let range = [from, bytes];
    let mut stat = [0u64; 5];
    call!(SYS_CACHESTAT, fd, range.as_ptr(), stat.as_mut_ptr(), 0)?;
    let [pages, dirty, in_writing, evicted, _] = stat;
    Ok(Cached {
        pages,
        unwritten: dirty.saturating_add(in_writing),
        evicted,
    })
}

/// How many extents of `fd`'s file lie in the `bytes` from `from` on; nothing is written for it
/// that is still to be. EOPNOTSUPP: the file system does not know them (tmpfs).
pub fn extents(fd: i32, from: u64, bytes: u64) -> Result<u64> {
    // `_IOWR('f', 11, struct fiemap)` (linux/fiemap.h): start, length, flags and how many were
    // found, room for none, reserved.
    const FS_IOC_FIEMAP: u64 = 3 << 30 | (size_of::<[u64; 4]>() as u64) << 16 | 0x66 << 8 | 11;
    let mut map = [from, bytes, 0, 0];
    call!(libc::SYS_ioctl, fd, FS_IOC_FIEMAP, map.as_mut_ptr())?;
    Ok(map[2] >> 32)
}

/// Type of the file system that a descriptor's file is on, as fstatfs(2) has it.
fn file_system(fd: i32) -> Result<u64> {
    // The first field of struct statfs, of 120 bytes.
    let mut stat = [0u64; 16];
    call!(libc::SYS_fstatfs, fd, stat.as_mut_ptr())?;
    Ok(stat[0])
}

/// Whether `fd`'s file is on a tmpfs, as memfds are that are not of huge pages.
pub fn is_on_tmpfs(fd: i32) -> bool {
    // From the kernel's magic.h.
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    file_system(fd) == Ok(TMPFS_MAGIC)
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
    stat_fd(fd).is_ok_and(|s| s.is_character_device() && s.rdev == rdev)
}

/// Whether it is of something else; not if nobody says, or there is no such descriptor.
pub fn is_no_device(fd: i32, rdev: u64) -> bool {
    stat_fd(fd).is_ok_and(|s| !s.is_character_device() || s.rdev != rdev)
}

/// Returns how many threads of this process /proc lists.
pub fn threads() -> Result<u64> {
    // Two links for the folder and its parent, and one for each thread.
    stat_path(c"/proc/self/task", false).map(|task| task.links.saturating_sub(2))
}

/// Metadata of `path`; a link itself if `nofollow`.
pub fn stat_path(path: &CStr, nofollow: bool) -> Result<Stat> {
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
