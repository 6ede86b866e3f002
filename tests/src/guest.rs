//! Checks on a machine with RDMA adapters: the guest of scripts/rdma-vm.
//!
//! A boot takes longer than most checks, so one boot makes all those that want the same
//! kernel: the first test to come runs this very test binary in the guest, where each
//! check leaves a file with its result; the others, each in a process of its own, wait
//! and read theirs. TESTS_RDMA=NAME,... has only checks made whose names begin so; `make test` makes
//! those of `stock` alone.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::{again, build, child, skip, stage};

/// For the whole of a boot, in seconds.
const TIMEOUT: u32 = 1800;

/// What scripts/rdma-vm says where there is no guest to be had.
const NO_GUEST: &str = "exit 77";
/// How one ends that died.
const BROKEN: &str = "exit 125";

/// Which guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kernel {
    /// Debian 12's.
    Stock,
    /// One whose adapter has on-demand paging.
    Odp,
}

impl Kernel {
    /// As in `rdma-vm --kernel`.
    fn option(self) -> &'static str {
        match self {
            Self::Stock => "6.1",
            Self::Odp => "odp",
        }
    }

    /// The modules of the test binary that hold its checks.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Self::Stock if is_make_test() => &["stock"],
            Self::Stock => &["stock", "stock_more"],
            Self::Odp => &["odp"],
        }
    }

    /// The folder with its results.
    fn name(self) -> &'static str {
        self.modules()[0]
    }
}

/// Whether nextest leaves `stock_more` out.
fn is_make_test() -> bool {
    std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile == "default")
}

/// Why a check was not made.
pub struct Skipped(pub String);

/// A check; it panics where something is wrong.
pub type Check = fn() -> Result<(), Skipped>;

/// What a #[test] does: makes the check if this is the guest; else tells its result.
pub fn check(kernel: Kernel, name: &str, body: Check) {
    if let Some(folder) = std::env::var_os(build::IN_GUEST) {
        return make(&Path::new(&folder).join(name), name, body);
    }
    let begins = |only: String| only.split(',').any(|only| name.starts_with(only));
    if std::env::var("TESTS_RDMA").is_ok_and(|only| !begins(only)) {
        return skip("TESTS_RDMA names others");
    }
    let results = match results(kernel) {
        Ok(results) => results,
        Err(Skipped(reason)) => return skip(&reason),
    };
    let text = fs::read_to_string(results.join(name)).unwrap_or_else(|_| {
        let log = fs::read_to_string(results.join("log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(30)..].join("\n");
        panic!("the guest did not get to this check; the end of what it said:\n{tail}")
    });
    let (word, said) = text.split_once('\n').unwrap_or((&text, ""));
    match word {
        "passed" => print!("{said}"),
        "skipped" => skip(said.trim_end()),
        _ => panic!("in the guest: {said}"),
    }
}

/// In the guest: makes a check, and leaves its result in a file.
fn make(file: &Path, name: &str, body: Check) {
    static MESSAGE: Mutex<String> = Mutex::new(String::new());
    panic::set_hook(Box::new(|info| {
        let mut message = MESSAGE.lock().unwrap_or_else(|e| e.into_inner());
        message.push_str(&format!("{info}\n"));
    }));
    let start = Instant::now();
    let done = panic::catch_unwind(AssertUnwindSafe(body));
    let _ = panic::take_hook();
    let seconds = start.elapsed().as_secs_f32();
    let message = std::mem::take(&mut *MESSAGE.lock().unwrap_or_else(|e| e.into_inner()));
    let text = match done {
        Ok(Ok(())) => format!("passed\n{name}: {seconds:.1} s in the guest\n"),
        Ok(Err(Skipped(reason))) => format!("skipped\n{reason}\n"),
        Err(_) => format!("failed\n{message}"),
    };
    println!("{name}: {seconds:.1} s: {text}");
    // Whole or not at all: the guest may be ended at any time.
    let part = file.with_extension("part");
    let written = File::create(&part).and_then(|mut f| f.write_all(text.as_bytes()));
    written.expect("the folder for results");
    fs::rename(&part, file).expect("the folder for results");
}

/// The folder with the results of this run's boot, which is made by whoever comes first.
fn results(kernel: Kernel) -> Result<PathBuf, Skipped> {
    let top = build::target().join("guest");
    let folder = top.join(kernel.name());
    fs::create_dir_all(&folder).expect("a folder for the guest's results");
    let lock = File::create(top.join(format!("{}.lock", kernel.name()))).expect("a lock");
    // SAFETY: a system call without memory, for a descriptor that is open.
    while unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) } != 0 {}
    // nextest runs each test in a process of its own, and says which run it is.
    let run = std::env::var("NEXTEST_RUN_ID").unwrap_or_else(|_| std::process::id().to_string());
    let stamp = top.join(format!("{}.run", kernel.name()));
    let last = fs::read_to_string(&stamp).unwrap_or_default();
    let (id, end) = last.split_once('\n').unwrap_or_default();
    let end = if id == run {
        end.to_owned()
    } else {
        fs::remove_dir_all(&folder).expect("the old results");
        fs::create_dir_all(&folder).expect("a folder for the guest's results");
        let mut end = boot(kernel, &folder);
        // Its kernel may die before the first check, where QEMU has to emulate one that rewrites its
        // own code on a busy machine.
        if end == BROKEN && !has_results(&folder) {
            again("the guest died before the first check");
            end = boot(kernel, &folder);
        }
        fs::write(&stamp, format!("{run}\n{end}")).expect("the guest's stamp");
        end
    };
    if end == NO_GUEST {
        let log = fs::read_to_string(folder.join("log")).unwrap_or_default();
        let why = log.lines().rfind(|l| l.contains("skipped")).unwrap_or("");
        return Err(Skipped(format!("no guest with RDMA adapters: {why}")));
    }
    Ok(folder)
}

