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
use crate::base::claims::Claim;
use crate::base::{counters, numbers, phase, settings};
use crate::config::Pin;
use crate::ledger::{Entry, Ledger, Origin, Sink, View};
use crate::limits::Budget;
use crate::registrar::hca::Hca;
use crate::registrar::pin::PinSet;
use crate::registrar::Registrar;
use crate::share;
use crate::store::{Room, Store};
use crate::sys::{self, time};
use crate::text::{Lossy, Text};
use crate::thread;
use core::fmt::Write;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering::*};
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, Counter, SEGMENTS, SETTING_GAVE_UP};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Prot, Reason};
use regall_directory::writer::{SlotRef, Writer};

pub mod advice;
mod ahead;
pub mod anew;
pub mod aside;
pub mod backed;
pub mod birth;
pub mod budget;
pub mod deferred;
pub mod discard;
pub mod domains;
pub mod fitting;
pub mod flight;
pub mod fork;
pub mod growing;
pub mod guards;
pub mod headroom;
pub mod heap;
mod hiding;
pub mod inherited;
pub mod lending;
pub mod limited;
pub mod lock;
pub mod locks;
pub mod map;
pub mod notes;
pub mod pieces;
pub mod pinning;
pub mod progress;
pub mod reading;
pub mod registering;
pub mod remap;
pub mod resync;
mod seals;
pub mod settling;
pub mod subscribers;
#[cfg(test)]
mod tests;
pub mod turns;
pub mod unmap;
mod vacancy;
pub mod waiting;
pub mod whole;

pub use pinning::let_go;
pub use settling::settle;

use aside::{Aside, AsideRoom};
use flight::Flight;
use lock::Guard;
use unmap::Taken;

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
    /// What calls in progress have taken out of the ledger, beyond what they remember.
    aside: Aside,
    /// What is registered with adapters.
    pub hca: Hca,
    /// Which file is behind which of the application's private memory.
    shared: share::Tables,
    /// Bytes that somebody is pinning right now.
    reserved: u64,
    /// Bytes that may be pinned; u64::MAX: no limit.
    budget: u64,
    /// Bytes that may be resident or registered; u64::MAX: no limit.
    total: u64,
    /// The budget is for page cache alone: other memory can't be had back, locked or not.
    only_cache: bool,
    /// When so many bytes count the budget is reckoned anew.
    next_look: u64,
    /// What may be mapped while page cache is locked, and how it stands.
    fitting: fitting::Fitting,
    adopting: bool,
}

/// Where the ledger's changes become visible.
struct Publish<'a> {
    writer: &'a mut Writer,
    /// The header's, which the next entry gets. No two entries have the same, not even of one
    /// change: one that goes on along a range fills slots anew that it has filled itself, and
    /// a peer that saw what was in one of them before would take the generation for a promise
    /// that it still is.
    generation: u64,
}

