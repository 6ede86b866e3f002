//! What another user, a program with more rights, a folder that somebody else has put there
//! and the environment can and can't do. SECURITY.md says it in words.
//!
//! Elsewhere: another user's `regall peek`, cookies in
//! tests/bridge.rs and tests/regions.rs; forged directories in tests/hostile.rs.

use std::ffi::CString;
use std::fs::{self, Permissions};
use std::os::unix::fs::{symlink, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::quiet::{Findings, Point, Watcher};
use regall_tests::soak::Row;
use regall_tests::{build, skip};

#[path = "safety/environment.rs"]
mod environment;

const PART: &str = "safety";
const TIMEOUT: Duration = Duration::from_secs(60);
/// Users that nobody is; each test has folders of its own.
const OWNER: u32 = 61_401;
const OTHER: u32 = 61_402;
const BESET: u32 = 61_403;

fn is_root() -> bool {
    // SAFETY: a system call without arguments.
    unsafe { libc::geteuid() == 0 }
}

/// Programs where any user can read them: cargo's folder may be closed to others.
struct Copies(tempfile::TempDir);

impl Copies {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("permissions");
        Self(folder)
    }

    fn of(&self, file: &Path) -> PathBuf {
        let to = self.0.path().join(file.file_name().expect("a name"));
        fs::copy(file, &to).expect("a copy");
        to
    }
}

/// hello with the shim, as `uid`, looked at while it waits.
fn hello_of(
    uid: u32,
    env: &[(&str, &str)],
    look: impl Fn(&Point) -> Vec<String> + Send + 'static,
) -> (Outcome, Findings) {
    let copies = Copies::new();
    let watcher = Watcher::new(look);
    let mut command = Command::new(copies.of(&build::program("hello")));
    Mode::Populate.apply(&mut command);
    command.env("LD_PRELOAD", copies.of(&build::shim()));
    command.env("QUIET_SOCKET", watcher.socket());
    command.envs(env.iter().copied());
    let outcome = child::run(command.uid(uid).gid(uid), TIMEOUT);
    (outcome, watcher.finish())
}

fn mode_of(path: &Path) -> u32 {
    fs::symlink_metadata(path).map_or(0, |m| m.permissions().mode() & 0o7777)
}

#[test]
fn another_user_reaches_nothing() {
    let row = Row::begin(PART, "another user: directory, memory, helper");
    if !is_root() {
        skip("another user's process: only root can be two users");
        return row.skipped("not root");
    }
    let copies = Copies::new();
    let regall = copies.of(&build::regall());
    let _ = fs::remove_dir_all(format!("/dev/shm/regall-{OWNER}"));
    let tried = Arc::new(Mutex::new(0));
    let count = Arc::clone(&tried);
    let env = [("REGALL_COPY", "helper")];
    let (outcome, findings) = hello_of(OWNER, &env, move |point| {
        let mut problems = Vec::new();
        let folder = PathBuf::from(format!("/dev/shm/regall-{OWNER}"));
        if mode_of(&folder) != 0o700 {
            problems.push(format!("the folder's mode is {:o}", mode_of(&folder)));
        }
        let prefix = format!("{}.", point.pid);
        let files: Vec<_> = fs::read_dir(&folder)
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        let mine = files
            .iter()
            .filter(|f| f.file_name().to_string_lossy().starts_with(&prefix));
        let mine: Vec<PathBuf> = mine.map(|f| f.path()).collect();
        if mine.len() < 2 {
            problems.push(format!(
                "a directory and a socket were to be there: {mine:?}"
            ));
        }
        for file in &mine {
            if mode_of(file) & 0o077 != 0 {
                problems.push(format!("{} has mode {:o}", file.display(), mode_of(file)));
            }
        }
        let (pid, maps) = (point.pid.to_string(), format!("/proc/{}/maps", point.pid));
        let at = fs::read_to_string(maps).unwrap_or_default();
        let at = format!(
            "0x{}",
            at.lines().find_map(|l| l.split('-').next()).unwrap_or("0")
        );
        let mut attempts: Vec<Vec<String>> = Vec::new();
        for file in &mine {
            attempts.push(vec!["cat".into(), file.display().to_string()]);
            attempts.push(vec![
                "sh".into(),
                "-c".into(),
                format!("echo >>{}", file.display()),
            ]);
            attempts.push(vec!["rm".into(), "-f".into(), file.display().to_string()]);
        }
        attempts.push(vec!["ls".into(), folder.display().to_string()]);
        for words in [
            &["dump", &pid][..],
            &["maps", &pid],
            &["stats", &pid],
            &["peek", &pid, &at, "16"],
        ] {
            let words = words.iter().map(|w| w.to_string());
            attempts.push(
                [regall.display().to_string()]
                    .into_iter()
                    .chain(words)
                    .collect(),
            );
        }
        for words in &attempts {
            let run = |uid: u32| {
                let mut command = Command::new(&words[0]);
                child::run(command.args(&words[1..]).uid(uid).gid(uid), TIMEOUT)
            };
            let done = run(OTHER);
            if done.end() == "exit 0" || !done.stdout.is_empty() {
                problems.push(format!("another user may: {words:?}: {}", done.stdout));
            }
            *count.lock().expect("a number") += 1;
        }
        if mine.iter().any(|file| !file.exists()) {
            problems.push("a file of the owner's is gone".into());
        }
        // The same attempt is none for the owner, so it is the user that counts.
        let mut own = Command::new(&regall);
        let own = child::run(own.args(["dump", &pid]).uid(OWNER).gid(OWNER), TIMEOUT);
        if own.end() != "exit 0" {
            problems.push(format!("the owner may not: {}", own.stderr));
        }
        problems
    });
    assert_eq!(outcome.end(), "exit 7", "{}", outcome.stderr);
    assert!(
        findings.looks == 1 && findings.problems.is_empty(),
        "{findings:#?}"
    );
    let tried = *tried.lock().expect("a number");
    let _ = fs::remove_dir_all(format!("/dev/shm/regall-{OWNER}"));
    row.passed(format!("{tried} attempts refused"));
}

