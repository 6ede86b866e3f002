//! `regall run --stage`: the library is opened once a node where it is installed, whoever else
//! comes has a copy of it in the node's memory, which nobody else can put there, and which goes
//! when nobody uses it.

use std::fs;
use std::os::unix::fs::{chown, symlink, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use regall_tests::child::{self, Outcome};
use regall_tests::mode::{launch, Mode};
use regall_tests::{build, missing, skip};

const TIMEOUT: Duration = Duration::from_secs(120);

/// An installation with a library that nobody else has, on what is the shared file system here.
struct Shared(tempfile::TempDir);

impl Shared {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().expect("a folder"));
        fs::set_permissions(this.0.path(), fs::Permissions::from_mode(0o755)).expect("a mode");
        for name in ["bin", "lib"] {
            fs::create_dir(this.0.path().join(name)).expect("a folder");
        }
        fs::copy(build::regall(), this.regall()).expect("a copy");
        let mut library = fs::read(build::shim()).expect("the library");
        // Behind its end: ld.so does not look there.
        library.extend(this.0.path().as_os_str().as_encoded_bytes());
        fs::write(this.library(), library).expect("a library");
        this
    }

    fn regall(&self) -> PathBuf {
        self.0.path().join("bin/regall")
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("lib/libregall.so")
    }

    /// `copy` is the library, byte for byte.
    fn has_the_same_bytes(&self, copy: &Path) {
        let same = |path: &Path| fs::read(path).expect("it");
        assert_eq!(same(copy), same(&self.library()));
    }

    /// `regall stage --remove` removes `copy`.
    fn removes(&self, copy: &Path) {
        child::run(self.command().args(["stage", "--remove"]), TIMEOUT);
        assert!(!copy.exists());
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.regall());
        Mode::Plain.apply(&mut command);
        command
    }

    /// `regall stage`, and the path that it says.
    fn staged(&self) -> PathBuf {
        let done = child::run(self.command().arg("stage"), TIMEOUT);
        done.must_succeed();
        done.stdout.trim_end().into()
    }
}

/// Runs a command under strace; the paths that were opened or executed, with the process.
fn traced(command: &[&Path], log: &Path) -> (Outcome, Vec<(String, String)>) {
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-qq", "-e", "trace=open,openat,openat2,execve", "-o"])
        .arg(log);
    let done = launch(strace.arg("--").args(command), TIMEOUT);
    let text = fs::read_to_string(log).expect("a log");
    let opened = |line: &str| {
        let (pid, call) = line.split_once(' ')?;
        let path = call.split('"').nth(1)?;
        (!call.contains(" = -1 ")).then(|| (pid.to_string(), path.to_string()))
    };
    (done, text.lines().filter_map(opened).collect())
}

fn opens(all: &[(String, String)], path: &Path) -> Vec<String> {
    let of = all.iter().filter(|(_, p)| Path::new(p) == path);
    of.map(|(pid, _)| pid.clone()).collect()
}

