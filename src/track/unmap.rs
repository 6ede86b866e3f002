//! Calls that take memory away: out of the ledger and the directory first,
//! since another thread can be given the addresses the instant the kernel has
//! them back.

use super::headroom;
use super::pinning::lock_for;
use super::{close, deferred, failed, lock, open, real, registering, resync, seals, State};
use crate::arch::Frame;
use crate::ledger::{Entry, Origin};
use crate::policy;
use crate::registrar::pin::PinSet;
use crate::registrar::Registrar;
use crate::share;
use regall_directory::addr::PageRange;
use regall_directory::layout::Call;
use regall_directory::vocab::{Attr, Flags};

/// Parts that are remembered for the case that the call fails. More than these
/// are read anew from the kernel, which forgets only what it does not show
/// (MAP_STACK, opt-outs).
const REMEMBERED: usize = 8;

/// What was taken out of the ledger.
pub struct Taken {
    parts: [Option<(PageRange, Attr, Origin)>; REMEMBERED],
    count: usize,
    /// Flags that any of them had, remembered or not.
    flags: Flags,
    /// Of files behind it.
    pub files: share::Left,
}

impl Default for Taken {
    fn default() -> Self {
        Self::new()
    }
}

impl Taken {
    /// Nothing.
    pub const fn new() -> Self {
        Self {
            parts: [None; REMEMBERED],
            count: 0,
            flags: Flags::EMPTY,
            files: share::Left::new(),
        }
    }

    /// Takes `range` out of the ledger.
    #[inline]
    pub fn take(&mut self, state: &mut State, range: PageRange) {
        if share::any() {
            self.files.take(state, range);
        }
        state.remove(range, |part, entry| self.add(part, entry));
    }

    /// Adds a part.
    #[inline]
    pub fn add(&mut self, range: PageRange, entry: &Entry) {
        if let Some(place) = self.parts.get_mut(self.count) {
            *place = Some((range, entry.attr, entry.origin));
        }
        self.count += 1;
        self.flags = self.flags.with(entry.attr.flags);
    }

    /// The parts, if they are all remembered.
    pub fn all(&self) -> Option<impl Iterator<Item = (PageRange, Attr, Origin)> + '_> {
        (self.count <= REMEMBERED).then(|| self.parts.iter().flatten().copied())
    }

    /// The last part's attributes, if all are remembered.
    pub fn last(&self) -> Option<Attr> {
        self.last_part().map(|(_, attr, _)| attr)
    }

    /// The last part, if all are remembered.
    pub fn last_part(&self) -> Option<(PageRange, Attr, Origin)> {
        *self.parts.get(self.count.checked_sub(1)?)?
    }

    /// Whether the application had locked any of it.
    pub fn is_app_locked(&self) -> bool {
        self.flags.has(Flags::APP_LOCKED)
    }

    /// Lets go of our pins on what was taken; says whether there were any.
    pub fn unpin(&mut self) -> bool {
        let mut any = false;
        for (range, attr, _) in self.parts.iter_mut().flatten() {
            if attr.pin.held() && !attr.flags.has(Flags::APP_LOCKED) {
                any = true;
                *attr = resync::unsettled(*attr);
                let _ = PinSet.deregister(*range);
            }
        }
        any
    }

    /// Whether any of it was a mapping that grows without a call.
    pub fn grows(&self) -> bool {
        let grows = |a: &Attr| a.flags.has(Flags::GROWABLE);
        self.parts.iter().flatten().any(|(_, a, _)| grows(a))
    }

    /// Puts everything back.
    pub fn restore(&self, state: &mut State) {
        self.files.restore(state);
        for (range, attr, origin) in self.parts.iter().flatten() {
            state.insert_part(*range, policy::unregistered(*attr), Some(*origin));
        }
    }
}

/// munmap(2).
#[inline(never)]
pub fn munmap(frame: &mut Frame) -> i64 {
    let Some(range) = PageRange::from_call(frame.args[0], frame.args[1]) else {
        return real(frame); // EINVAL, by the kernel itself
    };
    if let Some(value) = seals::refused(Call::Munmap, frame, [Some(range), None]) {
        return value;
    }
    let flight = open(Call::Munmap);
    let mut taken = Taken::new();
    match lock_for(&[Some(range)]) {
        Some(mut guard) => {
            flight.claim(&guard, range);
            taken.take(&mut guard, range);
        }
        None => deferred::gone(range),
    }
    registering::retract(range);
    let value = headroom::retry_crowded(frame, real(frame));
    if failed(value) {
        put_back(range, &taken);
    } else {
        taken.files.done();
        headroom::unmapped(taken.is_app_locked());
        if has_code(&taken) {
            crate::intercept::patch::forget(range);
        }
    }
    if taken.grows() {
        // It may have grown below what we knew, and that is still there.
        resync::around(range);
    }
    close(flight, range);
    value
}

/// A call that was to take `range` away failed.
#[cold]
#[inline(never)]
pub fn put_back(range: PageRange, taken: &Taken) {
    if let Some(mut guard) = lock() {
        taken.restore(&mut guard);
    }
    resync::range(range, false); // and pins what is not
}

fn has_code(taken: &Taken) -> bool {
    taken.count > REMEMBERED
        || taken
            .parts
            .iter()
            .flatten()
            .any(|(_, a, _)| a.prot.executable())
}

/// shmdt(2). The kernel detaches every piece of the segment that was attached at
/// the address, over holes, and nothing of a neighbouring one.
#[cold]
#[inline(never)]
pub fn shmdt(frame: &mut Frame) -> i64 {
    let flight = open(Call::Shmdt);
    let mut taken = Taken::new();
    let mut pieces = [None; REMEMBERED];
    let count = resync::attached(frame.args[0], &mut pieces);
    let hull = pieces.iter().flatten().copied().reduce(|a: PageRange, b| {
        let (start, end) = (a.start().min(b.start()), a.end().max(b.end()));
        PageRange::new(start, end).unwrap_or(a)
    });
    if let (Some(hull), Some(mut guard)) = (hull, lock_for(&[hull])) {
        flight.claim(&guard, hull);
        for piece in pieces.iter().flatten() {
            guard.remove(*piece, |part, entry| taken.add(part, entry));
        }
    }
    for piece in pieces.iter().flatten() {
        registering::retract(*piece);
    }
    let value = real(frame);
    if count > REMEMBERED && !failed(value) {
        resync::audit();
    }
    let Some(hull) = hull else {
        return value;
    };
    if failed(value) {
        put_back(hull, &taken);
    }
    close(flight, hull);
    value
}
