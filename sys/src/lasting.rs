//! Files of /proc/self that stay open under high numbers: a file that is opened is given the lowest
//! number that is free, which another thread may want for one of its own.
//!
//! They are read by pread(2) and ioctl(2) alone, and looked at before and after: where the program has
//! given the number to a file of its own nothing is taken from that, and nothing is believed. They are
//! never closed by their numbers. They belong to one address space: a child of fork opens its own.

use crate::arch::Frame;
use crate::credentials::without_sys_admin;
use crate::errno::{check, Errno, Result};
use crate::file::{self, with_own_table, Fd};
use crate::signal::Undisturbed;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering::*};

/// A file that stays open.
pub struct Lasting {
    path: &'static CStr,
    /// Its number; -1: it is not open.
    number: AtomicI32,
    /// Which file it is. Changes while the process has one thread.
    device: AtomicU64,
    inode: AtomicU64,
    /// How often the program was told that there is nothing to be closed.
    closes: AtomicU32,
}

/// The kernel's list of this process's mappings.
pub static MAPS: Lasting = Lasting::new(c"/proc/self/maps");
/// Which pages are resident.
pub static PAGEMAP: Lasting = Lasting::new(c"/proc/self/pagemap");

static ALL: [&Lasting; 2] = [&MAPS, &PAGEMAP];

/// The signal that is set for them (F_SETSIG): the program may have opened the same file, which is the
/// same inode. The kernel sends none: nobody is set to get it.
const MARK: u32 = 60;
/// How often one is looked for under a new number.
const TRIES: u32 = 4;
/// How often closing one does nothing. Who closes what /proc lists, until that is nothing, is to come
/// to an end.
const PATIENCE: u32 = 3;
/// CLOSE_RANGE_UNSHARE.
const UNSHARE: u64 = 2;

/// Whether somebody reads the list that stays open, as text.
pub(crate) static IS_READ: AtomicBool = AtomicBool::new(false);

/// Whether the list shows only what was mapped when it was opened, as under qemu-user: then each is
/// opened each time.
static IS_SNAPSHOT: AtomicBool = AtomicBool::new(false);

/// Opens them. At start-up, while the program has one thread. `is_live` says whether the list shows what
/// is mapped after it was opened.
pub fn keep(is_live: fn(&Fd) -> Result<bool>) {
    let Ok(own) = MAPS.open() else {
        return;
    };
    if is_live(&own) == Ok(false) {
        IS_SNAPSHOT.store(true, Relaxed);
        return;
    }
    let _ = MAPS.put(&own);
    drop(own);
    let _ = PAGEMAP.renew();
}

/// Opens, in a child of fork, its own in the place of its parent's. Not where it is not `alone` in its
/// table: there each is opened each time.
pub fn child(alone: bool) {
    IS_READ.store(false, Relaxed);
    for lasting in ALL {
        let parents = lasting.there();
        lasting.number.store(-1, Relaxed);
        if !alone {
            continue;
        }
        let place = lasting.open_to_stay().and_then(|own| {
            let place = parents.map(|there| lasting.put_in_place(&own, there));
            match place {
                Some(Ok(())) => Ok(()),
                _ => Err(lasting.put(&own).err().unwrap_or(Errno::BUSY)),
            }
        });
        // What could not be replaced is of the parent's memory.
        if let (Some(there), Err(_)) = (parents, place) {
            file::close(there);
        }
    }
}

/// Forgets them, in a child that can't begin yet: they are its parent's.
pub fn forget() {
    for lasting in ALL {
        lasting.number.store(-1, Relaxed);
    }
}

impl Lasting {
    const fn new(path: &'static CStr) -> Self {
        Self {
            path,
            number: AtomicI32::new(-1),
            device: AtomicU64::new(0),
            inode: AtomicU64::new(0),
            closes: AtomicU32::new(0),
        }
    }

    /// Opens it anew. What that fails for may be over at once (a table of descriptors that is full, no
    /// memory), so it is tried three times.
    pub(crate) fn open(&self) -> Result<Fd> {
        let open = || Fd::open(self.path, libc::O_RDONLY, 0);
        open().or_else(|_| open()).or_else(|_| open())
    }

