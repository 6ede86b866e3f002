//! Beginning anew: an empty ledger, and a directory with nothing in it.

use super::state::{give_up_with, State};
use super::{aside, owed, subscribers};
use crate::base::counters;

/// An empty ledger and an empty directory after a change that was left half-way.
/// In place: other threads have calls in progress that are noted there.
#[cold]
#[inline(never)]
pub fn start_over(state: &mut State) {
    state.ledger.rebuild();
    aside::rebuild(&mut state.aside);
    state.hca.rebuild();
    state.reserved = 0;
    owed::forget_reserved();
    state.adopting = false;
    state.store.clear();
    if let Some(header) = state.store.header() {
        // SAFETY: still mapped; the writer forgets what it had half done.
        unsafe { state.writer.attach(header) };
    }
    adopt(state);
}

/// A directory for `state`, in /dev/shm or, where that can't be, in private memory.
#[cold]
#[inline(never)]
pub fn new_directory(state: &mut State) {
    if let Err(errno) = state.store.create() {
        log::warn!(
            "no directory under /dev/shm ({errno}): memory is tracked, but nobody can see it"
        );
    }
    let Some(header) = state.store.header() else {
        return give_up_with(state, "no memory for the directory");
    };
    // SAFETY: just mapped, zeroed, and replaced only here.
    unsafe { state.writer.attach(header) };
    state.set_budget((subscribers::table().budget)());
    for told in subscribers::table().new_directory {
        // SAFETY: mapped as long as it is the directory.
        told(unsafe { header.as_ref() });
    }
    counters::use_header(header.as_ptr());
    adopt(state);
}

/// The shim's own memory is the first that a new ledger knows.
fn adopt(state: &mut State) {
    state.make_room();
    state.arena.announce_all();
    state.store.announce_all();
    state.adopt_own_memory();
}
