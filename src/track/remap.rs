//! mremap: what it moves leaves the ledger before the kernel moves it, and enters it again where
//! it is then.

use super::flight::Flight;
use super::pieces::{in_pieces, longer, was_one_mapping, with_room, FAULT};
use super::settling::settle;
use super::subscribers;
use super::taken::{put_back, put_back_unchanged, Taken};
use super::turns::lock_for;
use super::{
    backed, close, deferred, end, failed, lock, notes, open, over_budget, reading, real,
    registering, resync, retracting, seals, VIEW,
};
use crate::arch::Frame;
use crate::policy;
use crate::share;
use crate::sys::Errno;
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags, Kind, Reason};

const NOMEM: i64 = -(Errno::NOMEM.0 as i64);

/// mremap(2), all flags.
#[inline(never)]
pub fn mremap(frame: &mut Frame) -> i64 {
    let [old, old_len, new_len, flags, new_addr, _] = frame.args;
    let fixed = flags & libc::MREMAP_FIXED as u64 != 0;
    let source = PageRange::from_call(old, old_len);
    let target = PageRange::from_call(new_addr, new_len).filter(|_| fixed);
    // The kernel may move several mappings then, and refuse the last of them.
    let several = source
        .zip(target)
        .filter(|(from, to)| from.len() == to.len());
    if let (Some((source, target)), true) = (several, share::any()) {
        if let Some(value) = backed::move_each(frame, source, target, mremap) {
            return value;
        }
    }
    if let Some(value) = seals::refused(Call::Mremap, frame, [source, target]) {
        if let Some((source, target)) = several {
            resync::range(source, true);
            resync::range(target, true);
        }
        return value;
    }
    if share::any() {
        if let Some(value) = backed::mremap(frame) {
            return value;
        }
    }
    if old % PAGE != 0 || (new_len > old_len && over_budget(new_len - old_len)) {
        return if old % PAGE != 0 { real(frame) } else { NOMEM };
    }
    as_it_is(frame, source, target)
}

/// What the kernel moves, the kernel moves as it is.
#[inline(never)]
fn as_it_is(frame: &mut Frame, source: Option<PageRange>, target: Option<PageRange>) -> i64 {
    let [old, _, _, flags, ..] = frame.args;
    let fixed = flags & libc::MREMAP_FIXED as u64 != 0;
    let flight = open(Call::Mremap);
    let mut moved = Taken::new();
    let mut replaced = Taken::new();
    let mut twin = None;
    match lock_for(&[source, target]) {
        Some(mut guard) => {
            // old_len 0: another mapping of the same shared pages.
            twin = guard.at(old);
            for range in [source, target].iter().flatten() {
                flight.claim(&guard, *range);
            }
            if let Some(target) = target {
                replaced.take(&mut guard, target);
            }
            if let Some(source) = source {
                moved.take(&mut guard, source);
            }
        }
        None => [source, target]
            .iter()
            .flatten()
            .for_each(|r| deferred::gone(*r)),
    }
    let stayed = if registering::active() {
        stay(frame, source, target)
    } else {
        Stayed::No
    };
    if flags & libc::MREMAP_DONTUNMAP as u64 != 0 {
        // The kernel takes the lock from all of the mapping that the source is a part of
        // (mm/mremap.c, dontunmap_complete): no more of it than without ours.
        moved.unpin();
    }
    let mut value = match stayed {
        Stayed::Grown => old as i64,
        _ => real(frame),
    };
    if failed(value) {
        value = with_room(frame, value, &mut moved);
    }
    // The kernel unmaps a fixed target before it looks at the source, if it may move that.
    let mut changed = fixed && flags & libc::MREMAP_MAYMOVE as u64 != 0;
    // Several that are a file's are several to the application, too: see `backed::mremap`.
    if let (FAULT, Some(source), true) = (value, source, moved.files.is_empty()) {
        if let Some(one) = was_one_mapping(&moved, source) {
            if one.flags.has(Flags::APP_LOCKED) {
                // Its lock has to go with it, and to what it grows by.
                for (range, taken) in [(Some(source), &moved), (target, &replaced)] {
                    if let Some(range) = range {
                        put_back(range, taken);
                    }
                }
                end(flight);
                return backed::carry_locked(frame, source, target, one);
            }
            changed = true;
            value = longer(frame, source, one.prot)
                .or_else(|| in_pieces(frame, source, one.prot))
                .unwrap_or(value);
        }
    }
    if failed(value) {
        for (range, taken) in [(target, &replaced), (source, &moved)] {
            match range {
                Some(range) if changed => put_back(range, taken),
                Some(range) => put_back_unchanged(range, taken),
                None => (),
            }
        }
    } else {
        replaced.done();
        let new = PageRange::from_call(value as u64, frame.args[2]);
        if let (Some(source), Some(new), false) = (source, new, moved.files.is_empty()) {
            backed::moved_as_it_was(&moved, source, new);
        }
        let regions_stay = stayed != Stayed::No && value == old as i64;
        remapped(
            &flight,
            frame,
            value as u64,
            source,
            &moved,
            twin,
            regions_stay,
        );
        moved.forget();
        if let (true, Some(target)) = (replaced.has_code(), target) {
            subscribers::code_gone(target);
        }
        if let (true, Some(source)) = (moved.has_code(), source) {
            code_moved(frame, value as u64, source);
        }
    }
    // The kernel skips holes: what was behind them at the target is still there.
    let holes = source.is_some_and(|source| moved.has_holes(source));
    if let (true, Some(target)) = (holes || flight.lost_track(), target) {
        resync::range(target, true);
    }
    match source.or(target) {
        Some(range) => close(flight, range),
        None => end(flight),
    }
    value
}

