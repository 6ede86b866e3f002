//! What happens around a call. One order, written down once for each kind:
//!
//! ```text
//! unmap-type:  claim → leave the ledger and the directory → the real call → restore if it failed
//! map-type:    the real call → enter the ledger → pin → publish as pinned
//! ```
//!
//! The lock is held while the ledger changes, never while the kernel works. Two
//! calls on the same bytes at the same time meet in [`flight`] and both read
//! the range anew from /proc/self/maps ([`resync`]). So does a call that fails
//! or does something that the fast paths don't know.

use crate::arch::Frame;
use crate::base::phase;
use crate::share;
use crate::sys;
use crate::text::{Lossy, Text};
use crate::thread;
use core::fmt::Write;
use core::sync::atomic::{AtomicU64, Ordering::*};
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;
use regall_directory::numbers;
use regall_directory::planted;
use regall_directory::vocab::Flags;

pub mod adopting;
pub mod advice;
mod ahead;
pub mod anew;
pub mod aside;
pub mod asking;
pub mod backed;
pub mod birth;
pub mod budget;
mod choosing;
pub mod deferred;
mod deregistering;
mod description;
pub mod descriptors;
pub mod discard;
pub mod domains;
pub mod ending;
mod entering;
pub mod files;
pub mod filters;
pub mod flight;
pub mod fork;
pub mod growing;
pub mod guards;
pub mod hands;
pub mod headroom;
pub mod heap;
mod hiding;
pub mod inherited;
pub mod kept;
mod later;
pub mod lending;
pub mod limited;
pub mod lock;
pub mod locks;
pub mod map;
mod missed_locks;
pub mod notes;
mod overtaken;
mod owed;
pub mod pieces;
pub mod pinning;
mod program_locks;
pub mod progress;
mod protect;
mod quiet;
pub mod reaching;
pub mod reading;
pub mod real;
pub mod registering;
pub mod remap;
pub mod resync;
pub mod retracting;
pub mod revoking;
mod seals;
pub mod settling;
mod sparse;
pub mod state;
pub mod subscribers;
mod tags;
pub mod taken;
pub mod turns;
pub mod unmap;
pub mod unpinning;
mod vacancy;
pub mod waiting;
pub mod whole;
mod work;

pub use budget::over_budget;
pub use real::{failed, real};
pub use settling::settle;
pub use state::{own_memory, State, USER_END, VIEW};
pub use unpinning::let_go;

use flight::Flight;
use lock::Guard;
use state::{give_up_with, stop, unlock_ours};

/// The application said mlockall(MCL_FUTURE): [`Flags`] for what it maps.
static APP_FUTURE: AtomicU64 = AtomicU64::new(0);

/// Takes the lock, with room for an event's mutations. `None`: a signal handler
/// on top of the lock's holder; see [`deferred`].
#[inline]
pub fn lock() -> Option<Guard> {
    let mut guard = lock::take().ok()?;
    if guard.is_broken() {
        resync::rebuild(&mut guard);
        guard.mended();
    }
    // Others' notes, too: who noted that memory goes, and has unmapped it, was before who mapped it.
    notes::apply(&mut guard);
    if !guard.ready() {
        give_up_with(&guard, "no memory for the ledger");
        if share::any() {
            backed::give_up(&mut guard);
        }
    }
    Some(guard)
}

/// The lock, if nobody has it and nothing is to be mended: whoever has it does not learn that
/// it was wanted. Only to look.
pub fn try_lock() -> Option<Guard> {
    lock::try_take().filter(|guard| !guard.is_broken())
}

/// Whether this thread holds the ledger's lock, further up its stack.
pub fn is_locked_by_us() -> bool {
    lock::is_ours()
}

/// A call that was pinning will not come back to say how it went. Others that
/// are at it at this moment are counted a little late.
fn forget_reserved() {
    if let Some(mut guard) = lock() {
        guard.reserved = 0;
        owed::forget_reserved();
    }
}

/// Stops tracking for good: the program runs on without. Called without the lock.
#[cold]
#[inline(never)]
pub fn give_up(why: &str) {
    if stop(why) {
        match lock::take().ok().filter(|guard| !guard.is_broken()) {
            Some(guard) => unlock_ours(&guard),
            // Which locks are the application's is not known.
            None if APP_FUTURE.load(Relaxed) == 0 => sys::unlock_all(),
            None => (),
        }
    }
}

/// Handles one arrival: makes the call and keeps the account. Returns what the
/// kernel returned.
#[inline]
pub fn handle(call: Call, frame: &mut Frame) -> i64 {
    if !phase::tracking() {
        return untracked(call, frame);
    }
    fork::check();
    if log::max_level() == log::LevelFilter::Trace {
        trace(call, frame);
    }
    if subscribers::watching() {
        return watched(call, frame);
    }
    dispatch(call, frame)
}

