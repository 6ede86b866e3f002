//! Advice that throws pages away and msync, which locked memory makes fail. Our pins step aside
//! for it, so that it does what it does without the shim; then the pins come back, on the new
//! pages.

use super::flight::Flight;
use super::quiet::Across;
use super::settling::{repin, settle};
use super::turns::{lock_for, wait_for_what_is_taken, Taken};
use super::unpinning::{call_unpinned, let_go};
use super::{
    close, end, flight, guards, lock, notes, open, program_locks, real, registering, resync,
    retracting, subscribers, State, VIEW,
};
use crate::arch::Frame;
use crate::base::counters;
use crate::base::maps::each_mapping;
use crate::policy;
use crate::registrar::pin::{self, PinSet};
use crate::sys::{self, time, Errno, DONTNEED_LOCKED};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU8, Ordering::Relaxed};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::planted;
use regall_directory::vocab::{Attr, Flags, Kind, Reason};

/// Advice that fails with EINVAL on locked memory (madvise(2), mm/madvise.c);
/// the last is MADV_GUARD_INSTALL (Linux 6.13).
pub const NEEDS_UNLOCKED: [i32; 6] = [
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_REMOVE,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    GUARD_INSTALL,
];

/// MADV_GUARD_INSTALL (Linux 6.13).
pub const GUARD_INSTALL: i32 = 102;

/// Advice after which an address may stand for other pages than those that an
/// adapter holds.
const NEW_PAGES: [i32; 5] = [
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_REMOVE,
    DONTNEED_LOCKED,
    GUARD_INSTALL,
];

const INVAL: i64 = -(Errno::INVAL.0 as i64);

/// Who waits for others does not wait for ever: no further one is waited for after so long, in
/// nanoseconds.
const PATIENCE: u64 = 90_000_000;

/// Whether an address may stand for other pages after this advice.
pub fn takes_pages(advice: i32) -> bool {
    NEW_PAGES.contains(&advice)
}

/// Returns whether advice may be ignored.
fn is_hint(advice: i32) -> bool {
    matches!(advice, libc::MADV_COLD | libc::MADV_PAGEOUT)
}

/// Whether this advice replaces pages that an adapter or the KNEM module has hold of.
pub fn replaces_pages(advice: i32) -> bool {
    takes_pages(advice) && (registering::active() || subscribers::pages_held())
}

/// madvise(2), of memory that is no file's behind the application's back.
#[inline]
pub fn madvise(frame: &mut Frame) -> i64 {
    let [addr, len, advice, ..] = frame.args;
    let advice = advice as i32;
    let again = advice == DONTNEED_LOCKED;
    let other_pages = replaces_pages(advice);
    let kin = NEEDS_UNLOCKED.contains(&advice);
    let unlocked = planted!("madvise-free", kin && advice != libc::MADV_FREE, kin) || again;
    if let (GUARD_INSTALL, Some(range)) = (advice, PageRange::from_call(addr, len)) {
        guards::guarded(range);
    }
    if !other_pages && (!unlocked || !pin::locks()) {
        counters::count_call(Call::Madvise);
        // The last that a thread does is giving its stack's pages back.
        super::pay_debts();
        return real(frame);
    }
    let Some(range) = PageRange::from_call(addr, len) else {
        return real(frame);
    };
    let flight = open(Call::Madvise);
    let Some(guard) = lock_for(&[Some(range)]) else {
        let value = without_the_lock(frame, range, unlocked);
        end(flight);
        return value;
    };
    flight.claim(&guard, range);
    let pins = pins_in(&guard, range);
    let registered = other_pages && retracting::concerns(&guard, range);
    drop(guard);
    let across = registered.then(Across::begin);
    if other_pages {
        retracting::refresh(range);
    }
    let value = despite(pins, &flight, frame, range);
    if other_pages {
        settle(range);
    }
    drop(across);
    close(flight, range);
    value
}

