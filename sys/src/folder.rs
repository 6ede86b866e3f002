//! The user's folder under /dev/shm, in which directories and what belongs to them are.

use crate::file::{self, Fd};
use crate::text::{number, Text};
use crate::{Errno, Result};
use core::ffi::CStr;

/// Where all folders are.
pub const ROOT: &CStr = c"/dev/shm";
/// What a folder's name begins with.
const PREFIX: &[u8] = b"regall-";
/// Names that a user's folder can have.
pub const NAMES: u32 = 8;

/// Which folder: `/dev/shm/regall-UID`, or `/dev/shm/regall-UID-N`. The latter is for user
/// namespaces, where other users have the same number, and the former may be theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folder {
    /// Its user, as it sees itself.
    pub uid: u32,
    /// 0 to [`NAMES`] - 1.
    pub n: u32,
}

impl Folder {
    /// Its path.
    pub fn path(&self) -> Text<64> {
        match *self {
            Self { uid, n: 0 } => Text::of(format_args!("/dev/shm/regall-{uid}")),
            Self { uid, n } => Text::of(format_args!("/dev/shm/regall-{uid}-{n}")),
        }
    }

    /// From its name without the path.
    pub fn named(name: &[u8]) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split(|b| *b == b'-').map(number);
        let uid = u32::try_from(parts.next()??).ok()?;
        let n = match parts.next() {
            None => 0,
            Some(n) => u32::try_from(n?).ok().filter(|n| (1..NAMES).contains(n))?,
        };
        parts.next().is_none().then_some(Self { uid, n })
    }
}

/// The first folder of this user's that can be had, made if need be.
pub fn own(uid: u32) -> Result<(Fd, Folder)> {
    let mut result = Err(Errno::PERM);
    for n in 0..NAMES {
        let folder = Folder { uid, n };
        let path = folder.path();
        result = open(path.as_cstr().ok_or(Errno::INVAL)?, uid).map(|fd| (fd, folder));
        // Anything else than that it is somebody else's will be so for the next one, too.
        if !matches!(result, Err(Errno::PERM | Errno::ACCES)) {
            break;
        }
    }
    result
}

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

/// Opens the folder without making it.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_folders_are_the_same_thing() {
        for (uid, n) in [(0, 0), (65534, 3), (u32::MAX, NAMES - 1)] {
            let folder = Folder { uid, n };
            let path = folder.path();
            let name = path.as_bytes().strip_prefix(b"/dev/shm/").unwrap();
            assert_eq!(Folder::named(name), Some(folder));
        }
        for bad in [
            "regall-",
            "regall-1-",
            "regall-1-0",
            "regall-1-8",
            "regall-1-2-3",
            "x-1",
        ] {
            assert_eq!(Folder::named(bad.as_bytes()), None, "{bad}");
        }
    }
}
