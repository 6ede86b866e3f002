//! Page cache is locked only while everything that this process has mapped fits.
//!
//! The kernel has page cache back when other memory is wanted, unless it is locked. So a lock
//! on it must not be what memory is short for: where all that is mapped could be resident at
//! once, it is not. As soon as a call brings more than that, the locks on page cache go, at the
//! end of that very call, and none is taken until it fits again.
//!
//! Only calls of this process are seen at once. Other processes that fill the same cgroup or node
//! are looked at every few hundred events, at most four times a second, so a process without memory
//! calls does not look. A fork's copies and files that are written to tmpfs are not seen either.

use super::budget::reckon;
use super::pinning::let_go_of;
use super::{flight, lock, State, USER_END};
use crate::base::{counters, settings};
use crate::config::Pin;
use crate::limits;
use crate::sys::time;
use crate::thread;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, Counter};
use regall_directory::vocab::{Attr, Column, Flags, Reason};

/// Whether it is to be looked at, at the end of a call, whether everything fits.
static DUE: AtomicBool = AtomicBool::new(false);

/// How what is mapped stands to what may be.
pub struct Fitting {
    /// Bytes that may be mapped while page cache is locked; u64::MAX: no limit.
    budget: u64,
    /// When so many are mapped, others' part is looked at anew.
    next_look: u64,
    /// Locked page cache that is not ours to let go of.
    kept: u64,
}

impl Fitting {
    /// No limit.
    #[allow(clippy::new_without_default)] // const, for a static
    pub const fn new() -> Self {
        Self {
            budget: u64::MAX,
            next_look: u64::MAX,
            kept: 0,
        }
    }

    /// The budget is reckoned anew when more is mapped.
    pub fn look_again(&mut self) {
        self.next_look = 0;
    }
}

impl State {
    /// Bytes that are mapped and may become resident.
    fn mapped(&self) -> u64 {
        let totals = self.ledger.totals();
        let never = [Reason::NoAccess, Reason::Kernel, Reason::Device];
        let never = never.map(|r| totals.pin.get(r as usize).copied().unwrap_or(0));
        totals
            .bytes
            .saturating_sub(never.iter().fold(0, |sum, n| sum.saturating_add(*n)))
    }

    /// Page cache is locked while no more than `budget` is mapped.
    pub(super) fn set_fitting(&mut self, budget: u64) {
        let budget = match settings::config().pin {
            Pin::Auto | Pin::OnFault => budget,
            Pin::Off | Pin::Populate => u64::MAX,
        };
        let mapped = self.mapped();
        let step = (budget.saturating_sub(mapped) / 4).max(1 << 20);
        self.fitting.budget = budget;
        self.fitting.next_look = mapped.saturating_add(step).min(budget);
    }

    /// Whether `attr` is page cache of which a lock of ours would depend on what is mapped.
    pub(super) fn must_fit(&self, attr: Attr) -> bool {
        self.fitting.budget != u64::MAX && is_ours(attr)
    }

    /// Whether everything that is mapped fits.
    pub(super) fn fits(&self) -> bool {
        self.mapped() <= self.fitting.budget
    }

    /// Whether others' part is to be looked at first.
    pub(super) fn is_fitting_stale(&self) -> bool {
        self.mapped() > self.fitting.next_look
    }

    /// Bytes of page cache that are locked and could be let go of.
    #[inline]
    fn cache_to_give(&self) -> u64 {
        self.ledger.totals().cache.saturating_sub(self.fitting.kept)
    }

    /// The ledger has changed.
    #[inline]
    pub(super) fn watch(&self) {
        if self.cache_to_give() != 0 && self.is_fitting_stale() {
            DUE.store(true, Relaxed);
        }
    }
}

/// Nanoseconds between two looks at what others have, at the least.
const INTERVAL: u64 = 250_000_000;
/// Less page cache than this is not worth a look: a small program in a sandbox opens no files
/// that it has not opened without the shim.
const MUCH: u64 = 16 << 20;
/// When that was done last.
static LOOKED: AtomicU64 = AtomicU64::new(0);

/// Looks now and then whether others have taken the room in which page cache is locked. To be
/// called every few hundred events, when nothing is in progress.
#[cold]
#[inline(never)]
pub fn revisit() {
    if !limits::is_shared() {
        return;
    }
    let (now, last) = (time::now(), LOOKED.load(Relaxed));
    let due = now.saturating_sub(last) >= INTERVAL;
    if !due
        || LOOKED
            .compare_exchange(last, now, Relaxed, Relaxed)
            .is_err()
    {
        return;
    }
    if lock().is_some_and(|g| g.cache_to_give() >= MUCH) {
        DUE.store(true, Relaxed);
        keep();
    }
}

/// Lets go of page cache if not everything fits any more. To be called at the end of a call.
#[inline]
pub fn keep() {
    if DUE.load(Relaxed) && thread::current().flights[0].get() == 0 {
        keep_slowly();
    }
}

#[cold]
#[inline(never)]
fn keep_slowly() {
    DUE.store(false, Relaxed);
    reckon();
    let Some(over) = lock().map(|g| !g.fits()) else {
        return DUE.store(true, Relaxed);
    };
    if !over {
        return;
    }
    let (flight, _) = flight::begin(Call::Mmap);
    let_go_of_cache();
    drop(flight);
}

fn let_go_of_cache() {
    let Some(all) = PageRange::new(0, USER_END) else {
        return;
    };
    let mut busy = false;
    let any = let_go_of(all, |guard, part, attr| {
        let cache = attr.flags.has(Flags::CACHE);
        let others = cache && flight::in_the_way(guard, part, true);
        busy |= others;
        (cache && !others).then_some(part)
    });
    if any {
        counters::count(Counter::PinLimited);
    }
    let Some(mut guard) = lock() else {
        return DUE.store(true, Relaxed);
    };
    guard.update(all, |_, a| match a.pin.reason {
        Reason::Off if is_ours(a) => Attr {
            pin: Column::no(Reason::Limit),
            ..a
        },
        _ => a,
    });
    guard.fitting.kept = match busy {
        true => 0,
        false => guard.ledger.totals().cache,
    };
    // What another call is about goes at the end of that one.
    DUE.store(busy, Relaxed);
}

/// Whether `attr` is page cache that the application has not locked itself.
fn is_ours(attr: Attr) -> bool {
    attr.flags.has(Flags::CACHE) && !attr.flags.has(Flags::APP_LOCKED)
}
