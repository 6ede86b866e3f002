//! Deferred deregistration: what has left its domain under the lock is forgotten by the kernel
//! as soon as the lock is free.

use super::real::spent;
use crate::arch;
use crate::base::counters;
use crate::registrar::hca::{Deregistration, Device};
use crate::sys::Result;
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
    /// None.
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
const GONE: [i32; 4] = [libc::ENOENT, libc::EBADF, libc::ENODEV, libc::EIO];

/// Has the kernel forget a region. Called without the lock.
pub fn deregister(deregistration: Deregistration) {
    let start = arch::ticks();
    let mut outcome = deregistration.channel.dereg_mr(deregistration.handle);
    for _ in 0..TRIES {
        match outcome {
            Err(errno) if !GONE.contains(&errno.0) => {
                outcome = deregistration.channel.dereg_mr(deregistration.handle);
            }
            _ => break,
        }
    }
    if let Err(errno) = outcome {
        log::info!("deregistering region {:#x}: {errno}", deregistration.handle);
    }
    counters::count(Counter::Deregistrations);
    spent(Counter::HcaNanos, start);
}
