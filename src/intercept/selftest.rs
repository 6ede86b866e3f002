//! Test a patch by what it does: fires every kind of call at start-up and sees
//! which ones arrive. The hook ends a call that is expected, so that nothing
//! happens and no seccomp filter sees it; one that does not arrive is made so
//! that the kernel refuses it.

use crate::arch::Frame;
use crate::patch;
use crate::sys::Errno;
use crate::thread::{self, Thread, STRICT};
use crate::track;
use regall_directory::each_call;
use regall_directory::layout::Call;
use regall_directory::numbers;

/// What an expected call returns.
const ANSWER: i64 = -(Errno::NOSYS.0 as i64);

/// A C function that makes a system call.
type Function = extern "C" fn(u64, u64, u64, u64, u64, u64, u64) -> i64;

/// An address that no mapping call accepts.
const UNALIGNED: u64 = 1;
/// Flags and options that no kernel knows.
const NONSENSE: u64 = 0x7fff_0000;

macro_rules! tries {
    ($($(#[$doc:meta])* $name:ident = $n:literal => $word:literal,
        numbers $numbers:tt,
        functions [$(($function:literal, $arguments:expr)),*],
        by_syscall [$(($nr:ident, $given:expr)),*];)*) => {
        /// The public functions, and arguments that the kernel refuses should the call get through.
        pub const FUNCTIONS: &[(&str, Call, [u64; 6])] = &[$($(($function, Call::$name, $arguments),)*)*];

        /// Calls that are made through `syscall()`, and so show that its site works.
        const THROUGH_SYSCALL: &[(u64, [u64; 6])] = &[$($((numbers::raw::$nr as u64, $given),)*)*];
    };
}

each_call! { tries }

/// Fires them all. Returns a bit for each [`Call`] that did not arrive.
pub fn run() -> u64 {
    let thread = thread::current();
    let mut missed = 0u64;
    for (name, call, args) in FUNCTIONS {
        // A function that this libc does not have can't be called either.
        let Some(at) = patch::find_function(name) else {
            continue;
        };
        if !fire(thread, at, number_of(*call), *args) {
            missed |= 1 << *call as u64;
        }
    }
    if let Some(at) = patch::find_function("syscall") {
        for (nr, [a, b, c, d, e, f]) in THROUGH_SYSCALL {
            thread.selftest.set(*nr + 1);
            // SAFETY: libc's syscall(), called as C calls it.
            let function: Function = unsafe { core::mem::transmute(at as usize) };
            function(*nr, *a, *b, *c, *d, *e, *f);
            if !took(thread) {
                missed |= numbers::call_of(*nr).map_or(0, |call| 1 << call as u64);
            }
        }
    }
    // main() finds errno as C promises it: 0.
    if let Some(at) = patch::find_function("__errno_location") {
        // SAFETY: libc's own function for it, which takes nothing.
        let errno: extern "C" fn() -> *mut i32 = unsafe { core::mem::transmute(at as usize) };
        // SAFETY: this thread's errno.
        unsafe { *errno() = 0 };
    }
    missed
}

fn fire(thread: &Thread, at: u64, nr: u64, [a, b, c, d, e, f]: [u64; 6]) -> bool {
    thread.selftest.set(nr + 1);
    // SAFETY: a function of libc's with at most six integer arguments; a
    // further one is ignored by the C calling convention.
    let function: Function = unsafe { core::mem::transmute(at as usize) };
    function(a, b, c, d, e, f, 0);
    took(thread)
}

/// Whether the expected call has arrived; expects nothing any more.
fn took(thread: &Thread) -> bool {
    thread.selftest.replace(0) == 0
}

/// A call has arrived while the test expects one, or of a thread that is [`STRICT`]: what comes of it,
/// if that is known here.
#[cold]
pub fn arrived(thread: &Thread, frame: &Frame) -> Option<i64> {
    match thread.selftest.get() {
        STRICT => Some(track::real(frame)),
        expected if expected == frame.nr + 1 => {
            thread.selftest.set(0);
            Some(ANSWER)
        }
        _ => None,
    }
}

fn number_of(call: Call) -> u64 {
    (0..numbers::NUMBERS as u64)
        .find(|nr| numbers::call_of(*nr) == Some(call))
        .unwrap_or(0)
}
