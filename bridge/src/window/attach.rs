//! How a piece of a peer's memory is mapped here, or held open.

use super::mark;
use super::source::{self, Backing, FileId};
use super::table::{Attached, Table};
use super::wanted::{By, Extent, How, Wanted, WINDOW};
use crate::host::Host;
use crate::link::{self, Link};
use crate::lock::Lock;
use crate::process::Process;
use crate::snapshot::Known;
use crate::view::Stamp;
use crate::xpmem;
use regall_directory::addr::PAGE;
use regall_sys::file::{self, Fd};
use regall_sys::{Errno, Result};

/// Attaches what is wanted, or notes that it can't be. The entry is looked at again at
/// the end: only if it still is what it was, so is what was found by its addresses.
#[cold]
pub(super) fn attach(
    table: &mut Table,
    peer: &Process,
    (entry, stamp): (&Known, &Stamp),
    wanted: &Wanted,
) {
    table.sweep(peer.host());
    let attached = match wanted.by {
        By::File(helper) => by_file(table, peer, helper, entry, wanted),
        By::Xpmem(access) => by_xpmem(table, peer, access, entry, wanted),
    };
    // SAFETY: the peer's view is here.
    if !unsafe { stamp.holds() } {
        // Whatever has been opened is swept away the next time, before it is looked for.
        return;
    }
    match attached {
        Ok(found) => table.place(entry, stamp, wanted, &found),
        Err(_) => table.refuse(entry, stamp, wanted),
    }
}

/// The piece of `start..end` around `addr` that one window is for.
fn piece(addr: u64, start: u64, end: u64) -> (u64, u64) {
    if end - start <= WINDOW {
        return (start, end);
    }
    let from = addr & !(WINDOW - 1);
    (from.max(start), from.saturating_add(WINDOW).min(end))
}

fn by_file(
    table: &mut Table,
    peer: &Process,
    helper: Option<&Lock<Link>>,
    entry: &Known,
    wanted: &Wanted,
) -> Result<Attached> {
    let (pid, host) = (peer.pid(), peer.host());
    let backing = match Backing::find(pid, wanted.addr) {
        // Its list of mappings is not for us.
        Err(Errno::ACCES | Errno::PERM) => {
            return by_helper(table, peer, helper, entry, wanted);
        }
        found => found?,
    };
    let (start, end) = piece(wanted.addr, backing.start, backing.end);
    let mut of = Extent {
        file: backing.id(),
        offset: backing.offset + (start - backing.start),
        len: end - start,
    };
    let there = |n: usize, window: &Extent, len: u64| Attached {
        n,
        start,
        len,
        skip: of.offset - window.offset,
    };
    if let Some((n, window)) = table.window(&of, wanted.write) {
        return Ok(there(n, window, of.len));
    }
    if backing.is_segment() {
        return by_segment(table, peer, &backing, (start, of), wanted);
    }
    let fd = source::open(pid, &backing, wanted.write)?;
    if !source::is_steady(&fd, &backing) {
        if wanted.write || wanted.mapped {
            // pwrite(2) could make it longer if somebody has just made it shorter.
            return Err(Errno::NOTSUP);
        }
        let room = table.make_room(host, 0)?;
        let high = file::duplicate_high(fd.raw())?;
        // (Which need not be the inode that the list of mappings has, on overlays.)
        let inode = fd.stat()?.inode;
        table.open(room, How::Open, (false, inode), of, high as u64);
        return Ok(there(room, &of, of.len));
    }
    of.len = source::covered(&fd, of.offset)?.min(of.len);
    mapped(table, host, &fd, (start, of), wanted)
}

