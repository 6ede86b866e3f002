//! Large private memory stays what it is, with REGALL_SHARE=always as without it and as
//! without the shim: the same results, errors and bytes, the same limits, the same dumps.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::coverage::Expected;
use regall_tests::mode::Mode;
use regall_tests::onlooker::descendants;
use regall_tests::quiet::{Point, Watcher};
use regall_tests::{build, skip};

const TIMEOUT: Duration = Duration::from_secs(300);
/// As many as two even and two odd ones need: they differ in who has the break.
const SEEDS: [&str; 4] = ["1", "2", "3", "4"];

/// A way to run a program: pinned how, and REGALL_SHARE.
#[derive(Clone, Copy, Debug)]
struct Setting(Mode, &'static str);

const PLAIN: Setting = Setting(Mode::Plain, "off");

fn command(setting: Setting, program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(build::program(&format!("share/{program}")));
    setting.0.apply(command.args(args));
    if setting.0 != Mode::Plain {
        command.env("REGALL_SHARE", setting.1);
    }
    command
}

fn run(setting: Setting, program: &str, args: &[&str]) -> Outcome {
    child::run(&mut command(setting, program, args), TIMEOUT)
}

/// As [`run`], as one rank of several.
fn run_rank(setting: Setting, program: &str, args: &[&str]) -> Outcome {
    child::run(
        command(setting, program, args).env("PMI_RANK", "0"),
        TIMEOUT,
    )
}

fn steps() -> String {
    std::env::var("TESTS_DIFFER").unwrap_or_else(|_| "20000".into())
}

/// The same digests of all results, errors and bytes; and then no byte is unaccounted for.
fn same_digests(setting: Setting) {
    for seed in SEEDS {
        let args = [&*steps(), seed];
        let plain = run(PLAIN, "differ", &args);
        plain.must_succeed_at(format_args!("seed {seed} alone"));
        let watcher = Watcher::of_coverage(Expected::of(setting.0));
        let mut command = command(setting, "differ", &args);
        command.env("QUIET_SOCKET", watcher.socket());
        let other = child::run(&mut command, TIMEOUT);
        let mut problems = other.differences(&plain);
        problems.extend(watcher.finish().problems);
        assert!(
            problems.is_empty(),
            "{setting:?}: {problems:#?}\n{}\n(diff what `differ -v {}` says with and without)",
            other.stdout,
            args.join(" ")
        );
    }
}

/// A child sees one moment of what a thread writes meanwhile.
fn no_races(setting: Setting) {
    let done = run(setting, "differ", &["-r", "20"]);
    done.must_succeed_at(format_args!("{setting:?}"));
}

fn same_facets(setting: Setting) {
    let mut problems = Vec::new();
    for word in [
        "closes",
        "gone",
        "sealed",
        "fsize",
        "nofile",
        "data",
        "as",
        "patchwork",
        "wiped",
        "watched",
        "several",
        "several_as",
    ] {
        let plain = run(PLAIN, "facets", &[word]);
        plain.must_succeed_at(format_args!("{word} alone"));
        let other = run(setting, "facets", &[word]);
        problems.extend(
            other
                .differences(&plain)
                .iter()
                .map(|p| format!("{word}: {p}")),
        );
    }
    assert!(problems.is_empty(), "{setting:?}: {problems:#?}");
}

macro_rules! settings {
    ($($name:ident: $mode:ident $share:literal;)*) => { $(
        mod $name {
            use super::*;
            const SETTING: Setting = Setting(Mode::$mode, $share);
            #[test]
            fn digests() { same_digests(SETTING) }
            #[test]
            fn races() { no_races(SETTING) }
            #[test]
            fn facets() { same_facets(SETTING) }
        }
    )* };
}

settings! {
    private_tracked: Off "off";
    private_populate: Populate "off";
    private_auto: Auto "off";
    heap_tracked: Off "always";
    heap_populate: Populate "always";
    heap_onfault: OnFault "always";
}

/// What the checks above must find: c-tests/share/naive.c shares without care.
mod can_fail {
    use super::*;

    fn found(args: &[&str]) -> BTreeSet<String> {
        let mut command = command(PLAIN, "differ", args);
        command.env("LD_PRELOAD", build::program("share/naive.so"));
        let done = child::run(&mut command, TIMEOUT);
        assert_ne!(done.end(), "exit 0", "{}", done.stdout);
        assert_ne!(done.end(), "time-out", "{}", done.stdout);
        let finds = done
            .stdout
            .lines()
            .filter_map(|l| l.strip_prefix("found: "));
        finds.map(str::to_string).collect()
    }

    #[test]
    fn sharing_without_care_is_found() {
        let all: BTreeSet<_> = SEEDS
            .iter()
            .flat_map(|seed| found(&["-k", "-f", "6000", seed]))
            .collect();
        for wanted in [
            "in a child: wrong bytes: what was written",
            "in a child after its parent's writes: wrong bytes: fresh memory",
            "in a parent after its child: wrong bytes: what was written",
            "wrong bytes: MADV_DONTNEED",
            "wrong bytes: left by MREMAP_DONTUNMAP",
            "SIGBUS: mremap's growth",
            "SIGBUS on writing: mremap's growth",
            "sent: EFAULT instead of success",
            "MADV_WIPEONFORK: EINVAL instead of success",
            "MADV_FREE: EINVAL instead of success",
            "MADV_REMOVE: success instead of EINVAL",
            "mremap with an old size of 0: success instead of EINVAL",
            "/proc/self/mem, not writable: EIO instead of success",
        ] {
            assert!(all.contains(wanted), "not found: {wanted}; but {all:#?}");
        }
    }

    #[test]
    fn it_stops_at_the_first() {
        assert_eq!(found(&["6000", "1"]).len(), 1);
    }

    #[test]
    fn a_child_that_sees_its_parents_writes_is_found() {
        let all = found(&["-r", "80"]);
        let wanted = "a child sees a parent's later write: one page";
        assert!(all.contains(wanted), "{all:#?}");
        assert!(all.iter().any(|f| f.contains("b newer than a")), "{all:#?}");
    }

    #[test]
    fn limits_that_no_longer_hold_are_found() {
        for word in ["closes", "fsize", "data"] {
            let plain = run(PLAIN, "facets", &[word]);
            let mut command = command(PLAIN, "facets", &[word]);
            command.env("LD_PRELOAD", build::program("share/naive.so"));
            let naive = child::run(&mut command, TIMEOUT);
            assert!(!naive.differences(&plain).is_empty(), "{word}");
        }
    }
}

/// However a process is made (by libc, by syscall(), by an instruction of the program's own,
/// with every flag, on a stack of its own), its memory and its parent's are two.
fn own_memory_however_made(setting: Setting) {
    let backed: &[&str] = if setting.1 == "always" { &["-b"] } else { &[] };
    let done = run(setting, "spawn", backed);
    done.must_succeed_at(format_args!("{setting:?}"));
    assert_eq!(done.stdout, "342 combinations, 0 wrong\n", "{setting:?}");
}

/// Protection keys, policies, advice and seals stay with memory, whatever is put in its place.
/// (With pins the kernel's flags would say so, and with REGALL_HUGE that huge pages are asked
/// for: both are the shim's doing, not what is kept.)
fn same_marks(args: &[&str]) {
    let plain = run(PLAIN, "marks", args);
    plain.must_succeed();
    for missing in ["no keys", "no mseal", "no mbind"] {
        if plain.stdout.lines().any(|l| l.starts_with(missing)) {
            skip(&format!("{missing} here: the rest is compared"));
        }
    }
    let with: Vec<_> = [&["-b"], args].concat();
    let mut command = command(Setting(Mode::Off, "always"), "marks", &with);
    let heap = child::run(command.env("REGALL_HUGE", "off"), TIMEOUT);
    assert_eq!(heap.differences(&plain), Vec::<String>::new());
}

#[test]
fn marks_stay() {
    same_marks(&[]);
}

#[test]
fn marks_stay_where_there_are_threads() {
    same_marks(&["-t"]);
}

/// What a seal is against loses no lock of the application's, pinned or not. (In the flags of
/// what is pinned the kernel would say `lo`: only the answers and bytes are compared.)
#[test]
fn seals_hold_where_memory_is_pinned() {
    let answers = |outcome: &Outcome| -> Vec<String> {
        let lines = outcome.stdout.lines();
        let told = lines.filter(|l| !l.starts_with("seal "));
        told.map(str::to_string).collect()
    };
    let plain = run(PLAIN, "marks", &["seal"]);
    plain.must_succeed();
    if answers(&plain).iter().any(|l| l.starts_with("no mseal")) {
        skip("no mseal here");
        return;
    }
    for setting in [
        Setting(Mode::Populate, "off"),
        Setting(Mode::OnFault, "always"),
        Setting(Mode::Populate, "always"),
    ] {
        let done = run(setting, "marks", &["seal"]);
        done.must_succeed_at(format_args!("{setting:?}"));
        assert_eq!(answers(&done), answers(&plain), "{setting:?}");
    }
}

mod every_way_to_make_a_process {
    use super::*;

    #[test]
    fn plain() {
        own_memory_however_made(PLAIN);
    }

    #[test]
    fn private() {
        own_memory_however_made(Setting(Mode::Populate, "off"));
    }

    #[test]
    fn heap_tracked() {
        own_memory_however_made(Setting(Mode::Off, "always"));
    }

    #[test]
    fn heap_populate() {
        own_memory_however_made(Setting(Mode::Populate, "always"));
    }

    #[test]
    fn heap_strict() {
        own_memory_however_made(Setting(Mode::Strict, "always"));
    }
}

/// How many thousands of each kind of mark (c-tests/share/facets.c) are in the core, if there
/// is one; a few more are on the stack.
fn marks_in_core(setting: Setting, filter: &str) -> Option<[usize; 4]> {
    let folder = tempfile::tempdir().expect("a folder");
    let script = r#"echo "$1" >/proc/self/coredump_filter; exec "$0" core"#;
    let program = build::program("share/facets");
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(program).arg(filter);
    setting.0.apply(&mut command);
    command.env("REGALL_SHARE", setting.1);
    let done = child::run(command.current_dir(folder.path()), TIMEOUT);
    assert_eq!(done.end(), "signal 6", "{}{}", done.stdout, done.stderr);
    let mut files = fs::read_dir(folder.path()).expect("the folder").flatten();
    let core = fs::read(files.next()?.path()).expect("the core");
    let count = |kind: u8| {
        let mark = [b"differ--", &[kind][..], b"--memory"].concat();
        core.windows(mark.len()).filter(|w| *w == mark).count() / 1024
    };
    Some([count(b'M'), count(b'B'), count(b'H'), count(b'S')])
}

/// Mappings, blocks of malloc, what MADV_DONTDUMP hides, and shared memory: by default, and
/// with private memory alone.
#[test]
fn core_dumps_have_the_same_memory() {
    for filter in ["0x33", "0x1"] {
        let Some(plain) = marks_in_core(PLAIN, filter) else {
            let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
            skip(&format!(
                "no core file is left in the working folder (core_pattern is {:?})",
                pattern.trim()
            ));
            return;
        };
        assert_eq!(plain[..3], [64, 64, 0], "{filter}");
        for mode in [Mode::Off, Mode::Populate] {
            let heap = marks_in_core(Setting(mode, "always"), filter);
            assert_eq!(heap, Some(plain), "{mode:?} {filter}");
        }
    }
}

/// What a process has, in bytes.
#[derive(Clone, Copy, Default, Debug)]
struct Memory {
    resident: u64,
    /// What its memfds hold, mapped or not, and what of that is resident.
    files: u64,
    files_resident: u64,
}

/// Reads /proc/PID/smaps.
fn memory(pid: u32) -> Memory {
    use std::os::linux::fs::MetadataExt;
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).expect("smaps");
    let mut all = Memory::default();
    let mut files = BTreeSet::new();
    let mut shared = false;
    for line in smaps.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if let [range, perms, .., name, "(deleted)"] = words[..] {
            shared = perms.ends_with('s') && name.starts_with("/memfd:");
            let file = fs::metadata(format!("/proc/{pid}/map_files/{range}"));
            if let (true, Ok(file)) = (shared, file) {
                if files.insert(file.st_ino()) {
                    all.files += file.st_blocks() * 512;
                }
            }
        } else if words.first().is_some_and(|w| w.contains('-')) {
            shared = false;
        } else if let ["Rss:", kib, "kB"] = words[..] {
            let bytes = kib.parse::<u64>().expect("a number") << 10;
            all.resident += bytes;
            all.files_resident += if shared { bytes } else { 0 };
        }
    }
    all
}

