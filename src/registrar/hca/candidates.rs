//! Which protection domains are adopted, and when. All memory is registered in each, and every mmap
//! costs a registration in each: so a few are adopted at once, and what a process has beyond them
//! when they are used for more than a buffer or two.

use super::{Domain, Hca, State};

/// Protection domains that are adopted at their first registration: so many at a time.
const AT_ONCE: usize = 4;
/// The registration at which others are adopted.
const USED: u32 = 4;
/// Protection domains, and devices, that are remembered at a time.
const MANY: usize = 64;

/// Protection domains that are not adopted.
pub struct Candidates {
    /// Addresses of those that wait, and how often the application has registered in them.
    waiting: [(u64, u32); MANY],
    /// The place for the next one, where all are taken.
    next: usize,
    /// Contexts of devices that the user leaves out; 0: none.
    left_out: [u64; MANY],
}

impl Candidates {
    /// None is known.
    pub const fn new() -> Self {
        Self {
            waiting: [(0, 0); MANY],
            next: 0,
            left_out: [0; MANY],
        }
    }

    /// The application registers in the protection domain at `pd`, which is not adopted, as
    /// `adopted` others are. Whether it is to be now.
    pub fn is_due(&mut self, pd: u64, adopted: usize) -> bool {
        if adopted < AT_ONCE {
            self.forget(pd);
            return true;
        }
        let known = self.waiting.iter().position(|(at, _)| *at == pd);
        let place = known.or_else(|| self.waiting.iter().position(|(at, _)| *at == 0));
        let n = place.unwrap_or(self.next);
        if place.is_none() {
            self.next = (n + 1) % MANY;
        }
        let Some(place) = self.waiting.get_mut(n) else {
            return false;
        };
        let many = if known.is_some() { place.1 + 1 } else { 1 };
        let due = many >= USED;
        *place = if due { (0, 0) } else { (pd, many) };
        due
    }

    /// The protection domain at `pd` is no more: another one may come to its address.
    pub fn forget(&mut self, pd: u64) {
        for place in self.waiting.iter_mut().filter(|(at, _)| *at == pd) {
            *place = (0, 0);
        }
    }

    /// Whether the device behind `context` is known to be left out.
    pub fn is_left_out(&self, context: u64) -> bool {
        self.left_out.contains(&context)
    }

    /// The device behind `context` is left out.
    pub fn leave_out(&mut self, context: u64) {
        if let Some(place) = self.left_out.iter_mut().find(|c| **c == 0) {
            *place = context;
        }
    }

    /// The context is closed; another one may come to its address.
    pub fn forget_context(&mut self, context: u64) {
        for place in self.left_out.iter_mut().filter(|c| **c == context) {
            *place = 0;
        }
    }
}

impl Hca {
    /// How many protection domains of the application's have domains, up to [`AT_ONCE`].
    pub fn adopted(&self) -> usize {
        let mut found = [0; AT_ONCE];
        let mut many = 0;
        let theirs = |d: &&Domain| d.state != State::Free && d.owner.pd != 0;
        for domain in self.used().iter().filter(theirs) {
            let known = found.iter().take(many).any(|pd| *pd == domain.owner.pd);
            if let (false, Some(place)) = (known, found.get_mut(many)) {
                *place = domain.owner.pd;
                many += 1;
            }
        }
        many
    }
}

impl Default for Candidates {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of so many registrations in the protection domain at `pd`, with four adopted.
    fn times(all: &mut Candidates, pd: u64, n: usize) -> Vec<bool> {
        (0..n).map(|_| all.is_due(pd, AT_ONCE)).collect()
    }

    #[test]
    fn four_are_adopted_at_once_and_others_when_they_are_used() {
        let mut all = Candidates::new();
        assert!((0..AT_ONCE).all(|n| all.is_due(1, n)));
        assert_eq!(times(&mut all, 5, 4), [false, false, false, true]);
        // Two at a time; one that comes to the address of one that went begins anew.
        assert_eq!(times(&mut all, 6, 2), [false; 2]);
        assert_eq!(times(&mut all, 7, 3), [false; 3]);
        all.forget(7);
        assert_eq!(times(&mut all, 7, 3), [false; 3]);
        assert_eq!(times(&mut all, 6, 2), [false, true]);
        // One of the four has gone.
        assert!(all.is_due(7, AT_ONCE - 1));
        assert_eq!(times(&mut all, 7, 3), [false; 3]);
    }

    #[test]
    fn more_than_can_be_remembered_take_turns() {
        let mut all = Candidates::new();
        for pd in 1..=MANY as u64 + 1 {
            assert_eq!(times(&mut all, pd, 1), [false]);
        }
        // The first has made place for the last, and takes the second's.
        assert_eq!(times(&mut all, 1, 1), [false]);
        assert_eq!(times(&mut all, 3, 3), [false, false, true]);
    }

    #[test]
    fn a_device_is_left_out_until_it_is_closed() {
        let mut all = Candidates::new();
        assert!(!all.is_left_out(7));
        all.leave_out(7);
        assert!(all.is_left_out(7) && !all.is_left_out(8));
        all.forget_context(7);
        assert!(!all.is_left_out(7));
    }
}
