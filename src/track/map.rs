//! Calls that bring memory or change what it allows: the kernel first, then the
//! ledger, then the pin set, and only then the application.

use super::flight::Flight;
use super::pinning::{let_go, lock_for, relent, settle};
use super::unmap::{put_back, Taken};
use super::{
    backed, close, deferred, end, failed, future_flags, lock, open, over_budget, real, registering,
    resync, State,
};
use crate::arch::Frame;
use crate::config::Pin;
use crate::huge;
use crate::intercept;
use crate::ledger::Origin;
use crate::policy;
use crate::share;
use crate::startup;
use crate::sys::{self, file, Errno};
use crate::text::Text;
use core::ops::ControlFlow;
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags, Kind, Prot, Reason};

/// mremap's word for a range that lies in more than one of the kernel's mappings:
/// a mapping that is pinned only in part is two.
const FAULT: i64 = -(Errno::FAULT.0 as i64);
/// Linux 6.11.
const MAP_DROPPABLE: u64 = 8;
const NOMEM: i64 = -(Errno::NOMEM.0 as i64);

/// What a new mapping is, and where the part that can be touched ends.
struct New {
    attr: Attr,
    /// Bytes from its start that the file has; u64::MAX: no file.
    backed: u64,
    /// What of which file it is.
    origin: Option<Origin>,
}

/// mmap(2).
#[inline(never)]
pub fn mmap(frame: &mut Frame) -> i64 {
    let [addr, len, prot, flags, ..] = frame.args;
    let fixed =
        flags & libc::MAP_FIXED as u64 != 0 && flags & libc::MAP_FIXED_NOREPLACE as u64 == 0;
    if over_budget_for(prot, len) {
        return NOMEM;
    }
    let flight = open(Call::Mmap);
    let target = if fixed {
        PageRange::from_call(addr, len)
    } else {
        None
    };
    let mut taken = Taken::new();
    if let Some(target) = target {
        match lock_for(&[Some(target)]) {
            Some(mut guard) => {
                flight.claim(&guard, target);
                taken.take(&mut guard, target);
            }
            None => deferred::gone(target),
        }
        registering::retract(target);
    }
    let mut value = real(frame);
    if failed(value) && relent(value) {
        value = real(frame);
    }
    if failed(value) {
        if let Some(target) = target {
            put_back(target, &taken);
            close(flight, target);
        }
        return value;
    }
    let Some(range) = mapped_range(value as u64, len, flags) else {
        return value;
    };
    taken.files.done();
    let mut new = describe(frame, range);
    if is_plain(&new.attr, flags) {
        // At an address of the application's own choice others may be writing already.
        let chosen = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u64;
        if share::on() && flags & chosen == 0 {
            backed::fresh(range, &mut new.attr);
        }
        huge::fresh(range);
    }
    enter(&flight, range, &new);
    // Fresh anonymous memory holds nothing that could run yet.
    if new.attr.prot.executable() && !matches!(new.attr.kind, Kind::Anon | Kind::ThreadStack) {
        let backed = round_up(new.backed).unwrap_or(u64::MAX);
        let end = range.start().saturating_add(backed).min(range.end());
        intercept::new_code(range, end, new.attr.prot.shared());
    }
    close(flight, range);
    value
}

/// Whether new memory is private, anonymous, to be written to, and not there before it is
/// touched.
#[inline]
fn is_plain(attr: &Attr, flags: u64) -> bool {
    let special = libc::MAP_NORESERVE | libc::MAP_POPULATE | libc::MAP_LOCKED;
    let special = (special | libc::MAP_GROWSDOWN) as u64;
    attr.kind == Kind::Anon
        && flags & special == 0
        && attr.prot.writable()
        && !attr.prot.shared()
        && !attr.flags.has(Flags::APP_LOCKED)
}

#[inline]
fn over_budget_for(prot: u64, len: u64) -> bool {
    startup::config().fail_on_limit && prot & 7 != 0 && over_budget(len)
}

#[inline]
fn mapped_range(at: u64, len: u64, flags: u64) -> Option<PageRange> {
    let len = if flags & libc::MAP_HUGETLB as u64 == 0 {
        len
    } else {
        let log = flags >> libc::MAP_HUGE_SHIFT & 0x3f;
        let page = if log == 0 {
            huge::HUGE_PAGE
        } else {
            1u64.checked_shl(log as u32)?
        };
        len.checked_next_multiple_of(page)?
    };
    PageRange::from_call(at, len)
}

