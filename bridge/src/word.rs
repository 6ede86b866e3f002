//! Words of memory, and atomic operations on them: by instructions of the processor.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// What is done with a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Adds the operand, and wraps.
    Add,
    /// Puts the operand in if the word is as expected.
    CompareSwap,
    /// Puts the operand in.
    Swap,
    /// Nothing.
    Load,
    /// Puts the operand in, and tells nothing of what was there.
    Store,
}

/// Bytes of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// 32 bits.
    Four,
    /// 64 bits.
    Eight,
}

impl Width {
    /// In bytes.
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
        }
    }
}

/// An operation on one word. Of 32 bits the low half of operand and result counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// What is done.
    pub act: Act,
    /// How large the word is.
    pub width: Width,
    /// Its address in its owner's memory.
    pub addr: u64,
    /// What is added or put in.
    pub operand: u64,
    /// Of [`Act::CompareSwap`], what must be there.
    pub expected: u64,
}

impl Operation {
    /// Whether it may change the word.
    pub fn writes(&self) -> bool {
        self.act != Act::Load
    }

    /// Whether the word is naturally aligned, so that it lies in one page and one cache line.
    pub fn is_aligned(&self) -> bool {
        self.addr % self.width.bytes() == 0
    }

    /// Carries it out on the word at `at`; what was there, 0 of [`Act::Store`]. A load acquires, a
    /// store releases, the others do both.
    ///
    /// # Safety
    /// The word is mapped at `at`, with the right to write if it [`writes`](Self::writes), and
    /// `at` is aligned as its address is.
    #[inline]
    pub unsafe fn carry_out(&self, at: u64) -> u64 {
        macro_rules! on {
            ($atomic:ident, $int:ident) => {{
                // SAFETY: by the contract above; others use it by atomic instructions, too, or it is
                // theirs what they get.
                let word = unsafe { $atomic::from_ptr(at as *mut $int) };
                let operand = self.operand as $int;
                let before = match self.act {
                    Act::Add => word.fetch_add(operand, AcqRel),
                    Act::CompareSwap => word
                        .compare_exchange(self.expected as $int, operand, AcqRel, Acquire)
                        .unwrap_or_else(|found| found),
                    Act::Swap => word.swap(operand, AcqRel),
                    Act::Load => word.load(Acquire),
                    Act::Store => {
                        word.store(operand, Release);
                        0
                    }
                };
                before as u64
            }};
        }
        match self.width {
            Width::Four => on!(AtomicU32, u32),
            Width::Eight => on!(AtomicU64, u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(word: &mut u64, width: Width, act: Act, operand: u64, expected: u64) -> u64 {
        let addr = core::ptr::from_mut(word) as u64;
        let operation = Operation {
            act,
            width,
            addr,
            operand,
            expected,
        };
        // SAFETY: a word of ours.
        unsafe { operation.carry_out(addr) }
    }

    #[test]
    fn words_change_as_they_are_told() {
        const OTHER: u64 = 0xabcd_0123 << 32;
        for (width, top) in [(Width::Four, OTHER), (Width::Eight, 0)] {
            let all = match width {
                Width::Four => u64::from(u32::MAX),
                Width::Eight => u64::MAX,
            };
            let mut word = top | 5;
            assert_eq!(on(&mut word, width, Act::Add, 3, 0), 5);
            assert_eq!(on(&mut word, width, Act::CompareSwap, 1, 7), 8);
            assert_eq!(on(&mut word, width, Act::CompareSwap, all, 8), 8);
            assert_eq!(on(&mut word, width, Act::Load, 0, 0), all);
            assert_eq!(on(&mut word, width, Act::Add, 2, 0), all);
            assert_eq!(on(&mut word, width, Act::Swap, 9, 0), 1);
            assert_eq!(on(&mut word, width, Act::Store, 77, 0), 0);
            assert_eq!(word, top | 77, "{width:?}");
        }
    }

    #[test]
    fn words_are_naturally_aligned() {
        let at = |width, addr| {
            let act = Act::Load;
            let (operand, expected) = (0, 0);
            Operation {
                act,
                width,
                addr,
                operand,
                expected,
            }
            .is_aligned()
        };
        assert!(at(Width::Four, 4) && at(Width::Eight, 8));
        assert!(!at(Width::Four, 2) && !at(Width::Eight, 4));
    }
}
