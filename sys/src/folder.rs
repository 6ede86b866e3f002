//! The user's folder under /dev/shm, in which directories and what belongs to them are.

use crate::errno::{Errno, Result};
use crate::file::{self, Fd};
use crate::text::{number, Text};
use core::ffi::CStr;

/// Where all folders are.
pub const ROOT: &CStr = c"/dev/shm";
/// What a folder's name begins with.
const PREFIX: &[u8] = b"regall-";
/// Names of a user's folder that anybody can foresee.
pub const NAMES: u64 = 8;
/// Digits of a name that nobody can.
const DIGITS: usize = 16;
/// Such names that are tried.
const TRIES: u32 = 8;
/// Names in a folder of others that are read to find one: they can make as many as they like.
const MOST_NAMES: usize = 1 << 16;

/// Which folder: `/dev/shm/regall-UID`, or `/dev/shm/regall-UID-N`. The latter is for user
/// namespaces, where other users have the same number, and the former may be theirs; or somebody
/// has taken all names that can be foreseen, and N is random.
///
/// A user has one folder: as long as there is one with a random name, it is taken. It goes with
/// the last that is in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folder {
    /// Its user, as it sees itself.
    pub uid: u32,
    /// 0 to [`NAMES`] - 1, or a random number above.
    pub n: u64,
}

impl Folder {
    /// Its path.
    pub fn path(&self) -> Text<64> {
        self.below(ROOT)
    }

    /// Its path where folders are in `root`.
    pub fn below(&self, root: &CStr) -> Text<64> {
        let mut path = Text::new();
        for part in [root.to_bytes(), b"/", PREFIX] {
            path.push(part);
        }
        let Self { uid, n } = *self;
        let end: Text<32> = match n {
            0 => Text::of(format_args!("{uid}")),
            1..NAMES => Text::of(format_args!("{uid}-{n}")),
            _ => Text::of(format_args!("{uid}-{n:0DIGITS$x}")),
        };
        path.push(end.as_bytes());
        path
    }

    /// From its name without the path.
    pub fn named(name: &[u8]) -> Option<Self> {
        let mut parts = name.strip_prefix(PREFIX)?.split(|b| *b == b'-');
        let uid = u32::try_from(number(parts.next()?)?).ok()?;
        let n = match parts.next() {
            None => 0,
            Some(digits) if digits.len() == DIGITS => random(digits)?,
            Some(n) => number(n).filter(|n| (1..NAMES).contains(n))?,
        };
        parts.next().is_none().then_some(Self { uid, n })
    }

    /// Returns whether nobody can foresee its name.
    pub fn is_random(&self) -> bool {
        self.n >= NAMES
    }

    /// Removes it from `root` if its name is random and nothing is in it.
    pub fn leave(&self, root: &CStr) {
        if self.is_random() {
            let _ = self.below(root).as_cstr().map(file::remove_folder);
        }
    }

    fn open(&self, root: &CStr) -> Result<Fd> {
        open_existing(self.below(root).as_cstr().ok_or(Errno::INVAL)?, self.uid)
    }
}

/// The number of a random name.
fn random(digits: &[u8]) -> Option<u64> {
    let step = |n: u64, digit: &u8| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(n << 4 | u64::from(value))
    };
    digits.iter().try_fold(0, step).filter(|n| *n >= NAMES)
}

/// This user's folder in `root`, made if need be: of those that are there the first, else of the
/// first name that nobody has.
fn own_below(root: &CStr, uid: u32) -> Result<(Fd, Folder)> {
    let mut free = None;
    for n in 0..NAMES {
        let folder = Folder { uid, n };
        match folder.open(root) {
            Err(Errno::NOENT) => free = free.or(Some(folder)),
            Err(e) if is_others(e) => (),
            other => return other.map(|fd| (fd, folder)),
        }
    }
    let mut first: Option<(Fd, Folder)> = None;
    each_random(root, uid, |fd, folder| {
        // (All are to take the same one.)
        if first.as_ref().is_none_or(|(_, other)| folder.n < other.n) {
            first = Some((fd, folder));
        }
    });
    if let Some(found) = first {
        return Ok(found);
    }
    for _ in 0..TRIES {
        let n = crate::system::random() | 1 << 63;
        let folder = free.take().unwrap_or(Folder { uid, n });
        match open(folder.below(root).as_cstr().ok_or(Errno::INVAL)?, uid) {
            Err(e) if is_others(e) => (),
            other => return other.map(|fd| (fd, folder)),
        }
    }
    Err(Errno::PERM)
}

