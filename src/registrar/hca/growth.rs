//! Memory that grows: whether what it grows by is registered together with what is there.
//!
//! A request that lies across both needs one region over both. It is registered when the memory
//! grows, so that no request has to wait for it, but not for memory of which nobody ever asks for
//! such bytes: each time all of it is registered again.

use regall_directory::addr::PageRange;

/// A region is made one with what its memory grows by once less often than this, after a request lay
/// across such a place.
const PROVEN: u8 = 4;
/// It is so many times larger than what it grows by, at the most: so many times what the memory grows by
/// is registered again, whatever is asked for.
const TIMES: u64 = 32;

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

    /// Whether it is made one with what it grows by for a trial, if something was asked for in it.
    pub const fn is_tried(self, asked: bool) -> bool {
        self.left == 1 && asked
    }

    /// Whether a region of `len` bytes is not too large to be made one with `more`.
    pub const fn is_worth(len: u64, more: u64) -> bool {
        len <= more.saturating_mul(TIMES)
    }

    /// Of a region that is made of two: the one of which more is known.
    pub fn or(self, other: Self) -> Self {
        if other.left > self.left {
            other
        } else {
            self
        }
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
    use regall_directory::addr::PAGE;

    const KIB: u64 = 1 << 10;

    fn bytes(start: u64, end: u64) -> PageRange {
        PageRange::new(start << 20, end << 20).unwrap()
    }

    #[test]
    fn what_nobody_asks_for_grows_apart() {
        assert!(!Growth::NEW.is_proven());
        assert!(!Growth::NEW.is_tried(false));
        assert!(Growth::NEW.is_tried(true));
        // All of it is registered again.
        assert!(Growth::is_worth(400 * KIB, 132 * KIB));
        assert!(!Growth::is_worth(33 * 132 * KIB, 132 * KIB));
    }

    /// The heap grows to 1 GiB by 132 KiB, and now and then somebody asks across.
    #[test]
    fn what_is_registered_again_is_bounded_by_what_it_grows_by() {
        const STEP: u64 = 132 * KIB;
        for every in 1..20u64 {
            let (mut at, mut region, mut all) = (1 << 30, (1u64 << 30, Growth::NEW), 0);
            for n in 0..(1u64 << 30) / STEP {
                let (start, growth) = region;
                let joins = growth.is_proven() && Growth::is_worth(at - start, STEP);
                let grown = if joins { growth.grown(at) } else { Growth::NEW };
                let start = if joins { start } else { at };
                at += STEP;
                all += at - start;
                region = (start, grown);
                if n % every == 0 {
                    // Across where it has grown last: joined in the request, if it is not yet.
                    let across = PageRange::new(at - STEP - PAGE, at - STEP + PAGE).unwrap();
                    region.1.is_asked_for(across);
                    if !joins {
                        region.1 = Growth::PROVEN;
                    }
                }
            }
            assert!(all <= (TIMES + 1) * (1 << 30), "every {every}: {all}");
        }
    }

    #[test]
    fn a_trial_that_was_of_no_use_is_the_last() {
        let mut grown = Growth::NEW.grown(3 << 20);
        for beside in [bytes(1, 3), bytes(3, 5)] {
            grown.is_asked_for(beside);
            assert!(!grown.is_proven() && !grown.is_tried(true));
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
