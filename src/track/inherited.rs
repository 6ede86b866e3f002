//! What a child of fork has inherited: left alone until the child uses the shim.

use super::{domains, lock, whole, USER_END};
use crate::policy;
use crate::registrar::pin;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_directory::addr::PageRange;
use regall_directory::vocab::{Attr, Flags};

/// Whether this is a child that has left alone what it inherited.
static LEFT_ALONE: AtomicBool = AtomicBool::new(false);

/// A child begins: it leaves alone what it inherited, or not.
pub fn child(left_alone: bool) {
    LEFT_ALONE.store(left_alone, Relaxed);
}

/// The child uses the shim, so it is not one that execs at once: what it has
/// inherited comes in.
#[inline]
pub fn bring_in() {
    if LEFT_ALONE.load(Relaxed) {
        bring_in_slowly();
    }
}

#[cold]
#[inline(never)]
fn bring_in_slowly() {
    let (Some(all), true) = (PageRange::new(0, USER_END), LEFT_ALONE.swap(false, Relaxed)) else {
        return;
    };
    let flight = super::begin_work();
    match lock() {
        Some(mut guard) => guard.update(all, |_, a| {
            let flags = a.flags.without(Flags::INHERITED);
            policy::unsettled(Attr { flags, ..a }, pin::holding())
        }),
        // In a handler at a bad moment: the next call does it.
        None => return LEFT_ALONE.store(true, Relaxed),
    }
    whole::settle_all();
    super::end(flight);
    domains::own_device();
}
