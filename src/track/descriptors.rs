//! Which numbers of the table of descriptors stand for the file that was seen there, as far as the calls
//! tell that give a number to another file. While nobody else has the table, nothing happens to a number
//! between two calls of this thread's.

use crate::arch::Frame;
use crate::base::unseen;
use core::ops::RangeInclusive;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// Somebody else may have this process's table.
static SHARED: AtomicBool = AtomicBool::new(false);
/// There is code whose calls nobody sees. A child of fork has it, too.
static UNSEEN: AtomicBool = AtomicBool::new(false);

/// Numbers that are remembered lie below.
const MANY: usize = 1024;
/// A bit for each number at which a file was found that this process has tagged.
static FOUND: [AtomicU64; MANY / 64] = [const { AtomicU64::new(0) }; MANY / 64];

/// Notes that somebody else may have the table from now on: a thread, or a process with the same one.
pub fn share() {
    SHARED.store(true, SeqCst);
}

/// Notes that calls about descriptors may be made that nobody sees.
pub fn unseen() {
    UNSEEN.store(true, SeqCst);
}

/// In a child of fork. `shared`: it has its parent's table.
pub fn child(shared: bool) {
    SHARED.store(shared, SeqCst);
    forget_all();
}

/// Returns whether no other thread has the table, nor does the kernel close anything there behind this
/// one's back.
pub fn are_ours_alone() -> bool {
    !are_shared() && unseen::reason().is_none()
}

/// Returns whether somebody else may have the table, or changes it unseen.
pub fn are_shared() -> bool {
    SHARED.load(SeqCst) || UNSEEN.load(SeqCst)
}

fn place(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let n = usize::try_from(fd).ok()?;
    Some((FOUND.get(n / 64)?, 1 << (n % 64)))
}

/// Notes that the file behind `fd` is one that was tagged.
pub fn found(fd: i32) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_or(bit, Relaxed);
    }
}

/// Returns whether no call that was seen has closed or replaced `fd` since [`found`].
pub fn is_found(fd: i32) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// Forgets what a call of the program's that is about to be made may close or replace. Returns the
/// numbers.
#[inline]
pub fn changes(frame: &Frame) -> Option<RangeInclusive<u32>> {
    let [first, second, ..] = frame.args.map(|word| word as u32);
    let (from, to) = match frame.nr as i64 {
        libc::SYS_close => (first, first),
        libc::SYS_dup2 | libc::SYS_dup3 => (second, second),
        libc::SYS_close_range => (first, second),
        _ => return None,
    };
    match from == to {
        true => forget(from as i32),
        false => forget_all(),
    }
    Some(from..=to)
}

#[inline]
fn forget(fd: i32) {
    if let Some((word, bit)) = place(fd) {
        // Looked at first: an exchange costs as much as all the rest.
        if word.load(Relaxed) & bit != 0 {
            word.fetch_and(!bit, Relaxed);
        }
    }
}

fn forget_all() {
    FOUND.iter().for_each(|word| word.store(0, Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(nr: libc::c_long, args: [u64; 6]) -> Frame {
        Frame {
            nr: nr as u64,
            args,
        }
    }

    #[test]
    fn a_child_has_its_parents_code() {
        child(false);
        assert!(!are_shared());
        share();
        assert!(are_shared());
        unseen();
        child(false);
        assert!(are_shared());
        UNSEEN.store(false, SeqCst);
    }

    #[test]
    fn what_closes_or_replaces_a_number_is_noted() {
        for (nr, args) in [
            (libc::SYS_close, [77, 0, 0, 0, 0, 0]),
            (libc::SYS_dup2, [5, 77, 0, 0, 0, 0]),
            (libc::SYS_dup3, [5, 77, 0, 0, 0, 0]),
            (libc::SYS_close_range, [3, u64::MAX, 0, 0, 0, 0]),
        ] {
            found(77);
            changes(&call(libc::SYS_close, [78, 0, 0, 0, 0, 0]));
            changes(&call(libc::SYS_dup2, [77, 5, 0, 0, 0, 0]));
            assert!(is_found(77), "{nr}");
            changes(&call(nr, args));
            assert!(!is_found(77), "{nr}");
        }
        for beyond in [-1, MANY as i32, i32::MAX] {
            found(beyond);
            assert!(!is_found(beyond));
        }
    }
}