#[test]
fn ranks_open_nothing_where_it_is_installed() {
    if missing("mpirun.openmpi") || missing("strace") {
        return;
    }
    let shared = Shared::new();
    let log = shared.0.path().join("log");
    let words = |before: &[&str]| -> Vec<PathBuf> {
        let regall = shared.regall();
        let mut all: Vec<PathBuf> = vec![regall.clone()];
        all.extend(before.iter().map(PathBuf::from));
        all
    };
    let launcher = [
        "mpirun.openmpi",
        "--oversubscribe",
        "--bind-to",
        "none",
        "-np",
        "2",
    ];
    let rank = ["cat", "/proc/self/maps"];
    let of = |how: &[&str]| {
        let all = words(&[&["run"], how, &["--"], &launcher[..], &rank[..]].concat());
        let all: Vec<_> = all.iter().map(PathBuf::as_path).collect();
        traced(&all, &log)
    };
    let (done, all) = of(&[]);
    done.must_succeed();
    let before = opens(&all, &shared.library());
    assert!(before.len() > 2, "each program opens it: {before:?}");
    let (done, all) = of(&["--stage"]);
    done.must_succeed();
    assert_eq!(done.regall_lines(), Vec::<&str>::new());
    // The copy, made by the first one that needed it.
    assert_eq!(opens(&all, &shared.library()).len(), 1, "{all:?}");
    let mapped = done
        .stdout
        .lines()
        .filter(|l| l.ends_with(".so") && l.contains("/libregall-"));
    let copies: Vec<_> = mapped.filter_map(|l| l.split_whitespace().last()).collect();
    let copy = PathBuf::from(copies.first().expect("a copy"));
    assert!(copies.iter().all(|c| Path::new(c) == copy), "{copies:?}");
    assert!(opens(&all, &copy).len() >= 2);
    // The command itself is executed once a node for the copy, and once to remove it.
    assert_eq!(opens(&all, &shared.regall()).len(), 3);
    assert!(!copy.exists(), "{} is left", copy.display());
}

/// As a rank: the launcher starts the command on every node, and it becomes the program.
#[test]
fn many_ranks_make_one_copy() {
    if missing("strace") {
        return;
    }
    let shared = Shared::new();
    let log = shared.0.path().join("log");
    let script = "for r in 0 1 2 3 4 5 6 7 8 9; do
        PMI_RANK=$r PMI_SIZE=10 \"$0\" run --stage -- grep -m1 -o '/[^ ]*libregall[^ ]*' /proc/self/maps &
    done; wait";
    let regall = shared.regall();
    let words: [&Path; 4] = ["sh".as_ref(), "-c".as_ref(), script.as_ref(), &regall];
    let (done, all) = traced(&words, &log);
    done.must_succeed();
    let mut said: Vec<_> = done.stdout.lines().collect();
    assert_eq!(said.len(), 10, "{done:?}");
    said.dedup();
    assert_eq!(said, [shared.staged().to_str().expect("a name")]);
    assert_eq!(opens(&all, &shared.library()).len(), 1, "{all:?}");
    let copy = PathBuf::from(said[0]);
    let is = fs::metadata(&copy).expect("a copy");
    assert_eq!(
        (is.mode() & 0o777, is.len()),
        (0o500, fs::metadata(shared.library()).expect("it").len())
    );
    shared.has_the_same_bytes(&copy);
    // Nobody waited for their end; whoever comes by removes it.
    shared.removes(&copy);
}

#[test]
fn a_copy_stays_while_somebody_uses_it() {
    let shared = Shared::new();
    let copy = shared.staged();
    let script = "echo $$; exec sleep 1000";
    let mut command = shared.command();
    command.args(["run", "--stage", "--", "sh", "-c", script]);
    let mut running = command.stdout(Stdio::piped()).spawn().expect("regall");
    let said = running.stdout.take().expect("a pipe");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line).expect("a line");
    let pid: i32 = line.trim().parse().expect("a pid");
    let remove = || child::run(shared.command().args(["stage", "--remove"]), TIMEOUT);
    assert_eq!(remove().end(), "exit 1");
    assert!(copy.exists());
    // SAFETY: no memory; its parent has not waited for it, so the number is its own.
    unsafe { libc::kill(pid, libc::SIGTERM) };
    assert_eq!(
        running.wait().expect("its end").code(),
        Some(128 + libc::SIGTERM)
    );
    assert!(!copy.exists(), "who waits for the command removes it");
}

