//! Where calls arrive: from patched sites through trampolines, from relocation
//! slots (`symbols`), or as SIGSYS (`strict`). Turns each into an event for
//! [`crate::track`].

use crate::arch;
#[cfg(not(any(test, fuzzing)))]
use crate::arch::regall_resume;
use crate::arch::Frame;
use crate::base::{counters, mode, phase, settings};
use crate::config::{Hca, Intercept};
use crate::patch;
use crate::sys::{self, lasting, time};
use crate::thread::{self, Thread};
use crate::track::{self, subscribers};
#[cfg(not(any(test, fuzzing)))]
use core::sync::atomic::AtomicBool;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, Counter};
use regall_directory::numbers;
use regall_directory::vocab::Prot;

mod pool;
pub mod selftest;
mod slots;
pub mod strict;
pub mod symbols;
mod watch;

/// Number of the arrival that is the constructor's.
pub const CONSTRUCT: u64 = u64::MAX;
/// What the constructor's arrival is to run; null: it has been there.
static CONSTRUCTOR: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());
/// One arrival in so many is timed.
const TIMED: u32 = 256;

/// What a thread's block said of the arrival further out, while another is handled.
#[repr(C)]
pub struct Outer {
    frame: *mut Frame,
    real_value: i64,
    real_done: bool,
}

arch::entry_stubs!(hook, left, Outer);

/// The next arrival with the number [`CONSTRUCT`] runs `construct`. Another one is a call of
/// the application's, which the kernel does not know.
pub fn begin_with(construct: fn(&Frame)) {
    CONSTRUCTOR.store(construct as *mut (), Relaxed);
}

#[cold]
fn to_be_constructed() -> Option<fn(&Frame)> {
    let construct = CONSTRUCTOR.swap(core::ptr::null_mut(), Relaxed);
    // SAFETY: null, or the function that `begin_with` was given; null is None.
    unsafe { core::mem::transmute::<*mut (), Option<fn(&Frame)>>(construct) }
}

/// Every trampoline ends up here. Returns what goes into rax.
///
/// Whatever happens in here, `stand_down` can bring the program back to its site.
///
/// # Safety
/// `frame` is what an entry stub built on this thread's stack, and `outer` is room
/// beside it for [`left`].
pub unsafe extern "C" fn hook(frame: *mut Frame, outer: *mut Outer) -> i64 {
    let thread = thread::current();
    let was = Outer {
        frame: thread.frame.replace(frame),
        real_value: thread.real_value.get(),
        real_done: thread.real_done.replace(false),
    };
    // SAFETY: by the contract above.
    unsafe { outer.write(was) };
    // SAFETY: the entry stub built it on this stack, for the length of this call.
    let frame = unsafe { &mut *frame };
    if frame.nr == CONSTRUCT {
        if let Some(construct) = to_be_constructed() {
            thread.real_done.set(true);
            thread.real_value.set(0);
            construct(frame);
            return 0;
        }
    }
    strict::enter(thread);
    event(frame)
}

/// An arrival has been handled. Hands its result, `value`, through.
///
/// # Safety
/// `outer` is what [`hook`] was given.
pub unsafe extern "C" fn left(outer: *const Outer, value: i64) -> i64 {
    let thread = thread::current();
    strict::leave(thread);
    // SAFETY: by the contract above.
    let outer = unsafe { &*outer };
    thread.frame.set(outer.frame);
    thread.real_value.set(outer.real_value);
    thread.real_done.set(outer.real_done);
    value
}

/// Whether an ioctl with this request is handled. The kernel goes by its low 32 bits.
#[inline]
fn is_tracked_ioctl(request: u64) -> bool {
    match u64::from(request as u32) {
        numbers::UFFDIO_REGISTER => true,
        numbers::RDMA_VERBS_IOCTL => settings::config().hca != Hca::Off,
        _ => false,
    }
}

/// An application's call, from wherever it came.
#[inline]
pub fn event(frame: &mut Frame) -> i64 {
    let call = match frame.nr as libc::c_long {
        // The trampoline has looked at the request already; other ways in have not.
        libc::SYS_ioctl if !is_tracked_ioctl(frame.args[1]) => None,
        libc::SYS_ioctl => match u64::from(frame.args[1] as u32) {
            numbers::RDMA_VERBS_IOCTL => return (subscribers::table().verbs)(frame),
            _ => Some(Call::Userfault),
        },
        _ => numbers::call_of(frame.nr),
    };
    let thread = thread::current();
    let Some(call) = call else {
        return match thread.selftest.get() {
            thread::STRICT => track::real(frame),
            _ => track::hands::around(frame, |frame| {
                lasting::around(frame, track::real, sys::has_the_process_files)
            }),
        };
    };
    if thread.selftest.get() != 0 {
        if let Some(value) = selftest::arrived(thread, frame) {
            return value;
        }
    }
    let untimed = thread.untimed.get();
    if untimed < TIMED {
        thread.untimed.set(untimed + 1);
        return track::handle(call, frame);
    }
    timed(thread, call, frame)
}

