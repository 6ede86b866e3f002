//! What fork does with memory that is a file's: it is frozen on both sides, or copied by the
//! child before it runs.

use super::advice::{advise_again, replace};
use super::{first, freeze, is_backed, is_live};
use crate::share::marks::Kept;
use crate::share::{self, table::Part};
use crate::sys::{self, Errno};
use crate::track::settling::{settle, settle_foreign};
use crate::track::{lock, resync, subscribers, State, USER_END};
use core::ops::ControlFlow;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::*};
use regall_directory::addr::{PageRange, PAGE};
use regall_directory::planted;
use regall_directory::vocab::{Attr, Flags, Prot};

/// Ranges of each kind that need no memory of their own. What could be copied or frozen is frozen
/// beyond that; what has to be wiped or copied is in a list that grows.
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
    wiped: Ranges,
    /// Shared with the parent, and to be copied.
    live: Ranges,
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
    match planted!("shared-not-frozen", Ok(()), plan.make()) {
        Ok(()) => Ok(plan),
        Err(errno) => {
            plan.release();
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
            wiped: Ranges::none(),
            live: Ranges::none(),
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
        let shared = shared_bytes();
        let last = shared > 0 && share::worth::forked_too_often();
        if last && share::stop() {
            log::info!("this process forks often: REGALL_SHARE=heap ends");
        }
        let copies = !last
            && subscribers::alone()
            && shared <= COPIED
            && !runs_on_shared_memory()
            && matches!(sys::rlimit(libc::RLIMIT_AS), Ok((u64::MAX, _)));
        let mut rest = PageRange::new(0, USER_END);
        while let Some(range) = rest {
            let found = lock().and_then(|guard| first(&guard, range, concerns_child));
            let Some((part, attr)) = found else {
                break;
            };
            rest = range.after(part.end());
            if attr.flags.has(Flags::WIPED) {
                if !self.wiped.keep(part, attr) {
                    return Err(Errno::NOMEM);
                }
                continue;
            }
            if copies && self.live.keep_among_few(part, attr) {
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
                if !self.live.keep(left, attr) {
                    return Err(Errno::NOMEM);
                }
            }
        }
        if self.live.all().next().is_some() {
            self.word = Some(shared_page()?);
        }
        Ok(())
    }

    /// Each of the two processes gives up its own lists.
    fn release(&self) {
        self.wiped.release();
        self.live.release();
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
        // SAFETY: the child has said its last word, or has ended.
        let _ = unsafe { sys::unmap(at.as_ptr() as u64, PAGE) };
        could
    }

    /// The fork has been made, or refused: in the parent. ENOMEM: the child could not get
    /// memory of its own, and is no more.
    pub fn after(&self, child: i64) -> i64 {
        let could = self.wait(child);
        self.release();
        share::fork_ends();
        // Locks and registrations were those of the mappings before. Others may be at work
        // there: what is to be pinned waits for them.
        if let Some(range) = self.frozen {
            settle_foreign(range);
        }
        if could {
            child
        } else {
            -i64::from(Errno::NOMEM.0)
        }
    }

    /// In the child, whose ledger is as the kernel's list.
    pub fn in_child(&self) {
        let mut could = true;
        for (part, attr) in self.wiped.all() {
            let flags = attr.flags.with(Flags::WIPED);
            could &= replace(*part, Attr { flags, ..*attr }).is_ok();
            settle(*part);
        }
        for (part, attr) in self.live.all() {
            could &= copy(*part, attr.prot).is_ok();
        }
        for (part, attr) in self.live.all() {
            resync::range(*part, true);
            advise_again(*part, attr.flags);
        }
        could &= copy_shared();
        self.release();
        self.tell(could);
        if let Some(mut guard) = lock() {
            let State { ledger, shared, .. } = &mut *guard;
            share::child(shared, |at| {
                let attr = ledger.get(at).map(|e| e.attr);
                attr.is_some_and(|a| a.flags.has(Flags::BACKED))
            });
        }
    }

    /// Tells the parent how it went. If it did not go well there must be no child.
    fn tell(&self, could: bool) {
        if let Some(at) = self.word {
            // SAFETY: mapped in `make`, and unmapped here.
            let word = unsafe { at.as_ref() };
            word.store(if could { HAS_COPIED } else { CANT_COPY }, Release);
            let at = at.as_ptr() as u64;
            // SAFETY: as above: the word was the last use.
            let _ = unsafe { sys::unmap(at, PAGE) };
            if let Some(page) = PageRange::from_call(at, PAGE) {
                resync::range(page, false);
            }
        }
        if !could {
            log::error!("a child of fork ends: there is no memory to copy shared memory into");
            sys::process::exit(1);
        }
    }
}

/// A list of ranges that needs no memory of its own while it is short.
struct Ranges {
    few: [Option<(PageRange, Attr)>; RANGES],
    /// What `few` has no room for.
    more: Option<More>,
}

impl Ranges {
    const fn none() -> Self {
        Self {
            few: [None; RANGES],
            more: None,
        }
    }

    /// Keeps one more, if the list stays short.
    fn keep_among_few(&mut self, part: PageRange, attr: Attr) -> bool {
        let place = self.few.iter_mut().find(|p| p.is_none());
        let kept = (part, without_locks(attr));
        place.map(|p| *p = Some(kept)).is_some()
    }

    /// Keeps one more. False if there is no memory for it.
    fn keep(&mut self, part: PageRange, attr: Attr) -> bool {
        self.keep_among_few(part, attr) || self.keep_more(part, attr)
    }

