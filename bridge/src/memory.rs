//! Arrays that grow, in pages of the host's.

use crate::host::Host;
use core::ptr::NonNull;
use regall_directory::addr::round_up;
use regall_sys::{Errno, Result};

/// An array with room for so many `T`, for now.
pub struct Array<T: Copy> {
    at: Option<NonNull<T>>,
    bytes: u64,
    used: usize,
}

// SAFETY: owns its memory.
unsafe impl<T: Copy + Send> Send for Array<T> {}

impl<T: Copy> Default for Array<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Copy> Array<T> {
    /// Empty, without memory.
    pub const fn new() -> Self {
        Self {
            at: None,
            bytes: 0,
            used: 0,
        }
    }

    /// Room for `count` at least; what was there is lost.
    pub fn empty_with_room(&mut self, host: &dyn Host, count: usize) -> Result<()> {
        self.used = 0;
        let need = (count as u64).saturating_mul(size_of::<T>() as u64);
        if need <= self.bytes {
            return Ok(());
        }
        // A little more than asked for, lest each that is one more maps anew.
        let bytes = round_up(need.saturating_add(need / 4)).ok_or(Errno::NOMEM)?;
        let at = host.map(bytes)?;
        self.release(host);
        self.at = NonNull::new(at as *mut T);
        self.bytes = bytes;
        Ok(())
    }

    /// Adds one, if there is room.
    #[inline]
    pub fn push(&mut self, value: T) -> bool {
        let room = self.bytes as usize / size_of::<T>();
        let Some(at) = self.at.filter(|_| self.used < room) else {
            return false;
        };
        // SAFETY: within the memory, which is ours.
        unsafe { at.add(self.used).write(value) };
        self.used += 1;
        true
    }

    /// The elements of the array.
    #[inline]
    pub fn as_slice(&self) -> &[T] {
        match self.at {
            // SAFETY: so many have been written.
            Some(at) => unsafe { core::slice::from_raw_parts(at.as_ptr(), self.used) },
            None => &[],
        }
    }

    /// What is there, to be sorted, say.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        match self.at {
            // SAFETY: as above, and nobody else has it.
            Some(at) => unsafe { core::slice::from_raw_parts_mut(at.as_ptr(), self.used) },
            None => &mut [],
        }
    }

    /// Keeps the first `count`.
    pub fn truncate(&mut self, count: usize) {
        self.used = self.used.min(count);
    }

    /// Gives the memory back.
    pub fn release(&mut self, host: &dyn Host) {
        if let Some(at) = self.at.take() {
            // SAFETY: its own, borrowed from `self` alone.
            unsafe { host.unmap(at.as_ptr() as u64, self.bytes) };
        }
        self.bytes = 0;
        self.used = 0;
    }
}

/// One `T` in pages of its own.
pub fn place<T>(host: &dyn Host, value: T) -> Result<NonNull<T>> {
    let bytes = round_up(size_of::<T>() as u64).ok_or(Errno::NOMEM)?;
    let at = NonNull::new(host.map(bytes)? as *mut T).ok_or(Errno::NOMEM)?;
    // SAFETY: fresh pages, page-aligned, large enough.
    unsafe { at.write(value) };
    Ok(at)
}

/// Takes it out of there again, and gives the pages back.
///
/// # Safety
/// `at` is from [`place`], and nobody uses it any more.
pub unsafe fn take<T>(host: &dyn Host, at: NonNull<T>) -> T {
    // SAFETY: by the contract above.
    let value = unsafe { at.read() };
    let bytes = round_up(size_of::<T>() as u64).unwrap_or(0);
    // SAFETY: likewise.
    unsafe { host.unmap(at.as_ptr() as u64, bytes) };
    value
}
