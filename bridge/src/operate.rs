//! Atomic operations on words of a peer's memory.
//!
//! What is mapped here is operated on by an instruction of the processor. Elsewhere the owner's
//! helper does it, by the same instruction on the same memory. So operations of both kinds are
//! atomic with each other, and with what the owner itself does by such instructions: they all meet
//! in the caches of one machine.

use crate::kind::{Kind, No};
use crate::mechanism::helper;
use crate::peer::Peer;
use crate::vector::Way;
use crate::word::Operation;
use core::sync::atomic::{fence, Ordering::Acquire};
use regall_sys::{Errno, Result};

/// Carries `operation` out on a word of `peer`'s; what was there.
///
/// EINVAL: it is not aligned; EFAULT: it is not registered; EACCES: its protection says no;
/// EOPNOTSUPP: it can't be mapped here, and no helper of the owner's does it; EPERM: no mechanism
/// may; ESTALE: the memory was unmapped or replaced meanwhile, or the peer executes another program,
/// or its helper has not answered, and it may have been done; ESRCH: the peer is gone.
pub fn operate(peer: &Peer, operation: &Operation) -> Result<u64> {
    if !operation.is_aligned() {
        return Err(Errno::INVAL);
    }
    let (addr, bytes, write) = (operation.addr, operation.width.bytes(), operation.writes());
    peer.ready(if write { Way::Put } else { Way::Get })?;
    let (_, stamp) = peer.look(addr, write)?;
    if let Some((at, hold)) = peer.mapped(addr, bytes, write, true) {
        if hold.len >= bytes {
            // SAFETY: the hold has it mapped, and mappings begin and end with pages, as they do at
            // the owner's: it is aligned.
            let before = unsafe { operation.carry_out(at) };
            // What was loaded was loaded before what follows.
            fence(Acquire);
            // SAFETY: the peer's directory is mapped as long as it is open.
            if !unsafe { stamp.holds() } {
                is_there_again(peer, operation, at)?;
            }
            return match peer.gave_up() {
                false => peer.still().map(|()| before),
                true => Err(Errno::STALE),
            };
        }
    }
    by_helper(peer, operation)
}

/// The entry that the word was in is another one. Whether that has the same memory there: then only
/// what lies beside it has changed. ESTALE: it has not.
#[cold]
#[inline(never)]
fn is_there_again(peer: &Peer, operation: &Operation, at: u64) -> Result<()> {
    let write = operation.writes();
    let (_, stamp) = peer.look(operation.addr, write).map_err(|_| Errno::STALE)?;
    // The window that was operated on is still in use, so no other file's page is there.
    let again = peer.mapped(operation.addr, operation.width.bytes(), write, true);
    let same = again.is_some_and(|(now, _)| now == at);
    // SAFETY: as in `operate`.
    match same && unsafe { stamp.holds() } {
        true => Ok(()),
        false => Err(Errno::STALE),
    }
}

#[cold]
#[inline(never)]
fn by_helper(peer: &Peer, operation: &Operation) -> Result<u64> {
    let order = peer.order();
    if !order.has(Kind::Helper) {
        let none = order.kinds().next().is_none();
        return Err(if none { Errno::PERM } else { Errno::NOTSUP });
    }
    match helper::operate(peer, peer.endpoints().link(), operation) {
        // It has looked again itself.
        Ok(before) => Ok(before),
        Err(No::Never | No::NotThis) => match peer.still() {
            Ok(()) => Err(Errno::NOTSUP),
            Err(e) => Err(e),
        },
        Err(No::Failed(e)) => Err(e),
    }
}
