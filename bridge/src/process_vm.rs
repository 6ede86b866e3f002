//! process_vm_readv(2) and process_vm_writev(2) as an application calls them, served from
//! what is mapped here of the peer's memory.
//!
//! What comes of it is what the kernel would have made of it. Both vectors are looked at
//! before anything is copied, as the kernel does; where anything is unusual about them, the
//! call is the kernel's. What can't be served is left to the real call, for just these
//! bytes, so where it stops and why is the kernel's word. The process is asked whether it
//! is still there once a call, before the first byte, where the kernel takes hold of its
//! memory. If an entry has changed by the time that its bytes are copied, they are copied
//! again by the real call.
//!
//! Where the kernel does not let us at the peer ([`instead`]), its memory is mapped all the
//! same if it can be, or else read through /proc/PID/mem or copied by its helper.

use crate::host::Host;
use crate::kind::{Kind, No};
use crate::mechanism::{cma, helper};
use crate::pool::{Caller, Pool, Visit};
use crate::vector::Segment;
use crate::vector::Way;
use crate::view::Stamp;
use crate::window::{Bytes, Wanted};
use core::mem::MaybeUninit;
use core::sync::atomic::{fence, Ordering::Acquire};
use regall_directory::addr::PAGE;
use regall_directory::planted;
use regall_sys::arch::ticks;
use regall_sys::{Errno, Result};

/// Segments a side; a call with more is the kernel's.
pub const SEGMENTS: usize = 32;
/// Bytes of a call; a longer one, which the kernel cuts short, is the kernel's.
const BYTES: u64 = 0x7fff_f000;
/// Addresses from here on are looked at by the kernel alone.
const USER_END: u64 = (1 << 47) - 4096;
/// The kernel copies fewer bytes than these as quickly as anybody.
const FEW: u64 = 1 << 10;
/// A segment so long is worth an end of the real call before it, in bytes.
const LONG: u64 = 64 << 10;

/// One process_vm_readv or process_vm_writev.
pub struct Call {
    /// process_vm_readv is [`Way::Get`].
    pub way: Way,
    /// The pid of the process that the call is about.
    pub pid: u32,
    local: Side,
    remote: Side,
    bytes: u64,
}

/// A vector, as it was when the call came: the copy may well overwrite it.
struct Side {
    segments: [MaybeUninit<Segment>; SEGMENTS],
    at: usize,
    end: usize,
}

impl Call {
    /// The call with these arguments, if it is for us: flags 0, a pid, few
    /// segments of user addresses, and vectors that can be read.
    #[inline]
    pub fn read<'a>(
        place: &'a mut MaybeUninit<Self>,
        host: &dyn Host,
        way: Way,
        [pid, local, locals, remote, remotes, flags]: [u64; 6],
    ) -> Option<&'a mut Self> {
        let pid = u32::try_from(pid as u32 as i32).ok()?;
        let unusual = planted!("process-vm-flags", pid == 0, flags != 0 || pid == 0);
        if unusual {
            return None;
        }
        let at = place.as_mut_ptr();
        // SAFETY: a field of `place`; the segments may be anything.
        let here = unsafe { Side::read(&raw mut (*at).local, host, local, locals) }?;
        // SAFETY: likewise.
        let there = unsafe { Side::read(&raw mut (*at).remote, host, remote, remotes) }?;
        // SAFETY: likewise.
        unsafe {
            (&raw mut (*at).way).write(way);
            (&raw mut (*at).pid).write(pid);
            (&raw mut (*at).bytes).write(here.min(there));
        }
        // SAFETY: all of its fields have been written, as far as they must be.
        Some(unsafe { place.assume_init_mut() })
    }

    /// Bytes that it is about.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Side {
    /// Reads a vector of the application's; its bytes.
    ///
    /// # Safety
    /// `this` is valid for writing.
    #[inline]
    unsafe fn read(this: *mut Self, host: &dyn Host, from: u64, count: u64) -> Option<u64> {
        let count = usize::try_from(count).ok().filter(|c| *c <= SEGMENTS)?;
        let bytes = (count * size_of::<Segment>()) as u64;
        let unsteady = || !host.steady(from, bytes, false);
        if count > 0 && planted!("process-vm-vector", false, unsteady()) {
            return None;
        }
        // SAFETY: by the contract above.
        let to = unsafe { (&raw mut (*this).segments).cast::<Segment>() };
        let mut sum = 0u64;
        for n in 0..count {
            // SAFETY: so much can be read, as was just looked up. (Not aligned, perhaps.)
            let one = unsafe { (from as *const Segment).add(n).read_unaligned() };
            sum = sum.saturating_add(one.len);
            if one.addr.checked_add(one.len).is_none_or(|e| e >= USER_END) || sum > BYTES {
                return None;
            }
            // SAFETY: one of the segments.
            unsafe { to.add(n).write(one) };
        }
        // SAFETY: by the contract above.
        unsafe {
            (&raw mut (*this).at).write(0);
            (&raw mut (*this).end).write(count);
        }
        Some(sum)
    }

    /// The segments that are left.
    #[inline]
    fn rest(&mut self) -> &mut [Segment] {
        let at = self.segments.as_mut_ptr().cast::<Segment>();
        // SAFETY: those up to `end` have been written, and `at` is never beyond it.
        unsafe { core::slice::from_raw_parts_mut(at.add(self.at), self.end - self.at) }
    }

    /// The segment that is next; empty ones are skipped.
    #[inline]
    fn here(&mut self) -> Option<Segment> {
        loop {
            match self.rest().first().copied()? {
                Segment { len: 0, .. } => self.at += 1,
                one => return Some(one),
            }
        }
    }

    /// Goes on by `bytes`.
    #[inline]
    fn advance(&mut self, mut bytes: u64) {
        while let (Some(first), 1..) = (self.rest().first_mut(), bytes) {
            let part = first.len.min(bytes);
            first.addr += part;
            first.len -= part;
            bytes -= part;
            if first.len == 0 {
                self.at += 1;
            }
        }
    }
}

