//! The program puts itself under a seccomp filter. What the filter says is kept, so that no call of
//! the shim's is made that the program would be killed for ([`filter`]).

use super::{begin_work, end, lock, own_memory, real, subscribers, Guard};
use crate::arch::Frame;
use crate::base::phase;
use crate::base::withheld::withhold;
use crate::sys::filter::{self, Coming};
use crate::sys::{self, process, Errno, Result};
use crate::text::{Lossy, Text};
use crate::thread::{self, STRICT};
use core::fmt::Write;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::planted;
use regall_directory::vocab::Prot;

/// At start-up, on the program's first thread.
pub fn init() {
    filter::set_marks(|| thread::current().filters());
    begin_thread();
}

/// What other threads put themselves under from here on is not over this one.
pub fn begin_thread() {
    thread::current().filters();
}

/// What the kernel is asked for.
#[derive(Clone, Copy)]
enum Asked {
    /// SECCOMP_MODE_STRICT.
    Strict,
    /// The filter with the `struct sock_fprog` at this address.
    Program { at: u64, flags: u64 },
}

/// What prctl(2) or seccomp(2) asks for, if it is that.
fn asked(frame: &Frame) -> Option<Asked> {
    let [what, second, third, ..] = frame.args;
    const STRICT: u64 = libc::SECCOMP_MODE_STRICT as u64;
    const FILTER: u64 = libc::SECCOMP_MODE_FILTER as u64;
    match (frame.nr as libc::c_long, what as i32) {
        (libc::SYS_prctl, libc::PR_SET_SECCOMP) => match second {
            STRICT => Some(Asked::Strict),
            FILTER => Some(Asked::Program {
                at: third,
                flags: 0,
            }),
            _ => None,
        },
        (libc::SYS_seccomp, _) => match what as u32 {
            libc::SECCOMP_SET_MODE_STRICT if (second as u32, third) == (0, 0) => {
                Some(Asked::Strict)
            }
            libc::SECCOMP_SET_MODE_FILTER => Some(Asked::Program {
                at: third,
                flags: second,
            }),
            _ => None,
        },
        _ => None,
    }
}

impl Asked {
    fn is_for_all(self) -> bool {
        match self {
            Self::Strict => false,
            Self::Program { flags, .. } => flags & libc::SECCOMP_FILTER_FLAG_TSYNC != 0,
        }
    }

    /// Whether the kernel has done it. With SECCOMP_FILTER_FLAG_TSYNC alone it may say which thread
    /// is in the way.
    fn is_done(self, value: i64) -> bool {
        match self {
            Self::Program { flags, .. } if flags & libc::SECCOMP_FILTER_FLAG_NEW_LISTENER != 0 => {
                value >= 0
            }
            _ => value == 0,
        }
    }
}

/// A call of prctl(2) or seccomp(2).
#[cold]
#[inline(never)]
pub fn change(frame: &Frame) -> i64 {
    // A child of vfork puts itself alone under one, and executes another program.
    match asked(frame).filter(|_| sys::may_own_memory()) {
        Some(asked) => put_under(asked, frame),
        None => real(frame),
    }
}

fn put_under(asked: Asked, frame: &Frame) -> i64 {
    let thread = thread::current();
    thread.filters();
    let mut coming = filter::begin(&thread.filters);
    if coming.wants_room() {
        if let Ok(room) = room() {
            coming.give_room(room);
        }
    }
    let paused = prepare(asked, &mut coming);
    coming.put_over(asked.is_for_all());
    let value = real(frame);
    match asked.is_done(value) {
        true => planted!("filter-unread", (), taken(asked, coming)),
        false => coming.refused(),
    }
    if paused {
        (subscribers::table().keys_resume)();
    }
    value
}

/// What threads of the shim's own can't wait, or end, without. (A wait that a signal has stopped for a
/// while goes on by restart_syscall.)
const LIVED_BY: [libc::c_long; 4] = [
    libc::SYS_exit,
    libc::SYS_futex,
    libc::SYS_ppoll,
    libc::SYS_restart_syscall,
];

/// Whether threads of the shim's own can live under the filters that are over this one.
pub fn threads_can_live() -> bool {
    LIVED_BY.iter().all(|nr| filter::makes(*nr))
}

/// In a child of fork: the room of filters is the shim's there, too.
pub fn enter_rooms(guard: &mut Guard) {
    for start in filter::rooms() {
        if let Some(range) = PageRange::new(start, start + filter::ROOM as u64) {
            guard.insert(range, own_memory(Prot::from_call(3, false)));
        }
    }
}

