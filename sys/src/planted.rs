//! Wrong versions of single lines, for tests that have to notice them: the feature `planted` has
//! them in one build, and REGALL_PLANTED=NAME, read at the start, chooses one. Without the feature
//! each is `false` at compile time.

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A wrong version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Fault {
    /// madvise goes to the kernel without being looked at.
    BlindToMadvise = 1,
    /// Protection domains have room for a few dozen regions.
    FewRegions,
}

/// Each fault's name in REGALL_PLANTED.
const NAMES: &[(&[u8], Fault)] = &[
    (b"blind-to-madvise", Fault::BlindToMadvise),
    (b"few-regions", Fault::FewRegions),
];

static CHOSEN: AtomicUsize = AtomicUsize::new(0);

/// Chooses the fault of that name. Returns whether there is one.
pub fn choose(name: &[u8]) -> bool {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    CHOSEN.store(found.map_or(0, |(_, fault)| *fault as usize), Relaxed);
    found.is_some()
}

impl Fault {
    /// Returns whether this is the chosen one.
    #[inline(always)]
    pub fn is_planted(self) -> bool {
        cfg!(feature = "planted") && CHOSEN.load(Relaxed) == self as usize
    }
}
