//! A lock between the threads of one process, which a child of fork is not left waiting
//! for: a holder that the child has not got loses it.

use crate::atomic::{AtomicU32, Ordering::*};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicPtr, AtomicU64};
use regall_sys::process::exists;

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
    SHARED.store(0, Relaxed);
    SHARERS.iter().for_each(|sharer| sharer.store(0, Relaxed));
}

/// As [`in_process`], where nobody has said so yet or this is a child that has a copy of its
/// parent's memory. One that shares the memory leaves it, and is noted: the other has its locks.
pub fn in_some_process() {
    let us = regall_sys::getpid();
    match PROCESS.load(Relaxed) {
        0 => in_process(),
        known if known == us => (),
        _ if is_sharing() => share(us),
        _ => in_process(),
    }
}

/// This process, as it is in locks: another number in a child of fork that has a copy of its
/// parent's memory. 0: not known yet.
#[inline]
pub fn process() -> u32 {
    PROCESS.load(Relaxed)
}

/// Processes that share the memory of the one that has said [`in_process`], which may have ended
/// before them; 0: none. Their locks have their own pids in them, so that they can be told from what
/// that one has left. There may be more of them: then the others are taken for that one.
static SHARERS: [AtomicU32; 8] = [const { AtomicU32::new(0) }; 8];

/// Whether there has been one.
static SHARED: AtomicU32 = AtomicU32::new(0);

#[cold]
fn share(pid: u32) {
    if is_sharer(pid) {
        return;
    }
    SHARED.store(1, Relaxed);
    let put = |place: &AtomicU32| {
        let there = place.load(Relaxed);
        let is_free = there == 0 || !exists(u64::from(there));
        is_free && place.compare_exchange(there, pid, Relaxed, Relaxed).is_ok()
    };
    let _ = SHARERS.iter().any(put);
}

fn is_sharer(pid: u32) -> bool {
    SHARERS.iter().any(|sharer| sharer.load(Relaxed) == pid)
}

/// The pid that is in locks which this process holds.
#[inline]
fn mark() -> u32 {
    match SHARED.load(Relaxed) {
        0 => PROCESS.load(Relaxed),
        _ => own_mark(),
    }
}

#[cold]
fn own_mark() -> u32 {
    let us = regall_sys::getpid();
    match is_sharer(us) {
        true => us,
        false => PROCESS.load(Relaxed),
    }
}

/// Whether a lock is nobody's any more that has `holder` in it.
#[cold]
fn is_left(holder: u32) -> bool {
    let (us, known) = (regall_sys::getpid(), PROCESS.load(Relaxed));
    if known != 0 && known != us && !is_sharing() {
        in_process();
        return holder != us;
    }
    match holder {
        0 => false,
        holder if holder == us => false,
        // A thread of this process, or of one that shares its memory.
        holder if holder == known || is_sharer(holder) => !exists(u64::from(holder)),
        // From before a fork.
        _ => true,
    }
}

/// See [`marked_by`]; null: there is none.
static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Locks are told of forks by `word`: it is 0 in a child that has a copy of this memory, until that has said [`in_process`], and
/// something else in one that shares it.
pub fn marked_by(word: &'static AtomicU64) {
    MARK.store(core::ptr::from_ref(word).cast_mut(), Release);
}

