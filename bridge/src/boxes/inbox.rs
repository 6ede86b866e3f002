//! The receiver's side of its box. One thread reads at a time; what it knows of rings and cells is
//! its own memory, and nothing that a sender writes is used before it was copied and checked.

use super::layout::{Head, Shape, CELLS, RINGS};
use super::mailbox::{Mailbox, Sender, Waiting};
pub use super::out::{Message, Out};
use super::ring::{Control, Lines, Reader, Turn};
use super::summary::{EVENT, SLEEPS, WAYS};
use crate::find;
use crate::host::Host;
use crate::lock::Lock;
use crate::memory;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_directory::layout::Counter;
use regall_sys::arch::ticks;
use regall_sys::file::{self, Fd, Kept};
use regall_sys::{credentials, process, time, Errno, Result};

/// A ring in which nothing has come for so long is taken back, in nanoseconds.
pub const IDLE: u64 = 1_000_000_000;
/// Between two looks for such rings, in nanoseconds; less where a sender has found none.
const SWEEP: u64 = IDLE;
const SWEEP_SOON: u64 = 10_000_000;
/// Looks that find nothing between two looks at the clock, and before rings are left to the
/// summary in which nothing comes.
const GLANCES: u32 = 256;
const LOOKS: u32 = 1024;
/// How often a poll looks again because something seems to have come.
const NEWS: u32 = 64;
/// How long who waits looks before he sleeps, and sleeps before he looks again, in nanoseconds.
const SPIN: u64 = 5_000;
const NAP: u64 = 500_000_000;

/// What is known of a ring.
#[derive(Clone, Copy)]
struct Known {
    reader: Reader,
    /// [`Turn::whose`]; 0: nobody's.
    whose: u64,
    from: Sender,
    /// Since when nobody looks at it, in ticks.
    quiet_since: u64,
}

struct State {
    rings: [Known; RINGS],
    /// Rings that are looked at, a bit each.
    active: u64,
    /// Those in which something has come lately.
    heard: u64,
    /// Those that were taken back, with what is in them.
    draining: u64,
    waiting: Waiting,
    /// The ring to be looked at first.
    next: u32,
    /// Looks that have found nothing, since ever.
    empty: u32,
    /// When rings were looked for that are idle, in ticks.
    swept: u64,
    /// Threads that sleep.
    sleepers: u32,
    /// A pipe: it has a byte in it unless senders are told to put one there.
    event: Option<Kept>,
    is_armed: bool,
}

/// A process's box.
pub struct Inbox {
    at: u64,
    shape: Shape,
    file: Kept,
    state: Lock<State>,
    /// Whether a descriptor was asked for.
    has_event: AtomicU32,
}

/// What has become of reading one ring.
#[derive(PartialEq, Eq)]
enum Step {
    Empty,
    Full,
    Rubbish,
}

impl Inbox {
    /// On memory of the shim's at `at`, where `file`, of [`Shape::bytes`], is mapped.
    ///
    /// # Safety
    /// It is mapped there, zeroed, to be read and written, and stays.
    pub unsafe fn new(host: &dyn Host, at: u64, shape: Shape, file: &Fd) -> Result<NonNull<Self>> {
        let file = Kept::new(file)?;
        let nobody = Known {
            reader: Reader::new(),
            whose: 0,
            from: Sender { pid: 0, start: 0 },
            quiet_since: 0,
        };
        let inbox = Self {
            at,
            shape,
            file,
            state: Lock::new(State {
                rings: [nobody; RINGS],
                active: 0,
                heard: 0,
                draining: 0,
                waiting: Waiting::new(),
                next: 0,
                empty: 0,
                swept: 0,
                sleepers: 0,
                event: None,
                is_armed: false,
            }),
            has_event: AtomicU32::new(0),
        };
        inbox.head().begin(&shape);
        memory::place(host, inbox).inspect_err(|_| file.close())
    }

    /// Where it is, for peers.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Its file's descriptor, as long as it is that.
    pub fn file(&self) -> &Kept {
        &self.file
    }

    /// The pipe's descriptor, if somebody has asked for it.
    pub fn event(&self) -> Option<Kept> {
        self.state.lock().event
    }

    fn head(&self) -> &Head {
        // SAFETY: the box is mapped there, by the contract of `Inbox::new`; atomics.
        unsafe { &*(self.at as *const Head) }
    }

