//! Calls of the shim's own fail, one in each run or all from one place, with each errno that
//! the kernel or a filter can give. c-tests/faults/inject.c does it from outside.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use regall_tests::apart;
use regall_tests::build;
use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::quiet::Watcher;
use regall_tests::soak::{self, Row};

const PART: &str = "faults";
const TIMEOUT: Duration = Duration::from_secs(100);

/// What is run, and with which variables beside REGALL=1.
struct Case<'a> {
    words: &'a [&'a str],
    env: &'a [(&'a str, &'a str)],
}

/// A call from one place in the library's text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    /// `None`: wherever it comes from, as for a filter.
    site: Option<u64>,
    call: i64,
}

/// One that fails: the `nth` from there, or each if that is 0.
#[derive(Clone, Copy, Debug)]
struct Fault {
    place: Place,
    nth: usize,
    errno: i32,
}

/// What the kernel can give for a call; filters can give EPERM and ENOSYS for any.
fn errnos(call: i64) -> Vec<i32> {
    let own: &[i32] = match call {
        // They don't return.
        libc::SYS_exit | libc::SYS_exit_group | libc::SYS_rt_sigreturn => return Vec::new(),
        // With good arguments the kernel never refuses it, and filters do for good.
        libc::SYS_rt_sigprocmask => return Vec::new(),
        libc::SYS_mmap => &[
            libc::ENOMEM,
            libc::EAGAIN,
            libc::EACCES,
            libc::EEXIST,
            libc::ENODEV,
        ],
        libc::SYS_mprotect => &[libc::ENOMEM, libc::EACCES],
        libc::SYS_munmap | libc::SYS_munlock | libc::SYS_munlockall => &[libc::ENOMEM],
        libc::SYS_madvise => &[libc::EINVAL, libc::ENOMEM, libc::EAGAIN, libc::EBADF],
        libc::SYS_mlock | libc::SYS_mlock2 => &[libc::ENOMEM, libc::EAGAIN, libc::EINVAL],
        libc::SYS_mremap => &[libc::ENOMEM, libc::EFAULT, libc::EAGAIN, libc::EINVAL],
        libc::SYS_openat => &[
            libc::ENOENT,
            libc::EACCES,
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::ELOOP,
            libc::EINTR,
        ],
        libc::SYS_read | libc::SYS_pread64 => &[libc::EIO, libc::EINTR, libc::EAGAIN, libc::ESRCH],
        libc::SYS_write | libc::SYS_pwrite64 => &[
            libc::EIO,
            libc::EINTR,
            libc::EAGAIN,
            libc::ENOSPC,
            libc::EPIPE,
        ],
        libc::SYS_close => &[libc::EIO, libc::EINTR],
        libc::SYS_fallocate => &[libc::ENOSPC, libc::EOPNOTSUPP, libc::EINTR, libc::EFBIG],
        libc::SYS_ftruncate => &[libc::EFBIG, libc::EINTR, libc::EINVAL],
        libc::SYS_getdents64 => &[libc::EIO, libc::ENOENT, libc::ENOMEM],
        libc::SYS_unlinkat => &[libc::EROFS, libc::EACCES, libc::ENOENT],
        libc::SYS_mkdirat | libc::SYS_mknodat => {
            &[libc::ENOSPC, libc::EROFS, libc::EACCES, libc::EEXIST]
        }
        libc::SYS_futex => &[libc::EAGAIN, libc::EINTR, libc::ETIMEDOUT],
        libc::SYS_clone => &[libc::EAGAIN, libc::ENOMEM],
        libc::SYS_memfd_create | libc::SYS_pipe2 | libc::SYS_socket | libc::SYS_accept4 => {
            &[libc::EMFILE, libc::ENFILE, libc::ENOMEM]
        }
        libc::SYS_fcntl | libc::SYS_dup3 => &[libc::EMFILE, libc::EBADF, libc::EINVAL],
        libc::SYS_nanosleep | libc::SYS_ppoll => &[libc::EINTR],
        _ => &[libc::EINVAL, libc::ENOMEM, libc::EINTR],
    };
    [own, &[libc::EPERM, libc::ENOSYS]].concat()
}

