//! Those whose cookies were used: their peers and tables are kept open, up to so many. What
//! is done with a region once it is found is in [`held`]; copies between two of which neither
//! is ours are in [`third`].

mod held;
mod third;

use held::{Both, Held};

use super::table::Table;
use super::Cookie;
use crate::host::Host;
use crate::kind::Order;
use crate::lock::Lock;
use crate::peer::Peer;
use crate::transfer::{Outcome, Way};
use crate::vector::{Cursor, Segment};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering::*};
use regall_sys::{Errno, Result};

/// Owners at one time; a node has about as many ranks. Beyond it, the one that was used
/// least recently goes.
const OWNERS: usize = 128;

/// All of them. What is found is found without a lock: two locked instructions a use.
pub struct Circle {
    places: [Place; OWNERS],
    /// The place that was used last.
    last: AtomicUsize,
    /// Counts those who came in, to tell who was here last.
    clock: AtomicU64,
    /// Held by who takes a new member in.
    admitting: Lock<()>,
}

/// Room for a member.
struct Place {
    /// Transfers under way in the low half, and the bits below.
    state: AtomicU64,
    pid: AtomicU32,
    used: AtomicU64,
    peer: AtomicPtr<Peer>,
    table: AtomicPtr<Table>,
}

/// [`Place::state`]: there is a member.
const OPEN: u64 = 1 << 32;
/// [`Place::state`]: it is gone, and goes with its last user.
const LEAVING: u64 = 1 << 33;
/// [`Place::state`]: its peer and table are being closed.
const CLOSING: u64 = 1 << 34;
/// The part of [`Place::state`] that counts.
const USERS: u64 = OPEN - 1;

/// A member that is in use.
#[derive(Clone, Copy)]
struct Member {
    place: usize,
    pid: u32,
    peer: NonNull<Peer>,
    table: NonNull<Table>,
}

impl Default for Circle {
    fn default() -> Self {
        Self::new()
    }
}

impl Circle {
    /// An empty circle.
    pub const fn new() -> Self {
        Self {
            places: [const { Place::new() }; OWNERS],
            last: AtomicUsize::new(0),
            clock: AtomicU64::new(0),
            admitting: Lock::new(()),
        }
    }

    /// In a child of fork: free of what other threads of its parent were about.
    ///
    /// # Safety
    /// No other thread uses it.
    pub unsafe fn forked(&self) {
        // SAFETY: by the contract above.
        unsafe { self.admitting.reset() };
        for place in &self.places {
            // What another thread was at work on may be half done: it is left to itself.
            if place.state.load(Relaxed) & (USERS | CLOSING) != 0 {
                place.state.store(0, Relaxed);
            }
        }
    }

    /// Reads a region, or writes it: from `offset` on, to the end of the shorter of the
    /// region and the local vector; behind the region's end that is nothing.
    ///
    /// EINVAL: an unknown cookie, or one that is used up; EACCES: its rights don't permit it;
    /// EPERM: it is somebody else's, or no mechanism may; ESTALE: its memory has gone, or
    /// it was destroyed meanwhile; ESRCH: its owner has ended; EXDEV: its owner is in another
    /// pid namespace; EBUSY: too many owners at once; ENOMEM; others as
    /// [`crate::transfer::transfer`].
    ///
    /// # Safety
    /// The local segments are valid to be written (get) or read (put).
    pub unsafe fn transfer(
        &self,
        host: &'static dyn Host,
        order: Order,
        way: Way,
        (cookie, offset): (Cookie, u64),
        local: &[Segment],
    ) -> Outcome {
        let mut done = Outcome::NOTHING;
        // Looked at where it is: to move it would cost as much as to find it.
        let found = self.hold(host, order, way, cookie);
        let held = match &found {
            Ok(held) => held,
            Err(e) => return Outcome::failed(*e),
        };
        if let Err(e) = held.region.claim() {
            held.leave();
            return Outcome::failed(e);
        }
        let mut here = Cursor::new(local);
        // SAFETY: by the contract above.
        unsafe { held.go_on(way, offset, u64::MAX, &mut here, &mut done) };
        held.release(&done);
        done
    }

