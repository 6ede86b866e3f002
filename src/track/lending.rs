//! Registrations that the application asks for, served from those that are there.

pub use super::domains::is_paid;

use super::deregistering::deregister;
use super::domains::{adopt_for_look_ups, adopt_when_due};
use super::registering::fits;
use super::{adopting, asking, domains, files, inherited, lock, reaching, revoking, State};
use crate::arena::Arena;
use crate::base::{counters, phase, settings, unseen};
use crate::config::Pin;
use crate::limits;
use crate::policy;
use crate::registrar::hca::candidates::Charge;
use crate::registrar::hca::files::FileId;
use crate::registrar::hca::records::{Life, Record, RecordId};
use crate::registrar::hca::sizes::CHUNK;
use crate::registrar::hca::{numbers, Device, Domain, DomainId, Owner, State as Stage, SERVED};
use crate::sys::{Errno, Result};
use crate::uverbs::{Mr, MrHandle, PdHandle};
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;
use regall_directory::layout::Counter;
use regall_directory::vocab::Access;

/// What the application has got.
#[derive(Clone, Copy, Debug)]
pub struct Loan {
    /// Number of the region's record.
    pub record: RecordId,
    /// The kernel's handle for the region.
    pub handle: MrHandle,
    /// Local key.
    pub lkey: u32,
    /// Remote key.
    pub rkey: u32,
    /// With what access it is registered.
    pub access: Access,
}

/// Returns whether a region that is there can stand for one with this access. Memory that can be
/// written is registered ahead for local writes, too: it is not lent to who did not ask for them.
pub const fn servable(access: Access) -> bool {
    SERVED.has(access) && access.has(Access::LOCAL_WRITE)
}

/// What came of looking for a region.
enum Found<T> {
    Lent(T),
    /// The bytes lie in several regions, which can become one.
    Join(DomainId, PageRange),
    /// Some of the bytes are in no region yet.
    Ask(DomainId),
    /// The protection domain has no domain with this access yet.
    NoDomain,
    /// Only the real call can do it.
    Nothing,
}

/// A region that holds all of `addr..addr + len` with at least `wanted` access, in
/// the protection domain at `owner.pd`, which is number `pd` behind descriptor `fd`, and
/// what `make` makes of it with the shim's memory, under the lock. Errors: the
/// application has to make its own, and if it does, [`is_paid`] is to be told what stands there.
pub fn lend<T>(
    owner: Owner,
    (fd, pd): (i32, PdHandle),
    addr: u64,
    len: u64,
    wanted: Access,
    make: impl Fn(&mut Arena, &Loan) -> Option<T>,
) -> core::result::Result<T, Option<Charge>> {
    if !phase::tracking() || !revoking::lends(wanted) {
        return Err(None);
    }
    if let Some(why) = unseen::reason() {
        counters::count(why);
        return Err(None);
    }
    inherited::bring_in();
    let bytes = PageRange::covering(addr, len).ok_or(None)?;
    let mut asked = false;
    // A new domain, a question, and a join, at the most; and a domain that is known by its file.
    for _ in 0..4 + usize::from(files::any()) {
        match find(owner, bytes, wanted, &make) {
            Found::Lent(made) => {
                counters::count(Counter::Served);
                return Ok(made);
            }
            Found::Join(d, hull) => {
                if !asking::join(d, hull) {
                    return Err(None);
                }
            }
            Found::NoDomain if files::bind(owner, fd, pd) => (),
            Found::NoDomain => adopt_when_due(owner, (fd, pd), wanted, bytes.len())
                .map_err(|(_, charge)| charge)?,
            Found::Ask(d) if !asked => {
                asked = true;
                asking::ask(d, bytes);
                adopting::remind();
            }
            Found::Ask(_) | Found::Nothing => return Err(None),
        }
    }
    Err(None)
}

