//! Atomic operations on words of a peer's memory.
//!
//! What is mapped here is operated on by an instruction of the processor, and nothing else is. So
//! operations are atomic with each other, and with what the owner itself does by such instructions:
//! they all meet in the caches of one machine.
//!
//! The page of the last operation is remembered (`window::Spots`): the next one takes a spot by one
//! locked instruction, and looks at the entry's generation before and after. Whether the peer lives
//! is asked of the kernel every 50 µs, and of the clock not each time (`is_seen`).

use crate::peer::{Peer, UNCHECKED};
use crate::vector::Way;
use crate::window::Page;
use crate::word::Operation;
use core::sync::atomic::{fence, Ordering::Acquire};
use regall_directory::planted;
use regall_sys::arch::ticks;
use regall_sys::time;
use regall_sys::{Errno, Result};

/// Carries `operation` out on a word of `peer`'s; what was there.
///
/// EINVAL: it is not aligned; EFAULT: it is not registered; EACCES: its protection says no;
/// EOPNOTSUPP: it can't be mapped here; EPERM: no mechanism may; ESTALE: the memory was unmapped or
/// replaced meanwhile, or the peer executes another program, and it may have been done; ESRCH: the
/// peer is gone.
#[inline]
pub fn operate(peer: &Peer, operation: &Operation) -> Result<u64> {
    if !planted!("word-unaligned", true, operation.is_aligned()) {
        return Err(Errno::INVAL);
    }
    match on_spot(peer, operation) {
        Some(done) => done,
        None => anywhere(peer, operation),
    }
}

/// The same on a page that an operation was carried out on before. `None`: nothing was done.
#[inline]
fn on_spot(peer: &Peer, operation: &Operation) -> Option<Result<u64>> {
    let mut spot = peer.spots()?.take(operation.addr)?;
    let page = spot.as_mut()?;
    let at = page.place(operation.addr, operation.writes())?;
    // SAFETY: the peer's directory is mapped as long as it is open.
    if !unsafe { page.stamp.holds() } {
        spot.clear();
        return None;
    }
    if !is_seen(page, peer) {
        return None;
    }
    // SAFETY: the page is mapped at least until `spot` is given back: its window has a user more,
    // which only who has the spot takes off (`Spots::clear`, `Spots::keep`), and windows with users
    // are not unmapped. The right to write was found with the stamp, which held just now; should the
    // peer change its memory at this moment, what is mapped here stays what it was, a page of the
    // file that it had there. The word lies in the page, aligned: pages are so here as there.
    let before = unsafe { operation.carry_out(at) };
    // SAFETY: as above. It has a fence, too, between what was loaded and what is looked at.
    let told = match unsafe { page.stamp.holds() } {
        true => Ok(()),
        false => is_there_again(peer, operation, at),
    };
    Some(told.and_then(|()| match peer.gave_up() {
        false => Ok(before),
        true => Err(Errno::STALE),
    }))
}

/// A run of operations is quick once so many have followed each other within [`UNCHECKED`] / 16.
const QUICK: u8 = 64;
/// Operations of a quick run for which the clock is not looked at, before the next one that is.
const UNCLOCKED: u8 = 15;

/// Whether the peer was seen lately to be who it is. A look at the clock takes several times as long
/// as an operation, so most are left out in a quick run. The last ones of a run can come late: what
/// is mapped is the peer's memory whoever has its pid.
#[inline]
fn is_seen(page: &mut Page, peer: &Peer) -> bool {
    match page.unclocked.checked_sub(1) {
        Some(left) if peer.is_thought_here() => {
            page.unclocked = left;
            true
        }
        _ => look_at_clock(page, peer),
    }
}

#[inline(never)]
fn look_at_clock(page: &mut Page, peer: &Peer) -> bool {
    let now = ticks();
    let since = time::nanos(now.wrapping_sub(page.clocked));
    let is_quick = match page.quick {
        QUICK => since < UNCHECKED,
        _ => since < UNCHECKED / u64::from(UNCLOCKED + 1),
    };
    page.quick = if is_quick {
        (page.quick + 1).min(QUICK)
    } else {
        0
    };
    page.unclocked = if page.quick == QUICK { UNCLOCKED } else { 0 };
    page.clocked = now;
    peer.was_seen(now)
}

#[cold]
#[inline(never)]
fn anywhere(peer: &Peer, operation: &Operation) -> Result<u64> {
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
            if peer.gave_up() {
                return Err(Errno::STALE);
            }
            peer.still()?;
            if let Some(spots) = peer.spots() {
                spots.keep(addr, write, stamp, (at, hold));
            }
            return Ok(before);
        }
    }
    peer.still()?;
    let none = peer.order().kinds().next().is_none();
    Err(if none { Errno::PERM } else { Errno::NOTSUP })
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
