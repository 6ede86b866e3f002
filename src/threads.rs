//! Threads of the shim's own. libc does not know of them and is never entered on them:
//! they are made by clone(2), on a stack of ours, with all signals blocked and with just
//! as much thread-local storage as the code here uses.
//!
//! There is a fixed number, each with one purpose, started when it is first needed. A
//! child of fork has none of its parent's; exec and exit_group end them. A process whose
//! last thread of its own ends by the system call `exit` (a child of clone(3) does; the last of
//! libc's threads calls exit_group) is not over as long as they run: they look after
//! that from time to time, and end, too.

use crate::arch;
use crate::base::phase;
use crate::sys::file;
use crate::sys::process::{first_thread_has_ended, Stat};
use crate::sys::{self, check, time, Errno, Result, Undisturbed};
use crate::thread;
use crate::track;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use regall_bridge::xpmem;
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::planted;
use regall_directory::vocab::Prot;

/// Bytes of a thread's stack; hooks use up to 12 KiB of it.
const STACK: u64 = 128 << 10;
/// Below it, so that overrunning it is a fault and nobody's data.
const GUARD: u64 = PAGE;

/// How long whoever starts a thread waits for it, and between two looks at it, in nanoseconds: one
/// of thirty busy processes on a processor gets its turn after 100 ms.
const PATIENCE: u64 = 2_000_000_000;
const GLANCE: u32 = 50_000_000;

/// Whose descriptors a thread sees.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// The descriptors of the process.
    Shared,
    /// None but what it opens itself (and message queues and XPMEM's device, which it does not
    /// use). The application can't close those, nor find them, and its children don't inherit
    /// them.
    Own,
}

/// A thread with a purpose.
pub struct Thread {
    state: AtomicU32,
    /// The thread's id while it runs; the kernel writes it and clears it.
    tid: AtomicU32,
    /// Where its memory is; 0: it was never started in this process.
    memory: AtomicU64,
    name: &'static CStr,
    files: Files,
    /// Whether it begins with the process's table of descriptors.
    shares: AtomicBool,
    run: fn(),
}

/// Not started, or ended: its memory is there to be used again.
const IDLE: u32 = 0;
const RUNNING: u32 = 1;

/// What is shared with the process, and no word to libc.
const FLAGS: i32 = libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID;

/// Where a thread's memory, `at`, has its parts.
struct Parts {
    bytes: u64,
    /// Where the stack ends and thread-local storage begins.
    stack: u64,
    /// The thread pointer.
    pointer: u64,
}

impl Parts {
    fn of(at: u64) -> Option<Self> {
        let local = round_up(arch::tls_depth())?;
        let stack = at.checked_add(GUARD + STACK)?;
        let pointer = stack.checked_add(local)?;
        Some(Self {
            bytes: pointer.checked_add(PAGE)? - at,
            stack,
            pointer,
        })
    }
}

impl Thread {
    /// One that will do `run`, seen as `name` (15 bytes at the most) by ps and debuggers.
    pub const fn new(name: &'static CStr, files: Files, run: fn()) -> Self {
        Self {
            state: AtomicU32::new(IDLE),
            tid: AtomicU32::new(0),
            memory: AtomicU64::new(0),
            name,
            files,
            shares: AtomicBool::new(false),
            run,
        }
    }

    /// Whether it has been started and not ended.
    pub fn runs(&self) -> bool {
        self.state.load(Relaxed) == RUNNING
    }

    /// Whether the kernel has made it, and it has not ended: unlike [`Thread::runs`], not
    /// before it counts among the process's threads.
    pub fn exists(&self) -> bool {
        self.tid.load(Acquire) != 0
    }

    /// The thread's id; 0: it does not exist.
    pub fn id(&self) -> u32 {
        self.tid.load(Acquire)
    }

    /// Waits until the thread has changed `word` from `now` and woken who waits there. It does
    /// not where the thread ends, or gets no processor for two seconds. Somebody else may be about
    /// to make it: it runs then, and does not exist yet.
    pub fn await_change(&self, word: &AtomicU32, now: u32) {
        let since = time::now();
        let mut existed = false;
        while word.load(Acquire) == now
            && self.runs()
            && time::now().saturating_sub(since) < PATIENCE
        {
            let exists = self.exists();
            // A filter has killed it.
            if existed && !exists {
                break;
            }
            existed = exists;
            sys::futex_wait(word, now, GLANCE);
        }
    }

    /// In a child of fork: it is not there, nor is its memory.
    pub fn forget(&self) {
        self.state.store(IDLE, Relaxed);
        self.tid.store(0, Relaxed);
        self.memory.store(0, Relaxed);
    }

