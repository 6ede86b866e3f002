//! The application's own calls, as the kernel gets them.

use crate::arch::{self, Frame};
use crate::base::{counters, unseen};
use crate::sys::{self, time};
use crate::thread;
use regall_directory::layout::Counter;

/// The application's own call.
#[inline]
pub fn real(frame: &Frame) -> i64 {
    let thread = thread::current();
    let value = if thread.timing.get() {
        let start = time::spent();
        // SAFETY: as below.
        let value = unsafe { sys::real(frame) };
        thread
            .elsewhere
            .set(thread.elsewhere.get() + time::spent().saturating_sub(start));
        value
    } else {
        // SAFETY: the application's own call, unchanged but for what each
        // handler says it changes.
        unsafe { sys::real(frame) }
    };
    if takes_memory(frame) {
        unseen::memory_gone();
    }
    thread.real_value.set(value);
    thread.real_done.set(true);
    value
}

/// Returns whether a call may take memory away, and what is mapped there may be other memory then.
fn takes_memory(frame: &Frame) -> bool {
    match frame.nr as i64 {
        libc::SYS_munmap | libc::SYS_mremap | libc::SYS_shmat | libc::SYS_shmdt => true,
        libc::SYS_mmap => frame.args[3] & libc::MAP_FIXED as u64 != 0,
        _ => false,
    }
}

/// What registrars do since `start`, in ticks, is their time, and not the hooks'.
pub fn spent(counter: Counter, start: u64) {
    let nanos = time::nanos(arch::ticks().wrapping_sub(start));
    counters::add(counter, nanos);
    let elsewhere = &thread::current().elsewhere;
    elsewhere.set(elsewhere.get().saturating_add(nanos));
}

/// Whether what the kernel left in rax is an error.
#[inline]
pub fn failed(value: i64) -> bool {
    (-4095..0).contains(&value)
}
