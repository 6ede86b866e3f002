//! Children. A child of fork has a copy of everything here that is about its
//! parent: it begins anew, with a directory of its own. A child that shares the
//! address space (vfork, CLONE_VM) shares the ledger, too, and nothing is done.

use super::birth::{at_its_site, Asked, Birth};
use super::{
    anew, aside, backed, budget, deferred, descriptors, files, filters, flight, give_up, growing,
    hands, inherited, kept, lock, open, owed, progress, real, registering, subscribers, tags,
    taken, whole, State, APP_FUTURE, USER_END,
};
use crate::arch::Frame;
use crate::base::phase::{self, Phase};
use crate::base::{counters, settings, unseen};
use crate::registrar::hca::pairs;
use crate::sys::{self, file, lasting};
use crate::{store, thread};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering::*};
use regall_directory::addr::PageRange;
use regall_directory::layout::{Call, SETTING_FORKED};
use regall_directory::planted;
use regall_directory::vocab::Flags;

/// A word in a page that the kernel wipes in a child (MADV_WIPEONFORK): for the
/// price of a load every arrival knows whose it is. Where the kernel can't
/// (before 4.14, or no memory), an ordinary word; then every arrival asks for the pid.
static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());
static FALLBACK: AtomicU64 = AtomicU64::new(1);

/// Makes the mark. Once, at start-up; its page is the shim's.
pub fn init() -> Option<PageRange> {
    MARK.store(FALLBACK.as_ptr().cast::<AtomicU64>(), Relaxed);
    let page = sys::map_private(4096).ok()?;
    let at = page.as_ptr() as u64;
    let advice = planted!("fork-mark-stays", libc::MADV_NORMAL, libc::MADV_WIPEONFORK);
    // SAFETY: new memory, of which a child is to lose what it holds.
    if unsafe { sys::advise_any(at, 4096, advice) }.is_err() {
        // SAFETY: likewise; nobody knows of it.
        let _ = unsafe { sys::unmap(at, 4096) };
        return None;
    }
    let word = page.cast::<AtomicU64>();
    // SAFETY: fresh memory of a page.
    unsafe { word.as_ref() }.store(1, Relaxed);
    MARK.store(word.as_ptr(), Release);
    // SAFETY: likewise; it is never unmapped.
    regall_bridge::lock::marked_by(unsafe { word.as_ref() });
    PageRange::from_call(page.as_ptr() as u64, 4096)
}

/// Whether this is the process that made the mark; if not, becomes it.
#[inline]
pub fn check() {
    let mark = MARK.load(Relaxed);
    // SAFETY: set before tracking began; never unmapped.
    if let Some(word) = unsafe { mark.as_ref() } {
        let ordinary = core::ptr::eq(mark, &raw const FALLBACK);
        if word.load(Relaxed) == 0 || ordinary && is_child() {
            late_child();
        }
    }
}

/// The same without the mark. A child of vfork or clone that shares memory has another pid,
/// too, but the directory is there: children of fork don't get it.
#[cold]
#[inline(never)]
fn is_child() -> bool {
    let header = counters::header().map(|h| &raw const *h as u64);
    let is_gone = |at| sys::can_read(at) == Some(false);
    !sys::is_memory_owner() && header.is_some_and(is_gone)
}

/// In a child of a fork that was not seen: late, but better than never.
#[cold]
#[inline(never)]
fn late_child() {
    let flight = child(true);
    if crate::share::any() {
        backed::late_child();
    }
    drop(flight);
}

/// Becomes a process of its own, if it had to wait for that and need not wait any more. Whether
/// it has.
#[cold]
pub fn begins_at_last() -> bool {
    if phase::phase() != Phase::Waiting || lock::is_below_us() {
        return false;
    }
    late_child();
    phase::tracking()
}

/// A call that makes a process or a thread. One with memory of its own is made from here, so
/// that it begins anew before it returns to the application.
#[inline(never)]
pub fn fork(frame: &mut Frame) -> i64 {
    let birth = match Asked::of(frame) {
        Asked::Own(birth) => birth,
        Asked::Shared { .. } => return at_its_site(frame),
        Asked::Unknown => {
            pairs::share();
            backed::stop_sharing();
            return at_its_site(frame);
        }
        Asked::Refused => return real(frame),
    };
    pairs::share();
    // What is written afterwards is written to copies; KNEM may have the originals.
    if let Some(all) = PageRange::new(0, USER_END) {
        subscribers::pages_replaced(all);
    }
    let apart = crate::share::any();
    // Otherwise nothing has to be done before it, and the child finds out by itself.
    let seen = apart || !birth.vfork && registering::active();
    if birth.moves() && !(seen && backed::stack_is_inherited()) {
        if apart {
            backed::stop_sharing();
        }
        SHARING_LATER.fetch_or(birth.files, Relaxed);
        return at_its_site(frame);
    }
    let value = match apart {
        true => fork_apart(&birth),
        false => fork_here(&birth),
    };
    if value == 0 && birth.moves() {
        // SAFETY: the arrival that is being handled; nothing is left to drop.
        unsafe { birth.land(frame) }
    }
    value
}

/// As [`fork`] while nothing is tracked.
#[cold]
#[inline(never)]
pub fn untracked(frame: &mut Frame) -> i64 {
    match Asked::of(frame) {
        Asked::Own(birth) if !birth.moves() => birth.call(real),
        Asked::Refused => real(frame),
        _ => at_its_site(frame),
    }
}

