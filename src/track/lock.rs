//! The one lock of the ledger. Held for tens of nanoseconds and never across
//! the application's own call. It knows its owner, because two things happen to
//! a preloaded library that happen to nobody else: a signal handler of the
//! holder's thread comes in again, and a holder never comes back (siglongjmp,
//! cancellation).

use super::{notes, State};
use crate::arch;
use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use crate::sys::credentials;
use crate::sys::{self, file, time};
use crate::text::{hex, Text};
use crate::thread::{self, Thread};
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// 0: free. Else who has it and since where ([`owned`]): all of it in one word, so that there
/// is no moment in which it is held and nobody can tell by whom. Bit 0: somebody sleeps.
static WORD: AtomicU64 = AtomicU64::new(0);
/// What sleepers sleep on: counts releases that had sleepers.
static TURN: AtomicU32 = AtomicU32::new(0);

/// A holder never came back: nothing in the state can be trusted.
static BROKEN: AtomicBool = AtomicBool::new(false);

const SLEEPERS: u64 = 1;
/// Thread ids have no more bits (PID_MAX_LIMIT).
const TID_BITS: u32 = 22;

/// The word of thread `tid` that takes the lock at stack pointer `sp`.
fn owned(tid: u32, sp: u64) -> u64 {
    (sp >> 6) << (TID_BITS + 1) | u64::from(tid) << 1
}

fn tid_of(word: u64) -> u32 {
    (word >> 1) as u32 & ((1 << TID_BITS) - 1)
}

/// The stack pointer, up to 63 bytes less.
fn sp_of(word: u64) -> u64 {
    (word >> (TID_BITS + 1)) << 6
}

/// How long the first [`LOOKS`] naps are at the most, in nanoseconds: then a sleeper looks after the
/// holder's health. Each one after them is twice as long, up to [`DOUBLED`] times: hundreds of sleepers
/// that wake by themselves take the processor from the holder.
const PATIENCE: u32 = 500_000;
/// How often naps become longer.
const DOUBLED: u32 = 6;

/// Looks at which one and the same holder was found asleep, before it is taken for
/// parked: a millisecond in all.
const LOOKS: u32 = 2;

/// Naps beside one and the same hold, after which its holder is taken for parked though it runs: a second
/// in all. A handler that came upon it may wait for this very thread without sleeping.
const LAST_LOOK: u32 = 38;

/// [`WORD`], without its bit 0, of a holder that was found parked, as long as it has the lock: nobody
/// else waits for it.
static PARKED: AtomicU64 = AtomicU64::new(0);

struct Shared(UnsafeCell<State>);
// SAFETY: all access goes through a Guard, and there is one at a time.
unsafe impl Sync for Shared {}
static STATE: Shared = Shared(UnsafeCell::new(State::new()));

/// Bytes of [`Room`].
const ROOM: usize = 16384;
/// Room for the kernel's list while it is read into the state.
pub type Room = [u8; ROOM];
struct SharedRoom(UnsafeCell<Room>);
// SAFETY: as of the state.
unsafe impl Sync for SharedRoom {}
static ROOM_TO_READ: SharedRoom = SharedRoom(UnsafeCell::new([0; ROOM]));

/// The state, while the lock is held. Two words, so that it is handed on in registers.
pub struct Guard {
    thread: &'static Thread,
    outer_sp: u64,
}

/// The lock is held further up this very stack: a signal handler came between.
pub struct Nested;

/// Takes the lock.
#[inline]
pub fn take() -> Result<Guard, Nested> {
    let thread = thread::current();
    let sp = arch::stack_pointer();
    let me = owned(thread.tid(), sp);
    // Before the lock is taken, so that a handler that comes right after finds it.
    let outer_sp = thread.lock_sp.replace(sp);
    if WORD.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
        return Ok(Guard { thread, outer_sp });
    }
    take_slowly(thread, me, outer_sp)
}

/// Takes the lock if nobody has it.
pub fn try_take() -> Option<Guard> {
    let thread = thread::current();
    let sp = arch::stack_pointer();
    let outer_sp = thread.lock_sp.replace(sp);
    let me = owned(thread.tid(), sp);
    if WORD.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
        return Some(Guard { thread, outer_sp });
    }
    thread.lock_sp.set(outer_sp);
    None
}

