//! The C interface to messages: boxes, and copies of which the other side is told.

use super::completion;
use super::done::{one, Done};
use super::entry::error;
use super::peers::answer;
use crate::base::phase;
use crate::boxes;
use crate::helper;
use crate::host::Shim;
use crate::intercept::strict;
use crate::sys::{Errno, Result};
use crate::track;
use core::ffi::{c_int, c_void};
use regall_bridge::boxes::inbox::{Inbox, Out};
use regall_bridge::boxes::message::Kind;
use regall_bridge::boxes::outbox::Parcel;
use regall_bridge::notify::transfer_and_tell;
use regall_bridge::peer::Peer;
use regall_bridge::queue::{Queue, Vector};
use regall_bridge::transfer::Way;

/// The box of this process; in a child of fork it is the child's.
#[inline]
fn own() -> Result<&'static Inbox> {
    track::fork::check();
    boxes::made()
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_box_open() -> c_int {
    let _pass = strict::pass();
    helper::for_interface();
    own().map_or_else(error, |_| 0)
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_box_fd() -> c_int {
    let _pass = strict::pass();
    let inbox = match own() {
        Ok(inbox) => inbox,
        Err(e) => return error(e),
    };
    // Senders have the descriptor passed by it.
    helper::start();
    if helper::count() == 0 {
        return -libc::EOPNOTSUPP;
    }
    inbox.wants_event().unwrap_or_else(error)
}

/// See regall.h.
///
/// # Safety
/// `peer` is NULL or an open peer; `data` is valid for reading `len` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_send(
    peer: *const Peer,
    tag: u64,
    data: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: by the contract above.
    let peer = match unsafe { peer.as_ref() } {
        Some(peer) if !data.is_null() || len == 0 => peer,
        _ => return error(Errno::INVAL),
    };
    if !phase::tracking() {
        return error(Errno::NOSYS);
    }
    let _pass = strict::pass();
    track::fork::check();
    let parcel = Parcel {
        kind: Kind::Data,
        tag,
        data: data as u64,
        len: len as u64,
    };
    // SAFETY: by the contract above.
    let sent = unsafe { peer.outbox().send(&peer.target(), &parcel) };
    sent.map_or_else(error, |()| 0)
}

/// See regall.h.
///
/// # Safety
/// `out` is NULL or valid for writing `room` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_poll(out: *mut c_void, room: usize) -> c_int {
    // SAFETY: passed on.
    unsafe { take(out, room, |inbox, out| inbox.poll(&Shim, out)) }
}

/// See regall.h.
///
/// # Safety
/// As [`regall_poll`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_wait(out: *mut c_void, room: usize, timeout_ms: c_int) -> c_int {
    let nanos = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
    // SAFETY: passed on.
    unsafe { take(out, room, |inbox, out| inbox.wait(&Shim, out, nanos)) }
}

/// # Safety
/// As [`regall_poll`].
#[inline]
unsafe fn take(out: *mut c_void, room: usize, how: impl FnOnce(&Inbox, &mut Out)) -> c_int {
    if out.is_null() && room > 0 {
        return error(Errno::INVAL);
    }
    let _pass = strict::pass();
    let inbox = match own() {
        Ok(inbox) => inbox,
        Err(e) => return error(e),
    };
    // SAFETY: by the contract above.
    let mut out = unsafe { Out::new(out as u64, room as u64) };
    how(inbox, &mut out);
    out.count().map_or_else(error, |count| count as c_int)
}

/// See regall.h.
///
/// # Safety
/// As `regall_put`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_put_notify(
    peer: *const Peer,
    from: u64,
    to: u64,
    len: usize,
    tag: u64,
    done: *mut Done,
) -> c_int {
    // SAFETY: passed on.
    unsafe { tell(peer, Way::Put, (from, to, len), tag, done) }
}

/// See regall.h.
///
/// # Safety
/// As `regall_get`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_get_notify(
    peer: *const Peer,
    to: u64,
    from: u64,
    len: usize,
    tag: u64,
    done: *mut Done,
) -> c_int {
    // SAFETY: passed on.
    unsafe { tell(peer, Way::Get, (to, from, len), tag, done) }
}

unsafe fn tell(
    peer: *const Peer,
    way: Way,
    (here, there, len): (u64, u64, usize),
    tag: u64,
    done: *mut Done,
) -> c_int {
    // SAFETY: by the callers' contract.
    let Some(peer) = (unsafe { peer.as_ref() }) else {
        return error(Errno::INVAL);
    };
    if !phase::tracking() {
        return error(Errno::NOSYS);
    }
    let _pass = strict::pass();
    track::fork::check();
    let (local, remote) = (one(here, len), one(there, len));
    // SAFETY: by the callers' contract.
    let outcome = unsafe { transfer_and_tell(peer, way, &[local], &[remote], tag) };
    // SAFETY: likewise.
    unsafe { answer(&outcome, done) }
}

/// See regall.h.
///
/// # Safety
/// As `regall_put_start`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_put_notify_start(
    queue: *const Queue,
    peer: *mut Peer,
    from: u64,
    to: u64,
    len: usize,
    notice: u64,
    tag: u64,
) -> c_int {
    // SAFETY: passed on.
    unsafe { start(queue, peer, Way::Put, (from, to, len), (notice, tag)) }
}

/// See regall.h.
///
/// # Safety
/// As `regall_get_start`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_get_notify_start(
    queue: *const Queue,
    peer: *mut Peer,
    to: u64,
    from: u64,
    len: usize,
    notice: u64,
    tag: u64,
) -> c_int {
    // SAFETY: passed on.
    unsafe { start(queue, peer, Way::Get, (to, from, len), (notice, tag)) }
}

unsafe fn start(
    queue: *const Queue,
    peer: *mut Peer,
    way: Way,
    (here, there, len): (u64, u64, usize),
    (notice, tag): (u64, u64),
) -> c_int {
    if !phase::tracking() {
        return error(Errno::NOSYS);
    }
    let (local, remote) = (one(here, len), one(there, len));
    let (local, remote) = (Some(Vector::One(local)), Some(Vector::One(remote)));
    // SAFETY: by the callers' contract.
    let started = unsafe { completion::start(queue, peer, way, local, remote, Some(notice), tag) };
    started.map_or_else(error, |()| 0)
}
