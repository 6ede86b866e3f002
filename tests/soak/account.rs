//! The account of a job of many nodes: a part of it in `make test`, 100,000 ranks on 1,000 nodes
//! in `make soak`. What is asserted is what it says and how much memory it takes; times are told.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use regall_documents::Report;
use regall_tests::child::{self, Beside, Outcome};
use regall_tests::many::Made;
use regall_tests::mode::Mode;
use regall_tests::soak::{self, Row};
use regall_tests::{build, dashboard};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(600);

/// Bytes that merging 100,000 ranks may take.
const ALLOWED: u64 = 200 << 20;

fn regall(arguments: &[&Path]) -> (Outcome, Duration) {
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(command.args(arguments));
    let began = Instant::now();
    let done = child::run(&mut command, TIMEOUT);
    (done, began.elapsed())
}

/// The most memory that a child of this process had, in bytes.
fn memory() -> u64 {
    // SAFETY: all zeroes is a valid `rusage`.
    let mut used: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `used` outlives the call.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &mut used) };
    assert_eq!(failed, 0);
    used.ru_maxrss as u64 * 1024
}

/// Rank 17 and nine others, spread over the job.
fn odd(ranks: u64) -> Vec<u64> {
    (0..10).map(|n| 17 + n * (ranks - 18) / 9).collect()
}

fn parsed(done: &Outcome) -> Report {
    done.must_succeed();
    serde_json::from_str(&done.stdout).expect("a report")
}

/// What the report must say of the job.
fn is_whole(report: &Report, job: &Made) {
    let odd = odd(job.ranks);
    assert_eq!((report.counted, report.ranks), (job.ranks, Some(job.ranks)));
    assert_eq!(report.hosts.len() as u64, job.nodes());
    assert!(report.missing.is_empty() && report.left_out == 0);
    assert_eq!(report.alike[0].count, job.ranks - odd.len() as u64);
    let unlike: Vec<_> = report.unlike.iter().filter_map(|u| u.rank).collect();
    assert_eq!(unlike, odd);
    for u in &report.unlike {
        let rank = u.rank.expect("a rank");
        let figure = ["counters.pin_limited", "counters.hook_ns", "exe"][rank as usize % 3];
        assert_eq!(u.differs[0].figure, figure, "{u:?}");
        assert_eq!(u.host, format!("n{:05}", rank / job.per_node));
    }
}

/// A file for each rank in `all`, and one for each node in `nodes`, which is merged of them; how
/// long that took.
fn make(job: &mut Made, folder: &Path, all: &Path, nodes: &Path) -> Duration {
    let odd = odd(job.ranks);
    let mut merging = Duration::ZERO;
    for node in 0..job.nodes() {
        let parts = folder.join("parts");
        fs::create_dir(&parts).expect("a folder");
        for rank in node * job.per_node..((node + 1) * job.per_node).min(job.ranks) {
            let told = match odd.contains(&rank) {
                true => job.odd(rank),
                false => job.rank(rank),
            };
            let text = serde_json::to_string(&told).expect("JSON");
            fs::write(parts.join(rank.to_string()), text).expect("a file");
        }
        let into = nodes.join(format!("{node}.json"));
        let (done, took) = regall(&["report".as_ref(), "--merge".as_ref(), &into, &parts]);
        done.must_succeed();
        merging += took;
        for file in fs::read_dir(&parts).expect("a folder").flatten() {
            fs::rename(file.path(), all.join(file.file_name())).expect("another place");
        }
        fs::remove_dir(&parts).expect("an empty folder");
    }
    merging
}

#[test]
fn a_job_of_many_ranks() {
    let ranks = soak::rounds(2_000, 100_000);
    let mut job = Made::new(ranks, 100);
    let row = Row::begin("account", format!("{ranks} ranks, {} nodes", job.nodes()));
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (all, nodes) = (at("all"), at("nodes"));
    for made in [&all, &nodes] {
        fs::create_dir(made).expect("a folder");
    }
    let merging = make(&mut job, folder.path(), &all, &nodes);
    // Each rank's file at once, into one.
    let whole = at("whole.json");
    let (done, flat) = regall(&["report".as_ref(), "--merge".as_ref(), &whole, &all]);
    done.must_succeed();
    // A file of each node, as a tree would have them: in two steps, and then the table.
    let top = at("top.json");
    let (done, tree) = regall(&["report".as_ref(), "--merge".as_ref(), &top, &nodes]);
    done.must_succeed();
    let (table, told) = regall(&["report".as_ref(), &nodes]);
    table.must_succeed();
    let lines = table.stdout.lines().count();
    assert!(lines < 80, "{lines} lines: {}", table.stdout);
    let line = format!("alike: {} of /shared/apps/solver", ranks - 10);
    assert!(table.stdout.contains(&line), "{}", table.stdout);
    let json = "--json".as_ref();
    let reports = [&all, &whole, &nodes, &top].map(|place| {
        let report = parsed(&regall(&["report".as_ref(), json, place]).0);
        is_whole(&report, &job);
        serde_json::to_string(&report).expect("JSON")
    });
    assert!(reports.iter().all(|r| *r == reports[0]), "they differ");
    let most = memory();
    assert!(most < ALLOWED, "{most} bytes");
    let size = |file: &Path| fs::metadata(file).expect("a file").len() >> 10;
    row.passed(format!(
        "{flat:.1?} for all files, {tree:.1?} for the nodes' (table {told:.1?}), {:.0?} a node; {} MiB; a node's \
         file {} KiB, the job's {} KiB; {lines} lines",
        merging / job.nodes() as u32,
        most >> 20,
        size(&nodes.join("0.json")),
        size(&top),
    ));
}

