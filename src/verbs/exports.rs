//! The calls of libibverbs that are answered here. Each asks [`lending`] and passes
//! on what that can't serve, exactly as it came.
//!
//! Exported without a version: that satisfies references to any (ld.so checks the
//! version of a definition only if there is one).

use super::handles::{self, Known};
use super::inside::is_inside;
use super::told::{self, closed, Leaving};
use super::{itself, real, requests};
use crate::base::{counters, phase, settings};
use crate::config::Hca;
use crate::intercept::strict;
use crate::registrar::hca::candidates::Charge;
use crate::registrar::hca::{Domain, Owner};
use crate::thread::{self, here};
use crate::track::ending::Vacated;
use crate::track::{self, domains, ending, files, lending, registering};
use crate::uverbs::abi::{self, Context, Mr, Pd};
use crate::uverbs::PdHandle;
use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{self, NonNull};
use regall_directory::layout::Counter;
use regall_directory::vocab::Access;

/// Errors of ibv_dereg_mr and its kin are returned, not set.
const EINVAL: c_int = libc::EINVAL;
const EBUSY: c_int = libc::EBUSY;

fn owner_of(pd: *const Pd) -> Option<(Owner, i32, PdHandle)> {
    // SAFETY: the application gives a PD that it has, as to the real call.
    let (fd, handle, context) = unsafe {
        let context = abi::context_of(pd.cast());
        (abi::fd_of(context)?, abi::handle_of(pd.cast())?, context)
    };
    let owner = Owner {
        pd: pd as u64,
        context: context as u64,
    };
    Some((owner, fd, handle))
}

/// Sees to it that libibverbs' calls of its own functions do not come by the exports here.
#[cold]
#[inline(never)]
pub(super) fn see_that_it_calls_itself() {
    itself::see(&[
        ("ibv_reg_mr", ibv_reg_mr as *const () as u64),
        ("ibv_reg_mr_iova", ibv_reg_mr_iova as *const () as u64),
        ("ibv_reg_mr_iova2", ibv_reg_mr_iova2 as *const () as u64),
        ("ibv_dereg_mr", ibv_dereg_mr as *const () as u64),
        ("ibv_rereg_mr", ibv_rereg_mr as *const () as u64),
    ]);
}

/// Whether this call may be libibverbs' own.
#[inline(always)] // for `is_inside`
fn may_be_its_own() -> bool {
    let may_be = !itself::is_seen_to();
    if may_be {
        see_that_it_calls_itself();
    }
    may_be || is_inside()
}

/// A region that is there already, as the application's own. Errors: it has to make one, and what is to
/// be said if it does.
#[inline(always)] // for `is_inside`
fn borrow(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: Access,
) -> Result<NonNull<Mr>, Option<Charge>> {
    match may_be_its_own() {
        true => Err(None),
        false => lend(pd, addr, length, access),
    }
}

fn lend(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: Access,
) -> Result<NonNull<Mr>, Option<Charge>> {
    let config = settings::config();
    let off = !phase::tracking() || config.hca == Hca::Off;
    if off || pd.is_null() || length == 0 {
        return Err(None);
    }
    let _pass = strict::pass();
    track::fork::check();
    let servable = owner_of(pd).filter(|_| lending::servable(access));
    let lent = servable.ok_or(None).and_then(|(owner, fd, handle)| {
        let context = owner.context as *mut Context;
        let (at, len) = (addr as u64, length as u64);
        lending::lend(owner, (fd, handle), at, len, access, |memory, loan| {
            handles::make(memory, loan, pd, context, addr, length)
        })
    });
    // A handler may have come upon the lock meanwhile.
    track::deferred::drain();
    if lent.is_err() {
        counters::count(Counter::Passed);
    }
    lent
}

/// Makes the real call. What it does inside comes back through the exports here
/// (libibverbs calls itself through its PLT) and is not looked at.
#[inline(always)] // for `is_inside`
fn really<T>(call: impl FnOnce() -> T) -> T {
    let entered = &thread::current().in_verbs;
    let outer = match is_inside() {
        true => entered.get(),
        false => 0,
    };
    entered.set(if outer == 0 { here() } else { outer });
    let value = call();
    entered.set(outer);
    value
}

/// Whether a call that begins now is the application's, and not libibverbs' own.
#[inline]
fn is_applications() -> bool {
    itself::is_seen_to()
}

