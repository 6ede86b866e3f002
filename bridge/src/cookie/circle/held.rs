//! Regions that were found: claimed, copied from and to, and released.

use super::super::entry::Entry;
use super::super::Rights;
use super::{Circle, Member};
use crate::find;
use crate::host::Host;
use crate::peer::Peer;
use crate::transfer::{go_on, Outcome, Through, Way};
use crate::vector::{Cursor, Segment, PIECE_SEGMENTS};
use core::mem::MaybeUninit;
use regall_sys::{Errno, Result};

/// A region that is about to be used.
pub(super) struct Held<'a> {
    pub circle: &'a Circle,
    pub member: Member,
    pub peer: &'a Peer,
    pub region: Entry<'a>,
}

impl Held<'_> {
    /// Copies from `offset` on, up to `length` bytes, and goes on with `here`.
    ///
    /// # Safety
    /// The local segments are valid to be written (get) or read (put).
    pub unsafe fn go_on(
        &self,
        way: Way,
        offset: u64,
        length: u64,
        here: &mut Cursor,
        done: &mut Outcome,
    ) {
        let mut walk = Walk::new(&self.region, offset, length);
        let mut few = [const { MaybeUninit::uninit() }; PIECE_SEGMENTS];
        while done.result.is_ok() && here.here().is_some() {
            let begun = walk.done;
            let there = walk.take(&self.region, &mut few);
            // What was read is nonsense if the slot has another region by now.
            if !self.region.stands() {
                done.result = Err(Errno::STALE);
                break;
            }
            if there.is_empty() {
                break;
            }
            let through = Through {
                stamp: self.region.stamp(),
                knem: (self.region.knem, self.region.knem_stamp()),
                offset: offset + begun,
            };
            let there = Cursor::new(there);
            // SAFETY: by the contract above; the table is mapped.
            unsafe { go_on(self.peer, way, here, there, Some(&through), done) };
        }
    }

    /// Whether it is a region of this process.
    fn is_own(&self) -> bool {
        self.member.pid == regall_sys::getpid()
    }

    /// Lets the region go unused.
    #[cold]
    pub fn leave(&self) {
        let gone = self.peer.check(regall_sys::arch::ticks()).is_err();
        self.circle.leave(&self.member, gone);
    }

    /// Lets the region go after a use; tells its owner, if it wants to be told.
    #[inline]
    pub fn release(&self, done: &Outcome) {
        // A use that failed is one if there can't be another.
        let used = done.result.is_ok() || done.bytes > 0;
        if (used || self.region.rights.has(Rights::SINGLE_USE)) && self.region.used() {
            ring(self.peer);
        }
        let unsure = matches!(done.result, Err(Errno::SRCH | Errno::STALE));
        let gone = unsure && self.peer.check(regall_sys::arch::ticks()).is_err();
        self.circle.leave(&self.member, gone);
    }
}

/// Two regions, and where in them.
pub(super) struct Both<'a> {
    pub source: &'a Held<'a>,
    pub target: &'a Held<'a>,
    pub from: u64,
    pub to: u64,
}

impl Both<'_> {
    /// Claims both, or none of them.
    pub fn claim(&self) -> Result<()> {
        self.source.region.claim()?;
        let claimed = self.target.region.claim();
        claimed.inspect_err(|_| self.source.region.unclaim())
    }

    /// In one go if one of them is ours or mapped here, else through memory of ours.
    pub fn copy(&self, host: &'static dyn Host, length: u64, done: &mut Outcome) {
        if self.source.is_own() {
            self.with_own(Way::Put, length, done);
        } else if self.target.is_own() {
            self.with_own(Way::Get, length, done);
        } else {
            self.of_others(host, length, done);
        }
    }

    /// One is local memory for the other.
    fn with_own(&self, way: Way, length: u64, done: &mut Outcome) {
        let ((own, at), (other, offset)) = match way {
            Way::Put => ((self.source, self.from), (self.target, self.to)),
            Way::Get => ((self.target, self.to), (self.source, self.from)),
        };
        let mut walk = Walk::new(&own.region, at, length);
        let mut few = [const { MaybeUninit::uninit() }; PIECE_SEGMENTS];
        loop {
            let local = walk.take(&own.region, &mut few);
            if !own.region.stands() {
                done.result = Err(Errno::STALE);
            }
            let mut here = Cursor::new(local);
            let bytes = here.left(u64::MAX);
            if bytes == 0 || done.result.is_err() {
                break;
            }
            let before = done.bytes;
            let offset = offset.saturating_add(before);
            // SAFETY: memory that its owner, who is in this process, has declared to be used so.
            unsafe { other.go_on(way, offset, bytes, &mut here, done) };
            // It may have gone by another thread's hand while it was copied.
            if !own.region.stands() {
                done.bytes = before;
                done.result = Err(Errno::STALE);
                break;
            }
            if done.bytes - before < bytes {
                break;
            }
        }
    }
}

/// A place in a region's segments, and how far to go from there.
pub(super) struct Walk {
    n: usize,
    /// Bytes of the segments from there on that are behind us.
    into: u64,
    left: u64,
    pub done: u64,
}

impl Walk {
    pub fn new(region: &Entry, offset: u64, length: u64) -> Self {
        Self {
            n: 0,
            into: offset,
            left: region.length.saturating_sub(offset).min(length),
            done: 0,
        }
    }

    /// The next segments, as many as there is room for.
    pub fn take<'f>(&mut self, region: &Entry, few: &'f mut Segments) -> &'f [Segment] {
        let mut used = 0;
        while let (Some(s), true) = (region.segment(self.n), self.left > 0) {
            if s.len <= self.into {
                self.into -= s.len;
                self.n += 1;
                continue;
            }
            let Some(place) = few.get_mut(used) else {
                break;
            };
            let len = (s.len - self.into).min(self.left);
            place.write(Segment {
                addr: s.addr.wrapping_add(self.into),
                len,
            });
            used += 1;
            self.left -= len;
            self.done += len;
            self.into += len;
        }
        // SAFETY: so many have been written.
        unsafe { core::slice::from_raw_parts(few.as_ptr().cast(), used) }
    }
}

/// Room for segments.
pub(super) type Segments = [MaybeUninit<Segment>];

/// Tells the owner that it has something to look at: a byte in its pipe. If that is full,
/// it knows.
fn ring(peer: &Peer) {
    let flags = libc::O_WRONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    if let Ok(fd) = find::open_file(peer.found(), "uses", flags) {
        regall_sys::file::write_foreign(fd.raw(), &[1]);
    }
}
