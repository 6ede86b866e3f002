//! What happens around a call. One order, written down once for each kind:
//!
//! ```text
//! unmap-type:  claim → leave the ledger and the directory → the real call → restore if it failed
//! map-type:    the real call → enter the ledger → pin → publish as pinned
//! ```
//!
//! The lock is held while the ledger changes, never while the kernel works. Two
//! calls on the same bytes at the same time meet in [`flight`] and both read
//! the range anew from /proc/self/maps ([`resync`]). So does a call that fails
//! or does something that the fast paths don't know.

use crate::arch::{self, Frame};
use crate::arena::Arena;
use crate::config::Pin;
use crate::intercept;
use crate::ledger::{Ledger, Sink, View};
use crate::limits;
use crate::policy::{self, Want};
use crate::registrar::pin::{self, PinSet};
use crate::registrar::Registrar;
use crate::startup;
use crate::store::{Room, Store};
use crate::sys::{self, time, Errno};
use crate::thread;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, Counter, SEGMENTS, SETTING_GAVE_UP};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Prot, Reason};
use regall_directory::writer::{SlotRef, Writer};

pub mod advice;
pub mod deferred;
pub mod flight;
pub mod fork;
pub mod lock;
pub mod locks;
pub mod map;
pub mod resync;
pub mod unmap;

pub use resync::audit;

use flight::Flight;
use lock::Guard;

/// Whether calls are tracked at all. False until start-up is done, and again
/// once the shim has given up.
static TRACKING: AtomicBool = AtomicBool::new(false);
/// The application said mlockall(MCL_FUTURE): [`Flags`] for what it maps.
static APP_FUTURE: AtomicU64 = AtomicU64::new(0);

/// What look-ups without the lock read.
pub static VIEW: View = View::new();

/// Mutations that one event may need room for before it reserves again.
const OPS: usize = 16;

/// Everything behind the lock.
pub struct State {
    /// What is mapped.
    pub ledger: Ledger,
    writer: Writer,
    arena: Arena,
    store: Store,
    /// Bytes that somebody is pinning right now.
    reserved: u64,
    /// Bytes that may be pinned; u64::MAX: no limit.
    budget: u64,
    /// The program break as the kernel last said.
    brk: u64,
    adopting: bool,
}

/// Where the ledger's changes become visible.
struct Publish<'a> {
    writer: &'a mut Writer,
    generation: u64,
}

impl Sink for Publish<'_> {
    #[inline]
    fn publish(&mut self, range: PageRange, attr: Attr, id: u64) -> u32 {
        let slot = self.writer.publish(self.generation, range, attr, id, 0);
        slot.map_or(0, |s| s.get().get())
    }

    #[inline]
    fn retire(&mut self, slot: u32, _: PageRange, _: Attr) {
        match core::num::NonZeroU32::new(slot) {
            Some(slot) => self.writer.retire(SlotRef::from_raw(slot)),
            None => self.writer.unpublished_gone(),
        }
    }
}

