//! The application's own process_vm_readv and process_vm_writev. What they are about is
//! copied by [`regall_bridge::process_vm`] where that is quicker than the kernel, or where
//! the kernel does not allow it; anything else is the call that it was.

use crate::arch::Frame;
use crate::base::{counters, settings};
use crate::host::{touchable, Shim};
use crate::ledger;
use crate::sys::{self, time, Errno};
use crate::thread::{self, Thread};
use crate::track::{real, VIEW};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use regall_bridge::host::Host;
use regall_bridge::kind::{Kind as Mechanism, Order};
use regall_bridge::maps;
use regall_bridge::pool::{Caller, Pool};
use regall_bridge::process_vm::{instead, of_ourselves, serve, Answer, Call as Asked};
use regall_bridge::transfer::Way;
use regall_bridge::window::source::{self, Backing};
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;
use regall_directory::maps::Line;
use regall_directory::vocab::{Flags, Kind};

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
    for known in &FILES {
        known.store(0, Relaxed);
    }
}

/// Entries of [`FILES`].
const KNOWN: usize = 256;
/// Of mappings of files: the number of the ledger's entry, shifted left, and whether the file
/// stays as long as it is. 0: not known.
static FILES: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];

/// Guard pages were put into thread stacks, and into other memory.
static GUARDED: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// madvise(MADV_GUARD_INSTALL) has taken pages away of which the ledger does not know which.
pub fn guarded(range: PageRange) {
    let found = VIEW.lookup(range.start());
    let in_stack = matches!(found, Ok(Some(f)) if f.attr().kind == Kind::ThreadStack);
    let [stacks, others] = &GUARDED;
    let which = if in_stack { stacks } else { others };
    which.store(true, Relaxed);
}

/// As [`guarded`], of memory that may be anywhere.
pub fn guarded_somewhere() {
    for which in &GUARDED {
        which.store(true, Relaxed);
    }
}

/// Whether memory of ours can be read, or written, and only the application's doing can
/// change that: [`Host::steady`].
pub fn steady(at: u64, bytes: u64, writable: bool) -> bool {
    let [stacks, others] = &GUARDED;
    if others.load(Relaxed) || keys_in_use() {
        return false;
    }
    touchable(at, bytes, writable, |found| {
        let attr = found.attr();
        if attr.flags.has(Flags::KEEP_LAZY) && called(Call::Userfault) {
            return false;
        }
        match (attr.kind, attr.prot.shared()) {
            (Kind::Anon | Kind::Heap | Kind::Stack | Kind::Shm, _) => true,
            (Kind::ThreadStack, _) => !stacks.load(Relaxed),
            (Kind::File, shared) => known(found, shared),
            (Kind::Huge, _) => !attr.flags.has(Flags::NORESERVE),
            _ => false,
        }
    })
}

/// With protection keys, what may be read is not in the page tables alone.
fn keys_in_use() -> bool {
    called(Call::PkeyMprotect)
}

fn called(call: Call) -> bool {
    let calls = counters::header().and_then(|h| h.calls.get(call as usize));
    calls.is_none_or(|n| n.load(Relaxed) != 0)
}

/// Whether nobody can cut short the file behind a mapping, or nobody would: a module's data
/// are in its file until they are written to. Asked once an entry.
fn known(found: &ledger::Found, shared: bool) -> bool {
    let Some(known) = FILES.get(found.id as usize % KNOWN) else {
        return false;
    };
    let (said, no) = (known.load(Relaxed), found.id << 1);
    match said {
        _ if said == no | 1 => true,
        _ if said == no && no != 0 => false,
        _ => {
            let steady = match shared {
                true => can_not_shrink(found.start),
                false => is_of_a_module(found.start),
            };
            known.store(no | u64::from(steady), Relaxed);
            steady
        }
    }
}

#[cold]
#[inline(never)]
fn can_not_shrink(at: u64) -> bool {
    let pid = sys::getpid();
    let Ok(backing) = Backing::find(pid, at) else {
        return false;
    };
    source::open(pid, &backing, false).is_ok_and(|fd| source::is_steady(&fd, &backing))
}

/// Whether the file that is mapped at `at` is executed from, too.
#[cold]
#[inline(never)]
fn is_of_a_module(at: u64) -> bool {
    let file = |l: &Line| (l.dev_major, l.dev_minor, l.inode);
    let mut wanted = None;
    let found = maps::any(MAPS, |l| {
        wanted = l.range.contains(at).then(|| file(l));
        wanted.is_some()
    });
    let code = |l: &Line| l.prot.executable() && wanted == Some(file(l));
    found == Ok(true) && maps::any(MAPS, code) == Ok(true)
}

const MAPS: &core::ffi::CStr = c"/proc/self/maps";
