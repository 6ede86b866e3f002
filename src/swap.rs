//! Whether the kernel may write this process's memory to swap space. What is not known counts as
//! swap space.
//!
//! Pages stay charged to the cgroup in which they were touched first. So what this process's own
//! says counts for private memory, and only while the process has been there since it began.

use crate::groups;
use crate::limits;
use crate::policy::Holding;
use crate::sys::{self, Undisturbed};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The cgroup in which this process, or the one whose memory it inherited, was started; 0: unknown.
static BEGAN_IN: AtomicU64 = AtomicU64::new(0);

/// Remembers the cgroup that the process is in when it begins.
pub fn begin() {
    let _undisturbed = Undisturbed::new();
    BEGAN_IN.store(groups::own().unwrap_or(0), Relaxed);
}

/// Returns how memory is held with REGALL_PIN=auto, by what swap space there is now, and whether
/// that is known for certain.
pub fn found() -> (Holding, bool) {
    if !limits::has_swap() {
        return (Holding::Kept, true);
    }
    sys::with_own_table(|| {
        let (began, now) = (BEGAN_IN.load(Relaxed), groups::own());
        let same = began != 0 && now == Some(began);
        match same && groups::may_not_swap() {
            true => (Holding::KeptPrivate, true),
            false => (Holding::Touched, began == 0 || now.is_some()),
        }
    })
}