/// What an HTTP server on the loopback answers.
fn get(port: u16, path: &str) -> Option<String> {
    let mut to = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(to, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    to.read_to_string(&mut text).ok()?;
    Some(text.split_once("\r\n\r\n")?.1.to_string())
}

fn encoded(query: &str) -> String {
    query.bytes().map(|b| format!("%{b:02x}")).collect()
}

/// A port that nobody has just now.
fn port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("a port").port()
}

/// Debian's Prometheus scrapes Debian's node exporter, which reads what `regall top` wrote; each
/// query of the dashboard has an answer.
#[test]
fn scraped() {
    let row = Row::begin("account", "prometheus and node exporter");
    if std::env::var_os("SOAK_SECONDS").is_none() {
        return row.skipped("make soak tries it");
    }
    let unpacked = |path: &str| build::target().join("unpacked").join(path);
    let exporter = unpacked("prometheus-node-exporter/usr/bin/prometheus-node-exporter");
    let prometheus = unpacked("prometheus/usr/bin/prometheus");
    if !exporter.exists() || !prometheus.exists() {
        return row.skipped("scripts/setup soak unpacks them");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::create_dir(at("metrics")).expect("a folder");
    let mut rank = Command::new("/bin/sh");
    Mode::Auto.apply(&mut rank);
    rank.env("REGALL_ONLY", "*")
        .env("PMI_RANK", "3")
        .env("SLURM_JOB_ID", "4711");
    let _rank = Beside::start(rank.args(["-c", "while :; do sleep 0.1; done"]));
    let (first, second) = (port(), port());
    let mut command = Command::new(exporter);
    Mode::Plain.apply(&mut command);
    let only = ["--collector.disable-defaults", "--collector.textfile"];
    command
        .args(only)
        .arg(format!("--collector.textfile.directory={}", at("metrics")));
    let _exporter = Beside::start(command.arg(format!("--web.listen-address=127.0.0.1:{first}")));
    let settings = format!(
        "scrape_configs:\n- job_name: node\n  scrape_interval: 1s\n  static_configs:\n  - targets: ['127.0.0.1:{first}']\n"
    );
    fs::write(at("prometheus.yml"), settings).expect("a file");
    let mut command = Command::new(prometheus);
    Mode::Plain.apply(&mut command);
    command.arg(format!("--config.file={}", at("prometheus.yml")));
    command.arg(format!("--storage.tsdb.path={}", at("data")));
    let _prometheus =
        Beside::start(command.arg(format!("--web.listen-address=127.0.0.1:{second}")));
    let mut open = dashboard::queries();
    // There is nothing over the limit, which is no series.
    open.retain(|query| !query.contains("reason=\"limit\""));
    let asked = open.len();
    let began = Instant::now();
    while !open.is_empty() {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "no answer: {open:#?}"
        );
        let metrics = at("metrics");
        let words = ["top", "--once", "--textfile", &metrics].map(Path::new);
        // 2 where others have processes that can't be looked at.
        let done = regall(&words).0;
        assert!(Path::new(&at("metrics/regall.prom")).is_file(), "{done:?}");
        std::thread::sleep(Duration::from_secs(1));
        open.retain(|query| {
            let path = format!("/api/v1/query?query={}", encoded(query));
            let said = get(second, &path).unwrap_or_default();
            let said: Value = serde_json::from_str(&said).unwrap_or_default();
            assert_ne!(said["status"], "error", "{query}: {said}");
            said["data"]["result"].as_array().is_none_or(Vec::is_empty)
        });
    }
    let query = encoded("regall_processes{exported_job=\"4711\",rank=\"3\"}");
    let said = get(second, &format!("/api/v1/query?query={query}")).unwrap_or_default();
    assert!(said.contains("\"regall_processes\""), "{said}");
    row.passed(format!("{asked} queries of the dashboard answered"));
}
