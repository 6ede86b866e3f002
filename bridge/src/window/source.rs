//! What a peer's address is backed by, and how that is opened from here. The kernel's list
//! of the peer's mappings says which file it is and where in it; then come, in this order:
//! - `/proc/PID/map_files`, which is that very file, but takes CAP_CHECKPOINT_RESTORE;
//! - its path, if that still leads to it;
//! - a descriptor of it that the peer has open (a memfd has no path).
//!
//! A System V segment is attached by its number instead.
//!
//! Where the list can't be read there is nothing to go by here: the owner's helper passes a
//! descriptor over its socket (`super::attach`).

use crate::find::is_shortage;
use regall_directory::addr::round_up;
use regall_directory::maps::Line;
use regall_sys::file::{self, Fd, Stat};
use regall_sys::mappings::Wanted;
use regall_sys::text::{number, Text};
use regall_sys::{Errno, Result};

/// Longer names than this are of no use here, bytes.
const NAME: usize = 256;

/// One of a peer's mappings, and the file behind it.
pub struct Backing {
    /// First address in the peer.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Where in the file it begins, in bytes.
    pub offset: u64,
    /// The file's device, as the kernel's list has it.
    dev: (u32, u32),
    /// The file's inode; of a System V segment its number.
    inode: u64,
    shared: bool,
    name: Text<NAME>,
}

/// Which file, among those that exist at one time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileId {
    /// Device, major number above.
    pub dev: u64,
    /// Inode, or number of a System V segment. Those are numbered apart from all inodes.
    pub inode: u64,
    /// Which of the two.
    pub segment: bool,
}

impl Backing {
    /// What holds `addr` in process `pid`, if it is a shared mapping of a file.
    ///
    /// ENOENT: it isn't; errors of open(2) and read(2).
    pub fn find(pid: u32, addr: u64) -> Result<Self> {
        let found = Self::any(pid, addr)?;
        match found.shared && found.inode != 0 {
            true => Ok(found),
            false => Err(Errno::NOENT),
        }
    }

    /// What holds `addr` in process `pid`, whatever it is. ENOENT: nothing is mapped there.
    pub fn any(pid: u32, addr: u64) -> Result<Self> {
        let path: Text<32> = Text::of(format_args!("/proc/{pid}/maps"));
        let path = path.as_cstr().ok_or(Errno::SRCH)?;
        match query(path, addr) {
            Err(Errno::NOTTY) => Self::read(path, addr),
            other => other,
        }
    }

    /// Whether nobody can cut short what it is of, in process `pid`: see [`is_steady`].
    pub fn is_steady(&self, pid: u32) -> bool {
        self.inode == 0
            || self.is_segment()
            || open(pid, self, false).is_ok_and(|fd| is_steady(&fd, self))
    }

    /// From the list as text, for kernels before 6.11.
    fn read(path: &core::ffi::CStr, addr: u64) -> Result<Self> {
        let mut found = None;
        crate::maps::any(path, |line| {
            let here = line.range.start() <= addr && addr < line.range.end();
            if here {
                found = Some(Self::of(line));
            }
            here
        })?;
        found.ok_or(Errno::NOENT)
    }

    fn of(line: &Line) -> Self {
        let mut name = Text::new();
        name.push(line.name);
        Self {
            start: line.range.start(),
            end: line.range.end(),
            offset: line.offset,
            dev: (line.dev_major, line.dev_minor),
            inode: line.inode,
            shared: line.prot.shared(),
            name,
        }
    }

    /// The file.
    pub fn id(&self) -> FileId {
        FileId {
            dev: u64::from(self.dev.0) << 32 | u64::from(self.dev.1),
            inode: self.inode,
            segment: self.is_segment(),
        }
    }

    /// Whether it looks like a System V segment: see [`Backing::attach`].
    pub fn is_segment(&self) -> bool {
        let name = self.name.as_bytes();
        let key = name.strip_prefix(b"/SYSV");
        key.and_then(|k| k.strip_suffix(b" (deleted)"))
            .is_some_and(|k| k.len() == 8 && k.iter().all(u8::is_ascii_hexdigit))
    }

    fn is(&self, stat: &Stat) -> bool {
        stat.inode == self.inode && (stat.dev_major(), stat.dev_minor()) == self.dev
    }
}

