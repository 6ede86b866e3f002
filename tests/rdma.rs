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
use regall_tests::{build, thorough, unittest};

#[path = "rdma/checked.rs"]
mod checked;
#[path = "rdma/keys.rs"]
mod keys;
#[path = "rdma/killed.rs"]
mod killed;
#[path = "rdma/machine.rs"]
mod machine;
#[path = "rdma/others.rs"]
mod others;
#[path = "rdma/swap.rs"]
mod swap;

use killed::{held, kills};
use others::*;

type Checked = Result<(), Skipped>;

const TIMEOUT: Duration = Duration::from_secs(150);
/// Registrations are answered at libibverbs' symbols alone, and not at the kernel's ioctl.
const BY_SYMBOLS: (&str, &str) = ("REGALL_VERBS", "symbols");

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

/// What `make test` runs.
mod stock {
    use super::*;

    checks! { Stock:
        openmpi = mpi("openmpi", CACHED);
        write_bw = perftest("ib_write_bw", &["-s", "262144"]);
        atomic_bw = perftest("ib_atomic_bw", &[]);
        fabric = fi_pingpong();
        cm = rping();
        pingpong = rc_pingpong(&[]);
        yama = kept_apart_by_yama();
        python = rdma_core(&["test_mr", "test_pd", "test_fork"]);
        killed = kills(if thorough() { 100 } else { 20 });
        blind = truth_of_the_blind();
        sharing_fork = fork_that_shares();
        named_devices = devices_by_name();
        faults = requests_that_fail();
        doctor = doctor_says("absent");
        checked = checked::finds();
        checked_exits = checked::exits();
        fits = machine::fits();
        fits_with_swap = machine::fits_with_swap();
        fits_with_adapter = machine::fits_with_adapter();
        swap_comes = swap::comes();
        swap_of_a_cgroup = swap::of_a_cgroup();
        machine_overcommit = machine::overcommit();
    }

    programs! { Stock:
        adopting = "adopting" [] [("REGALL_HCA_FILL", "later"), ("REGALL_PIN", "auto"), ("REGALL_ACCESS", "remote-atomic")] Same;
        managed = "managed" [] [] Same;
        prices = "prices" [] [("REGALL_PIN", "auto"), ("REGALL_REVOKE_MS", "off")] Same;
        prices_odp = "prices" [] [("REGALL_PIN", "auto"), ("REGALL_REVOKE_MS", "off"), ("REGALL_HCA_MODE", "odp")] Same;
        crowded = "crowded" [] [("REGALL_PIN", "auto")] Same;
        unseen = "unseen" [] [("REGALL_PIN", "auto")] Same;
        unseen_ring = "unseen" ["ring"] [("REGALL_PIN", "auto")] Same;
        unseen_code = "unseen" ["code"] [("REGALL_PIN", "auto")] Same;
        untouched = "untouched" [] [("REGALL_PIN", "auto"), ("REGALL_ACCESS", "remote-atomic")] Same;
        sizes = "sizes" [] [("REGALL_PIN", "auto"), ("REGALL_ACCESS", "remote-atomic")] Same;
        looked_up = "looked_up" [] [("REGALL_PIN", "auto"), ("REGALL_ACCESS", "remote-atomic")] Same;
        filtered = "filtered" [] [("REGALL_PIN", "auto")] Same;
        keys_auto = "keys" [] [("REGALL_PIN", "auto")] Same;
        busy_auto = "busy" ["100"] [("REGALL_PIN", "auto")] Same;
        borrow = "borrow" [] [("REGALL_REVOKE_MS", "off")] Same;
        rights = "rights" [] [] Same;
        revoke = "revoke" [] [] Same;
        inherited = "inherited" [] [] Same;
        no_files = "no_files" [] [] Same;
        loaded_auto = "loaded" [] [("REGALL_PIN", "auto")] Same;
        limits = "limits" [] [] Same;
        odd = "odd" [] [] Same;
        settings = "settings" [] [] Same;
        cost = "cost" [] [("REGALL_REVOKE_MS", "off")] Same;
        requests = "requests" [] [] Same;
        requests_auto = "requests" [] [("REGALL_PIN", "auto")] Same;
        requests_within = "requests_within" [] [] Same;
        closed = "closed" [] [] Same;
        calls = "calls" [] [("REGALL_PIN", "auto")] Same;
        truth = "truth" ["60", "1", REGALL, "both"] [("REGALL_ACCESS", "remote-read")] Alone;
    }
}

