//! The application's own locking. It gets what it would get without the shim:
//! the same success and errors against RLIMIT_MEMLOCK, locked until it unlocks.
//! Our pins are on top of it and nobody's business.

use super::flight::Flight;
use super::headroom::{self, Charge};
use super::settling::{repin, settle};
use super::taken::{all_are_locked, lock_all_again};
use super::turns::lock_for;
use super::unpinning::{let_go, let_go_of};
use super::{
    close, end, failed, growing, lock, notes, open, program_locks, real, State, APP_FUTURE,
    USER_END,
};
use crate::arch::Frame;
use crate::base::{counters, settings};
use crate::config::Pin;
use crate::limits;
use crate::policy;
use crate::registrar::pin::{self, PinSet};
use crate::share;
use crate::sys::Errno;
use core::ops::ControlFlow;
use core::sync::atomic::Ordering::Relaxed;
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::planted;
use regall_directory::vocab::{Attr, Flags};

const NOMEM: i64 = -(Errno::NOMEM.0 as i64);

/// Whether it matters what the application has locked: our pins are on top of it or may be, it is
/// said of page cache, or memory is put in the place of other memory.
fn counts() -> bool {
    settings::config().pin != Pin::Off || share::any() || share::on()
}

/// The pages that a lock of `len` bytes at `addr` is about: of no bytes within a page, that page.
fn pages_of(addr: u64, len: u64) -> Option<PageRange> {
    let within = addr % PAGE;
    PageRange::from_call(addr - within, len.wrapping_add(within))
}

/// mlock(2) and mlock2(2).
#[inline(never)]
pub fn mlock(call: Call, frame: &mut Frame) -> i64 {
    let range = pages_of(frame.args[0], frame.args[1]);
    let known = call == Call::Mlock || frame.args[2] & !u64::from(libc::MLOCK_ONFAULT) == 0;
    let ours = known && counts();
    let (Some(range), true) = (range, ours) else {
        counters::count_call(call);
        return match real(frame) {
            NOMEM if known && pin::locks() && is_of_no_bytes(frame) && fits_under_limit() => 0,
            value => value,
        };
    };
    let onfault = call == Call::Mlock2 && frame.args[2] & u64::from(libc::MLOCK_ONFAULT) != 0;
    let mut locks = Flags::APP_LOCKED;
    if onfault {
        locks = locks.with(Flags::APP_ONFAULT);
    }
    let flight = open(call);
    program_locks::note(range);
    claim(&flight, range);
    if let Some(errno) = pin::locks().then(|| refused(range)).flatten() {
        return -i64::from(errno.0);
    }
    let no_memory = |value| value == NOMEM;
    let value = headroom::retry(frame, real(frame), no_memory, Some(Charge::lock(range)));
    // Within the limit it fails only where something is not mapped or can't be
    // populated: what lies before a hole is locked all the same.
    let bad_flags = value == -i64::from(Errno::INVAL.0);
    let beyond = failed(value) && refused(range).is_some();
    let locked = match bad_flags || beyond {
        true => None,
        false if failed(value) => up_to_hole(range),
        false => Some(range),
    };
    if let Some(locked) = locked {
        planted!("mlock-not-marked", (), set(locked, locks));
        leave_room(locked);
    }
    settle(range);
    close(flight, range);
    value
}

/// Leaves the limit to the application if it has locked a mapping in `range` that grows downwards: the
/// kernel charges that for what it grows by, and answers with SIGSEGV beyond the limit.
pub fn leave_room(range: PageRange) {
    let binds = || pin::locks() && limits::memlock().is_some();
    if growing::leaves_room() || !grows(range) || !binds() {
        return;
    }
    growing::leave_room();
    if let Some(all) = PageRange::new(0, USER_END) {
        let_go(all);
        settle(all);
    }
}

/// Returns whether anything in `range` grows downwards.
fn grows(range: PageRange) -> bool {
    lock().is_some_and(|guard| guard.any(range, |attr| attr.flags.has(Flags::GROWSDOWN)))
}

/// Claims `range`: from here on nobody but this call pins or unpins anything there.
fn claim(flight: &Flight, range: PageRange) {
    if let Some(guard) = lock_for(&[Some(range)]) {
        flight.claim(&guard, range);
    }
}

/// What the kernel says to a lock on `range` for the limit's sake, with the
/// application's own locks counted and not ours (mm/mlock.c, do_mlock).
pub fn refused(range: PageRange) -> Option<Errno> {
    let limit = limits::memlock()?;
    if limit == 0 {
        return Some(Errno::PERM);
    }
    let guard = lock()?;
    let bytes = range.len() + guard.locked_outside(range);
    let most = planted!("mlock-limit", limit - 1, limit);
    (bytes > most).then_some(Errno::NOMEM)
}

/// Returns whether a lock is of no bytes, as the kernel counts them: it only looks whether what is locked already
/// is beyond the limit.
fn is_of_no_bytes(frame: &Frame) -> bool {
    let [addr, len, ..] = frame.args;
    len.wrapping_add(addr % PAGE).wrapping_add(PAGE - 1) < PAGE
}

