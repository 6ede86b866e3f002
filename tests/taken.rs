//! A user whose folder's names another user has taken.

use std::fs;
use std::os::unix::fs::{chown, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use regall_tests::mode::Mode;
use regall_tests::{build, child, coverage};

use super::root::{is_root, regall_of_root, Sleeper, FIRST_USER};

/// Folders of the other user that look like the user's.
const DECOYS: u32 = 3000;

/// All names of a user's folder that can be foreseen, taken by another user.
struct Taken(u32);

impl Taken {
    fn of(uid: u32) -> Self {
        let taken = Self(uid);
        taken.clean();
        for n in 0..8 {
            let path = taken.path(n);
            match n {
                0 => std::os::unix::fs::symlink("/", &path).expect("a link"),
                1 => fs::write(&path, "").expect("a file"),
                _ => fs::create_dir(&path).expect("a folder"),
            }
            std::os::unix::fs::lchown(&path, Some(uid + 1), None).expect("a user");
        }
        for n in 0..DECOYS {
            let path = taken.decoy(n);
            fs::create_dir(&path).expect("a folder");
            chown(&path, Some(uid + 1), None).expect("a user");
        }
        taken
    }

    fn path(&self, n: u32) -> PathBuf {
        match n {
            0 => format!("/dev/shm/regall-{}", self.0).into(),
            n => format!("/dev/shm/regall-{}-{n}", self.0).into(),
        }
    }

    /// One that could be a random name, and is not.
    fn decoy(&self, n: u32) -> PathBuf {
        format!("/dev/shm/regall-{}-80000000{n:08x}", self.0).into()
    }

    /// The user's own folders.
    fn own(&self) -> Vec<PathBuf> {
        let prefix = format!("/dev/shm/regall-{}-", self.0);
        let all = fs::read_dir("/dev/shm").expect("a folder").flatten();
        let all = all.filter(|e| e.metadata().is_ok_and(|m| m.uid() == self.0));
        let mut all: Vec<_> = all.map(|e| e.path()).collect();
        all.retain(|path| path.to_string_lossy().starts_with(&prefix));
        all
    }

    fn clean(&self) {
        let decoys = (0..DECOYS).map(|n| self.decoy(n));
        let names = (0..8).map(|n| self.path(n)).chain(decoys);
        for path in names.chain(self.own()) {
            let _ = fs::remove_file(&path).or_else(|_| fs::remove_dir_all(&path));
        }
    }

    /// Runs a command as the user.
    fn run(&self, command: &mut Command) -> child::Outcome {
        child::run(command.uid(self.0).gid(self.0), Duration::from_secs(60))
    }

    /// Starts a program with the shim on.
    fn sleeper(&self) -> Sleeper {
        let sleeper = Sleeper::of(self.0, true);
        while coverage::dump(sleeper.0.id()).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
        sleeper
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.clean();
    }
}

/// Whoever takes all names that can be foreseen changes nothing.
#[test]
fn a_folder_whose_names_are_taken_has_another() {
    if !is_root() {
        return;
    }
    let taken = Taken::of(FIRST_USER + 10);
    let regall = || Command::new(build::regall());
    let first = taken.sleeper();
    let own = taken.own();
    let [folder] = &own[..] else {
        panic!("{own:?}")
    };
    let is = fs::metadata(folder).expect("a folder");
    assert!(is.is_dir() && is.mode() & 0o7777 == 0o700, "{folder:?}");
    let second = taken.sleeper();
    assert_eq!(taken.own(), own, "both have one");
    let pid = second.0.id().to_string();
    for arguments in [["verify", &pid], ["stats", &pid]] {
        taken.run(regall().args(arguments)).must_succeed();
        assert!(regall_of_root(&arguments).0.success());
    }
    let mut script = Command::new(build::script("verify-maps.sh"));
    script.arg(&pid).arg(build::regall());
    child::run(&mut script, Duration::from_secs(60)).must_succeed();
    let lines = coverage::dump(second.0.id()).expect("a dump");
    let line = lines.iter().find(|l| l.prot.starts_with("rw"));
    let at = format!("{:#x}", line.expect("memory").start);
    let peeked = taken.run(regall().args(["peek", &pid, &at, "16"]));
    assert_eq!(peeked.end(), "exit 0", "{}", peeked.stderr);

    // Statistics, and the copy of the library.
    let place = tempfile::tempdir().expect("a folder");
    chown(place.path(), Some(taken.0), None).expect("a user");
    let mut command = Command::new("true");
    Mode::Auto.apply(&mut command);
    let done = taken.run(command.env("REGALL_STATS_FILE", "node:some"));
    assert_eq!((done.end().as_str(), done.stderr.as_str()), ("exit 0", ""));
    let merged = place.path().join("merged");
    let merged = merged.to_str().expect("text");
    let merge = ["report", "--merge", merged, "--name", "some"];
    taken.run(regall().args(merge)).must_succeed();
    let told = fs::read_to_string(merged).expect("merged statistics");
    assert!(told.contains("\"merged\""), "{told}");
    let staged = taken.run(regall().arg("stage"));
    staged.must_succeed();
    let copy = PathBuf::from(staged.stdout.trim());
    let here = copy.starts_with(folder) || copy.starts_with("/tmp");
    assert!(here && copy.is_file(), "{copy:?}");
    taken
        .run(regall().args(["stage", "--remove"]))
        .must_succeed();
    assert!(!copy.exists(), "{copy:?}");

    // They are killed. The next one takes the same folder, and leaves nothing.
    drop((first, second));
    assert_eq!(taken.own(), own);
    let mut command = Command::new("true");
    Mode::Auto.apply(&mut command);
    taken.run(&mut command).must_succeed();
    assert_eq!(taken.own(), [""; 0].map(PathBuf::from), "it stays for ever");
}

/// Folders with random names go with the last that is in them, whoever is about to put something
/// there.
#[test]
fn who_comes_while_another_clears_finds_a_folder() {
    if !is_root() {
        return;
    }
    let taken = Taken::of(FIRST_USER + 15);
    let stage = |arguments: &[&str]| {
        let done = taken.run(Command::new(build::regall()).arg("stage").args(arguments));
        assert_eq!(done.stderr, "", "{arguments:?}: {}", done.end());
    };
    let program = || {
        let mut command = Command::new("true");
        Mode::Auto.apply(&mut command);
        let done = taken.run(command.env("REGALL_STATS_FILE", "node:some"));
        assert_eq!((done.end().as_str(), done.stderr.as_str()), ("exit 0", ""));
        // What a merge does at its end.
        for folder in taken.own() {
            let _ = fs::remove_dir_all(folder.join("statistics"));
            let _ = fs::remove_dir(folder);
        }
    };
    let (clears, stages) = (|| stage(&["--remove"]), || stage(&[]));
    let loops: [&(dyn Fn() + Sync); 4] = [&clears, &stages, &stages, &program];
    std::thread::scope(|scope| {
        for one in loops {
            scope.spawn(move || (0..15).for_each(|_| one()));
        }
    });
}
