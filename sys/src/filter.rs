//! The seccomp filters that the program puts itself under while this library is there.
//!
//! A filter may kill who makes a call that is not on its list, and the program wrote that list for
//! its own calls. So each filter is kept, and asked before a call of ours: what it does not let
//! through is not made, and fails with EPERM. A filter that lets a call fail with an errno is left
//! to the kernel.
//!
//! Filters only ever add up, and are inherited. Which are over a thread is a set of bits in its
//! block: the caller says where ([`set_marks`]). Filters from before the start are not known here.

mod program;

use self::program::{answer, is_equal, is_made, passes};
use crate::arch::{self, ticks};
use crate::errno::{Errno, Result};
use core::cell::Cell;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Filters that are kept, each different. Of more than that is known only which numbers all of them
/// let through.
pub const MOST: usize = 62;
/// In a thread's set: it is under one of those.
const OTHERS: u64 = 1 << MOST;
/// In a thread's set: it is known.
pub const KNOWN: u64 = 1 << 63;
/// Instructions that a filter has at the most (BPF_MAXINSNS).
const STEPS: usize = 4096;
/// Bytes of room that one needs.
pub const ROOM: usize = STEPS * size_of::<libc::sock_filter>();
/// Above all numbers of system calls.
const NUMBERS: usize = 512;

/// Nothing: its program was refused, or there was none yet.
const FREE: u32 = 0;
/// The kernel is asked to take it. Whatever it may be: nothing is let through.
const PENDING: u32 = 1;
/// Its program is kept.
const KEPT: u32 = 2;
/// SECCOMP_MODE_STRICT.
const STRICT: u32 = 3;
/// It is there, and its program is not known.
const UNKNOWN: u32 = 4;
/// The kernel is asked to take it, and its program is there: it holds already.
const COMING: u32 = 5;

/// Ticks of the processor: about 100 ms.
const PATIENCE: u64 = 300_000_000;

struct Place {
    state: AtomicU32,
    steps: AtomicU32,
    /// Room for its program, which stays; null: there is none.
    code: AtomicPtr<libc::sock_filter>,
    /// Who asks the kernel to take it, by its thread pointer.
    by: AtomicU64,
}

/// The last is where those are read that no place is left for, one at a time.
static PLACES: [Place; MOST + 1] = [const {
    Place {
        state: AtomicU32::new(FREE),
        steps: AtomicU32::new(0),
        code: AtomicPtr::new(core::ptr::null_mut()),
        by: AtomicU64::new(0),
    }
}; MOST + 1];

/// The calls that all for which no place was left have the kernel make, whatever the arguments: a bit
/// for each number.
static OTHERS_LET: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(u64::MAX) }; NUMBERS / 64];
/// Places that were ever used; more than [`MOST`]: there were others.
static USED: AtomicU32 = AtomicU32::new(0);
/// What is over all threads (SECCOMP_FILTER_FLAG_TSYNC).
static ALL: AtomicU64 = AtomicU64::new(0);
/// Says which are over this thread; null: nobody says.
static MARKS: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// Goes up by 2 whenever a filter comes.
static ERA: AtomicU32 = AtomicU32::new(2);
/// For each number the era in which all filters of all threads were asked about it; and 1: whatever
/// the arguments, each of them has the kernel make the call.
static SEEN: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];
/// For each number the filters that were last found to stop the call, whatever its arguments: as
/// [`to_keep`] has them.
static STOPPED: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// `marks` says, without a system call, which filters may be over the calling thread.
pub fn set_marks(marks: fn() -> u64) {
    MARKS.store(marks as *mut (), Release);
}

/// Whether the program has ever put itself under a filter since the start.
#[inline]
pub fn any() -> bool {
    USED.load(Relaxed) != 0
}

/// The set of a thread of which nothing is known: all that there are. (No thread comes from one in
/// SECCOMP_MODE_STRICT, nor is a filter over it that is not over who brings it as yet.)
pub fn every() -> u64 {
    let others = match USED.load(Acquire) as usize > MOST {
        true => OTHERS,
        false => 0,
    };
    let places = (0..MOST).zip(&PLACES);
    places.fold(KNOWN | others, |set, (n, place)| {
        match place.state.load(Acquire) {
            KEPT | UNKNOWN => set | 1 << n,
            _ => set,
        }
    })
}