impl State {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self {
            ledger: Ledger::new(&VIEW),
            writer: Writer::new(),
            arena: Arena::new(),
            store: Store::new(),
            reserved: 0,
            budget: u64::MAX,
            brk: 0,
            adopting: false,
        }
    }

    /// Room for the next few mutations; without it the shim can't go on.
    #[inline]
    fn ready(&mut self) -> bool {
        if self.writer.free_slots() >= 4 * OPS && self.ledger.reserve(&mut self.arena, OPS) {
            return true;
        }
        self.make_room()
    }

    #[cold]
    #[inline(never)]
    fn make_room(&mut self) -> bool {
        let mut room = Room {
            store: &mut self.store,
            arena: &mut self.arena,
        };
        // No room in the directory is survivable: entries go unpublished, and
        // the header counts them.
        let _ = self.writer.reserve(&mut room, 8 * OPS);
        let ok = self.ledger.reserve(&mut self.arena, 2 * OPS);
        for k in 0..SEGMENTS {
            if let Some(base) = self.writer.segment_base(k) {
                deferred::know_segment(k, base.as_ptr());
            }
        }
        self.adopt_own_memory();
        ok
    }

    /// The shim's memory is part of the address space, too.
    fn adopt_own_memory(&mut self) {
        if self.adopting {
            return;
        }
        self.adopting = true;
        while let Some(range) = self.arena.fresh_chunk() {
            self.insert(range, own_memory(Prot::from_call(3, false)));
        }
        while let Some(range) = self.store.fresh_part() {
            self.insert(
                range,
                own_memory(Prot::from_call(3, self.store.published())),
            );
        }
        self.adopting = false;
    }

    #[inline]
    fn generation(&mut self) -> u64 {
        let Some(h) = self.writer.header() else {
            return 1;
        };
        let next = h.generation.load(Relaxed) + 1;
        h.generation.store(next, Relaxed);
        next
    }

    /// `range` is `attr` from now on, whatever it was.
    #[inline]
    pub fn insert(&mut self, range: PageRange, attr: Attr) {
        loop {
            let generation = self.generation();
            let mut sink = Publish {
                writer: &mut self.writer,
                generation,
            };
            match self.ledger.insert(range, attr, &mut sink) {
                Ok(()) => return,
                Err(_) if self.make_room() => (),
                Err(_) => return give_up("no memory for the ledger"),
            }
        }
    }

    /// `range` is not mapped from now on; `each` is told what was.
    #[inline]
    pub fn remove(&mut self, range: PageRange, mut each: impl FnMut(PageRange, Attr)) {
        loop {
            let generation = self.generation();
            let mut sink = Publish {
                writer: &mut self.writer,
                generation,
            };
            match self
                .ledger
                .remove(range, &mut sink, |entry, part| each(part, entry.attr))
            {
                Ok(_) => return,
                Err(_) if self.make_room() => (),
                Err(_) => return give_up("no memory for the ledger"),
            }
        }
    }

    /// Rewrites what is said of the mapped parts of `range`.
    #[inline]
    pub fn update(&mut self, range: PageRange, mut f: impl FnMut(PageRange, Attr) -> Attr) {
        loop {
            let generation = self.generation();
            let mut sink = Publish {
                writer: &mut self.writer,
                generation,
            };
            match self.ledger.update(range, &mut sink, &mut f) {
                Ok(()) => return,
                Err(_) if self.make_room() => (),
                Err(_) => return give_up("no memory for the ledger"),
            }
        }
    }

    /// The attributes at `addr`.
    pub fn at(&self, addr: u64) -> Option<Attr> {
        self.ledger.get(addr).map(|e| e.attr)
    }

    /// Bytes that the pin set holds or is about to.
    pub fn pinned(&self) -> u64 {
        self.ledger.totals().pin[Reason::None as usize].saturating_add(self.reserved)
    }

    /// The first part of `range` that is to be pinned and is not, and how.
    ///
    /// With `whole`, all of the entry it is of: another call may be about to pin
    /// that, and what is populated in two goes stays two mappings to the kernel.
    fn next_to_pin(
        &self,
        range: PageRange,
        pin: Pin,
        whole: bool,
    ) -> Option<(PageRange, Attr, Want)> {
        let mut found = None;
        self.ledger.for_each(range, |part, entry| {
            if entry.attr.pin.reason != Reason::Off {
                return ControlFlow::Continue(());
            }
            // The limit matters for growing stacks only: elsewhere the kernel says so.
            let grows = entry.attr.flags.has(Flags::GROWSDOWN);
            let binds = grows && limits::memlock().is_some();
            match policy::wanted(entry.attr, pin, binds) {
                Want::Leave(column) if column.reason == Reason::Off => ControlFlow::Continue(()),
                want => {
                    let part = if whole { entry.range } else { part };
                    found = Some((part, entry.attr, want));
                    ControlFlow::Break(())
                }
            }
        });
        found
    }

    /// Tracking starts with the program break at `brk`.
    pub fn begin_at(&mut self, brk: u64) {
        self.brk = brk;
    }

    /// No more than `bytes` may be pinned.
    pub fn set_budget(&mut self, bytes: u64) {
        self.budget = bytes;
    }

    /// The directory's file goes; the mapping stays until the end.
    pub fn remove_directory(&self) {
        self.store.remove();
    }

    /// Bytes that the shim has mapped for itself.
    pub fn own_bytes(&self) -> u64 {
        self.arena.bytes() + self.store.bytes()
    }

    /// The header.
    pub fn header(&self) -> Option<&regall_directory::layout::Header> {
        self.writer.header()
    }
}

impl Default for State {
    fn default() -> Self {
        Self::new()
    }
}

/// Attributes of memory of the shim's own.
pub const fn own_memory(prot: Prot) -> Attr {
    let shim = Column::no(Reason::Shim);
    Attr {
        prot,
        kind: Kind::Shim,
        flags: Flags::EMPTY,
        pin: shim,
        hca: shim,
    }
}