/// What the work of `facets work` leaves in memory.
fn after_work(setting: Setting) -> Memory {
    let seen = Arc::new(Mutex::new(Memory::default()));
    let ours = Arc::clone(&seen);
    let watcher = Watcher::new(move |point| {
        *ours.lock().expect("memory") = memory(point.pid);
        Vec::new()
    });
    let mut command = command(setting, "facets", &["work"]);
    command.env("QUIET_SOCKET", watcher.socket());
    let done = child::run(&mut command, TIMEOUT);
    done.must_succeed_at(format_args!("{setting:?}"));
    assert_eq!(watcher.finish().looks, 1);
    let seen = *seen.lock().expect("memory");
    seen
}

fn within(got: u64, wanted: u64) -> bool {
    got.abs_diff(wanted) <= wanted / 50 + (1 << 20)
}

#[test]
fn resident_memory_is_no_more() {
    for mode in [Mode::Off, Mode::OnFault, Mode::Populate] {
        let off = after_work(Setting(mode, "off"));
        let heap = after_work(Setting(mode, "always"));
        // Less may be: huge pages come in other places.
        let most = off.resident + off.resident / 50 + (1 << 20);
        assert!(
            heap.resident <= most && heap.resident > off.resident / 2,
            "{mode:?}: {heap:?} instead of {off:?}"
        );
    }
}

