//! Test a patch by what it does: fires every kind of call at start-up and sees
//! which ones arrive. The hook ends a call that is expected, so that nothing
//! happens and no seccomp filter sees it; one that does not arrive is made so
//! that the kernel refuses it.

use super::patch;
use crate::arch::Frame;
use crate::base::numbers;
use crate::sys::Errno;
use crate::thread::{self, Thread};
use regall_directory::layout::Call;

/// What an expected call returns.
pub const ANSWER: i64 = -(Errno::NOSYS.0 as i64);

/// A C function that makes a system call.
type Function = extern "C" fn(u64, u64, u64, u64, u64, u64, u64) -> i64;

/// An address that no mapping call accepts.
const UNALIGNED: u64 = 1;
/// Flags and options that no kernel knows.
const NONSENSE: u64 = 0x7fff_0000;

/// The public functions and arguments that the kernel refuses should the call
/// get through. brk is missing: it can't fail harmlessly (libc keeps what it
/// returns), so `syscall(SYS_brk)` has to do for it.
const FUNCTIONS: &[(&str, Call, [u64; 6])] = &[
    ("mmap", Call::Mmap, [0, 0, 0, 0, u64::MAX, 0]),
    ("munmap", Call::Munmap, [UNALIGNED, 0, 0, 0, 0, 0]),
    // libc looks at mremap's flags itself: these have to be good ones.
    ("mremap", Call::Mremap, [UNALIGNED, 0, 0, 0, 0, 0]),
    (
        "mprotect",
        Call::Mprotect,
        [UNALIGNED, 0, NONSENSE, 0, 0, 0],
    ),
    (
        "pkey_mprotect",
        Call::PkeyMprotect,
        [UNALIGNED, 0, NONSENSE, 0, 0, 0],
    ),
    ("madvise", Call::Madvise, [UNALIGNED, 0, NONSENSE, 0, 0, 0]),
    (
        "process_madvise",
        Call::ProcessMadvise,
        [u64::MAX, 0, 0, NONSENSE, NONSENSE, 0],
    ),
    ("shmat", Call::Shmat, [u64::MAX, UNALIGNED, 0, 0, 0, 0]),
    ("shmdt", Call::Shmdt, [UNALIGNED, 0, 0, 0, 0, 0]),
    (
        "remap_file_pages",
        Call::RemapFilePages,
        [UNALIGNED, 0, NONSENSE, 0, NONSENSE, 0],
    ),
    ("mlock", Call::Mlock, [u64::MAX, 4096, 0, 0, 0, 0]),
    ("mlock2", Call::Mlock2, [u64::MAX, 4096, 1, 0, 0, 0]),
    ("munlock", Call::Munlock, [u64::MAX, 4096, 0, 0, 0, 0]),
    ("mlockall", Call::Mlockall, [NONSENSE, 0, 0, 0, 0, 0]),
    ("msync", Call::Msync, [UNALIGNED, 0, NONSENSE, 0, 0, 0]),
    (
        "process_vm_readv",
        Call::ProcessVmReadv,
        [u64::MAX, 0, 0, 0, 0, NONSENSE],
    ),
    (
        "process_vm_writev",
        Call::ProcessVmWritev,
        [u64::MAX, 0, 0, 0, 0, NONSENSE],
    ),
    // No user is -1.
    ("setuid", Call::Credentials, [u64::MAX, 0, 0, 0, 0, 0]),
];

/// Calls that are made through `syscall()`, and so show that its site works.
const THROUGH_SYSCALL: &[(u64, [u64; 6])] = &[
    (libc::SYS_mmap as u64, [0, 0, 0, 0, u64::MAX, 0]),
    (libc::SYS_brk as u64, [0; 6]),
    (453, [UNALIGNED, 0, NONSENSE, 0, 0, 0]),
];

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

/// A call has arrived while the test expects one: whether it is that one.
#[cold]
pub fn arrived(thread: &Thread, frame: &Frame) -> bool {
    let expected = thread.selftest.get() == frame.nr + 1;
    if expected {
        thread.selftest.set(0);
    }
    expected
}

fn number_of(call: Call) -> u64 {
    (0..numbers::NUMBERS as u64)
        .find(|nr| numbers::call_of(*nr) == Some(call))
        .unwrap_or(0)
}
