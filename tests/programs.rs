//! Every program of c-tests: the same results, errors, output and exit status
//! with the shim as without it; and at its quiet points every byte accounted for.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::coverage::Expected;
use regall_tests::mode::Mode;
use regall_tests::quiet::{Findings, Watcher};
use regall_tests::{build, coverage, missing, quiet, skip};

const TIMEOUT: Duration = Duration::from_secs(120);

fn run(program: &str, args: &[&str], mode: Mode) -> Outcome {
    let mut command = Command::new(build::program(program));
    mode.apply(command.args(args));
    child::run(&mut command, TIMEOUT)
}

fn run_watched(program: &str, args: &[&str], mode: Mode, timeout: Duration) -> (Outcome, Findings) {
    let mut expected = Expected::of(mode);
    expected.opted_out = program == "capi"; // it leaves memory out, by regall.h
    let watcher = match program {
        "many" => frugal(expected),
        "held" => held(expected),
        _ => Watcher::of_coverage(expected),
    };
    let mut command = Command::new(build::program(program));
    mode.apply(command.args(args));
    command.env("QUIET_SOCKET", watcher.socket());
    let outcome = child::run(&mut command, timeout);
    (outcome, watcher.finish())
}

/// What a process has written into this file at its end.
fn stats_in(file: &Path) -> serde_json::Value {
    let stats = std::fs::read_to_string(file).expect("statistics");
    serde_json::from_str(&stats).expect("JSON")
}

fn counter(stats: &serde_json::Value, name: &str) -> u64 {
    let counter = stats["counters"][name].as_u64();
    counter.unwrap_or_else(|| panic!("{name} in {stats}"))
}

/// As [`Watcher::of_coverage`]; and what the shim has mapped for itself is in proportion
/// to the most mappings that each process has had. (It gives nothing back.)
fn frugal(expected: Expected) -> Watcher {
    let most = Mutex::new(HashMap::new());
    Watcher::new(move |point| {
        let mut problems = quiet::look(point, &expected);
        match coverage::own_memory(point.pid) {
            Ok((mappings, own)) => {
                let mut most = most.lock().expect("the most mappings");
                let most = most.entry(point.pid).or_insert(0);
                *most = mappings.max(*most);
                let allowed = (1 << 20) + 200 * *most as u64;
                if own > allowed {
                    problems.push(format!("{own} bytes are the shim's, with {most} mappings"));
                }
            }
            Err(why) => problems.push(why),
        }
        problems
    })
}

/// As [`Watcher::of_coverage`]; but at the point `held` every place for a call in progress is
/// taken (if mlock is one that matters), so nobody can judge coverage: what is claimed of memory
/// must be in the directory.
fn held(expected: Expected) -> Watcher {
    Watcher::new(move |point| {
        if point.label != "held" {
            return quiet::look(point, &expected);
        }
        let mut dump = Command::new(build::regall());
        let done = child::run(dump.args(["dump", &point.pid.to_string()]), TIMEOUT);
        let said = &done.stdout;
        let mut problems = Vec::new();
        if done.end() != "exit 0" {
            problems.push(format!("regall dump: {}: {}", done.end(), done.stderr));
        }
        let busy = if expected.mode.pins() { 256 } else { 0 };
        let head = said.lines().next().unwrap_or_default();
        if !head.ends_with(&format!(" busy {busy}")) {
            problems.push(format!("not {busy} calls: {head}"));
        }
        for claim in &point.claims {
            let tells = |line: &&str| {
                let mut words = line.split(['-', ' ']);
                let mut address = || u64::from_str_radix(words.next()?, 16).ok();
                let (Some(start), Some(end)) = (address(), address()) else {
                    return false;
                };
                start <= claim.start && claim.end <= end
            };
            let line = said.lines().find(tells).unwrap_or("no line");
            let word = if expected.mode.pins() {
                "registered"
            } else {
                "off"
            };
            if !line.split(' ').any(|w| w == word) {
                problems.push(format!("{:x} is not {word}: {line}", claim.start));
            }
        }
        problems
    })
}

