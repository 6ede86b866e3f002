//! Files that the command writes for a user, and files that others have made.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::bail;
use regall_reader::foreign::Foreign;
use rustix::fs::{access, fcntl_getfl, fcntl_setfl, Access, OFlags};
use rustix::io::{fcntl_setfd, FdFlags};
use rustix::process::geteuid;

/// Bytes that are read of a file that somebody else may have made, at the most.
pub const LONGEST: u64 = 1 << 28;
/// The same where it is somebody else's, and nobody has named it.
const LONGEST_OF_OTHERS: u64 = 1 << 24;
/// Links that are followed one after the other, as the kernel has it.
const MOST_LINKS: usize = 40;
/// Names that are tried for a file that is not whole yet.
const TRIES: usize = 8;
/// Bytes of a file's name that go into such a name, which may have 255.
const LONGEST_NAME: usize = 200;
/// Major numbers of terminals: virtual ones, /dev/tty and its like, and those of Unix 98.
const TERMINALS: [u32; 3] = [4, 5, 136];

/// Writes what `fill` does into what a user has named. A regular file has it whole or not at all;
/// what is read as it is written (a pipe, a terminal) has it as it comes.
pub fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    match Target::of(path)? {
        Target::File(path) => replace(&path, fill),
        Target::As(file) => fill(&mut File::from(file)),
        Target::Open(path) => {
            let mut options = OpenOptions::new();
            let file = options
                .write(true)
                .custom_flags(libc::O_NOCTTY)
                .open(path)?;
            fill(&mut &file)
        }
    }
}

/// Whether [`write`] can be expected to succeed; nothing is written, and no pipe is waited for.
pub fn can_write(path: &Path) -> io::Result<()> {
    match Target::of(path)? {
        Target::File(path) => {
            let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            Ok(access(folder, Access::WRITE_OK | Access::EXEC_OK)?)
        }
        Target::As(file) => takes_writes(file),
        Target::Open(_) => Ok(()),
    }
}

/// How something is written.
enum Target {
    /// Under another name, which then becomes this one.
    File(PathBuf),
    /// To this descriptor.
    As(OwnedFd),
    /// As it is.
    Open(PathBuf),
}

impl Target {
    fn of(path: &Path) -> io::Result<Self> {
        Self::behind(path, MOST_LINKS)
    }

    fn behind(path: &Path, links: usize) -> io::Result<Self> {
        if let Some(descriptor) = descriptor(path) {
            return duplicate(descriptor).map(Self::As);
        }
        let there = match fs::symlink_metadata(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Self::File(path.into())),
            there => there?,
        };
        let own = there.uid() == geteuid().as_raw();
        // A link of somebody else's leads where that one wants.
        if there.is_symlink() && (own || there.uid() == 0) {
            return match fs::canonicalize(path) {
                Ok(real) if links > 0 => Self::behind(&real, links - 1),
                // To what is not there yet.
                Err(e) if e.kind() == ErrorKind::NotFound && links > 0 => {
                    let folder = path.parent().unwrap_or(path);
                    Self::behind(&folder.join(fs::read_link(path)?), links - 1)
                }
                Err(e) => Err(e),
                Ok(_) => Err(io::Error::from_raw_os_error(libc::ELOOP)),
            };
        }
        let is = there.file_type();
        let device = there.rdev();
        let (major, minor) = (libc::major(device), libc::minor(device));
        let terminal = TERMINALS.contains(&major) || (137..144).contains(&major);
        let as_it_is =
            is.is_char_device() && (terminal || (major, minor) == (1, 3)) || is.is_fifo() && own;
        match as_it_is {
            true => Ok(Self::Open(path.into())),
            false if is.is_file() || is.is_symlink() => Ok(Self::File(path.into())),
            false => Err(io::Error::new(
                ErrorKind::InvalidInput,
                "neither a file, nor a terminal, nor a pipe of this user's",
            )),
        }
    }
}

/// The number of this process's own descriptor that a path names.
fn descriptor(path: &Path) -> Option<RawFd> {
    match path.to_str()? {
        "/dev/stdin" => Some(0),
        "/dev/stdout" => Some(1),
        "/dev/stderr" => Some(2),
        path => {
            let number = path.strip_prefix("/dev/fd/");
            let number = number.or_else(|| path.strip_prefix("/proc/self/fd/"));
            number?.parse().ok()
        }
    }
}

