//! The file behind a shared mapping of this process's, which the helper hands to a peer.

use crate::window::source::{is_sealed, is_write_sealed};
use regall_directory::maps::Line;
use regall_directory::vocab::Prot;
use regall_sys::file::{self, Fd};
use regall_sys::text::{Lossy, Text};
use regall_sys::{Errno, Result};

/// The file that is mapped shared at an address, with the rights that the mapping has.
/// And where in the file that address is. ENXIO: what is there is not shared; ENOENT: the
/// process has no descriptor of it; EOPNOTSUPP: somebody who has it could cut it short, which
/// would be SIGBUS in the owner.
pub fn descriptor(addr: u64) -> Result<(Fd, u64)> {
    let mut mapped = None;
    crate::maps::any(c"/proc/self/maps", |line: &Line| {
        let here = line.range.start() <= addr && addr < line.range.end();
        if here && line.prot.shared() && line.inode != 0 {
            let at = line.offset + (addr - line.range.start());
            mapped = Some(((line.dev_major, line.dev_minor, line.inode), line.prot, at));
        }
        here
    })?;
    let (file, prot, at) = mapped.ok_or(Errno::NXIO)?;
    // (To open and close a device may mean something: XPMEM takes it for its user's end.)
    let is_it = |s: &file::Stat| {
        let regular = s.mode & libc::S_IFMT == libc::S_IFREG;
        regular && (s.dev_major(), s.dev_minor(), s.inode) == file
    };
    let fd = open_among_descriptors(prot, is_it)?;
    // Who has it opens the file for writing, whatever it was opened for.
    let lasting = prot.writable() || is_write_sealed(&fd);
    match is_sealed(&fd) && lasting {
        true => Ok((fd, at)),
        false => Err(Errno::NOTSUP),
    }
}

/// Opens that file of the process's which is the one, by its entry in /proc: the thread's
/// own descriptors are others.
fn open_among_descriptors(prot: Prot, is_it: impl Fn(&file::Stat) -> bool) -> Result<Fd> {
    let flags = match prot.writable() {
        true => libc::O_RDWR,
        false => libc::O_RDONLY,
    };
    let folder = Fd::open(c"/proc/self/fd", libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    let mut found = None;
    folder.each_entry(usize::MAX, |name| {
        let path: Text<64> = Text::of(format_args!("/proc/self/fd/{}", Lossy(name)));
        let path = path.as_cstr();
        let path = path.filter(|path| file::stat_path(path, false).is_ok_and(|s| is_it(&s)));
        // It may have been closed meanwhile, and be another one.
        let opened = path.and_then(|path| Fd::open(path, flags | libc::O_NONBLOCK, 0).ok());
        found = opened.filter(|fd| fd.stat().is_ok_and(|s| is_it(&s)));
        found.is_none()
    })?;
    found.ok_or(Errno::NOENT)
}
