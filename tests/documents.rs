//! What regall says to programs: one vocabulary, in documents that fit the schemas that are
//! installed, as somebody else's validator reads them.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use regall_documents::{Outcome, Process, Top, Verify, Wrong};
use regall_tests::child::{self, Beside, Outcome as Ended};
use regall_tests::mode::Mode;
use regall_tests::{build, coverage, skip};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(60);

/// Debian's, which has the packages that scripts/setup installs.
const PYTHON: &str = "/usr/bin/python3";

fn sleeper(mode: Mode) -> Beside {
    let mut command = Command::new("/bin/sleep");
    mode.apply(&mut command);
    let beside = Beside::start(command.arg("1000").env("OMPI_COMM_WORLD_RANK", "5"));
    let began = Instant::now();
    while coverage::dump(beside.pid()).is_err() {
        assert!(began.elapsed() < TIMEOUT, "it never was published");
        std::thread::sleep(Duration::from_millis(20));
    }
    beside
}

fn regall(arguments: &[&str]) -> Ended {
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    child::run(command.args(arguments), TIMEOUT)
}

/// What a program leaves at its end.
fn at_exit(folder: &Path) -> String {
    let file = folder.join("exit");
    let mut command = Command::new("/bin/true");
    Mode::Populate.apply(&mut command);
    command
        .env("REGALL_STATS_FILE", &file)
        .env("PMI_RANK", "1")
        .env("PMI_SIZE", "2");
    child::run(&mut command, TIMEOUT).must_succeed();
    fs::read_to_string(&file).expect("REGALL_STATS_FILE")
}

/// Reads documents and says which do not fit their schemas, a line each.
const VALIDATOR: &str = "
import json, sys
from jsonschema import Draft202012Validator as Validator
for pair in sys.argv[1:]:
    schema, document = (json.load(open(file)) for file in pair.split('='))
    Validator.check_schema(schema)
    for error in Validator(schema).iter_errors(document):
        print(pair.split('=')[1], error.json_path, error.message[:200])
";

fn validated(pairs: &[String]) -> Option<String> {
    let mut probe = Command::new(PYTHON);
    if !probe
        .args(["-c", "import jsonschema"])
        .output()
        .is_ok_and(|o| o.status.success())
    {
        skip("no python3-jsonschema");
        return None;
    }
    let mut command = Command::new(PYTHON);
    let done = child::run(command.args(["-c", VALIDATOR]).args(pairs), TIMEOUT);
    done.must_succeed();
    Some(done.stdout)
}

#[test]
fn all_fit_their_schemas() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    regall(&["pages", &at("")]).must_succeed();
    let beside = sleeper(Mode::Populate);
    let pid = beside.pid().to_string();
    let exit = at_exit(folder.path());
    let mut all = vec![("process", "exit", exit.clone())];
    let left = at("exit");
    let kept = at("kept");
    regall(&["check", "--keep", &kept, "--", "true"]).must_succeed();
    for (schema, arguments) in [
        ("process", &["stats", "--json", &pid][..]),
        ("top", &["top", "--once", "--json", "--interval", "0.1"]),
        ("top", &["stats", "--all", "--json", "--filter", &pid]),
        ("verify", &["verify", "--json", &pid]),
        ("verify", &["verify", "--json", "--strict", &pid]),
        ("verify", &["verify", "--json", "4194304"]),
        ("maps", &["maps", "--json", &pid]),
        ("report", &["report", "--json", &left]),
        ("doctor", &["doctor", "--json"]),
        ("config", &["config", "--json"]),
        ("config", &["config", "--json", "--check", "registrations"]),
        ("check", &["check", "--json", "--read", &kept]),
    ] {
        all.push((schema, arguments[0], regall(arguments).stdout));
    }
    // What has an old name, and what has none, is seen.
    let old = exit.replacen("\"events\"", "\"calls\"", 1);
    all.push(("process", "old", old));
    all.push((
        "process",
        "word",
        exit.replacen("\"mmap\"", "\"mapping\"", 1),
    ));
    let pairs = all.iter().enumerate().map(|(n, (schema, name, text))| {
        let file = at(&format!("{n}.{name}"));
        fs::write(&file, text).expect("a file");
        format!(
            "{}={file}",
            at(&format!("share/regall/schema/{schema}.json"))
        )
    });
    let Some(said) = validated(&pairs.collect::<Vec<_>>()) else {
        return;
    };
    let bad: BTreeSet<_> = said
        .lines()
        .filter_map(|l| l.split(' ').next()?.rsplit('.').next())
        .collect();
    assert_eq!(bad, BTreeSet::from(["old", "word"]), "{said}");
}