/// Takes a descriptor over that whoever has started this process has given it. No command inherits
/// it from here.
///
/// # Errors
/// It is not open, or not open for writing.
pub fn own(descriptor: RawFd) -> io::Result<File> {
    let file = duplicate(descriptor)?;
    takes_writes(&file)?;
    // SAFETY: it is used for this one call; it was open a moment ago, and nothing is closed here.
    let given = unsafe { BorrowedFd::borrow_raw(descriptor) };
    fcntl_setfd(given, FdFlags::CLOEXEC)?;
    Ok(File::from(file))
}

/// Returns whether a descriptor is the same file as standard output.
pub fn is_stdout(descriptor: RawFd) -> bool {
    let file = |number| {
        let is = File::from(duplicate(number).ok()?).metadata().ok()?;
        Some((is.dev(), is.ino(), is.rdev()))
    };
    file(descriptor).is_some_and(|one| file(1) == Some(one))
}

fn takes_writes(file: impl AsFd) -> io::Result<()> {
    match fcntl_getfl(file)? & OFlags::ACCMODE {
        OFlags::RDONLY => Err(io::Error::from_raw_os_error(libc::EBADF)),
        _ => Ok(()),
    }
}

fn duplicate(descriptor: RawFd) -> io::Result<OwnedFd> {
    if descriptor < 0 {
        return Err(ErrorKind::NotFound.into());
    }
    // SAFETY: it is used for this one call, which says EBADF if nothing is open there.
    let borrowed = unsafe { BorrowedFd::borrow_raw(descriptor) };
    borrowed.try_clone_to_owned()
}

/// Puts a file that has what `fill` writes in place of the one that has this name, if any. Of
/// another process, and of another node, it is seen whole or not at all.
pub fn replace(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let (part, file) = part_of(path)?;
    let there = fs::symlink_metadata(path)
        .ok()
        .filter(fs::Metadata::is_file);
    let write = || {
        if let Some(there) = there.filter(|there| there.uid() == geteuid().as_raw()) {
            file.set_permissions(fs::Permissions::from_mode(there.mode() & 0o777))?;
        }
        let mut out = BufWriter::with_capacity(1 << 16, file);
        fill(&mut out)?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&part);
    })
}

/// A new, hidden file beside another, of a name that nobody foresees.
fn part_of(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let mut tried = Err(ErrorKind::AlreadyExists.into());
    for _ in 0..TRIES {
        let mut hidden = b".".to_vec();
        hidden.extend(name.as_bytes().iter().take(LONGEST_NAME));
        let mut hidden = std::ffi::OsString::from_vec(hidden);
        hidden.push(format!(
            ".{:016x}.part",
            RandomState::new().build_hasher().finish()
        ));
        let part = path.with_file_name(hidden);
        let mut options = OpenOptions::new();
        match options.write(true).create_new(true).mode(0o644).open(&part) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => tried = Err(e),
            made => return made.map(|file| (part, file)),
        }
    }
    tried
}

/// Returns whether a file still has its name: who had a lock on it may have removed that.
pub fn is_named(file: &File, path: &Path) -> bool {
    let of = |m: fs::Metadata| (m.dev(), m.ino());
    let named = fs::symlink_metadata(path).map(of);
    matches!((file.metadata().map(of), named), (Ok(a), Ok(b)) if a == b)
}

/// How a file came to be read.
#[derive(Clone, Copy)]
pub enum Whose {
    /// Somebody named it, and means it whatever it is.
    Named,
    /// Somebody else named it: a regular file, wherever it lies.
    Others,
    /// It lies in a folder of this user's. Others may be able to put files there.
    In(u32),
}

