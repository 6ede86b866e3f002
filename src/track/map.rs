//! Calls that bring memory or change what it allows: the kernel first, then the
//! ledger, then the pin set, and only then the application.

use super::description::{self, New};
use super::flight::Flight;
use super::headroom::{self, Charge};
use super::locks;
use super::settling::{settle, settle_new};
use super::subscribers;
use super::taken::{put_back, Taken};
use super::turns::lock_for;
use super::unpinning::let_go;
use super::{
    backed, close, deferred, end, failed, future_flags, lock, notes, open, over_budget, reading,
    real, resync, retracting, seals, sparse,
};
use crate::arch::Frame;
use crate::base::settings;
use crate::huge;
use crate::limits;
use crate::policy;
use crate::registrar::pin;
use crate::share;
use crate::sys::{self, Errno};
use core::ops::ControlFlow;
use regall_directory::addr::{round_up, PageRange, PAGE};
use regall_directory::layout::Call;
use regall_directory::planted;
use regall_directory::vocab::{Attr, Flags, Kind, Prot};

const NOMEM: i64 = -(Errno::NOMEM.0 as i64);

/// mmap(2).
#[inline(never)]
pub fn mmap(frame: &mut Frame) -> i64 {
    let [addr, len, prot, flags, ..] = frame.args;
    let fixed =
        flags & libc::MAP_FIXED as u64 != 0 && flags & libc::MAP_FIXED_NOREPLACE as u64 == 0;
    if over_budget_for(prot, len) {
        return NOMEM;
    }
    let target = if fixed {
        PageRange::from_call(addr, len)
    } else {
        None
    };
    if let Some(value) = seals::refused(Call::Mmap, frame, [target, None]) {
        return value;
    }
    let flight = open(Call::Mmap);
    let mut taken = Taken::new();
    if let Some(target) = target {
        take_target(&flight, target, charge(frame), &mut taken);
    }
    let file = description::file_of(frame);
    let behind = is_populated_behind(frame);
    if behind {
        frame.args[3] &= !POPULATED;
    }
    let mut value = real(frame);
    if failed(value) && target.is_none() {
        value = with_room(frame, value);
    }
    if behind {
        frame.args[3] |= POPULATED;
    }
    if failed(value) {
        match target {
            Some(target) => {
                planted!("mmap-not-put-back", (), put_back(target, &taken));
                close(flight, target);
            }
            None => end(flight),
        }
        return planted!("mmap-errno", NOMEM, value);
    }
    let Some(range) = mapped_range(value as u64, len, flags) else {
        return value;
    };
    taken.done();
    if let (true, Some(target)) = (taken.has_code(), target) {
        subscribers::code_gone(target);
    }
    let mut new = description::describe(frame, range, file);
    if is_plain(&new.attr, flags) {
        improve(range, flags, &mut new.attr);
    }
    enter(&flight, range, &new);
    if new.attr.flags.has(Flags::GROWSDOWN.with(Flags::APP_LOCKED)) {
        locks::leave_room(range);
    }
    if behind {
        populate(range);
    }
    // Fresh anonymous memory holds nothing that could run yet.
    if new.attr.prot.executable() && !matches!(new.attr.kind, Kind::Anon | Kind::ThreadStack) {
        let backed = round_up(new.backed).unwrap_or(u64::MAX);
        let end = range.start().saturating_add(backed).min(range.end());
        let [.., fd, offset] = frame.args;
        if let Some(code) = range.before(end) {
            sparse::each_part(code, (fd as i32, offset), new.file, |part| {
                if planted!("mmap-new-code", false, true) {
                    subscribers::new_code(part, end, new.attr.prot.shared(), false);
                }
            });
        }
    }
    close(flight, range);
    value
}

const POPULATED: u64 = libc::MAP_POPULATE as u64;

/// Returns whether an mmap is of private memory that is populated at once (MAP_POPULATE), and that we lock first:
/// what is populated beside other memory that is locked, and is not locked itself, never becomes one mapping
/// with that.
#[inline]
fn is_populated_behind(frame: &Frame) -> bool {
    let [_, _, prot, flags, ..] = frame.args;
    let populated = libc::MAP_PRIVATE | libc::MAP_POPULATE;
    let which = populated | libc::MAP_SHARED | libc::MAP_NONBLOCK | libc::MAP_LOCKED;
    let asked = flags & which as u64 == populated as u64 && prot & libc::PROT_WRITE as u64 != 0;
    let theirs = || future_flags().has(Flags::APP_LOCKED);
    asked && pin::locks() && !theirs() && reading::knows_populate()
}

/// Has `range` populated, if that was not done by our lock.
fn populate(range: PageRange) {
    let ours = |attr: Attr| policy::has_our_lock(attr) && !attr.flags.has(Flags::ONFAULT);
    let entry = lock().and_then(|guard| guard.ledger.get(range.start()));
    if !entry.is_some_and(|entry| entry.range.end() >= range.end() && ours(entry.attr)) {
        let _ = sys::advise(range.start(), range.len(), libc::MADV_POPULATE_WRITE);
    }
}

/// Takes what a fixed mapping is to replace out of the ledger and of the regions. The kernel may unmap
/// it and refuse the rest, so the call is made once: what is charged for it has room before.
#[inline]
fn take_target(flight: &Flight, target: PageRange, charge: Option<Charge>, taken: &mut Taken) {
    let mut locked = lock_for(&[Some(target)]);
    if let Some(guard) = &locked {
        flight.claim(guard, target);
    }
    if limits::bound() {
        drop(locked);
        headroom::thin_out();
        if let Some(charge) = charge {
            let_go(target);
            headroom::make_room(charge);
        }
        locked = lock_for(&[Some(target)]);
    }
    match locked {
        Some(mut guard) => taken.take(&mut guard, target),
        None => deferred::gone(target),
    }
    retracting::retract(target);
}

