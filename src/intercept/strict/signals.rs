//! SIGSYS is ours, and must never be blocked: the kernel kills a process that
//! makes a dispatched call while it is. The application does not notice: it
//! may block SIGSYS, ask for its mask, install a handler, and gets what it
//! would get, since its wishes are kept here and shown to it.
//!
//! Not hidden: the mask that a signal handler finds in its context, and what a
//! program started by exec inherits. Not kept away: SIGSYS blocked by way of that
//! context, or for the length of waits with a mask of glibc 2.41 and later that are not made
//! by the slots of `waits`. A SIGSYS that is sent is not found pending, nor by sigwait.

use super::{call_from_libc, enter, on_sigsys, ALLOW};
use crate::arch::{Frame, SignalContext};
use crate::sys;
use crate::sys::signal::{self, MASK_BYTES};
use crate::thread::{self, Thread};
use crate::track::{self, failed};
use core::sync::atomic::{AtomicU64, Ordering::*};
use regall_directory::planted;

/// SIGSYS in a mask.
const SIGSYS: u64 = 1 << (libc::SIGSYS - 1);
/// Signals that can't be blocked.
const NEVER: u64 = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1);
const SA_RESTORER: u64 = 0x0400_0000;
/// Flags of an action that the kernel keeps; it drops others.
const FLAGS: u64 = 0xdc00_0807;
const SIG_DFL: u64 = libc::SIG_DFL as u64;
const SIG_IGN: u64 = libc::SIG_IGN as u64;
/// si_code of a SIGSYS: by a seccomp filter, by the dispatcher.
const SYS_SECCOMP: i32 = 1;
const SYS_USER_DISPATCH: i32 = 2;

/// The kernel's `siginfo_t` of a SIGSYS.
#[repr(C)]
pub struct Info {
    signo: i32,
    errno: i32,
    code: i32,
    address: u64,
    number: i32,
    arch: u32,
    rest: [u64; 12],
}

const _: () = assert!(size_of::<Info>() == 128);

impl Info {
    /// Whether the dispatcher sent it, and not a filter, kill(2) or raise(3).
    pub fn is_dispatch(&self) -> bool {
        self.code == SYS_USER_DISPATCH
    }

    /// The instruction set of the call.
    pub fn arch(&self) -> u32 {
        self.arch
    }
}

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Action {
    handler: u64,
    flags: u64,
    restorer: u64,
    mask: u64,
}

/// The action that the application believes SIGSYS to have.
static APPLICATION: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// Signals whose handlers, as far as the application knows, run with SIGSYS blocked.
static HIDDEN: AtomicU64 = AtomicU64::new(0);

impl Action {
    /// What the application passes. `None`: it can't be read.
    fn load(at: u64) -> Option<Self> {
        Some(Self {
            handler: load(at)?,
            flags: load(at.checked_add(8)?)?,
            restorer: load(at.checked_add(16)?)?,
            mask: load(at.checked_add(24)?)?,
        })
    }

    /// Writes it to where the kernel has just written one.
    fn store(self, at: u64) {
        // SAFETY: the kernel has written as many bytes there for this very call.
        unsafe { (at as *mut Self).write_unaligned(self) };
    }

    fn of_application() -> Self {
        let [handler, flags, restorer, mask] =
            [0, 1, 2, 3].map(|n: usize| APPLICATION[n].load(Acquire));
        Self {
            handler,
            flags,
            restorer,
            mask,
        }
    }

    fn remember(self) {
        APPLICATION[3].store(self.mask & !NEVER, Relaxed);
        APPLICATION[2].store(self.restorer, Relaxed);
        APPLICATION[1].store(self.flags & FLAGS, Relaxed);
        APPLICATION[0].store(self.handler, Release);
    }

    /// Installs it for SIGSYS; `old` gets what was there.
    fn install(&self, old: Option<&mut Self>) -> sys::Result<()> {
        // SAFETY: it is our handler, or what the application had.
        unsafe { signal::set_action(libc::SIGSYS, self, old) }
    }
}