/// Whether this thread has the lock, further up its stack.
pub fn is_ours() -> bool {
    tid_of(WORD.load(Relaxed)) == tid_of(owned(thread::current().tid(), arch::stack_pointer()))
}

/// The lock, from one that never came back.
fn inherited(thread: &'static Thread, outer_sp: u64) -> Guard {
    BROKEN.store(true, Relaxed);
    Guard { thread, outer_sp }
}

#[cold]
fn take_slowly(thread: &'static Thread, me: u64, outer_sp: u64) -> Result<Guard, Nested> {
    let mut tries = 0u32;
    let (mut naps, mut all, mut same) = (0u32, 0u32, 0u32);
    loop {
        let word = WORD.load(Relaxed);
        if tid_of(word) == tid_of(me) {
            // Left by this thread, or (0) by one before it that had its number.
            if outer_sp == 0 || came_back(arch::stack_pointer(), outer_sp) {
                match turns(word, me | word & SLEEPERS) {
                    true => return Ok(inherited(thread, 0)),
                    false => continue,
                }
            }
            break;
        }
        if word == 0 {
            match turns(0, me | SLEEPERS) {
                true => return Ok(Guard { thread, outer_sp }),
                false => continue,
            }
        }
        if word & !SLEEPERS == PARKED.load(Relaxed) {
            if sys::thread_alive(tid_of(word)) {
                break;
            }
            match turns(word, me | SLEEPERS) {
                true => return Ok(inherited(thread, outer_sp)),
                false => continue,
            }
        }
        tries += 1;
        if tries < 64 {
            core::hint::spin_loop();
            continue;
        }
        let slept = nap(word, all + 1);
        if let Nap::Beside(_) = slept {
            (all, same) = (all + 1, same + 1);
        } else {
            same = 0;
        }
        match slept {
            Nap::None => (),
            Nap::Woken => naps = 0,
            Nap::Beside(Owner::Busy) => (),
            Nap::Beside(Owner::Asleep) => naps += 1,
            Nap::Beside(Owner::Gone) => {
                if turns(word | SLEEPERS, me | SLEEPERS) {
                    return Ok(inherited(thread, outer_sp));
                }
            }
        }
        if naps >= LOOKS || same >= LAST_LOOK {
            // A handler may have parked the holder until this very thread goes
            // on (stop-the-world collectors), or a debugger has stopped it: the
            // call is made, and noted.
            park(word & !SLEEPERS);
            break;
        }
    }
    thread.lock_sp.set(outer_sp);
    Err(Nested)
}

/// Nobody waits for the holder of the lock any more, if it is still `holder`, with sleepers: only
/// who gives the lock back to some forgets that it was parked.
fn park(holder: u64) {
    PARKED.store(holder, SeqCst);
    if WORD.load(SeqCst) != holder | SLEEPERS {
        let _ = PARKED.compare_exchange(holder, 0, Relaxed, Relaxed);
    }
    sys::futex_wake_all(&TURN);
}

/// The lock's word becomes `new` if it is `old`.
fn turns(old: u64, new: u64) -> bool {
    let changed = WORD.compare_exchange(old, new, Acquire, Relaxed);
    changed.is_ok()
}

/// How a wait for the lock's holder ended.
enum Nap {
    /// There was none: the lock's word has changed.
    None,
    /// The lock was given back meanwhile, or changed hands.
    Woken,
    /// The holder is the same one, in the same call.
    Beside(Owner),
}

/// Sleeps until the lock is given back, or for some time; `word` is its holder's, and this is nap number
/// `n`.
fn nap(word: u64, n: u32) -> Nap {
    let marked = WORD.compare_exchange(word, word | SLEEPERS, Relaxed, Relaxed);
    if marked.is_err() {
        return Nap::None;
    }
    let turn = TURN.load(Acquire);
    if WORD.load(Relaxed) & SLEEPERS == 0 {
        return Nap::None;
    }
    let longer = n.saturating_sub(LOOKS).min(DOUBLED);
    let tid = tid_of(word);
    let spent = time::spent_by(tid);
    // (A timer of the application's may end each nap.)
    let long = PATIENCE << longer;
    sys::futex_wait(&TURN, turn, long);
    if WORD.load(Relaxed) != word | SLEEPERS || TURN.load(Relaxed) != turn {
        return Nap::Woken;
    }
    let owner = match sys::thread_alive(tid) {
        false => Owner::Gone,
        // (Who naps in a handler has had a processor for a little.)
        true if time::spent_by(tid).saturating_sub(spent) > u64::from(long / 2) => Owner::Busy,
        // (Yama may forbid a child what it lets a thread read.)
        true => sys::with_own_table(|| owner(word))
            .or_else(|| owner(word))
            .unwrap_or(Owner::Asleep),
    };
    if TURN.load(Acquire) != turn {
        // It was given back meanwhile, and what was looked at may have been another call.
        return Nap::Woken;
    }
    Nap::Beside(owner)
}