/// Opens what is behind `backing` in process `pid`.
///
/// ENOENT: there is no way to it.
pub fn open(pid: u32, backing: &Backing, writable: bool) -> Result<Fd> {
    let access = match writable {
        true => libc::O_RDWR,
        false => libc::O_RDONLY,
    };
    let found = by_map_files(pid, backing, access)
        .or_else(|e| may_go_on(e).and_then(|()| by_path(backing, access)))
        .or_else(|e| may_go_on(e).and_then(|()| by_descriptor(pid, backing, access)));
    found.map_err(|e| may_go_on(e).err().unwrap_or(Errno::NOENT))
}

/// Whether there is more to be learnt after this error: the error, if it says that there is no
/// descriptor to look with.
fn may_go_on(e: Errno) -> Result<()> {
    match is_shortage(e) {
        true => Err(e),
        false => Ok(()),
    }
}

/// The file of just these addresses. Which file that is has to be looked at again by whoever
/// doubts that the mapping is still the one that `backing` tells of.
fn by_map_files(pid: u32, backing: &Backing, access: i32) -> Result<Fd> {
    let Backing { start, end, .. } = backing;
    let path: Text<64> = Text::of(format_args!("/proc/{pid}/map_files/{start:x}-{end:x}"));
    let path = path.as_cstr().ok_or(Errno::NOENT)?;
    look_at(path, false, is_plain)?;
    open_plain(path, access, is_plain)
}

fn by_path(backing: &Backing, access: i32) -> Result<Fd> {
    let name = backing.name.as_bytes();
    if !name.starts_with(b"/") || name.ends_with(b" (deleted)") {
        return Err(Errno::NOENT);
    }
    let path = backing.name.as_cstr().ok_or(Errno::NOENT)?;
    let same = |s: &Stat| is_plain(s) && backing.is(s);
    // Looked at before it is opened: opening a device may do something.
    look_at(path, true, same)?;
    open_plain(path, access | libc::O_NOFOLLOW, same)
}

