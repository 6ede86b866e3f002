//! Calls that take memory away: out of the ledger and the directory first,
//! since another thread can be given the addresses the instant the kernel has
//! them back.

use super::{close, deferred, failed, lock, lock_for, open, real, resync, State};
use crate::arch::Frame;
use crate::registrar::pin::PinSet;
use crate::registrar::Registrar;
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags, Kind};

/// Parts that are remembered for the case that the call fails. More than these
/// are read anew from the kernel, which forgets only what it does not show
/// (MAP_STACK, opt-outs).
const REMEMBERED: usize = 8;

/// What was taken out of the ledger.
pub struct Taken {
    parts: [Option<(PageRange, Attr)>; REMEMBERED],
    count: usize,
}

impl Default for Taken {
    fn default() -> Self {
        Self::new()
    }
}

impl Taken {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            parts: [None; REMEMBERED],
            count: 0,
        }
    }

    /// Adds a part.
    #[inline]
    pub fn add(&mut self, range: PageRange, attr: Attr) {
        if let Some(place) = self.parts.get_mut(self.count) {
            *place = Some((range, attr));
        }
        self.count += 1;
    }

    /// The parts, if they are all remembered.
    pub fn all(&self) -> Option<impl Iterator<Item = (PageRange, Attr)> + '_> {
        (self.count <= REMEMBERED).then(|| self.parts.iter().flatten().copied())
    }

    /// The last part's attributes, if all are remembered.
    pub fn last(&self) -> Option<Attr> {
        self.parts
            .get(self.count.checked_sub(1)?)?
            .map(|(_, attr)| attr)
    }

    /// Lets go of our pins on what was taken; says whether there were any.
    pub fn unpin(&mut self) -> bool {
        let mut any = false;
        for (range, attr) in self.parts.iter_mut().flatten() {
            if attr.pin.held() && !attr.flags.has(Flags::APP_LOCKED) {
                any = true;
                *attr = resync::unsettled(*attr);
                let _ = PinSet.deregister(*range);
            }
        }
        any
    }

    /// Whether any of it was a mapping that grows without a call.
    pub fn grows(&self) -> bool {
        let grows = |a: &Attr| a.flags.has(Flags::GROWABLE);
        self.parts.iter().flatten().any(|(_, a)| grows(a))
    }

    /// Puts everything back.
    pub fn restore(&self, state: &mut State) {
        for (range, attr) in self.parts.iter().flatten() {
            state.insert(*range, *attr);
        }
    }
}

/// munmap(2).
#[inline(never)]
pub fn munmap(frame: &mut Frame) -> i64 {
    let Some(range) = PageRange::from_call(frame.args[0], frame.args[1]) else {
        return real(frame); // EINVAL, by the kernel itself
    };
    let flight = open(Call::Munmap);
    let mut taken = Taken::new();
    match lock_for(&[Some(range)]) {
        Some(mut guard) => {
            flight.claim(&guard, range);
            guard.remove(range, |part, attr| taken.add(part, attr));
        }
        None => deferred::gone(range),
    }
    let value = real(frame);
    if failed(value) {
        put_back(range, &taken);
    } else if has_code(&taken) {
        crate::intercept::patch::forget(range);
    }
    if taken.grows() {
        // It may have grown below what we knew, and that is still there.
        resync::around(range);
    }
    close(flight, range);
    value
}

/// A call that was to take `range` away failed.
#[cold]
#[inline(never)]
pub fn put_back(range: PageRange, taken: &Taken) {
    if let Some(mut guard) = lock() {
        taken.restore(&mut guard);
    }
    resync::range(range, false); // and pins what is not
}

fn has_code(taken: &Taken) -> bool {
    taken.count > REMEMBERED
        || taken
            .parts
            .iter()
            .flatten()
            .any(|(_, a)| a.prot.executable())
}

/// shmdt(2).
#[cold]
#[inline(never)]
pub fn shmdt(frame: &mut Frame) -> i64 {
    let flight = open(Call::Shmdt);
    // The kernel detaches every piece of the segment that was attached here,
    // over holes: all attached memory that follows may be that.
    let mut end = frame.args[0];
    let mut taken = Taken::new();
    let mut range = None;
    let all = PageRange::new(frame.args[0], super::USER_END);
    if let Some(mut guard) = lock_for(&[all]) {
        if let Some(rest) = PageRange::new(frame.args[0], super::USER_END) {
            guard.ledger.for_each(rest, |part, entry| {
                if entry.attr.kind != Kind::Shm {
                    return ControlFlow::Break(());
                }
                end = part.end();
                ControlFlow::Continue(())
            });
        }
        range = PageRange::new(frame.args[0], end);
        if let Some(range) = range {
            flight.claim(&guard, range);
            guard.remove(range, |part, attr| taken.add(part, attr));
        }
    }
    let value = real(frame);
    match range {
        Some(range) => {
            if failed(value) {
                put_back(range, &taken);
            } else {
                // A neighbouring segment may have stood right behind: it is still
                // there, and what is known of it beyond what the kernel shows
                // still holds.
                resync::range(range, true);
                if let Some(mut guard) = lock() {
                    for (part, old) in taken.parts.iter().flatten() {
                        let same = |a: Attr| a.kind == Kind::Shm && a.prot == old.prot;
                        guard.update(*part, |_, a| {
                            if same(a) {
                                Attr {
                                    flags: old.flags,
                                    ..a
                                }
                            } else {
                                a
                            }
                        });
                    }
                }
            }
            close(flight, range);
        }
        None if !failed(value) => resync::audit(),
        None => (),
    }
    value
}
