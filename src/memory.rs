//! What the ledger says of the application's memory: whether it can be touched, and whether it
//! stays so.

use crate::base::counters;
use crate::ledger::Found;
use crate::sys;
use crate::thread;
use crate::track::{guards, VIEW};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use regall_bridge::maps;
use regall_bridge::window::source::{self, Backing};
use regall_directory::maps::Line;
use regall_directory::vocab::{Flags, Kind};

/// Entries that a local range may lie in.
const PIECES: usize = 8;

/// Whether all of it is in the ledger, to be read or written, and `is` holds of each entry
/// that it lies in.
#[inline]
pub fn touchable(at: u64, bytes: u64, writable: bool, mut is: impl FnMut(&Found) -> bool) -> bool {
    let Some(end) = at.checked_add(bytes) else {
        return false;
    };
    let mut from = at;
    for _ in 0..PIECES {
        let Ok(Some(found)) = VIEW.lookup_hinted(from, &thread::current().hint) else {
            return false;
        };
        let attr = found.attr();
        let permitted = match writable {
            true => attr.prot.writable(),
            false => attr.prot.readable(),
        };
        if !permitted || attr.flags.has(Flags::TAIL) || !is(&found) {
            return false;
        }
        if end <= found.end {
            return true;
        }
        from = found.end;
    }
    false
}

/// In a child of fork: nothing is known of its mappings.
pub fn forget() {
    for known in &FILES {
        known.store(0, Relaxed);
    }
}

/// Entries of [`FILES`].
const KNOWN: usize = 256;
/// Of mappings of files: the number of the ledger's entry, shifted left, and whether the file
/// stays as long as it is. 0: not known.
static FILES: [AtomicU64; KNOWN] = [const { AtomicU64::new(0) }; KNOWN];

/// Whether memory of ours can be read, or written, and only the application's doing can
/// change that: `Host::steady`.
pub fn steady(at: u64, bytes: u64, writable: bool) -> bool {
    if guards::elsewhere() || counters::keys_in_use() {
        return false;
    }
    touchable(at, bytes, writable, stays)
}

/// As [`steady`], by what is known already: what would have to be read from /proc is not.
pub fn steady_unasked(at: u64, bytes: u64, writable: bool) -> bool {
    let mut end = at;
    steady_unasked_from(at, writable, |to| end = to);
    at.checked_add(bytes).is_some_and(|to| to <= end)
}

/// As [`steady_unasked`] of a byte at `at`, and of all behind it to the end of what `to` is told.
#[inline]
pub fn steady_unasked_from(at: u64, writable: bool, to: impl FnOnce(u64)) {
    if guards::elsewhere() || counters::keys_in_use() {
        return;
    }
    let mut end = at;
    let all = touchable(at, 1, writable, |found| {
        end = found.end;
        stays_by(found, |found, _| is_known(found) == Some(true))
    });
    if all {
        to(end);
    }
}

fn stays(found: &Found) -> bool {
    stays_by(found, known)
}

fn stays_by(found: &Found, known: impl Fn(&Found, bool) -> bool) -> bool {
    let attr = found.attr();
    match (attr.kind, attr.prot.shared()) {
        (Kind::Anon | Kind::Heap | Kind::Stack | Kind::Shm, _) => true,
        (Kind::ThreadStack, _) => !guards::in_stacks(),
        (Kind::File, shared) => known(found, shared),
        (Kind::Huge, _) => !attr.flags.has(Flags::NORESERVE),
        _ => false,
    }
}

/// What is known of the file behind a mapping already: see [`known`].
fn is_known(found: &Found) -> Option<bool> {
    let said = FILES.get(found.id as usize % KNOWN)?.load(Relaxed);
    let no = found.id << 1;
    match said {
        _ if said == no | 1 => Some(true),
        _ if said == no && no != 0 => Some(false),
        _ => None,
    }
}

/// Whether nobody can cut short the file behind a mapping, or nobody would: a module's data
/// are in its file until they are written to. Asked once an entry.
fn known(found: &Found, shared: bool) -> bool {
    if let Some(said) = is_known(found) {
        return said;
    }
    let Some(known) = FILES.get(found.id as usize % KNOWN) else {
        return false;
    };
    let steady = match shared {
        true => can_not_shrink(found.start),
        false => is_of_a_module(found.start),
    };
    known.store(found.id << 1 | u64::from(steady), Relaxed);
    steady
}

#[cold]
#[inline(never)]
fn can_not_shrink(at: u64) -> bool {
    let pid = sys::getpid();
    let Ok(backing) = Backing::find(pid, at) else {
        return false;
    };
    source::open(pid, &backing, false).is_ok_and(|fd| source::is_steady(&fd, &backing))
}

/// Whether the file that is mapped at `at` is executed from, too.
#[cold]
#[inline(never)]
fn is_of_a_module(at: u64) -> bool {
    let file = |l: &Line| (l.dev_major, l.dev_minor, l.inode);
    let mut wanted = None;
    let found = maps::any(MAPS, |l| {
        wanted = l.range.contains(at).then(|| file(l));
        wanted.is_some()
    });
    let code = |l: &Line| l.prot.executable() && wanted == Some(file(l));
    found == Ok(true) && maps::any(MAPS, code) == Ok(true)
}

const MAPS: &core::ffi::CStr = c"/proc/self/maps";

#[cfg(test)]
mod tests {
    use super::*;
    use regall_directory::layout::{Call, Header};

    /// Other processes of the user can write the header.
    #[test]
    fn calls_are_remembered_whatever_the_header_says() {
        // SAFETY: a header of zeroes is one.
        let header: &Header = Box::leak(unsafe { Box::new(core::mem::zeroed()) });
        counters::use_header((&raw const *header).cast_mut());
        for (call, known) in [
            (Call::PkeyMprotect, counters::keys_in_use as fn() -> bool),
            (Call::Userfault, counters::faults_are_watched),
        ] {
            assert!(!known());
            header.calls[call as usize].store(7, Relaxed);
            assert!(!known(), "{}", call.word());
            counters::count_call(call);
            header.calls[call as usize].store(0, Relaxed);
            assert!(known(), "{}", call.word());
        }
    }
}
