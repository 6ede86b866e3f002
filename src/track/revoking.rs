//! Deregistering revokes: a key that the application gave to peers is good until it deregisters
//! it, and not for as long as the memory is mapped. So a region that peers may reach and that
//! nobody borrows any more is *rotated*: the same memory is registered anew, the new region is
//! published in the old one's place, and the old one goes, with its keys.
//!
//! A thread of the shim's does that (`keys_idle` of [`Subscribers`](super::subscribers::Subscribers)),
//! some time after: a program that registers each message comes back before, and pays nothing.
//! Where there can be no such thread it is done in the application's call, and what peers may
//! reach is lent no more.

use super::choosing::Job;
use super::deregistering::Deregistrations;
use super::entering::{leave, say};
use super::later::{is_later, is_ours_now};
use super::lock::Guard;
use super::registering::{self, fits, register_uncounted, take_over, Replaced};
use super::turns::{in_the_way_of, postpone};
use super::{begin_work, end, filters, lock, reaching, subscribers, work};
use crate::arch;
use crate::base::{counters, settings};
use crate::policy;
use crate::registrar::hca::idle::{self, Due, Looked};
use crate::registrar::hca::records::{Life, Record, RecordId};
use crate::registrar::hca::regions::Node;
use crate::registrar::hca::{DomainId, State as Stage};
use crate::sys::{self, time};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use regall_directory::layout::Counter;
use regall_directory::vocab::{Access, Column, Reason};

pub use super::deregistering::retry;
pub use super::later::later;

/// Ticks after which a region goes that was given back.
pub const KEPT: u32 = idle::KEPT;

/// Whether a region with `rights` is rotated: they are more than REGALL_ACCESS gives away, which
/// stays for as long as the memory is mapped.
#[inline]
pub fn rotates(rights: Access) -> bool {
    let config = settings::config();
    config.revoke_ms.is_some() && policy::beyond(rights, config.access)
}

/// There is no thread that rotates.
static IN_CALLS: AtomicBool = AtomicBool::new(false);

/// Whether a region with `rights` may be lent.
#[inline]
pub fn lends(rights: Access) -> bool {
    !IN_CALLS.load(Relaxed) || !rotates(rights)
}

/// In a child of fork: there may be one.
pub fn forget() {
    IN_CALLS.store(false, Relaxed);
    is_ours_now();
    filters::forget();
}

/// A region that is to be rotated has lost its last borrower.
#[inline]
pub fn begins() {
    if !(subscribers::table().keys_idle)() {
        in_this_call();
    }
}

/// Looks after what others could not. To be called now and then, when nothing is in progress.
#[inline]
pub fn overdue() {
    if is_later() {
        overdue_slowly();
    }
}

#[cold]
#[inline(never)]
fn overdue_slowly() {
    let since = time::nanos(arch::ticks().wrapping_sub(LEFT_AT.load(Relaxed)));
    if since < PAUSE && LEFT_AT.load(Relaxed) != 0 {
        return;
    }
    // A thread with a table of descriptors of its own (unshare(CLONE_FILES)) may do it where it has
    // the adapters, but a thread that it started would keep open what it closes.
    let shares = sys::has_the_process_files();
    if !shares && !has_adapters() {
        return LEFT_AT.store(arch::ticks(), Relaxed);
    }
    if !is_ours_now() {
        return;
    }
    if shares && reaching::was_lost() {
        (subscribers::table().adapters_closed)();
    }
    if shares && (subscribers::table().keys_idle)() {
        return;
    }
    pass();
    if retry(None) {
        LEFT_AT.store(arch::ticks(), Relaxed);
        later();
    }
}

/// When something was left for later by who came by last, in ticks; 0: never.
static LEFT_AT: AtomicU64 = AtomicU64::new(0);
/// In nanoseconds: what was left is not tried again in each call.
const PAUSE: u64 = 1_000_000;

/// Whether this thread has descriptors of all adapters.
#[cold]
fn has_adapters() -> bool {
    let device = |n: usize| {
        let guard = lock()?;
        let d = guard.hca.find(|x| x.state == Stage::Alive).nth(n)?;
        guard.hca.alive(d)?.device
    };
    let mut all = (0..).map_while(device);
    all.all(|device| reaching::has(&device))
}

/// No thread can do it: all that is idle is rotated here and now, and so is what will be.
#[cold]
#[inline(never)]
fn in_this_call() {
    if !IN_CALLS.swap(true, Relaxed) {
        log::warn!("the thread that revokes keys can't be started: memory that peers may reach is registered for each request");
    }
    for _ in 0..PASSES {
        if !pass() {
            break;
        }
        sys::nap(1_000_000);
    }
    retry(None);
}

/// Passes over the regions, a millisecond apart, for those that somebody else was at work on.
const PASSES: u32 = 20;