    #[cold]
    fn keep_more(&mut self, part: PageRange, attr: Attr) -> bool {
        if self.more.is_none() {
            self.more = More::new();
        }
        let more = self.more.as_mut();
        more.is_some_and(|more| more.push((part, without_locks(attr))))
    }

    fn all(&self) -> impl Iterator<Item = &(PageRange, Attr)> {
        let more = self.more.as_ref().map_or(&[][..], More::all);
        self.few.iter().flatten().chain(more)
    }

    fn release(&self) {
        self.more.iter().for_each(More::release);
    }
}

/// A child has none of its parent's locks.
fn without_locks(attr: Attr) -> Attr {
    let flags = attr.flags.without(Flags::APP_LOCKS);
    Attr { flags, ..attr }
}

/// Ranges, in memory that is mapped for a fork.
struct More {
    memory: PageRange,
    count: usize,
}

impl More {
    /// Room for all that there may be in the ledger at this moment.
    fn new() -> Option<Self> {
        let mut count = 0;
        lock()?
            .ledger
            .for_each(PageRange::new(0, USER_END)?, |_, entry| {
                count += usize::from(concerns_child(&entry.attr));
                ControlFlow::Continue(())
            });
        // Other threads may ask for more meanwhile.
        let bytes = (2 * count + RANGES) * size_of::<(PageRange, Attr)>();
        let bytes = bytes.next_multiple_of(PAGE as usize);
        let at = sys::map_private(bytes).ok()?.as_ptr() as u64;
        Some(Self {
            memory: PageRange::from_call(at, bytes as u64)?,
            count: 0,
        })
    }

    fn places(&self) -> *mut (PageRange, Attr) {
        self.memory.start() as *mut (PageRange, Attr)
    }

    /// Adds `range`. Whether there was room.
    fn push(&mut self, range: (PageRange, Attr)) -> bool {
        let room = self.memory.len() as usize / size_of::<(PageRange, Attr)>();
        if self.count < room {
            // SAFETY: the place is in the memory that `new` has mapped, which is aligned to
            // pages, and nobody else knows of it.
            unsafe { self.places().add(self.count).write(range) };
            self.count += 1;
            return true;
        }
        false
    }

    fn all(&self) -> &[(PageRange, Attr)] {
        // SAFETY: `push` has written as many, and `release` comes last.
        unsafe { core::slice::from_raw_parts(self.places(), self.count) }
    }

    /// Unmaps it: each of the two processes its own.
    fn release(&self) {
        // SAFETY: mapped for this list, which nobody reads any more.
        let _ = unsafe { sys::unmap(self.memory.start(), self.memory.len()) };
        // Whoever has read the kernel's list meanwhile has found it there.
        resync::range(self.memory, false);
    }
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

/// Whether a child has a copy of this thread's stack.
pub fn stack_is_inherited() -> bool {
    let at = crate::arch::stack_pointer();
    let attr = lock().and_then(|guard| guard.at(at));
    !attr.is_some_and(|a| {
        // What is shared behind the application's back is copied.
        let shared = a.prot.shared() && !a.flags.has(Flags::BACKED);
        shared || a.flags.has(Flags::WIPED) || a.flags.has(Flags::NOT_FORKED)
    })
}

/// A page that a child of fork and its parent both see.
fn shared_page() -> sys::Result<NonNull<AtomicU32>> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let at = sys::map_fresh(PAGE, prot, libc::MAP_SHARED)?;
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

/// A copy of `part` in its own place, chunk by chunk. Nobody writes to it meanwhile: this
/// process has one thread, or the memory is not writable.
pub(super) fn copy(part: PageRange, prot: Prot) -> sys::Result<()> {
    // Whatever the application lets this thread do with its protection keys.
    let _keys = crate::arch::AllKeys::take();
    if !prot.readable() {
        // SAFETY: the application has no access to it; it gets one of reading, for a moment.
        unsafe { sys::protect(part.start(), part.len(), libc::PROT_READ) }?;
    }
    let mut from = part.start();
    while let Some(rest) = part.after(from) {
        let file = lock().and_then(|guard| guard.shared.now.find(rest));
        let most = match &file {
            Some(file) if file.range.start() == from => file.range,
            Some(file) => rest.before(file.range.start()).unwrap_or(rest),
            None => rest,
        };
        let file = file.filter(|f| f.range.start() == from);
        let chunk = most.before(from + CHUNK).unwrap_or(most);
        copy_chunk(chunk, prot, file)?;
        from = chunk.end();
    }
    Ok(())
}

fn copy_chunk(chunk: PageRange, prot: Prot, file: Option<Part>) -> sys::Result<()> {
    let (start, len) = (chunk.start(), chunk.len());
    let copy = sys::map_private(len as usize)?.as_ptr() as u64;
    match file.filter(|f| share::is_open(&f.file)) {
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
    // SAFETY: new memory, all of which is written.
    unsafe { sys::protect(copy, len, i32::from(prot.bits() & 7)) }?;
    if let Some(kept) = file
        .map(|f| Kept::of(f.marks, f.range.start()))
        .filter(|k| !k.is_nothing())
    {
        let copy = PageRange::from_call(copy, len).ok_or(Errno::NOMEM)?;
        kept.give(copy, u64::from(prot.bits()))?;
    }
    // SAFETY: a copy of what is there takes its place.
    unsafe { sys::move_mapping(copy, len, start) }
}

fn copy_bytes(from: u64, to: u64, len: u64) {
    // SAFETY: both are mapped in this process, nobody writes to `from` (see `copy`), and they
    // don't overlap.
    unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len as usize) };
}
