//! The system call.

use crate::arch::{self, Frame};

/// A raw system call: `call!(number, arguments...)`, up to six of them, each cast to
/// u64. EPERM, too, if a filter of the program's does not let it through: it is not made then
/// (`filter`). Safe to write down, so it stays in this crate, whose functions answer for what the call
/// does to memory.
macro_rules! call {
    ($nr:expr $(, $a:expr)*) => { $crate::entry::call!(@ $nr, [$($a as u64,)* 0, 0, 0, 0, 0, 0]) };
    (@ $nr:expr, [$a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr $(, $_rest:expr)*]) => {{
        let (nr, a, b, c, d, e, f) = ($nr as u64, $a, $b, $c, $d, $e, $f);
        // SAFETY: by the function that this stands in: what it can't answer for itself is in
        // its contract.
        $crate::errno::check(unsafe { $crate::arch::enter([nr, a, b, c, d, e, f]) })
    }};
}
pub(crate) use call;

/// The application's own call, made for it: from this library's text, so that
/// `strace -k` shows that it came through here.
///
/// # Safety
/// Exactly as safe as the application's own system call was.
#[inline]
pub unsafe fn real(frame: &Frame) -> i64 {
    // SAFETY: by the contract above.
    unsafe { arch::application_call(frame) }
}