/// Rotates all that is idle. Whether something was.
fn pass() -> bool {
    let (mut from, mut any) = (1, false);
    while from != 0 {
        let Some(looked) = lock().map(|guard| look_in(&guard, from, 0)) else {
            return any;
        };
        from = looked.next;
        if let Some(n) = looked.found {
            any = true;
            rotate(n, 0);
        }
    }
    any
}

/// Whether there is a domain whose regions rotate.
pub fn any_rotates() -> bool {
    lock().is_none_or(|guard| guard.hca.find(|x| x.rotates).next().is_some())
}

/// A tick has passed.
pub fn count_tick() {
    idle::tick();
}

/// Looks for regions to be rotated, from number `from` on, that nobody has borrowed for so many
/// ticks. `None`: the lock is taken, and who has it is not kept waiting.
pub fn look(from: u32, ticks: u32) -> Option<Looked> {
    super::try_lock().map(|guard| look_in(&guard, from, ticks))
}

/// Whether the kernel would not forget some region yet.
pub fn is_any_bound() -> bool {
    super::try_lock().is_some_and(|guard| guard.hca.bound.any())
}

fn look_in(guard: &Guard, from: u32, ticks: u32) -> Looked {
    let mut looked = guard.hca.records.look(from, idle::now(), ticks);
    looked.later |= guard.hca.bound.any();
    looked
}

/// Rotates region `n`, unless somebody has come to borrow it, or is at work on its memory: then it
/// is left for later.
pub fn rotate(n: RecordId, ticks: u32) {
    let flight = begin_work();
    if rotate_now(n, ticks).is_some() {
        counters::count(Counter::HcaRotated);
    }
    end(flight);
}

/// A region that is to be rotated.
#[derive(Clone, Copy)]
struct Old {
    d: DomainId,
    node: Node,
    record: Record,
    /// Whether this is the one region for all addresses.
    implicit: bool,
}

impl Old {
    /// Region `n`, if it is to be rotated.
    fn find(guard: &Guard, n: RecordId, ticks: u32) -> Option<Self> {
        let record = *guard.hca.records.get(n)?;
        let d = record.domain;
        let domain = guard.hca.alive(d)?;
        let (node, _) = guard.hca.next_from(d, record.range.start())?;
        let due = record.due(idle::now(), ticks) == Due::Now;
        (due && node.record == n).then_some(Self {
            d,
            node,
            record,
            implicit: domain.implicit,
        })
    }

    /// Whether it is still there, and nobody borrows it.
    fn stands(&self, guard: &super::State) -> bool {
        let record = guard.hca.records.get(self.node.record);
        record.is_some_and(|r| {
            r.borrowers == 0 && r.life == Life::Live && r.handle == self.record.handle
        })
    }
}

fn rotate_now(n: RecordId, ticks: u32) -> Option<()> {
    let guard = lock()?;
    let old = Old::find(&guard, n, ticks)?;
    let device = guard.hca.alive(old.d)?.device?;
    let job = Job {
        range: old.node.range,
        gap: old.node.range,
        access: old.record.access,
        of_others: old.record.of_others,
        cut: old.record.cut,
        growth: old.record.growth,
        ahead: old.record.ahead,
        device,
    };
    let mut leaving = Deregistrations::new();
    let outcome = if old.implicit {
        registering::run(guard, old.d, &job, |device, _, access| {
            registering::register_all_addresses(device, access)
        })
    } else {
        if in_the_way_of(&guard, old.node.range) {
            return None;
        }
        let room = fits(&guard, old.d, job.range.len(), job.access);
        if old.record.life != Life::Live || !room {
            take_out(guard, old);
            return Some(());
        }
        registering::run(guard, old.d, &job, register_uncounted)
    };
    let stands = |state: &_| old.stands(state);
    let (done, mark) = take_over(old.d, &job, outcome, stands, &mut leaving);
    leaving.forget();
    mark.end();
    match done {
        Replaced::Yes => Some(()),
        Replaced::No => None,
        Replaced::Refused => {
            // Another one may have come to its number, and to its handle, meanwhile.
            let same =
                |guard: &Guard| Old::find(guard, n, ticks).is_some_and(|now| now.node == old.node);
            let guard = lock().filter(|guard| same(guard) && old.stands(guard))?;
            take_out(guard, old);
            Some(())
        }
    }
}

/// There is no room for two regions of this memory: the old one goes first. What is to be
/// registered of it is, when this thread's call is over.
fn take_out(guard: Guard, old: Old) {
    let mut leaving = Deregistrations::new();
    let begun = work::begin_in(old.d, guard, old.node.range, |guard| {
        let state = &mut **guard;
        leave(state, old.d, old.node, false, &mut leaving);
        if let Some(domain) = state.hca.domain_mut(old.d) {
            domain.implicit = false;
        }
        if state.hca.primary() == Some(old.d) {
            say(state, old.node.range, Column::no(Reason::Off));
        }
        state.show_regions();
    });
    // Who closes the domain waits for that.
    drop(begun.run(|| leaving.forget()));
    postpone(old.node.range);
}
