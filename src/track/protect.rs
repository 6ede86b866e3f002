//! mprotect: what the ledger says of a range that may be accessed otherwise than before, and
//! the search of what can be executed now.

use super::headroom;
use super::lock::Guard;
use super::quiet::Across;
use super::settling::settle;
use super::subscribers;
use super::turns::lock_for;
use super::{
    backed, close, end, failed, let_go, lock, notes, open, over_budget, reading, real, registering,
    resync, retracting, State, VIEW,
};
use crate::arch::Frame;
use crate::base::{settings, unseen};
use crate::policy;
use crate::registrar::pin;
use crate::share;
use crate::sys::Errno;
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;
use regall_directory::planted;
use regall_directory::vocab::{Attr, Column, Flags, Kind, Reason};

const NOMEM: i64 = -(Errno::NOMEM.0 as i64);

/// mprotect(2) and pkey_mprotect(2).
#[inline(never)]
pub fn mprotect(call: Call, frame: &mut Frame) -> i64 {
    let [addr, len, prot, ..] = frame.args;
    let Some(range) = PageRange::from_call(addr, len) else {
        return real(frame);
    };
    if share::any() && prot & libc::PROT_EXEC as u64 != 0 {
        // Code is patched, here and by debuggers, in memory of this process's own.
        backed::make_private(range);
    }
    let key = frame.args[3];
    let keyed = call == Call::PkeyMprotect && key as i32 >= 0 && backed::touches(range);
    if keyed {
        backed::make_room_to_mark(range);
    }
    let flight = open(call);
    let Some(mut guard) = lock_for(&[Some(range)]) else {
        let value = without_the_lock(frame, range);
        end(flight);
        return value;
    };
    flight.claim(&guard, range);
    let seen = Seen::of(&mut guard, range, prot);
    let registered = seen.other_rights && retracting::concerns(&guard, range);
    drop(guard);
    if seen.opened != 0 && over_budget(seen.opened) {
        return NOMEM;
    }
    let across = registered.then(Across::begin);
    if seen.change == Change::LetsGo {
        let_go(range);
    }
    if seen.other_rights {
        retracting::refresh(range);
    }
    let first = real(frame);
    let mut value = first;
    // It has changed nothing that another call could have met.
    if headroom::is_crowded(value)
        && !flight.lost_track()
        && (headroom::unlock_beside(range) || headroom::thin_out())
    {
        value = real(frame);
    }
    if failed(value) {
        // It may have changed a part before it failed.
        planted!("mprotect-half-done", (), resync::range(range, false));
        close(flight, range);
        return value;
    }
    if keyed {
        backed::mark(range, |m| m.with_key(key));
    }
    if prot & (libc::PROT_GROWSDOWN | libc::PROT_GROWSUP) as u64 != 0 {
        // The kernel extends the range to the end of a stack.
        planted!("mprotect-growsdown", (), resync::around(range));
    } else if seen.told_at != Some(reading::count()) || registering::active() || value != first {
        reprotect(range, prot);
    } else if seen.pending {
        settle(range);
    }
    drop(across);
    if planted!("mprotect-new-code", false, is_code(prot)) {
        let shared = lock()
            .and_then(|g| g.at(range.start()))
            .is_some_and(|a| a.prot.shared());
        subscribers::new_code(range, range.end(), shared, seen.running);
    }
    close(flight, range);
    value
}

/// Makes the call where the ledger's lock can't be had, and has the range read later.
#[cold]
#[inline(never)]
fn without_the_lock(frame: &Frame, range: PageRange) -> i64 {
    let value = real(frame);
    notes::later(range);
    if !failed(value) && is_code(frame.args[2]) {
        let found = VIEW.lookup(range.start()).ok().flatten();
        let shared = found.is_none_or(|found| found.attr().prot.shared());
        subscribers::new_code(range, range.end(), shared, true);
    }
    value
}

/// What the ledger says of a range whose protection is about to change.
struct Seen {
    /// Bytes that can't be accessed as yet, and will be; counted where there is a limit to them.
    opened: u64,
    /// Some of it can be executed already.
    running: bool,
    /// Regions of it are to be registered with other rights.
    other_rights: bool,
    /// What becomes of pins.
    change: Change,
    /// The ledger says already what the kernel is yet to make true, as it does until the
    /// kernel's list is read: [`reading::count`] then.
    told_at: Option<u64>,
    /// There is something to be pinned afterwards, of what it says already.
    pending: bool,
}

