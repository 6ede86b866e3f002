//! Calls that throw pages away or look at them, and that locked memory makes
//! fail: madvise, process_madvise, msync. Our pins step aside for them, so that
//! they do what they do without the shim; then the pins come back, on the new
//! pages.

use super::pinning::{let_go, lock_for, repin, settle};
use super::{
    backed, close, end, failed, guards, lock, open, real, registering, subscribers, State,
};
use crate::arch::Frame;
use crate::base::{counters, settings};
use crate::config::Pin;
use crate::registrar::pin;
use crate::share;
use crate::sys::{self, file, Errno};
use crate::text::{number, Text};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags, Kind};

/// Advice that fails with EINVAL on locked memory (madvise(2), mm/madvise.c);
/// the last is MADV_GUARD_INSTALL (Linux 6.13).
const NEEDS_UNLOCKED: [i32; 6] = [
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_REMOVE,
    libc::MADV_COLD,
    libc::MADV_PAGEOUT,
    GUARD_INSTALL,
];
/// MADV_GUARD_INSTALL (Linux 6.13).
pub const GUARD_INSTALL: i32 = 102;
/// Advice after which an address may stand for other pages than those that an
/// adapter holds.
const NEW_PAGES: [i32; 5] = [
    libc::MADV_DONTNEED,
    libc::MADV_FREE,
    libc::MADV_REMOVE,
    DONTNEED_LOCKED,
    GUARD_INSTALL,
];
/// MADV_DONTNEED for locked memory (Linux 5.18).
pub const DONTNEED_LOCKED: i32 = 24;
/// UFFDIO_REGISTER_MODE_MISSING.
const MODE_MISSING: u64 = 1;
const INVAL: i64 = -(Errno::INVAL.0 as i64);

/// Whether this advice replaces pages that an adapter or the KNEM module has hold of.
fn replaces_pages(advice: i32) -> bool {
    NEW_PAGES.contains(&advice) && (registering::active() || subscribers::pages_held())
}

/// madvise(2).
#[inline(never)]
pub fn madvise(frame: &mut Frame) -> i64 {
    let advice = frame.args[2] as i32;
    if (share::any() || share::on()) && backed::concerns(advice) {
        if let Some(value) = backed::madvise(frame) {
            return value;
        }
    }
    madvise_here(frame)
}

/// As [`madvise`], of memory that is no file's behind the application's back.
#[inline]
pub fn madvise_here(frame: &mut Frame) -> i64 {
    let [addr, len, advice, ..] = frame.args;
    let advice = advice as i32;
    let again = advice == DONTNEED_LOCKED;
    let other_pages = replaces_pages(advice);
    let unlocked = NEEDS_UNLOCKED.contains(&advice) || again;
    if let (GUARD_INSTALL, Some(range)) = (advice, PageRange::from_call(addr, len)) {
        guards::guarded(range);
    }
    if !other_pages && (!unlocked || settings::config().pin == Pin::Off) {
        counters::count_call(Call::Madvise);
        // The last that a thread does is giving its stack's pages back.
        super::pay_debts();
        return real(frame);
    }
    let Some(range) = PageRange::from_call(addr, len) else {
        return real(frame);
    };
    let flight = open(Call::Madvise);
    let Some(guard) = lock_for(&[Some(range)]) else {
        // In a handler on top of the lock's holder: if the pins are in the way
        // it fails, as it may for an application that locks its memory itself.
        subscribers::pages_replaced(range);
        let value = real(frame);
        super::deferred::later(range);
        return value;
    };
    flight.claim(&guard, range);
    let pins = pins_in(&guard, range);
    drop(guard);
    if other_pages {
        registering::refresh(range);
    }
    let value = match pins {
        Pins::None => real(frame),
        _ if again => {
            let value = real(frame);
            repin(range);
            value
        }
        Pins::OnlyOurs if advice == libc::MADV_DONTNEED => drop_locked(frame, range),
        _ => {
            let_go(range);
            if advice == GUARD_INSTALL {
                keep_lazy(range);
            }
            let value = real(frame);
            settle(range);
            value
        }
    };
    if other_pages {
        settle(range);
    }
    let value = match value {
        INVAL if pin::is_forbidden_to_undo() => still_locked(frame, range, advice),
        other => other,
    };
    if log::log_enabled!(log::Level::Trace) {
        explain(range, advice, value);
    }
    close(flight, range);
    value
}

