//! Bytes of the program's that a request names. They may be anything: where the kernel would say
//! EFAULT there must be no signal.

use crate::arch::Frame;
use crate::memory;
use crate::sys::{self, Errno, Segment};
use crate::track::filters;

/// What libibverbs makes its requests of lies on the stack, not further out than this.
const NEAR: u64 = 64 << 10;

/// This thread's stack, further out than what the shim has there, where nothing goes before the call
/// returns.
#[derive(Clone, Copy)]
pub struct Stack {
    start: u64,
    bytes: u64,
}

impl Stack {
    /// What the ledger knows of it to be there and to stay.
    #[inline]
    pub fn further_out(frame: &Frame) -> Self {
        let start = core::ptr::from_ref(frame).addr() as u64 + size_of::<Frame>() as u64;
        let mut bytes = 0;
        memory::steady_unasked_from(start, true, |end| bytes = (end - start).min(NEAR));
        Self { start, bytes }
    }
}

/// A piece of memory that the program names.
#[derive(Clone, Copy)]
pub struct Copy {
    at: u64,
    len: u64,
}

/// Whether a copy could be made.
#[derive(PartialEq, Eq)]
pub enum Made {
    /// It was.
    Yes,
    /// The memory is not there.
    No,
    /// A filter forbids the call that finds out.
    Forbidden,
}

impl Copy {
    /// `len` bytes at `at`.
    pub const fn of(at: u64, len: usize) -> Self {
        Self {
            at,
            len: len as u64,
        }
    }

    /// Whether they are on the stack.
    #[inline]
    const fn is_on(&self, stack: &Stack) -> bool {
        let distance = self.at.wrapping_sub(stack.start);
        distance <= stack.bytes && self.len <= stack.bytes - distance
    }

    /// Copies them to `to`, which has the room. Whether that could be done.
    #[inline]
    pub fn read(&self, stack: &Stack, to: *mut u8) -> bool {
        if self.len == 0 {
            return true;
        }
        if !self.is_on(stack) {
            match self.copy_checked(sys::Access::Read, to) {
                Made::Forbidden if memory::steady_unasked(self.at, self.len, false) => (),
                made => return made == Made::Yes,
            }
        }
        // SAFETY: readable memory, which nobody but the program can take away in the midst of its own
        // request, and the room that the caller has.
        unsafe { core::ptr::copy_nonoverlapping(self.at as *const u8, to, self.len as usize) };
        true
    }

    /// Writes `from`, which is as long.
    #[inline]
    pub fn write(&self, stack: &Stack, from: &[u8]) -> Made {
        debug_assert_eq!(self.len, from.len() as u64);
        if !self.is_on(stack) {
            match self.copy_checked(sys::Access::Write, from.as_ptr().cast_mut()) {
                Made::Forbidden if memory::steady_unasked(self.at, self.len, true) => (),
                made => return made,
            }
        }
        // SAFETY: writable memory, likewise, which the program gives for this.
        unsafe { core::ptr::copy_nonoverlapping(from.as_ptr(), self.at as *mut u8, from.len()) };
        Made::Yes
    }

    /// Has the kernel copy between them and `own`.
    #[cold]
    #[inline(never)]
    fn copy_checked(&self, access: sys::Access, own: *mut u8) -> Made {
        // Who makes a call that is forbidden may be killed.
        if filters::is_shut_in() {
            return Made::Forbidden;
        }
        let (addr, len) = (own as u64, self.len);
        let there = Segment { addr: self.at, len };
        let own = Segment { addr, len };
        // SAFETY: `own` is as long, and the caller's; what is there is the program's, which names
        // it to be read or written by this very request.
        match unsafe { sys::copy_between(access, sys::getpid(), &[own], &[there]) } {
            Ok(n) if n == len => Made::Yes,
            Ok(_) | Err(Errno::FAULT) => Made::No,
            Err(_) => Made::Forbidden,
        }
    }
}