/// A word of the application's memory, unless an ordinary load would be a signal.
fn load(at: u64) -> Option<u64> {
    // SAFETY: the kernel has just read the same bytes, for the call whose word this is.
    (sys::can_read(at) != Some(false)).then(|| unsafe { (at as *const u64).read_unaligned() })
}

/// The mask at `at` without SIGSYS; none if it can't be read.
pub fn without_sigsys(at: u64) -> Option<u64> {
    // SAFETY: somebody is about to give it to the kernel, which reads the same bytes.
    let set =
        (sys::can_read(at) == Some(true)).then(|| unsafe { (at as *const u64).read_unaligned() });
    Some(set? & !SIGSYS)
}

/// Shows SIGSYS in the mask that the kernel has just written to `at`, if any.
fn show(at: u64) {
    if at != 0 {
        let at = at as *mut u64;
        // SAFETY: the kernel has written these bytes for this very call.
        unsafe { at.write_unaligned(at.read_unaligned() | SIGSYS) };
    }
}

/// Makes SIGSYS ours, with a handler that ends at `restorer`.
pub fn take_over(restorer: u64) -> bool {
    let flags = (libc::SA_SIGINFO | libc::SA_NODEFER) as u64 | SA_RESTORER;
    let ours = Action {
        handler: on_sigsys as *const () as u64,
        flags,
        restorer,
        mask: 0,
    };
    let mut before = Action::default();
    if ours.install(Some(&mut before)).is_err() {
        return false;
    }
    before.remember();
    let mut blocked = 0u64;
    let unblocked = signal::change_mask(libc::SIG_UNBLOCK, &SIGSYS, Some(&mut blocked));
    thread::current().sigsys_blocked.set(blocked & SIGSYS != 0);
    unblocked.is_ok()
}

/// Undoes [`take_over`].
pub fn give_back() {
    let _ = Action::of_application().install(None);
    if thread::current().sigsys_blocked.replace(false) {
        let _ = signal::change_mask(libc::SIG_BLOCK, &SIGSYS, None);
    }
}

/// Whether this is a vfork child on its parent's thread block: what it does to
/// its own signals is not its parent's business, and nothing is dispatched in it.
fn is_guest(thread: &Thread) -> bool {
    sys::gettid() != thread.tid()
}

/// rt_sigaction.
pub fn action(thread: &Thread, frame: &Frame) -> i64 {
    let [signal, new, old, bytes, ..] = frame.args;
    let signal = signal as i32;
    if bytes != MASK_BYTES || !(1..=64).contains(&signal) || is_guest(thread) {
        return track::real(frame);
    }
    let wanted = if new == 0 { None } else { Action::load(new) };
    if new != 0 && wanted.is_none() {
        return track::real(frame);
    }
    if signal == libc::SIGSYS {
        return action_of_ours(frame, wanted);
    }
    let bit = 1u64 << (signal - 1);
    let shown = HIDDEN.load(Relaxed) & bit != 0;
    let hides = wanted.is_some_and(|a| a.mask & SIGSYS != 0);
    let mut made = *frame;
    let stripped = wanted.map(|a| Action {
        mask: a.mask & !SIGSYS,
        ..a
    });
    if let (true, Some(stripped)) = (hides, &stripped) {
        made.args[1] = stripped as *const Action as u64;
    }
    let value = track::real(&made);
    if failed(value) {
        return value;
    }
    if hides {
        HIDDEN.fetch_or(bit, Relaxed);
    } else if wanted.is_some() {
        HIDDEN.fetch_and(!bit, Relaxed);
    }
    if shown && old != 0 {
        show(old.wrapping_add(24));
    }
    value
}

/// The same of SIGSYS itself: what is installed stays.
fn action_of_ours(frame: &Frame, wanted: Option<Action>) -> i64 {
    let [signal, _, old, bytes, ..] = frame.args;
    // The kernel finds out whether `old` can be written to.
    let value = track::real(&Frame {
        nr: frame.nr,
        args: [signal, 0, old, bytes, 0, 0],
    });
    if failed(value) {
        return value;
    }
    let before = Action::of_application();
    if let Some(wanted) = wanted {
        wanted.remember();
    }
    if old != 0 {
        before.store(old);
    }
    value
}