/// A program's file with capabilities, as setcap(8) gives them: CAP_NET_BIND_SERVICE.
fn give_capability(path: &Path) -> bool {
    let value: [u32; 5] = [0x0200_0001, 1 << 10, 0, 0, 0];
    let bytes: Vec<u8> = value.iter().flat_map(|w| w.to_le_bytes()).collect();
    let path = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: both strings end in NUL, and the value has as many bytes as is said.
    let done = unsafe {
        libc::setxattr(
            path.as_ptr(),
            c"security.capability".as_ptr(),
            bytes.as_ptr().cast(),
            bytes.len(),
            0,
        )
    };
    done == 0
}

#[test]
fn programs_with_more_rights_ignore_it() {
    let row = Row::begin(PART, "setuid, setgid and capabilities");
    let mounts = ["-m", "mount", "-t", "tmpfs", "none", "/dev/shm"];
    if !is_root() || child::run(Command::new("unshare").args(mounts), TIMEOUT).end() != "exit 0" {
        skip("setuid programs under /etc/ld.so.preload: only root may, and with mount namespaces");
        return row.skipped("not root, or no mount namespaces");
    }
    let copies = Copies::new();
    let folder = copies.0.path();
    let shim = copies.of(&build::shim());
    let program = copies.of(&build::program("hello"));
    // Nobody can write there but root: a line or a file is by a program that had more rights.
    let drop = folder.join("written");
    fs::create_dir(&drop).expect("a folder");
    // ld.so ignores LD_PRELOAD for such programs; not what an administrator has named.
    let run = |by_administrator: bool| {
        let etc = folder.join("etc");
        let list = if by_administrator {
            shim.display().to_string()
        } else {
            String::new()
        };
        let shell = format!(
            "rm -rf {etc}; cp -a /etc {etc}; echo {list} >{etc}/ld.so.preload; mount --bind {etc} /etc; \
             exec setpriv --reuid {OTHER} --regid {OTHER} --clear-groups env LD_PRELOAD={preload} REGALL=1 REGALL_PIN=populate \
             REGALL_LOG=debug REGALL_LOG_FILE={drop}/log REGALL_STATS_FILE={drop}/stats \
             QUIET_SOCKET=$1 {program}",
            etc = etc.display(),
            preload = if by_administrator { String::new() } else { shim.display().to_string() },
            drop = drop.display(),
            program = program.display(),
        );
        let seen = Arc::new(Mutex::new((false, false)));
        let theirs = Arc::clone(&seen);
        let watcher = Watcher::new(move |point| {
            let read = |name: &str| {
                fs::read_to_string(format!("/proc/{}/{name}", point.pid)).unwrap_or_default()
            };
            let locked = read("status")
                .lines()
                .any(|l| l.starts_with("VmLck:") && !l.ends_with(" 0 kB"));
            *theirs.lock().expect("what is seen") = (read("maps").contains("libregall.so"), locked);
            Vec::new()
        });
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-e", "-c", &shell, "sh"])
            .arg(watcher.socket());
        command.env_remove("LD_PRELOAD").env_remove("REGALL");
        let done = child::run(&mut command, TIMEOUT);
        let looks = watcher.finish().looks;
        assert_eq!(
            (done.end().as_str(), looks),
            ("exit 7", 1),
            "{}{}",
            done.stdout,
            done.stderr
        );
        assert_eq!(done.others_stderr(), "an error line\n");
        let (loaded, active) = *seen.lock().expect("what is seen");
        (loaded, active)
    };
    let files = || fs::read_dir(&drop).expect("a folder").count();
    let ordinary = Permissions::from_mode(0o755);
    // Ordinary, it is there and at work: this test can fail.
    assert_eq!(run(true), (true, true), "an ordinary program");
    assert_eq!(run(false), (true, true), "an ordinary program");
    let mut kinds = 0;
    for mode in [0o4755, 0o2755] {
        fs::set_permissions(&program, Permissions::from_mode(mode)).expect("permissions");
        assert_eq!(
            run(true),
            (true, false),
            "mode {mode:o}, /etc/ld.so.preload"
        );
        assert_eq!(run(false), (false, false), "mode {mode:o}, LD_PRELOAD");
        assert_eq!(files(), 0, "it has written");
        kinds += 1;
    }
    fs::set_permissions(&program, ordinary).expect("permissions");
    if give_capability(&program) {
        assert_eq!(run(true), (true, false), "capabilities, /etc/ld.so.preload");
        assert_eq!(run(false), (false, false), "capabilities, LD_PRELOAD");
        kinds += 1;
    } else {
        skip("a program's file with capabilities: its file system has none");
    }
    assert_eq!(files(), 0, "it has written");
    row.passed(format!(
        "{kinds} kinds, by LD_PRELOAD and /etc/ld.so.preload"
    ));
}

