//! The one transaction with the kernel: pinning, unpinning, registering and deregistering take
//! as long as the kernel's page faults do, so they are done without the lock.
//!
//! ```text
//! begin (under the lock: reserve, mark the memory)  →  run (without it)  →
//! finish (under it: commit, or undo if somebody went on without waiting)
//! ```
//!
//! Others that are about to do something on the memory wait until the [`Mark`] is gone
//! ([`super::turns`]). Each step consumes the one before, so there is no other order.

use super::lock::Guard;
use super::quiet::Quiet;
use super::{flight, lock, owed, reaching};
use crate::registrar::hca::DomainId;
use regall_directory::addr::PageRange;

/// Memory is being worked on, in this thread's innermost call. The mark ends when it is dropped.
#[must_use = "others wait for the memory until it is dropped"]
pub struct Mark<D = ()> {
    /// What ends behind it.
    _with: D,
}

impl<D> Mark<D> {
    /// The work on the memory is over. Without the lock, if it was in a domain: it is taken.
    #[inline]
    pub fn end(self) {}
}

impl<D> Drop for Mark<D> {
    #[inline]
    fn drop(&mut self) {
        flight::pin_ends();
    }
}

/// Work in a domain: who empties the domain waits for it, and if it is closed without that, the
/// context stays open until this is over. No handler comes between, which might
/// jump away and leave the kernel's half of it behind.
pub struct InDomain {
    d: DomainId,
    quiet: Quiet,
}

impl Drop for InDomain {
    fn drop(&mut self) {
        // Behind it the file's tag may be forgotten.
        self.quiet.close_kept();
        let Some(mut guard) = lock() else {
            return owed::worked(self.d);
        };
        owed::give_back(&mut guard);
        let closed = guard.hca.work_ends(self.d);
        drop(guard);
        if let Some(device) = closed {
            reaching::close_own(&device);
        }
    }
}

/// Work that has begun and is to be run.
#[must_use = "nothing is done before it is run"]
pub struct Begun<D = ()> {
    mark: Mark<D>,
}

/// Begins to pin or unpin in `range`: `reserve` is what is done about it under the lock, which
/// is given back.
#[inline]
pub fn begin<R>(
    mut guard: Guard,
    range: PageRange,
    reserve: impl FnOnce(&mut Guard) -> R,
) -> (Begun, R) {
    flight::pin_begins(&guard, range);
    let reserved = reserve(&mut guard);
    drop(guard);
    let mark = Mark { _with: () };
    (Begun { mark }, reserved)
}

/// As [`begin`], to register or take out `range` in domain `d`.
pub fn begin_in(
    d: DomainId,
    mut guard: Guard,
    range: PageRange,
    reserve: impl FnOnce(&mut Guard),
) -> Begun<InDomain> {
    let quiet = Quiet::begin();
    reserve(&mut guard);
    guard.hca.work_begins(d);
    flight::pin_begins(&guard, range);
    drop(guard);
    let mark = Mark {
        _with: InDomain { d, quiet },
    };
    Begun { mark }
}

impl<D> Begun<D> {
    /// Has the kernel do it. Without the lock.
    #[inline]
    pub fn run<T>(self, work: impl FnOnce() -> T) -> Ran<T, D> {
        Ran {
            outcome: work(),
            mark: self.mark,
        }
    }
}

/// Work that was run; what came of it is not yet written down.
#[must_use = "what came of it is to be written down or undone"]
pub struct Ran<T, D = ()> {
    outcome: T,
    mark: Mark<D>,
}

/// What is to be done about what came of work.
#[must_use = "what came of it is to be written down or undone"]
pub enum Finished<T, D = ()> {
    /// The work is to be committed: nobody has gone on with the memory.
    Alone(Guard, T, Mark<D>),
    /// The work is to be undone: somebody did not wait any longer, so it may be about other memory.
    Overtaken(Guard, T, Mark<D>),
    /// The lock can't be had: its holder is parked, and does not come on before this thread
    /// does. It is to be undone, and noted.
    Unlocked(T, Mark<D>),
}

impl<T, D> Ran<T, D> {
    /// What came of it, whoever has gone on meanwhile.
    #[inline]
    pub fn outcome(&self) -> &T {
        &self.outcome
    }

    /// Takes the lock again.
    #[inline]
    pub fn finish(self) -> Finished<T, D> {
        let Self { outcome, mark } = self;
        match lock() {
            None => Finished::Unlocked(outcome, mark),
            Some(guard) if flight::were_we_overtaken() => Finished::Overtaken(guard, outcome, mark),
            Some(guard) => Finished::Alone(guard, outcome, mark),
        }
    }
}
