//! A registration that is asked for by ioctl.

use super::asked::{Answered, Asked};
use super::copy::{Copy, Made};
use super::creating;
use crate::base::{counters, settings};
use crate::registrar::hca::candidates::Charge;
use crate::track::{files, lending};
use crate::uverbs::abi::{Context, Pd};
use crate::uverbs::requests::{Register, Write};
use crate::uverbs::{wire, Driver, Mr, PdHandle};
use crate::verbs::handles;
use regall_directory::layout::Counter;
use regall_directory::vocab::Access;

/// Answers with a region that is there, or has the kernel make one.
pub fn register(asked: &Asked, what: Register) -> i64 {
    let charge = match lend(asked, what) {
        Ok(value) => return value,
        Err(charge) => charge,
    };
    counters::count(Counter::Passed);
    let value = creating::register(asked);
    if let (0.., Some(charge)) = (value, charge) {
        lending::is_paid(charge);
    }
    value
}

/// Errors: the kernel has to make one, and what is to be said if it does.
fn lend(asked: &Asked, what: Register) -> Result<i64, Option<Charge>> {
    // Nothing is lent then.
    if settings::config().keys_exact {
        return Err(None);
    }
    let access = Access::as_asked(what.access);
    if !lending::servable(access) || what.length == 0 {
        return Err(None);
    }
    let (fd, pd) = (asked.fd(), PdHandle(what.pd));
    let (file, owner, driver) = files::owner(fd, pd).ok_or(None)?;
    let asks = asked.message.driver();
    // The kernel refuses what is for another driver, or no device.
    let is_taken = match driver {
        Some(driver) => driver == asks,
        None => wire::greet(fd, asks.0) == wire::NOSPC,
    };
    if !is_taken || asked.message.is_by_method() && !knows_method(fd, asks) {
        return Err(None);
    }
    let (addr, length) = (what.start, what.length);
    let lent = lending::lend(owner, (fd, pd), addr, length, access, |memory, loan| {
        // The handle stands for what the kernel is asked with: a file, and a number in it.
        let (pd, context) = (pd.0 as usize as *mut Pd, core::ptr::null_mut::<Context>());
        let place = addr as *mut core::ffi::c_void;
        let made = handles::make(memory, loan, pd, context, place, length as usize)?;
        let number = handles::give_number(made, file, access)?;
        Some((number, *loan))
    });
    let (number, loan) = lent?;
    let keys = Mr {
        handle: loan.handle,
        lkey: loan.lkey,
        rkey: loan.rkey,
    };
    let answer = asked.message.answer(asked.at(), number, &keys);
    let writes = answer.iter().flatten();
    let write = |w: &Write| Copy::of(w.at, w.bytes().len()).write(&asked.stack, w.bytes());
    let mut made = writes.map(write);
    let Some(failed) = made.find(|made| *made != Made::Yes) else {
        return Ok(0);
    };
    lending::give_back_if(&loan, || handles::take_number(number, &loan));
    // The kernel may be able to do what the shim may not.
    match failed {
        Made::No => Ok(-i64::from(libc::EFAULT)),
        _ => Err(None),
    }
}

/// Whether this kernel has the method for registrations: what it does not know it refuses.
fn knows_method(fd: i32, driver: Driver) -> bool {
    static KNOWN: Answered = Answered::new();
    KNOWN.or_ask(|| wire::knows_reg_mr(fd, driver.0))
}