/// Code of `source` is at `at` now: what is patched in it goes by where it was.
#[cold]
#[inline(never)]
fn code_moved(frame: &Frame, at: u64, source: PageRange) {
    let found = VIEW.lookup(at).ok().flatten();
    let attr = found.map(|found| found.attr());
    let new = PageRange::from_call(at, frame.args[2]);
    if let (Some(attr), Some(new)) = (attr.filter(|a| a.prot.executable()), new) {
        let stayed = new.start() == source.start();
        let fresh = if stayed {
            new.after(source.end())
        } else {
            Some(new)
        };
        if let Some(fresh) = fresh.filter(|_| attr.prot.readable()) {
            // What has moved is known by what it was: before that is forgotten.
            subscribers::new_code(fresh, fresh.end(), attr.prot.shared(), false);
        }
        let rest = if stayed {
            source.after(new.end())
        } else {
            Some(source)
        };
        rest.into_iter().for_each(subscribers::code_gone);
    }
}

/// What becomes of the regions of what mremap is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stayed {
    /// They were taken out: the memory may move.
    No,
    /// Only the end that goes was: memory that shrinks stays where it is.
    Shrinks,
    /// The call has been made, and the memory has grown where it is.
    Grown,
}

/// Takes regions out of the way of mremap. Large memory that can grow where it is would
/// be registered anew for a page more: that is tried first.
#[cold]
#[inline(never)]
fn stay(frame: &Frame, source: Option<PageRange>, target: Option<PageRange>) -> Stayed {
    let [old, old_len, new_len, flags, ..] = frame.args;
    let may_move = libc::MREMAP_MAYMOVE as u64;
    if let (Some(source), true) = (source, flags & !may_move == 0) {
        if let Some(rest) = round_up(new_len).filter(|n| *n != 0 && *n < source.len()) {
            if let Some(tail) = source.after(old + rest) {
                retracting::retract(tail);
                return Stayed::Shrinks;
            }
        }
        if new_len >= old_len && flags & may_move != 0 {
            let mut here = *frame;
            here.args[3] = 0;
            if !failed(real(&here)) {
                return Stayed::Grown;
            }
        }
    }
    for range in [source, target].iter().flatten() {
        retracting::retract(*range);
    }
    Stayed::No
}

/// The kernel has moved, grown, shrunk or doubled a mapping, to `at`.
#[inline(never)]
fn remapped(
    flight: &Flight,
    frame: &Frame,
    at: u64,
    source: Option<PageRange>,
    moved: &Taken,
    twin: Option<Attr>,
    regions_stay: bool,
) {
    let Some(new) = PageRange::from_call(at, frame.args[2]) else {
        return;
    };
    let stays = frame.args[3] & libc::MREMAP_DONTUNMAP as u64 != 0;
    let kept = source.map_or(0, |s| s.len().min(new.len()));
    let Some(mut guard) = lock() else {
        return notes::later(new);
    };
    let last_part = moved.last_part(&mut guard);
    let last = last_part.map(|(_, attr, _)| attr);
    let last = last.or(if source.is_none() { twin } else { None });
    let Some(last) = last.filter(|_| moved.is_known(&mut guard)) else {
        drop(guard);
        // Mappings that we did not know, or that there was no memory to remember.
        resync::range(new, true);
        if let Some(source) = source {
            resync::range(source, true);
        }
        return;
    };
    flight.touch(&guard, new);
    let mut from = 0;
    while let Some((part, attr, origin)) = moved.next(&mut guard, from) {
        from = part.end();
        guard.ready();
        // The kernel moves the lock with the pages.
        let start = source.map_or(0, |s| new.start() + (part.start() - s.start()));
        let there = PageRange::new(start, start + part.len()).and_then(|r| r.intersection(new));
        let attr = if regions_stay {
            attr
        } else {
            policy::unregistered(attr)
        };
        if let Some(there) = there {
            guard.insert_part(there, attr, Some(origin.moved(part.start(), start)));
        }
        if stays {
            // The kernel leaves no lock behind.
            let app = Flags::APP_LOCKS;
            let flags = attr.flags.without(app);
            guard.insert_part(part, pending(Attr { flags, ..attr }), Some(origin));
        }
    }
    let tail = new.after(new.start() + kept);
    match tail {
        // Where the file ends the kernel's list says, and its size.
        Some(tail) if last.kind == Kind::File => {
            let _ = reading::read(&mut guard, tail, last.flags.without(Flags::TAIL));
        }
        Some(tail) => {
            let last = policy::unregistered(last);
            // The kernel has locked it as the application has the rest: another kind of lock
            // would make two mappings of it.
            let locked = last.flags.has(Flags::APP_LOCKED) && last.pin.held();
            let attr = if locked { last } else { pending(last) };
            // More of the same, for shared memory, too.
            let origin = last_part
                .zip(source)
                .map(|((_, _, origin), source)| origin.moved(source.start(), new.start()));
            guard.insert_part(tail, attr, origin);
        }
        None => (),
    }
    drop(guard);
    settle(new);
    if let (Some(source), true) = (source, stays) {
        settle(source);
    }
}

fn pending(attr: Attr) -> Attr {
    let mut attr = attr;
    if policy::excluded(attr).is_none() {
        attr.pin.reason = Reason::Off;
    }
    attr
}
