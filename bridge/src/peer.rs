//! A process whose memory is got at from here, and what mechanisms have of it.

use crate::boxes::outbox::Outbox;
use crate::boxes::target::Target;
use crate::host::Host;
use crate::kind::{Kind, Order};
use crate::mechanism::{map, Endpoints};
use crate::memory;
use crate::process::Process;
use crate::vector::Way;
use crate::window::{Hold, Spots};
use core::ops::Deref;
use core::ptr::NonNull;
use regall_sys::arch::ticks;
use regall_sys::{Errno, Result};

/// Flag of [`Peer::open`]: who the peer is is checked after every transfer, not only when
/// that was not done for [`UNCHECKED`] nanoseconds.
pub const CHECK_ALWAYS: u32 = 1;
/// All flags that there are.
pub const FLAGS: u32 = CHECK_ALWAYS;

/// Who a peer is is checked after a transfer if it was not for so long, in nanoseconds.
/// Kernels give pids out in turn, so in this time none comes again by itself; and what
/// executes another program is at work on that for longer.
pub const UNCHECKED: u64 = 50_000;

/// [`Process::seen`] of what has to be looked at before anything else is done.
const GONE: u64 = 0;

/// An open process.
pub struct Peer {
    process: Process,
    endpoints: Endpoints,
    outbox: Outbox,
    order: Order,
    flags: u32,
}

impl Deref for Peer {
    type Target = Process;

    #[inline]
    fn deref(&self) -> &Process {
        &self.process
    }
}

impl Peer {
    /// Opens `pid`. With `start` not 0 it must have started then (clock ticks since boot,
    /// field 22 of /proc/PID/stat). EINVAL: flags that there are not; others as
    /// [`Process::open`]'s.
    pub fn open(
        host: &'static dyn Host,
        pid: u32,
        start: u64,
        flags: u32,
        order: Order,
    ) -> Result<NonNull<Peer>> {
        if flags & !FLAGS != 0 {
            return Err(Errno::INVAL);
        }
        let peer = Self {
            process: Process::open(host, pid, start)?,
            endpoints: Endpoints::new(),
            outbox: Outbox::new(),
            order,
            flags,
        };
        memory::place(host, peer)
    }

    /// Closes it and gives its memory back.
    ///
    /// # Safety
    /// `peer` is from [`Peer::open`], and nobody uses it any more.
    pub unsafe fn close(peer: NonNull<Peer>) {
        // SAFETY: by the contract above.
        let host = unsafe { peer.as_ref() }.host();
        // SAFETY: likewise.
        let peer = unsafe { memory::take(host, peer) };
        peer.outbox.close(&peer.target());
        peer.endpoints.release(host, peer.process.is_ours());
        peer.process.release();
    }

    /// In which order mechanisms are tried.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// What mechanisms keep for this peer.
    #[inline]
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Its box, as far as it is known here.
    #[inline]
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// Where `bytes` at its address `addr` are mapped here, or as many as are, if they are or can
    /// be; `eager`: even if it does not pay to map them for this once.
    pub fn mapped(
        &self,
        addr: u64,
        bytes: u64,
        write: bool,
        eager: bool,
    ) -> Option<(u64, Hold<'_>)> {
        let by = (&self.endpoints, &self.order);
        map::hold(&self.process, by, (addr, bytes), write, eager)
    }

    /// Pages whose words were operated on lately. None are kept where everything is checked each time.
    #[inline]
    pub fn spots(&self) -> Option<&Spots> {
        (self.flags & CHECK_ALWAYS == 0).then(|| self.endpoints.windows().spots())
    }

    /// Whether it is not known to be gone.
    #[inline]
    pub fn is_thought_here(&self) -> bool {
        self.process.seen() != GONE
    }

    /// The peer, as its box is sent to.
    #[inline]
    pub fn target(&self) -> Target<'_> {
        Target {
            process: &self.process,
            link: self.endpoints.link(),
            order: &self.order,
        }
    }

    /// Lets go of what is of memory that has changed since it was mapped here.
    pub fn tidy(&self) {
        self.endpoints.tidy(self.host());
    }

    /// Before a transfer: nothing is written into what has not been seen lately to be who
    /// it is, and nothing is read where it is known to be gone.
    #[inline]
    pub fn ready(&self, way: Way) -> Result<()> {
        match way {
            Way::Get if self.process.seen() != GONE => Ok(()),
            _ => self.still(),
        }
    }

    /// After a transfer: whether it still is the process, and the image of it, that was
    /// opened. ESRCH: it is gone; ESTALE: it executes another program; EMFILE, ENFILE,
    /// ENOMEM: it can't be looked at.
    #[inline]
    pub fn still(&self) -> Result<()> {
        match self.flags & CHECK_ALWAYS {
            0 => self.still_lately(),
            _ => self.check(ticks()),
        }
    }

    /// As [`Peer::still`], not asked again if it was within [`UNCHECKED`] nanoseconds: after
    /// what proves itself, but for the descriptor that it came through.
    #[inline]
    pub fn still_lately(&self) -> Result<()> {
        let now = ticks();
        match self.was_seen(now) {
            true => Ok(()),
            false => self.check(now),
        }
    }

    /// Whether it was seen to be who it is within [`UNCHECKED`] nanoseconds.
    #[inline]
    pub fn was_seen_lately(&self) -> bool {
        self.was_seen(ticks())
    }

    /// Whether that was so within as long before `now`, in ticks.
    #[inline]
    pub fn was_seen(&self, now: u64) -> bool {
        let since = regall_sys::time::nanos(now.wrapping_sub(self.process.seen()));
        since < UNCHECKED
    }

    /// As [`Process::check`]; what is mapped of a process that is gone is let go.
    pub fn check(&self, now: u64) -> Result<()> {
        let checked = self.process.check(now);
        if checked.is_err() && self.process.seen() == GONE {
            self.endpoints.clear(self.host());
        }
        checked
    }

    /// One transfer was made.
    pub fn count(&self, kind: Kind, bytes: u64) {
        self.host().count(kind, bytes);
    }
}
