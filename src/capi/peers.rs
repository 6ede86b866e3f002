//! The C interface to the bridge: peers, and getting and putting their memory.

use super::completion;
use super::done::{one, Done};
use super::entry::error;
use crate::base::settings;
use crate::helper;
use crate::host::Shim;
use crate::intercept::strict;
use crate::sys::Errno;
use core::ffi::{c_int, c_uint};
use core::ptr::NonNull;
use regall_bridge::find;
use regall_bridge::peer::Peer;
use regall_bridge::transfer::{transfer, Outcome, Way};
use regall_bridge::vector::Segment;

/// `struct regall_process`.
#[repr(C)]
pub struct Process {
    pid: i32,
    reserved: u32,
    start_time: u64,
}

/// See regall.h.
///
/// # Safety
/// `out` is valid for writing `room` of `struct regall_process`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_peers(out: *mut Process, room: usize) -> c_int {
    if out.is_null() && room > 0 {
        return error(Errno::INVAL);
    }
    let _pass = strict::pass();
    let mut count = 0;
    find::each(|found| {
        if count < room {
            let process = Process {
                pid: found.pid as i32,
                reserved: 0,
                start_time: found.identity.start,
            };
            // SAFETY: by the contract above.
            unsafe { out.add(count).write(process) };
        }
        count += 1;
    });
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// See regall.h.
///
/// # Safety
/// `out` is NULL or valid for writing a pointer.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_peer_open(
    pid: c_int,
    start_time: u64,
    flags: c_uint,
    out: *mut *mut Peer,
) -> c_int {
    let (Ok(pid), false) = (u32::try_from(pid), out.is_null()) else {
        return error(Errno::INVAL);
    };
    let _pass = strict::pass();
    helper::for_interface();
    match Peer::open(&Shim, pid, start_time, flags, settings::config().copy) {
        Ok(peer) => {
            // SAFETY: by the contract above.
            unsafe { out.write(peer.as_ptr()) };
            0
        }
        Err(e) => error(e),
    }
}

/// See regall.h.
///
/// # Safety
/// `peer` is NULL, or from [`regall_peer_open`] and no longer in use.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_peer_close(peer: *mut Peer) -> c_int {
    let Some(peer) = NonNull::new(peer) else {
        return error(Errno::INVAL);
    };
    let _pass = strict::pass();
    if completion::in_use(peer) {
        return error(Errno::BUSY);
    }
    // SAFETY: by the contract above.
    unsafe { Peer::close(peer) };
    0
}

/// See regall.h.
///
/// # Safety
/// `peer` is NULL or an open peer.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_peer_check(peer: *const Peer) -> c_int {
    // SAFETY: by the contract above.
    let Some(peer) = (unsafe { peer.as_ref() }) else {
        return error(Errno::INVAL);
    };
    let _pass = strict::pass();
    peer.tidy();
    match peer.check(crate::arch::ticks()) {
        Ok(()) => 0,
        Err(e) => error(e),
    }
}

/// See regall.h.
///
/// # Safety
/// `peer` is NULL or an open peer, `to` is valid for writing `len` bytes, `done` is NULL or
/// valid for writing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_get(
    peer: *const Peer,
    to: u64,
    from: u64,
    len: usize,
    done: *mut Done,
) -> c_int {
    let (to, from) = (one(to, len), one(from, len));
    // SAFETY: by the contract above.
    unsafe { carry_out(peer, Way::Get, &[to], &[from], done) }
}

/// See regall.h.
///
/// # Safety
/// As [`regall_get`], but `from` is valid for reading `len` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_put(
    peer: *const Peer,
    from: u64,
    to: u64,
    len: usize,
    done: *mut Done,
) -> c_int {
    let (from, to) = (one(from, len), one(to, len));
    // SAFETY: by the contract above.
    unsafe { carry_out(peer, Way::Put, &[from], &[to], done) }
}

/// See regall.h.
///
/// # Safety
/// As [`regall_get`], of each of the `tos` segments at `to`; both vectors are valid.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_getv(
    peer: *const Peer,
    to: *const Segment,
    tos: usize,
    from: *const Segment,
    froms: usize,
    done: *mut Done,
) -> c_int {
    // SAFETY: by the contract above.
    match unsafe { (vector(to, tos), vector(from, froms)) } {
        // SAFETY: by the contract above.
        (Some(to), Some(from)) => unsafe { carry_out(peer, Way::Get, to, from, done) },
        _ => error(Errno::INVAL),
    }
}

/// See regall.h.
///
/// # Safety
/// As [`regall_put`], of each of the `froms` segments at `from`; both vectors are valid.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_putv(
    peer: *const Peer,
    from: *const Segment,
    froms: usize,
    to: *const Segment,
    tos: usize,
    done: *mut Done,
) -> c_int {
    // SAFETY: by the contract above.
    match unsafe { (vector(from, froms), vector(to, tos)) } {
        // SAFETY: by the contract above.
        (Some(from), Some(to)) => unsafe { carry_out(peer, Way::Put, from, to, done) },
        _ => error(Errno::INVAL),
    }
}

/// A vector of the caller's; `None` if it is NULL though it has segments.
pub(super) unsafe fn vector<'a>(at: *const Segment, count: usize) -> Option<&'a [Segment]> {
    match (at.is_null(), count) {
        (_, 0) => Some(&[]),
        (true, _) => None,
        // SAFETY: by the caller's contract.
        (false, _) => Some(unsafe { core::slice::from_raw_parts(at, count) }),
    }
}

unsafe fn carry_out(
    peer: *const Peer,
    way: Way,
    local: &[Segment],
    remote: &[Segment],
    done: *mut Done,
) -> c_int {
    // SAFETY: by the caller's contract.
    let Some(peer) = (unsafe { peer.as_ref() }) else {
        return error(Errno::INVAL);
    };
    let _pass = strict::pass();
    // SAFETY: by the caller's contract.
    let outcome = unsafe { transfer(peer, way, local, remote) };
    // SAFETY: by the caller's contract.
    unsafe { answer(&outcome, done) }
}

/// Tells the caller what came of it.
pub(super) unsafe fn answer(outcome: &Outcome, done: *mut Done) -> c_int {
    if !done.is_null() {
        // SAFETY: by the caller's contract.
        unsafe { done.write(outcome.into()) };
    }
    match outcome.result {
        Ok(()) => 0,
        Err(e) => error(e),
    }
}
