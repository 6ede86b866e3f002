//! A thread of the owner's copies, for when the kernel does not let us do it ourselves:
//! see [`crate::serve`]. The bytes go through a bounce buffer, memory of its, in chunks
//! of which some are under way while others are taken out or put in.
//!
//! Our side copies by preadv(2) and pwritev(2), too: memory that is not ours to write or
//! to read is EFAULT.

use super::{Copied, Endpoints, Features, Job, Mechanism};
use crate::kind::No;
use crate::link::{Comes, Link, Lost, Open};
use crate::lock::Lock;
use crate::process::Process;
use crate::vector::{Cursor, Few, Segment, Way};
use crate::wire::{Answer, Request, ATTACH_GET, ATTACH_PUT, CHUNK, GET, PUT, SLOTS};
use regall_sys::{time, Access, Errno, Result};

/// The mechanism by a thread of the owner.
pub struct Helper;

impl Mechanism for Helper {
    const FEATURES: Features = Features {
        any_memory: true,
        passes_files: true,
        ..Features::NONE
    };

    type Endpoint = Lock<Link>;

    fn endpoint(all: &Endpoints) -> &Self::Endpoint {
        &all.helper
    }

    #[cold]
    #[inline(never)]
    unsafe fn copy(job: &Job, link: &Self::Endpoint) -> core::result::Result<Copied, No> {
        // SAFETY: by the contract above.
        let copied = unsafe { copy_of(job.peer, link, job.way, job.local, job.remote, false) };
        copied.map(Copied::unproven)
    }
}

/// Copies from the beginning of one side to the end of the shorter one; `open_memory`: of memory
/// that need not be registered. Bytes copied, at least 1.
///
/// # Safety
/// As [`super::copy`].
#[cold]
#[inline(never)]
pub unsafe fn copy_of(
    peer: &Process,
    link: &Lock<Link>,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    open_memory: bool,
) -> core::result::Result<u64, No> {
    let mut link = link.lock();
    let mut abandoned = link.abandoned();
    let since = time::now();
    loop {
        let open = link.ready(peer, abandoned)?;
        abandoned = false;
        let mut work = Work::new(way, local, remote, open_memory);
        // SAFETY: by the contract above.
        let lost = match unsafe { work.carry_out(open, peer) } {
            Ok(()) => {
                return match (work.bytes, work.stopped) {
                    (0, Some(e)) => Err(No::Failed(e)),
                    (bytes, _) => Ok(bytes),
                }
            }
            Err(lost) => lost,
        };
        // What is to come on this link would be answers to old requests.
        link.close();
        match (lost, work.bytes) {
            (Lost::Closed, bytes @ 1..) => return Ok(bytes),
            (lost, _) => lost.if_final(peer, since).map_err(No::Failed)?,
        }
    }
}

/// A copy in chunks: number n goes through the bounce buffer's part n modulo [`SLOTS`].
struct Work<'a> {
    way: Way,
    /// The peer's memory need not be registered.
    open: bool,
    /// Of a put: what is to be sent next. Of a get: where the next answer's bytes belong.
    here: Cursor<'a>,
    there: Cursor<'a>,
    /// Bytes not asked for yet.
    left: u64,
    /// Bytes of each chunk under way.
    chunks: [u64; SLOTS as usize],
    /// Chunks asked for, and chunks answered.
    sent: u64,
    taken: u64,
    /// From the beginning, copied.
    bytes: u64,
    /// Something is missing behind those: what else was copied does not count.
    gap: bool,
    /// Why nothing more is asked for.
    stopped: Option<Errno>,
}

impl<'a> Work<'a> {
    fn new(way: Way, local: &'a [Segment], remote: &'a [Segment], open: bool) -> Self {
        let (here, there) = (Cursor::new(local), Cursor::new(remote));
        Self {
            way,
            open,
            here,
            there,
            left: here.left(u64::MAX).min(there.left(u64::MAX)),
            chunks: [0; SLOTS as usize],
            sent: 0,
            taken: 0,
            bytes: 0,
            gap: false,
            stopped: None,
        }
    }