/// Returns whether what the application has locked fits under the limit, if there is one.
fn fits_under_limit() -> bool {
    let fits = |limit| lock().is_some_and(|guard| guard.ledger.totals().app_locked <= limit);
    limits::memlock_now().is_some_and(fits)
}

/// The part of `range` before the first byte that is not mapped.
fn up_to_hole(range: PageRange) -> Option<PageRange> {
    let mut end = range.start();
    lock()?.ledger.for_each(range, |part, _| {
        if part.start() != end {
            return ControlFlow::Break(());
        }
        end = part.end();
        ControlFlow::Continue(())
    });
    range.before(end)
}

/// munlock(2).
#[inline(never)]
pub fn munlock(frame: &mut Frame) -> i64 {
    let range = pages_of(frame.args[0], frame.args[1]);
    let (Some(range), true) = (range, counts()) else {
        counters::count_call(Call::Munlock);
        return real(frame);
    };
    let flight = open(Call::Munlock);
    claim(&flight, range);
    let huge = range.len() > pin::AT_ONCE;
    if huge {
        unlock_huge(range, policy::has_our_lock);
    }
    // (What is not merged again is not divided.)
    let_go_of(range, |_, part, attr| {
        Some(part).filter(|_| policy::stays_divided(attr))
    });
    let value = real(frame);
    // Done by the kernel up to a hole, if it failed. Our pins went with it and
    // come back.
    let done = if failed(value) {
        up_to_hole(range)
    } else {
        Some(range)
    };
    if let Some(done) = done {
        set(done, Flags::EMPTY);
        planted!("munlock-loses-pins", (), repin(done));
        headroom::unlocked();
    }
    if huge {
        repin(range);
    }
    settle(range);
    close(flight, range);
    value
}

/// mlockall(2).
#[inline(never)]
pub fn mlockall(frame: &mut Frame) -> i64 {
    let flags = frame.args[0] as i32;
    let flight = open(Call::Mlockall);
    let all = PageRange::new(0, USER_END);
    all.into_iter().for_each(program_locks::note);
    drop(lock_for(&[all]));
    let value = real(frame);
    if !failed(value) {
        let mut locked = Flags::APP_LOCKED;
        if flags & libc::MCL_ONFAULT != 0 {
            locked = locked.with(Flags::APP_ONFAULT);
        }
        let future = if flags & libc::MCL_FUTURE != 0 {
            locked.bits()
        } else {
            0
        };
        APP_FUTURE.store(planted!("mlockall-future", 0, u64::from(future)), Relaxed);
        if let (Some(all), true) = (all, flags & libc::MCL_CURRENT != 0) {
            set(all, locked);
            leave_room(all);
        }
    }
    end(flight);
    value
}

/// munlockall(2).
#[inline(never)]
pub fn munlockall(frame: &mut Frame) -> i64 {
    let flight = open(Call::Munlockall);
    let all = PageRange::new(0, USER_END);
    let any = lock_for(&[all]).is_none_or(|guard| is_any_locked(&guard));
    if let (true, Some(all)) = (any, all) {
        // (What the application alone has locked was counted at once, too.)
        unlock_huge(all, |attr| attr.pin.held());
    }
    let value = real(frame);
    if !failed(value) {
        planted!("munlockall-future", (), APP_FUTURE.store(0, Relaxed));
        lock_all_again();
        let any = any || lock().is_none_or(|guard| is_any_locked(&guard));
        match (all, lock()) {
            (Some(all), Some(mut guard)) if !any => guard.missed_locks.add(all, Flags::EMPTY),
            (Some(all), guard) => {
                drop(guard);
                set(all, Flags::EMPTY);
                repin(all);
                headroom::unlocked();
                settle(all);
            }
            (None, _) => (),
        }
        all_are_locked();
    }
    end(flight);
    value
}

/// Returns whether anything is locked, by whomever: to go through all mappings costs more than to
/// unlock them.
fn is_any_locked(state: &State) -> bool {
    state.ledger.totals().app_locked != 0 || state.pinned() != 0
}

/// Unlocks of `range` what `which` names and is larger than the kernel counts right when it unlocks
/// all of it ([`pin::AT_ONCE`]); it is locked again behind the call, as everything is.
fn unlock_huge(range: PageRange, which: impl Fn(Attr) -> bool) {
    let all = range;
    let mut rest = Some(range);
    while let (Some(range), Some(guard)) = (rest, lock()) {
        let mut found = None;
        guard.ledger.for_each(range, |part, entry| {
            found = Some(part).filter(|part| part.len() > pin::AT_ONCE && which(entry.attr));
            match found {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        drop(guard);
        if let Some(part) = found {
            let _ = PinSet.deregister(part);
        }
        rest = found.and_then(|part| all.after(part.end()));
    }
}

/// The application has `locks` on `range` from now on, and no others.
fn set(range: PageRange, locks: Flags) {
    match lock() {
        Some(mut guard) => guard.set_locks(range, locks),
        None => note(range, locks),
    }
}

/// The same in a handler on top of the lock's holder.
#[cold]
fn note(range: PageRange, locks: Flags) {
    notes::locked(range, locks);
    if locks == Flags::EMPTY {
        // Ours went with them.
        notes::unlocked(range);
    }
}
