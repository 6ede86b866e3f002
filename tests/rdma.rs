//! With RDMA adapters (Soft-RoCE in a guest): MPI, perftest, libfabric, rdma-core's own
//! tests and our programs, with the shim as without it; and nothing is left of a process
//! that was killed.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use regall_tests::child::{self, Outcome};
use regall_tests::coverage::Expected;
use regall_tests::filter::{self, Fate};
use regall_tests::guest::{self, Kernel, Skipped};
use regall_tests::mode::Mode;
use regall_tests::quiet::Watcher;
use regall_tests::{build, unittest};

#[path = "rdma/keys.rs"]
mod keys;
#[path = "rdma/machine.rs"]
mod machine;

type Checked = Result<(), Skipped>;

const TIMEOUT: Duration = Duration::from_secs(150);

macro_rules! checks {
    ($kernel:ident: $($name:ident = $body:expr;)*) => { $(
        #[test]
        fn $name() {
            guest::check(Kernel::$kernel, stringify!($name), || $body);
        }
    )* };
}

/// Programs of c-tests/rdma: a name for the check, the program, its arguments, what is
/// set for the run with the shim, and what is looked at: `Same`, stdout and exit status
/// are as without the shim, or `Alone`, it ends well. With nothing set coverage is checked
/// at quiet points, too.
macro_rules! programs {
    ($kernel:ident: $($name:ident = $program:literal $args:tt $env:tt $how:ident;)*) => {
        pub mod program {
            use super::*;

            pub const LISTED: &[&str] = &[$($program),*];

            $(
                #[test]
                fn $name() {
                    let name = concat!("program::", stringify!($name));
                    guest::check(Kernel::$kernel, name, || own($program, &$args, &$env, How::$how));
                }
            )*
        }
    };
}

mod stock {
    use super::*;

    checks! { Stock:
        openmpi = mpi("openmpi", CACHED);
        openmpi_uncached = mpi("openmpi", UNCACHED);
        mpich = mpi("mpich", CACHED);
        mpich_uncached = mpi("mpich", UNCACHED);
        openmpi_silent = silent("openmpi");
        mpich_silent = silent("mpich");
        write_bw = perftest("ib_write_bw", &["-s", "262144"]);
        read_bw = perftest("ib_read_bw", &["-s", "262144"]);
        send_bw = perftest("ib_send_bw", &["-s", "262144"]);
        write_lat = perftest("ib_write_lat", &["-s", "64"]);
        atomic_bw = perftest("ib_atomic_bw", &[]);
        fabric = fi_pingpong();
        cm = rping();
        pingpong = rc_pingpong(&[]);
        yama = kept_apart_by_yama();
        protection_keys = keys::stay();
        python = rdma_core(&["test_mr", "test_pd", "test_fork"]);
        killed = kills(100);
        blind = truth_of_the_blind();
        sharing_fork = fork_that_shares();
        faults = requests_that_fail();
        few_regions = on_few_regions();
        doctor = doctor_says("absent");
        machine_pool = machine::pool();
        fits = machine::fits();
        fits_with_swap = machine::fits_with_swap();
        fits_with_adapter = machine::fits_with_adapter();
        machine_overcommit = machine::overcommit();
    }

    programs! { Stock:
        untouched = "untouched" [] [("REGALL_PIN", "auto"), ("REGALL_ACCESS", "remote-atomic")] Same;
        keys_auto = "keys" [] [("REGALL_PIN", "auto")] Same;
        borrow_auto = "borrow" [] [("REGALL_PIN", "auto")] Same;
        busy_auto = "busy" ["100"] [("REGALL_PIN", "auto")] Same;
        truth_auto = "truth" ["24", "3", REGALL, "both"] [("REGALL_ACCESS", "remote-read"), ("REGALL_PIN", "auto"), ("REGALL_REVOKE_MS", "1")] Alone;
        busy = "busy" ["300"] [] Same;
        keys = "keys" [] [] Same;
        keys_exact = "keys" [] [("REGALL_KEYS", "exact")] Same;
        borrow = "borrow" [] [] Same;
        borrow_off = "borrow" [] [("REGALL_HCA", "off")] Same;
        rights = "rights" [] [] Same;
        revoke = "revoke" [] [] Same;
        revoke_exact = "revoke" [] [("REGALL_KEYS", "exact")] Same;
        revoke_in_calls = "revoke" ["shut"] [] Same;
        revoke_soon = "revoke" [] [("REGALL_REVOKE_MS", "1"), ("REGALL_PIN", "auto")] Alone;
        domains = "domains" [] [] Same;
        limits = "limits" [] [] Same;
        odd = "odd" [] [] Same;
        settings = "settings" [] [] Same;
        cost = "cost" [] [] Same;
        storm = "storm" ["6"] [("REGALL_REVOKE_MS", "1")] Same;
        truth = "truth" ["60", "1", REGALL, "both"] [("REGALL_ACCESS", "remote-read")] Alone;
    }
}

