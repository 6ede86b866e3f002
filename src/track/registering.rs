//! Carrying out what is to be registered with adapters. As with pins, the kernel works without
//! the lock being held ([`super::work`]): a flight says what memory is being worked on, and others
//! wait.

use super::choosing::{next_step, How, Job, Step};
use super::deregistering::{deregister, Deregistrations};
use super::entering::{enter, publish, refuse, Entered};
use super::lock::Guard;
use super::real::spent;
use super::turns::{in_the_way_of, lock_for, postpone, stand_clear, Clear, Whose};
use super::waiting::{self, Reach};
use super::work::{self, Finished};
use super::{lock, notes, owed, progress, reaching, State, USER_END};
use crate::arch;
use crate::base::counters;
use crate::limits;
use crate::registrar::hca::growth::Growth;
use crate::registrar::hca::records::{Life, Record};
use crate::registrar::hca::sizes::CHUNK;
use crate::registrar::hca::{numbers, Device, DomainId};
use crate::registrar::pin::is_limit;
use crate::sys::{Errno, Result};
use crate::uverbs::Mr;
use regall_directory::addr::PageRange;
use regall_directory::layout::Counter;
use regall_directory::vocab::Access;

pub use crate::registrar::hca::active;

/// Registers everything in `range` that is to be and is not, in every domain.
#[inline]
pub fn settle(range: PageRange, whose: Whose, reach: Reach) {
    if active() {
        settle_slowly(range, whose, reach);
    }
}

#[cold]
#[inline(never)]
fn settle_slowly(range: PageRange, whose: Whose, reach: Reach) {
    if whose != Whose::Own {
        waiting::refresh();
    }
    for d in numbers() {
        let did = settle_in(d, range, whose, reach);
        // Its neighbours may have been touched since.
        if did && reach == Reach::Small && waiting::any() {
            settle_in(d, waiting::around(range), Whose::Read, Reach::Resident);
        }
    }
}

/// As [`settle`], in domain `d`. Whether anything was registered.
pub fn settle_in(d: DomainId, range: PageRange, whose: Whose, reach: Reach) -> bool {
    let mut clear = stand_clear(range, whose);
    work_through(d, &mut clear, (reach, u64::MAX), || false)
}

/// Registers what is resident or small in `range` in domain `d`, in regions of at most so many
/// bytes, until it is `enough`: that is asked after each region, and after each part in which
/// there was nothing to be registered. What is left of the range.
pub fn settle_some(
    d: DomainId,
    range: PageRange,
    most: u64,
    enough: impl Fn() -> bool,
) -> Option<PageRange> {
    let mut clear = stand_clear(range, Whose::Foreign);
    work_through(d, &mut clear, (Reach::Resident, most), enough);
    (!clear.is_done()).then(|| clear.rest())
}

/// Registers what is still to be looked at of `clear`. Whether anything was registered.
fn work_through(
    d: DomainId,
    clear: &mut Clear,
    (reach, most): (Reach, u64),
    enough: impl Fn() -> bool,
) -> bool {
    let (mut any, mut known, mut small) = (false, None, None);
    while !clear.is_done() {
        let Some(mut guard) = lock() else {
            notes::later(clear.rest());
            clear.finish();
            break;
        };
        let how = How {
            reach,
            known,
            small,
            most,
        };
        let job = match next_step(&mut guard, d, clear.rest(), how) {
            None => {
                clear.finish();
                break;
            }
            Some(Step::Job(job)) => job,
            Some(Step::Look(gap, backing)) => {
                drop(guard);
                let end = gap.start().saturating_add(most);
                let gap = gap.before(end).unwrap_or(gap);
                known = waiting::resident(gap, backing);
                let upto = known.map_or(gap.end(), |k| k.start());
                if let (Some(untouched), Some(mut guard)) = (gap.before(upto), lock()) {
                    waiting::waits(&mut guard, d, untouched);
                }
                clear.pass(upto);
                // What was found is registered first: else it would be looked for again.
                if known.is_none() && enough() {
                    break;
                }
                continue;
            }
        };
        let Some(guard) = clear.of(guard, job.range) else {
            continue;
        };
        match carry_out(guard, d, job) {
            Fit::Yes => clear.pass(job.gap.end()),
            Fit::TooLarge => small = Some(job.gap),
        }
        any = true;
        // All of what was refused is tried first: else it would be refused again.
        let refused = |gap: PageRange| !clear.is_done() && clear.rest().start() < gap.end();
        if !small.is_some_and(refused) && enough() {
            break;
        }
    }
    any
}

/// Whether memory can be as large a region as was tried.
#[derive(PartialEq, Eq)]
enum Fit {
    /// It is one, or can't be one however large.
    Yes,
    /// It is to be tried as smaller ones: a part of it may do.
    TooLarge,
}

