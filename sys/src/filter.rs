//! The seccomp filters that the program puts itself under while this library is there.
//!
//! A filter may kill who makes a call that is not on its list, and the program wrote that list for
//! its own calls. So each filter is kept, and asked before a call of ours: what it does not let
//! through is not made, and fails with EPERM. A filter that lets a call fail with an errno is left
//! to the kernel.
//!
//! Filters only ever add up, and are inherited. Which are over a thread is a set of bits in its
//! block: the caller says where ([`set_marks`]). Filters from before the start are not known here.

use crate::arch::{self, ticks};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering::*};

/// Filters that are kept. Where there are more, nothing is let through to who is under those.
const MOST: u32 = 62;
/// In a thread's set: it is under one that is not kept.
const OTHERS: u64 = 1 << MOST;
/// In a thread's set: it is known.
pub const KNOWN: u64 = 1 << 63;
/// Instructions that a filter has at the most (BPF_MAXINSNS).
const STEPS: usize = 4096;
/// Bytes of room that one needs.
pub const ROOM: usize = STEPS * size_of::<libc::sock_filter>();

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

struct Place {
    state: AtomicU32,
    steps: AtomicU32,
    /// Room for its program, which stays; null: there is none.
    code: AtomicPtr<libc::sock_filter>,
    /// Who asks the kernel to take it, by its thread pointer.
    by: AtomicU64,
}

static PLACES: [Place; MOST as usize] = [const {
    Place {
        state: AtomicU32::new(FREE),
        steps: AtomicU32::new(0),
        code: AtomicPtr::new(core::ptr::null_mut()),
        by: AtomicU64::new(0),
    }
}; MOST as usize];

/// Places that were ever used; more than [`MOST`]: there were others.
static USED: AtomicU32 = AtomicU32::new(0);
/// What is over all threads (SECCOMP_FILTER_FLAG_TSYNC).
static ALL: AtomicU64 = AtomicU64::new(0);
/// Says which are over this thread; null: nobody says.
static MARKS: AtomicPtr<()> = AtomicPtr::new(core::ptr::null_mut());

/// `marks` says, without a system call, which filters may be over the calling thread.
pub fn set_marks(marks: fn() -> u64) {
    MARKS.store(marks as *mut (), Release);
}

/// Whether the program has ever put itself under a filter since the start.
#[inline]
pub fn any() -> bool {
    USED.load(Relaxed) != 0
}

/// The set of a thread of which nothing is known: all that there have been.
pub fn every() -> u64 {
    match USED.load(Acquire) {
        used if used > MOST => KNOWN | OTHERS | (OTHERS - 1),
        used => KNOWN | ((1 << used) - 1),
    }
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
    !any() || !stops(nr as u64, a, b, c, d, e, f)
}

