//! mremap of memory that is a file's.

use super::advice::{advise_again, enter_fresh, mark, KEPT};
use super::touches;
use crate::arch::Frame;
use crate::policy;
use crate::registrar::pin;
use crate::share::marks::Kept;
use crate::share::table::Part;
use crate::share::Left;
use crate::sys::{self, Errno};
use crate::track::flight::Flight;
use crate::track::pieces::{in_pieces, longer, OneMapping};
use crate::track::settling::settle;
use crate::track::taken::{put_back, Taken};
use crate::track::turns::lock_for;
use crate::track::unmap::munmap;
use crate::track::{
    close, end, failed, let_go, lock, locks, open, real, resync, retracting, State,
};
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags};

const INVAL: i64 = -(Errno::INVAL.0 as i64);
const NOMEM: i64 = -(Errno::NOMEM.0 as i64);

/// mremap(2), if some of the memory is a file's.
#[cold]
#[inline(never)]
pub fn mremap(frame: &mut Frame) -> Option<i64> {
    let [old, old_len, new_len, flags, new_addr, _] = frame.args;
    let flag = |bit: i32| flags & bit as u64 != 0;
    let known = (libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP) as u64;
    let new_len = round_up(new_len).filter(|len| *len != 0)?;
    if old % PAGE != 0 || flags & !known != 0 {
        return None;
    }
    if old_len == 0 {
        return touches(page_at(old)?).then_some(INVAL);
    }
    let source = PageRange::from_call(old, old_len).filter(|s| touches(*s))?;
    let (fixed, stays) = (flag(libc::MREMAP_FIXED), flag(libc::MREMAP_DONTUNMAP));
    let wrong = (fixed || stays) && !flag(libc::MREMAP_MAYMOVE)
        || stays && new_len != source.len()
        || fixed && new_addr % PAGE != 0;
    let target = PageRange::from_call(new_addr, new_len).filter(|_| fixed);
    let overlap = target.is_some_and(|t| t.intersection(source).is_some());
    if wrong || overlap || fixed && target.is_none() {
        return None; // EINVAL, by the kernel itself
    }
    let shrinks = !fixed && !stays && new_len <= source.len();
    let one = {
        let guard = lock()?;
        let table = &guard.shared.now;
        // Only its first mapping is looked at if the memory ends earlier.
        let looked_at = if shrinks { page_at(old)? } else { source };
        if table.is_sealed(looked_at) {
            return None; // EPERM, by the kernel itself
        }
        if shrinks && guard.at(old).is_none() {
            return None; // EFAULT, by the kernel itself
        }
        let uniform = table.is_uniform(source);
        OneMapping::in_ledger(&guard, source).filter(|_| uniform)
    };
    if shrinks {
        return Some(match source.after(old + new_len) {
            Some(tail) => shrink(frame, tail),
            None => old as i64,
        });
    }
    let whole = !stays && !fixed && new_len > source.len() && {
        let guard = lock()?;
        guard.shared.now.is_whole(source)
    };
    let Some(like) = one else {
        // Not one mapping to the application either: EFAULT, by the kernel itself.
        return whole.then(|| with_its_file(frame, source));
    };
    let more = new_len.saturating_sub(source.len());
    if like.flags.has(Flags::APP_LOCKED) && refuses(source, more) {
        return Some(-i64::from(Errno::AGAIN.0));
    }
    if whole {
        return Some(with_its_file(frame, source));
    }
    Some(carry(frame, source, target, like))
}

fn page_at(addr: u64) -> Option<PageRange> {
    PageRange::from_call(addr, 1)
}

/// The kernel has moved several mappings at `source` to `new` as they were, the files with them:
/// what is to be smaller is first cut off, and one of them may be left.
#[cold]
#[inline(never)]
pub fn moved_as_it_was(moved: &Taken, source: PageRange, new: PageRange) {
    let Some(mut guard) = lock() else {
        return;
    };
    let (mut kept, mut gone) = (Left::new(), Left::new());
    let tables = &mut guard.shared;
    moved.files.restore(tables);
    if let Some(rest) = source.after(source.start() + new.len()) {
        gone.take(tables, rest);
    }
    kept.take(tables, source);
    kept.moved(tables, source.start(), new.start());
    drop(guard);
    gone.done(|claim| lock().and_then(|mut guard| guard.shared.next_aside(claim)));
}