/// A folder at the place of the user's own is refused if somebody else could have put it
/// there, or could look in; the next name is taken, and if there is none, one that nobody could
/// foresee (`tests/taken.rs`).
#[test]
fn folders_of_others_are_refused() {
    let row = Row::begin(PART, "folders that others have put there");
    if !is_root() {
        skip("folders of others: only root can be two users");
        return row.skipped("not root");
    }
    let place = |n: u32| match n {
        0 => PathBuf::from(format!("/dev/shm/regall-{BESET}")),
        n => PathBuf::from(format!("/dev/shm/regall-{BESET}-{n}")),
    };
    let clean = |path: &Path| {
        let _ = fs::remove_dir_all(path).or_else(|_| fs::remove_file(path));
    };
    let elsewhere = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::chown(elsewhere.path(), Some(BESET), Some(BESET)).expect("chown");
    fs::set_permissions(elsewhere.path(), Permissions::from_mode(0o700)).expect("permissions");
    let owned = |path: &Path, uid: u32, mode: u32| {
        fs::create_dir(path).expect("a folder");
        std::os::unix::fs::chown(path, Some(uid), Some(uid)).expect("chown");
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("permissions");
    };
    let kinds = [
        "world-writable",
        "readable by the group",
        "another user's",
        "root's",
        "a link",
        "a file",
    ];
    let put = |kind: &str, path: &Path| match kind {
        "world-writable" => owned(path, BESET, 0o777),
        "readable by the group" => owned(path, BESET, 0o740),
        "another user's" => owned(path, OTHER, 0o777),
        "root's" => owned(path, 0, 0o700),
        "a link" => symlink(elsewhere.path(), path).expect("a link"),
        _ => fs::write(path, "").expect("a file"),
    };
    for kind in kinds {
        for n in 0..8 {
            clean(&place(n));
        }
        put(kind, &place(0));
        let before = fs::symlink_metadata(place(0))
            .expect("the folder")
            .modified()
            .ok();
        let (outcome, findings) = hello_of(BESET, &[], move |point| {
            // Who looks finds it where it is.
            let mut verify = Command::new(build::regall());
            let done = child::run(verify.args(["verify", &point.pid.to_string()]), TIMEOUT);
            match done.end().as_str() {
                "exit 0" => Vec::new(),
                end => vec![format!("regall verify: {end}: {}", done.stderr)],
            }
        });
        assert_eq!(findings.problems, [""; 0], "{kind}");
        assert_eq!(outcome.end(), "exit 7", "{kind}: {}", outcome.stderr);
        let after = fs::symlink_metadata(place(0))
            .expect("the folder")
            .modified()
            .ok();
        assert_eq!(before, after, "{kind}: it was written to");
        assert_eq!(
            fs::read_dir(elsewhere.path()).expect("a folder").count(),
            0,
            "{kind}"
        );
        let next = mode_of(&place(1));
        let lines = outcome.regall_lines();
        assert_eq!(next, 0o700, "{kind}: not the next name: {lines:?}");
    }
    for n in 0..8 {
        clean(&place(n));
        owned(&place(n), OTHER, 0o777);
    }
    let (outcome, _) = hello_of(BESET, &[], |_| Vec::new());
    let lines = outcome.regall_lines().join("\n");
    assert_eq!(outcome.end(), "exit 7", "{}", outcome.stderr);
    assert!(
        !lines.contains("no directory under /dev/shm"),
        "all eight: {lines}"
    );
    for n in 0..8 {
        assert_eq!(fs::read_dir(place(n)).expect("a folder").count(), 0);
        clean(&place(n));
    }
    row.passed(format!("{} kinds, and all names taken", kinds.len()));
}

