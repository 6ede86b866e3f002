//! Getting from a peer's memory and putting into it: pieces that one system call takes,
//! each checked against the peer's directory before and after.

use crate::kind::Kind;
use crate::mechanism::{self, Copied, Job};
use crate::peer::Peer;
pub use crate::vector::Way;
use crate::vector::{Cursor, Few, Segment, PIECE_BYTES, PIECE_SEGMENTS};
use crate::view::Stamp;
use core::mem::MaybeUninit;
use core::sync::atomic::{fence, Ordering::Acquire};
use regall_directory::layout::Generation;
use regall_directory::planted;
use regall_sys::arch::ticks;
use regall_sys::{Errno, Result};

/// What came of a transfer.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Whether all of it was done, to the end of the shorter side.
    pub result: Result<()>,
    /// Bytes from the beginning that were transferred and are good: while they were copied
    /// the memory was that of the entries that it was looked up in.
    pub bytes: u64,
    /// The highest generation of those entries.
    pub generation: Generation,
    /// What copied last.
    pub mechanism: Option<Kind>,
}

impl Outcome {
    /// An outcome where nothing was to be done.
    pub const NOTHING: Self = Self {
        result: Ok(()),
        bytes: 0,
        generation: Generation::NONE,
        mechanism: None,
    };

    /// An outcome where nothing could be done.
    pub const fn failed(e: Errno) -> Self {
        Self {
            result: Err(e),
            ..Self::NOTHING
        }
    }
}

/// Transfers as many bytes as the shorter side has.
///
/// EFAULT: the remote memory is not registered (nothing of that was touched), or the kernel
/// can't get at it (beyond the end of a file), or at the local memory; EACCES: its
/// protection says no; ESTALE: it was unmapped or replaced meanwhile, or the peer
/// executes another program now; ESRCH: the peer is gone; EPERM: no mechanism may
/// (or REGALL_COPY leaves none); ENOMEM.
///
/// # Safety
/// The local segments are valid to be written (get) or read (put).
pub unsafe fn transfer(peer: &Peer, way: Way, local: &[Segment], remote: &[Segment]) -> Outcome {
    let mut done = Outcome::NOTHING;
    let mut here = Cursor::new(local);
    // SAFETY: by the contract above.
    unsafe { go_on(peer, way, &mut here, Cursor::new(remote), None, &mut done) };
    done
}

/// As [`transfer`], from a place in the local vector on, which goes on with it; what is done
/// is added to `done`. With a region, nothing is good that was copied while that did not stand.
///
/// # Safety
/// As [`transfer`]; and the region's file is mapped.
#[inline]
pub(crate) unsafe fn go_on(
    peer: &Peer,
    way: Way,
    here: &mut Cursor,
    mut there: Cursor,
    region: Option<&Through>,
    done: &mut Outcome,
) {
    let begun = done.bytes;
    let mut place = MaybeUninit::uninit();
    let piece = Piece::start(&mut place);
    while done.result.is_ok() && here.here().is_some() && there.here().is_some() {
        if let Err(e) = piece.fill(peer, way, *here, there) {
            // Memory that goes takes its regions with it first.
            // SAFETY: by the contract above.
            let gone = region.is_some_and(|r| !unsafe { r.stands() });
            done.result = Err(if gone { Errno::STALE } else { e });
            break;
        }
        // SAFETY: by the contract above.
        let (bytes, result) =
            unsafe { piece.carry_out(peer, way, region, done.bytes - begun, done) };
        done.bytes += bytes;
        done.result = result;
        here.advance(bytes);
        there.advance(bytes);
    }
}

/// The region by which memory is got at.
pub(crate) struct Through {
    /// Holds as long as it can be used.
    pub stamp: Stamp,
    /// The cookie that the KNEM module has for it (0: none), and whether it still has.
    pub knem: (u64, Stamp),
    /// Where in the region the first byte is.
    pub offset: u64,
}

impl Through {
    /// KNEM's cookie, and where in its region the byte number `into` is; none if KNEM has the
    /// region's pages no longer.
    ///
    /// # Safety
    /// Its file is mapped.
    #[inline]
    unsafe fn knem(&self, into: u64) -> Option<(u64, u64)> {
        // SAFETY: by the contract above.
        let has = self.knem.0 != 0 && unsafe { self.knem.1.holds() };
        has.then(|| (self.knem.0, self.offset.wrapping_add(into)))
    }