/// Calls `make` with this user's folder in `root`, made if need be. One whose name is random may go
/// before there is something in it: then it is called with another.
pub fn in_own<T>(
    root: &CStr,
    uid: u32,
    mut make: impl FnMut(Fd, Folder) -> Result<T>,
) -> Result<T> {
    let mut tries = 0..TRIES;
    loop {
        let made = own_below(root, uid).and_then(|(fd, folder)| make(fd, folder));
        match made {
            Err(Errno::NOENT) if tries.next().is_some() => (),
            made => return made,
        }
    }
}

/// Returns whether an error of [`open_existing`] says that somebody else has the name.
fn is_others(e: Errno) -> bool {
    matches!(
        e,
        Errno::PERM | Errno::ACCES | Errno(libc::ELOOP | libc::ENOTDIR)
    )
}

/// Calls `tell` with each folder in `root` that is `uid`'s. One with a random name is looked for
/// only where there is no other.
pub fn each(root: &CStr, uid: u32, mut tell: impl FnMut(Fd, Folder)) {
    let mut any = false;
    for n in 0..NAMES {
        let folder = Folder { uid, n };
        if let Ok(fd) = folder.open(root) {
            any = true;
            tell(fd, folder);
        }
    }
    if !any {
        each_random(root, uid, tell);
    }
}

/// Calls `tell` with each of `uid`'s folders in `root` whose name is random.
pub fn each_random(root: &CStr, uid: u32, mut tell: impl FnMut(Fd, Folder)) {
    let is_its = |folder: &Folder| folder.uid == uid && folder.is_random();
    each_named(root, uid, is_its, |folder| {
        if let Ok(fd) = folder.open(root) {
            tell(fd, folder);
        }
        true
    });
}

/// Calls `tell` with each name in `root` that is a folder's, `wanted`, and belongs to `owner`, until
/// it says no.
pub fn each_named(
    root: &CStr,
    owner: u32,
    wanted: impl Fn(&Folder) -> bool,
    mut tell: impl FnMut(Folder) -> bool,
) {
    let is_owners = |folder: &Folder| {
        let path = folder.below(root);
        let is = path.as_cstr().map(|path| file::stat_path(path, false));
        matches!(is, Some(Ok(is)) if is.uid == owner)
    };
    let all = Fd::open(root, libc::O_RDONLY | libc::O_DIRECTORY, 0);
    let _ = all.map(|all| {
        all.each_entry(MOST_NAMES, |name| {
            let folder = Folder::named(name).filter(&wanted);
            folder.filter(is_owners).is_none_or(&mut tell)
        })
    });
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
        let random = [NAMES, 1 << 63, u64::MAX].map(|n| (u32::MAX, n));
        let few = [(0, 0), (65534, 3), (u32::MAX, NAMES - 1)];
        for (uid, n) in few.into_iter().chain(random) {
            let folder = Folder { uid, n };
            let path = folder.path();
            assert!(path.as_cstr().is_some());
            let name = path.as_bytes().strip_prefix(b"/dev/shm/").unwrap();
            assert_eq!(Folder::named(name), Some(folder));
        }
        for bad in [
            "regall-",
            "regall-1-",
            "regall-1-0",
            "regall-1-8",
            "regall-1-2-3",
            "regall-1-0000000000000007",
            "regall-1-000000000000000A",
            "regall-1-00000000000000008",
            "x-1",
        ] {
            assert_eq!(Folder::named(bad.as_bytes()), None, "{bad}");
        }
    }
}
