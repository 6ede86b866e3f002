//! What is installed for a node's monitoring: units for systemd, a dashboard for Grafana.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use regall_tests::child::{self, Beside};
use regall_tests::dashboard;
use regall_tests::installed::make;
use regall_tests::mode::Mode;
use regall_tests::{build, coverage, missing};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Names in a query that are neither metrics nor labels.
const WORDS: [&str; 4] = ["sum", "by", "rate", "topk"];

#[test]
fn the_dashboard_asks_for_what_is_written() {
    let mut command = Command::new("/bin/sleep");
    Mode::Auto.apply(&mut command);
    let beside = Beside::start(
        command
            .arg("1000")
            .env("PMI_RANK", "0")
            .env("SLURM_JOB_ID", "7"),
    );
    let began = Instant::now();
    while coverage::dump(beside.pid()).is_err() {
        assert!(began.elapsed() < TIMEOUT, "it never was published");
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(command.args(["top", "--once", "--openmetrics", "--interval", "0.1"]));
    let done = child::run(&mut command, TIMEOUT);
    let samples = done.stdout.lines().filter(|l| !l.starts_with('#'));
    let (mut metrics, mut labels) = (BTreeSet::new(), BTreeSet::new());
    for line in samples {
        let (name, rest) = line.split_once('{').expect("labels");
        metrics.insert(name);
        let pairs = rest.split('}').next().unwrap_or("").split(',');
        labels.extend(pairs.filter_map(|p| p.split('=').next()));
    }
    // What Prometheus calls a label that the scrape has as well.
    assert!(labels.remove("job"), "{labels:?}");
    labels.insert("exported_job");
    let queries = dashboard::queries();
    assert!(queries.len() > 10, "{queries:?}");
    for query in &queries {
        let names = dashboard::names(query);
        let asked = names.iter().filter(|n| metrics.contains(**n)).count();
        assert_eq!(asked, 1, "{query}: no metric, or several");
        for name in names {
            let known = metrics.contains(name) || labels.contains(name) || WORDS.contains(&name);
            // (The `m` of `[5m]` stands behind a digit.)
            assert!(known, "{query}: nothing writes {name}");
        }
    }
}

/// What root's commands have at the most (64 MiB) fits, with what the kernel has for them.
#[test]
fn what_metrics_take_has_a_limit() {
    let read = |file: &str| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
        std::fs::read_to_string(file).expect("a file")
    };
    let limit = |text: &str, name: &str, unit: &str| -> Option<u32> {
        let line = text.lines().find_map(|l| l.trim().strip_prefix(name))?;
        line.trim().strip_suffix(unit)?.parse().ok()
    };
    let unit = read("cluster/monitoring/regall-metrics.service.in");
    let pods = read("packaging/kubernetes/metrics.yaml");
    let limits = pods.split_once("limits:").expect("limits").1;
    let all = [
        limit(&unit, "MemoryMax=", "M"),
        limit(limits, "memory:", "Mi"),
    ];
    assert!(
        all.iter()
            .all(|l| l.is_some_and(|l| (96..=128).contains(&l))),
        "{all:?}"
    );
    assert_eq!(limit(&unit, "MemorySwapMax=", ""), Some(0));
}

/// As systemd reads them, where it is installed; what they execute is there.
#[test]
fn the_units_are_good() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("opt");
    make("install", &prefix, Path::new(""));
    let at = |name: &str| prefix.join("share/regall/monitoring").join(name);
    let service = std::fs::read_to_string(at("regall-metrics.service")).expect("a unit");
    let line = service.lines().find_map(|l| l.strip_prefix("ExecStart="));
    let mut words = line.expect("a command").split(' ');
    let program = words.next().expect("a program");
    let metrics = folder.path().join("metrics");
    std::fs::create_dir(&metrics).expect("a folder");
    let mut command = Command::new(program);
    Mode::Plain.apply(&mut command);
    let folder_of = |w| {
        if w == "/var/lib/prometheus/node-exporter" {
            metrics.as_os_str()
        } else {
            w
        }
    };
    command.args(words.map(std::ffi::OsStr::new).map(folder_of));
    let done = child::run(&mut command, TIMEOUT);
    assert!(metrics.join("regall.prom").is_file(), "{done:?}");
    assert!(at("grafana.json").is_file());
    if missing("systemd-analyze") {
        return;
    }
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]);
    verify.args([at("regall-metrics.service"), at("regall-metrics.timer")]);
    let done = child::run(&mut verify, TIMEOUT);
    done.must_succeed();
    assert!(!done.stderr.contains("regall-metrics"), "{}", done.stderr);
    // So they are with the drop-in for another folder, which takes all three places.
    let conf = std::fs::read_to_string(at("folder.conf")).expect("a drop-in");
    let other = "/var/lib/node_exporter/textfile_collector";
    assert_eq!(conf.matches(other).count(), 3, "{conf}");
    assert_eq!(
        service.matches("/var/lib/prometheus/node-exporter").count(),
        3
    );
    let drop_ins = at("regall-metrics.service.d");
    std::fs::create_dir(&drop_ins).expect("a folder");
    std::fs::write(drop_ins.join("folder.conf"), conf).expect("a drop-in");
    let done = child::run(&mut verify, TIMEOUT);
    done.must_succeed();
    assert!(!done.stderr.contains("folder.conf"), "{}", done.stderr);
}