    /// Whether it can still be used.
    ///
    /// # Safety
    /// Its file is mapped.
    #[inline]
    unsafe fn stands(&self) -> bool {
        // SAFETY: by the contract above.
        unsafe { self.stamp.holds() }
    }

    /// Whether KNEM, which had its pages before the copy, has them no longer.
    ///
    /// # Safety
    /// Its file is mapped.
    #[inline]
    unsafe fn left_behind(&self) -> bool {
        // SAFETY: by the contract above.
        !unsafe { self.knem.1.holds() }
    }
}

/// What one system call takes. Large: it is filled where it is.
struct Piece {
    local: Few,
    remote: Few,
    stamps: Stamps,
}

impl Piece {
    /// Empty, where it is to be.
    #[inline(always)]
    fn start(place: &mut MaybeUninit<Self>) -> &mut Self {
        let at = place.as_mut_ptr();
        // SAFETY: fields of `place`, seen as what they are: not written yet.
        unsafe {
            Few::start(&mut *(&raw mut (*at).local).cast());
            Few::start(&mut *(&raw mut (*at).remote).cast());
            (&raw mut (*at).stamps.used).write(0);
        }
        // SAFETY: the stamps may be anything; all else has just been written.
        unsafe { place.assume_init_mut() }
    }

    /// What comes from these places on. Fails if the first remote byte is not to be had.
    #[inline]
    fn fill(&mut self, peer: &Peer, way: Way, here: Cursor, mut there: Cursor) -> Result<()> {
        self.local.clear();
        self.remote.clear();
        self.stamps.used = 0;
        self.local.fill(here, PIECE_BYTES);
        let most = self.local.bytes();
        // Part of the last entry that was looked up.
        let mut last: Option<(u64, u64, Stamp)> = None;
        while let (Some(next), true) = (there.here(), self.remote.bytes() < most) {
            let bytes = self.remote.bytes();
            let (end, stamp) = match last {
                Some((from, end, stamp)) if from <= next.addr && next.addr < end => (end, stamp),
                _ => match peer.look(next.addr, planted!("put-anywhere", false, way == Way::Put)) {
                    Ok(found) => found,
                    Err(e) if bytes == 0 => return Err(e),
                    Err(_) => break,
                },
            };
            last = Some((next.addr, end, stamp));
            let len = next.len.min(end - next.addr).min(most - bytes);
            let segment = Segment { len, ..next };
            if !self.stamps.push(stamp, bytes) || !self.remote.push(segment) {
                break;
            }
            there.advance(len);
        }
        if self.remote.bytes() < most {
            self.local.cut(self.remote.bytes());
        }
        Ok(())
    }

    /// Copies it. Bytes from its beginning that are good, and what stopped it.
    ///
    /// # Safety
    /// As [`transfer`].
    #[inline]
    unsafe fn carry_out(
        &self,
        peer: &Peer,
        way: Way,
        region: Option<&Through>,
        into: u64,
        done: &mut Outcome,
    ) -> (u64, Result<()>) {
        if let Err(e) = peer.ready(way) {
            return (0, Err(e));
        }
        // SAFETY: by the contract above.
        let knem = region.and_then(|r| unsafe { r.knem(into) });
        // SAFETY: likewise.
        let copied = unsafe {
            mechanism::copy(&Job {
                peer,
                endpoints: peer.endpoints(),
                order: peer.order(),
                way,
                local: self.local.as_slice(),
                remote: self.remote.as_slice(),
                knem,
            })
        };
        // What was read by plain loads was read before what follows.
        fence(Acquire);
        // SAFETY: likewise.
        let after = unsafe { self.after(peer, region, knem.is_some(), &copied) };
        if let Err(e) = still(peer, &copied) {
            return (0, Err(e));
        }
        if after.left_behind && after.stale.is_none() {
            // The memory is there, with other pages. Once more, by the next mechanism.
            return (0, Ok(()));
        }
        if proven(&copied) && peer.memory().is_none() {
            // It came through a descriptor that is somebody else's by now. Once more, without.
            return (0, Ok(()));
        }
        let (bytes, mechanism) = match &copied {
            Ok((copied, kind)) => (copied.bytes, Some(*kind)),
            Err(_) => (0, None),
        };
        let good = after.stale.map_or(bytes, |from| bytes.min(from));
        if let Some(kind) = mechanism {
            done.mechanism = Some(kind);
            peer.count(kind, good);
        }
        done.generation = done.generation.max(self.stamps.newest());
        (good, answer(peer, copied.map(|_| bytes), after.stale))
    }