mod odp {
    use super::*;

    checks! { Odp:
        openmpi = mpi("openmpi", CACHED);
        pingpong = rc_pingpong(&[]);
        pingpong_odp = rc_pingpong(&["-o"]);
        write_bw_odp = perftest("ib_write_bw", &["-s", "262144", "--odp"]);
        python = rdma_core(&["test_odp", "test_mr"]);
        doctor = doctor_says("good");
    }

    programs! { Odp:
        keys = "keys" [] [] Same;
        odd = "odd" [] [] Same;
        settings = "settings" [] [] Same;
        truth = "truth" ["30", "2", REGALL, "lend"] [("REGALL_ACCESS", "remote-read")] Alone;
    }
}

/// A program that nobody listed would never run.
#[test]
fn all_programs_are_listed() {
    let listed = [
        stock::program::LISTED,
        odp::program::LISTED,
        machine::LISTED,
    ]
    .concat();
    for entry in fs::read_dir(build::root().join("c-tests/rdma"))
        .expect("c-tests/rdma")
        .flatten()
    {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "c") {
            let name = path.file_stem().and_then(|n| n.to_str()).expect("a name");
            assert!(listed.contains(&name), "{name} is in no list");
        }
    }
}

fn need(command: &str) -> Checked {
    if build::have(command) {
        Ok(())
    } else {
        Err(Skipped(format!("{command} is not installed")))
    }
}

fn none(problems: &[String], of: &Outcome) {
    let shown: Vec<_> = problems.iter().take(20).cloned().collect();
    assert!(
        problems.is_empty(),
        "{} problems\n{}\nstdout:\n{}\nstderr:\n{}",
        problems.len(),
        shown.join("\n"),
        of.stdout,
        of.stderr
    );
}

/// Counters of processes that left theirs at their end.
struct Stats {
    folder: tempfile::TempDir,
}

impl Stats {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Self { folder }
    }

    /// Has a command's processes leave theirs.
    fn ask(&self, command: &mut Command) {
        command.env("REGALL_STATS_FILE", self.folder.path().join("%p"));
    }

    /// A counter of each process that ran `exe`.
    fn counter(&self, exe: &str, counter: &str) -> Vec<u64> {
        let mut all = Vec::new();
        for entry in fs::read_dir(self.folder.path()).expect("stats").flatten() {
            let text = fs::read_to_string(entry.path()).expect("stats");
            let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            if json["exe"].as_str().is_some_and(|e| e.ends_with(exe)) {
                all.push(json["counters"][counter].as_u64().expect("a counter"));
            }
        }
        all
    }

    /// So many processes have run `exe`, each had all registered, and got something from
    /// that.
    fn served(&self, exe: &str, processes: usize) {
        for counter in ["domains", "registrations", "served"] {
            let each = self.counter(exe, counter);
            assert_eq!(each.len(), processes, "{exe} left no statistics");
            assert!(each.iter().all(|n| *n > 0), "{counter} of {exe}: {each:?}");
        }
        println!(
            "{exe}: registrations {:?}, served {:?}, passed on {:?}",
            self.counter(exe, "registrations"),
            self.counter(exe, "served"),
            self.counter(exe, "passed")
        );
    }
}

/// UCX's registration cache, on and off.
const CACHED: (&str, &str) = ("UCX_IB_REG_METHODS", "rcache,direct");
const UNCACHED: (&str, &str) = ("UCX_IB_REG_METHODS", "direct");

