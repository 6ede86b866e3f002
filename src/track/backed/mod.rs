//! Calls on private memory that is a file's ([`crate::share`]): what the kernel would do
//! otherwise for a shared mapping is done here as it does it for a private one.
//!
//! | call | shared mapping | here |
//! |---|---|---|
//! | fork | both write to it | frozen on both sides, or copied by the child; wiped or absent there if it was so advised |
//! | MADV_DONTNEED | the bytes stay | a hole in the file; fresh memory in the place of what is frozen |
//! | pkey_mprotect, mbind, MADV_HUGEPAGE and other advice that stays | done | done, and noted: what is put in its place gets it, too |
//! | MADV_MERGEABLE, mseal | nothing; never to be replaced | frozen first; what is sealed, anonymous if there is one thread |
//! | MADV_FREE, MADV_WIPEONFORK | EINVAL | the first does nothing, the second is noted |
//! | MADV_REMOVE, remap_file_pages, mremap of old size 0 | done | EINVAL |
//! | mremap | follows the file | the file if all of it is meant; else fresh memory behind it, or all of it moved piece by piece; several mappings one by one |
//! | munmap, MAP_FIXED, brk | the file keeps its pages | a hole in the file |

use super::settling::settle;
use super::turns::lock_alone;
use super::{future_flags, guards, lock, resync, retracting, seals, State, USER_END};
use crate::arch::Frame;
use crate::base::{counters, settings};
use crate::policy;
use crate::registrar::pin;
use crate::share::marks::{self, Kept, Marks, Policy};
use crate::share::{self, table::Part};
use crate::sys::{self, Errno, Undisturbed};
use core::ops::ControlFlow;
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags, Kind, Prot};

mod advice;
mod fork;
mod remap;
mod several;

use advice::advise_again;
pub use advice::{concerns, madvise};
pub use fork::{before_fork, late_child, stack_is_inherited};
pub use remap::{moved_as_it_was, mremap};
pub use several::move_each;

/// What was advised about children.
const ADVISED: Flags = Flags::WIPED.with(Flags::NOT_FORKED);

/// What the ledger says of memory that is a file's.
fn attr_of(prot: Prot) -> Attr {
    let prot = Prot::from_call(u64::from(prot.bits()), true);
    let flags = future_flags().with(Flags::BACKED);
    policy::described(policy::fresh(prot, Kind::File, flags), pin::holding())
}

/// Puts a file behind a mapping that is new, if that can be; `attr` says so then.
#[cold]
#[inline(never)]
pub fn fresh(range: PageRange, attr: &mut Attr) {
    // Nobody jumps away between the file and its entry: it would stay open for good.
    let _undisturbed = Undisturbed::new();
    let room = lock().is_some_and(|guard| guard.shared.now.has_room(share::most_files()));
    if !room || attr.flags.has(Flags::APP_LOCKED) || excluded_by_name() {
        return;
    }
    let Some(file) = share::back(range, u64::from(attr.prot.bits())) else {
        return;
    };
    let entered = lock().is_some_and(|mut guard| guard.shared.now.enter(range, file, 0, false));
    if !entered {
        share::close(file);
    }
    *attr = attr_of(attr.prot);
}

/// REGALL_EXCLUDE names anonymous memory: what it becomes would have another name.
fn excluded_by_name() -> bool {
    let patterns = settings::config().exclude.as_bytes();
    !patterns.is_empty()
        && [&b"[anon]"[..], b"[heap]"]
            .iter()
            .any(|name| crate::glob::matches_any(patterns, name))
}

/// As [`fresh`], for what the heap has grown by: more of the file that it ends with.
#[cold]
#[inline(never)]
pub fn fresh_heap(range: PageRange, attr: &mut Attr) {
    let file = lock().and_then(|guard| guard.shared.now.ends_at(range.start()));
    let prot = u64::from(attr.prot.bits());
    match file.filter(|file| share::back_more(range, prot, file)) {
        Some(file) => {
            if let Some(mut guard) = lock() {
                guard.shared.now.enter(range, file, file.used, false);
            }
            *attr = attr_of(attr.prot);
        }
        None => fresh(range, attr),
    }
}

fn is_backed(attr: &Attr) -> bool {
    attr.flags.has(Flags::BACKED)
}

/// Whether some of `range` is a file's.
#[cold]
#[inline(never)]
pub fn touches(range: PageRange) -> bool {
    share::any() && lock().is_some_and(|guard| first(&guard, range, is_backed).is_some())
}

