//! Requests to adapters at the kernel's own interface, the ioctl RDMA_VERBS_IOCTL: whoever does not
//! come by libibverbs' symbols ([`super::exports`]) comes by here, and so does what these pass on.
//!
//! A registration is answered with a region that is there, and a number of ours for it; the
//! provider's library then makes its own structure of that. Requests with such a number are carried
//! out here ([`borrowed`]): the kernel is never handed a number that it did not give. Everything
//! else goes on as it came, but that nothing of the shim's is in the way of what the program makes
//! ([`creating`]). With REGALL_VERBS=symbols no more is done than that, and contexts are met.

mod asked;
mod borrowed;
mod copy;
mod creating;
mod registering;

use super::handles;
use super::inside::is_inside;
use crate::arch::Frame;
use crate::base::{phase, settings};
use crate::config::Hca;
use crate::registrar::hca::files::FileId;
use crate::registrar::hca::Domain;
use crate::track::ending::Vacated;
use crate::track::{self, deferred, ending, files, registering as regions};
use crate::uverbs::requests::{Message, Request, CORE};
use crate::uverbs::wire::VERBS_IOCTL;
use crate::uverbs::PdHandle;
use asked::Asked;
use copy::{Copy, Stack};
use regall_directory::numbers;

// Sites look for this one.
const _: () = assert!(VERBS_IOCTL as u64 == numbers::RDMA_VERBS_IOCTL);

/// Handles an ioctl with RDMA_VERBS_IOCTL, whatever descriptor it is for. `begins` is called when it has
/// opened a context.
#[inline(never)]
pub fn handle(frame: &mut Frame, begins: fn()) -> i64 {
    // What has a number of ours stays ours if the shim gives up.
    let lends = phase::tracking() || handles::has_numbers();
    if settings::config().hca == Hca::Off || !lends {
        return track::real(frame);
    }
    let mut asked = Asked {
        frame,
        stack: Stack::further_out(frame),
        message: Message::default(),
        core: [0; CORE],
    };
    let head = Copy::of(asked.at(), Message::HEAD);
    if !head.read(&asked.stack, asked.message.place()) {
        return track::real(asked.frame);
    }
    match asked.message.rest() {
        None if !asked.message.creates_by_method() => track::real(asked.frame),
        rest => handle_message(&mut asked, rest, begins),
    }
}

/// What is asked for; `bytes` are behind the head, if they are looked at. `None`: they are not there.
fn read(asked: &mut Asked, bytes: Option<usize>) -> Option<Request> {
    let Some(bytes) = bytes else {
        return Some(Request::Creation);
    };
    let behind = asked.at().wrapping_add(Message::HEAD as u64);
    // SAFETY: within the message, which has room for as many bytes as `rest` says.
    let place = unsafe { asked.message.place().add(Message::HEAD) };
    if !Copy::of(behind, bytes).read(&asked.stack, place) {
        return None;
    }
    if let Some((at, len)) = asked.message.core() {
        let core = Copy::of(at, len.min(CORE));
        if !core.read(&asked.stack, asked.core.as_mut_ptr()) {
            return None;
        }
    }
    Some(asked.message.request(&asked.core))
}

fn handle_message(asked: &mut Asked, bytes: Option<usize>, begins: fn()) -> i64 {
    if phase::tracking() {
        track::fork::check();
    }
    let Some(request) = read(asked, bytes) else {
        return track::real(asked.frame);
    };
    let answers = settings::config().answers_ioctl();
    let value = match request {
        Request::Creation => creating::create(asked),
        Request::CreateQp(pd) => creating::create_qp(asked, PdHandle(pd)),
        Request::DestroyQp(handle) => destroy_qp(asked, handle),
        Request::Open => open(asked, begins),
        Request::Register(what) if answers && !is_inside() => registering::register(asked, what),
        Request::Register(_) | Request::Registration => creating::register(asked),
        _ if !answers => track::real(asked.frame),
        Request::Deregister(n) if handles::is_number(n) => borrowed::deregister(asked, n),
        Request::Change(n) if handles::is_number(n) => borrowed::change(asked, n),
        Request::Query(n) if handles::is_number(n) => borrowed::query(asked, n),
        Request::DeallocPd(pd) => dealloc_pd(asked, PdHandle(pd)),
        Request::Context => context(asked),
        _ => track::real(asked.frame),
    };
    // A handler may have come upon the lock meanwhile.
    deferred::drain();
    value
}

#[cold]
fn destroy_qp(asked: &Asked, handle: u32) -> i64 {
    if phase::tracking() {
        files::pair_goes(asked.fd(), handle);
    }
    track::real(asked.frame)
}

/// With regions of ours in it the call would be EBUSY, whoever has had them made. With one that the
/// application holds it is.
#[cold]
fn dealloc_pd(asked: &Asked, pd: PdHandle) -> i64 {
    let fd = asked.fd();
    let value = match regions::active() {
        true => dealloc_emptied(asked, fd, pd),
        false => track::real(asked.frame),
    };
    if value == 0 {
        files::forget_candidate(fd, pd);
    }
    value
}

/// Makes the call while nothing of ours is in the protection domain.
fn dealloc_emptied(asked: &Asked, fd: i32, pd: PdHandle) -> i64 {
    // What libibverbs' symbols see to ends there.
    let inside = is_inside();
    let known = (!inside || files::any()).then(|| files::of(fd));
    let Some(file) = known.flatten() else {
        return track::real(asked.frame);
    };
    let here = |x: &Domain| (x.owner.is_of_file() || !inside) && x.is_of(file, pd);
    let vacated = ending::vacate(here);
    let value = track::real(asked.frame);
    if value == 0 {
        ending::forget_empty(here);
    }
    if vacated != Vacated::Not {
        ending::revive(here);
    }
    value
}

/// A context is new. Only who has opened it is served: whoever gets the descriptor from another
/// process would leave behind in the context what it has registered there.
#[cold]
fn open(asked: &Asked, begins: fn()) -> i64 {
    let value = context(asked);
    if value >= 0 && phase::tracking() {
        files::opened(asked.fd());
        begins();
    }
    value
}

/// The program asks for a context, or for what it has: others may have been closed before.
#[cold]
fn context(asked: &Asked) -> i64 {
    closed();
    track::real(asked.frame)
}

/// Looks whether the program has closed a device, whose handles mean nothing then.
#[cold]
pub fn closed() {
    if regions::active() {
        files::look_after(forget_numbers);
    }
}

/// Frees the numbers of what was in an open file that is no more.
fn forget_numbers(file: FileId) {
    if let Some(_guard) = track::lock() {
        handles::sweep(file);
    }
}