fn by_descriptor(pid: u32, backing: &Backing, access: i32) -> Result<Fd> {
    if backing.is_segment() {
        return Err(Errno::NOENT);
    }
    let same = |s: &Stat| is_plain(s) && backing.is(s);
    let path: Text<32> = Text::of(format_args!("/proc/{pid}/fd"));
    let path = path.as_cstr().ok_or(Errno::NOENT)?;
    let folder = Fd::open(path, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let mut found = Err(Errno::NOENT);
    let _ = folder.each_entry(usize::MAX, |name| {
        let Some(number) = number(name) else {
            return true;
        };
        let path: Text<64> = Text::of(format_args!("/proc/{pid}/fd/{number}"));
        let path = path.as_cstr().ok_or(Errno::NOENT);
        found = path.and_then(|path| {
            look_at(path, false, same)?;
            open_plain(path, access, same)
        });
        found.as_ref().is_err_and(|e| !is_shortage(*e))
    });
    found
}

/// Whether the file at a path is the one. ENOENT: another one.
fn look_at(path: &core::ffi::CStr, nofollow: bool, is: impl Fn(&Stat) -> bool) -> Result<()> {
    let found = file::stat_path(path, nofollow)?;
    is(&found).then_some(()).ok_or(Errno::NOENT)
}

fn is_plain(stat: &Stat) -> bool {
    stat.mode & libc::S_IFMT == libc::S_IFREG
}

fn open_plain(path: &core::ffi::CStr, flags: i32, is: impl Fn(&Stat) -> bool) -> Result<Fd> {
    let fd = Fd::open(path, flags | libc::O_NONBLOCK | libc::O_NOCTTY, 0)?;
    match is(&fd.stat()?) {
        true => Ok(fd),
        false => Err(Errno::NOENT),
    }
}

/// Whether nobody can cut the file short, so that touching what its size covers never is
/// SIGBUS: a memfd sealed so ([`is_sealed`]), or memory of the kernel's own mount of tmpfs that
/// nobody has a name or a descriptor for (MAP_SHARED|MAP_ANONYMOUS).
pub fn is_steady(fd: &Fd, backing: &Backing) -> bool {
    match fd.seals() {
        Ok(seals) if seals & libc::F_SEAL_SHRINK != 0 => has_its_pages(fd),
        // memfds are on that mount, too, and named so by the kernel.
        Ok(_) => !backing.name.as_bytes().starts_with(b"/memfd:") && on_kernels_mount(fd),
        Err(_) => false,
    }
}

/// Whether it is a memfd that nobody can cut short, or take pages from that don't come again.
pub fn is_sealed(fd: &Fd) -> bool {
    has_seal(fd, libc::F_SEAL_SHRINK) && has_its_pages(fd)
}

/// Whether pages that somebody punches out of a memfd come again when they are touched. Those of
/// MFD_HUGETLB don't: with the page goes its reservation, and once the pool is empty the next touch
/// is SIGBUS, whatever the seals are.
fn has_its_pages(fd: &Fd) -> bool {
    file::is_on_tmpfs(fd.raw())
}

/// Whether it is a memfd that nobody can write to who opens it anew, as who has any descriptor
/// of it may by /proc.
pub fn is_write_sealed(fd: &Fd) -> bool {
    has_seal(fd, libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE)
}

/// Whether it has one of these seals.
fn has_seal(fd: &Fd, any: i32) -> bool {
    fd.seals().is_ok_and(|seals| seals & any != 0)
}

fn on_kernels_mount(fd: &Fd) -> bool {
    let memfd = memory_file(libc::MFD_CLOEXEC).and_then(|own| own.stat());
    match (memfd, fd.stat()) {
        (Ok(own), Ok(stat)) => own.dev == stat.dev && stat.links == 0,
        _ => false,
    }
}

/// memfd_create(2); `flags` as its.
pub fn memory_file(flags: u32) -> Result<Fd> {
    file::in_memory(c"regall", flags)
}

/// Whether segment numbers mean the same in process `pid` as here: both are in one IPC
/// namespace.
pub fn same_segments(pid: u32) -> bool {
    let path: Text<32> = Text::of(format_args!("/proc/{pid}/ns/ipc"));
    let theirs = path.as_cstr().map(|p| file::stat_path(p, false));
    let own = file::stat_path(c"/proc/self/ns/ipc", false);
    matches!((theirs, own), (Some(Ok(a)), Ok(b)) if a.inode == b.inode && a.dev == b.dev)
}

/// Whether what this process has at `at` is the beginning of what is behind `backing`.
pub fn is_here(at: u64, backing: &Backing) -> bool {
    Backing::find(regall_sys::getpid(), at)
        .is_ok_and(|own| own.id() == backing.id() && own.start == at && own.offset == 0)
}

/// As [`Backing::read`], by address. ENOTTY: this kernel can't (before 6.11).
fn query(path: &core::ffi::CStr, addr: u64) -> Result<Backing> {
    let fd = Fd::open(path, libc::O_RDONLY, 0)?;
    let mut room = [0u8; NAME];
    let found = fd.query(addr, Wanted::Here, &mut room)?;
    let mapping = found.ok_or(Errno::NOENT)?.mapping(&room);
    let mut name = Text::new();
    name.push(mapping.name);
    Ok(Backing {
        start: mapping.start,
        end: mapping.end,
        offset: mapping.offset,
        dev: mapping.device,
        inode: mapping.inode,
        shared: mapping.shared,
        name,
    })
}

/// Bytes of a file from `offset` on that its size covers, in whole pages. EFAULT: none.
pub fn covered(fd: &Fd, offset: u64) -> Result<u64> {
    let size = round_up(fd.stat()?.size).ok_or(Errno::FAULT)?;
    size.checked_sub(offset)
        .filter(|n| *n > 0)
        .ok_or(Errno::FAULT)
}

/// Bytes of the System V segment behind `backing`, in whole pages. ENOENT: its number means another
/// one here; EOPNOTSUPP: it is of huge pages (SHM_HUGETLB), see [`has_its_pages`].
pub fn segment(pid: u32, backing: &Backing) -> Result<u64> {
    if !same_segments(pid) {
        return Err(Errno::NOENT);
    }
    let own = memory_file(libc::MFD_CLOEXEC)?.stat()?;
    if (own.dev_major(), own.dev_minor()) != backing.dev {
        return Err(Errno::NOTSUP);
    }
    let bytes = regall_sys::shm_bytes(backing.id().inode)?;
    round_up(bytes).filter(|b| *b > 0).ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(fd: &Fd, bytes: u64) -> u64 {
        fd.truncate(bytes).unwrap();
        fd.map_shared(0, bytes).unwrap()
    }

    fn unmap(at: u64, bytes: u64) {
        // SAFETY: from `mapped`; nobody uses it.
        unsafe { regall_sys::unmap(at, bytes) }.unwrap();
    }

    #[test]
    fn a_mapping_is_found_both_ways() {
        let fd = memory_file(libc::MFD_CLOEXEC).unwrap();
        let at = mapped(&fd, 4 << 12);
        let stat = fd.stat().unwrap();
        let text = Backing::read(c"/proc/self/maps", at + 5000).unwrap();
        assert_eq!((text.start, text.end, text.offset), (at, at + (4 << 12), 0));
        assert!(text.is(&stat) && text.shared && !text.is_segment());
        assert_eq!(text.name.as_bytes(), b"/memfd:regall (deleted)");
        match query(c"/proc/self/maps", at + 5000) {
            Ok(asked) => {
                assert_eq!((asked.start, asked.end), (text.start, text.end));
                assert_eq!((asked.id(), asked.shared), (text.id(), true));
                assert_eq!(asked.name.as_bytes(), text.name.as_bytes());
            }
            Err(e) => assert_eq!(e, Errno::NOTTY),
        }
        let private = &raw const stat as u64;
        let none = Backing::find(std::process::id(), private);
        assert_eq!(none.err(), Some(Errno::NOENT));
        unmap(at, 4 << 12);
    }

    #[test]
    fn a_memfd_is_opened_by_its_descriptor_alone() {
        let fd = memory_file(libc::MFD_CLOEXEC).unwrap();
        let at = mapped(&fd, 1 << 12);
        let pid = std::process::id();
        let backing = Backing::find(pid, at).unwrap();
        assert!(by_path(&backing, libc::O_RDONLY).is_err());
        let again = by_descriptor(pid, &backing, libc::O_RDWR).unwrap();
        assert_eq!(again.stat().unwrap().inode, fd.stat().unwrap().inode);
        drop((fd, again));
        assert!(by_descriptor(pid, &backing, libc::O_RDWR).is_err());
        unmap(at, 1 << 12);
    }

    #[test]
    fn only_what_can_not_be_cut_short_is_steady() {
        let sealed = memory_file(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING).unwrap();
        let at = mapped(&sealed, 1 << 12);
        let backing = Backing::find(std::process::id(), at).unwrap();
        assert!(!is_steady(&sealed, &backing));
        sealed.seal(libc::F_SEAL_SHRINK).unwrap();
        assert!(is_steady(&sealed, &backing) && is_sealed(&sealed));
        // Seals don't keep huge pages. (Such a file is had without any of them.)
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
        match memory_file(flags) {
            Ok(huge) => {
                huge.seal(libc::F_SEAL_SHRINK | libc::F_SEAL_GROW).unwrap();
                assert!(!is_steady(&huge, &backing) && !is_sealed(&huge));
            }
            // A kernel without them.
            Err(e) => assert!(matches!(e, Errno::NOSYS | Errno::INVAL), "{e:?}"),
        }
        unmap(at, 1 << 12);
        let path = c"/dev/shm/regall-steady-test";
        let named = Fd::open(path, libc::O_RDWR | libc::O_CREAT, 0o600).unwrap();
        let at = mapped(&named, 1 << 12);
        let backing = Backing::find(std::process::id(), at).unwrap();
        assert!(!is_steady(&named, &backing));
        std::fs::remove_file(path.to_str().unwrap()).unwrap();
        let gone = Backing::find(std::process::id(), at).unwrap();
        assert!(!is_steady(&named, &gone));
        unmap(at, 1 << 12);
    }

    #[test]
    fn segments_are_known_by_their_names() {
        let mut line = regall_directory::maps::parse(
            b"7f0000000000-7f0000001000 rw-s 00000000 00:01 5   /SYSV00000000 (deleted)",
        )
        .unwrap();
        assert!(Backing::of(&line).is_segment());
        for other in [
            "/SYSV00000000",
            "/SYSV0 (deleted)",
            "/tmp/SYSV00000000 (deleted)",
        ] {
            line.name = other.as_bytes();
            assert!(!Backing::of(&line).is_segment(), "{other}");
        }
    }
}