/// Before the kernel is asked: what can't be found out later is found out, and what is to be left out
/// is said. Threads of the shim's own end before a filter for all that stops what they live by;
/// whether there may be another rotator afterwards.
fn prepare(asked: Asked, coming: &mut Coming) -> bool {
    let Asked::Program { at, .. } = asked else {
        // It ends by a signal soon, if nobody else is there; with us it would end by exit.
        end_helpers();
        return false;
    };
    subscribers::filter_comes();
    let is_read = match coming.read(at) {
        // The kernel takes no such filter; a program asks in this way what the kernel can do.
        Err(Errno::FAULT | Errno::INVAL) => return false,
        read => read.is_ok(),
    };
    if coming.is_one_of_many() && !MANY.swap(true, Relaxed) {
        log::warn!(
            "more than {} different seccomp filters: of further ones only the calls are made that each lets through whatever the arguments",
            filter::MOST
        );
    }
    if is_read && log::max_level() >= log::LevelFilter::Info {
        tell(coming);
    }
    let harmless = is_read && LIVED_BY.iter().all(|nr| coming.would_make(*nr));
    if harmless || !asked.is_for_all() {
        return false;
    }
    end_helpers();
    (subscribers::table().keys_pause)()
}

fn end_helpers() {
    if subscribers::helpers() != 0 {
        withhold();
        subscribers::nothing_lent(true);
    }
}

/// Whether more filters came than are kept.
static MANY: AtomicBool = AtomicBool::new(false);

fn taken(asked: Asked, coming: Coming) {
    match asked {
        Asked::Strict => {
            thread::current().selftest.set(STRICT);
            coming.taken_strict()
        }
        // SAFETY: the kernel has just read it, and the filter that it names.
        Asked::Program { at, .. } => unsafe { coming.taken(at as *const libc::sock_fprog) },
    }
}

/// Room for a filter's program, which is the shim's in the ledger.
fn room() -> Result<NonNull<u8>> {
    let flight = phase::tracking().then(begin_work);
    let made = map();
    if let Some(flight) = flight {
        end(flight);
    }
    made
}

fn map() -> Result<NonNull<u8>> {
    let mut guard = match phase::tracking() {
        true => Some(lock().ok_or(Errno::BUSY)?),
        false => None,
    };
    let at = sys::map_private(filter::ROOM)?;
    let (start, bytes) = (at.as_ptr() as u64, filter::ROOM as u64);
    if let (Some(guard), Some(range)) = (&mut guard, PageRange::new(start, start + bytes)) {
        guard.insert(range, own_memory(Prot::from_call(3, false)));
    }
    Ok(at)
}

/// Calls of the shim's that people would miss.
const MISSED: [(&str, libc::c_long); 12] = [
    ("mlock", libc::SYS_mlock),
    ("mlock2", libc::SYS_mlock2),
    ("munlock", libc::SYS_munlock),
    ("ioctl", libc::SYS_ioctl),
    ("openat", libc::SYS_openat),
    ("close", libc::SYS_close),
    ("pread64", libc::SYS_pread64),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("madvise", libc::SYS_madvise),
    ("rt_sigprocmask", libc::SYS_rt_sigprocmask),
    ("futex", libc::SYS_futex),
    ("clone", libc::SYS_clone),
];

#[cold]
fn tell(coming: &Coming) {
    let mut names: Text<160> = Text::new();
    for (name, nr) in MISSED {
        if coming.would_stop(nr) {
            let comma = if names.as_bytes().is_empty() {
                ""
            } else {
                ", "
            };
            let _ = write!(names, "{comma}{name}");
        }
    }
    if !names.as_bytes().is_empty() {
        log::info!(
            "thread {} asks for a seccomp filter that stops {}: regall makes no such call under it",
            thread::current().tid(),
            Lossy(names.as_bytes())
        );
    }
}

/// The seccomp filters that the program had put itself under when the first domain was opened, and,
/// above them, those that /proc told of.
static BEFORE: AtomicU64 = AtomicU64::new(UNKNOWN);
const UNKNOWN: u64 = u64::MAX;

/// Regions are to come: that rotate, or that the kernel will not forget at once.
pub fn expected() {
    if BEFORE.load(Relaxed) == UNKNOWN {
        let count = u64::from(filter::count());
        BEFORE.store(count | process::filters() << 32, Relaxed);
    }
}

fn before() -> u64 {
    Some(BEFORE.load(Relaxed))
        .filter(|n| *n != UNKNOWN)
        .unwrap_or(0)
}

/// Whether the program has put itself under a seccomp filter since. No system call.
#[inline]
pub fn is_shut_in() -> bool {
    filter::count() > before() as u32
}

/// Whether it has, or may have by a call that was not seen: that may kill who makes a thread. /proc
/// tells, where it may be read.
pub fn may_be_shut_in() -> bool {
    is_shut_in() || process::filters() > before() >> 32
}

/// In a child of fork.
pub fn forget() {
    BEFORE.store(UNKNOWN, Relaxed);
}
