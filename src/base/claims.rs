//! Whose that is which calls in progress have set aside.
//!
//! Addresses alone do not tell: as soon as the kernel has unmapped a range, another thread can be
//! given it, and begin a call that sets aside what lies there now, before the first call has come
//! back to forget its own. The later claim is the one that holds.

use regall_directory::addr::PageRange;

/// Claims at a time; of more, the oldest ends.
const MOST: usize = 16;

/// A number that no other claim has had.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Claim(u64);

/// The claims that hold.
pub struct Claims {
    held: [Option<(Claim, PageRange)>; MOST],
    last: u64,
}

impl Default for Claims {
    fn default() -> Self {
        Self::new()
    }
}

impl Claims {
    /// A table without claims.
    pub const fn new() -> Self {
        Self {
            held: [None; MOST],
            last: 0,
        }
    }

    /// Claims `range`. Earlier claims that overlap it end; `ended` is told their ranges.
    pub fn begin(&mut self, range: PageRange, mut ended: impl FnMut(PageRange)) -> Claim {
        self.last += 1;
        let new = (Claim(self.last), range);
        for place in &mut self.held {
            if let Some((_, old)) = place.take_if(|(_, old)| old.overlaps(range)) {
                ended(old);
            }
        }
        // What is free comes before the oldest.
        let place = self
            .held
            .iter_mut()
            .min_by_key(|p| p.map(|(claim, _)| claim));
        if let Some((_, old)) = place.and_then(|place| place.replace(new)) {
            ended(old);
        }
        new.0
    }

    /// The range of `claim`, if it still holds.
    pub fn range(&self, claim: Claim) -> Option<PageRange> {
        let mut held = self.held.iter().flatten();
        held.find(|(c, _)| *c == claim).map(|(_, range)| *range)
    }

    /// Ends `claim`. Its range, if it held until now.
    pub fn end(&mut self, claim: Claim) -> Option<PageRange> {
        let mut places = self.held.iter_mut();
        places.find_map(|place| place.take_if(|(c, _)| *c == claim).map(|(_, range)| range))
    }
}

/// What calls have set aside, and whose it is.
pub struct Aside<T> {
    /// All of it.
    pub parts: T,
    claims: Claims,
}

impl<T> Aside<T> {
    /// No claims on `parts`.
    pub const fn new(parts: T) -> Self {
        Self {
            parts,
            claims: Claims::new(),
        }
    }

    /// All claims have ended.
    pub fn forget_claims(&mut self) {
        self.claims = Claims::new();
    }

    /// A call sets aside what it takes out of `range`. Who held an overlapping claim has come
    /// back from the kernel, or never will: what those ranges and `range` have is discarded.
    pub fn begin(&mut self, range: PageRange, mut discard: impl FnMut(&mut T, PageRange)) -> Claim {
        let parts = &mut self.parts;
        let claim = self.claims.begin(range, |old| discard(parts, old));
        discard(parts, range);
        claim
    }

    /// The range of `claim`, if it still holds.
    pub fn range(&self, claim: Claim) -> Option<PageRange> {
        self.claims.range(claim)
    }

    /// Ends `claim`. Its range, if it held until now.
    pub fn end(&mut self, claim: Claim) -> Option<PageRange> {
        self.claims.end(claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(start << 12, end << 12).unwrap()
    }

    #[test]
    fn the_later_claim_holds() {
        let mut claims = Claims::new();
        let mut ended = Vec::new();
        let first = claims.begin(range(0, 10), |r| ended.push(r));
        let other = claims.begin(range(20, 30), |r| ended.push(r));
        assert_eq!(ended, []);
        let second = claims.begin(range(5, 15), |r| ended.push(r));
        assert_eq!(ended, [range(0, 10)]);
        assert_eq!(claims.range(first), None);
        assert_eq!(claims.end(first), None);
        assert_eq!(claims.range(second), Some(range(5, 15)));
        assert_eq!(claims.end(second), Some(range(5, 15)));
        assert_eq!(claims.range(second), None);
        assert_eq!(claims.end(other), Some(range(20, 30)));
    }

    #[test]
    fn the_oldest_ends_where_there_are_too_many() {
        let mut claims = Claims::new();
        let mut ended = Vec::new();
        let n = MOST as u64;
        let all: Vec<_> = (0..=n)
            .map(|n| claims.begin(range(n, n + 1), |r| ended.push(r)))
            .collect();
        assert_eq!(ended, [range(0, 1)]);
        assert_eq!(claims.range(all[0]), None);
        assert_eq!(claims.range(all[1]), Some(range(1, 2)));
    }
}