/// Registers, by a region that is there if one can be lent, else by the `real` function.
#[inline(always)] // for `is_inside`
fn register(
    pd: *mut Pd,
    (addr, length): (*mut c_void, usize),
    iova: u64,
    access: u32,
    real: impl FnOnce() -> *mut Mr,
) -> *mut Mr {
    let is_known = is_applications();
    let lent = match iova == addr as u64 {
        true => borrow(pd, addr, length, Access::as_asked(access)),
        false => Err(None),
    };
    let charge = match lent {
        Ok(mr) => return mr.as_ptr(),
        Err(charge) => charge,
    };
    let mr = really(real);
    if let (Some(charge), false) = (charge, mr.is_null()) {
        pay(charge);
    }
    tell(is_known, mr, addr, length, iova, access)
}

#[cold]
#[inline(never)]
fn pay(charge: Charge) {
    let _pass = strict::pass();
    lending::is_paid(charge);
    track::deferred::drain();
}

/// A registration has been made, or not: the checker is told, if it `is_known` whose it is.
#[inline(always)] // for `is_inside`
fn tell(
    is_known: bool,
    mr: *mut Mr,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: u32,
) -> *mut Mr {
    if is_known && told::on() && !mr.is_null() && !is_inside() {
        told::registered(mr, (addr as u64, length as u64), iova, access);
    }
    mr
}

/// The application is about to deregister: the checker is told.
#[inline(always)] // for `is_inside`
fn leave(mr: *mut Mr) -> Leaving {
    match told::on() && !is_inside() {
        true => Leaving::of(mr),
        false => Leaving::NONE,
    }
}

/// Makes the real ibv_rereg_mr; the checker is told that the old registration ends and another
/// one begins. `access`: the new one, if it changes.
#[inline(always)] // for `is_inside`
fn changed(mr: *mut Mr, access: Option<c_int>, call: impl FnOnce() -> c_int) -> c_int {
    let leaving = leave(mr);
    let was = leaving.access();
    let value = really(call);
    if value != 0 {
        leaving.stays();
    } else if let Some(was) = was {
        // SAFETY: registered anew, so it is a live handle of libibverbs'.
        let now = unsafe { *mr };
        let access = access.map_or(was, |a| a as u32);
        tell(true, mr, now.addr, now.length, now.addr as u64, access);
    }
    value
}

type Register = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
type RegisterAt = unsafe extern "C" fn(*mut Pd, *mut c_void, usize, u64, c_uint) -> *mut Mr;
type OfMr = unsafe extern "C" fn(*mut Mr) -> c_int;
type OfPd = unsafe extern "C" fn(*mut Pd) -> c_int;
type Reregister = unsafe extern "C" fn(*mut Mr, c_int, *mut Pd, *mut c_void, usize, c_int) -> c_int;

/// libibverbs' own `$name`, or return `$or`: nobody can call these without it.
macro_rules! real_or {
    ($name:ident as $type:ty $(, $or:expr)?) => {{
        match real::$name() {
            // SAFETY: the address of libibverbs' function of that name, whose type in
            // verbs.h is this.
            Some(at) => unsafe { core::mem::transmute::<*const (), $type>(at) },
            None => return $($or)?,
        }
    }};
}

/// ibv_reg_mr(3).
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut Mr {
    register(pd, (addr, length), addr as u64, access as u32, || {
        let real = real_or!(ibv_reg_mr as Register, ptr::null_mut());
        // SAFETY: the application's own call.
        unsafe { real(pd, addr, length, access) }
    })
}

/// ibv_reg_mr_iova(3).
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut Mr {
    register(pd, (addr, length), iova, access as u32, || {
        let real = real_or!(ibv_reg_mr_iova as RegisterAt, ptr::null_mut());
        // SAFETY: the application's own call; int and unsigned are passed alike.
        unsafe { real(pd, addr, length, iova, access as c_uint) }
    })
}

/// ibv_reg_mr_iova2: what the macro ibv_reg_mr calls.
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut Mr {
    register(pd, (addr, length), iova, access, || {
        let real = real_or!(ibv_reg_mr_iova2 as RegisterAt, ptr::null_mut());
        // SAFETY: the application's own call.
        unsafe { real(pd, addr, length, iova, access) }
    })
}

/// ibv_dereg_mr(3).
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    if phase::tracking() {
        let _pass = strict::pass();
        track::fork::check();
    }
    match handles::look(mr.cast()) {
        Known::Foreign => {
            let real = real_or!(ibv_dereg_mr as OfMr, EINVAL);
            let leaving = leave(mr);
            // SAFETY: the application's own call.
            let value = really(|| unsafe { real(mr) });
            if value != 0 {
                leaving.stays();
            }
            value
        }
        Known::Ours(loan) => {
            let _pass = strict::pass();
            if lending::give_back(&loan, || handles::free(mr.cast())) {
                0
            } else {
                EBUSY
            }
        }
        // The region is the parent's, which goes on using it.
        Known::Parents => 0,
        Known::Stale => EINVAL,
    }
}