    fn mailbox(&self) -> Mailbox<'_> {
        // SAFETY: as in `head`.
        unsafe { Mailbox::new(self.at, self.shape) }
    }

    #[inline]
    fn ring(&self, n: usize) -> Option<(&Control, Lines<'_>)> {
        let (at, control) = (self.shape.ring(n)?, self.head().controls.get(n)?);
        // SAFETY: the ring is in the box, which is mapped.
        Some((control, unsafe {
            Lines::new(self.at + at, self.shape.size)
        }))
    }

    /// The descriptor that is readable when something has come since a poll found nothing.
    /// EMFILE, ENFILE: there is none left; ENOENT: no /proc.
    pub fn wants_event(&self) -> Result<i32> {
        let mut state = self.state.lock();
        if let Some(event) = state.event {
            return Ok(event.raw());
        }
        let event = Kept::new(&file::pipe()?)?;
        state.event = Some(event);
        signal(&state);
        self.has_event.store(1, Relaxed);
        self.head().has_event.store(1, Release);
        Ok(event.raw())
    }

    /// Takes what has come, as far as there is room.
    pub fn poll(&self, host: &dyn Host, out: &mut Out) {
        let mut state = self.state.lock();
        // A sender that sets bits all the time, and sends nothing, holds nobody here.
        for _ in 0..NEWS {
            self.gather(host, &mut state, out);
            if !out.is_empty() {
                if self.head().wanted.load(Relaxed) != 0 {
                    self.sweep_if_due(host, &mut state, ticks());
                }
                break;
            }
            self.glance(host, &mut state);
            if self.has_event.load(Relaxed) == 0 || !self.arms_event(host, &mut state) {
                break;
            }
        }
        if state.sleepers > 0 {
            self.leave_to_sleepers(&mut state);
        }
        if out.taken() > 0 {
            host.tally(Counter::BoxReceived, out.taken());
        }
    }

    /// As [`Inbox::poll`], but waits until something has come, or `nanos` are over (`None`: without
    /// end).
    pub fn wait(&self, host: &dyn Host, out: &mut Out, nanos: Option<u64>) {
        let begun = ticks();
        loop {
            self.poll(host, out);
            if !out.is_empty() || nanos == Some(0) {
                return;
            }
            if time::nanos(ticks().wrapping_sub(begun)) >= SPIN {
                break;
            }
            core::hint::spin_loop();
        }
        let since = time::now();
        loop {
            let spent = time::now().saturating_sub(since);
            let left = nanos.map_or(NAP, |n| n.saturating_sub(spent).min(NAP));
            if left == 0 {
                return;
            }
            self.sleep(host, left);
            self.poll(host, out);
            if !out.is_empty() {
                return;
            }
        }
    }

    fn sleep(&self, host: &dyn Host, nanos: u64) {
        let sequence = &self.head().sequence;
        let seen = sequence.load(Acquire);
        let has_come = {
            let mut state = self.state.lock();
            state.sleepers += 1;
            self.look_around(host, &mut state);
            self.arm(&mut state, SLEEPS)
        };
        if !has_come {
            regall_sys::futex_wait_shared(sequence, seen, nanos as u32);
        }
        let mut state = self.state.lock();
        state.sleepers -= 1;
        if state.sleepers == 0 {
            self.head().summary.disarm(SLEEPS);
        }
    }
}

impl Inbox {
    /// The order: what waits of the mailbox; what is in rings that were taken back, for their
    /// senders go on by the mailbox; the mailbox as it is once all new rings are known, for their
    /// senders have come from there; the rings.
    #[inline]
    fn gather(&self, host: &dyn Host, state: &mut State, out: &mut Out) {
        let summary = &self.head().summary;
        let is_wanted = || self.head().wanted.load(Relaxed) != 0;
        if state.is_armed && (summary.has_any() || is_wanted()) {
            self.disarm(state);
        }
        if !self.read_mailbox(host, state, out) {
            return;
        }
        if state.draining != 0 && !self.drain(host, state, out) {
            return;
        }
        // Bits of no ring and no cell are taken, too: one that stays would be news for ever.
        let new = summary.take_rings(!WAYS) & self.shape.ring_bits();
        if new != 0 {
            self.adopt(state, new);
        }
        let cells = summary.take_cells(!WAYS) & ((1 << CELLS) - 1);
        if cells != 0 {
            let rubbish = self.mailbox().collect(cells, &mut state.waiting);
            host.tally(Counter::BoxRubbish, rubbish);
        }
        if self.read_mailbox(host, state, out) {
            self.read_rings(host, state, out);
        }
    }

    /// Whether all that waited was delivered.
    #[inline]
    fn read_mailbox(&self, host: &dyn Host, state: &mut State, out: &mut Out) -> bool {
        let mailbox = self.mailbox();
        while let Some(n) = state.waiting.first() {
            match mailbox.look(n) {
                None => host.tally(Counter::BoxRubbish, 1),
                Some(letter) => {
                    let to = out.next(&letter.from, letter.kind, letter.tag, letter.len);
                    let Some(to) = to else {
                        return false;
                    };
                    // SAFETY: `Out` has so much room there.
                    unsafe { mailbox.copy(n, &letter, to) };
                }
            }
            state.waiting.pop();
            mailbox.free(n);
        }
        true
    }

