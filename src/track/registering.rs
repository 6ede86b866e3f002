//! Carrying out what is to be registered with adapters, and taking it back. As with
//! pins, the kernel works without the lock being held: a flight says what memory is
//! being worked on, and others wait.
//!
//! The order, for memory that goes: what survives of a region is registered anew →
//! published → the region leaves its domain and the directory → it is deregistered,
//! or *retired* while the application still has its key → the application's call.

use super::real::spent;
use super::turns::{in_the_way_of, lock_for, postpone, stand_clear, Whose};
use super::waiting::{self, Backing, Reach, Verdict};
use super::{flight, lock, notes, progress, subscribers, State};
use crate::arch;
use crate::base::{counters, phase, settings};
use crate::limits;
use crate::policy::{self, Registering};
use crate::registrar::hca::records::{Life, Record};
use crate::registrar::hca::regions::Node;
use crate::registrar::hca::{numbers, Device, Grave, ALL_REMOTE, CHUNK, LAZY_CHUNK};
use crate::registrar::pin::is_limit;
use crate::sys::{Result, Undisturbed};
use crate::uverbs::Mr;
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;
use regall_directory::layout::Counter;
use regall_directory::vocab::{Access, Attr, Column, Kind, Reason};
use regall_directory::writer::{Region, SlotRef};

pub use crate::registrar::hca::active;

/// A region that changes each time that it was waited for is worked on all the same
/// after this many.
const TRIES: usize = 8;

/// One region to be registered.
#[derive(Clone, Copy)]
struct Job {
    /// All of the region. Memory of one entry of the ledger that nothing holds, and smaller regions
    /// before it that become one with it.
    range: PageRange,
    /// What of it is new.
    gap: PageRange,
    access: u32,
    /// See [`Record::of_file`].
    of_file: bool,
    /// See [`Record::ahead`].
    ahead: u64,
    device: Device,
}