/// Whether the filters over this thread do anything but let the call through, or have it fail.
#[cold]
#[inline(never)]
pub(crate) fn stops(nr: u64, a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> bool {
    let call = [nr, a, b, c, d, e, f];
    let over = over_this_thread();
    let mut places = PLACES.iter().enumerate();
    over & OTHERS != 0 || places.any(|(n, place)| over & 1 << n != 0 && place.stops(&call))
}

impl Place {
    fn stops(&self, call: &[u64; 7]) -> bool {
        match self.decided() {
            FREE => false,
            KEPT => !passes(answer(self.program(), call)),
            STRICT => ![
                libc::SYS_read,
                libc::SYS_write,
                libc::SYS_exit,
                libc::SYS_rt_sigreturn,
            ]
            .contains(&(call[0] as i64)),
            _ => true,
        }
    }

    /// Its state. One that another thread brings for all is waited for: the kernel's answer comes
    /// at once, and what a thread has begun (its signals are blocked) it must be able to end.
    fn decided(&self) -> u32 {
        /// About 100 ms.
        const PATIENCE: u64 = 300_000_000;
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
        // SAFETY: who has set the state to KEPT has filled so many, in memory that stays.
        unsafe { core::slice::from_raw_parts(code, steps as usize) }
    }
}

/// A filter that the kernel is about to be asked for. Whoever is under it makes no call of ours
/// until it is known what it says.
pub struct Coming {
    /// Its bit in a thread's set.
    pub bit: u64,
    /// What it added to [`ALL`].
    to_all: u64,
}

/// A filter comes. Before the kernel is asked, the caller puts [`Coming::bit`] into this thread's
/// set, and says if it is for all.
pub fn begin() -> Coming {
    let bit = match take_place() {
        Some(n) => 1 << n,
        None => OTHERS,
    };
    Coming { bit, to_all: 0 }
}

fn take_place() -> Option<u32> {
    for (n, place) in (0..).zip(&PLACES) {
        let free = place
            .state
            .compare_exchange(FREE, PENDING, AcqRel, Relaxed)
            .is_ok();
        if free {
            place.by.store(arch::thread_pointer(), Relaxed);
            USED.fetch_max(n + 1, SeqCst);
            return Some(n);
        }
    }
    USED.store(MOST + 1, SeqCst);
    None
}

impl Coming {
    fn place(&self) -> Option<&'static Place> {
        PLACES.get(self.bit.trailing_zeros() as usize)
    }

    /// Whether there is no room for its program as yet.
    pub fn wants_room(&self) -> bool {
        self.place().is_some_and(|p| p.code.load(Relaxed).is_null())
    }

    /// It is to be over all threads, and with it the others over this one: `over`.
    pub fn for_all(&mut self, over: u64) {
        let added = (over | self.bit) & !KNOWN;
        self.to_all = added & !ALL.fetch_or(added, SeqCst);
    }

    /// Gives it [`ROOM`] bytes, which nobody else uses and which stay.
    pub fn give_room(&self, room: core::ptr::NonNull<u8>) {
        if let Some(place) = self.place() {
            place.code.store(room.as_ptr().cast(), Relaxed);
        }
    }

    /// Reads the program that the kernel is to be asked for, with its `struct sock_fprog` at `at`, for
    /// [`Coming::would_stop`]. Whether it can be read.
    pub fn read(&self, at: u64) -> bool {
        let Some(place) = self.place().filter(|_| !self.wants_room()) else {
            return false;
        };
        let (mut head, code) = ([0u64; 2], place.code.load(Relaxed));
        // SAFETY: room of this function's.
        let read = unsafe { crate::copy_checked(at, head.as_mut_ptr().cast(), size_of_val(&head)) };
        let steps = usize::from(head[0] as u16);
        if read != Ok(size_of_val(&head)) || steps > STEPS {
            return false;
        }
        let bytes = steps * size_of::<libc::sock_filter>();
        place.steps.store(steps as u32, Relaxed);
        // SAFETY: the place's room, which nobody else reads before it is KEPT.
        unsafe { crate::copy_checked(head[1], code.cast(), bytes) == Ok(bytes) }
    }

    /// Whether the program that has been read stops this call.
    pub fn would_stop(&self, nr: i64) -> bool {
        let call = [nr as u64, 0, 0, 0, 0, 0, 0];
        self.place()
            .is_none_or(|place| !passes(answer(place.program(), &call)))
    }

    /// The kernel has not taken it.
    pub fn refused(self) {
        ALL.fetch_and(!self.to_all, SeqCst);
        self.leave(FREE);
    }

    /// The kernel has: it is SECCOMP_MODE_STRICT. As [`Coming::taken`].
    pub fn taken_strict(self) -> u64 {
        self.leave(STRICT);
        self.bit
    }

    /// The kernel has, and it is this program. The bit that is to stand for it in this thread's
    /// set: that of a filter which says the same, if there is one, so that a filter which each
    /// thread brings for itself takes one place.
    ///
    /// # Safety
    /// `program` is what the kernel has taken, in memory that is there still.
    pub unsafe fn taken(self, program: *const libc::sock_fprog) -> u64 {
        let bit = self.bit;
        // SAFETY: by the contract above.
        let (from, steps) = unsafe { ((*program).filter, usize::from((*program).len)) };
        let Some(place) = self
            .place()
            .filter(|_| !self.wants_room() && steps <= STEPS)
        else {
            self.leave(UNKNOWN);
            return bit;
        };
        let to = place.code.load(Relaxed);
        // SAFETY: likewise, into room for as many.
        unsafe { core::ptr::copy_nonoverlapping(from.cast_const(), to, steps) };
        place.steps.store(steps as u32, Relaxed);
        let same = |other: &Place| {
            other.state.load(Acquire) == KEPT && is_equal(other.program(), place.program())
        };
        match PLACES.iter().position(same) {
            Some(n) => {
                let (other, all) = (1 << n, self.to_all & bit != 0);
                ALL.fetch_or(if all { other } else { 0 }, SeqCst);
                self.leave(FREE);
                other
            }
            None => {
                self.leave(KEPT);
                bit
            }
        }
    }

    fn leave(&self, state: u32) {
        if let Some(place) = self.place() {
            place.state.store(state, Release);
        }
    }
}

