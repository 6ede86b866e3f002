//! Queue pairs of the program's. A protection domain with one in it is not deallocated, whatever is
//! registered there: so nothing need be taken out for such a call, and put back afterwards.
//!
//! Not all are known, and what is not known to be there is not counted on. What may have gone unseen is
//! no more known: a child of fork can destroy its parent's.

use super::files::FileId;
use crate::uverbs::PdHandle;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// So many are known at a time.
const MANY: usize = 64;

/// Others have this process's adapters, too.
static SHARED: AtomicBool = AtomicBool::new(false);

/// A child comes to have what this process has open.
pub fn share() {
    SHARED.store(true, Relaxed);
}

/// In such a child.
pub fn child() {
    SHARED.store(false, Relaxed);
}

/// One that is there.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pair {
    file: FileId,
    pd: PdHandle,
    handle: u32,
}

/// Those that are known.
pub struct Pairs {
    all: [Option<Pair>; MANY],
    next: usize,
}

impl Pairs {
    /// None is known.
    pub const fn new() -> Self {
        Self {
            all: [None; MANY],
            next: 0,
        }
    }

    /// The kernel has made one. It takes the place of the one that has been known longest.
    pub fn add(&mut self, file: FileId, pd: PdHandle, handle: u32) {
        if let Some(place) = self.all.get_mut(self.next) {
            *place = Some(Pair { file, pd, handle });
        }
        self.next = (self.next + 1) % MANY;
    }

    /// One is about to go.
    pub fn remove(&mut self, file: FileId, handle: u32) {
        let goes = |pair: &Pair| pair.file == file && pair.handle == handle;
        for place in self.all.iter_mut() {
            if place.as_ref().is_some_and(goes) {
                *place = None;
            }
        }
    }

    /// Returns whether there is one in a protection domain, as far as calls are seen.
    pub fn is_any_in(&self, file: FileId, pd: PdHandle) -> bool {
        let there = |pair: &Pair| pair.file == file && pair.pd == pd;
        !SHARED.load(Relaxed) && self.all.iter().flatten().any(there)
    }
}

impl Default for Pairs {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_known_until_it_goes_or_others_may_have_it() {
        let (file, other) = (FileId::from_raw(1), FileId::from_raw(2));
        let (pd, empty) = (PdHandle(5), PdHandle(6));
        let mut all = Pairs::new();
        all.add(file, pd, 7);
        all.add(file, pd, 8);
        assert!(all.is_any_in(file, pd));
        assert!(!all.is_any_in(file, empty) && !all.is_any_in(other, pd));
        all.remove(file, 7);
        all.remove(other, 8);
        assert!(all.is_any_in(file, pd));
        share();
        assert!(!all.is_any_in(file, pd));
        child();
        assert!(all.is_any_in(file, pd));
        all.remove(file, 8);
        assert!(!all.is_any_in(file, pd));
        // The oldest makes place.
        all.add(file, pd, 7);
        for handle in 0..MANY as u32 - 1 {
            all.add(file, empty, handle);
        }
        assert!(all.is_any_in(file, pd));
        all.add(file, empty, 100);
        assert!(!all.is_any_in(file, pd));
    }
}
