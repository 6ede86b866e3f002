//! Memory of the shim's own: whole pages from the kernel, handed out in order
//! and never given back. What needs reuse (leaves, slots) does its own.

use crate::ledger::Memory;
use crate::sys;
use core::ptr::NonNull;
use core::sync::atomic::{compiler_fence, Ordering::SeqCst};
use regall_directory::addr::PageRange;

/// Bytes that are mapped at a time.
const CHUNK: usize = 256 << 10;
/// Pieces from this size on that no chunk has room for are mapped by themselves.
const LARGE: usize = CHUNK / 4;
/// Chunks that can be told apart for the ledger; beyond that allocation fails.
const CHUNKS: usize = 256;

/// A bump allocator. Every piece is zeroed and aligned to 64 bytes.
pub struct Arena {
    next: usize,
    end: usize,
    chunks: [Option<PageRange>; CHUNKS],
    used: usize,
    announced: usize,
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Arena {
    /// An arena that holds nothing yet.
    pub const fn new() -> Self {
        Self {
            next: 0,
            end: 0,
            chunks: [None; CHUNKS],
            used: 0,
            announced: 0,
        }
    }

    /// Bytes mapped so far.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().flatten().map(|c| c.len()).sum()
    }

    /// The chunks that were mapped since the last call.
    pub fn fresh_chunk(&mut self) -> Option<PageRange> {
        let chunk = *self.chunks.get(self.announced)?;
        if chunk.is_some() {
            self.announced += 1;
        }
        chunk
    }

    /// Announces every chunk again (a ledger that is built anew).
    pub fn announce_all(&mut self) {
        self.announced = 0;
    }

    fn map(&mut self, bytes: usize) -> Option<usize> {
        let place = self.chunks.get_mut(self.used)?;
        let at = sys::map_private(bytes).ok()?.as_ptr() as usize;
        *place = PageRange::new(at as u64, (at + bytes) as u64);
        self.used += 1;
        Some(at)
    }
}

// SAFETY: fresh pages of the kernel's, handed out once each, in pieces that don't
// overlap.
unsafe impl Memory for Arena {
    fn alloc(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        let bytes = bytes.checked_next_multiple_of(64)?;
        if self.end.saturating_sub(self.next) < bytes {
            if bytes >= LARGE {
                // What is left of the chunk is not lost.
                let at = self.map(bytes.checked_next_multiple_of(4096)?)?;
                return NonNull::new(at as *mut u8);
            }
            let at = self.map(CHUNK)?;
            // A handler may jump away from between these, and the arena is not built
            // anew: nothing is left then, and the next one maps another chunk.
            self.end = 0;
            compiler_fence(SeqCst);
            self.next = at;
            compiler_fence(SeqCst);
            self.end = at + CHUNK;
        }
        let at = self.next;
        self.next += bytes;
        NonNull::new(at as *mut u8)
    }
}
