//! The way to a device's open file. The shim keeps no descriptor of its own there: when the program
//! closes its last one, the kernel gives back all that was registered, at once. Requests go by a
//! descriptor of the number where the file was seen last; its tag says whether it is that file still
//! ([`tags`]). While nobody else has the table of descriptors ([`descriptors`]), it is the program's own, and
//! is asked about once before handlers come again. Otherwise it is a duplicate, which is there for the
//! requests that follow each other. If it is another file, that is looked for among all descriptors.

use super::hands::{self, Held};
use super::quiet::Quiet;
use super::tags::{self, Tag};
use super::{descriptors, later, lock};
use crate::arch;
use crate::registrar::hca::files::FileId;
use crate::registrar::hca::Device;
use crate::sys::{self, file, time, Errno, Result};
use crate::thread::{self, Kept, Thread};
use crate::uverbs::Channel;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// A descriptor of a device's file, for one call.
pub struct Reached {
    channel: Channel,
    /// Closed before handlers come again. `None`: it is kept for further calls.
    _way: Option<Way>,
    /// A handler that jumped away would leave a descriptor behind.
    _quiet: Quiet,
}

impl Reached {
    /// The way there.
    pub const fn channel(&self) -> &Channel {
        &self.channel
    }
}

/// By which descriptor a call goes.
enum Way {
    /// One of ours.
    Own(Held),
    /// The program's: it stays what it is for this thread, or there can be none of ours.
    Programs(i32),
}

/// Returns whether a number of the program's stays what it is until handlers come again: no other thread
/// closes it. To a thread of the shim's the program's is another.
fn stays(thread: &Thread) -> bool {
    thread.held.get() && !thread.ours.get() && descriptors::are_ours_alone()
}

/// What is kept of the way to `file`, if handlers are held back: the number of the descriptor.
fn kept_by(thread: &Thread, file: FileId) -> Option<i32> {
    let kept = thread.way.get();
    (kept.file == file.get() && file != FileId::NONE && hands::is_there(kept)).then_some(kept.fd)
}

/// Keeps `way` to the file of `device` until [`hands::close_kept`], or until handlers come again.
fn keep(thread: &Thread, device: &Device, way: Way) -> Option<Way> {
    if !thread.held.get() {
        return Some(way);
    }
    hands::close_kept(thread);
    let fd = way.fd();
    let place = match way {
        Way::Own(held) => held.leave() + 1,
        // Where there can be none of ours it is not known to stay what it is.
        Way::Programs(_) if !stays(thread) => return Some(way),
        Way::Programs(_) => 0,
    };
    thread.way.set(Kept {
        file: device.file.get(),
        rdev: device.hint.device(),
        fd,
        place,
    });
    None
}

impl Way {
    const fn fd(&self) -> i32 {
        match self {
            Self::Own(held) => held.fd(),
            Self::Programs(fd) => *fd,
        }
    }
}

/// A descriptor of the file behind `fd`, if that is `file`; `rdev`: of which device, if that is known. A
/// program may give files of its own the same owner and signal. Errors: EBADF: it is not.
fn hold(fd: i32, file: FileId, rdev: Option<u64>) -> Result<Way> {
    // Closing a descriptor of another file may have consequences: record locks go with it.
    if fd < 0 || tags::is_another(fd, file) {
        return Err(Errno::BADF);
    }
    let alone = stays(thread::current());
    if alone && descriptors::is_found(fd) {
        return Ok(Way::Programs(fd));
    }
    let mut way = match alone {
        true => Way::Programs(fd),
        false => duplicate(fd)?,
    };
    let tagged = match tags::of(way.fd()) {
        Tag::Unknown => true,
        Tag::Ours(found) => found == file,
        _ => false,
    };
    if !tagged || rdev.is_some_and(|rdev| file::is_no_device(way.fd(), rdev)) {
        return Err(Errno::BADF);
    }
    match &mut way {
        Way::Own(held) => held.is(file, rdev),
        Way::Programs(_) if alone && rdev.is_some() => descriptors::found(fd),
        Way::Programs(_) => (),
    }
    Ok(way)
}

