//! `regall report --merge`: what a node's processes left becomes one file, whatever else lies
//! there, and whoever else merges.

use std::fs;
use std::os::unix::fs::{symlink, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use regall_documents::{Merged, Report};
use regall_tests::build;
use regall_tests::child::{self, Beside, Outcome};
use regall_tests::coverage;
use regall_tests::many::Made;
use regall_tests::mode::Mode;

const TIMEOUT: Duration = Duration::from_secs(60);

/// `regall report` in a batch job, or in none.
fn report(job: Option<&str>, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(command.arg("report").args(arguments));
    command.env_remove("SLURM_JOB_ID");
    command.envs(job.map(|job| ("SLURM_JOB_ID", job)));
    child::run(&mut command, TIMEOUT)
}

fn merge(into: &Path, places: &[&Path]) -> Outcome {
    let mut words = vec!["--merge", into.to_str().expect("a name")];
    words.extend(places.iter().map(|p| p.to_str().expect("a name")));
    report(None, &words)
}

fn told(place: &Path) -> Report {
    let done = report(None, &["--json", place.to_str().expect("a name")]);
    serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"))
}

fn put(folder: &Path, job: &mut Made, ranks: std::ops::Range<u64>) {
    for rank in ranks {
        let text = serde_json::to_string(&job.rank(rank)).expect("JSON");
        fs::write(folder.join(rank.to_string()), text).expect("a file");
    }
}

/// A program that leaves its statistics on the node, as a task of a batch job.
fn task(job: &str, rank: &str) {
    let mut command = Command::new("/bin/true");
    Mode::Auto.apply(&mut command);
    command
        .env("REGALL_STATS_FILE", "node")
        .env("SLURM_JOB_ID", job)
        .env("PMI_RANK", rank)
        .env("PMI_SIZE", "2");
    child::run(&mut command, TIMEOUT).must_succeed();
}

/// A number of a job that no other test has.
fn number(n: u32) -> String {
    format!("test{}.{n}", std::process::id())
}

/// Waits for a process's directory.
fn published(pid: u32) {
    let began = std::time::Instant::now();
    while coverage::dump(pid).is_err() {
        assert!(began.elapsed() < TIMEOUT, "it never was published");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn on_this_node(job: &str) -> Vec<PathBuf> {
    // SAFETY: a system call without memory.
    let folder = format!("/dev/shm/regall-{}/statistics", unsafe { libc::geteuid() });
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |p: &PathBuf| {
        let name = p.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&format!("{job},"))
    };
    all.map(|e| e.path()).filter(of).collect()
}

#[test]
fn what_a_job_left_on_the_node() {
    let (job, other) = (number(1), number(2));
    let folder = tempfile::tempdir().expect("a folder");
    task(&job, "0");
    task(&job, "1");
    task(&other, "0");
    let left = on_this_node(&job);
    assert_eq!(left.len(), 2, "{left:?}");
    for file in &left {
        let is = fs::metadata(file).expect("a file");
        assert_eq!(is.permissions().mode() & 0o777, 0o600);
        let within = fs::metadata(file.parent().expect("a folder")).expect("a folder");
        assert_eq!(within.permissions().mode() & 0o777, 0o700);
    }
    let pattern = folder.path().join("%j.%h.json");
    let pattern = pattern.to_str().expect("a name");
    let done = report(Some(&job), &["--merge", pattern]);
    done.must_succeed();
    assert!(on_this_node(&job).is_empty());
    assert_eq!(on_this_node(&other).len(), 1, "another job's files stay");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let merged = folder
        .path()
        .join(format!("{job}.{}.json", host.trim_end()));
    let text = fs::read_to_string(&merged).expect("the merged file");
    let all: Merged = serde_json::from_str(&text).expect("merged");
    assert_eq!((all.merged, all.ranks), (2, Some(2)));
    // Another task's epilog has nothing left to do, and changes nothing.
    report(Some(&job), &["--merge", pattern]).must_succeed();
    // One that comes late joins.
    task(&job, "1");
    task(&job, "2");
    report(Some(&job), &["--merge", pattern]).must_succeed();
    let late = told(folder.path());
    assert_eq!((late.counted, late.children), (3, 1), "{late:?}");
    let names: Vec<_> = fs::read_dir(folder.path())
        .expect("a folder")
        .flatten()
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
    report(Some(&other), &["--merge", pattern]).must_succeed();
    assert!(on_this_node(&other).is_empty());
}

/// Two steps of one job, on one node at one time: each has a name, and so an account of its own.
#[test]
fn a_name_keeps_two_steps_apart() {
    let job = number(4);
    let folder = tempfile::tempdir().expect("a folder");
    let step = |name: &str, rank: &str| {
        let mut command = Command::new("/bin/true");
        Mode::Auto.apply(&mut command);
        command
            .env("REGALL_STATS_FILE", format!("node:{job}/{name}"))
            .env("SLURM_JOB_ID", &job)
            .env("PMI_RANK", rank);
        child::run(&mut command, TIMEOUT).must_succeed();
    };
    step("a", "0");
    step("a", "1");
    step("b", "0");
    task(&job, "0");
    let at = |name: &str| folder.path().join(name);
    for (name, counted) in [("a", 2), ("b", 1)] {
        let (of, into) = (format!("{job}/{name}"), at(name));
        let words = ["--name", &of, "--merge", into.to_str().expect("a name")];
        report(Some(&job), &words).must_succeed();
        assert_eq!(told(&into).counted, counted, "{name}");
        // Nothing is left, which is no failure here.
        report(Some(&job), &words).must_succeed();
    }
    // An epilog has the name in its environment, and heeds processes of that name alone.
    step("c", "0");
    let mut beside = Command::new("/bin/sleep");
    Mode::Auto.apply(&mut beside);
    beside.arg("1000").env("SLURM_JOB_ID", &job);
    let beside = Beside::start(beside.env("REGALL_STATS_FILE", format!("node:{job}/d")));
    published(beside.pid());
    let mut epilog = Command::new(build::regall());
    Mode::Plain.apply(&mut epilog);
    epilog.args(["report", "--last", "--merge"]).arg(at("c"));
    epilog
        .env("SLURM_JOB_ID", &job)
        .env("REGALL_STATS_FILE", format!("node:{job}/c"));
    child::run(&mut epilog, TIMEOUT).must_succeed();
    assert_eq!(told(&at("c")).counted, 1);
    drop(beside);
    assert_eq!(on_this_node(&job).len(), 1, "the task without a name");
    let into = at("job");
    report(Some(&job), &["--merge", into.to_str().expect("a name")]).must_succeed();
    assert_eq!(told(&into).counted, 1);
}

/// A TaskEpilog runs for each task, while others may run.
#[test]
fn the_last_one_merges() {
    let job = number(3);
    let folder = tempfile::tempdir().expect("a folder");
    let into = folder.path().join("all.json");
    let words = ["--last", "--merge", into.to_str().expect("a name")];
    // Nothing was left, which is no error of the one who asks to be the last.
    report(Some(&job), &words).must_succeed();
    task(&job, "0");
    let mut command = Command::new("/bin/sleep");
    Mode::Auto.apply(&mut command);
    let beside = Beside::start(command.arg("1000").env("SLURM_JOB_ID", &job));
    published(beside.pid());
    report(Some(&job), &words).must_succeed();
    assert!(!into.exists() && on_this_node(&job).len() == 1);
    drop(beside);
    report(Some(&job), &words).must_succeed();
    assert_eq!(told(&into).counted, 1);
    assert!(on_this_node(&job).is_empty());
}

#[test]
fn what_can_not_be_right_is_left_out_and_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let (parts, into) = (folder.path().join("parts"), folder.path().join("all.json"));
    fs::create_dir(&parts).expect("a folder");
    let mut job = Made::new(3, 3);
    put(&parts, &mut job, 0..3);
    let at = |name: &str| parts.join(name);
    let whole = fs::read(at("2")).expect("a file");
    fs::write(at("2"), &whole[..whole.len() / 2]).expect("a file");
    fs::write(at("empty"), "").expect("a file");
    fs::write(at("other"), "[1]").expect("a file");
    fs::write(at("columns"), "{\"version\":1,\"merged\":5}").expect("a file");
    fs::write(at(".0.part"), "being written").expect("a file");
    fs::create_dir(at("folder")).expect("a folder");
    symlink(at("0"), at("link")).expect("a link");
    symlink("/dev/zero", at("zero")).expect("a link");
    let made = Command::new("mkfifo").arg(at("pipe")).status();
    assert!(made.is_ok_and(|s| s.success()));
    // A hole of a terabyte.
    fs::write(at("huge"), "{\"version\":1,\"merged\":1,").expect("a file");
    let huge = fs::OpenOptions::new().write(true).open(at("huge"));
    let grown = huge.expect("a file").set_len(1 << 40).is_ok();
    let mut bad = vec![
        ("2", "cut off"),
        ("empty", "empty: it ended"),
        ("other", "not the JSON object"),
        ("columns", "not the JSON object"),
        ("link", "a symbolic link"),
        ("zero", "a symbolic link"),
        ("pipe", "no regular file"),
    ];
    if grown {
        bad.push(("huge", "too long"));
    } else {
        fs::remove_file(at("huge")).expect("it is there");
    }
    // SAFETY: a system call without memory.
    let root = unsafe { libc::geteuid() } == 0;
    if root {
        fs::write(at("theirs"), &whole).expect("a file");
        std::os::unix::fs::chown(at("theirs"), Some(65534), None).expect("another owner");
        bad.push(("theirs", "neither the folder's owner nor this user"));
    }
    let done = merge(&into, &[&parts]);
    assert_eq!(done.end(), "exit 2", "{done:?}");
    let said = done.regall_lines();
    for (name, why) in &bad {
        let line = |l: &&&str| l.contains(&format!("/{name}: ")) && l.contains(why);
        assert_eq!(said.iter().filter(line).count(), 1, "{name}: {said:#?}");
    }
    assert_eq!(said.len(), bad.len(), "{said:#?}");
    let all = told(&into);
    assert_eq!((all.counted, all.missing), (2, vec![2]));
    // Files that somebody named stay.
    assert!(at("0").exists() && at("2").exists());
}

/// What is wrong with a thousand files is not a thousand lines.
#[test]
fn twenty_are_named_and_the_others_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (parts, into) = (folder.path().join("parts"), folder.path().join("all.json"));
    fs::create_dir(&parts).expect("a folder");
    put(&parts, &mut Made::new(2, 2), 0..2);
    merge(&into, &[&parts]).must_succeed();
    for n in 0..1000 {
        fs::write(parts.join(format!("torn{n}")), "{").expect("a file");
    }
    let done = merge(&into, &[&parts]);
    assert_eq!(done.end(), "exit 2");
    let said = done.regall_lines();
    assert_eq!(said.len(), 21, "{said:#?}");
    assert!(
        said[20].contains("980 more files were left out"),
        "{said:#?}"
    );
    assert_eq!(told(&into).counted, 2, "twice merged is once counted");
}