fn is_equal(one: &[libc::sock_filter], other: &[libc::sock_filter]) -> bool {
    let words = |step: &libc::sock_filter| (step.code, step.jt, step.jf, step.k);
    one.iter().map(words).eq(other.iter().map(words))
}

/// Whether the kernel makes the call, or refuses it, and nobody else is asked or told.
fn passes(answer: Option<u32>) -> bool {
    let action = answer.map(|answer| answer & libc::SECCOMP_RET_ACTION_FULL);
    matches!(
        action,
        Some(libc::SECCOMP_RET_ALLOW | libc::SECCOMP_RET_LOG | libc::SECCOMP_RET_ERRNO)
    )
}

/// What a filter says of `call`, number and arguments: classic BPF on a `struct seccomp_data`, as
/// the kernel has checked it (seccomp_check_filter). `None`: it divides by zero, or goes by where
/// the instruction is.
fn answer(steps: &[libc::sock_filter], call: &[u64; 7]) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; 16]);
    let mut at = 0;
    // Jumps go forward only.
    loop {
        let step = steps.get(at)?;
        at += 1;
        let (code, k) = (u32::from(step.code), step.k);
        let operand = if code & libc::BPF_X == 0 { k } else { x };
        let loaded = || match code & 0xe0 {
            libc::BPF_IMM => Some(k),
            libc::BPF_ABS => word(call, k),
            libc::BPF_MEM => memory.get(k as usize).copied(),
            _ => Some(DATA_BYTES), // BPF_LEN
        };
        match code & 7 {
            libc::BPF_LD => a = loaded()?,
            libc::BPF_LDX => x = loaded()?,
            libc::BPF_ST => *memory.get_mut(k as usize)? = a,
            libc::BPF_STX => *memory.get_mut(k as usize)? = x,
            libc::BPF_ALU => a = calculated(code & 0xf0, a, operand)?,
            libc::BPF_JMP if code & 0xf0 == libc::BPF_JA => at = at.checked_add(k as usize)?,
            libc::BPF_JMP => {
                let holds = compares(code & 0xf0, a, operand);
                at += usize::from(if holds { step.jt } else { step.jf });
            }
            libc::BPF_RET => return Some(if code & 0x18 == BPF_A { a } else { k }),
            _ if code & 0xf8 == BPF_TXA => a = x,
            _ => x = a, // BPF_TAX
        }
    }
}

/// Bytes of a `struct seccomp_data`: number, processor, address, six arguments.
const DATA_BYTES: u32 = 64;
const BPF_A: u32 = 0x10;
const BPF_TXA: u32 = 0x80;

/// The word at `k` of a `struct seccomp_data`. `None`: a part of the instruction's address.
fn word(call: &[u64; 7], k: u32) -> Option<u32> {
    match k {
        0 => Some(call[0] as u32),
        4 => Some(arch::AUDIT),
        8 | 12 => None,
        _ => {
            let argument = *call.get((k as usize - 8) / 8)?;
            Some((argument >> ((k & 4) * 8)) as u32)
        }
    }
}

fn calculated(operation: u32, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        libc::BPF_ADD => a.wrapping_add(b),
        libc::BPF_SUB => a.wrapping_sub(b),
        libc::BPF_MUL => a.wrapping_mul(b),
        libc::BPF_DIV => a.checked_div(b)?,
        libc::BPF_OR => a | b,
        libc::BPF_AND => a & b,
        libc::BPF_LSH => a.wrapping_shl(b),
        libc::BPF_RSH => a.wrapping_shr(b),
        libc::BPF_XOR => a ^ b,
        libc::BPF_NEG => a.wrapping_neg(),
        _ => return None,
    })
}

fn compares(how: u32, a: u32, b: u32) -> bool {
    match how {
        libc::BPF_JEQ => a == b,
        libc::BPF_JGT => a > b,
        libc::BPF_JGE => a >= b,
        _ => a & b != 0, // BPF_JSET
    }
}

#[cfg(test)]
mod tests;