/// The set of the calling thread.
fn over_this_thread() -> u64 {
    let marks = MARKS.load(Acquire);
    // SAFETY: null, or the function that `set_marks` was given; null is None.
    let marks = unsafe { core::mem::transmute::<*mut (), Option<fn() -> u64>>(marks) };
    ALL.load(Acquire) | marks.map_or_else(every, |marks| marks())
}

/// How many filters the program has put this thread under since the start. The same one counts
/// once.
pub fn count() -> u32 {
    match any() {
        true => (over_this_thread() & !KNOWN).count_ones(),
        false => 0,
    }
}

/// Whether a call of ours with this number and these arguments may be made by this thread.
#[inline]
pub fn lets(nr: i64, args: [u64; 6]) -> bool {
    let [a, b, c, d, e, f] = args;
    !any() || !is_stopped(&[nr as u64, a, b, c, d, e, f])
}

/// Whether the kernel makes a call with this number for this thread: no filter has it fail, either.
pub fn makes(nr: i64) -> bool {
    !any() || {
        let era = ERA.load(Acquire);
        is_seen(era, nr as u64) || makes_with(era, nr as u64)
    }
}

#[cold]
#[inline(never)]
fn makes_with(era: u32, nr: u64) -> bool {
    if all_make(era, nr) {
        return true;
    }
    let call = [nr, 0, 0, 0, 0, 0, 0];
    are_all(|over| all_say(over, &call, is_made))
}

/// Whether what each filter of a set says of a call is `good`.
fn all_say(over: u64, call: &[u64; 7], good: fn(Option<u32>) -> bool) -> bool {
    (over & OTHERS == 0 || others_let(call[0])) && over_each(over).all(|x| x.says(call, good))
}

/// Whether `good` holds for the set of the calling thread. While a filter of it is waited for, another
/// may take its place.
fn are_all(good: impl Fn(u64) -> bool) -> bool {
    let mut over = over_this_thread();
    loop {
        let is_good = good(over);
        let before = core::mem::replace(&mut over, over_this_thread());
        if !is_good || before == over {
            return is_good;
        }
    }
}

/// Whether the filters over this thread do anything but let the call through, or have it fail. Asked
/// by [`arch::enter`], once there are any.
#[cold]
extern "C" fn is_stopped(call: &[u64; 7]) -> bool {
    let era = ERA.load(Acquire);
    !is_seen(era, call[0])
        && (is_known_to_stop(era, over_this_thread, call[0]) || are_asked(era, call))
}

/// A set of filters in an era, in a word. Two of them may have the same: then a call is left out that
/// could be made, until another filter comes.
fn to_keep(era: u32, over: u64) -> u64 {
    // Knuth's multiplicative hash.
    u64::from(era | 1) << 32 | over.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

/// Whether it is known that filters stop this call, whatever its arguments.
fn is_known_to_stop(era: u32, over: impl FnOnce() -> u64, nr: u64) -> bool {
    let kept = STOPPED.get(nr as usize);
    let kept = kept.map_or(0, |kept| kept.load(Relaxed));
    kept >> 32 == u64::from(era | 1) && kept == to_keep(era, over())
}

/// Keeps that one of these filters stops this call, if it does so whatever the arguments.
fn keep_stopped(era: u32, over: u64, nr: u64) {
    let is_certain = |place: &Place| match place.state.load(Acquire) {
        KEPT => answer(place.program(), &[nr]).is_some_and(|said| !passes(Some(said))),
        _ => false,
    };
    if let (Some(kept), true) = (STOPPED.get(nr as usize), over_each(over).any(is_certain)) {
        kept.store(to_keep(era, over), Relaxed);
    }
}

/// Whether it is known that all filters of all threads have the kernel make this call.
#[inline]
fn is_seen(era: u32, nr: u64) -> bool {
    let seen = SEEN.get(nr as usize);
    seen.is_some_and(|seen| seen.load(Relaxed) == era | 1)
}

#[inline(never)]
fn are_asked(era: u32, call: &[u64; 7]) -> bool {
    if all_make(era, call[0]) {
        return false;
    }
    !are_all(|over| {
        let pass = all_say(over, call, passes);
        if !pass {
            keep_stopped(era, over, call[0]);
        }
        pass
    })
}

/// Those that are kept of a set.
fn over_each(set: u64) -> impl Iterator<Item = &'static Place> {
    let mut left = set & (OTHERS - 1);
    core::iter::from_fn(move || {
        let place = PLACES.get(left.trailing_zeros() as usize);
        left &= left.wrapping_sub(1);
        place
    })
}

