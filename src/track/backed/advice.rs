//! Advice on memory that is a file's.

use super::mark as mark_file;
use super::{first, is_backed, make_private, make_room_to_mark, touches, ADVISED};
use crate::arch::Frame;
use crate::policy;
use crate::registrar::pin::{self, PinSet};
use crate::share;
use crate::share::marks::{self, Kept, Marks};
use crate::sys::{self, Errno, DONTNEED_LOCKED};
use crate::track::discard::{self, GUARD_INSTALL};
use crate::track::settling::{repin, settle};
use crate::track::turns::lock_for;
use crate::track::unpinning::enter_grown;
use crate::track::{close, failed, future_flags, lock, open, retracting, seals};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags, Kind, Prot};

const INVAL: i64 = -(Errno::INVAL.0 as i64);
const NOMEM: i64 = -(Errno::NOMEM.0 as i64);

/// Whether `advice` is one that shared memory takes otherwise.
#[inline]
pub fn concerns(advice: i32) -> bool {
    matches!(
        advice,
        libc::MADV_DONTNEED
            | DONTNEED_LOCKED
            | libc::MADV_FREE
            | libc::MADV_REMOVE
            | libc::MADV_WIPEONFORK
            | libc::MADV_KEEPONFORK
            | libc::MADV_DONTFORK
            | libc::MADV_DOFORK
            | GUARD_INSTALL
    ) || Marks::know(advice)
}

/// madvise(2), mapping by mapping as the kernel goes, if some of the range is a file's.
#[cold]
#[inline(never)]
pub fn madvise(frame: &Frame) -> Option<i64> {
    let [addr, len, advice, ..] = frame.args;
    let range = PageRange::from_call(addr, len)?;
    if !marks(advice as i32) && !touches(range) {
        return None;
    }
    if let Some(mut guard) = lock() {
        enter_grown(&mut guard, range);
    }
    let mut from = range.start();
    let mut holes = false;
    while let Some(rest) = range.after(from) {
        let next = lock().and_then(|guard| first(&guard, rest, |_| true));
        let Some((part, attr)) = next else {
            holes = true;
            break;
        };
        holes |= part.start() > from;
        let part = sealed_alike(part);
        from = part.end();
        let mut piece = *frame;
        (piece.args[0], piece.args[1]) = (part.start(), part.len());
        let value = if is_backed(&attr) {
            advise_part(part, attr, &mut piece)
        } else {
            let value = discard::madvise(&mut piece);
            if value == 0 {
                note(part, advice as i32);
            }
            value
        };
        match value {
            NOMEM => holes = true,
            value if failed(value) => return Some(value),
            _ => (),
        }
    }
    Some(if holes { NOMEM } else { 0 })
}

/// As much of `part`'s beginning as is sealed, or is not.
fn sealed_alike(part: PageRange) -> PageRange {
    let Some(mut guard) = lock() else {
        return part;
    };
    let table = &mut guard.shared.now;
    if !table.is_sealed(part) {
        return part;
    }
    let end = match table.find(part) {
        Some(file) if file.range.start() > part.start() => file.range.start(),
        Some(file) => file.range.end(),
        None => part.end(),
    };
    part.before(end).unwrap_or(part)
}

/// Whether `advice` makes bytes disappear. Where they could not be written to, a seal is
/// against it (mseal(2)); to the kernel, which asks for anonymous memory, ours is a file's.
fn breaks_a_seal(part: PageRange, attr: &Attr, advice: i32) -> bool {
    let discards = matches!(
        advice,
        libc::MADV_DONTNEED
            | DONTNEED_LOCKED
            | libc::MADV_FREE
            | libc::MADV_REMOVE
            | libc::MADV_WIPEONFORK
            | libc::MADV_DONTFORK
            | GUARD_INSTALL
    );
    discards
        && !attr.prot.writable()
        && lock().is_some_and(|guard| guard.shared.now.is_sealed(part))
}

