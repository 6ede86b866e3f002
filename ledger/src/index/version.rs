//! By what a reader can tell whether the writer came in between.

use crate::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::atomic::{fence, AtomicU64};

/// A version: odd while the writer is at work on what it guards.
pub(super) struct Version(pub(super) AtomicU64);

impl Version {
    #[inline]
    pub(super) fn begin(&self) {
        let v = self.0.load(Relaxed);
        debug_assert!(v & 1 == 0, "the writer is in here already");
        self.0.store(v.wrapping_add(1), Relaxed);
        fence(Release);
    }

    #[inline]
    pub(super) fn end(&self) {
        let v = self.0.load(Relaxed);
        debug_assert!(v & 1 == 1, "the writer is not in here");
        self.0.store(v.wrapping_add(1), Release);
    }

    /// Makes everything read under the version void.
    #[inline]
    pub(super) fn bump(&self) {
        self.begin();
        self.end();
    }

    /// [`Version::begin`] after a change that was left half-way, too.
    pub(super) fn begin_anyhow(&self) {
        self.0.store(self.0.load(Relaxed) | 1, Relaxed);
        fence(Release);
    }

    /// The version before a read; `None` while the writer is in.
    #[inline]
    pub(super) fn enter(&self) -> Option<u64> {
        let v = self.0.load(Acquire);
        (v & 1 == 0).then_some(v)
    }

    /// Whether all that was read since [`Version::enter`] said `seen` is whole.
    #[inline]
    pub(super) fn still(&self, seen: u64) -> bool {
        fence(Acquire);
        self.0.load(Relaxed) == seen
    }
}