    /// Copies up to `length` bytes between two regions, of which either may be anybody's;
    /// to the end of the shorter.
    ///
    /// Errors as [`Circle::transfer`]'s, of either.
    pub fn copy(
        &self,
        host: &'static dyn Host,
        order: Order,
        from: (Cookie, u64),
        to: (Cookie, u64),
        length: u64,
    ) -> Outcome {
        let mut done = Outcome::NOTHING;
        let source = match self.hold(host, order, Way::Get, from.0) {
            Ok(held) => held,
            Err(e) => return Outcome::failed(e),
        };
        let target = match self.hold(host, order, Way::Put, to.0) {
            Ok(held) => held,
            Err(e) => {
                source.leave();
                return Outcome::failed(e);
            }
        };
        let both = Both {
            source: &source,
            target: &target,
            from: from.1,
            to: to.1,
        };
        if let Err(e) = both.claim() {
            source.leave();
            target.leave();
            return Outcome::failed(e);
        }
        both.copy(host, length, &mut done);
        target.release(&done);
        source.release(&done);
        done
    }

    /// Finds a region that may be used so.
    #[inline(always)]
    fn hold(
        &self,
        host: &'static dyn Host,
        order: Order,
        way: Way,
        cookie: Cookie,
    ) -> Result<Held<'_>> {
        match self.try_to_hold(host, order, way, cookie) {
            Ok(held) => Ok(held),
            Err((e, false)) => Err(e),
            Err((e, true)) => self.hold_again(host, order, way, cookie, e),
        }
    }

    /// What was known of that pid is of a process, or an image of it, that is gone, `e` says.
    #[cold]
    #[inline(never)]
    fn hold_again(
        &self,
        host: &'static dyn Host,
        order: Order,
        way: Way,
        cookie: Cookie,
        e: Errno,
    ) -> Result<Held<'_>> {
        match self.try_to_hold(host, order, way, cookie) {
            Err((Errno::INVAL, _)) => Err(e),
            other => other.map_err(|(e, _)| e),
        }
    }

    /// As [`Circle::hold`]; beside an error, whether the owner that was known is gone.
    #[inline(always)]
    fn try_to_hold(
        &self,
        host: &'static dyn Host,
        order: Order,
        way: Way,
        cookie: Cookie,
    ) -> core::result::Result<Held<'_>, (Errno, bool)> {
        let member = self
            .enter(host, cookie.pid(), order)
            .map_err(|e| (unknown(e), false))?;
        // SAFETY: a member stays while it has users.
        let (peer, table) = unsafe { (member.peer.as_ref(), member.table.as_ref()) };
        // One look and no copies of what it brings: this is on the way of every byte.
        let e = match table.find(host, cookie) {
            Ok(region) if region.rights.permits(way == Way::Put) => {
                return Ok(Held {
                    circle: self,
                    member,
                    peer,
                    region,
                })
            }
            Ok(_) => Errno::ACCES,
            Err(e) => e,
        };
        Err(self.not_to_be_had(&member, peer, e))
    }

    /// Leaves a member whose region is not to be had; whether it is gone itself.
    #[cold]
    #[inline(never)]
    fn not_to_be_had(&self, member: &Member, peer: &Peer, e: Errno) -> (Errno, bool) {
        let there = peer.check(regall_sys::arch::ticks());
        self.leave(member, there.is_err());
        match there {
            Ok(()) => (e, false),
            Err(gone) => (gone, true),
        }
    }

    /// The member for `pid`, opened if need be; one more uses it.
    #[inline]
    fn enter(&self, host: &'static dyn Host, pid: u32, order: Order) -> Result<Member> {
        let last = self.last.load(Relaxed);
        if let Some(member) = self.places.get(last).and_then(|p| p.enter(last, pid)) {
            return Ok(member);
        }
        self.enter_slowly(host, pid, order)
    }

    #[cold]
    fn enter_slowly(&self, host: &'static dyn Host, pid: u32, order: Order) -> Result<Member> {
        let found = || {
            let mut places = self.places.iter().enumerate();
            places.find_map(|(n, place)| place.enter(n, pid))
        };
        let member = match found() {
            Some(member) => member,
            None => {
                let _alone = self.admitting.lock();
                match found() {
                    Some(member) => member,
                    None => self.admit(host, pid, order)?,
                }
            }
        };
        self.last.store(member.place, Relaxed);
        let now = self.clock.fetch_add(1, Relaxed);
        if let Some(place) = self.places.get(member.place) {
            place.used.store(now, Relaxed);
        }
        Ok(member)
    }

    /// Opens a new member, in the place of one that nobody uses. EBUSY: there is none.
    fn admit(&self, host: &'static dyn Host, pid: u32, order: Order) -> Result<Member> {
        let peer = Peer::open(host, pid, 0, 0, order)?;
        // SAFETY: just opened.
        let opened = unsafe { peer.as_ref() };
        let table = Table::open(host, opened.found(), opened.image())
            .and_then(|table| crate::memory::place(host, table));
        let place = table.and_then(|table| Ok((self.make_room().ok_or(Errno::BUSY)?, table)));
        match place {
            Ok((n, table)) => {
                let member = Member {
                    place: n,
                    pid,
                    peer,
                    table,
                };
                if let Some(place) = self.places.get(n) {
                    place.admit(&member);
                }
                Ok(member)
            }
            Err(e) => {
                // SAFETY: nobody else has it.
                unsafe { Peer::close(peer) };
                Err(e)
            }
        }
    }

    /// A place without a member.
    fn make_room(&self) -> Option<usize> {
        let free = |p: &Place| p.state.load(Acquire) & (OPEN | CLOSING) == 0;
        if let Some(n) = self.places.iter().position(free) {
            return Some(n);
        }
        let idle = self.places.iter().enumerate();
        let idle = idle.filter(|(_, p)| p.state.load(Relaxed) & USERS == 0);
        let oldest = idle.min_by_key(|(_, p)| p.used.load(Relaxed));
        oldest.and_then(|(n, place)| place.close().then_some(n))
    }

    /// One no longer uses it; if it is gone, the last one closes it.
    #[inline]
    fn leave(&self, member: &Member, gone: bool) {
        let Some(place) = self.places.get(member.place) else {
            return;
        };
        if gone {
            place.state.fetch_or(LEAVING, Relaxed);
        }
        let before = place.state.fetch_sub(1, AcqRel);
        if before & (USERS | LEAVING) == 1 | LEAVING {
            place.close();
        }
    }
}