/// Whether this process, which has another pid, is known to share the memory of the one that has
/// said [`in_process`]. Holders of locks are alive then.
#[cold]
fn is_sharing() -> bool {
    // SAFETY: null, or from `marked_by`.
    let word = unsafe { MARK.load(Acquire).as_ref() };
    word.is_some_and(|word| word.load(Relaxed) != 0)
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
        let held = mark() << BITS | HELD;
        let free = self.state.compare_exchange(FREE, held, Acquire, Relaxed);
        let abandoned = free.is_err() && self.wait();
        Held {
            lock: self,
            abandoned,
        }
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        let held = mark() << BITS | HELD;
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
            let seen = self.state.load(Relaxed);
            let left = seen != FREE && is_left(seen >> BITS);
            let then = match seen == FREE || left {
                // (Others may be waiting, too.)
                true => mark() << BITS | AWAITED,
                // Whose it is stays in it.
                false => seen >> BITS << BITS | AWAITED,
            };
            let changed = self.state.compare_exchange(seen, then, Acquire, Relaxed);
            if changed.is_ok() {
                if seen == FREE || left {
                    return left;
                }
                regall_sys::futex_wait(&self.state, then, NAP);
            }
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

    static HELD_BY_US: Lock<()> = Lock::new(());
    static GOT_IT: AtomicU32 = AtomicU32::new(0);
    static NOT_WIPED: AtomicU64 = AtomicU64::new(1);

    extern "C" fn takes_it(_: *mut core::ffi::c_void) -> i32 {
        let held = HELD_BY_US.lock();
        GOT_IT.store(1 + u32::from(held.abandoned()), Relaxed);
        0
    }

    #[test]
    fn who_shares_the_memory_waits_like_a_thread() {
        let mut stack = vec![0u128; 4096];
        in_process();
        marked_by(&NOT_WIPED);
        let held = HELD_BY_US.lock();
        // SAFETY: the child has a stack of its own, and uses nothing but statics.
        let pid = unsafe {
            let flags = libc::CLONE_VM | libc::SIGCHLD;
            let top = stack.as_mut_ptr().add(4096);
            libc::clone(takes_it, top.cast(), flags, core::ptr::null_mut())
        };
        assert!(pid > 0);
        std::thread::sleep(std::time::Duration::from_millis(100));
        let before = GOT_IT.load(Relaxed);
        drop(held);
        let mut status = -1;
        // SAFETY: our child.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        assert_eq!((before, GOT_IT.load(Relaxed), status), (0, 1, 0));
    }

    /// A process whose memory two others share, all three of them its parent's children.
    static FAMILY: Lock<()> = Lock::new(());
    static HOLDS: AtomicU32 = AtomicU32::new(0);
    static GOT: AtomicU32 = AtomicU32::new(0);

    fn until(what: impl Fn() -> bool) {
        while !what() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    /// Holds the lock for a while; 7: the other one had it, too.
    extern "C" fn holds(_: *mut core::ffi::c_void) -> i32 {
        until(|| !exists(u64::from(PROCESS.load(Relaxed))));
        in_some_process();
        let held = FAMILY.lock();
        HOLDS.store(1, Relaxed);
        std::thread::sleep(std::time::Duration::from_millis(100));
        let both = GOT.load(Relaxed) != 0;
        drop(held);
        if both {
            7
        } else {
            0
        }
    }

    /// Takes it when the other has it; 8: as one that was left.
    extern "C" fn wants(_: *mut core::ffi::c_void) -> i32 {
        in_some_process();
        until(|| HOLDS.load(Relaxed) != 0);
        let abandoned = FAMILY.lock().abandoned();
        GOT.store(1, Relaxed);
        if abandoned {
            8
        } else {
            0
        }
    }

    #[test]
    fn two_that_share_what_a_third_has_left_wait_for_each_other() {
        let mut stacks = [vec![0u128; 4096], vec![0u128; 4096]];
        marked_by(&NOT_WIPED);
        let mut ends = [0i32; 2];
        // SAFETY: what is forked makes system calls alone; its children have stacks of their own,
        // and use nothing but statics.
        let first = unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            match libc::fork() {
                0 => {
                    in_process();
                    let mut pids = [0i32; 2];
                    let lives = [
                        holds as extern "C" fn(_) -> _,
                        wants as extern "C" fn(_) -> _,
                    ];
                    for ((pid, life), stack) in pids.iter_mut().zip(lives).zip(&mut stacks) {
                        let flags = libc::CLONE_VM | libc::CLONE_PARENT | libc::SIGCHLD;
                        let top = stack.as_mut_ptr().add(4096);
                        *pid = libc::clone(life, top.cast(), flags, core::ptr::null_mut());
                    }
                    libc::write(ends[1], pids.as_ptr().cast(), 8);
                    libc::_exit(0)
                }
                first => first,
            }
        };
        let mut pids = [0i32; 2];
        // SAFETY: our children, and room for what is read.
        let said = unsafe {
            assert_eq!(libc::read(ends[0], pids.as_mut_ptr().cast(), 8), 8);
            [first, pids[0], pids[1]].map(|pid| {
                let mut status = -1;
                libc::waitpid(pid, &mut status, 0);
                libc::WEXITSTATUS(status)
            })
        };
        assert_eq!(said, [0, 0, 0]);
    }
}
