//! Which open file of a device a descriptor is: a program may have several for one (dup), and one
//! number may stand for another file later.
//!
//! A protection domain is known by its `struct ibv_pd` to who comes by libibverbs' symbols, and by
//! its open file and the kernel's handle to who comes by ioctl. Both are one domain: who comes by a
//! way that it is not known by looks whether it is there ([`bind`], [`of`]).

use super::{ending, filters, lock};
use crate::registrar::hca::files::FileId;
use crate::registrar::hca::{numbers, Device, Domain, DomainId, Owner, State as Stage};
use crate::sys::file::{self, Fd};
use crate::sys::text::number;
use crate::sys::{self, Errno, Result};
use crate::uverbs::{Driver, PdHandle};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Descriptors that are remembered.
const MANY: usize = 64;
/// Which file each is: the descriptor + 1, shifted left by 32, and the file. A context is got by
/// ioctl, too: [`renew`].
static KNOWN: [AtomicU64; MANY] = [const { AtomicU64::new(0) }; MANY];
/// Numbers of files that were given.
static GIVEN: AtomicU32 = AtomicU32::new(0);
/// Whether there has been a domain that is known by its file.
static ANY: AtomicBool = AtomicBool::new(false);

fn place(fd: i32) -> &'static AtomicU64 {
    // Never out of bounds.
    KNOWN.get(fd as u32 as usize % MANY).unwrap_or(&KNOWN[0])
}

fn row(fd: i32, file: FileId) -> u64 {
    (u64::from(fd as u32) + 1) << 32 | u64::from(file.get())
}

fn known(fd: i32) -> Option<FileId> {
    let row = place(fd).load(Relaxed);
    let same = row >> 32 == u64::from(fd as u32) + 1;
    same.then(|| FileId::from_raw(row as u32))
}

/// Who has made this process by fork; 0: nobody, or one who is not known.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// In a child of fork, whose parent has the id `parent`.
pub fn inherited_from(parent: u32) {
    PARENT.store(parent, Relaxed);
}

/// Whether the parent may have the open file behind `fd` as well: the adapter would keep what a
/// child registers there, after its end, for as long as the parent has it.
pub fn is_parents(fd: i32) -> bool {
    let parent = PARENT.load(Relaxed);
    if parent == 0 {
        return false;
    }
    // In a pid namespace of its own the parent's id is somebody else's.
    if sys::getppid() == 0 {
        return true;
    }
    match file::is_same_in(parent, fd) {
        Ok(same) => same,
        Err(errno) => !matches!(errno, Errno::BADF | Errno::SRCH),
    }
}

/// In a child of fork: nothing of its parent's is known.
pub fn child() {
    if ANY.swap(false, Relaxed) {
        KNOWN.iter().for_each(|row| row.store(0, Relaxed));
    }
}

/// Whether nobody has come by `fd` since a context was got there.
#[inline]
pub fn is_new(fd: i32) -> bool {
    known(fd).is_none()
}

/// The open file behind `fd`. Without a system call if the descriptor is known.
#[inline]
pub fn of(fd: i32) -> Option<FileId> {
    known(fd).or_else(|| look(fd))
}

/// The open file behind `fd`, by what is there: the domains of that file are known by it from now
/// on. `None` in a signal handler at a bad moment.
#[cold]
#[inline(never)]
pub fn look(fd: i32) -> Option<FileId> {
    filters::expected();
    let mut guard = lock()?;
    let state = &mut *guard;
    let mut found = known(fd).unwrap_or(FileId::NONE);
    for d in numbers() {
        let Some(domain) = state.hca.domain_mut(d) else {
            continue;
        };
        let other = domain.file != FileId::NONE && found != FileId::NONE;
        if domain.state == Stage::Free || other || !is_same(domain, fd) {
            continue;
        }
        if found == FileId::NONE {
            found = match domain.file {
                FileId::NONE => new(),
                file => file,
            };
        }
        domain.file = found;
    }
    if found == FileId::NONE {
        found = new();
    }
    ANY.store(true, Relaxed);
    place(fd).store(row(fd, found), Relaxed);
    Some(found)
}

