//! Root's commands beside a user who forges what they read: they take no more memory for him, and
//! say nothing else of others.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{chown, DirBuilderExt, MetadataExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use regall_tests::child;
use regall_tests::mode::Mode;
use regall_tests::{build, coverage};
use serde_json::Value;

use super::hostile::{hellos, put, start_time, Victim, HEADER, HIGH_WATER, INFLIGHT};

/// Users that nobody else is: a test each.
pub const FIRST_USER: u32 = 54_321;
/// The most that a command of root's may have resident, in KiB.
const MOST_KIB: i64 = 64 << 10;

pub fn is_root() -> bool {
    // SAFETY: a system call without memory.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        regall_tests::skip("other users are made by root alone");
    }
    root
}

/// Runs a command of root's to its end: its status, what it said, and how much memory it had.
pub fn regall_of_root(arguments: &[&str]) -> (ExitStatus, String, i64) {
    let mut command = Command::new(build::regall());
    // (wait4 below waits for it, to learn of its memory.)
    #[allow(clippy::zombie_processes)]
    let mut child = command
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("regall");
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let read = |pipe: Option<_>| std::io::read_to_string(pipe.expect("a pipe")).expect("text");
    let errors = std::thread::spawn(move || read(stderr));
    let said = std::io::read_to_string(stdout.expect("a pipe")).expect("text");
    let said = said + &errors.join().expect("a reader");
    // SAFETY: zeroes are a good value of it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let mut status = 0;
    // SAFETY: both are ours, and nobody else waits for the child.
    let waited = unsafe { libc::wait4(child.id() as i32, &mut status, 0, &mut usage) };
    assert_eq!(waited, child.id() as i32);
    (ExitStatus::from_raw(status), said, usage.ru_maxrss)
}

/// The commands that look at everybody, and one of this process.
fn fit_into_memory(pid: u32, uid: u32, what: &str) {
    let (pid, label) = (pid.to_string(), format!("user=\"{uid}\""));
    let all: [&[&str]; 5] = [
        &["top", "--once", "--json", "--interval", "0.1"],
        &["top", "--once", "--openmetrics"],
        &["verify", "--all", "--json"],
        &["stats", &pid],
        &["verify", &pid],
    ];
    for arguments in all {
        let (_, said, kib) = regall_of_root(arguments);
        assert!(kib < MOST_KIB, "{what}: regall {arguments:?}: {kib} KiB");
        assert!(!said.contains("panicked"), "{what}: {said}");
        let named = said.contains(&pid) || said.contains(&label);
        assert!(
            named,
            "{what}: regall {arguments:?} says nothing of {pid}: {said}"
        );
    }
}

#[test]
fn a_long_environment_is_not_read() {
    if !is_root() {
        return;
    }
    let own = Folder::of(FIRST_USER);
    let victim = Victim::of(own.uid, &hellos(), &["1024"]);
    let environ = fs::File::open(format!("/proc/{}/environ", victim.process.id()));
    let mut some = vec![1; 1 << 20];
    std::io::Read::read_exact(&mut environ.expect("environ"), &mut some).expect("a long one");
    assert!(some.iter().all(|b| *b == 0));
    fit_into_memory(victim.process.id(), own.uid, "a long environment");
}

/// Gives a process a directory with this many slots, of which each is made from its number. (Not
/// in memory: what this process had at the most counts for those that it starts.)
fn forge(victim: &Victim, slots: u64, slot: impl Fn(u64) -> [u64; 8]) {
    let file = fs::File::create(&victim.file).expect("a forged file");
    let mut out = std::io::BufWriter::new(file);
    let mut header = victim.good[..HEADER].to_vec();
    put(&mut header, HIGH_WATER, slots);
    let all = (1..=slots).flat_map(|n| slot(n).map(u64::to_ne_bytes));
    let mut write = |bytes: &[u8]| out.write_all(bytes).expect("a forged file");
    write(&header);
    all.for_each(|word| write(&word));
    out.flush().expect("a forged file");
}

