//! The rotating thread: takes back keys that peers were given, some time after the application has
//! deregistered them ([`revoking`]), and registers what is mapped in domains that have just been
//! opened ([`adopting`]). It is started when the first such region has lost its last borrower, or
//! such a domain has much to be registered, and ends when there has been nothing to do for a while.

use crate::base::settings;
use crate::sys::{self, signal, time};
use crate::threads::{self, Files, Thread};
use crate::track::{self, adopting, filters, reaching, revoking, subscribers};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

/// The rotating thread. Regions are known to the kernel by descriptors of the process.
static THREAD: Thread = Thread::new(c"regall-rotator", Files::Shared, run);

/// Whether it counts ticks, or will in a moment: then nothing has to be said to it.
static AWAKE: AtomicU32 = AtomicU32::new(NO);
const NO: u32 = 0;
const YES: u32 = 1;

/// How many want it to end, and that it is not started; above that how often somebody has: one
/// that has gone on for longer than it was waited for ends all the same.
static PAUSES: AtomicU32 = AtomicU32::new(0);
/// One more who wants that.
const PAUSE: u32 = 1 << 16 | 1;

/// [`PAUSES`] before the thread was started.
static BEGAN: AtomicU32 = AtomicU32::new(0);
/// When the last of them came, in nanoseconds.
static SINCE: AtomicU64 = AtomicU64::new(0);
/// Who wants it for longer has been jumped away from the call that it was for.
const LONGEST: u64 = 10_000 * MILLISECOND;

#[cold]
fn is_paused() -> bool {
    PAUSES.load(SeqCst) & 0xffff != 0 && time::now().saturating_sub(SINCE.load(Relaxed)) < LONGEST
}

const MILLISECOND: u64 = 1_000_000;
/// The shortest tick, in nanoseconds.
const SHORTEST: u64 = MILLISECOND / 4;
/// The rotator ends when nothing was to be done for so long, in nanoseconds.
const QUIET: u64 = 2000 * MILLISECOND;
/// How often it looks whether the process lives, and asks again for what was bound, in
/// nanoseconds.
const GLANCE: u64 = 500 * MILLISECOND;
/// The rotator works for one part of the time in so many: registering holds up whoever maps memory.
const SHARE: u64 = 4;
/// The rotator tries to get the lock so often, a moment apart, before it leaves a tick out.
const LOOKS: u32 = 50;

/// How long a tick is, in nanoseconds, and how many of them pass before a region is rotated.
fn pace() -> (u64, u32) {
    match settings::config().revoke_ms {
        // What was bound is asked for all the same.
        None => (GLANCE, u32::MAX),
        Some(0) => (SHORTEST, 0),
        Some(ms) => (
            (u64::from(ms) * MILLISECOND / 4).max(SHORTEST),
            revoking::KEPT,
        ),
    }
}

/// A region is to be rotated. False: there can be no thread that does.
#[inline]
pub fn begin() -> bool {
    AWAKE.load(SeqCst) == YES || wake()
}

/// As [`begin`], for a domain that is to be filled: that does not wait for the next tick. False,
/// too, if it is not certain that there is one.
#[cold]
pub fn begin_now() -> bool {
    let begun = begin();
    sys::futex_wake(&PAUSES);
    // Who has it paused looks after what is left.
    begun && (is_paused() || goes_on())
}

/// Whether it is there, and nobody has wanted it to end.
fn goes_on() -> bool {
    AWAKE.load(SeqCst) == YES && BEGAN.load(SeqCst) == PAUSES.load(SeqCst)
}

/// How many of it there are: one, or none.
pub fn count() -> u64 {
    u64::from(THREAD.exists())
}

/// A thread that ends is waited for so often.
const TRIES: u32 = 2000;

#[cold]
#[inline(never)]
fn wake() -> bool {
    let pauses = PAUSES.load(SeqCst);
    if is_paused() || !sys::is_memory_owner() {
        // Whoever has it paused looks after what is left.
        return true;
    }
    if !sys::has_the_process_files() {
        // It would have this thread's descriptors, and keep open what the thread closes: one that has
        // the process's starts it.
        revoking::later();
        return true;
    }
    if AWAKE.compare_exchange(NO, YES, SeqCst, SeqCst).is_err() {
        return true;
    }
    for _ in 0..TRIES {
        if !THREAD.runs() {
            break;
        }
        sys::nap(MILLISECOND / 20);
    }
    let ends = THREAD.runs();
    BEGAN.store(pauses, SeqCst);
    let started = !ends && !filters::may_be_shut_in() && THREAD.start(entry).is_ok();
    if !started {
        AWAKE.store(NO, SeqCst);
    }
    // If it does not get to its end the next region tries again.
    started || ends
}

extern "C" fn entry() -> ! {
    THREAD.live()
}

fn run() {
    let pauses = BEGAN.load(SeqCst);
    adopting::enter();
    let mut work = Work::new(pace(), pauses);
    while work.may_go_on() {
        let rest = work.go_on();
        let done = work.quiet >= QUIET && !work.has_more();
        if done || !work.lives() {
            return adopting::leave();
        }
        sys::futex_wait(&PAUSES, pauses, rest.min(GLANCE) as u32);
    }
    adopting::leave();
    AWAKE.store(NO, SeqCst);
}

