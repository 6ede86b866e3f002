//! Hooked calls in progress. Each has a place in a table, with the ranges that it
//! is about, so that two calls that meet on the same bytes find out: whose call
//! the kernel took first nobody can tell, so both read the range anew. The
//! directory shows whose the places are, so that readers know when coverage may be
//! judged; it is only written here, since other processes can write it, too.

use super::lock::{came_back, Guard};
use super::{notes, vacancy};
use crate::arch;
use crate::atomic::{compiler_fence, AtomicBool, AtomicU64, AtomicUsize, Ordering::*};
use crate::base::counters::{count, count_call, header};
use crate::thread::{self, Thread, NESTED};
use core::cell::Cell;
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, Counter, INFLIGHT};

struct Place {
    /// What its thread is pinning or unpinning at this moment.
    pinning: (AtomicU64, AtomicU64),
    /// Somebody did not wait for that any longer.
    overtaken: AtomicBool,
    ranges: [(AtomicU64, AtomicU64); 2],
    conflict: AtomicBool,
}

#[allow(clippy::declare_interior_mutable_const)]
const PLACE: Place = Place {
    pinning: (AtomicU64::new(0), AtomicU64::new(0)),
    overtaken: AtomicBool::new(false),
    ranges: [const { (AtomicU64::new(0), AtomicU64::new(0)) }; 2],
    conflict: AtomicBool::new(false),
};
static PLACES: [Place; INFLIGHT] = [PLACE; INFLIGHT];
/// Whose each place is, as [`Call::in_flight`] says it; 0: free. Apart from the places, since
/// whoever looks for a free one goes through many of them.
static HELD: [AtomicU64; INFLIGHT] = [const { AtomicU64::new(0) }; INFLIGHT];
/// Places whose thread is pinning something.
static PINNING: AtomicUsize = AtomicUsize::new(0);
/// Places from here on were never used.
static HIGH: AtomicUsize = AtomicUsize::new(0);
/// The directory that was just made, whose last place says so from the moment on at which
/// it can be found, is in the care of a flight.
pub fn made() {
    if let Some(held) = HELD.last() {
        show(INFLIGHT - 1, held.load(Relaxed));
    }
}

/// Tells readers of the directory what is held of place `n`.
#[inline]
fn show(n: usize, word: u64) {
    if let Some(shown) = header().and_then(|h| h.inflight.get(n)) {
        shown.store(word, Release);
    }
}

/// After fork: no call is in progress here but the caller's own.
pub fn reset() {
    for (p, held) in PLACES.iter().zip(&HELD) {
        p.clear();
        held.store(0, Relaxed);
    }
    HIGH.store(0, Relaxed);
    PINNING.store(0, Relaxed);
    vacancy::reset();
}

impl Place {
    fn clear(&self) {
        for (s, e) in &self.ranges {
            s.store(0, Relaxed);
            e.store(0, Relaxed);
        }
        self.conflict.store(false, Relaxed);
        // Looked at first: an exchange costs as much as all the rest.
        if self.pinning.1.load(Relaxed) != 0 && self.pinning.1.swap(0, Relaxed) != 0 {
            PINNING.fetch_sub(1, Release);
        }
    }

    fn pins(&self, range: PageRange) -> bool {
        let (start, end) = &self.pinning;
        start.load(Relaxed) < range.end() && range.start() < end.load(Relaxed)
    }

    fn touches(&self, range: PageRange) -> bool {
        self.ranges
            .iter()
            .any(|(s, e)| s.load(Relaxed) < range.end() && range.start() < e.load(Relaxed))
    }
}

/// One call in progress. `close` or `end` ends it; dropped, it was abandoned or is about nothing.
#[must_use = "a call is in progress until it is closed or ended"]
pub struct Flight {
    place: u32,
    /// Which of its thread's it is.
    nested: u32,
}

/// No place was free: the call is made all the same, and its range read anew.
const NOWHERE: u32 = u32::MAX;

/// A call begins. True in the second place: this thread left an earlier call
/// half-way, and what became of it nobody knows.
#[inline]
pub fn open(call: Call) -> (Flight, bool) {
    count_call(call);
    begin(call)
}