/// What was unmapped, thrown away or shrunk is not kept in a file that nobody sees.
#[test]
fn files_hold_what_is_mapped_and_no_more() {
    let heap = after_work(Setting(Mode::Off, "always"));
    assert!(
        heap.files_resident > 32 << 20,
        "hardly anything is in a memfd: {heap:?}"
    );
    if heap.files == 0 {
        skip("/proc/PID/map_files can't be read here");
        return;
    }
    assert!(within(heap.files, heap.files_resident), "{heap:?}");
}

/// Each address of the label "large WHAT=ADDRESS...", and whether a memfd is there.
fn backed(point: &Point) -> Vec<(String, bool)> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", point.pid)).expect("maps");
    let in_memfd = |address: u64| {
        maps.lines().any(|line| {
            let (range, rest) = line.split_once(' ').unwrap_or_default();
            let (start, end) = range.split_once('-').unwrap_or_default();
            let number = |hex| u64::from_str_radix(hex, 16).unwrap_or(0);
            (number(start)..number(end)).contains(&address)
                && rest.starts_with("rw-s")
                && rest.contains("/memfd:")
        })
    };
    let places = point.label.split(' ').filter_map(|w| w.split_once('='));
    places
        .map(|(what, hex)| {
            let address = u64::from_str_radix(hex, 16).expect("an address");
            (what.to_string(), in_memfd(address))
        })
        .collect()
}

