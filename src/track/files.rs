//! Which open file of a device a descriptor is: a program may have several for one (dup), and one
//! number may stand for another file later.
//!
//! A protection domain is known by its `struct ibv_pd` to who comes by libibverbs' symbols, and by
//! its open file and the kernel's handle to who comes by ioctl. Both are one domain: who comes by a
//! way that it is not known by looks whether it is there ([`bind`], [`of`]).

use super::remembered::{self, believed, own_of, remember};
use super::{ending, filters, lock, own, State};
use crate::registrar::hca::files::FileId;
use crate::registrar::hca::{active, numbers, Device, Domain, DomainId, Owner, State as Stage};
use crate::sys::file::{self, Fd};
use crate::sys::text::number;
use crate::sys::{self, Errno, Result};
use crate::thread;
use crate::uverbs::{Driver, PdHandle};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// Numbers of files that were given.
static GIVEN: AtomicU32 = AtomicU32::new(0);
/// Whether there has been a domain that is known by its file.
static ANY: AtomicBool = AtomicBool::new(false);
/// Whether a request has come since somebody has asked.
static USED: AtomicBool = AtomicBool::new(false);

/// A request about a registration, or a protection domain, has come by ioctl.
#[inline]
pub fn use_now() {
    // The cache line stays shared while it is set.
    if !USED.load(Relaxed) {
        USED.store(true, Relaxed);
    }
}

/// Whether one has come since this was called last.
pub fn were_used() -> bool {
    USED.swap(false, Relaxed)
}

/// The open file behind `fd`, if it is the one that it was, by one question to the kernel: what
/// puts another file under a number (dup2, close and whatever opens a file) is not seen, and one
/// number may be two files in two threads.
#[inline]
fn certain(fd: i32, is_one: fn(i32, i32) -> Result<bool>) -> Option<FileId> {
    let file = believed(fd)?;
    let own = own_of(fd, file)?;
    (is_one(own, fd) == Ok(true)).then_some(file)
}

/// In a child of fork: nothing of its parent's is known.
pub fn child() {
    if ANY.swap(false, Relaxed) {
        remembered::clear();
    }
}

/// Whether nobody has come by `fd` since a context was got there.
#[inline]
pub fn is_new(fd: i32) -> bool {
    believed(fd).is_none()
}

/// The open file behind `fd`. `None`: the kernel does not say which it is (Linux before 6.10 where
/// kcmp(2) is refused, or a filter), or this is a signal handler at a bad moment.
#[inline]
pub fn of(fd: i32) -> Option<FileId> {
    certain(fd, is_one).or_else(|| look(fd))
}

/// What is known of a domain, to be asked about without the lock.
#[derive(Clone, Copy)]
struct Seen {
    file: FileId,
    device: Device,
    owner: Owner,
}

impl Seen {
    /// Domain `d`, if it is in use.
    fn of(d: DomainId) -> Option<Self> {
        let guard = lock()?;
        let domain = guard.hca.domain(d)?;
        (domain.state != Stage::Free).then_some(Self {
            file: domain.file,
            device: domain.device?,
            owner: domain.owner,
        })
    }

    /// Whether it is that domain still.
    fn is(&self, domain: &Domain) -> bool {
        let fd = |x: Device| x.channel.fd();
        domain.state != Stage::Free
            && domain.owner == self.owner
            && domain.device.map(fd) == Some(fd(self.device))
    }

    /// Whether its device is the open file behind `fd`. Errors: as [`is_one`]'s.
    fn is_by(&self, fd: i32) -> Result<bool> {
        is_one(self.device.channel.fd(), fd)
    }

    /// Domain `d`, if its device is the open file behind `fd`; if it has lost its own descriptor it
    /// may get another by this one.
    fn by(d: DomainId, fd: i32) -> Option<Self> {
        let seen = Self::of(d)?;
        match seen.is_by(fd) {
            Ok(true) => Some(seen),
            _ if seen.device.from < 0 || !seen.device.channel.may_be(fd) => None,
            _ => (own::see(d, Some(fd)))
                .then(|| Self::of(d))?
                .filter(|x| x.is_by(fd) == Ok(true)),
        }
    }

