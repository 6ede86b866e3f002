//! Strict mode: Syscall User Dispatch in every thread. System calls from code
//! outside of libc's text arrive here as SIGSYS unless this thread's selector
//! byte says that they are ours; libc's own memory calls arrive by its patched
//! sites, its other calls stay as fast as they were.
//!
//! The selector is open (ALLOW) only while a hook runs. Whoever leaves a hook
//! shuts it, whatever it was before: a call of our own that meets it shut (a
//! signal handler of the application's interrupted a hook and called one
//! itself) opens it again through the handler here. So no way into this
//! library has to know of strict mode to work, and after a jump out of a
//! handler the next hook sets things right.
//!
//! An application's signal handler that interrupts a hook runs with the
//! selector open: its calls from unpatched sites are not seen until a hook
//! has ended in it. Calls that block are therefore made with it shut, from a
//! `syscall` in libc's text.

use crate::arch::{self, Frame, SignalContext};
use crate::base::{counters, maps, mode, phase};
use crate::patch;
use crate::sys::dispatch;
use crate::sys::file::Fd;
use crate::sys::signal::MASK_BYTES;
use crate::thread::{self, Thread};
use crate::track;
use crate::track::birth::Asked;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use regall_directory::layout::{Call, Counter};
use regall_directory::numbers;
use regall_directory::planted;

use super::hook;

pub mod signals;
pub mod waits;

use signals::Info;

/// What the selector can say.
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// Whether the dispatcher is in use in this process.
static ON: AtomicBool = AtomicBool::new(false);
/// libc's text: start and bytes. Calls from there are not dispatched.
static LIBC: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// Our text, as above. Calls from there are nobody else's business.
static OWN: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];
/// In libc's text: [`arch::RESTORER`] and [`arch::CALL_AND_RETURN`].
static RESTORER: AtomicU64 = AtomicU64::new(0);
static CALL_SITE: AtomicU64 = AtomicU64::new(0);
/// Whether the user was told that there are calls that can't be followed.
static TOLD: AtomicBool = AtomicBool::new(false);

/// Whether the program is Go's: signals that arrive on a goroutine's stack, of 2 KiB at
/// first, write over what is below it. Its linker leaves a note in the file's first page.
#[cold]
#[inline(never)]
pub fn stacks_are_too_small() -> bool {
    let mut page = [0u8; 4096];
    let program = Fd::open(c"/proc/self/exe", libc::O_RDONLY | libc::O_CLOEXEC, 0);
    let Ok(len) = program.and_then(|fd| fd.read_on(&mut 0, &mut page)) else {
        return false;
    };
    let start = page.get(..len).unwrap_or(&[]);
    start.windows(16).any(is_go_note)
}

/// A note (elf(5)): the name's length, the description's, the type, the name.
fn is_go_note(bytes: &[u8]) -> bool {
    const BUILD_ID: u8 = 4;
    matches!(
        bytes,
        [4, 0, 0, 0, _, _, 0, 0, BUILD_ID, 0, 0, 0, b'G', b'o', 0, 0]
    )
}

/// The dispatcher for this thread and, from now on, for all that it starts.
/// False if it can't be had.
pub fn start() -> bool {
    if !find_text() || !signals::take_over(RESTORER.load(Relaxed)) {
        return false;
    }
    if !arm(thread::current()) {
        signals::give_back();
        return false;
    }
    ON.store(true, Release);
    true
}

/// Finds out where libc's text is and ours.
fn find_text() -> bool {
    let Some(inside) = patch::find_function("getpid") else {
        return false;
    };
    let Some(libc) = text_around(inside) else {
        return false;
    };
    let Some(own) = text_around(hook as *const () as u64) else {
        return false;
    };
    // SAFETY: libc's text is mapped and readable, and stays.
    let bytes = unsafe { core::slice::from_raw_parts(libc.0 as *const u8, libc.1 as usize) };
    let find = |code: &[u8]| {
        bytes
            .windows(code.len())
            .position(|w| w == code)
            .map(|n| libc.0 + n as u64)
    };
    let (Some(restorer), Some(site)) = (find(&arch::RESTORER), find(&arch::CALL_AND_RETURN)) else {
        return false;
    };
    for (place, (start, bytes)) in [(&LIBC, libc), (&OWN, own)] {
        place[0].store(start, Relaxed);
        place[1].store(bytes, Relaxed);
    }
    RESTORER.store(restorer, Relaxed);
    CALL_SITE.store(site, Relaxed);
    true
}

