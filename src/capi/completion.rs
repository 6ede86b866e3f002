//! The C interface to asynchronous copies.

use super::done::{one, Done};
use super::entry::error;
use crate::cookies;
use crate::copier;
use crate::host::Shim;
use crate::intercept::strict;
use crate::sys::{Errno, Result};
use crate::track;
use core::ffi::{c_int, c_uint};
use core::ptr::NonNull;
use regall_bridge::cookie::Cookie;
use regall_bridge::peer::Peer;
use regall_bridge::queue::{Completion, Job, Queue, Vector};
use regall_bridge::transfer::Way;
use regall_bridge::vector::Segment;

/// `struct regall_completion`.
#[repr(C)]
pub struct Finished {
    tag: u64,
    result: i32,
    reserved: u32,
    done: Done,
}

impl From<&Completion> for Finished {
    fn from(it: &Completion) -> Self {
        Self {
            tag: it.tag,
            result: it.outcome.result.map_or_else(error, |()| 0),
            reserved: 0,
            done: Done::from(&it.outcome),
        }
    }
}

fn answer(result: Result<()>) -> c_int {
    result.map_or_else(error, |()| 0)
}

/// See regall.h.
///
/// # Safety
/// `out` is NULL or valid for writing a pointer.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_queue_open(flags: c_uint, out: *mut *mut Queue) -> c_int {
    if flags != 0 || out.is_null() {
        return error(Errno::INVAL);
    }
    let _pass = strict::pass();
    track::fork::check();
    match copier::running().and_then(|_| Queue::open(&Shim)) {
        Ok(queue) => {
            // SAFETY: by the contract above.
            unsafe { out.write(queue.as_ptr()) };
            0
        }
        Err(e) => error(e),
    }
}

/// See regall.h.
///
/// # Safety
/// `queue` is NULL, or from [`regall_queue_open`] and no longer in use.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_queue_close(queue: *mut Queue) -> c_int {
    let Some(queue) = NonNull::new(queue) else {
        return error(Errno::INVAL);
    };
    let _pass = strict::pass();
    // SAFETY: by the contract above.
    unsafe { Queue::close(queue) };
    0
}

/// See regall.h.
///
/// # Safety
/// `queue` is NULL or an open queue.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_queue_fd(queue: *const Queue) -> c_int {
    // SAFETY: by the contract above.
    match unsafe { queue.as_ref() } {
        Some(queue) => queue.event(),
        None => error(Errno::INVAL),
    }
}

/// See regall.h.
///
/// # Safety
/// `queue` is NULL or an open queue; `out` is valid for writing `room` of
/// `struct regall_completion`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_queue_poll(
    queue: *const Queue,
    out: *mut Finished,
    room: usize,
) -> c_int {
    // SAFETY: passed on.
    unsafe { regall_queue_wait(queue, out, room, 0) }
}

/// See regall.h.
///
/// # Safety
/// As [`regall_queue_poll`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_queue_wait(
    queue: *const Queue,
    out: *mut Finished,
    room: usize,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: by the contract above.
    let queue = match unsafe { queue.as_ref() } {
        Some(queue) if !out.is_null() || room == 0 => queue,
        _ => return error(Errno::INVAL),
    };
    let _pass = strict::pass();
    let nanos = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
    let found = queue.wait(room, nanos, |n, it| {
        // SAFETY: `n` is below `room`, by the contract above.
        unsafe { out.add(n).write(it.into()) };
    });
    match found {
        Ok(count) => count as c_int,
        Err(e) => error(e),
    }
}

/// See regall.h.
///
/// # Safety
/// `queue` is NULL or an open queue, `peer` is NULL or an open peer. Until the completion:
/// `to` is valid for writing `len` bytes, and `peer` is not closed.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_get_start(
    queue: *const Queue,
    peer: *mut Peer,
    to: u64,
    from: u64,
    len: usize,
    tag: u64,
) -> c_int {
    let (to, from) = (Vector::One(one(to, len)), Vector::One(one(from, len)));
    // SAFETY: by the contract above.
    answer(unsafe { start(queue, peer, Way::Get, Some(to), Some(from), None, tag) })
}

/// See regall.h.
///
/// # Safety
/// As [`regall_get_start`], but `from` is valid for reading `len` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_put_start(
    queue: *const Queue,
    peer: *mut Peer,
    from: u64,
    to: u64,
    len: usize,
    tag: u64,
) -> c_int {
    let (from, to) = (Vector::One(one(from, len)), Vector::One(one(to, len)));
    // SAFETY: by the contract above.
    answer(unsafe { start(queue, peer, Way::Put, Some(from), Some(to), None, tag) })
}