/// The first part of `range` of which `which` is true.
fn first(
    state: &State,
    range: PageRange,
    which: impl Fn(&Attr) -> bool,
) -> Option<(PageRange, Attr)> {
    let mut found = None;
    state.ledger.for_each(range, |part, entry| {
        if which(&entry.attr) {
            found = Some((part, entry.attr));
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    });
    found
}
/// Whether it is shared behind the application's back.
fn is_live(attr: &Attr) -> bool {
    is_backed(attr) && attr.prot.shared()
}

/// Freezes `part`, piece by piece. What can't be (its descriptor is gone) stays shared, and
/// the child copies it.
fn freeze(part: PageRange) {
    retracting::retract(part);
    let mut from = part.start();
    while let Some(rest) = part.after(from) {
        // Nobody else is about it while its rights are read and given again: a call of
        // another thread's that has begun is waited for, one that has not waits for us.
        let Some(mut guard) = lock_alone(rest) else {
            return;
        };
        let Some((piece, attr)) = first(&guard, rest, is_live) else {
            return;
        };
        from = piece.end();
        let Some(file) = guard.shared.now.find(piece) else {
            continue;
        };
        from = file.range.end();
        freeze_piece(&mut guard, &file, attr);
    }
}

fn freeze_piece(state: &mut State, file: &Part, attr: Attr) {
    if !share::is_open(&file.file) {
        return;
    }
    let range = file.range;
    let prot = Prot::from_bits(attr.prot.bits() & 7);
    // First for peers: what they have mapped is not what we write to any more.
    state.update(range, |_, a| {
        let a = Attr { prot, ..a };
        policy::unregistered(policy::unsettled(a, pin::holding()))
    });
    let rights = u64::from(prot.bits());
    let (fd, kept) = (file.file.fd, Kept::of(file.marks, file.range.start()));
    let placed = marks::place(range, rights, libc::MAP_PRIVATE, fd, file.offset, &kept);
    match placed {
        Ok(()) => {
            if let Some(closed) = state.shared.now.freeze(range) {
                share::close(closed);
            }
            advise_again(range, attr.flags);
        }
        Err(_) => state.update(range, |_, a| Attr {
            prot: attr.prot,
            ..a
        }),
    }
}

/// What the application asks for `range` is about to be noted. Where there is no room to note
/// it, what is shared becomes private: then the kernel keeps it.
#[cold]
#[inline(never)]
pub fn make_room_to_mark(range: PageRange) {
    let room = |state: &mut State| state.shared.now.can_mark();
    if !lock().is_some_and(|mut guard| room(&mut guard)) {
        make_private(range);
    }
}

/// Notes what the kernel has given the application for `range`.
#[cold]
#[inline(never)]
pub fn mark(range: PageRange, f: impl Fn(Marks) -> Marks) {
    if let Some(mut guard) = lock() {
        let table = &mut guard.shared.now;
        if table.can_mark() {
            table.mark(range, f);
        }
    }
}

/// mseal(2). What is sealed can't be replaced any more, by a fork for instance: it is private
/// from now on. ENOMEM: it can't be made so, and no child could get memory of its own.
#[cold]
#[inline(never)]
pub fn mseal(frame: &Frame) -> i64 {
    let range = PageRange::from_call(frame.args[0], frame.args[1]);
    // What the kernel refuses whatever is there, it refuses at once.
    let mut nothing = *frame;
    nothing.args[1] = 0;
    let shared = range.filter(|r| touches(*r) && !super::failed(super::real(&nothing)));
    if let Some(shared) = shared {
        make_private(shared);
        before_seal(shared);
        if has_live(shared) {
            counters::count_call(Call::Mseal);
            log::info!("mseal is ENOMEM: threads run, and the descriptor of REGALL_SHARE's memory was closed");
            return -i64::from(Errno::NOMEM.0);
        }
    }
    let flight = super::open(Call::Mseal);
    let value = super::real(frame);
    if value == 0 {
        if let Some(shared) = shared {
            mark(shared, Marks::sealed);
        }
        if let Some(range) = range {
            seals::add(range);
        }
    }
    super::end(flight);
    value
}

/// What is sealed can't be replaced. Memory that a child is to find wiped and nobody can write to
/// becomes anonymous before it is: the child could not write zeroes to it, but the kernel wipes
/// it. So does all else where that can be: see [`make_own`].
fn before_seal(range: PageRange) {
    make_own(range);
    copy_parts(range, |a| {
        is_backed(a) && a.flags.has(Flags::WIPED) && !a.prot.writable()
    });
}

/// Bytes that are copied at the most for a policy or a seal.
const COPIED: u64 = 256 << 20;

/// What of `range` is frozen becomes anonymous, if this process has one thread and it is not too
/// much. The kernel keeps the NUMA policy of what is frozen with its file, so a child's would be
/// its parent's, too.
fn make_own(range: PageRange) {
    if range.len() <= COPIED && super::subscribers::alone() {
        copy_parts(range, |a| is_backed(a) && !a.prot.shared());
    }
}

/// What of `range` `which` is true of becomes anonymous. Nobody writes to it meanwhile.
///
/// What a userfaultfd watches stays what it is: other memory in its place would be watched no
/// more, and pages that the userfaultfd has put there are in no file.
fn copy_parts(range: PageRange, which: impl Fn(&Attr) -> bool) {
    let watches = guards::elsewhere();
    let which = |a: &Attr| which(a) && !(watches && a.flags.has(Flags::KEEP_LAZY));
    let mut from = range.start();
    while let Some(rest) = range.after(from) {
        let found = lock().and_then(|guard| first(&guard, rest, which));
        let Some((part, attr)) = found else {
            return;
        };
        from = part.end();
        retracting::retract(part);
        if fork::copy(part, attr.prot).is_ok() {
            advice::enter_fresh(part, attr);
            advise_again(part, attr.flags);
            settle(part);
        } else {
            // Some of it has been copied, perhaps, and is memory of another kind now.
            // SAFETY: the access that the application has given it.
            let _ =
                unsafe { sys::protect(part.start(), part.len(), i32::from(attr.prot.bits() & 7)) };
            resync::range(part, true);
        }
    }
}

/// mbind(2) is about to be made.
pub fn about_to_bind(frame: &Frame) {
    let range = PageRange::from_call(frame.args[0], frame.args[1]);
    if let Some(range) = range.filter(|r| touches(*r)) {
        make_own(range);
        make_room_to_mark(range);
    }
}

/// mbind(2) has been made: the policy is the memory's, whatever that becomes.
pub fn bound(frame: &Frame) {
    let range = PageRange::from_call(frame.args[0], frame.args[1]);
    if let Some(range) = range.filter(|r| touches(*r)) {
        let policy = Policy::at(range.start());
        mark(range, |m| m.with_policy(policy.as_ref()));
    }
}

/// Freezes what of `range` is shared: for those who are about to look at its pages. What can't be
/// (the program has closed its descriptor) is copied, but not under the hands of other threads.
#[cold]
#[inline(never)]
pub fn make_private(range: PageRange) {
    if touches(range) {
        freeze(range);
        settle(range);
        if has_live(range) && super::subscribers::alone() {
            copy_parts(range, is_live);
        }
    }
}

/// A userfaultfd is about to watch `range`. If this process has one thread, what of it is shared
/// becomes anonymous, as far as it has bytes: it is missing again after MADV_DONTNEED.
#[cold]
#[inline(never)]
pub fn about_to_watch(range: PageRange) {
    if range.len() <= COPIED && touches(range) && super::subscribers::alone() {
        copy_parts(range, is_live);
    }
    make_private(range);
}

fn has_live(range: PageRange) -> bool {
    lock().is_some_and(|guard| first(&guard, range, is_live).is_some())
}

/// From now on nothing is shared: a child is made in a way in which it could not be kept apart.
#[cold]
#[inline(never)]
pub fn stop_sharing() {
    if share::stop() {
        log::warn!("a process is made in a way that can't be followed: REGALL_SHARE ends");
    }
    if let Some(all) = PageRange::new(0, USER_END) {
        make_private(all);
    }
}

/// Freezes what is shared for good: nobody keeps account any more.
#[cold]
pub fn give_up(state: &mut State) {
    let mut rest = PageRange::new(0, USER_END);
    while let Some(range) = rest {
        let Some(file) = state.shared.now.find(range) else {
            return;
        };
        rest = range.after(file.range.end());
        if let (Some(attr), false) = (state.at(file.range.start()), file.frozen) {
            freeze_piece(state, &file, attr);
        }
    }
}
