//! The user's folder under /dev/shm, in which directories and what belongs to them are.

use crate::file::{self, Fd};
use crate::{Errno, Result};
use core::ffi::CStr;

/// Opens the user's folder, made if need be; refuses one that others can enter,
/// that belongs to somebody else, or that is a link.
pub fn open(path: &CStr, uid: u32) -> Result<Fd> {
    match open_existing(path, uid) {
        Err(Errno::NOENT) => (),
        other => return other,
    }
    match file::make_folder(path, 0o700) {
        Ok(()) | Err(Errno::EXIST) => open_existing(path, uid),
        Err(e) => Err(e),
    }
}

/// The same without making it.
pub fn open_existing(path: &CStr, uid: u32) -> Result<Fd> {
    let fd = Fd::open(
        path,
        libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW,
        0,
    )?;
    let s = fd.stat()?;
    if s.uid != uid || s.mode & 0o077 != 0 {
        return Err(Errno::PERM);
    }
    Ok(fd)
}
