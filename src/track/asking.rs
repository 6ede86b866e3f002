//! What an application's requests have done about regions: asked for, joined, let go to make
//! room, and taken back.

use super::deregistering::Deregistrations;
use super::entering::{leave, refuse};
use super::registering::{join_in, settle, settle_in};
use super::turns::{in_the_way_of, Whose};
use super::waiting::{self, Reach};
use super::{adopting, begin_work, end, lock, USER_END};
use crate::registrar::hca::records::Life;
use crate::registrar::hca::{numbers, Domain, DomainId};
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

/// Lets go of everything that is not lent and of which no keys were looked up: the application's own
/// registration has failed, and what ours hold counts against its limit. Whether there was anything.
#[cold]
#[inline(never)]
pub fn evict() -> bool {
    let mut any = false;
    let flight = begin_work();
    for d in numbers() {
        let mut from = 0;
        loop {
            let Some(mut guard) = lock() else {
                break;
            };
            let state = &mut *guard;
            // What is paged on demand pins nothing that could be let go of.
            if state.hca.domain(d).is_some_and(Domain::on_demand) {
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
