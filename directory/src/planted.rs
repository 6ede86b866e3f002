//! Wrong versions of single lines, which the tests have to notice. The feature `planted` has all of
//! them in one build, in which TESTS_PLANTED=NAME, read at the start, chooses one. Without the
//! feature [`planted!`](crate::planted) is the right version, and the wrong one is not compiled.
//! tests/planted.txt says what is wrong with each, and which test notices it.

/// Is its second expression, which is right; or the first, which is wrong, if that fault is chosen.
#[cfg(not(feature = "planted"))]
#[doc(hidden)]
#[macro_export]
macro_rules! planted {
    ($name:literal, $wrong:expr, $right:expr $(,)?) => {
        $right
    };
}

/// Is its second expression, which is right; or the first, which is wrong, if that fault is chosen.
#[cfg(feature = "planted")]
#[doc(hidden)]
#[macro_export]
macro_rules! planted {
    ($name:literal, $wrong:expr, $right:expr $(,)?) => {{
        const HERE: u64 = $crate::planted::number($name.as_bytes());
        if $crate::planted::is_chosen(HERE) {
            $wrong
        } else {
            $right
        }
    }};
}

#[cfg(feature = "planted")]
pub use chosen::{choose, is_chosen, number, VARIABLE};

#[cfg(feature = "planted")]
mod chosen {
    use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// The variable of the environment that has the name.
    pub const VARIABLE: &[u8] = b"TESTS_PLANTED";

    static CHOSEN: AtomicU64 = AtomicU64::new(0);

    /// Chooses the fault of that name.
    pub fn choose(name: &[u8]) {
        CHOSEN.store(number(name), Relaxed);
    }

    /// Returns whether the fault with this number is the chosen one.
    #[inline(always)]
    pub fn is_chosen(fault: u64) -> bool {
        CHOSEN.load(Relaxed) == fault
    }

    /// Returns the number of a name (FNV-1a).
    pub const fn number(name: &[u8]) -> u64 {
        let (mut hash, mut rest) = (0xcbf2_9ce4_8422_2325_u64, name);
        while let [first, others @ ..] = rest {
            hash = (hash ^ *first as u64).wrapping_mul(0x100_0000_01b3);
            rest = others;
        }
        hash
    }
}