/// As [`handle`] where somebody is told of every call.
#[cold]
#[inline(never)]
fn watched(call: Call, frame: &mut Frame) -> i64 {
    let (table, args) = (subscribers::table(), frame.args);
    let before = (table.before)(call, &args);
    let value = dispatch(call, frame);
    // A child of fork has begun anew.
    if call != Call::Fork {
        (table.after)(call, &args, before, value);
    }
    value
}

#[inline]
fn dispatch(call: Call, frame: &mut Frame) -> i64 {
    match call {
        Call::Mmap => map::mmap(frame),
        Call::Munmap => unmap::munmap(frame),
        Call::Mremap => remap::mremap(frame),
        Call::Mprotect | Call::PkeyMprotect => protect::mprotect(call, frame),
        Call::Brk => heap::brk(frame),
        Call::Madvise => planted!("blind-to-madvise", real(frame), advice::madvise(frame)),
        Call::ProcessMadvise => advice::process_madvise(frame),
        Call::Shmat => map::shmat(frame),
        Call::Shmdt => unmap::shmdt(frame),
        Call::RemapFilePages | Call::MapShadowStack | Call::IoSetup | Call::IoDestroy => {
            map::odd(call, frame)
        }
        Call::Mlock | Call::Mlock2 => locks::mlock(call, frame),
        Call::Munlock => locks::munlock(frame),
        Call::Mlockall => locks::mlockall(frame),
        Call::Munlockall => locks::munlockall(frame),
        Call::Msync => discard::msync(frame),
        Call::Userfault => advice::userfault(frame),
        Call::Mbind => advice::mbind(frame),
        Call::Mseal => backed::mseal(frame),
        Call::IoUringSetup => advice::ring(frame),
        Call::Fork => fork::fork(frame),
        Call::ProcessVmReadv
        | Call::ProcessVmWritev
        | Call::Credentials
        | Call::ExitGroup
        | Call::ThreadStart
        | Call::Sigaction
        | Call::Sigprocmask => (subscribers::table().other_call)(call, frame),
    }
}

/// As [`handle`] while nothing is tracked: only the dispatcher, once it is on in
/// a thread, still needs its signal unblocked.
#[cold]
fn untracked(call: Call, frame: &mut Frame) -> i64 {
    if fork::begins_at_last() {
        return handle(call, frame);
    }
    match call {
        Call::ThreadStart | Call::Sigaction | Call::Sigprocmask => {
            (subscribers::table().other_call)(call, frame)
        }
        Call::Fork => fork::untracked(frame),
        Call::Credentials => filters::change(frame),
        _ => real(frame),
    }
}

#[cold]
#[inline(never)]
fn trace(call: Call, frame: &Frame) {
    let mut arguments: Text<160> = Text::new();
    for (n, value) in frame
        .args
        .iter()
        .enumerate()
        .take(numbers::arguments(frame.nr))
    {
        let comma = if n > 0 { ", " } else { "" };
        let _ = write!(arguments, "{comma}{value:#x}");
    }
    log::trace!(
        "{} {}({})",
        sys::gettid(),
        call.word(),
        Lossy(arguments.as_bytes())
    );
}

/// A call begins; if this thread left an earlier one half-way, the ledger is
/// checked against the kernel first.
#[inline]
pub fn open(call: Call) -> Flight {
    owing_nothing(flight::open(call))
}

/// As [`open`], for what the application asked of the shim itself.
pub fn begin_work() -> Flight {
    owing_nothing(flight::begin(Call::Madvise))
}

/// If this thread left an earlier call half-way, the ledger is checked against the kernel:
/// for calls that have no need of the ledger themselves.
#[inline]
pub fn pay_debts() {
    let thread = thread::current();
    if thread.flights.iter().any(|f| f.get() != 0) || thread.owes_audit.get() {
        end(begin_work());
    }
}

#[inline]
fn owing_nothing((flight, abandoned): (Flight, bool)) -> Flight {
    if abandoned {
        audit();
        // Only now: this may be left half-way, too.
        thread::current().owes_audit.set(false);
    }
    flight
}

/// Makes the ledger agree with the kernel everywhere.
#[cold]
pub fn audit() {
    fork::check();
    kept::look_soon();
    resync::audit();
}

/// A call has been carried out: reads its range anew if another call was about
/// the same bytes.
#[inline]
pub fn close(flight: Flight, range: PageRange) {
    if flight.lost_track() {
        resync::range(range, true);
    }
    end(flight);
}

/// As [`close`], for a call that has read what it had to.
#[inline]
pub fn end(flight: Flight) {
    // What is left is about others' ranges, and done without a claim of our own.
    drop(flight);
    settling::settle_postponed();
    deferred::drain();
    kept::look();
}

/// Flags that new memory of the application's gets from its mlockall(MCL_FUTURE).
pub fn future_flags() -> Flags {
    Flags::from_bits(APP_FUTURE.load(Relaxed) as u16)
}
