//! Looks, again and again, at all processes that a program consists of while it runs: at
//! their coverage, and at what the shim has in them for itself.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::build;
use crate::child;

/// So many processes are looked at in a round; the next round begins behind them.
const A_ROUND: usize = 6;
const PATIENCE: Duration = Duration::from_secs(60);

/// The shim's own memory: a part for itself, ...
const OWN_BASE: u64 = 1 << 20;
/// ... one for each of the most mappings that there were, ...
const OWN_MAPPING: u64 = 200;
/// ... and one for each thread.
const OWN_THREAD: u64 = 4096;
/// As many mappings, and they come and go faster than anybody looks.
const UNSTEADY: u64 = 1_000;
/// Files of shared memory of which a descriptor is kept.
const MOST_DESCRIPTORS: usize = 256;

/// What these tests run that is left out by default (docs/variables.md), or stays out of itself.
const LEFT_OUT: [&str; 16] = [
    "sh",
    "dash",
    "bash",
    "env",
    "timeout",
    "setsid",
    "su",
    "strace",
    "gdb",
    "orterun",
    "orted",
    "mpirun.mpich",
    "mpiexec.hydra",
    "hydra_pmi_proxy",
    "memcheck-amd64-linux",
    "none-amd64-linux",
];

/// What was seen of a program.
#[derive(Default, Debug)]
pub struct Seen {
    /// Looks that found every byte accounted for.
    pub looks: usize,
    /// Those among them at a process that was stopped between two calls.
    pub exact: usize,
    /// Looks at which hooked calls were in progress all the time.
    pub busy: usize,
    /// What is wrong.
    pub problems: Vec<String>,
    /// Processes that were looked at, by the name of what they execute.
    pub programs: BTreeMap<String, usize>,
    /// The most that the shim had for itself in any of them, bytes ...
    pub own: u64,
    /// ... and descriptors.
    pub descriptors: usize,
    /// The most mappings of a process.
    pub mappings: u64,
}

impl Seen {
    /// In a few words, for the table.
    pub fn words(&self) -> String {
        format!(
            "{} looks, {} of them exact, at {} processes; the shim's own at most {} KiB (with {} mappings) and {} descriptors",
            self.looks,
            self.exact,
            self.programs.values().sum::<usize>(),
            self.own >> 10,
            self.mappings,
            self.descriptors,
        )
    }

    /// Once for each process and kind, as far as the texts begin alike.
    fn problem(&mut self, text: String) {
        let (kind, _) = text.split_once(": ").unwrap_or((&text, ""));
        let known = self.problems.iter().any(|p| p.starts_with(kind));
        if !known && self.problems.len() < 20 {
            self.problems.push(text);
        }
    }
}

/// Looks in a thread of its own.
#[derive(Debug)]
pub struct Onlooker {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Seen>,
}

/// How to look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// Each second look is at a process that is stopped for it: what is seen then is exact.
    Stopping,
    /// Never: its program would notice (a debugger, or somebody who waits for a stop).
    Running,
}

impl Onlooker {
    /// Begins to look at all that this process has started, and at what these start.
    pub fn begin(way: Way) -> Self {
        // SAFETY: a system call without memory. Children whose parent has ended become ours, and are seen.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut round = Round::new(way);
            while !theirs.load(Relaxed) {
                round.all();
                std::thread::sleep(Duration::from_millis(20));
            }
            round.seen
        });
        Self { stop, thread }
    }

    /// Stops, and says what was seen. So nobody may have children of ours to wait for.
    pub fn finish(self) -> Seen {
        self.stop.store(true, Relaxed);
        let seen = self.thread.join().expect("the onlooker");
        reap();
        seen
    }
}

/// Takes leave of all that has ended, and was left to us by others that have.
pub fn reap() {
    // SAFETY: a system call that writes nothing.
    while unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) } > 0 {}
}

/// A process; a pid alone can be used again.
type Process = (u32, u64);

struct Round {
    way: Way,
    seen: Seen,
    turn: usize,
    /// The most mappings and threads that each has had.
    most: BTreeMap<Process, (u64, u64)>,
    /// Mappings that the kernel allows a process.
    max_map_count: u64,
    /// Whether each was stopped for the last look at it.
    stopped: BTreeMap<Process, bool>,
    /// Those that had no directory, and how often in a row.
    bare: BTreeMap<Process, Bare>,
}

impl Round {
    fn new(way: Way) -> Self {
        Self {
            way,
            seen: Seen::default(),
            turn: 0,
            most: BTreeMap::new(),
            max_map_count: fs::read_to_string("/proc/sys/vm/max_map_count")
                .ok()
                .and_then(|n| n.trim().parse().ok())
                .unwrap_or(65_530),
            stopped: BTreeMap::new(),
            bare: BTreeMap::new(),
        }
    }

