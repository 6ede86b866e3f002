//! Everything behind the ledger's lock: the ledger, its writer, and what they live in.

use super::aside::{Aside, AsideRoom};
use super::missed_locks::MissedLocks;
use super::{aside, hiding, program_locks, subscribers};
use crate::arena::Arena;
use crate::base::claims::Claim;
use crate::base::{counters, phase, unseen};
use crate::ledger::{Entry, Ledger, Origin, Sink, View};
use crate::limits::Budget;
use crate::policy;
use crate::registrar::hca::{DomainId, Hca};
use crate::registrar::pin::{self, PinSet};
use crate::share;
use crate::store::{Room, Store};
use core::ops::ControlFlow;
use core::sync::atomic::Ordering::*;
use regall_directory::addr::PageRange;
use regall_directory::layout::{Counter, SEGMENTS, SETTING_GAVE_UP};
use regall_directory::layout::{Generation, SlotRef};
use regall_directory::vocab::{Attr, Column, Flags, Kind, Prot, Reason};
use regall_directory::writer::Writer;

#[cfg(test)]
mod tests;

/// What look-ups without the lock read.
pub static VIEW: View = View::new();

/// Mutations that one event may need room for before it reserves again.
const OPS: usize = 16;

/// Everything behind the lock.
pub struct State {
    /// What is mapped.
    pub ledger: Ledger,
    pub(super) writer: Writer,
    pub(super) arena: Arena,
    pub(super) store: Store,
    /// What calls in progress have taken out of the ledger, beyond what they remember.
    pub(super) aside: Aside,
    /// What the application has locked meanwhile of that.
    pub(super) missed_locks: MissedLocks,
    /// What is registered with adapters.
    pub hca: Hca,
    /// Which file is behind which of the application's private memory.
    pub(super) shared: share::Tables,
    /// Bytes that somebody is pinning right now.
    pub(super) reserved: u64,
    /// Bytes that may be pinned; u64::MAX: no limit.
    pub(super) budget: u64,
    /// Bytes that may be resident or registered; u64::MAX: no limit.
    pub(super) total: u64,
    /// When so many bytes are pinned the budget is reckoned anew.
    pub(super) next_look: u64,
    pub(super) adopting: bool,
}

/// Where the ledger's changes become visible.
struct Publish<'a> {
    writer: &'a mut Writer,
    /// The header's, which the next entry gets. No two entries have the same, not even of one
    /// change: one that goes on along a range fills slots anew that it has filled itself, and
    /// a peer that saw what was in one of them before would take the generation for a promise
    /// that it still is.
    generation: Generation,
}

