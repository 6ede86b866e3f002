//! Objects that the program makes: registrations, protection domains, queues and their like. Nothing of
//! the shim's is to stand in their way. A control group has so many objects of an adapter (rdma.max) and
//! RLIMIT_MEMLOCK so much memory, and ours count there as the program's do.

use super::asked::Asked;
use super::copy::Copy;
use crate::base::phase;
use crate::sys::time;
use crate::track::{self, asking, failed, files, registering};
use crate::uverbs::PdHandle;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What the kernel says to a registration if there is no room for it.
const NO_ROOM: [i32; 4] = [libc::ENOMEM, libc::EAGAIN, libc::EPERM, libc::ENOSPC];

/// Has the kernel make a registration.
pub fn register(asked: &Asked) -> i64 {
    make(asked, &NO_ROOM)
}

/// Has the kernel make anything else. (EPERM is about rights, then.)
pub fn create(asked: &Asked) -> i64 {
    make(asked, &[libc::ENOMEM, libc::EAGAIN])
}

/// Has the kernel make a queue pair in protection domain `pd`.
#[cold]
pub fn create_qp(asked: &Asked, pd: PdHandle) -> i64 {
    let value = create(asked);
    let mut handle = [0; 8];
    let place = asked.message.handle_of_qp(asked.at());
    let place = place.filter(|_| !failed(value) && phase::tracking());
    let told = place.is_some_and(|at| Copy::of(at, 8).read(&asked.stack, handle.as_mut_ptr()));
    if let (true, Ok(handle)) = (told, u32::try_from(u64::from_ne_bytes(handle))) {
        files::pair_made(asked.fd(), pd, handle);
    }
    value
}

/// Others may come by and take what has just become free: so often is the kernel asked again.
const TRIES: u32 = 3;
/// After regions have gone in vain none go for so many nanoseconds: some programs ask for more than
/// there is, to see whether they get it.
const PAUSE: u64 = 100_000_000;
/// When they last did; 0: never.
static IN_VAIN: AtomicU64 = AtomicU64::new(0);

/// Has the kernel make something. If that fails for one of `limits` while there are regions of ours,
/// they go, and it is asked again, [`TRIES`] times at the most.
fn make(asked: &Asked, limits: &[i32]) -> i64 {
    let since = asking::evicted();
    let value = track::real(asked.frame);
    match is_full(value, limits) && registering::active() {
        true => make_again(asked, value, limits, since),
        false => value,
    }
}

fn is_full(value: i64, limits: &[i32]) -> bool {
    failed(value) && limits.contains(&(-value as i32))
}

#[cold]
#[inline(never)]
fn make_again(asked: &Asked, first: i64, limits: &[i32], since: u32) -> i64 {
    let last = IN_VAIN.load(Relaxed);
    if last != 0 && time::now().saturating_sub(last) < PAUSE {
        return first;
    }
    let (mut value, mut since, mut any) = (first, since, false);
    for _ in 0..TRIES {
        if !is_full(value, limits) || !asking::evict(since) {
            break;
        }
        any = true;
        since = asking::evicted();
        value = track::real(asked.frame);
    }
    if any && failed(value) {
        // It was not for us.
        IN_VAIN.store(time::now(), Relaxed);
        asking::readmit();
    }
    value
}
