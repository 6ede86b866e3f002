//! Where the index gets its memory from.

use core::ptr::NonNull;

/// Gives the ledger its memory.
///
/// # Safety
/// A block that `alloc` returns must be zeroed, aligned to 64 bytes, `bytes` long,
/// used by nobody else, and stay mapped for as long as the process lives.
pub unsafe trait Memory {
    /// `bytes` of memory as above; `None` if there is none.
    fn alloc(&mut self, bytes: usize) -> Option<NonNull<u8>>;
}