/// Two ranks of `program`, behind the words of `wrapper`.
fn ranks(mpi: &str, wrapper: &[&str], program: &str, mode: Mode) -> Command {
    let mut command = Command::new(format!("mpirun.{mpi}"));
    command.args(["-np", "2"]);
    if mpi == "openmpi" {
        command.args(["--bind-to", "none", "--mca", "pml", "ucx"]);
    }
    mode.apply(&mut command);
    command
        .args(wrapper)
        .arg(build::program(&format!("{program}.{mpi}")));
    command
}

/// What was printed, apart from what UCX complains of: that comes in any order, with
/// addresses, pids and times of its own.
fn printed(of: &Outcome) -> (Vec<String>, Vec<String>) {
    let text = of.stdout.clone() + &of.others_stderr();
    let (complaints, results): (Vec<_>, Vec<_>) = text.lines().partition(|l| l.contains("UCX"));
    let bare = |l: &str| l.replace(|c: char| c.is_ascii_hexdigit(), "");
    let mut complaints: Vec<_> = complaints.into_iter().map(bare).collect();
    complaints.sort();
    (results.into_iter().map(str::to_owned).collect(), complaints)
}

fn mpi(mpi: &str, cache: (&str, &str)) -> Checked {
    need(&format!("mpirun.{mpi}"))?;
    let run = |mode, more: &dyn Fn(&mut Command)| {
        let mut command = ranks(mpi, &[], "fabric", mode);
        command.env(cache.0, cache.1);
        more(&mut command);
        child::run(&mut command, TIMEOUT)
    };
    let plain = run(Mode::Plain, &|_| ());
    plain.must_succeed();
    let stats = Stats::new();
    let watcher = Watcher::of_coverage(Expected::of(Mode::Populate));
    let watched = cache == CACHED;
    let other = run(Mode::Populate, &|command| {
        stats.ask(command);
        if watched {
            command.env("QUIET_SOCKET", watcher.socket());
        }
    });
    let findings = watcher.finish();
    let mut problems = findings.problems;
    if plain.end() != other.end() || printed(&plain) != printed(&other) {
        problems.push(format!(
            "without the shim: {}\n{}{}",
            plain.end(),
            plain.stdout,
            plain.stderr
        ));
    }
    none(&problems, &other);
    if watched {
        // Each rank comes to six of them.
        assert_eq!(findings.looks, 12, "{}{}", other.stdout, other.stderr);
    }
    stats.served(&format!("fabric.{mpi}"), 2);
    Ok(())
}

/// The message path with fresh memory each time registers nothing inside an MPI call,
/// though the MPI library asks for it there.
fn silent(mpi: &str) -> Checked {
    need(&format!("mpirun.{mpi}"))?;
    // By process: at each point its label, and the counters.
    type Seen = BTreeMap<u32, Vec<(String, [u64; 3])>>;
    const COUNTERS: [&str; 3] = ["registrations", "served", "deregistrations"];
    let seen = Arc::new(Mutex::new(Seen::new()));
    let theirs = Arc::clone(&seen);
    let watcher = Watcher::new(move |point| {
        let mut stats = Command::new(build::regall());
        stats.args(["stats", "--json", &point.pid.to_string()]);
        let done = child::run(&mut stats, TIMEOUT);
        let json: serde_json::Value = serde_json::from_str(&done.stdout).unwrap_or_default();
        let now = COUNTERS.map(|c| json["counters"][c].as_u64().unwrap_or(u64::MAX / 2));
        let mut seen = theirs.lock().expect("counters");
        seen.entry(point.pid)
            .or_default()
            .push((point.label.clone(), now));
        Vec::new()
    });
    let mut command = ranks(mpi, &[], "silent", Mode::Populate);
    command.env("QUIET_SOCKET", watcher.socket());
    let done = child::run(&mut command, TIMEOUT);
    watcher.finish();
    let expected = "25 messages of 1048576 bytes: 0 errors\n";
    assert_eq!(
        (done.end().as_str(), done.stdout.as_str()),
        ("exit 0", expected),
        "{}",
        done.stderr
    );
    let seen = std::mem::take(&mut *seen.lock().expect("counters"));
    assert_eq!(seen.len(), 2, "ranks");
    for points in seen.values() {
        assert_eq!(points.len(), 40, "{points:?}");
        let mut sum = [0; 3];
        for call in points.chunks(2) {
            assert_eq!((call[0].0.as_str(), call[1].0.as_str()), ("in", "out"));
            let [registered, served, deregistered] = [0, 1, 2].map(|i| call[1].1[i] - call[0].1[i]);
            assert!(registered == 0 && served > 0, "in one MPI call: {call:?}");
            sum = [sum[0] + registered, sum[1] + served, sum[2] + deregistered];
        }
        println!("silent {mpi}: in 20 MPI calls {COUNTERS:?}: {sum:?}");
    }
    Ok(())
}

