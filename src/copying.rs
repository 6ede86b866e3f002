//! The application's own process_vm_readv and process_vm_writev. What they are about is
//! copied by [`regall_bridge::process_vm`] where that is quicker than the kernel, or where
//! the kernel does not allow it; anything else is the call that it was.

use crate::arch::Frame;
use crate::base::{counters, settings};
use crate::host::Shim;
use crate::sys::{self, time, Errno};
use crate::thread::{self, Thread};
use crate::track::real;
use core::mem::MaybeUninit;
use regall_bridge::host::Host;
use regall_bridge::kind::{Kind as Mechanism, Order};
use regall_bridge::pool::{Caller, Pool};
use regall_bridge::process_vm::{instead, of_ourselves, serve, Answer, Call as Asked};
use regall_bridge::transfer::Way;
use regall_directory::layout::Call;

/// Processes that the application copies from and to.
static POOL: Pool = Pool::new();

/// Handles one call.
#[inline(never)]
pub fn attach(call: Call, frame: &Frame) -> i64 {
    counters::count_call(call);
    let order = settings::config().copy;
    let by_map = order.has(Mechanism::Map) && !POOL.goes_by(frame.args[0] as u32);
    if by_map {
        if let Some(value) = timed(|| attend(call, frame, order, false)) {
            return value;
        }
    }
    let value = real(frame);
    match sys::check(value) {
        Ok(bytes) => {
            if bytes > 0 {
                Shim.count(Mechanism::Cma, bytes);
                if !by_map {
                    POOL.went_by(frame.args[0] as u32, bytes);
                }
            }
            value
        }
        Err(Errno::PERM | Errno::NOSYS) if order != Order::OFF => {
            timed(|| attend(call, frame, order, true)).unwrap_or(value)
        }
        Err(_) => value,
    }
}

/// Has the bridge answer: what is to be in rax. None: that's for the real call, or what that
/// has said holds.
#[inline(never)]
fn attend(call: Call, frame: &Frame, order: Order, refused: bool) -> Option<i64> {
    let thread = thread::current();
    let way = match call {
        Call::ProcessVmReadv => Way::Get,
        _ => Way::Put,
    };
    let mut place = MaybeUninit::uninit();
    let asked = Asked::read(&mut place, &Shim, way, frame.args)?;
    let caller = Caller {
        host: &Shim,
        order,
        thread: thread.tid(),
    };
    let ourselves = asked.pid == sys::memory_owner();
    let answer = match (refused, ourselves) {
        (false, true) => None,
        // SAFETY: the application's own call; its memory is looked up before it is touched.
        (false, false) => Some(unsafe { serve(&POOL, &caller, asked) }),
        // SAFETY: likewise.
        (true, true) => Some(unsafe { of_ourselves(&Shim, asked) }),
        // SAFETY: likewise.
        (true, false) => Some(unsafe { instead(&POOL, &caller, asked) }),
    }?;
    let value = match answer {
        Answer::Kernels => return None,
        Answer::Bytes(bytes) => bytes as i64,
        Answer::Error(e) => -i64::from(e.0),
    };
    thread.real_value.set(value);
    thread.real_done.set(true);
    Some(value)
}

/// The time that copies take is the application's, not the hook's.
fn timed<T>(what: impl FnOnce() -> T) -> T {
    let thread = thread::current();
    if !thread.timing.get() {
        return what();
    }
    timed_slowly(thread, what)
}

#[cold]
fn timed_slowly<T>(thread: &Thread, what: impl FnOnce() -> T) -> T {
    let start = time::spent();
    let done = what();
    let spent = time::spent().saturating_sub(start);
    thread.elsewhere.set(thread.elsewhere.get() + spent);
    done
}

/// In a child of fork: it has none of its parent's peers.
pub fn forget() {
    // SAFETY: fork has taken this thread alone along.
    unsafe { POOL.forget() };
}
