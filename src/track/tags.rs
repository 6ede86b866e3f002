//! Which open file of a device a descriptor is. The program may have several descriptors for one file
//! (dup), under any number, and one number may stand for another file later; but what fcntl(2) sets by
//! F_SETOWN and F_SETSIG belongs to the open file. So each file that is used gets a *tag*: this process
//! as its owner, and a signal that no other file of this process has.
//!
//! The kernel sends no such signal: a device's file knows no events of that kind (it has no `fasync`;
//! the file by which events are read is another one). A child of fork sees its parent's tag, and who
//! is sent a descriptor the sender's.

use super::{descriptors, lock, subscribers};
use crate::registrar::hca::files::FileId;
use crate::sys::{self, file, Errno, Result};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Files that may have a tag at a time: signals are numbered from 1 to 64.
const MANY: usize = 64;
/// The file with each signal.
static FILES: [AtomicU32; MANY] = [const { AtomicU32::new(0) }; MANY];
/// Numbers of files that were given. They come round: the signal of a file that is gone is used again
/// as late as possible.
static GIVEN: AtomicU32 = AtomicU32::new(0);
/// The signals that a parent's files had, a bit each.
static INHERITED: AtomicU64 = AtomicU64::new(0);

/// What the tag of a descriptor's file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tag {
    /// Which file it is.
    Ours(FileId),
    /// It has none, or one of before: of a parent that has ended, or of a file that was forgotten.
    None,
    /// Another process uses it, or has used it.
    Others,
    /// There is no such descriptor.
    Closed,
    /// A filter forbids to ask.
    Unknown,
}

impl Tag {
    const fn of_errno(errno: Errno) -> Self {
        match errno {
            Errno::BADF => Self::Closed,
            _ => Self::Unknown,
        }
    }
}

fn at(signal: u32) -> Option<&'static AtomicU32> {
    FILES.get(signal.wrapping_sub(1) as usize)
}

/// Whether `signal` is that of `file`.
fn is_of(signal: u32, file: FileId) -> bool {
    at(signal).is_some_and(|at| at.load(Relaxed) == file.get())
}

/// The tag of the file behind `fd`, by two system calls; by one if it has none.
#[inline]
pub fn of(fd: i32) -> Tag {
    let signal = match file::signal_of(fd) {
        Ok(0) => return Tag::None,
        Ok(signal) => signal,
        Err(errno) => return Tag::of_errno(errno),
    };
    match file::owner_of(fd) {
        // A parent has used it, and has ended.
        Ok(0) if is_inherited(signal) => Tag::None,
        Ok(pid) if pid == sys::memory_owner() => match at(signal).map(|at| at.load(Relaxed)) {
            None | Some(0) => Tag::None,
            Some(file) => Tag::Ours(FileId::from_raw(file)),
        },
        Ok(_) => Tag::Others,
        Err(errno) => Tag::of_errno(errno),
    }
}

fn is_inherited(signal: u32) -> bool {
    INHERITED.load(Relaxed) & bit_of(signal) != 0
}

fn bit_of(signal: u32) -> u64 {
    1u64.checked_shl(signal.wrapping_sub(1)).unwrap_or(0)
}

/// The signals of files that this process has open, and is the owner of: some may have their tag from
/// before exec(2), or be forgotten.
fn seen() -> u64 {
    let mut signals = 0;
    let us = sys::memory_owner();
    file::each_descriptor(|fd| {
        let signal = file::signal_of(fd).unwrap_or(0);
        if signal != 0 && file::owner_of(fd) == Ok(us) {
            signals |= bit_of(signal);
        }
        true
    });
    signals
}

/// Whether the file behind `fd` is not the file with the tag `file`, as far as one system call says:
/// what is another one's is not touched.
#[inline]
pub fn is_another(fd: i32, file: FileId) -> bool {
    match file::signal_of(fd) {
        Ok(signal) => !is_of(signal, file),
        Err(errno) => errno == Errno::BADF,
    }
}

/// Whether the file behind `fd` is `file`, or has been until this moment: between two system calls
/// another thread may move it to another number.
pub fn is_or_was(fd: i32, file: FileId) -> bool {
    is_of(file::signal_of(fd).unwrap_or(0), file)
        && match file::owner_of(fd) {
            Ok(pid) => pid == sys::memory_owner(),
            Err(errno) => errno == Errno::BADF,
        }
}

/// The file behind `fd`, which gets a tag if it has none. Errors: EBADF; EXDEV: another process uses
/// it, which keeps what is registered there when this one ends; EMFILE: too many have one; EBUSY in a
/// signal handler at a bad moment; others where the kernel, or a filter, does not let it be set.
pub fn give(fd: i32) -> Result<FileId> {
    match of(fd) {
        Tag::Ours(file) => Ok(file),
        Tag::None => give_slowly(fd),
        Tag::Others => Err(Errno::XDEV),
        Tag::Closed => Err(Errno::BADF),
        Tag::Unknown => Err(Errno::OPNOTSUPP),
    }
}

#[cold]
#[inline(never)]
fn give_slowly(fd: i32) -> Result<FileId> {
    let taken = seen();
    if !subscribers::alone() {
        // Threads that were there before the shim, or that came unseen.
        descriptors::share();
    }
    // Two threads give it one.
    let guard = lock().ok_or(Errno::BUSY)?;
    if let Tag::Ours(file) = of(fd) {
        return Ok(file);
    }
    let none = |file: u32| file == 0;
    let gone = |file: u32| {
        let file = FileId::from_raw(file);
        guard.hca.find(move |x| x.is_in(file)).next().is_none()
    };
    let free = |is: &dyn Fn(u32) -> bool| {
        (0..MANY).find_map(|_| {
            let number = GIVEN.fetch_add(1, Relaxed).wrapping_add(1).max(1);
            let signal = number % MANY as u32 + 1;
            let place = at(signal)?;
            let free = taken & bit_of(signal) == 0 && is(place.load(Relaxed));
            free.then_some((number, signal, place))
        })
    };
    // A file that was closed by a call that was not seen has its place still.
    let found = free(&none).or_else(|| free(&gone));
    let (number, signal, place) = found.ok_or(Errno::MFILE)?;
    file::set_owner(fd, sys::memory_owner(), signal)?;
    place.store(number, Relaxed);
    Ok(FileId::from_raw(number))
}

/// Takes the tag of the file behind `fd` away, which is about to be closed: a child that has it, too,
/// may use it.
pub fn take(fd: i32) {
    if let Tag::Ours(file) = of(fd) {
        file::forget_signal(fd);
        forget(file);
    }
}

/// Nobody asks for `file` any more: its signal may be another's.
pub fn forget(file: FileId) {
    let same = |at: &&AtomicU32| file != FileId::NONE && at.load(Relaxed) == file.get();
    FILES
        .iter()
        .filter(same)
        .for_each(|at| at.store(0, Relaxed));
}

/// In a child of fork: all files are its parent's.
pub fn child() {
    for (n, at) in FILES.iter().enumerate() {
        if at.swap(0, Relaxed) != 0 {
            INHERITED.fetch_or(1 << n, Relaxed);
        }
    }
}

/// Whether the file behind `fd` has a tag of a parent's.
pub fn is_parents(fd: i32) -> bool {
    file::signal_of(fd).is_ok_and(is_inherited)
}