/// A server and its client, which begins when the server is `ready`.
fn pair(
    server: &[&str],
    client: &[&str],
    mode: Mode,
    ready: fn() -> bool,
) -> (Outcome, Outcome, Stats) {
    pair_of(server, client, mode, ready, |_| ())
}

/// As [`pair`], with what `prepare` does to both.
fn pair_of(
    server: &[&str],
    client: &[&str],
    mode: Mode,
    ready: fn() -> bool,
    prepare: impl Fn(&mut Command),
) -> (Outcome, Outcome, Stats) {
    let stats = Stats::new();
    let command = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        mode.apply(command.args(&words[1..]));
        prepare(&mut command);
        if mode != Mode::Plain {
            stats.ask(&mut command);
        }
        command
    };
    let running = child::start(&mut command(server), TIMEOUT);
    let deadline = Instant::now() + Duration::from_secs(30);
    while !ready() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let client = child::run(&mut command(client), TIMEOUT);
    (running.finish(), client, stats)
}

/// Both ended well, or why not.
fn well(of: &[&Outcome]) {
    for done in of {
        done.must_succeed();
    }
}

/// Somebody listens on this port (in the form of /proc/net/tcp).
fn listens(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
        let text = fs::read_to_string(file).unwrap_or_default();
        let local = format!(":{port:04X} ");
        text.lines().any(|l| {
            let mut words = l.split_whitespace().skip(1);
            let here = words
                .next()
                .is_some_and(|w| format!("{w} ").ends_with(&local));
            here && words.nth(1) == Some("0A")
        })
    })
}

