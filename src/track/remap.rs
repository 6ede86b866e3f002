//! mremap: what it moves leaves the ledger before the kernel moves it, and enters it again where
//! it is then.

use super::flight::Flight;
use super::headroom::{self, Charge};
use super::lock::Guard;
use super::map::each_code;
use super::pieces::{in_pieces, longer};
use super::settling::{settle, settle_read};
use super::subscribers;
use super::taken::{find_locks, put_all_back, Taken};
use super::turns::{lock_for, postpone};
use super::unpinning::{enter_grown, let_go};
use super::{
    backed, close, deferred, end, failed, lock, notes, open, over_budget, reading, real,
    registering, resync, retracting, seals, State,
};
use crate::arch::Frame;
use crate::base::maps::mapping_at;
use crate::ledger::Origin;
use crate::limits;
use crate::policy;
use crate::registrar::pin;
use crate::share;
use crate::sys::Errno;
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::planted;
use regall_directory::vocab::{Attr, Flags, Kind, Prot};

const NOMEM: i64 = -(Errno::NOMEM.0 as i64);
const FAULT: i64 = -(Errno::FAULT.0 as i64);

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
        if let Some(mut guard) = lock() {
            enter_grown(&mut guard, source);
        }
        if let Some(value) = backed::move_each(frame, source, target, mremap) {
            return value;
        }
    }
    if several.is_none() {
        if let Some(value) = seals::refused(Call::Mremap, frame, [source, target]) {
            return value;
        }
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

/// What the kernel moves, the kernel moves as it is. The call is made once: one that fails may have
/// moved some of several mappings (Linux 6.17).
#[inline(never)]
fn as_it_is(frame: &mut Frame, source: Option<PageRange>, target: Option<PageRange>) -> i64 {
    let old = frame.args[0];
    let mut this = Move {
        flight: open(Call::Mremap),
        source,
        target,
        moved: Taken::new(),
        replaced: Taken::new(),
        twin: None,
        around: None,
        in_pieces: None,
    };
    let one = this.take_out(frame);
    let stayed = if registering::active() {
        stay(frame, source, target)
    } else {
        Stayed::No
    };
    let mut value = match stayed {
        Stayed::Grown => old as i64,
        _ => real(frame),
    };
    if let (FAULT, Some(source), Some(prot)) = (value, source, this.in_pieces) {
        value = longer(frame, source, prot)
            .or_else(|| in_pieces(frame, source, prot))
            .unwrap_or(value);
    }
    if failed(value) {
        let all = [(target, &this.replaced), (source, &this.moved)];
        // (The kernel's list does not show what the program has locked.)
        let theirs = this.moved.is_app_locked() || this.replaced.is_app_locked();
        let locks = planted!("mremap-locks-unasked", false, theirs);
        let moved = !one && (pin::locks() || locks);
        let locks = moved.then(|| this.moved.locks_of_any());
        planted!("mremap-not-put-back", (), put_all_back(&all, locks));
    } else {
        let regions_stay = stayed != Stayed::No && value == old as i64;
        this.done(frame, value as u64, regions_stay);
    }
    if let Some(around) = this.around {
        planted!("mremap-lock-left", (), find_locks(around, Flags::EMPTY));
    }
    // Our pins there have been let go of, whatever came of the call.
    this.around.into_iter().for_each(settle_read);
    this.close();
    value
}

/// A call that the kernel carries out as it is, and what leaves the ledger for it.
struct Move {
    flight: Flight,
    source: Option<PageRange>,
    target: Option<PageRange>,
    moved: Taken,
    replaced: Taken,
    /// What of which an old_len of 0 makes another mapping of the same shared pages.
    twin: Option<Attr>,
    /// The mappings that the source is a part of, if it stays without its pages (MREMAP_DONTUNMAP):
    /// the kernel takes the lock from all of them (mm/mremap.c, dontunmap_complete).
    around: Option<PageRange>,
    /// The protection of one mapping that was shared by REGALL_SHARE, or lies beside what was: the
    /// kernel may have it as several.
    in_pieces: Option<Prot>,
}

impl Move {
    /// Takes out of the ledger what is moved and what is replaced. What of our pins would be in the
    /// kernel's way goes before. Whether the source is known to be one mapping.
    #[inline]
    fn take_out(&mut self, frame: &Frame) -> bool {
        let ranges = [self.source, self.target];
        // To move a part of a mapping makes more of them.
        let tight = headroom::is_tight();
        let mut locked = lock_for(&ranges);
        let mut one = false;
        if let Some(guard) = &mut locked {
            for range in ranges.iter().flatten() {
                self.flight.claim(guard, *range);
            }
            let whole = self.source.is_some_and(|source| is_whole(guard, source));
            let grown = self.source.filter(|_| !whole && pin::locks());
            if let Some(source) = grown {
                enter_grown(guard, source);
            }
            let like = guard.at(frame.args[0]).filter(|_| whole && share::any());
            one = whole && !is_watched(guard, frame.args[0]);
            self.in_pieces = like
                .filter(|a| !a.flags.has(Flags::APP_LOCKED))
                .map(|a| a.prot);
            if tight || is_in_the_way(guard, frame, one) {
                let theirs = guard.at(frame.args[0]);
                drop(locked);
                self.step_aside(
                    frame,
                    theirs.is_some_and(|a| a.flags.has(Flags::APP_LOCKED)),
                );
                locked = lock_for(&ranges);
            }
        }
        let Some(mut guard) = locked else {
            ranges.into_iter().flatten().for_each(deferred::gone);
            return false;
        };
        self.twin = guard.at(frame.args[0]);
        if let Some(target) = self.target {
            self.replaced.take(&mut guard, target);
        }
        if let Some(source) = self.source {
            self.moved.take(&mut guard, source);
        }
        one
    }

    /// Lets go of our pins on what is moved and replaced. `theirs`: the application has locked the
    /// beginning, and what that grows by is charged as its lock.
    #[cold]
    #[inline(never)]
    fn step_aside(&mut self, frame: &Frame, theirs: bool) {
        let [old, old_len, new_len, flags, ..] = frame.args;
        if flags & libc::MREMAP_DONTUNMAP as u64 != 0 {
            self.around = self.source.and_then(around);
            // Where our lock lies between two of the application's, they are not one mapping.
            self.around.map(let_go);
        }
        // With a length of 0 it is another mapping of the same shared pages.
        let doubled = PageRange::from_call(old, new_len).filter(|_| old_len == 0);
        for range in [self.source, self.target, doubled].into_iter().flatten() {
            let_go(range);
        }
        doubled.into_iter().for_each(postpone);
        headroom::thin_out();
        if theirs && new_len > old_len {
            headroom::make_room(Charge::more(new_len - old_len));
        }
    }

    /// The kernel has moved it to `at`.
    #[inline]
    fn done(&mut self, frame: &Frame, at: u64, regions_stay: bool) {
        // The kernel skips holes: what was behind them at the target is still there.
        if self
            .source
            .is_some_and(|source| self.moved.has_holes(source))
        {
            if let Some(mut guard) = lock() {
                self.replaced.restore(&mut guard);
            }
        }
        self.replaced.done();
        let new = PageRange::from_call(at, frame.args[2]);
        if let (Some(source), Some(new), false) = (self.source, new, self.moved.files.is_empty()) {
            backed::moved_as_it_was(&self.moved, source, new);
        }
        if let Some(new) = new {
            let stays = frame.args[3] & libc::MREMAP_DONTUNMAP as u64 != 0;
            self.enter(new, stays, regions_stay);
        }
        self.moved.forget();
        if let (true, Some(target)) = (self.replaced.has_code(), self.target) {
            subscribers::code_gone(target);
        }
        if let (true, Some(source)) = (self.moved.has_code(), self.source) {
            code_moved(frame, at, source);
        }
    }

    #[inline]
    fn close(self) {
        let holes = self.source.is_some_and(|s| self.moved.has_holes(s));
        if let (true, Some(target)) = (holes || self.flight.lost_track(), self.target) {
            resync::range(target, self.flight.lost_track());
        }
        match self.source.or(self.target) {
            Some(range) => close(self.flight, range),
            None => end(self.flight),
        }
    }

    /// Enters `new`: the kernel has moved, grown, shrunk or doubled a mapping. `stays`: it is
    /// also where it was, without its pages.
    #[inline(never)]
    fn enter(&self, new: PageRange, stays: bool, regions_stay: bool) {
        let Self { source, moved, .. } = self;
        let Some(mut guard) = lock() else {
            return notes::later(new);
        };
        let last_page = moved.last_page(&mut guard);
        let last = last_page.map(|(_, attr, _)| attr);
        let last = last.or(if source.is_none() { self.twin } else { None });
        let Some(last) = last.filter(|_| moved.is_known(&mut guard)) else {
            drop(guard);
            // Mappings that we did not know, or that there was no memory to remember.
            resync::range(new, true);
            if let Some(source) = source {
                resync::range(*source, true);
            }
            return;
        };
        self.flight.touch(&guard, new);
        self.enter_moved(&mut guard, new, stays, regions_stay);
        let kept = source.map_or(0, |s| s.len().min(new.len()));
        if let Some(tail) = new.after(new.start() + kept) {
            // More of the same, for shared memory, too.
            let origin = last_page
                .zip(*source)
                .map(|((_, _, origin), source)| origin.moved(source.start(), new.start()));
            enter_tail(&mut guard, tail, last, origin);
        }
        moved.set_missed_locks(&mut guard, new);
        drop(guard);
        settle(new);
        if let (Some(source), true) = (source, stays) {
            settle(*source);
        }
    }

    /// Enters what has moved, part by part.
    #[inline]
    fn enter_moved(&self, guard: &mut Guard, new: PageRange, stays: bool, regions_stay: bool) {
        let mut from = 0;
        while let Some((part, attr, origin)) = self.moved.next(guard, from) {
            from = part.end();
            guard.ready();
            // The kernel moves the lock with the pages.
            let source = self.source;
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
                let app = planted!("mremap-locks-stay", Flags::EMPTY, Flags::APP_LOCKS);
                let flags = attr.flags.without(app);
                guard.insert_part(part, pending(Attr { flags, ..attr }), Some(origin));
            }
        }
    }
}