/// madvise(2) or msync(2) in a handler on top of the lock's holder. What the index knows to be locked by
/// us alone is unlocked; the rest is left to the kernel.
#[cold]
#[inline(never)]
fn without_the_lock(frame: &Frame, range: PageRange, unlocked: bool) -> i64 {
    subscribers::pages_replaced(range);
    let locked = planted!("handler-meets-locks", false, unlocked && pin::locks());
    let advice = frame.args[2] as i32;
    let drops = frame.nr == libc::SYS_madvise as u64 && can_drop(Pins::Mixed, advice);
    let replaced = frame.nr == libc::SYS_madvise as u64 && replaces_pages(advice);
    if replaced {
        // Nothing of it is lent once the lock's holder has read this.
        notes::spoiled(range);
    }
    let any = locked && (drops || unlock_known(range));
    let value = match locked && drops {
        true => real(&frame_with(frame, DONTNEED_LOCKED)),
        false => real(frame),
    };
    if any {
        notes::unlocked(range);
    }
    if replaced {
        // What was registered anew meanwhile has the pages of before.
        notes::spoiled(range);
    } else if !any || registering::active() {
        notes::later(range);
    }
    value
}

/// Unlocks what is locked by us alone. Returns whether anything may be unlocked.
fn unlock_known(range: PageRange) -> bool {
    // What somebody is locking there does not count.
    flight::overrun(range);
    if notes::are_locked(range) {
        return false;
    }
    let mut any = false;
    if let Some(rest) = unlock_indexed(range, &mut any) {
        // The index has a hole there, or is being changed: the kernel says what is mapped.
        each_mapping(rest, |part| {
            let rest = unlock_indexed(part, &mut any);
            // If the application has never locked anything there, what is locked is ours.
            let ours = |rest: &PageRange| !program_locks::may_be_in(*rest) && is_busy(*rest);
            if let Some(rest) = rest.filter(ours) {
                let _ = PinSet.deregister(rest);
                any = true;
            }
            true
        });
    }
    any
}

/// Returns whether the index is being changed where `part` begins.
fn is_busy(part: PageRange) -> bool {
    VIEW.lookup_now(part.start()).is_err()
}

/// Unlocks what the index says is locked by us alone, as far as it can be read without a hole. Returns
/// what is left.
fn unlock_indexed(range: PageRange, any: &mut bool) -> Option<PageRange> {
    let mut rest = range;
    while let Ok(Some(found)) = VIEW.lookup_now(rest.start()) {
        let attr = found.attr();
        // Locked already, though the index does not say so by now, it is ours, too.
        let ours = match program_locks::may_be_in(range) {
            true => policy::has_our_lock(attr),
            false => policy::may_be_locked(attr, pin::holding()),
        };
        let part = found.range().and_then(|r| r.intersection(range));
        if let Some(part) = part.filter(|_| ours) {
            let _ = PinSet.deregister(part);
            *any = true;
        }
        rest = range.after(found.end)?;
    }
    Some(rest)
}

/// Returns whether advice may be given as MADV_DONTNEED_LOCKED, which needs nothing unlocked: nothing is
/// locked by the application.
fn can_drop(pins: Pins, advice: i32) -> bool {
    let ours = pins.are_only_ours() || !program_locks::are_there();
    ours && advice == libc::MADV_DONTNEED && knows_locked()
}

/// Makes the call where pins of ours are, or are not, in its way.
#[inline]
fn despite(pins: Pins, flight: &Flight, frame: &mut Frame, range: PageRange) -> i64 {
    let advice = frame.args[2] as i32;
    match pins {
        _ if advice == DONTNEED_LOCKED => {
            let value = real(frame);
            if pins != Pins::None {
                repin(range);
            }
            value
        }
        _ if can_drop(pins, advice) => drop_locked(frame, range),
        // Locked again, it could not be freed when memory is short: it is freed now.
        Pins::OnlyOurs { private: true } if advice == libc::MADV_FREE && knows_locked() => {
            drop_locked(frame, range)
        }
        _ => {
            if advice == GUARD_INSTALL {
                keep_lazy(range);
            }
            match unpinned(flight, range, || real(frame)) {
                // It could not be unlocked, and nobody has to take a hint.
                INVAL if is_hint(advice) && pins.are_only_ours() && pin::is_forbidden_to_undo() => {
                    0
                }
                value => value,
            }
        }
    }
}

/// Makes a call about `range` that needs unlocked memory: once, with none of our pins there, and
/// nobody who could pin something. What another call is about to replace may be pinned still: that one
/// is waited for.
#[inline]
fn unpinned(flight: &Flight, range: PageRange, call: impl Fn() -> i64) -> i64 {
    let (mut patient, mut since) = (flight.lost_track(), None);
    let value = loop {
        match call_unpinned(flight, range, patient, &call) {
            Some(None) => {
                let since = *since.get_or_insert_with(time::now);
                wait(range);
                patient = time::now().saturating_sub(since) < PATIENCE;
            }
            done => break done.flatten(),
        }
    };
    let value = value.unwrap_or_else(|| {
        // The application is locking some of it.
        let_go(range);
        call()
    });
    settle(range);
    value
}