/// The names in a document, without those of words that are not always there.
fn names(value: &Value, path: &str, all: &mut BTreeSet<String>) {
    for (name, inner) in value.as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        if !matches!(
            path.as_str(),
            ".bytes.reason" | ".bytes.pin" | ".bytes.hca" | ".live"
        ) {
            names(inner, &path, all);
        }
        all.insert(path);
    }
}

#[test]
fn the_shims_names_are_the_commands() {
    let folder = tempfile::tempdir().expect("a folder");
    let exit = at_exit(folder.path());
    let left: Process = serde_json::from_str(&exit).expect("a process");
    assert_eq!((left.version, left.rank, left.ranks), (1, Some(1), Some(2)));
    assert!(left.library.is_some() && left.live.is_none(), "{exit}");
    let beside = sleeper(Mode::Populate);
    let live = regall(&["stats", "--json", &beside.pid().to_string()]).stdout;
    let seen: Process = serde_json::from_str(&live).expect("a process");
    assert_eq!((seen.version, seen.rank), (1, Some(5)));
    for (process, text) in [(&left, &exit), (&seen, &live)] {
        let sum = |sums: &regall_documents::Counts| sums.values().sum::<u64>();
        let bytes = &process.bytes;
        let all = sum(&bytes.state);
        assert!(all > 1 << 20, "{text}");
        assert_eq!((sum(&bytes.pin), sum(&bytes.hca)), (all, all), "{text}");
        let excluded = bytes.state.get("excluded").copied();
        assert_eq!(Some(sum(&bytes.reason)), excluded, "{text}");
        assert_eq!(
            bytes.pin.get("yes"),
            process.counters.get("pinned_bytes"),
            "{text}"
        );
    }
    let of = |text: &str| {
        let mut all = BTreeSet::new();
        let value = serde_json::from_str(text).expect("JSON");
        names(&value, "", &mut all);
        all
    };
    assert_eq!(of(&exit), of(&live));
    let top = regall(&["top", "--once", "--json", "--interval", "0.1"]);
    let top: Top = serde_json::from_str(&top.stdout).expect("processes");
    let one = top.processes.iter().find(|p| p.pid == beside.pid());
    let one = one.expect("the process");
    assert_eq!(one.start_time, seen.start_time);
    let rates = one.live.as_ref().and_then(|l| l.rates);
    assert!(rates.is_some_and(|r| r.seconds > 0.0), "{one:?}");
}

#[test]
fn verify_says_what_it_says_in_words() {
    let beside = sleeper(Mode::Populate);
    let pid = beside.pid().to_string();
    let asked = |arguments: &[&str]| {
        let done = regall(&[&["verify", "--json"], arguments].concat());
        let said: Verify = serde_json::from_str(&done.stdout)
            .unwrap_or_else(|e| panic!("{e}: {}{}", done.stdout, done.stderr));
        assert_eq!(done.end(), format!("exit {}", said.exit_code), "{said:?}");
        said
    };
    let good = asked(&[&pid]);
    let one = &good.processes[0];
    assert_eq!(
        (one.pid, one.outcome, good.exit_code),
        (beside.pid(), Outcome::Ok, 0)
    );
    assert!(one.bytes.is_some() && one.mappings.is_some() && one.gaps.is_empty());
    // Without a domain the pin set alone counts.
    assert_eq!(asked(&["--strict", &pid]).exit_code, 0);
    let auto = sleeper(Mode::Auto);
    let strict = asked(&["--strict", &auto.pid().to_string()]);
    let one = &strict.processes[0];
    assert_eq!(
        (one.outcome, strict.exit_code),
        (Outcome::Gaps, 1),
        "{one:?}"
    );
    assert!(
        one.gaps.iter().all(|g| g.prot.is_some() && g.bytes > 0),
        "{one:?}"
    );
    let vanished = asked(&["4194304", &pid]);
    assert_eq!(vanished.exit_code, 2);
    assert_eq!(vanished.processes[0].outcome, Outcome::Unknown);
    assert!(vanished.processes[0].why.is_some() && vanished.processes.len() == 2);
    // With --watch a line for each round, and one for the end.
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    let mut watching = command
        .args(["verify", "--json", "--watch", "0.1", &pid])
        .stdout(Stdio::piped())
        .spawn()
        .expect("regall");
    let lines = BufReader::new(watching.stdout.take().expect("its output")).lines();
    let rounds: Vec<Verify> = lines
        .map(|line| {
            // (It has ended when that was the second one, too.)
            beside.signal(libc::SIGKILL);
            serde_json::from_str(&line.expect("a line")).expect("a document")
        })
        .collect();
    let code = watching.wait().expect("its end").code();
    assert_eq!(code, Some(0), "{rounds:?}");
    let (last, before) = rounds.split_last().expect("a round");
    assert!(last.processes.is_empty() && last.exit_code == 0, "{last:?}");
    assert!(!before.is_empty() && before.iter().all(|r| r.processes.len() == 1));
}