/// Addresses further apart than this are taken for those of different stacks: an
/// alternate one that hides itself (SS_AUTODISARM) lies where it will.
const ONE_STACK: u64 = 1 << 20;
/// A handler that comes between is at least a signal frame and a hook deeper.
const SIGNAL_FRAME: u64 = 1024;

/// Whether this thread, which left something open at `then` on its stack and is
/// at `now`, has left it for good. On an alternate signal stack addresses say
/// nothing, and the handler will return.
pub fn came_back(now: u64, then: u64) -> bool {
    let near = now.abs_diff(then) < ONE_STACK;
    near && now > then.saturating_sub(SIGNAL_FRAME) && !sys::signal::on_alternate_stack()
}

/// This thread has left a call half-way: if it had the lock, it will not give it
/// back, and what is behind it is as it was left.
pub fn abandon_if_mine() {
    if mine() {
        BROKEN.store(true, Relaxed);
        release(thread::current().tid());
    }
}

/// How the lock's holder is.
#[derive(PartialEq, Eq)]
enum Owner {
    /// At work, or waiting for a processor, a page or its vfork child.
    Busy,
    /// Sleeping in a system call, deeper on its stack than where it took the lock or on an
    /// alternate one: in a signal handler, unless it reads a slow file. Or stopped, by SIGSTOP or a
    /// debugger.
    Asleep,
    /// Ended, or sleeping further out on its stack: it has left the lock for good.
    Gone,
}

/// Looks at the holder. `None`: who asks must not see where it is.
#[cold]
#[inline(never)]
fn owner(word: u64) -> Option<Owner> {
    let tid = tid_of(word);
    // In another pid namespace's /proc the numbers are somebody else's.
    if !credentials::is_proc_ours() {
        return Some(Owner::Asleep);
    }
    // Before all else: who waits for a page, for mmap_lock or for a vfork child (which has its number
    // and may hold the lock) is in a system call, too.
    if !is_at_rest(tid) {
        return Some(Owner::Busy);
    }
    let mut buf = [0u8; 256];
    let syscall: Text<64> = path_of(tid, "syscall");
    let text = file::read_small(syscall.as_cstr()?, &mut buf).ok()?;
    // "NR a b c d e f SP PC"; "-1 SP PC" outside of a call, where somebody has stopped it; or
    // "running".
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let mut words = text.split(|b| *b == b' ');
    let sp = match words.next() {
        Some(b"-1") => words.next(),
        _ => words.nth(6),
    };
    Some(match sp.and_then(|sp| hex(sp.strip_prefix(b"0x")?)) {
        None => Owner::Busy,
        Some(sp) if sp > sp_of(word) + 63 && !is_on_top(sp, sp_of(word)) => Owner::Gone,
        Some(_) => Owner::Asleep,
    })
}

/// Bytes of a handler's stack that are searched for what it came upon.
const HANDLER: u64 = 256 << 10;
/// The frames of who has the lock, outwards from the one in which it was taken.
const FRAMES: u64 = 4096;

/// Whether a thread that sleeps at `sp` is in a handler on an alternate stack, on top of who took
/// the lock at `then`: the kernel has put the stack pointer that it came upon on that stack, and
/// it is near `then`. Who has left for good has no such word above it, or an old one:
/// it counts as asleep then, which costs time alone. So it does where the stack can't be read.
fn is_on_top(sp: u64, then: u64) -> bool {
    let holders = then.saturating_sub(SIGNAL_FRAME * 16)..then + FRAMES;
    if sp < holders.end {
        return false;
    }
    let mut words = [0u64; 64];
    let bytes = size_of_val(&words);
    let mut at = sp & !7;
    while at < sp + HANDLER {
        // SAFETY: the words are ours, and any bytes are valid ones.
        let read = unsafe { sys::copy_checked(at, words.as_mut_ptr().cast(), bytes) };
        let Ok(read @ 8..) = read else {
            // The stack's end; or nothing of it can be read.
            return at == sp & !7;
        };
        let known = words.get(..read / 8).unwrap_or(&[]);
        if known.iter().any(|word| holders.contains(word)) {
            return true;
        }
        at += read as u64 & !7;
    }
    false
}

