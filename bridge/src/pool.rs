//! Peers that are named by their pid alone, as system calls name them. A process is opened
//! once that may pay, and one that can't be opened is left alone for a while. There are at
//! most [`PEERS`] of them; who was not used for the longest time goes first.
//!
//! Nobody waits here: a slot that somebody else holds, or this very thread further up its
//! stack (a signal handler), is as good as none. It is held while a peer is looked up, not
//! while bytes are copied: those who copy are counted.

use crate::find;
use crate::host::Host;
use crate::kind::Order;
use crate::peer::Peer;
use core::cell::UnsafeCell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use regall_sys::arch::ticks;
use regall_sys::time::nanos;

/// Peers at the most.
pub const PEERS: usize = 128;
/// Slots that a pid may have.
const WAYS: usize = 4;

/// What calls for a peer have to be worth before it is opened: a point for each, and one
/// for each page.
const WORTH: u32 = 64;
/// How long a process that can't be opened is not tried again, in nanoseconds; it may be another
/// process by then, or have come to run with the shim.
const REFUSED: u64 = 100_000_000;
/// How long it is not tried again where only we could help, in nanoseconds.
const REFUSED_WHERE_FORBIDDEN: u64 = 10_000_000;
/// Peers are looked after so often, in nanoseconds, and not at each call, but once in so
/// many: those that are gone are closed.
const LOOK_AFTER: u64 = 1_000_000_000;
const TURNS: u64 = 16;
/// After so many calls in a row of which nothing was served, as many go by; and so many at
/// the most.
const IN_VAIN: u32 = 16;
const PASSED_BY: u32 = 256;
/// Each so many bytes of a call that goes by count as another call: beside what the kernel
/// takes for them, a look at the peer is nothing.
const LARGE: u64 = 64 << 10;
/// Looks at a slot that is held.
const TRIES: u32 = 64;

/// The peers that are named by their pid.
pub struct Pool {
    slots: [Slot; PEERS],
    /// Slots with an open peer.
    open: AtomicU32,
    /// Counts visits, not exactly.
    turn: AtomicU64,
    /// When they were looked after, in ticks.
    looked: AtomicU64,
}

struct Slot {
    /// The peer's pid; 0: the slot is free.
    pid: AtomicU32,
    /// The thread that uses `what`; 0: none.
    holder: AtomicU32,
    /// How many use the peer, which keep it open.
    users: AtomicU32,
    /// Calls in a row of which nothing was served, and calls that are to go by therefore.
    in_vain: AtomicU32,
    to_skip: AtomicU32,
    /// When it could not be opened, in ticks; 0: that was not tried.
    refused: AtomicU64,
    /// When it was last used, in turns of the pool.
    used: AtomicU64,
    what: UnsafeCell<What>,
}

// SAFETY: `what` is reached by the slot's holder alone.
unsafe impl Sync for Slot {}

/// What is known of a process.
struct What {
    peer: Option<NonNull<Peer>>,
    /// What its calls have been worth, while it is not open.
    worth: u32,
    /// process_vm_readv and its like may not reach it.
    forbidden: bool,
}

impl What {
    const NOTHING: Self = Self {
        peer: None,
        worth: 0,
        forbidden: false,
    };
}

/// Who calls, and what for.
pub struct Caller {
    /// Memory and accounts.
    pub host: &'static dyn Host,
    /// The order of mechanisms, as REGALL_COPY says.
    pub order: Order,
    /// The calling thread's id; in a vfork child its parent's.
    pub thread: u32,
}

impl Pool {
    /// An empty pool.
    pub const fn new() -> Self {
        Self {
            slots: [const { Slot::FREE }; PEERS],
            open: AtomicU32::new(0),
            turn: AtomicU64::new(0),
            looked: AtomicU64::new(0),
        }
    }

    fn set(&self, pid: u32) -> &[Slot] {
        let first = pid as usize % (PEERS / WAYS) * WAYS;
        self.slots.get(first..first + WAYS).unwrap_or(&[])
    }

    fn slot(&self, pid: u32) -> Option<&Slot> {
        self.set(pid).iter().find(|s| s.pid.load(Relaxed) == pid)
    }

    /// Whether this call for `pid` is best left to the kernel, without another thought.
    #[inline]
    pub fn goes_by(&self, pid: u32) -> bool {
        let Some(slot) = self.slot(pid) else {
            return false;
        };
        let to_skip = slot.to_skip.load(Relaxed);
        if to_skip > 0 {
            // Not counted exactly.
            slot.to_skip.store(to_skip - 1, Relaxed);
            return true;
        }
        // The clock is looked at once in a while.
        let refused = slot.was_refused(REFUSED);
        if refused {
            slot.to_skip.store(PASSED_BY, Relaxed);
        }
        refused
    }

    /// A call that went by has copied so many `bytes`: a large one is worth a try sooner.
    #[inline]
    pub fn went_by(&self, pid: u32, bytes: u64) {
        let sooner = u32::try_from(bytes / LARGE).unwrap_or(u32::MAX);
        if sooner > 0 {
            if let Some(slot) = self.slot(pid) {
                let to_skip = slot.to_skip.load(Relaxed);
                slot.to_skip.store(to_skip.saturating_sub(sooner), Relaxed);
            }
        }
    }