/// What comes next in a domain.
enum Step {
    /// This is to be registered.
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

/// Registers all of `bytes` in domain `d`, which the application asks for, and what is
/// resident near them.
#[cold]
pub fn ask(d: usize, bytes: PageRange) {
    let flight = super::begin_work();
    waiting::refresh();
    let chunk = lock().map(|guard| waiting::chunk_of(&guard, bytes));
    settle_in(
        d,
        chunk.unwrap_or(bytes),
        Whose::Foreign,
        Reach::Asked(bytes),
    );
    settle_in(d, waiting::around(bytes), Whose::Read, Reach::Resident);
    super::end(flight);
}

/// Whether anything was registered.
fn settle_in(d: usize, range: PageRange, whose: Whose, reach: Reach) -> bool {
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

/// What is to be done next in domain `d`. Ranges that are only to be described are.
fn next_step(
    state: &mut State,
    d: usize,
    rest: PageRange,
    (reach, known): (Reach, Option<PageRange>),
) -> Option<Step> {
    let domain = state.hca.alive(d)?;
    let (on_demand, device, upto) = (domain.on_demand(), domain.device?, domain.upto_rank);
    let (implicit, waits) = (domain.implicit, domain.waits);
    let chunk = if on_demand { LAZY_CHUNK } else { CHUNK };
    let primary = state.hca.primary() == Some(d);
    let scope = settings::config().scope_data;
    loop {
        let (mut job, mut look, mut left_out) = (None, None, None);
        state.ledger.for_each(rest, |piece, entry| {
            match policy::registering(entry.attr, entry.range.len(), on_demand, scope) {
                _ if policy::rank(entry.attr) > upto => (),
                Registering::Leave(column) => {
                    if primary && entry.attr.hca != column {
                        left_out = Some((piece, column));
                        return ControlFlow::Break(());
                    }
                }
                Registering::With(_) if implicit => {
                    if primary && !entry.attr.hca.held() {
                        left_out = Some((piece, Column::YES));
                        return ControlFlow::Break(());
                    }
                }
                Registering::With(writable) => {
                    // A call that read the kernel's list was faster than the one that
                    // mapped this, which then entered it knowing nothing of the region.
                    let said = entry.attr.hca.reason;
                    if primary && matches!(said, Reason::Off | Reason::Untouched) {
                        left_out = state.hca.held_by(d, piece).map(|(p, l)| (p, column_of(l)));
                        if left_out.is_some() {
                            return ControlFlow::Break(());
                        }
                    }
                    let most = if waits { u64::MAX } else { chunk };
                    let mut from = Some(piece);
                    while let Some(gap) = from.and_then(|p| state.hca.first_gap(d, p, most)) {
                        let verdict = if waits {
                            waiting::verdict(state, entry.attr, gap, reach, known)
                        } else {
                            Verdict::Register(gap, 0)
                        };
                        match verdict {
                            Verdict::Register(gap, ahead) => {
                                let of_file =
                                    entry.attr.kind == Kind::File && entry.attr.prot.shared();
                                job = Some((gap, entry.range, writable, of_file, ahead));
                                return ControlFlow::Break(());
                            }
                            Verdict::Look(backing) => {
                                look = Some((gap, backing));
                                return ControlFlow::Break(());
                            }
                            Verdict::Wait if primary && said == Reason::Off => {
                                left_out = Some((gap, Column::no(Reason::Untouched)));
                                return ControlFlow::Break(());
                            }
                            Verdict::Wait => from = piece.after(gap.end()),
                        }
                    }
                }
            }
            ControlFlow::Continue(())
        });
        if !phase::tracking() {
            return None;
        }
        if let Some((piece, column)) = left_out {
            state.update(piece, |_, a| Attr { hca: column, ..a });
            continue;
        }
        if let Some((gap, backing)) = look {
            return Some(Step::Look(gap, backing));
        }
        let (gap, entry, writable, of_file, ahead) = job?;
        let access = state.hca.alive(d)?.access_for(writable);
        let (range, with_them) = with_smaller(state, d, gap, entry, access);
        return Some(Step::Job(Job {
            range,
            gap,
            access,
            of_file,
            ahead: ahead.saturating_add(with_them),
            device,
        }));
    }
}

/// Memory that grows a little at a time would be a region for every step: a new piece
/// takes those before it in that are no larger, so that each byte is registered again
/// no more often than the size has doubled. With what those had [`Record::ahead`].
fn with_smaller(
    state: &State,
    d: usize,
    gap: PageRange,
    entry: PageRange,
    access: u32,
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

/// The HCA column of what is mapped in `range`, where this is the primary domain.
fn say(state: &mut State, range: PageRange, column: Column) {
    state.update(range, |_, a| {
        // What no registrar may have says so itself.
        if policy::excluded(a).is_some() && !column.held() {
            a
        } else {
            Attr { hca: column, ..a }
        }
    });
}

/// Registers `job` and writes down what came of it. Takes the lock that it was found
/// under, so that nobody comes between.
fn carry_out(mut guard: super::lock::Guard, d: usize, job: Job) {
    let state = &mut *guard;
    if !fits(state, d, job.gap.len(), job.access) {
        counters::count(Counter::HcaLimited);
        return refuse(state, d, job.gap, Life::Refused(0));
    }
    state.hca.charge(d, job.range.len());
    let work = work_begins(guard, d, job.range);
    let outcome = register(job.device, job.range, job.access);
    let mut graves = Graves::new();
    let Some(mut guard) = lock() else {
        // Its holder is parked, and does not come on before this thread does.
        if let Ok(keys) = outcome {
            graves.dig(job.device.grave(keys.handle));
        }
        work_ends(work, d, &mut graves);
        return notes::later(job.range);
    };
    let overtaken = flight::overtaken(&guard);
    let state = &mut *guard;
    match outcome {
        _ if overtaken => {
            // Whose memory it is now nobody knows.
            if let Ok(keys) = outcome {
                graves.dig(job.device.grave(keys.handle));
            }
            state.hca.refund(d, job.range.len());
            postpone(job.gap);
        }
        Ok(keys) => enter(state, d, job, keys, &mut graves),
        Err(errno) => {
            state.hca.refund(d, job.range.len());
            let life = if is_limit(errno) && limits::memlock_now().is_some() {
                counters::count(Counter::HcaLimited);
                Life::Refused(0)
            } else {
                counters::count(Counter::HcaRefused);
                log::info!(
                    "registering {:?} with access {:#x} refused: {errno}",
                    job.range,
                    job.access
                );
                Life::Refused(errno.byte())
            };
            refuse(state, d, job.gap, life);
        }
    }
    state.show_regions();
    drop(guard);
    work_ends(work, d, &mut graves);
    progress::done(job.gap.len());
}

/// This thread begins to register or take out `range` in domain `d`, without the lock.
fn work_begins(guard: super::lock::Guard, d: usize, range: PageRange) -> Undisturbed {
    let mut guard = guard;
    let undisturbed = Undisturbed::new();
    guard.hca.work(d, 1);
    flight::pin_begins(&guard, range);
    undisturbed
}

/// It is done, but for what the kernel is to forget.
fn work_ends(undisturbed: Undisturbed, d: usize, graves: &mut Graves) {
    graves.deregister();
    flight::pin_ends();
    if let Some(mut guard) = lock() {
        guard.hca.work(d, -1);
    }
    drop(undisturbed);
}

/// Whether the budget has room for `bytes` more, and the device for one more region.
fn fits(state: &State, d: usize, bytes: u64, rights: u32) -> bool {
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
    rights & Access::ON_DEMAND != 0 || there.saturating_add(bytes) <= state.total
}

/// One region for all addresses, now and for ever, where the device can page on demand
/// whatever it is asked for.
pub fn register_implicitly(d: usize) {
    let Some((device, access)) = lock().and_then(|state| {
        let domain = state.hca.alive(d)?;
        Some((domain.device?, domain.access))
    }) else {
        return;
    };
    let outcome = device.channel.reg_mr(device.pd, 0, u64::MAX, access);
    let (Ok(keys), Some(all)) = (outcome, PageRange::new(0, super::USER_END)) else {
        return;
    };
    counters::count(Counter::Registrations);
    let Some(mut guard) = lock() else {
        return deregister(device.grave(keys.handle));
    };
    let state = &mut *guard;
    let record = Record::new(all, d as u32, access, Life::Live).with(keys);
    let ready = state.hca_ready(d);
    let node = ready.then(|| publish(state, d, record)).flatten();
    if let (Some(node), Some(regions)) = (node, state.hca.regions_mut(d)) {
        regions.add(node);
        if let Some(domain) = state.hca.domain_mut(d) {
            domain.implicit = true;
        }
    }
}

/// The regions that make up `hull` become one. Whether they did.
pub fn join(d: usize, hull: PageRange) -> bool {
    let flight = super::begin_work();
    let joined = join_in(d, hull);
    super::end(flight);
    joined
}

fn join_in(d: usize, hull: PageRange) -> bool {
    let Some(mut guard) = lock_for(&[Some(hull)]) else {
        return false;
    };
    let state = &mut *guard;
    let alike = state.hca.alive(d).and_then(|x| x.device).zip(
        state
            .hca
            .next_from(d, hull.start())
            .filter(|(n, r)| n.range.start() == hull.start() && r.life == Life::Live)
            .map(|(_, r)| r.access),
    );
    let Some((device, access)) = alike else {
        return false;
    };
    if !fits(state, d, hull.len(), access) || in_the_way_of(&guard, hull) {
        return false;
    }
    let ahead = ahead_in(&guard, d, hull);
    guard.hca.charge(d, hull.len());
    let work = work_begins(guard, d, hull);
    let job = Job {
        range: hull,
        gap: hull,
        access,
        of_file: false,
        ahead,
        device,
    };
    let keys = register(device, hull, access);
    let mut graves = Graves::new();
    let mut done = false;
    if let Some(mut guard) = lock() {
        let overtaken = flight::overtaken(&guard);
        let state = &mut *guard;
        match keys {
            Ok(keys) if overtaken => {
                graves.dig(device.grave(keys.handle));
                state.hca.refund(d, hull.len());
            }
            Ok(keys) => {
                enter(state, d, job, keys, &mut graves);
                done = true;
            }
            Err(_) => state.hca.refund(d, hull.len()),
        }
        state.show_regions();
    } else if let Ok(keys) = keys {
        graves.dig(device.grave(keys.handle));
    }
    work_ends(work, d, &mut graves);
    done
}

/// What the regions in `hull` have [`Record::ahead`].
fn ahead_in(state: &State, d: usize, hull: PageRange) -> u64 {
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

/// Takes everything out of domain `d`, which is closing.
pub fn clear(d: usize) {
    loop {
        let mut graves = Graves::new();
        {
            let Some(mut guard) = lock() else {
                return;
            };
            let state = &mut *guard;
            while let Some((node, _)) = state.hca.next_from(d, 0) {
                leave(state, d, node, false, &mut graves);
                if graves.is_full() {
                    break;
                }
            }
            state.show_regions();
        }
        if graves.many == 0 {
            return;
        }
        graves.deregister();
    }
}

/// The HCA column tells of another domain from now on, or of none.
pub fn new_primary(state: &mut State) {
    let (primary, all) = (state.hca.primary(), PageRange::new(0, super::USER_END));
    if let Some(all) = all {
        state.update(all, |_, a| policy::unregistered(a));
        if let Some(d) = primary.filter(|d| state.hca.alive(*d).is_some_and(|d| d.waits)) {
            // What has a region says so below, and so does what is left out, when it is
            // settled.
            waiting::waits(state, d, all);
        }
    }
    let mut from = 0;
    while let Some(node) = primary.and_then(|d| state.hca.next_from(d, from)) {
        let (node, life) = (node.0, node.1.life);
        from = node.range.end();
        state.ready();
        say(state, node.range, column_of(life));
    }
    state.show_regions();
}

/// Lets go of everything that is not lent: the application's own registration has
/// failed, and what ours hold counts against its limit. Whether there was anything.
#[cold]
#[inline(never)]
pub fn shed() -> bool {
    let mut any = false;
    let flight = super::begin_work();
    for d in numbers() {
        let mut from = 0;
        loop {
            let Some(mut guard) = lock() else {
                break;
            };
            let state = &mut *guard;
            let Some((node, record)) = state.hca.next_from(d, from) else {
                break;
            };
            from = node.range.end();
            let (life, lent) = (record.life, record.borrowers != 0);
            if life != Life::Live || lent || in_the_way_of(&guard, node.range) {
                continue;
            }
            let state = &mut *guard;
            let mut graves = Graves::new();
            leave(state, d, node, false, &mut graves);
            refuse(state, d, node.range, Life::Refused(0));
            state.show_regions();
            drop(guard);
            graves.deregister();
            any = true;
        }
    }
    super::end(flight);
    any
}

/// Takes back what [`shed`] did: it was not our regions that the registration failed for.
#[cold]
#[inline(never)]
pub fn readmit() {
    let flight = super::begin_work();
    for d in numbers() {
        let mut from = 0;
        while let Some(mut guard) = lock() {
            let state = &mut *guard;
            let Some((node, record)) = state.hca.next_from(d, from) else {
                break;
            };
            from = node.range.end();
            if record.life == Life::Refused(0) {
                let mut graves = Graves::new();
                leave(state, d, node, false, &mut graves);
            }
        }
    }
    if let Some(all) = PageRange::new(0, super::USER_END) {
        settle(all, Whose::Foreign, Reach::Resident);
    }
    super::end(flight);
}

/// Has the kernel forget what a ledger that was built anew knows nothing of any more.
pub fn bury_orphans() {
    while let Some(mut guard) = lock() {
        let orphan = guard.hca.orphan();
        drop(guard);
        match orphan {
            Some(grave) => deregister(grave),
            None => return,
        }
    }
}

/// The region is there: it takes the place of those that it took in.
fn enter(state: &mut State, d: usize, job: Job, keys: Mr, graves: &mut Graves) {
    let mut record = Record::new(job.range, d as u32, job.access, Life::Live).with(keys);
    record.of_file = job.of_file;
    record.ahead = job.ahead;
    // Not on the way out (a PD that is being freed at this moment).
    if state.hca.alive(d).is_none() || !state.hca_ready(d) {
        graves.dig(job.device.grave(keys.handle));
        state.hca.refund(d, job.range.len());
        return;
    }
    // Published before what it replaces goes.
    let Some(node) = publish(state, d, record) else {
        graves.dig(job.device.grave(keys.handle));
        state.hca.refund(d, job.range.len());
        return;
    };
    let first = state.hca.next_from(d, job.range.start());
    let first = first
        .map(|(n, _)| n)
        .filter(|n| n.range.start() < job.range.end());
    let mut old = first;
    match (state.hca.regions_mut(d), first) {
        (Some(regions), Some(first)) => regions.split(first.range.start(), [Some(node), None]),
        (Some(regions), None) => regions.add(node),
        (None, _) => return,
    }
    while let Some(gone) = old {
        let next = state.hca.following(d, gone.range.end(), node);
        leave(state, d, gone, Some(gone) == first, graves);
        old = next;
    }
    if state.hca.primary() == Some(d) {
        say(state, job.range, Column::YES);
    }
}

/// Keeps `record` and shows it to others.
fn publish(state: &mut State, d: usize, record: Record) -> Option<Node> {
    let n = state.hca.records.add(record)?;
    state.hca.ahead = state.hca.ahead.saturating_add(record.ahead);
    if record.life == Life::Live {
        let pd = state.hca.domain(d)?.device?.pd;
        let generation = state.generation();
        // What peers may not do they get no key for.
        let beyond = record.access & ALL_REMOTE & !policy::remote_access(settings::config().access);
        let mask = if beyond == 0 {
            u64::MAX
        } else {
            u64::from(u32::MAX)
        };
        let region = Region {
            domain: (d as u64 + 1) | (u64::from(pd) << 32),
            keys: record.keys() & mask,
        };
        let slot = state.writer.publish_region(
            generation,
            record.range,
            record.access,
            u64::from(n),
            region,
        );
        if let Some(kept) = state.hca.records.get_mut(n) {
            kept.slot = slot.map_or(0, |s| s.get().get());
        }
    }
    Some(Node {
        range: record.range,
        keys: record.keys(),
        record: n,
    })
}

/// `node` leaves its domain and the directory.
fn leave(state: &mut State, d: usize, node: Node, replaced: bool, graves: &mut Graves) {
    if let (Some(regions), false) = (state.hca.regions_mut(d), replaced) {
        regions.remove(node.range);
    }
    retract_slot(state, node.record);
    if let Some(grave) = state.hca.retire(node.record) {
        graves.dig(grave);
    }
}

fn retract_slot(state: &mut State, record: u32) {
    let Some(record) = state.hca.records.get_mut(record) else {
        return;
    };
    let slot = core::mem::take(&mut record.slot);
    match core::num::NonZeroU32::new(slot) {
        Some(slot) => state.writer.retire(SlotRef::from_raw(slot)),
        None if record.life == Life::Live => state.writer.unpublished_gone(),
        None => (),
    }
}

/// Nothing holds `gap`, and for what reason.
fn refuse(state: &mut State, d: usize, gap: PageRange, life: Life) {
    if state.hca.alive(d).is_none() || !state.hca_ready(d) {
        return;
    }
    let record = Record::new(gap, d as u32, 0, life);
    let Some(node) = publish(state, d, record) else {
        return;
    };
    if let Some(regions) = state.hca.regions_mut(d) {
        regions.add(node);
    }
    if let (Life::Refused(errno), true) = (life, state.hca.primary() == Some(d)) {
        say(state, gap, refusal(errno));
    }
}

fn register(device: Device, range: PageRange, access: u32) -> Result<Mr> {
    let start = arch::ticks();
    let outcome = device
        .channel
        .reg_mr(device.pd, range.start(), range.len(), access);
    spent(Counter::HcaNanos, start);
    if outcome.is_ok() {
        counters::count(Counter::Registrations);
    }
    outcome
}

/// Regions that the kernel is to forget, as soon as the lock is free.
struct Graves {
    places: [Option<Grave>; 24],
    many: usize,
}

impl Graves {
    const fn new() -> Self {
        Self {
            places: [None; 24],
            many: 0,
        }
    }

    fn dig(&mut self, grave: Grave) {
        match self.places.get_mut(self.many) {
            Some(place) => {
                *place = Some(grave);
                self.many += 1;
            }
            // Merging takes in one region for every doubling of at most a chunk.
            None => deregister(grave),
        }
    }

    fn is_full(&self) -> bool {
        self.many == self.places.len()
    }

    fn deregister(&mut self) {
        for place in &mut self.places {
            if let Some(grave) = place.take() {
                deregister(grave);
            }
        }
        self.many = 0;
    }
}

/// What an attempt to deregister fails for if the region is gone already; for anything
/// else it is tried again, since what stays is in the way of the application.
const GONE: [i32; 4] = [libc::ENOENT, libc::EBADF, libc::ENODEV, libc::EIO];

/// Has the kernel forget a region. Called without the lock.
pub fn deregister(grave: Grave) {
    let start = arch::ticks();
    let mut outcome = grave.channel.dereg_mr(grave.handle);
    for _ in 0..TRIES {
        match outcome {
            Err(errno) if !GONE.contains(&errno.0) => {
                outcome = grave.channel.dereg_mr(grave.handle);
            }
            _ => break,
        }
    }
    if let Err(errno) = outcome {
        log::info!("deregistering region {:#x}: {errno}", grave.handle);
    }
    counters::count(Counter::Deregistrations);
    spent(Counter::HcaNanos, start);
}

/// Takes `range` out of every domain: called before memory goes, or becomes other
/// memory, by a call that is about `range` and has claimed it.
#[inline]
pub fn retract(range: PageRange) {
    if active() {
        retract_from(range, true);
    }
}

/// As [`retract`], where the addresses stay and have other pages or rights: what an
/// adapter pages on demand follows by itself.
#[inline]
pub fn refresh(range: PageRange) {
    subscribers::pages_replaced(range);
    if active() {
        retract_from(range, false);
    }
}

#[cold]
#[inline(never)]
fn retract_from(range: PageRange, on_demand: bool) {
    for d in numbers() {
        let Some(guard) = lock() else {
            return notes::spoiled(range);
        };
        let domain = guard.hca.domain(d).filter(|d| !d.implicit);
        let concerned = domain.is_some_and(|d| on_demand || !d.on_demand());
        drop(guard);
        if !concerned {
            continue;
        }
        let mut rest = Some(range);
        while let Some(todo) = rest {
            rest = retract_one(d, todo);
        }
    }
}

/// Takes the first region of domain `d` that touches `todo` out; what is left to do.
fn retract_one(d: usize, todo: PageRange) -> Option<PageRange> {
    let touched = |state: &State| {
        let (node, record) = state.hca.next_from(d, todo.start())?;
        node.range.intersection(todo)?;
        Some((node, *record))
    };
    let Some(mut guard) = lock() else {
        notes::spoiled(todo);
        return None;
    };
    let (mut node, mut record) = touched(&guard)?;
    for _ in 0..TRIES {
        if !flight::in_the_way(&guard, node.range, false) {
            break;
        }
        drop(guard);
        let Some(free) = lock_for(&[Some(node.range)]) else {
            notes::spoiled(todo);
            return None;
        };
        guard = free;
        (node, record) = touched(&guard)?;
    }
    flight::overtake_pins(&guard, node.range);
    // What another call is about it will see to itself.
    let parts = [
        node.range.before(todo.start()),
        node.range.after(todo.end()),
    ];
    let sound = record.life != Life::Spoiled;
    let survivors = parts.map(|part| part.filter(|p| sound && !in_the_way_of(&guard, *p)));
    // What is closing is emptied by who closes it.
    let device = guard.hca.alive(d)?.device?;
    let live = record.life == Life::Live;
    if live {
        for part in survivors.iter().flatten() {
            guard.hca.charge(d, part.len());
        }
    }
    let work = work_begins(guard, d, node.range);
    let registered = survivors.map(|part| {
        let part = part?;
        let keys = match record.life {
            Life::Live => register(device, part, record.access).map_err(|e| e.byte()),
            Life::Refused(errno) => Err(errno),
            _ => return None,
        };
        Some((part, keys))
    });
    let mut graves = Graves::new();
    let Some(mut guard) = lock() else {
        // As in `carry_out`. The region stays until the range is read anew.
        for keys in registered.iter().flatten().filter_map(|(_, k)| k.ok()) {
            graves.dig(device.grave(keys.handle));
        }
        work_ends(work, d, &mut graves);
        notes::spoiled(todo);
        return None;
    };
    let overtaken = flight::overtaken(&guard);
    {
        let state = &mut *guard;
        let still = state.hca.next_from(d, node.range.start());
        if still.is_some_and(|(n, _)| n == node) {
            replace(state, d, node, &registered, overtaken, &record, &mut graves);
        } else {
            // Whoever went on meanwhile has done this, too.
            drop_survivors(state, d, device, &registered, &mut graves);
        }
        if state.hca.primary() == Some(d) {
            let gone = node.range.intersection(todo);
            let left = parts.into_iter().filter(|p| !survivors.contains(p));
            for range in left.chain([gone]).flatten() {
                say(state, range, Column::no(Reason::Off));
            }
        }
        state.show_regions();
    }
    drop(guard);
    work_ends(work, d, &mut graves);
    // The other call may be one that leaves its part as it is.
    let left = |p: &Option<PageRange>| overtaken || !survivors.contains(p);
    for part in parts.into_iter().filter(left).flatten() {
        postpone(part);
    }
    todo.after(node.range.end())
}

/// What is left of a region on both sides of a hole, with its keys or why there are none.
type Survivors = [Option<(PageRange, core::result::Result<Mr, u8>)>; 2];

/// They are not wanted after all.
fn drop_survivors(
    state: &mut State,
    d: usize,
    device: Device,
    survivors: &Survivors,
    graves: &mut Graves,
) {
    for (range, outcome) in survivors.iter().flatten() {
        if let Ok(keys) = outcome {
            graves.dig(device.grave(keys.handle));
            state.hca.refund(d, range.len());
        }
    }
}

/// The survivors of `node`, with their keys or why there are none, take its place.
fn replace(
    state: &mut State,
    d: usize,
    node: Node,
    survivors: &Survivors,
    overtaken: bool,
    record: &Record,
    graves: &mut Graves,
) {
    let mut nodes = [None; 2];
    if overtaken {
        if let Some(device) = state.hca.domain(d).and_then(|x| x.device) {
            drop_survivors(state, d, device, survivors, graves);
        }
    }
    for (place, survivor) in nodes.iter_mut().zip(survivors) {
        let Some((range, outcome)) = survivor.as_ref().filter(|_| !overtaken) else {
            continue;
        };
        let mut new = Record::new(*range, d as u32, record.access, Life::Live);
        new.of_file = record.of_file;
        new.ahead = record.ahead_of(range.len());
        match outcome {
            Ok(keys) => new = new.with(*keys),
            Err(errno) => {
                new.life = Life::Refused(*errno);
                if record.life == Life::Live {
                    state.hca.refund(d, range.len());
                    counters::count(Counter::HcaRefused);
                    if state.hca.primary() == Some(d) {
                        say(state, *range, refusal(*errno));
                    }
                }
            }
        }
        if state.hca_ready(d) {
            *place = publish(state, d, new);
        }
    }
    if let Some(regions) = state.hca.regions_mut(d) {
        regions.split(node.range.start(), nodes);
    }
    retract_slot(state, node.record);
    if let Some(grave) = state.hca.retire(node.record) {
        graves.dig(grave);
    }
}

/// The column for memory in a domain's map.
fn column_of(life: Life) -> Column {
    match life {
        Life::Refused(errno) => refusal(errno),
        _ => Column::YES,
    }
}

/// The column for memory that is [`Life::Refused`].
fn refusal(errno: u8) -> Column {
    match errno {
        0 => Column::no(Reason::Limit),
        errno => Column::refused(errno),
    }
}

/// Takes out what is registered in `range` and is not mapped any more, or not as it
/// was: for changes that were not seen as they happened.
#[inline]
pub fn reconcile(range: PageRange) {
    if active() {
        reconcile_slowly(range);
    }
}

#[cold]
#[inline(never)]
fn reconcile_slowly(range: PageRange) {
    for d in numbers() {
        let mut from = range.start();
        loop {
            let Some(guard) = lock() else {
                return;
            };
            let Some((node, record)) = guard.hca.next_from(d, from) else {
                break;
            };
            if node.range.intersection(range).is_none() {
                break;
            }
            from = node.range.end();
            let (node, record) = (node, *record);
            let right = agrees(&guard, d, node.range, &record) || in_the_way_of(&guard, node.range);
            drop(guard);
            if !right {
                retract_from(node.range, true);
                postpone(node.range);
            }
        }
    }
}

/// Whether all of `range` is mapped and would be registered as `record` is.
fn agrees(state: &State, d: usize, range: PageRange, record: &Record) -> bool {
    let Some(domain) = state.hca.alive(d).filter(|d| !d.implicit) else {
        return true;
    };
    if record.life == Life::Spoiled {
        return false;
    }
    let (mut upto, mut same) = (range.start(), true);
    let scope = settings::config().scope_data;
    state.ledger.for_each(range, |piece, entry| {
        same &= piece.start() == upto
            && match policy::registering(entry.attr, entry.range.len(), domain.on_demand(), scope) {
                Registering::Leave(_) => false,
                Registering::With(writable) => {
                    record.life != Life::Live || domain.access_for(writable) == record.access
                }
            };
        upto = piece.end();
        if same {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    });
    same && upto == range.end()
}
