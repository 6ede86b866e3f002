//! Other people's programs: MPI, perftest, libfabric, librdmacm, and rdma-core's own tests.

use super::*;

/// UCX's registration cache, on and off.
pub const CACHED: (&str, &str) = ("UCX_IB_REG_METHODS", "rcache,direct");
pub const UNCACHED: (&str, &str) = ("UCX_IB_REG_METHODS", "direct");

/// Two ranks of `program`, behind the words of `wrapper`.
pub fn ranks(mpi: &str, wrapper: &[&str], program: &str, mode: Mode) -> Command {
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
pub fn printed(of: &Outcome) -> (Vec<String>, Vec<String>) {
    let text = of.stdout.clone() + &of.others_stderr();
    let (complaints, results): (Vec<_>, Vec<_>) = text.lines().partition(|l| l.contains("UCX"));
    let bare = |l: &str| l.replace(|c: char| c.is_ascii_hexdigit(), "");
    let mut complaints: Vec<_> = complaints.into_iter().map(bare).collect();
    complaints.sort();
    (results.into_iter().map(str::to_owned).collect(), complaints)
}

pub fn mpi(mpi: &str, cache: (&str, &str)) -> Checked {
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
pub fn silent(mpi: &str) -> Checked {
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
pub fn pair(
    server: &[&str],
    client: &[&str],
    mode: Mode,
    ready: fn() -> bool,
) -> (Outcome, Outcome, Stats) {
    pair_of(server, client, mode, ready, |_| ())
}

/// As [`pair`], with what `prepare` does to both.
pub fn pair_of(
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
    let deadline = Instant::now() + TIMEOUT;
    while !ready() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    let client = child::run(&mut command(client), TIMEOUT);
    (running.finish(), client, stats)
}

/// Both ended well, or why not.
pub fn well(of: &[&Outcome]) {
    for done in of {
        done.must_succeed();
    }
}

/// Somebody listens on this port (in the form of /proc/net/tcp).
pub fn listens(port: u16) -> bool {
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
pub fn measured(of: &Outcome) -> Vec<(u64, u64)> {
    let row = |line: &str| {
        let mut numbers = line.split_whitespace().map(|w| w.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    };
    of.stdout.lines().filter_map(row).collect()
}

pub fn perftest(tool: &str, more: &[&str]) -> Checked {
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

pub fn fi_pingpong() -> Checked {
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

pub fn rping() -> Checked {
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
pub fn rc_pingpong(more: &[&str]) -> Checked {
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

/// Modules of rdma-core's own tests: each test ends as without the shim.
pub fn rdma_core(modules: &[&str]) -> Checked {
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