fn duplicate(fd: i32) -> Result<Way> {
    match hands::duplicate(fd) {
        Ok(held) => Ok(Way::Own(held)),
        Err(Errno::BADF) => Err(Errno::BADF),
        // There is none left, or a filter forbids it.
        Err(_) => Ok(Way::Programs(fd)),
    }
}

/// The way to the file of `device`. Errors: EBADF: this thread has no descriptor of it.
pub fn reach(device: &Device) -> Result<Reached> {
    let quiet = Quiet::begin();
    let (thread, hint) = (thread::current(), device.hint);
    let (fd, way) = match kept_by(thread, device.file) {
        Some(fd) => (fd, None),
        None => {
            let held = hold(hint.fd(), device.file, Some(hint.device()));
            let way = held.or_else(|_| hold_elsewhere(device))?;
            (way.fd(), keep(thread, device, way))
        }
    };
    Ok(Reached {
        channel: hint.by(fd),
        _way: way,
        _quiet: quiet,
    })
}

/// The same of a file that no domain has yet, behind `fd`.
pub fn reach_new(fd: i32, file: FileId) -> Result<Reached> {
    let quiet = Quiet::begin();
    let way = hold(fd, file, None)?;
    Ok(Reached {
        channel: Channel::adopt(way.fd())?,
        _way: Some(way),
        _quiet: quiet,
    })
}

/// So often is a file looked for that is under another number by the time it is found.
const CHASES: u32 = 4;

#[cold]
#[inline(never)]
fn hold_elsewhere(device: &Device) -> Result<Way> {
    let file = device.file;
    if device.hint.fd() < 0 || Absent::is_known(file) {
        return Err(Errno::BADF);
    }
    let mut found = None;
    let mut held = Err(Errno::BADF);
    for _ in 0..CHASES {
        found = Look::of(device).at;
        held = found.map_or(Err(Errno::BADF), |fd| {
            hold(fd, file, Some(device.hint.device()))
        });
        if found.is_none() || held.is_ok() {
            break;
        }
    }
    if found.is_none() {
        Absent::remember(file);
    }
    // Another thread's table may have another file there.
    if sys::has_the_process_files() && sys::is_memory_owner() {
        match found {
            Some(fd) => move_to(file, fd),
            None => lost(),
        }
    }
    held
}

/// Which thread has not found which file just now: it does not look again in each call.
struct Absent;

impl Absent {
    /// In nanoseconds.
    const PAUSE: u64 = 5_000_000;

    fn row(file: FileId) -> u64 {
        u64::from(file.get()) << 32 | u64::from(sys::gettid())
    }

    fn is_known(file: FileId) -> bool {
        let last = ABSENT.load(Relaxed);
        last >> 32 == u64::from(file.get())
            && is_within(Self::PAUSE, &ABSENT_AT)
            && last == Self::row(file)
    }

    fn remember(file: FileId) {
        ABSENT_AT.store(arch::ticks(), Relaxed);
        ABSENT.store(Self::row(file), Relaxed);
    }
}

static ABSENT: AtomicU64 = AtomicU64::new(0);
static ABSENT_AT: AtomicU64 = AtomicU64::new(0);

/// Whether less than `nanos` have passed since `at`, in ticks; 0: never.
fn is_within(nanos: u64, at: &AtomicU64) -> bool {
    let at = at.load(Relaxed);
    at != 0 && time::nanos(arch::ticks().wrapping_sub(at)) < nanos
}

/// A file was not found: the program may have closed it.
static LOST: AtomicBool = AtomicBool::new(false);
/// When one that was not found was seen to be open in another thread's table, and which.
static ELSEWHERE_AT: AtomicU64 = AtomicU64::new(0);
static ELSEWHERE: AtomicU32 = AtomicU32::new(0);
/// How long that is taken for granted, in nanoseconds.
const ELSEWHERE_FOR: u64 = 1_000_000_000;

fn lost() {
    LOST.store(true, Relaxed);
    later::later();
}

/// Whether a file was not found since this was called last.
pub fn was_lost() -> bool {
    LOST.load(Relaxed) && LOST.swap(false, Relaxed)
}