/// Start and bytes of the readable text around `addr`.
fn text_around(addr: u64) -> Option<(u64, u64)> {
    let mut buffer = [0u8; maps::BUFFER_BYTES];
    let mut found: Option<(u64, u64)> = None;
    // One mapping, or several neighbours if some of its pages were written to.
    let _ = maps::lines(&mut buffer, |line| {
        let (start, end) = (line.range.start(), line.range.end());
        let text = line.prot.executable() && line.prot.readable();
        match found {
            Some((first, to)) if text && to == start => found = Some((first, end)),
            Some((first, to)) if (first..to).contains(&addr) => return false,
            _ => found = text.then_some((start, end)),
        }
        true
    });
    let (start, end) = found.filter(|(start, end)| (*start..*end).contains(&addr))?;
    Some((start, end - start))
}

fn within(place: &[AtomicU64; 2], addr: u64) -> bool {
    addr.wrapping_sub(place[0].load(Relaxed)) < place[1].load(Relaxed)
}

/// Turns the dispatcher on in this thread.
fn arm(thread: &Thread) -> bool {
    thread.tid();
    let libc = [&LIBC[0], &LIBC[1]].map(|n| n.load(Relaxed));
    // SAFETY: SIGSYS is ours by now, and a thread's block is there as long as the thread.
    let armed = unsafe { dispatch::turn_on(libc, thread.dispatch.as_ptr()) };
    thread.strict.set(armed.is_ok());
    armed.is_ok()
}

/// A hook begins: calls of our own are let through.
#[inline]
pub fn enter(thread: &Thread) {
    if thread.strict.get() {
        thread.dispatch.set(ALLOW);
    }
}

/// A hook ends.
#[inline]
pub fn leave(thread: &Thread) {
    if thread.strict.get() {
        thread.dispatch.set(BLOCK);
    }
}

