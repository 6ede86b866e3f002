//! The folder of the copies: who may be in it, and what comes and goes there.

use std::ffi::{CStr, CString, OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{symlink, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{bail, Context};
use regall_sys::folder::{self, Folder};
use regall_sys::Errno;
use rustix::fs::{flock, statvfs, FlockOperation, StatVfs, StatVfsMountFlags};
use rustix::process::geteuid;

use super::users;
use crate::files;
use crate::library::is_copy;

/// Where a node has memory or a disk of its own.
const ROOTS: [&CStr; 2] = [folder::ROOT, c"/tmp"];
/// The folder in the user's.
const INSIDE: &str = "library";
/// What keeps others from copying at the same time.
const LOCK: &str = ".lock";
/// So long somebody else's copying is waited for.
const PATIENCE: Duration = Duration::from_secs(60);
/// So often a copy is made, or found.
const TRIES: usize = 8;
/// So long a job that has staged it may take to start its ranks.
const LEASE: Duration = Duration::from_secs(600);

/// The path of the copy of `library`, made if need be, and a descriptor that keeps it. Who clears
/// at the same time may have taken the folder away, or the copy: then there is another try.
pub fn staged(library: &Path, lease: Option<&str>) -> anyhow::Result<(PathBuf, File)> {
    let is = fs::metadata(library).with_context(|| library.display().to_string())?;
    // Who comes later opens nothing where the library is: this name is of what stat says.
    let (dev, ino, size) = (is.dev(), is.ino(), is.size());
    let note = format!("from,{dev}.{ino}.{size}.{}.{}", is.mtime(), is.mtime_nsec());
    for _ in 0..TRIES {
        match staged_in(&own()?, library, &note, lease) {
            Ok(Some(copy)) => return Ok(copy),
            Err(e) if !is_missing(&e) => return Err(e),
            Ok(None) | Err(_) => (),
        }
    }
    bail!("the copy was removed at once")
}

/// Whether an error says that a file is not there.
fn is_missing(error: &anyhow::Error) -> bool {
    let error = error.root_cause().downcast_ref::<io::Error>();
    error.is_some_and(|e| e.kind() == ErrorKind::NotFound)
}

fn staged_in(
    folder: &Path,
    library: &Path,
    note: &str,
    lease: Option<&str>,
) -> anyhow::Result<Option<(PathBuf, File)>> {
    let mut found = noted(folder, note)?;
    if found.is_none() {
        let _lock = locked(&folder.join(LOCK))?;
        // Another one may have copied it meanwhile.
        found = noted(folder, note)?;
        if found.is_none() {
            copy(library, folder, note)?;
            found = noted(folder, note)?;
        }
    }
    if let (Some((path, _)), Some(lease)) = (&found, lease) {
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW)
            .open(folder.join(leased(path, lease)?))?
            // Its age counts.
            .write_all(b".")?;
    }
    Ok(found)
}

/// The file that says that a job is about to use a copy.
fn leased(copy: &Path, lease: &str) -> anyhow::Result<String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    if lease.len() > 100 || !lease.bytes().all(plain) {
        bail!("{lease}: no name of a job");
    }
    let name = copy.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("lease,{name},{lease}"))
}

/// This user's folder on this node, made if need be: the first in which programs may be executed.
fn own() -> anyhow::Result<PathBuf> {
    let uid = geteuid().as_raw();
    let mut why = anyhow::anyhow!("no folder of the node's own");
    for root in ROOTS {
        if !executes(root) {
            continue;
        }
        match own_below(root, uid) {
            Ok(folder) => return Ok(folder),
            Err(e) => why = io::Error::from_raw_os_error(e.0).into(),
        }
    }
    Err(why.context("no folder for a copy of the library, in which programs can be executed"))
}

/// A folder that is there, ours, and nobody else's to enter. Nobody but us can then put another
/// in its place: its parent is ours, or sticky.
fn own_below(root: &CStr, uid: u32) -> Result<PathBuf, Errno> {
    folder::in_own(root, uid, |_, user| {
        let inside = inside(user, root);
        let path = CString::new(inside.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        folder::open(&path, uid).map(|_| inside)
    })
}

/// The path of the copies' folder.
fn inside(user: Folder, root: &CStr) -> PathBuf {
    let path = user.below(root).as_bytes().to_vec();
    PathBuf::from(OsString::from_vec(path)).join(INSIDE)
}

/// Whether the file system there lets programs be executed, and only root or the owner rename
/// what is in it.
fn executes(root: &CStr) -> bool {
    let root = Path::new(OsStr::from_bytes(root.to_bytes()));
    let sticky = fs::symlink_metadata(root).is_ok_and(|m| m.is_dir() && m.mode() & 0o1000 != 0);
    let executes = |is: StatVfs| !is.f_flag.contains(StatVfsMountFlags::NOEXEC);
    sticky && statvfs(root).is_ok_and(executes)
}

/// The copy that a note names, and a descriptor that keeps it; none if there is none.
fn noted(folder: &Path, note: &str) -> anyhow::Result<Option<(PathBuf, File)>> {
    let Ok(name) = fs::read_link(folder.join(note)) else {
        return Ok(None);
    };
    if !name.to_str().is_some_and(is_copy) {
        return Ok(None);
    }
    let path = folder.join(name);
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(&path);
    let file = match opened {
        // What is there and is none is replaced.
        Err(_) => return Ok(None),
        Ok(file) => file,
    };
    // Who removes a copy has it alone meanwhile.
    flock(&file, FlockOperation::LockShared)?;
    let is = file.metadata()?;
    let ours = is.uid() == geteuid().as_raw();
    match is.is_file() && ours && is.mode() & 0o022 == 0 && is.nlink() > 0 {
        true => Ok(Some((path, file))),
        false => Ok(None),
    }
}

/// Copies the library, under its final name only when it is whole.
fn copy(library: &Path, folder: &Path, note: &str) -> anyhow::Result<()> {
    let mut text = Vec::new();
    File::open(library)?.read_to_end(&mut text)?;
    let name = format!("libregall-{:032x}.so", hash(&text));
    let pid = std::process::id();
    let (part, link) = (format!(".copy.{pid}"), format!(".note.{pid}"));
    let [part, link] = [part, link].map(|name| folder.join(name));
    // What a process of this number has left.
    let _ = (fs::remove_file(&part), fs::remove_file(&link));
    let made = (|| {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o500);
        options.open(&part)?.write_all(&text)?;
        fs::rename(&part, folder.join(&name))?;
        symlink(&name, &link)?;
        fs::rename(&link, folder.join(note))
    })();
    if made.is_err() {
        let _ = (fs::remove_file(&part), fs::remove_file(&link));
    }
    made.with_context(|| folder.display().to_string())
}