/// `ibv_rereg_mr`'s flags (enum ibv_rereg_mr_flags).
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_PD: c_int = 1 << 1;
const CHANGE_ACCESS: c_int = 1 << 2;
/// What it returns when the old registration is still as it was
/// (IBV_REREG_MR_ERR_CMD: it failed, and the region is intact if it was not touched).
const REREG_INPUT: c_int = -1;

/// What the real call says to the same request for a region of its own, if it refuses it:
/// few adapters can do this at all, and what is wrong with a request they know best.
fn refused(old: &Mr, was: Access, request: impl FnOnce(*mut Mr) -> c_int) -> Option<c_int> {
    let register = real_or!(ibv_reg_mr as Register, None);
    let deregister = real_or!(ibv_dereg_mr as OfMr, None);
    really(|| {
        // SAFETY: the application's own request of before, once more.
        let mr = unsafe { register(old.pd, old.addr, old.length, was.bits() as c_int) };
        if mr.is_null() {
            return None;
        }
        let value = request(mr);
        // SAFETY: just registered. (A failure leaves it as it was, or unusable, but there.)
        unsafe { deregister(mr) };
        (value != 0).then_some(value)
    })
}

/// What is lent of the memory, or, where it is not to be served, a region of its own.
fn loan_for(pd: *mut Pd, at: u64, len: u64, access: Access) -> Option<lending::Loan> {
    let (owner, fd, handle) = owner_of(pd)?;
    if lending::servable(access) {
        let lent = lending::lend(owner, (fd, handle), at, len, access, |_, loan| Some(*loan));
        if let Ok(loan) = lent {
            return Some(loan);
        }
    }
    lending::exact(owner, at, len, access).or_else(|| {
        // It takes a domain, though none has been paid for.
        domains::adopt_for_look_ups(owner, fd, handle).ok()?;
        lending::exact(owner, at, len, access)
    })
}

/// ibv_rereg_mr(3).
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut Mr,
    flags: c_int,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    if phase::tracking() {
        let _pass = strict::pass();
        track::fork::check();
    }
    let old = match handles::look(mr.cast()) {
        Known::Foreign => {
            let real = real_or!(ibv_rereg_mr as Reregister, REREG_INPUT);
            // SAFETY: the application's own call.
            let call = || unsafe { real(mr, flags, pd, addr, length, access) };
            return changed(mr, (flags & CHANGE_ACCESS != 0).then_some(access), call);
        }
        Known::Ours(loan) => loan,
        Known::Parents | Known::Stale => return REREG_INPUT,
    };
    // SAFETY: a live handle of ours.
    let now = unsafe { *mr };
    let real = real_or!(ibv_rereg_mr as Reregister, REREG_INPUT);
    // SAFETY: the application's own call, for another region.
    let call = |mr| unsafe { real(mr, flags, pd, addr, length, access) };
    if let Some(value) = refused(&now, old.access, call) {
        return value;
    }
    let new_range = flags & CHANGE_TRANSLATION != 0;
    let (addr, length) = if new_range {
        (addr, length)
    } else {
        (now.addr, now.length)
    };
    let pd = if flags & CHANGE_PD != 0 { pd } else { now.pd };
    let access = if flags & CHANGE_ACCESS != 0 {
        Access::as_asked(access as u32)
    } else {
        old.access
    };
    let known = CHANGE_TRANSLATION | CHANGE_PD | CHANGE_ACCESS;
    if flags == 0 || flags & !known != 0 || length == 0 {
        return REREG_INPUT;
    }
    let _pass = strict::pass();
    let Some(loan) = loan_for(pd, addr as u64, length as u64, access) else {
        return REREG_INPUT;
    };
    if lending::give_back(&old, || handles::change(mr, &loan, pd, addr, length)) {
        return 0;
    }
    // The lock can't be had here. The handle is as it was, and the new loan goes with its domain.
    lending::give_back(&loan, || ());
    REREG_INPUT
}

/// ibv_alloc_pd(3).
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    let real = real_or!(
        ibv_alloc_pd as unsafe extern "C" fn(*mut Context) -> *mut Pd,
        ptr::null_mut()
    );
    // SAFETY: the application's own call.
    let pd = really(|| unsafe { real(context) });
    new_pd(pd)
}

