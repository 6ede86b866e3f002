//! Carrying out what the ledger says is to be pinned, and letting go of it when
//! a call needs unlocked memory. The kernel works without the lock being held, so
//! whoever pins or unpins says so in its flight, and others wait.

use super::waiting::Reach;
use super::{
    deferred, flight, growing, lock, lock::Guard, progress, registering, resync, spent, State,
    USER_END,
};
use crate::arch;
use crate::base::{counters, settings};
use crate::config::Pin;
use crate::limits;
use crate::policy::{self, Want};
use crate::registrar::pin::{self, PinSet};
use crate::registrar::Registrar;
use crate::sys::{self, time, Errno};
use crate::thread;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, Counter};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Reason};

/// Takes the lock when nobody is pinning or unpinning anything in `ranges`.
#[inline]
pub fn lock_for(ranges: &[Option<PageRange>]) -> Option<Guard> {
    let guard = lock()?;
    if is_free(&guard, ranges, false) {
        return Some(guard);
    }
    drop(guard);
    wait_for(ranges, false)
}

#[inline]
fn is_free(guard: &Guard, ranges: &[Option<PageRange>], claims: bool) -> bool {
    let mut ranges = ranges.iter().flatten();
    !ranges.any(|r| flight::in_the_way(guard, *r, claims))
}

/// Others' pinning takes as long as the kernel's page faults do. One that was
/// left half-way is not waited for longer than this, in naps. If it was not left but
/// slow, it finds that it was overtaken, and what came of it does not count.
const NAPS: u32 = if cfg!(feature = "impatient") { 1 } else { 400 };

#[cold]
fn wait_for(ranges: &[Option<PageRange>], claims: bool) -> Option<Guard> {
    for nap in 0..NAPS {
        let guard = lock()?;
        if is_free(&guard, ranges, claims) {
            return Some(guard);
        }
        drop(guard);
        if nap < 16 {
            sys::yield_now();
        } else {
            sys::nap(250_000);
        }
    }
    let guard = lock()?;
    flight::sweep(&guard);
    for range in ranges.iter().flatten() {
        flight::overtake(&guard, *range);
    }
    Some(guard)
}

/// Takes the lock when no other call is about `range`, nor pins anything there.
#[cold]
#[inline(never)]
pub fn lock_alone(range: PageRange) -> Option<Guard> {
    let guard = lock()?;
    if is_free(&guard, &[Some(range)], true) {
        return Some(guard);
    }
    drop(guard);
    wait_for(&[Some(range)], true)
}

/// Whose memory it may be that is to be pinned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The call's own, and nobody else's.
    Own,
    /// Read from the kernel by a call that is about some of it. Entries are pinned
    /// whole: what is populated in two goes stays two mappings to the kernel. What
    /// other calls are about is postponed until this one is done: to wait for them
    /// here could be to wait for each other.
    Read,
    /// Outside of any call that is about it: waits for those that are.
    Foreign,
}

/// Has everything in `range` pinned that is to be. Called without the lock, in a
/// call that is about `range`, after the ledger knows it.
pub fn settle(range: PageRange) {
    settle_part(range, Whose::Own, Reach::Resident);
}

/// As [`settle`], for memory that is new: nothing of it is resident.
#[inline]
pub fn settle_new(range: PageRange) {
    settle_part(range, Whose::Own, Reach::Small);
}

/// As [`settle`], for what was read from the kernel: some of it may be another
/// call's.
pub fn settle_read(range: PageRange) {
    settle_part(range, Whose::Read, Reach::Resident);
}

/// As [`settle_read`], from outside of any call that is about `range`.
pub fn settle_foreign(range: PageRange) {
    settle_part(range, Whose::Foreign, Reach::Resident);
}

/// Pins what this thread's calls have postponed, now that none is in progress.
#[inline]
pub fn settle_postponed() {
    let thread = thread::current();
    if thread.postponed.get().1 != 0 && thread.flights[0].get() == 0 {
        settle_postponed_slowly(thread);
    }
}

#[cold]
#[inline(never)]
fn settle_postponed_slowly(thread: &thread::Thread) {
    // A child of vfork has this from its parent, whose rights may be others.
    if sys::getpid() != sys::memory_owner() {
        return;
    }
    let (flight, _) = flight::begin(Call::Mmap);
    let (start, end) = thread.postponed.replace((0, 0));
    if let Some(range) = PageRange::new(start, end) {
        settle_foreign(range);
    }
    drop(flight);
}