/// Registers `job` and writes down what came of it. Takes the lock that it was found
/// under, so that nobody comes between.
fn carry_out(mut guard: Guard, d: DomainId, job: Job) -> Fit {
    // What nothing is pinned for is as large however often it is tried.
    let large = job.gap.len() > CHUNK && !job.access.has(Access::ON_DEMAND);
    owed::give_back(&mut guard);
    if !fits(&guard, d, job.gap.len(), job.access) {
        if large {
            return Fit::TooLarge;
        }
        counters::count(Counter::HcaLimited);
        refuse(&mut guard, d, job.gap, Life::Refused(0));
        return Fit::Yes;
    }
    let mut fit = Fit::Yes;
    let mut leaving = Deregistrations::new();
    match run(guard, d, &job, register) {
        Finished::Unlocked(outcome, mark) => {
            owed::charged(d, job.range.len());
            leaving.add_if_there(job.device, outcome);
            leaving.deregister();
            mark.end();
            notes::later(job.range);
        }
        Finished::Overtaken(mut guard, outcome, mark) => {
            // Whose memory it is now nobody knows.
            leaving.add_if_there(job.device, outcome);
            guard.hca.refund(d, job.range.len());
            if large {
                guard.hca.hurried.add(job.gap);
            }
            postpone(job.gap);
            guard.show_regions();
            drop(guard);
            leaving.deregister();
            mark.end();
            progress::done(job.gap.len());
        }
        Finished::Alone(mut guard, outcome, mark) => {
            match outcome {
                Ok(keys) => {
                    let record = job.record(d, keys);
                    // What it grows from stays then, and what is new becomes a region of its own.
                    if enter(&mut guard, d, job.device, record, &mut leaving) == Entered::Given {
                        fit = Fit::TooLarge;
                    }
                }
                // What it grows from may be too much with it, and what is new do.
                Err(_) if large || job.range != job.gap => {
                    guard.hca.refund(d, job.range.len());
                    fit = Fit::TooLarge;
                }
                Err(errno) => {
                    guard.hca.refund(d, job.range.len());
                    let life = job.refused(errno);
                    refuse(&mut guard, d, job.gap, life);
                }
            }
            guard.show_regions();
            drop(guard);
            leaving.deregister();
            mark.end();
            if fit == Fit::Yes {
                progress::done(job.gap.len());
            }
        }
    }
    fit
}

/// Has the kernel register `job`, which is what `how` does.
pub(super) fn run(
    guard: Guard,
    d: DomainId,
    job: &Job,
    how: impl FnOnce(Device, PageRange, Access) -> Result<Mr>,
) -> Finished<Result<Mr>, work::InDomain> {
    let begun = work::begin_in(d, guard, job.range, |guard| {
        guard.hca.charge(d, job.range.len());
    });
    let ran = begun.run(|| how(job.device, job.range, job.access));
    ran.finish()
}

impl Job {
    /// What is kept of it in domain `d`.
    fn record(&self, d: DomainId, keys: Mr) -> Record {
        let mut record = Record::new(self.range, d, self.access, Life::Live).with(keys);
        record.of_others = self.of_others;
        record.cut = self.cut;
        record.growth = self.growth;
        record.ahead = self.ahead;
        record
    }

    /// What is kept of it where the kernel has refused it for `errno`.
    fn refused(&self, errno: Errno) -> Life {
        if is_limit(errno) && limits::memlock_now().is_some() {
            counters::count(Counter::HcaLimited);
            return Life::Refused(0);
        }
        counters::count(Counter::HcaRefused);
        log::info!(
            "registering {:?} with access {:#x} refused: {errno}",
            self.range,
            self.access.bits()
        );
        Life::Refused(errno.byte())
    }
}

/// Whether the budget has room for `bytes` more, and the device for one more region.
pub(super) fn fits(state: &State, d: DomainId, bytes: u64, rights: Access) -> bool {
    let Some(domain) = state.hca.domain(d) else {
        return false;
    };
    if domain.many() >= domain.most_regions {
        return false;
    }
    // RLIMIT_MEMLOCK counts a page for each region that it is in; memory itself does not.
    let there = if limits::still_binds() {
        state.hca.bytes
    } else {
        domain.bytes
    };
    rights.has(Access::ON_DEMAND) || there.saturating_add(bytes) <= state.total
}

/// One region for all addresses, now and for ever, where the device can page on demand
/// whatever it is asked for.
pub fn register_implicitly(d: DomainId) {
    let Some((device, access)) = lock().and_then(|state| {
        let domain = state.hca.alive(d)?;
        Some((domain.device?, domain.access))
    }) else {
        return;
    };
    let outcome = register_all_addresses(device, access);
    let (Ok(keys), Some(all)) = (outcome, PageRange::new(0, USER_END)) else {
        return;
    };
    counters::count(Counter::Registrations);
    let Some(mut guard) = lock() else {
        return deregister(device.deregistration(keys.handle));
    };
    let state = &mut *guard;
    let record = Record::new(all, d, access, Life::Live).with(keys);
    let ready = state.hca_ready(d);
    let node = ready.then(|| publish(state, d, record)).flatten();
    if let (Some(node), Some(regions)) = (node, state.hca.regions_mut(d)) {
        regions.add(node);
        if let Some(domain) = state.hca.domain_mut(d) {
            domain.implicit = true;
        }
    }
}