/// A program that has had memory unlocked behind the shim's back; `as_much`: and has locked as much
/// that is not pinned.
fn with_unlocked_memory(mode: Mode, as_much: bool) -> Beside {
    let mut command = Command::new(build::program("unseen"));
    mode.apply(command.args(as_much.then_some("equal")));
    let beside = Beside::start(&mut command);
    let comm = format!("/proc/{}/comm", beside.pid());
    let began = Instant::now();
    while fs::read_to_string(&comm).expect("its name").trim() != "unlocked" {
        assert!(began.elapsed() < TIMEOUT, "{mode:?}: it never came to it");
        std::thread::sleep(Duration::from_millis(5));
    }
    beside
}

/// What the directory says is pinned is held against what the kernel has locked.
#[test]
fn memory_that_is_not_locked_is_a_gap() {
    for (mode, as_much, bytes) in [
        (Mode::OnFault, false, 3 << 12),
        (Mode::Populate, false, 3 << 12),
        (Mode::Populate, true, 3 << 12),
        (Mode::Strict, false, 0),
        (Mode::Off, false, 0),
    ] {
        let beside = with_unlocked_memory(mode, as_much);
        let done = regall(&["verify", "--json", &beside.pid().to_string()]);
        let said: Verify = serde_json::from_str(&done.stdout).expect("a document");
        assert_eq!(said.exit_code, u8::from(bytes != 0), "{mode:?}: {said:?}");
        let gaps = &said.processes[0].gaps;
        let unlocked = gaps.iter().filter(|g| g.wrong == Wrong::Unlocked);
        let found: u64 = unlocked.map(|g| g.bytes).sum();
        assert_eq!(
            (gaps.len(), found),
            (usize::from(bytes != 0), bytes),
            "{mode:?}"
        );
    }
}

/// The report of a check does not mix with what the command prints.
#[test]
fn a_check_as_json_beside_output() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = |words: &str| {
        let mut command = Command::new("sh");
        Mode::Plain.apply(&mut command);
        command.current_dir(folder.path()).arg("-c").arg(words);
        child::run(command.env("R", build::regall()), TIMEOUT)
    };
    let is_check = |text: &str| {
        let told: Result<regall_documents::Check, _> = serde_json::from_str(text);
        told.unwrap_or_else(|e| panic!("{e}: {text}"))
    };
    let mixed = script("$R check --json perl -e 'print qq(x\\n)'");
    assert_eq!(
        (mixed.end().as_str(), mixed.stdout.as_str()),
        ("exit 2", "")
    );
    assert!(
        mixed.stderr.contains("--json=FILE, or --json-fd=N"),
        "{}",
        mixed.stderr
    );
    let file = script("$R check --json=out perl -e 'print qq(x\\n)'");
    assert_eq!(
        (file.end().as_str(), file.stdout.as_str()),
        ("exit 0", "x\n")
    );
    is_check(&fs::read_to_string(folder.path().join("out")).expect("a report"));
    // The command has no such descriptor, so nobody waits for what it leaves running.
    let has = "print STDERR -e q(/proc/self/fd/3) ? q(has it) : q()";
    let piped = script(&format!("$R check --json-fd=3 perl -e '{has}' 3>&1 >&2"));
    piped.must_succeed();
    is_check(&piped.stdout);
    assert!(!piped.stderr.contains("has it"), "{}", piped.stderr);
    let full = script("$R check --json-fd=3 true 3>/dev/full");
    assert_eq!(full.end(), "exit 2");
    assert!(full.stderr.contains("the records stay in"), "{full:?}");
    for (descriptor, why) in [
        ("--json-fd=1", "3.."),
        ("--json-fd=3 3>&-", "--json-fd=3"),
        ("--json-fd=3 3</dev/null", "--json-fd=3"),
        ("--json=/dev/fd/3 3</dev/null", "/dev/fd/3"),
        ("--json-fd=3 3>&1", "--json=FILE, or --json-fd=N"),
    ] {
        let (option, redirected) = descriptor.split_once(' ').unwrap_or((descriptor, ""));
        let bad = script(&format!("$R check {option} echo ran {redirected}"));
        assert_eq!((bad.end().as_str(), bad.stdout.as_str()), ("exit 2", ""));
        assert!(bad.stderr.contains(why), "{descriptor}: {}", bad.stderr);
    }
}