/// Leaves `part` for when this thread has no call in progress any more.
pub fn postpone(part: PageRange) {
    let postponed = &thread::current().postponed;
    let (start, end) = match postponed.get() {
        (_, 0) => (part.start(), part.end()),
        (start, end) => (start.min(part.start()), end.max(part.end())),
    };
    postponed.set((start, end));
}

/// Works through a range where others may be at work, too.
pub struct Clear {
    rest: Option<PageRange>,
    all: PageRange,
    whose: Whose,
    patient: bool,
}

/// The way through `range`.
pub fn stand_clear(range: PageRange, whose: Whose) -> Clear {
    Clear {
        rest: Some(range),
        all: range,
        whose,
        patient: true,
    }
}

impl Clear {
    /// What is still to be looked at.
    pub fn rest(&self) -> PageRange {
        self.rest.unwrap_or(self.all)
    }

    /// What lies below `addr` is done.
    pub fn pass(&mut self, addr: u64) {
        self.rest = self.rest().after(addr);
    }

    /// Whether nothing is.
    pub fn is_done(&self) -> bool {
        self.rest.is_none()
    }

    /// The lock back if nobody is in the way of work on `part`. Otherwise it has been
    /// waited for, or `part` is left for later: what is to be done is looked at afresh.
    pub fn of(&mut self, guard: Guard, part: PageRange) -> Option<Guard> {
        let claims = self.whose != Whose::Own;
        if !self.patient || !flight::in_the_way(&guard, part, claims) {
            self.patient = true;
            return Some(guard);
        }
        if self.whose == Whose::Read && !flight::in_the_way(&guard, part, false) {
            drop(guard);
            postpone(part);
            self.rest = self.rest().after(part.end());
            return None;
        }
        drop(guard);
        let claims = self.whose == Whose::Foreign;
        if let Some(guard) = wait_for(&[Some(part)], claims) {
            // A call that its thread has left for good must not hold up others for ever.
            self.patient = !flight::in_the_way(&guard, part, claims);
        }
        None
    }
}

/// Whether another call is about bytes of `range`, or pins something there.
pub fn in_the_way_of(guard: &Guard, range: PageRange) -> bool {
    flight::in_the_way(guard, range, true)
}

fn settle_part(range: PageRange, whose: Whose, reach: Reach) {
    pin_all(range, whose);
    registering::settle(range, whose, reach);
}

fn pin_all(range: PageRange, whose: Whose) {
    let config = settings::config();
    if config.pin == Pin::Off {
        return;
    }
    let whole = whose != Whose::Own;
    let mut looked = !limits::is_shared();
    let mut over = false;
    let mut clear = stand_clear(range, whose);
    // Each round settles one part; a racing call may put parts back, so the
    // number of rounds is bounded only by what the application maps.
    while !clear.is_done() {
        let Some(guard) = lock() else {
            return deferred::later(clear.rest());
        };
        let Some((part, attr, want)) = guard.next_to_pin(clear.rest(), config.pin, whole) else {
            break;
        };
        // What lies before it is done: not to be gone through again for each part.
        clear.pass(part.start());
        let Some(mut guard) = clear.of(guard, part) else {
            continue;
        };
        let state = &mut *guard;
        let counts = if state.counts(attr) { part.len() } else { 0 };
        let after = state.counted().saturating_add(counts);
        let cache = state.must_fit(attr);
        let stale = counts != 0 && after > state.next_look || cache && state.is_fitting_stale();
        let column = match want {
            Want::Leave(column) => column,
            _ if !looked && stale => {
                drop(guard);
                reckon();
                looked = true;
                continue;
            }
            _ if counts != 0 && after > state.budget || cache && !state.fits() => {
                counters::count(Counter::PinLimited);
                over = true;
                Column::no(Reason::Limit)
            }
            _ => {
                state.reserved += counts;
                flight::pin_begins(&guard, part);
                drop(guard);
                let populated = match want {
                    Want::Populate => progress::populate(part, attr),
                    _ => part.len(),
                };
                let outcome = pin_part(part, attr, want);
                over |= matches!(outcome, Outcome::No(c) if c.reason == Reason::Limit);
                let Some(mut guard) = lock() else {
                    flight::pin_ends();
                    return deferred::later(clear.rest());
                };
                let overtaken = flight::overtaken(&guard);
                let state = &mut *guard;
                state.reserved = state.reserved.saturating_sub(counts);
                if overtaken {
                    drop(guard);
                    flight::pin_ends();
                    postpone(part);
                    clear.pass(part.end());
                    continue;
                }
                let replaced = record(state, part, attr, want, outcome);
                if counts != 0 && limits::is_shared() {
                    tell_lazy(state);
                }
                let held = match replaced {
                    true => {
                        undo(guard, part);
                        None
                    }
                    false => Some(guard),
                };
                flight::pin_ends();
                drop(held);
                progress::done(part.len() - populated);
                continue;
            }
        };
        state.update(part, |_, a| Attr { pin: column, ..a });
    }
    if over && !resync::is_settling() {
        warn_of_limit();
    }
}