fn advise_part(part: PageRange, attr: Attr, frame: &mut Frame) -> i64 {
    let advice = frame.args[2] as i32;
    let locked = attr.flags.has(Flags::APP_LOCKED);
    match advice {
        _ if breaks_a_seal(part, &attr, advice) => -i64::from(Errno::PERM.0),
        libc::MADV_REMOVE => INVAL,
        // Shared memory is never merged.
        libc::MADV_MERGEABLE => {
            make_private(part);
            if attr.prot.writable() {
                make_anonymous(part);
            }
            marked(part, frame)
        }
        // A flag of the kernel's mapping.
        _ if Marks::know(advice) => {
            make_room_to_mark(part);
            marked(part, frame)
        }
        libc::MADV_DONTNEED | libc::MADV_FREE | GUARD_INSTALL if locked => INVAL,
        GUARD_INSTALL => install_guards(part, attr, frame),
        libc::MADV_FREE => 0,
        libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
            note(part, advice);
            0
        }
        libc::MADV_DONTFORK | libc::MADV_DOFORK => {
            // SAFETY: as the application has it.
            match unsafe { sys::advise_any(part.start(), part.len(), advice) } {
                Ok(()) => {
                    note(part, advice);
                    0
                }
                Err(errno) => -i64::from(errno.0),
            }
        }
        _ => match empty(part, attr) {
            Ok(()) => 0,
            Err(errno) => -i64::from(errno.0),
        },
    }
}

/// MADV_GUARD_INSTALL. Guards are in the page tables, and those go when memory is frozen: fresh
/// memory gets them. Where the kernel has no guards, the bytes stay.
fn install_guards(part: PageRange, attr: Attr, frame: &mut Frame) -> i64 {
    // SAFETY: of no byte; it asks whether the kernel knows it.
    if unsafe { sys::advise_any(part.start(), 0, GUARD_INSTALL) }.is_err() {
        return INVAL;
    }
    let flight = open(Call::Madvise);
    let value = match replace(part, attr) {
        Ok(()) => discard::madvise(frame),
        Err(errno) => -i64::from(errno.0),
    };
    if value == 0 {
        discard::keep_lazy(part);
    }
    settle(part);
    close(flight, part);
    value
}

/// Pages of a file that is mapped privately become copies, as if somebody had written to them:
/// the kernel merges nothing else.
fn make_anonymous(part: PageRange) {
    const POPULATE_WRITE: i32 = 23;
    const PAGES: usize = 512;
    let mut there = [0u8; PAGES];
    let mut from = part.start();
    while let Some(rest) = part.after(from) {
        let here = rest.before(from + PAGES as u64 * PAGE).unwrap_or(rest);
        from = here.end();
        let (at, len) = (here.start(), here.len());
        let there = there.get_mut(..(len / PAGE) as usize).unwrap_or(&mut []);
        if sys::residency(at, there).is_err() {
            return;
        }
        let pages = (at..).step_by(PAGE as usize).zip(&*there);
        for (page, _) in pages.filter(|(_, in_core)| **in_core & 1 != 0) {
            let _ = sys::advise(page, PAGE, POPULATE_WRITE);
        }
    }
}

/// Advice that stays with a mapping.
fn marked(part: PageRange, frame: &mut Frame) -> i64 {
    let value = discard::madvise(frame);
    if value == 0 {
        mark_file(part, |m| m.advised(frame.args[2] as i32));
    }
    value
}

/// Whether `advice` is about children, and stays with the memory.
fn marks(advice: i32) -> bool {
    use libc::{MADV_DOFORK, MADV_DONTFORK, MADV_KEEPONFORK, MADV_WIPEONFORK};
    matches!(
        advice,
        MADV_WIPEONFORK | MADV_KEEPONFORK | MADV_DONTFORK | MADV_DOFORK
    )
}

/// The ledger knows of advice about children: what memory becomes behind the application's
/// back has to be advised again.
fn note(part: PageRange, advice: i32) {
    match advice {
        libc::MADV_WIPEONFORK => mark(part, |f| f.with(Flags::WIPED)),
        libc::MADV_KEEPONFORK => mark(part, |f| f.without(Flags::WIPED)),
        libc::MADV_DONTFORK => {
            mark(part, |f| f.with(Flags::NOT_FORKED));
            seals::forget(part);
        }
        libc::MADV_DOFORK => mark(part, |f| f.without(Flags::NOT_FORKED)),
        _ => (),
    }
}