    /// A call for `pid` was about too little. Where that is so again and again, not each is
    /// looked at.
    pub fn was_small(&self, caller: &Caller, pid: u32) {
        if let Some(slot) = self.slot(pid).or_else(|| self.make_room(caller, pid)) {
            let now = slot.in_vain.load(Relaxed).saturating_add(1);
            slot.in_vain.store(now.min(IN_VAIN), Relaxed);
            if now >= IN_VAIN {
                slot.to_skip.store(IN_VAIN, Relaxed);
            }
        }
    }

    /// The peer `pid`, if it is open or should be now that so many `bytes` are to be copied.
    /// `forbidden`: the kernel has said that we may not reach it.
    pub fn visit(
        &self,
        caller: &Caller,
        pid: u32,
        bytes: u64,
        forbidden: bool,
    ) -> Option<Visit<'_>> {
        let turn = self.turn.load(Relaxed) + 1;
        self.turn.store(turn, Relaxed);
        if turn % TURNS == 0 {
            self.look_after_them(caller);
        }
        let slot = match self.slot(pid) {
            Some(slot) => slot,
            None => self.make_room(caller, pid)?,
        };
        let mut held = slot.hold(caller.thread)?;
        if slot.pid.load(Relaxed) != pid {
            return None;
        }
        slot.used.store(turn, Relaxed);
        let what = held.what();
        what.forbidden |= forbidden;
        if what.peer.is_none() {
            if forbidden && slot.was_refused(REFUSED_WHERE_FORBIDDEN) {
                return None;
            }
            let pages = u32::try_from(bytes >> 12).unwrap_or(u32::MAX);
            let again = what.worth > 0;
            what.worth = what.worth.saturating_add(pages).saturating_add(1);
            let pays = again && what.worth >= WORTH;
            if !(pays || forbidden || !caller.order.is_auto()) {
                return None;
            }
            what.peer = open(caller, pid);
            if what.peer.is_none() {
                slot.refused.store(ticks() | 1, Relaxed);
                return None;
            }
            slot.refused.store(0, Relaxed);
            self.open.fetch_add(1, Relaxed);
        }
        let (peer, forbidden) = (what.peer?, what.forbidden);
        slot.users.fetch_add(1, Relaxed);
        drop(held);
        Some(Visit {
            pool: self,
            slot,
            peer,
            forbidden,
            thread: caller.thread,
        })
    }

    /// A slot for one more, if one of those that it may have is not in use.
    #[cold]
    fn make_room(&self, caller: &Caller, pid: u32) -> Option<&Slot> {
        let set = self.set(pid).iter();
        let slot = set.min_by_key(|s| (s.pid.load(Relaxed) != 0, s.used.load(Relaxed)))?;
        let mut held = slot.hold(caller.thread)?;
        if slot.users.load(Acquire) != 0 {
            return None;
        }
        self.close(&mut held);
        *held.what() = What::NOTHING;
        slot.to_skip.store(0, Relaxed);
        slot.refused.store(0, Relaxed);
        slot.in_vain.store(0, Relaxed);
        slot.pid.store(pid, Relaxed);
        Some(slot)
    }

    /// Closes the peer of a slot that is held. Nobody uses it.
    fn close(&self, held: &mut Held) {
        if let Some(peer) = held.what().peer.take() {
            self.open.fetch_sub(1, Relaxed);
            // SAFETY: opened by `open`; nobody uses it, and nobody finds it any more.
            unsafe { Peer::close(peer) };
        }
    }

    /// Closes those that are gone, and lets go of what the others have given up.
    #[cold]
    fn look_after_them(&self, caller: &Caller) {
        if self.open.load(Relaxed) == 0 {
            return;
        }
        let (now, then) = (ticks(), self.looked.load(Relaxed));
        if nanos(now.wrapping_sub(then)) < LOOK_AFTER {
            return;
        }
        if self
            .looked
            .compare_exchange(then, now, Relaxed, Relaxed)
            .is_ok()
        {
            self.look_now(caller);
        }
    }

    #[cold]
    #[inline(never)]
    fn look_now(&self, caller: &Caller) {
        for slot in &self.slots {
            let Some(mut held) = slot.hold(caller.thread) else {
                continue;
            };
            // SAFETY: it is open as long as the slot is held.
            let Some(peer) = held.what().peer.map(|p| unsafe { p.as_ref() }) else {
                continue;
            };
            let gone = peer.check(ticks()).is_err_and(|e| !find::is_shortage(e));
            if gone && slot.users.load(Acquire) == 0 {
                slot.pid.store(0, Relaxed);
                self.close(&mut held);
            } else {
                peer.tidy();
            }
        }
    }

    /// In a child of fork, which begins without any.
    ///
    /// # Safety
    /// No other thread is here.
    pub unsafe fn forget(&self) {
        if self.open.load(Relaxed) > 0 {
            for slot in &self.slots {
                slot.to_skip.store(0, Relaxed);
                slot.pid.store(0, Relaxed);
                // What was in use is left as it is: a copy of it may go on further up this
                // very stack, and others' threads are not here to finish theirs.
                let Some(mut held) = slot.hold(1) else {
                    continue;
                };
                if slot.users.load(Relaxed) == 0 {
                    self.close(&mut held);
                }
            }
        }
    }

    /// Peers that are open now.
    pub fn count(&self) -> u32 {
        self.open.load(Relaxed)
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

/// Opens it, if it belongs to the user that we are.
#[cold]
#[inline(never)]
fn open(caller: &Caller, pid: u32) -> Option<NonNull<Peer>> {
    if regall_sys::gettid() != caller.thread {
        // A vfork child's descriptors are not its parent's.
        return None;
    }
    let peer = Peer::open(caller.host, pid, 0, 0, caller.order).ok()?;
    // SAFETY: just opened.
    let uid = unsafe { peer.as_ref() }.found().uid;
    if uid == regall_sys::geteuid() {
        return Some(peer);
    }
    // SAFETY: nobody else has it.
    unsafe { Peer::close(peer) };
    None
}

impl Slot {
    #[allow(clippy::declare_interior_mutable_const)]
    const FREE: Self = Self {
        pid: AtomicU32::new(0),
        holder: AtomicU32::new(0),
        users: AtomicU32::new(0),
        in_vain: AtomicU32::new(0),
        to_skip: AtomicU32::new(0),
        refused: AtomicU64::new(0),
        used: AtomicU64::new(0),
        what: UnsafeCell::new(What::NOTHING),
    };

    #[inline]
    fn was_refused(&self, patience: u64) -> bool {
        let refused = self.refused.load(Relaxed);
        refused != 0 && nanos(ticks().wrapping_sub(refused)) < patience
    }

    #[inline]
    fn hold(&self, thread: u32) -> Option<Held<'_>> {
        for _ in 0..TRIES {
            let free = self.holder.compare_exchange(0, thread, Acquire, Relaxed);
            match free {
                Ok(_) => return Some(Held(self)),
                Err(holder) if holder == thread => return None,
                Err(_) => core::hint::spin_loop(),
            }
        }
        None
    }
}