/// What is to be answered.
pub enum Answer {
    /// What the real call says, which was not made.
    Kernels,
    /// So many bytes were copied.
    Bytes(u64),
    /// The call fails with this errno.
    Error(Errno),
}

/// Bytes that were copied, by whom.
#[derive(Default)]
struct Done {
    /// By [`Kind`].
    by: [u64; Kind::ALL.len()],
    all: u64,
}

impl Done {
    fn add(&mut self, kind: Kind, bytes: u64) {
        self.all += bytes;
        if let Some(sum) = self.by.get_mut(kind as usize) {
            *sum += bytes;
        }
    }

    /// Whether some of it was copied from memory that is mapped here.
    fn mapped(&self) -> bool {
        self.by.get(Kind::Map as usize).is_some_and(|sum| *sum > 0)
    }

    fn count(&self, host: &dyn Host) {
        for (kind, &bytes) in Kind::ALL.into_iter().zip(&self.by) {
            if bytes > 0 {
                host.count(kind, bytes);
            }
        }
    }
}

/// Serves a call, if it can be.
///
/// # Safety
/// It is the application's, and what it says of its own memory is what it would have said
/// to the kernel.
pub unsafe fn serve(pool: &Pool, caller: &Caller, call: &mut Call) -> Answer {
    if call.bytes < FEW && caller.order.is_auto() {
        pool.was_small(caller, call.pid);
        return Answer::Kernels;
    }
    if call.bytes == 0 {
        return Answer::Kernels;
    }
    match pool.visit(caller, call.pid, call.bytes, false) {
        // SAFETY: by the contract above.
        Some(visit) => unsafe { carry_out(&visit, caller, call) },
        None => Answer::Kernels,
    }
}

/// Serves a call that the kernel has refused, because this process or the peer is not
/// allowed such calls. [`Answer::Kernels`]: nothing of it can be.
///
/// # Safety
/// As [`serve`].
#[cold]
#[inline(never)]
pub unsafe fn instead(pool: &Pool, caller: &Caller, call: &mut Call) -> Answer {
    match pool.visit(caller, call.pid, call.bytes, true) {
        // As the kernel has it: nothing to do is done.
        Some(_) if call.bytes == 0 => Answer::Bytes(0),
        // SAFETY: by the contract above.
        Some(visit) => unsafe { carry_out(&visit, caller, call) },
        None => Answer::Kernels,
    }
}

/// Serves a call about this process's own memory that the kernel has refused: by this,
/// libraries find out whether such calls are allowed.
///
/// # Safety
/// As [`serve`].
#[cold]
#[inline(never)]
pub unsafe fn of_ourselves(host: &dyn Host, call: &mut Call) -> Answer {
    let mut done = 0;
    while let (Some(own), Some(theirs)) = (call.local.here(), call.remote.here()) {
        let len = own.len.min(theirs.len);
        let (from, to) = match call.way {
            Way::Get => (theirs.addr, own.addr),
            Way::Put => (own.addr, theirs.addr),
        };
        if !host.steady(from, len, false) || !host.steady(to, len, true) {
            break;
        }
        // SAFETY: both were just looked up.
        unsafe { copy(from, to, len) };
        call.local.advance(len);
        call.remote.advance(len);
        done += len;
    }
    match done {
        0 if call.bytes > 0 => Answer::Kernels,
        done => Answer::Bytes(done),
    }
}

