//! Patches the places where a program enters the kernel.
//!
//! A site is a `syscall` instruction (`0f 05`). Only what stands *before* it is
//! overwritten, by a jump to a trampoline that runs the overwritten instruction
//! and calls an entry stub of the library's; the `syscall` itself stays, so that
//! a thread that is already past the patch, or jumps past it, enters the kernel
//! as ever. The steps, a file each: [`modules`] (what is mapped), [`elf`] (where
//! functions are), [`decode`] and [`function`] (what the code does), [`discover`]
//! (which sites matter), [`plan`] (the bytes), [`apply`] (writing them).
//!
//! No allocator, no libc, at most 8 KiB of stack, and no lock that is waited
//! for without end: the callers are hooks of mmap and mprotect. What it needs to know of
//! the library that it is in, [`install`] is told.
#![cfg_attr(not(test), no_std)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};
use regall_directory::addr::{PageRange, PAGE};
use regall_ledger::View;
use regall_sys::pagemap::Pagemap;
use regall_sys::{self as sys, arch::thread_pointer, Undisturbed};

pub mod apply;
mod before;
pub mod decode;
pub mod discover;
pub mod elf;
pub mod function;
mod left;
mod memory;
pub mod modules;
pub mod plan;
pub mod probes;
mod queue;
mod refused;
mod report;
mod scan;
mod sites;
#[cfg(test)]
mod tests;
pub mod trampoline;
mod windows;
pub mod write;
pub mod zone;

use apply::Patches;
use before::Before;
use discover::{next_syscall, Text};
use elf::Module;
use function::Room;
use memory::Memory;
use modules::{Group, Origin, Segment, BUFFER_BYTES};
use queue::{Job, Ticket};
use scan::Scanner;
use write::{Use, Writer};

pub use modules::is_libc;
pub use report::Report;

/// What the caller wants patched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Config {
    /// Patch the sites of class STRICT too.
    pub strict: bool,
    /// Patch ioctl sites (for UFFDIO_REGISTER).
    pub ioctl: bool,
    /// They hook RDMA_VERBS_IOCTL, too.
    pub verbs: bool,
}

/// The library that the patcher is in.
#[derive(Clone, Copy)]
pub struct Host {
    /// Addresses of the entry stubs that trampolines call, [`plan::Entry::Call`]'s and
    /// [`plan::Entry::Full`]'s. What has the first in it is the library's own and not searched.
    pub entries: [u64; 2],
    /// Memory of the library's for trampolines, which the stubs are in reach of; if there is any.
    pub pool: Option<PageRange>,
    /// What the ledger knows of the memory that code is in.
    pub view: &'static View,
    /// Is told what came of a search that nobody waited for.
    pub note: fn(&Report),
}

/// Unmaps memory that the patcher has mapped and uses no more.
fn unmap(range: PageRange) {
    // SAFETY: of such memory alone, by whoever has the patcher's lock.
    let _ = unsafe { sys::unmap(range.start(), range.len()) };
}

/// A patched site, for the self-test.
#[derive(Clone, Copy, Debug, Default)]
pub struct Site {
    /// Address of its `syscall` instruction.
    pub address: u64,
    /// The site's call number; `None`: any.
    pub number: Option<u32>,
    /// First address of the function that it is in; 0: not known.
    pub function: u64,
    /// Whether it is in libc or ld.so.
    pub trusted: bool,
}

/// Bytes of code that are copied at a time, where it can't be searched where it is.
const COPY_BYTES: usize = 128 << 10;

/// The patcher's memory. Big, hence not on anybody's stack.
struct State {
    patches: Patches,
    room: Room,
    buffer: [u8; BUFFER_BYTES],
    /// What is known of the pages that are searched.
    pages: windows::Pages,
    /// What of a file was mapped before it was searched.
    before: Before,
    /// Copied code.
    copy: [u8; COPY_BYTES],
    /// The first libc and ld.so met.
    libc: [Option<Group>; 2],
    /// [`Host::note`].
    note: Option<fn(&Report)>,
}

