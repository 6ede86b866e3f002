//! What the shim lives on is not there, full, or taken away while the program runs.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::soak::Row;
use regall_tests::{build, skip, thorough};

const PART: &str = "faults";
const TIMEOUT: Duration = Duration::from_secs(120);

/// `wrapper... env LD_PRELOAD=... REGALL=1 NAME=VALUE... program`, or the program alone.
fn wrapped(wrapper: &[&str], program: &str, env: Option<&[&str]>) -> Command {
    let mut command = Command::new(wrapper[0]);
    Mode::Plain.apply(&mut command);
    command.env_remove("LD_PRELOAD").args(&wrapper[1..]);
    command.arg("env");
    if let Some(env) = env {
        command.arg(format!("LD_PRELOAD={}", build::shim().display()));
        command.args(["REGALL=1", "REGALL_PIN=populate"]).args(env);
    }
    command.arg(build::program(program));
    command
}

/// With the shim as without it, in this place.
fn same(wrapper: &[&str], program: &str, env: &[&str]) -> Outcome {
    let plain = child::run(&mut wrapped(wrapper, program, None), TIMEOUT);
    let with = child::run(&mut wrapped(wrapper, program, Some(env)), TIMEOUT);
    assert_ne!(plain.end(), "time-out", "{program} alone in {wrapper:?}");
    assert_eq!(
        with.differences(&plain),
        [""; 0],
        "{program} {env:?} in {wrapper:?}: {:?}",
        with.regall_lines()
    );
    with
}

/// Whether mount namespaces can't be had here.
fn no_mounts(row: Row) -> Option<Row> {
    let mut try_it = Command::new("unshare");
    try_it.args(["-m", "mount", "-t", "tmpfs", "none", "/dev/shm"]);
    if child::run(&mut try_it, TIMEOUT).end() == "exit 0" {
        return Some(row);
    }
    skip("mounts: only root may, and not in every container");
    row.skipped("no mount namespaces here");
    None
}