/// A folder or a library that another user has put where ours is to be.
#[test]
fn nobody_else_puts_a_library_there() {
    // SAFETY: a system call without memory.
    if unsafe { libc::geteuid() } != 0 {
        return skip("only root can be two users");
    }
    const USER: u32 = 61234;
    let shared = Shared::new();
    let folder = |end: &str| PathBuf::from(format!("/dev/shm/regall-{USER}{end}"));
    let clean = || {
        for end in ["", "-1", "-2", "-3"] {
            let _ = fs::remove_file(folder(end));
            let _ = fs::remove_dir_all(folder(end));
        }
    };
    clean();
    // Somebody else's, open to all; a link to such a one; one that others may write to.
    fs::create_dir_all(folder("").join("library")).expect("a folder");
    fs::set_permissions(folder(""), fs::Permissions::from_mode(0o777)).expect("a mode");
    symlink(folder(""), folder("-1")).expect("a link");
    fs::create_dir(folder("-2")).expect("a folder");
    chown(folder("-2"), Some(USER), Some(USER)).expect("an owner");
    fs::set_permissions(folder("-2"), fs::Permissions::from_mode(0o777)).expect("a mode");
    let mut command = Command::new("setpriv");
    Mode::Plain.apply(&mut command);
    command.args([
        &format!("--reuid={USER}"),
        &format!("--regid={USER}"),
        "--clear-groups",
    ]);
    let done = child::run(command.arg(shared.regall()).arg("stage"), TIMEOUT);
    let path = done.stdout.trim_end().to_string();
    let is = fs::metadata(&path).map(|m| (m.uid(), m.mode() & 0o777));
    clean();
    done.must_succeed();
    assert!(
        path.starts_with(&format!("/dev/shm/regall-{USER}-3/library/")),
        "{path}"
    );
    assert_eq!(is.expect("a copy"), (USER, 0o500));
}

/// What stands under the name of a copy and is none is not preloaded.
#[test]
fn what_is_no_copy_is_made_anew() {
    let shared = Shared::new();
    let copy = shared.staged();
    for spoil in ["link", "pipe", "open"] {
        let _ = fs::remove_file(&copy);
        match spoil {
            "link" => symlink("/etc/passwd", &copy).expect("a link"),
            "pipe" => {
                let made = Command::new("mkfifo").arg(&copy).status();
                assert!(made.is_ok_and(|s| s.success()));
            }
            _ => {
                fs::write(&copy, "x").expect("a file");
                fs::set_permissions(&copy, fs::Permissions::from_mode(0o666)).expect("a mode");
            }
        }
        let began = Instant::now();
        assert_eq!(shared.staged(), copy, "{spoil}");
        assert!(began.elapsed() < TIMEOUT);
        let is = fs::symlink_metadata(&copy).expect("a copy");
        assert!(is.is_file() && is.mode() & 0o777 == 0o500, "{spoil}");
        shared.has_the_same_bytes(&copy);
    }
    shared.removes(&copy);
}

/// Without a folder for it the command runs as it would have.
#[test]
fn what_can_not_be_staged_runs_all_the_same() {
    // From where it is not hidden: the work tree may be below /tmp.
    let folder = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let copied = |file: PathBuf| {
        let copy = folder.path().join(file.file_name().expect("a name"));
        fs::copy(file, &copy).expect("a copy");
        copy
    };
    let (regall, _) = (copied(build::regall()), copied(build::shim()));
    let mut command = Command::new("unshare");
    Mode::Plain.apply(&mut command);
    let mounted = "mount -t tmpfs -o ro a /dev/shm && mount -t tmpfs -o ro b /tmp && exec \"$@\"";
    let script = ["-rm", "sh", "-c", mounted, "sh"];
    let probe = Command::new("unshare").args(script).arg("true").output();
    if !probe.is_ok_and(|o| o.status.success()) {
        return skip("namespaces are not allowed here");
    }
    command
        .args(script)
        .arg(regall)
        .args(["run", "--stage", "--", "sh", "-c", "exit 3"]);
    let done = child::run(&mut command, TIMEOUT);
    assert_eq!(done.end(), "exit 3", "{done:?}");
    assert!(
        done.stderr.contains("the library is not staged: "),
        "{}",
        done.stderr
    );
}