#[cold]
fn explain(range: PageRange, advice: i32, value: i64) {
    log::trace!("madvise {advice} of {range:?}: {value}");
    if let Some(guard) = lock() {
        guard.ledger.for_each(range, |part, e| {
            log::trace!(
                "  {part:?} {} {} {} {:#x}",
                e.attr.prot,
                e.attr.kind.word(),
                e.attr.pin,
                e.attr.flags.bits()
            );
            ControlFlow::Continue(())
        });
    }
}

#[derive(PartialEq, Eq)]
enum Pins {
    None,
    /// Every byte is mapped and nothing of it is locked by the application.
    OnlyOurs,
    Mixed,
}

fn pins_in(state: &State, range: PageRange) -> Pins {
    let (mut ours, mut apps, mut bytes) = (false, false, 0);
    state.ledger.for_each(range, |part, entry| {
        bytes += part.len();
        apps |= entry.attr.flags.has(Flags::APP_LOCKED);
        ours |= entry.attr.pin.held();
        ControlFlow::Continue(())
    });
    match (ours, apps, bytes == range.len()) {
        (false, ..) => Pins::None,
        (true, false, true) => Pins::OnlyOurs,
        _ => Pins::Mixed,
    }
}

/// What advice comes to that the kernel refuses although none of it is pinned: it was, and could
/// not be unpinned, as a filter has forbidden munlock since.
#[cold]
#[inline(never)]
fn still_locked(frame: &Frame, range: PageRange, advice: i32) -> i64 {
    let (mut bytes, mut private) = (0, true);
    if let Some(guard) = lock() {
        guard.ledger.for_each(range, |part, entry| {
            let attr = entry.attr;
            if !attr.flags.has(Flags::APP_LOCKED) {
                bytes += part.len();
            }
            let anonymous = matches!(
                attr.kind,
                Kind::Anon | Kind::Heap | Kind::Stack | Kind::ThreadStack
            );
            private &= anonymous && !attr.prot.shared();
            ControlFlow::Continue(())
        });
    }
    match advice {
        _ if bytes != range.len() => INVAL,
        libc::MADV_DONTNEED => real(&frame_with(frame, DONTNEED_LOCKED)),
        // Freed when memory is short: that may be at once.
        libc::MADV_FREE if private => real(&frame_with(frame, DONTNEED_LOCKED)),
        // Nobody has to take a hint.
        libc::MADV_COLD | libc::MADV_PAGEOUT => 0,
        _ => INVAL,
    }
}

fn frame_with(frame: &Frame, advice: i32) -> Frame {
    let mut other = *frame;
    other.args[2] = advice as u64;
    other
}

/// MADV_DONTNEED in one call that leaves the pins in place, where the kernel can.
fn drop_locked(frame: &mut Frame, range: PageRange) -> i64 {
    let mut value = real(&frame_with(frame, DONTNEED_LOCKED));
    if value == INVAL {
        let_go(range);
        value = real(frame);
        settle(range);
    } else {
        repin(range);
    }
    value
}

/// What is pinned of `range` is pinned on fault from now on: to populate guards is an error.
pub fn keep_lazy(range: PageRange) {
    if let Some(mut guard) = lock() {
        guard.update(range, |_, a| Attr {
            flags: a.flags.with(Flags::KEEP_LAZY),
            ..a
        });
    }
}