/// Memory that ends at `tail`.
fn shrink(frame: &Frame, tail: PageRange) -> i64 {
    let mut unmap = Frame {
        nr: libc::SYS_munmap as u64,
        args: [tail.start(), tail.len(), 0, 0, 0, 0],
    };
    match munmap(&mut unmap) {
        0 => frame.args[0] as i64,
        value => value,
    }
}

/// All of a file's memory grows, and moves if it must: the file has room behind it.
fn with_its_file(frame: &Frame, source: PageRange) -> i64 {
    let flight = open(Call::Mremap);
    let mut moved = Taken::new();
    if pin::locks() {
        // Parts that were locked at different times are several mappings, and what is locked is
        // charged for what it grows by.
        let_go(source);
    }
    if let Some(mut guard) = lock_for(&[Some(source)]) {
        flight.claim(&guard, source);
        moved.take(&mut guard, source);
    }
    retracting::retract(source);
    let value = real(frame);
    let new = PageRange::from_call(value as u64, frame.args[2]).filter(|_| !failed(value));
    match (new, moved.files.only()) {
        (Some(new), Some(part)) => {
            if let Some(mut guard) = lock() {
                flight.touch(&guard, new);
                let part = Part { range: new, ..part };
                guard.shared.now.put(&part);
                enter_moved(&mut guard, source.start(), new, &moved);
                moved.set_missed_locks(&mut guard, new);
            }
            // What was pinned was moved as it was; what is new may not be.
            resync::range(new, true);
            let last = lock().and_then(|mut guard| moved.last_page(&mut guard));
            if let (Some((_, last, _)), Some(more)) = (last, new.after(new.start() + source.len()))
            {
                let kept = KEPT.bits() & last.flags.bits();
                mark(more, |f| f.with(Flags::from_bits(kept)));
            }
            moved.forget();
        }
        (Some(new), None) => {
            resync::range(new, true);
            moved.forget();
        }
        (None, _) => put_back(source, &moved),
    }
    close(flight, source);
    value
}

/// What was at `from` is at `new` from now on. The kernel's list says the same, but where a
/// filter hides that, and does not say what was advised and locked.
fn enter_moved(state: &mut State, from: u64, new: PageRange, moved: &Taken) {
    let mut at = from;
    while let Some((part, attr, origin)) = moved.next(state, at) {
        at = part.end();
        let start = new.start() + (part.start() - from);
        if let Some(there) = PageRange::from_call(start, part.len()) {
            state.ready();
            let origin = origin.moved(part.start(), start);
            state.insert_part(there, policy::unregistered(attr), Some(origin));
        }
    }
}

/// Whether a limit forbids to lock so many bytes `more` behind `source`.
fn refuses(source: PageRange, more: u64) -> bool {
    let tail = PageRange::from_call(source.end(), more);
    tail.is_some_and(|tail| locks::refused(tail).is_some())
}

/// Memory grows where it is, by `tail`, if fresh memory can follow it.
fn grow(
    frame: &Frame,
    source: PageRange,
    tail: PageRange,
    like: Attr,
    asked: &Kept,
) -> Option<i64> {
    let flight = open(Call::Mremap);
    let value = longer(frame, source, like.prot);
    if value.is_none_or(failed) {
        end(flight);
        return value;
    }
    let _ = asked.give(tail, u64::from(like.prot.bits() & 7));
    enter_fresh(tail, like);
    advise_again(tail, like.flags);
    settle(tail);
    close(flight, tail);
    value
}