/// Whether all filters that there are have the kernel make a call, whatever the arguments; which is
/// kept for as long as no other filter comes. Not true of what is known not to be so.
#[cold]
fn all_make(era: u32, nr: u64) -> bool {
    let seen = SEEN.get(nr as usize);
    if seen.is_none_or(|seen| seen.load(Relaxed) == era) {
        return false;
    }
    // (In this order: of what comes after this the era is another.)
    if PLACES.iter().any(|p| p.state.load(Acquire) == PENDING) {
        return false;
    }
    let number = [nr];
    let others = USED.load(Acquire) as usize > MOST;
    let all =
        PLACES.iter().all(|place| place.says(&number, is_made)) && (!others || others_let(nr));
    if let Some(seen) = seen {
        seen.store(era | u32::from(all), Relaxed);
    }
    all
}

fn others_let(nr: u64) -> bool {
    let word = OTHERS_LET.get(nr as usize / 64);
    word.is_some_and(|word| word.load(Acquire) & 1 << (nr % 64) != 0)
}

/// Of what no place is left for `program` is one; `None`: it may say anything.
fn one_of_others(program: Option<&[libc::sock_filter]>) {
    for (n, word) in (0..).step_by(64).zip(&OTHERS_LET) {
        let made = |nr| program.is_some_and(|it| is_made(answer(it, &[nr])));
        let bits = (0..64).filter(|bit| made(n + bit));
        word.fetch_and(bits.fold(0, |all, bit| all | 1 << bit), SeqCst);
    }
}

impl Place {
    /// Whether its answer to `call`, number and arguments, is `good`; of a number alone, whether it is
    /// certain to be.
    fn says(&self, call: &[u64], good: fn(Option<u32>) -> bool) -> bool {
        match self.decided() {
            FREE => true,
            KEPT | COMING => good(answer(self.program(), call)),
            STRICT => [
                libc::SYS_read,
                libc::SYS_write,
                libc::SYS_exit,
                libc::SYS_rt_sigreturn,
            ]
            .iter()
            .any(|nr| call.first() == Some(&(*nr as u64))),
            _ => false,
        }
    }

    /// Its state. One that another thread brings for all is waited for: the kernel's answer comes
    /// at once, and what a thread has begun (its signals are blocked) it must be able to end.
    fn decided(&self) -> u32 {
        let state = self.state.load(Acquire);
        if state != PENDING || self.by.load(Relaxed) == arch::thread_pointer() {
            return state;
        }
        // (Not before: SECCOMP_MODE_STRICT takes the counter away.)
        let since = ticks();
        loop {
            let state = self.state.load(Acquire);
            if state != PENDING {
                return state;
            }
            if ticks().wrapping_sub(since) > PATIENCE {
                // Who brings it was ended in the midst of it.
                let _ = self
                    .state
                    .compare_exchange(PENDING, UNKNOWN, AcqRel, Relaxed);
            }
            core::hint::spin_loop();
        }
    }

    fn program(&self) -> &[libc::sock_filter] {
        let (code, steps) = (self.code.load(Relaxed), self.steps.load(Relaxed));
        match code.is_null() {
            true => &[],
            // SAFETY: who has set the state to KEPT or COMING has filled so many, in memory that
            // stays.
            false => unsafe { core::slice::from_raw_parts(code, steps as usize) },
        }
    }

    fn take(&self) -> bool {
        let taken = self
            .state
            .compare_exchange(FREE, PENDING, SeqCst, Relaxed)
            .is_ok();
        if taken {
            self.by.store(arch::thread_pointer(), Relaxed);
        }
        taken
    }

    /// Whether another thread is asking the kernel for it.
    fn is_brought(&self) -> bool {
        let comes = matches!(self.state.load(Acquire), PENDING | COMING);
        comes && self.by.load(Relaxed) != arch::thread_pointer()
    }