    /// Whether it may be: where the kernel does not say, one of the same device may.
    fn may_be_by(&self, fd: i32) -> bool {
        match self.is_by(fd) {
            Ok(same) => same,
            Err(Errno::BADF) => false,
            // A filter may kill who asks further.
            Err(_) if filters::is_shut_in() => {
                let other = |file| self.file != FileId::NONE && self.file != file;
                !believed(fd).is_some_and(other)
            }
            Err(_) => self.device.channel.may_be(fd),
        }
    }
}

/// The open file behind `fd`, by what is there: the domains of that file are known by it from now
/// on. `None` as [`of`]'s.
#[cold]
#[inline(never)]
pub fn look(fd: i32) -> Option<FileId> {
    filters::expected();
    if filters::is_shut_in() || file::is_same(fd, fd) != Ok(true) {
        return None;
    }
    let mut found = None;
    for d in numbers() {
        let Some(seen) = Seen::by(d, fd) else {
            continue;
        };
        let mut guard = lock()?;
        let file = match (seen.file, found) {
            (FileId::NONE, Some((file, _))) => file,
            (FileId::NONE, None) => unused(&guard, fd),
            (file, _) => file,
        };
        let Some(domain) = guard.hca.domain_mut(d).filter(|x| seen.is(x)) else {
            continue;
        };
        domain.file = file;
        found = found.or(Some((file, seen.device.channel.fd())));
    }
    let guard = lock()?;
    let (file, own) = match found {
        Some((file, own)) => {
            // It may have been given up meanwhile, and its number be another one's.
            let fd = |x: &Domain| x.device.map(|x| x.channel.fd());
            let there = |x: &Domain| x.file == file && fd(x) == Some(own);
            let own = guard.hca.find(there).next().map(|_| own);
            (file, own)
        }
        None => (unused(&guard, fd), None),
    };
    ANY.store(true, Relaxed);
    remember(fd, file, own);
    Some(file)
}

/// A number for the file behind `fd`, of which there is no domain: the one that it had, unless that
/// may be another file's, too.
fn unused(state: &State, fd: i32) -> FileId {
    let used = |file| state.hca.find(|x| x.file == file).next().is_some();
    let alone = |file: FileId| remembered::numbers_of(file).count() == 1;
    let own = believed(fd).filter(|file| !used(*file) && alone(*file));
    own.unwrap_or_else(new)
}

fn new() -> FileId {
    FileId::from_raw(GIVEN.fetch_add(1, Relaxed).wrapping_add(1) & 0x7fff_ffff)
}

/// Whether `fd` is of one open file with `own`, a descriptor of ours. Errors: EBADF where the program
/// has put a file of its own there; EPERM where it has put itself under a seccomp filter since, which
/// may kill who asks; others as [`file::is_same`]'s.
#[inline]
fn is_one(own: i32, fd: i32) -> Result<bool> {
    match filters::is_shut_in() || file::is_closed_by_exec(own) {
        true => is_one_now(own, fd),
        false => Err(Errno::BADF),
    }
}

/// As [`is_one`], of whatever file `own` is now: by the number of a region of ours, which no other file
/// has, nothing else can be meant.
#[inline]
fn is_one_now(own: i32, fd: i32) -> Result<bool> {
    match filters::is_shut_in() {
        true => Err(Errno::PERM),
        false => file::is_same_to(thread::current().tid(), own, fd),
    }
}

/// Whether the open file behind `fd` is `file`, or may be.
#[inline]
pub fn is(fd: i32, file: FileId) -> bool {
    certain(fd, is_one_now) == Some(file) || is_slowly(fd, file)
}

#[cold]
#[inline(never)]
fn is_slowly(fd: i32, file: FileId) -> bool {
    let same = |d: DomainId| Seen::of(d).is_some_and(|x| x.file == file);
    let may_be = |d: DomainId| Seen::of(d).is_some_and(|x| x.may_be_by(fd));
    let mut all = numbers().filter(|d| same(*d));
    all.any(|d| may_be(d) || Seen::by(d, fd).is_some())
}