/// Opens a file that others may have made, after a look at what it is. A pipe that nobody has open
/// to write is empty, and not waited for; else it is read to its end. A file of more than `most`
/// bytes is an error.
pub fn open(path: &Path, whose: Whose, most: u64) -> anyhow::Result<File> {
    if let Some(descriptor) = descriptor(path) {
        return Ok(duplicate(descriptor)?.into());
    }
    let found = match whose {
        Whose::Named | Whose::Others => Foreign::at(path)?,
        Whose::In(_) => Foreign::named(path)?,
    };
    let is = found.is.file_type();
    let own = found.is.uid() == geteuid().as_raw();
    match whose {
        Whose::Named if is.is_file() || is.is_fifo() && own => (),
        Whose::Others if is.is_file() => (),
        Whose::Named | Whose::Others => bail!("no file"),
        Whose::In(_) if is.is_symlink() => bail!("a symbolic link"),
        Whose::In(_) if !is.is_file() => bail!("no regular file"),
        Whose::In(owner) if counts(&found.is, owner) => (),
        Whose::In(_) => bail!(OTHERS),
    }
    let most = match whose {
        Whose::In(_) if !own => most.min(LONGEST_OF_OTHERS),
        _ => most,
    };
    if is.is_file() && found.is.len() > most {
        bail!("too long");
    }
    let file = found.open()?;
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

/// Whether a file in a folder of `owner`'s counts, by whose it is.
pub fn counts(is: &fs::Metadata, owner: u32) -> bool {
    [owner, geteuid().as_raw()].contains(&is.uid())
}

/// What is said of a file that does not count.
pub const OTHERS: &str = "left out: it belongs to neither the folder's owner nor this user";

/// Reads such a file, of which more than `most` bytes are too many.
pub fn read(path: &Path, whose: Whose, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path, whose, most)?
        .take(most + 1)
        .read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        bail!("too long");
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that goes.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("regall-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }
        fn names(&self) -> Vec<String> {
            let all = fs::read_dir(&self.0).unwrap().flatten();
            let mut all: Vec<_> = all.map(|e| e.file_name().into_string().unwrap()).collect();
            all.sort();
            all
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn hello(out: &mut dyn Write) -> io::Result<()> {
        out.write_all(b"hello")
    }

    #[test]
    fn a_file_is_whole_or_as_it_was() {
        let folder = Folder::new("whole");
        let file = folder.0.join("file");
        write(&file, hello).unwrap();
        let mut old = File::open(&file).unwrap();
        let no = |out: &mut dyn Write| {
            out.write_all(b"x")?;
            Err(ErrorKind::StorageFull.into())
        };
        assert!(write(&file, no).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"hello");
        write(&file, |out| out.write_all(b"more")).unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"more");
        // Who has the former one open reads the former one.
        assert_eq!(io::read_to_string(&mut old).unwrap(), "hello");
        assert_eq!(folder.names(), ["file"]);
        assert!(can_write(&file).is_ok() && can_write(Path::new("/no/where")).is_err());
        assert!(
            can_write(Path::new("/dev/null")).is_ok()
                && write(Path::new("/dev/null"), hello).is_ok()
        );
        for refused in ["/dev/zero", "/dev/full", "/proc", "/dev/fd/99999"] {
            assert!(can_write(Path::new(refused)).is_err(), "{refused}");
        }
    }

    #[test]
    fn links_and_pipes() {
        let folder = Folder::new("links");
        let at = |name: &str| folder.0.join(name);
        std::os::unix::fs::symlink(at("real"), at("link")).unwrap();
        for text in ["new", "there"] {
            write(&at("link"), |out| out.write_all(text.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(at("real")).unwrap(), text);
        }
        assert_eq!(folder.names(), ["link", "real"]);
        std::os::unix::fs::symlink(at("round"), at("round")).unwrap();
        assert!(write(&at("round"), hello).is_err() && can_write(&at("round")).is_err());
        fs::set_permissions(at("real"), fs::Permissions::from_mode(0o600)).unwrap();
        write(&at("real"), |out| out.write_all(b"there")).unwrap();
        assert_eq!(at("real").metadata().unwrap().mode() & 0o777, 0o600);
        write(&at(&"n".repeat(255)), hello).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(at("pipe"))
            .status();
        assert!(made.unwrap().success());
        // Nobody writes: it is not waited for.
        assert_eq!(read(&at("pipe"), Whose::Named, 9).unwrap(), b"");
        let reader = std::thread::spawn({
            let pipe = at("pipe");
            move || fs::read(pipe).unwrap()
        });
        write(&at("pipe"), hello).unwrap();
        assert_eq!(reader.join().unwrap(), b"hello");
        assert!(at("pipe").symlink_metadata().unwrap().file_type().is_fifo());
        let uid = geteuid().as_raw();
        for (name, whose, good) in [
            ("real", Whose::Named, true),
            ("link", Whose::Named, true),
            ("real", Whose::In(uid), true),
            ("link", Whose::In(uid), false),
            ("pipe", Whose::In(uid), false),
            ("real", Whose::Others, true),
            ("pipe", Whose::Others, false),
        ] {
            assert_eq!(read(&at(name), whose, 9).is_ok(), good, "{name}");
        }
        assert!(read(&at("real"), Whose::Named, 4).is_err());
        assert!(read(Path::new("/dev/zero"), Whose::Named, 9).is_err());
        File::create(at("hole")).unwrap().set_len(1 << 40).unwrap();
        assert!(read(&at("hole"), Whose::In(uid), LONGEST).is_err());
    }
}
