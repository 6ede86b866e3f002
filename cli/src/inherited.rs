//! What `regall` was started with and hands on to the command: Rust's runtime ignores SIGPIPE,
//! and `std::process::Command` sets it to its default action and lets all signals through.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static CHILD_IGNORED: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's runtime does.
#[used]
#[link_section = ".init_array"]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    PIPE_IGNORED.store(is_ignored(libc::SIGPIPE), Relaxed);
    if is_ignored(libc::SIGCHLD) {
        CHILD_IGNORED.store(true, Relaxed);
        // Children's exit statuses would be lost.
        // SAFETY: no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
}

/// Whether the signal is ignored, as nohup and shells have it for what they start.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: all zeroes is a valid `sigaction`.
    let mut now: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: `now` outlives the call, which changes nothing.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &mut now) };
    asked == 0 && now.sa_sigaction == libc::SIG_IGN
}

/// The command gets the actions of SIGPIPE and SIGCHLD, and the signals that are blocked, as they came to us.
pub fn hand_on(command: &mut Command) {
    // SAFETY: all zeroes is a valid `sigset_t`.
    let mut blocked: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `blocked` outlives the call, which changes nothing.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut blocked) };
    let pipe_ignored = PIPE_IGNORED.load(Relaxed);
    let child_ignored = CHILD_IGNORED.load(Relaxed);
    let restore = move || {
        // SAFETY: all calls are async-signal-safe, and `blocked` is the closure's.
        unsafe {
            if pipe_ignored {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            if child_ignored {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &blocked, std::ptr::null_mut());
        }
        Ok(())
    };
    // SAFETY: nothing is allocated, and no lock is taken.
    unsafe { command.pre_exec(restore) };
}