    fn leave(&self, state: u32) {
        self.state.store(state, Release);
    }

    /// Which place has the same program.
    fn same(&self) -> Option<usize> {
        (0..MOST).zip(&PLACES).find_map(|(n, other)| {
            let same =
                other.state.load(Acquire) == KEPT && is_equal(other.program(), self.program());
            same.then_some(n)
        })
    }
}

/// A filter that the kernel is about to be asked for.
pub struct Coming<'a> {
    /// This thread's set, and what it added to it.
    set: &'a Cell<u64>,
    to_set: u64,
    /// What it added to [`ALL`].
    to_all: u64,
    /// Its place among [`PLACES`], whose number is that of its bit; `None`: there is none, not even
    /// to read it.
    place: Option<&'static Place>,
    bit: u64,
    /// Whether it brings its program: it is not there already.
    brings: bool,
}

/// Takes a place, if one is free or becomes so: many threads may bring the same filter at once, of
/// which one stays.
fn free_place() -> Option<usize> {
    let places = || PLACES.iter().take(MOST);
    let take = || places().position(Place::take);
    let taken = take();
    if taken.is_some() || !places().any(Place::is_brought) {
        return taken;
    }
    // (Not before: the program may have had the counter taken away.)
    let since = ticks();
    loop {
        crate::sleep::yield_now();
        let taken = take();
        let late = ticks().wrapping_sub(since) > PATIENCE;
        if taken.is_some() || late || !places().any(Place::is_brought) {
            return taken;
        }
    }
}

/// A filter comes to the calling thread, whose set this is.
pub fn begin(set: &Cell<u64>) -> Coming<'_> {
    let last = &PLACES[MOST];
    let n = free_place();
    let place = match n {
        Some(n) => Some(&PLACES[n]),
        None => Some(last).filter(|last| last.take() || last.decided() == FREE && last.take()),
    };
    let n = n.unwrap_or(MOST);
    USED.fetch_max(n as u32 + 1, SeqCst);
    arch::ask_first(is_stopped);
    // (Behind the place's state.)
    ERA.fetch_add(2, SeqCst);
    if place.is_none() {
        one_of_others(None);
    }
    Coming {
        set,
        to_set: 0,
        to_all: 0,
        place,
        bit: 1 << n,
        brings: true,
    }
}