/// Size and number of iterations from perftest's table.
fn measured(of: &Outcome) -> Vec<(u64, u64)> {
    let row = |line: &str| {
        let mut numbers = line.split_whitespace().map(|w| w.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    };
    of.stdout.lines().filter_map(row).collect()
}

fn perftest(tool: &str, more: &[&str]) -> Checked {
    need(tool)?;
    let common = [&[tool, "-d", "rxe0", "-x", "0", "-n", "100", "-F"], more].concat();
    let client = [&common[..], &["localhost"]].concat();
    let run = |mode| pair(&common, &client, mode, || listens(18515));
    let (server, plain, _) = run(Mode::Plain);
    well(&[&server, &plain]);
    let (server, other, stats) = run(Mode::Populate);
    well(&[&server, &other]);
    assert!(!measured(&plain).is_empty(), "{}", plain.stdout);
    assert_eq!(measured(&plain), measured(&other));
    if more.contains(&"--odp") {
        assert!(stats.counter(tool, "passed").iter().all(|n| *n > 0));
    } else {
        stats.served(tool, 2);
    }
    Ok(())
}

fn fi_pingpong() -> Checked {
    need("fi_pingpong")?;
    let server = [
        "fi_pingpong",
        "-p",
        "verbs",
        "-e",
        "msg",
        "-c",
        "-I",
        "20",
        "-S",
        "65536",
    ];
    let client = [&server[..], &["10.9.9.1"]].concat();
    let run = |mode| pair(&server, &client, mode, || listens(47592));
    let (server, plain, _) = run(Mode::Plain);
    well(&[&server, &plain]);
    let (server, other, stats) = run(Mode::Populate);
    well(&[&server, &other]);
    assert_eq!(plain.stdout.lines().count(), other.stdout.lines().count());
    stats.served("fi_pingpong", 2);
    Ok(())
}

fn rping() -> Checked {
    need("rping")?;
    let server = [
        "rping", "-s", "-a", "10.9.9.1", "-V", "-v", "-C", "10", "-S", "4096",
    ];
    let client = [&["rping", "-c"], &server[2..]].concat();
    let ready = || {
        let mut rdma = Command::new("rdma");
        let done = child::run(rdma.args(["res", "show", "cm_id"]), TIMEOUT);
        done.stdout.contains("LISTEN")
    };
    let run = |mode| pair(&server, &client, mode, ready);
    let (at_server, plain, _) = run(Mode::Plain);
    well(&[&at_server, &plain]);
    let (server, other, stats) = run(Mode::Populate);
    well(&[&server, &other]);
    // Its end may overtake its thread that would tell of the connection's.
    let [plain, other] = [plain, other].map(|mut outcome| {
        let lines = outcome
            .stderr
            .lines()
            .filter(|l| !l.contains("DISCONNECT EVENT"));
        outcome.stderr = lines.map(|l| format!("{l}\n")).collect();
        outcome
    });
    assert_eq!(other.differences(&plain), Vec::<String>::new());
    stats.served("rping", 2);
    Ok(())
}

/// With the payload checked (-c); with -o by on-demand paging, which is passed on.
fn rc_pingpong(more: &[&str]) -> Checked {
    need("ibv_rc_pingpong")?;
    let options = ["-d", "rxe0", "-g", "0", "-c", "-n", "100", "-s", "65536"];
    let server = [&["ibv_rc_pingpong"], &options[..], more].concat();
    let client = [&server[..], &["localhost"]].concat();
    let run = |mode| pair(&server, &client, mode, || listens(18515));
    let (at_server, plain, _) = run(Mode::Plain);
    well(&[&at_server, &plain]);
    let (server, other, stats) = run(Mode::Populate);
    well(&[&server, &other]);
    assert_eq!(plain.stdout.lines().count(), other.stdout.lines().count());
    if more.is_empty() {
        stats.served("ibv_rc_pingpong", 2);
    } else {
        let passed = stats.counter("ibv_rc_pingpong", "passed");
        assert!(
            passed.len() == 2 && passed.iter().all(|n| *n > 0),
            "passed {passed:?}"
        );
    }
    Ok(())
}

/// Where Yama lets nobody trace who is no ancestor, the library copies all the same, and lets
/// nobody trace its processes but where that is asked for.
fn kept_apart_by_yama() -> Checked {
    const SCOPE: &str = "/proc/sys/kernel/yama/ptrace_scope";
    if fs::write(SCOPE, "1").is_err() {
        return Err(Skipped("this kernel has no Yama".into()));
    }
    let run = |args: &[&str], mode: Mode, ptracer: &str| {
        let mut command = Command::new(build::program("bridge/rights"));
        mode.apply(command.arg("yama").args(args));
        command.env("REGALL_PTRACER", ptracer);
        command.env("COMMAND", build::regall());
        child::run(&mut command, TIMEOUT)
    };
    let all = [
        run(&[], Mode::Plain, "off"),
        run(&[], Mode::Populate, "off"),
        run(&["any"], Mode::Populate, "any"),
    ];
    fs::write(SCOPE, "0").expect("Yama's scope");
    for (n, done) in all.iter().enumerate() {
        done.must_succeed_at(n);
    }
    Ok(())
}

/// Where fork does not copy what is registered, nothing is, unless the user says that nobody
/// forks. The release that such a program sees is 2.6, so that the library asks the kernel's RDMA
/// subsystem, which says yes unless a filter keeps it from being asked.
fn fork_that_shares() -> Checked {
    need("ibv_rc_pingpong")?;
    // socket(2) with NETLINK_RDMA, by a bit of its number that no other protocol here has.
    const NETLINK_RDMA: filter::Caught = (libc::SYS_socket, 16);
    let options = ["-d", "rxe0", "-g", "0", "-c", "-n", "20", "-s", "65536"];
    let server = [&["ibv_rc_pingpong"], &options[..]].concat();
    let client = [&server[..], &["localhost"]].concat();
    for (silent, fork, adopted) in [
        (false, "safe", true),
        (true, "safe", false),
        (true, "unsafe", true),
    ] {
        let prepare = |command: &mut Command| {
            command.env("REGALL_HCA_FORK", fork);
            // SAFETY: one system call.
            let old = || match unsafe { libc::personality(libc::UNAME26 as libc::c_ulong) } {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            };
            // SAFETY: `old` needs no memory.
            unsafe { command.pre_exec(old) };
            if silent {
                filter::forbid(command, &[NETLINK_RDMA], Fate::Fails(libc::EPERM));
            }
        };
        let ready = || listens(18515);
        let (server, client, stats) = pair_of(&server, &client, Mode::Populate, ready, prepare);
        well(&[&server, &client]);
        let domains = stats.counter("ibv_rc_pingpong", "domains");
        let all = domains.len() == 2 && domains.iter().all(|n| (*n > 0) == adopted);
        assert!(all, "{silent} {fork}: {domains:?}");
        for done in [&server, &client] {
            let said = done.stderr.matches("fork does not copy registered").count();
            assert_eq!(said, usize::from(!adopted), "{}", done.stderr);
        }
    }
    Ok(())
}

/// A shim that does not notice madvise is found out by what a peer reads.
fn truth_of_the_blind() -> Checked {
    let mut command = Command::new(build::program("rdma/truth"));
    command.args(["30", "5"]).arg(build::regall()).arg("lend");
    Mode::Populate.apply(&mut command);
    command.env("LD_PRELOAD", build::variant(guest::BLIND));
    command.envs([("REGALL_ACCESS", "remote-read"), ("REGALL_PIN", "off")]);
    let done = child::run(&mut command, TIMEOUT);
    let said = format!("{}{}", done.stdout, done.stderr);
    let found = done.end() == "exit 1" && said.contains("by DMA");
    assert!(found, "{}\n{said}", done.end());
    Ok(())
}

/// Requests to the adapter fail, one in each run: the program never notices.
fn requests_that_fail() -> Checked {
    need("ibv_rc_pingpong")?;
    let options = ["-d", "rxe0", "-g", "0", "-c", "-n", "20", "-s", "65536"];
    let server = [&["ibv_rc_pingpong"], &options[..]].concat();
    let client = [&server[..], &["localhost"]].concat();
    let shim = build::variant(guest::FAULTY);
    for (n, errno) in (1..290)
        .step_by(12)
        .zip([libc::ENOMEM, libc::EINVAL].iter().cycle())
    {
        let faulty = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            Mode::Populate.apply(&mut command);
            command.env("LD_PRELOAD", &shim);
            command.env("REGALL_FAIL_REQUEST", format!("{n}:{errno}"));
            command
        };
        let (mut one, mut other) = (faulty(&server), faulty(&client));
        let serving = std::thread::spawn(move || child::run(&mut one, TIMEOUT));
        let start = Instant::now();
        while !listens(18515) && start.elapsed() < TIMEOUT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let other = child::run(&mut other, TIMEOUT);
        let one = serving.join().expect("the server's thread");
        let ends = (one.end(), other.end());
        assert!(
            ends.0 == "exit 0" && ends.1 == "exit 0",
            "request {n} fails with {errno}: {ends:?}\n{}\n{}",
            one.stderr,
            other.stderr
        );
    }
    assert_eq!(held().get("memory regions"), Some(&0), "regions are left");
    Ok(())
}

