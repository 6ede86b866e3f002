//! What the program registers and deregisters.

use super::area::{area, Area, Past};
use super::posts;
use super::stack;
use super::writer::{head, write, Stacks};
use crate::arch;
use crate::sys;
use crate::track::VIEW;
use crate::uverbs::abi::{Context, Mr};
use core::sync::atomic::{AtomicU64, Ordering::*};
use regall_checking::record::{Head, Kind};
use regall_checking::table::Registration;

/// IBV_ACCESS_ON_DEMAND: the adapter looks pages up when it comes to them.
const ON_DEMAND: u64 = 1 << 6;
/// Mappings of a registration that are looked at.
const LOOKS: usize = 64;

/// Registrations in the table, or a few more.
static LIVE: AtomicU64 = AtomicU64::new(0);
static REGISTERED: AtomicU64 = AtomicU64::new(0);
static DEREGISTERED: AtomicU64 = AtomicU64::new(0);
static UNTRACKED: AtomicU64 = AtomicU64::new(0);
static CROWDED: AtomicU64 = AtomicU64::new(0);

/// Registered, deregistered, not tracked for want of room, ranges likewise.
pub fn counts() -> [u64; 4] {
    [&REGISTERED, &DEREGISTERED, &UNTRACKED, &CROWDED].map(|n| n.load(Relaxed))
}

/// In a child of fork.
pub fn forget() {
    for n in [&LIVE, &REGISTERED, &DEREGISTERED, &UNTRACKED, &CROWDED] {
        n.store(0, Relaxed);
    }
}

/// A range has gone away that there is no place for.
pub fn crowded() {
    CROWDED.fetch_add(1, Relaxed);
}

/// Whether nothing is registered: no call matters then.
#[inline]
pub fn none() -> bool {
    LIVE.load(SeqCst) == 0
}

/// Whether registrations are checked.
#[inline]
pub fn on() -> bool {
    area().is_some()
}

/// The application has registered `len` bytes at `start`; `iova`: what work requests call the
/// first one.
///
/// # Safety
/// `mr` is what libibverbs has just returned.
#[cold]
#[inline(never)]
pub unsafe fn registered(mr: *const Mr, start: u64, len: u64, iova: u64, access: u64) {
    let Some(area) = area() else {
        return;
    };
    // SAFETY: by the contract above.
    let made = unsafe { *mr };
    let end = start.checked_add(len).filter(|end| *end > start);
    let (Some(end), 0) = (end, access & ON_DEMAND) else {
        return;
    };
    let new = Registration {
        start,
        end,
        keys: u64::from(made.lkey) | u64::from(made.rkey) << 32,
        access,
        shift: iova.wrapping_sub(start),
        handle: mr as u64,
        pd: made.pd as u64,
        context: made.context as u64,
        serial: 0,
    };
    for past in area.past() {
        // Its handle is this one's now.
        let _ = past
            .handle
            .compare_exchange(new.handle, 0, Relaxed, Relaxed);
    }
    // SAFETY: the context of a live registration.
    unsafe { posts::watch(made.context) };
    enter(area, &new);
}

fn enter(area: &Area, new: &Registration) {
    // Before it can be found: who takes it out again counts, too.
    LIVE.fetch_add(1, SeqCst);
    let here = arch::registers();
    let keep = |n| {
        if let Some(saved) = area.saved(n) {
            let bytes = stack::copy(here, saved.room());
            saved.bytes.store(bytes, Relaxed);
        }
    };
    let Some((n, serial)) = area.table().add(new, keep) else {
        LIVE.fetch_sub(1, SeqCst);
        UNTRACKED.fetch_add(1, Relaxed);
        return;
    };
    REGISTERED.fetch_add(1, Relaxed);
    let new = Registration { serial, ..*new };
    if let Some((n, first)) = area.table().earlier(&new) {
        let stacks = Stacks {
            saved: area.saved(n),
            here: true,
        };
        write(head(Kind::Again, &first), stacks, &|| {
            area.table().holds(n, first.serial)
        });
    }
    if !is_writable(&new) {
        say(area, Kind::ReadOnly, n, &new);
    }
}

/// Whether all of it is mapped for writing, as far as is known.
fn is_writable(of: &Registration) -> bool {
    let mut at = of.start;
    for _ in 0..LOOKS {
        let Ok(Some(found)) = VIEW.lookup(at) else {
            return true;
        };
        if !found.attr().prot.writable() {
            return false;
        }
        at = found.end;
        if at >= of.end {
            break;
        }
    }
    true
}