/// Waits for a call that is about to replace some of `range`.
#[cold]
fn wait(range: PageRange) {
    if wait_for_what_is_taken(range) == Taken::Left {
        resync::range(range, false);
        // What that has registered anew is about to have other pages.
        retracting::refresh(range);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pins {
    None,
    /// Every byte is mapped and nothing of it is locked by anybody else. `private`: it is private
    /// anonymous memory.
    OnlyOurs {
        private: bool,
    },
    Mixed,
}

impl Pins {
    fn are_only_ours(self) -> bool {
        matches!(self, Self::OnlyOurs { .. })
    }
}

fn pins_in(state: &State, range: PageRange) -> Pins {
    let holding = pin::holding();
    let forbidden = holding.locks() && pin::is_forbidden_to_undo();
    let (mut ours, mut apps, mut private, mut bytes) = (false, false, true, 0);
    state.ledger.for_each(range, |part, entry| {
        let attr = entry.attr;
        bytes += part.len();
        private &= is_private_memory(&attr);
        // (The kernel has locked what memfd_secret(2) has made.)
        apps |= attr.flags.has(Flags::APP_LOCKED) || attr.kind == Kind::Special;
        ours |= policy::may_be_locked(attr, holding);
        // What could not be unlocked when it should have been may be locked still.
        ours |= forbidden && (attr.prot.is_none() || attr.pin.reason == Reason::Refused);
        ControlFlow::Continue(())
    });
    match (ours, apps, bytes == range.len()) {
        (false, ..) => Pins::None,
        (true, false, true) => Pins::OnlyOurs { private },
        _ => Pins::Mixed,
    }
}

fn is_private_memory(attr: &Attr) -> bool {
    let anonymous = matches!(
        attr.kind,
        Kind::Anon | Kind::Heap | Kind::Stack | Kind::ThreadStack
    );
    anonymous && !attr.prot.shared()
}

fn frame_with(frame: &Frame, advice: i32) -> Frame {
    let mut other = *frame;
    other.args[2] = advice as u64;
    other
}

/// MADV_DONTNEED, or MADV_FREE of memory that is freed at once, in one call that leaves the
/// pins in place.
fn drop_locked(frame: &mut Frame, range: PageRange) -> i64 {
    let value = real(&frame_with(frame, DONTNEED_LOCKED));
    repin(range);
    value
}

/// Returns whether the kernel knows MADV_DONTNEED_LOCKED (Linux 5.18).
fn knows_locked() -> bool {
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    match ANSWER.load(Relaxed) {
        0 => {
            // SAFETY: advice about no memory at all, of which the kernel looks at the number alone.
            let knows = unsafe { sys::advise_any(PAGE, 0, DONTNEED_LOCKED) }.is_ok();
            ANSWER.store(1 + u8::from(knows), Relaxed);
            knows
        }
        answer => answer == 2,
    }
}

/// What is pinned of `range` is pinned on fault from now on: to populate guards is an error.
pub fn keep_lazy(range: PageRange) {
    if let Some(mut guard) = lock() {
        guard.update(range, |_, a| Attr {
            flags: a.flags.with(Flags::KEEP_LAZY),
            ..a
        });
    }
}

/// msync(2): MS_INVALIDATE is EBUSY on locked memory.
#[inline(never)]
pub fn msync(frame: &mut Frame) -> i64 {
    let [addr, len, flags, ..] = frame.args;
    let range = PageRange::from_call(addr, len);
    let unlocked = flags & libc::MS_INVALIDATE as u64 != 0;
    let Some(range) = range.filter(|_| unlocked && pin::locks()) else {
        counters::count_call(Call::Msync);
        return real(frame);
    };
    let flight = open(Call::Msync);
    let Some(guard) = lock_for(&[Some(range)]) else {
        let value = without_the_lock(frame, range, true);
        end(flight);
        return value;
    };
    flight.claim(&guard, range);
    drop(guard);
    let value = unpinned(&flight, range, || real(frame));
    close(flight, range);
    value
}
