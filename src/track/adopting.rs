//! What is mapped is registered in a domain that has just been opened.
//!
//! The request for which a protection domain is adopted needs its own bytes, and no others. So with
//! REGALL_HCA_FILL=later that request is answered as soon as they are registered, if much is
//! resident, and a thread of the shim's registers the rest ([`go_on`]), in the order in which a
//! budget is to be spent. What is mapped meanwhile is registered before its call returns if it is
//! no later in that order than what the thread is at, what is asked for when it is asked for, and
//! the HCA column says `off` of what the thread has not come to.
//!
//! All at once, in the call: without that setting; with little memory; where there can be no such
//! thread, or it would be in the way of a caller with a real-time policy; where RLIMIT_MEMLOCK is
//! finite, which may bind once the program gives up its rights, or refuse the application's own
//! registrations for ours; and wherever everything was asked for (REGALL_PIN other than `auto`, a
//! device in REGALL_HCA, the C interface).

use super::turns::Whose;
use super::waiting::{self, Reach};
use super::{begin_work, end, lock, progress, registering, subscribers, State, USER_END};
use crate::base::settings;
use crate::config::Pin;
use crate::limits;
use crate::policy;
use crate::registrar::hca::candidates::{self, Candidate, Due};
use crate::registrar::hca::{DomainId, Filling, State as Stage};
use crate::sys::{
    self,
    scheduling::{self, Processors},
    time,
};
use core::cell::UnsafeCell;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::vocab::Access;

/// When a new domain is to have everything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum When {
    /// Before it is used.
    AtOnce,
    /// While the application goes on, if there is much.
    Meanwhile,
}

/// A process with so many bytes resident does not wait for them: a card takes 16 ms and more.
const MUCH: u64 = 256 << 20;

/// The thread looks about after so many nanoseconds, and one more region ...
const STEP: u64 = 10_000_000;
/// ... which has so many bytes at the most: others wait for it.
const MOST: u64 = 256 << 20;

/// Numbers of [`Filling`]s.
static STAMPS: AtomicU32 = AtomicU32::new(0);

/// Registers in domain `d`, which has just been opened with the access `class`, what is mapped, or
/// has that done. `implicit`: the device pages all addresses on demand.
pub fn fill(d: DomainId, class: Access, implicit: bool, when: When) {
    if when == When::Meanwhile && !implicit && may_wait(d) && begin(d, class) {
        return;
    }
    let flight = begin_work();
    if implicit {
        registering::register_implicitly(d);
    }
    if progress::wanted() {
        progress::begin(to_register(class));
    }
    if let Some(all) = PageRange::new(0, USER_END) {
        // In the order in which a budget is to be spent.
        for rank in 0..=policy::TEXT {
            if let Some(domain) = lock().as_deref_mut().and_then(|s| s.hca.domain_mut(d)) {
                domain.upto_rank = rank;
            }
            // What has been touched since others were opened is theirs, too.
            registering::settle(all, Whose::Foreign, Reach::Resident);
        }
    }
    progress::end();
    end(flight);
}

/// Whether it is worth a thread, and right.
fn may_wait(d: DomainId) -> bool {
    if !is_on() || scheduling::is_real_time() {
        return false;
    }
    let waits = lock().is_some_and(|guard| guard.hca.alive(d).is_some_and(|x| x.waits));
    // (A child of vfork has its parent's memory, and none of its threads.)
    let ours = sys::is_memory_owner();
    waits && ours && !limits::has_memlock() && limits::resident() >= MUCH
}

/// Has the thread fill domain `d`. False: there is none.
fn begin(d: DomainId, class: Access) -> bool {
    let total = match progress::wanted() {
        true => to_register(class),
        false => 0,
    };
    let set = |filling| {
        let mut guard = lock()?;
        let domain = guard.hca.domain_mut(d)?;
        let alive = domain.state == Stage::Alive;
        domain.filling = Some(filling).filter(|_| alive).flatten();
        alive.then_some(())
    };
    let filling = Filling {
        stamp: STAMPS.fetch_add(1, Relaxed),
        rank: 0,
        from: 0,
        total,
    };
    if set(Some(filling)).is_none() {
        return false;
    }
    let begun = (subscribers::table().domain_opened)();
    if !begun {
        let _ = set(None);
    }
    begun
}

/// Whether there is ever anything for a thread to do (REGALL_HCA_FILL).
#[inline]
pub fn is_on() -> bool {
    settings::config().hca_fill_later
}

/// Whether a domain is still to be filled.
pub fn is_left() -> bool {
    is_on() && lock().is_some_and(|guard| next(&guard).is_some())
}

fn next(state: &State) -> Option<(DomainId, Filling)> {
    let mut left = state.hca.find(|x| x.filling.is_some());
    left.find_map(|d| Some((d, state.hca.alive(d)?.filling?)))
}

/// Does some of what is left, less if somebody `wants` it to end. Whether there was anything.
pub fn go_on(wants: impl Fn() -> bool) -> bool {
    let began = time::now();
    is_on()
        && step(MOST, || {
            wants() || time::now().saturating_sub(began) >= STEP
        })
}

/// Does all that is left, here and now.
#[cold]
pub fn finish() {
    if is_on() && sys::is_memory_owner() {
        while step(u64::MAX, || false) {}
    }
}

