//! Descriptors by their numbers: high ones, those that stay open, and those of a parent.

use super::{stat_fd, Fd, Stat};
use crate::entry::call;
use crate::errno::{Errno, Result};
use crate::signal::Undisturbed;
use crate::text::{number, Text};
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Calls `f` with each descriptor of this thread's table, until it says no. Where nobody lists them
/// (there is no /proc, or no descriptor left to read it by), with each number that there may be, up to
/// 4096.
pub fn each_descriptor(mut f: impl FnMut(i32) -> bool) {
    const NUMBERS: u64 = 4096;
    if each_in(c"/proc/thread-self/fd", |fd, own| fd == own || f(fd)).is_err() {
        let (soft, _) = crate::system::rlimit(libc::RLIMIT_NOFILE).unwrap_or((NUMBERS, 0));
        let _ = (0..soft.min(NUMBERS)).all(|fd| f(fd as i32));
    }
}

/// Calls `f` with each number that names an entry of a folder in /proc, until it says no; and with the
/// descriptor by which it is read.
fn each_in(folder: &CStr, mut f: impl FnMut(i32, i32) -> bool) -> Result<()> {
    let _undisturbed = Undisturbed::new();
    let all = Fd::open(folder, libc::O_RDONLY | libc::O_DIRECTORY, 0)?;
    all.each_entry(usize::MAX, |name| {
        number(name).is_none_or(|n| f(n as i32, all.raw()))
    })
}

/// Whether a thread with a table of descriptors of its own has the device with this number open. No
/// where nobody says which threads those are.
pub fn is_in_another_table(rdev: u64) -> bool {
    let us = crate::identity::gettid();
    let mut found = false;
    let _ = each_in(c"/proc/self/task", |thread, _| {
        const KCMP_FILES: u64 = 2;
        let differs = call!(libc::SYS_kcmp, us, thread, KCMP_FILES, 0, 0);
        if thread as u32 != us && differs.is_ok_and(|difference| difference != 0) {
            found = found || has_device(thread, rdev);
        }
        !found
    });
    found
}

fn has_device(thread: i32, rdev: u64) -> bool {
    let mut found = false;
    let folder: Text<48> = Text::of(format_args!("/proc/self/task/{thread}/fd"));
    let of = |stat: Stat| stat.is_character_device() && stat.rdev == rdev;
    let _ = folder.as_cstr().map(|path| {
        each_in(path, |fd, _| {
            let path: Text<64> = Text::of(format_args!("/proc/self/task/{thread}/fd/{fd}"));
            let stat = path.as_cstr().map(|path| super::stat_path(path, false));
            found = stat.is_some_and(|stat| stat.is_ok_and(of));
            !found
        })
    });
    found
}

/// Descriptors of ours that are kept lie below this, or as high as the soft limit lets
/// them. Higher, and fork would have a larger table to copy.
const HIGH: u64 = 1024;
/// How many of them there is room for.
const RESERVED: u64 = 64;

/// The lowest of them. Under a low limit there is less room, and more for the program, which is given
/// the lowest that is free.
fn lowest_of_ours() -> Result<u64> {
    let (soft, _) = crate::system::rlimit(libc::RLIMIT_NOFILE)?;
    let most = soft.min(HIGH);
    Ok(most - RESERVED.min(most / 4))
}

/// A duplicate of `fd` at a high number, close-on-exec: programs that close what they
/// find begin at the low ones.
pub fn duplicate_high(fd: i32) -> Result<i32> {
    let lowest = lowest_of_ours()?;
    let high = call!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, lowest);
    high.or_else(|_| call!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, 0))
        .map(|fd| fd as i32)
}

/// Makes a duplicate of `fd`, close-on-exec, that stays: right beyond the soft limit, where that is a low
/// one that may be raised, so that it takes no number of the program's; else as
/// [`duplicate_below_top`]. For a process with one thread, whose limit another sees for a moment.
pub fn duplicate_to_top(fd: i32) -> Result<i32> {
    let (soft, hard) = crate::system::rlimit(libc::RLIMIT_NOFILE)?;
    let beyond = |fd| call!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, soft);
    match soft <= HIGH && soft < hard {
        true => with_limit((soft, hard), soft + RESERVED, || beyond(fd)).map(|fd| fd as i32),
        false => Err(Errno::MFILE),
    }
    .or_else(|_| duplicate_below_top(fd))
}

/// Makes a duplicate of `fd`, close-on-exec, at the highest number that is free below [`HIGH`] and the
/// soft limit.
pub fn duplicate_below_top(fd: i32) -> Result<i32> {
    let (soft, _) = crate::system::rlimit(libc::RLIMIT_NOFILE)?;
    let top = soft.min(HIGH);
    // A program with so few has need of each.
    if top <= RESERVED {
        return Err(Errno::MFILE);
    }
    let mut numbers = (top - RESERVED..top).rev();
    let free = numbers.find(|n| call!(libc::SYS_fcntl, *n, libc::F_GETFD) == Err(Errno::BADF));
    let from = free.ok_or(Errno::MFILE)?;
    call!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from).map(|fd| fd as i32)
}

/// Makes `there`, whatever it was, a duplicate of `fd`, close-on-exec. For a process with one thread,
/// as [`duplicate_to_top`].
pub fn duplicate_onto(fd: i32, there: i32) -> Result<()> {
    let duplicate = || call!(libc::SYS_dup3, fd, there, libc::O_CLOEXEC).map(drop);
    let limits = crate::system::rlimit(libc::RLIMIT_NOFILE)?;
    match there as u64 >= limits.0 {
        true => with_limit(limits, there as u64 + 1, duplicate),
        false => duplicate(),
    }
}

