//! The guard: a thread that does nothing. Started when the XPMEM driver is to attach something
//! here: see [`xpmem::guard`].

use crate::sys;
use crate::threads::{self, Files, Thread};
use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_bridge::xpmem;

/// The guard thread. It has descriptors of its own, which are closed when it ends.
pub static THREAD: Thread = Thread::new(c"regall-guard", Files::Own, run);

/// Whether it has opened the device (1), or can't (2).
static READY: AtomicU32 = AtomicU32::new(SOON);
const SOON: u32 = 0;
const STANDS: u32 = 1;
const GAVE_UP: u32 = 2;
/// How long it sleeps before it looks whether it is alone, in nanoseconds.
const NAP: u32 = 500_000_000;

/// Whether it stands guard; started if need be.
pub fn stands() -> bool {
    if !THREAD.runs() {
        READY.store(SOON, Relaxed);
        if let Err(e) = THREAD.start(entry) {
            log::info!("no guard thread ({e}): nothing is attached through XPMEM");
            return false;
        }
    }
    THREAD.await_change(&READY, SOON);
    READY.load(Acquire) == STANDS
}

extern "C" fn entry() -> ! {
    THREAD.live()
}

fn run() {
    let state = match xpmem::guard() {
        Ok(()) => STANDS,
        Err(_) => GAVE_UP,
    };
    READY.store(state, Release);
    sys::futex_wake(&READY);
    while state == STANDS && !threads::alone() {
        sys::futex_wait(&READY, STANDS, NAP);
    }
}
