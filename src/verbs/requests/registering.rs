//! A registration that is asked for by ioctl.

use super::copy::{Copy, Made};
use super::{Answered, Asked};
use crate::base::{counters, settings};
use crate::track::{self, asking, failed, files, lending, registering};
use crate::uverbs::abi::{Context, Pd};
use crate::uverbs::requests::{Register, Write};
use crate::uverbs::{wire, Driver, Mr, PdHandle};
use crate::verbs::handles;
use regall_directory::layout::Counter;
use regall_directory::vocab::Access;

/// Answers with a region that is there, or has the kernel make one.
pub fn register(asked: &Asked, what: Register) -> i64 {
    match lend(asked, what) {
        Some(value) => value,
        None => {
            counters::count(Counter::Passed);
            pass_on(asked)
        }
    }
}

fn lend(asked: &Asked, what: Register) -> Option<i64> {
    // Nothing is lent then.
    if settings::config().keys_exact {
        return None;
    }
    let access = Access::as_asked(what.access);
    if !lending::servable(access) || what.length == 0 {
        return None;
    }
    let (fd, pd) = (asked.fd(), PdHandle(what.pd));
    let (file, owner, driver) = files::owner(fd, pd)?;
    let asks = asked.message.driver();
    // The kernel refuses what is for another driver, or no device.
    let is_taken = match driver {
        Some(driver) => driver == asks,
        None => wire::greet(fd, asks.0) == wire::NOSPC,
    };
    if !is_taken || asked.message.is_by_method() && !knows_method(fd, asks) {
        return None;
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
        return Some(0);
    };
    lending::give_back_if(&loan, || handles::take_number(number, &loan));
    // The kernel may be able to do what the shim may not.
    (failed == Made::No).then_some(-i64::from(libc::EFAULT))
}

/// Whether this kernel has the method for registrations: what it does not know it refuses.
fn knows_method(fd: i32, driver: Driver) -> bool {
    static KNOWN: Answered = Answered::new();
    KNOWN.or_ask(|| wire::knows_reg_mr(fd, driver.0))
}

/// The kernel is asked. If that fails while regions of ours hold pinned memory they make room, and
/// it is asked once more.
pub fn pass_on(asked: &Asked) -> i64 {
    const LIMITS: [i32; 4] = [libc::ENOMEM, libc::EPERM, libc::EAGAIN, libc::ENOSPC];
    let value = track::real(asked.frame);
    let full = failed(value) && LIMITS.contains(&(-value as i32));
    if !full || !registering::active() || !asking::evict() {
        return value;
    }
    let value = track::real(asked.frame);
    if failed(value) {
        // It was not for us.
        asking::readmit();
    }
    value
}
