//! Many mappings, threads, ranks, bytes, events: time and memory stay in proportion.
//!
//! What is asserted are counts and bytes. Times are only told, in the table, and drawn.

#[path = "scale/flat.rs"]
mod flat;

use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

use regall_tests::build;
use regall_tests::child;
use regall_tests::mode::{self, Mode};
use regall_tests::soak::{self, Row};

const TIMEOUT: Duration = Duration::from_secs(7200);

/// A line of c-tests/scale.
#[derive(Clone, Copy, Debug)]
struct Line {
    made: u64,
    ranges: u64,
    own: u64,
    events: u64,
    pinned: u64,
    descriptors: u64,
    nanos: u64,
}

/// What the shim may have for itself.
fn allowed(ranges: u64, threads: u64) -> u64 {
    (1 << 20) + 200 * ranges + 4096 * threads
}

fn scale(what: &str, count: u64, mode: Mode) -> Vec<Line> {
    let mut command = Command::new(build::program("scale/scale"));
    mode.apply(command.args([what, &count.to_string()]));
    let outcome = child::run(&mut command, TIMEOUT);
    outcome.must_succeed();
    assert_eq!(outcome.regall_lines(), Vec::<&str>::new());
    let line = |text: &str| {
        let all: Vec<u64> = text
            .split(' ')
            .map(|n| n.parse().expect("a number"))
            .collect();
        let [made, ranges, own, events, pinned, descriptors, nanos] = all[..] else {
            panic!("{text}");
        };
        Line {
            made,
            ranges,
            own,
            events,
            pinned,
            descriptors,
            nanos,
        }
    };
    outcome.stdout.lines().map(line).collect()
}

#[test]
fn mappings() {
    let row = Row::begin("scale", "mappings");
    let most = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("a limit");
    let most: u64 = most.trim().parse().expect("a number");
    let count = 60_000.min(most - 1000);
    let lines = scale("mappings", count, Mode::OnFault);
    let mut highest = 0;
    for line in &lines {
        highest = highest.max(line.ranges);
        assert!(line.own <= allowed(highest, 0), "{line:?}");
        assert!(line.ranges >= line.made, "{line:?}");
    }
    let last = lines.last().expect("lines");
    assert!(highest >= count);
    row.passed(format!(
        "{highest} ranges, {} KiB of the shim's own: {} B each",
        last.own >> 10,
        last.own / highest
    ));
}

#[test]
fn threads() {
    let row = Row::begin("scale", "threads");
    let count = 1000;
    let lines = scale("threads", count, Mode::Populate);
    let [before, first, second, after] = lines[..] else {
        panic!("{lines:?}");
    };
    assert!(first.ranges >= before.ranges + count, "{first:?}");
    assert!(first.own <= allowed(first.ranges, count), "{first:?}");
    // The second thousand is no dearer, and leaves nothing open.
    assert_eq!(second.own, first.own);
    assert_eq!(after.descriptors, before.descriptors);
    row.passed(format!(
        "{count} threads, {} ranges, {} KiB of the shim's own",
        first.ranges,
        first.own >> 10
    ));
}

/// Only in `make soak`, and only where there is as much memory twice.
#[test]
fn ten_gibibytes() {
    let row = Row::begin("scale", "10 GiB pinned");
    let memory = std::fs::read_to_string("/proc/meminfo").expect("meminfo");
    let available = memory
        .lines()
        .find_map(|l| l.strip_prefix("MemAvailable:"))
        .and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .unwrap_or(0)
        << 10;
    let soak = std::env::var_os("SOAK_SECONDS").is_some();
    let bytes: u64 = if soak { 10 << 30 } else { 256 << 20 };
    if available < bytes * 3 / 2 {
        let reason = format!("{} MiB of memory are free", available >> 20);
        regall_tests::skip(&reason);
        return row.skipped(reason);
    }
    let lines = scale("bytes", bytes, Mode::Populate);
    let [before, there, after] = lines[..] else {
        panic!("{lines:?}");
    };
    assert!(there.pinned >= before.pinned + bytes, "{there:?}");
    assert!(after.pinned < before.pinned + (1 << 20), "{after:?}");
    assert_eq!(there.own, before.own);
    row.passed(format!(
        "{} MiB pinned in {:.2} s",
        bytes >> 20,
        there.nanos as f64 / 1e9
    ));
}