unsafe fn copy(from: u64, to: u64, len: u64) {
    let (from, to, len) = (from as *const u8, to as *mut u8, len as usize);
    match (from as u64).abs_diff(to as u64) >= len as u64 {
        // SAFETY: by the caller's contract; they lie apart.
        true => unsafe { core::ptr::copy_nonoverlapping(from, to, len) },
        // SAFETY: by the caller's contract.
        false => unsafe { core::ptr::copy(from, to, len) },
    }
}

#[inline]
unsafe fn carry_out(visit: &Visit, caller: &Caller, call: &mut Call) -> Answer {
    let mut done = Done::default();
    let mut job = Job {
        visit,
        caller,
        sure: false,
    };
    // SAFETY: by the caller's contract.
    let answer = unsafe { job.all(call, &mut done) };
    done.count(caller.host);
    visit.was(done.mapped() || visit.forbidden);
    answer
}

/// A call in progress.
struct Job<'a> {
    visit: &'a Visit<'a>,
    caller: &'a Caller,
    /// Whether the peer was seen to be there.
    sure: bool,
}

/// What became of the next bytes.
enum Next {
    /// So many bytes were copied, by this mechanism.
    Done(Kind, u64),
    /// The bytes can't be served.
    Not,
    /// Our own memory is not as it must be.
    Fault,
}

impl Job<'_> {
    unsafe fn all(&mut self, call: &mut Call, done: &mut Done) -> Answer {
        let mut by_pages = false;
        while let (Some(own), Some(theirs)) = (call.local.here(), call.remote.here()) {
            let mut len = own.len.min(theirs.len);
            let page = PAGE - own.addr % PAGE;
            if by_pages {
                len = len.min(page);
            }
            // SAFETY: by the caller's contract.
            let next = match unsafe { self.mapped(call.way, own.addr, theirs.addr, len) } {
                Some(bytes) => Next::Done(Kind::Map, bytes),
                None if self.visit.forbidden => {
                    let (own, theirs) = (Segment { len, ..own }, Segment { len, ..theirs });
                    // SAFETY: by the caller's contract.
                    unsafe { self.otherwise(call.way, own, theirs) }
                }
                None => Next::Not,
            };
            match next {
                Next::Done(kind, bytes) => {
                    done.add(kind, bytes);
                    call.local.advance(bytes);
                    call.remote.advance(bytes);
                    continue;
                }
                Next::Fault if len > page => {
                    // Up to the page where our memory ends.
                    by_pages = true;
                    continue;
                }
                Next::Fault if done.all == 0 => return Answer::Error(Errno::FAULT),
                Next::Not if done.all == 0 && self.is_last_run(call) => return Answer::Kernels,
                Next::Not if !self.visit.forbidden => (),
                _ => break,
            }
            match by_kernel(call) {
                (asked, Ok(bytes)) => {
                    done.add(Kind::Cma, bytes);
                    call.local.advance(bytes);
                    call.remote.advance(bytes);
                    if bytes < asked {
                        break;
                    }
                }
                (_, Err(e)) if done.all == 0 => return Answer::Error(e),
                _ => break,
            }
        }
        Answer::Bytes(done.all)
    }

    /// Whether the real call for what is next would be for all that there is.
    fn is_last_run(&self, call: &mut Call) -> bool {
        self.visit.forbidden || run(call.remote.rest()).0 == call.remote.rest().len()
    }

    /// Copies from or to a mapping of the peer's memory; bytes. None: there is none, or it
    /// has changed meanwhile.
    #[inline]
    unsafe fn mapped(&mut self, way: Way, own: u64, theirs: u64, len: u64) -> Option<u64> {
        let (order, write) = (&self.caller.order, way == Way::Put);
        if !order.has(Kind::Map) {
            return None;
        }
        let visit = self.visit;
        let (hold, stamp) = visit.with(|peer| {
            let (entry, stamp) = peer.known_at(theirs).ok()?;
            let fit = entry.shared()
                && match visit.forbidden {
                    true => entry.is_open(write),
                    false => entry.allows(write),
                };
            let wanted = Wanted {
                by: peer.endpoints().by_file(peer.order()),
                addr: theirs,
                bytes: len,
                write,
                eager: !order.is_auto() || visit.forbidden,
                mapped: true,
            };
            let hold = fit.then(|| peer.endpoints().windows().hold(peer, &wanted))?;
            Some((hold.ok()?, stamp))
        })?;
        let len = len.min(hold.len);
        let Ok(Bytes::At(at)) = hold.bytes() else {
            return None;
        };
        if !self.caller.host.steady(own, len, way == Way::Get) || !self.is_there() {
            return None;
        }
        let (from, to) = match way {
            Way::Get => (at, own),
            Way::Put => (own, at),
        };
        // SAFETY: the hold has `len` bytes mapped, to be written if they are; ours were just
        // looked up.
        unsafe { copy(from, to, len) };
        // What was read by plain loads was read before what follows.
        fence(Acquire);
        self.holds(&stamp).then_some(len)
    }

    /// Whether an entry still is what it was, and the peer's word on it counts.
    #[inline]
    fn holds(&self, stamp: &Stamp) -> bool {
        // SAFETY: the peer is open, and its view with it.
        unsafe { stamp.holds() && !self.visit.peer().gave_up() }
    }

    /// Asked once a call: whether its memory is there; and whether the pid is its, if that was not
    /// seen lately, for memory can outlive its process.
    #[inline]
    fn is_there(&mut self) -> bool {
        if !self.sure {
            let visit = self.visit;
            self.sure = visit.peer().was_seen_lately() && visit.peer().has_memory()
                || visit.with(|peer| Some(peer.check(ticks()).is_ok())) == Some(true);
            if !self.sure {
                self.visit.retire();
            }
        }
        self.sure
    }

    /// Where the kernel's own call is forbidden: through /proc/PID/mem, or by the helper.
    #[cold]
    #[inline(never)]
    unsafe fn otherwise(&mut self, way: Way, own: Segment, theirs: Segment) -> Next {
        if !self.is_there() {
            return Next::Not;
        }
        let order = &self.caller.order;
        let next = self.visit.with(|peer| {
            let (entry, stamp) = peer.known_at(theirs.addr).ok()?;
            if !entry.is_open(way == Way::Put) {
                return None;
            }
            let len = theirs.len.min(entry.end - theirs.addr);
            let (own, theirs) = (Segment { len, ..own }, Segment { len, ..theirs });
            let mut next = Next::Not;
            if order.has(Kind::Cma) {
                // SAFETY: the kernel writes to our memory, or says EFAULT.
                next = through_memory(unsafe { cma::by_memory(peer, way, own, theirs) });
            }
            if matches!(next, Next::Not) && order.has(Kind::Helper) {
                // SAFETY: likewise.
                next = by_helper(unsafe {
                    helper::copy_of(peer, peer.endpoints().link(), way, &[own], &[theirs], true)
                });
            }
            Some((next, stamp, peer.check(ticks()).is_ok()))
        });
        match next {
            Some((next, stamp, true)) if self.holds(&stamp) => next,
            _ => Next::Not,
        }
    }
}