    /// Opens what is to stay open. EPERM: it must not. The kernel shows page frames by a pagemap that
    /// CAP_SYS_ADMIN has opened, also when the process has given that up: it is opened without.
    fn open_to_stay(&self) -> Result<Fd> {
        if IS_SNAPSHOT.load(Relaxed) {
            return Err(Errno::PERM);
        }
        match core::ptr::eq(self, &PAGEMAP) {
            true => without_sys_admin(|| self.open())?,
            false => self.open(),
        }
    }

    fn renew(&self) -> Result<()> {
        self.open_to_stay().and_then(|own| self.put(&own))
    }

    /// Keeps a duplicate of `own`.
    fn put(&self, own: &Fd) -> Result<()> {
        let stat = own.stat()?;
        let _ = file::set_signal(own.raw(), MARK);
        self.is_at(file::duplicate_to_top(own.raw())?, &stat);
        Ok(())
    }

    fn put_in_place(&self, own: &Fd, there: i32) -> Result<()> {
        let stat = own.stat()?;
        let _ = file::set_signal(own.raw(), MARK);
        file::duplicate_onto(own.raw(), there)?;
        self.is_at(there, &stat);
        Ok(())
    }

    fn is_at(&self, number: i32, stat: &file::Stat) {
        self.device.store(stat.dev, Relaxed);
        self.inode.store(stat.inode, Relaxed);
        self.closes.store(0, Relaxed);
        self.number.store(number, Release);
    }

    /// Returns the number, while it is the file's.
    pub fn there(&self) -> Option<i32> {
        let number = self.number.load(Acquire);
        (number >= 0 && self.is_it(number)).then_some(number)
    }

    fn is_it(&self, number: i32) -> bool {
        file::stat_fd(number).is_ok_and(|stat| {
            stat.dev == self.device.load(Relaxed) && stat.inode == self.inode.load(Relaxed)
        })
    }

    /// Returns the number, while a call of the program's about it is to be answered. Not in a child that
    /// shares the memory: it has a copy of the table.
    fn answered(&self) -> Option<i32> {
        let number = self.there()?;
        let ours = file::signal_of(number) == Ok(MARK) && crate::identity::is_memory_owner();
        ours.then_some(number)
    }

    /// Returns whether it stays, where the program closes it.
    fn stays(&self) -> bool {
        if self.closes.fetch_add(1, Relaxed) < PATIENCE {
            return true;
        }
        self.number.store(-1, Relaxed);
        false
    }

    /// Gives it another number than `number`.
    #[cold]
    #[inline(never)]
    fn move_away(&self, number: i32) {
        let other = file::duplicate_below_top(number).unwrap_or(-1);
        self.number.store(other, Release);
    }

    /// Opens it anew, if the program has closed it by a call that was not seen and has one thread.
    /// Returns its number.
    #[cold]
    #[inline(never)]
    fn comes_back(&self) -> Option<i32> {
        if self.number.load(Relaxed) < 0
            || !crate::identity::is_memory_owner()
            || !crate::identity::is_alone()
        {
            return None;
        }
        let _undisturbed = Undisturbed::new();
        self.renew().ok()?;
        self.there()
    }
}

impl Lasting {
    /// Has `with` ask the file, more than once if its number goes to another one meanwhile; or another
    /// one like it, which is opened for that.
    ///
    /// # Errors
    /// What `with` returns, and open(2)'s.
    pub fn ask<T>(&self, with: &mut dyn FnMut(&Fd) -> Result<T>) -> Result<T> {
        for _ in 0..TRIES {
            let Some(number) = self.there().or_else(|| self.comes_back()) else {
                break;
            };
            let told = with(&file::borrow(number));
            if self.is_it(number) {
                return told;
            }
        }
        self.ask_another(with)
    }