/// A day's worth: what an MPI program does in a second (a hundred events, say), 86,400 times.
#[test]
fn a_day() {
    let row = Row::begin("scale", "a day's events");
    let count = soak::rounds(200_000, 8_640_000);
    let lines = scale("events", count, Mode::Populate);
    // What the first quarter needed is enough for the rest.
    let warm = &lines[lines.len() / 4];
    let last = lines.last().expect("lines");
    assert!(last.events - lines[0].events >= count, "{last:?}");
    assert_eq!(last.descriptors, warm.descriptors);
    let mut highest = 0;
    for line in &lines {
        highest = highest.max(line.ranges);
        assert!(line.own <= allowed(highest, 0), "{line:?}");
    }
    let piece = 128 << 10;
    assert!(
        last.own <= warm.own + piece,
        "{} after {}",
        last.own,
        warm.own
    );
    let file = build::target().join("soak");
    std::fs::create_dir_all(&file).expect("a folder");
    std::fs::write(file.join("events.svg"), picture(&lines)).expect("the plot");
    let each = |line: &Line| line.nanos / (count / 40);
    row.passed(format!(
        "{count} events; {} KiB of the shim's own from the first quarter on; {} ns an event at \
         first, {} at last (target/soak/events.svg)",
        last.own >> 10,
        each(&lines[1]),
        each(last)
    ));
}

/// Nanoseconds an event and bytes of the shim's own, each against the events so far.
fn picture(lines: &[Line]) -> String {
    let last = lines.last().expect("lines");
    let step = lines[1].made;
    let mut out = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 420\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"760\" height=\"420\" fill=\"white\"/>",
    );
    let mut curve = |top: u64, title: &str, value: &dyn Fn(&Line) -> f64| {
        let most = lines.iter().skip(1).map(value).fold(0.0, f64::max) * 1.25;
        let mut points = String::new();
        for line in &lines[1..] {
            let x = 60.0 + 680.0 * line.made as f64 / last.made as f64;
            let y = (top + 150) as f64 - 130.0 * value(line) / most;
            let _ = write!(points, "{x:.1},{y:.1} ");
        }
        let bottom = top + 150;
        let end = value(last);
        let _ = write!(
            out,
            "<text x=\"60\" y=\"{}\">{title}: {end:.0} at the end</text>\
             <path d=\"M60 {top}V{bottom}H740\" fill=\"none\" stroke=\"#222\"/>\
             <text x=\"52\" y=\"{bottom}\" text-anchor=\"end\">0</text>\
             <text x=\"52\" y=\"{}\" text-anchor=\"end\">{most:.0}</text>\
             <polyline points=\"{points}\" fill=\"none\" stroke=\"#2a7f62\" stroke-width=\"2\"/>",
            top - 8,
            top + 20,
        );
    };
    curve(
        40,
        "nanoseconds of processor time an event, the kernel's included",
        &|l| l.nanos as f64 / step as f64,
    );
    curve(240, "KiB of the shim's own", &|l| l.own as f64 / 1024.0);
    let _ = writeln!(
        out,
        "<text x=\"740\" y=\"410\" text-anchor=\"end\">{} events</text></svg>",
        last.made
    );
    out
}

/// More ranks than there are processors, each of which says at its end what it had.
fn ranks(mpi: &str, mode: Mode) {
    let count = soak::rounds(8, 64);
    let row = Row::begin("scale", format!("{count} ranks, {mpi}, {mode:?}"));
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(format!("mpirun.{mpi}"));
    if mpi == "openmpi" {
        command.args(["--oversubscribe", "--bind-to", "none"]);
        // Idle ranks give the processor away.
        command.args(["--mca", "mpi_yield_when_idle", "1"]);
    }
    command.args(["-np", &count.to_string(), "env"]);
    for (name, value) in mode.settings() {
        command.arg(format!("{name}={value}"));
    }
    command.arg(format!("REGALL_STATS_FILE={}/%p", folder.path().display()));
    command.arg(build::program(&format!("ring.{mpi}")));
    let outcome = mode::launch(&mut command, Duration::from_secs(900));
    outcome.must_succeed();
    assert_eq!(outcome.stdout.trim(), format!("ring of {count}: 0 errors"));
    let mut told = 0;
    let mut most = 0;
    for file in std::fs::read_dir(folder.path())
        .expect("the statistics")
        .flatten()
    {
        let text = std::fs::read_to_string(file.path()).expect("a file");
        let stats: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let counters = &stats["counters"];
        let number = |name: &str| {
            counters[name]
                .as_u64()
                .unwrap_or_else(|| panic!("no {name}: {text}"))
        };
        let (ranges, own) = (number("ranges"), number("shim_bytes"));
        // It may have had more of them before its end, but never this many.
        assert!(
            own <= allowed(ranges.max(2000), 0),
            "{own} with {ranges} ranges"
        );
        most = most.max(own);
        told += u64::from(ranges > 0);
    }
    assert_eq!(told, count, "ranks that said what they had");
    row.passed(format!(
        "at most {} KiB of the shim's own a rank",
        most >> 10
    ));
}

#[test]
fn ranks_of_openmpi() {
    ranks("openmpi", Mode::Populate);
}

#[test]
fn ranks_of_mpich() {
    ranks("mpich", Mode::Populate);
}

#[test]
fn ranks_of_openmpi_that_share() {
    ranks("openmpi", Mode::Heap);
}