    /// # Safety
    /// As [`copy`].
    unsafe fn carry_out(
        &mut self,
        open: &mut Open,
        peer: &Process,
    ) -> core::result::Result<(), Lost> {
        loop {
            while self.left > 0 && self.stopped.is_none() && self.sent - self.taken < SLOTS {
                // SAFETY: by the contract above.
                match unsafe { self.prepare(open, peer) } {
                    Ok(request) => open.send(request)?,
                    Err(e) => self.stopped = Some(e),
                }
            }
            if self.sent == self.taken {
                return Ok(());
            }
            let (answer, _) = open.receive(peer, Comes::Alone)?;
            // SAFETY: by the contract above.
            unsafe { self.take(open, &answer) }?;
        }
    }

    fn slot(n: u64) -> (usize, u64) {
        ((n % SLOTS) as usize, n % SLOTS * CHUNK)
    }

    /// The next chunk, as long as it lies in one entry of the owner's.
    unsafe fn prepare(&mut self, open: &Open, peer: &Process) -> Result<Request> {
        let next = self.there.here().ok_or(Errno::FAULT)?;
        let (end, id) = peer.entry(next.addr, self.way == Way::Put, self.open)?;
        let mut len = next.len.min(end - next.addr).min(CHUNK).min(self.left);
        let (slot, offset) = Self::slot(self.sent);
        if self.way == Way::Put {
            let mut few = Few::new();
            few.fill(self.here, len);
            // SAFETY: memory to be read, by the caller's contract.
            len = unsafe {
                open.bounce()
                    .copy_all_at(Access::Write, few.as_slice(), offset)
            }?;
            self.here.advance(len);
        }
        if let (Some(chunk), 1..) = (self.chunks.get_mut(slot), len) {
            *chunk = len;
            self.sent += 1;
            self.left -= len;
            self.there.advance(len);
            return Ok(Request {
                addr: next.addr,
                len,
                id,
                offset,
                ..Request::new(match (self.way, self.open) {
                    (Way::Get, false) => GET,
                    (Way::Put, false) => PUT,
                    (Way::Get, true) => ATTACH_GET,
                    (Way::Put, true) => ATTACH_PUT,
                })
            });
        }
        Err(Errno::FAULT)
    }

    /// A chunk has been answered. After the first that is not whole, the others don't count;
    /// if one behind it could not even be asked for, it does, and so do those before.
    unsafe fn take(&mut self, open: &Open, answer: &Answer) -> core::result::Result<(), Lost> {
        let (slot, offset) = Self::slot(self.taken);
        let len = self.chunks.get(slot).copied().unwrap_or(0);
        self.taken += 1;
        if answer.bytes > len {
            return Err(Lost::Nonsense);
        }
        if self.gap {
            return Ok(());
        }
        let mut good = Ok(answer.bytes);
        if self.way == Way::Get && answer.bytes > 0 {
            // SAFETY: memory to be written, by the caller's contract.
            good = unsafe { self.take_out(open, offset, answer.bytes) };
        }
        self.bytes += good.unwrap_or(0);
        self.gap = good != Ok(len);
        if self.gap {
            self.stopped = Some(match (good, answer.errno) {
                (Err(e), _) => e,
                (_, 0) => Errno::FAULT,
                (_, e) => Errno(e as i32),
            });
        }
        Ok(())
    }

    /// From the bounce buffer to where it belongs; the bytes, less than asked for only if
    /// some of our memory can't be written.
    unsafe fn take_out(&mut self, open: &Open, offset: u64, bytes: u64) -> Result<u64> {
        let mut done = 0;
        while done < bytes {
            let mut few = Few::new();
            few.fill(self.here, bytes - done);
            // SAFETY: by the caller's contract.
            let part = unsafe {
                open.bounce()
                    .copy_all_at(Access::Read, few.as_slice(), offset + done)
            };
            match part {
                Ok(part @ 1..) => {
                    self.here.advance(part);
                    done += part;
                }
                Err(e) if done == 0 => return Err(e),
                _ => break,
            }
        }
        Ok(done)
    }
}
