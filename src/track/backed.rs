//! Calls on private memory that is a file's ([`crate::share`]): what the kernel would do
//! otherwise for a shared mapping is done here as it does it for a private one.
//!
//! | call | shared mapping | here |
//! |---|---|---|
//! | fork | both write to it | frozen on both sides, or copied by the child; wiped or absent there if it was so advised |
//! | MADV_DONTNEED | the bytes stay | a hole in the file; fresh memory in the place of what is frozen |
//! | MADV_FREE, MADV_WIPEONFORK | EINVAL | the first does nothing, the second is noted |
//! | MADV_REMOVE, remap_file_pages, mremap of old size 0 | done | EINVAL |
//! | mremap | follows the file | the file if all of it is meant; else fresh memory behind it, or all of it moved piece by piece |
//! | munmap, MAP_FIXED, brk | the file keeps its pages | a hole in the file |

use super::advice::{DONTNEED_LOCKED, GUARD_INSTALL};
use super::map::{in_pieces, longer};
use super::pinning::{lock_for, repin, settle, settle_foreign};
use super::unmap::{munmap, put_back, Taken};
use super::{
    advice, close, end, failed, future_flags, lock, locks, open, real, registering, resync, State,
    USER_END,
};
use crate::arch::Frame;
use crate::policy;
use crate::share::{self, table::Part, Left};
use crate::startup;
use crate::sys::{self, call, Errno};
use core::ops::ControlFlow;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags, Kind, Prot};

const INVAL: i64 = -(Errno::INVAL.0 as i64);
const NOMEM: i64 = -(Errno::NOMEM.0 as i64);
/// What was advised about children.
const ADVISED: Flags = Flags::WIPED.with(Flags::NOT_FORKED);

/// What the ledger says of memory that is a file's.
fn attr_of(prot: Prot) -> Attr {
    let prot = Prot::from_call(u64::from(prot.bits()), true);
    let flags = future_flags().with(Flags::BACKED);
    policy::described(
        policy::fresh(prot, Kind::File, flags),
        startup::config().pin,
    )
}

/// Puts a file behind a mapping that is new, if that can be; `attr` says so then.
#[cold]
#[inline(never)]
pub fn fresh(range: PageRange, attr: &mut Attr) {
    let room =
        lock().is_some_and(|mut guard| share::table(&mut guard).has_room(share::most_files()));
    if !room || attr.flags.has(Flags::APP_LOCKED) || excluded_by_name() {
        return;
    }
    let Some(file) = share::back(range, u64::from(attr.prot.bits())) else {
        return;
    };
    let entered =
        lock().is_some_and(|mut guard| share::table(&mut guard).enter(range, file, 0, false));
    if !entered {
        share::close(file);
    }
    *attr = attr_of(attr.prot);
}

/// REGALL_EXCLUDE names anonymous memory: what it becomes would have another name.
fn excluded_by_name() -> bool {
    let patterns = startup::config().exclude.as_bytes();
    !patterns.is_empty()
        && [&b"[anon]"[..], b"[heap]"]
            .iter()
            .any(|name| crate::glob::matches_any(patterns, name))
}