/// What is asked for.
struct Request {
    owner: Owner,
    bytes: PageRange,
    /// The access of the one region that may be lent: what the application asked for, and what the
    /// user gives peers (REGALL_ACCESS).
    access: Access,
    /// RLIMIT_MEMLOCK binds, and what is lent can't make room: a byte more than was asked for
    /// would be one less for the application's next registration.
    tight: bool,
}

impl Request {
    /// Returns whether `access` is exactly what a region for it has. (Paging on demand is the
    /// user's choice.)
    fn is_met_by(&self, access: Access) -> bool {
        access.without(Access::ON_DEMAND) == self.access
    }
}

/// What a domain has for a request.
enum Offer {
    Lend(Loan),
    /// The bytes lie in several regions, which can become this one.
    Join(PageRange),
    /// Some of the bytes are in no region yet.
    Ask,
    Nothing,
}

fn find<T>(
    owner: Owner,
    bytes: PageRange,
    wanted: Access,
    make: impl Fn(&mut Arena, &Loan) -> Option<T>,
) -> Found<T> {
    let Some(mut guard) = lock() else {
        return Found::Nothing;
    };
    let state = &mut *guard;
    if state.hca.retired > state.total / 10 {
        return Found::Nothing;
    }
    if is_left_to_the_program(state, bytes) {
        counters::count(Counter::UnlentMemory);
        return Found::Nothing;
    }
    let user = policy::remote_access(settings::config().access);
    let request = Request {
        owner,
        bytes,
        // Where nothing is lent a domain is for look-ups.
        access: domains::class_of(wanted).with(user),
        tight: limits::bound(),
    };
    let mut any = false;
    let (mut join, mut ask) = (None, None);
    for d in numbers() {
        let Some(class) = class_for(state, d, &request) else {
            continue;
        };
        any = true;
        match offer(state, d, class, &request) {
            Offer::Lend(loan) => {
                return match hand_out(state, &loan, bytes, make) {
                    Some(made) => Found::Lent(made),
                    None => Found::Nothing,
                };
            }
            Offer::Join(hull) => join = join.or(Some((d, hull))),
            Offer::Ask => ask = ask.or(Some(d)),
            Offer::Nothing => (),
        }
    }
    match (join, ask) {
        (Some((d, hull)), _) => Found::Join(d, hull),
        (None, Some(d)) => Found::Ask(d),
        _ if any => Found::Nothing,
        _ => Found::NoDomain,
    }
}

