//! What the shim keeps for each thread, in thread-local storage that needs no
//! construction: all zeroes is the state of a thread that was never seen.

use crate::arch::{tls_block, Frame, TLS_BYTES};
use crate::ledger::Hint;
use crate::sys::{self, filter};
use core::cell::Cell;

/// Flights of one thread that can be open at the same time: the hooked call
/// itself and those of signal handlers nested in it.
pub const NESTED: usize = 4;

/// In [`Thread::selftest`]: the thread is in SECCOMP_MODE_STRICT, which kills for all but four calls
/// and takes the time-stamp counter away.
pub const STRICT: u64 = u64::MAX;

/// A descriptor that several requests of a thread's go by.
#[derive(Clone, Copy)]
pub struct Kept {
    /// The number of the open file; 0: there is none.
    pub file: u32,
    /// Of which device it is.
    pub rdev: u64,
    /// The descriptor.
    pub fd: i32,
    /// Its place among those of ours, and 1; 0: it is the program's.
    pub place: u32,
}

impl Kept {
    /// There is none.
    pub const NONE: Self = Self {
        file: 0,
        rdev: 0,
        fd: 0,
        place: 0,
    };
}

/// One thread's block.
#[repr(C)]
pub struct Thread {
    /// Thread id; 0: not asked yet.
    tid: Cell<u32>,
    /// Open flights: place in the in-flight table + 1, oldest first; 0: none.
    pub flights: [Cell<u32>; NESTED],
    /// Where on its stack each of them came in; of those that are not open, anything.
    pub arrivals: [Cell<u64>; NESTED],
    /// Whether the thread has left a call half-way, and the ledger has not been checked since.
    pub owes_audit: Cell<bool>,
    /// From where to where this thread has left pinning for when it has no call in
    /// progress any more; end 0: nothing.
    pub postponed: Cell<(u64, u64)>,
    /// Whether others have gone on with memory there that this thread was locking or unlocking.
    pub overtaken: Cell<bool>,
    /// Stack pointer while this thread takes or holds the track lock.
    pub lock_sp: Cell<u64>,
    /// The arrival that is being handled, for `intercept::stand_down`.
    pub frame: Cell<*mut Frame>,
    /// Whether that arrival's real call has been made, and what came of it.
    pub real_done: Cell<bool>,
    /// See `real_done`.
    pub real_value: Cell<i64>,
    /// Number of the call that the self-test expects, and 1; the hook ends it. [`STRICT`]: nothing
    /// is done here but the application's calls.
    pub selftest: Cell<u64>,
    /// Events since the last one that was timed.
    pub untimed: Cell<u32>,
    /// Whether the arrival is being timed.
    pub timing: Cell<bool>,
    /// Nanoseconds of it that went to the kernel on the application's behalf and
    /// to pinning.
    pub elsewhere: Cell<u64>,
    /// Where on its stack the thread went into libibverbs' own code, whose calls of itself
    /// come back to us; 0: it did not.
    pub in_verbs: Cell<u64>,
    /// Strict mode: byte that the kernel's dispatcher reads; 0 lets calls through.
    pub dispatch: Cell<u8>,
    /// Strict mode: whether the dispatcher is on in this thread.
    pub strict: Cell<bool>,
    /// Strict mode: the application believes that it has SIGSYS blocked.
    pub sigsys_blocked: Cell<bool>,
    /// Strict mode: a SIGSYS came meanwhile.
    pub sigsys_pending: Cell<bool>,
    /// Which of the program's seccomp filters may be over this thread ([`filter`]); 0: not asked
    /// yet.
    pub filters: Cell<u64>,
    /// Whether it is the shim's own.
    pub ours: Cell<bool>,
    /// How many times in which handlers are held back lie in each other ([`crate::track::quiet`]).
    pub quiet: Cell<u32>,
    /// Whether the outermost is around a call of the program's.
    pub across: Cell<bool>,
    /// Whether signals are held back for it, and the mask of before.
    pub held: Cell<bool>,
    /// See `held`.
    pub mask: Cell<u64>,
    /// Since when, in ticks.
    pub since: Cell<u64>,
    /// The descriptor of an adapter's file that requests go by meanwhile.
    pub way: Cell<Kept>,
    /// The look-up's memory.
    pub hint: Hint,
}

const _: () = assert!(size_of::<Thread>() <= TLS_BYTES);
const _: () = assert!(align_of::<Thread>() <= 64);

/// This thread's block.
#[inline]
pub fn current() -> &'static Thread {
    // SAFETY: the block is TLS_BYTES of zero-initialised memory, 64-byte
    // aligned, and lives as long as the thread; Thread is valid when all zero
    // and made of cells. It is Thread's only user.
    unsafe { &*tls_block().cast::<Thread>() }
}

/// Where the function that this is a part of has its stack.
#[inline(always)]
pub fn here() -> u64 {
    crate::arch::stack_pointer()
}

impl Thread {
    /// This thread's id.
    #[inline]
    pub fn tid(&self) -> u32 {
        match self.tid.get() {
            0 => self.learn_tid(),
            tid => tid,
        }
    }

    #[cold]
    fn learn_tid(&self) -> u32 {
        // What other threads bring for themselves from here on is not over this one.
        self.filters();
        // Never refused but by filters made for that; the ledger's lock goes by it, so it has to
        // be the same each time, and nobody else's.
        let tid = (0..3).map(|_| sys::gettid()).find(|tid| *tid != 0);
        let own = (core::ptr::from_ref(self) as u64 >> 6) as u32 & 0x1f_ffff;
        let tid = tid.unwrap_or(own | 0x20_0000);
        self.tid.set(tid);
        tid
    }

    /// Which of the program's seccomp filters may be over this thread. Whoever began it may have
    /// been under any that there was then.
    pub fn filters(&self) -> u64 {
        match self.filters.get() {
            0 => self.learn_filters(),
            known => known,
        }
    }

    #[cold]
    fn learn_filters(&self) -> u64 {
        let every = filter::every();
        self.filters.set(every);
        // (What is read for that is put to all of them.)
        if every != filter::KNOWN && sys::process::is_free() && self.filters.get() == every {
            self.filters.set(filter::KNOWN);
        }
        self.filters.get()
    }

    /// After fork: everything here is the parent's, but for the filters, which are inherited.
    pub fn forget(&self) {
        self.tid.set(0);
        for f in &self.flights {
            f.set(0);
        }
        self.lock_sp.set(0);
        self.owes_audit.set(false);
        self.postponed.set((0, 0));
        self.overtaken.set(false);
        self.way.set(Kept::NONE);
        self.strict.set(false);
        self.dispatch.set(0);
        self.sigsys_pending.set(false);
    }
}