/// For ways in that are no hooks: calls of our own are let through as long as
/// this lives.
pub struct Pass(&'static Thread);

/// See [`Pass`].
#[inline]
pub fn pass() -> Pass {
    let thread = thread::current();
    enter(thread);
    Pass(thread)
}

impl Drop for Pass {
    #[inline]
    fn drop(&mut self) {
        leave(self.0);
    }
}

/// Whether calls are dispatched.
pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// In a child of fork, which has a copy of everything but the dispatcher.
pub fn child() {
    if ON.load(Relaxed) && !arm(thread::current()) {
        log::warn!("no Syscall User Dispatch in this child: REGALL_INTERCEPT=strict acts as patch");
        ON.store(false, Relaxed);
        mode::not_strict();
    }
}

/// A call that matters in strict mode only. Made with the selector open.
pub fn handle(call: Call, frame: &mut Frame) -> i64 {
    if !ON.load(Relaxed) {
        return track::real(frame);
    }
    let thread = thread::current();
    match call {
        Call::ThreadStart => {
            let value = track::real(frame);
            let armed = thread.strict.get() || planted!("strict-thread", true, arm(thread));
            if !armed {
                log::warn!(
                    "no Syscall User Dispatch in a thread: calls from its unpatched sites are missed"
                );
            }
            value
        }
        Call::Sigaction => signals::action(thread, frame),
        _ if frame.nr != libc::SYS_rt_sigprocmask as u64 => {
            leave(thread);
            let value = signals::wait(thread, frame);
            enter(thread);
            value
        }
        _ => signals::mask(thread, frame),
    }
}

/// Makes a call from libc's text, where the selector does not matter: for calls
/// that may block, so that signal handlers run with it shut.
fn call_from_libc(frame: &Frame) -> i64 {
    // SAFETY: the address of `syscall; ret` in libc's text; the call is the
    // application's own, or asks where something of this thread's is.
    unsafe { arch::regall_call_at(frame, CALL_SITE.load(Relaxed)) }
}

/// SIGSYS. On this thread's stack, not an alternate one: those are too small for
/// a hook. Does not block itself, since the hook below may be interrupted by
/// a handler that makes a call that is dispatched.
extern "C" fn on_sigsys(signal: i32, info: *mut Info, context: *mut SignalContext) {
    let thread = thread::current();
    // SAFETY: the kernel built both on this stack, for this handler.
    let (info, context) = unsafe { (&mut *info, &mut *context) };
    if info.is_dispatch() {
        dispatched(thread, info, context);
    } else {
        signals::forward(thread, signal, info, context);
    }
}

fn dispatched(thread: &Thread, info: &Info, context: &mut SignalContext) {
    if within(&OWN, context.behind()) {
        thread.dispatch.set(ALLOW);
        return context.rewind();
    }
    if !phase::tracking() {
        return disarm(thread, context);
    }
    counters::count(Counter::Sigsys);
    let frame = context.frame();
    if info.arch() != arch::AUDIT_ARCH || !can_be_made_here(&frame) {
        return let_run(thread, &frame, context);
    }
    let value = match frame.nr as libc::c_long {
        libc::SYS_rt_sigreturn => {
            // SAFETY: the context of the handler that the application is in
            // begins at its stack pointer; this handler's own is not needed any more.
            unsafe { arch::regall_sigreturn_at(context.stack_pointer(), RESTORER.load(Relaxed)) }
        }
        libc::SYS_rt_sigprocmask => {
            let value = arrive(&frame);
            // Else the end of this handler puts the old mask back.
            ask(
                libc::SYS_rt_sigprocmask,
                [0, 0, &raw mut context.mask as u64, MASK_BYTES],
            );
            value
        }
        libc::SYS_sigaltstack => {
            let value = call_from_libc(&frame);
            ask(
                libc::SYS_sigaltstack,
                [0, context.stack.as_mut_ptr() as u64, 0, 0],
            );
            value
        }
        libc::SYS_clone | libc::SYS_clone3 => make_process(&frame, context),
        _ if numbers::call_of(frame.nr).is_some() || is_tracked_ioctl(&frame) => arrive(&frame),
        _ => signals::with_mask(&frame, call_from_libc),
    };
    context.set_result(value);
}

/// The application's call goes the way of all hooked calls.
fn arrive(frame: &Frame) -> i64 {
    // SAFETY: the call is the application's own.
    unsafe { arch::regall_arrive(frame) }
}

fn ask(nr: libc::c_long, [a, b, c, d]: [u64; 4]) {
    call_from_libc(&Frame {
        nr: nr as u64,
        args: [a, b, c, d, 0, 0],
    });
}

fn is_tracked_ioctl(frame: &Frame) -> bool {
    frame.nr == libc::SYS_ioctl as u64 && super::is_tracked_ioctl(frame.args[1])
}

/// What the kernel's own code for probes calls, at a function's return and at a probe. It
/// may be called from there alone.
const SYS_URETPROBE: libc::c_long = 335;
const SYS_UPROBE: libc::c_long = 336;

/// Whether a call does the same when it is made from the handler. The child of
/// one that shares this memory overwrites the handler's part of the stack, or does not come
/// back through the handler.
fn can_be_made_here(frame: &Frame) -> bool {
    match frame.nr as libc::c_long {
        libc::SYS_vfork | SYS_URETPROBE | SYS_UPROBE => false,
        libc::SYS_clone | libc::SYS_clone3 => match Asked::of(frame) {
            Asked::Own(birth) => birth.tls.is_none(),
            Asked::Refused => true,
            Asked::Shared { .. } | Asked::Unknown => false,
        },
        _ => true,
    }
}

/// A process is made on a copy of this stack, and goes on where it asks to.
fn make_process(frame: &Frame, context: &mut SignalContext) -> i64 {
    let Asked::Own(birth) = Asked::of(frame) else {
        return arrive(frame);
    };
    let value = birth.call(arrive);
    if value == 0 && birth.stack != 0 {
        context.set_stack_pointer(birth.stack);
    }
    value
}

/// Lets the application make its call itself. The selector stays open until
/// this thread's next hook ends; a thread or child that the call starts is not
/// followed before it makes a hooked call of its own.
#[cold]
fn let_run(thread: &Thread, frame: &Frame, context: &mut SignalContext) {
    thread.dispatch.set(ALLOW);
    if !TOLD.swap(true, Relaxed) {
        log::info!(
            "system call {} before {:#x} can't be followed; until the thread's next hooked call others may be missed",
            frame.nr,
            context.behind()
        );
    }
    context.rewind();
}

/// The shim has given up: this thread goes on without the dispatcher.
#[cold]
fn disarm(thread: &Thread, context: &mut SignalContext) {
    thread.strict.set(false);
    thread.dispatch.set(ALLOW);
    let _ = dispatch::turn_off();
    context.rewind();
}