    /// Starts it at `entry`, which ends in [`Thread::live`], unless it runs.
    ///
    /// EAGAIN, ENOMEM, EPERM: no memory for it, or the kernel (or a seccomp filter) says no;
    /// EBUSY: a signal handler at a bad moment.
    pub fn start(&'static self, entry: extern "C" fn() -> !) -> Result<()> {
        // First: a child of fork forgets those that are known.
        remember(self);
        let idle = self
            .state
            .compare_exchange(IDLE, RUNNING, Acquire, Relaxed)
            .is_ok();
        if !idle {
            return Ok(());
        }
        self.begin(entry).inspect_err(|_| {
            self.state.store(IDLE, Release);
        })
    }

    fn begin(&self, entry: extern "C" fn() -> !) -> Result<()> {
        // A filter may kill who makes a thread, or what the thread calls then.
        if !may_be_made() || !track::filters::threads_can_live() {
            return Err(Errno::PERM);
        }
        // It may still be on its stack.
        while self.tid.load(Acquire) != 0 {
            sys::yield_now();
        }
        let parts = self.memory()?;
        // SAFETY: within its memory, which nobody uses.
        unsafe { arch::make_thread_pointer(parts.pointer) };
        let shares = self.files == Files::Shared || sys::can_leave_descriptors();
        self.shares.store(shares, Relaxed);
        let files = if shares { libc::CLONE_FILES } else { 0 };
        // It has them blocked as we do now, and for good.
        let _undisturbed = planted!("thread-takes-signals", None, Some(Undisturbed::new()));
        // SAFETY: a stack and a thread pointer of its own, in memory that stays; it shares
        // nothing else with anybody but what it is made to work on.
        let made = unsafe {
            arch::regall_start_thread(
                (FLAGS | files) as u64,
                parts.stack,
                &self.tid,
                parts.pointer,
                entry,
            )
        };
        check(made).map(drop)
    }

    /// Its memory, cleared where thread-local storage is: that is what a thread begins with.
    fn memory(&self) -> Result<Parts> {
        match self.memory.load(Relaxed) {
            0 => self.new_memory(),
            at => {
                let parts = Parts::of(at).ok_or(Errno::NOMEM)?;
                let block = parts.pointer.wrapping_sub(arch::tls_depth());
                // SAFETY: the block lies in the memory; the thread has ended.
                unsafe { core::ptr::write_bytes(block as *mut u8, 0, arch::TLS_BYTES) };
                Ok(parts)
            }
        }
    }

    /// New memory, which is the shim's in the ledger, and which children don't get.
    #[cold]
    fn new_memory(&self) -> Result<Parts> {
        let bytes = Parts::of(0).ok_or(Errno::NOMEM)?.bytes;
        let at = new_memory(bytes, GUARD, false)?;
        self.memory.store(at, Relaxed);
        Parts::of(at).ok_or(Errno::NOMEM)
    }

    /// The thread's life, on the thread.
    pub fn live(&self) -> ! {
        thread::current().ours.set(true);
        // What the program's threads bring for themselves from here on is not over this one.
        track::filters::begin_thread();
        sys::process::name_thread(self.name);
        let left = match self.files {
            Files::Shared => Left::All,
            Files::Own => leave_descriptors(self.shares.load(Relaxed)),
        };
        if left != Left::Failed {
            if self.files == Files::Own {
                sys::begins_apart();
            }
            (self.run)();
            sys::ends_apart();
        }
        if left == Left::ButXpmem {
            // What is closed with this thread ends what the process has of the driver.
            while !alone() {
                sys::futex_wait(&self.state, RUNNING, NAP);
            }
        }
        self.state.store(IDLE, Release);
        end()
    }
}

/// Whether filters let a thread be made, whosever descriptors it is to have.
fn may_be_made() -> bool {
    [FLAGS, FLAGS | libc::CLONE_FILES]
        .iter()
        .all(|flags| sys::filter::lets(libc::SYS_clone, [*flags as u64, 0, 0, 0, 0, 0]))
}

/// New memory of `bytes` (whole pages) for a thread, which is the shim's in the ledger, and which
/// children don't get. Its first `guard` bytes can't be touched. `shared`: as the kernel's list has
/// it, for memory in whose place a file is to be mapped.
#[cold]
pub fn new_memory(bytes: u64, guard: u64, shared: bool) -> Result<u64> {
    let flight = phase::tracking().then(track::begin_work);
    let made = map(bytes, guard, shared);
    if let Some(flight) = flight {
        track::end(flight);
    }
    made
}