/// Into the ledger and, where it is to be, the pin set.
fn enter(flight: &Flight, range: PageRange, new: &New) {
    let end = round_up(new.backed)
        .and_then(|b| range.start().checked_add(b))
        .unwrap_or(u64::MAX);
    match lock() {
        Some(mut guard) => {
            flight.touch(&guard, range);
            if let Some(head) = range.before(end) {
                guard.insert_part(head, new.attr, new.origin);
            }
            if let Some(tail) = range.after(end) {
                let flags = new.attr.flags.with(Flags::TAIL);
                guard.insert_part(
                    tail,
                    policy::described(Attr { flags, ..new.attr }, startup::config().pin),
                    new.origin,
                );
            }
        }
        None => return deferred::mapped(range, new.attr),
    }
    settle(range);
}

#[inline]
fn describe(frame: &Frame, range: PageRange) -> New {
    let [_, _, prot, flags, fd, offset] = frame.args;
    let kind = flags & libc::MAP_TYPE as u64;
    let shared = kind != libc::MAP_PRIVATE as u64 && kind != MAP_DROPPABLE;
    let prot = Prot::from_call(prot, shared);
    let set = |bit: i32| flags & bit as u64 != 0;
    let mut facts = future_flags();
    if set(libc::MAP_NORESERVE) {
        facts = facts.with(Flags::NORESERVE);
    }
    if set(libc::MAP_GROWSDOWN) {
        facts = facts.with(Flags::GROWSDOWN).with(Flags::GROWABLE);
    }
    if set(libc::MAP_LOCKED) {
        facts = facts.with(Flags::APP_LOCKED);
    }
    let mut origin = None;
    let (kind, facts, backed) = if set(libc::MAP_HUGETLB) {
        (Kind::Huge, facts, u64::MAX)
    } else if !set(libc::MAP_ANONYMOUS) {
        describe_file(fd as i32, offset, prot, facts, range, &mut origin)
    } else if kind == MAP_DROPPABLE {
        // mlock takes it and does nothing.
        (Kind::Special, facts, u64::MAX)
    } else if set(libc::MAP_STACK) {
        (Kind::ThreadStack, facts, u64::MAX)
    } else {
        (Kind::Anon, facts, u64::MAX)
    };
    let attr = policy::described(policy::fresh(prot, kind, facts), startup::config().pin);
    New {
        attr,
        backed,
        origin,
    }
}

#[cold]
#[inline(never)]
fn describe_file(
    fd: i32,
    offset: u64,
    prot: Prot,
    facts: Flags,
    range: PageRange,
    origin: &mut Option<Origin>,
) -> (Kind, Flags, u64) {
    let mut facts = facts;
    let Ok(stat) = file::stat_fd(fd) else {
        return (Kind::File, facts, u64::MAX);
    };
    if excluded_by_name(fd) {
        facts = facts.with(Flags::EXCLUDED);
    }
    if stat.mode & libc::S_IFMT == libc::S_IFREG {
        if !prot.shared() && !prot.writable() {
            facts = facts.with(Flags::TEXT);
        }
        let device = (libc::major(stat.dev), libc::minor(stat.dev));
        *origin = Some(Origin::of_file(device, stat.inode, offset, range.start()));
        return (Kind::File, facts, stat.size.saturating_sub(offset));
    }
    // Devices, sockets, rings: what the kernel made of it, it says in smaps.
    (
        resync::special_kind(range.start()).unwrap_or(Kind::Anon),
        facts,
        u64::MAX,
    )
}

#[cold]
#[inline(never)]
fn excluded_by_name(fd: i32) -> bool {
    let patterns = startup::config().exclude.as_bytes();
    if patterns.is_empty() {
        return false;
    }
    let link: Text<64> = Text::of(format_args!("/proc/self/fd/{fd}"));
    let mut buf = [0u8; 1024];
    let name = link.as_cstr().map(|p| file::read_link(p, &mut buf));
    matches!(name, Some(Ok(name)) if crate::glob::matches_any(patterns, name))
}