#[test]
fn what_is_there_and_is_something_else_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let (parts, into) = (
        folder.path().join("parts"),
        folder.path().join("thesis.tex"),
    );
    fs::create_dir(&parts).expect("a folder");
    put(&parts, &mut Made::new(2, 2), 0..2);
    fs::write(&into, "chapter").expect("a file");
    let done = merge(&into, &[&parts]);
    assert_eq!(done.end(), "exit 2", "{done:?}");
    assert!(
        done.stderr.contains("nothing is written"),
        "{}",
        done.stderr
    );
    assert_eq!(fs::read_to_string(&into).expect("it"), "chapter");
    assert_eq!(fs::read_dir(&parts).expect("a folder").count(), 2);
    // A lock that is a link to a file of somebody's is not followed.
    let victim = folder.path().join("victim");
    symlink(&victim, folder.path().join(".all.json.lock")).expect("a link");
    let done = merge(&folder.path().join("all.json"), &[&parts]);
    assert_eq!(done.end(), "exit 2");
    assert!(!victim.exists(), "{done:?}");
}

/// Merges at once lose nothing, and whoever reads sees a whole file at any time.
#[test]
fn many_merges_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let into = folder.path().join("all.json");
    let mut job = Made::new(40, 40);
    let parts: Vec<_> = (0..8)
        .map(|n| folder.path().join(format!("parts{n}")))
        .collect();
    for (n, part) in (0..).zip(&parts) {
        fs::create_dir(part).expect("a folder");
        put(part, &mut job, n * 5..n * 5 + 5);
    }
    std::thread::scope(|scope| {
        let all = parts
            .iter()
            .map(|part| scope.spawn(|| merge(&into, &[part])));
        let all: Vec<_> = all.collect();
        while all.iter().any(|t| !t.is_finished()) {
            if let Ok(text) = fs::read_to_string(&into) {
                let all: Merged = serde_json::from_str(&text).expect("a whole file");
                assert_eq!(all.merged % 5, 0);
            }
        }
        all.into_iter()
            .for_each(|t| t.join().expect("its end").must_succeed());
    });
    let all = told(&into);
    assert_eq!((all.counted, all.missing.len()), (40, 0));
    let names = fs::read_dir(folder.path()).expect("a folder").flatten();
    let names: Vec<_> = names.map(|e| e.file_name()).collect();
    assert_eq!(names.len(), 9, "locks and parts are gone: {names:?}");
    assert_eq!(fs::metadata(&into).expect("it").mode() & 0o777, 0o644);
}

