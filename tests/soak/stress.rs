//! stress-ng's stressors of memory: as without the shim, no gap, nothing leaked.
//!
//! All that stress-ng counts to its classes `vm` and `memory`, two workers each. In make test
//! each runs for a moment and in one mode; in make soak, for SOAK_SECONDS, half of them with
//! the defaults.

#[path = "stress/plan.rs"]
mod plan;

use std::process::Command;
use std::time::Duration;

use regall_tests::apart;
use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::onlooker::{Onlooker, Seen, Way};
use regall_tests::soak::{self, Row};
use regall_tests::{missing, skip};

const MODES: [Mode; 3] = [Mode::Populate, Mode::Heap, Mode::OnFault];

/// So long a stressor may take to end beyond its time: it gives back what it has, on a
/// machine that may have other work.
const LAST: Duration = Duration::from_secs(150);

/// Modes and seconds for the `n`th stressor.
fn turns(n: usize, stressor: &str) -> Vec<(Mode, u64)> {
    if std::env::var_os("SOAK_SECONDS").is_none() {
        return vec![(MODES[n % MODES.len()], plan::moment(stressor))];
    }
    let all = soak::duration().as_secs().max(8);
    vec![
        (Mode::Populate, all / 2),
        (Mode::Heap, all / 4),
        (Mode::OnFault, all / 4),
    ]
}

fn run(stressor: &str, mode: Mode, seconds: u64) -> Outcome {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("prlimit");
    command.args(plan::limits(stressor)).arg("stress-ng");
    command.args([format!("--{stressor}"), "2".into()]);
    command.args(["-t".into(), seconds.to_string()]);
    command.args(["--verify", "--metrics-brief", "--temp-path"]);
    command.arg(folder.path()).args(plan::words(stressor));
    mode.apply(&mut command);
    child::run(&mut command, Duration::from_secs(seconds) + LAST)
}

/// What stress-ng itself thinks of it, and its last words if that is nothing good.
fn success(outcome: &Outcome) -> Result<(), String> {
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    let none_gave_up = !said.contains("aborted early") && !said.contains(" skipped");
    let completed = said.contains(" successful run completed");
    if outcome.end() == "exit 0" && completed && none_gave_up {
        return Ok(());
    }
    let telling = ["fail:", "error:", "warn:", "disabled", "skipped"];
    let mut why = said
        .lines()
        .filter(|l| telling.iter().any(|word| l.contains(word)));
    Err(format!("{}: {}", outcome.end(), why.next().unwrap_or("")))
}

/// Whether there is anything to hold the shim to.
fn fails_alone(stressor: &str, seconds: u64) -> Option<String> {
    success(&run(stressor, Mode::Plain, seconds)).err()
}

enum Tried {
    Fine(Seen),
    NotHere(String),
    Wrong(String),
}

fn one(stressor: &str, mode: Mode, seconds: u64) -> Tried {
    let onlooker = Onlooker::begin(Way::Stopping);
    let outcome = run(stressor, mode, seconds);
    let seen = onlooker.finish();
    let mut wrong = seen.problems.clone();
    if let Err(why) = success(&outcome) {
        match fails_alone(stressor, seconds) {
            Some(alone) => return Tried::NotHere(format!("without the shim, too: {alone}")),
            None => wrong.push(why),
        }
    }
    wrong.extend(outcome.complaints());
    if seen.looks == 0 {
        wrong.push(format!("nobody looked: {seen:?}"));
    }
    let left = apart::left_behind();
    if !left.is_empty() {
        wrong.push(format!("left behind: {left:?}"));
    }
    match wrong.is_empty() {
        true => Tried::Fine(seen),
        false => Tried::Wrong(format!("{stressor} {mode:?}: {}", wrong.join("\n    "))),
    }
}

fn group(stressors: &[&str], first: usize) {
    if missing("stress-ng") {
        return;
    }
    if let Err(why) = apart::private_shm(512) {
        return skip(&format!("stress-ng, which fills /dev/shm: {why}"));
    }
    let mut wrong = Vec::new();
    let mut not_here = Vec::new();
    for (n, stressor) in stressors.iter().enumerate() {
        for (mode, seconds) in turns(first + n, stressor) {
            let row = Row::begin("stress", format!("{stressor} {mode:?}"));
            match one(stressor, mode, seconds) {
                Tried::Fine(seen) => row.passed(seen.words()),
                Tried::NotHere(why) => {
                    row.skipped(&why);
                    not_here.push(format!("stress-ng {stressor}: {why}"));
                    break;
                }
                Tried::Wrong(why) => wrong.push(why),
            }
        }
    }
    if !not_here.is_empty() {
        skip(&not_here.join("; "));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

macro_rules! groups {
    ($($name:ident: $($stressor:literal)*;)*) => {
        $(
            #[test]
            fn $name() {
                let stressors = [$($stressor),*];
                let before = LISTED.iter().position(|s| *s == stressors[0]);
                group(&stressors, before.expect("a place"));
            }
        )*
        const LISTED: &[&str] = &[$($($stressor),*),*];
    };
}

groups! {
    mappings: "mmap" "mmapaddr" "mmapfixed" "mmaphuge" "mmapmany" "munmap" "mremap" "remap";
    forks: "mmapfork" "vm-segv" "vm-splice" "vm-rw" "resources";
    protection: "mprotect" "madvise" "mincore" "mlock" "membarrier" "misaligned" "null" "zero";
    heap: "brk" "bigheap" "malloc" "env" "mlockmany" "full";
    stacks: "stack" "stackmmap" "bad-altstack" "context";
    shared: "dev-shm" "shm" "shm-sysv" "memfd" "msync" "msyncmany" "rmap";
    pages: "pagemove" "pageswap" "userfaultfd" "swap" "numa" "tlb-shootdown";
    not_everywhere: "physpage" "watchdog" "oom-pipe" "tmpfs";
    memory: "vm" "vm-addr" "memcpy" "memrate" "memthrash" "mcontend" "stream" "prefetch";
    atomics: "atomic" "lockbus" "pipe" "pipeherd" "zlib";
    sorting: "bsearch" "heapsort" "hsearch" "judy" "lsearch" "mergesort" "qsort" "radixsort" "shellsort" "tsearch";
    structures: "list" "matrix" "matrix-3d" "randlist" "skiplist" "sparsematrix" "str" "tree" "wcs";
}

/// A stressor that nobody listed would never run.
#[test]
fn all_stressors_are_listed() {
    if missing("stress-ng") {
        return;
    }
    for class in ["vm?", "memory?"] {
        let mut command = Command::new("stress-ng");
        let done = child::run(command.args(["--class", class]), LAST);
        let (_, names) = done.stdout.split_once(':').expect("a list");
        let names: Vec<_> = names.split_whitespace().collect();
        assert!(names.len() > 20, "{}", done.stdout);
        for name in names {
            assert!(LISTED.contains(&name), "{name} ({class}) is in no list");
        }
    }
}