/// process_madvise(2), as far as it is about this very process.
#[cold]
#[inline(never)]
pub fn process_madvise(frame: &mut Frame) -> i64 {
    let [pidfd, vector, count, advice, ..] = frame.args;
    let advised = advice as i32;
    if advised == GUARD_INSTALL {
        guards::guarded_somewhere();
    }
    let concerned = share::any() && backed::concerns(advised);
    if concerned && is_self(pidfd as i32) {
        if let Some(value) = one_by_one(frame) {
            return value;
        }
    }
    let in_the_way = NEEDS_UNLOCKED.contains(&advised) && settings::config().pin != Pin::Off
        || replaces_pages(advised);
    if !in_the_way || !is_self(pidfd as i32) {
        counters::count_call(Call::ProcessMadvise);
        return real(frame);
    }
    let flight = open(Call::ProcessMadvise);
    // The vector may be anything: it is copied the way the kernel would.
    const BATCH: usize = 128;
    let mut ranges = [[0u64; 2]; BATCH];
    let n = (count as usize).min(BATCH);
    // SAFETY: n entries of 16 bytes fit.
    let copied = unsafe { sys::copy_checked(vector, ranges.as_mut_ptr().cast(), n * 16) };
    let known = if copied == Ok(n * 16) {
        ranges.get(..n).unwrap_or(&[])
    } else {
        &[]
    };
    let each = known
        .iter()
        .filter_map(|[at, len]| PageRange::from_call(*at, *len));
    let hull = each.clone().reduce(|a, b| {
        let (start, end) = (a.start().min(b.start()), a.end().max(b.end()));
        PageRange::new(start, end).unwrap_or(a)
    });
    if let (Some(hull), Some(guard)) = (hull, lock_for(&[hull])) {
        flight.claim(&guard, hull);
    }
    for range in each.clone() {
        registering::refresh(range);
        let_go(range);
    }
    let value = real(frame);
    for range in each {
        settle(range);
    }
    end(flight);
    value
}

/// process_madvise(2) of this process's own memory, some of which may be a file's behind the
/// application's back: range by range. `None`: the kernel has something against it.
#[cold]
#[inline(never)]
fn one_by_one(frame: &Frame) -> Option<i64> {
    let [_, vector, count, advice, ..] = frame.args;
    let mut none = *frame;
    none.args[2] = 0;
    if real(&none) != 0 || count > 1024 {
        return None;
    }
    let mut bytes = 0;
    for n in 0..count {
        let mut range = [0u64; 2];
        // SAFETY: two words of room.
        let copied = unsafe { sys::copy_checked(vector + 16 * n, range.as_mut_ptr().cast(), 16) };
        let [addr, len] = range;
        let mut one = Frame {
            nr: libc::SYS_madvise as u64,
            args: [addr, len, advice, 0, 0, 0],
        };
        let value = match copied {
            Ok(16) => madvise(&mut one),
            _ if n == 0 => return None,
            _ => break,
        };
        if failed(value) {
            return Some(if bytes > 0 { bytes } else { value });
        }
        bytes += len as i64;
    }
    Some(bytes)
}

/// Whether a pidfd stands for this process: the kernel says so in fdinfo.
#[cold]
#[inline(never)]
fn is_self(pidfd: i32) -> bool {
    // PIDFD_SELF_THREAD and PIDFD_SELF_THREAD_GROUP (Linux 6.14).
    if matches!(pidfd, -10000 | -10001) {
        return true;
    }
    let path: Text<64> = Text::of(format_args!("/proc/self/fdinfo/{pidfd}"));
    let mut buf = [0u8; 512];
    let Some(Ok(text)) = path.as_cstr().map(|p| file::read_small(p, &mut buf)) else {
        return false;
    };
    text.split(|b| *b == b'\n')
        .find_map(|line| line.strip_prefix(b"Pid:\t"))
        .and_then(number)
        .is_some_and(|pid| pid == u64::from(sys::getpid()))
}

/// msync(2): MS_INVALIDATE is EBUSY on locked memory.
#[inline(never)]
pub fn msync(frame: &mut Frame) -> i64 {
    let [addr, len, flags, ..] = frame.args;
    let range = PageRange::from_call(addr, len);
    let plain = flags & libc::MS_INVALIDATE as u64 == 0 || settings::config().pin == Pin::Off;
    let (Some(range), false) = (range, plain) else {
        counters::count_call(Call::Msync);
        return real(frame);
    };
    let flight = open(Call::Msync);
    let_go(range);
    let value = real(frame);
    settle(range);
    close(flight, range);
    value
}

/// The range of a struct uffdio_register.
#[cold]
#[inline(never)]
fn userfault_range(frame: &Frame) -> Option<PageRange> {
    let mut words = [0u64; 2];
    // SAFETY: two words of room.
    let copied = unsafe { sys::copy_checked(frame.args[2], words.as_mut_ptr().cast(), 16) };
    PageRange::from_call(words[0], words[1]).filter(|_| copied == Ok(16))
}