/// On an adapter with few regions most memory is `limit`, and programs are as ever.
fn on_few_regions() -> Checked {
    for program in ["keys", "rights"] {
        let run = |mode: Mode| {
            let mut command = Command::new(build::program(&format!("rdma/{program}")));
            mode.apply(&mut command);
            if mode != Mode::Plain {
                command.env("LD_PRELOAD", build::variant(guest::FEW));
            }
            child::run(&mut command, TIMEOUT)
        };
        let (plain, few) = (run(Mode::Plain), run(Mode::Populate));
        let differs = |d: &String| !d.starts_with("stderr");
        let problems: Vec<_> = few
            .differences(&plain)
            .into_iter()
            .filter(differs)
            .collect();
        none(&problems, &few);
    }
    Ok(())
}

/// What the doctor finds of the adapters: they are there, a program registers with each,
/// and on-demand paging is as the kernel has it.
fn doctor_says(on_demand: &str) -> Checked {
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    let done = child::run(command.args(["doctor", "--json"]), TIMEOUT);
    let all: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let of = |name: &str| {
        let mut all = all["findings"].as_array().into_iter().flatten();
        all.find(|f| f["name"] == name).expect("a finding").clone()
    };
    let (there, registers) = (of("RDMA adapters"), of("registering"));
    assert_eq!(there["standing"], "good", "{there:#}");
    assert_eq!(registers["standing"], "good", "{registers:#}");
    let found = registers["found"].as_str().unwrap_or("");
    for device in ["rxe0: ", "rxe1: "] {
        let rest = found.split(device).nth(1).unwrap_or("");
        assert!(
            rest.starts_with(|c: char| ('1'..='9').contains(&c)),
            "{found}"
        );
    }
    let odp = of("on-demand paging");
    assert_eq!(odp["standing"], on_demand, "{odp:#}");
    Ok(())
}