impl Seen {
    #[inline]
    fn of(guard: &mut Guard, range: PageRange, prot: u64) -> Self {
        let opened = if settings::config().fail_on_limit && prot & 7 != 0 {
            without_access(guard, range)
        } else {
            0
        };
        let running = is_code(prot) && has_code(guard, range);
        let other_rights = registering::active() && changes_rights(guard, range, prot);
        let change = match pin::locks() {
            false => Change::Ready,
            true => change(guard, range, prot),
        };
        // Where nobody registers and nothing is to be locked, nothing that is said has to wait
        // for the kernel, and one turn with the lock will do; what the kernel refuses is read
        // anew.
        let told = opened == 0 && change == Change::Ready && !registering::active();
        let pending = told && describe_anew(guard, range, prot);
        Self {
            opened,
            running,
            other_rights,
            change,
            told_at: told.then(reading::count),
            pending,
        }
    }
}

/// What becomes of pins in a range whose protection changes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Change {
    /// They stay as they are.
    Ready,
    /// Some of it is to be pinned afterwards.
    Pins,
    /// Some of it may be pinned, and is not to be when nobody can access it.
    LetsGo,
}

/// What making `range` accessible as `prot` says finds.
#[inline]
fn change(state: &State, range: PageRange, prot: u64) -> Change {
    let closes = prot & 7 == 0;
    let mut found = Change::Ready;
    state.ledger.for_each(range, |_, entry| {
        let attr = entry.attr;
        match (attr.prot.is_none(), closes) {
            (true, true) => (),
            (false, true) => {
                found = Change::LetsGo;
                return ControlFlow::Break(());
            }
            (false, false) if policy::has_our_lock(attr) => (),
            (_, false) => found = Change::Pins,
        }
        ControlFlow::Continue(())
    });
    found
}

/// Whether there can be code to be searched: not in what may only be run.
fn is_code(prot: u64) -> bool {
    let both = (libc::PROT_EXEC | libc::PROT_READ) as u64;
    prot & both == both
}

/// Returns whether anything in `range` can be executed.
#[cold]
fn has_code(state: &State, range: PageRange) -> bool {
    state.any(range, |attr| attr.prot.executable())
}

/// Whether regions of `range` would be registered with other rights than they are.
#[cold]
fn changes_rights(state: &State, range: PageRange, prot: u64) -> bool {
    let (write, none) = (prot & libc::PROT_WRITE as u64 != 0, prot & 7 == 0);
    let mut any = false;
    state.ledger.for_each(range, |_, entry| {
        let p = entry.attr.prot;
        any |= p.writable() != write || p.is_none() != none;
        ControlFlow::Continue(())
    });
    any
}

/// Bytes of `range` that can't be accessed as yet.
#[cold]
fn without_access(state: &State, range: PageRange) -> u64 {
    let mut bytes = 0;
    state.ledger.for_each(range, |part, entry| {
        if entry.attr.prot.is_none() {
            bytes += part.len();
        }
        ControlFlow::Continue(())
    });
    bytes
}

fn reprotect(range: PageRange, prot: u64) {
    let pending = match lock() {
        Some(mut guard) => describe_anew(&mut guard, range, prot),
        None => return notes::later(range),
    };
    if pending || registering::active() {
        settle(range);
    }
}

/// What is mapped in `range` can be accessed as `prot` says. Whether there is something to be
/// pinned now.
#[inline]
fn describe_anew(state: &mut State, range: PageRange, prot: u64) -> bool {
    let holding = pin::holding();
    let mut pending = false;
    state.update(range, |_, attr| {
        let was_out = planted!("mprotect-no-access-stays", false, attr.prot.is_none());
        let mut new = Attr {
            prot: attr.prot.with_prot(prot),
            ..attr
        };
        unseen::memory(new);
        if new.kind == Kind::File && !new.prot.shared() {
            let text = Flags::TEXT;
            new.flags = if new.prot.writable() {
                new.flags.without(text)
            } else {
                new.flags.with(text)
            };
        }
        if was_out && !new.prot.is_none() && attr.pin.reason == Reason::NoAccess {
            new.pin = Column::no(Reason::Off);
        }
        new = policy::described(new, holding);
        pending |= policy::is_pending(new);
        new
    });
    pending
}
