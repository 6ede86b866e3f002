//! Operations on words of memory that another thread may unmap at any moment.
//!
//! An instruction on memory that is gone is a signal, which ends the program; and no system call
//! adds to a word or swaps it. So the instruction runs in a process of its own that shares this
//! one's memory, and has signal handlers of its own: there the signal is its end, and here it is
//! EFAULT. That holds for whatever takes memory away: munmap and mprotect of threads whose calls no
//! hook sees, files that are cut short, protection keys, pages that are broken. The process lives for
//! that one instruction, while the thread that has made it waits (as with vfork(2)).
//!
//! What can be seen of it: its number is used up; wait(2) does not find it, but with __WALL; and
//! what getrusage(2) says of children has its few microseconds, and this process's own size.

use crate::arch;
use crate::sys::process::{end_with_maker, exit_thread, may_be_filtered, reap};
use crate::sys::{check, signal, Errno, Result};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_bridge::word::Operation;

/// Memory is shared, and descriptors, which would have to be copied. Nobody is told of the end.
const FLAGS: i32 = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES;
const SA_RESTORER: u64 = 0x0400_0000;

/// What is to be done there, and what came of it.
struct Trial {
    operation: Operation,
    before: UnsafeCell<u64>,
    /// Whether it has been done.
    done: AtomicU32,
}

/// Carries `operation` out, on a thread of ours that has all signals blocked; what was there.
///
/// EFAULT: it is not mapped, or its protection says no; EOPNOTSUPP: this process is, or may be,
/// under a seccomp filter, which may kill for a process that is made; EAGAIN, ENOMEM: there can be
/// no process at this moment.
pub fn operate(operation: &Operation) -> Result<u64> {
    if may_be_filtered() {
        return Err(Errno::NOTSUP);
    }
    let trial = Trial {
        operation: *operation,
        before: UnsafeCell::new(0),
        done: AtomicU32::new(0),
    };
    let argument = (&raw const trial).cast_mut().cast::<c_void>();
    // SAFETY: it runs below this frame, where nothing is in use while this thread waits for its end,
    // touches nothing but the word and `trial`, and neither thread-local storage nor libc.
    let made = unsafe { arch::regall_run_apart(FLAGS as u64, enter, argument) };
    reap(check(made)?);
    match trial.done.load(Acquire) {
        0 => Err(Errno::FAULT),
        // SAFETY: who wrote it has ended.
        _ => Ok(unsafe { *trial.before.get() }),
    }
}

/// The process's life.
extern "C" fn enter(trial: *mut c_void) -> ! {
    // SAFETY: from `operate`, which waits.
    let trial = unsafe { &*trial.cast::<Trial>() };
    // Memory would outlive the program if it waited for a page for ever.
    end_with_maker();
    let ends: extern "C" fn(i32) -> ! = faulted;
    let action = [ends as usize as u64, SA_RESTORER, ends as usize as u64, 0];
    let mut faults = 0;
    for number in [libc::SIGSEGV, libc::SIGBUS] {
        faults |= 1 << (number - 1);
        // SAFETY: the handler touches nothing and does not return. These are this process's alone.
        if unsafe { signal::set_action(number, &action, None) }.is_err() {
            exit_thread(1);
        }
    }
    // A signal that is blocked would end it by its default, which may write a core file.
    if signal::change_mask(libc::SIG_UNBLOCK, &faults, None).is_err() {
        exit_thread(1);
    }
    // SAFETY: the owner lets peers do that. If it is not mapped, or not so, that ends this process.
    let before = unsafe { trial.operation.carry_out(trial.operation.addr) };
    // SAFETY: who reads it waits for this process's end.
    unsafe { *trial.before.get() = before };
    trial.done.store(1, Release);
    exit_thread(0)
}

extern "C" fn faulted(_: i32) -> ! {
    exit_thread(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regall_bridge::word::{Act, Width};
    use std::sync::atomic::{AtomicBool, AtomicU64};

    fn add(addr: u64, operand: u64) -> Result<u64> {
        operate(&Operation {
            act: Act::Add,
            width: Width::Eight,
            addr,
            operand,
            expected: 0,
        })
    }

    /// Signals as the helper has them: all blocked.
    fn as_a_helper() {
        signal::change_mask(libc::SIG_BLOCK, &u64::MAX, None).unwrap();
    }

    #[test]
    fn a_word_is_operated_on() {
        as_a_helper();
        let word = AtomicU64::new(5);
        assert_eq!(add(word.as_ptr() as u64, 3), Ok(5));
        assert_eq!(add(word.as_ptr() as u64, 0), Ok(8));
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        as_a_helper();
        let pages = crate::sys::map_private(2 << 12).unwrap().as_ptr() as u64;
        // SAFETY: mapped above.
        unsafe { crate::sys::protect(pages, 1 << 12, libc::PROT_READ) }.unwrap();
        assert_eq!(add(pages, 1), Err(Errno::FAULT));
        assert_eq!(add(pages + 4096, 1), Ok(0));
        // SAFETY: mapped above; nobody uses it.
        unsafe { crate::sys::unmap(pages, 2 << 12) }.unwrap();
        assert_eq!(add(pages + 4096, 1), Err(Errno::FAULT));
        // Beyond the end of a file.
        let file = regall_bridge::window::source::memory_file(libc::MFD_CLOEXEC).unwrap();
        file.truncate(1 << 12).unwrap();
        let at = file.map_shared(0, 1 << 12).unwrap();
        assert_eq!(add(at, 1), Ok(0));
        file.truncate(0).unwrap();
        assert_eq!(add(at, 1), Err(Errno::FAULT));
        // SAFETY: mapped above; nobody uses it.
        unsafe { crate::sys::unmap(at, 1 << 12) }.unwrap();
    }

    #[test]
    fn nothing_of_the_owner_s_own_is_lost() {
        let (word, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|threads| {
            let own = threads.spawn(|| {
                let mut added = 0;
                while !stop.load(Relaxed) {
                    word.fetch_add(1, Relaxed);
                    added += 1;
                }
                added
            });
            as_a_helper();
            for _ in 0..200 {
                add(word.as_ptr() as u64, 1).unwrap();
            }
            stop.store(true, Relaxed);
            let own: u64 = own.join().unwrap();
            assert_eq!(word.load(Relaxed), own + 200);
        });
    }
}