/// As the rest of [`event`], with a look at the clock before and after.
#[cold]
fn timed(thread: &Thread, call: Call, frame: &mut Frame) -> i64 {
    thread.untimed.set(0);
    thread.elsewhere.set(0);
    thread.timing.set(true);
    let start = time::spent();
    let value = track::handle(call, frame);
    let spent = time::spent()
        .saturating_sub(start)
        .saturating_sub(thread.elsewhere.get());
    thread.timing.set(false);
    counters::add(Counter::HookNanos, spent.saturating_mul(u64::from(TIMED)));
    watch::look();
    if thread.flights[0].get() == 0 && phase::tracking() {
        track::revoking::overdue();
    }
    value
}

/// Start-up: patches what is mapped.
pub fn install(config: patch::Config) -> patch::Report {
    let host = patch::Host {
        entries: [
            arch::regall_entry_call as *const () as u64,
            arch::regall_entry_full as *const () as u64,
        ],
        pool: pool::range(),
        view: &track::VIEW,
        note: take_note,
    };
    patch::install(config, host)
}

/// Memory that has just become executable is searched for sites before it can
/// run. What is readable ends at `end`. `running`: a part of it was executable before.
#[inline(never)]
pub fn new_code(range: PageRange, end: u64, shared: bool, running: bool) {
    if mode::mode() == Intercept::Symbols {
        return;
    }
    let report = if shared {
        patch::scan_shared(range, end)
    } else {
        patch::scan(range, end, running)
    };
    counters::count(Counter::Scans);
    take_note(&report);
}

/// Puts what a scan found where people can see it.
pub fn take_note(report: &patch::Report) {
    if let Some(h) = counters::header() {
        h.sites_patched
            .fetch_add(u64::from(report.patched), Relaxed);
        h.sites_refused
            .fetch_add(u64::from(report.refused), Relaxed);
    }
    let own = |prot| track::own_memory(Prot::from_call(prot, false));
    let code = report
        .new_zones
        .iter()
        .flatten()
        .map(|zone| (*zone, own(5)));
    for (range, attr) in code.chain(report.new_table.map(|table| (table, own(3)))) {
        if let Some(mut guard) = track::lock() {
            guard.insert(range, attr);
        }
    }
    for gone in report.gone.iter().flatten() {
        // Both with the lock: somebody else may be given the addresses at once.
        if let Some(mut guard) = track::lock() {
            guard.remove(*gone, |_, _| ());
            // SAFETY: the patcher's own, which it uses no more.
            let _ = unsafe { sys::unmap(gone.start(), gone.len()) };
        }
    }
    if report.refused > 0 {
        // Nobody sees what is called there.
        track::descriptors::unseen();
        log::info!(
            "{} system-call sites can't be patched; the first is at {:#x}",
            report.refused,
            report.first_refused.first().copied().unwrap_or(0)
        );
    }
    if report.busy {
        log::info!("code was mapped while other code was searched; it is searched next");
    }
}

/// A panic: the shim gives up and the program goes on where it called in.
#[cfg(not(any(test, fuzzing)))]
#[cold]
pub fn stand_down(info: &core::panic::PanicInfo) -> ! {
    static AGAIN: AtomicBool = AtomicBool::new(false);
    let thread = thread::current();
    let first = !AGAIN.swap(true, Relaxed);
    track::lock::release_if_mine();
    if first {
        log::error!("internal error, {info}");
        track::give_up("internal error");
    }
    let frame = thread.frame.get();
    // SAFETY: null, or the arrival that is being handled on this very stack.
    match unsafe { frame.as_ref() } {
        Some(f) => {
            let value = if thread.real_done.get() {
                thread.real_value.get()
            } else {
                track::real(f)
            };
            thread.frame.set(core::ptr::null_mut());
            // SAFETY: the frame is that of the arrival, further out on this stack.
            unsafe { regall_resume(frame, value) }
        }
        // A panic outside of any arrival: on a thread of our own, or in the C interface,
        // which promises not to. Nothing can be returned to; the thread waits for the end.
        None => loop {
            crate::threads::end_if_ours();
            crate::sys::yield_now();
        },
    }
}
