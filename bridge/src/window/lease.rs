//! Memory of a peer's that a program has mapped here for itself.

use super::hold::let_go;
use super::mark;
use super::source::{self, Backing};
use super::wanted::{Extent, How};
use crate::host::Host;
use crate::process::Process;
use regall_directory::addr::{round_up, PAGE};
use regall_directory::layout::Generation;
use regall_sys::{Errno, Result};

/// Memory of a peer's that stays mapped here until it is given back, whatever
/// becomes of the peer.
pub struct Lease {
    /// Where the first byte is.
    pub at: u64,
    /// What was mapped for it: first address,
    pub base: u64,
    /// bytes,
    pub bytes: u64,
    /// and how.
    pub how: How,
    /// The entry that it is of: its slot,
    pub slot: u32,
    /// and its generation.
    pub generation: Generation,
}

impl Lease {
    /// Maps `len` bytes at the peer's address `addr`, which must lie in one entry. `unsteady`:
    /// even a file that can be cut short, which is SIGBUS then.
    ///
    /// EOPNOTSUPP: it can't be mapped; EFAULT: not registered, or beyond the end of a file;
    /// EACCES: its protection says no; ESTALE: it has changed meanwhile; ENOMEM and other
    /// errors of mmap(2).
    pub fn take(peer: &Process, addr: u64, len: u64, write: bool, unsteady: bool) -> Result<Self> {
        let end = addr
            .checked_add(len)
            .filter(|e| *e > addr)
            .ok_or(Errno::INVAL)?;
        let (entry, _) = peer.known_at(addr)?;
        entry.permits(write)?;
        if end > entry.end || !entry.shared() {
            return Err(Errno::NOTSUP);
        }
        let unmappable = |_| Errno::NOTSUP;
        let backing = Backing::find(peer.pid(), addr).map_err(unmappable)?;
        if backing.end < end {
            return Err(Errno::NOTSUP);
        }
        let host = peer.host();
        let offset = backing.offset + (addr - backing.start);
        let (base, bytes, how, into) = if backing.is_segment() {
            let bytes = source::segment(peer.pid(), &backing).map_err(unmappable)?;
            let base = host.attach_segment(backing.id().inode, bytes, write)?;
            (base, bytes, How::Segment, offset)
        } else {
            let into = offset % PAGE;
            let of = Extent {
                file: backing.id(),
                offset: offset - into,
                len: round_up(into + len).ok_or(Errno::INVAL)?,
            };
            let fd = source::open(peer.pid(), &backing, write).map_err(unmappable)?;
            if !unsteady && !source::is_steady(&fd, &backing) {
                return Err(Errno::NOTSUP);
            }
            if source::covered(&fd, of.offset)? < of.len {
                return Err(Errno::FAULT);
            }
            let base = host.attach(&fd, of.offset, of.len, write)?;
            mark::leave(&fd);
            (base, of.len, How::Mapped, into)
        };
        let lease = Self {
            at: base + into,
            base,
            bytes,
            how,
            slot: entry.slot(),
            generation: entry.generation,
        };
        let right = how != How::Segment
            || into.checked_add(len).is_some_and(|e| e <= bytes) && source::is_here(base, &backing);
        match (right, peer.publishes(lease.slot, lease.generation)) {
            (true, true) => Ok(lease),
            (right, _) => {
                lease.give_back(host);
                Err(if right { Errno::STALE } else { Errno::NOTSUP })
            }
        }
    }

    /// Unmaps the leased memory.
    pub fn give_back(&self, host: &dyn Host) {
        let_go(host, self.how, self.base, self.bytes, 0);
    }
}