impl Sink for Publish<'_> {
    #[inline]
    fn publish(&mut self, range: PageRange, attr: Attr, id: u64) -> u32 {
        let slot = self.writer.publish(self.generation, range, attr, id);
        self.generation += 1;
        if let Some(h) = self.writer.header() {
            h.generation.store(self.generation, Relaxed);
        }
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
            aside: aside::none(),
            hca: Hca::new(),
            shared: share::Tables::new(),
            reserved: 0,
            budget: u64::MAX,
            total: u64::MAX,
            only_cache: false,
            next_look: u64::MAX,
            fitting: fitting::Fitting::new(),
            adopting: false,
        }
    }

    /// Room for the next few mutations; without it the shim can't go on. Only looks: what
    /// maps memory must enter it, too.
    #[inline]
    fn ready(&mut self) -> bool {
        if self.writer.free_slots() >= 4 * OPS && self.ledger.is_reserved(OPS) {
            return true;
        }
        self.make_room()
    }

    /// The only place where the ledger and the directory get memory.
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
                hiding::know_segment(k, base.as_ptr());
            }
        }
        self.adopt_own_memory();
        ok
    }

    /// Room for one more region in domain `d`.
    fn hca_ready(&mut self, d: usize) -> bool {
        let ok = self.hca.reserve(&mut self.arena, d);
        self.adopt_own_memory();
        ok
    }

    /// The shim's memory is part of the address space, too. To be called after everything
    /// that may have mapped some, before the lock is given back.
    fn adopt_own_memory(&mut self) {
        if self.adopting {
            return;
        }
        self.adopting = true;
        // Entering one may take another.
        while let Some((range, shared)) = self.fresh_memory() {
            self.insert(range, own_memory(Prot::from_call(3, shared)));
        }
        self.adopting = false;
    }

    /// Memory that the shim has mapped and not yet entered, and whether it is shared.
    fn fresh_memory(&mut self) -> Option<(PageRange, bool)> {
        if let Some(chunk) = self.arena.fresh_chunk() {
            return Some((chunk, false));
        }
        let part = self.store.fresh_part()?;
        Some((part, self.store.shared()))
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
        self.insert_part(range, attr, None);
    }

    /// As [`State::insert`], of what is known to be a part of `origin`.
    #[inline]
    pub fn insert_part(&mut self, range: PageRange, attr: Attr, origin: Option<Origin>) {
        loop {
            let generation = self.generation();
            let mut sink = Publish {
                writer: &mut self.writer,
                generation,
            };
            match self.ledger.insert_part(range, attr, origin, &mut sink) {
                Ok(()) => return self.watch(),
                Err(_) if self.make_room() => (),
                Err(_) => return give_up_with(self, "no memory for the ledger"),
            }
        }
    }

    /// `range` is not mapped from now on; `each` is told what was.
    #[inline]
    pub fn remove(&mut self, range: PageRange, each: impl FnMut(PageRange, &Entry)) {
        self.take_out(range, each);
        self.is_gone(range);
    }

    /// As [`State::remove`]; `taken` remembers what was there.
    #[inline]
    pub fn remove_into(&mut self, range: PageRange, taken: &mut Taken) {
        self.take_apart(range, |room, part, entry| {
            if !taken.add(part, entry) {
                taken.set_aside(room, range, part, entry);
            }
        });
        self.is_gone(range);
        if taken.has_more() {
            self.adopt_own_memory();
        }
    }

    #[inline]
    fn is_gone(&mut self, range: PageRange) {
        subscribers::memory_leaves(range);
        if share::any() {
            share::forget(&mut self.shared, range);
        }
    }

    /// `range` leaves the ledger, perhaps to be entered again at once.
    #[inline]
    pub fn take_out(&mut self, range: PageRange, mut each: impl FnMut(PageRange, &Entry)) {
        self.take_apart(range, |_, part, entry| each(part, entry));
    }

    #[inline]
    fn take_apart(
        &mut self,
        range: PageRange,
        mut each: impl FnMut(&mut AsideRoom, PageRange, &Entry),
    ) {
        loop {
            let generation = self.generation();
            let mut sink = Publish {
                writer: &mut self.writer,
                generation,
            };
            let mut room = AsideRoom {
                aside: &mut self.aside,
                arena: &mut self.arena,
            };
            match self
                .ledger
                .remove(range, &mut sink, |entry, part| each(&mut room, part, entry))
            {
                Ok(_) => return,
                Err(_) if self.make_room() => (),
                Err(_) => return give_up_with(self, "no memory for the ledger"),
            }
        }
    }

    /// What calls in progress have taken out.
    pub fn aside(&mut self) -> AsideRoom<'_> {
        AsideRoom {
            aside: &mut self.aside,
            arena: &mut self.arena,
        }
    }

    /// Nobody needs to know any more what was taken out under `claim`.
    #[cold]
    pub fn forget_aside(&mut self, claim: Claim) {
        self.aside().end(claim);
        self.adopt_own_memory();
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
                Ok(()) => return self.watch(),
                Err(_) if self.make_room() => (),
                Err(_) => return give_up_with(self, "no memory for the ledger"),
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

    /// Bytes that the pin set holds or is about to, and that count against the budget.
    pub fn counted(&self) -> u64 {
        let totals = self.ledger.totals();
        let held = if self.only_cache {
            totals.cache
        } else {
            totals.pin[Reason::None as usize]
        };
        held.saturating_add(self.reserved)
    }

    /// Whether locking memory that says `attr` costs something: whether the kernel could have
    /// it back otherwise.
    fn counts(&self, attr: Attr) -> bool {
        !self.only_cache || attr.flags.has(Flags::CACHE)
    }

    /// No more than `budget` says may be pinned or registered; with `only_cache` only page
    /// cache counts as pinned.
    pub fn set_budget(&mut self, budget: Budget, only_cache: bool) {
        let bytes = budget.pins;
        self.budget = bytes;
        self.total = budget.all;
        self.only_cache = only_cache;
        let counted = self.counted();
        let left = bytes.saturating_sub(counted);
        self.next_look = counted.saturating_add((left / 4).max(1 << 20));
        self.set_fitting(budget.mapped);
        if let Some(h) = self.header() {
            h.budget.store(bytes, Relaxed);
        }
    }

    /// The directory's file goes; the mapping stays until the end.
    pub fn remove_directory(&self) {
        self.store.remove();
    }

    /// The directory's file, and those beside it.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Where this process's helper is to listen; empty if nobody could find it there.
    pub fn helper_address(&self) -> crate::text::Text<108> {
        self.store.helper_address()
    }

    /// Bytes that the shim has mapped for itself.
    pub fn own_bytes(&self) -> u64 {
        self.arena.bytes() + self.store.bytes()
    }

    /// The gauges of what is registered with adapters, in the header.
    pub fn show_regions(&self) {
        let Some(h) = self.header() else {
            return;
        };
        let set = |c: Counter, n: u64| {
            if let Some(place) = h.counters.get(c as usize) {
                place.store(n, Relaxed);
            }
        };
        set(Counter::HcaBytes, self.hca.bytes);
        set(Counter::RetiredBytes, self.hca.retired);
        set(Counter::AheadBytes, self.hca.ahead);
        let primary = self.hca.primary().map_or(0, |d| d as u64 + 1);
        h.primary.store(primary, Relaxed);
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
    if guard.is_broken() {
        resync::rebuild(&mut guard);
        guard.mended();
    }
    if !guard.ready() {
        give_up_with(&guard, "no memory for the ledger");
        if share::any() {
            backed::give_up(&mut guard);
        }
    }
    Some(guard)
}

/// Whether this thread holds the ledger's lock, further up its stack.
pub fn is_locked_by_us() -> bool {
    lock::is_ours()
}

/// A call that was pinning will not come back to say how it went. Others that
/// are at it at this moment are counted a little late.
fn forget_reserved() {
    if let Some(mut guard) = lock() {
        guard.reserved = 0;
    }
}

/// Stops tracking for good: the program runs on without. Called without the lock.
#[cold]
#[inline(never)]
pub fn give_up(why: &str) {
    if stop(why) {
        match lock::take().ok().filter(|guard| !guard.is_broken()) {
            Some(guard) => unlock_ours(&guard),
            // Which locks are the application's is not known.
            None if APP_FUTURE.load(Relaxed) == 0 => sys::unlock_all(),
            None => (),
        }
    }
}

/// As [`give_up`], with the lock held.
#[cold]
#[inline(never)]
fn give_up_with(state: &State, why: &str) {
    if stop(why) {
        unlock_ours(state);
    }
}

/// Whether this is what has stopped it.
fn stop(why: &str) -> bool {
    let first = phase::give_up();
    if first {
        if let Some(h) = counters::header() {
            h.settings.fetch_or(SETTING_GAVE_UP, Relaxed);
        }
        log::error!("stopped tracking: {why}");
    }
    first
}

/// Nobody would step aside for madvise any more: our locks go. What the application has locked
/// stays locked.
fn unlock_ours(state: &State) {
    let Some(all) = PageRange::new(0, USER_END) else {
        return;
    };
    state.ledger.for_each(all, |part, entry| {
        if entry.attr.pin.held() && !entry.attr.flags.has(Flags::APP_LOCKED) {
            let _ = PinSet.deregister(part);
        }
        ControlFlow::Continue(())
    });
}

/// Handles one arrival: makes the call and keeps the account. Returns what the
/// kernel returned.
#[inline]
pub fn handle(call: Call, frame: &mut Frame) -> i64 {
    if !phase::tracking() {
        return untracked(call, frame);
    }
    fork::check();
    if log::max_level() == log::LevelFilter::Trace {
        trace(call, frame);
    }
    match call {
        Call::Mmap => map::mmap(frame),
        Call::Munmap => unmap::munmap(frame),
        Call::Mremap => remap::mremap(frame),
        Call::Mprotect | Call::PkeyMprotect => map::mprotect(call, frame),
        Call::Brk => heap::brk(frame),
        Call::Madvise if cfg!(feature = "blind-to-madvise") => real(frame),
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
        Call::Msync => discard::msync(frame),
        Call::Userfault => advice::userfault(frame),
        Call::Mbind => advice::mbind(frame),
        Call::Mseal => backed::mseal(frame),
        Call::IoUringSetup => advice::ring(frame),
        Call::Fork => fork::fork(frame),
        Call::ProcessVmReadv
        | Call::ProcessVmWritev
        | Call::Credentials
        | Call::ExitGroup
        | Call::ThreadStart
        | Call::Sigaction
        | Call::Sigprocmask => (subscribers::table().other_call)(call, frame),
    }
}

/// As [`handle`] while nothing is tracked: only the dispatcher, once it is on in
/// a thread, still needs its signal unblocked.
#[cold]
fn untracked(call: Call, frame: &mut Frame) -> i64 {
    match call {
        Call::ThreadStart | Call::Sigaction | Call::Sigprocmask => {
            (subscribers::table().other_call)(call, frame)
        }
        Call::Fork => fork::untracked(frame),
        _ => real(frame),
    }
}

#[cold]
#[inline(never)]
fn trace(call: Call, frame: &Frame) {
    let mut arguments: Text<160> = Text::new();
    for (n, value) in frame
        .args
        .iter()
        .enumerate()
        .take(numbers::arguments(frame.nr))
    {
        let comma = if n > 0 { ", " } else { "" };
        let _ = write!(arguments, "{comma}{value:#x}");
    }
    log::trace!(
        "{} {}({})",
        sys::gettid(),
        call.word(),
        Lossy(arguments.as_bytes())
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

/// What registrars do since `start`, in ticks, is their time, and not the hooks'.
fn spent(counter: Counter, start: u64) {
    let nanos = time::nanos(arch::ticks().wrapping_sub(start));
    counters::add(counter, nanos);
    let elsewhere = &thread::current().elsewhere;
    elsewhere.set(elsewhere.get().saturating_add(nanos));
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
    owing_nothing(flight::open(call))
}

/// As [`open`], for what the application asked of the shim itself.
pub fn begin_work() -> Flight {
    owing_nothing(flight::begin(Call::Madvise))
}

/// If this thread left an earlier call half-way, the ledger is checked against the kernel:
/// for calls that have no need of the ledger themselves.
#[inline]
pub fn pay_debts() {
    let thread = thread::current();
    if thread.flights.iter().any(|f| f.get() != 0) || thread.owes_audit.get() {
        end(begin_work());
    }
}

#[inline]
fn owing_nothing((flight, abandoned): (Flight, bool)) -> Flight {
    if abandoned {
        audit();
        // Only now: this may be left half-way, too.
        thread::current().owes_audit.set(false);
    }
    flight
}

/// Makes the ledger agree with the kernel everywhere.
#[cold]
pub fn audit() {
    fork::check();
    resync::audit();
}

/// A call has been carried out: reads its range anew if another call was about
/// the same bytes.
#[inline]
pub fn close(flight: Flight, range: PageRange) {
    if flight.lost_track() {
        resync::range(range, true);
    }
    end(flight);
}

/// As [`close`], for a call that has read what it had to.
#[inline]
pub fn end(flight: Flight) {
    // What is left is about others' ranges, and done without a claim of our own.
    drop(flight);
    settling::settle_postponed();
    deferred::drain();
    fitting::keep();
}

/// End of the addresses that user space can have (56-bit with five levels).
pub const USER_END: u64 = 1 << 56;

/// Whether the budget has no room for `bytes` more and the user asked for
/// ENOMEM in that case.
pub fn over_budget(bytes: u64) -> bool {
    let config = settings::config();
    config.fail_on_limit
        && config.pin != Pin::Off
        && lock().is_some_and(|g| g.counted().saturating_add(bytes) > g.budget)
}

/// Flags that new memory of the application's gets from its mlockall(MCL_FUTURE).
pub fn future_flags() -> Flags {
    Flags::from_bits(APP_FUTURE.load(Relaxed) as u16)
}
