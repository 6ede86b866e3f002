//! Which processors this thread may have, and when.

use crate::entry::call;

/// What a policy may come with: children don't get it.
const RESET_ON_FORK: u64 = 0x4000_0000;

/// Whether this thread goes before all that have no real-time policy.
pub fn is_real_time() -> bool {
    let policy = call!(libc::SYS_sched_getscheduler, 0).map_or(0, |p| p & !RESET_ON_FORK);
    let real_time = [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE];
    real_time.iter().any(|p| *p as u64 == policy)
}

/// Lets everybody else go first: no real-time policy, and the last priority.
pub fn stand_back() {
    const LAST: u64 = 19;
    let none = 0i32;
    if is_real_time() {
        let policy = libc::SCHED_OTHER as u64;
        let _ = call!(libc::SYS_sched_setscheduler, 0, policy, &raw const none);
    }
    // The kernel takes 0 for this thread alone.
    let _ = call!(
        libc::SYS_setpriority,
        u64::from(libc::PRIO_PROCESS),
        0,
        LAST
    );
}

/// Processors, a bit for each. As many as the kernel can be built for (CONFIG_MAXSMP).
#[derive(Clone, Copy)]
pub struct Processors([u64; 128]);

impl Processors {
    /// None.
    pub const NONE: Self = Self([0; 128]);

    /// Those that this thread may have.
    pub fn allowed() -> Self {
        let mut set = Self::NONE;
        let bytes = size_of::<Self>();
        match call!(libc::SYS_sched_getaffinity, 0, bytes, set.0.as_mut_ptr()) {
            Ok(_) => set,
            Err(_) => Self::NONE,
        }
    }

    /// This thread may have them, as far as the process may; if there are none, nothing changes.
    pub fn take(&self) {
        let bytes = size_of::<Self>();
        let _ = call!(
            libc::SYS_sched_setaffinity,
            0,
            bytes,
            core::ptr::from_ref(self)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_alone_stands_back() {
        std::thread::spawn(|| {
            let all = Processors::allowed();
            let first = all.0.iter().position(|w| *w != 0).unwrap();
            let mut one = Processors::NONE;
            one.0[first] = all.0[first] & all.0[first].wrapping_neg();
            one.take();
            assert_eq!(Processors::allowed().0, one.0);
            Processors::NONE.take();
            assert_eq!(Processors::allowed().0, one.0);
            all.take();
            assert_eq!(Processors::allowed().0, all.0);
            stand_back();
            // The kernel says 20 less it.
            assert_eq!(call!(libc::SYS_getpriority, 0, 0), Ok(1));
        })
        .join()
        .unwrap();
        assert_ne!(call!(libc::SYS_getpriority, 0, 0), Ok(1));
        assert!(!is_real_time());
    }
}