/// Children that share their parent's descriptors and are being made. A child has a copy of
/// the number.
static SHARING: AtomicU32 = AtomicU32::new(0);
/// Such a child was left to find out by itself that it is one.
static SHARING_LATER: AtomicBool = AtomicBool::new(false);

/// The call itself. Nothing comes or goes meanwhile that a child of fork has to close, in whatever
/// thread; and no handler in this one, which would wait for itself, or jump away.
fn made(birth: &Birth) -> i64 {
    let adapters = !birth.vfork && registering::active();
    let _undisturbed = adapters.then(sys::Undisturbed::new);
    let _still = adapters.then(hands::Still::begin);
    SHARING.fetch_add(u32::from(birth.files), Relaxed);
    let value = birth.call(real);
    if value != 0 {
        SHARING.fetch_sub(u32::from(birth.files), Relaxed);
    }
    value
}

fn fork_here(birth: &Birth) -> i64 {
    let flight = begun(birth);
    let value = made(birth);
    if value == 0 {
        // The flight is the parent's.
        core::mem::forget(flight);
        drop(child(false));
        return 0;
    }
    drop(flight);
    value
}

/// Who waits for a child to exec (CLONE_VFORK) is not in the midst of anything.
fn begun(birth: &Birth) -> Option<flight::Flight> {
    let flight = open(Call::Fork);
    (!birth.vfork).then_some(flight)
}

/// As [`fork_here`], where memory is shared with others that is private to the application.
#[cold]
#[inline(never)]
fn fork_apart(birth: &Birth) -> i64 {
    // A handler in between would see, or write to, what is not yet its process's own.
    let _undisturbed = sys::Undisturbed::new();
    let flight = begun(birth);
    let plan = match backed::before_fork() {
        Ok(plan) => plan,
        Err(errno) => return -i64::from(errno.0),
    };
    let value = made(birth);
    if value == 0 {
        core::mem::forget(flight);
        let flight = child(false);
        plan.in_child();
        drop(flight);
        return 0;
    }
    plan.after(value)
}

/// In a child, before anything else: nothing of the parent's may be touched. Its fork is in
/// progress until the flight ends. `late`: nobody saw its parent make it.
#[cold]
#[inline(never)]
fn child(late: bool) -> Option<flight::Flight> {
    if lock::is_below_us() && !crate::share::any() {
        // The ledger is half changed, and whose change it is goes on in this process when the
        // handler that made it returns. Only then can it be begun anew.
        if phase::phase() != Phase::Waiting {
            store::stand_in();
            phase::wait();
            // They are its parent's, and opened each time until it begins.
            lasting::forget();
        }
        return None;
    }
    if phase::phase() == Phase::Waiting {
        store::end_stand_in();
    }
    // A handler that jumps away would leave it half a child, or its directory saying for ever
    // that a call is in progress.
    let undisturbed = sys::Undisturbed::new();
    // SAFETY: as in `check`.
    if let Some(mark) = unsafe { MARK.load(Relaxed).as_ref() } {
        mark.store(1, Relaxed);
    }
    // If two threads have made children at one time, what one shares the other leaves open.
    let sharing = SHARING.swap(0, Relaxed) != 0;
    let later = SHARING_LATER.swap(false, Relaxed);
    let shared = sharing || late && later;
    file::inherited_are_shared(shared);
    descriptors::child(shared);
    lasting::child(!shared && (!late || sys::is_alone()));
    counters::use_header(core::ptr::null_mut());
    crate::share::child_begins();
    lock::reset();
    regall_bridge::lock::in_process();
    thread::current().forget();
    growing::child();
    kept::look_soon();
    taken::child();
    sys::own_memory();
    // A child has none of its parent's locks.
    planted!("fork-keeps-locks", (), APP_FUTURE.store(0, Relaxed));
    for told in subscribers::table().child_begins {
        told();
    }
    {
        let Some(mut guard) = lock::take().ok() else {
            give_up("no lock after fork");
            return None;
        };
        start_anew(&mut guard);
    }
    unseen::memory_gone();
    phase::begin();
    let flight = open(Call::Fork);
    flight::made();
    drop(undisturbed);
    let all = settings::config().fork_all;
    let inherited = planted!("fork-pins-inherited", Flags::EMPTY, Flags::INHERITED);
    let extra = if all { Flags::EMPTY } else { inherited };
    inherited::child(!all);
    if let (false, Some(h)) = (all, counters::header()) {
        h.settings.fetch_or(SETTING_FORKED, Relaxed);
    }
    whole::first(extra);
    for told in subscribers::table().child_tracked {
        told();
    }
    if let Some(mut guard) = lock() {
        filters::enter_rooms(&mut guard);
    }
    Some(flight)
}

/// An empty ledger and a new directory, for a child: the old one is its parent's
/// and not mapped here.
#[cold]
#[inline(never)]
fn start_anew(state: &mut State) {
    deferred::reset();
    files::child();
    flight::reset();
    progress::forget();
    state.ledger.rebuild();
    aside::rebuild(&mut state.aside);
    // What the shim has opened for itself is a copy of the parent's: it keeps its regions alive. The
    // program may have files of its own there.
    state.hca.forget(|device| {
        let fd = device.hint.fd();
        if device.ours && tags::is_parents(fd) {
            file::close_inherited(fd);
        }
    });
    state.reserved = 0;
    owed::forget();
    state.adopting = false;
    counters::use_header(core::ptr::null_mut());
    anew::new_directory(state);
    budget::look_again(state);
}