/// Takes the lock, with room for an event's mutations. `None`: a signal handler
/// on top of the lock's holder; see [`deferred`].
#[inline]
pub fn lock() -> Option<Guard> {
    let mut guard = lock::take().ok()?;
    if guard.broken {
        resync::rebuild(&mut guard);
        guard.broken = false;
    }
    if !guard.ready() {
        give_up("no memory for the ledger");
    }
    Some(guard)
}

/// A call that was pinning will not come back to say how it went. Others that
/// are at it at this moment are counted a little late.
fn forget_reserved() {
    if let Some(mut guard) = lock() {
        guard.reserved = 0;
    }
}

/// Stops tracking for good: the program runs on without.
#[cold]
#[inline(never)]
pub fn give_up(why: &str) {
    if TRACKING.swap(false, Relaxed) {
        if let Some(h) = flight::header() {
            h.settings.fetch_or(SETTING_GAVE_UP, Relaxed);
        }
        if APP_FUTURE.load(Relaxed) == 0 {
            // Nobody would step aside for madvise any more.
            sys::unlock_all();
        }
        log::error!("stopped tracking: {why}");
    }
}

/// Whether calls are tracked.
#[inline]
pub fn tracking() -> bool {
    TRACKING.load(Relaxed)
}

/// Tracking begins.
pub fn begin() {
    TRACKING.store(true, Release);
}

/// Handles one arrival: makes the call and keeps the account. Returns what the
/// kernel returned.
#[inline]
pub fn handle(call: Call, frame: &mut Frame) -> i64 {
    if !tracking() {
        return untracked(call, frame);
    }
    fork::check();
    if log::log_enabled!(log::Level::Trace) {
        trace(call, frame);
    }
    match call {
        Call::Mmap => map::mmap(frame),
        Call::Munmap => unmap::munmap(frame),
        Call::Mremap => map::mremap(frame),
        Call::Mprotect | Call::PkeyMprotect => map::mprotect(call, frame),
        Call::Brk => map::brk(frame),
        Call::Madvise => advice::madvise(frame),
        Call::ProcessMadvise => advice::process_madvise(frame),
        Call::Shmat => map::shmat(frame),
        Call::Shmdt => unmap::shmdt(frame),
        Call::RemapFilePages | Call::MapShadowStack | Call::IoSetup | Call::IoDestroy => {
            map::odd(call, frame)
        }
        Call::Mlock | Call::Mlock2 => locks::mlock(call, frame),
        Call::Munlock => locks::munlock(frame),
        Call::Mlockall => locks::mlockall(frame),
        Call::Munlockall => locks::munlockall(frame),
        Call::Msync => advice::msync(frame),
        Call::Userfault => advice::userfault(frame),
        Call::Mbind => advice::mbind(frame),
        Call::Fork => fork::fork(frame),
        Call::ExitGroup => {
            startup::finish();
            real(frame)
        }
        Call::ThreadStart | Call::Sigaction | Call::Sigprocmask => {
            intercept::strict::handle(call, frame)
        }
    }
}

/// As [`handle`] while nothing is tracked: only the dispatcher, once it is on in
/// a thread, still needs its signal unblocked.
#[cold]
fn untracked(call: Call, frame: &mut Frame) -> i64 {
    match call {
        Call::ThreadStart | Call::Sigaction | Call::Sigprocmask => {
            intercept::strict::handle(call, frame)
        }
        _ => real(frame),
    }
}

#[cold]
fn trace(call: Call, frame: &Frame) {
    let [a, b, c, d, e, f] = frame.args;
    log::trace!(
        "{} {}({a:#x}, {b:#x}, {c:#x}, {d:#x}, {e:#x}, {f:#x})",
        sys::gettid(),
        call.word()
    );
}

/// The application's own call.
#[inline]
pub fn real(frame: &Frame) -> i64 {
    let thread = thread::current();
    let value = if thread.timing.get() {
        let start = time::spent();
        // SAFETY: as below.
        let value = unsafe { sys::real(frame) };
        thread
            .elsewhere
            .set(thread.elsewhere.get() + time::spent().saturating_sub(start));
        value
    } else {
        // SAFETY: the application's own call, unchanged but for what each
        // handler says it changes.
        unsafe { sys::real(frame) }
    };
    thread.real_value.set(value);
    thread.real_done.set(true);
    value
}

/// Whether what the kernel left in rax is an error.
#[inline]
pub fn failed(value: i64) -> bool {
    (-4095..0).contains(&value)
}