/// Whether any check has told its result.
fn has_results(folder: &Path) -> bool {
    let files = fs::read_dir(folder).expect("the guest's results");
    let mut names = files.flatten().map(|file| file.file_name());
    names.any(|name| name != "log" && name != "console")
}

/// Runs the checks of one kernel in the guest; how that ended.
fn boot(kernel: Kernel, folder: &Path) -> String {
    build::all_programs();
    build::build_planted();
    let start = Instant::now();
    let mut command = Command::new(build::script("rdma-vm"));
    command.args([
        "--kernel",
        kernel.option(),
        "--timeout",
        &TIMEOUT.to_string(),
    ]);
    command.arg("--out").arg(folder);
    let binary = std::env::current_exe().expect("this program");
    for see in [
        build::target().as_path(),
        binary.parent().expect("its folder"),
    ] {
        command.arg("--see").arg(see);
    }
    command.arg("--console").arg(folder.join("console"));
    let target = format!("TESTS_TARGET={}", build::target().display());
    let profile = std::env::var("NEXTEST_PROFILE").unwrap_or_default();
    command.args([
        "--env",
        &format!("NEXTEST_PROFILE={profile}"),
        "--env",
        &target,
        "--env",
        &format!("{}=/run/rdma-vm/out", build::IN_GUEST),
    ]);
    command.arg(binary);
    let only = std::env::var("TESTS_RDMA").unwrap_or_default();
    for module in kernel.modules() {
        let only = only.split(',');
        command.args(only.map(|only| format!("{module}::{only}")));
    }
    command.args(["--test-threads=1", "--nocapture"]);
    let done = child::run(&mut command, Duration::from_secs(u64::from(TIMEOUT) + 250));
    let log = format!("{}\n{}\n", done.stdout, done.stderr);
    fs::write(folder.join("log"), log).expect("the guest's log");
    stage(&format!("guest {}", kernel.option()), start.elapsed());
    println!(
        "the guest with kernel {}: {} after {} s",
        kernel.option(),
        done.end(),
        start.elapsed().as_secs()
    );
    done.end()
}
