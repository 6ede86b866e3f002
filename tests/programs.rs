//! Every program of c-tests: the same results, errors, output and exit status
//! with the shim as without it; and at its quiet points every byte accounted for.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::coverage::Expected;
use regall_tests::mode::Mode;
use regall_tests::quiet::{Findings, Watcher};
use regall_tests::rows::{self, Account, Intercept, Pin, Row, Share, User};
use regall_tests::{build, coverage, missing, procfs, quiet, skip, thorough};

/// For a hang: with many mappings each look takes seconds, on a busy machine a minute.
const TIMEOUT: Duration = Duration::from_secs(600);

fn run(program: &str, args: &[&str], mode: Mode) -> Outcome {
    let mut command = Command::new(build::program(program));
    mode.apply(command.args(args));
    child::run(&mut command, TIMEOUT)
}

fn run_watched(program: &str, args: &[&str], mode: Mode, timeout: Duration) -> (Outcome, Findings) {
    let watcher = watcher(program, mode, User::Root);
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
    let (other, findings) = if mode.is_complete() {
        let (outcome, findings) = run_watched(program, &[], mode, TIMEOUT);
        assert!(
            findings.looks > 0 || outcome.end() != plain.end(),
            "{program} has no quiet point"
        );
        (outcome, findings)
    } else {
        (run(program, &[], mode), Findings::default())
    };
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
    ($($name:ident)*) => {
        /// Each program, without the shim and in its rows.
        mod rows_of {
            $(
                #[test]
                fn $name() {
                    super::each::in_rows(stringify!($name));
                }
            )*
        }

        /// Each row is some program's, in `make test` too.
        #[test]
        fn each_row_has_a_program() {
            let programs = [$(stringify!($name)),*];
            let run = programs.map(|p| rows::of(p, rows::FEW)).concat();
            for row in rows::all() {
                assert!(run.contains(&row), "{row:?}");
            }
        }

        /// A program that nobody listed would never run.
        #[test]
        fn all_programs_are_listed() {
            let listed = [$(stringify!($name)),*, "counts", "differ", "hello", "lockall", "lodger", "newborn", "own_locks", "pinned_under", "torture", "unseen", "uprobes", "victim"];
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

#[path = "programs/each.rs"]
mod each;
#[path = "programs/slow.rs"]
mod slow;
#[path = "programs/tables.rs"]
mod tables;

use each::watcher;

programs! {
    address_limit advised bound brk capi charged clone collector contended crowd descriptors exec exits failing file_pages filtered fork heap held holes jit letgo libraries madvise managed many mlock
    mlock_limit mmap mprotect mremap msync numbers on_top once park pins_stay process_madvise put_back raw_calls reloaded second_libc shm signals seccomp single
    replaced special_memory stack strict threads unprivileged userfault
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

/// Locks of the shim's are beside the program's own there.
#[test]
fn own_locks() {
    let program = build::program("own_locks");
    let account = Account::new(&program);
    for user in [User::Root, User::MiB8] {
        let run = |row| {
            let command = account.command(&program, user, row);
            child::run(&mut command.expect("the user"), TIMEOUT)
        };
        let plain = run(None);
        plain.must_succeed();
        for pin in [Pin::OnFault, Pin::Populate] {
            let row = Row {
                intercept: Intercept::Patch,
                pin,
                share: Share::Off,
                user,
            };
            let problems = run(Some(row)).differences(&plain);
            assert!(problems.is_empty(), "{row:?}: {problems:#?}");
        }
    }
}

/// Stacks are locked as they are touched, where all else is populated.
#[test]
fn stacks_are_not_populated() {
    same("stack", Mode::Populate);
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

mod torture {
    use super::*;

    fn calls() -> String {
        let usual = if thorough() { "1000000" } else { "200000" };
        std::env::var("TESTS_TORTURE").unwrap_or_else(|_| usual.into())
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

/// Without swap space the default locks nothing: a start makes no call that does.
#[test]
fn without_swap_space_nothing_is_locked() {
    if !build::have("strace") {
        return skip("strace is not installed");
    }
    if procfs::has_swap() {
        return skip("memory that is held without a lock: there is swap space");
    }
    let locks = |mode: Mode| {
        let mut command = Command::new("strace");
        command.args(["-f", "-e", "trace=mlock,mlock2,mlockall"]);
        for (name, value) in mode.settings() {
            command.args(["-E", &format!("{name}={value}")]);
        }
        command.arg(build::program("hello"));
        let outcome = child::run(&mut command, TIMEOUT);
        assert_eq!(outcome.end(), "exit 7", "{}", outcome.stderr);
        outcome.stderr.matches("mlock").count()
    };
    assert_eq!(locks(Mode::Auto), 0);
    assert!(locks(Mode::OnFault) > 10, "the calls are seen");
}

/// With REGALL_HUGE=advise the kernel is asked for huge pages, where it gives them to those who ask.
#[test]
fn large_memory_is_advised() {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if !enabled.is_ok_and(|enabled| enabled.contains("[madvise]")) {
        return skip("huge pages for those who ask: transparent_hugepage/enabled is not madvise");
    }
    let advised = |mode: Mode| {
        let (send, receive) = std::sync::mpsc::channel();
        let watcher = Watcher::new(move |point| {
            let maps = procfs::smaps(point.pid).unwrap_or_default();
            let _ = send.send(maps.iter().any(|vma| vma.has("hg")));
            Vec::new()
        });
        let mut command = Command::new(build::program("address_limit"));
        mode.apply(&mut command);
        command.env("QUIET_SOCKET", watcher.socket());
        child::run(&mut command, TIMEOUT);
        watcher.finish();
        receive.recv().expect("a quiet point")
    };
    assert!(advised(Mode::OnFault) && !advised(Mode::Populate));
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