impl Sink for Publish<'_> {
    #[inline]
    fn publish(&mut self, range: PageRange, attr: Attr, id: u64) -> Option<SlotRef> {
        let slot = self.writer.publish(self.generation, range, attr, id);
        self.generation = self.writer.next_generation();
        slot
    }

    #[inline]
    fn retire(&mut self, slot: Option<SlotRef>, _: PageRange, _: Attr) {
        match slot {
            Some(slot) => self.writer.retire(slot),
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
            missed_locks: MissedLocks::new(),
            hca: Hca::new(),
            shared: share::Tables::new(),
            reserved: 0,
            budget: u64::MAX,
            total: u64::MAX,
            next_look: u64::MAX,
            adopting: false,
        }
    }

    /// Room for the next few mutations; without it the shim can't go on. Only looks: what
    /// maps memory must enter it, too.
    #[inline]
    pub(super) fn ready(&mut self) -> bool {
        if self.writer.free_slots() >= 4 * OPS && self.ledger.is_reserved(OPS) {
            return true;
        }
        self.make_room()
    }

    /// The only place where the ledger and the directory get memory.
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(&mut self) -> bool {
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
    pub(super) fn hca_ready(&mut self, d: DomainId) -> bool {
        let ok = self.hca.reserve(&mut self.arena, d);
        self.adopt_own_memory();
        ok
    }

    /// The shim's memory is part of the address space, too. To be called after everything
    /// that may have mapped some, before the lock is given back.
    pub(super) fn adopt_own_memory(&mut self) {
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

    /// The generation of what is published next.
    #[inline]
    pub(super) fn generation(&mut self) -> Generation {
        self.writer.next_generation()
    }

    /// `range` is `attr` from now on, whatever it was.
    #[inline]
    pub fn insert(&mut self, range: PageRange, attr: Attr) {
        self.insert_part(range, attr, None);
    }

    /// As [`State::insert`], of what is known to be a part of `origin`.
    #[inline]
    pub fn insert_part(&mut self, range: PageRange, attr: Attr, origin: Option<Origin>) {
        unseen::memory(attr);
        if attr.flags.has(Flags::APP_LOCKED) {
            program_locks::note(range);
        }
        loop {
            let generation = self.generation();
            let mut sink = Publish {
                writer: &mut self.writer,
                generation,
            };
            match self.ledger.insert_part(range, attr, origin, &mut sink) {
                Ok(()) => return,
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

    /// Our locks on `range` are gone.
    #[cold]
    pub fn unlocked(&mut self, range: PageRange) {
        self.update(range, |_, a| policy::released(a));
    }

    /// What was taken out of `range` has gone for good.
    #[inline]
    pub(super) fn is_gone(&mut self, range: PageRange) {
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

    /// As [`State::take_out`]; `each` may set what was there aside.
    #[inline]
    pub(super) fn take_apart(
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

    /// Forgets what was taken out under `claim`: nobody needs to know it any more.
    #[cold]
    pub fn forget_aside(&mut self, claim: Claim) {
        self.aside().end(claim);
        self.adopt_own_memory();
    }

    /// Returns whether `which` is so of anything in `range`.
    pub fn any(&self, range: PageRange, which: impl Fn(Attr) -> bool) -> bool {
        let mut any = false;
        self.ledger.for_each(range, |_, entry| {
            any = which(entry.attr);
            match any {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        any
    }

    /// The application has `locks` on `range` from now on, and no others.
    pub fn set_locks(&mut self, range: PageRange, locks: Flags) {
        let holding = pin::holding();
        let (mut known, mut any_missed) = (range.start(), false);
        self.update(range, |part, a| {
            any_missed |= part.start() > known;
            known = part.end();
            policy::with_locks(a, locks, holding)
        });
        if any_missed || known != range.end() {
            self.missed_locks.add(range, locks);
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

    /// Bytes that the application has locked outside of `range`.
    pub fn locked_outside(&self, range: PageRange) -> u64 {
        let mut bytes = self.ledger.totals().app_locked;
        self.ledger.for_each(range, |part, entry| {
            if entry.attr.flags.has(Flags::APP_LOCKED) {
                bytes = bytes.saturating_sub(part.len());
            }
            ControlFlow::Continue(())
        });
        bytes
    }

    /// No more than `budget` says may be pinned or registered.
    pub fn set_budget(&mut self, budget: Budget) {
        let bytes = budget.pins;
        self.budget = bytes;
        self.total = budget.all;
        let pinned = self.pinned();
        let left = bytes.saturating_sub(pinned);
        self.next_look = pinned.saturating_add((left / 4).max(1 << 20));
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

    /// Bytes that may be pinned.
    pub fn budget(&self) -> u64 {
        self.budget
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
        let primary = self.hca.primary().map_or(0, DomainId::named);
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

/// End of the addresses that user space can have (56-bit with five levels).
pub const USER_END: u64 = 1 << 56;

/// Stops tracking for good: the program runs on without. With the lock held.
#[cold]
#[inline(never)]
pub(super) fn give_up_with(state: &State, why: &str) {
    if stop(why) {
        unlock_ours(state);
    }
}

/// Whether this is what has stopped it.
pub(super) fn stop(why: &str) -> bool {
    let first = phase::give_up();
    if first {
        if let Some(h) = counters::header() {
            h.settings.fetch_or(SETTING_GAVE_UP, Relaxed);
        }
        log::error!("stopped tracking: {why}");
    }
    first
}

/// Lets our locks go: nobody would step aside for madvise any more. What the application has
/// locked stays locked.
pub(super) fn unlock_ours(state: &State) {
    let Some(all) = PageRange::new(0, USER_END) else {
        return;
    };
    // As much at once as lies side by side: to unlock a part of a mapping makes more mappings.
    let holding = pin::holding();
    let mut run: Option<PageRange> = None;
    state.ledger.for_each(all, |part, entry| {
        let theirs = entry.attr.flags.has(Flags::APP_LOCKED);
        if theirs || !policy::may_be_locked(entry.attr, holding) {
            return ControlFlow::Continue(());
        }
        let longer = run
            .filter(|r| r.end() == part.start())
            .and_then(|r| PageRange::new(r.start(), part.end()));
        if let (Some(done), None) = (run, longer) {
            let _ = PinSet.deregister(done);
        }
        run = longer.or(Some(part));
        ControlFlow::Continue(())
    });
    if let Some(last) = run {
        let _ = PinSet.deregister(last);
    }
}
