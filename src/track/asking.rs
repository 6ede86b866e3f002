//! What an application's requests have done about regions: asked for, joined, let go to make
//! room, and taken back.

use super::deregistering::Deregistrations;
use super::entering::{leave, refuse};
use super::registering::{join_in, settle, settle_in};
use super::turns::{in_the_way_of, Whose};
use super::waiting::{self, Reach};
use super::{adopting, begin_work, end, lock, USER_END};
use crate::policy;
use crate::registrar::hca::records::Life;
use crate::registrar::hca::{numbers, DomainId};
use crate::sys;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use regall_directory::addr::PageRange;

/// Registers all of `bytes` in domain `d`, which the application asks for, and what is
/// resident near them, unless a thread is about to do that.
#[cold]
pub fn ask(d: DomainId, bytes: PageRange) {
    let flight = begin_work();
    waiting::refresh();
    let chunk = lock().map(|guard| waiting::chunk_of(&guard, bytes));
    settle_in(
        d,
        chunk.unwrap_or(bytes),
        Whose::Foreign,
        Reach::Asked(bytes),
    );
    if !adopting::is_left() {
        settle_in(d, waiting::around(bytes), Whose::Read, Reach::Resident);
    }
    end(flight);
}

/// The regions that make up `hull` become one. Whether they did.
pub fn join(d: DomainId, hull: PageRange) -> bool {
    let flight = begin_work();
    let joined = join_in(d, hull);
    end(flight);
    joined
}

/// How many threads let go of regions at this moment.
static EVICTING: AtomicU32 = AtomicU32::new(0);
/// How often some have been let go of.
static EVICTED: AtomicU32 = AtomicU32::new(0);

/// Returns how often regions have been let go of.
#[inline]
pub fn evicted() -> u32 {
    EVICTED.load(Relaxed)
}

/// Lets go of everything that is not lent and of which no keys were looked up: what the application
/// has asked for was refused, and what ours hold counts against its limit. Whether anything has gone
/// since [`evicted`] was `since`, in whatever thread: that is waited for, a millisecond at the most.
#[cold]
#[inline(never)]
pub fn evict(since: u32) -> bool {
    EVICTING.fetch_add(1, Relaxed);
    let any = evict_all();
    if any {
        EVICTED.fetch_add(1, Relaxed);
    }
    EVICTING.fetch_sub(1, Relaxed);
    for _ in 0..10 {
        if any || EVICTING.load(Relaxed) == 0 {
            break;
        }
        sys::nap(100_000);
    }
    any || evicted() != since
}

fn evict_all() -> bool {
    let mut any = false;
    let flight = begin_work();
    for d in numbers() {
        if let Some(domain) = lock().as_deref_mut().and_then(|s| s.hca.domain_mut(d)) {
            // What a thread has not come to waits for requests.
            if domain.filling.take().is_some() {
                domain.upto_rank = policy::TEXT;
            }
        }
        let mut from = 0;
        loop {
            let Some(mut guard) = lock() else {
                break;
            };
            let state = &mut *guard;
            // The one region for all addresses pins nothing.
            if state.hca.domain(d).is_some_and(|x| x.implicit) {
                break;
            }
            let Some((node, record)) = state.hca.next_from(d, from) else {
                break;
            };
            from = node.range.end();
            let (life, lent) = (record.life, record.borrowers != 0 || node.is_given());
            if life != Life::Live || lent || in_the_way_of(&guard, node.range) {
                continue;
            }
            let state = &mut *guard;
            let mut leaving = Deregistrations::new();
            leave(state, d, node, false, &mut leaving);
            refuse(state, d, node.range, Life::Refused(0));
            state.show_regions();
            drop(guard);
            leaving.deregister();
            any = true;
        }
    }
    end(flight);
    any
}

/// Takes back what [`evict`] did: it was not our regions that the registration failed for.
#[cold]
#[inline(never)]
pub fn readmit() {
    let flight = begin_work();
    for d in numbers() {
        let mut from = 0;
        while let Some(mut guard) = lock() {
            let state = &mut *guard;
            let Some((node, record)) = state.hca.next_from(d, from) else {
                break;
            };
            from = node.range.end();
            if record.life == Life::Refused(0) {
                let mut leaving = Deregistrations::new();
                leave(state, d, node, false, &mut leaving);
            }
        }
    }
    if let Some(all) = PageRange::new(0, USER_END) {
        settle(all, Whose::Foreign, Reach::Resident);
    }
    end(flight);
}
