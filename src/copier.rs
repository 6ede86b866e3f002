//! The copy thread: carries out what was put in queues ([`regall_bridge::queue`]).
//! With the process's descriptors: peers and queues have some.

use crate::host::Shim;
use crate::sys::{self, Errno, Result};
use crate::threads::{self, Files, Thread};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering::*};
use regall_bridge::lock::Lock;
use regall_bridge::peer::Peer;
use regall_bridge::queue::Engine;

/// The copier thread, with the process's descriptors.
pub static THREAD: Thread = Thread::new(c"regall-copier", Files::Shared, run);

/// What it has to do; made when the first queue is opened, and kept.
static ENGINE: AtomicPtr<Engine> = AtomicPtr::new(core::ptr::null_mut());
static MAKING: Lock<()> = Lock::new(());
/// The process that last opened a queue. (Of a fork that nothing was told of: without the
/// shim's hooks, nothing is.)
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// What this process has under way, if it has ever opened a queue.
pub fn engine() -> Option<&'static Engine> {
    // SAFETY: null, or an engine that stays.
    unsafe { ENGINE.load(Acquire).as_ref() }
}

/// The engine, made if need be, with its thread running. EAGAIN, ENOMEM, EPERM: there can't be one.
pub fn running() -> Result<&'static Engine> {
    let engine = match engine() {
        Some(engine) => engine,
        None => make()?,
    };
    let us = sys::getpid();
    if PROCESS.swap(us, Relaxed) != us {
        THREAD.forget();
        engine.forget();
    }
    THREAD.start(entry)?;
    Ok(engine)
}

#[cold]
fn make() -> Result<&'static Engine> {
    let _one = MAKING.lock();
    if engine().is_none() {
        ENGINE.store(Engine::new(&Shim)?.as_ptr(), Release);
    }
    engine().ok_or(Errno::NOMEM)
}

/// Whether a copy of `peer`'s memory is under way.
pub fn uses(peer: NonNull<Peer>) -> bool {
    let uses = engine().is_some_and(|engine| engine.uses(peer));
    uses && PROCESS.load(Relaxed) == sys::getpid()
}

/// In a child of fork: the parent's copies are not under way here.
pub fn forget() {
    if let Some(engine) = engine() {
        engine.forget();
    }
}

extern "C" fn entry() -> ! {
    THREAD.live()
}

fn run() {
    if let Some(engine) = engine() {
        engine.work(|| !threads::alone());
    }
}