impl Coming<'_> {
    /// Whether there is no place left to keep it.
    pub fn is_one_of_many(&self) -> bool {
        self.bit == OTHERS
    }

    /// Whether there is no room for its program as yet.
    pub fn wants_room(&self) -> bool {
        self.place.is_some_and(|p| p.code.load(Relaxed).is_null())
    }

    /// Gives it [`ROOM`] bytes, which nobody else uses and which stay.
    pub fn give_room(&self, room: core::ptr::NonNull<u8>) {
        if let Some(place) = self.place {
            place.code.store(room.as_ptr().cast(), Relaxed);
        }
    }

    /// Reads the program that the kernel is to be asked for, with its `struct sock_fprog` at `at`:
    /// from now on it is asked as those are that hold. Errors: EFAULT and EINVAL, which are the
    /// kernel's answer, too; others if it can't be read.
    pub fn read(&mut self, at: u64) -> Result<()> {
        let read = self.copied(at);
        let Some(place) = self.place.filter(|_| read.is_ok()) else {
            if self.is_one_of_many() && !matches!(read, Err(Errno::FAULT | Errno::INVAL)) {
                one_of_others(None);
            }
            return read;
        };
        if self.is_one_of_many() {
            one_of_others(Some(place.program()));
        } else if let Some(n) = place.same() {
            place.leave(FREE);
            (self.place, self.bit, self.brings) = (PLACES.get(n), 1 << n, false);
        } else {
            place.leave(COMING);
        }
        Ok(())
    }

    fn copied(&self, at: u64) -> Result<()> {
        let place = self
            .place
            .filter(|_| !self.wants_room())
            .ok_or(Errno::NOMEM)?;
        let (mut head, code) = ([0u64; 2], place.code.load(Relaxed));
        let copy = |from, to: *mut u8, bytes| {
            // SAFETY: room of this function's, or the place's, which nobody else reads as yet.
            match unsafe { crate::memory::copy_checked(from, to, bytes) }? {
                n if n == bytes => Ok(()),
                _ => Err(Errno::FAULT),
            }
        };
        copy(at, head.as_mut_ptr().cast(), size_of_val(&head))?;
        let steps = usize::from(head[0] as u16);
        if steps == 0 || steps > STEPS {
            return Err(Errno::INVAL);
        }
        place.steps.store(steps as u32, Relaxed);
        copy(head[1], code.cast(), steps * size_of::<libc::sock_filter>())
    }

    /// Whether the program that has been read stops this call.
    pub fn would_stop(&self, nr: i64) -> bool {
        let call = [nr as u64, 0, 0, 0, 0, 0, 0];
        self.place
            .is_none_or(|place| !passes(answer(place.program(), &call)))
    }

    /// Whether the kernel makes this call under the program that has been read: it does not fail.
    pub fn would_make(&self, nr: i64) -> bool {
        let call = [nr as u64, 0, 0, 0, 0, 0, 0];
        self.place
            .is_some_and(|place| is_made(answer(place.program(), &call)))
    }

    /// It is over this thread from now on, until the kernel refuses it; `all`: and, with the others
    /// over this one, over all threads.
    pub fn put_over(&mut self, all: bool) {
        let before = self.set.get();
        self.to_set = self.bit & !before;
        self.set.set(before | self.bit);
        if all {
            let added = (before | self.bit) & !KNOWN;
            self.to_all = added & !ALL.fetch_or(added, SeqCst);
        }
    }

    /// The kernel has not taken it.
    pub fn refused(self) {
        ALL.fetch_and(!self.to_all, SeqCst);
        self.set.set(self.set.get() & !self.to_set);
        self.leave(FREE);
    }

    /// The kernel has: it is SECCOMP_MODE_STRICT.
    pub fn taken_strict(self) {
        self.leave(STRICT);
    }

    /// The kernel has, and it is this program. One that says the same as another takes no place: each
    /// thread may bring it for itself.
    ///
    /// # Safety
    /// `program` is what the kernel has taken, in memory that is there still.
    pub unsafe fn taken(self, program: *const libc::sock_fprog) {
        let keeps = self.brings && !self.is_one_of_many();
        let Some(place) = self.place.filter(|_| keeps) else {
            return self.leave(KEPT);
        };
        // (Not so PENDING alone: others may have given up waiting.)
        if place.state.load(Relaxed) == COMING {
            return self.keep();
        }
        // SAFETY: by the contract above.
        let (from, steps) = unsafe { ((*program).filter, usize::from((*program).len)) };
        if self.wants_room() || steps > STEPS {
            return self.leave(UNKNOWN);
        }
        let to = place.code.load(Relaxed);
        // SAFETY: likewise, into room for as many.
        unsafe { core::ptr::copy_nonoverlapping(from.cast_const(), to, steps) };
        place.steps.store(steps as u32, Relaxed);
        self.keep();
    }

    /// Its program is known. Another thread may have brought the same one meanwhile.
    fn keep(self) {
        match self.place.and_then(Place::same) {
            Some(n) => self.replaced_by(1 << n),
            None => self.leave(KEPT),
        }
    }

    /// The one with this bit stands for it.
    fn replaced_by(self, other: u64) {
        self.set.set(self.set.get() | other);
        // (A handler's may have put it over all.)
        if ALL.load(SeqCst) & self.bit != 0 {
            ALL.fetch_or(other, SeqCst);
            ALL.fetch_and(!self.bit, SeqCst);
        }
        self.set.set(self.set.get() & !self.bit);
        self.leave(FREE);
    }

    fn leave(&self, state: u32) {
        let state = match self.is_one_of_many() {
            true => FREE,
            false => state,
        };
        if let Some(place) = self.place.filter(|_| self.brings) {
            place.leave(state);
        }
    }
}

/// Room that there is for programs: where it begins.
pub fn rooms() -> impl Iterator<Item = u64> {
    let rooms = PLACES.iter().map(|place| place.code.load(Relaxed) as u64);
    rooms.filter(|at| *at != 0)
}

#[cfg(test)]
mod tests;