/// As [`open`], for work of the shim's own after a call or outside of any.
#[inline]
pub fn begin(call: Call) -> (Flight, bool) {
    let thread = thread::current();
    if thread.flights[0].get() != 0 {
        drop_abandoned(thread);
    }
    let nested = thread
        .flights
        .iter()
        .position(|f| f.get() == 0)
        .unwrap_or(NESTED - 1);
    let place = claim_place(thread, nested, call);
    (
        Flight {
            place,
            nested: nested as u32,
        },
        thread.owes_audit.get(),
    )
}

#[inline]
fn claim_place(thread: &Thread, nested: usize, call: Call) -> u32 {
    let notes = thread.flights.get(nested).zip(thread.arrivals.get(nested));
    let Some((note, came_in)) = notes else {
        return NOWHERE;
    };
    let here = arrival(thread);
    // A handler may have come in while this waited: then the arrival is that one's, and in
    // its child of fork the thread is another.
    let take = || {
        came_in.set(here);
        compiler_fence(SeqCst);
        take_place((note, came_in, here), call.in_flight(thread.tid()))
    };
    if let Some(place) = take() {
        return place;
    }
    // On top of a call of its own a thread does not wait: that one has a place.
    let found = match nested {
        0 => vacancy::wait(take, || _ = super::lock().map(|guard| sweep(&guard))),
        _ => None,
    };
    found.unwrap_or(NOWHERE)
}

#[inline]
fn take_place((note, came_in, here): (&Cell<u32>, &Cell<u64>, u64), word: u64) -> Option<u32> {
    for (i, held) in HELD.iter().enumerate() {
        if held.load(Relaxed) != 0 {
            continue;
        }
        // Noted first: a handler may leave for good at any point from here on,
        // and a place that nobody remembers would be busy for ever.
        note.set(i as u32 + 1);
        compiler_fence(SeqCst);
        // From here on a handler's calls are on top of this one.
        came_in.set(here);
        compiler_fence(SeqCst);
        if held.compare_exchange(0, word, Acquire, Relaxed).is_ok() {
            show(i, word);
            if i >= HIGH.load(Relaxed) {
                HIGH.fetch_max(i + 1, Release);
            }
            return Some(i as u32);
        }
    }
    note.set(0);
    None
}

/// Where on the stack the call that is being handled came in: the same for the
/// same call site at the same depth.
fn arrival(thread: &Thread) -> u64 {
    match thread.frame.get() as u64 {
        0 => arch::stack_pointer(),
        frame => frame,
    }
}

/// Ends the flights that this thread will never return to.
#[cold]
fn drop_abandoned(thread: &Thread) {
    let mut found = false;
    let full = thread.flights.iter().all(|f| f.get() != 0);
    let now = arrival(thread);
    for (i, (f, came_in)) in thread.flights.iter().zip(&thread.arrivals).enumerate() {
        let Some(n) = (f.get() as usize).checked_sub(1) else {
            break;
        };
        let left = came_back(now, came_in.get());
        if !(found || left || full && i == 0) {
            continue;
        }
        // Everything that was opened inside of it was left with it.
        found = true;
        thread.owes_audit.set(true);
        free(n, thread.tid());
        compiler_fence(SeqCst);
        f.set(0);
        count(Counter::Abandoned);
    }
    if found {
        super::lock::abandon_if_mine();
        super::forget_reserved();
    }
}

/// Place `n` is free again, if it is `tid`'s; says whether it was.
fn free(n: usize, tid: u32) -> bool {
    if let (Some(p), Some(held)) = (PLACES.get(n), HELD.get(n)) {
        if held.load(Relaxed) as u32 == tid {
            p.clear();
            // While it is still ours: the next one's word comes later.
            show(n, 0);
            held.store(0, Release);
            vacancy::one_more();
            return true;
        }
    }
    false
}