/// `unshare -m`, and these commands before the program.
fn mounted(shell: &str) -> Vec<String> {
    [
        "unshare",
        "-m",
        "sh",
        "-e",
        "-c",
        &format!("{shell}; exec \"$@\""),
        "sh",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[test]
fn the_directorys_place() {
    let row = Row::begin(PART, "/dev/shm and /proc not there, full, read-only");
    let Some(row) = no_mounts(row) else { return };
    let device = "mount -t tmpfs -o mode=755 none /dev; mknod -m 666 /dev/null c 1 3";
    let places = [
        ("no /dev/shm", device, true),
        (
            "full",
            "mount -t tmpfs -o size=4k none /dev/shm; echo full >/dev/shm/it",
            true,
        ),
        (
            "no inodes",
            "mount -t tmpfs -o nr_inodes=1 none /dev/shm",
            true,
        ),
        (
            "an inode for the folder",
            "mount -t tmpfs -o nr_inodes=2 none /dev/shm",
            true,
        ),
        ("read-only", "mount -t tmpfs -o ro none /dev/shm", true),
        (
            "no room to grow",
            "mount -t tmpfs -o size=140k none /dev/shm",
            false,
        ),
        ("no /proc", "mount -t tmpfs none /proc", true),
        ("an empty place", "mount -t tmpfs none /dev/shm", false),
    ];
    let mut runs = 0;
    for (name, shell, told) in places {
        let wrapper = mounted(shell);
        let wrapper: Vec<&str> = wrapper.iter().map(String::as_str).collect();
        let settings: [&[&str]; 3] = [
            &[],
            &["REGALL_COPY=helper", "REGALL_SHARE=always"],
            &["REGALL_INTERCEPT=strict"],
        ];
        for env in settings {
            let with = same(&wrapper, "hello", env);
            assert_eq!(
                !with.regall_lines().is_empty(),
                told,
                "{name}: {:?}",
                with.regall_lines()
            );
            runs += 1;
        }
        // (`many` takes seconds: in `make test` where its directory has to grow.)
        let large = thorough() || !told;
        let programs = ["heap", "fork", "mremap", "many"];
        for program in &programs[..if large { 4 } else { 3 }] {
            // /proc is what the program itself reads.
            if name != "no /proc" || *program != "fork" {
                same(&wrapper, program, &[]);
                runs += 1;
            }
        }
    }
    row.passed(format!("{runs} runs in {} places", places.len()));
}

/// RLIMIT_MEMLOCK from the start: with root's files and without its CAP_IPC_LOCK.
const BOUND: [&str; 3] = ["setpriv", "--bounding-set", "-ipc_lock"];

/// Whether that can't be done here; if so, says that the test is skipped for it.
fn cannot_be_bound() -> bool {
    let mut command = Command::new(BOUND[0]);
    command.args([BOUND[1], BOUND[2], "true"]);
    let fails = child::run(&mut command, TIMEOUT).end() != "exit 0";
    if fails {
        skip("giving up CAP_IPC_LOCK: setpriv(1) is not there, or may not");
    }
    fails
}

#[test]
fn locked_memory_from_the_start() {
    let row = Row::begin(PART, "RLIMIT_MEMLOCK 0, one page, 64 KiB, 8 MiB");
    if cannot_be_bound() {
        return row.skipped("no setpriv");
    }
    let mut runs = 0;
    for limit in ["0", "4096", "65536", "8388608"] {
        let memlock = format!("--memlock={limit}");
        let wrapper = [&["prlimit", &memlock][..], &BOUND].concat();
        let programs = ["mlock", "stack", "hello", "fork", "mremap"];
        for program in &programs[..if thorough() { 5 } else { 2 }] {
            for env in [&[][..], &["REGALL_PIN=onfault"], &["REGALL_SHARE=always"]] {
                same(&wrapper, program, env);
                runs += 1;
            }
        }
    }
    row.passed(format!("{runs} runs"));
}

/// Somebody else lowers it (prlimit --pid) while memory calls are made.
#[test]
fn locked_memory_lowered_while_running() {
    let row = Row::begin(PART, "RLIMIT_MEMLOCK lowered while running");
    if cannot_be_bound() {
        return row.skipped("no setpriv");
    }
    let mut lowered = 0;
    for env in [&[][..], &["REGALL_PIN=onfault"], &["REGALL_SHARE=always"]] {
        let wrapper = [&["prlimit", "--memlock=8388608:8388608"][..], &BOUND].concat();
        let mut command = wrapped(&wrapper, "faults/jumps", Some(env));
        let running = child::start(command.arg("1500"), TIMEOUT);
        let (pid, begun) = (running.pid() as i32, Instant::now());
        let alive = move || {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| !s.contains(") Z"))
        };
        let lower = std::thread::spawn(move || {
            let mut n = 0u64;
            while alive() && begun.elapsed() < TIMEOUT {
                std::thread::sleep(Duration::from_millis(30));
                let soft = [0, 64 << 10, 8 << 20, 4096, 1 << 20][n as usize % 5];
                let limit = libc::rlimit {
                    rlim_cur: soft,
                    rlim_max: 8 << 20,
                };
                // SAFETY: reads the structure; the process is our child, not yet waited
                // for or just gone, and then the call fails.
                let done = unsafe {
                    libc::prlimit(pid, libc::RLIMIT_MEMLOCK, &limit, std::ptr::null_mut())
                };
                n += u64::from(done == 0);
            }
            n
        });
        let done = running.finish();
        lowered += lower.join().expect("a thread");
        let said = "jumps 1500\ncancellations 1500\n";
        assert_eq!(
            (done.end().as_str(), done.stdout.as_str()),
            ("exit 0", said),
            "{env:?}: {}",
            done.stderr
        );
    }
    assert!(lowered >= 6, "only {lowered} times");
    row.passed(format!("{lowered} times"));
}

/// From so little address space that nothing starts to plenty: the program ends as it does
/// when its own calls fail, never by a signal, and never waits.
#[test]
fn address_space() {
    let row = Row::begin(PART, "RLIMIT_AS, from nothing to plenty");
    let ends = |limit: u64, env: Option<&[&str]>| {
        let wrapper = format!("--as={limit}");
        child::run(&mut wrapped(&["prlimit", &wrapper], "hello", env), TIMEOUT)
    };
    let whole = "exit 7";
    let (mut fewest, mut runs) = ([None; 2], 0);
    for limit in (1..=48).map(|n| n * (4 << 20)) {
        for (who, env) in [None, Some(&[][..])].into_iter().enumerate() {
            let done = ends(limit, env);
            let end = done.end();
            // 90: the program's own word for a call that failed; 127: ld.so's.
            let fine = [whole, "exit 90", "exit 127", "exit 126"].contains(&end.as_str());
            // env itself, or the kernel's exec, with next to nothing.
            let none = limit <= 8 << 20;
            assert!(
                fine || none,
                "{limit} bytes: {end}: {}{}",
                done.stdout,
                done.stderr
            );
            if end == whole && done.stdout.matches(": ok").count() == 2 {
                fewest[who].get_or_insert(limit);
            }
            runs += 1;
        }
    }
    let [Some(plain), Some(with)] = fewest else {
        panic!("never enough: {fewest:?}");
    };
    assert!(
        with <= plain + (16 << 20),
        "{with} bytes where {plain} do without the shim"
    );
    row.passed(format!(
        "{runs} runs; whole from {} MiB on, alone from {}",
        with >> 20,
        plain >> 20
    ));
}

/// A cgroup's limit of memory, in either version's hierarchy.
#[test]
fn a_cgroups_limit() {
    let row = Row::begin(PART, "a cgroup's limit of memory");
    let name = format!("regall-test-{}", std::process::id());
    let v1 = std::path::Path::new("/sys/fs/cgroup/memory");
    let (root, file) = match v1.is_dir() {
        true => (v1, "memory.limit_in_bytes"),
        false => (std::path::Path::new("/sys/fs/cgroup"), "memory.max"),
    };
    let group = root.join(&name);
    let made = fs::create_dir(&group).and_then(|()| fs::write(group.join(file), "50331648"));
    if let Err(e) = made {
        let _ = fs::remove_dir(&group);
        skip(&format!("a cgroup with a limit of memory: {e}"));
        return row.skipped(format!("{}: {e}", group.display()));
    }
    let procs = group.join("cgroup.procs").display().to_string();
    let shell = format!("echo $$ >{procs}; exec \"$@\"");
    let wrapper = ["sh", "-e", "-c", &shell, "sh"];
    // Removed whatever comes of it.
    let result = std::panic::catch_unwind(|| {
        for env in [&[][..], &["REGALL_SHARE=always"], &["REGALL_PIN=onfault"]] {
            let with = same(&wrapper, "hello", env);
            assert_eq!(with.end(), "exit 7", "{:?}", with.regall_lines());
        }
        same(&wrapper, "heap", &[]);
        same(&wrapper, "fork", &[]);
    });
    let _ = fs::remove_dir(&group);
    if let Err(why) = result {
        std::panic::resume_unwind(why);
    }
    row.passed("48 MiB, and a program that maps 128");
}

/// Code can't be patched: the shim says so and does what it can with symbols.
#[test]
fn no_permission_to_patch() {
    let row = Row::begin(PART, "no permission to make code writable");
    let refuse = build::program("faults/refuse").display().to_string();
    let mut runs = 0;
    for errno in [libc::EACCES, libc::EPERM, libc::ENOMEM] {
        let wrapper = [refuse.as_str(), &errno.to_string()];
        for program in [
            "hello",
            "heap",
            "fork",
            "exec",
            "libraries",
            "mmap",
            "clone",
        ] {
            let with = same(&wrapper, program, &[]);
            let lines = with.regall_lines().join("\n");
            assert!(
                lines.contains("REGALL_INTERCEPT=symbols is used instead"),
                "{program}: {lines}"
            );
            runs += 1;
        }
        same(&wrapper, "hello", &["REGALL_INTERCEPT=strict"]);
    }
    row.passed(format!("{runs} runs"));
}

/// What is pinned stays pinned: advice that pins are in the way of succeeds all the same.
#[test]
fn no_munlock() {
    let row = Row::begin(PART, "no munlock");
    let forbid = build::program("faults/forbid").display().to_string();
    let number = libc::SYS_munlock.to_string();
    for errno in [libc::EPERM, libc::ENOSYS] {
        let wrapper = [forbid.as_str(), &number, &errno.to_string()];
        for pin in ["populate", "onfault", "off"] {
            for program in ["madvise", "hello", "heap"] {
                same(&wrapper, program, &[&format!("REGALL_PIN={pin}")]);
            }
        }
    }
    for pin in ["populate", "onfault", "off"] {
        same(&["nice"], "faults/late", &[&format!("REGALL_PIN={pin}")]);
    }
    row.passed("three programs, by two errors; and one that forbids it itself");
}