/// What `make test` has no time for: the same programs with other settings, and more of others' programs.
mod stock_more {
    use super::*;

    checks! { Stock:
        mpich = mpi("mpich", CACHED);
        openmpi_silent = silent("openmpi");
        protection_keys = keys::stay();
        openmpi_uncached = mpi("openmpi", UNCACHED);
        mpich_uncached = mpi("mpich", UNCACHED);
        mpich_silent = silent("mpich");
        read_bw = perftest("ib_read_bw", &["-s", "262144"]);
        send_bw = perftest("ib_send_bw", &["-s", "262144"]);
        write_lat = perftest("ib_write_lat", &["-s", "64"]);
        few_regions = on_few_regions();
        checked_others = checked::others_are_right();
        checked_ucx = checked::caches_of_ucx();
        machine_pool = machine::pool();
    }

    programs! { Stock:
        grows = "grows" [] [("REGALL_PIN", "auto")] Same;
        descriptors = "descriptors" [] [] Same;
        whose = "whose" [] [] Same;
        late = "late" [] [("REGALL_ACCESS", "remote-atomic")] Same;
        domains = "domains" [] [] Same;
        forks = "forks" [] [] Same;
        adopting_in_the_call = "adopting" ["shut"] [("REGALL_HCA_FILL", "later"), ("REGALL_PIN", "auto"), ("REGALL_ACCESS", "remote-atomic")] Same;
        adopting_goes_on = "adopting" ["goes"] [("REGALL_HCA_FILL", "later"), ("REGALL_PIN", "auto"), ("REGALL_ACCESS", "remote-atomic")] Same;
        adopting_refused = "adopting" ["refused"] [("REGALL_HCA_FILL", "later"), ("REGALL_LIMIT", "200G"), ("REGALL_ACCESS", "remote-atomic")] Same;
        crowded_at_once = "crowded" [] [] Same;
        crowded_by_symbols = "crowded" [] [BY_SYMBOLS, ("REGALL_PIN", "auto")] Same;
        adopting_now = "adopting" ["now"] [("REGALL_PIN", "auto"), ("REGALL_ACCESS", "remote-atomic")] Same;
        unseen_code_at_once = "unseen" ["code"] [] Same;
        managed_reached = "managed" [] [("REGALL_ACCESS", "remote-atomic")] Same;
        looked_up_at_once = "looked_up" [] [("REGALL_ACCESS", "remote-atomic")] Same;
        filtered_reached = "filtered" [] [("REGALL_ACCESS", "remote-atomic")] Same;
        filtered_by_symbols = "filtered" [] [BY_SYMBOLS, ("REGALL_PIN", "auto")] Same;
        filtered_later = "filtered" [] [("REGALL_HCA_FILL", "later")] Same;
        borrow_auto = "borrow" [] [("REGALL_PIN", "auto"), ("REGALL_REVOKE_MS", "off")] Same;
        truth_auto = "truth" ["24", "3", REGALL, "both"] [("REGALL_ACCESS", "remote-read"), ("REGALL_PIN", "auto"), ("REGALL_REVOKE_MS", "1")] Alone;
        busy = "busy" ["300"] [] Same;
        keys = "keys" [] [] Same;
        keys_exact = "keys" [] [("REGALL_KEYS", "exact")] Same;
        borrow_off = "borrow" [] [("REGALL_HCA", "off")] Same;
        revoke_exact = "revoke" [] [("REGALL_KEYS", "exact")] Same;
        revoke_in_calls = "revoke" ["shut"] [] Same;
        revoke_in_calls_again = "revoke" ["shut", "again"] [] Same;
        revoke_soon = "revoke" [] [("REGALL_REVOKE_MS", "1"), ("REGALL_PIN", "auto")] Alone;
        inherited_auto = "inherited" [] [("REGALL_PIN", "auto")] Same;
        inherited_later = "inherited" [] [("REGALL_HCA_FILL", "later")] Same;
        whose_by_symbols = "whose" [] [BY_SYMBOLS] Same;
        forks_by_symbols = "forks" [] [BY_SYMBOLS] Same;
        forks_on_stacks = "forks" ["on_stacks"] [] Same;
        forks_that_share = "forks" ["share"] [("REGALL_SHARE", "always")] Same;
        loaded = "loaded" [] [] Same;
        cost_by_symbols = "cost" [] [BY_SYMBOLS, ("REGALL_REVOKE_MS", "off")] Same;
        requests_off = "requests" [] [("REGALL_HCA", "off")] Same;
        requests_exact = "requests" [] [("REGALL_KEYS", "exact")] Same;
        requests_by_symbols = "requests" [] [BY_SYMBOLS] Same;
        closed_by_symbols = "closed" [] [BY_SYMBOLS] Same;
        descriptors_exact = "descriptors" [] [("REGALL_KEYS", "exact")] Same;
        descriptors_refused = "descriptors" ["refused"] [] Same;
        borrow_by_symbols = "borrow" [] [BY_SYMBOLS, ("REGALL_REVOKE_MS", "off")] Same;
        inherited_by_symbols = "inherited" [] [BY_SYMBOLS] Same;
        storm = "storm" ["6"] [("REGALL_REVOKE_MS", "1")] Same;
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
        checked = checked::finds_process_madvise();
    }