/// `%j`, `%r`, `%u` and `%d` in the names of files that the shim writes.
#[test]
fn names_of_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |job: Option<&str>| {
        let mut command = Command::new("/bin/true");
        Mode::Auto.apply(&mut command);
        command.env_remove("SLURM_JOB_ID");
        let pattern = folder.path().join("%j-%r-%u-%d");
        command.env("REGALL_STATS_FILE", pattern);
        command.envs(job.map(|job| ("SLURM_JOB_ID", job)));
        command.envs(job.map(|_| ("PMI_RANK", "3")));
        let date = || {
            let done = child::run(Command::new("date").args(["-u", "+%Y%m%d"]), TIMEOUT);
            done.stdout.trim().to_string()
        };
        let before = date();
        child::run(&mut command, TIMEOUT).must_succeed();
        let all = fs::read_dir(folder.path()).expect("a folder").flatten();
        let names: Vec<_> = all
            .map(|e| e.file_name().into_string().expect("text"))
            .collect();
        assert_eq!(names.len(), 1, "{names:?}");
        fs::remove_file(folder.path().join(&names[0])).expect("it is there");
        let date = [before, date()]
            .into_iter()
            .find(|d| names[0].ends_with(d.as_str()));
        names[0].replace(&date.expect("today"), "today")
    };
    // SAFETY: a system call without memory.
    let uid = unsafe { libc::geteuid() };
    assert_eq!(run(Some("4711")), format!("4711-3-{uid}-today"));
    assert_eq!(run(Some("../../x")), format!("_._.._x-3-{uid}-today"));
    assert_eq!(run(None), format!("none-none-{uid}-today"));
}