fn who_is_backed(setting: Setting, env: &[(&str, &str)]) -> Vec<(String, bool)> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let ours = Arc::clone(&seen);
    let watcher = Watcher::new(move |point| {
        *ours.lock().expect("places") = backed(point);
        Vec::new()
    });
    let mut command = command(setting, "facets", &["large"]);
    command.env("QUIET_SOCKET", watcher.socket());
    command.envs(env.iter().copied());
    let done = child::run(&mut command, TIMEOUT);
    done.must_succeed_at(format_args!("{setting:?} {env:?}"));
    watcher.finish();
    let seen = seen.lock().expect("places").clone();
    assert_eq!(seen.len(), 4, "{seen:?}");
    seen
}

#[test]
fn large_memory_is_in_memfds_if_asked_for_and_only_then() {
    for mode in [Mode::Off, Mode::OnFault, Mode::Populate] {
        let off = who_is_backed(Setting(mode, "off"), &[]);
        assert!(off.iter().all(|(_, b)| !b), "{mode:?}: {off:?}");
        let all = who_is_backed(Setting(mode, "always"), &[]);
        assert!(all.iter().all(|(_, b)| *b), "{mode:?}: {all:?}");
    }
}

/// `heap` leaves a rank's memory private that has no other on its node, by what launchers say.
#[test]
fn heap_does_nothing_for_a_rank_that_is_alone() {
    const CASES: [(&[(&str, &str)], bool); 8] = [
        (&[], true),
        (&[("OMPI_COMM_WORLD_LOCAL_SIZE", "2")], true),
        (&[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")], false),
        (&[("MPI_LOCALNRANKS", "1"), ("PMI_RANK", "0")], false),
        (&[("PMI_RANK", "0")], true),
        (&[("SLURM_STEP_TASKS_PER_NODE", "4(x2)")], true),
        // That is in the environment of a batch script, too.
        (&[("SLURM_NTASKS_PER_NODE", "1")], true),
        (&[("FLUX_JOB_SIZE", "8"), ("FLUX_JOB_NNODES", "8")], false),
    ];
    for (env, shared) in CASES {
        let backed = who_is_backed(Setting(Mode::Off, "heap"), env);
        let right = backed.iter().all(|(_, b)| *b == shared);
        assert!(right, "{env:?}: {backed:?}");
    }
}

/// A rank that forks again and again has private memory from its fourth fork on, others from the
/// first, and their children have it always; but for `always`.
#[test]
fn heap_ends_where_forks_go_on() {
    let told = |share| {
        let done = run_rank(Setting(Mode::Off, share), "worth", &["forks"]);
        done.must_succeed_at(share);
        done.stdout
    };
    let shared = "old shared, new shared, a child's private\n";
    let private = "old private, new private, a child's private\n";
    assert_eq!(told("heap"), shared.repeat(3) + &private.repeat(3));
    let alone = run(Setting(Mode::Off, "heap"), "worth", &["forks"]);
    alone.must_succeed();
    assert_eq!(alone.stdout, private.repeat(6));
    let always = "old shared, new shared, a child's shared\n";
    assert_eq!(told("always"), always.repeat(6));
    assert_eq!(told("off"), private.repeat(6));
}

/// Trials in vain become rare: 8 mappings at first, and then 4 each time the number is doubled.
#[test]
fn what_nobody_uses_is_tried_ever_more_rarely() {
    let done = run_rank(Setting(Mode::Off, "heap"), "worth", &["alone", "2000"]);
    done.must_succeed();
    assert_eq!(done.stdout, "alone 28\n");
}

/// Memory of a size that comes and goes without a peer's using it is left private after a while,
/// and shared again once peers come for it.
#[test]
fn what_nobody_uses_is_not_shared_for_ever() {
    for mode in [Mode::Off, Mode::Populate] {
        let done = run_rank(Setting(mode, "heap"), "worth", &[]);
        done.must_succeed();
        let said: Vec<_> = done.stdout.lines().collect();
        let number = |line: &str, what: &str| {
            let number = line.strip_prefix(what).map(|n| n.trim().parse::<u32>());
            number.and_then(Result::ok).expect("a number")
        };
        let [alone, read, again] = said[..] else {
            panic!("{said:?}");
        };
        // Of 400 each. Some are always tried.
        assert!((8..50).contains(&number(alone, "alone")), "{said:?}");
        assert!(number(read, "read") > 200, "{said:?}");
        assert!((8..50).contains(&number(again, "alone")), "{said:?}");
    }
}

/// A child that copies what it would else share with its parent is in the midst of its fork,
/// and says so to whoever looks: what it has published is not what it will be.
#[test]
fn a_child_that_copies_is_in_a_call() {
    const FORKS: &str = "
import mmap, os, time
memory = mmap.mmap(-1, 100 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = b'x' * len(memory)
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0 if memory[12345] == 120 else 1)
    assert os.waitpid(child, 0)[1] == 0
";
    let mut command = Command::new("/usr/bin/python3");
    Mode::Heap.apply(command.args(["-c", FORKS]));
    let running = child::start(&mut command, TIMEOUT);
    let pid = running.pid();
    let mut met = 0;
    while met == 0 {
        let alive = descendants(std::process::id());
        assert!(alive.iter().any(|(p, _)| *p == pid), "never met");
        for (child, _) in descendants(pid) {
            met += usize::from(is_copying_and_busy(child));
        }
    }
    let done = running.finish();
    done.must_succeed();
}

/// Stops the process for a look. Whether it was one at which it still shared its memory.
fn is_copying_and_busy(pid: u32) -> bool {
    let signal = |signal| {
        // SAFETY: a system call without memory, for a descendant of ours.
        unsafe { libc::kill(pid as i32, signal) }
    };
    signal(libc::SIGSTOP);
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let shared = |l: &str| l.contains(" rw-s ") && l.contains("/memfd:regall-heap");
    let copying = maps.lines().any(shared);
    let mut dump = Command::new(build::regall());
    let dump = child::run(dump.args(["dump", &pid.to_string()]), TIMEOUT);
    signal(libc::SIGCONT);
    // It had not published anything yet, or had ended.
    if !copying || dump.end() != "exit 0" {
        return false;
    }
    let head = dump.stdout.lines().next().unwrap_or_default();
    assert!(head.ends_with(" busy 1"), "{head}\n{maps}");
    true
}