/// Modules of rdma-core's own tests: each test ends as without the shim.
fn rdma_core(modules: &[&str]) -> Checked {
    let source = Path::new("/usr/share/doc/rdma-core/tests");
    if !source.is_dir() {
        return Err(Skipped("rdma-core's python tests are not there".into()));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let mut copy = Command::new("sh");
    copy.args([
        "-c",
        "cp -r \"$1\" \"$2/tests\" && gunzip \"$2\"/tests/*.gz",
        "sh",
    ]);
    well(&[&child::run(copy.arg(source).arg(folder.path()), TIMEOUT)]);
    let run = |mode: Mode| {
        let stats = Stats::new();
        let mut command = Command::new("python3");
        mode.apply(&mut command);
        stats.ask(&mut command);
        command.current_dir(folder.path());
        command.args(["tests/run_tests.py", "-v", "--dev", "rxe0", "--gid", "0"]);
        command.args(modules.iter().map(|m| format!("tests.{m}")));
        let done = child::run(&mut command, TIMEOUT);
        let results = unittest::results(&done.stderr);
        assert!(
            ["exit 0", "exit 1"].contains(&done.end().as_str()),
            "{mode:?}: {}{}",
            done.stdout,
            done.stderr
        );
        (results, done, stats)
    };
    let (plain, done, _) = run(Mode::Plain);
    let passes = plain.values().filter(|v| *v == "ok").count();
    assert!(
        passes >= 5,
        "only {passes} of {} pass without the shim: {}",
        plain.len(),
        done.stderr
    );
    let (other, done, stats) = run(Mode::Populate);
    println!("{modules:?}: {} results, {passes} of them ok", plain.len());
    let differs = |(id, end): &(&String, &String)| other.get(*id) != Some(*end);
    let changed: Vec<_> = plain
        .iter()
        .filter(differs)
        .map(|(id, end)| format!("{id}: {end}, now {:?}", other.get(id)))
        .collect();
    none(&changed, &done);
    assert_eq!(plain.len(), other.len());
    assert!(stats.counter("", "served").iter().any(|n| *n > 0));
    Ok(())
}

/// How a program of ours is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// All is as without the shim.
    Same,
    /// It ends well; there is nothing to compare it with.
    Alone,
}

/// Stands for the path of the `regall` command in a program's arguments.
const REGALL: &str = "(regall)";

fn own(program: &str, args: &[&str], env: &[(&str, &str)], how: How) -> Checked {
    let command = |mode: Mode| {
        let mut command = Command::new(build::program(&format!("rdma/{program}")));
        for arg in args {
            if *arg == REGALL {
                command.arg(build::regall());
            } else {
                command.arg(arg);
            }
        }
        mode.apply(&mut command);
        command
    };
    let watcher = Watcher::of_coverage(Expected::of(Mode::Populate));
    let mut shimmed = command(Mode::Populate);
    shimmed.envs(env.iter().copied());
    if env.is_empty() {
        shimmed.env("QUIET_SOCKET", watcher.socket());
    }
    let stats = Stats::new();
    let rotates = env.iter().any(|(name, _)| *name == "REGALL_REVOKE_MS");
    if rotates {
        stats.ask(&mut shimmed);
    }
    let other = child::run(&mut shimmed, TIMEOUT);
    let mut problems = watcher.finish().problems;
    if rotates {
        let rotated = stats.counter(program, "hca_rotated");
        println!("{program}: rotated {rotated:?}");
        if rotated.iter().all(|n| *n == 0) {
            problems.push(format!("nothing was rotated: {rotated:?}"));
        }
    }
    if how == How::Same {
        let plain = child::run(&mut command(Mode::Plain), TIMEOUT);
        assert_ne!(plain.end(), "time-out", "{program} alone");
        let differs = |d: &String| !d.starts_with("stderr");
        problems.extend(other.differences(&plain).into_iter().filter(differs));
    } else if other.end() != "exit 0" {
        problems.push(other.end());
    }
    none(&problems, &other);
    Ok(())
}

