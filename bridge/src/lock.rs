//! A lock for a few hundred nanoseconds, between the threads of one process.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering::*};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

/// How long a sleeper sleeps before it looks again, in nanoseconds.
const NAP: u32 = 10_000_000;

/// Something that one thread at a time may use. Not for signal handlers.
pub struct Lock<T> {
    state: AtomicU32,
    what: UnsafeCell<T>,
}

// SAFETY: `what` is reached by the holder of the lock alone.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    /// Free.
    pub const fn new(what: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            what: UnsafeCell::new(what),
        }
    }

    /// Waits until it is free, and takes it.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        let free = self.state.compare_exchange(FREE, HELD, Acquire, Relaxed);
        if free.is_err() {
            self.wait();
        }
        Held(self)
    }

    #[cold]
    fn wait(&self) {
        while self.state.swap(AWAITED, Acquire) != FREE {
            regall_sys::futex_wait(&self.state, AWAITED, NAP);
        }
    }

    /// In a child of fork, where the holder may be missing: free again.
    ///
    /// # Safety
    /// No other thread uses it.
    pub unsafe fn reset(&self) {
        self.state.store(FREE, Relaxed);
    }
}

/// The lock, held.
pub struct Held<'a, T>(&'a Lock<T>);

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.what.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.0.what.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.0.state.swap(FREE, Release) == AWAITED {
            regall_sys::futex_wake(&self.0.state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        static SUM: Lock<u64> = Lock::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..100_000).for_each(|_| *SUM.lock() += 1));
            }
        });
        assert_eq!(*SUM.lock(), 400_000);
    }
}