fn command(case: &Case, what: &str, report: &Path) -> Command {
    let mut command = Command::new(build::program("faults/inject"));
    Mode::Plain.apply(&mut command);
    command.env_remove("LD_PRELOAD");
    command.arg(build::shim()).arg(report).arg(what).arg("env");
    command.arg(format!("LD_PRELOAD={}", build::shim().display()));
    command.args(["REGALL=1", "REGALL_PIN=populate"]);
    command.args(
        case.env
            .iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    command
        .arg(build::program(case.words[0]))
        .args(&case.words[1..]);
    command
}

/// The lines of a report.
fn places(report: &Path) -> Vec<Place> {
    let text = fs::read_to_string(report).unwrap_or_default();
    let place = |line: &str| {
        let (site, call) = line.split_once(' ')?;
        Some(Place {
            site: Some(u64::from_str_radix(site, 16).ok()?),
            call: call.parse().ok()?,
        })
    };
    text.lines().filter_map(place).collect()
}

/// All faults that there can be among these calls, in an order that depends on `seed`.
fn faults(calls: &[Place], seed: u64) -> Vec<Fault> {
    let mut count = HashMap::new();
    let mut all = Vec::new();
    for &place in calls {
        let nth: &mut usize = count.entry(place).or_default();
        *nth += 1;
        if !all
            .iter()
            .any(|f: &Fault| f.place.site.is_none() && f.place.call == place.call)
        {
            let anywhere = Place {
                site: None,
                ..place
            };
            let filtered = |errno| Fault {
                place: anywhere,
                nth: 0,
                errno,
            };
            if !errnos(place.call).is_empty() || place.call == libc::SYS_rt_sigprocmask {
                all.extend([libc::EPERM, libc::ENOSYS].map(filtered));
            }
        }
        for errno in errnos(place.call) {
            let once = Fault {
                place,
                nth: *nth,
                errno,
            };
            all.push(once);
            // A call that is interrupted for ever is none that the kernel has.
            if *nth == 1 && ![libc::EINTR, libc::EAGAIN].contains(&errno) {
                all.push(Fault { nth: 0, ..once });
            }
        }
    }
    // Each place comes with its first call before any comes with its fifth.
    let mut random = seed | 1;
    let mut keyed: Vec<_> = all
        .into_iter()
        .map(|fault| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let rank = if fault.nth <= 1 { 0 } else { fault.nth.ilog2() };
            ((rank, random), fault)
        })
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, fault)| fault).collect()
}

/// The functions that a place is in, innermost first.
fn whereabouts(place: Place) -> String {
    let mut command = Command::new("addr2line");
    command.args(["-s", "-f", "-C", "-i", "-p", "-e"]);
    let Some(site) = place.site else {
        return "anywhere".into();
    };
    command.arg(build::shim()).arg(format!("{site:#x}"));
    let said = child::run(&mut command, TIMEOUT).stdout;
    said.lines().map(str::trim).collect::<Vec<_>>().join(" < ")
}

/// Runs it with one fault: what differs from `plain`, and whether the fault came.
fn differs(
    case: &Case,
    fault: Fault,
    plain: &Outcome,
    folder: &Path,
    n: usize,
) -> (Vec<String>, bool) {
    let report = folder.join(format!("report-{n}"));
    let Fault { place, nth, errno } = fault;
    let site = place.site.map_or("-".into(), |site| format!("{site:x}"));
    let what = format!("{site}:{}:{nth}:{errno}", place.call);
    let watcher = Watcher::new(|point| {
        // What is in the directory has no gap; there may be no directory.
        let mut verify = Command::new(build::regall());
        let done = child::run(verify.args(["verify", &point.pid.to_string()]), TIMEOUT);
        match done.end().as_str() {
            "exit 0" | "exit 2" => Vec::new(),
            end => {
                let first: Vec<_> = done.stdout.lines().take(4).collect();
                vec![format!("regall verify: {end}: {}", first.join(" | "))]
            }
        }
    });
    let mut command = command(case, &what, &report);
    command.env("QUIET_SOCKET", watcher.socket());
    let done = child::run(&mut command, TIMEOUT);
    let mut problems = done.differences(plain);
    // Where the kernel's list can't be read, or code can't be patched, there are gaps, and a
    // line says so.
    let gaps_are_said = [
        "/proc/self/maps can't be read",
        "REGALL_INTERCEPT=symbols is used instead, which misses",
    ];
    let told = (done.regall_lines().iter())
        .any(|line| gaps_are_said.iter().any(|said| line.contains(said)));
    let gaps = watcher.finish().problems;
    if !told {
        problems.extend(gaps);
    }
    if !problems.is_empty() {
        problems.insert(0, format!("{what} ({})", whereabouts(place)));
        problems.extend(done.regall_lines().iter().map(|l| l.to_string()));
    }
    let came = !places(&report).is_empty();
    let _ = fs::remove_file(&report);
    (problems, came)
}

/// Faults that are tried at least.
const FEW: usize = 10;

