//! The system that the sources find here: threads are loom's, a clock goes on when somebody
//! sleeps, and who sleeps on a word is woken as by the kernel.

use crate::atomic::{self, AtomicU32, Ordering::*};
use loom::sync::atomic::AtomicBool as Word;
use loom::sync::{Condvar, Mutex};
pub use real_sys::Result;
use std::alloc::{alloc_zeroed, Layout};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// Threads at the most: loom's own limit.
const THREADS: usize = 4;
/// Bytes of each thread's own block.
pub const TLS_BYTES: usize = 1152;

loom::thread_local! {
    static NUMBER: Cell<usize> = Cell::new(0);
}

thread_local! {
    static BLOCKS: [*mut u8; THREADS] = std::array::from_fn(|_| {
        let layout = Layout::from_size_align(TLS_BYTES, 64).expect("a size");
        // SAFETY: not of no bytes.
        unsafe { alloc_zeroed(layout) }
    });
    // Who is dead has done all it did: so the kernel's word is one of loom's.
    static DEAD: RefCell<Vec<Rc<Word>>> = const { RefCell::new(Vec::new()) };
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    static IMPATIENT: Cell<bool> = const { Cell::new(false) };
    static BED: RefCell<Option<Rc<Bed>>> = const { RefCell::new(None) };
}

/// Where all sleep.
struct Bed {
    /// Sleepers.
    count: Mutex<usize>,
    turn: Condvar,
}

/// A run of the test begins. With `impatient`, sleep always lasts until it is over by itself;
/// without, until somebody ends it: a wake that is missed is a deadlock.
pub fn begin(impatient: bool) {
    atomic::begin();
    let blocks = BLOCKS.with(|b| *b);
    for block in blocks {
        // SAFETY: that many bytes, which nobody uses any more.
        unsafe { block.write_bytes(0, TLS_BYTES) };
    }
    DEAD.replace((0..THREADS).map(|_| Rc::new(Word::new(false))).collect());
    CLOCK.set(0);
    IMPATIENT.set(impatient);
    let bed = Bed {
        count: Mutex::new(0),
        turn: Condvar::new(),
    };
    BED.replace(Some(Rc::new(bed)));
}

/// Starts thread number `n`; the first has 0.
pub fn spawn(n: usize, f: impl FnOnce() + 'static) -> loom::thread::JoinHandle<()> {
    assert!(n < THREADS);
    atomic::spawn(move || {
        NUMBER.with(|number| number.set(n));
        f();
    })
}

/// This thread's number.
fn number() -> usize {
    NUMBER.with(|number| number.get())
}

/// Ends this thread for good; it leaves all as it is.
pub fn die() {
    dead(number()).store(true, Release);
}

fn dead(n: usize) -> Rc<Word> {
    DEAD.with_borrow(|dead| dead[n].clone())
}

/// This thread's own block.
pub fn tls_block() -> *mut u8 {
    BLOCKS.with(|b| b[number()])
}

/// All come in at the same depth, each on a stack of its own.
pub fn stack_pointer() -> u64 {
    (number() as u64 + 1) << 32
}

/// This process.
pub fn getpid() -> u32 {
    7
}

/// Whose memory it is.
pub fn memory_owner() -> u32 {
    getpid()
}

/// This thread.
pub fn gettid() -> u32 {
    number() as u32 + 1
}

/// Whether there is still such a thread.
pub fn thread_alive(tid: u32) -> bool {
    !dead(tid as usize - 1).load(Acquire)
}

/// No thread's stack is read: nobody has an alternate one.
///
/// # Safety
/// Nothing is written.
pub unsafe fn copy_checked(
    _: u64,
    _: *mut u8,
    _: usize,
) -> core::result::Result<usize, real_sys::Errno> {
    Err(real_sys::Errno::FAULT)
}

/// Sleeps while the word is `value`, until somebody wakes it; true: the time was up.
pub fn futex_wait(word: &AtomicU32, value: u32, nanos: u32) -> bool {
    if IMPATIENT.get() {
        CLOCK.set(CLOCK.get() + u64::from(nanos));
        loom::thread::yield_now();
        return word.load(Relaxed) == value;
    }
    let Some(bed) = BED.with_borrow(|bed| bed.clone()) else {
        // A test that knows nothing of sleep.
        loom::thread::yield_now();
        return true;
    };
    let mut count = bed.count.lock().expect("nobody panics");
    if word.load(Relaxed) == value {
        *count += 1;
        drop(bed.turn.wait(count));
    }
    false
}

/// As [`futex_wake`].
pub fn futex_wake_all(word: &AtomicU32) {
    futex_wake(word);
}

/// Wakes who sleeps: all of them, who look again; says whether there was one.
pub fn futex_wake(_word: &AtomicU32) -> bool {
    let Some(bed) = BED.with_borrow(|bed| bed.clone()) else {
        return false;
    };
    let mut count = bed.count.lock().expect("nobody panics");
    let any = *count > 0;
    *count = 0;
    bed.turn.notify_all();
    any
}

/// The clock.
pub mod time {
    /// Nanoseconds.
    pub fn now() -> u64 {
        super::CLOCK.get()
    }

    /// Nobody says for how long a thread has had a processor.
    pub fn spent_by(_: u32) -> u64 {
        0
    }
}

/// Calls `f`: nothing is opened.
pub fn with_own_table<T>(mut f: impl FnMut() -> T) -> T {
    f()
}

/// Who is asked.
pub mod credentials {
    /// Always: the numbers of threads are the same everywhere.
    pub fn is_proc_ours() -> bool {
        true
    }
}

/// Files: none.
pub mod file {
    use real_sys::Errno;

    /// As in a place without /proc.
    pub fn read_small<'a>(_: &core::ffi::CStr, _: &'a mut [u8]) -> Result<&'a [u8], Errno> {
        Err(Errno::NOENT)
    }
}

/// Signals: none arrive.
pub mod signal {
    /// No thread has another stack.
    pub fn on_alternate_stack() -> bool {
        false
    }
}

/// Seccomp filters: there are none.
pub mod filter {
    /// In a thread's set: it is known.
    pub const KNOWN: u64 = 1 << 63;

    /// Those that a new thread may be under.
    pub fn every() -> u64 {
        KNOWN
    }
}

/// The process, as /proc has it.
pub mod process {
    /// Whether it is under no filter.
    pub fn is_free() -> bool {
        true
    }
}