    fn all(&mut self) {
        let all = descendants(std::process::id());
        for _ in 0..all.len().min(A_ROUND) {
            self.turn += 1;
            self.one(all[self.turn % all.len()]);
        }
    }

    fn one(&mut self, process: Process) {
        let pid = process.0;
        let name = executable(pid);
        if name == "regall" || name.is_empty() {
            return; // our own looks, and those that have just ended
        }
        match self.figures(process) {
            Some(_) => drop(self.bare.remove(&process)),
            None => return self.without(process, &name),
        }
        let stop = self.stopped.entry(process).or_insert(true);
        *stop = !*stop;
        if self.way == Way::Stopping && *stop {
            let stopped = Stopped::new(pid);
            if !stopped.at_rest() {
                return;
            }
            match self.figures(process) {
                Some(figures) if figures["live"]["busy"].as_u64() == Some(0) => (),
                _ => return,
            }
            self.look(process, &name, true);
        } else {
            self.look(process, &name, false);
        }
    }

    fn look(&mut self, process: Process, name: &str, exact: bool) {
        let pid = process.0;
        let done = child::run(
            Command::new(build::regall()).args(["verify", &pid.to_string()]),
            PATIENCE,
        );
        let said = format!("{}{}", done.stdout, done.stderr);
        let what = if exact { "stopped" } else { "running" };
        match done.end().as_str() {
            "exit 0" => {
                self.seen.looks += 1;
                self.seen.exact += usize::from(exact);
            }
            "exit 2" if !exact && said.contains("busy for") => self.seen.busy += 1,
            // The machine is out of something: not even that could be said.
            "exit 2" if said.is_empty() => {}
            "exit 2" if said.contains("no such process") => {}
            "exit 2" if said.contains("is about to end") => {}
            "exit 2" if start_time(pid) != Some(process.1) => {}
            "exit 2" if said.contains("runs without regall") => self.without(process, name),
            // It executes something else by now.
            "exit 2" if executable(pid) != name => {}
            end => {
                let lines: Vec<_> = said.lines().take(6).collect();
                let place = format!("{name} (pid {pid}, {what})");
                self.seen.problem(format!(
                    "{place}: regall verify: {end}: {}",
                    lines.join(" | ")
                ));
            }
        }
    }

    /// What the shim says of itself; `None` if it isn't there.
    fn figures(&mut self, process: Process) -> Option<Value> {
        let pid = process.0;
        let done = child::run(
            Command::new(build::regall()).args(["stats", "--json", &pid.to_string()]),
            PATIENCE,
        );
        if done.end() != "exit 0" {
            return None;
        }
        let figures: Value = serde_json::from_str(&done.stdout).expect("JSON");
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let mappings = number(&figures["mappings"]);
        let own = number(&figures["counters"]["shim_bytes"]);
        let descriptors = shim_descriptors(pid);
        let most = self.most.entry(process).or_insert_with(|| {
            *self.seen.programs.entry(executable(pid)).or_default() += 1;
            (0, 0)
        });
        *most = (most.0.max(mappings), most.1.max(threads(pid)));
        // A program that has been seen with thousands goes up to what the kernel allows and
        // back between two looks; and the shim's memory is never given back.
        let mappings = match most.0 {
            UNSTEADY.. => self.max_map_count.max(most.0),
            few => few,
        };
        let allowed = OWN_BASE + OWN_MAPPING * mappings + OWN_THREAD * most.1;
        let most = most.0;
        if own > allowed {
            self.seen.problem(format!(
                "pid {pid}: {own} bytes are the shim's, with at most {most} mappings"
            ));
        }
        if descriptors > MOST_DESCRIPTORS {
            self.seen.problem(format!(
                "pid {pid}: {descriptors} descriptors are the shim's"
            ));
        }
        if figures["gave_up"] == Value::Bool(true) {
            self.seen
                .problem(format!("pid {pid}: the shim has given up"));
        }
        self.seen.own = self.seen.own.max(own);
        self.seen.descriptors = self.seen.descriptors.max(descriptors);
        self.seen.mappings = self.seen.mappings.max(most);
        Some(figures)
    }

    /// A process into which the shim was loaded, and which nobody can look at, is a gap
    /// as large as it is. It has a moment to get a directory, or to execute something.
    fn without(&mut self, process: Process, name: &str) {
        let pid = process.0;
        if LEFT_OUT.contains(&name) || !has_shim(pid) || shares_memory(pid) {
            return;
        }
        // A debugger may hold it before it has begun; who is on its way out has no directory.
        let path = format!("/proc/{pid}/stat");
        let traced = state(path.as_ref()) == Some('t');
        if traced || is_exiting(pid) || start_time(pid) != Some(process.1) {
            return;
        }
        let spent = processor_time(pid);
        let bare = self.bare.entry(process).or_insert(Bare {
            since: Instant::now(),
            spent,
            looks: 0,
            told: false,
        });
        bare.looks += 1;
        // On a busy machine it may not have had the time.
        let had_time = spent > bare.spent + 2 || bare.since.elapsed() > Duration::from_secs(3);
        if bare.looks >= 5 && had_time && !bare.told {
            bare.told = true;
            let said = child::run(
                Command::new(build::regall()).args(["verify", &pid.to_string()]),
                PATIENCE,
            );
            if said.end() != "exit 0" && start_time(pid) == Some(process.1) {
                let said = said.stderr.trim().to_owned();
                self.seen.problem(format!("{name} (pid {pid}): {said}"));
            }
        }
    }
}

