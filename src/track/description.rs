//! What a new mapping is: by its call, and if it is a file's, by the call's descriptor.

use super::{future_flags, program_locks, reading};
use crate::arch::Frame;
use crate::base::settings;
use crate::glob;
use crate::ledger::Origin;
use crate::policy;
use crate::registrar::pin;
use crate::sys::file::{self, Stat};
use crate::text::Text;
use regall_directory::addr::PageRange;
use regall_directory::vocab::{Attr, Flags, Kind, Prot};

/// Linux 6.11.
const MAP_DROPPABLE: u64 = 8;

/// What a new mapping is, and where the part that can be touched ends.
pub struct New {
    /// What the ledger is to say of it.
    pub attr: Attr,
    /// Bytes from its start that the file has; u64::MAX: no file.
    pub backed: u64,
    /// What of which file it is.
    pub origin: Option<Origin>,
    /// The file, if the call's descriptor is still that one's.
    pub file: Option<Stat>,
}

impl New {
    /// Returns a mapping that is no file's, or of which no file is known.
    #[inline]
    pub const fn of(attr: Attr) -> Self {
        Self {
            attr,
            backed: u64::MAX,
            origin: None,
            file: None,
        }
    }
}

/// Returns the file of an mmap that is yet to be made.
#[inline]
pub fn file_of(frame: &Frame) -> Option<Stat> {
    let [_, _, _, flags, fd, _] = frame.args;
    match flags & libc::MAP_ANONYMOUS as u64 {
        0 => file::stat_fd(fd as i32).ok(),
        _ => None,
    }
}

/// Describes what an mmap has mapped. `before` is what [`file_of`] has said.
#[inline]
pub fn describe(frame: &Frame, range: PageRange, before: Option<Stat>) -> New {
    let [_, _, prot, flags, ..] = frame.args;
    let kind = flags & libc::MAP_TYPE as u64;
    let shared = kind != libc::MAP_PRIVATE as u64 && kind != MAP_DROPPABLE;
    let prot = Prot::from_call(prot, shared);
    let set = |bit: i32| flags & bit as u64 != 0;
    let mut facts = future_flags();
    if set(libc::MAP_NORESERVE) {
        facts = facts.with(Flags::NORESERVE);
    }
    if set(libc::MAP_GROWSDOWN) {
        facts = facts.with(Flags::GROWSDOWN).with(Flags::GROWABLE);
    }
    if set(libc::MAP_LOCKED) {
        program_locks::note(range);
        facts = facts.with(Flags::APP_LOCKED);
    }
    if !set(libc::MAP_ANONYMOUS) {
        return describe_file(frame, range, (prot, facts), before);
    }
    let kind = if set(libc::MAP_HUGETLB) {
        Kind::Huge
    } else if kind == MAP_DROPPABLE {
        // mlock takes it and does nothing.
        Kind::Special
    } else if set(libc::MAP_STACK) {
        Kind::ThreadStack
    } else {
        Kind::Anon
    };
    New::of(attr_of(prot, kind, facts))
}

#[inline]
fn attr_of(prot: Prot, kind: Kind, facts: Flags) -> Attr {
    policy::described(policy::fresh(prot, kind, facts), pin::holding())
}

/// Describes a mapping by the call's descriptor if that was one file's before the call and after it.
/// Another thread may have replaced it meanwhile: then the kernel's list says whose the mapping is.
#[cold]
#[inline(never)]
fn describe_file(
    frame: &Frame,
    range: PageRange,
    (prot, facts): (Prot, Flags),
    before: Option<Stat>,
) -> New {
    let [.., fd, offset] = frame.args;
    let said = before.map(|file| by_descriptor(fd as i32, &file, range, (prot, facts)));
    let after = file::stat_fd(fd as i32).ok();
    match (said, before, after) {
        (Some((kind, facts)), Some(before), Some(file)) if before.is_same_file(&file) => {
            let new = New::of(attr_of(prot, kind, facts));
            match kind {
                Kind::File => New {
                    backed: file.size.saturating_sub(offset),
                    origin: Some(origin(&file, offset, range)),
                    file: Some(file),
                    ..new
                },
                _ => new,
            }
        }
        _ => by_list(range, offset, (prot, facts), &[before, after]),
    }
}