/// Whether SIGSYS is to be blocked, if it was to be `before` and the application
/// now says `how` of a set that it is in (`named`) or not.
fn blocked_by(how: i32, named: bool, before: bool) -> bool {
    match how {
        libc::SIG_BLOCK => before || named,
        libc::SIG_UNBLOCK => before && !named,
        _ => named,
    }
}

/// rt_sigprocmask.
pub fn mask(thread: &Thread, frame: &Frame) -> i64 {
    let [how, set, old, bytes, ..] = frame.args;
    let wanted = if set == 0 || bytes != MASK_BYTES {
        None
    } else {
        load(set)
    };
    let named = wanted.is_some_and(|set| set & SIGSYS != 0);
    let before = thread.sigsys_blocked.get();
    if !named && !before || is_guest(thread) {
        return track::real(frame);
    }
    let stripped = wanted.map(|set| planted!("strict-mask", set, set & !SIGSYS));
    let mut made = *frame;
    if let (true, Some(stripped)) = (named, &stripped) {
        made.args[1] = stripped as *const u64 as u64;
    }
    let value = track::real(&made);
    if failed(value) {
        return value;
    }
    if before {
        show(old);
    }
    if wanted.is_some() {
        block(thread, blocked_by(how as i32, named, before));
    }
    value
}

/// SIGSYS is blocked in the application's eyes, or no more: then what came
/// meanwhile is delivered.
fn block(thread: &Thread, blocked: bool) {
    thread.sigsys_blocked.set(blocked);
    if !blocked && thread.sigsys_pending.replace(false) {
        let _ = signal::send(thread.tid(), libc::SIGSYS);
    }
}

/// rt_sigsuspend, or another call that waits with a mask, made with the selector shut.
pub fn wait(thread: &Thread, frame: &Frame) -> i64 {
    let begun = thread.timing.get().then(sys::time::spent);
    let value = with_mask(frame, call_from_libc);
    if let Some(begun) = begun {
        let waited = sys::time::spent().saturating_sub(begun);
        thread
            .elsewhere
            .set(thread.elsewhere.get().saturating_add(waited));
    }
    thread.real_value.set(value);
    thread.real_done.set(true);
    value
}

/// Has `call` make a call that may set a mask for as long as it waits, in which
/// SIGSYS is not: handlers run with it.
pub fn with_mask(frame: &Frame, call: impl FnOnce(&Frame) -> i64) -> i64 {
    let mut made = *frame;
    let (mask, sized);
    let (place, bytes) = match frame.nr as libc::c_long {
        libc::SYS_rt_sigsuspend => (0, frame.args[1]),
        libc::SYS_ppoll => (3, frame.args[4]),
        libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 => (4, frame.args[5]),
        // A pointer to the mask's address and size.
        libc::SYS_pselect6 => {
            let at = frame.args[5];
            let given = if at == 0 {
                None
            } else {
                load(at).zip(at.checked_add(8).and_then(load))
            };
            let Some((set, MASK_BYTES)) = given else {
                return call(&made);
            };
            let Some(set) = load(set).filter(|_| set != 0) else {
                return call(&made);
            };
            mask = set & !SIGSYS;
            sized = [&raw const mask as u64, MASK_BYTES];
            made.args[5] = sized.as_ptr() as u64;
            return call(&made);
        }
        _ => return call(&made),
    };
    let at = made.args[place];
    if at != 0 && bytes == MASK_BYTES {
        if let Some(set) = load(at) {
            mask = set & !SIGSYS;
            made.args[place] = &raw const mask as u64;
        }
    }
    call(&made)
}