/// Returns whether some of `bytes` is memory that others may change unseen, or, with
/// REGALL_PIN=auto, memory that is registered exactly as it is asked for: the application's own
/// registration is right.
fn is_left_to_the_program(state: &State, bytes: PageRange) -> bool {
    let auto = settings::config().pin == Pin::Auto;
    let mut any = false;
    state.ledger.for_each(bytes, |_, entry| {
        any = policy::is_of_others(entry.attr) || auto && policy::is_on_request(entry.attr);
        match any {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    any
}

/// The access of domain `d`, if it can serve such requests.
fn class_for(state: &State, d: DomainId, request: &Request) -> Option<Access> {
    let domain = state.hca.alive(d).filter(|x| x.owner == request.owner)?;
    request.is_met_by(domain.access).then_some(domain.access)
}

/// What domain `d`, of the access `class`, has for a request.
fn offer(state: &State, d: DomainId, class: Access, request: &Request) -> Offer {
    let (bytes, tight) = (request.bytes, request.tight);
    if settings::config().keys_exact {
        return Offer::Nothing;
    }
    // What is registered now is lent in the next round.
    if !tight && state.hca.is_waiting(d, bytes) {
        // Smaller regions would use the budget up and not serve it.
        return match bytes.len() <= CHUNK || fits(state, d, bytes.len(), class) {
            true => Offer::Ask,
            false => Offer::Nothing,
        };
    }
    let Some((node, record)) = state.hca.next_from(d, bytes.start()) else {
        return Offer::Nothing;
    };
    let lendable = record.life == Life::Live && !record.is_to_go();
    if !lendable || !request.is_met_by(record.access) || tight && node.range != bytes {
        return Offer::Nothing;
    }
    if node.range.start() > bytes.start() {
        return Offer::Nothing;
    }
    if node.range.end() < bytes.end() {
        return hull(state, d, bytes, record.access).map_or(Offer::Nothing, Offer::Join);
    }
    Offer::Lend(Loan {
        record: node.record,
        handle: record.handle,
        lkey: record.lkey,
        rkey: record.rkey,
        access: record.access,
    })
}

/// What `make` makes of a loan, which is counted among its region's.
fn hand_out<T>(
    state: &mut State,
    loan: &Loan,
    bytes: PageRange,
    make: impl Fn(&mut Arena, &Loan) -> Option<T>,
) -> Option<T> {
    let made = make(&mut state.arena, loan);
    state.adopt_own_memory();
    let (made, record) = (made?, state.hca.records.get_mut(loan.record)?);
    record.borrowers += 1;
    record.growth.is_asked_for(bytes);
    let d = record.domain;
    state.hca.is_asked_for(loan.record, bytes);
    state.hca.saves(d, bytes.len());
    Some(made)
}

/// The regions that together hold `bytes`, if they touch, are alike, no keys of them were looked
/// up, and they are not much more than `bytes`, nor than one region may be.
fn hull(state: &State, d: DomainId, bytes: PageRange, access: Access) -> Option<PageRange> {
    let (first, _) = state.hca.next_from(d, bytes.start())?;
    let mut end = first.range.start();
    while end < bytes.end() {
        let (node, record) = state.hca.next_from(d, end)?;
        let like = record.life == Life::Live && record.access == access && !record.is_to_go();
        if node.range.start() != end || !like || node.is_given() {
            return None;
        }
        end = node.range.end();
    }
    let hull = PageRange::new(first.range.start(), end)?;
    let domain = state.hca.alive(d)?;
    let most = bytes.len().saturating_mul(2).max(CHUNK);
    (hull.len() <= most.min(domain.most_asked())).then_some(hull)
}

/// A region of exactly these bytes, of its own, for one borrower.
pub fn exact(owner: Owner, addr: u64, len: u64, wanted: Access) -> Option<Loan> {
    let range = PageRange::covering(addr, len)?;
    let (d, device) = {
        let guard = lock()?;
        let d = guard
            .hca
            .find(|d| d.owner == owner && d.state == Stage::Alive)
            .next()?;
        (d, guard.hca.alive(d)?.device?)
    };
    let keys = register(&device, addr, len, wanted).ok()?;
    let gone = device.deregistration(keys.handle);
    let Some(mut guard) = lock() else {
        deregister(gone);
        return None;
    };
    let state = &mut *guard;
    // It is in no domain's map: retired from the start.
    let mut record = Record::new(range, d, wanted, Life::Retired).with(keys);
    record.borrowers = 1;
    let reserved = state.hca.records.reserve(&mut state.arena);
    state.adopt_own_memory();
    let Some(n) = reserved.then(|| state.hca.records.add(record)).flatten() else {
        drop(guard);
        deregister(gone);
        return None;
    };
    state.hca.charge(d, range.len());
    state.hca.retired = state.hca.retired.saturating_add(range.len());
    state.show_regions();
    Some(Loan {
        record: n,
        handle: keys.handle,
        lkey: keys.lkey,
        rkey: keys.rkey,
        access: wanted,
    })
}

fn register(device: &Device, at: u64, len: u64, access: Access) -> Result<Mr> {
    let reached = reaching::reach(device)?;
    reached.channel().reg_mr(device.pd, at, len, access)
}

/// A region that is the application's own, in nobody's account but its.
pub struct Apart {
    device: Device,
    /// The region.
    pub mr: Mr,
}

impl Apart {
    /// It is not wanted.
    pub fn deregister(self) {
        deregister(self.device.deregistration(self.mr.handle));
    }
}

/// Registers these bytes in a protection domain that has a domain, for [`Apart`]. Errors: the
/// kernel's; ENOENT if there is none.
pub fn apart(file: FileId, pd: PdHandle, (at, len): (u64, u64), access: Access) -> Result<Apart> {
    let device = {
        let guard = lock().ok_or(Errno::BUSY)?;
        let alive = |x: &Domain| x.state == Stage::Alive && x.is_of(file, pd);
        let d = guard.hca.find(alive).next();
        let device = d.and_then(|d| guard.hca.alive(d)?.device);
        device.ok_or(Errno::NOENT)?
    };
    let mr = register(&device, at, len, access)?;
    Ok(Apart { device, mr })
}

/// What was lent is not used any more; `free` is called under the lock. False in a
/// signal handler at a bad moment: then nothing was done.
#[inline]
pub fn give_back(loan: &Loan, free: impl FnOnce()) -> bool {
    let freed = || {
        free();
        true
    };
    give_back_if(loan, freed).is_some()
}

/// As [`give_back`], if `free` says that it was lent still; what it says. `None`: nothing was done.
pub fn give_back_if(loan: &Loan, free: impl FnOnce() -> bool) -> Option<bool> {
    let mut guard = lock()?;
    if !free() {
        return Some(false);
    }
    let state = &mut *guard;
    let Some(record) = state.hca.records.get_mut(loan.record) else {
        return Some(true);
    };
    let lent = record.has_region() && record.borrowers != 0;
    if !lent || record.handle != loan.handle || record.lkey != loan.lkey {
        // Its device has been closed meanwhile.
        return Some(true);
    }
    record.borrowers -= 1;
    let retired = record.life == Life::Retired;
    let rotates = !retired && revoking::rotates(record.access);
    if rotates {
        record.begin_to_go();
    }
    let gone = retired.then(|| state.hca.destroy(loan.record)).flatten();
    if gone.is_some() {
        state.show_regions();
    }
    drop(guard);
    if let Some(deregistration) = gone {
        deregister(deregistration);
    }
    if rotates {
        revoking::begins();
    }
    Some(true)
}

/// Has `bytes` registered in the protection domain for a program that asks for it, in one
/// region if they are no more than one may have. Errors: as [`adopt_for_look_ups`].
pub fn ask(owner: Owner, (fd, pd): (i32, PdHandle), bytes: PageRange) -> Result<()> {
    let all = |state: &State| {
        let alive = |d: &Domain| d.owner == owner && d.state == Stage::Alive && !d.rotates;
        state.hca.find(alive)
    };
    if all(&*lock().ok_or(Errno::BUSY)?).next().is_none() {
        adopt_for_look_ups(owner, fd, pd)?;
    }
    let domains = all(&*lock().ok_or(Errno::BUSY)?);
    for d in domains {
        ask_by_chunks(d, bytes)?;
        let apart = {
            let state = lock().ok_or(Errno::BUSY)?;
            let first = state.hca.next_from(d, bytes.start());
            let first = first.filter(|(node, record)| {
                node.range.end() < bytes.end() && record.life == Life::Live
            });
            first.and_then(|(_, record)| hull(&state, d, bytes, record.access))
        };
        if let Some(hull) = apart {
            asking::join(d, hull);
        }
    }
    Ok(())
}

/// Has what domain `d` has left alone of `bytes` registered, however much that is.
fn ask_by_chunks(d: DomainId, bytes: PageRange) -> Result<()> {
    let mut rest = Some(bytes);
    while let Some(todo) = rest {
        let guard = lock().ok_or(Errno::BUSY)?;
        let Some(domain) = guard.hca.alive(d) else {
            break;
        };
        let end = todo.start().saturating_add(domain.most_asked());
        let chunk = todo.before(end).unwrap_or(todo);
        rest = todo.after(chunk.end());
        let waits = guard.hca.is_waiting(d, chunk);
        drop(guard);
        if waits {
            asking::ask(d, chunk);
        }
    }
    Ok(())
}
