//! Protection domains by the open file and the kernel's handle, for who comes by ioctl. Who comes by
//! libibverbs' symbols knows them by their `struct ibv_pd`. Both are one domain: a domain that only
//! its file was known of gets that address as soon as it is seen ([`bind`]).

use super::tags::{self, Tag};
use super::{ending, filters, lock, reaching};
use crate::registrar::hca::files::FileId;
use crate::registrar::hca::pairs;
use crate::registrar::hca::{numbers, Domain, Owner, State as Stage};
use crate::sys::{self, Errno, Result};
use crate::uverbs::{Channel, Driver, PdHandle};
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether somebody has come by ioctl.
static ANY: AtomicBool = AtomicBool::new(false);

/// In a child of fork: nothing of its parent's is known.
pub fn child() {
    tags::child();
    reaching::child();
    ANY.store(false, Relaxed);
}

/// Whether somebody has come by ioctl: see [`look_after`].
#[inline]
pub fn any() -> bool {
    ANY.load(Relaxed)
}

/// The open file behind `fd`, if it is known.
#[inline]
pub fn of(fd: i32) -> Option<FileId> {
    match tags::of(fd) {
        Tag::Ours(file) => Some(file),
        Tag::None | Tag::Others | Tag::Closed => None,
        Tag::Unknown => by_number(fd),
    }
}

/// The open file that was behind `fd` when it was seen last.
#[cold]
fn by_number(fd: i32) -> Option<FileId> {
    let guard = lock()?;
    let there = |x: &Domain| x.device.as_ref().is_some_and(|x| x.hint.fd() == fd);
    let d = guard.hca.find(there).next()?;
    Some(guard.hca.domain(d)?.device.as_ref()?.file)
}

/// Whether `fd` may be `file`, by one system call: no other file that this process has used is taken
/// for it, but one of another process's may be.
#[inline]
pub fn may_be(fd: i32, file: FileId) -> bool {
    !tags::is_another(fd, file)
}

/// The open file behind `fd`, whose the domains of a protection domain there are, and by which
/// driver, if there are any.
pub fn owner(fd: i32, pd: PdHandle) -> Option<(FileId, Owner, Option<Driver>)> {
    let file = match of(fd) {
        Some(file) => file,
        // A parent has opened it, and has ended.
        None if tags::is_parents(fd) => known(fd).ok()?,
        None => return None,
    };
    came();
    let found = lock()?.hca.owner_of(file, pd);
    Some(match found {
        Some((owner, driver)) => (file, owner, Some(driver)),
        None => (file, Owner::of_file(file, pd), None),
    })
}

/// Somebody has come by ioctl.
#[inline]
fn came() {
    // The cache line stays shared while it is set.
    if !any() {
        ANY.store(true, Relaxed);
    }
}

/// This process has got a context for the file behind `fd`.
pub fn opened(fd: i32) {
    // Without a tag it is not served by ioctl.
    let _ = tags::give(fd);
}

/// The driver of a protection domain in an open file, if there is a domain of it.
pub fn driver_of(file: FileId, pd: PdHandle) -> Option<Driver> {
    lock()?.hca.owner_of(file, pd).map(|(_, driver)| driver)
}

/// The protection domain is no more: another one may get its number.
pub fn forget_candidate(fd: i32, pd: PdHandle) {
    if let (Some(file), Some(mut guard)) = (of(fd), lock()) {
        guard.hca.candidates.forget(Owner::of_file(file, pd).pd);
    }
}

/// The program has made the queue pair `handle` in a protection domain.
pub fn pair_made(fd: i32, pd: PdHandle, handle: u32) {
    if let (Some(file), Some(mut guard)) = (of(fd), lock()) {
        guard.hca.pairs.add(file, pd, handle);
    }
}

/// The program is about to destroy the queue pair `handle`.
pub fn pair_goes(fd: i32, handle: u32) {
    match (of(fd), lock()) {
        (Some(file), Some(mut guard)) => guard.hca.pairs.remove(file, handle),
        // Which of them it is nobody knows.
        _ => pairs::share(),
    }
}

/// `owner` comes by libibverbs' symbols, with the protection domain that is number `pd` behind
/// `fd`: if that is known by its file, it is `owner`'s from now on. Whether it was.
#[inline]
pub fn bind(owner: Owner, fd: i32, pd: PdHandle) -> bool {
    !owner.is_of_file() && owner.pd != 0 && any() && bind_slowly(owner, fd, pd)
}

#[cold]
#[inline(never)]
fn bind_slowly(owner: Owner, fd: i32, pd: PdHandle) -> bool {
    let Some(file) = of(fd) else {
        return false;
    };
    let Some(mut guard) = lock() else {
        return false;
    };
    let by_file = |x: &Domain| x.state == Stage::Alive && x.owner.is_of_file() && x.is_of(file, pd);
    let mut any = false;
    for d in guard.hca.find(by_file) {
        guard.hca.rename(d, owner);
        any = true;
    }
    any
}

/// Forgets the domains whose open file the program has closed: the kernel has given back what was
/// registered there, unless another process has the file, too. `gone` is called for each such file.
#[cold]
#[inline(never)]
pub fn look_after(gone: impl Fn(FileId)) {
    // A child that shares the memory (vfork) may have closed what its parent has open, and a filter
    // may kill who looks.
    if !sys::is_memory_owner() || filters::is_shut_in() {
        return;
    }
    for d in numbers() {
        let device = lock().and_then(|guard| {
            let domain = guard.hca.domain(d)?;
            domain.device.filter(|_| domain.state != Stage::Free)
        });
        let Some(device) = device else {
            continue;
        };
        let file = device.file;
        if reaching::is_open(&device) {
            continue;
        }
        log::info!(
            "protection domain {}: the program has closed the adapter",
            device.pd.0
        );
        reaching::give_up(file);
        ending::forget(|x| x.is_in(file));
        tags::forget(file);
        if let Some(mut guard) = lock() {
            guard.hca.accept(Owner::of_file(file, PdHandle(0)).context);
        }
        gone(file);
    }
}

/// The program is about to close the file behind `fd`. If it has that by another descriptor, it is a
/// new one when somebody comes by that, unless a protection domain is there.
pub fn closes(fd: i32) {
    let Some(file) = of(fd) else {
        return;
    };
    let there = |x: &Domain| x.is_in(file);
    if lock().is_some_and(|guard| guard.hca.find(there).next().is_none()) {
        tags::take(fd);
    }
}

/// The file to which requests by `fd` go, for who opens a domain there. Errors: as [`tags::give`]'s,
/// and ENOTTY and others: it is no adapter.
pub fn known(fd: i32) -> Result<FileId> {
    let tag = tags::of(fd);
    if let Tag::Ours(file) = tag {
        return Ok(file);
    }
    if tag == Tag::None {
        // Of what is none nothing is changed.
        Channel::adopt(fd)?;
    }
    match tags::give(fd) {
        Err(Errno::OPNOTSUPP) => by_number(fd).ok_or(Errno::OPNOTSUPP),
        given => given,
    }
}