/// As [`fresh`], for what the heap has grown by: more of the file that it ends with.
#[cold]
#[inline(never)]
pub fn fresh_heap(range: PageRange, attr: &mut Attr) {
    let file = lock().and_then(|mut guard| share::table(&mut guard).ends_at(range.start()));
    let prot = u64::from(attr.prot.bits());
    match file.filter(|file| share::back_more(range, prot, file)) {
        Some(file) => {
            if let Some(mut guard) = lock() {
                share::table(&mut guard).enter(range, file, file.used, false);
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

// ---- advice

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
            | libc::MADV_DONTDUMP
    )
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
    let mut from = range.start();
    let mut holes = false;
    while let Some(rest) = range.after(from) {
        let next = lock().and_then(|guard| first(&guard, rest, |_| true));
        let Some((part, attr)) = next else {
            holes = true;
            break;
        };
        holes |= part.start() > from;
        from = part.end();
        let mut piece = *frame;
        (piece.args[0], piece.args[1]) = (part.start(), part.len());
        let value = if is_backed(&attr) {
            advise_part(part, attr, &mut piece)
        } else {
            let value = advice::madvise_here(&mut piece);
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

fn advise_part(part: PageRange, attr: Attr, frame: &mut Frame) -> i64 {
    let advice = frame.args[2] as i32;
    let locked = attr.flags.has(Flags::APP_LOCKED);
    match advice {
        libc::MADV_REMOVE => INVAL,
        // A flag of the kernel's mapping, which would go when that is frozen.
        libc::MADV_DONTDUMP => {
            make_private(part);
            advice::madvise_here(frame)
        }
        libc::MADV_DONTNEED | libc::MADV_FREE | GUARD_INSTALL if locked => INVAL,
        // Guards are in the page tables, and those go when memory is frozen.
        GUARD_INSTALL => match replace(part, attr) {
            Ok(()) => advice::madvise_here(frame),
            Err(errno) => -i64::from(errno.0),
        },
        libc::MADV_FREE => 0,
        libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK => {
            note(part, advice);
            0
        }
        libc::MADV_DONTFORK | libc::MADV_DOFORK => {
            match sys::advise(part.start(), part.len(), advice) {
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
        libc::MADV_DONTFORK => mark(part, |f| f.with(Flags::NOT_FORKED)),
        libc::MADV_DOFORK => mark(part, |f| f.without(Flags::NOT_FORKED)),
        _ => (),
    }
}

/// What goes with memory, whatever is put in its place.
const KEPT: Flags = ADVISED.with(Flags::APP_LOCKS);

/// Advises new memory at `part` as the memory was that had `flags`, and locks it.
fn advise_again(part: PageRange, flags: Flags) {
    for (flag, advice) in [
        (Flags::WIPED, libc::MADV_WIPEONFORK),
        (Flags::NOT_FORKED, libc::MADV_DONTFORK),
    ] {
        if flags.has(flag) {
            let _ = sys::advise(part.start(), part.len(), advice);
        }
    }
    if flags.has(Flags::APP_LOCKED) {
        let onfault = flags.has(Flags::APP_ONFAULT);
        // What can't be accessed is locked all the same, and an error.
        let _ = sys::lock_memory(part.start(), part.len(), onfault);
    }
}

fn mark(part: PageRange, flags: impl Fn(Flags) -> Flags) {
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
    registering::refresh(part);
    let mut from = part.start();
    let mut done = Ok(());
    while let Some(rest) = part.after(from) {
        let file = lock().and_then(|mut guard| share::table(&mut guard).find(rest));
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
/// What was advised for it holds for that.
fn replace(part: PageRange, attr: Attr) -> sys::Result<()> {
    share::place_fresh(part, u64::from(attr.prot.bits()))?;
    enter_fresh(part, attr);
    advise_again(part, attr.flags);
    Ok(())
}

/// `part` is private anonymous memory now, that nobody has touched.
fn enter_fresh(part: PageRange, like: Attr) {
    let prot = Prot::from_call(u64::from(like.prot.bits() & 7), false);
    let flags = future_flags().with(Flags::from_bits(like.flags.bits() & KEPT.bits()));
    let attr = policy::fresh(prot, Kind::Anon, flags);
    let attr = policy::described(attr, startup::config().pin);
    if let Some(mut guard) = lock() {
        guard.remove(part, |_, _| ());
        guard.insert(part, attr);
    }
}

// ---- mremap

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
        let page = PageRange::from_call(old, 1)?;
        return touches(page).then_some(INVAL);
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
    let one = {
        let guard = lock()?;
        let mut seen = Taken::new();
        guard.ledger.for_each(source, |part, entry| {
            seen.add(part, entry.attr);
            ControlFlow::Continue(())
        });
        one_mapping(&seen, source)
    };
    let whole = !stays && !fixed && new_len > source.len() && {
        let mut guard = lock()?;
        share::table(&mut guard).is_whole(source)
    };
    let Some(like) = one else {
        // Not one mapping to the application either.
        return whole.then(|| with_its_file(frame, source));
    };
    let more = new_len.saturating_sub(source.len());
    if let (Some(tail), true) = (
        PageRange::from_call(source.end(), more),
        like.flags.has(Flags::APP_LOCKED),
    ) {
        if locks::refused(tail).is_some() {
            return Some(-i64::from(Errno::AGAIN.0));
        }
    }
    if whole {
        return Some(with_its_file(frame, source));
    }
    if !fixed && !stays && new_len <= source.len() {
        return Some(match source.after(old + new_len) {
            Some(tail) => shrink(frame, tail),
            None => old as i64,
        });
    }
    Some(carry(frame, source, target, like))
}

/// What `source` is, if it is one mapping to the application, whatever the kernel makes of
/// it: of its end, where it grows.
fn one_mapping(seen: &Taken, source: PageRange) -> Option<Attr> {
    let mut end = source.start();
    let mut last: Option<Attr> = None;
    let told = |a: &Attr| (a.prot.bits() & 7, a.flags.bits() & Flags::APP_LOCKS.bits());
    for (part, attr) in seen.all()? {
        let private = attr.kind == Kind::Anon && !attr.prot.shared() || is_backed(&attr);
        let same = last.is_none_or(|l| told(&l) == told(&attr));
        if part.start() != end || !private || !same {
            return None;
        }
        last = Some(attr);
        end = part.end();
    }
    last.filter(|_| end == source.end())
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
    if let Some(mut guard) = lock_for(&[Some(source)]) {
        flight.claim(&guard, source);
        moved.take(&mut guard, source);
    }
    registering::retract(source);
    let value = real(frame);
    let new = PageRange::from_call(value as u64, frame.args[2]).filter(|_| !failed(value));
    match (new, moved.files.only()) {
        (Some(new), Some(part)) => {
            if let Some(mut guard) = lock() {
                flight.touch(&guard, new);
                share::table(&mut guard).enter(new, part.file, part.offset, part.frozen);
            }
            // What was pinned was moved as it was; what is new may not be.
            resync::range(new, true);
            keep_marks(source.start(), new, &moved);
            if let (Some(last), Some(more)) = (moved.last(), new.after(new.start() + source.len()))
            {
                let kept = KEPT.bits() & last.flags.bits();
                mark(more, |f| f.with(Flags::from_bits(kept)));
            }
        }
        (Some(new), None) => resync::range(new, true),
        (None, _) => put_back(source, &moved),
    }
    close(flight, source);
    value
}

/// What was advised for the memory at `from` goes with it to `new`.
fn keep_marks(from: u64, new: PageRange, moved: &Taken) {
    for (part, attr) in moved.all().into_iter().flatten() {
        let kept = Flags::from_bits(attr.flags.bits() & KEPT.bits());
        let start = new.start() + (part.start() - from);
        let there = PageRange::from_call(start, part.len());
        if let (Some(there), true) = (there, kept != Flags::EMPTY) {
            mark(there, |f| f.with(kept));
        }
    }
}

/// Memory that grows where fresh memory can follow it, or is carried to another place.
fn carry(frame: &Frame, source: PageRange, target: Option<PageRange>, like: Attr) -> i64 {
    let [_, _, new_len, flags, ..] = frame.args;
    let stays = flags & libc::MREMAP_DONTUNMAP as u64 != 0;
    let len = round_up(new_len).unwrap_or(new_len);
    let rights = u64::from(like.prot.bits() & 7);
    if let (Some(more), None, false) = (len.checked_sub(source.len()), target, stays) {
        let tail = PageRange::from_call(source.end(), more);
        if let Some(tail) = tail {
            let flight = open(Call::Mremap);
            match longer(frame, source, like.prot) {
                Some(value) if !failed(value) => {
                    enter_fresh(tail, like);
                    advise_again(tail, like.flags);
                    settle(tail);
                    close(flight, tail);
                    return value;
                }
                Some(value) => {
                    end(flight);
                    return value;
                }
                None => end(flight),
            }
        }
    }
    let kept = source.before(source.start() + len).unwrap_or(source);
    if let Some(tail) = source.after(kept.end()) {
        let value = shrink(frame, tail);
        if failed(value) {
            return value;
        }
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
    registering::retract(source);
    if let Some(target) = target {
        registering::retract(target);
    }
    // DONTUNMAP leaves memory behind, which is made below.
    let mut plain = *frame;
    plain.args[3] &= !(libc::MREMAP_DONTUNMAP as u64);
    let value = in_pieces(&plain, kept, like.prot).unwrap_or(NOMEM);
    match PageRange::from_call(value as u64, len).filter(|_| !failed(value)) {
        Some(new) => {
            replaced.files.done();
            if let Some(mut guard) = lock() {
                flight.touch(&guard, new);
                moved.files.moved(&mut guard, kept.start(), new.start());
            }
            if stays && call_at(kept, rights) {
                enter_fresh(kept, like);
                advise_again(kept, like.flags);
                settle(kept);
            }
            resync::range(new, true);
            keep_marks(kept.start(), new, &moved);
            if let Some(tail) = new.after(new.start() + kept.len()) {
                let flags = Flags::from_bits(KEPT.bits() & like.flags.bits());
                mark(tail, |f| f.with(flags));
                advise_again(tail, flags);
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

/// Fresh memory where memory has just been carried away.
fn call_at(range: PageRange, rights: u64) -> bool {
    sys::map_at(range.start(), range.len(), rights as i32) == Ok(range.start())
}

// ---- fork

/// Ranges of each kind that a child sees to at the most.
const RANGES: usize = 64;
/// Bytes that a child copies at the most, while its parent waits; more are frozen.
const COPIED: u64 = 256 << 20;
/// Bytes that it copies at a time: so much more address space it needs.
const CHUNK: u64 = 1 << 20;
/// What a child says of its copying.
const COPYING: u32 = 0;
const HAS_COPIED: u32 = 1;
const CANT_COPY: u32 = 2;

/// What a child of fork has to do before it runs. It has to know by itself: its ledger is
/// made from /proc, which it may not be able to open.
pub struct Plan {
    /// To be empty there.
    wiped: [Option<(PageRange, Attr)>; RANGES],
    /// Shared with the parent, and to be copied.
    live: [Option<(PageRange, Attr)>; RANGES],
    /// From and to where memory was frozen.
    frozen: Option<PageRange>,
    /// Where the child says how it went.
    word: Option<NonNull<AtomicU32>>,
}

/// A fork is about to be made: all that a child is to have a copy of is frozen, or the child
/// is told to copy it. ENOMEM: there could be no child that has its own.
pub fn before_fork() -> sys::Result<Plan> {
    let mut plan = Plan::none();
    share::fork_begins();
    match plan.make() {
        Ok(()) => Ok(plan),
        Err(errno) => {
            share::fork_ends();
            Err(errno)
        }
    }
}

/// In a child of a fork that was not seen.
#[cold]
#[inline(never)]
pub fn late_child() {
    Plan::none().in_child();
}

impl Plan {
    /// Nothing is known of what the parent had.
    const fn none() -> Self {
        Self {
            wiped: [None; RANGES],
            live: [None; RANGES],
            frozen: None,
            word: None,
        }
    }

    /// Other threads may be writing: then what is shared is frozen. Where there are none,
    /// and it is not too much, the child makes itself a copy, and this process's memory
    /// stays what it is.
    #[cold]
    #[inline(never)]
    fn make(&mut self) -> sys::Result<()> {
        if lock().is_none() {
            // On top of the lock's holder: the child finds it by itself, and is waited for.
            self.word = Some(shared_page()?);
            return Ok(());
        }
        let copies = advice::alone()
            && shared_bytes() <= COPIED
            && !runs_on_shared_memory()
            && matches!(sys::rlimit(libc::RLIMIT_AS), Ok((u64::MAX, _)));
        let mut rest = PageRange::new(0, USER_END);
        while let Some(range) = rest {
            let found = lock().and_then(|guard| first(&guard, range, concerns_child));
            let Some((part, attr)) = found else {
                break;
            };
            rest = range.after(part.end());
            if attr.flags.has(Flags::WIPED) && keep(&mut self.wiped, part, attr) {
                continue;
            }
            if copies && keep(&mut self.live, part, attr) {
                continue;
            }
            freeze(part);
            let hull = self.frozen.unwrap_or(part);
            self.frozen = PageRange::new(hull.start().min(part.start()), part.end());
            // Its descriptor is gone: the child has to copy it, threads or no threads.
            let mut from = part.start();
            while let Some(rest) = part.after(from) {
                let left = lock().and_then(|guard| first(&guard, rest, is_live));
                let Some((left, attr)) = left else {
                    break;
                };
                from = left.end();
                if !keep(&mut self.live, left, attr) {
                    return Err(Errno::NOMEM);
                }
            }
        }
        if self.live.iter().any(Option::is_some) {
            self.word = Some(shared_page()?);
        }
        Ok(())
    }

    /// What the child copies must be as it is now until it has done so. Whether it could.
    #[cold]
    fn wait(&self, child: i64) -> bool {
        let Some(at) = self.word else {
            return true;
        };
        // SAFETY: mapped in `make`, and unmapped here.
        let word = unsafe { at.as_ref() };
        let mut ended = child <= 0;
        while !ended && word.load(Acquire) == COPYING {
            sys::nap(50_000);
            // Looked at again after it has ended: its last word may be there by now.
            ended = sys::process::has_ended(child as u64) && word.load(Acquire) == COPYING;
        }
        let could = word.load(Acquire) != CANT_COPY;
        if !could {
            sys::process::reap(child as u64);
        }
        let _ = sys::unmap(at.as_ptr() as u64, PAGE);
        could
    }

    /// The fork has been made, or refused: in the parent. ENOMEM: the child could not get
    /// memory of its own, and is no more.
    pub fn after(&self, child: i64) -> i64 {
        let could = self.wait(child);
        share::fork_ends();
        // Locks and registrations were those of the mappings before. Others may be at work
        // there: what is to be pinned waits for them.
        if let Some(range) = self.frozen {
            settle_foreign(range);
        }
        if could {
            child
        } else {
            NOMEM
        }
    }

    /// In the child, whose ledger is as the kernel's list.
    pub fn in_child(&self) {
        let mut could = true;
        for (part, attr) in self.wiped.iter().flatten() {
            let flags = attr.flags.with(Flags::WIPED);
            could &= replace(*part, Attr { flags, ..*attr }).is_ok();
            settle(*part);
        }
        for (part, attr) in self.live.iter().flatten() {
            could &= copy(*part, attr.prot).is_ok();
        }
        for (part, attr) in self.live.iter().flatten() {
            resync::range(*part, true);
            advise_again(*part, attr.flags);
        }
        could &= copy_shared();
        self.tell(could);
        if let Some(mut guard) = lock() {
            share::child(&mut guard);
        }
    }

    /// Tells the parent how it went. If it did not go well there must be no child.
    fn tell(&self, could: bool) {
        if let Some(at) = self.word {
            // SAFETY: mapped in `make`, and unmapped here.
            let word = unsafe { at.as_ref() };
            word.store(if could { HAS_COPIED } else { CANT_COPY }, Release);
            let at = at.as_ptr() as u64;
            let _ = sys::unmap(at, PAGE);
            if let Some(page) = PageRange::from_call(at, PAGE) {
                resync::range(page, false);
            }
        }
        if !could {
            log::error!("a child of fork has no memory of its own, and ends");
            sys::process::exit(1);
        }
    }
}

fn keep(list: &mut [Option<(PageRange, Attr)>], part: PageRange, attr: Attr) -> bool {
    // A child has none of its parent's locks.
    let flags = attr.flags.without(Flags::APP_LOCKS);
    let attr = Attr { flags, ..attr };
    let place = list.iter_mut().find(|p| p.is_none());
    place.map(|p| *p = Some((part, attr))).is_some()
}

/// Whether it is shared behind the application's back.
fn is_live(attr: &Attr) -> bool {
    is_backed(attr) && attr.prot.shared()
}

/// Whether a child would not have it as it must.
fn concerns_child(attr: &Attr) -> bool {
    let inherited = is_backed(attr) && !attr.flags.has(Flags::NOT_FORKED);
    inherited && (attr.prot.shared() || attr.flags.has(Flags::WIPED))
}

/// Whether this thread's stack, or what it has of its own, is shared: a child that copies
/// runs on it, and so does the parent that waits.
fn runs_on_shared_memory() -> bool {
    let own = [
        crate::arch::stack_pointer(),
        crate::arch::tls_block() as u64,
    ];
    own.iter()
        .any(|at| lock().is_some_and(|guard| guard.at(*at).is_some_and(|a| is_live(&a))))
}

/// Nobody keeps account any more: what is shared is frozen for good.
#[cold]
pub fn give_up(state: &mut State) {
    let mut rest = PageRange::new(0, USER_END);
    while let Some(range) = rest {
        let Some(file) = share::table(state).find(range) else {
            return;
        };
        rest = range.after(file.range.end());
        if let (Some(attr), false) = (state.at(file.range.start()), file.frozen) {
            freeze_piece(state, &file, attr);
        }
    }
}

/// A page that a child of fork and its parent both see.
fn shared_page() -> sys::Result<NonNull<AtomicU32>> {
    let how = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let at = call!(libc::SYS_mmap, 0, PAGE, prot, how, -1i64, 0)?;
    NonNull::new(at as *mut AtomicU32).ok_or(Errno::NOMEM)
}

/// Bytes that are shared behind the application's back.
fn shared_bytes() -> u64 {
    let mut bytes = 0;
    if let (Some(guard), Some(all)) = (lock(), PageRange::new(0, USER_END)) {
        guard.ledger.for_each(all, |part, entry| {
            if is_live(&entry.attr) {
                bytes += part.len();
            }
            ControlFlow::Continue(())
        });
    }
    bytes
}

/// Freezes `part`, piece by piece. What can't be (its descriptor is gone) stays shared, and
/// the child copies it.
fn freeze(part: PageRange) {
    registering::retract(part);
    let mut from = part.start();
    while let Some(rest) = part.after(from) {
        // Nobody else is about it while its rights are read and given again: a call of
        // another thread's that has begun is waited for, one that has not waits for us.
        let Some(mut guard) = super::pinning::lock_alone(rest) else {
            return;
        };
        let Some((piece, attr)) = first(&guard, rest, is_live) else {
            return;
        };
        from = piece.end();
        let Some(file) = share::table(&mut guard).find(piece) else {
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
        policy::unregistered(resync::unsettled(a))
    });
    let rights = u64::from(prot.bits());
    let placed = share::place(range, rights, libc::MAP_PRIVATE, file.file.fd, file.offset);
    match placed {
        Ok(()) => {
            if let Some(closed) = share::table(state).freeze(range) {
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

/// Freezes what of `range` is shared: for those who are about to look at its pages.
#[cold]
#[inline(never)]
pub fn make_private(range: PageRange) {
    if touches(range) {
        freeze(range);
        settle(range);
    }
}

/// In a child of fork: what is still shared with the parent becomes a copy. Whether it did.
#[cold]
#[inline(never)]
fn copy_shared() -> bool {
    let mut could = true;
    let mut rest = PageRange::new(0, USER_END);
    while let Some(range) = rest {
        let found = lock().and_then(|guard| first(&guard, range, is_live));
        let Some((part, attr)) = found else {
            break;
        };
        rest = range.after(part.end());
        could &= copy(part, attr.prot).is_ok();
        resync::range(part, true);
    }
    could
}

/// A copy of `part` in its own place, chunk by chunk.
fn copy(part: PageRange, prot: Prot) -> sys::Result<()> {
    if !prot.readable() {
        sys::protect(part.start(), part.len(), libc::PROT_READ)?;
    }
    let mut from = part.start();
    while let Some(rest) = part.after(from) {
        let file = lock().and_then(|mut guard| share::table(&mut guard).find(rest));
        let file = file.filter(|f| f.range.start() == from && share::is_open(&f.file));
        let most = file.map_or(rest, |f| f.range);
        let chunk = most.before(from + CHUNK).unwrap_or(most);
        copy_chunk(chunk, prot, file)?;
        from = chunk.end();
    }
    Ok(())
}

fn copy_chunk(chunk: PageRange, prot: Prot, file: Option<Part>) -> sys::Result<()> {
    let (start, len) = (chunk.start(), chunk.len());
    let copy = sys::map_private(len as usize)?.as_ptr() as u64;
    match file {
        // Only what is there: to read the rest is to make it.
        Some(file) => {
            let (mut at, end) = (file.offset, file.offset + len);
            while let Some((data, hole)) = share::next_data(&file.file, at, end)? {
                let skip = data - file.offset;
                copy_bytes(start + skip, copy + skip, hole - data);
                at = hole;
            }
        }
        None => copy_bytes(start, copy, len),
    }
    sys::protect(copy, len, i32::from(prot.bits() & 7))?;
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    call!(libc::SYS_mremap, copy, len, len, how, start).map(drop)
}

fn copy_bytes(from: u64, to: u64, len: u64) {
    // SAFETY: both are mapped in this process, which has one thread, and don't overlap.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len as usize) };
}

impl Left {
    /// The one part, if there is one.
    fn only(&self) -> Option<Part> {
        let mut parts = self.parts();
        let part = parts.next()?;
        parts.next().is_none().then_some(*part)
    }

    /// They are at another address, by as much as `from` is from `to`.
    fn moved(&mut self, state: &mut State, from: u64, to: u64) {
        for part in self.parts() {
            let start = to + (part.range.start() - from);
            if let Some(range) = PageRange::from_call(start, part.range.len()) {
                share::table(state).enter(range, part.file, part.offset, part.frozen);
            }
        }
    }
}
