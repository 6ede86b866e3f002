//! mremap of what is one mapping to the application and several to the kernel: parts that were
//! populated at different times do not merge.

use super::{seals, State};
use crate::arch::Frame;
use crate::base::maps::each_mapping;
use crate::sys::{self, Errno};
use core::ops::ControlFlow;
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::vocab::{Attr, Flags, Kind, Prot};

/// mremap's word for a range that lies in more than one of the kernel's mappings:
/// a mapping that is pinned only in part is two.
pub const FAULT: i64 = -(Errno::FAULT.0 as i64);
const NOMEM: i64 = -(Errno::NOMEM.0 as i64);

/// What the application can ask for that the kernel keeps in mappings of their own.
const APART: Flags = Flags::from_bits(
    Flags::APP_LOCKS.bits()
        | Flags::NORESERVE.bits()
        | Flags::GROWSDOWN.bits()
        | Flags::NOT_FORKED.bits()
        | Flags::WIPED.bits(),
);

/// Whether parts that lie one behind the other are one private mapping to the application,
/// whatever the ledger and the kernel make of it.
pub struct OneMapping {
    range: PageRange,
    /// Up to here the pieces are one mapping.
    end: u64,
    last: Option<Attr>,
}

impl OneMapping {
    /// Of nothing yet; it is to be all of `range`.
    pub fn new(range: PageRange) -> Self {
        Self {
            range,
            end: range.start(),
            last: None,
        }
    }

    /// As the ledger has it.
    pub fn in_ledger(state: &State, range: PageRange) -> Option<Attr> {
        let mut one = Self::new(range);
        state.ledger.for_each(range, |part, entry| {
            one.add(part, entry.attr);
            ControlFlow::Continue(())
        });
        one.attr()
    }

    /// The part that comes next.
    pub fn add(&mut self, part: PageRange, attr: Attr) {
        let told = |a: &Attr| (a.prot.bits() & 7, a.flags.bits() & APART.bits());
        let anonymous = attr.kind == Kind::Anon && !attr.prot.shared();
        let private = anonymous || attr.flags.has(Flags::BACKED);
        let same = self.last.is_none_or(|l| told(&l) == told(&attr));
        if part.start() == self.end && private && same {
            self.last = Some(attr);
            self.end = part.end();
        }
    }

    /// What its end is, where it grows; `None`: it is not one mapping.
    pub fn attr(&self) -> Option<Attr> {
        self.last.filter(|_| self.end == self.range.end())
    }
}

/// mremap that makes a mapping longer where it is, whatever the kernel makes of its parts:
/// fresh memory follows it.
#[cold]
#[inline(never)]
pub fn longer(frame: &Frame, source: PageRange, prot: Prot) -> Option<i64> {
    let [old, _, new_len, flags, ..] = frame.args;
    if flags & !(libc::MREMAP_MAYMOVE as u64) != 0 {
        return None;
    }
    let more = round_up(new_len)?.checked_sub(source.len())?;
    let tail = PageRange::from_call(source.end(), more)?;
    match sys::map_at(tail.start(), tail.len(), i32::from(prot.bits() & 7)) {
        Ok(_) => Some(old as i64),
        Err(_) if flags == 0 => Some(NOMEM),
        Err(_) => None,
    }
}

/// mremap for a mapping that pinning its parts at different times has made
/// several to the kernel, which merges only what was populated together: each
/// is moved to its place in a new one. `None`: it can't be done, and `source` is as it was.
#[cold]
#[inline(never)]
pub fn in_pieces(frame: &Frame, source: PageRange, prot: Prot) -> Option<i64> {
    let [_, _, new_len, flags, new_addr, _] = frame.args;
    if flags & libc::MREMAP_MAYMOVE as u64 == 0 || flags & libc::MREMAP_DONTUNMAP as u64 != 0 {
        return None;
    }
    let len = round_up(new_len)?;
    let kept = source.before(source.start() + len).unwrap_or(source);
    if seals::touches(source) {
        return None;
    }
    let mut at = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if flags & libc::MREMAP_FIXED as u64 != 0 {
        at |= libc::MAP_FIXED;
    }
    let prot = i32::from(prot.bits() & 7);
    let hint = if at & libc::MAP_FIXED != 0 {
        new_addr
    } else {
        0
    };
    // SAFETY: a place of the kernel's choice, or where the application wants it.
    let to = match unsafe { sys::map(hint, new_len, prot, at, -1, 0) } {
        Ok(to) => to,
        // What is there is sealed.
        Err(Errno::PERM) => return Some(-i64::from(Errno::PERM.0)),
        Err(_) => return None,
    };
    let mut upto = kept.start();
    let moved = carry(kept, to, &mut upto) && {
        let rest = source.after(kept.end());
        // SAFETY: the application has mremap cut it off.
        rest.is_none_or(|rest| unsafe { sys::unmap(rest.start(), rest.len()) }.is_ok())
    };
    if moved {
        return Some(to as i64);
    }
    let moved = upto - kept.start();
    // A mapping less: there may be as many as there can be.
    // SAFETY: the part of what was mapped above to which nothing has been moved.
    let _ = unsafe { sys::unmap(to + moved, len - moved) };
    if let Some(back) = PageRange::from_call(to, moved) {
        bring_back(back, kept.start());
    }
    None
}

/// Calls `f` with each of the kernel's mappings in `range`, until it says no; by pages where
/// nobody says which these are. Whether it said yes to all.
fn each_piece(range: PageRange, mut f: impl FnMut(PageRange) -> bool) -> bool {
    let mut listed = false;
    let done = each_mapping(range, |part| {
        listed = true;
        f(part)
    });
    // A filter may hide the list. A page is of one mapping: with more at once kernels before
    // Linux 6.15 unmap the place before they refuse, and others may be given it meanwhile.
    let mut pages = (range.start()..range.end()).step_by(PAGE as usize);
    done || !listed && pages.all(|at| PageRange::from_call(at, PAGE).is_some_and(&mut f))
}

/// Moves what is at `range` to `to` and behind; what is below `upto` has been moved. Whether
/// that is all of it.
fn carry(range: PageRange, to: u64, upto: &mut u64) -> bool {
    each_piece(range, |part| {
        let there = to + (part.start() - range.start());
        let moved = place(part.start(), part.len(), there).is_ok();
        if moved {
            *upto = part.end();
        }
        moved
    })
}

/// Moves what is at `range` back to `to`, from where [`carry`] took it. What another thread has
/// mapped there since stays. What can't be moved for that, or since there are too many mappings,
/// stays where it is.
#[cold]
fn bring_back(range: PageRange, to: u64) {
    each_piece(range, |part| {
        let there = to + (part.start() - range.start());
        let reserved = sys::map_at(there, part.len(), libc::PROT_NONE).is_ok();
        if reserved && place(part.start(), part.len(), there).is_err() {
            // SAFETY: what has just been mapped.
            let _ = unsafe { sys::unmap(there, part.len()) };
        }
        true
    });
}

fn place(at: u64, len: u64, there: u64) -> sys::Result<()> {
    // SAFETY: a part of what the application moves, and of where it moves that to.
    unsafe { sys::move_mapping(at, len, there) }
}