/// mprotect(2) and pkey_mprotect(2).
#[inline(never)]
pub fn mprotect(call: Call, frame: &mut Frame) -> i64 {
    let [addr, len, prot, ..] = frame.args;
    let Some(range) = PageRange::from_call(addr, len) else {
        return real(frame);
    };
    if share::any() && prot & libc::PROT_EXEC as u64 != 0 {
        // Code is patched, here and by debuggers, in memory of this process's own.
        backed::make_private(range);
    }
    let flight = open(call);
    let Some(mut guard) = lock_for(&[Some(range)]) else {
        let value = real(frame);
        deferred::later(range);
        return value;
    };
    flight.claim(&guard, range);
    let opened = if startup::config().fail_on_limit && prot & 7 != 0 {
        without_access(&guard, range)
    } else {
        0
    };
    let other_rights = registering::active() && changes_rights(&guard, range, prot);
    // Where nobody registers, nothing that is said has to wait for the kernel, and one
    // turn with the lock will do; what the kernel refuses is read anew.
    let told = opened == 0 && startup::config().pin == Pin::Off && !registering::active();
    if told {
        describe_anew(&mut guard, range, prot);
    }
    drop(guard);
    if opened != 0 && over_budget(opened) {
        return NOMEM;
    }
    if prot & 7 == 0 {
        // What can't be accessed can't be registered: let go before the call.
        let_go(range);
    }
    if other_rights {
        registering::refresh(range);
    }
    let mut value = real(frame);
    if failed(value) && relent(value) {
        value = real(frame);
    }
    if failed(value) {
        // It may have changed a part before it failed.
        resync::range(range, false);
        close(flight, range);
        return value;
    }
    if prot & (libc::PROT_GROWSDOWN | libc::PROT_GROWSUP) as u64 != 0 {
        // The kernel extends the range to the end of a stack.
        resync::around(range);
    } else if !told || registering::active() {
        reprotect(range, prot);
    }
    if prot & libc::PROT_EXEC as u64 != 0 {
        let shared = lock()
            .and_then(|g| g.at(range.start()))
            .is_some_and(|a| a.prot.shared());
        // Not what may only be run.
        if prot & libc::PROT_READ as u64 != 0 {
            intercept::new_code(range, range.end(), shared);
        }
    }
    close(flight, range);
    value
}

/// Whether regions of `range` would be registered with other rights than they are.
#[cold]
fn changes_rights(state: &State, range: PageRange, prot: u64) -> bool {
    let (write, none) = (prot & libc::PROT_WRITE as u64 != 0, prot & 7 == 0);
    let mut any = false;
    state.ledger.for_each(range, |_, entry| {
        let p = entry.attr.prot;
        any |= p.writable() != write || p.is_none() != none;
        ControlFlow::Continue(())
    });
    any
}

/// Bytes of `range` that can't be accessed as yet.
#[cold]
fn without_access(state: &State, range: PageRange) -> u64 {
    let mut bytes = 0;
    state.ledger.for_each(range, |part, entry| {
        if entry.attr.prot.is_none() {
            bytes += part.len();
        }
        ControlFlow::Continue(())
    });
    bytes
}

fn reprotect(range: PageRange, prot: u64) {
    let pending = match lock() {
        Some(mut guard) => describe_anew(&mut guard, range, prot),
        None => return deferred::later(range),
    };
    if pending || registering::active() {
        settle(range);
    }
}

/// What is mapped in `range` can be accessed as `prot` says. Whether there is
/// something to be pinned now.
#[inline]
fn describe_anew(state: &mut State, range: PageRange, prot: u64) -> bool {
    let pin = startup::config().pin;
    let mut pending = false;
    state.update(range, |_, attr| {
        let was_out = attr.pin.reason == Reason::NoAccess;
        let mut new = Attr {
            prot: attr.prot.with_prot(prot),
            ..attr
        };
        if new.kind == Kind::File && !new.prot.shared() {
            let text = Flags::TEXT;
            new.flags = if new.prot.writable() {
                new.flags.without(text)
            } else {
                new.flags.with(text)
            };
        }
        if was_out {
            new.pin.reason = Reason::Off;
        }
        new = policy::described(new, pin);
        pending |= new.pin.reason == Reason::Off;
        new
    });
    pending
}

/// mremap(2), all flags.
#[inline(never)]
pub fn mremap(frame: &mut Frame) -> i64 {
    let [old, old_len, new_len, flags, new_addr, _] = frame.args;
    if share::any() {
        if let Some(value) = backed::mremap(frame) {
            return value;
        }
    }
    let fixed = flags & libc::MREMAP_FIXED as u64 != 0;
    if old % PAGE != 0 || (new_len > old_len && over_budget(new_len - old_len)) {
        return if old % PAGE != 0 { real(frame) } else { NOMEM };
    }
    let source = PageRange::from_call(old, old_len);
    let target = if fixed {
        PageRange::from_call(new_addr, new_len)
    } else {
        None
    };
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
    if failed(value) && (relent(value) || value == FAULT && moved.unpin()) {
        value = real(frame);
    }
    if let (FAULT, Some(source)) = (value, source) {
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
            value = longer(frame, source, one.prot)
                .or_else(|| in_pieces(frame, source, one.prot))
                .unwrap_or(value);
        }
    }
    if failed(value) {
        if let Some(target) = target {
            put_back(target, &replaced);
        }
        if let Some(source) = source {
            put_back(source, &moved);
        }
    } else {
        replaced.files.done();
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
    }
    if let (true, Some(target)) = (flight.lost_track(), target) {
        resync::range(target, true);
    }
    match source.or(target) {
        Some(range) => close(flight, range),
        None => end(flight),
    }
    value
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
                registering::retract(tail);
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
        registering::retract(*range);
    }
    Stayed::No
}

