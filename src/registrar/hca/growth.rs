//! Memory that grows: whether what it grows by is registered together with what is there.
//!
//! A request that lies across both needs one region over both. It is registered when the memory
//! grows, so that no request has to wait for it, but not for memory of which nobody ever asks for
//! such bytes: each time all of it is registered again.

use regall_directory::addr::PageRange;

/// So often a region is made one with what its memory grows by, after a request lay across such a
/// place.
const PROVEN: u8 = 8;
/// Without such a request a region is so many times larger than what it grows by, at the most.
const TRIAL: u64 = 64;

/// Places where a region has grown that are remembered.
const SEAMS: usize = 4;

/// What is known of requests across places where a region's memory has grown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Growth {
    /// Where it has grown, the last time first; 0: nowhere.
    seams: [u64; SEAMS],
    /// So often it is made one with what it grows by. 1: once, for a trial.
    left: u8,
}

impl Growth {
    /// Of a region that has not grown.
    pub const NEW: Self = Self {
        seams: [0; SEAMS],
        left: 1,
    };
    /// Of a region that was joined because a request lay across its parts.
    pub const PROVEN: Self = Self {
        seams: [0; SEAMS],
        left: PROVEN,
    };

    /// A request for `bytes` of the region was served.
    pub fn is_asked_for(&mut self, bytes: PageRange) {
        let across = |seam: &u64| bytes.start() < *seam && *seam < bytes.end();
        if self.seams.iter().any(across) {
            self.left = PROVEN;
        }
    }

    /// Whether requests have lain across such places lately.
    pub const fn is_proven(self) -> bool {
        self.left > 1
    }

    /// Whether a region of `len` bytes, in which something was asked for or not, is made one with
    /// `more` bytes for a trial.
    pub const fn is_tried(self, asked: bool, len: u64, more: u64) -> bool {
        self.left == 1 && asked && len <= more.saturating_mul(TRIAL)
    }

    /// The region has become one with what its memory has grown by, from `seam` on.
    pub const fn grown(self, seam: u64) -> Self {
        let [a, b, c, _] = self.seams;
        Self {
            seams: [seam, a, b, c],
            left: self.left.saturating_sub(1),
        }
    }

    /// What is left of the region beside a hole.
    pub const fn cut(self) -> Self {
        Self {
            seams: [0; SEAMS],
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;

    fn bytes(start: u64, end: u64) -> PageRange {
        PageRange::new(start << 20, end << 20).unwrap()
    }

    #[test]
    fn what_nobody_asks_for_grows_apart() {
        assert!(!Growth::NEW.is_proven());
        assert!(!Growth::NEW.is_tried(false, 400 * KIB, 132 * KIB));
        assert!(Growth::NEW.is_tried(true, 400 * KIB, 132 * KIB));
        // All of it is registered again.
        assert!(!Growth::NEW.is_tried(true, 65 * 132 * KIB, 132 * KIB));
    }

    #[test]
    fn a_trial_that_was_of_no_use_is_the_last() {
        let mut grown = Growth::NEW.grown(3 << 20);
        for beside in [bytes(1, 3), bytes(3, 5)] {
            grown.is_asked_for(beside);
            assert!(!grown.is_proven() && !grown.is_tried(true, KIB, KIB));
        }
        grown.is_asked_for(bytes(2, 4));
        assert!(grown.is_proven());
    }

    #[test]
    fn a_request_may_lie_across_an_earlier_place() {
        for place in 3..=6 {
            let grown = (3..=6).fold(Growth::NEW, |g, seam| g.grown(seam << 20));
            let mut beside = grown;
            beside.is_asked_for(bytes(place, place + 1));
            assert!(!beside.is_proven());
            let mut across = grown;
            across.is_asked_for(bytes(place - 1, place + 1));
            assert!(across.is_proven());
        }
    }

    #[test]
    fn it_is_given_up_where_no_request_lies_across_any_more() {
        let mut growth = Growth::PROVEN;
        let mut steps = 0;
        while growth.is_proven() {
            growth = growth.grown(1 << 20).cut();
            // The place is gone.
            growth.is_asked_for(bytes(0, 2));
            steps += 1;
        }
        assert_eq!(steps, PROVEN - 1);
    }
}
