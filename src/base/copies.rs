//! Another copy of the library in the same process, by dlopen or dlmopen of another file, or by two
//! entries of LD_PRELOAD. Two that are on would patch each other's calls and enter each other
//! without end, so one of them stays off.

use crate::sys;
use crate::sys::arch::Frame;
use regall_directory::planted;

/// What a copy asks by a call of its own, as an advice that there is not.
const QUESTION: u64 = 0x3f6c_6c61_6765_7200;
/// What one that is on answers: no result of the kernel's.
const ANSWER: i64 = 0x6c6c_6167_6572;

/// Whether another copy of the library is on in this process: then this copy's calls come to its
/// hook.
#[cold]
#[inline(never)]
pub fn is_another_on() -> bool {
    let question = Frame {
        nr: libc::SYS_madvise as u64,
        // No memory begins there: the kernel says EINVAL.
        args: [1, 0, QUESTION, 0, 0, 0],
    };
    // SAFETY: it is about no memory.
    unsafe { sys::real(&question) == ANSWER }
}

/// What is answered to madvise(2) with this advice, if another copy of the library asks.
#[inline]
pub fn answer(advice: u64) -> Option<i64> {
    (advice == QUESTION).then_some(planted!("two-copies", 0, ANSWER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_gives_another_answer() {
        assert!(!is_another_on());
        assert_eq!(answer(QUESTION), Some(ANSWER));
        assert_eq!(answer(libc::MADV_DONTNEED as u64), None);
    }
}
