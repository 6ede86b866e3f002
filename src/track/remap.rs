//! mremap: what it moves leaves the ledger before the kernel moves it, and enters it again where
//! it is then.

use super::flight::Flight;
use super::lock::Guard;
use super::pieces::{in_pieces, longer, was_one_mapping, with_room, FAULT};
use super::settling::{settle, settle_read};
use super::subscribers;
use super::taken::{put_back, put_back_unchanged, Taken};
use super::turns::lock_for;
use super::{
    backed, close, deferred, divided, end, failed, lock, notes, open, over_budget, reading, real,
    registering, resync, retracting, seals, VIEW,
};
use crate::arch::Frame;
use crate::base::maps::mapping_at;
use crate::base::settings;
use crate::config::Pin;
use crate::ledger::Origin;
use crate::policy;
use crate::share;
use crate::sys::Errno;
use core::ops::ControlFlow;
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags, Kind, Reason};

/// Bytes of a huge page; less gets no advice.
const HUGE_PAGE: u64 = 2 << 20;
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
    let set = |bit: i32| flags & bit as u64 != 0;
    let mut this = Move {
        flight: open(Call::Mremap),
        source,
        target,
        moved: Taken::new(),
        replaced: Taken::new(),
        twin: None,
    };
    this.take_out(old);
    let stayed = if registering::active() {
        stay(frame, source, target)
    } else {
        Stayed::No
    };
    // The kernel judges as without our pins, and takes the lock from no more than without them: from
    // all of the mapping that the source is a part of (mm/mremap.c, dontunmap_complete).
    if set(libc::MREMAP_DONTUNMAP) || this.moved.is_divided_by_locks() {
        this.moved.unpin();
    }
    let mut value = match stayed {
        Stayed::Grown => old as i64,
        _ => real(frame),
    };
    if failed(value) {
        value = with_room(frame, value, &mut this.moved);
    }
    // The kernel unmaps a fixed target before it looks at the source, if it may move that.
    let mut changed = set(libc::MREMAP_FIXED) && set(libc::MREMAP_MAYMOVE);
    // Several that are a file's are several to the application, too: see `backed::mremap`.
    let may_be = value == FAULT && this.moved.files.is_empty();
    if let Some(source) = source.filter(|s| may_be && is_divided_by_us(*s)) {
        let one = was_one_mapping(&this.moved, source);
        if let Some(one) = one.filter(|_| !divided::is_divided(source)) {
            if one.flags.has(Flags::APP_LOCKED) {
                // Its lock has to go with it, and to what it grows by.
                this.put_back(true);
                end(this.flight);
                return backed::carry_locked(frame, source, target, one);
            }
            changed = true;
            value = longer(frame, source, one.prot)
                .or_else(|| in_pieces(frame, source, one.prot))
                .unwrap_or(value);
        }
    }
    if failed(value) {
        this.put_back(changed);
    } else {
        let regions_stay = stayed != Stayed::No && value == old as i64;
        let unlocked = this.unlocked(frame);
        this.done(frame, value as u64, regions_stay);
        if let Some((source, around)) = unlocked {
            lock_is_gone(source, around, this.moved.locks());
        }
    }
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
}

impl Move {
    /// Takes out of the ledger what is moved, from `old` on, and what is replaced.
    #[inline]
    fn take_out(&mut self, old: u64) {
        let ranges = [self.source, self.target];
        let Some(mut guard) = lock_for(&ranges) else {
            return ranges.into_iter().flatten().for_each(deferred::gone);
        };
        self.twin = guard.at(old);
        for range in ranges.iter().flatten() {
            self.flight.claim(&guard, *range);
        }
        if let Some(target) = self.target {
            self.replaced.take(&mut guard, target);
        }
        if let Some(source) = self.source {
            self.moved.take(&mut guard, source);
        }
    }

    /// Puts back what was taken out. `changed`: the kernel may have taken some of it.
    fn put_back(&self, changed: bool) {
        let both = [(self.target, &self.replaced), (self.source, &self.moved)];
        for (range, taken) in both {
            match range {
                Some(range) if changed => put_back(range, taken),
                Some(range) => put_back_unchanged(range, taken),
                None => (),
            }
        }
    }