fn new() -> FileId {
    FileId::from_raw(GIVEN.fetch_add(1, Relaxed).wrapping_add(1) & 0x7fff_ffff)
}

/// Whether two descriptors are of one open file. Errors: EPERM where the program has put itself
/// under a seccomp filter since, which may kill who asks; others as [`file::is_same`]'s.
fn is_one(own: i32, fd: i32) -> Result<bool> {
    match filters::is_shut_in() {
        true => Err(Errno::PERM),
        false => file::is_same(own, fd),
    }
}

/// Whether a domain's device is the open file behind `fd`, for certain.
fn is_same(domain: &Domain, fd: i32) -> bool {
    let own = domain.device.map(|x| x.channel.fd());
    own.is_some_and(|own| is_one(own, fd) == Ok(true))
}

/// Whether a domain's device may be the open file behind `fd`: where the kernel does not say, it
/// may.
fn may_be_same(domain: &Domain, fd: i32) -> bool {
    let own = domain.device.map(|x| x.channel.fd());
    own.is_some_and(|own| !matches!(is_one(own, fd), Ok(false) | Err(Errno::BADF)))
}

/// Whether the open file behind `fd` is `file`, or may be.
pub fn is(fd: i32, file: FileId) -> bool {
    if known(fd) == Some(file) {
        return true;
    }
    let Some(guard) = lock() else {
        return false;
    };
    let mut there = guard.hca.find(|x| x.file == file && may_be_same(x, fd));
    there.next().is_some()
}

/// Whether a domain is of the protection domain with this handle behind `fd`, or may be.
pub fn is_of(domain: &Domain, fd: i32, pd: PdHandle) -> bool {
    let other = known(fd).is_some_and(|file| domain.file != FileId::NONE && domain.file != file);
    let device = domain.device.filter(|x| x.pd == pd && !other);
    device.is_some_and(|x| x.channel.may_be(fd)) && may_be_same(domain, fd)
}

/// Whether a domain that [`is_of`] says yes to is of a protection domain that is no more: for
/// certain, or the kernel does not know its number.
pub fn is_of_gone(domain: &Domain, fd: i32, pd: PdHandle) -> bool {
    let gone = |x: Device| x.channel.knows_pd(x.pd) == Ok(false);
    is_of(domain, fd, pd) && (is_same(domain, fd) || domain.device.is_some_and(gone))
}

/// The open file behind `fd`, whose the domains of a protection domain there are, and by which
/// driver, if there are any.
pub fn owner(fd: i32, pd: PdHandle) -> Option<(FileId, Owner, Option<Driver>)> {
    let file = of(fd)?;
    let there = |file| lock()?.hca.owner_of(file, pd);
    if let Some((owner, driver)) = there(file) {
        return Some((file, owner, Some(driver)));
    }
    // It may have come by libibverbs' symbols meanwhile.
    let unknown = |x: &Domain| x.file == FileId::NONE && x.owner.pd != 0;
    // Not in the condition: the lock would be held in the block, too.
    let all_are_known = lock()?.hca.find(unknown).next().is_none();
    let file = if all_are_known { file } else { look(fd)? };
    let found = there(file).map(|(owner, driver)| (file, owner, Some(driver)));
    found.or(Some((file, Owner::of_file(file, pd), None)))
}

/// The protection domain is no more: another one may get its number.
pub fn forget_candidate(fd: i32, pd: PdHandle) {
    if let (Some(file), Some(mut guard)) = (known(fd), lock()) {
        guard.hca.candidates.forget(Owner::of_file(file, pd).pd);
    }
}

/// `owner` comes by libibverbs' symbols, with the protection domain that is number `pd` behind
/// `fd`: if that is known by its file, it is `owner`'s from now on. Whether it was.
#[inline]
pub fn bind(owner: Owner, fd: i32, pd: PdHandle) -> bool {
    !owner.is_of_file() && owner.pd != 0 && ANY.load(Relaxed) && bind_slowly(owner, fd, pd)
}

