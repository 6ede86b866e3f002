//! Deferred deregistration: what has left its domain under the lock is forgotten by the kernel
//! as soon as the lock is free.

use super::real::spent;
use super::{later, lock, reaching, subscribers, State};
use crate::arch;
use crate::base::counters;
use crate::registrar::hca::{Deregistration, Device, DomainId, State as Stage};
use crate::sys::{Errno, Result};
use crate::uverbs::Mr;
use regall_directory::layout::Counter;

/// An attempt that fails is made again so often.
const TRIES: usize = 8;

/// Regions that the kernel is to forget, as soon as the lock is free.
pub struct Deregistrations {
    places: [Option<Deregistration>; 24],
    many: usize,
}

impl Deregistrations {
    /// No deregistrations.
    pub const fn new() -> Self {
        Self {
            places: [None; 24],
            many: 0,
        }
    }

    /// One more.
    pub fn add(&mut self, deregistration: Deregistration) {
        match self.places.get_mut(self.many) {
            Some(place) => {
                *place = Some(deregistration);
                self.many += 1;
            }
            // Merging takes in one region for every doubling of at most a chunk.
            None => deregister(deregistration),
        }
    }

    /// The region that was registered with `device`, if it was.
    pub fn add_if_there(&mut self, device: Device, outcome: Result<Mr>) {
        if let Ok(keys) = outcome {
            self.add(device.deregistration(keys.handle));
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.many == 0
    }

    /// Whether one more would have to go at once.
    pub fn is_full(&self) -> bool {
        self.many == self.places.len()
    }

    /// As [`Deregistrations::deregister`], uncounted: others have taken their places.
    pub fn forget(&mut self) {
        self.places
            .iter_mut()
            .filter_map(Option::take)
            .for_each(forget);
        self.many = 0;
    }

    /// The kernel forgets them. Called without the lock.
    pub fn deregister(&mut self) {
        for place in &mut self.places {
            if let Some(deregistration) = place.take() {
                deregister(deregistration);
            }
        }
        self.many = 0;
    }
}

/// What an attempt to deregister fails for if the region is gone already; for anything
/// else it is tried again, since what stays is in the way of the application.
const GONE: [i32; 3] = [libc::ENOENT, libc::ENODEV, libc::EIO];

/// Asks the kernel once. Errors: the kernel's; EBADF: this thread has no descriptor of the device.
fn ask(it: &Deregistration) -> Result<()> {
    reaching::reach(&it.device)?.channel().dereg_mr(it.handle)
}

/// Has the kernel forget a region. Called without the lock.
pub fn deregister(deregistration: Deregistration) {
    counters::count(Counter::Deregistrations);
    forget(deregistration);
}

/// As [`deregister`], uncounted.
fn forget(deregistration: Deregistration) {
    // The program has closed the device: the kernel has forgotten all that was there.
    if deregistration.device.hint.fd() < 0 {
        return;
    }
    let start = arch::ticks();
    let mut outcome = ask(&deregistration);
    for _ in 0..TRIES {
        match outcome {
            // No descriptor, in a thread that has a table of its own: others may have it.
            Err(Errno::BADF | Errno::NOTTY) => break,
            Err(errno) if !GONE.contains(&errno.0) => {
                outcome = ask(&deregistration);
            }
            _ => break,
        }
    }
    spent(Counter::HcaNanos, start);
    let Err(errno) = outcome else {
        return;
    };
    log::info!(
        "deregistering region {:#x}: {errno}",
        deregistration.handle.0
    );
    if !GONE.contains(&errno.0) {
        postpone(deregistration);
    }
}

/// The kernel would not forget a region, as while a memory window is bound to it: it is asked
/// again from time to time.
#[cold]
fn postpone(deregistration: Deregistration) {
    let Some(mut guard) = lock() else {
        return;
    };
    let state = &mut *guard;
    let reserved = state.hca.bound.reserve(&mut state.arena);
    state.adopt_own_memory();
    let kept = reserved && state.hca.bound.keep(deregistration);
    drop(guard);
    if kept && !(subscribers::table().keys_idle)() {
        later::later();
    }
}

/// Puts back what [`take`] has taken out: others may have filled its place.
fn put_back(state: &mut State, it: Deregistration) {
    if state.hca.bound.reserve(&mut state.arena) {
        state.hca.bound.keep(it);
    }
    state.adopt_own_memory();
}

/// Takes number `n` of them out, and says in which domain it is: work begins there, for which
/// waits who closes the descriptor.
fn take(state: &mut State, n: usize, of: Option<Device>) -> Option<(DomainId, Deregistration)> {
    let named = |it: &Deregistration| of.is_none_or(|of| it.device.is_one_with(&of));
    let it = state.hca.bound.take(n, named)?;
    // Who empties a domain names it, and does not wait for others.
    let free = |stage| of.is_some() || stage == Stage::Alive;
    let of = |x: Device| x.is_one_with(&it.device);
    let mut there = state
        .hca
        .find(|x| free(x.state) && x.device.is_some_and(of));
    let Some(d) = there.next() else {
        put_back(state, it);
        return None;
    };
    state.hca.work_begins(d);
    Some((d, it))
}

/// Asks once more for all that the kernel would not forget, in one protection domain if that is
/// named. Whether something is left.
pub fn retry(of: Option<Device>) -> bool {
    let mut left = false;
    let room = lock().map_or(0, |guard| guard.hca.bound.room());
    for n in 0..room {
        let Some((d, it)) = lock().and_then(|mut guard| take(&mut guard, n, of)) else {
            continue;
        };
        let outcome = ask(&it);
        // Without a descriptor nobody knows: if the file is closed, the domain goes with all that is
        // bound there.
        let bound = outcome.is_err_and(|errno| !GONE.contains(&errno.0));
        left |= bound;
        let closed = lock().and_then(|mut guard| {
            if bound {
                put_back(&mut guard, it);
            }
            guard.hca.work_ends(d)
        });
        if let Some(device) = closed {
            reaching::close_own(&device);
        }
    }
    left
}