#[test]
fn a_long_directory_is_not_kept() {
    if !is_root() {
        return;
    }
    let (own, good) = (Folder::of(FIRST_USER + 1), hellos());
    // Of the first entry in it: its attributes.
    let attributes = good[HEADER + 24..HEADER + 32].try_into().expect("a word");
    let attributes = u64::from_ne_bytes(attributes);
    let page = |n: u64| 0x1_0000_0000 + (n << 12);
    let slot = |n: u64, start, end| [n, start, end, attributes, n, 0, 0, 0];
    for (slots, what, bytes) in [
        (
            1 << 20,
            "a page each",
            &(|n| slot(n, page(n), page(n + 1))) as &dyn Fn(u64) -> _,
        ),
        (65_000, "one in another", &|n| {
            slot(n, page(n), page(200_000 - n))
        }),
        (1 << 20, "free", &|n| [0, n, n, n, n, n, n, n]),
        (100_000, "regions", &|n| {
            [n, page(n), page(n + 1), 1, n, n << 32 | n, 1 << 32 | 1, 0]
        }),
    ] {
        let victim = Victim::of(own.uid, &good, &[]);
        forge(&victim, slots, bytes);
        fit_into_memory(victim.process.id(), own.uid, what);
    }
}

/// Makes twelve processes of a user, each of which says that a call of its own is in progress.
fn busy_victims(uid: u32) -> Vec<Victim> {
    let good = hellos();
    let victims: Vec<_> = (0..12).map(|_| Victim::of(uid, &good, &[])).collect();
    for victim in &victims {
        let mut bytes = victim.good.clone();
        let of_main = 1 << 32 | u64::from(victim.process.id());
        put(&mut bytes, INFLIGHT.0, of_main);
        fs::write(&victim.file, &bytes).expect("a forged file");
    }
    victims
}

#[test]
fn the_busy_are_waited_for_together() {
    if !is_root() {
        return;
    }
    let own = Folder::of(FIRST_USER + 2);
    let victims = busy_victims(own.uid);
    let user = own.uid.to_string();
    let mut command = Command::new(build::regall());
    let command = command.args(["verify", "--all", "--user", &user]);
    // (One after another they have a minute.)
    let done = child::run(command, Duration::from_secs(40));
    assert_eq!(done.end(), "exit 2", "{}", done.stderr);
    for victim in &victims {
        let line = format!("{}: busy for 5 s", victim.process.id());
        assert!(done.stderr.contains(&line), "{line}: {}", done.stderr);
    }
}

/// `--watch` does the same round by round, and says at its end what became clear of each user's.
#[test]
fn watching_waits_for_the_busy_together() {
    if !is_root() {
        return;
    }
    let own = Folder::of(FIRST_USER + 12);
    let mut victims = busy_victims(own.uid);
    let user = own.uid.to_string();
    // (One after another they have a minute.)
    let mut command = Command::new("timeout");
    command.arg("40").arg(build::regall());
    let arguments = [
        "verify", "--all", "--user", &user, "--json", "--watch", "0.1",
    ];
    let command = command.args(arguments).stderr(Stdio::null());
    let mut watching = command.stdout(Stdio::piped()).spawn().expect("regall");
    let out = watching.stdout.take().expect("a pipe");
    let mut rounds: Vec<Value> = Vec::new();
    for line in std::io::BufRead::lines(std::io::BufReader::new(out)) {
        victims.clear();
        rounds.push(serde_json::from_str(&line.expect("a line")).expect("JSON"));
    }
    assert_eq!(watching.wait().expect("its end").code(), Some(2));
    let first = &rounds[0]["processes"];
    assert_eq!(first.as_array().map(Vec::len), Some(12), "{first}");
    let last = &rounds.last().expect("a round")["users"];
    assert_eq!(last[0]["uid"], own.uid, "{last}");
    assert_eq!(
        (&last[0]["exit_code"], &last[0]["processes"]),
        (&2.into(), &12.into())
    );
}

/// A user's folder, of whatever name.
struct Folder {
    uid: u32,
    path: PathBuf,
}

impl Folder {
    fn of(uid: u32) -> Self {
        Self::named(uid, uid)
    }