/// Returns whether the ledger knows all of `source` as one mapping.
fn is_whole(state: &State, source: PageRange) -> bool {
    let first = state.ledger.get(source.start());
    first.is_some_and(|entry| entry.range.end() >= source.end())
}

/// Returns whether a userfaultfd may watch some of the mapping at `at`: that the kernel refuses to move, when it
/// has moved what lies before it.
fn is_watched(state: &State, at: u64) -> bool {
    let there = state.at(at);
    there.is_some_and(|attr| attr.flags.has(Flags::KEEP_LAZY))
}

/// Returns whether our pins may be in the way of an mremap, other than as there may be no more mappings.
/// `one`: its source is one mapping.
#[inline]
fn is_in_the_way(state: &State, frame: &Frame, one: bool) -> bool {
    let [_, old_len, new_len, flags, ..] = frame.args;
    if !pin::locks() || state.pinned() == 0 {
        return false;
    }
    // The kernel charges for what a locked mapping grows by.
    let stays = flags & libc::MREMAP_DONTUNMAP as u64 != 0;
    !one || stays || new_len > old_len && limits::bound()
}

/// Returns what is mapped from the mapping at the beginning of `source` to the one at its end.
#[cold]
fn around(source: PageRange) -> Option<PageRange> {
    let (first, last) = (mapping_at(source.start()), mapping_at(source.end() - PAGE));
    let start = first.map_or(source.start(), PageRange::start);
    PageRange::new(start, last.map_or(source.end(), PageRange::end))
}