/// What it is at.
struct Work {
    tick: u64,
    ticks: u32,
    /// [`PAUSES`] as it was when it began.
    pauses: u32,
    /// Where it goes on; 1: at the first.
    from: u32,
    /// When it looked at the clock.
    now: u64,
    /// When the next tick begins.
    next: u64,
    /// Nanoseconds that it has worked beyond its share.
    debt: u64,
    /// When it may go on to fill domains.
    fills: u64,
    /// Whether something was to be done in this tick, or will be.
    any: bool,
    /// Nanoseconds since there was.
    quiet: u64,
    /// Nanoseconds since it looked at what it looks at now and then.
    glance: u64,
}

impl Work {
    fn new((tick, ticks): (u64, u32), pauses: u32) -> Self {
        let now = time::now();
        Self {
            tick,
            ticks,
            pauses,
            from: 1,
            now,
            next: now,
            debt: 0,
            fills: 0,
            any: true,
            quiet: 0,
            glance: 0,
        }
    }

    /// Whether nobody has wanted the rotator to end.
    fn may_go_on(&self) -> bool {
        PAUSES.load(SeqCst) == self.pauses
    }

    /// Does what is due, as far as its share of the time allows. Nanoseconds until it is to be
    /// called again.
    fn go_on(&mut self) -> u64 {
        let now = time::now();
        let passed = now.saturating_sub(self.now);
        self.now = now;
        self.glance = self.glance.saturating_add(passed);
        self.debt = self.debt.saturating_sub(passed / SHARE);
        if now >= self.next {
            self.next = now.saturating_add(self.tick);
            revoking::count_tick();
            self.any = self.rotate();
        }
        let filled = self.fill();
        self.quiet = match self.any || filled {
            true => 0,
            false => self.quiet.saturating_add(passed),
        };
        let until = match filled {
            true => self.next.min(self.fills),
            false => self.next,
        };
        until.saturating_sub(now)
    }

    /// Fills domains for a while, and rests for as long as its share says. Whether something is
    /// left, or was there.
    fn fill(&mut self) -> bool {
        let start = time::now();
        if start < self.fills {
            return true;
        }
        let filled = adopting::go_on(|| !self.may_go_on());
        if filled {
            let end = time::now();
            self.fills = end.saturating_add(end.saturating_sub(start).saturating_mul(SHARE - 1));
        }
        filled
    }

    /// Rotates what is due, from where it was. Whether something is left, or was there.
    fn rotate(&mut self) -> bool {
        let mut any = self.from != 1;
        while self.debt <= self.tick / SHARE && self.may_go_on() {
            let looked = (0..LOOKS).find_map(|n| {
                if n != 0 {
                    sys::nap(MILLISECOND / 50);
                }
                revoking::look(self.from, self.ticks)
            });
            let Some(looked) = looked else {
                return true;
            };
            any |= looked.later;
            // (The records' own end is 0.)
            self.from = looked.next.max(1);
            if let Some(n) = looked.found {
                let start = time::now();
                revoking::rotate(n, self.ticks);
                self.debt = self.debt.saturating_add(time::now().saturating_sub(start));
            }
            if looked.next == 0 {
                return any;
            }
        }
        true
    }

    /// Whether there is a process to work for. Looked at now and then.
    fn lives(&mut self) -> bool {
        if self.glance < GLANCE {
            return true;
        }
        self.glance = 0;
        if reaching::was_lost() {
            (subscribers::table().adapters_closed)();
        }
        if revoking::is_any_bound() {
            revoking::retry(None);
        }
        !threads::alone()
    }

    /// Nothing was to be done: says so, and looks whether something has come meanwhile.
    fn has_more(&mut self) -> bool {
        AWAKE.store(NO, SeqCst);
        self.from = 1;
        // Who comes from here on starts the next one.
        (self.rotate() || adopting::is_left())
            && AWAKE.compare_exchange(NO, YES, SeqCst, SeqCst).is_ok()
    }
}

/// How long its end is waited for, in nanoseconds: it may be held up by a page that does not come.
const PATIENCE: u64 = 1000 * MILLISECOND;

/// Ends it before a call that it would be in the way of: one that changes credentials, which are
/// each thread's own, or that the kernel refuses to a process with two threads. Whether it was
/// there.
#[cold]
pub fn pause() -> bool {
    let tid = THREAD.id();
    if tid == 0 || !sys::is_memory_owner() {
        return false;
    }
    SINCE.store(time::now(), Relaxed);
    PAUSES.fetch_add(PAUSE, SeqCst);
    sys::futex_wake(&PAUSES);
    let since = time::now();
    // Its id is cleared a moment before it is gone.
    let counts = || THREAD.exists() || signal::send(tid, 0).is_ok();
    while counts() && !track::is_locked_by_us() && time::now().saturating_sub(since) < PATIENCE {
        sys::nap(MILLISECOND / 20);
    }
    true
}

/// Lets the rotator be there again; it looks what was left, with the rights of who calls this.
#[cold]
pub fn resume() {
    PAUSES.fetch_sub(1, SeqCst);
    if is_paused() {
        return;
    }
    let begun = begin();
    // One that was not waited for any longer ends nevertheless.
    adopting::remind();
    if !begun && (!adopting::is_on() || revoking::any_rotates()) {
        revoking::begins();
    }
}

/// In a child of fork: it is not there.
pub fn forget() {
    AWAKE.store(NO, Relaxed);
    PAUSES.store(0, Relaxed);
    revoking::forget();
}