    #[inline]
    fn read_rings(&self, host: &dyn Host, state: &mut State, out: &mut Out) {
        // From a ring on that is another one each time.
        let behind = state.active & (!0 << (state.next & 63));
        for half in [behind, state.active & !behind] {
            let mut bits = half;
            while bits != 0 {
                let n = bits.trailing_zeros();
                bits &= bits - 1;
                match self.read(state, n as usize, out) {
                    Step::Empty => (),
                    Step::Full => {
                        state.next = n;
                        return;
                    }
                    Step::Rubbish => self.cast_out(host, state, n as usize),
                }
            }
        }
        state.next = (state.next + 1) % RINGS as u32;
    }

    #[inline]
    fn read(&self, state: &mut State, n: usize, out: &mut Out) -> Step {
        let (Some((control, lines)), Some(known)) = (self.ring(n), state.rings.get_mut(n)) else {
            return Step::Empty;
        };
        let limit = self.shape.limit;
        while let Some(found) = known.reader.peek(&lines, limit) {
            let Some(found) = found else {
                return Step::Rubbish;
            };
            let to = out.next(&known.from, found.kind, found.tag, found.len);
            let Some(to) = to else {
                return Step::Full;
            };
            // SAFETY: `Out` has so much room there.
            unsafe { known.reader.take(control, &lines, &found, to) };
            state.heard |= 1 << n;
        }
        Step::Empty
    }

    /// Begins to look at these rings.
    #[cold]
    fn adopt(&self, state: &mut State, bits: u64) {
        for n in (0..RINGS).filter(|n| bits >> n & 1 != 0) {
            let Some((control, _)) = self.ring(n) else {
                continue;
            };
            let turn = control.turn();
            if !turn.is_in_use() {
                continue;
            }
            know(state, n, control, turn);
            state.active |= 1 << n;
            if turn.is_left() {
                state.draining |= 1 << n;
            }
        }
    }

    /// Reads what is left in rings that were taken back, and frees them. Whether there was room.
    #[cold]
    fn drain(&self, host: &dyn Host, state: &mut State, out: &mut Out) -> bool {
        let draining = state.draining;
        for n in (0..RINGS).filter(|n| draining >> n & 1 != 0) {
            match self.read(state, n, out) {
                Step::Full => return false,
                Step::Empty => (),
                Step::Rubbish => host.tally(Counter::BoxRubbish, 1),
            }
            self.give_back(host, state, n);
        }
        true
    }

    /// Ring `n` is nobody's, and takes no memory.
    fn give_back(&self, host: &dyn Host, state: &mut State, n: usize) {
        let bit = 1u64 << (n & 63);
        state.active &= !bit;
        state.draining &= !bit;
        if let (Some(known), Some((control, _)), Some(at)) =
            (state.rings.get_mut(n), self.ring(n), self.shape.ring(n))
        {
            known.whose = 0;
            let (from, bytes) = (self.at + at, self.shape.size);
            // SAFETY: a ring that is nobody's; what is in it are messages that were read. (Locked
            // memory is refused, and stays.)
            let _ = unsafe { regall_sys::advise_any(from, bytes, libc::MADV_REMOVE) };
            control.free();
            host.tally(Counter::BoxRingsReturned, 1);
        }
    }

    /// What its sender writes there is no message: it has no ring any more.
    #[cold]
    fn cast_out(&self, host: &dyn Host, state: &mut State, n: usize) {
        host.tally(Counter::BoxRubbish, 1);
        if let Some((control, _)) = self.ring(n) {
            control.seize();
        }
        self.give_back(host, state, n);
    }
}

impl Inbox {
    /// Now and then, when nothing has come.
    #[inline]
    fn glance(&self, host: &dyn Host, state: &mut State) {
        state.empty = state.empty.wrapping_add(1);
        if state.empty % GLANCES == 0 {
            self.look_around(host, state);
        }
    }

    #[cold]
    fn look_around(&self, host: &dyn Host, state: &mut State) {
        let now = ticks();
        if state.empty % LOOKS == 0 {
            self.hush(state, state.active & !state.heard, now);
            state.heard = 0;
        }
        self.sweep_if_due(host, state, now);
    }

    #[cold]
    fn sweep_if_due(&self, host: &dyn Host, state: &mut State, now: u64) {
        let pause = match self.head().wanted.load(Relaxed) {
            0 => SWEEP,
            _ => SWEEP_SOON,
        };
        if time::nanos(now.wrapping_sub(state.swept)) >= pause {
            self.sweep(host, state, now);
        }
    }