/// What the kernel says of a thread of the process whose memory this is: to who shares it
/// /proc/self is another one.
fn path_of(tid: u32, what: &str) -> Text<64> {
    let owner = sys::memory_owner();
    Text::of(format_args!("/proc/{owner}/task/{tid}/{what}"))
}

/// Whether the thread sleeps until something wakes it (`S`), or is stopped (`T`, `t`). So it counts
/// where that can't be read.
fn is_at_rest(tid: u32) -> bool {
    let mut buf = [0u8; 256];
    let stat: Text<64> = path_of(tid, "stat");
    let Some(Ok(text)) = stat.as_cstr().map(|p| file::read_small(p, &mut buf)) else {
        return true;
    };
    // "TID (NAME) STATE ...", and the name may hold anything.
    let state = text.rsplit(|b| *b == b')').next();
    matches!(state, Some([b' ', b'S' | b'T' | b't', ..]))
}

/// Whether this is a handler on top of the lock's holder: what it changes is half done.
pub fn is_below_us() -> bool {
    let took = thread::current().lock_sp.get();
    mine() && took != 0 && !came_back(arch::stack_pointer(), took)
}

/// After fork: whoever held it is not here.
pub fn reset() {
    WORD.store(0, Relaxed);
    PARKED.store(0, Relaxed);
    BROKEN.store(false, Relaxed);
}

impl Guard {
    /// Whether a former holder has left the state half-way.
    #[inline]
    pub fn is_broken(&self) -> bool {
        BROKEN.load(Relaxed)
    }

    /// The state, and room to read the kernel's list into it.
    pub fn with_room(&mut self) -> (&mut State, &mut Room) {
        // SAFETY: the lock is held, and the guard, of which there is one at a time, is borrowed
        // mutably as long as both are.
        unsafe { (&mut *STATE.0.get(), &mut *ROOM_TO_READ.0.get()) }
    }

    /// The state has been begun anew.
    pub fn mended(&mut self) {
        BROKEN.store(false, Relaxed);
    }
}

impl Deref for Guard {
    type Target = State;
    #[inline]
    fn deref(&self) -> &State {
        // SAFETY: the lock is held.
        unsafe { &*STATE.0.get() }
    }
}

impl DerefMut for Guard {
    #[inline]
    fn deref_mut(&mut self) -> &mut State {
        // SAFETY: the lock is held, and the guard is borrowed mutably.
        unsafe { &mut *STATE.0.get() }
    }
}

impl Drop for Guard {
    #[inline]
    fn drop(&mut self) {
        notes::apply(self);
        release(self.thread.tid());
        self.thread.lock_sp.set(self.outer_sp);
    }
}

/// Gives the lock back, if it is still `tid`'s.
#[inline]
fn release(tid: u32) {
    let word = WORD.load(Relaxed);
    let plain = tid_of(word) == tid && word & SLEEPERS == 0;
    if !plain || WORD.compare_exchange(word, 0, Release, Relaxed).is_err() {
        release_slowly(tid);
    }
}

#[cold]
fn release_slowly(tid: u32) {
    loop {
        let word = WORD.load(Relaxed);
        if tid_of(word) != tid {
            return;
        }
        if WORD.compare_exchange(word, 0, SeqCst, Relaxed).is_ok() {
            if word & SLEEPERS != 0 {
                // (Who has just found it parked sees that it is not any more, or is seen here.)
                PARKED.store(0, SeqCst);
                TURN.fetch_add(1, Release);
                sys::futex_wake(&TURN);
            }
            return;
        }
    }
}

/// Whether this thread holds the lock (and is in a signal handler on top of it).
pub fn mine() -> bool {
    let word = WORD.load(Relaxed);
    word != 0 && tid_of(word) == thread::current().tid()
}

/// After a panic on this thread: nobody shall wait for it.
pub fn release_if_mine() {
    if mine() {
        WORD.store(0, Release);
    }
}
