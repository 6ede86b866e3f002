//! Room under RLIMIT_MEMLOCK for a call that our pins have taken it from.
//!
//! The kernel charges a few calls for locked memory and refuses them beyond the limit. Some of our
//! pins go for such a call, but only if it fits under the limit without them: before it, if it may
//! change something and fail, else when it has failed, and it is made again once. They are pinned again at the end of the call, as far as they fit, and once more when
//! the application unlocks something.

use super::turns::postpone;
use super::unpinning::{let_go_of, unlock_around};
use super::{flight, lock, real, State, APP_FUTURE, USER_END};
use crate::arch::Frame;
use crate::base::counters;
use crate::limits::{self, kilobytes};
use crate::policy;
use crate::registrar::pin;
use crate::sys::{file, time, Errno};
use crate::text::number;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::layout::Counter;
use regall_directory::vocab::{Attr, Column, Flags, Reason};

/// What a call is charged for.
#[derive(Clone, Copy)]
pub struct Charge {
    bytes: u64,
    /// Memory that is counted once, whoever has locked it already.
    within: Option<PageRange>,
}

impl Charge {
    /// Locks `range`.
    pub fn lock(range: PageRange) -> Self {
        Self {
            bytes: range.len(),
            within: Some(range),
        }
    }

    /// Maps `bytes` that are locked from the start.
    pub fn more(bytes: u64) -> Self {
        Self {
            bytes: round_up(bytes).unwrap_or(u64::MAX),
            within: None,
        }
    }

    /// Maps `bytes`, which are locked if the application has asked for that for all that it
    /// maps (MCL_FUTURE).
    pub fn future(bytes: u64) -> Option<Self> {
        (APP_FUTURE.load(Relaxed) != 0).then(|| Self::more(bytes))
    }
}

/// Makes a call again, once, that was `refused` for its `charge`, and that has changed nothing: with
/// room made for it. Returns what the kernel says in the end.
#[inline]
pub fn retry(
    frame: &Frame,
    value: i64,
    refused: impl Fn(i64) -> bool,
    charge: Option<Charge>,
) -> i64 {
    match charge.is_some_and(|charge| refused(value) && make_room(charge)) {
        true => real(frame),
        false => value,
    }
}

/// Whether the kernel has said that a new mapping is beyond the limit.
#[inline]
pub fn is_beyond(value: i64) -> bool {
    value == -i64::from(Errno::AGAIN.0)
}

/// Lets go of as much as is needed for `charge` to fit. False if it does not fit without
/// our pins either, or if they are not in its way.
#[cold]
#[inline(never)]
pub fn make_room(charge: Charge) -> bool {
    if !pin::locks() {
        return false;
    }
    let (Some(limit), Some(all)) = (limits::memlock_now(), PageRange::new(0, USER_END)) else {
        return false;
    };
    let locked = Locked::read(charge.within);
    if locked.application.saturating_add(charge.bytes) > limit {
        return false;
    }
    let total = kernels_count().unwrap_or(locked.total);
    let after = total.saturating_sub(locked.within);
    let need = after.saturating_add(charge.bytes).saturating_sub(limit);
    let given = match need {
        0 => None,
        _ => give_up(all, need, charge.within),
    };
    given.map(postpone).is_some()
}

/// Bytes that are locked, as the ledger says.
#[derive(Default)]
struct Locked {
    /// By anybody.
    total: u64,
    /// By the application, outside of the range that is asked about.
    application: u64,
    /// By anybody, in that range.
    within: u64,
}

impl Locked {
    fn read(within: Option<PageRange>) -> Self {
        let Some(guard) = lock() else {
            return Self::default();
        };
        let totals = guard.ledger.totals();
        let mut sum = Self {
            total: guard.pinned().max(totals.app_locked),
            application: totals.app_locked,
            within: 0,
        };
        if let Some(range) = within {
            sum.application = guard.locked_outside(range);
            guard.ledger.for_each(range, |part, entry| {
                let theirs = entry.attr.flags.has(Flags::APP_LOCKED);
                if theirs || entry.attr.pin.held() {
                    sum.within += part.len();
                }
                ControlFlow::Continue(())
            });
        }
        sum
    }
}

/// What the kernel holds against the limit: VmLck of /proc/self/status, in bytes.
fn kernels_count() -> Option<u64> {
    let mut buf = [0u8; 2048];
    let text = file::read_small(c"/proc/self/status", &mut buf).ok()?;
    kilobytes(text, b"VmLck:").map(|kb| kb.saturating_mul(1024))
}