/// Calls `f` while the soft limit is `soft`, as far as the hard one lets it.
fn with_limit<T>(now: (u64, u64), soft: u64, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let set = |soft: u64| {
        let new = [soft.min(now.1), now.1];
        call!(libc::SYS_prlimit64, 0, libc::RLIMIT_NOFILE, new.as_ptr(), 0)
    };
    set(soft)?;
    let result = f();
    set(now.0)?;
    result
}

/// Descriptors that are there for a moment have no lower number, unless the soft limit is a low one.
pub const FROM_HERE: i32 = (HIGH - RESERVED) as i32;

/// As [`duplicate_high`], by one system call: at no number below those where the soft limit is an
/// ordinary one.
pub fn duplicate_for_a_moment(fd: i32) -> Result<i32> {
    match call!(libc::SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, FROM_HERE) {
        // The limit is lower.
        Err(Errno::INVAL) => duplicate_high(fd),
        other => other.map(|fd| fd as i32),
    }
}

/// What `open` opens, at a high number, where a duplicate would not do: all numbers below are
/// taken meanwhile. For a process with one thread, and a table that nobody shares. Where there is
/// no room, at any number.
pub fn above_the_low(open: impl FnOnce() -> Result<Fd>) -> Result<Fd> {
    let lowest = lowest_of_ours()?;
    // Closing it does nothing.
    let filler = Fd::open(c"/", libc::O_PATH, 0)?;
    let mut taken = [0u64; HIGH as usize / 64];
    while let Ok(n) = call!(libc::SYS_fcntl, filler.raw(), libc::F_DUPFD_CLOEXEC, 0) {
        match taken.get_mut(n as usize / 64) {
            Some(word) if n < lowest => *word |= 1 << (n % 64),
            _ => {
                close(n as i32);
                break;
            }
        }
    }
    let opened = open();
    for (n, word) in taken.iter().enumerate() {
        for bit in (0..64).filter(|bit| word >> bit & 1 != 0) {
            close((n * 64 + bit) as i32);
        }
    }
    opened
}

/// Whether this is a child that shares its parent's table of descriptors.
static SHARED: AtomicBool = AtomicBool::new(false);

/// In a child, before anything of its parent's is let go: whether both have one table of
/// descriptors (CLONE_FILES). What is closed in it is closed for the parent.
pub fn inherited_are_shared(yes: bool) {
    SHARED.store(yes, Relaxed);
}

/// Whether what this process has inherited is its parent's to close.
pub fn are_inherited_shared() -> bool {
    SHARED.load(Relaxed)
}

/// Closes a descriptor that a child has from its parent, unless it is the parent's own.
pub fn close_inherited(fd: i32) {
    if !are_inherited_shared() {
        close(fd);
    }
}

/// Closes a descriptor of ours; -1 is none.
pub fn close(fd: i32) {
    if fd >= 0 {
        let _ = call!(libc::SYS_close, fd);
    }
}

/// A descriptor of ours that stays open, and of which file it is: a program may close what it
/// finds and be given the number for a file of its own, which is none of our business.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    fd: i32,
    file: (u64, u64),
}

impl Kept {
    /// A duplicate of `fd`, as [`duplicate_high`] makes it. Of a file with an inode of its
    /// own: all eventfds have one together.
    pub fn new(fd: &Fd) -> Result<Self> {
        let Stat { dev, inode, .. } = fd.stat()?;
        let fd = duplicate_high(fd.raw())?;
        let file = (dev, inode);
        Ok(Self { fd, file })
    }

    /// The number, whatever it stands for now.
    pub fn raw(&self) -> i32 {
        self.fd
    }

    /// The number, as long as it is our file's.
    pub fn ours(&self) -> Option<i32> {
        let stat = stat_fd(self.fd).ok()?;
        ((stat.dev, stat.inode) == self.file).then_some(self.fd)
    }

    /// Whether `stat` is of the same file.
    pub fn is_of(&self, stat: &Stat) -> bool {
        (stat.dev, stat.inode) == self.file
    }

    /// Closes it, if it is ours.
    pub fn close(&self) {
        self.ours().into_iter().for_each(close);
    }
}

#[cfg(test)]
mod tests {
    use super::super::pipe;
    use super::*;

    #[test]
    fn duplicates_are_high_and_close_on_exec() {
        let null = Fd::open(c"/dev/null", libc::O_RDWR, 0).unwrap();
        let high = duplicate_high(null.raw()).unwrap();
        assert!(high as u64 >= lowest_of_ours().unwrap());
        let flags = call!(libc::SYS_fcntl, high, libc::F_GETFD);
        assert_eq!(flags, Ok(libc::FD_CLOEXEC as u64));
        close(high);
        let moment = duplicate_for_a_moment(null.raw()).unwrap();
        assert!(moment as u64 >= lowest_of_ours().unwrap());
        close(moment);
        assert_eq!(duplicate_for_a_moment(-1), Err(Errno::BADF));
    }

    #[test]
    fn what_was_closed_is_not_ours_though_its_number_is_there() {
        let (one, other) = (pipe().unwrap(), pipe().unwrap());
        let kept = Kept::new(&one).unwrap();
        assert_eq!(kept.ours(), Some(kept.raw()));
        assert_eq!(call!(libc::SYS_write, kept.raw(), b"x".as_ptr(), 1), Ok(1));
        let mut byte = [0];
        assert!(one.read(&mut byte) == Ok(1) && one.read(&mut byte) == Err(Errno::AGAIN));
        call!(libc::SYS_dup3, other.raw(), kept.raw(), 0).unwrap();
        assert_eq!(kept.ours(), None);
        kept.close();
        assert!(stat_fd(kept.raw()).is_ok());
        close(kept.raw());
        assert_eq!(kept.ours(), None);
    }
}