fn same(program: &str, mode: Mode) {
    let plain = run(program, &[], Mode::Plain);
    assert_ne!(plain.end(), "time-out", "{program} alone");
    assert!(
        !plain.stdout.contains("needed "),
        "{program} can't run here: {}",
        plain.stdout
    );
    if plain.stdout.starts_with("uprobes: ") {
        return skip("probes by the kernel: it has no uprobes, or not for us");
    }
    if plain.stdout.starts_with("userfaultfd: ") {
        return skip("page faults of its own: userfaultfd is not there, or not for everybody");
    }
    // Sites that can't be patched are covered in strict mode alone.
    let covered = mode.is_complete() && (program != "strict" || mode == Mode::Strict);
    let (other, mut findings) = if covered {
        let (outcome, findings) = run_watched(program, &[], mode, TIMEOUT);
        assert!(
            findings.looks > 0 || outcome.end() != plain.end(),
            "{program} has no quiet point"
        );
        (outcome, findings)
    } else {
        (run(program, &[], mode), Findings::default())
    };
    if program == "strict" && other.stderr.contains("no Syscall User Dispatch") {
        skip("coverage of sites that can't be patched: this kernel has no Syscall User Dispatch");
        findings.problems.clear();
    }
    let mut all = other.differences(&plain);
    if mode == Mode::Inert && !other.regall_lines().is_empty() {
        all.push(format!("an inert shim says {:?}", other.regall_lines()));
    }
    all.extend(findings.problems);
    let shown: Vec<_> = all.iter().take(25).cloned().collect();
    assert!(
        all.is_empty(),
        "{program} {mode:?}: {} problems\n{}\nshim: {:?}",
        all.len(),
        shown.join("\n"),
        other.regall_lines()
    );
}

macro_rules! programs {
    ($($name:ident)*) => { $(
        mod $name {
            use super::*;
            #[test]
            fn inert() { same(stringify!($name), Mode::Inert) }
            #[test]
            fn populate() { same(stringify!($name), Mode::Populate) }
            #[test]
            fn auto() { same(stringify!($name), Mode::Auto) }
            #[test]
            fn off() { same(stringify!($name), Mode::Off) }
            #[test]
            fn symbols() { same(stringify!($name), Mode::Symbols) }
            #[test]
            fn strict() { same(stringify!($name), Mode::Strict) }
            #[test]
            fn shared() { same(stringify!($name), Mode::Heap) }
        }
    )*

        /// A program that nobody listed would never run.
        #[test]
        fn all_programs_are_listed() {
            let listed = [$(stringify!($name)),*, "counts", "hello", "lockall", "lodger", "newborn", "pinned_under", "torture", "unseen", "uprobes", "victim"];
            for entry in std::fs::read_dir(build::root().join("c-tests")).expect("c-tests").flatten() {
                let path = entry.path();
                if path.extension().is_some_and(|e| e == "c") {
                    let name = path.file_stem().and_then(|n| n.to_str()).expect("a name");
                    assert!(listed.contains(&name), "{name} is in no list");
                }
            }
        }
    };
}

#[path = "programs/slow.rs"]
mod slow;

programs! {
    address_limit advised bound brk capi charged clone contended crowd descriptors exec exits failing file_pages filtered fork heap held holes jit letgo libraries madvise managed many mlock
    mlock_limit mmap mprotect mremap msync on_top park pins_stay process_madvise raw_calls second_libc shm signals seccomp single
    special_memory stack strict threads unprivileged userfault
    beside_jit boxed probed refused
}

/// What is resident is as without the shim where nothing is populated.
mod lockall {
    use super::*;

    fn resident(mode: Mode) {
        if run("lockall", &[], Mode::Plain).stdout.starts_with("skip") {
            return skip("mlockall without a limit: RLIMIT_MEMLOCK binds");
        }
        same("lockall", mode);
    }

    #[test]
    fn inert() {
        resident(Mode::Inert);
    }