/// Describes a mapping as the kernel lists it. One of `files` may be what it is a mapping of: that
/// says where it ends, also of a file without a name.
#[cold]
#[inline(never)]
fn by_list(
    range: PageRange,
    offset: u64,
    (prot, facts): (Prot, Flags),
    files: &[Option<Stat>],
) -> New {
    let Some(listed) = reading::listed(range, facts) else {
        // It may be a disk's.
        return New::of(attr_of(prot, Kind::File, facts.with(Flags::CACHE)));
    };
    let (kind, mut facts) = (listed.attr.kind, listed.attr.flags);
    if kind == Kind::Special {
        program_locks::note(range);
    }
    if kind == Kind::File && prot.shared() && !facts.has(Flags::CACHE) {
        // Whether there is room for it can't be asked.
        facts = facts.with(Flags::KEEP_LAZY);
    }
    let is_it = |file: &&Stat| (device(file), file.inode) == listed.file;
    let file = files.iter().flatten().find(is_it);
    let new = New::of(attr_of(prot, kind, facts));
    match (kind, file) {
        (Kind::File, Some(file)) => New {
            backed: file.size.saturating_sub(offset),
            origin: Some(origin(file, offset, range)),
            ..new
        },
        _ => New {
            backed: listed.file_end.map_or(u64::MAX, |end| end - range.start()),
            ..new
        },
    }
}

/// Returns kind and facts of a mapping of `file`, which `fd` is.
#[inline]
fn by_descriptor(
    fd: i32,
    file: &Stat,
    range: PageRange,
    (prot, mut facts): (Prot, Flags),
) -> (Kind, Flags) {
    if excluded_by_name(fd) {
        facts = facts.with(Flags::EXCLUDED);
    }
    if file.mode & libc::S_IFMT == libc::S_IFREG {
        let memory = file::is_memory(fd);
        if prot.shared() && !memory && file.dev_major() == 0 && is_secret(fd) {
            // (It is locked from the start.)
            program_locks::note(range);
            return (Kind::Special, facts);
        }
        if !prot.shared() && !prot.writable() {
            facts = facts.with(Flags::TEXT);
        }
        if !memory {
            facts = facts.with(Flags::CACHE);
        } else if prot.shared() {
            // Populated, it would fill its file system: a touch that works is SIGBUS then.
            let there = file.blocks.saturating_mul(512);
            let left = file::room_fd(fd).unwrap_or(0);
            if range.len().saturating_sub(there) > left / 2 {
                facts = facts.with(Flags::KEEP_LAZY);
            }
        }
        return (Kind::File, facts);
    }
    if file.is_character_device() && is_managed(fd, file) {
        return (Kind::Managed, facts);
    }
    // Devices, sockets, rings: what the kernel made of it, it says in smaps.
    let kind = reading::special_kind(range.start()).unwrap_or(Kind::Anon);
    (kind, facts)
}

fn device(file: &Stat) -> (u32, u32) {
    (file.dev_major(), file.dev_minor())
}

fn origin(file: &Stat, offset: u64, range: PageRange) -> Origin {
    Origin::of_file(device(file), file.inode, offset, range.start())
}

/// Returns whether `fd` is of memfd_secret(2), whose memory the kernel reads for nobody. By its name:
/// to ask for its file system is to ask a server where the file is another one's.
#[cold]
#[inline(never)]
pub fn is_secret(fd: i32) -> bool {
    let mut buf = [0u8; 64];
    let name = name_of(fd, &mut buf);
    matches!(name, Some(b"/secretmem" | b"/secretmem (deleted)"))
}

/// Returns whether the memory of `fd`, a device, is its driver's to move. Asked before anything is
/// asked of its pages, which would bring one of them to the host.
#[cold]
#[inline(never)]
fn is_managed(fd: i32, status: &Stat) -> bool {
    let mut buf = [0u8; 1024];
    name_of(fd, &mut buf).is_some_and(|name| reading::is_managed(name, status))
}

#[cold]
#[inline(never)]
fn excluded_by_name(fd: i32) -> bool {
    let patterns = settings::config().exclude.as_bytes();
    if patterns.is_empty() {
        return false;
    }
    let mut buf = [0u8; 1024];
    name_of(fd, &mut buf).is_some_and(|name| glob::matches_any(patterns, name))
}

/// Returns the name of `fd`'s file, as far as `buf` has room for it.
fn name_of(fd: i32, buf: &mut [u8]) -> Option<&[u8]> {
    let link: Text<64> = Text::of(format_args!("/proc/self/fd/{fd}"));
    file::read_link(link.as_cstr()?, buf).ok()
}
