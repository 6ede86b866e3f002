//! Where libregall.so is: beside this binary, where `make install` says that it put it, or
//! where a prefix has its libraries.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The shim's file name.
pub const NAME: &str = "libregall.so";

/// The file in which `make install` leaves LIBDIR, from the folder of the binary: a path from
/// there, so that a prefix can be moved, or an absolute one outside of the prefix.
const NOTE: &str = "../share/regall/libdir";

/// Where it is looked for without that file: the names that distributions have for the folder
/// of libraries.
const PLACES: [&str; 3] = ["../lib", "../lib64", MULTIARCH];

#[cfg(target_arch = "x86_64")]
const MULTIARCH: &str = "../lib/x86_64-linux-gnu";
#[cfg(target_arch = "aarch64")]
const MULTIARCH: &str = "../lib/aarch64-linux-gnu";

/// Whether a file's name is that of a copy of it in a node's memory.
pub fn is_copy(name: &str) -> bool {
    let hash = name
        .strip_prefix("libregall-")
        .and_then(|n| n.strip_suffix(".so"));
    hash.is_some_and(|h| h.len() == 32 && h.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Its absolute path, or the places in which it is not.
pub fn find() -> Result<PathBuf, Vec<PathBuf>> {
    let Ok(this) = std::env::current_exe() else {
        return Err(Vec::new());
    };
    find_from(this.parent().unwrap_or(Path::new("/")))
}

fn find_from(folder: &Path) -> Result<PathBuf, Vec<PathBuf>> {
    let note = std::fs::read(folder.join(NOTE)).ok();
    let noted = note
        .as_deref()
        .map(|n| Path::new(OsStr::from_bytes(n.trim_ascii())));
    let places = std::iter::once(Path::new("")).chain(noted);
    let places = places.chain(PLACES.map(Path::new));
    let places: Vec<_> = places.map(|p| folder.join(p).join(NAME)).collect();
    let found = places.iter().find(|p| p.is_file());
    // Canonical, so that it holds wherever the command changes to.
    let found = found.and_then(|p| p.canonicalize().ok());
    found.ok_or(places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn beside_the_binary_first() {
        let root = std::env::temp_dir().join(format!("regall-library-{}", std::process::id()));
        let (bin, lib) = (root.join("bin"), root.join("lib"));
        fs::create_dir_all(&bin).unwrap();
        fs::create_dir_all(&lib).unwrap();
        assert_eq!(find_from(&bin).unwrap_err().len(), 1 + PLACES.len());
        let canonical = |p: PathBuf| p.canonicalize().unwrap();
        for place in PLACES.iter().rev() {
            let folder = bin.join(place);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(NAME), "").unwrap();
            assert_eq!(find_from(&bin), Ok(canonical(folder.join(NAME))));
        }
        assert_eq!(find_from(&bin), Ok(canonical(lib.join(NAME))));
        // The place that was noted, if the library is there.
        let (note, own) = (bin.join(NOTE), root.join("own/place"));
        fs::create_dir_all(note.parent().unwrap()).unwrap();
        fs::create_dir_all(&own).unwrap();
        fs::write(&note, "../own/place\n").unwrap();
        assert_eq!(find_from(&bin), Ok(canonical(lib.join(NAME))));
        fs::write(own.join(NAME), "").unwrap();
        assert_eq!(find_from(&bin), Ok(canonical(own.join(NAME))));
        fs::remove_file(lib.join(NAME)).unwrap();
        fs::write(&note, lib.as_os_str().as_bytes()).unwrap();
        fs::write(lib.join(NAME), "").unwrap();
        assert_eq!(find_from(&bin), Ok(canonical(lib.join(NAME))));
        fs::write(bin.join(NAME), "").unwrap();
        assert_eq!(find_from(&bin), Ok(canonical(bin.join(NAME))));
        fs::remove_dir_all(&root).unwrap();
    }
}