/// FNV-1a with 128 bits. It tells versions apart; that nobody else puts a file there is for the
/// folder's permissions.
fn hash(text: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let step = |hash: u128, b: &u8| (hash ^ u128::from(*b)).wrapping_mul(PRIME);
    text.iter().fold(BASIS, step)
}

/// A lock that ends with the file. A holder that is stopped is not waited for for ever: two may
/// copy then, which costs a copy.
fn locked(path: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let began = Instant::now();
    loop {
        let file = options.open(path)?;
        let held = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        // (Who had it before may have removed its name.)
        if held && files::is_named(&file, path) || began.elapsed() > PATIENCE {
            return Ok(file);
        }
        if !held {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Removes copies that nobody uses, on all places where they may be; `lease` is over. Whether one
/// is left.
pub fn clear(lease: Option<&str>) -> anyhow::Result<bool> {
    let uid = geteuid().as_raw();
    let mut left = false;
    for root in ROOTS {
        let mut all = Vec::new();
        folder::each(root, uid, |_, folder| all.push(folder));
        for user in all {
            let folder = inside(user, root);
            let path = CString::new(folder.as_os_str().as_bytes())?;
            if folder::open_existing(&path, uid).is_err() {
                continue;
            }
            match clear_one(&folder, user.is_random(), lease) {
                Ok(used) => left |= used,
                // Another one has cleared it.
                Err(e) if is_missing(&e) => (),
                Err(e) => return Err(e),
            }
            user.leave(root);
        }
    }
    Ok(left)
}

/// Clears a folder; one that `goes` is removed with the last that is in it.
fn clear_one(folder: &Path, goes: bool, lease: Option<&str>) -> anyhow::Result<bool> {
    let lock = folder.join(LOCK);
    let _held = locked(&lock)?;
    let names = fs::read_dir(folder)?.flatten();
    let names: Vec<_> = names
        .filter_map(|e| e.file_name().into_string().ok())
        .collect();
    let leases = |of: &str| {
        let begin = format!("lease,{of},");
        let all = names.iter().filter(move |n| n.starts_with(&begin));
        all.map(|n| folder.join(n)).collect::<Vec<_>>()
    };
    let mut left = false;
    for copy in names.iter().filter(|n| is_copy(n)) {
        if let Some(lease) = lease {
            let _ = fs::remove_file(folder.join(leased(Path::new(copy), lease)?));
        }
        let wanted = leases(copy).iter().filter(|l| !is_over(l)).count() > 0;
        left |= wanted || !removed(&folder.join(copy));
    }
    for name in names.iter().filter(|n| n.starts_with("from,")) {
        // What leads nowhere.
        if fs::metadata(folder.join(name)).is_err() {
            let _ = fs::remove_file(folder.join(name));
        }
    }
    if goes && !left {
        // (While it is held: who waits for it looks whether it has its name.)
        let _ = (fs::remove_file(lock), fs::remove_dir(folder));
    }
    Ok(left)
}

/// Whether a job had its time; its lease goes then.
fn is_over(lease: &Path) -> bool {
    let age = match fs::symlink_metadata(lease).and_then(|m| m.modified()) {
        Err(e) if e.kind() == ErrorKind::NotFound => return true,
        age => age,
    };
    let age = age
        .ok()
        .and_then(|then| SystemTime::now().duration_since(then).ok());
    let over = age.is_some_and(|age| age > LEASE);
    if over {
        let _ = fs::remove_file(lease);
    }
    over
}

/// Removes a copy if nobody uses it. Who is about to has a lock on it, or is seen a moment later:
/// while a process executes another program, the kernel shows its environment nowhere.
fn removed(copy: &Path) -> bool {
    let Ok(file) = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(copy)
    else {
        return true;
    };
    if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return false;
    }
    for _ in 0..2 {
        if users::any(copy) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    fs::remove_file(copy).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_the_content() {
        assert_eq!(hash(b""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        // As published with the algorithm.
        assert_eq!(hash(b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
        assert!(is_copy(&format!("libregall-{:032x}.so", hash(b"x"))));
        for bad in [
            "libregall-.so",
            "libregall.so",
            "../libregall-0.so",
            "from,1",
        ] {
            assert!(!is_copy(bad), "{bad}");
        }
    }

    #[test]
    fn a_lease_is_a_plain_name() {
        let of = |lease: &str| leased(Path::new("/a/c.so"), lease);
        assert_eq!(of("n1.4711").unwrap(), "lease,c.so,n1.4711");
        assert!(of("../x").is_err() && of(&"x".repeat(300)).is_err());
    }
}
