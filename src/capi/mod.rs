//! The C interface (`include/regall.h`): decode, delegate, encode. Errors are
//! negative errno values.

mod boxes;
mod completion;
mod cookies;
mod done;
mod entry;
pub mod mapping;
mod peers;
mod words;

use crate::base::{counters, phase, settings};
use crate::config::Hca;
use crate::huge::HUGE_PAGE;
use crate::intercept::strict;
use crate::ledger::{Busy, Found};
use crate::registrar::hca::{self, given, Owner};
use crate::sys::{self, check, Errno};
use crate::thread;
use crate::track::{self, domains, lending, map, resync, settle, VIEW};
use crate::uverbs::{abi, PdHandle};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use regall_directory::addr::{round_up, PageRange};
use regall_directory::layout::Counter;
use regall_directory::vocab::{Attr, Flags, Kind, Prot, Reason};

use entry::{bring_in, error, INERT};

/// `struct regall_range`.
#[repr(C)]
pub struct Range {
    start: u64,
    end: u64,
    id: u64,
    prot: u32,
    held: u32,
    reason: u32,
    error: i32,
    lkey: u32,
    rkey: u32,
}

/// `struct regall_stats`.
#[repr(C)]
#[derive(Default)]
pub struct Stats {
    size: u64,
    mappings: u64,
    bytes_mapped: u64,
    bytes_registered: u64,
    bytes_pinned: u64,
    budget: u64,
    events: u64,
    pins: u64,
    bytes_pinned_total: u64,
    shim_bytes: u64,
    resyncs: u64,
    sites_patched: u64,
    sites_refused: u64,
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_version() -> c_int {
    1
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_active() -> c_int {
    c_int::from(phase::tracking())
}

/// See regall.h.
///
/// # Safety
/// `out` is NULL or valid for writing a `struct regall_range`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_lookup(
    pd: *const c_void,
    addr: u64,
    len: usize,
    out: *mut Range,
) -> c_int {
    let end = addr.checked_add(len as u64).filter(|e| *e != addr);
    let (Some(end), false) = (end, out.is_null()) else {
        return error(Errno::INVAL);
    };
    let mut range = match VIEW.lookup_hinted(addr, &thread::current().hint) {
        Ok(Some(found)) if end <= found.end && phase::tracking() => describe(&found),
        found => match look_further(addr, end, found) {
            Ok(found) => describe(&found),
            Err(errno) => return error(errno),
        },
    };
    if hca::active() {
        with_keys(&mut range, pd as u64, addr, end);
    }
    // SAFETY: by the contract above.
    unsafe { out.write(range) };
    0
}

/// A look-up of `addr..end` that has not simply found it.
#[cold]
#[inline(never)]
fn look_further(addr: u64, end: u64, found: Result<Option<Found>, Busy>) -> Result<Found, Errno> {
    match find(end, found) {
        Some(found) => found,
        None => again(addr, end),
    }
}

/// What a look-up of `addr..end` has found; `None`: the writer was at it all the time.
#[inline]
fn find(end: u64, found: Result<Option<Found>, Busy>) -> Option<Result<Found, Errno>> {
    match found {
        Ok(_) if !phase::tracking() => Some(Err(Errno::NOSYS)),
        Ok(Some(found)) if end <= found.end => Some(Ok(found)),
        Ok(_) => Some(Err(Errno::NOENT)),
        Err(Busy) => None,
    }
}

/// The writer has been preempted, perhaps. Only a signal handler on top of it can't
/// wait for it.
#[cold]
fn again(addr: u64, end: u64) -> Result<Found, Errno> {
    let _pass = strict::pass();
    for _ in 0..1000 {
        if track::lock::mine() {
            break;
        }
        if let Some(found) = find(end, VIEW.lookup(addr)) {
            return found;
        }
        sys::yield_now();
    }
    Err(Errno::BUSY)
}

/// The keys of the region that holds all of `addr..end`, and of `range` the part that
/// it holds.
fn with_keys(range: &mut Range, pd: u64, addr: u64, end: u64) {
    if let Some(held) = given::look(pd, addr, end) {
        range.start = range.start.max(held.start);
        range.end = range.end.min(held.end);
        range.lkey = held.keys as u32;
        range.rkey = (held.keys >> 32) as u32;
    }
}

/// See regall.h.
///
/// # Safety
/// `pd` is NULL or a `struct ibv_pd *` that was not deallocated.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_register_all(pd: *mut c_void) -> c_int {
    if !phase::tracking() {
        return INERT;
    }
    if pd.is_null() {
        return error(Errno::INVAL);
    }
    if settings::config().hca == Hca::Off {
        return -libc::EOPNOTSUPP;
    }
    let _pass = strict::pass();
    bring_in();
    // SAFETY: by the contract above.
    let Some((owner, fd, handle)) = (unsafe { place_of(pd) }) else {
        return -libc::EOPNOTSUPP;
    };
    match domains::register_all(owner, fd, handle) {
        Ok(()) => 0,
        Err(errno) => error(errno),
    }
}

