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

/// A folder that goes.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("regall-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What is in /dev/shm beside a folder with a process of another pid namespace.
#[test]
fn names_of_others_are_read_up_to_a_bound() {
    let root = Folder::new("names");
    let folder = root.0.join("regall-7");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
    let uid = folder.metadata().unwrap().uid();
    // (Open to write, as by whoever has it mapped.)
    let _open = fs::File::create(folder.join("1.2.3")).unwrap();
    let look = |until| unseen_in(&root.0, 4, None, until);
    assert_eq!(look(None).processes, [(uid, 1)]);
    assert!(look(None).unknown.is_empty());
    let other = unseen_in(&root.0, 4, Some(uid + 1), None);
    assert!(other.is_empty(), "{other:?}");
    let no_time = look(Some(Instant::now()));
    assert_eq!((no_time.processes, no_time.unknown), (vec![], vec![uid]));
    let many = |within: &Path, n| {
        for n in 0..n {
            let file = within.join(format!("many-{n}"));
            fs::File::create(file).unwrap();
        }
    };
    many(&folder, MOST);
    assert_eq!(look(None).unknown, [uid]);
    for n in 0..MOST {
        fs::remove_file(folder.join(format!("many-{n}"))).unwrap();
    }
    assert_eq!(look(None).processes, [(uid, 1)]);
    many(&root.0, MOST_NAMES);
    assert_eq!(look(None).unknown, [uid]);
}

/// How many processes can't be looked at makes no difference to how often folders are read.
#[test]
fn a_users_folders_are_looked_for_once() {
    let us = Process::find(std::process::id()).unwrap();
    let mut folders = Folders::default();
    let name = us.file_name();
    assert!(!folders.name(&us, &us));
    // What comes later is not seen, and what was found is asked again.
    let folder = Folder::new("once");
    for all in folders.0.values_mut() {
        all.push(folder.0.clone());
    }
    assert!(!folders.name(&us, &us));
    fs::write(folder.0.join(name), "").unwrap();
    assert!(folders.name(&us, &us));
}

/// Whoever had no turn is named, and nobody is looked at any more.
#[test]
fn who_had_no_turn_is_counted() {
    let us = Process::find(std::process::id()).unwrap().uids[0];
    let over = Some(Instant::now());
    let has = |found: &Search| found.left.iter().any(|(uid, n)| *uid == us && *n > 0);
    for user in [None, Some(us)] {
        let found = search(user, over).unwrap();
        assert!(found.seen.is_empty() && has(&found), "{found:?}");
    }
    let others = search(Some(us ^ 0x4000_0000), over).unwrap();
    assert!(!has(&others), "{others:?}");
    assert!(search(None, None).unwrap().left.is_empty());
}