/// A call begins; if this thread left an earlier one half-way, the ledger is
/// checked against the kernel first.
#[inline]
pub fn open(call: Call) -> Flight {
    let (flight, abandoned) = flight::open(call);
    if abandoned {
        resync::audit();
        // Only now: this may be left half-way, too.
        thread::current().owes_audit.set(false);
    }
    flight
}

/// A call has been carried out: reads its range anew if another call was about
/// the same bytes.
#[inline]
pub fn close(flight: Flight, range: PageRange) {
    if flight.lost_track() {
        resync::range(range, true);
    }
    // Notes are about others' ranges, and read without a claim of our own.
    drop(flight);
    deferred::drain();
}

/// Takes the lock when nobody is pinning or unpinning anything in `ranges`.
#[inline]
pub fn lock_for(ranges: &[Option<PageRange>]) -> Option<Guard> {
    let guard = lock()?;
    if !ranges
        .iter()
        .flatten()
        .any(|r| flight::in_the_way(&guard, *r, false))
    {
        return Some(guard);
    }
    drop(guard);
    wait_for(ranges, false)
}

/// Others' pinning takes as long as the kernel's page faults do. One that was
/// left half-way is not waited for longer than this, in naps.
const NAPS: u32 = 400;

#[cold]
fn wait_for(ranges: &[Option<PageRange>], claims: bool) -> Option<Guard> {
    for nap in 0..NAPS {
        let guard = lock()?;
        if !ranges
            .iter()
            .flatten()
            .any(|r| flight::in_the_way(&guard, *r, claims))
        {
            return Some(guard);
        }
        drop(guard);
        if nap < 16 {
            sys::yield_now();
        } else {
            sys::nap(250_000);
        }
    }
    flight::sweep();
    lock()
}

/// Has everything in `range` pinned that is to be. Called without the lock, in a
/// call that is about `range`, after the ledger knows it.
pub fn settle(range: PageRange) {
    settle_part(range, false, false);
}

/// As [`settle`], for what was read from the kernel: some of it may be another
/// call's, whole entries of which are pinned or nothing.
pub fn settle_read(range: PageRange) {
    settle_part(range, true, false);
}

/// As [`settle_read`], from outside of any call that is about `range`: waits for
/// those that are.
pub fn settle_foreign(range: PageRange) {
    settle_part(range, true, true);
}

fn settle_part(range: PageRange, whole: bool, foreign: bool) {
    let config = startup::config();
    if config.pin == Pin::Off {
        return;
    }
    // Each round settles one part; a racing call may put parts back, so the
    // number of rounds is bounded only by what the application maps.
    loop {
        let Some(mut guard) = lock() else {
            return deferred::later(range);
        };
        let Some((part, attr, want)) = guard.next_to_pin(range, config.pin, whole) else {
            return;
        };
        if flight::in_the_way(&guard, part, foreign) {
            drop(guard);
            // What is to be done there is looked at afresh.
            drop(wait_for(&[Some(part)], foreign));
            continue;
        }
        let state = &mut *guard;
        let column = match want {
            Want::Leave(column) => column,
            _ if state.pinned().saturating_add(part.len()) > state.budget => {
                flight::count(Counter::PinLimited);
                Column::no(Reason::Limit)
            }
            _ => {
                state.reserved += part.len();
                flight::pin_begins(&guard, part);
                drop(guard);
                let outcome = pin_part(part, attr, want);
                let Some(mut guard) = lock() else {
                    return deferred::later(range);
                };
                flight::pin_ends();
                let state = &mut *guard;
                state.reserved = state.reserved.saturating_sub(part.len());
                let replaced = record(state, part, attr, want, outcome);
                drop(guard);
                if replaced {
                    undo(part);
                }
                continue;
            }
        };
        state.update(part, |_, a| Attr { pin: column, ..a });
    }
}