/// Whose a protection domain is, and where: its context's descriptor and its handle.
///
/// # Safety
/// `pd` is a `struct ibv_pd *` that was not deallocated.
unsafe fn place_of(pd: *mut c_void) -> Option<(Owner, i32, PdHandle)> {
    // SAFETY: by the contract above.
    let (context, handle) = unsafe { (abi::context_of(pd), abi::handle_of(pd)?) };
    // SAFETY: a protection domain's context is open as long as it is there.
    let fd = unsafe { abi::fd_of(context) }?;
    let owner = Owner {
        pd: pd as u64,
        context: context as u64,
    };
    Some((owner, fd, handle))
}

/// See regall.h.
///
/// # Safety
/// `pd` is NULL or a `struct ibv_pd *` that was not deallocated; `out` is NULL or valid for
/// writing a `struct regall_range`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_register(
    pd: *mut c_void,
    addr: u64,
    len: usize,
    out: *mut Range,
) -> c_int {
    if !phase::tracking() {
        return INERT;
    }
    let bytes = PageRange::covering(addr, len as u64).filter(|_| !out.is_null());
    let Some(bytes) = bytes else {
        return error(Errno::INVAL);
    };
    if settings::config().hca == Hca::Off {
        return -libc::EOPNOTSUPP;
    }
    let _pass = strict::pass();
    bring_in();
    if !pd.is_null() {
        // SAFETY: by the contract above.
        let Some((owner, fd, handle)) = (unsafe { place_of(pd) }) else {
            return -libc::EOPNOTSUPP;
        };
        if let Err(errno) = lending::ask(owner, (fd, handle), bytes) {
            return error(errno);
        }
    }
    // SAFETY: by the contract above.
    unsafe { regall_lookup(pd, addr, len, out) }
}

#[inline]
fn describe(found: &Found) -> Range {
    let attr = found.attr();
    let reason = attr.reason();
    Range {
        start: found.start,
        end: found.end,
        id: found.id,
        prot: u32::from(attr.prot.bits()),
        held: u32::from(attr.pin.held())
            | u32::from(attr.hca.held()) << 1
            | u32::from(attr.pin.reason == Reason::Kept) << 2,
        reason: reason.reason as u32,
        error: match reason.reason {
            Reason::Refused => i32::from(reason.errno),
            _ => 0,
        },
        lkey: 0,
        rkey: 0,
    }
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_opt_out(addr: u64, len: usize) -> c_int {
    opt(addr, len, true)
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_opt_in(addr: u64, len: usize) -> c_int {
    opt(addr, len, false)
}

fn opt(addr: u64, len: usize, out: bool) -> c_int {
    if !phase::tracking() {
        return INERT;
    }
    let _pass = strict::pass();
    bring_in();
    let Some(range) = PageRange::covering(addr, len as u64) else {
        return error(Errno::INVAL);
    };
    let flight = track::begin_work();
    if let Some(guard) = track::turns::lock_for(&[Some(range)]) {
        flight.claim(&guard, range);
    }
    if out {
        track::retracting::retract(range);
        track::let_go(range);
    }
    let whole = match track::lock() {
        Some(mut guard) => {
            let whole = guard.ledger.covered(range);
            guard.update(range, |_, a| opted(a, out));
            whole
        }
        None => return error(Errno::BUSY),
    };
    settle(range);
    track::close(flight, range);
    if whole {
        0
    } else {
        error(Errno::NOMEM)
    }
}

fn opted(attr: Attr, out: bool) -> Attr {
    let mut attr = attr;
    let bit = Flags::OPTED_OUT;
    attr.flags = if out {
        attr.flags.with(bit)
    } else {
        attr.flags.without(bit)
    };
    if attr.pin.reason == Reason::OptedOut {
        attr.pin.reason = Reason::Off;
    }
    crate::policy::described(attr, crate::registrar::pin::holding())
}

/// See regall.h.
///
/// # Safety
/// `out` is NULL or valid for writing a pointer.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_alloc(size: usize, out: *mut u64) -> c_int {
    // SAFETY: passed on.
    unsafe { allocate(size, out, true) }
}

/// See regall.h.
///
/// # Safety
/// As [`regall_alloc`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_alloc_unregistered(size: usize, out: *mut u64) -> c_int {
    // SAFETY: passed on.
    unsafe { allocate(size, out, false) }
}