/// Enters what a mapping, the last of which is `last`, has grown by.
#[inline]
fn enter_tail(guard: &mut Guard, tail: PageRange, last: Attr, origin: Option<Origin>) {
    // Where the file ends the kernel's list says, and its size.
    if last.kind == Kind::File {
        let _ = reading::read(guard, tail, last.flags.without(Flags::TAIL));
        return;
    }
    let last = policy::unregistered(last);
    // The kernel has locked it as the rest is: another kind of lock would make two mappings of
    // it, and no lock at all would be one that nobody knows of.
    let theirs = last.flags.has(Flags::APP_LOCKED) && last.pin.held();
    let attr = if theirs { last } else { pending(last) };
    guard.insert_part(tail, attr, origin);
}

/// Code of `source` is at `at` now: what is patched in it goes by where it was.
#[cold]
#[inline(never)]
fn code_moved(frame: &Frame, at: u64, source: PageRange) {
    let Some(new) = PageRange::from_call(at, frame.args[2]) else {
        return;
    };
    let (fresh, rest) = match new.start() == source.start() {
        true => (new.after(source.end()), source.after(new.end())),
        false => (Some(new), Some(source)),
    };
    if let Some(fresh) = fresh {
        // What has moved is known by what it was: before that is forgotten.
        each_code(fresh, |code, shared| {
            subscribers::new_code(code, code.end(), shared, false);
        });
    }
    rest.into_iter().for_each(subscribers::code_gone);
}

/// What becomes of the regions of what mremap is about.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stayed {
    /// All were taken out: the memory may move.
    No,
    /// At most the end that goes was: memory that does not grow stays where it is.
    Shrinks,
    /// None was: the call has been made, and the memory has grown where it is.
    Grown,
}

/// Takes regions out of the way of mremap. Large memory that moves is registered anew for a page more:
/// where there is room it grows without that.
#[cold]
#[inline(never)]
fn stay(frame: &Frame, source: Option<PageRange>, target: Option<PageRange>) -> Stayed {
    let [old, _, new_len, flags, ..] = frame.args;
    let may_move = libc::MREMAP_MAYMOVE as u64;
    if let (Some(source), true) = (source, flags & !may_move == 0) {
        if let Some(rest) = round_up(new_len).filter(|n| *n != 0 && *n <= source.len()) {
            let tail = source.after(old + rest);
            tail.into_iter().for_each(retracting::retract);
            return Stayed::Shrinks;
        }
    }
    if let Some(source) = source.filter(|_| flags == may_move) {
        if has_room(source, new_len) {
            let mut here = *frame;
            here.args[3] = 0;
            // (One that fails has changed nothing, and may be allowed to move.)
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

/// Returns whether nothing that is known is in the way if `source` grows to `len` bytes where it is.
fn has_room(source: PageRange, len: u64) -> bool {
    let end = round_up(len).and_then(|len| len.checked_add(source.start()));
    let is_free = |more: PageRange| {
        let next = |guard: Guard| guard.ledger.next_from(more.start());
        let next = lock().map(next);
        next.is_some_and(|next| next.is_none_or(|next| next.range.start() >= more.end()))
    };
    end.and_then(|end| PageRange::new(source.end(), end))
        .is_some_and(is_free)
}

fn pending(attr: Attr) -> Attr {
    let mut attr = attr;
    if policy::excluded(attr).is_none() {
        attr.pin = policy::untold(attr, pin::holding());
    }
    attr
}
