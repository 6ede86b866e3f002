//! Whose the memory is that code is in. The patcher asks the view of the ledger that it was told
//! of when it was installed.

use core::sync::atomic::{AtomicPtr, Ordering};
use regall_ledger::{Found, View};

/// The ledger's view; null: nobody has told of it.
static VIEW: AtomicPtr<View> = AtomicPtr::new(core::ptr::null_mut());

/// What is mapped is asked of `view` from now on.
pub fn tell(view: &'static View) {
    VIEW.store((&raw const *view).cast_mut(), Ordering::Release);
}

/// The ledger's entry at `at`. `None`: it has none, or can't say so now.
pub fn entry(at: u64) -> Option<Found> {
    // SAFETY: null, or a view for good.
    let view = unsafe { VIEW.load(Ordering::Acquire).as_ref() };
    view?.lookup(at).ok().flatten()
}