/// Attaches the System V segment that `of` is a part of, whole: the peer has the part at `start`.
fn by_segment(
    table: &mut Table,
    peer: &Process,
    backing: &Backing,
    (start, of): (u64, Extent),
    wanted: &Wanted,
) -> Result<Attached> {
    let host = peer.host();
    let bytes = source::segment(peer.pid(), backing)?;
    let whole = Extent {
        offset: 0,
        len: bytes,
        ..of
    };
    let len = bytes
        .checked_sub(of.offset)
        .ok_or(Errno::FAULT)?
        .min(of.len);
    let room = table.make_room(host, bytes)?;
    let at = host.attach_segment(backing.id().inode, bytes, wanted.write)?;
    if !source::is_here(at, backing) {
        host.detach_segment(at);
        return Err(Errno::NOENT);
    }
    table.open(room, How::Segment, (wanted.write, 0), whole, at);
    Ok(Attached {
        n: room,
        start,
        len,
        skip: of.offset,
    })
}

/// Maps `of` of a steady file, as far as its size covers it: the peer has it at `start`.
/// (Beyond the file's end is SIGBUS, even if it can't come nearer.)
fn mapped(
    table: &mut Table,
    host: &dyn Host,
    fd: &Fd,
    (start, of): (u64, Extent),
    wanted: &Wanted,
) -> Result<Attached> {
    wanted
        .addr
        .checked_sub(start)
        .filter(|into| *into < of.len)
        .ok_or(Errno::FAULT)?;
    let room = table.make_room(host, of.len)?;
    let at = host.attach(fd, of.offset, of.len, wanted.write)?;
    mark::leave(fd);
    table.open(room, How::Mapped, (wanted.write, 0), of, at);
    Ok(Attached {
        n: room,
        start,
        len: of.len,
        skip: 0,
    })
}

/// As [`by_file`] where /proc tells us nothing of the peer: its helper passes the file's
/// descriptor, and says where in the file the address is.
#[cold]
fn by_helper(
    table: &mut Table,
    peer: &Process,
    helper: Option<&Lock<Link>>,
    entry: &Known,
    wanted: &Wanted,
) -> Result<Attached> {
    let helper = helper.ok_or(Errno::PERM)?;
    let (fd, at) = link::descriptor(peer, helper, wanted.addr)?;
    let stat = fd.stat()?;
    let (start, end) = piece(wanted.addr, entry.start, entry.end);
    let mut of = Extent {
        file: FileId {
            dev: u64::from(stat.dev_major()) << 32 | u64::from(stat.dev_minor()),
            inode: stat.inode,
            segment: false,
        },
        offset: at
            .checked_sub(wanted.addr - start)
            .filter(|o| o % PAGE == 0)
            .ok_or(Errno::INVAL)?,
        len: end - start,
    };
    if !source::is_sealed(&fd) {
        return Err(Errno::NOTSUP);
    }
    of.len = source::covered(&fd, of.offset)?.min(of.len);
    match table.window(&of, wanted.write) {
        Some((n, window)) => Ok(Attached {
            n,
            start,
            len: of.len,
            skip: of.offset - window.offset,
        }),
        None => mapped(table, peer.host(), &fd, (start, of), wanted),
    }
}

fn by_xpmem(
    table: &mut Table,
    peer: &Process,
    access: &xpmem::Access,
    entry: &Known,
    wanted: &Wanted,
) -> Result<Attached> {
    // The driver attaches for writing, and would do so to what can't be written.
    entry.permits(true)?;
    let (from, to) = if entry.without_file() {
        (entry.start, entry.end)
    } else {
        let backing = Backing::any(peer.pid(), wanted.addr)?;
        if !backing.is_steady(peer.pid()) {
            return Err(Errno::NOTSUP);
        }
        (entry.start.max(backing.start), entry.end.min(backing.end))
    };
    let (start, end) = piece(wanted.addr, from, to);
    let of = Extent {
        file: FileId {
            dev: u64::MAX,
            inode: entry.generation.get(),
            segment: false,
        },
        offset: start,
        len: end - start,
    };
    let room = table.make_room(peer.host(), of.len)?;
    let (at, mark) = xpmem::attach(peer, access, start, of.len)?;
    table.open(room, How::Xpmem, (true, mark), of, at);
    Ok(Attached {
        n: room,
        start,
        len: of.len,
        skip: 0,
    })
}