    /// Returns whether there is something to be asked.
    ///
    /// # Errors
    /// open(2)'s.
    pub fn is_readable(&self) -> Result<()> {
        match self.there().or_else(|| self.comes_back()) {
            Some(_) => Ok(()),
            None => self.ask_another(&mut |_| Ok(())),
        }
    }

    /// Asks one that is opened for that.
    #[cold]
    #[inline(never)]
    fn ask_another<T>(&self, with: &mut dyn FnMut(&Fd) -> Result<T>) -> Result<T> {
        with_own_table(|| with(&self.open()?))
    }
}

/// Returns whether `number` is that of a file that stays open.
pub fn is_lasting(number: u64) -> bool {
    of_number(number).is_some()
}

fn of_number(number: u64) -> Option<&'static Lasting> {
    let number = number as i32;
    let mut all = ALL.iter();
    let lasting = all.find(|lasting| number >= 0 && number == lasting.number.load(Relaxed));
    lasting
        .copied()
        .filter(|lasting| lasting.answered().is_some())
}

const BADF: i64 = -(Errno::BADF.0 as i64);

/// Makes a call of the program's.
pub type Real = fn(&Frame) -> i64;

/// Makes or answers a call of the program's about descriptors: close, dup2, dup3 or close_range; others
/// are made. To the program there are no such descriptors, so closing one is EBADF, a few times; and one
/// moves where the program gives its number to another file. `has_files` says whether this thread has
/// the process's table.
#[inline]
pub fn around(frame: &Frame, real: Real, has_files: fn() -> bool) -> i64 {
    let [first, second, flags, ..] = frame.args;
    match frame.nr as i64 {
        libc::SYS_close => match of_number(first) {
            Some(lasting) if has_files() && lasting.stays() => BADF,
            _ => real(frame),
        },
        libc::SYS_dup2 | libc::SYS_dup3 if is_lasting(first) => BADF,
        libc::SYS_dup2 | libc::SYS_dup3 => {
            if let Some(lasting) = of_number(second) {
                if has_files() && duplicates(frame) {
                    lasting.move_away(second as i32);
                }
            }
            real(frame)
        }
        libc::SYS_close_range if u64::from(flags as u32) & !UNSHARE == 0 => {
            close_around(frame, real)
        }
        _ => real(frame),
    }
}

/// Returns whether a dup2 or dup3 will close what it replaces: one that fails closes nothing.
#[cold]
#[inline(never)]
fn duplicates(frame: &Frame) -> bool {
    let [first, second, flags, ..] = frame.args;
    let limit = crate::system::rlimit(libc::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    let is_valid = frame.nr as i64 == libc::SYS_dup2 || flags as i32 & !libc::O_CLOEXEC == 0;
    is_valid && u64::from(second as u32) < limit && file::stat_fd(first as i32).is_ok()
}

/// Makes close_range(2) without the files that stay open.
#[cold]
#[inline(never)]
fn close_around(frame: &Frame, real: Real) -> i64 {
    let [mut first, last, mut flags, ..] = frame.args.map(|word| word & u64::from(u32::MAX));
    let next_from = |first| {
        let numbers = ALL.iter().filter_map(|lasting| lasting.answered());
        let numbers = numbers.map(|number| number as u64);
        numbers.filter(|n| (first..=last).contains(n)).min()
    };
    let mut value = 0;
    while let Some(number) = next_from(first) {
        if first < number || flags & UNSHARE != 0 {
            // The first of them copies the table. There is no descriptor with the last number.
            let (from, to) = match first < number {
                true => (first, number - 1),
                false => (u64::from(u32::MAX), u64::from(u32::MAX)),
            };
            value = part(frame, [from, to, flags], real);
            flags &= !UNSHARE;
        }
        if check(value).is_err() || number == last {
            return value;
        }
        first = number + 1;
    }
    part(frame, [first, last, flags], real)
}

fn part(frame: &Frame, arguments: [u64; 3], real: Real) -> i64 {
    let mut part = *frame;
    for (to, from) in part.args.iter_mut().zip(arguments) {
        *to = from;
    }
    real(&part)
}