/// What is said to be pinned in `range` is pinned again: the kernel has let go of
/// it, or there are new pages. Never seen as unpinned meanwhile, since another
/// thread that gives advice on it must know that there is a lock in its way.
pub fn repin(range: PageRange) {
    if startup::config().pin == Pin::Off {
        return;
    }
    let mut from = range.start();
    while let Some(rest) = range.after(from) {
        let mut parts = [None; 8];
        let mut n = 0;
        {
            let Some(guard) = lock_for(&[Some(rest)]) else {
                return deferred::later(rest);
            };
            guard.ledger.for_each(rest, |part, entry| {
                from = part.end();
                if entry.attr.pin.held() {
                    if let Some(place) = parts.get_mut(n) {
                        *place = Some((part, entry.attr));
                        n += 1;
                    }
                }
                if n == 8 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            flight::pin_begins(&guard, rest);
        }
        for (part, attr) in parts.iter().flatten() {
            repin_part(*part, *attr);
        }
        flight::pin_ends();
        if n < 8 {
            return;
        }
    }
}

fn repin_part(part: PageRange, attr: Attr) {
    let lazy = attr.flags.has(Flags::ONFAULT);
    let outcome = pin_part(
        part,
        attr,
        if lazy { Want::OnFault } else { Want::Populate },
    );
    if let Outcome::Held = outcome {
        return;
    }
    if let Some(mut guard) = lock() {
        guard.update(
            part,
            |_, a| if a == attr { resync::unsettled(a) } else { a },
        );
    }
    settle(part);
}

/// What came of pinning a part.
enum Outcome {
    Held,
    /// Only up to this address: the file ends there.
    UpTo(u64),
    No(Column),
}

fn pin_part(part: PageRange, attr: Attr, want: Want) -> Outcome {
    let start = arch::ticks();
    let outcome = match PinSet.register(part, want) {
        Ok(()) => Outcome::Held,
        Err(errno) => refused(part, attr, want, errno),
    };
    let spent = time::nanos(arch::ticks().wrapping_sub(start));
    flight::add(Counter::PinNanos, spent);
    let thread = thread::current();
    thread
        .elsewhere
        .set(thread.elsewhere.get().saturating_add(spent));
    if let Outcome::Held = outcome {
        flight::count(Counter::Pins);
        flight::add(Counter::PinnedBytesTotal, part.len());
    }
    outcome
}

fn refused(part: PageRange, attr: Attr, want: Want, errno: Errno) -> Outcome {
    if still_there(part, attr) {
        // The kernel marks the range locked before it populates it; what failed
        // half-way must not stay so, or calls like madvise fail.
        let _ = PinSet.deregister(part);
    }
    if attr.kind == Kind::File {
        if let Some(end) = pin::end_of_file(part) {
            return Outcome::UpTo(end);
        }
    }
    let limited = pin::is_limit(errno) && limits::memlock_now().is_some();
    if want == Want::Populate && !limited && PinSet.register(part, Want::OnFault).is_ok() {
        // The kernel will lock it but can't populate it (a write-protected
        // page, a guard, a userfaultfd): locked as far as it is there.
        return Outcome::Held;
    }
    flight::count(Counter::PinRefused);
    if limited {
        return Outcome::No(Column::no(Reason::Limit));
    }
    log::info!("mlock of {part:?} refused: {errno}");
    Outcome::No(Column::refused(errno.byte()))
}

/// Whether the ledger still says `attr` of all of `part`, which nobody locked but us.
fn still_there(part: PageRange, attr: Attr) -> bool {
    let mut bytes = 0;
    if let Some(guard) = lock() {
        guard.ledger.for_each(part, |piece, entry| {
            bytes += if entry.attr == attr { piece.len() } else { 0 };
            ControlFlow::Continue(())
        });
    }
    bytes == part.len() && !attr.flags.has(Flags::APP_LOCKED)
}

/// Writes down what came of pinning `part`. Says whether something of it is no
/// longer what it was: a racing call has replaced it, and what the kernel locked
/// is somebody else's.
fn record(state: &mut State, part: PageRange, attr: Attr, want: Want, outcome: Outcome) -> bool {
    let lazy = want == Want::OnFault;
    let held = |a: Attr| {
        let flags = if lazy {
            a.flags.with(Flags::ONFAULT)
        } else {
            a.flags.without(Flags::ONFAULT)
        };
        Attr {
            pin: Column::YES,
            flags,
            ..a
        }
    };
    let mut known = 0;
    let mut same = |piece: PageRange, a: Attr| {
        let same = a.kind == attr.kind && a.pin.reason == Reason::Off;
        known += if same || a.pin.held() { piece.len() } else { 0 };
        same
    };
    match outcome {
        Outcome::Held => {
            state.update(part, |piece, a| if same(piece, a) { held(a) } else { a });
            known < part.len()
        }
        Outcome::No(column) => {
            state.update(part, |piece, a| {
                if same(piece, a) {
                    Attr { pin: column, ..a }
                } else {
                    a
                }
            });
            false
        }
        Outcome::UpTo(end) => {
            if let Some(tail) = part.after(end) {
                let beyond = |a: Attr| {
                    policy::described(
                        Attr {
                            flags: a.flags.with(Flags::TAIL),
                            ..a
                        },
                        Pin::Populate,
                    )
                };
                state.update(tail, |piece, a| if same(piece, a) { beyond(a) } else { a });
            }
            false
        }
    }
}

/// Lets go of what of `part` the ledger says is not to be pinned: a lock that
/// nobody knows of would split the application's mapping for the kernel. What the
/// ledger does not know may be another call's that is not done yet.
#[cold]
fn undo(part: PageRange) {
    let mut strangers = [None; 8];
    {
        let Some(guard) = lock() else {
            return;
        };
        let mut places = strangers.iter_mut();
        let mut note = |range: Option<PageRange>| {
            if let (Some(range), Some(place)) = (range, places.next()) {
                *place = Some(range);
            }
        };
        guard.ledger.for_each(part, |piece, entry| {
            // What is still to be pinned will be, by whom it belongs to.
            let settled = !entry.attr.pin.held() && entry.attr.pin.reason != Reason::Off;
            if settled && !entry.attr.flags.has(Flags::APP_LOCKED) {
                note(Some(piece));
            }
            ControlFlow::Continue(())
        });
    }
    for range in strangers.iter().flatten() {
        let _ = PinSet.deregister(*range);
    }
}

/// Pins in `range` are let go (not those that the application asked for), since
/// the call that follows fails on locked memory or is charged for it. They come
/// back with [`settle`]. Says whether there was anything.
pub fn let_go(range: PageRange) -> bool {
    let mut any = false;
    let mut from = range.start();
    loop {
        // A handful at a time: system calls are made without the lock.
        let mut parts = [None; 8];
        let mut n = 0;
        let Some(rest) = range.after(from) else {
            return any;
        };
        let Some(mut guard) = lock_for(&[Some(rest)]) else {
            return any;
        };
        flight::pin_begins(&guard, rest);
        let state = &mut *guard;
        {
            state.ledger.for_each(rest, |part, entry| {
                from = part.end();
                let ours = entry.attr.pin.held() && !entry.attr.flags.has(Flags::APP_LOCKED);
                if ours {
                    if let Some(place) = parts.get_mut(n) {
                        *place = Some(part);
                        n += 1;
                    }
                }
                if n == 8 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
        }
        for part in parts.iter().flatten() {
            state.update(*part, |_, a| Attr {
                pin: Column::no(Reason::Off),
                ..a
            });
        }
        drop(guard);
        for part in parts.iter().flatten() {
            any = true;
            flight::count(Counter::Unpins);
            let _ = PinSet.deregister(*part);
        }
        flight::pin_ends();
        if n < 8 {
            return any;
        }
    }
}

/// A call failed in a way that our own pins may be to blame for
/// (RLIMIT_MEMLOCK counts them): lets go of them all and says whether to try again.
pub fn relent(value: i64) -> bool {
    let blame = [Errno::NOMEM, Errno::AGAIN, Errno::PERM]
        .iter()
        .any(|e| value == -i64::from(e.0));
    if !blame || startup::config().pin == Pin::Off || limits::memlock_now().is_none() {
        return false;
    }
    let Some(all) = PageRange::new(0, USER_END) else {
        return false;
    };
    let any = let_go(all);
    if any {
        flight::count(Counter::Relented);
        // They stay away: pinned again they would be in the way again.
        if let Some(mut guard) = lock() {
            guard.update(all, |_, a| {
                let pending = a.pin.reason == Reason::Off && policy::excluded(a).is_none();
                if pending {
                    Attr {
                        pin: Column::no(Reason::Limit),
                        ..a
                    }
                } else {
                    a
                }
            });
        }
    }
    any
}

/// End of the addresses that user space can have (56-bit with five levels).
pub const USER_END: u64 = 1 << 56;

/// Whether the budget has no room for `bytes` more and the user asked for
/// ENOMEM in that case.
pub fn over_budget(bytes: u64) -> bool {
    let config = startup::config();
    config.fail_on_limit
        && config.pin != Pin::Off
        && lock().is_some_and(|g| g.pinned().saturating_add(bytes) > g.budget)
}

/// Flags that new memory of the application's gets from its mlockall(MCL_FUTURE).
pub fn future_flags() -> Flags {
    Flags::from_bits(APP_FUTURE.load(Relaxed) as u16)
}