/// A process with the shim in it and without a directory, since it was first seen so.
struct Bare {
    since: Instant,
    /// Clock ticks of processor time that it had had by then.
    spent: u64,
    looks: usize,
    told: bool,
}

/// A process that is stopped until this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        // SAFETY: a system call without memory; it is a descendant of ours.
        unsafe { libc::kill(pid as i32, libc::SIGSTOP) };
        Self(pid)
    }

    /// Whether all of its threads have stopped, soon.
    fn at_rest(&self) -> bool {
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {
            let tasks = fs::read_dir(format!("/proc/{}/task", self.0));
            let mut tasks = tasks.into_iter().flatten().flatten();
            if tasks.all(|t| state(&t.path().join("stat")).is_some_and(|s| s == 'T')) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::kill(self.0 as i32, libc::SIGCONT) };
    }
}

/// The fields of /proc/PID/stat behind the name: state, parent, ...
fn fields(path: &std::path::Path) -> Option<Vec<String>> {
    let stat = fs::read(path).ok()?;
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let (_, rest) = stat.rsplit_once(')')?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn state(path: &std::path::Path) -> Option<char> {
    fields(path)?.first()?.chars().next()
}

fn start_time(pid: u32) -> Option<u64> {
    let path = format!("/proc/{pid}/stat");
    fields(path.as_ref())?.get(19)?.parse().ok()
}

/// PF_EXITING of its first thread.
fn is_exiting(pid: u32) -> bool {
    let path = format!("/proc/{pid}/stat");
    let flags = fields(path.as_ref()).and_then(|f| f.get(6)?.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & 4 != 0)
}

/// In clock ticks.
fn processor_time(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/stat");
    let fields = fields(path.as_ref()).unwrap_or_default();
    let number = |n: usize| fields.get(n).and_then(|f| f.parse().ok()).unwrap_or(0u64);
    number(11) + number(12)
}

/// All processes below `top` that have not ended, in the order of their pids.
pub fn descendants(top: u32) -> Vec<Process> {
    let mut parents = BTreeMap::new();
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        let Some(fields) = fields(&entry.path().join("stat")) else {
            continue;
        };
        let number = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok());
        let (Some(parent), Some(start)) = (number(1), number(19)) else {
            continue;
        };
        parents.insert(pid, (parent as u32, start, fields[0] == "Z"));
    }
    let below = |pid: u32| {
        let mut at = pid;
        while let Some((parent, _, _)) = parents.get(&at) {
            if *parent == top {
                return true;
            }
            at = *parent;
        }
        false
    };
    let live = parents.iter().filter(|(_, (_, _, zombie))| !zombie);
    live.filter(|(pid, _)| below(**pid))
        .map(|(pid, (_, start, _))| (*pid, *start))
        .collect()
}

/// The file name of what a process executes; empty if it has ended.
fn executable(pid: u32) -> String {
    let path = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    path.file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default()
}

fn threads(pid: u32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, |tasks| tasks.count() as u64)
}

fn has_shim(pid: u32) -> bool {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    String::from_utf8_lossy(&maps).contains("/libregall.so")
}

/// Whether it has its parent's memory (clone with CLONE_VM), and with that its directory.
fn shares_memory(pid: u32) -> bool {
    const KCMP_VM: i32 = 1;
    let stat = fields(format!("/proc/{pid}/stat").as_ref());
    let parent = stat.and_then(|f| f.get(1)?.parse::<i32>().ok());
    // SAFETY: a system call without memory.
    parent.is_some_and(|p| unsafe {
        libc::syscall(libc::SYS_kcmp, p, pid as i32, KCMP_VM, 0, 0) == 0
    })
}

/// Descriptors of files that are the shim's by their names.
fn shim_descriptors(pid: u32) -> usize {
    let all = fs::read_dir(format!("/proc/{pid}/fd"));
    let links = all.into_iter().flatten().flatten();
    links
        .filter_map(|fd| fs::read_link(fd.path()).ok())
        .filter(|link| {
            let link = link.to_string_lossy();
            link.starts_with("/memfd:regall") || link.contains("/dev/shm/regall-")
        })
        .count()
}
