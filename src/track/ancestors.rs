//! Whom a process has been made by, by fork: they may have the open files that it has inherited.

use crate::sys::{self, file, Errno};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How many are remembered.
const MANY: usize = 8;
/// Who has made this process, who has made that one, and so on, the first one first; 0: nobody.
static ANCESTORS: [AtomicU32; MANY] = [const { AtomicU32::new(0) }; MANY];
/// There are more of them, or one that is not known.
const UNKNOWN: u32 = u32::MAX;

/// In a child of fork, whose parent has the id `parent`; 0: nobody says.
pub fn inherited_from(parent: u32) {
    let parent = if parent == 0 { UNKNOWN } else { parent };
    match ANCESTORS.iter().find(|place| place.load(Relaxed) == 0) {
        Some(place) => place.store(parent, Relaxed),
        None => ANCESTORS[MANY - 1].store(UNKNOWN, Relaxed),
    }
}

/// Whether one of them may have the open file behind `fd` as well: an adapter would keep what a child
/// registers there, after its end, for as long as the ancestor has it.
pub fn may_have(fd: i32) -> bool {
    let all = ANCESTORS.iter().map(|place| place.load(Relaxed));
    let mut all = all.take_while(|pid| *pid != 0).peekable();
    // In a pid namespace of its own a parent's id is somebody else's.
    let unknown = all.peek().is_some() && sys::getppid() == 0;
    unknown || all.any(|pid| pid == UNKNOWN || may_be_in(pid, fd))
}

/// Whether process `pid` may have it under the same number.
fn may_be_in(pid: u32, fd: i32) -> bool {
    match file::is_same_in(pid, fd) {
        Ok(same) => same,
        Err(errno) => !matches!(errno, Errno::BADF | Errno::SRCH),
    }
}