#[cold]
#[inline(never)]
fn bind_slowly(owner: Owner, fd: i32, pd: PdHandle) -> bool {
    let Some(mut guard) = lock() else {
        return false;
    };
    let state = &mut *guard;
    let by_file = |x: &Domain| x.state == Stage::Alive && x.owner.is_of_file();
    let same = |x: &Domain| by_file(x) && x.device.is_some_and(|x| x.pd == pd) && is_same(x, fd);
    let mut any = false;
    for d in state.hca.find(same) {
        state.hca.rename(d, owner);
        any = true;
    }
    any
}

/// The program asks for a context by `fd`, or what it has there: the number may stand for another
/// file than before, and contexts may have been closed.
#[cold]
#[inline(never)]
pub fn renew(fd: i32) {
    let Some(old) = known(fd) else {
        return;
    };
    place(fd).store(0, Relaxed);
    if let Some(mut guard) = lock() {
        let mut there = guard.hca.find(|x| x.file == old);
        if there.next().is_none() {
            guard.hca.accept(Owner::of_file(old, PdHandle(0)).context);
        }
    }
}

/// Whether somebody has come by a file: see [`look_after`].
#[inline]
pub fn any() -> bool {
    ANY.load(Relaxed)
}

/// Forgets the domains whose open file the program has closed, which nobody may have told: our own
/// descriptor would keep it open. Whether there were any. To be called now and then, when nothing
/// is in progress.
#[cold]
#[inline(never)]
pub fn look_after() -> bool {
    // A child that shares the memory (vfork) may have closed what its parent has open.
    if !sys::is_memory_owner() {
        return false;
    }
    let mut gone = false;
    for d in numbers() {
        let Some((file, device)) = reached(d) else {
            continue;
        };
        // What a thread with descriptors of its own has opened is not for this one to look at.
        if !device.channel.is_open_here() || is_open(file, device) {
            continue;
        }
        gone = true;
        log::info!(
            "protection domain {}: the program has closed the adapter",
            device.pd.0
        );
        KNOWN
            .iter()
            .filter(|row| row.load(Relaxed) as u32 == file.get())
            .for_each(|row| row.store(0, Relaxed));
        ending::forget(|x| x.file == file);
        if let Some(mut guard) = lock() {
            guard.hca.accept(Owner::of_file(file, PdHandle(0)).context);
        }
    }
    gone
}

/// Domain `d`, if it is known by its file.
fn reached(d: DomainId) -> Option<(FileId, Device)> {
    let guard = lock()?;
    let domain = guard.hca.alive(d)?;
    (domain.file != FileId::NONE).then_some((domain.file, domain.device?))
}

/// Whether the program has the file open: by a descriptor by which it has come, or by any other.
/// Yes where nobody says.
fn is_open(file: FileId, device: Device) -> bool {
    let own = device.channel.fd();
    let reached = KNOWN.iter().map(|row| row.load(Relaxed));
    let mut reached = reached.filter(|row| *row as u32 == file.get());
    let number = |row: u64| (row >> 32).wrapping_sub(1) as i32;
    reached.any(|row| is_one(own, number(row)) == Ok(true))
        || !sys::has_the_process_files()
        || is_open_elsewhere(device).unwrap_or(true)
}

/// Whether some descriptor of the program's is of the device's file, or may be. `None`: /proc does
/// not say.
fn is_open_elsewhere(device: Device) -> Option<bool> {
    let _undisturbed = sys::Undisturbed::new();
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let all = Fd::open(c"/proc/thread-self/fd", flags, 0).ok()?;
    let own = device.channel.fd();
    let mut open = false;
    let list = all.each_entry(usize::MAX, |name| {
        let fd = number(name).map(|n| n as i32).filter(|fd| !is_ours(*fd));
        open |= fd.is_some_and(|fd| {
            device.channel.may_be(fd) && !matches!(is_one(own, fd), Ok(false) | Err(Errno::BADF))
        });
        !open
    });
    list.ok().map(|()| open)
}

/// Whether `fd` is a descriptor of ours.
fn is_ours(fd: i32) -> bool {
    let of = |x: &Domain| x.device.is_some_and(|x| x.channel.fd() == fd);
    lock().is_some_and(|guard| guard.hca.find(of).next().is_some())
}