struct Shared {
    /// The thread that uses `state`, by its thread pointer; 0: none.
    owner: AtomicU64,
    state: UnsafeCell<State>,
}

// SAFETY: `state` is only reached through a `Guard`, of which there is one at a time.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    owner: AtomicU64::new(0),
    state: UnsafeCell::new(State {
        patches: Patches::new(),
        room: Room::new(),
        buffer: [0; BUFFER_BYTES],
        pages: windows::Pages::new(),
        before: Before::new(),
        copy: [0; COPY_BYTES],
        libc: [None; 2],
        note: None,
    }),
};

/// Tries for the lock before a range is left to whoever has it.
const TRIES: u32 = 2000;
/// Nanoseconds for which a range that was left is waited for.
const PATIENCE: u64 = 100_000_000;

/// The right to use the patcher's memory.
struct Guard(&'static Shared);

impl Guard {
    /// `None` if this thread has it already (we are in a signal handler that
    /// came upon it), or somebody else keeps it.
    fn take() -> Option<Self> {
        let me = thread_pointer();
        for n in 0..TRIES {
            match Self::try_take(me) {
                Ok(guard) => return Some(guard),
                Err(owner) if owner == me => return None,
                Err(_) if n % 16 == 15 => sys::yield_now(),
                Err(_) => core::hint::spin_loop(),
            }
        }
        None
    }

    /// The lock for the thread `me`, or whose it is.
    fn try_take(me: u64) -> core::result::Result<Self, u64> {
        SHARED
            .owner
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
            .map(|_| Self(&SHARED))
    }

    fn state(&mut self) -> &mut State {
        // SAFETY: the lock is held for as long as `self` lives, and `&mut self`
        // makes this the only reference.
        unsafe { &mut *self.0.state.get() }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.owner.store(0, Ordering::Release);
    }
}

/// Lets go of the patcher's lock whoever holds it: in a child of fork, and when
/// the caller knows that a scan was left half-way (siglongjmp, cancellation).
pub fn recover() {
    SHARED.owner.store(0, Ordering::Release);
    queue::recover();
}

/// Searches what others left while the lock was held. To be called behind everything
/// that holds it. Who is told of it by those that have no report; `None`: nothing was searched.
fn settle(report: &mut Report) -> Option<fn(&Report)> {
    let me = thread_pointer();
    let mut note = None;
    while queue::pending() {
        // Whoever has it does this.
        let Ok(mut guard) = Guard::try_take(me) else {
            break;
        };
        let state = guard.state();
        state.search_left(report);
        note = state.note;
    }
    note
}

/// As [`settle`], for those who have no report.
pub fn search_left() {
    if queue::pending() {
        let _undisturbed = Undisturbed::new();
        let mut report = Report::default();
        if let Some(note) = settle(&mut report) {
            note(&report);
        }
    }
}

/// Leaves `job` to whoever has the lock, and waits until it is done.
#[cold]
fn hand_over(job: Job, report: &mut Report) {
    let me = thread_pointer();
    let mut ticket = None;
    // A nap takes as long as the system's timers and its load make it.
    let end = sys::time::now().saturating_add(PATIENCE);
    for n in 0u64.. {
        ticket = ticket.or_else(|| queue::put(job));
        settle(report);
        if ticket.as_ref().is_some_and(Ticket::is_done) {
            return;
        }
        // It waits for us to come back.
        if SHARED.owner.load(Ordering::Relaxed) == me {
            break;
        }
        if n >= 64 && sys::time::now() >= end {
            break;
        }
        if n < 64 {
            sys::yield_now();
        } else {
            sys::nap(50_000);
        }
    }
    report.busy = true;
    let Some(ticket) = ticket else {
        return queue::overflow();
    };
    while !ticket.leave() {
        if ticket.is_done() {
            report.busy = false;
            return;
        }
        sys::nap(50_000);
    }
}

/// Start-up: patches every executable mapping but our own. The only thread
/// there is must be this one. What `host` says is good for ever.
pub fn install(config: Config, host: Host) -> Report {
    let Some(mut guard) = Guard::take() else {
        return Report::busy();
    };
    let state = guard.state();
    state.patches.config = config;
    state.patches.entries = host.entries;
    state.patches.memory = Memory::known_by(host.view);
    state.note = Some(host.note);
    let mut report = Report::default();
    let mut writer = Writer::default();
    if let Some(pool) = host.pool {
        if let Err(errno) = state.patches.take_pool(pool, &mut writer) {
            report.write_errno = Some(errno);
        }
    }
    let State {
        patches,
        room,
        buffer,
        before,
        libc,
        ..
    } = state;
    let pagemap = Pagemap::open().ok();
    let pagemap = pagemap.as_ref();
    let mut scanner = Scanner {
        patches,
        room,
        writer: &mut writer,
        report: &mut report,
        in_use: Use::Fresh,
    };
    let [ours, _] = host.entries;
    let listed = modules::groups(buffer, |group| {
        remember(libc, group);
        if has_code(group) && !group.contains(ours) {
            before.look(group, pagemap);
            scanner.group(group, |searched| before.give_back(searched, pagemap));
        }
        true
    });
    if let Err(errno) = listed {
        report.write_errno = Some(errno);
    }
    // There is no ledger as yet.
    report
        .gone
        .iter_mut()
        .filter_map(Option::take)
        .for_each(unmap);
    report
}

/// A private mapping, or part of one, that just became executable: patches it
/// before anybody runs it. Bytes at and after `valid_end` are not looked at
/// (beyond a file's end they can't be). `running`: some of it was executable
/// before, so others may be running it already.
pub fn scan(range: PageRange, valid_end: u64, running: bool) -> Report {
    look(range, valid_end, running, true)
}

/// As [`scan`] of a shared mapping: its sites are counted as refused, since
/// writing would change the file under other processes.
pub fn scan_shared(range: PageRange, valid_end: u64) -> Report {
    look(range, valid_end, false, false)
}

fn look(range: PageRange, valid_end: u64, running: bool, patch: bool) -> Report {
    // Nobody jumps out of it: what it has open would stay so.
    let _undisturbed = Undisturbed::new();
    let mut report = Report::default();
    let Some(range) = range.before(valid_end & !(PAGE - 1)) else {
        return report;
    };
    let job = Job {
        range,
        running,
        patch,
        gone: false,
    };
    match Guard::take() {
        Some(mut guard) => guard.state().search(job, &mut report),
        None => hand_over(job, &mut report),
    }
    settle(&mut report);
    report
}

/// Executable memory at `range` is gone or has been replaced: those of its sites that have our
/// jump no more are no sites any more. Others may have mapped and patched code there meanwhile.
pub fn forget(range: PageRange) {
    match Guard::take() {
        Some(mut guard) => guard.state().patches.forget(range),
        // Whoever has the lock does it.
        None => {
            let job = Job {
                range,
                running: false,
                patch: false,
                gone: true,
            };
            if let Some(ticket) = queue::put(job) {
                ticket.leave();
            }
        }
    }
    search_left();
}

/// Calls `f` with each range that the patcher mapped for itself. `f` must not
/// call the patcher.
pub fn zones(f: impl FnMut(PageRange)) {
    if let Some(mut guard) = Guard::take() {
        guard.state().patches.memory().for_each(f);
    }
    search_left();
}

/// Calls `f` with each patched site. `f` must not call the patcher.
pub fn sites(mut f: impl FnMut(&Site)) {
    if let Some(mut guard) = Guard::take() {
        guard.state().patches.sites().for_each(|site| f(&site));
    }
    search_left();
}

/// Looks whether somebody's breakpoints stand in the places of patches, or have left them
/// half-way.
pub fn check() -> probes::Seen {
    // Nobody jumps out of it: what it has open would stay so.
    let _undisturbed = Undisturbed::new();
    let seen = Guard::take().map(|mut guard| guard.state().patches.check(&mut Writer::default()));
    search_left();
    seen.unwrap_or_default()
}

/// Address of the function `name` that libc or ld.so exports, its default
/// version if there are several. No dlsym: it takes ld.so's lock.
pub fn find_function(name: &str) -> Option<u64> {
    let found = find_exported(name);
    search_left();
    found
}

fn find_exported(name: &str) -> Option<u64> {
    let mut guard = Guard::take()?;
    let State { libc, buffer, .. } = guard.state();
    if libc.iter().all(Option::is_none) {
        modules::groups(buffer, |group| {
            remember(libc, group);
            true
        })
        .ok()?;
    }
    let libc = libc.iter().flatten();
    libc.filter_map(Module::open)
        .find_map(|module| module.symbol(name.as_bytes()))
}

/// Addresses of the functions `names` that the library exports whose file's name begins
/// with `stem`, as [`find_function`]. The first, if it is loaded several times. `None`: there is no
/// such library, or nobody can say.
pub fn find_in_library<const N: usize>(stem: &[u8], names: [&str; N]) -> Option<[Option<u64>; N]> {
    let found = find_in(stem, names);
    search_left();
    found
}

fn find_in<const N: usize>(stem: &[u8], names: [&str; N]) -> Option<[Option<u64>; N]> {
    let mut guard = Guard::take()?;
    let State { buffer, .. } = guard.state();
    let mut found = None;
    let is_it = |path: &[u8]| {
        let file = path.rsplit(|b| *b == b'/').next();
        file.is_some_and(|file| file.starts_with(stem))
    };
    modules::lines(buffer, |line| {
        if found.is_none() && line.inode != 0 && is_it(line.name) {
            found = Some(line.range);
        }
        found.is_none()
    })
    .ok()?;
    let library = module_around(found?, buffer, Module::open)?;
    Some(names.map(|name| library.symbol(name.as_bytes())))
}

fn has_code(group: &Group) -> bool {
    let code = |s: &Segment| s.prot.executable() && s.prot.readable();
    group.origin != Origin::Kernel && group.segments().any(code)
}

fn remember(libc: &mut [Option<Group>; 2], group: &Group) {
    if group.origin == Origin::Libc {
        if let Some(free) = libc.iter_mut().find(|g| g.is_none()) {
            *free = Some(*group);
        }
    }
}

#[inline(never)] // for the stack's sake
fn module_around(
    range: PageRange,
    buffer: &mut [u8],
    mut open: impl FnMut(&Group) -> Option<Module>,
) -> Option<Module> {
    let mut found = None;
    let _ = modules::groups(buffer, |group| {
        if group.segments().any(|s| s.range.overlaps(range)) {
            found = open(group);
            return false;
        }
        true
    });
    found
}

impl State {
    /// Searches what is in the caller's hands until this returns.
    fn search(&mut self, job: Job, report: &mut Report) {
        let State {
            patches,
            room,
            buffer,
            pages,
            before,
            ..
        } = self;
        before.clear();
        let mut pagemap = None;
        let mut module = None;
        let mut writer = Writer::default();
        patches.put_back(job.range, &mut writer);
        let memory = patches.memory;
        windows::each(job.range, !job.patch, memory, pages, |part, window| {
            // SAFETY: the caller of `search` says that the range is mapped and readable but
            // for guards, which this part has none of, and has it in hand until this returns.
            let bytes = unsafe {
                core::slice::from_raw_parts(part.start() as *const u8, part.len() as usize)
            };
            let within = |at: u64| at.clamp(part.start(), part.end()) - part.start();
            let (first, last) = (within(window.start()), within(window.end()));
            let (first, last) = (first as usize, last as usize);
            if next_syscall(bytes, first).is_none_or(|at| at >= last) {
                return;
            }
            let module = module.get_or_insert_with(|| {
                pagemap = Pagemap::open().ok();
                module_around(part, buffer, |group| {
                    before.look(group, pagemap.as_ref());
                    Module::open(group)
                })
            });
            let text = Text {
                base: part.start(),
                bytes,
                libc: false,
                module: module.as_ref(),
                config: patches.config,
                landed: [0; 2],
            };
            Scanner {
                patches,
                room,
                writer: &mut writer,
                report,
                in_use: match job.running {
                    true => Use::Running,
                    false => Use::Fresh,
                },
            }
            .text(&text, first..last, job.patch);
        });
        before.give_back(None, pagemap.as_ref());
    }
}
