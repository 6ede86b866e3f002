//! The user's folder under /dev/shm, in which directories and what belongs to them are.

use crate::file::{self, Fd};
use crate::{Errno, Result};
use core::ffi::CStr;

/// Opens the user's folder, made if need be; refuses one that others can enter,
/// that belongs to somebody else, or that is a link.
pub fn open(path: &CStr, uid: u32) -> Result<Fd> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let fd = match Fd::open(path, flags, 0) {
        Err(Errno::NOENT) => {
            match file::make_folder(path, 0o700) {
                Ok(()) | Err(Errno::EXIST) => (),
                Err(e) => return Err(e),
            }
            Fd::open(path, flags, 0)?
        }
        other => other?,
    };
    let s = fd.stat()?;
    if s.uid != uid || s.mode & 0o077 != 0 {
        return Err(Errno::PERM);
    }
    Ok(fd)
}