/// Ends the flights of threads that are no more (cancelled in mid-call). How far they have come
/// nobody knows: what they were about is to be read anew. Whether there were any. Called with the
/// lock held: of two that find the same one, the later would end whose place it is by then.
pub fn sweep(_lock: &Guard) -> bool {
    let mut any = false;
    for (n, held) in HELD.iter().enumerate().take(HIGH.load(Acquire)) {
        let tid = held.load(Relaxed) as u32;
        if tid == 0 || crate::sys::thread_alive(tid) {
            continue;
        }
        // One that ended in good order has given it to somebody else meanwhile.
        if free(n, tid) {
            count(Counter::Abandoned);
            any = true;
        }
    }
    if any {
        notes::everything();
    }
    any
}

/// This thread begins to pin or unpin `range`, in its innermost call. Others that
/// are about to do something there wait ([`in_the_way`]): a lock that comes late
/// would land on somebody else's memory. Called with the lock held.
pub fn pin_begins(_lock: &Guard, range: PageRange) {
    let Some(place) = innermost() else {
        return;
    };
    place.overtaken.store(false, Relaxed);
    place.pinning.0.store(range.start(), Relaxed);
    if place.pinning.1.swap(range.end(), Relaxed) == 0 {
        PINNING.fetch_add(1, Release);
    }
}

/// What this thread is pinning or unpinning lies in `range`, which is more than [`pin_begins`] has said.
/// Called with the lock held.
pub fn pin_widens(_lock: &Guard, range: PageRange) {
    if let Some(place) = innermost() {
        place.pinning.0.store(range.start(), Relaxed);
        place.pinning.1.store(range.end(), Relaxed);
    }
}

/// Returns whether somebody has gone on with the memory meanwhile, so that what came of pinning it
/// may be about other memory. Called before [`pin_ends`], with the lock held where it can be had.
pub fn were_we_overtaken() -> bool {
    innermost().is_some_and(|place| place.overtaken.load(Relaxed))
}

/// Whoever pins in `range` is overtaken, this thread's own outer calls too: a signal
/// handler on top of one does not wait for it.
#[inline]
pub fn overrun(range: PageRange) {
    if PINNING.load(Acquire) != 0 {
        for place in PLACES.iter().take(HIGH.load(Acquire)) {
            if place.pins(range) {
                place.overtaken.store(true, Relaxed);
            }
        }
    }
}

/// Others that pin in `range` or are about it are not waited for any longer: they shall
/// know. Called with the lock held.
pub fn overtake(guard: &Guard, range: PageRange) {
    overtake_pins(guard, range);
    disturb(range);
}

/// As [`overtake`], of those that pin there.
pub fn overtake_pins(_lock: &Guard, range: PageRange) {
    if PINNING.load(Acquire) != 0 {
        for place in others().filter(|p| p.pins(range)) {
            place.overtaken.store(true, Relaxed);
        }
    }
}

/// The places of calls in progress that are not this thread's.
fn others() -> impl Iterator<Item = &'static Place> {
    others_in_use().map(|(_, place)| place)
}

/// As [`others`], with their numbers.
fn others_in_use() -> impl Iterator<Item = (usize, &'static Place)> {
    let mine = &thread::current().flights;
    in_use().filter(|(n, _)| !mine.iter().any(|m| m.get() as usize == n + 1))
}

/// The places of calls in progress, with their numbers.
fn in_use() -> impl Iterator<Item = (usize, &'static Place)> {
    let all = PLACES.iter().zip(&HELD).enumerate();
    all.take(HIGH.load(Acquire))
        .filter(|(_, (_, held))| held.load(Relaxed) != 0)
        .map(|(n, (place, _))| (n, place))
}

/// This thread's pinning or unpinning, in its innermost call, is done.
pub fn pin_ends() {
    if let Some(place) = innermost() {
        if place.pinning.1.swap(0, Relaxed) != 0 {
            PINNING.fetch_sub(1, Release);
        }
    }
}

fn innermost() -> Option<&'static Place> {
    let flights = &thread::current().flights;
    let n = flights
        .iter()
        .map(|f| f.get())
        .take_while(|n| *n != 0)
        .last()?;
    PLACES.get((n as usize).checked_sub(1)?)
}

/// Whether another thread is pinning bytes of `range`; with `claims`, also
/// whether another call is about them. Called with the lock held.
#[inline]
pub fn in_the_way(_lock: &Guard, range: PageRange, claims: bool) -> bool {
    if PINNING.load(Acquire) == 0 && !claims {
        return false;
    }
    others_at(range, claims)
}

