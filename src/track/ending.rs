//! The end of a domain: its protection domain is deallocated, or its adapter is closed.

use super::turns::{lock_for, Whose};
use super::waiting::Reach;
use super::{
    begin_work, deregistering, end, entering, lock, reaching, registering, retracting, State,
    USER_END,
};
use crate::base::{settings, unseen};
use crate::policy;
use crate::registrar::hca::files::FileId;
use crate::registrar::hca::{numbers, Domain, DomainId, Owner, State as Stage};
use regall_directory::addr::PageRange;

/// Whether regions of domain `d` are lent.
fn lent(state: &State, d: DomainId) -> bool {
    state
        .hca
        .records
        .each()
        .any(|(_, r)| r.domain == d && r.borrowers != 0)
}

/// A protection domain, of which `are` says which domains are its own, is about to be
/// deallocated: nothing of ours may be in it. What was taken out [`revive`] brings back if the call
/// fails. With a registration or a queue pair of the application's it fails anyway, and all stays.
pub fn vacate(are: impl Fn(&Domain) -> bool) -> Vacated {
    let any = empty_all(|state, d| {
        let theirs = |x: &&Domain| are(x) && !has_a_pair(state, x);
        state.hca.alive(d).filter(theirs).is_some() && !lent(state, d)
    });
    let alive = |x: &Domain| x.state == Stage::Alive && are(x);
    let stays = lock().is_none_or(|guard| guard.hca.find(alive).next().is_some());
    match (any, stays) {
        (_, false) => Vacated::All,
        (true, true) => Vacated::Some,
        (false, true) => Vacated::Not,
    }
}

/// What is taken out of a protection domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vacated {
    /// All that was there, if anything was.
    All,
    /// One domain's, and another one's stays.
    Some,
    /// Nothing.
    Not,
}

/// Returns whether there is a queue pair in its protection domain, for certain: code that nobody looks at
/// may destroy one.
fn has_a_pair(state: &State, domain: &Domain) -> bool {
    let device = domain
        .device
        .as_ref()
        .filter(|_| unseen::reason().is_none());
    device.is_some_and(|x| state.hca.pairs.is_any_in(x.file, x.pd))
}

/// Deregisters what is not lent in the domains that are alive and that `are` says; their requests go to
/// the kernel from now on. Whether there are any.
fn empty_all(are: impl Fn(&State, DomainId) -> bool) -> bool {
    let mut any = false;
    for d in numbers() {
        let here = {
            let Some(mut guard) = lock() else {
                return any;
            };
            let here = are(&guard, d);
            if let (true, Some(domain)) = (here, guard.hca.domain_mut(d)) {
                domain.state = Stage::Closing;
            }
            here
        };
        if here {
            any = true;
            empty(d);
        }
    }
    any
}

/// The call failed: if some of them are still empty, everything is registered again.
pub fn revive(are: impl Fn(&Domain) -> bool) {
    let mut any = false;
    if let Some(mut guard) = lock() {
        for d in guard.hca.find(|d| d.state == Stage::Closing && are(d)) {
            any = true;
            if let Some(domain) = guard.hca.domain_mut(d) {
                domain.state = Stage::Alive;
                // What a thread had still to do is done here.
                if domain.filling.take().is_some() {
                    domain.upto_rank = policy::TEXT;
                }
            }
        }
        if any {
            entering::new_primary(&mut guard);
        }
    }
    if !any {
        return;
    }
    let flight = begin_work();
    if let Some(all) = PageRange::new(0, USER_END) {
        registering::settle(all, Whose::Foreign, Reach::Resident);
    }
    end(flight);
}

/// The call succeeded. Another thread may have got a new one at the same address already.
pub fn forget_vacated(pd: u64) {
    no_candidate(pd);
    keep_lent(|x| x.owner.pd == pd);
    forget(|x| x.owner.pd == pd && x.state == Stage::Closing);
}

/// The same for what [`vacate`] has emptied by `are`, whatever address it is at.
pub fn forget_empty(are: impl Fn(&Domain) -> bool) {
    forget(|x| x.state == Stage::Closing && are(x));
}