/// A look at all descriptors.
struct Look {
    /// A descriptor of the program's for the file.
    at: Option<i32>,
    /// How many numbers were looked at.
    numbers: u32,
}

impl Look {
    /// Numbers above are not tried without being listed.
    const HIGHEST: i32 = 4096;

    fn of(device: &Device) -> Self {
        let (file, rdev) = (device.file, device.hint.device());
        let mut numbers = 0;
        let mut is = |fd| {
            numbers += 1;
            let tagged = !hands::has(fd) && tags::is_or_was(fd, file);
            tagged && !file::is_no_device(fd, rdev)
        };
        let (mut at, mut highest) = (None, 0);
        file::each_descriptor(|fd| {
            at = is(fd).then_some(fd);
            highest = highest.max(fd);
            at.is_none()
        });
        // What moves all the time is not where it was listed any more. A duplicate's number is mostly
        // a higher one: it is met from above.
        let at = at.or_else(|| (0..=highest.min(Self::HIGHEST)).rev().find(|fd| is(*fd)));
        Self { at, numbers }
    }
}

/// The file is looked for under this number first.
fn move_to(file: FileId, fd: i32) {
    let Some(mut guard) = lock() else {
        return;
    };
    for d in guard.hca.find(|x| x.is_in(file)) {
        let device = guard.hca.domain_mut(d).and_then(|x| x.device.as_mut());
        if let Some(device) = device {
            device.hint = device.hint.by(fd);
        }
    }
}

/// Nothing is asked of `file` any more: it is closed.
pub fn give_up(file: FileId) {
    move_to(file, -1);
}

/// Looks in a row after which a file counts as closed: one that the program moves meanwhile, by a
/// duplicate, may be seen nowhere by one of them.
const LOOKS: u32 = 16;
/// The same in numbers looked at, where there are many descriptors.
const NUMBERS: u32 = 4096;

/// Where the program has the file of `device`, if it does.
fn look_often(device: &Device) -> Option<i32> {
    let mut numbers = 0;
    for n in 1..=LOOKS {
        let look = Look::of(device);
        numbers += look.numbers;
        if look.at.is_some() || n > 1 && numbers >= NUMBERS {
            return look.at;
        }
    }
    None
}

/// Whether the program has the file of `device` open, in whatever thread's table. Yes where this
/// thread's table is not the process's.
pub fn is_open(device: &Device) -> bool {
    let (file, fd) = (device.file, device.hint.fd());
    let rdev = device.hint.device();
    let here = |tag: Tag| tag == Tag::Ours(file) || tag == Tag::Unknown;
    if fd >= 0 && !hands::has(fd) && here(tags::of(fd)) && !file::is_no_device(fd, rdev) {
        return true;
    }
    let elsewhere = || ELSEWHERE.load(Relaxed) == file.get();
    if !sys::has_the_process_files() || elsewhere() && is_within(ELSEWHERE_FOR, &ELSEWHERE_AT) {
        return true;
    }
    if let Some(fd) = look_often(device) {
        move_to(file, fd);
        return true;
    }
    let open = file::is_in_another_table(device.hint.device());
    if open {
        ELSEWHERE_AT.store(arch::ticks(), Relaxed);
        ELSEWHERE.store(file.get(), Relaxed);
    }
    open
}

/// Whether this thread has the file of `device`.
pub fn has(device: &Device) -> bool {
    let fd = device.hint.fd();
    let may_be = !tags::is_another(fd, device.file);
    fd >= 0 && may_be && !file::is_no_device(fd, device.hint.device())
        || !Absent::is_known(device.file) && Look::of(device).at.is_some()
}

/// Closes the descriptor of a device that the shim has opened for itself.
pub fn close_own(device: &Device) {
    let fd = device.hint.fd();
    if device.ours && tags::of(fd) == Tag::Ours(device.file) {
        file::close(fd);
        tags::forget(device.file);
    }
}

/// In a child of fork, after [`tags::child`].
pub fn child() {
    hands::child(tags::is_parents);
    LOST.store(false, Relaxed);
    ABSENT.store(0, Relaxed);
    ELSEWHERE.store(0, Relaxed);
}