/// See regall.h.
///
/// # Safety
/// As [`regall_get_start`], of each of the `tos` segments at `to`; both vectors are valid
/// until the completion.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_getv_start(
    queue: *const Queue,
    peer: *mut Peer,
    to: *const Segment,
    tos: usize,
    from: *const Segment,
    froms: usize,
    tag: u64,
) -> c_int {
    let (to, from) = (vector(to, tos), vector(from, froms));
    // SAFETY: by the contract above.
    answer(unsafe { start(queue, peer, Way::Get, to, from, None, tag) })
}

/// See regall.h.
///
/// # Safety
/// As [`regall_put_start`], of each of the `froms` segments at `from`; both vectors are
/// valid until the completion.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_putv_start(
    queue: *const Queue,
    peer: *mut Peer,
    from: *const Segment,
    froms: usize,
    to: *const Segment,
    tos: usize,
    tag: u64,
) -> c_int {
    let (from, to) = (vector(from, froms), vector(to, tos));
    // SAFETY: by the contract above.
    answer(unsafe { start(queue, peer, Way::Put, from, to, None, tag) })
}

/// A vector of the caller's, which stays where it is; `None` if it is NULL though it has
/// segments.
fn vector(at: *const Segment, count: usize) -> Option<Vector> {
    match (NonNull::new(at.cast_mut()), count) {
        (_, 0) => Some(Vector::One(one(0, 0))),
        (at, count) => at.map(|at| Vector::Many(at, count)),
    }
}

/// Starts a copy, of which the peer is told with `notice`.
///
/// # Safety
/// As [`regall_getv_start`] and [`regall_putv_start`].
pub(super) unsafe fn start(
    queue: *const Queue,
    peer: *mut Peer,
    way: Way,
    local: Option<Vector>,
    remote: Option<Vector>,
    notice: Option<u64>,
    tag: u64,
) -> Result<()> {
    let all = NonNull::new(peer).zip(local.zip(remote));
    let (peer, (local, remote)) = all.ok_or(Errno::INVAL)?;
    let job = Job::Transfer {
        peer,
        way,
        local,
        remote,
        notice,
    };
    // SAFETY: by the callers' contract.
    unsafe { begin(queue, job, tag) }
}

unsafe fn begin(queue: *const Queue, job: Job, tag: u64) -> Result<()> {
    // SAFETY: by the callers' contract.
    let queue = unsafe { queue.as_ref() }.ok_or(Errno::INVAL)?;
    let _pass = strict::pass();
    track::fork::check();
    let engine = copier::engine().ok_or(Errno::INVAL)?;
    // SAFETY: by the callers' contract.
    unsafe { queue.start(engine, job, tag) }
}

/// See regall.h.
///
/// # Safety
/// `queue` is NULL or an open queue. Until the completion: `to` is valid, and each of its `tos`
/// segments is valid for writing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_region_read_start(
    queue: *const Queue,
    cookie: u64,
    offset: u64,
    to: *const Segment,
    tos: usize,
    tag: u64,
) -> c_int {
    let region = (Cookie(cookie), offset);
    // SAFETY: by the contract above.
    answer(unsafe { start_region(queue, Way::Get, region, vector(to, tos), tag) })
}

/// See regall.h.
///
/// # Safety
/// As [`regall_region_read_start`], with segments that are valid for reading.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_region_write_start(
    queue: *const Queue,
    cookie: u64,
    offset: u64,
    from: *const Segment,
    froms: usize,
    tag: u64,
) -> c_int {
    let region = (Cookie(cookie), offset);
    // SAFETY: by the contract above.
    answer(unsafe { start_region(queue, Way::Put, region, vector(from, froms), tag) })
}

unsafe fn start_region(
    queue: *const Queue,
    way: Way,
    region: (Cookie, u64),
    local: Option<Vector>,
    tag: u64,
) -> Result<()> {
    let job = cookies::transfer_job(way, region, local.ok_or(Errno::INVAL)?);
    // SAFETY: by the callers' contract.
    unsafe { begin(queue, job, tag) }
}

/// See regall.h.
///
/// # Safety
/// `queue` is NULL or an open queue.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_region_copy_start(
    queue: *const Queue,
    from: u64,
    from_offset: u64,
    to: u64,
    to_offset: u64,
    len: u64,
    tag: u64,
) -> c_int {
    let (from, to) = ((Cookie(from), from_offset), (Cookie(to), to_offset));
    // SAFETY: by the contract above; the regions' memory is their owners'.
    answer(unsafe { begin(queue, cookies::copy_job(from, to, len), tag) })
}

/// Whether `peer` can be closed.
pub fn in_use(peer: NonNull<Peer>) -> bool {
    copier::uses(peer)
}

const _: () = assert!(size_of::<Finished>() == 40 && size_of::<Done>() == 24);
