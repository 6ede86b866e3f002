//! What `regall` was started with and hands on to the command. Rust's runtime ignores SIGPIPE
//! and opens /dev/null in the place of a closed stdin, stdout or stderr;
//! `std::process::Command` sets SIGPIPE to its default action and lets all signals through.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::Relaxed};

static PIPE_IGNORED: AtomicBool = AtomicBool::new(false);
static CHILD_IGNORED: AtomicBool = AtomicBool::new(false);
/// The standard descriptors that were closed: bit N for descriptor N.
static CLOSED: AtomicI32 = AtomicI32::new(0);

/// stdin, stdout and stderr.
const STANDARD: [i32; 3] = [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO];

/// Runs before Rust's runtime does.
#[used]
#[link_section = ".init_array"]
static BEFORE_MAIN: extern "C" fn() = look;

extern "C" fn look() {
    // SAFETY: F_GETFD has no third argument and changes nothing.
    let is_closed = |fd: &i32| unsafe { libc::fcntl(*fd, libc::F_GETFD) } < 0;
    let closed = STANDARD.into_iter().filter(is_closed);
    CLOSED.store(closed.fold(0, |all, fd| all | 1 << fd), Relaxed);
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

/// The command gets the actions of SIGPIPE and SIGCHLD, the signals that are blocked, and
/// closed standard descriptors as they came to us.
pub fn hand_on(command: &mut Command) {
    // SAFETY: all zeroes is a valid `sigset_t`.
    let mut blocked: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `blocked` outlives the call, which changes nothing.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut blocked) };
    let pipe_ignored = PIPE_IGNORED.load(Relaxed);
    let child_ignored = CHILD_IGNORED.load(Relaxed);
    let closed = CLOSED.load(Relaxed);
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
            // /dev/null is there, by Rust's runtime: no file of anybody's is closed.
            for fd in STANDARD.into_iter().filter(|fd| closed & 1 << fd != 0) {
                libc::close(fd);
            }
        }
        Ok(())
    };
    // SAFETY: nothing is allocated, and no lock is taken.
    unsafe { command.pre_exec(restore) };
}