/// A slot, held.
struct Held<'a>(&'a Slot);

impl Held<'_> {
    #[inline]
    fn what(&mut self) -> &mut What {
        // SAFETY: the slot is held.
        unsafe { &mut *self.0.what.get() }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.holder.store(0, Release);
    }
}

/// A peer that stays open as long as this lives.
pub struct Visit<'a> {
    pool: &'a Pool,
    slot: &'a Slot,
    peer: NonNull<Peer>,
    /// Whether process_vm_readv and its like may not reach it.
    pub forbidden: bool,
    thread: u32,
}

impl Visit<'_> {
    /// The peer, for what takes no lock of its.
    #[inline]
    pub fn peer(&self) -> &Peer {
        // SAFETY: open while it has users, and this is one.
        unsafe { self.peer.as_ref() }
    }

    /// Has `what` done with it, while nobody else has something done. None: somebody else
    /// has. Where the kernel copies nothing, others are waited for, though not for ever.
    #[inline]
    pub fn with<'s, T>(&'s self, what: impl FnOnce(&'s Peer) -> Option<T>) -> Option<T> {
        let held = match self.slot.hold(self.thread) {
            None if self.forbidden => self.hold_slowly(),
            held => held,
        }?;
        let done = what(self.peer());
        drop(held);
        done
    }

    #[cold]
    fn hold_slowly(&self) -> Option<Held<'_>> {
        const NAP: u64 = 20_000;
        const NAPS: usize = 100_000;
        for _ in 0..NAPS {
            if self.slot.holder.load(Relaxed) == self.thread {
                return None;
            }
            regall_sys::nap(NAP);
            if let Some(held) = self.slot.hold(self.thread) {
                return Some(held);
            }
        }
        None
    }

    /// Takes a peer that is gone out of the pool: its last user closes it.
    #[cold]
    pub fn retire(&self) {
        self.slot.pid.store(0, Relaxed);
    }

    /// How it went: whether any of its memory was served.
    #[inline]
    pub fn was(&self, served: bool) {
        let Slot {
            in_vain, to_skip, ..
        } = self.slot;
        let before = in_vain.load(Relaxed);
        if served {
            if before != 0 {
                in_vain.store(0, Relaxed);
            }
            return;
        }
        let now = before.saturating_add(1);
        in_vain.store(now, Relaxed);
        if now >= IN_VAIN && !self.forbidden && self.peer().order().is_auto() {
            to_skip.store(now.min(PASSED_BY), Relaxed);
        }
    }
}

impl Drop for Visit<'_> {
    #[inline]
    fn drop(&mut self) {
        // The last one must see that one before it has given the slot away.
        let last = self.slot.users.fetch_sub(1, AcqRel) == 1;
        if last && self.slot.pid.load(Relaxed) == 0 {
            if let Some(mut held) = self.slot.hold(self.thread) {
                if self.slot.users.load(Acquire) == 0 && self.slot.pid.load(Relaxed) == 0 {
                    self.pool.close(&mut held);
                }
            }
        }
    }
}
