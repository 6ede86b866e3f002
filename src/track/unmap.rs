//! Calls that take memory away: out of the ledger and the directory first,
//! since another thread can be given the addresses the instant the kernel has
//! them back.

use super::headroom;
use super::lock::Guard;
use super::subscribers;
use super::taken::{are_segments_divided, put_back, Taken, REMEMBERED};
use super::turns::lock_for;
use super::{close, deferred, failed, lock, open, real, resync, retracting, seals};
use crate::arch::Frame;
use crate::base::maps::attached;
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;
use regall_directory::planted;
use regall_directory::vocab::Kind;

/// munmap(2).
#[inline(never)]
pub fn munmap(frame: &mut Frame) -> i64 {
    let Some(range) = PageRange::from_call(frame.args[0], frame.args[1]) else {
        return real(frame); // EINVAL, by the kernel itself
    };
    if let Some(value) = seals::refused(Call::Munmap, frame, [Some(range), None]) {
        return value;
    }
    let flight = open(Call::Munmap);
    headroom::make_place(range);
    let mut taken = Taken::new();
    match lock_for(&[Some(range)]) {
        Some(mut guard) => {
            flight.claim(&guard, range);
            taken.take(&mut guard, range);
        }
        None => deferred::gone(range),
    }
    retracting::retract(range);
    let value = real(frame);
    if failed(value) {
        planted!("munmap-not-put-back", (), put_back(range, &taken));
    } else {
        taken.done();
        headroom::unmapped(taken.is_app_locked());
        if taken.has_code() {
            subscribers::code_gone(range);
        }
    }
    if taken.grows() {
        // It may have grown below what we knew, and that is still there.
        resync::around(range);
    }
    close(flight, range);
    value
}

/// shmdt(2). The kernel detaches every piece of the segment that was attached at
/// the address, over holes, and nothing of a neighbouring one.
#[cold]
#[inline(never)]
pub fn shmdt(frame: &mut Frame) -> i64 {
    let flight = open(Call::Shmdt);
    let mut taken = Taken::new();
    let mut pieces = [None; REMEMBERED];
    // To ask the kernel may cost more than a call that finds nothing.
    let may_be = |guard: Guard| match are_segments_divided() {
        true => guard.ledger.totals().shm != 0,
        false => guard.at(frame.args[0]).is_some_and(|a| a.kind == Kind::Shm),
    };
    let count = match lock().is_none_or(may_be) {
        true => attached(frame.args[0], &mut pieces),
        false => 0,
    };
    let hull = pieces.iter().flatten().copied().reduce(PageRange::hull);
    let mut guard = hull.and_then(|hull| lock_for(&[Some(hull)]));
    if let (Some(hull), Some(guard)) = (hull, &guard) {
        flight.claim(guard, hull);
    }
    let most = planted!("shmdt-one-piece", 1, REMEMBERED);
    for piece in pieces.iter().flatten().take(most) {
        match &mut guard {
            Some(guard) => guard.remove(*piece, |part, entry| {
                taken.add(part, entry);
            }),
            None => deferred::gone(*piece),
        }
    }
    drop(guard);
    for piece in pieces.iter().flatten() {
        retracting::retract(*piece);
    }
    let value = real(frame);
    if (count == 0 || count > REMEMBERED) && !failed(value) {
        resync::audit();
    }
    let Some(hull) = hull else {
        return value;
    };
    if failed(value) {
        put_back(hull, &taken);
    }
    close(flight, hull);
    value
}