    #[test]
    fn auto() {
        resident(Mode::Auto);
    }

    #[test]
    fn off() {
        resident(Mode::Off);
    }
}

/// The kernel counts what comes to libc's functions: not with REGALL_INTERCEPT=symbols,
/// where the program's own calls go elsewhere.
mod uprobes {
    use super::*;

    #[test]
    fn inert() {
        same("uprobes", Mode::Inert);
    }

    #[test]
    fn populate() {
        same("uprobes", Mode::Populate);
    }

    #[test]
    fn off() {
        same("uprobes", Mode::Off);
    }

    #[test]
    fn strict() {
        same("uprobes", Mode::Strict);
    }

    #[test]
    fn shared() {
        same("uprobes", Mode::Heap);
    }
}

/// To the pin set, REGALL_PIN=auto is REGALL_PIN=onfault, but for reserved memory: a few programs
/// say so.
mod onfault {
    use super::*;

    #[test]
    fn mmap() {
        same("mmap", Mode::OnFault);
    }

    #[test]
    fn madvise() {
        same("madvise", Mode::OnFault);
    }

    #[test]
    fn fork() {
        same("fork", Mode::OnFault);
    }

    #[test]
    fn refused() {
        same("refused", Mode::OnFault);
    }
}

mod torture {
    use super::*;

    fn calls() -> String {
        std::env::var("TESTS_TORTURE").unwrap_or_else(|_| "1000000".into())
    }

    fn survives(mode: Mode, calls: &str, seed: &str) {
        let (outcome, findings) =
            run_watched("torture", &[calls, seed], mode, Duration::from_secs(500));
        let shown: Vec<_> = findings.problems.iter().take(25).cloned().collect();
        outcome.must_succeed_at(shown.join("\n"));
        assert_eq!(findings.looks, 21);
        assert!(
            findings.problems.is_empty(),
            "{} problems\n{}",
            findings.problems.len(),
            shown.join("\n")
        );
    }

    #[test]
    fn populate() {
        survives(Mode::Populate, &calls(), "1");
    }

    #[test]
    fn auto() {
        survives(Mode::Auto, "100000", "2");
    }

    #[test]
    fn off() {
        survives(Mode::Off, "100000", "3");
    }

    #[test]
    fn strict() {
        survives(Mode::Strict, "100000", "4");
    }

    #[test]
    fn shared() {
        survives(Mode::Heap, "100000", "5");
    }
}

/// Two crowds of threads that end at once, on few processors: nobody is taken for gone who
/// only waits for a processor, and nobody reads the kernel's list for want of a place.
#[test]
fn crowds_side_by_side() {
    let crowd = || {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("stats");
        let mut command = Command::new(build::program("crowd"));
        Mode::Populate.apply(&mut command);
        command.env("REGALL_STATS_FILE", &file);
        let done = child::run(&mut command, TIMEOUT);
        done.must_succeed();
        let stats = stats_in(&file);
        let of = |name: &str| counter(&stats, name);
        assert_eq!((of("rebuilds"), of("abandoned")), (0, 0));
        // One is the start's.
        assert!(of("resyncs") < 20, "{} times", of("resyncs"));
    };
    let other = std::thread::spawn(crowd);
    crowd();
    other.join().expect("the other");
}

/// A thread that sleeps in a handler on an alternate stack still has the ledger's mutex: nobody
/// takes it from it and begins the ledger anew.
#[test]
fn parked_threads_keep_the_mutex() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("stats");
    let mut command = Command::new(build::program("on_top"));
    Mode::Off.apply(&mut command);
    command.env("REGALL_STATS_FILE", file.with_extension("%p"));
    child::run(&mut command, TIMEOUT).must_succeed();
    // The parent's: a child that ends by _exit in mid-handler may have none.
    let mut found = 0;
    let folder = std::fs::read_dir(folder.path()).expect("the folder");
    for entry in folder.flatten() {
        let stats = stats_in(&entry.path());
        let of = |name: &str| counter(&stats, name);
        assert_eq!((of("rebuilds"), of("abandoned")), (0, 0), "{stats}");
        found += 1;
    }
    assert!(found > 0, "no statistics");
}

