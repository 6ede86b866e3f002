//! The C interface to regions.

use super::done::Done;
use super::entry::{bring_in, error, INERT};
use super::peers::{answer, vector};
use crate::base::phase;
use crate::cookies;
use crate::helper;
use crate::intercept::strict;
use crate::sys::{Errno, Result};
use core::ffi::{c_int, c_uint};
use regall_bridge::cookie::{Cookie, Rights};
use regall_bridge::transfer::Way;
use regall_bridge::vector::Segment;

/// KNEM's flag for regions of all users. A region is for one user's processes.
const ANY_USER: c_uint = 2;

/// `struct regall_use`.
#[repr(C)]
pub struct Use {
    cookie: u64,
    uses: u64,
}

/// See regall.h.
///
/// # Safety
/// `segments` is NULL or `count` segments; `cookie` is NULL or valid for writing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_region_create(
    segments: *const Segment,
    count: usize,
    prot: c_uint,
    flags: c_uint,
    cookie: *mut u64,
) -> c_int {
    if !phase::tracking() {
        return INERT;
    }
    if flags & ANY_USER != 0 {
        return error(Errno::NOTSUP);
    }
    // SAFETY: by the contract above.
    let segments = unsafe { vector(segments, count) };
    let (Some(segments), Some(rights), false) =
        (segments, Rights::new(prot, flags), cookie.is_null())
    else {
        return error(Errno::INVAL);
    };
    let _pass = strict::pass();
    helper::for_interface();
    bring_in();
    match cookies::create(segments, rights) {
        Ok(made) => {
            // SAFETY: by the contract above.
            unsafe { cookie.write(made.0) };
            0
        }
        Err(e) => error(e),
    }
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_region_destroy(cookie: u64) -> c_int {
    let _pass = strict::pass();
    done(cookies::destroy(Cookie(cookie)))
}

fn done(result: Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => error(e),
    }
}

/// See regall.h.
///
/// # Safety
/// Both vectors are valid, and each segment at `to` is valid for writing; `done` is NULL or
/// valid for writing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_region_read(
    cookie: u64,
    offset: u64,
    to: *const Segment,
    tos: usize,
    done: *mut Done,
) -> c_int {
    // SAFETY: by the contract above.
    unsafe { transfer(Way::Get, cookie, offset, to, tos, done) }
}

/// See regall.h.
///
/// # Safety
/// As [`regall_region_read`], with segments that are valid for reading.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_region_write(
    cookie: u64,
    offset: u64,
    from: *const Segment,
    froms: usize,
    done: *mut Done,
) -> c_int {
    // SAFETY: by the contract above.
    unsafe { transfer(Way::Put, cookie, offset, from, froms, done) }
}

unsafe fn transfer(
    way: Way,
    cookie: u64,
    offset: u64,
    local: *const Segment,
    count: usize,
    done: *mut Done,
) -> c_int {
    // SAFETY: by the caller's contract.
    let Some(local) = (unsafe { vector(local, count) }) else {
        return error(Errno::INVAL);
    };
    let _pass = strict::pass();
    // SAFETY: by the caller's contract.
    let outcome = unsafe { cookies::transfer(way, Cookie(cookie), offset, local) };
    // SAFETY: by the caller's contract.
    unsafe { answer(&outcome, done) }
}

/// See regall.h.
///
/// # Safety
/// `done` is NULL or valid for writing.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_region_copy(
    from: u64,
    from_offset: u64,
    to: u64,
    to_offset: u64,
    len: u64,
    done: *mut Done,
) -> c_int {
    let _pass = strict::pass();
    let outcome = cookies::copy((Cookie(from), from_offset), (Cookie(to), to_offset), len);
    // SAFETY: by the contract above.
    unsafe { answer(&outcome, done) }
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_region_fd() -> c_int {
    if !phase::tracking() {
        return INERT;
    }
    let _pass = strict::pass();
    cookies::uses_fd().unwrap_or_else(error)
}

/// See regall.h.
///
/// # Safety
/// `out` is valid for writing `room` of `struct regall_use`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_region_used(out: *mut Use, room: usize) -> c_int {
    if out.is_null() && room > 0 {
        return error(Errno::INVAL);
    }
    let _pass = strict::pass();
    let mut count = 0;
    cookies::used(|cookie, uses| {
        if count < room {
            let cookie = cookie.0;
            // SAFETY: by the contract above.
            unsafe { out.add(count).write(Use { cookie, uses }) };
        }
        count += 1;
        true
    });
    c_int::try_from(count).unwrap_or(c_int::MAX)
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_region_uses(cookie: u64) -> i64 {
    let _pass = strict::pass();
    match cookies::uses(Cookie(cookie)) {
        Ok(uses) => uses as i64,
        Err(e) => error(e).into(),
    }
}
