//! A lock between the threads of one process, which a child of fork is not left waiting
//! for: a holder that the child has not got loses it.

use crate::atomic::{AtomicU32, Ordering::*};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

const FREE: u32 = 0;
/// In the low two bits of what is not free; the process is above them.
const HELD: u32 = 1;
const AWAITED: u32 = 2;
const BITS: u32 = 2;

/// The pid of this process, as it is in locks that are held; 0: not known yet.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// In a process that uses locks for the first time, and in a child of fork: which one it
/// is. Where nobody says so in a child, it is noticed when it has to wait.
pub fn in_process() {
    PROCESS.store(regall_sys::getpid(), Relaxed);
}

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
    /// A lock that nobody holds.
    pub const fn new(what: T) -> Self {
        Self {
            state: AtomicU32::new(FREE),
            what: UnsafeCell::new(what),
        }
    }

    /// Waits until it is free, and takes it.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        let held = PROCESS.load(Relaxed) << BITS | HELD;
        let free = self.state.compare_exchange(FREE, held, Acquire, Relaxed);
        let abandoned = free.is_err() && self.wait();
        Held {
            lock: self,
            abandoned,
        }
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        let held = PROCESS.load(Relaxed) << BITS | HELD;
        let free = self.state.compare_exchange(FREE, held, Acquire, Relaxed);
        free.ok().map(|_| Held {
            lock: self,
            abandoned: false,
        })
    }

    /// Whether it was taken from a holder that is not in this process.
    #[cold]
    fn wait(&self) -> bool {
        loop {
            let us = PROCESS.load(Relaxed);
            let awaited = us << BITS | AWAITED;
            let holder = match self.state.swap(awaited, Acquire) {
                FREE => return false,
                held => held >> BITS,
            };
            if holder != 0 && holder != us {
                return true;
            }
            if us != 0 && us != regall_sys::getpid() {
                in_process();
                continue;
            }
            regall_sys::futex_wait(&self.state, awaited, NAP);
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
pub struct Held<'a, T> {
    lock: &'a Lock<T>,
    abandoned: bool,
}

impl<T> Held<'_, T> {
    /// Whether this is a child of fork, and what is behind the lock was being changed by a
    /// thread that is not in it: sound, but perhaps half done. Said once.
    #[inline]
    pub fn abandoned(&self) -> bool {
        self.abandoned
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.lock.what.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held.
        unsafe { &mut *self.lock.what.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Release) & AWAITED != 0 {
            regall_sys::futex_wake(&self.lock.state);
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

    #[test]
    fn what_another_process_holds_is_taken() {
        let lock = Lock::new(7);
        // As the child of a fork finds it.
        lock.state
            .store((regall_sys::getpid() ^ 1) << BITS | HELD, Relaxed);
        assert!(lock.lock().abandoned());
        assert!(!lock.lock().abandoned());
    }
}