/// Has the kernel register all addresses, to be paged on demand.
pub(super) fn register_all_addresses(device: Device, access: Access) -> Result<Mr> {
    let reached = reaching::reach(&device)?;
    reached.channel().reg_mr(device.pd, 0, u64::MAX, access)
}

/// The regions that make up `hull` become one. Whether they did.
pub fn join_in(d: DomainId, hull: PageRange) -> bool {
    let Some(guard) = lock_for(&[Some(hull)]) else {
        return false;
    };
    let first = guard.hca.next_from(d, hull.start());
    let alike = guard.hca.alive(d).and_then(|x| x.device).zip(
        first
            .filter(|(n, r)| n.range.start() == hull.start() && r.life == Life::Live)
            .map(|(_, r)| r.access),
    );
    let Some((device, access)) = alike else {
        return false;
    };
    if !fits(&guard, d, hull.len(), access) || in_the_way_of(&guard, hull) {
        return false;
    }
    let job = Job {
        range: hull,
        gap: hull,
        access,
        of_others: false,
        cut: false,
        growth: Growth::PROVEN,
        ahead: ahead_in(&guard, d, hull),
        device,
    };
    let outcome = run(guard, d, &job, register);
    let mut leaving = Deregistrations::new();
    let (done, mark) = take_over(d, &job, outcome, |_| true, &mut leaving);
    leaving.deregister();
    mark.end();
    done == Replaced::Yes
}

/// What came of having one region in the place of others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Replaced {
    /// The new region is there.
    Yes,
    /// The region was not wanted any more.
    No,
    /// The kernel refused it.
    Refused,
}

/// The region of `job` was registered, or refused: it takes the place of those in its range, if
/// `wanted` says so under the lock. What goes, be it the new one, is put into `leaving`.
pub(super) fn take_over(
    d: DomainId,
    job: &Job,
    outcome: Finished<Result<Mr>, work::InDomain>,
    wanted: impl Fn(&State) -> bool,
    leaving: &mut Deregistrations,
) -> (Replaced, work::Mark<work::InDomain>) {
    let (held, outcome, mark) = match outcome {
        Finished::Alone(mut guard, Ok(keys), mark) if wanted(&guard) => {
            let entered = enter(&mut guard, d, job.device, job.record(d, keys), leaving);
            guard.show_regions();
            let done = match entered {
                Entered::Given => Replaced::No,
                Entered::Yes | Entered::No => Replaced::Yes,
            };
            return (done, mark);
        }
        Finished::Alone(guard, outcome, mark) | Finished::Overtaken(guard, outcome, mark) => {
            (Some(guard), outcome, mark)
        }
        Finished::Unlocked(outcome, mark) => (None, outcome, mark),
    };
    leaving.add_if_there(job.device, outcome);
    match held {
        Some(mut guard) => {
            guard.hca.refund(d, job.range.len());
            guard.show_regions();
        }
        None => owed::charged(d, job.range.len()),
    }
    let done = match outcome {
        Ok(_) => Replaced::No,
        Err(_) => Replaced::Refused,
    };
    (done, mark)
}

/// What the regions in `hull` have [`Record::ahead`].
fn ahead_in(state: &State, d: DomainId, hull: PageRange) -> u64 {
    let (mut at, mut ahead) = (hull.start(), 0u64);
    while let Some((node, record)) = state.hca.next_from(d, at) {
        if node.range.start() >= hull.end() {
            break;
        }
        ahead = ahead.saturating_add(record.ahead);
        at = node.range.end();
    }
    ahead
}

/// Has the kernel register `range`. Without the lock.
pub fn register(device: Device, range: PageRange, access: Access) -> Result<Mr> {
    let outcome = register_uncounted(device, range, access);
    if outcome.is_ok() {
        counters::count(Counter::Registrations);
    }
    outcome
}

/// As [`register`], for what takes the place of a region that is the same. Errors: the kernel's;
/// EBADF: this thread has no descriptor of the device.
pub(super) fn register_uncounted(device: Device, range: PageRange, access: Access) -> Result<Mr> {
    let start = arch::ticks();
    let (at, len) = (range.start(), range.len());
    let reached = reaching::reach(&device);
    let outcome = reached.and_then(|to| to.channel().reg_mr(device.pd, at, len, access));
    spent(Counter::HcaNanos, start);
    outcome
}
