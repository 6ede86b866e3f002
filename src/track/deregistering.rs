//! Deferred deregistration: what has left its domain under the lock is forgotten by the kernel
//! as soon as the lock is free.

use super::real::spent;
use super::{lock, own, remembered, subscribers, State};
use crate::arch;
use crate::base::counters;
use crate::registrar::hca::{Deregistration, Device, DomainId, State as Stage};
use crate::sys::{self, Errno, Result};
use crate::uverbs::Mr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
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

/// Asks the kernel once, by another descriptor if ours is lost. Errors: the kernel's; EBADF where there
/// is none.
fn ask(it: &mut Deregistration) -> Result<()> {
    it.channel = own::sure(it.channel)?;
    it.channel.dereg_mr(it.handle)
}

/// Has the kernel forget a region. Called without the lock.
pub fn deregister(deregistration: Deregistration) {
    counters::count(Counter::Deregistrations);
    forget(deregistration);
}

/// As [`deregister`], uncounted.
fn forget(deregistration: Deregistration) {
    let start = arch::ticks();
    let mut deregistration = deregistration;
    let mut outcome = ask(&mut deregistration);
    for _ in 0..TRIES {
        match outcome {
            // No descriptor, in a thread that has a table of its own: others may have it.
            Err(Errno::BADF | Errno::NOTTY) => break,
            Err(errno) if !GONE.contains(&errno.0) => {
                outcome = ask(&mut deregistration);
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
        later();
    }
}

/// A thread could not be started by who had to: another one looks after what is idle or bound.
static LATER: AtomicBool = AtomicBool::new(false);

/// What is idle or bound is looked after by the thread that comes by next.
#[cold]
pub fn later() {
    LATER.store(true, Relaxed);
}

/// Whether something waits for the next thread.
#[inline]
pub fn is_later() -> bool {
    LATER.load(Relaxed)
}

/// Whether something has waited, and this thread sees to it.
pub fn is_ours_now() -> bool {
    LATER.swap(false, Relaxed)
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
fn take(state: &mut State, n: usize, fd: Option<i32>) -> Option<(DomainId, Deregistration)> {
    let named = |it: &Deregistration| fd.is_none_or(|fd| it.channel.fd() == fd);
    let it = state.hca.bound.take(n, named)?;
    let of = |x: Device| x.channel.fd() == it.channel.fd();
    // Who empties a domain names it, and does not wait for others.
    let free = |stage| fd.is_some() || stage == Stage::Alive;
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

/// Asks once more for all that the kernel would not forget, of the context behind descriptor
/// `fd` if one is named. Whether something is left.
pub fn retry(fd: Option<i32>) -> bool {
    let mut left = false;
    let room = lock().map_or(0, |guard| guard.hca.bound.room());
    for n in 0..room {
        let Some((d, mut it)) = lock().and_then(|mut guard| take(&mut guard, n, fd)) else {
            continue;
        };
        let outcome = ask(&mut it);
        // No such descriptor, or another file's: the region is gone if that is so in all threads.
        let elsewhere = |errno| matches!(errno, Errno::BADF | Errno::NOTTY);
        let gone = |errno: Errno| {
            GONE.contains(&errno.0) || elsewhere(errno) && sys::has_the_process_files()
        };
        let bound = outcome.is_err_and(|errno| !gone(errno));
        left |= bound;
        let closed = lock().and_then(|mut guard| {
            if bound {
                put_back(&mut guard, it);
            }
            guard.hca.work_ends(d)
        });
        if let Some(device) = closed {
            remembered::close_own(device);
        }
    }
    left
}
