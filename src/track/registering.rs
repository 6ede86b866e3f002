//! Carrying out what is to be registered with adapters. As with pins, the kernel works without
//! the lock being held ([`super::work`]): a flight says what memory is being worked on, and others
//! wait.

use super::deregistering::{deregister, Deregistrations};
use super::entering::{column_of, enter, publish, refuse};
use super::lock::Guard;
use super::real::spent;
use super::turns::{in_the_way_of, lock_for, postpone, stand_clear, Whose};
use super::waiting::{self, Backing, Reach, Verdict};
use super::work::{self, Finished};
use super::{lock, notes, owed, progress, State, USER_END};
use crate::arch;
use crate::base::{counters, phase, settings};
use crate::ledger::Entry;
use crate::limits;
use crate::policy::{self, Registering};
use crate::registrar::hca::records::{Life, Record};
use crate::registrar::hca::{numbers, Device, Domain, DomainId, CHUNK, LAZY_CHUNK};
use crate::registrar::pin::is_limit;
use crate::sys::{Errno, Result};
use crate::uverbs::Mr;
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;
use regall_directory::layout::Counter;
use regall_directory::vocab::{Access, Attr, Column, Flags, Reason};

pub use crate::registrar::hca::active;

/// One region to be registered.
#[derive(Clone, Copy)]
pub(super) struct Job {
    /// All of the region. Memory of one entry of the ledger that nothing holds, and smaller regions
    /// before it that become one with it.
    pub range: PageRange,
    /// What of it is new.
    pub gap: PageRange,
    /// With what access.
    pub access: Access,
    /// See [`Record::shared`].
    pub shared: bool,
    /// See [`Record::ahead`].
    pub ahead: u64,
    /// The device that it is registered with.
    pub device: Device,
}

/// What comes next in a domain.
enum Step {
    /// There is something to be registered.
    Job(Job),
    /// What of this is resident is to be seen.
    Look(PageRange, Backing),
}

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
    let (mut any, mut known) = (false, None);
    while !clear.is_done() {
        let Some(mut guard) = lock() else {
            notes::later(clear.rest());
            break;
        };
        let job = match next_step(&mut guard, d, clear.rest(), (reach, known)) {
            None => break,
            Some(Step::Job(job)) => job,
            Some(Step::Look(gap, backing)) => {
                drop(guard);
                known = waiting::resident(gap, backing);
                let upto = known.map_or(gap.end(), |k| k.start());
                if let (Some(untouched), Some(mut guard)) = (gap.before(upto), lock()) {
                    waiting::waits(&mut guard, d, untouched);
                }
                clear.pass(upto);
                continue;
            }
        };
        let Some(guard) = clear.of(guard, job.range) else {
            continue;
        };
        carry_out(guard, d, job);
        clear.pass(job.gap.end());
        any = true;
    }
    any
}

/// What is known of a domain while the next step in it is looked for.
struct Search<'a> {
    state: &'a State,
    d: DomainId,
    on_demand: bool,
    /// The domain has one region for all addresses.
    implicit: bool,
    /// See [`super::waiting`].
    waits: bool,
    /// The HCA column is about it.
    primary: bool,
    /// Nothing that comes later in the order of a budget.
    upto: u8,
    reach: Reach,
    /// What was just seen to be resident.
    known: Option<PageRange>,
}

/// What is to be done with a piece of memory.
enum Found {
    /// The HCA column of a range says something else from now on.
    Say(PageRange, Column),
    Look(PageRange, Backing),
    /// A gap of the entry, which may be written to or not, is to be registered.
    Register {
        gap: PageRange,
        entry: PageRange,
        writable: bool,
        shared: bool,
        ahead: u64,
    },
}

impl<'a> Search<'a> {
    fn of(
        state: &'a State,
        d: DomainId,
        domain: &Domain,
        (reach, known): (Reach, Option<PageRange>),
    ) -> Self {
        Self {
            state,
            d,
            on_demand: domain.on_demand(),
            implicit: domain.implicit,
            waits: domain.waits,
            primary: state.hca.primary() == Some(d),
            upto: domain.upto_rank,
            reach,
            known,
        }
    }