/// What refuses to begin leaves the last report as it is.
#[test]
fn a_refused_check_keeps_the_report() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.txt");
    fs::write(&report, "yesterday's\n").expect("a file");
    let report = report.display().to_string();
    let done = regall(&["check", "--report", &report, "--", "sbatch", "job"]);
    assert_eq!(done.end(), "exit 2");
    assert!(done.stderr.contains("sbatch"), "{}", done.stderr);
    assert_eq!(
        fs::read_to_string(&report).expect("a file"),
        "yesterday's\n"
    );
}

/// Where the kernel does not tell what it has locked, nothing is said to be well: in a mount
/// namespace of the command's own, a file without a word of that covers the kernel's.
#[test]
fn locks_that_cannot_be_read_are_no_locks() {
    let mut namespace = Command::new("unshare");
    let made = child::run(namespace.args(["-m", "true"]), TIMEOUT);
    if made.end() != "exit 0" {
        return skip("an ordinary user can't have a mount namespace");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let beside = with_unlocked_memory(Mode::Populate, false);
    let pid = beside.pid().to_string();
    for (file, word, code) in [
        ("smaps", "VmFlags", 2),
        ("status", "VmLck", 2),
        ("maps", "VmLck", 1),
    ] {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c"]);
        command.arg(
            "grep -v \"$4\" /proc/$2/$3 >\"$1\" || exit 77
            for file in /proc/$2/$3 /proc/$2/task/$2/$3; do
                mount --bind \"$1\" $file || exit 77
            done
            exec \"$5\" verify $2",
        );
        command.arg("sh").arg(folder.path().join(file));
        command.args([&pid, file, word]).arg(build::regall());
        Mode::Plain.apply(&mut command);
        let done = child::run(&mut command, TIMEOUT);
        if done.end() == "exit 77" {
            return skip("nothing can be mounted over files of /proc here");
        }
        assert_eq!(
            done.end(),
            format!("exit {code}"),
            "{file}: {}",
            done.stderr
        );
    }
}

/// A schema's properties with what they mean, as rows of a table; those of parts follow.
fn rows(schema: &Value, all: &Value, path: &str, out: &mut Vec<String>) {
    let properties = schema["properties"].as_object();
    for (name, property) in properties.into_iter().flatten() {
        let text = property["description"].as_str().unwrap_or("");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        out.push(format!(
            "| `{path}{name}` | {} |",
            text.trim_end_matches('.').replace('|', "\\|")
        ));
        let part = property["anyOf"][0]["$ref"].as_str();
        let part = part.or(property["$ref"].as_str());
        if let Some(part) = part.and_then(|p| p.rsplit('/').next()) {
            rows(&all["$defs"][part], all, &format!("{path}{name}."), out);
        }
    }
}

/// The table in docs/commands.md is what the schema says.
#[test]
fn the_page_has_every_name() {
    let page = fs::read_to_string(build::root().join("docs/commands.md")).expect("the page");
    for (name, schema) in regall_documents::schemas() {
        let schema = serde_json::to_value(schema).expect("JSON");
        assert!(page.contains(&format!("`{name}.json`")), "{name}");
        if name == "process" {
            let mut all = Vec::new();
            rows(&schema, &schema, "", &mut all);
            let table = all.join("\n");
            assert!(
                all.len() > 30 && page.contains(&table),
                "should be:\n{table}"
            );
        }
    }
}

/// Reads metrics as others do: OpenMetrics strictly, and the node exporter's text. Prints a
/// line for each: the family without `regall_`, its type, and the labels that it has.
const METRICS: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strict
from prometheus_client.parser import text_string_to_metric_families as text
for name, parser in (sys.argv[1], strict), (sys.argv[2], text):
    for family in parser(open(name).read()):
        labels = {l for s in family.samples for l in s.labels}
        print(family.name.removeprefix('regall_'), family.type, *sorted(labels))
        assert family.documentation, family.name
    print('-')
";

#[test]
fn metrics_are_as_prometheus_wants_them() {
    let mut probe = Command::new(PYTHON);
    let probe = probe.args(["-c", "import prometheus_client"]).output();
    if !probe.is_ok_and(|o| o.status.success()) {
        return skip("no python3-prometheus-client");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let beside = sleeper(Mode::Populate);
    let pid = beside.pid().to_string();
    let one = ["top", "--once", "--filter", &pid];
    let open = regall(&[&one[..], &["--openmetrics"]].concat());
    // (Exit code 2 where a test beside this one has a process that can't be looked at.)
    assert!(open.stdout.ends_with("\n# EOF\n"), "{}", open.stderr);
    fs::write(at("open"), &open.stdout).expect("a file");
    let written = regall(&[&one[..], &["--textfile", &at("")]].concat());
    assert_eq!(written.stdout, "", "{}", written.stderr);
    let there = fs::read_dir(folder.path()).expect("the folder");
    let there: BTreeSet<_> = there.map(|e| e.expect("a file").file_name()).collect();
    assert_eq!(there, BTreeSet::from(["open".into(), "regall.prom".into()]));
    let mut command = Command::new(PYTHON);
    let files = [at("open"), at("regall.prom")];
    let said = child::run(command.args(["-c", METRICS]).args(&files), TIMEOUT);
    said.must_succeed();
    let (strict, text) = said.stdout.split_once("-\n").expect("two lists");
    assert_eq!(format!("{strict}-\n"), text);
    let page = fs::read_to_string(build::root().join("docs/monitoring.md")).expect("the page");
    let known = [
        "host",
        "user",
        "job",
        "rank",
        "state",
        "reason",
        "call",
        "mechanism",
    ];
    for line in strict.lines() {
        let mut words = line.split(' ');
        let (name, kind) = (words.next().expect("a name"), words.next());
        assert!(matches!(kind, Some("gauge" | "counter")), "{line}");
        assert!(words.all(|label| known.contains(&label)), "{line}");
        let end = if kind == Some("counter") {
            "_total"
        } else {
            ""
        };
        assert!(page.contains(&format!("`regall_{name}{end}`")), "{line}");
    }
    let has = |line: &str| assert!(strict.lines().any(|l| l == line), "{line}: {strict}");
    has("memory_bytes gauge host rank state user");
    has("events counter call host rank user");
    has("hook_seconds counter host rank user");
    checked(&at("regall.prom"));
    // Into a folder that is not there nothing is written.
    let nowhere = regall(&[&one[..], &["--textfile", &at("nowhere")]].concat());
    assert_eq!(nowhere.end(), "exit 2");
    assert!(
        nowhere.stderr.contains("No such file"),
        "{}",
        nowhere.stderr
    );
}

/// By promtool, of Prometheus.
fn checked(file: &str) {
    let tool = build::target().join("unpacked/prometheus/usr/bin/promtool");
    if !tool.exists() {
        return skip("no promtool: scripts/setup test unpacks it");
    }
    let said = Command::new(tool)
        .args(["check", "metrics"])
        .stdin(fs::File::open(file).expect("the metrics"))
        .output()
        .expect("promtool");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&said.stdout), text(&said.stderr));
    assert!(
        said.status.success() && stderr.is_empty(),
        "{stdout}{stderr}"
    );
}
