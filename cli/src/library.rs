//! Where libregall.so is: beside this binary, or in ../lib of it.

use std::path::{Path, PathBuf};

/// The shim's file name.
pub const NAME: &str = "libregall.so";

/// Its absolute path, or the places in which it is not.
pub fn find() -> Result<PathBuf, Vec<PathBuf>> {
    let Ok(this) = std::env::current_exe() else {
        return Err(Vec::new());
    };
    find_from(this.parent().unwrap_or(Path::new("/")))
}

fn find_from(folder: &Path) -> Result<PathBuf, Vec<PathBuf>> {
    let places = [folder.join(NAME), folder.join("../lib").join(NAME)];
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
        assert_eq!(find_from(&bin).unwrap_err().len(), 2);
        fs::write(lib.join(NAME), "").unwrap();
        let canonical = |p: PathBuf| p.canonicalize().unwrap();
        assert_eq!(find_from(&bin), Ok(canonical(lib.join(NAME))));
        fs::write(bin.join(NAME), "").unwrap();
        assert_eq!(find_from(&bin), Ok(canonical(bin.join(NAME))));
        fs::remove_dir_all(&root).unwrap();
    }
}
