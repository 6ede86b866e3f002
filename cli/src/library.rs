//! Where libregall.so is: beside this binary, or where a prefix has its libraries.

use std::path::{Path, PathBuf};

/// The shim's file name.
pub const NAME: &str = "libregall.so";

/// Where it is looked for, from the folder of the binary: beside it, and the names that
/// distributions have for the folder of libraries (LIBDIR in the Makefile).
const PLACES: [&str; 4] = ["", "../lib", "../lib64", MULTIARCH];

#[cfg(target_arch = "x86_64")]
const MULTIARCH: &str = "../lib/x86_64-linux-gnu";
#[cfg(target_arch = "aarch64")]
const MULTIARCH: &str = "../lib/aarch64-linux-gnu";

/// Its absolute path, or the places in which it is not.
pub fn find() -> Result<PathBuf, Vec<PathBuf>> {
    let Ok(this) = std::env::current_exe() else {
        return Err(Vec::new());
    };
    find_from(this.parent().unwrap_or(Path::new("/")))
}

fn find_from(folder: &Path) -> Result<PathBuf, Vec<PathBuf>> {
    let places = PLACES.map(|place| folder.join(place).join(NAME));
    let found = places.iter().find(|p| p.is_file());
    // Canonical, so that it holds wherever the command changes to.
    let found = found.and_then(|p| p.canonicalize().ok());
    found.ok_or(places.into())
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
        assert_eq!(find_from(&bin).unwrap_err().len(), 4);
        let canonical = |p: PathBuf| p.canonicalize().unwrap();
        for place in PLACES.iter().rev().filter(|place| !place.is_empty()) {
            let folder = bin.join(place);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(NAME), "").unwrap();
            assert_eq!(find_from(&bin), Ok(canonical(folder.join(NAME))));
        }
        assert_eq!(find_from(&bin), Ok(canonical(lib.join(NAME))));
        fs::write(bin.join(NAME), "").unwrap();
        assert_eq!(find_from(&bin), Ok(canonical(bin.join(NAME))));
        fs::remove_dir_all(&root).unwrap();
    }
}