#[cold]
fn others_at(range: PageRange, claims: bool) -> bool {
    // Who was overtaken is not waited for again.
    let pins = |p: &Place| p.pins(range) && !p.overtaken.load(Relaxed);
    others().any(|p| pins(p) || claims && p.touches(range))
}

/// Whether another thread's call is replacing, moving or unmapping bytes of `range`. Called with
/// the lock held.
#[cold]
pub fn is_being_replaced(_lock: &Guard, range: PageRange) -> bool {
    const TAKE: [Call; 6] = [
        Call::Mmap,
        Call::Munmap,
        Call::Mremap,
        Call::Brk,
        Call::Shmat,
        Call::Shmdt,
    ];
    others_in_use().any(|(n, place)| place.touches(range) && TAKE.iter().any(|c| holds(n, *c)))
}

/// Whether the call that has place `n` is a `call`.
fn holds(n: usize, call: Call) -> bool {
    let word = HELD.get(n).map_or(0, |held| held.load(Relaxed));
    word >> 32 == call.in_flight(0) >> 32
}

/// Whether another thread's call may be locking bytes of `range` for the application at this
/// moment: the ledger says so only when the call is done. Called with the lock held.
#[cold]
pub fn is_being_locked(_lock: &Guard, range: PageRange) -> bool {
    others_in_use().any(|(n, place)| {
        let is = |call| holds(n, call);
        is(Call::Mlockall) || (is(Call::Mlock) || is(Call::Mlock2)) && place.touches(range)
    })
}

/// This thread's innermost call has left a note, since it could not have the lock: it must look again
/// when the kernel has made it, whoever has worked the note off before.
#[cold]
pub fn look_again() {
    if let Some(place) = innermost() {
        place.conflict.store(true, Relaxed);
    }
}

/// `range` is being read from the kernel: calls that are about it and not yet
/// done must look again. Called with the lock held.
pub fn disturb(range: PageRange) {
    for place in others().filter(|p| p.touches(range)) {
        place.conflict.store(true, Relaxed);
    }
}

impl Flight {
    #[inline]
    fn place(&self) -> Option<&'static Place> {
        PLACES.get(self.place as usize)
    }

    /// The call is about `range`. Whoever else is about bytes of it meets us.
    /// Called with the lock held, like all that follows.
    #[inline]
    pub fn claim(&self, _lock: &Guard, range: PageRange) {
        let Some(me) = self.place() else {
            return;
        };
        for (s, e) in &me.ranges {
            if e.load(Relaxed) == 0 {
                s.store(range.start(), Relaxed);
                e.store(range.end(), Relaxed);
                break;
            }
        }
        if HIGH.load(Relaxed) > 1 {
            self.meet(range, true);
            overrun(range);
        }
    }

    /// The call turned out to be about `range` (mmap, once the kernel has chosen).
    #[inline]
    pub fn touch(&self, _lock: &Guard, range: PageRange) {
        if HIGH.load(Relaxed) > 1 {
            self.meet(range, false);
        }
    }

    #[cold]
    fn meet(&self, range: PageRange, mutual: bool) {
        let mut met = false;
        for (_, p) in in_use().filter(|(n, p)| *n != self.place as usize && p.touches(range)) {
            p.conflict.store(true, Relaxed);
            met = true;
        }
        if met {
            count(Counter::Conflicts);
            if let (true, Some(me)) = (mutual, self.place()) {
                me.conflict.store(true, Relaxed);
            }
        }
    }

    /// Whether another call met this one, as a guess without the lock: a `false`
    /// may be old news, but then the other one knows.
    #[inline]
    pub fn lost_track(&self) -> bool {
        match self.place() {
            Some(p) => p.conflict.load(Relaxed),
            None => true,
        }
    }
}

impl Drop for Flight {
    #[inline]
    fn drop(&mut self) {
        if self.place != NOWHERE {
            let thread = thread::current();
            free(self.place as usize, thread.tid());
            // Forgotten only now: a handler may leave for good in between.
            compiler_fence(SeqCst);
            if let Some(f) = thread.flights.get(self.nested as usize) {
                f.set(0);
            }
        }
    }
}
