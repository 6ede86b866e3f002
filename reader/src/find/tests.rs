//! Which file is taken for a process's.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use super::*;
use crate::file::tests::Fixture;
use regall_directory::layout::MAGIC;

/// Where the fixture's file is.
fn path(f: &Fixture) -> PathBuf {
    let folder = fs::read_dir(&f.root).unwrap().next().unwrap().unwrap();
    let mut files = fs::read_dir(folder.path()).unwrap();
    files.next().unwrap().unwrap().path()
}

#[test]
fn not_ours_or_not_there() {
    let f = Fixture::new();
    let h = f.writer.header().unwrap();
    let path = path(&f);
    let folder = path.parent().unwrap();
    fs::set_permissions(folder, fs::Permissions::from_mode(0o750)).unwrap();
    assert_eq!(f.corrupt(), "its folder is open to others");
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700)).unwrap();
    h.start_time.fetch_add(1, Ordering::Relaxed);
    assert_eq!(f.corrupt(), "it is another process's");
    h.magic.store(0, Ordering::Relaxed);
    assert_eq!(f.open().unwrap_err(), OpenError::Unpublished);
    h.magic.store(MAGIC + (1 << 56), Ordering::Relaxed);
    assert_eq!(f.corrupt(), "its first word, or another version");
    h.magic.store(MAGIC, Ordering::Relaxed);
    h.start_time.fetch_sub(1, Ordering::Relaxed);
    assert!(f.open().is_ok());
    fs::rename(folder, f.root.join("y")).unwrap();
    assert_eq!(f.open().unwrap_err(), OpenError::Inert);
}

/// The name of a process says nothing: its file is the one that it has mapped.
#[test]
fn another_file_of_the_same_name_is_not_its_directory() {
    let f = Fixture::new();
    let (path, there) = (path(&f), f.root.join("x"));
    let put = |how: &dyn Fn()| {
        how();
        let found = f.open().map(drop);
        fs::remove_file(&path).unwrap();
        found
    };
    fs::rename(&path, &there).unwrap();
    assert_eq!(f.open().unwrap_err(), OpenError::Inert);
    let copy = || assert!(fs::copy(&there, &path).unwrap() > 0);
    assert_eq!(put(&copy), Err(OpenError::Inert));
    let link = || std::os::unix::fs::symlink(&there, &path).unwrap();
    assert_eq!(put(&link), Err(OpenError::Inert));
}

/// A folder may be the user's by whatever number, or by a name that nobody foresees.
#[test]
fn a_folder_of_another_name() {
    let mut f = Fixture::new();
    f.publish(1, 10, 20);
    let folder = path(&f).parent().unwrap().to_path_buf();
    let uid = folder.metadata().unwrap().uid();
    for name in [
        format!("regall-{}", uid ^ 1),
        format!("regall-{}-7", uid ^ 1),
        format!("regall-{uid}-a8Zq0x"),
    ] {
        fs::rename(&folder, f.root.join(&name)).unwrap();
        assert_eq!(f.seen(), [(10, 20, 1)], "{name}");
        fs::rename(f.root.join(&name), &folder).unwrap();
    }
    fs::rename(&folder, f.root.join("other-1")).unwrap();
    assert_eq!(f.open().err(), Some(OpenError::Inert));
}
