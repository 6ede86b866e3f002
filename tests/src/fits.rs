//! Programs that need little in a memory cgroup (or on a file system) that is just large
//! enough: what a run with the shim has more than one without.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::build;
use crate::child::{self, Outcome};
use crate::mode::{Mode, AS_ROOT};

const TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// A memory cgroup of our own, version 1 or 2; removed at the end.
pub struct Group(PathBuf);

impl Group {
    /// Below this process's; none where that may not be made.
    pub fn new(name: &str, limit: u64) -> Option<Self> {
        let own = fs::read_to_string("/proc/self/cgroup").ok()?;
        let v1 = own.lines().find_map(|l| {
            let mut fields = l.splitn(3, ':').skip(1);
            let controllers = fields.next()?;
            let mut all = controllers.split(',');
            all.any(|c| c == "memory").then(|| fields.next())?
        });
        let v2 = own.lines().find_map(|l| l.strip_prefix("0::"));
        let name = format!("regall-{name}-{}", std::process::id());
        let (root, own, file) = match (v1, v2) {
            (Some(path), _) => ("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes"),
            (None, Some(path)) => ("/sys/fs/cgroup", path, "memory.max"),
            (None, None) => return None,
        };
        // A group of version 2 that has processes has no groups with limits in it.
        Path::new(own).ancestors().find_map(|parent| {
            let below = parent.strip_prefix("/").ok()?;
            let group = Path::new(root).join(below).join(&name);
            fs::create_dir(&group).ok()?;
            let group = Self(group);
            group.write(file, limit).then_some(group)
        })
    }

    /// Writes to one of its files. Whether it took that.
    pub fn write(&self, file: &str, value: impl ToString) -> bool {
        fs::write(self.path(file), value.to_string()).is_ok()
    }

    /// One of its files.
    pub fn path(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    fn number(&self, files: &[&str]) -> Option<u64> {
        let mut texts = files
            .iter()
            .filter_map(|f| fs::read_to_string(self.0.join(f)).ok());
        texts.next()?.trim().parse().ok()
    }

    /// The most that was charged to it.
    fn peak(&self) -> Option<u64> {
        self.number(&["memory.max_usage_in_bytes", "memory.peak"])
    }

    /// Processes in it that were killed for want of memory.
    fn kills(&self) -> u64 {
        let files = ["memory.oom_control", "memory.events"];
        let texts = files
            .iter()
            .filter_map(|f| fs::read_to_string(self.0.join(f)).ok());
        let all: Vec<_> = texts.collect();
        let lines = all.iter().flat_map(|t| t.lines());
        let mut kills = lines.filter_map(|l| l.strip_prefix("oom_kill "));
        let kills = kills.next().and_then(|n| n.trim().parse().ok());
        kills.expect("what was killed")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What it held goes with its last process, in a moment.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// What a run came to.
struct Run {
    outcome: Outcome,
    peak: Option<u64>,
    kills: u64,
    seconds: f64,
}

/// Runs `words` where `limit` bytes are all there is; `prepare` is shell, before it, in a
/// mount namespace of its own.
fn run(name: &str, words: &[&str], limit: u64, prepare: &str, mode: Mode) -> Option<Run> {
    let group = Group::new(&format!("{name}-{mode:?}"), limit)?;
    let script = format!("echo $$ > \"$1\"/cgroup.procs || exit 99; {prepare} shift; exec \"$@\"");
    let mut command = Command::new("unshare");
    mode.apply(&mut command);
    let shim = command
        .get_envs()
        .any(|(name, value)| name == "LD_PRELOAD" && value.is_some());
    // Only the program has the shim: what starts it is no part of the measure.
    command.env_remove("LD_PRELOAD").envs(AS_ROOT);
    command
        .args(["-m", "sh", "-c", &script, "sh"])
        .arg(&group.0);
    command.arg("env");
    if shim {
        command.arg(format!("LD_PRELOAD={}", build::shim().display()));
    }
    let since = Instant::now();
    let outcome = child::run(command.args(words), TIMEOUT);
    Some(Run {
        seconds: since.elapsed().as_secs_f64(),
        outcome,
        peak: group.peak(),
        kills: group.kills(),
    })
}

/// What is not as without the shim, but for the peak.
fn differences(plain: &Run, other: &Run) -> Vec<String> {
    let mut all = other.outcome.differences(&plain.outcome);
    let times = [plain.seconds, other.seconds];
    println!("time: {:.2} s without, {:.2} s with", times[0], times[1]);
    if other.kills != plain.kills {
        all.push(format!("{} processes were killed", other.kills));
    }
    all
}

/// A peak that is too high; `room` is what it may take beyond a tenth and 16 MiB.
fn higher_peak(plain: &Run, other: &Run, room: u64) -> Option<String> {
    let (was, is) = (plain.peak?, other.peak?);
    println!("peak: {} KiB without, {} KiB with", was >> 10, is >> 10);
    let higher = is > was + was / 10 + 16 * MIB + room;
    higher.then(|| format!("a peak of {is} bytes instead of {was}"))
}

/// A row of c-tests/fits/fits.c, as [`compared_words`].
pub fn compared(
    row: &str,
    place: &str,
    limit: u64,
    prepare: &str,
    mode: Mode,
) -> Option<Vec<String>> {
    let program = build::program("fits/fits").display().to_string();
    compared_words(row, &[&program, row, place], limit, prepare, mode)
}

/// In `mode`: what differs; none where it can't be seen here.
pub fn compared_words(
    name: &str,
    words: &[&str],
    limit: u64,
    prepare: &str,
    mode: Mode,
) -> Option<Vec<String>> {
    compared_runs(name, words, limit, prepare, mode, 0)
}

/// As [`compared_words`], of a program that has an adapter, which may make resident a sixteenth
/// of what there is.
pub fn compared_with_adapter(name: &str, limit: u64, mode: Mode) -> Option<Vec<String>> {
    let program = build::program(&format!("rdma/{name}"));
    let words = [&*program.to_string_lossy()];
    compared_runs(name, &words, limit, "", mode, limit / 16)
}

fn compared_runs(
    name: &str,
    words: &[&str],
    limit: u64,
    prepare: &str,
    mode: Mode,
    room: u64,
) -> Option<Vec<String>> {
    let plain = run(name, words, limit, prepare, Mode::Plain)?;
    if ["exit 99", "exit 1"].contains(&plain.outcome.end().as_str()) {
        return None;
    }
    plain.outcome.must_succeed_at(name);
    let with = || run(name, words, limit, prepare, mode);
    let first = with()?;
    let mut all = differences(&plain, &first);
    // Page cache is charged to the group whose process is the first to read the file. With the shim
    // more of the programs' code is read, so only a second run shows what the process itself needs.
    if higher_peak(&plain, &first, room).is_some() {
        let second = with()?;
        all.extend(differences(&plain, &second));
        all.extend(higher_peak(&plain, &second, room));
    }
    Some(all)
}