/// Every fault, or as many as there is time for.
fn survives(name: &str, case: &Case, limit: Duration) {
    let row = Row::begin(PART, format!("calls fail: {name}"));
    // Told that there is no process of others' directories, it would sweep them away.
    let apart = apart::private_shm(512);
    let folder = tempfile::tempdir().expect("a folder");
    let mut alone = Command::new(build::program(case.words[0]));
    Mode::Plain.apply(alone.args(&case.words[1..]));
    let plain = child::run(&mut alone, TIMEOUT);
    let report = folder.path().join("list");
    let listed = child::run(&mut command(case, "list", &report), TIMEOUT);
    assert_eq!(
        listed.differences(&plain),
        [""; 0],
        "{name}, and nothing fails"
    );
    let calls = places(&report);
    assert!(calls.len() > 100, "{name}: only {} calls", calls.len());

    let seed = regall_tests::number("TESTS_SEED").unwrap_or(20_261_122);
    let all = faults(&calls, seed);
    let most = match std::env::var_os("SOAK_SECONDS") {
        Some(_) => usize::MAX,
        None => FEW.max(4 * limit.as_secs() as usize),
    };
    let (next, came) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let problems = Mutex::new(Vec::new());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| loop {
                let n = next.load(Relaxed);
                let enough = begun.elapsed() > limit && n >= FEW;
                // In `make test` always the same ones, however fast the machine is.
                if enough || n >= most {
                    return;
                }
                let n = next.fetch_add(1, Relaxed);
                let Some(&fault) = all.get(n) else {
                    return;
                };
                let (bad, failed) = differs(case, fault, &plain, folder.path(), n);
                came.fetch_add(failed.into(), Relaxed);
                if !bad.is_empty() {
                    problems.lock().expect("a list").push(bad.join("\n  "));
                }
            });
        }
    });
    let tried = next.load(Relaxed).min(all.len());
    let came = came.load(Relaxed);
    let problems = problems.into_inner().expect("a list");
    assert!(
        problems.is_empty(),
        "{name}: {} of {tried} faults (seed {seed})\n{}",
        problems.len(),
        problems
            .iter()
            .take(20)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
    // Some depend on others that failed before; most come.
    assert!(
        came * 4 >= tried * 3,
        "{name}: only {came} of {tried} faults came"
    );
    row.passed(format!(
        "{came} of {} faults, {} calls{}",
        all.len(),
        calls.len(),
        apart.map_or_else(
            |why| format!("; no /dev/shm of its own: {why}"),
            |()| String::new()
        )
    ));
}

/// How long one of them may take: a moment, or a multiple of SOAK_SECONDS.
fn limit(short: u64) -> Duration {
    match std::env::var_os("SOAK_SECONDS") {
        None => Duration::from_secs(short),
        Some(_) => soak::duration() * 10,
    }
}

/// With everything on that makes calls of its own.
const EVERYTHING: &[(&str, &str)] = &[
    ("REGALL_COPY", "helper"),
    ("REGALL_SHARE", "always"),
    ("REGALL_INTERCEPT", "strict"),
    ("REGALL_STATS_FILE", "/dev/null"),
    ("REGALL_LOG", "debug"),
];

#[test]
fn each_call_fails_once() {
    let case = Case {
        words: &["hello"],
        env: &[],
    };
    survives("hello", &case, limit(25));
}

#[test]
fn each_call_fails_once_with_everything_on() {
    let case = Case {
        words: &["hello"],
        env: EVERYTHING,
    };
    survives("hello, everything on", &case, limit(25));
}

/// By a page that the kernel wipes a process knows that it is a child of a fork that was not
/// seen (clone, as libc makes it for a stack of its own). Without that page it knows, too.
#[test]
fn a_child_knows_itself_without_its_mark() {
    let _ = apart::private_shm(512);
    let folder = tempfile::tempdir().expect("a folder");
    let case = Case {
        words: &["clone"],
        env: &[],
    };
    let mut alone = Command::new(build::program(case.words[0]));
    Mode::Plain.apply(&mut alone);
    let plain = child::run(&mut alone, TIMEOUT);
    let report = folder.path().join("list");
    child::run(&mut command(&case, "list", &report), TIMEOUT);
    let mut marks = places(&report);
    marks.retain(|p| [libc::SYS_mmap, libc::SYS_madvise].contains(&p.call));
    marks.sort_by_key(|p| p.site);
    marks.dedup();
    marks.retain(|p| whereabouts(*p).contains("init at fork.rs"));
    assert!(marks.len() >= 2, "{marks:?}");
    for (n, place) in marks.into_iter().enumerate() {
        let fault = Fault {
            place,
            nth: 0,
            errno: libc::ENOMEM,
        };
        let (bad, came) = differs(&case, fault, &plain, folder.path(), n);
        assert!(came, "{fault:?}");
        assert_eq!(bad, [""; 0]);
    }
}

/// A test for each, so that one that fails does not hide what comes of the others.
macro_rules! other_programs {
    ($($name:ident: $program:literal,)*) => {
        mod each_call_fails_once_in {
            use super::*;
            $(
                #[test]
                fn $name() {
                    survives($program, &Case { words: &[$program], env: &[] }, limit(1));
                }
            )*
        }
    };
}

other_programs! {
    fork: "fork",
    exec: "exec",
    libraries: "libraries",
    mremap: "mremap",
    madvise: "madvise",
    mlock: "mlock",
    shm: "shm",
    clone: "clone",
    ring: "ring.mpich",
}
