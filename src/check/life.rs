//! From the start to the end of a process that is checked.

use super::area::{self, area};
use super::writer::{self, Stacks};
use super::{posts, registrations};
use crate::base::{phase, process, settings};
use crate::sys;
use crate::track::{self, subscribers};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_checking::record::{Head, Kind, Sums};
use regall_directory::addr::PageRange;
use regall_directory::vocab::Prot;

static FINISHED: AtomicBool = AtomicBool::new(false);

/// Begins to check, if the settings say so. Once, when calls are tracked.
#[cold]
pub fn begin() {
    if !settings::config().check || !phase::tracking() {
        return;
    }
    if area::make().is_none() {
        log::warn!("no memory for REGALL_CHECK: nothing is checked");
        return;
    }
    own();
    writer::begin();
    subscribers::watch();
}

/// The memory is the shim's.
fn own() {
    if let (Some(range), Some(mut guard)) = (area::range(), track::lock()) {
        guard.insert(range, track::own_memory(Prot::from_call(3, false)));
    }
}

/// A child of fork: the registrations are its parent's.
pub fn child() {
    if let Some(area) = area() {
        area.forget();
        registrations::forget();
        writer::child();
        posts::child();
        FINISHED.store(false, Relaxed);
    }
}

/// A child of fork is tracked.
pub fn child_tracked() {
    if area().is_some() {
        own();
    }
}

/// Code has come.
pub fn new_code(_: PageRange, _: u64, _: bool, _: bool) {
    writer::new_code();
}

/// Code has gone.
pub fn code_gone(_: PageRange) {
    writer::new_code();
}

/// The process is about to end: says what was never deregistered. Not for a vfork child's
/// _exit, which has its parent's memory.
#[cold]
pub fn finish() {
    let Some(area) = area() else {
        return;
    };
    let ours = sys::is_memory_owner() && process::is_known();
    if !ours || FINISHED.swap(true, Relaxed) {
        return;
    }
    area.table().each(|n, _, found| {
        registrations::leaked(area, n, found);
    });
    let [registered, deregistered, untracked, crowded] = registrations::counts();
    let sums = Sums {
        registered,
        deregistered,
        untracked,
        crowded,
        dropped: writer::dropped(),
        watched: posts::watched(),
    };
    let head = Head {
        kind: Kind::End as u64,
        ..sums.head()
    };
    writer::write(head, Stacks::NONE, &|| true);
}