impl Place {
    const fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            pid: AtomicU32::new(0),
            used: AtomicU64::new(0),
            peer: AtomicPtr::new(core::ptr::null_mut()),
            table: AtomicPtr::new(core::ptr::null_mut()),
        }
    }

    /// One more uses the member here, if it is `pid`.
    #[inline]
    fn enter(&self, place: usize, pid: u32) -> Option<Member> {
        let here = |state: u64| state & (OPEN | LEAVING) == OPEN && self.pid.load(Relaxed) == pid;
        if !here(self.state.load(Acquire)) {
            return None;
        }
        // Another one may have it by now. As long as it is in use it is nobody else's.
        if here(self.state.fetch_add(1, AcqRel)) {
            let peer = NonNull::new(self.peer.load(Relaxed));
            let table = NonNull::new(self.table.load(Relaxed));
            if let (Some(peer), Some(table)) = (peer, table) {
                return Some(Member {
                    place,
                    pid,
                    peer,
                    table,
                });
            }
        }
        self.state.fetch_sub(1, AcqRel);
        None
    }

    /// Takes in a member who is in use.
    fn admit(&self, member: &Member) {
        self.pid.store(member.pid, Relaxed);
        self.peer.store(member.peer.as_ptr(), Relaxed);
        self.table.store(member.table.as_ptr(), Relaxed);
        // Others may be counting themselves in and out in vain.
        self.state.fetch_add(OPEN | 1, AcqRel);
    }

    /// Closes its member, unless somebody uses it; whether that was done.
    #[cold]
    fn close(&self) -> bool {
        let idle = |state: u64| (state & USERS == 0 && state & OPEN != 0).then_some(CLOSING);
        if self.state.fetch_update(AcqRel, Relaxed, idle).is_err() {
            return false;
        }
        let peer = NonNull::new(self.peer.swap(core::ptr::null_mut(), Relaxed));
        let table = NonNull::new(self.table.swap(core::ptr::null_mut(), Relaxed));
        if let (Some(peer), Some(table)) = (peer, table) {
            // SAFETY: still open.
            let host = unsafe { peer.as_ref() }.host();
            // SAFETY: it is nobody's any more.
            unsafe { crate::memory::take(host, table) }.close(host);
            // SAFETY: likewise.
            unsafe { Peer::close(peer) };
        }
        self.state.fetch_and(!CLOSING, AcqRel);
        true
    }
}

/// What a cookie is whose owner can't be opened: unknown, unless that has another reason.
fn unknown(e: Errno) -> Errno {
    match e {
        Errno::SRCH | Errno::NOENT => Errno::INVAL,
        Errno::ACCES => Errno::PERM,
        e => e,
    }
}

#[cfg(test)]
mod tests;