    /// What the kernel has moved and left behind unlocked (MREMAP_DONTUNMAP), if the application
    /// had locked it, and the mapping that it is a part of. Before it is locked again, which may
    /// make other mappings of it.
    fn unlocked(&self, frame: &Frame) -> Option<(PageRange, PageRange)> {
        let stays = frame.args[3] & libc::MREMAP_DONTUNMAP as u64 != 0;
        let source = self
            .source
            .filter(|_| stays && self.moved.is_app_locked())?;
        Some((source, mapping_at(source.start())?))
    }

    /// The kernel has moved it to `at`.
    #[inline]
    fn done(&mut self, frame: &Frame, at: u64, regions_stay: bool) {
        self.replaced.done();
        let new = PageRange::from_call(at, frame.args[2]);
        if let (Some(source), Some(new), false) = (self.source, new, self.moved.files.is_empty()) {
            backed::moved_as_it_was(&self.moved, source, new);
        }
        if let (Some(source), Some(new)) = (self.source, new) {
            divided::moved(source, new);
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
        // The kernel skips holes: what was behind them at the target is still there.
        let holes = self.source.is_some_and(|s| self.moved.has_holes(s));
        if let (true, Some(target)) = (holes || self.flight.lost_track(), self.target) {
            resync::range(target, true);
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
        let last_part = moved.last_part(&mut guard);
        let last = last_part.map(|(_, attr, _)| attr);
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
            let origin = last_part
                .zip(*source)
                .map(|((_, _, origin), source)| origin.moved(source.start(), new.start()));
            enter_tail(&mut guard, tail, last, origin);
        }
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
                let app = Flags::APP_LOCKS;
                let flags = attr.flags.without(app);
                guard.insert_part(part, pending(Attr { flags, ..attr }), Some(origin));
            }
        }
    }
}

/// Whether the shim may have made several mappings of one, by locks, files or advice about huge
/// pages. Where it has not, nobody notes what the application has locked, and the kernel's word
/// stands.
#[cold]
fn is_divided_by_us(source: PageRange) -> bool {
    let config = settings::config();
    let huge = config.wants_huge() && source.len() >= HUGE_PAGE;
    config.pin != Pin::Off || share::any() || share::on() || huge
}

/// The kernel has taken the lock from all of the mapping `around`, for what was moved from `source`,
/// which the application had locked by `locks`. What lies around `source` and was locked in the same
/// way was one mapping with it without the shim, too, and is not the application's lock any more;
/// what else is pinned there is pinned again.
#[cold]
#[inline(never)]
fn lock_is_gone(source: PageRange, around: PageRange, locks: Flags) {
    let same = |a: Attr| a.flags.bits() & Flags::APP_LOCKS.bits() == locks.bits();
    let Some(mut guard) = lock() else {
        return notes::later(around);
    };
    let (mut from, mut to) = (around.start(), around.end());
    if let Some(before) = around.before(source.start()) {
        guard.ledger.for_each(before, |part, entry| {
            from = if same(entry.attr) { from } else { part.end() };
            ControlFlow::Continue(())
        });
    }
    if let Some(behind) = around.after(source.end()) {
        guard
            .ledger
            .for_each(behind, |part, entry| match same(entry.attr) {
                true => ControlFlow::Continue(()),
                false => {
                    to = part.start();
                    ControlFlow::Break(())
                }
            });
    }
    guard.update(around, |part, a| {
        let lost = from <= part.start() && part.end() <= to;
        let flags = match lost && same(a) {
            true => a.flags.without(Flags::APP_LOCKS),
            false => a.flags,
        };
        match a.pin.held() {
            true => policy::unsettled(Attr { flags, ..a }),
            false => Attr { flags, ..a },
        }
    });
    drop(guard);
    settle_read(around);
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
    /// All were taken out: the memory may move.
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

fn pending(attr: Attr) -> Attr {
    let mut attr = attr;
    if policy::excluded(attr).is_none() {
        attr.pin.reason = Reason::Off;
    }
    attr
}