fn through_memory(read: Option<Result<u64>>) -> Next {
    match read {
        Some(Ok(bytes @ 1..)) => Next::Done(Kind::Cma, bytes),
        // (Of memory that is not there it is EIO.)
        Some(Err(Errno::FAULT)) => Next::Fault,
        _ => Next::Not,
    }
}

fn by_helper(copied: core::result::Result<u64, No>) -> Next {
    match copied {
        Ok(bytes @ 1..) => Next::Done(Kind::Helper, bytes),
        Err(No::Failed(Errno::FAULT)) => Next::Fault,
        _ => Next::Not,
    }
}

/// How many segments from the first on are best left to one real call: it ends before the
/// next long one, which may be mapped.
fn run(rest: &[Segment]) -> (usize, u64) {
    let mut tail = rest.iter().enumerate().skip(1);
    let next = tail.find(|(_, s)| s.len >= LONG);
    let count = next.map_or(rest.len(), |(n, _)| n);
    let head = rest.get(..count).unwrap_or(rest);
    (count, head.iter().map(|s| s.len).sum())
}

/// The real call for what is next. Bytes that it was asked for, and what it said.
#[cold]
#[inline(never)]
fn by_kernel(call: &mut Call) -> (u64, Result<u64>) {
    let (count, bytes) = run(call.remote.rest());
    let (pid, local, remote) = (call.pid, call.local.rest(), call.remote.rest());
    let asked = bytes.min(local.iter().map(|s| s.len).sum());
    let remote = remote.get(..count).unwrap_or(remote);
    // SAFETY: the application's own call, of which this is a part.
    let said = unsafe { regall_sys::copy_between(call.way.access(), pid, local, remote) };
    (asked, said)
}