/// What an mmap is charged for. What memfd_secret(2) has made is charged as locked memory is.
#[inline]
fn charge(frame: &Frame) -> Option<Charge> {
    let [_, len, _, flags, fd, _] = frame.args;
    let set = |bit: i32| flags & bit as u64 != 0;
    let file = !set(libc::MAP_ANONYMOUS) && set(libc::MAP_SHARED);
    match set(libc::MAP_LOCKED) || file && description::is_secret(fd as i32) {
        true => Some(Charge::more(len)),
        false => Charge::future(len),
    }
}

/// Makes new private memory a memfd's, or has huge pages come to it, as the settings say.
#[inline]
fn improve(range: PageRange, flags: u64, attr: &mut Attr) {
    // At an address of the application's own choice others may be writing already.
    let chosen = (libc::MAP_FIXED | libc::MAP_FIXED_NOREPLACE) as u64;
    if share::on() && flags & chosen == 0 {
        backed::fresh(range, attr);
    }
    if huge::fresh(range) && attr.flags.has(Flags::BACKED) {
        backed::mark(range, |m| m.advised(libc::MADV_HUGEPAGE));
    }
}

/// Makes an mmap of the kernel's choice again, once, that our pins were in the way of.
#[cold]
#[inline(never)]
fn with_room(frame: &Frame, value: i64) -> i64 {
    match value {
        crowded if headroom::is_crowded(crowded) && headroom::thin_out() => real(frame),
        other => headroom::retry(frame, other, headroom::is_beyond, charge(frame)),
    }
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
    settings::config().fail_on_limit && prot & 7 != 0 && over_budget(len)
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
                    policy::described(Attr { flags, ..new.attr }, pin::holding()),
                    new.origin,
                );
            }
        }
        None => return notes::mapped(range, new.attr),
    }
    settle_new(range);
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
    let charge = Charge::future(bytes);
    if let Some(target) = target {
        take_target(&flight, target, charge, &mut taken);
    }
    let charge = charge.filter(|_| target.is_none());
    let value = headroom::retry(frame, real(frame), headroom::is_beyond, charge);
    if failed(value) {
        if let Some(target) = target {
            put_back(target, &taken);
        }
        end(flight);
        return value;
    }
    if let (true, Some(target)) = (taken.has_code(), target) {
        subscribers::code_gone(target);
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
    let new = New::of(policy::described(attr, pin::holding()));
    enter(&flight, range, &new);
    if new.attr.prot.executable() {
        subscribers::new_code(range, range.end(), true, false);
    }
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
        if limits::bound() {
            // What is locked is mapped anew as locked memory, and charged.
            let_go(range);
            headroom::make_room(Charge::more(range.len()));
        }
        retracting::retract(range);
    }
    let mut value = real(frame);
    if failed(value) {
        value = odd_with_room(call, frame, value);
        if let (Call::RemapFilePages, Some(range)) = (call, remapped) {
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
        if let (Call::RemapFilePages, Some(range)) = (call, range) {
            other_code(range);
        }
    }
    end(flight);
    value
}

/// Other pages of a shared file have come to `range`: what of it can be executed is other code.
#[cold]
fn other_code(range: PageRange) {
    each_code(range, |code, _| {
        subscribers::code_gone(code);
        subscribers::new_code(code, code.end(), true, false);
    });
}

/// Calls `f` with each part of `range` that can be read and executed, and whether it is shared.
#[cold]
pub fn each_code(range: PageRange, f: impl Fn(PageRange, bool)) {
    let mut rest = Some(range);
    while let (Some(range), Some(guard)) = (rest, lock()) {
        let mut code = None;
        guard.ledger.for_each(range, |part, entry| {
            let prot = entry.attr.prot;
            let there = !entry.attr.flags.has(Flags::TAIL);
            let is_code = there && prot.executable() && prot.readable();
            code = Some((part, prot.shared())).filter(|_| is_code);
            match code {
                Some(_) => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        });
        drop(guard);
        rest = code.and_then(|(part, _)| range.after(part.end()));
        if let Some((part, shared)) = code {
            f(part, shared);
        }
    }
}

/// Makes such a call again if our pins were in its way.
fn odd_with_room(call: Call, frame: &Frame, value: i64) -> i64 {
    let [first, second, ..] = frame.args;
    match call {
        Call::MapShadowStack => {
            headroom::retry(frame, value, headroom::is_beyond, Charge::future(second))
        }
        Call::IoSetup => {
            // The kernel doubles the number of events, and adds some for each processor.
            let ring = first.saturating_mul(2 * IO_EVENT).saturating_add(64 << 10);
            let no_memory = |value| value == NOMEM;
            headroom::retry(frame, value, no_memory, Charge::future(ring))
        }
        _ => value,
    }
}

/// Bytes of a `struct io_event`.
const IO_EVENT: u64 = 32;

/// Memory that the C interface has just mapped for the application; `out`: it stays out of
/// registration.
pub fn own_allocation(range: PageRange, prot: Prot, kind: Kind, out: bool) {
    let mut flags = future_flags();
    if out {
        flags = flags.with(Flags::OPTED_OUT);
    }
    let attr = policy::fresh(prot, kind, flags);
    let flight = open(Call::Mmap);
    let new = New::of(policy::described(attr, pin::holding()));
    enter(&flight, range, &new);
    close(flight, range);
}
