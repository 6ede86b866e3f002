//! Copies between two regions of which neither is this process's.
//!
//! Where one of the two is mapped here it is as good as memory of ours: the bytes are copied once,
//! by whatever mechanism reaches the other one. Else they are copied twice, through a buffer.

use super::held::{Both, Held, Walk};
use crate::host::Host;
use crate::transfer::{Outcome, Way};
use crate::vector::{Cursor, Segment};
use crate::view::Stamp;
use crate::window::Hold;
use core::mem::MaybeUninit;
use core::sync::atomic::{fence, Ordering::Acquire};
use regall_sys::{Errno, Result};

/// Bytes of the buffer.
const BOUNCE: u64 = 1 << 20;
/// Mapped segments that are copied at a time.
const MAPPED: usize = 16;

impl Both<'_> {
    /// Copies up to `length` bytes.
    pub(super) fn of_others(&self, host: &'static dyn Host, length: u64, done: &mut Outcome) {
        let mut sides = [
            Side::of(self.source, self.from, Way::Get),
            Side::of(self.target, self.to, Way::Put),
        ];
        let mut buffer = None;
        while done.bytes < length && done.result.is_ok() {
            let before = done.bytes;
            let left = length - before;
            let [source, target] = &mut sides;
            let wanted = match source
                .copy(self.target, self.to, left, done)
                .or_else(|| target.copy(self.source, self.from, left, done))
            {
                Some(wanted) => wanted,
                None => self.by_way_of(&mut buffer, host, left, done),
            };
            if done.bytes - before < wanted || wanted == 0 {
                break;
            }
        }
        if let Some(at) = buffer {
            // SAFETY: mapped below for these copies, which are done.
            unsafe { host.unmap(at, BOUNCE) };
        }
    }

    /// Copies up to `left` bytes through the buffer; how many were to be copied.
    fn by_way_of(
        &self,
        buffer: &mut Option<u64>,
        host: &'static dyn Host,
        left: u64,
        done: &mut Outcome,
    ) -> u64 {
        let len = BOUNCE.min(left);
        let addr = match buffer.map_or_else(|| host.map(BOUNCE), Ok) {
            Ok(at) => *buffer.insert(at),
            Err(e) => {
                done.result = Err(e);
                return len;
            }
        };
        let mut read = Outcome::NOTHING;
        let from = self.from.saturating_add(done.bytes);
        let to = self.to.saturating_add(done.bytes);
        let local = [Segment { addr, len }];
        let mut here = Cursor::new(&local);
        // SAFETY: the memory is ours, and that long.
        unsafe { self.source.go_on(Way::Get, from, len, &mut here, &mut read) };
        let local = [Segment {
            addr,
            len: read.bytes,
        }];
        let mut here = Cursor::new(&local);
        // SAFETY: likewise.
        unsafe { self.target.go_on(Way::Put, to, len, &mut here, done) };
        done.result = done.result.and(read.result);
        len
    }
}

/// One of the two, as far as it is mapped here.
struct Side<'a> {
    held: &'a Held<'a>,
    offset: u64,
    /// What is done with its memory.
    way: Way,
    /// Where it goes on, and how many bytes of the copy are before that.
    walk: Option<(Walk, u64)>,
}

impl<'a> Side<'a> {
    fn of(held: &'a Held<'a>, offset: u64, way: Way) -> Self {
        Self {
            held,
            offset,
            way,
            walk: None,
        }
    }

    /// Copies the next bytes between this side's mapped memory and the `other` region, which goes
    /// on there at `offset` and what is done; how many were to be copied. `None`: what comes next
    /// is not mapped, and nothing was done.
    fn copy(&mut self, other: &Held, offset: u64, left: u64, done: &mut Outcome) -> Option<u64> {
        let before = done.bytes;
        let mut walk = match self.walk.take() {
            Some((walk, at)) if at == before => walk,
            _ => Walk::new(&self.held.region, self.offset.saturating_add(before), left),
        };
        let mut few = [const { MaybeUninit::uninit() }; MAPPED];
        let theirs = walk.take(&self.held.region, &mut few);
        let mut mapped = Mapped::new();
        // (What was read is nonsense if the slot has another region by now: it is looked up, then.)
        let whole = mapped.add_all(self.held, self.way, theirs);
        if mapped.used == 0 || !self.held.region.stands() {
            return None;
        }
        let local = mapped.segments.get(..mapped.used)?;
        let mut here = Cursor::new(local);
        let bytes = here.left(u64::MAX);
        let (way, ready) = match self.way {
            Way::Get => (Way::Put, Ok(())),
            Way::Put => (Way::Get, self.held.peer.ready(Way::Put)),
        };
        match ready {
            // SAFETY: it is mapped as long as `mapped` is; whether it was the region's is seen
            // below.
            Ok(()) => unsafe {
                other.go_on(way, offset.saturating_add(before), bytes, &mut here, done)
            },
            Err(e) => done.result = Err(e),
        }
        if let Err(e) = mapped.still(self.held) {
            done.bytes = before;
            done.result = Err(e);
        }
        if whole && done.bytes - before == bytes {
            self.walk = Some((walk, done.bytes));
        }
        Some(bytes)
    }
}

/// Segments of a region, where they are mapped here.
struct Mapped<'a> {
    segments: [Segment; MAPPED],
    holds: [Option<(Hold<'a>, Stamp)>; MAPPED],
    used: usize,
}

impl<'a> Mapped<'a> {
    fn new() -> Self {
        Self {
            segments: [Segment { addr: 0, len: 0 }; MAPPED],
            holds: [const { None }; MAPPED],
            used: 0,
        }
    }

    /// Adds those of the segments that are mapped here, up to the first that is not; whether that
    /// was all of them.
    fn add_all(&mut self, held: &Held<'a>, way: Way, theirs: &[Segment]) -> bool {
        theirs.iter().all(|segment| {
            let added = self.add(held, way, segment);
            added.is_some_and(|len| len == segment.len)
        })
    }

    /// Adds what is mapped of a segment, from its beginning; how many bytes.
    fn add(&mut self, held: &Held<'a>, way: Way, segment: &Segment) -> Option<u64> {
        let peer = held.peer;
        let write = way == Way::Put;
        let (end, stamp) = peer.look(segment.addr, write).ok()?;
        let len = segment.len.min(end - segment.addr);
        let (at, hold) = peer.mapped(segment.addr, len, write, false)?;
        let len = len.min(hold.len);
        *self.segments.get_mut(self.used)? = Segment { addr: at, len };
        *self.holds.get_mut(self.used)? = Some((hold, stamp));
        self.used += 1;
        Some(len)
    }

    /// Whether all of it still is the region's memory, and the owner's.
    fn still(&self, held: &Held) -> Result<()> {
        // What was read by plain loads was read before what follows.
        fence(Acquire);
        // SAFETY: the peer's directory is mapped as long as it is open.
        let holds = |(_, stamp): &(Hold, Stamp)| unsafe { stamp.holds() };
        let good =
            held.region.stands() && !held.peer.gave_up() && self.holds.iter().flatten().all(holds);
        held.peer.still()?;
        good.then_some(()).ok_or(Errno::STALE)
    }
}