    /// Looks at these rings no more until their bits come; whether something has come in one.
    fn hush(&self, state: &mut State, bits: u64, now: u64) -> bool {
        let mut has_come = false;
        for n in (0..RINGS).filter(|n| bits >> n & 1 != 0) {
            let (Some((control, lines)), Some(known)) = (self.ring(n), state.rings.get_mut(n))
            else {
                continue;
            };
            match known.reader.go_quiet(control, &lines) {
                true => {
                    state.active &= !(1 << n);
                    known.quiet_since = now;
                }
                false => has_come = true,
            }
        }
        has_come
    }

    /// Looks for rings that are idle or left, and for what senders have left that have died.
    fn sweep(&self, host: &dyn Host, state: &mut State, now: u64) {
        self.head().wanted.store(0, Relaxed);
        self.hush(state, state.active & !state.heard, now);
        state.swept = now;
        let judge = Judge::new();
        for n in 0..self.shape.rings as usize {
            if let Some((control, _)) = self.ring(n) {
                self.judge(state, n, control, &judge, now);
            }
        }
        let freed = self
            .mailbox()
            .sweep(&self.file, &mut state.waiting, |pid| judge.is_gone(pid, 0));
        host.tally(Counter::BoxRubbish, freed);
    }

    fn judge(&self, state: &mut State, n: usize, control: &Control, judge: &Judge, now: u64) {
        let (turn, bit) = (control.turn(), 1u64 << n);
        let Some(known) = state.rings.get(n) else {
            return;
        };
        if turn.is_free() || state.draining & bit != 0 {
            return;
        }
        let is_known = known.whose == turn.whose();
        let idle = time::nanos(now.wrapping_sub(known.quiet_since));
        let is_idle = is_known && state.active & bit == 0 && idle >= IDLE;
        let start = match turn.is_in_use() {
            true => control.start.load(Relaxed),
            false => 0,
        };
        let goes = if turn.is_busy() || !is_known && !turn.is_left() {
            let gone = judge.is_gone(turn.pid(), start);
            if gone {
                control.seize();
            }
            gone
        } else {
            turn.is_left() || is_idle && control.revoke(known.whose)
        };
        if goes {
            know(state, n, control, turn);
            state.draining |= bit;
        }
    }

    /// Senders say so from now on when they send something; whether something has come already.
    fn arm(&self, state: &mut State, way: u64) -> bool {
        let now = ticks();
        let has_come = self.hush(state, state.active, now);
        let waits = !state.waiting.is_empty() || state.draining != 0;
        self.head().summary.arm(way) || has_come || waits
    }

    /// Nothing has come: empties the pipe, and has the next sender fill it. Whether something has
    /// come now.
    #[cold]
    fn arms_event(&self, host: &dyn Host, state: &mut State) -> bool {
        if state.is_armed {
            return false;
        }
        self.look_around(host, state);
        if let Some(event) = state.event.and_then(|e| e.ours()) {
            let mut bytes = [0; 64];
            while let Ok(1..) = file::borrow(event).read(&mut bytes) {}
        }
        state.is_armed = true;
        let has_come = self.arm(state, EVENT);
        if has_come {
            self.disarm(state);
        }
        has_come
    }

    #[cold]
    fn disarm(&self, state: &mut State) {
        self.head().summary.disarm(EVENT);
        state.is_armed = false;
        signal(state);
    }

    /// Another thread has polled while others sleep: what comes from now on wakes them.
    #[cold]
    fn leave_to_sleepers(&self, state: &mut State) {
        if self.arm(state, SLEEPS) {
            let sequence = &self.head().sequence;
            sequence.fetch_add(1, AcqRel);
            regall_sys::futex_wake_shared(sequence);
        }
    }
}

/// Puts a byte in the pipe.
fn signal(state: &State) {
    if let Some(event) = state.event.and_then(|e| e.ours()) {
        let _ = file::borrow(event).write_all(b"!");
    }
}

/// Takes note of whose ring `n` is, if that is another one than before.
fn know(state: &mut State, n: usize, control: &Control, turn: Turn) {
    if let Some(known) = state.rings.get_mut(n).filter(|k| k.whose != turn.whose()) {
        known.reader = Reader::new();
        known.whose = turn.whose();
        known.from = Sender {
            pid: turn.pid(),
            start: control.start.load(Relaxed),
        };
    }
}

/// Says whether processes are gone.
struct Judge {
    /// Whether /proc has our numbers.
    by_proc: bool,
}

impl Judge {
    fn new() -> Self {
        Self {
            by_proc: credentials::is_proc_ours(),
        }
    }

    /// Whether `pid`, which began at `start` (0: not known), has ended.
    fn is_gone(&self, pid: u32, start: u64) -> bool {
        if pid == 0 {
            return false;
        }
        match (self.by_proc, process::exists(pid.into())) {
            (_, false) => true,
            (false, true) => false,
            (true, true) => match find::started(pid) {
                Ok(found) => start != 0 && found != start,
                Err(e) => e == Errno::SRCH,
            },
        }
    }
}

const _: () = assert!(CELLS < 62);
