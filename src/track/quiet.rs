//! Signals are held back while a thread has the kernel register or forget something: a handler that
//! jumps away would leave the kernel's half of that behind. One such time may lie in another: only the
//! outermost makes calls for it.

use super::hands;
use crate::arch;
use crate::sys::{time, Undisturbed};
use crate::thread::{self, Kept, Thread};

/// No handler comes on this thread while it lives.
#[must_use = "handlers come again when it is dropped"]
pub struct Quiet(());

impl Quiet {
    /// From now on.
    pub fn begin() -> Self {
        let thread = thread::current();
        let deep = thread.quiet.get();
        if deep == 0 {
            hold(thread);
        }
        thread.quiet.set(deep + 1);
        Self(())
    }

    /// How many are left behind it. A descriptor of ours is closed before the last, as it is not kept
    /// during a call of the program's.
    pub fn close_kept(&self) -> u32 {
        let thread = thread::current();
        let left = thread.quiet.get().saturating_sub(1);
        if left == u32::from(thread.across.get()) {
            hands::close_kept(thread);
        }
        left
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let left = self.close_kept();
        let thread = thread::current();
        thread.quiet.set(left);
        if left == 0 {
            come_again(thread);
        } else if left == u32::from(thread.across.get()) && is_long(thread) {
            waiting(|| ());
        }
    }
}

fn hold(thread: &Thread) {
    let mask = Undisturbed::new().into_mask();
    thread.mask.set(mask.unwrap_or(0));
    thread.held.set(mask.is_some());
    thread.since.set(arch::ticks());
}

/// Returns whether signals are held back for so long that handlers are to come between two requests.
fn is_long(thread: &Thread) -> bool {
    const LONG: u64 = 1_000_000;
    time::nanos(arch::ticks().wrapping_sub(thread.since.get())) > LONG
}

/// Handlers come again: what was seen of descriptors may be otherwise behind one.
fn come_again(thread: &Thread) {
    thread.way.set(Kept::NONE);
    let mask = thread.held.replace(false).then(|| thread.mask.get());
    drop(Undisturbed::of_mask(mask));
}

/// As [`Quiet`], around a call of the program's and all that is done before and after it.
#[must_use = "handlers come again when it is dropped"]
pub struct Across {
    outermost: bool,
    _quiet: Quiet,
}

impl Across {
    /// From now on.
    pub fn begin() -> Self {
        let quiet = Quiet::begin();
        let thread = thread::current();
        let outermost = thread.quiet.get() == 1;
        if outermost {
            thread.across.set(true);
        }
        Self {
            outermost,
            _quiet: quiet,
        }
    }
}

impl Drop for Across {
    fn drop(&mut self) {
        if self.outermost {
            thread::current().across.set(false);
        }
    }
}

/// Waits by `nap`. Handlers come meanwhile, unless this thread is in the midst of something with the
/// kernel: who is waited for may be waiting for one.
pub fn waiting(nap: impl FnOnce()) {
    let thread = thread::current();
    if !(thread.across.get() && thread.quiet.get() == 1) {
        return nap();
    }
    thread.across.set(false);
    thread.quiet.set(0);
    come_again(thread);
    nap();
    hold(thread);
    thread.quiet.set(1);
    thread.across.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::signal::change_mask;

    /// How many signals are blocked.
    fn blocked() -> u32 {
        let mut now = 0;
        change_mask(libc::SIG_BLOCK, &0, Some(&mut now)).unwrap();
        now.count_ones()
    }

    #[test]
    fn the_outermost_holds_signals_back() {
        let before = blocked();
        let outer = Quiet::begin();
        let all = blocked();
        assert!(all > before);
        drop(Quiet::begin());
        assert_eq!(blocked(), all);
        drop(outer);
        assert_eq!(blocked(), before);
    }

    #[test]
    fn handlers_come_between_requests_that_take_long() {
        let thread = thread::current();
        let across = Across::begin();
        thread.since.set(0);
        let inner = Quiet::begin();
        drop(Quiet::begin());
        assert_eq!(thread.since.get(), 0);
        drop(inner);
        assert_ne!(thread.since.get(), 0);
        assert_eq!(thread.quiet.get(), 1);
        drop(across);
    }

    #[test]
    fn handlers_come_while_a_call_waits() {
        let before = blocked();
        let across = Across::begin();
        let all = blocked();
        drop(Quiet::begin());
        assert_eq!(blocked(), all);
        waiting(|| assert_eq!(blocked(), before));
        assert_eq!(blocked(), all);
        let inner = Quiet::begin();
        waiting(|| assert_eq!(blocked(), all));
        drop(inner);
        drop(Across::begin());
        assert_eq!(blocked(), all);
        drop(across);
        assert_eq!(blocked(), before);
    }
}