/// Does some of what is left, in regions of `most` bytes, until it is `enough`. Whether there was
/// anything.
#[cold]
fn step(most: u64, enough: impl Fn() -> bool) -> bool {
    let Some((d, filling)) = lock().and_then(|guard| next(&guard)) else {
        return false;
    };
    if filling.from == 0 && filling.rank == 0 && progress::wanted() {
        progress::begin(filling.total);
    }
    let flight = begin_work();
    waiting::refresh();
    let rest = PageRange::new(filling.from, USER_END);
    let rest = rest.and_then(|rest| registering::settle_some(d, rest, most, enough));
    let after = match rest {
        Some(rest) => Some(Filling {
            from: rest.start(),
            ..filling
        }),
        None => (filling.rank < policy::TEXT).then_some(Filling {
            rank: filling.rank + 1,
            from: 0,
            ..filling
        }),
    };
    if let Some(mut guard) = lock() {
        // Another domain may have come to its number.
        let domain = guard.hca.domain_mut(d);
        if let Some(domain) = domain.filter(|x| x.filling == Some(filling)) {
            domain.filling = after;
            domain.upto_rank = after.map_or(policy::TEXT, |x| x.rank);
        }
    }
    if after.is_none() {
        progress::end();
    }
    end(flight);
    true
}

/// Where the thread has not come to be, it is tried again; if there can be none, or this thread
/// would not let it work, all that is left is done here and now.
#[cold]
pub fn remind() {
    if is_left() && (scheduling::is_real_time() || !(subscribers::table().domain_opened)()) {
        finish();
    }
}

/// The processors that the program was started with.
struct Allowed(UnsafeCell<Processors>);
// SAFETY: written once, at start-up, before there is another thread of ours.
unsafe impl Sync for Allowed {}
static ALLOWED: Allowed = Allowed(UnsafeCell::new(Processors::NONE));

/// At start-up.
pub fn init() {
    if is_on() {
        // SAFETY: nobody reads it before a domain is opened.
        unsafe { *ALLOWED.0.get() = Processors::allowed() };
    }
}

/// The thread begins, and lets all others go first: who started it may be bound to one processor,
/// which is busy.
pub fn enter() {
    if is_on() {
        scheduling::stand_back();
        // SAFETY: not written any more.
        unsafe { &*ALLOWED.0.get() }.take();
    }
}

/// The thread ends, and what is left may be for another one.
pub fn leave() {
    if is_on() {
        progress::end();
    }
}

/// Returns whether a protection domain is adopted at its first registration: everything was asked
/// for.
#[inline]
pub fn is_at_once() -> bool {
    settings::config().pin == Pin::Populate
}

/// Returns whether `candidate` has paid what adopting it costs.
pub fn is_due(candidate: Candidate) -> bool {
    let now = time::now();
    let due = lock().map(|guard| guard.hca.candidates.due(candidate, now));
    match due {
        None | Some(Due::NotYet) => false,
        Some(Due::Now) => true,
        Some(Due::Reckon) => is_due_as_reckoned(candidate, now),
    }
}

#[cold]
#[inline(never)]
fn is_due_as_reckoned(candidate: Candidate, now: u64) -> bool {
    waiting::refresh();
    let resident = limits::resident();
    let Some(mut guard) = lock() else {
        return false;
    };
    let most = guard.hca.candidates.worth_knowing(candidate);
    let price = price(&guard, candidate.class, resident, most);
    guard.hca.candidates.reckon(price, now);
    guard.hca.candidates.due(candidate, now) == Due::Now
}

/// What a new domain of the class `class` costs: a region for each mapping that it registers ahead,
/// of what is small, and of what is large as much as is `resident`. If it is more than `most`, it is not
/// reckoned to the end. With on-demand paging it costs less: which device has that is not asked.
fn price(state: &State, class: Access, resident: u64, most: u64) -> u64 {
    let (mut regions, mut small, mut large) = (0, 0u64, 0u64);
    let all = settings::config().pin != Pin::Auto;
    each_ahead(state, class, |len| {
        regions += 1;
        match all || waiting::is_small(state, len) {
            true => small = small.saturating_add(len),
            false => large = large.saturating_add(len),
        }
        match candidates::cost(regions, small) > most {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    let large = large.min(resident.saturating_sub(small));
    candidates::cost(regions, small.saturating_add(large).min(state.total))
}

/// Calls `then` with the bytes of each piece of memory that a new domain of the class `class` registers
/// ahead, until it breaks.
fn each_ahead(state: &State, class: Access, mut then: impl FnMut(u64) -> ControlFlow<()>) {
    let config = settings::config();
    let on_demand = class.has(Access::ON_DEMAND);
    let Some(users) = PageRange::new(0, USER_END) else {
        return;
    };
    state.ledger.for_each(users, |part, entry| {
        let (attr, len) = (entry.attr, entry.range.len());
        let registers = policy::registering(attr, len, on_demand, config.scope_data);
        let asked = config.pin == Pin::Auto && policy::is_on_request(attr);
        match registers {
            policy::Registering::With(_) if !asked => then(part.len()),
            _ => ControlFlow::Continue(()),
        }
    });
}

/// Bytes that a new domain will have registered, as far as the budget goes.
#[cold]
fn to_register(class: Access) -> u64 {
    let Some(state) = lock() else {
        return 0;
    };
    let mut bytes = 0u64;
    each_ahead(&state, class, |len| {
        bytes = bytes.saturating_add(len);
        ControlFlow::Continue(())
    });
    bytes.min(state.total)
}
