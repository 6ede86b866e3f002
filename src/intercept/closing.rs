//! What ends descriptors, seen by the slots through which modules call libc's functions: close(2)
//! and its kin are cancellation points or leave no room for a jump, and every program makes them all
//! the time. So nothing is put there before an adapter is known by its open file.
//!
//! Missed: what libc does inside itself, system calls that a program makes by itself, io_uring,
//! functions found by dlsym, modules that are loaded after the last registration and opening of an
//! adapter, and, where another library has a function of the same name, who has not called it yet.

use crate::intercept::strict;
use crate::intercept::symbols::{self, Stand};
use crate::patch::{find_function, find_in_library};
use crate::track::files::{self, Whose};
use crate::track::{revoking, subscribers};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use regall_directory::addr::PageRange;

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

/// Modules may have come since [`see`].
static DUE: AtomicBool = AtomicBool::new(true);

/// Code has come somewhere.
pub fn code_came(_: PageRange, _: u64, _: bool, _: bool) {
    DUE.store(true, Relaxed);
}

/// Sees to it that modules that are loaded now are seen to close adapters.
#[inline]
pub fn see() {
    if DUE.load(Relaxed) {
        see_now();
    }
}

#[cold]
#[inline(never)]
fn see_now() {
    // Who makes slots writable may be killed.
    if revoking::is_shut_in() {
        return;
    }
    DUE.store(false, Relaxed);
    for (place, (name, _)) in REAL.iter().zip(NAMES) {
        if place.load(Relaxed) == 0 {
            place.store(find_function(name).unwrap_or(0), Relaxed);
        }
    }
    // Another thread may be searching code.
    if REAL[0].load(Relaxed) == 0 {
        return DUE.store(true, Relaxed);
    }
    let mut n = 0;
    let all = NAMES.map(|(name, ours)| {
        let real = REAL.get(n).map_or(0, |r| r.load(Relaxed));
        n += 1;
        let other = find_in_library(b"libpthread", name).unwrap_or(0);
        Stand {
            name,
            theirs: [real, if real == 0 { 0 } else { other }],
            ours: ours as u64,
        }
    });
    symbols::while_all_stay(&|| symbols::stand_in(all));
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

/// Whose `fd` is, which is about to be closed.
fn whose(fd: i32) -> Whose {
    if !files::any() {
        return Whose::Other;
    }
    let _pass = strict::pass();
    files::whose(fd)
}

/// Closes `fd`. One of ours is none of the program's: whoever closes all that there may be (a
/// daemon) has not opened it.
extern "C" fn close(fd: i32) -> i32 {
    let whose = whose(fd);
    if whose == Whose::Ours {
        // EBADF, by libc.
        return real(0, -1i64 as u64, 0, 0);
    }
    let value = real(0, fd as u64, 0, 0);
    told(whose == Whose::Programs);
    value
}

extern "C" fn dup2(old: i32, new: i32) -> i32 {
    let were = old != new && whose(new) != Whose::Other;
    let value = real(2, old as u64, new as u64, 0);
    told(were);
    value
}

extern "C" fn dup3(old: i32, new: i32, flags: i32) -> i32 {
    let were = old != new && whose(new) != Whose::Other;
    let value = real(3, old as u64, new as u64, flags as u64);
    told(were);
    value
}

/// The first descriptor from `first` to `last` that is ours.
fn first_of_ours(first: u32, last: u32) -> Option<u32> {
    if !files::any() {
        return None;
    }
    let _pass = strict::pass();
    files::first_of_ours(first, last)
}

/// Closes `first..=last`, but for ours.
extern "C" fn close_range(first: u32, last: u32, flags: i32) -> i32 {
    const UNSHARE: i32 = 1 << 1;
    let (mut from, mut flags) = (first, flags);
    let mut value = 0;
    while let (0, Some(ours)) = (value, first_of_ours(from, last)) {
        if from < ours {
            value = real(4, from.into(), (ours - 1).into(), flags as u64);
            flags &= !UNSHARE;
        }
        from = ours + 1;
    }
    // Nothing may be left; what is wrong with the request the kernel says.
    if value == 0 && (from <= last || from == first) {
        value = real(4, from.into(), last.into(), flags as u64);
    }
    told(value == 0 && files::any());
    value
}

extern "C" fn closefrom(first: i32) {
    let from = first.max(0) as u32;
    let whole = first_of_ours(from, u32::MAX).is_none();
    if whole || close_range(from, u32::MAX, 0) != 0 {
        real(5, first as u64, 0, 0);
        told(files::any());
    }
}