/// What the kernel keeps for adapters: memory regions, and pages that they pin.
fn held() -> BTreeMap<&'static str, i64> {
    let mut rdma = Command::new("rdma");
    let regions = child::run(rdma.args(["res", "show", "mr"]), TIMEOUT).stdout;
    // Each processor counts by itself and hands in what it has now and then, or so.
    fs::write("/proc/sys/vm/stat_refresh", "1").expect("/proc/sys/vm/stat_refresh");
    let vmstat = fs::read_to_string("/proc/vmstat").expect("/proc/vmstat");
    let meminfo = fs::read_to_string("/proc/meminfo").expect("/proc/meminfo");
    let number = |text: &str, name: &str| -> i64 {
        let line = text.lines().find_map(|l| l.strip_prefix(name));
        let word = line.and_then(|l| l.split_whitespace().next());
        word.and_then(|w| w.parse().ok()).expect("a number")
    };
    let pins = number(&vmstat, "nr_foll_pin_acquired ") - number(&vmstat, "nr_foll_pin_released ");
    BTreeMap::from([
        ("memory regions", regions.lines().count() as i64),
        ("pins of pages", pins),
        ("KiB locked", number(&meminfo, "Mlocked:")),
    ])
}

/// What is in /dev/shm/regall-UID/.
fn directories() -> Vec<String> {
    let folder = fs::read_dir("/dev/shm/regall-0").into_iter().flatten();
    let names = folder
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    names.collect()
}

/// Programs are killed at random moments, from before they have begun to long after.
fn kills(times: u32) -> Checked {
    let seed = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(1, |t| t.as_nanos() as u64);
    println!("seed {seed}");
    let mut state = seed | 1;
    let mut random = |n: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    let before = held();
    let busy = |rounds: &[&str], timeout| {
        let mut command = Command::new(build::program("rdma/busy"));
        Mode::Populate.apply(command.args(rounds));
        child::start(&mut command, timeout)
    };
    let start = Instant::now();
    well(&[&busy(&["21"], TIMEOUT).finish()]);
    let usual = start.elapsed();
    // What is looked for can be seen.
    let one = busy(&[], usual * 5);
    std::thread::sleep(usual * 2);
    let (during, regions) = (held(), "memory regions");
    assert!(
        during.iter().all(|(what, n)| *n > before[what]) && during[regions] > 100,
        "before {before:?}, while it runs {during:?}"
    );
    one.finish();
    let (mut early, mut most) = (0, 0);
    for i in 0..times {
        let delay = random(usual.as_micros() as u64 * 3 / 2);
        let done = busy(&[], Duration::from_micros(delay)).finish();
        assert_eq!(
            done.end(),
            "time-out",
            "round {i}: {}{}",
            done.stdout,
            done.stderr
        );
        assert_eq!(done.regall_lines(), Vec::<&str>::new());
        early += u32::from(!done.stdout.contains("busy"));
        // Its own, and that of the one before if it was too early to sweep.
        most = most.max(directories().len());
    }
    println!(
        "{times} killed, {early} of them before they were busy; at most {most} directories left"
    );
    assert!(early < times, "nobody got as far as registering");
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut after = held();
    while after["KiB locked"] > before["KiB locked"] && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(100));
        after = held();
    }
    assert!(
        after["KiB locked"] <= before["KiB locked"],
        "before {before:?}, after {after:?}"
    );
    for what in ["memory regions", "pins of pages"] {
        assert_eq!(
            after[what], before[what],
            "{what}: before {before:?}, after {after:?}"
        );
    }
    well(&[&busy(&["21"], TIMEOUT).finish()]);
    assert_eq!(directories(), Vec::<String>::new(), "what the dead left");
    Ok(())
}