/// A record with the stack of who registered.
fn say(area: &Area, kind: Kind, n: usize, of: &Registration) {
    let stacks = Stacks {
        saved: area.saved(n),
        here: false,
    };
    write(head(kind, of), stacks, &|| area.table().holds(n, of.serial));
}

/// It was not deregistered before the end.
pub fn leaked(area: &Area, n: usize, of: &Registration) {
    say(area, Kind::Leaked, n, of);
}

/// A registration that is about to be deregistered.
pub struct Leaving(Registration);

impl Leaving {
    /// The access that was asked for.
    pub fn access(&self) -> u32 {
        self.0.access as u32
    }
}

/// The application is about to deregister `mr`. Before the real call: afterwards its handle may
/// be another one's.
#[cold]
#[inline(never)]
pub fn deregistering(mr: *const Mr) -> Option<Leaving> {
    let area = area()?;
    let Some((_, was, lost)) = area.table().take(mr as u64) else {
        again(area, mr);
        return None;
    };
    LIVE.fetch_sub(1, SeqCst);
    DEREGISTERED.fetch_add(1, Relaxed);
    if lost != 0 {
        let ended = Head {
            of: lost,
            ..head(Kind::Ended, &was)
        };
        write(ended, Stacks::NONE, &|| true);
    }
    if let Some(past) = area.next_past() {
        remember(past, &was);
    }
    Some(Leaving(was))
}

fn remember(past: &Past, was: &Registration) {
    past.handle.store(0, Relaxed);
    past.saved.bytes.store(0, Relaxed);
    let bytes = stack::copy(arch::registers(), past.saved.room());
    past.saved.bytes.store(bytes, Relaxed);
    for (word, value) in [
        (&past.context, was.context),
        (&past.keys, was.keys),
        (&past.start, was.start),
        (&past.end, was.end),
        (&past.serial, was.serial),
    ] {
        word.store(value, Relaxed);
    }
    past.handle.store(was.handle, Release);
}

/// The real call has failed: it is registered still.
#[cold]
pub fn stays(leaving: Leaving) {
    let Some(area) = area() else {
        return;
    };
    LIVE.fetch_add(1, SeqCst);
    DEREGISTERED.fetch_sub(1, Relaxed);
    for past in area.past() {
        let _ = past
            .handle
            .compare_exchange(leaving.0.handle, 0, Relaxed, Relaxed);
    }
    // Who registered it is known no longer.
    area.table().put_back(&leaving.0, |n| {
        if let Some(saved) = area.saved(n) {
            saved.bytes.store(0, Relaxed);
        }
    });
}

/// A handle is deregistered that is none: an error, if it was one before and is none of those
/// that can't be seen (of dmabuf, say) in the same place.
#[cold]
fn again(area: &Area, mr: *const Mr) {
    let known = |p: &&Past| p.handle.load(Acquire) == mr as u64;
    let Some(past) = area.past().iter().find(known) else {
        return;
    };
    let mut now = core::mem::MaybeUninit::<Mr>::uninit();
    let bytes = size_of::<Mr>();
    // SAFETY: room for one.
    if unsafe { sys::copy_checked(mr as u64, now.as_mut_ptr().cast(), bytes) } == Ok(bytes) {
        // SAFETY: filled, and any bytes are a value of it.
        let now = unsafe { now.assume_init() };
        let keys = u64::from(now.lkey) | u64::from(now.rkey) << 32;
        if posts::is_known(now.context) && keys != past.keys.load(Relaxed) {
            return;
        }
    }
    let was = Registration {
        start: past.start.load(Relaxed),
        end: past.end.load(Relaxed),
        keys: past.keys.load(Relaxed),
        serial: past.serial.load(Relaxed),
        ..Registration::default()
    };
    let stacks = Stacks {
        saved: Some(&past.saved),
        here: true,
    };
    write(head(Kind::Twice, &was), stacks, &|| known(&past));
}

/// The application has closed a device: what was registered with it is registered no longer.
#[cold]
#[inline(never)]
pub fn closed(context: *const Context) {
    let Some(area) = area() else {
        return;
    };
    posts::closed(context);
    area.table().each(|n, _, found| {
        if found.context == context as u64 {
            leaked(area, n, found);
            if area.table().take(found.handle).is_some() {
                LIVE.fetch_sub(1, SeqCst);
                DEREGISTERED.fetch_add(1, Relaxed);
            }
        }
    });
}