/// Lets go of `need` bytes of our pins outside of `but`: text first, private memory that can
/// be written last. What another call is about may be about to be the application's lock.
///
/// Where they were, if there were any: still to be pinned, as the ledger says.
fn give_up(all: PageRange, mut need: u64, but: Option<PageRange>) -> Option<PageRange> {
    let mut hull: Option<PageRange> = None;
    let sides = match but {
        Some(but) => [all.before(but.start()), all.after(but.end())],
        None => [Some(all), None],
    };
    let ranks = [2, 1, 0].into_iter();
    for (rank, side) in
        ranks.flat_map(|rank| sides.into_iter().flatten().map(move |side| (rank, side)))
    {
        if need == 0 {
            break;
        }
        let_go_of(side, |guard, part, attr| {
            if need == 0 || policy::rank(attr) != rank || flight::in_the_way(guard, part, true) {
                return None;
            }
            // (A segment is unlocked as a whole.)
            let within = but.and_then(|but| part.intersection(but));
            let bytes = need.min(part.len() - within.map_or(0, PageRange::len));
            let piece = part.after(part.end() - bytes)?;
            need -= bytes;
            hull = Some(hull.map_or(piece, |hull| hull.hull(piece)));
            Some(piece)
        });
    }
    let hull = hull?;
    counters::count(Counter::Retried);
    remember(hull);
    Some(hull)
}

/// Where pins were given up; empty: nowhere. Changed with the lock held.
static FROM: AtomicU64 = AtomicU64::new(0);
static TO: AtomicU64 = AtomicU64::new(0);
/// Until when the times that they came back have used up, in nanoseconds: [`PAUSE`] each.
static SPENT_UNTIL: AtomicU64 = AtomicU64::new(0);
/// Some have not come back yet: the application has unlocked memory too soon after the last
/// time, or there was no room for them.
static DUE: AtomicBool = AtomicBool::new(false);
/// Pins come back no more often than this, but for a few times in a row: a program that locks
/// and unlocks at its limit all the time is not to have us do so as well.
const PAUSE: u64 = 50_000_000;
const IN_A_ROW: u64 = 4;

fn remember(hull: PageRange) {
    let Some(_guard) = lock() else {
        return;
    };
    let known = PageRange::new(FROM.load(Relaxed), TO.load(Relaxed));
    let hull = known.map_or(hull, |known| known.hull(hull));
    FROM.store(hull.start(), Relaxed);
    TO.store(hull.end(), Relaxed);
}

/// The application has unlocked memory: what was given up is pinned again at the end of this
/// call, as far as it fits.
#[inline]
pub fn unlocked() {
    if TO.load(Relaxed) != 0 {
        come_back();
    }
}

/// As [`unlocked`], for memory that goes: `locked` says whether the application had locked it.
#[inline]
pub fn unmapped(locked: bool) {
    if locked || DUE.load(Relaxed) {
        unlocked();
    }
}

#[cold]
#[inline(never)]
fn come_back() {
    let (now, spent) = (time::now(), SPENT_UNTIL.load(Relaxed));
    let soon = spent > now.saturating_add((IN_A_ROW - 1) * PAUSE);
    if soon {
        return DUE.store(true, Relaxed);
    }
    let Some(mut guard) = lock() else {
        return;
    };
    let Some(hull) = PageRange::new(FROM.load(Relaxed), TO.load(Relaxed)) else {
        return;
    };
    SPENT_UNTIL.store(spent.max(now).saturating_add(PAUSE), Relaxed);
    // No more than there is room for: there may be any number of mappings over the limit.
    let limit = limits::memlock().unwrap_or(u64::MAX).min(guard.budget);
    let mut room = limit.saturating_sub(guard.pinned());
    let mut any = false;
    guard.update(hull, |part, a| {
        let new = with_reason(a, Reason::Limit, Reason::Off);
        any |= new != a;
        if new == a || part.len() > room {
            return a;
        }
        room -= part.len();
        new
    });
    // The same room may be wanted by what was unlocked just now: what gets none of it is
    // looked at again when memory goes.
    DUE.store(any, Relaxed);
    if !any {
        FROM.store(0, Relaxed);
        TO.store(0, Relaxed);
    }
    drop(guard);
    if any {
        postpone(hull);
    }
}

