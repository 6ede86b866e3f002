//! mremap of what is one mapping to the application and several to the kernel: parts that were
//! populated at different times do not merge.

use super::headroom::{self, Charge};
use super::pinning::let_go;
use super::taken::Taken;
use super::turns::postpone;
use super::{lock, real, State};
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

/// Whether parts that lie one behind the other are one private mapping to the application,
/// whatever the ledger and the kernel make of it.
pub struct OneMapping {
    range: PageRange,
    /// So far they are, up to here.
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
        let told = |a: &Attr| (a.prot.bits() & 7, a.flags.bits() & Flags::APP_LOCKS.bits());
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

/// What has just left the ledger, if it is one mapping to the application.
#[cold]
#[inline(never)]
pub fn was_one_mapping(moved: &Taken, source: PageRange) -> Option<Attr> {
    let mut guard = lock()?;
    let mut one = OneMapping::new(source);
    let mut from = source.start();
    while let Some((part, attr, _)) = moved.next(&mut guard, from) {
        one.add(part, attr);
        from = part.end();
    }
    one.attr()
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
        Ok(at) if at == tail.start() => Some(old as i64),
        Ok(at) => {
            let _ = sys::unmap(at, tail.len()); // before Linux 4.17
            None
        }
        Err(_) if flags == 0 => Some(NOMEM),
        Err(_) => None,
    }
}

/// mremap for a mapping that pinning its parts at different times has made
/// several to the kernel, which merges only what was populated together: each
/// is moved to its place in a new one.
#[cold]
#[inline(never)]
pub fn in_pieces(frame: &Frame, source: PageRange, prot: Prot) -> Option<i64> {
    let [_, _, new_len, flags, new_addr, _] = frame.args;
    if flags & libc::MREMAP_MAYMOVE as u64 == 0 || flags & libc::MREMAP_DONTUNMAP as u64 != 0 {
        return None;
    }
    let mut at = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if flags & libc::MREMAP_FIXED as u64 != 0 {
        at |= libc::MAP_FIXED;
    }
    let prot = prot.bits() & 7;
    let hint = if at & libc::MAP_FIXED != 0 {
        new_addr
    } else {
        0
    };
    let to = match sys::call!(libc::SYS_mmap, hint, new_len, prot, at, -1i64, 0) {
        Ok(to) => to,
        // What is there is sealed.
        Err(Errno::PERM) => return Some(-i64::from(Errno::PERM.0)),
        Err(_) => return None,
    };
    let mut listed = false;
    let there = |at| to + (at - source.start());
    let moved = each_mapping(source, |part| {
        listed = true;
        place(part.start(), part.len(), there(part.start())).is_ok()
    });
    // A filter may hide the list.
    let moved = moved || !listed && by_pages(source, there);
    moved.then_some(to as i64)
}

fn place(at: u64, len: u64, there: u64) -> sys::Result<u64> {
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    sys::call!(libc::SYS_mremap, at, len, len, how, there)
}

/// Moves `source`, whose mappings nobody knows, by pages: a page is of one mapping. With more
/// at once kernels before Linux 6.15 unmap the place before they refuse, and others may be
/// given it meanwhile. Whether all of it could be moved.
#[cold]
fn by_pages(source: PageRange, there: impl Fn(u64) -> u64) -> bool {
    let mut pages = (source.start()..source.end()).step_by(PAGE as usize);
    pages.all(|at| place(at, PAGE, there(at)).is_ok())
}

/// Makes an mremap again that our pins were in the way of. What is locked is charged for what
/// it grows by: ours is unlocked for it.
#[cold]
#[inline(never)]
pub fn with_room(frame: &Frame, value: i64, moved: &mut Taken) -> i64 {
    let [old, old_len, new_len, ..] = frame.args;
    let beyond = headroom::is_beyond(value);
    // With a length of 0 it is another mapping of the same shared pages.
    let doubled = PageRange::from_call(old, new_len).filter(|_| old_len == 0 && beyond);
    let mut value = value;
    let split = value == FAULT && moved.may_be_one(PageRange::from_call(old, old_len));
    if (beyond || split) && moved.unpin() || doubled.is_some_and(let_go) {
        value = real(frame);
    }
    if let Some(doubled) = doubled {
        postpone(doubled);
    }
    let more = Charge::more(new_len.saturating_sub(old_len));
    value = headroom::retry(frame, value, headroom::is_beyond, Some(more));
    headroom::retry_crowded(frame, value)
}