/// A thread that is stopped with the mutex held is not taken for dead by a child that only
/// shares its memory, and so has another pid.
#[test]
fn lodgers_take_nothing() {
    for mode in [Mode::Off, Mode::OnFault] {
        let plain = run("lodger", &[], Mode::Plain);
        plain.must_succeed();
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("stats");
        let watcher = Watcher::of_coverage(Expected::of(mode));
        let mut command = Command::new(build::program("lodger"));
        mode.apply(&mut command);
        command.env("QUIET_SOCKET", watcher.socket());
        command.env("REGALL_STATS_FILE", &file);
        let mut problems = child::run(&mut command, TIMEOUT).differences(&plain);
        problems.extend(watcher.finish().problems);
        assert!(problems.is_empty(), "{mode:?}: {problems:#?}");
        let stats = stats_in(&file);
        let of = |name: &str| counter(&stats, name);
        // Who waited made the call and left a note: so the mutex was held.
        assert!(of("deferred") > 0, "{mode:?}: {stats}");
        assert_eq!((of("rebuilds"), of("abandoned")), (0, 0), "{mode:?}");
    }
}

/// The checks above must be able to fail.
mod can_fail {
    use super::*;

    #[test]
    fn a_library_that_lies_is_noticed() {
        let plain = run("mlock", &[], Mode::Plain);
        let mut command = Command::new(build::program("mlock"));
        command.env("LD_PRELOAD", build::program("liar.so"));
        let lied = child::run(&mut command, TIMEOUT);
        assert!(!lied.differences(&plain).is_empty());
    }

    #[test]
    fn a_program_without_the_shim_is_not_covered() {
        let watcher = Watcher::of_coverage(Expected::of(Mode::Populate));
        let mut command = Command::new(build::program("hello"));
        Mode::Plain.apply(&mut command);
        command.env("QUIET_SOCKET", watcher.socket());
        child::run(&mut command, TIMEOUT);
        let findings = watcher.finish();
        assert_eq!(findings.looks, 1);
        // Each of the three ways to look says so.
        assert_eq!(findings.problems.len(), 3, "{:?}", findings.problems);
    }

    /// An inline call is not seen by symbols, so there is a true gap to find.
    #[test]
    fn a_missed_mapping_is_a_gap() {
        let expected = Expected::of(Mode::Populate);
        let watcher = Watcher::new(move |point| {
            if point.label != "inline mmap" {
                return Vec::new();
            }
            let ours = coverage::check(point.pid, &point.claims, &expected).len();
            let all = quiet::look(point, &expected);
            let named = |name| all.iter().any(|p: &String| p.contains(name));
            let mut missing = Vec::new();
            if ours == 0 {
                missing.push("our own check found no gap".into());
            }
            for name in ["regall verify: exit 1", "verify-maps.sh: exit 1"] {
                if !named(name) {
                    missing.push(format!("not found: {name} in {all:?}"));
                }
            }
            missing
        });
        let mut command = Command::new(build::program("raw_calls"));
        Mode::Symbols.apply(&mut command);
        command.env("QUIET_SOCKET", watcher.socket());
        child::run(&mut command, TIMEOUT);
        let findings = watcher.finish();
        assert!(findings.looks > 0);
        assert!(findings.problems.is_empty(), "{:#?}", findings.problems);
    }
}