    /// Looks at what it was copied by once more.
    ///
    /// # Safety
    /// As [`transfer`]; and the region's file is mapped.
    #[inline]
    unsafe fn after(
        &self,
        peer: &Peer,
        region: Option<&Through>,
        knem: bool,
        copied: &Result<(Copied, Kind)>,
    ) -> After {
        // SAFETY: by the contract above.
        let all_stale = peer.gave_up() || region.is_some_and(|r| !unsafe { r.stands() });
        let by_knem = knem
            && match copied {
                Ok((_, kind)) => mechanism::features(*kind).by_cookie,
                Err(_) => true,
            };
        // SAFETY: likewise.
        let left_behind = by_knem && region.is_some_and(|r| unsafe { r.left_behind() });
        let stale = match all_stale {
            true => Some(0),
            // SAFETY: the stamps are of the peer's view.
            false => planted!("get-stale", None, unsafe { self.stamps.first_stale() }),
        };
        After { stale, left_behind }
    }
}

/// What a copy has to be judged by, as it stands after it.
struct After {
    /// From which byte on it was of memory that is no longer what it was.
    stale: Option<u64>,
    /// Whether it may be of pages that the memory no longer has.
    left_behind: bool,
}

/// Whether it is proven that the peer's memory was copied.
#[inline]
fn proven(copied: &Result<(Copied, Kind)>) -> bool {
    matches!(copied, Ok((copied, _)) if copied.proven)
}

/// Whether the peer is still the process that it was: a failure is no answer unless it is
/// this peer's.
#[inline]
fn still(peer: &Peer, copied: &Result<(Copied, Kind)>) -> Result<()> {
    match copied {
        Ok(_) if planted!("get-from-the-dead", true, false) => Ok(()),
        Ok(_) if proven(copied) => peer.still_lately(),
        Ok(_) => peer.still(),
        Err(_) => peer.check(ticks()),
    }
}

/// What is said of a copy of so many bytes, which are stale from a byte on.
#[inline]
fn answer(peer: &Peer, copied: Result<u64>, stale: Option<u64>) -> Result<()> {
    match (copied, stale) {
        (_, Some(_)) => Err(Errno::STALE),
        // A part of it, and nothing has changed: the rest says why.
        (Ok(1..), None) => Ok(()),
        (Ok(0), None) => Err(Errno::FAULT),
        (Err(Errno::SRCH), None) => Err(peer.gone()),
        // Nobody may, or nobody may any more: memory can outlive its process for a while,
        // as long as somebody looks at it.
        (Err(Errno::PERM), None) if peer.gone() == Errno::SRCH => Err(Errno::SRCH),
        (Err(e), None) => Err(e),
    }
}

/// The entries that a piece lies in, and the bytes of the piece before each.
struct Stamps {
    stamps: [MaybeUninit<(Stamp, u64)>; PIECE_SEGMENTS],
    used: usize,
}

impl Stamps {
    /// One more, unless it is the last one again; whether there was room.
    #[inline]
    fn push(&mut self, stamp: Stamp, from: u64) -> bool {
        // (Not told by its generation: one event may have published many.)
        if self
            .as_slice()
            .last()
            .is_some_and(|(last, _)| *last == stamp)
        {
            return true;
        }
        let Some(place) = self.stamps.get_mut(self.used) else {
            return false;
        };
        place.write((stamp, from));
        self.used += 1;
        true
    }

    #[inline]
    fn as_slice(&self) -> &[(Stamp, u64)] {
        // SAFETY: so many have been written.
        unsafe { core::slice::from_raw_parts(self.stamps.as_ptr().cast(), self.used) }
    }

    /// Where the first entry begins that is no longer what it was.
    ///
    /// # Safety
    /// The view that they are from is still mapped.
    #[inline]
    unsafe fn first_stale(&self) -> Option<u64> {
        // SAFETY: by the contract above.
        let stale = |(stamp, _): &&(Stamp, u64)| !unsafe { stamp.holds() };
        self.as_slice().iter().find(stale).map(|(_, from)| *from)
    }

    fn newest(&self) -> Generation {
        let generations = self.as_slice().iter().map(|(s, _)| s.generation());
        generations.max().unwrap_or(Generation::NONE)
    }
}