/// Whether parts that lie one behind the other are one private mapping to the application,
/// whatever the ledger and the kernel make of it.
pub(super) struct OneMapping {
    range: PageRange,
    /// So far they are, up to here.
    end: u64,
    last: Option<Attr>,
}

impl OneMapping {
    /// Of nothing yet; it is to be all of `range`.
    pub(super) fn new(range: PageRange) -> Self {
        Self {
            range,
            end: range.start(),
            last: None,
        }
    }

    /// As the ledger has it.
    pub(super) fn in_ledger(state: &State, range: PageRange) -> Option<Attr> {
        let mut one = Self::new(range);
        state.ledger.for_each(range, |part, entry| {
            one.add(part, entry.attr);
            ControlFlow::Continue(())
        });
        one.attr()
    }

    /// The part that comes next.
    pub(super) fn add(&mut self, part: PageRange, attr: Attr) {
        let told = |a: &Attr| (a.prot.bits() & 7, a.flags.bits() & Flags::APP_LOCKS.bits());
        let anonymous = attr.kind == Kind::Anon && !attr.prot.shared();
        let private = anonymous || attr.flags.has(Flags::BACKED);
        let same = self.last.is_none_or(|l| told(&l) == told(&attr));
        if part.start() == self.end && private && same {
            self.last = Some(attr);
            self.end = part.end();
        }
    }

    /// What its end is, where it grows; `None`: it is not one mapping.
    pub(super) fn attr(&self) -> Option<Attr> {
        self.last.filter(|_| self.end == self.range.end())
    }
}

/// What has just left the ledger, if it is one mapping to the application.
#[cold]
#[inline(never)]
fn was_one_mapping(moved: &Taken, source: PageRange) -> Option<Attr> {
    match moved.all() {
        Some(parts) => {
            let mut one = OneMapping::new(source);
            parts.for_each(|(part, attr, _)| one.add(part, attr));
            one.attr()
        }
        None => {
            // More than are remembered: read anew, and out of the directory again.
            resync::range(source, false);
            let one = {
                let mut guard = lock()?;
                let one = OneMapping::in_ledger(&guard, source);
                Taken::new().take(&mut guard, source);
                one
            };
            registering::retract(source);
            // (Which of it the application has locked, the kernel's list does not say.)
            one.filter(|_| !moved.is_app_locked())
        }
    }
}

/// mremap that makes a mapping longer where it is, whatever the kernel makes of its parts:
/// fresh memory follows it.
#[cold]
#[inline(never)]
pub(super) fn longer(frame: &Frame, source: PageRange, prot: Prot) -> Option<i64> {
    let [old, _, new_len, flags, ..] = frame.args;
    if flags & !(libc::MREMAP_MAYMOVE as u64) != 0 {
        return None;
    }
    let more = round_up(new_len)?.checked_sub(source.len())?;
    let tail = PageRange::from_call(source.end(), more)?;
    match sys::map_at(tail.start(), tail.len(), i32::from(prot.bits() & 7)) {
        Ok(at) if at == tail.start() => Some(old as i64),
        Ok(at) => {
            let _ = sys::unmap(at, tail.len()); // before Linux 4.17
            None
        }
        Err(_) if flags == 0 => Some(NOMEM),
        Err(_) => None,
    }
}