/// A SIGSYS that is not the dispatcher's: what the application wants is done.
pub fn forward(thread: &Thread, signal: i32, info: &mut Info, context: &mut SignalContext) {
    let selector = thread.dispatch.get();
    enter(thread);
    let action = Action::of_application();
    // Sent by a filter it can't be blocked or ignored: then it is deadly.
    let forced = info.code == SYS_SECCOMP;
    let blocked = thread.sigsys_blocked.get();
    if blocked && !forced {
        thread.sigsys_pending.set(true);
    } else if blocked || action.handler == SIG_DFL || action.handler == SIG_IGN && forced {
        die(thread, info);
    } else if action.handler != SIG_IGN {
        let during = action.mask & !SIGSYS;
        let _ = signal::change_mask(libc::SIG_BLOCK, &during, None);
        let defers = action.flags & libc::SA_NODEFER as u64 == 0;
        thread
            .sigsys_blocked
            .set(defers || action.mask & SIGSYS != 0);
        if action.flags & libc::SA_RESETHAND as u32 as u64 != 0 {
            Action {
                handler: SIG_DFL,
                ..action
            }
            .remember();
        }
        thread.dispatch.set(selector);
        // SAFETY: the application installed this function for this signal.
        unsafe {
            let handler: extern "C" fn(i32, *mut Info, *mut SignalContext) =
                core::mem::transmute(action.handler as usize);
            handler(signal, info, context);
        }
        enter(thread);
        // It may have changed the mask that it returns to.
        let after = context.mask & SIGSYS != 0;
        context.mask &= !SIGSYS;
        block(thread, after);
    }
    thread.dispatch.set(selector);
}

/// SIGSYS ends the process, as it would have without us.
#[cold]
fn die(thread: &Thread, info: &Info) {
    thread.dispatch.set(ALLOW);
    let _ = Action::default().install(None);
    let _ = signal::send_to_self(libc::SIGSYS, info);
    let _ = signal::send(sys::gettid(), libc::SIGSYS);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mask_follows_what_is_said() {
        for before in [false, true] {
            assert!(blocked_by(libc::SIG_BLOCK, true, before));
            assert_eq!(blocked_by(libc::SIG_BLOCK, false, before), before);
            assert!(!blocked_by(libc::SIG_UNBLOCK, true, before));
            assert_eq!(blocked_by(libc::SIG_UNBLOCK, false, before), before);
            assert!(blocked_by(libc::SIG_SETMASK, true, before));
            assert!(!blocked_by(libc::SIG_SETMASK, false, before));
        }
    }

    #[test]
    fn waiting_calls_lose_sigsys_from_their_masks() {
        let set = u64::MAX;
        let sized = [&raw const set as u64, MASK_BYTES];
        let cases = [
            (
                libc::SYS_rt_sigsuspend,
                [&raw const set as u64, 8, 0, 0, 0, 0],
            ),
            (libc::SYS_ppoll, [0, 0, 0, &raw const set as u64, 8, 0]),
            (
                libc::SYS_epoll_pwait,
                [0, 0, 0, 0, &raw const set as u64, 8],
            ),
            (libc::SYS_pselect6, [0, 0, 0, 0, 0, sized.as_ptr() as u64]),
        ];
        for (nr, args) in cases {
            let seen = with_mask(
                &Frame {
                    nr: nr as u64,
                    args,
                },
                |made| {
                    let n = (0..6)
                        .find(|n| made.args[*n] != args[*n])
                        .expect("a changed argument");
                    let at = made.args[n] as *const u64;
                    // SAFETY: what was put in place of the set, or of its address and size.
                    unsafe {
                        if n == 5 {
                            *(*at as *const u64) as i64
                        } else {
                            *at as i64
                        }
                    }
                },
            );
            assert_eq!(seen as u64, !SIGSYS, "{nr}");
        }
        let untouched = Frame {
            nr: libc::SYS_read as u64,
            args: [1, 2, 3, 4, 5, 6],
        };
        assert_eq!(
            with_mask(&untouched, |made| i64::from(made.args == untouched.args)),
            1
        );
    }
}
