//! What ends descriptors, seen by the slots through which modules call libc's functions: close(2)
//! and its kin are cancellation points or leave no room for a jump, and every program makes them all
//! the time. So nothing is put there before an adapter is known by its open file.
//!
//! Missed: what libc does inside itself, system calls that a program makes by itself, io_uring,
//! modules that are loaded after the last adapter was opened, and functions found by dlsym.

use crate::intercept::{strict, symbols};
use crate::patch::find_function;
use crate::track::{files, revoking, subscribers};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Which of libc's functions there are, each with ours.
const NAMES: [(&str, *const ()); 6] = [
    ("close", close as *const ()),
    ("__close", close as *const ()),
    ("dup2", dup2 as *const ()),
    ("dup3", dup3 as *const ()),
    ("close_range", close_range as *const ()),
    ("closefrom", closefrom as *const ()),
];

/// Addresses of libc's own; 0: it has none.
static REAL: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Sees to it that modules that are loaded now are seen to close adapters.
#[cold]
#[inline(never)]
pub fn see() {
    // Who makes slots writable may be killed.
    if revoking::is_shut_in() {
        return;
    }
    for (place, (name, _)) in REAL.iter().zip(NAMES) {
        if place.load(Relaxed) == 0 {
            place.store(find_function(name).unwrap_or(0), Relaxed);
        }
    }
    symbols::replace(|name| {
        let n = NAMES.iter().position(|(n, _)| n.as_bytes() == name)?;
        let real = REAL.get(n)?.load(Relaxed);
        (real != 0).then_some((real, NAMES.get(n)?.1 as u64))
    });
}

/// libc's own function of number `n`, with its arguments.
fn real(n: usize, a: u64, b: u64, c: u64) -> i32 {
    let real = REAL.get(n).map_or(0, |r| r.load(Relaxed));
    // SAFETY: the address of libc's function, saved before any slot pointed here; none has more than
    // three arguments, which are words whatever their types.
    let real: extern "C" fn(u64, u64, u64) -> i32 =
        unsafe { core::mem::transmute(real as *const ()) };
    real(a, b, c)
}

/// Descriptors were closed, of which some `were` an adapter's.
fn told(were: bool) {
    if were {
        let _pass = strict::pass();
        (subscribers::table().adapters_closed)();
    }
}

/// Whether that is so of `fd`, which is about to be closed.
fn is_watched(fd: i32) -> bool {
    files::any() && {
        let _pass = strict::pass();
        files::is_watched(fd)
    }
}

extern "C" fn close(fd: i32) -> i32 {
    let were = is_watched(fd);
    let value = real(0, fd as u64, 0, 0);
    told(were);
    value
}

extern "C" fn dup2(old: i32, new: i32) -> i32 {
    let were = old != new && is_watched(new);
    let value = real(2, old as u64, new as u64, 0);
    told(were);
    value
}

extern "C" fn dup3(old: i32, new: i32, flags: i32) -> i32 {
    let were = old != new && is_watched(new);
    let value = real(3, old as u64, new as u64, flags as u64);
    told(were);
    value
}

extern "C" fn close_range(first: u32, last: u32, flags: i32) -> i32 {
    let value = real(4, first.into(), last.into(), flags as u64);
    told(value == 0 && files::any());
    value
}

extern "C" fn closefrom(first: i32) {
    real(5, first as u64, 0, 0);
    told(files::any());
}