/// A new one has come to the address of one that went in a way that was not seen.
pub fn forget_pd(pd: u64) {
    no_candidate(pd);
    keep_lent(|x| x.owner.pd == pd);
    forget(|x| x.owner.pd == pd);
}

/// What is lent by ioctl of protection domains that `are` says, whose structures go, outlives them:
/// the kernel's protection domain does, as where another one was made over it
/// (ibv_alloc_parent_domain), or where another descriptor of the file is open.
fn keep_lent(are: impl Fn(&Domain) -> bool) {
    if !settings::config().answers_ioctl() {
        return;
    }
    let Some(mut guard) = lock() else {
        return;
    };
    let state = &mut *guard;
    let known = |x: &Domain| are(x) && x.state == Stage::Alive && !x.owner.is_of_file();
    for d in state.hca.find(known) {
        if !lent(state, d) {
            continue;
        }
        if let Some(device) = state.hca.alive(d).and_then(|x| x.device) {
            state.hca.rename(d, Owner::of_file(device.file, device.pd));
        }
    }
}

fn no_candidate(pd: u64) {
    if let Some(mut guard) = lock() {
        guard.hca.candidates.forget(pd);
    }
}

/// The context is about to be closed, and everything in it with it; `file` is the open file. What is
/// lent by ioctl there may be kept, and of that, too, what is not lent goes before: queues that are
/// mapped keep the file open, and nobody can reach it any more. Whether something is kept, which
/// [`revive`] brings back if the file has another descriptor.
pub fn forget_context(context: u64, file: Option<FileId>) -> bool {
    let by_file = |x: &Domain| x.owner.is_of_file() && file.is_some_and(|file| x.is_in(file));
    let mut any = false;
    if settings::config().answers_ioctl() {
        keep_lent(|x| x.owner.context == context);
        any = empty_all(|state, d| state.hca.alive(d).is_some_and(by_file));
    }
    forget(|x| x.owner.context == context);
    if let Some(mut guard) = lock() {
        guard.hca.accept(context);
    }
    any
}

/// Nothing is known any more of the domains that `are` says yes to.
pub fn forget(are: impl Fn(&Domain) -> bool) {
    for d in numbers() {
        let ours = {
            let Some(mut guard) = lock() else {
                return;
            };
            let domain = guard.hca.domain_mut(d);
            let domain = domain.filter(|x| x.state != Stage::Free && are(x));
            domain.map(|x| {
                x.state = Stage::Closing;
                (x.owner, x.device.map(|device| device.file))
            })
        };
        let Some(ours) = ours else {
            continue;
        };
        empty(d);
        let device = {
            let Some(mut guard) = lock() else {
                return;
            };
            let state = &mut *guard;
            // Another thread may have closed it meanwhile, and its place be a new one's.
            let same = |x: &&Domain| {
                let is = (x.owner, x.device.map(|device| device.file));
                x.state == Stage::Closing && is == ours
            };
            if state.hca.domain(d).filter(same).is_none() {
                continue;
            }
            state.hca.drop_records(d);
            // Who is still at work there closes a descriptor of ours.
            let device = state.hca.close(d);
            state.show_regions();
            device
        };
        if let Some(device) = device {
            reaching::close_own(&device);
        }
    }
}

/// Milliseconds, or more, that others may still be at work in a domain that closes.
const PATIENCE: u32 = 2_000;

/// Deregisters everything in domain `d` that is not lent. Nobody registers in it any
/// more: it is closing.
fn empty(d: DomainId) {
    let Some(all) = PageRange::new(0, USER_END) else {
        return;
    };
    let flight = begin_work();
    // Whoever began before is waited for, unless it was left for good.
    for _ in 0..PATIENCE {
        match lock() {
            Some(guard) if guard.hca.domain(d).is_some_and(|x| x.at_work != 0) => drop(guard),
            _ => break,
        }
        crate::sys::nap(1_000_000);
    }
    if let Some(mut guard) = lock_for(&[Some(all)]) {
        entering::new_primary(&mut guard);
    }
    retracting::clear(d);
    let device = lock().and_then(|guard| guard.hca.domain(d)?.device);
    if device.is_some() {
        // Only what is bound still is left then, and in the way of the application's call.
        deregistering::retry(device);
    }
    end(flight);
}
