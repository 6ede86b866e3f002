//! Requests about a registration that has a number of ours.

use super::asked::{Answered, Asked};
use super::copy::{Copy, Made};
use crate::sys::{file, Errno, Result};
use crate::track::{self, files, lending};
use crate::uverbs::requests::{Message, Write};
use crate::uverbs::wire::{self, VERBS_IOCTL};
use crate::uverbs::{Driver, Mr, PdHandle};
use crate::verbs::handles::{self, Numbered, Stands};

fn error(errno: i32) -> i64 {
    -i64::from(errno)
}

/// What stands behind a number that came by a descriptor. Errors: as the kernel's.
fn find(asked: &Asked, number: u32) -> core::result::Result<Numbered, i64> {
    let found = handles::numbered(number).ok_or(error(libc::ENOENT))?;
    match found.stands {
        // The region is the parent's, which goes on using it.
        Stands::Parents => Ok(found),
        // No kernel gives such a number: who has it by another process's file has mixed them up.
        _ if files::may_be(asked.fd(), found.file) => Ok(found),
        _ => Err(not_there(asked)),
    }
}

/// What the kernel says of an object that is not there: what is wrong with the descriptor it says
/// first.
#[cold]
fn not_there(asked: &Asked) -> i64 {
    match wire::greet(asked.fd(), asked.message.driver().0) {
        Errno(0) | wire::NOSPC => error(libc::ENOENT),
        Errno(errno) => error(errno),
    }
}

/// The registration ends.
pub fn deregister(asked: &Asked, number: u32) -> i64 {
    let found = match find(asked, number) {
        Ok(found) => found,
        Err(value) => return value,
    };
    match found.stands {
        Stands::Parents => {
            if let Some(_guard) = track::lock() {
                handles::free_number(number);
            }
            0
        }
        Stands::Lent(loan) => {
            let still = || handles::take_number(number, &loan);
            match lending::give_back_if(&loan, still) {
                Some(true) => 0,
                Some(false) => error(libc::ENOENT),
                None => error(libc::EBUSY),
            }
        }
        Stands::Real(handle) => {
            let value = ask_about(asked, handle.0, |_| ());
            if value >= 0 {
                if let Some(_guard) = track::lock() {
                    handles::free_number(number);
                }
            }
            value
        }
    }
}

/// The kernel is asked for the same of region `handle`. `then`: it has answered.
fn ask_about(asked: &Asked, handle: u32, then: impl FnOnce(&Message)) -> i64 {
    let (mut message, mut core) = (asked.message, asked.core);
    message.be_about(handle, &mut core);
    // SAFETY: a message of that interface, which is the program's own but for the object.
    let value = unsafe { file::borrow(asked.fd()).ioctl(VERBS_IOCTL.into(), message.place()) };
    match value {
        Ok(value) => {
            let said = message.said(&asked.message, asked.at());
            said.for_each(|w| _ = put(asked, &w));
            then(&message);
            value as i64
        }
        Err(Errno(errno)) => error(errno),
    }
}

/// The kernel has written there just now. Whether that could be done.
fn put(asked: &Asked, write: &Write) -> bool {
    let place = Copy::of(write.at, write.bytes().len());
    place.write(&asked.stack, write.bytes()) == Made::Yes
}

/// A region like the one that is lent, of its own: just the bytes that were asked for.
fn made_real(found: &Numbered) -> Result<lending::Apart> {
    let pd = PdHandle(found.pd);
    let (at, len) = found.bytes;
    lending::apart(found.file, pd, (at, len), found.access)
}

/// The loan that a number stands for, and a region like it. Where the number stands for no loan, or
/// there can be no such region: what the call comes to instead.
fn lent_and_real(
    asked: &Asked,
    number: u32,
) -> core::result::Result<(lending::Loan, lending::Apart), i64> {
    let found = find(asked, number)?;
    let loan = match found.stands {
        Stands::Parents => return Err(error(libc::ENOENT)),
        Stands::Real(handle) => return Err(ask_about(asked, handle.0, |_| ())),
        Stands::Lent(loan) => loan,
    };
    let region = made_real(&found).map_err(|Errno(errno)| error(errno))?;
    Ok((loan, region))
}

/// The registration changes: it is made a real one first, and if the kernel does not take the
/// change it is lent as before.
pub fn change(asked: &Asked, number: u32) -> i64 {
    let (old, region) = match lent_and_real(asked, number) {
        Ok(both) => both,
        Err(value) => return value,
    };
    let value = ask_about(asked, region.mr.handle.0, |_| ());
    if value < 0 {
        region.deregister();
        return value;
    }
    if lending::give_back(&old, || handles::be_real(number, region.mr.handle)) {
        return value;
    }
    region.deregister();
    error(libc::EBUSY)
}

/// What the registration is like. That is known here, also of memory that is not mapped any more;
/// where more is asked for, the kernel says it of a region like it, but for the keys.
pub fn query(asked: &Asked, number: u32) -> i64 {
    match known(asked, number) {
        Some(value) => value,
        None => query_another(asked, number),
    }
}

fn known(asked: &Asked, number: u32) -> Option<i64> {
    let found = find(asked, number).ok()?;
    let Stands::Lent(loan) = found.stands else {
        return None;
    };
    let driver = files::driver_of(found.file, PdHandle(found.pd))?;
    if driver != asked.message.driver() || !knows_method(asked.fd(), driver) {
        return None;
    }
    let (at, length) = found.bytes;
    let answer = asked
        .message
        .described(asked.at(), &keys_of(&loan), length, at);
    let written = answer?.iter().flatten().all(|w| put(asked, w));
    Some(if written { 0 } else { error(libc::EFAULT) })
}

/// Whether this kernel has the method that asks: what it does not know it refuses.
fn knows_method(fd: i32, driver: Driver) -> bool {
    static KNOWN: Answered = Answered::new();
    KNOWN.or_ask(|| wire::knows_query_mr(fd, driver.0))
}

fn keys_of(loan: &lending::Loan) -> Mr {
    Mr {
        handle: loan.handle,
        lkey: loan.lkey,
        rkey: loan.rkey,
    }
}

fn query_another(asked: &Asked, number: u32) -> i64 {
    let (loan, region) = match lent_and_real(asked, number) {
        Ok(both) => both,
        Err(value) => return value,
    };
    let keys = keys_of(&loan);
    // What stands there otherwise are the keys of a region that goes.
    let mut written = false;
    let value = ask_about(asked, region.mr.handle.0, |message| {
        let keys = message.keys(&keys);
        written = keys.iter().flatten().all(|w| put(asked, w));
    });
    region.deregister();
    match value {
        0.. if !written => error(libc::EFAULT),
        _ => value,
    }
}