/// `attr` with another reason not to be pinned, if it has that one, and may be pinned at all.
fn with_reason(attr: Attr, from: Reason, to: Reason) -> Attr {
    let mut attr = attr;
    if attr.pin.reason == from && policy::excluded(attr).is_none() {
        attr.pin = Column::no(to);
    }
    attr
}

/// As many mappings as a process may have, if it can't be read.
const USUAL_MAPPINGS: u64 = 65_530;
/// Mappings of the kernel's that one call may need beyond those that there are.
const SPARE: u64 = 64;

/// Returns whether there are about as many mappings as there may be, some of them for our pins' sake:
/// under a limit these are in parts of mappings, which makes more of them.
#[inline]
pub fn is_tight() -> bool {
    limits::bound() && pin::locks() && {
        let known = lock().map(|guard| (guard.pinned(), guard.ledger.len()));
        known.is_some_and(|(pinned, entries)| pinned != 0 && are_many(entries, 1))
    }
}

/// Lets go of our pins if it [`is_tight`]. Whether there were any.
///
/// They stay away until the application unlocks something: pinned again they would be in the
/// way of the next call.
#[inline]
pub fn thin_out() -> bool {
    is_tight() && thin_out_now()
}

/// As [`thin_out`], before a call that takes `range` away: all of a mapping goes without making more
/// of them.
#[inline]
pub fn make_place(range: PageRange) {
    // (What are several mappings to the ledger may be one to the kernel.)
    let divides = |state: &State| {
        let sides = [range.start().wrapping_sub(PAGE), range.end()];
        sides.iter().all(|at| state.ledger.get(*at).is_some())
    };
    if is_tight() && lock().is_some_and(|guard| divides(&guard)) {
        thin_out_now();
    }
}

#[cold]
#[inline(never)]
fn thin_out_now() -> bool {
    let all = PageRange::new(0, USER_END);
    let Some(hull) = all.and_then(|all| give_up(all, u64::MAX, None)) else {
        return false;
    };
    if let Some(mut guard) = lock() {
        guard.update(hull, |_, a| with_reason(a, Reason::Off, Reason::Limit));
    }
    true
}

/// Whether the kernel has said that there may be no more mappings, or no more memory.
#[inline]
pub fn is_crowded(value: i64) -> bool {
    value == -i64::from(Errno::NOMEM.0)
}

/// Unlocks what lies beside `range` where there are many mappings: what becomes one mapping with its
/// neighbours makes no further one, but where these are locked and it is not. They are pinned again at
/// the end of the call, together with it. Whether there was anything.
#[cold]
#[inline(never)]
pub fn unlock_beside(range: PageRange) -> bool {
    let entries = lock().map_or(0, |guard| guard.ledger.len());
    if !pin::locks() || !are_many(entries, 2) {
        return false;
    }
    let sides = [range.start().wrapping_sub(PAGE), range.end()];
    let pages = sides
        .into_iter()
        .filter_map(|at| PageRange::from_call(at, PAGE));
    pages.filter(|page| unlock_around(*page)).count() != 0
}

/// As many mappings as a process may have, as was read last; 0: it was not read yet.
static MOST: AtomicU64 = AtomicU64::new(0);

/// Whether there are about as many mappings as a process may have, or would be if the ledger's
/// `entries` were so many `times` as many. What may be is read where it matters alone: calls that
/// fail with ENOMEM for another reason cost no more for it.
fn are_many(entries: usize, times: u64) -> bool {
    let there = (entries as u64 + SPARE) * times;
    if there < MOST.load(Relaxed) {
        return false;
    }
    let mut buf = [0u8; 32];
    let text = file::read_small(c"/proc/sys/vm/max_map_count", &mut buf);
    let most = text
        .ok()
        .and_then(|t| number(t.strip_suffix(b"\n").unwrap_or(t)))
        .unwrap_or(USUAL_MAPPINGS);
    MOST.store(most, Relaxed);
    there >= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_count_is_found() {
        let text = b"Name:\tVmLck:\nVmPin:\t 8 kB\nVmLck:\t    1234 kB\nVm";
        assert_eq!(kilobytes(text, b"VmLck:"), Some(1234));
        assert_eq!(kilobytes(b"VmLck:\t kB\n", b"VmLck:"), None);
        assert_eq!(kilobytes(b"x VmLck: 3 kB", b"VmLck:"), None);
        assert!(kernels_count().is_some());
    }
}
