//! Memory for tests of what is kept in the shim's own.

use crate::ledger::index::Memory;
use core::ptr::NonNull;

/// The test program's heap; nothing is ever given back.
pub struct Heap;

// SAFETY: the heap's memory, of that size and alignment, never given back.
unsafe impl Memory for Heap {
    fn alloc(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let layout = std::alloc::Layout::from_size_align(bytes, 64).ok()?;
        // SAFETY: more than 0 bytes.
        NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
    }
}