/// Whether it was said that much is over the limit.
static WARNED: AtomicBool = AtomicBool::new(false);
/// Less than so many bytes over the limit is not worth a line.
const MUCH: u64 = 16 << 20;

/// Says once if more than a tenth of what could be pinned is over the limit. Called without
/// the lock.
#[cold]
#[inline(never)]
pub fn warn_of_limit() {
    if WARNED.load(Relaxed) {
        return;
    }
    let (Some(guard), Some(all)) = (lock(), PageRange::new(0, USER_END)) else {
        return;
    };
    let budget = guard.budget;
    let (mut over, mut held) = (0u64, 0u64);
    guard.ledger.for_each(all, |part, entry| {
        // Nobody means to use all that is mapped so (AddressSanitizer maps 14 TiB).
        let reserved = entry.attr.flags.has(Flags::NORESERVE);
        match entry.attr.pin.reason {
            Reason::Limit if !reserved => over = over.saturating_add(part.len()),
            Reason::None => held = held.saturating_add(part.len()),
            _ => (),
        }
        ControlFlow::Continue(())
    });
    drop(guard);
    if over < MUCH || over.saturating_mul(9) <= held || WARNED.swap(true, Relaxed) {
        return;
    }
    let (over, all) = (over >> 20, over.saturating_add(held) >> 20);
    // A budget that comes from the limit is a part of it.
    match limits::memlock_now().filter(|limit| limit / 2 <= budget) {
        Some(limit) => log::warn!(
            "{over} of {all} MiB are not pinned: RLIMIT_MEMLOCK is {} KiB (ulimit -l)",
            limit >> 10
        ),
        None => log::warn!(
            "{over} of {all} MiB are not pinned: the budget is {} MiB (REGALL_LIMIT, or what \
             the cgroup or the node has left)",
            budget >> 20
        ),
    }
}

/// The budget is reckoned anew no more often than this, in nanoseconds: it takes a look at each
/// other process with the shim on.
const PAUSE: u64 = 100_000_000;
/// When it was; 0: it is to be at the next occasion.
static RECKONED: AtomicU64 = AtomicU64::new(0);

/// What was reckoned is not of this process.
pub fn look_again() {
    RECKONED.store(0, Relaxed);
}

/// Reckons the budget anew, where others have a part in it.
#[cold]
#[inline(never)]
pub fn reckon() {
    let (now, last) = (time::now(), RECKONED.load(Relaxed));
    if last != 0 && now.saturating_sub(last) < PAUSE {
        return;
    }
    RECKONED.store(now, Relaxed);
    let Some(held) = lock().map(|g| held(&g)) else {
        return;
    };
    let budget = limits::budget(settings::config().limit, held);
    if let Some(mut guard) = lock() {
        guard.set_budget(budget, held.only_cache);
    }
}

fn held(state: &State) -> limits::Held {
    limits::Held {
        counted: state.counted(),
        lazy: lazy(state),
        cache: state.ledger.totals().cache,
        only_cache: state.only_cache,
    }
}

/// Bytes that are locked, that count, and that may become resident yet.
fn lazy(state: &State) -> u64 {
    match settings::config().pin {
        Pin::Off | Pin::Populate => 0,
        Pin::Auto | Pin::OnFault => state.counted(),
    }
}

/// Others in the same cgroup leave room for it.
#[cold]
fn tell_lazy(state: &State) {
    let counters = state.header().map(|h| &h.counters);
    if let Some(place) = counters.and_then(|c| c.get(Counter::LazyBytes as usize)) {
        place.store(lazy(state), Relaxed);
    }
}