unsafe fn allocate(size: usize, out: *mut u64, registered: bool) -> c_int {
    if size == 0 || out.is_null() {
        return error(Errno::INVAL);
    }
    let Some(bytes) = round_up(size as u64) else {
        return error(Errno::NOMEM);
    };
    let _pass = strict::pass();
    let got = if registered {
        huge_or_not(bytes)
    } else {
        plain(bytes)
    };
    let at = match got {
        Ok(at) => at,
        Err(e) => return error(e),
    };
    if phase::tracking() {
        bring_in();
        if let Some(range) = PageRange::from_call(at, bytes) {
            let prot = Prot::from_call(3, false);
            map::own_allocation(range, prot, Kind::Anon, !registered);
        }
    }
    // SAFETY: by the caller's contract.
    unsafe { out.write(at) };
    0
}

const ANONYMOUS: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

fn map_anonymous(bytes: u64, flags: i32) -> sys::Result<u64> {
    sys::map_fresh(bytes, libc::PROT_READ | libc::PROT_WRITE, flags)
}

fn plain(bytes: u64) -> sys::Result<u64> {
    map_anonymous(bytes, ANONYMOUS)
}

/// Huge pages of the system's pool need a length in whole huge pages, also to
/// be unmapped: only such sizes get them.
fn huge_or_not(bytes: u64) -> sys::Result<u64> {
    if bytes % HUGE_PAGE == 0 {
        if let Ok(at) = map_anonymous(bytes, ANONYMOUS | libc::MAP_HUGETLB) {
            return Ok(at);
        }
    }
    let at = aligned(bytes)?;
    if bytes >= HUGE_PAGE {
        let _ = sys::advise(at, bytes, libc::MADV_HUGEPAGE);
    }
    Ok(at)
}

/// Memory that begins at a huge page's border, if it is as large as one.
fn aligned(bytes: u64) -> sys::Result<u64> {
    if bytes < HUGE_PAGE {
        return plain(bytes);
    }
    let wide = bytes.checked_add(HUGE_PAGE).ok_or(Errno::NOMEM)?;
    let at = plain(wide)?;
    let start = at.checked_next_multiple_of(HUGE_PAGE).ok_or(Errno::NOMEM)?;
    if start > at {
        // SAFETY: the head of what was mapped above, which nobody gets.
        let _ = unsafe { sys::unmap(at, start - at) };
    }
    let end = start + bytes;
    if at + wide > end {
        // SAFETY: its tail, likewise.
        let _ = unsafe { sys::unmap(end, at + wide - end) };
    }
    Ok(start)
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_free(addr: u64, size: usize) -> c_int {
    let range = round_up(size as u64).and_then(|b| PageRange::from_call(addr, b));
    let Some(range) = range else {
        return error(Errno::INVAL);
    };
    let mut frame = crate::arch::Frame {
        nr: libc::SYS_munmap as u64,
        args: [range.start(), range.len(), 0, 0, 0, 0],
    };
    let _pass = strict::pass();
    mapping::forget(range);
    match check(crate::intercept::event(&mut frame)) {
        Ok(_) => 0,
        Err(e) => error(e),
    }
}

/// See regall.h.
///
/// # Safety
/// `out` is NULL or points to a `struct regall_stats` whose `size` is set.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn regall_stats(out: *mut Stats) -> c_int {
    if out.is_null() {
        return error(Errno::INVAL);
    }
    // SAFETY: by the contract above.
    let size = unsafe { (*out).size } as usize;
    if size < 16 {
        return error(Errno::INVAL);
    }
    if !phase::tracking() {
        return INERT;
    }
    track::fork::check();
    let _pass = strict::pass();
    let (Some(h), Some(guard)) = (counters::header(), track::lock()) else {
        return error(Errno::BUSY);
    };
    let counter = |c: Counter| h.counters.get(c as usize).map_or(0, |n| n.load(Relaxed));
    let totals = guard.ledger.totals();
    let stats = Stats {
        size: size as u64,
        mappings: guard.ledger.len() as u64,
        bytes_mapped: totals.bytes,
        bytes_registered: totals.registered,
        bytes_pinned: totals.pin[Reason::None as usize],
        budget: guard.budget(),
        // Others of the same user can write there.
        events: h
            .calls
            .iter()
            .fold(0, |sum, n| sum.wrapping_add(n.load(Relaxed))),
        pins: counter(Counter::Pins),
        bytes_pinned_total: counter(Counter::PinnedBytesTotal),
        shim_bytes: guard.own_bytes(),
        resyncs: counter(Counter::Resyncs),
        sites_patched: h.sites_patched.load(Relaxed),
        sites_refused: h.sites_refused.load(Relaxed),
    };
    let n = size.min(size_of::<Stats>());
    // SAFETY: n bytes on both sides, by the contract above.
    unsafe { core::ptr::copy_nonoverlapping((&raw const stats).cast::<u8>(), out.cast::<u8>(), n) };
    0
}

/// See regall.h.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn regall_audit() -> c_int {
    if !phase::tracking() {
        return INERT;
    }
    let _pass = strict::pass();
    bring_in();
    let flight = track::begin_work();
    resync::audit();
    track::end(flight);
    0
}