/// Fresh memory where memory that looked `like` has been carried away (MREMAP_DONTUNMAP).
fn leave_behind(kept: PageRange, like: Attr, asked: &Kept) {
    let rights = u64::from(like.prot.bits() & 7);
    if call_at(kept, rights) {
        let _ = asked.give(kept, rights);
        // (The kernel leaves no lock behind.)
        let flags = like.flags.without(Flags::APP_LOCKS);
        enter_fresh(kept, Attr { flags, ..like });
        advise_again(kept, like.flags);
        settle(kept);
    }
}

/// What memory has grown by, as it was carried away, gets what goes with the rest.
fn follow(tail: PageRange, like: Attr, asked: &Kept) {
    let flags = Flags::from_bits(KEPT.bits() & like.flags.bits());
    let _ = asked.give(tail, u64::from(like.prot.bits() & 7));
    mark(tail, |f| f.with(flags));
    advise_again(tail, flags);
}

/// What was `kept` is at the beginning of `new` now.
fn arrived(flight: &Flight, kept: PageRange, new: PageRange, moved: &mut Taken) {
    if let Some(mut guard) = lock() {
        flight.touch(&guard, new);
        let shared = &mut guard.shared;
        moved.files.moved(shared, kept.start(), new.start());
        enter_moved(&mut guard, kept.start(), new, moved);
    }
}

/// Memory that grows where fresh memory can follow it, or is carried to another place.
fn carry(frame: &Frame, source: PageRange, target: Option<PageRange>, like: Attr) -> i64 {
    let [_, _, new_len, flags, ..] = frame.args;
    let stays = flags & libc::MREMAP_DONTUNMAP as u64 != 0;
    let len = round_up(new_len).unwrap_or(new_len);
    let asked = asked_for(source);
    if let (Some(more), None, false) = (len.checked_sub(source.len()), target, stays) {
        let tail = PageRange::from_call(source.end(), more);
        if let Some(value) = tail.and_then(|tail| grow(frame, source, tail, like, &asked)) {
            return value;
        }
    }
    let kept = source.before(source.start() + len).unwrap_or(source);
    let cut = source.after(kept.end()).map(|tail| shrink(frame, tail));
    if let Some(refused) = cut.filter(|value| failed(*value)) {
        return refused;
    }
    let flight = open(Call::Mremap);
    let (mut moved, mut replaced) = (Taken::new(), Taken::new());
    if let Some(mut guard) = lock_for(&[Some(source), target]) {
        flight.claim(&guard, source);
        if let Some(target) = target {
            flight.claim(&guard, target);
            replaced.take(&mut guard, target);
        }
        moved.take(&mut guard, kept);
    }
    for range in [Some(source), target].into_iter().flatten() {
        retracting::retract(range);
    }
    // DONTUNMAP leaves memory behind, which is made below.
    let mut plain = *frame;
    plain.args[3] &= !(libc::MREMAP_DONTUNMAP as u64);
    let value = in_pieces(&plain, kept, like.prot).unwrap_or(NOMEM);
    match PageRange::from_call(value as u64, len).filter(|_| !failed(value)) {
        Some(new) => {
            replaced.done();
            arrived(&flight, kept, new, &mut moved);
            let tail = new.after(new.start() + kept.len());
            if let Some(tail) = tail {
                enter_fresh(tail, like);
            }
            if stays {
                leave_behind(kept, like, &asked);
            }
            resync::range(new, true);
            moved.forget();
            if let Some(tail) = tail {
                follow(tail, like, &asked);
            }
        }
        None => {
            put_back(source, &moved);
            if let Some(target) = target {
                put_back(target, &replaced);
            }
        }
    }
    close(flight, source);
    value
}

/// What was asked for the end of `source`, one mapping to the application: it has all of that.
fn asked_for(source: PageRange) -> Kept {
    let end = source.after(source.end() - PAGE);
    let part = end.and_then(|end| lock().and_then(|guard| guard.shared.now.find(end)));
    part.map_or(Kept::NOTHING, |part| {
        Kept::of(part.marks, part.range.start())
    })
}

/// Fresh memory where memory has just been carried away.
fn call_at(range: PageRange, rights: u64) -> bool {
    sys::map_at(range.start(), range.len(), rights as i32) == Ok(range.start())
}