/// ibv_import_pd(3).
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_import_pd(context: *mut Context, handle: u32) -> *mut Pd {
    let real = real_or!(
        ibv_import_pd as unsafe extern "C" fn(*mut Context, u32) -> *mut Pd,
        ptr::null_mut()
    );
    // SAFETY: the application's own call.
    let pd = really(|| unsafe { real(context, handle) });
    new_pd(pd)
}

/// ibv_import_device(3). Another process may have the file open, and would keep what is registered
/// there when this one has ended: its protection domains are left alone.
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_import_device(fd: c_int) -> *mut Context {
    let real = real_or!(
        ibv_import_device as unsafe extern "C" fn(c_int) -> *mut Context,
        ptr::null_mut()
    );
    // SAFETY: the application's own call.
    let context = really(|| unsafe { real(fd) });
    if !context.is_null() && phase::tracking() {
        let _pass = strict::pass();
        track::fork::check();
        domains::refuse(context as u64);
    }
    context
}

/// Another one may have been at its address and gone in a way that was not seen.
fn new_pd(pd: *mut Pd) -> *mut Pd {
    see_that_it_calls_itself();
    if !pd.is_null() && phase::tracking() {
        let _pass = strict::pass();
        track::fork::check();
        ending::forget_pd(pd as u64);
    }
    pd
}

/// ibv_dealloc_pd(3). With regions of ours in it the call would be EBUSY.
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    let real = real_or!(ibv_dealloc_pd as OfPd, EINVAL);
    if !phase::tracking() || is_inside() {
        // SAFETY: the application's own call.
        return really(|| unsafe { real(pd) });
    }
    let here = |x: &Domain| x.owner.pd == pd as u64;
    let vacated = {
        let _pass = strict::pass();
        track::fork::check();
        ending::vacate(here)
    };
    // SAFETY: the application's own call.
    let value = really(|| unsafe { real(pd) });
    let _pass = strict::pass();
    match (value, vacated) {
        (0, Vacated::All) => ending::forget_vacated(pd as u64),
        // A parent domain is a structure alone: it ends whatever is in its protection domain.
        (0, Vacated::Not | Vacated::Some) => ending::forget_pd(pd as u64),
        (_, Vacated::All | Vacated::Some) => ending::revive(here),
        (_, Vacated::Not) => (),
    }
    value
}

/// ibv_unimport_pd(3): the PD lives on, and so do regions in it; ours go.
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_unimport_pd(pd: *mut Pd) {
    let real = real_or!(ibv_unimport_pd as unsafe extern "C" fn(*mut Pd));
    if registering::active() {
        let _pass = strict::pass();
        track::fork::check();
        ending::forget_pd(pd as u64);
    }
    // SAFETY: the application's own call.
    really(|| unsafe { real(pd) });
}

/// ibv_close_device(3).
///
/// # Safety
/// As the real one.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn ibv_close_device(context: *mut Context) -> c_int {
    let real = real_or!(
        ibv_close_device as unsafe extern "C" fn(*mut Context) -> c_int,
        -1
    );
    let mut kept = None;
    if phase::tracking() {
        let _pass = strict::pass();
        track::fork::check();
        // SAFETY: the application's own context.
        let fd = unsafe { abi::fd_of(context.cast()) };
        let file = fd.and_then(files::of);
        let any = ending::forget_context(context as u64, file);
        kept = file.filter(|_| any);
        if let Some(fd) = fd {
            files::closes(fd);
        }
    }
    // SAFETY: the application's own call.
    let value = really(|| unsafe { real(context) });
    if registering::active() {
        // What was lent by ioctl goes with its last descriptor.
        let _pass = strict::pass();
        requests::closed();
        if let Some(file) = kept {
            ending::revive(|x| x.owner.is_of_file() && x.is_in(file));
        }
    }
    if value == 0 {
        closed(context);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `ibv_reg_mr` is, as far as its frame goes: whether it came from inside, and what
    /// `f` does in libibverbs.
    #[inline(never)]
    fn export(f: &mut dyn FnMut() -> bool) -> (bool, bool) {
        let inside = is_inside();
        (inside, really(f))
    }

    #[test]
    fn a_call_that_was_left_by_a_jump_does_not_hide_later_ones() {
        let mut nested = || export(&mut || is_inside()) == (true, true);
        assert_eq!(export(&mut nested), (false, true));
        assert_eq!(thread::current().in_verbs.get(), 0);
        // A handler jumps out of the call: nothing is put back.
        let mut left = 0;
        export(&mut || {
            left = thread::current().in_verbs.get();
            true
        });
        thread::current().in_verbs.set(left);
        assert_eq!(export(&mut nested), (false, true));
        assert_eq!(thread::current().in_verbs.get(), 0);
    }
}