/// Who has a ring is known: advice that is given through it is not seen.
#[test]
fn a_ring_is_counted_and_told_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(folder.path(), open_to_all).expect("rights");
    let file = folder.path().join("stats");
    let said = |pin: &str| {
        let mut command = Command::new(build::program("charged"));
        Mode::Populate.apply(&mut command);
        command.env("REGALL_LOG", "info").env("REGALL_PIN", pin);
        command.env("REGALL_STATS_FILE", &file);
        child::run(&mut command, TIMEOUT)
    };
    let pinned = said("onfault");
    if pinned.stdout.starts_with("io_uring: ") {
        return skip("rings: io_uring is not there, or not for everybody");
    }
    let told = |outcome: &Outcome| outcome.stderr.matches("io_uring is used: ").count();
    assert_eq!(told(&pinned), 1, "{}", pinned.stderr);
    let stats = stats_in(&file);
    assert_eq!(stats["events"]["io_uring_setup"], 1, "{stats}");
    assert_eq!(told(&said("off")), 0);
}

/// Sealing is an event like any other: it arrives from wherever it is called, and is counted.
#[test]
fn a_seal_is_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("stats");
    for mode in [Mode::Populate, Mode::Heap, Mode::Symbols] {
        let mut command = Command::new(build::program("special_memory"));
        mode.apply(&mut command);
        command.env("REGALL_STATS_FILE", &file);
        child::run(&mut command, TIMEOUT).must_succeed();
        let stats = stats_in(&file);
        assert_eq!(stats["events"]["mseal"], 1, "{mode:?}: {stats}");
        let missed = stats["selftest_missed"].as_array().map(Vec::len);
        assert_eq!(missed, Some(0), "{mode:?}: {stats}");
    }
}

/// Memory that a driver moves is neither locked nor brought to the host by a look at it, and is no
/// gap, however strictly one looks.
#[test]
fn managed_memory_is_left_alone() {
    if !build::have("strace") {
        return skip("strace is not installed");
    }
    let verified = Watcher::new(|point| {
        let mut command = Command::new(build::regall());
        Mode::Plain.apply(&mut command);
        command.args(["verify", "--strict", &point.pid.to_string()]);
        let done = child::run(&mut command, TIMEOUT);
        let fine = done.end() == "exit 0";
        (!fine).then(|| format!("{done:?}")).into_iter().collect()
    });
    let mut command = Command::new("strace");
    command.args(["-y", "-e", "trace=mmap,mlock,mlock2,madvise"]);
    for (name, value) in Mode::Populate.settings() {
        command.args(["-E", &format!("{name}={value}")]);
    }
    command.args(["-E", "REGALL_HCA=off"]);
    command.env("QUIET_SOCKET", verified.socket());
    command.arg(build::program("managed")).arg("short");
    let outcome = child::run(&mut command, TIMEOUT);
    let findings = verified.finish();
    if outcome.stdout.starts_with("skip") {
        return skip("managed: no device node can be made here");
    }
    assert!(
        findings.problems.is_empty() && findings.looks == 1,
        "{findings:?}"
    );
    let (_, behind) = outcome
        .stderr
        .split_once("/nvidia-uvm")
        .expect("its mapping");
    let at = behind.lines().next().and_then(|l| l.rsplit_once("= 0x"));
    let at = at.and_then(|(_, hex)| u64::from_str_radix(hex, 16).ok());
    let at = at.expect("an address");
    let told = behind.lines().skip(1).filter(|line| {
        let arg = line.split_once("(0x").map(|(_, rest)| rest);
        let arg = arg.and_then(|rest| rest.split([',', ')']).next());
        let arg = arg.and_then(|hex| u64::from_str_radix(hex, 16).ok());
        arg.is_some_and(|addr| (at..at + (256 << 10)).contains(&addr))
    });
    assert_eq!(told.collect::<Vec<_>>(), Vec::<&str>::new());
    // The others of its mappings were locked: the calls are seen.
    assert!(outcome.stderr.contains("mlock"), "{}", outcome.stderr);
}

/// What this machine can't show, said where the summary counts it.
#[test]
fn huge_pages() {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info
        .lines()
        .find_map(|l| l.strip_prefix("HugePages_Total:"));
    if total.is_none_or(|t| t.trim() == "0") {
        skip("no huge pages are set aside (/proc/sys/vm/nr_hugepages is 0): hugetlb mappings fail with and without the shim");
    }
}