    programs! { Odp:
        keys = "keys" [] [] Same;
        odd = "odd" [] [] Same;
        settings = "settings" [] [] Same;
        requests = "requests" [] [] Same;
        descriptors = "descriptors" [] [] Same;
        truth = "truth" ["30", "2", REGALL, "lend"] [("REGALL_ACCESS", "remote-read")] Alone;
    }
}

/// A program that nobody listed would never run.
#[test]
fn all_programs_are_listed() {
    let listed = [
        stock::program::LISTED,
        stock_more::program::LISTED,
        odp::program::LISTED,
        machine::LISTED,
        checked::LISTED,
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
        // Ranks have a helper there.
        command.env("PMI_RANK", "0");
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

/// In protection domains of adapters that REGALL_HCA_DEVICES does not name nothing is registered.
fn devices_by_name() -> Checked {
    need("ibv_rc_pingpong")?;
    let options = ["-d", "rxe0", "-g", "0", "-c", "-n", "20", "-s", "65536"];
    let server = [&["ibv_rc_pingpong"], &options[..]].concat();
    let client = [&server[..], &["localhost"]].concat();
    for (devices, adopted) in [("mlx5_*,rxe[1-9]", false), ("mlx5_*,rxe?", true)] {
        let prepare = |command: &mut Command| {
            command.env("REGALL_HCA_DEVICES", devices);
        };
        let ready = || listens(18515);
        let (server, client, stats) = pair_of(&server, &client, Mode::Populate, ready, prepare);
        well(&[&server, &client]);
        let above = |name: &str| {
            let each = stats.counter("ibv_rc_pingpong", name);
            assert_eq!(each.len(), 2, "{name}");
            each.iter().map(|n| *n > 0).collect::<Vec<_>>()
        };
        assert_eq!(above("domains"), [adopted; 2], "{devices}");
        assert_eq!(above("pd_left_out"), [!adopted; 2], "{devices}");
    }
    Ok(())
}

/// A shim that does not notice madvise is found out by what a peer reads.
fn truth_of_the_blind() -> Checked {
    let mut command = Command::new(build::program("rdma/truth"));
    command.args(["30", "5"]).arg(build::regall()).arg("lend");
    Mode::Populate.apply(&mut command);
    command.env("LD_PRELOAD", build::planted());
    command.env("TESTS_PLANTED", "blind-to-madvise");
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
    let shim = build::planted();
    for (n, errno) in (1..290)
        .step_by(if thorough() { 12 } else { 67 })
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
                command.env("LD_PRELOAD", build::planted());
                command.env("TESTS_PLANTED", "few-regions");
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
    let revokes = |(name, value): &(&str, &str)| *name == "REGALL_REVOKE_MS" && *value != "off";
    let rotates = env.iter().any(revokes);
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