/// Descriptors of hello's, and whether they are close-on-exec.
fn descriptors(mode: Mode, env: &[(&str, &str)]) -> Vec<(i32, bool)> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let theirs = Arc::clone(&seen);
    let watcher = Watcher::new(move |point| {
        let folder = format!("/proc/{}/fdinfo", point.pid);
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            let flags = text.lines().find_map(|l| l.strip_prefix("flags:"));
            let flags = u32::from_str_radix(flags.unwrap_or("0").trim(), 8).unwrap_or(0);
            let number: i32 = entry.file_name().to_string_lossy().parse().unwrap_or(-1);
            let close = flags & libc::O_CLOEXEC as u32 != 0;
            theirs.lock().expect("descriptors").push((number, close));
        }
        Vec::new()
    });
    let mut command = Command::new(build::program("hello"));
    mode.apply(&mut command);
    command
        .envs(env.iter().copied())
        .env("QUIET_SOCKET", watcher.socket());
    let done = child::run(&mut command, TIMEOUT);
    assert_eq!((done.end().as_str(), watcher.finish().looks), ("exit 7", 1));
    let seen = seen.lock().expect("descriptors");
    seen.clone()
}

/// Each descriptor beyond those of the plain program is close-on-exec.
#[test]
fn descriptors_are_close_on_exec() {
    let row = Row::begin(PART, "descriptors are close-on-exec");
    let log = tempfile::NamedTempFile::new().expect("a file");
    let log = log.path().to_str().expect("a path");
    let (plain, mut most) = (descriptors(Mode::Plain, &[]), 0);
    for env in [
        &[][..],
        &[("REGALL_COPY", "helper"), ("REGALL_SHARE", "always")],
        &[
            ("REGALL_LOG", "trace"),
            ("REGALL_LOG_FILE", log),
            ("REGALL_INTERCEPT", "strict"),
        ],
    ] {
        let seen = descriptors(Mode::Populate, env);
        let own = seen
            .iter()
            .filter(|(n, _)| !plain.iter().any(|(p, _)| p == n));
        let open: Vec<_> = own.filter(|(_, close)| !close).collect();
        assert!(open.is_empty(), "{env:?}: stay open over exec: {open:?}");
        most = seen.len().saturating_sub(plain.len()).max(most);
    }
    assert!(
        most > 0,
        "no descriptor of the shim's was there to be looked at"
    );
    row.passed(format!("up to {most} more than without"));
}