/// ioctl(UFFDIO_REGISTER): from here on a missing page is the application's
/// business. What we populated and nobody has written is given back, so that
/// it is missing again, and stays locked on fault.
#[cold]
#[inline(never)]
pub fn userfault(frame: &mut Frame) -> i64 {
    if share::any() {
        if let Some(range) = userfault_range(frame) {
            backed::make_private(range);
        }
    }
    let value = real(frame);
    if !failed(value) {
        // Pages that are missing are its business, whatever it says of them then.
        guards::guarded_somewhere();
    }
    if failed(value) || settings::config().pin == Pin::Off && !registering::active() {
        return value;
    }
    let flight = open(Call::Userfault);
    // struct uffdio_register begins with the range's start and length and the mode.
    let mut words = [0u64; 3];
    // SAFETY: three words of room.
    let copied = unsafe { sys::copy_checked(frame.args[2], words.as_mut_ptr().cast(), 24) };
    if let (Ok(24), Some(range)) = (copied, PageRange::from_call(words[0], words[1])) {
        keep_lazy(range);
        registering::refresh(range);
        let pinned = settings::config().pin != Pin::Off;
        if words[2] & MODE_MISSING != 0 && pinned && only_ours_to_drop(range) {
            let_go(range);
            drop_untouched(range);
        }
        settle(range);
    }
    end(flight);
    value
}

/// Whether all of `range` is private anonymous memory, where a page of zeroes that
/// goes comes back as zeroes, and some of it was populated by us. A process with
/// other threads may be writing there at this moment: then nothing is dropped.
fn only_ours_to_drop(range: PageRange) -> bool {
    let (mut any, mut all) = (false, true);
    if let Some(guard) = lock() {
        guard.ledger.for_each(range, |_, e| {
            any |= e.attr.pin.held() && !e.attr.flags.has(Flags::ONFAULT);
            all &= e.attr.kind == Kind::Anon && !e.attr.prot.shared();
            ControlFlow::Continue(())
        });
    }
    any && all && alone()
}

/// Whether this is the process's only thread, but for the helper: what peers have it put
/// there, they can put there themselves, too.
pub fn alone() -> bool {
    let helped = subscribers::helpers();
    // Two entries for the folder itself and its parent, and one for each thread.
    file::stat_path(c"/proc/self/task", false).is_ok_and(|s| s.links == 3 + helped)
}

/// Gives back pages that hold nothing but zeroes.
#[cold]
#[inline(never)]
fn drop_untouched(range: PageRange) {
    let mut page = [0u64; (PAGE / 8) as usize];
    let mut at = range.start();
    while at < range.end() {
        // SAFETY: the buffer is a page.
        let copied = unsafe { sys::copy_checked(at, page.as_mut_ptr().cast(), PAGE as usize) };
        if copied == Ok(PAGE as usize) && page.iter().all(|w| *w == 0) {
            let _ = sys::advise(at, PAGE, libc::MADV_DONTNEED);
        }
        at += PAGE;
    }
}

/// mbind(2): memory that we populated on the allocating node moves to where
/// the application now wants it.
#[cold]
#[inline(never)]
pub fn mbind(frame: &mut Frame) -> i64 {
    const MPOL_MF_MOVE: u64 = 2;
    let flight = open(Call::Mbind);
    let mut moving = *frame;
    if settings::config().pin == Pin::Populate {
        moving.args[5] |= MPOL_MF_MOVE;
    }
    if share::any() {
        backed::about_to_bind(frame);
    }
    let value = real(&moving);
    if value == 0 && share::any() {
        backed::bound(frame);
    }
    end(flight);
    value
}

/// io_uring_setup(2). Advice that is given through a ring (IORING_OP_MADVISE) is carried out
/// by a thread of the kernel's: no call is made that we could step aside for.
#[cold]
#[inline(never)]
pub fn ring(frame: &mut Frame) -> i64 {
    static SAID: AtomicBool = AtomicBool::new(false);
    counters::count_call(Call::IoUringSetup);
    let value = real(frame);
    if !failed(value) && settings::config().pin != Pin::Off && !SAID.swap(true, Relaxed) {
        log::info!(
            "io_uring is used: IORING_OP_MADVISE with DONTNEED, FREE, COLD or PAGEOUT fails with \
             EINVAL on memory that is pinned"
        );
    }
    value
}