fn map(bytes: u64, untouchable: u64, shared: bool) -> Result<u64> {
    let mut guard = match phase::tracking() {
        true => Some(track::lock().ok_or(Errno::BUSY)?),
        false => None,
    };
    let at = match shared {
        true => sys::map_shared(bytes)?,
        false => sys::map_private(bytes as usize)?.as_ptr() as u64,
    };
    // SAFETY: new memory, in which nobody has anything yet. A child has no such thread.
    let made = unsafe {
        sys::protect(at, untouchable, libc::PROT_NONE)
            .and_then(|()| sys::advise_any(at, bytes, libc::MADV_DONTFORK))
    };
    if let Err(e) = made {
        // SAFETY: likewise.
        let _ = unsafe { sys::unmap(at, bytes) };
        return Err(e);
    }
    let below = PageRange::new(at, at + untouchable);
    let above = PageRange::new(at + untouchable, at + bytes);
    for (range, prot) in [(below, 0), (above, 3)] {
        if let (Some(guard), Some(range)) = (&mut guard, range) {
            guard.insert(range, track::own_memory(Prot::from_call(prot, shared)));
        }
    }
    Ok(at)
}

/// How the process's first thread has ended: what comes of the last thread is what comes of
/// the process (since Linux 6.1 or so), and that must be it.
static ENDED: AtomicU32 = AtomicU32::new(0);

/// Whether our threads are all that is left of the process. No descriptor is made as long as its first
/// thread is there: a program that closes one and opens another counts on getting its number.
pub fn alone() -> bool {
    if first_thread_has_ended() == Some(false) {
        return false;
    }
    let ours = all().filter(|t| t.runs()).count() as u64;
    match Stat::own() {
        // The first thread stays in the count until the process ends.
        Ok(stat) if stat.state == b'Z' && stat.threads <= 1 + ours => {
            ENDED.store((stat.ended >> 8) as u32 & 0xff, Relaxed);
            true
        }
        _ => false,
    }
}

/// Threads that were ever started, in this process or its parent.
static STARTED: [AtomicPtr<Thread>; 6] = [const { AtomicPtr::new(core::ptr::null_mut()) }; 6];

fn all() -> impl Iterator<Item = &'static Thread> {
    let known = STARTED.iter().map(|place| place.load(Acquire));
    // SAFETY: null, or a static that `remember` was given.
    known.filter_map(|thread| unsafe { thread.as_ref() })
}

/// `thread` is one of ours. There are fewer than places.
fn remember(thread: &'static Thread) {
    let it = core::ptr::from_ref(thread).cast_mut();
    let none = core::ptr::null_mut();
    for place in &STARTED {
        match place.compare_exchange(none, it, AcqRel, Acquire) {
            Err(other) if other != it => (),
            _ => return,
        }
    }
}

fn end() -> ! {
    sys::process::exit_thread(ENDED.load(Relaxed))
}

/// After a panic: if this thread is ours, it ends here.
pub fn end_if_ours() {
    let me = sys::gettid();
    for thread in all() {
        if thread.tid.load(Relaxed) == me {
            // Not to be started again: state stays as it is.
            end();
        }
    }
}

/// In a child of fork.
pub fn forget() {
    all().for_each(Thread::forget);
    sys::forget_apart();
}

/// Of the process's descriptors, in the table of a thread that has its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// There is no such table: the kernel has no memory for one.
    Failed,
    /// All that matter.
    All,
    /// All but some of XPMEM's device.
    ButXpmem,
}

/// How long a thread sleeps that has to stay, in nanoseconds.
const NAP: u32 = 500_000_000;

/// Has this thread a table of its own with nothing in it that matters.
/// `shares`: it has the process's so far, else a copy of that.
///
/// What is closed is closed in the process's name as far as the kernel is concerned, but
/// what goes by tables (locks of fcntl(2)) is not touched by that. Message queues are: the
/// process would not be notified any more (mq_notify(3)). XPMEM's device is: its driver would
/// end all that the process has. They stay; nobody waits for their end, as one does for a
/// pipe's.
fn leave_descriptors(shares: bool) -> Left {
    let copied = match shares {
        true => {
            if sys::leave_descriptors().is_err() {
                return Left::Failed;
            }
            sys::COPIED.into()
        }
        false => sys::rlimit(libc::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft.min(1 << 20)),
    };
    let xpmem = file::stat_path(xpmem::DEVICE, false).ok().map(|s| s.rdev);
    let mut left = Left::All;
    for fd in 0..copied {
        if xpmem.is_some_and(|rdev| file::is_device(fd as i32, rdev)) {
            left = Left::ButXpmem;
        } else if !file::is_message_queue(fd as i32) {
            file::close(fd as i32);
        }
    }
    left
}