/// What goes with memory, whatever is put in its place.
pub(super) const KEPT: Flags = ADVISED.with(Flags::APP_LOCKS);

/// Advises new memory at `part` as the memory was that had `flags`, and locks it.
pub(super) fn advise_again(part: PageRange, flags: Flags) {
    for (flag, advice) in [
        (Flags::WIPED, libc::MADV_WIPEONFORK),
        (Flags::NOT_FORKED, libc::MADV_DONTFORK),
    ] {
        if flags.has(flag) {
            // SAFETY: as the application had it.
            let _ = unsafe { sys::advise_any(part.start(), part.len(), advice) };
        }
    }
    if flags.has(Flags::APP_LOCKED) {
        let onfault = flags.has(Flags::APP_ONFAULT);
        // What can't be accessed is locked all the same, and an error.
        let _ = sys::lock_memory(part.start(), part.len(), onfault);
    }
}

pub(super) fn mark(part: PageRange, flags: impl Fn(Flags) -> Flags) {
    if let Some(mut guard) = lock() {
        guard.update(part, |_, a| Attr {
            flags: flags(a.flags),
            ..a
        });
    }
}

/// `part` is zeroes from now on, and takes no memory.
fn empty(part: PageRange, attr: Attr) -> sys::Result<()> {
    let flight = open(Call::Madvise);
    if let Some(guard) = lock_for(&[Some(part)]) {
        flight.claim(&guard, part);
    }
    retracting::refresh(part);
    let mut from = part.start();
    let mut done = Ok(());
    while let Some(rest) = part.after(from) {
        let file = lock().and_then(|guard| guard.shared.now.find(rest));
        // What is in no file of the table, up to where one begins.
        let bare = match &file {
            Some(file) => rest.before(file.range.start()),
            None => Some(rest),
        };
        let (here, punched) = match (bare, file) {
            (None, Some(file)) => (file.range, share::punch(&file).is_ok()),
            (bare, _) => (bare.unwrap_or(rest), false),
        };
        from = here.end();
        if !punched {
            done = done.and(replace(here, attr));
        }
    }
    repin(part);
    settle(part);
    close(flight, part);
    done
}

/// Fresh private memory in the place of `part`, which is about to be told to be empty.
/// What was asked for it holds for that.
pub(super) fn replace(part: PageRange, attr: Attr) -> sys::Result<()> {
    let rights = u64::from(attr.prot.bits());
    let mut from = part.start();
    while let Some(rest) = part.after(from) {
        let file = lock().and_then(|guard| guard.shared.now.find(rest));
        let (here, kept) = match &file {
            Some(file) if file.range.start() == from => (file.range, Kept::of(file.marks, from)),
            Some(file) => (
                rest.before(file.range.start()).unwrap_or(rest),
                Kept::NOTHING,
            ),
            None => (rest, Kept::NOTHING),
        };
        from = here.end();
        match marks::place_fresh(here, rights, &kept) {
            Ok(()) => enter_fresh(here, attr),
            // It is sealed.
            Err(Errno::PERM) => marks::clear(here).map_err(|_| Errno::PERM)?,
            Err(errno) => return Err(errno),
        }
    }
    advise_again(part, attr.flags);
    Ok(())
}

/// `part` is private anonymous memory now, that nobody has touched.
pub(super) fn enter_fresh(part: PageRange, like: Attr) {
    let prot = Prot::from_call(u64::from(like.prot.bits() & 7), false);
    let kept = Flags::from_bits(like.flags.bits() & KEPT.bits());
    // What we map in the application's name is locked if what it stands for was.
    let future = future_flags();
    let flags = match like.flags.has(Flags::APP_LOCKED) {
        true => future.with(kept),
        false => kept,
    };
    if future.has(Flags::APP_LOCKED) && !like.flags.has(Flags::APP_LOCKED) {
        let _ = PinSet.deregister(part);
    }
    let attr = policy::fresh(prot, Kind::Anon, flags);
    let attr = policy::described(attr, pin::holding());
    if let Some(mut guard) = lock() {
        guard.remove(part, |_, _| ());
        guard.insert(part, attr);
    }
}