/// mremap for a mapping that pinning its parts at different times has made
/// several to the kernel, which merges only what was populated together: each
/// is moved to its place in a new one.
#[cold]
#[inline(never)]
pub(super) fn in_pieces(frame: &Frame, source: PageRange, prot: Prot) -> Option<i64> {
    let [_, _, new_len, flags, new_addr, _] = frame.args;
    if flags & libc::MREMAP_MAYMOVE as u64 == 0 || flags & libc::MREMAP_DONTUNMAP as u64 != 0 {
        return None;
    }
    let mut at = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    if flags & libc::MREMAP_FIXED as u64 != 0 {
        at |= libc::MAP_FIXED;
    }
    let prot = prot.bits() & 7;
    let hint = if at & libc::MAP_FIXED != 0 {
        new_addr
    } else {
        0
    };
    let to = sys::call!(libc::SYS_mmap, hint, new_len, prot, at, -1i64, 0).ok()?;
    let moved = resync::each_mapping(source, |part| {
        let there = to + (part.start() - source.start());
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let one = sys::call!(
            libc::SYS_mremap,
            part.start(),
            part.len(),
            part.len(),
            how,
            there
        );
        one.is_ok()
    });
    moved.then_some(to as i64)
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
    let last = moved.last().or(if source.is_none() { twin } else { None });
    let (Some(last), Some(parts)) = (last, moved.all()) else {
        // More mappings than are remembered, or one that we did not know.
        resync::range(new, true);
        if let Some(source) = source {
            resync::range(source, true);
        }
        return;
    };
    let Some(mut guard) = lock() else {
        return deferred::later(new);
    };
    flight.touch(&guard, new);
    for (part, attr, origin) in parts {
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
            let _ = resync::read(&mut guard, tail, last.flags.without(Flags::TAIL));
        }
        Some(tail) => {
            let last = policy::unregistered(last);
            // The kernel has locked it as the application has the rest: another kind of lock
            // would make two mappings of it.
            let locked = last.flags.has(Flags::APP_LOCKED) && last.pin.held();
            let attr = if locked { last } else { pending(last) };
            // More of the same, for shared memory, too.
            let origin = moved
                .last_part()
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

/// shmat(2).
#[cold]
#[inline(never)]
pub fn shmat(frame: &mut Frame) -> i64 {
    let [id, addr, flags, ..] = frame.args;
    let flight = open(Call::Shmat);
    let remap = flags & libc::SHM_REMAP as u64 != 0;
    let bytes = sys::shm_bytes(id).unwrap_or(0);
    let target = if remap && addr != 0 {
        PageRange::covering(addr & !(PAGE - 1), bytes)
    } else {
        None
    };
    let mut taken = Taken::new();
    if let (Some(target), Some(mut guard)) = (target, lock_for(&[target])) {
        flight.claim(&guard, target);
        taken.take(&mut guard, target);
    }
    if let Some(target) = target {
        registering::retract(target);
    }
    let value = real(frame);
    if failed(value) {
        if let Some(target) = target {
            put_back(target, &taken);
        }
        return value;
    }
    let Some(range) = PageRange::from_call(value as u64, bytes) else {
        resync::audit();
        return value;
    };
    let mut prot = libc::PROT_READ as u64;
    if flags & libc::SHM_RDONLY as u64 == 0 {
        prot |= libc::PROT_WRITE as u64;
    }
    if flags & libc::SHM_EXEC as u64 != 0 {
        prot |= libc::PROT_EXEC as u64;
    }
    let attr = policy::fresh(Prot::from_call(prot, true), Kind::Shm, future_flags());
    let new = New {
        attr: policy::described(attr, startup::config().pin),
        backed: u64::MAX,
        origin: None,
    };
    enter(&flight, range, &new);
    close(flight, range);
    value
}

/// Calls so rare that what they did is read from the kernel.
#[cold]
#[inline(never)]
pub fn odd(call: Call, frame: &mut Frame) -> i64 {
    let flight = open(call);
    let remapped = PageRange::from_call(frame.args[0], frame.args[1]);
    if call == Call::RemapFilePages && remapped.is_some_and(backed::touches) {
        return -i64::from(Errno::INVAL.0); // as for any private memory
    }
    if let (Call::RemapFilePages, Some(range)) = (call, remapped) {
        registering::retract(range);
    }
    let value = real(frame);
    if failed(value) && call == Call::RemapFilePages {
        if let Some(range) = remapped {
            settle(range);
        }
    }
    if !failed(value) {
        let range = match call {
            Call::RemapFilePages => remapped,
            Call::MapShadowStack => PageRange::from_call(value as u64, frame.args[1]),
            _ => None,
        };
        match range {
            Some(range) => resync::range(range, true),
            None => resync::audit(),
        }
    }
    end(flight);
    value
}

/// Memory that the C interface has just mapped for the application; `out`: it stays out of
/// registration.
pub fn own_allocation(range: PageRange, prot: Prot, kind: Kind, out: bool) {
    let mut flags = future_flags();
    if out {
        flags = flags.with(Flags::OPTED_OUT);
    }
    let attr = policy::fresh(prot, kind, flags);
    let flight = open(Call::Mmap);
    let new = New {
        attr: policy::described(attr, startup::config().pin),
        backed: u64::MAX,
        origin: None,
    };
    enter(&flight, range, &new);
    close(flight, range);
}