/// Domains, by what tells one from another.
#[derive(Clone, Copy)]
pub struct Few([Option<(Owner, i32)>; 16]);

impl Few {
    fn of(which: impl Fn(&Seen) -> bool) -> Self {
        let mut few = Self([None; 16]);
        let all = numbers().filter_map(Seen::of).filter(which);
        for (place, x) in few.0.iter_mut().zip(all) {
            *place = Some((x.owner, x.device.channel.fd()));
        }
        few
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    /// Whether it is one of them.
    pub fn has(&self, domain: &Domain) -> bool {
        let device = domain.device.map(|x| x.channel.fd());
        device.is_some_and(|fd| self.0.contains(&Some((domain.owner, fd))))
    }
}

/// The domains of the protection domain with this handle behind `fd`, which are so for certain.
pub fn domains_of(fd: i32, pd: PdHandle) -> Few {
    for d in numbers() {
        let named = Seen::of(d).is_some_and(|x| x.device.pd == pd);
        // It gets another descriptor if it has lost its own.
        let _ = named.then(|| Seen::by(d, fd));
    }
    Few::of(|x| x.device.pd == pd && x.is_by(fd) == Ok(true))
}

/// Those of which the kernel does not say.
pub fn perhaps_of(fd: i32, pd: PdHandle) -> Few {
    Few::of(|x| x.device.pd == pd && x.is_by(fd) != Ok(true) && x.may_be_by(fd))
}

/// Those of them whose protection domain is no more.
pub fn gone_of(few: Few) -> Few {
    let listed = |x: &Seen| few.0.contains(&Some((x.owner, x.device.channel.fd())));
    Few::of(|x| listed(x) && x.device.channel.knows_pd(x.device.pd) == Ok(false))
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

/// The driver of a protection domain in an open file, if there is a domain of it.
pub fn driver_of(file: FileId, pd: PdHandle) -> Option<Driver> {
    lock()?.hca.owner_of(file, pd).map(|(_, driver)| driver)
}

/// The protection domain is no more: another one may get its number.
pub fn forget_candidate(fd: i32, pd: PdHandle) {
    if let (Some(file), Some(mut guard)) = (believed(fd), lock()) {
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
    let mut any = false;
    for d in numbers() {
        let by_file = |x: &Seen| x.owner.is_of_file() && x.device.pd == pd;
        let seen = Seen::of(d).filter(by_file);
        let Some(seen) = seen.filter(|x| x.is_by(fd) == Ok(true)) else {
            continue;
        };
        let Some(mut guard) = lock() else {
            return any;
        };
        if guard.hca.alive(d).is_some_and(|x| seen.is(x)) {
            guard.hca.rename(d, owner);
            any = true;
        }
    }
    any
}

/// The program asks for a context by `fd`, or what it has there: the number may stand for another
/// file than before, and contexts may have been closed.
#[cold]
#[inline(never)]
pub fn renew(fd: i32) {
    let Some(old) = believed(fd) else {
        return;
    };
    remembered::forget_number(fd);
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

/// Whether there is such a domain now.
pub fn any_there() -> bool {
    let known = |guard: &State| guard.hca.find(|x| x.file != FileId::NONE).next().is_some();
    // Who interrupts the holder of the lock does not know.
    any() && active() && lock().is_none_or(|guard| known(&guard))
}

/// Forgets the domains whose open file the program has closed, which nobody else may have told: our
/// own descriptor would keep it open. What is not lent is deregistered. What is lent goes with the
/// file: at once, or with the last descriptor of another process that has it. `gone` is called for
/// each such file.
#[cold]
#[inline(never)]
pub fn look_after(gone: impl Fn(FileId)) {
    // A child that shares the memory (vfork) may have closed what its parent has open, and a filter
    // may kill who looks.
    if !sys::is_memory_owner() || filters::is_shut_in() {
        return;
    }
    for d in numbers() {
        let Some((file, device)) = closed(d) else {
            continue;
        };
        log::info!(
            "protection domain {}: the program has closed the adapter",
            device.pd.0
        );
        remembered::forget(file);
        ending::forget(|x| x.file == file);
        if let Some(mut guard) = lock() {
            guard.hca.accept(Owner::of_file(file, PdHandle(0)).context);
        }
        gone(file);
    }
}

/// Looks in a row after which an adapter counts as closed: a descriptor that the program moves
/// meanwhile, by a duplicate, may be seen nowhere by one of them.
const LOOKS: u32 = 16;
/// Between them, in nanoseconds.
const MOMENT: u64 = 1_000_000;

/// Domain `d`, if it is known by its file, which the program has closed.
fn closed(d: DomainId) -> Option<(FileId, Device)> {
    let mut found = None;
    for look in 0..LOOKS {
        let (file, device) = reached(d)?;
        if is_open(d, file, device) {
            return None;
        }
        if look + 1 < LOOKS {
            sys::nap(MOMENT);
        }
        found = Some((file, device));
    }
    found
}

/// Domain `d`, if it is known by its file.
fn reached(d: DomainId) -> Option<(FileId, Device)> {
    let guard = lock()?;
    let domain = guard.hca.alive(d)?;
    (domain.file != FileId::NONE).then_some((domain.file, domain.device?))
}

/// Whether the program has the file of domain `d` open: by a descriptor by which it has come, or by
/// any other. Yes where nobody says, and of what a thread with descriptors of its own has opened.
fn is_open(d: DomainId, file: FileId, device: Device) -> bool {
    let own = device.channel.fd();
    own::numbers_of(d).any(|fd| is_one(own, fd) == Ok(true))
        || !sys::has_the_process_files()
        || match own::see(d, None) {
            // It may have another now.
            true => reached(d).is_none_or(|(now, device)| {
                now != file || is_open_elsewhere(file, device).unwrap_or(true)
            }),
            // It has none: neither the program's files nor a region can be asked about by it.
            false => device.from < 0 || is_there_elsewhere(d, device).unwrap_or(true),
        }
}

/// Whether `is` says yes to some descriptor of the program's that may be of the device. `None`: /proc
/// does not say.
fn is_any(device: Device, mut is: impl FnMut(i32) -> bool) -> Option<bool> {
    let _undisturbed = sys::Undisturbed::new();
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let all = Fd::open(c"/proc/thread-self/fd", flags, 0).ok()?;
    let mut any = false;
    let list = all.each_entry(usize::MAX, |name| {
        let fd = number(name).map(|n| n as i32).filter(|fd| !is_ours(*fd));
        any |= fd.is_some_and(|fd| device.channel.may_be(fd) && is(fd));
        !any
    });
    list.ok().map(|()| any)
}

/// Whether some descriptor of the program's is of the device's file, or may be.
fn is_open_elsewhere(file: FileId, device: Device) -> Option<bool> {
    let own = device.channel.fd();
    is_any(device, |fd| {
        let same = is_one(own, fd);
        // The next look begins with it.
        if same == Ok(true) && believed(fd).is_none() {
            remember(fd, file, Some(own));
        }
        !matches!(same, Ok(false) | Err(Errno::BADF))
    })
}

/// Whether some descriptor has the regions of domain `d`, which has lost its own and gets another by
/// that one.
fn is_there_elsewhere(d: DomainId, device: Device) -> Option<bool> {
    is_any(device, |fd| own::see(d, Some(fd)) || own::is_there(d, fd))
}

/// Whether `fd` is a descriptor of ours, and not one of the program's under such a number.
fn is_ours(fd: i32) -> bool {
    let of = |x: &Domain| x.device.is_some_and(|x| x.channel.fd() == fd);
    let named = lock().is_some_and(|guard| guard.hca.find(of).next().is_some());
    named && file::is_closed_by_exec(fd)
}
