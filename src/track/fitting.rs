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

use crate::config::Pin;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_directory::vocab::{Attr, Flags};

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

    /// Page cache is locked while no more than `budget` is mapped, with REGALL_PIN set to `pin`.
    /// `mapped` is.
    pub fn set(&mut self, budget: u64, mapped: u64, pin: Pin) {
        let budget = match pin {
            Pin::Auto | Pin::OnFault => budget,
            Pin::Off | Pin::Populate => u64::MAX,
        };
        let step = (budget.saturating_sub(mapped) / 4).max(1 << 20);
        self.budget = budget;
        self.next_look = mapped.saturating_add(step).min(budget);
    }

    /// Of locked page cache `kept` bytes are not ours to let go of.
    pub fn keep(&mut self, kept: u64) {
        self.kept = kept;
    }

    /// Whether memory that says `attr` is page cache of which a lock of ours would depend on
    /// what is mapped.
    pub fn concerns(&self, attr: Attr) -> bool {
        self.budget != u64::MAX && is_ours(attr)
    }

    /// Whether page cache may be locked while so many bytes are mapped.
    pub fn has_room_for(&self, mapped: u64) -> bool {
        mapped <= self.budget
    }

    /// Whether others' part is to be looked at first, with so many bytes mapped.
    pub fn is_stale(&self, mapped: u64) -> bool {
        mapped > self.next_look
    }

    /// Bytes of `cache`, which are locked, that could be let go of.
    #[inline]
    pub fn to_give(&self, cache: u64) -> u64 {
        cache.saturating_sub(self.kept)
    }

    /// Asks for a look, at the end of a call, whether everything fits.
    pub fn look(&self) {
        DUE.store(true, Relaxed);
    }
}

/// Whether it is to be looked at whether everything fits.
#[inline]
pub fn is_due() -> bool {
    DUE.load(Relaxed)
}

/// Says whether a look at whether everything fits is due.
pub fn set_due(due: bool) {
    DUE.store(due, Relaxed);
}

/// Whether `attr` is page cache that the application has not locked itself.
pub fn is_ours(attr: Attr) -> bool {
    attr.flags.has(Flags::CACHE) && !attr.flags.has(Flags::APP_LOCKED)
}