/// What is said to be pinned in `range` is pinned again: the kernel has let go of
/// it, or there are new pages. Never seen as unpinned meanwhile, since another
/// thread that gives advice on it must know that there is a lock in its way.
pub fn repin(range: PageRange) {
    if settings::config().pin == Pin::Off {
        return;
    }
    let mut from = range.start();
    let mut refused = false;
    while let Some(rest) = range.after(from) {
        let mut parts = [None; 8];
        let mut n = 0;
        {
            let Some(guard) = lock_for(&[Some(rest)]) else {
                return deferred::later(rest);
            };
            guard.ledger.for_each(rest, |part, entry| {
                from = part.end();
                if entry.attr.pin.held() {
                    if let Some(place) = parts.get_mut(n) {
                        *place = Some((part, entry.attr));
                        n += 1;
                    }
                }
                if n == 8 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            flight::pin_begins(&guard, rest);
        }
        for (part, attr) in parts.iter().flatten() {
            refused |= !repin_part(*part, *attr);
        }
        pin_ends_at(rest);
        if n < 8 {
            break;
        }
    }
    if refused {
        settle(range);
    }
}

/// Locks or unlocks in `range` are done. If others did not wait for that, nobody knows
/// what is locked there now: it is settled again after this call.
fn pin_ends_at(range: PageRange) {
    if let Some(mut guard) = lock() {
        if flight::overtaken(&guard) {
            guard.update(range, |_, a| resync::unsettled(a));
            drop(guard);
            postpone(range);
        }
    }
    flight::pin_ends();
}

/// Whether it went well; otherwise the ledger says that it is not pinned.
fn repin_part(part: PageRange, attr: Attr) -> bool {
    let lazy = attr.flags.has(Flags::ONFAULT);
    let want = if lazy { Want::OnFault } else { Want::Populate };
    if let Outcome::Held = pin_part(part, attr, want) {
        return true;
    }
    if let Some(mut guard) = lock() {
        guard.update(
            part,
            |_, a| if a == attr { resync::unsettled(a) } else { a },
        );
    }
    false
}

/// What came of pinning a part.
enum Outcome {
    Held,
    /// Only up to this address: the file ends there.
    UpTo(u64),
    No(Column),
}

fn pin_part(part: PageRange, attr: Attr, want: Want) -> Outcome {
    let start = arch::ticks();
    let outcome = match PinSet.register(part, want) {
        Ok(()) => Outcome::Held,
        Err(errno) => refused(part, attr, want, errno),
    };
    spent(Counter::PinNanos, start);
    if let Outcome::Held = outcome {
        counters::count(Counter::Pins);
        counters::add(Counter::PinnedBytesTotal, part.len());
    }
    outcome
}

fn refused(part: PageRange, attr: Attr, want: Want, errno: Errno) -> Outcome {
    if still_there(part, attr) {
        // The kernel marks the range locked before it populates it; what failed
        // half-way must not stay so, or calls like madvise fail.
        let _ = PinSet.deregister(part);
    }
    if attr.kind == Kind::File {
        if let Some(end) = pin::end_of_file(part) {
            return Outcome::UpTo(end);
        }
    }
    let limited = pin::is_limit(errno) && limits::memlock_now().is_some();
    if want == Want::Populate && !limited && PinSet.register(part, Want::OnFault).is_ok() {
        // The kernel will lock it but can't populate it (a write-protected
        // page, a guard, a userfaultfd): locked as far as it is there.
        return Outcome::Held;
    }
    counters::count(Counter::PinRefused);
    if limited {
        return Outcome::No(Column::no(Reason::Limit));
    }
    log::info!("mlock of {part:?} refused: {errno}");
    Outcome::No(Column::refused(errno.byte()))
}

/// Whether the ledger still says `attr` of all of `part`, which nobody locked but us.
fn still_there(part: PageRange, attr: Attr) -> bool {
    let mut bytes = 0;
    if let Some(guard) = lock() {
        guard.ledger.for_each(part, |piece, entry| {
            bytes += if entry.attr == attr { piece.len() } else { 0 };
            ControlFlow::Continue(())
        });
    }
    bytes == part.len() && !attr.flags.has(Flags::APP_LOCKED)
}

/// Writes down what came of pinning `part`. Says whether something of it is no
/// longer what it was: a racing call has replaced it, and what the kernel locked
/// is somebody else's.
fn record(state: &mut State, part: PageRange, attr: Attr, want: Want, outcome: Outcome) -> bool {
    let lazy = want == Want::OnFault;
    let held = |a: Attr| {
        let flags = if lazy {
            a.flags.with(Flags::ONFAULT)
        } else {
            a.flags.without(Flags::ONFAULT)
        };
        Attr {
            pin: Column::YES,
            flags,
            ..a
        }
    };
    let mut known = 0;
    let mut same = |piece: PageRange, a: Attr| {
        let same = a.kind == attr.kind && a.pin.reason == Reason::Off;
        known += if same || a.pin.held() { piece.len() } else { 0 };
        same
    };
    match outcome {
        Outcome::Held if !growing::may_stay(attr) => {
            let limit = Column::no(Reason::Limit);
            state.update(part, |piece, a| match same(piece, a) {
                true => Attr { pin: limit, ..a },
                false => a,
            });
            true
        }
        Outcome::Held => {
            state.update(part, |piece, a| if same(piece, a) { held(a) } else { a });
            known < part.len()
        }
        Outcome::No(column) => {
            state.update(part, |piece, a| {
                if same(piece, a) {
                    Attr { pin: column, ..a }
                } else {
                    a
                }
            });
            false
        }
        Outcome::UpTo(end) => {
            if let Some(tail) = part.after(end) {
                let beyond = |a: Attr| {
                    policy::described(
                        Attr {
                            flags: a.flags.with(Flags::TAIL),
                            ..a
                        },
                        Pin::Populate,
                    )
                };
                state.update(tail, |piece, a| if same(piece, a) { beyond(a) } else { a });
            }
            false
        }
    }
}

/// Lets go of what of `part` the ledger says is not to be pinned: a lock that
/// nobody knows of would split the application's mapping for the kernel. What the
/// ledger does not know, or another call is about, may not be done yet. Called
/// while the flight says that `part` is being pinned.
#[cold]
fn undo(guard: Guard, part: PageRange) {
    let mut strangers = [None; 8];
    let mut places = strangers.iter_mut();
    guard.ledger.for_each(part, |piece, entry| {
        // What is still to be pinned will be, by whom it belongs to.
        let settled = !entry.attr.pin.held() && entry.attr.pin.reason != Reason::Off;
        let ours = settled && !entry.attr.flags.has(Flags::APP_LOCKED);
        if ours && !flight::in_the_way(&guard, piece, true) {
            if let Some(place) = places.next() {
                *place = Some(piece);
            }
        }
        ControlFlow::Continue(())
    });
    drop(guard);
    for range in strangers.iter().flatten() {
        let _ = PinSet.deregister(*range);
    }
}

/// Pins in `range` are let go (not those that the application asked for), since
/// the call that follows fails on locked memory or is charged for it. They come
/// back with [`settle`]. Says whether there was anything.
pub fn let_go(range: PageRange) -> bool {
    let_go_of(range, |_, part, _| Some(part))
}

/// As [`let_go`], of what `which` names of each part with the lock held.
pub fn let_go_of(
    range: PageRange,
    mut which: impl FnMut(&Guard, PageRange, Attr) -> Option<PageRange>,
) -> bool {
    let mut any = false;
    let mut from = range.start();
    loop {
        // A handful at a time: system calls are made without the lock.
        let mut parts = [None; 8];
        let mut n = 0;
        let Some(rest) = range.after(from) else {
            return any;
        };
        let Some(mut guard) = lock_for(&[Some(rest)]) else {
            return any;
        };
        flight::pin_begins(&guard, rest);
        guard.ledger.for_each(rest, |part, entry| {
            from = part.end();
            let ours = entry.attr.pin.held() && !entry.attr.flags.has(Flags::APP_LOCKED);
            let piece = if ours {
                which(&guard, part, entry.attr)
            } else {
                None
            };
            if let (Some(piece), Some(place)) = (piece, parts.get_mut(n)) {
                *place = Some(piece);
                n += 1;
            }
            if n == 8 {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        for part in parts.iter().flatten() {
            guard.update(*part, |_, a| Attr {
                pin: Column::no(Reason::Off),
                ..a
            });
        }
        drop(guard);
        for part in parts.iter().flatten() {
            any = true;
            counters::count(Counter::Unpins);
            let _ = PinSet.deregister(*part);
        }
        pin_ends_at(rest);
        if n < 8 {
            return any;
        }
    }
}
