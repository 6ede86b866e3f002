//! Requests to adapters at the kernel's own interface, the ioctl RDMA_VERBS_IOCTL: whoever does not
//! come by libibverbs' symbols ([`super::exports`]) comes by here, and so does what these pass on.
//!
//! A registration is answered with a region that is there, and a number of ours for it; the
//! provider's library then makes its own structure of that. Requests with such a number are carried
//! out here ([`borrowed`]): the kernel is never handed a number that it did not give. Everything
//! else goes on as it came.

mod borrowed;
mod copy;
mod registering;

use super::{handles, is_inside};
use crate::arch::Frame;
use crate::base::{phase, settings};
use crate::config::Hca;
use crate::track::{self, deferred, ending, files, registering as regions};
use crate::uverbs::requests::{Message, Request, CORE};
use crate::uverbs::PdHandle;
use copy::Copy;

/// A program's request.
struct Asked<'a> {
    frame: &'a Frame,
    /// A copy of its message.
    message: Message,
    /// What the message names, likewise.
    core: [u8; CORE],
}

impl Asked<'_> {
    /// The descriptor that it came by.
    const fn fd(&self) -> i32 {
        self.frame.args[0] as i32
    }

    /// Where its message is.
    const fn at(&self) -> u64 {
        self.frame.args[2]
    }
}

/// Handles an ioctl with RDMA_VERBS_IOCTL, whatever descriptor it is for.
#[inline(never)]
pub fn handle(frame: &mut Frame) -> i64 {
    // What has a number of ours stays ours if the shim gives up.
    let lends = phase::tracking() || handles::has_numbers();
    if settings::config().hca == Hca::Off || !lends {
        return track::real(frame);
    }
    let mut message = Message::default();
    let head = Copy::of(frame.args[2], Message::HEAD);
    if !head.read(message.place()) {
        return track::real(frame);
    }
    match message.rest() {
        Some(bytes) => handle_message(frame, message, bytes),
        None => track::real(frame),
    }
}

#[inline(never)]
fn handle_message(frame: &mut Frame, mut message: Message, bytes: usize) -> i64 {
    if phase::tracking() {
        track::fork::check();
    }
    let behind = frame.args[2].wrapping_add(Message::HEAD as u64);
    // SAFETY: within the message, which has room for as many bytes as `rest` says.
    let place = unsafe { message.place().add(Message::HEAD) };
    if !Copy::of(behind, bytes).read(place) {
        return track::real(frame);
    }
    let mut core = [0; CORE];
    let whole = message.core().is_none_or(|(at, len)| {
        let len = len.min(CORE);
        Copy::of(at, len).read(core.as_mut_ptr())
    });
    let request = message.request(&core);
    let asked = Asked {
        frame,
        message,
        core,
    };
    let value = match request {
        _ if !whole => track::real(asked.frame),
        Request::Register(what) if !is_inside() => registering::register(&asked, what),
        Request::Registration if !is_inside() => registering::pass_on(&asked),
        Request::Deregister(n) if handles::is_number(n) => borrowed::deregister(&asked, n),
        Request::Change(n) if handles::is_number(n) => borrowed::change(&asked, n),
        Request::Query(n) if handles::is_number(n) => borrowed::query(&asked, n),
        Request::DeallocPd(pd) => dealloc_pd(&asked, PdHandle(pd)),
        Request::Context => context(&asked),
        _ => track::real(asked.frame),
    };
    // A handler may have come upon the lock meanwhile.
    deferred::drain();
    value
}

/// With regions of ours in it the call would be EBUSY, whoever has had them made. With one that the
/// application holds it is.
#[cold]
fn dealloc_pd(asked: &Asked, pd: PdHandle) -> i64 {
    let fd = asked.fd();
    let ours = regions::active() && ending::vacate(|x| files::is_of(x, fd, pd));
    let value = track::real(asked.frame);
    if ours && track::failed(value) {
        ending::revive(|x| files::is_of(x, fd, pd));
    } else if ours {
        ending::forget_empty(|x| files::is_of(x, fd, pd));
    }
    if value == 0 {
        files::forget_candidate(fd, pd);
    }
    value
}

/// A context is new, or the program asks for what it has: the number of the descriptor may have
/// stood for another file before.
#[cold]
fn context(asked: &Asked) -> i64 {
    files::renew(asked.fd());
    closed();
    track::real(asked.frame)
}

/// Looks whether the program has closed a device, whose handles mean nothing then.
#[cold]
pub fn closed() {
    if files::any() && regions::active() && files::look_after() {
        forget_numbers();
    }
}

/// Frees the numbers of contexts that are not known any more.
#[cold]
pub fn forget_numbers() {
    if let Some(guard) = track::lock() {
        let there = |file| guard.hca.find(|x| x.file == file).next().is_some();
        handles::sweep(there);
    }
}
