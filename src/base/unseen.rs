//! Whether memory may change without a call that the shim sees. Then no region is lent: its pages
//! may be others than those that are mapped when the next request comes. And code is looked at anew
//! each time.

use super::{mode, phase};
use crate::config::Intercept;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};
use regall_directory::layout::Counter;
use regall_directory::vocab::{Attr, Kind};

/// A kernel thread may discard memory for this process (IORING_OP_MADVISE).
static RING: AtomicBool = AtomicBool::new(false);
/// Code may be written that makes system calls, and nobody looks for them there.
static CODE: AtomicBool = AtomicBool::new(false);

/// Notes that the process uses io_uring.
#[inline]
pub fn ring() {
    RING.store(true, Relaxed);
}

/// Notes how memory that says `attr` can be accessed. A library's code that somebody has made
/// writable to patch it (UCX, Open MPI and libfabric do) is searched as it is made executable. What is
/// shared may be written through another mapping, and what can't be read can't be searched.
#[inline]
pub fn memory(attr: Attr) {
    let library = matches!(attr.kind, Kind::File) && !attr.prot.shared();
    let open = attr.prot.writable() || attr.prot.shared();
    let unseen = open && !library || !attr.prot.readable();
    if attr.prot.executable() && unseen && attr.kind != Kind::Kernel && !CODE.load(Relaxed) {
        CODE.store(true, Relaxed);
    }
}

/// Returns why no region may be lent, as the counter of such requests. `None`: one may.
#[inline]
pub fn reason() -> Option<Counter> {
    match RING.load(Relaxed) {
        true => Some(Counter::UnlentRing),
        false => calls().then_some(Counter::UnlentCode),
    }
}

/// Returns whether there may be calls that nobody sees.
#[inline]
pub fn calls() -> bool {
    match mode::mode() {
        // The dispatcher sees the calls of any code.
        Intercept::Strict => false,
        Intercept::Patch => CODE.load(Relaxed),
        Intercept::Symbols => true,
    }
}

/// Whether anybody asks what has gone.
static ASKED: AtomicBool = AtomicBool::new(false);
/// How often memory may have gone since.
static GONE: AtomicU32 = AtomicU32::new(0);

/// Notes that a call has been made that may have taken memory away, whatever came of it.
#[inline]
pub fn memory_gone() {
    if ASKED.load(Relaxed) {
        GONE.fetch_add(1, Release);
    }
}

/// Returns a number that is another one as soon as a call is done that may have taken memory away.
/// `None`: nobody would see such a call.
#[inline]
pub fn memory_there() -> Option<u32> {
    if !ASKED.load(Relaxed) {
        ASKED.store(true, SeqCst);
    }
    (phase::tracking() && !calls()).then(|| GONE.load(Acquire))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy;
    use regall_directory::vocab::{Flags, Prot};

    #[test]
    fn memory_that_is_written_and_executed_at_once_ends_lending() {
        let of = |bits, kind| memory(policy::fresh(Prot::from_bits(bits), kind, Flags::EMPTY));
        for bits in [3, 5, 1] {
            of(bits, Kind::Anon);
        }
        // [vsyscall].
        of(4, Kind::Kernel);
        // A library that is patched.
        of(7, Kind::File);
        assert!(!CODE.load(Relaxed));
        of(7, Kind::Anon);
        assert!(CODE.load(Relaxed));
    }
}