    /// The first thing to do in `rest`.
    fn first(&self, rest: PageRange) -> Option<Found> {
        let mut found = None;
        self.state.ledger.for_each(rest, |piece, entry| {
            found = self.of_piece(piece, entry);
            match found {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        found
    }

    fn of_piece(&self, piece: PageRange, entry: &Entry) -> Option<Found> {
        let attr = entry.attr;
        if policy::rank(attr) > self.upto {
            return None;
        }
        let scope = settings::config().scope_data;
        match policy::registering(attr, entry.range.len(), self.on_demand, scope) {
            Registering::Leave(column) => {
                (self.primary && attr.hca != column).then_some(Found::Say(piece, column))
            }
            Registering::With(_) if self.implicit => {
                (self.primary && !attr.hca.held()).then_some(Found::Say(piece, Column::YES))
            }
            Registering::With(writable) => self.gap_in(piece, entry, writable),
        }
    }

    fn gap_in(&self, piece: PageRange, entry: &Entry, writable: bool) -> Option<Found> {
        let (attr, hca) = (entry.attr, &self.state.hca);
        // A call that read the kernel's list was faster than the one that
        // mapped this, which then entered it knowing nothing of the region.
        let said = attr.hca.reason;
        if self.primary && matches!(said, Reason::Off | Reason::Untouched) {
            if let Some((part, life)) = hca.held_by(self.d, piece) {
                return Some(Found::Say(part, column_of(life)));
            }
        }
        let chunk = if self.on_demand { LAZY_CHUNK } else { CHUNK };
        let most = if self.waits { u64::MAX } else { chunk };
        let mut from = Some(piece);
        while let Some(gap) = from.and_then(|p| hca.first_gap(self.d, p, most)) {
            let verdict = if self.waits {
                self.verdict(attr, gap)
            } else {
                Verdict::Register(gap, 0)
            };
            match verdict {
                Verdict::Register(gap, ahead) => {
                    return Some(Found::Register {
                        gap,
                        entry: entry.range,
                        writable,
                        shared: attr.prot.shared() && !attr.flags.has(Flags::BACKED),
                        ahead,
                    });
                }
                Verdict::Look(backing) => return Some(Found::Look(gap, backing)),
                Verdict::Wait if self.primary && said == Reason::Off => {
                    return Some(Found::Say(gap, Column::no(Reason::Untouched)));
                }
                Verdict::Wait => from = piece.after(gap.end()),
            }
        }
        None
    }

    /// What is done with `gap` in a domain that waits. Memory that another domain has pinned is
    /// resident: it does not count again, and need not wait. But a file may have been cut there
    /// meanwhile, and its file system be full.
    fn verdict(&self, attr: Attr, gap: PageRange) -> Verdict {
        let pinned = |range| match waiting::may_lack_room(attr) {
            true => (0, 0),
            false => self.state.hca.pinned_elsewhere(self.d, range),
        };
        let (there, first) = pinned(gap);
        let verdict = waiting::verdict(self.state, attr, (gap, there), self.reach, self.known);
        if let Verdict::Register(part, ahead) = verdict {
            let ahead = ahead.min(part.len() - pinned(part).0);
            return Verdict::Register(part, ahead);
        }
        let begins = PageRange::new(gap.start(), gap.start() + first.min(CHUNK));
        begins.map_or(verdict, |part| Verdict::Register(part, 0))
    }
}

/// What is to be done next in domain `d`. Ranges that are only to be described are.
fn next_step(
    state: &mut State,
    d: DomainId,
    rest: PageRange,
    how: (Reach, Option<PageRange>),
) -> Option<Step> {
    let device = state.hca.alive(d)?.device?;
    loop {
        let domain = state.hca.alive(d)?;
        let found = Search::of(state, d, domain, how).first(rest);
        if !phase::tracking() {
            return None;
        }
        match found? {
            Found::Say(piece, column) => {
                state.update(piece, |_, a| Attr { hca: column, ..a });
            }
            Found::Look(gap, backing) => return Some(Step::Look(gap, backing)),
            Found::Register {
                gap,
                entry,
                writable,
                shared,
                ahead,
            } => {
                let access = domain.access_for(writable);
                let (range, with_them) = with_smaller(state, d, gap, entry, access);
                return Some(Step::Job(Job {
                    range,
                    gap,
                    access,
                    shared,
                    ahead: ahead.saturating_add(with_them),
                    device,
                }));
            }
        }
    }
}

/// Memory that grows a little at a time would be a region for every step: a new piece
/// takes those before it in that are no larger, so that each byte is registered again
/// no more often than the size has doubled. With what those had [`Record::ahead`].
fn with_smaller(
    state: &State,
    d: DomainId,
    gap: PageRange,
    entry: PageRange,
    access: Access,
) -> (PageRange, u64) {
    let (mut start, mut ahead) = (gap.start(), 0u64);
    while let Some((node, record)) = state.hca.ending_at(d, start) {
        let len = gap.end() - start;
        let fits = node.range.len() <= len && node.range.len() + len <= CHUNK;
        let same = record.life == Life::Live && record.access == access && record.borrowers == 0;
        if !(fits && same) || node.range.start() < entry.start() {
            break;
        }
        start = node.range.start();
        ahead = ahead.saturating_add(record.ahead);
    }
    (PageRange::new(start, gap.end()).unwrap_or(gap), ahead)
}

/// Registers `job` and writes down what came of it. Takes the lock that it was found
/// under, so that nobody comes between.
fn carry_out(mut guard: Guard, d: DomainId, job: Job) {
    owed::give_back(&mut guard);
    if !fits(&guard, d, job.gap.len(), job.access) {
        counters::count(Counter::HcaLimited);
        return refuse(&mut guard, d, job.gap, Life::Refused(0));
    }
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
            postpone(job.gap);
            guard.show_regions();
            drop(guard);
            leaving.deregister();
            mark.end();
            progress::done(job.gap.len());
        }
        Finished::Alone(mut guard, outcome, mark) => {
            match outcome {
                Ok(keys) => enter(&mut guard, d, job.device, job.record(d, keys), &mut leaving),
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
            progress::done(job.gap.len());
        }
    }
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
        record.shared = self.shared;
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
    let there = if limits::memlock().is_some() {
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
    device.channel.reg_mr(device.pd, 0, u64::MAX, access)
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
        shared: false,
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
            enter(&mut guard, d, job.device, job.record(d, keys), leaving);
            guard.show_regions();
            return (Replaced::Yes, mark);
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

/// As [`register`], for what takes the place of a region that is the same.
pub(super) fn register_uncounted(device: Device, range: PageRange, access: Access) -> Result<Mr> {
    let start = arch::ticks();
    let outcome = device
        .channel
        .reg_mr(device.pd, range.start(), range.len(), access);
    spent(Counter::HcaNanos, start);
    outcome
}
