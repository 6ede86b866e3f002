//! Signals: masks, actions, alternate stacks, and sending them to threads of this process.

use crate::entry::call;
use crate::errno::Result;
use crate::identity::{getpid, gettid};

/// Bytes of a signal mask of the kernel's.
pub const MASK_BYTES: u64 = 8;

/// Changes this thread's mask by `set`; `how` is SIG_BLOCK, SIG_UNBLOCK or SIG_SETMASK. What it
/// was before goes to `old`.
#[inline]
pub fn change_mask(how: i32, set: &u64, old: Option<&mut u64>) -> Result<()> {
    let old = old.map_or(core::ptr::null_mut(), core::ptr::from_mut);
    let set = core::ptr::from_ref(set);
    call!(libc::SYS_rt_sigprocmask, how, set, old, MASK_BYTES).map(drop)
}

/// Installs `new`, the kernel's `struct sigaction`, for `signal`. What there was goes to `old`.
///
/// # Safety
/// The handler can be called for that signal at any time, and ends at the restorer.
#[inline]
pub unsafe fn set_action<A>(signal: i32, new: &A, old: Option<&mut A>) -> Result<()> {
    const { assert!(size_of::<A>() == 32) };
    let old = old.map_or(core::ptr::null_mut(), core::ptr::from_mut);
    let new = core::ptr::from_ref(new);
    call!(libc::SYS_rt_sigaction, signal, new, old, MASK_BYTES).map(drop)
}

/// Sends `signal` to the thread `tid` of this process; 0: only looks whether there is one.
#[inline]
pub fn send(tid: u32, signal: i32) -> Result<()> {
    call!(libc::SYS_tgkill, getpid(), tid, signal).map(drop)
}

/// Sends `signal` to this thread with the `siginfo_t` that it is to arrive with.
pub fn send_to_self<I>(signal: i32, info: &I) -> Result<()> {
    const { assert!(size_of::<I>() == 128) };
    let info = core::ptr::from_ref(info);
    call!(
        libc::SYS_rt_tgsigqueueinfo,
        getpid(),
        gettid(),
        signal,
        info
    )
    .map(drop)
}

/// Whether this thread runs on its alternate stack (sigaltstack(2)).
pub fn on_alternate_stack() -> bool {
    // stack_t: sp, flags (int, padded), size.
    let mut old = [0u64; 3];
    let _ = call!(libc::SYS_sigaltstack, 0, old.as_mut_ptr());
    old[1] & libc::SS_ONSTACK as u64 != 0
}

/// Signals are held back from this thread while this lives: what is begun is finished,
/// whatever their handlers do (siglongjmp), or libc's cancellation.
pub struct Undisturbed {
    /// What was held back before; `None`: a filter keeps the mask as it is.
    mask: Option<u64>,
}

impl Undisturbed {
    /// From now on.
    #[allow(clippy::new_without_default)] // it does something
    pub fn new() -> Self {
        let mut mask = 0;
        let changed = change_mask(libc::SIG_SETMASK, &u64::MAX, Some(&mut mask));
        Self {
            mask: changed.is_ok().then_some(mask),
        }
    }

    /// Goes on after this is gone. What was held back before; `None`: a filter keeps the mask as it is.
    pub fn into_mask(self) -> Option<u64> {
        core::mem::ManuallyDrop::new(self).mask
    }

    /// Takes up again what [`Undisturbed::into_mask`] was told of.
    pub fn of_mask(mask: Option<u64>) -> Self {
        Self { mask }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        if let Some(mask) = &self.mask {
            let _ = change_mask(libc::SIG_SETMASK, mask, None);
        }
    }
}