    fn named(name: u32, uid: u32) -> Self {
        let path = PathBuf::from(format!("/dev/shm/regall-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .expect("a folder");
        chown(&path, Some(uid), None).expect("a user");
        Self { uid, path }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A process that is there until it is dropped.
pub struct Sleeper(pub std::process::Child);

impl Sleeper {
    pub fn of(uid: u32, shim: bool) -> Self {
        let mut command = Command::new("sleep");
        if shim {
            Mode::Auto.apply(&mut command);
        }
        let command = command.arg("1000").uid(uid).gid(uid);
        Self(command.spawn().expect("sleep"))
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Names of other users' processes, in a folder of another user's name.
#[test]
fn a_name_says_nothing_of_others() {
    if !is_root() {
        return;
    }
    let taken = FIRST_USER + 3;
    let folder = Folder::named(taken, taken + 1);
    let others = [Sleeper::of(taken, false), Sleeper::of(0, false)];
    let namespace = fs::metadata("/proc/self/ns/pid")
        .expect("a namespace")
        .ino();
    let first = folder.path.join("first");
    fs::write(&first, hellos()).expect("a file");
    chown(&first, Some(folder.uid), None).expect("a user");
    for Sleeper(other) in &others {
        let name = format!("{}.{}.{namespace}", other.id(), start_time(other.id()));
        fs::hard_link(&first, folder.path.join(name)).expect("a link");
    }
    for arguments in [&["verify", "--all"][..], &["top", "--once"]] {
        let (_, said, _) = regall_of_root(arguments);
        for Sleeper(other) in &others {
            let line = |l: &str| l.split([':', ' ']).any(|w| w == other.id().to_string());
            assert!(!said.lines().any(line), "{arguments:?}: {said}");
        }
    }
}

/// Root in a pid namespace is told of whom it sees nothing.
#[test]
fn who_can_not_be_seen_is_counted() {
    if !is_root() {
        return;
    }
    let own = Folder::of(FIRST_USER + 16);
    let sleeper = Sleeper::of(own.uid, true);
    while coverage::dump(sleeper.0.id()).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let name = own.uid.to_string();
    for user in [&[][..], &["--user", &name]] {
        let mut command = Command::new("unshare");
        command
            .args(["-p", "-f", "--mount-proc"])
            .arg(build::regall());
        let command = command.args(["verify", "--all"]).args(user);
        let done = child::run(command, Duration::from_secs(60));
        if done.stderr.contains("unshare: ") {
            return regall_tests::skip("no pid namespaces");
        }
        let line = format!("user {}: 1 more process in pid namespaces", own.uid);
        assert!(done.stderr.contains(&line), "{}", done.stderr);
        assert_eq!(done.end(), "exit 2", "{}", done.stderr);
    }
}

/// What `verify --all` says of one user is that user's alone.
#[test]
fn each_user_has_a_status() {
    if !is_root() {
        return;
    }
    let [bad, good] = [5, 6].map(|n| Folder::of(FIRST_USER + n));
    let hostile = Victim::of(bad.uid, &hellos(), &[]);
    let honest = Sleeper::of(good.uid, true);
    while coverage::dump(honest.0.id()).is_err() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let verify = |user: Option<u32>| {
        let user = user.map(|user| user.to_string());
        let mut arguments = vec!["verify", "--all", "--json"];
        if let Some(user) = &user {
            arguments.extend(["--user", user]);
        }
        let (status, said, _) = regall_of_root(&arguments);
        let begin = said.find('{').expect("JSON");
        let mut documents = serde_json::Deserializer::from_str(&said[begin..]).into_iter();
        let told: Value = documents.next().expect("JSON").expect("JSON");
        (status.code(), told)
    };
    let of = |told: &Value, user: u32| {
        let users = told["users"].as_array().expect("users").clone();
        let its = users.into_iter().find(|u| u["uid"] == user);
        its.map(|u| (u["exit_code"].clone(), u["processes"].clone()))
    };
    let (code, told) = verify(Some(good.uid));
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(of(&told, good.uid), Some((0.into(), 1.into())), "{told}");
    assert_eq!(told["users"].as_array().map(Vec::len), Some(1), "{told}");
    assert_eq!(told["processes"][0]["uid"], good.uid, "{told}");
    let (code, told) = verify(Some(bad.uid));
    assert_eq!(code, Some(1), "{told}");
    assert_eq!(told["processes"][0]["pid"], hostile.process.id(), "{told}");
    let (code, told) = verify(None);
    assert!(code > Some(0), "{told}");
    assert_eq!(of(&told, good.uid), Some((0.into(), 1.into())), "{told}");
    assert_eq!(of(&told, bad.uid), Some((1.into(), 1.into())), "{told}");
    let (status, said, _) = regall_of_root(&["verify", "--all", "--user", "no such user"]);
    assert!(
        status.code() == Some(2) && said.contains("no user"),
        "{said}"
    );
}

/// A folder of another user's, with more files than are taken in, of which no two are alike.
#[test]
fn a_folder_of_statistics_is_not_kept_whole() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let uid = FIRST_USER + 14;
    let file = folder.path().join("0.json");
    let mut command = Command::new("true");
    Mode::Auto.apply(&mut command);
    let command = command.env("REGALL_STATS_FILE", &file);
    child::run(command, Duration::from_secs(60)).must_succeed();
    let text = fs::read_to_string(&file).expect("statistics");
    let mut told: Value = serde_json::from_str(&text).expect("JSON");
    // It does not count: nobody has so many.
    told["ranks"] = (1 << 24).into();
    for n in 0..9000_u64 {
        told["rank"] = n.into();
        for (at, value) in told["counters"]
            .as_object_mut()
            .expect("counters")
            .values_mut()
            .enumerate()
        {
            *value = (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (at % 32 + 8)).into();
        }
        let file = folder.path().join(format!("{n}.json"));
        fs::write(&file, told.to_string()).expect("a file");
        chown(&file, Some(uid), None).expect("a user");
    }
    chown(folder.path(), Some(uid), None).expect("a user");
    // Root's own is taken in nevertheless.
    let own = tempfile::tempdir().expect("a folder");
    fs::write(own.path().join("own.json"), &text).expect("a file");
    let places = [folder.path(), own.path()].map(|path| path.to_str().expect("text"));
    let (status, said, kib) = regall_of_root(&["report", "--json", places[0], places[1]]);
    assert!(!said.contains("own.json"), "{said}");
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(kib < MOST_KIB, "{kib} KiB");
    let left_out = [
        "more of another user's than 8,192 files",
        "788 more files were left out",
    ];
    assert!(left_out.iter().all(|text| said.contains(text)), "{said}");
    for told in ["\"counted\": 8193", "\"ranks\": null", "\"missing\": []"] {
        assert!(said.contains(told), "{told}");
    }
}

/// Under an administrator's list, whoever runs a setuid program chooses the environment of what
/// that executes as another user.
#[test]
fn without_a_choice_no_variable_names_a_file() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display();
    let shim = build::shim();
    let run = |preload: &str| {
        let script = format!(
            "rm -rf {at}/etc {at}/work; cp -a /etc {at}/etc; mkdir {at}/work; cd {at}/work
             echo {shim} >{at}/etc/ld.so.preload; mount --bind {at}/etc /etc
             exec env -u LD_PRELOAD {preload} REGALL=1 REGALL_LOG=debug REGALL_CHECK=registrations \
             REGALL_LOG_FILE=log REGALL_STATS_FILE=stats REGALL_CHECK_FILE=check \
             grep -c VmLck:.*[1-9] /proc/self/status",
            shim = shim.display(),
        );
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-e", "-c", &script]);
        command
            .env_remove("LD_PRELOAD")
            .env("REGALL_PIN", "onfault");
        let done = child::run(&mut command, Duration::from_secs(60));
        let files = fs::read_dir(folder.path().join("work")).expect("a folder");
        let mut files: Vec<_> = files.flatten().map(|e| e.file_name()).collect();
        files.sort();
        (done, files)
    };
    let (done, files) = run("A=B");
    if done.stderr.contains("unshare: ") {
        return regall_tests::skip("no mount namespaces");
    }
    assert_eq!(done.stdout, "1\n", "it is not at work: {}", done.stderr);
    assert!(files.is_empty(), "{files:?}");
    let ignored = done
        .stderr
        .matches(" is ignored: LD_PRELOAD does not name the library");
    assert_eq!(ignored.count(), 4, "{}", done.stderr);
    let (_, files) = run(&format!("LD_PRELOAD={}", shim.display()));
    assert_eq!(files, ["check", "log", "stats"]);
}

/// What variables name in a folder where others write, too.
#[test]
fn no_link_and_no_file_of_others_is_written() {
    if !is_root() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let run = |log: &str, stats: &str| {
        let mut command = Command::new("true");
        Mode::Auto.apply(&mut command);
        let variables = [
            ("REGALL_LOG", "debug"),
            ("REGALL_LOG_FILE", log),
            ("REGALL_STATS_FILE", stats),
            ("REGALL_CHECK", "registrations"),
            ("REGALL_CHECK_FILE", stats),
        ];
        child::run(
            command.envs(variables).current_dir(folder.path()),
            Duration::from_secs(60),
        )
    };
    for name in ["log", "stats"] {
        std::os::unix::fs::symlink(at("real"), at(name)).expect("a link");
    }
    run("log", "stats").must_succeed();
    assert!(!at("real").exists(), "a link was followed");
    for name in ["log", "stats"] {
        fs::remove_file(at(name)).expect("a link");
        fs::write(at(name), "theirs").expect("a file");
        chown(at(name), Some(FIRST_USER + 7), None).expect("a user");
    }
    run("log", "stats").must_succeed();
    for name in ["log", "stats"] {
        assert_eq!(fs::read_to_string(at(name)).expect("a file"), "theirs");
    }
    let done = run("/dev/stderr", "/dev/stdout");
    assert!(done.stderr.contains("regall["), "{}", done.stderr);
    assert!(done.stdout.contains("\"counters\""), "{}", done.stdout);
}
