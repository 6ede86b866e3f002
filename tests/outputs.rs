//! What the documents show of commands' outputs is what they print: the same words in the
//! same places, with numbers, paths and units of their own.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use regall_tests::apart::private_shm;
use regall_tests::child::{self, Beside};
use regall_tests::mode::{launch, Mode};
use regall_tests::{build, coverage, missing, skip};

const TIMEOUT: Duration = Duration::from_secs(120);

/// The one block of the README and of docs/ that has `words` in it.
fn shown(words: &str) -> String {
    let docs = fs::read_dir(build::root().join("docs")).expect("docs");
    let mut pages: Vec<_> = docs.flatten().map(|e| e.path()).collect();
    pages.retain(|p| p.extension().is_some_and(|e| e == "md"));
    pages.push(build::root().join("README.md"));
    let mut found = Vec::new();
    for page in pages {
        let text = fs::read_to_string(page).expect("a page");
        for block in text.split("\n```").skip(1).step_by(2) {
            let body = block.split_once('\n').map_or("", |(_, body)| body);
            found.extend(body.contains(words).then(|| body.to_string()));
        }
    }
    assert_eq!(found.len(), 1, "blocks with {words:?}");
    found.remove(0)
}

/// A line with its numbers, units and paths made equal.
fn shape(line: &str) -> String {
    let word = |w: &str| {
        let bare = w
            .trim_end_matches([',', ';', ':', ')'])
            .trim_start_matches('(');
        let like = match bare {
            "B" | "KiB" | "MiB" | "GiB" | "ns" | "µs" | "ms" => "U",
            _ if bare.starts_with('/') => "P",
            _ if bare.contains(|c: char| c.is_ascii_digit()) => "#",
            // A range or a key without a digit is seldom, but may be.
            _ if bare.len() > 7 && bare.chars().all(|c| c.is_ascii_hexdigit() || c == '-') => "#",
            _ => return w.to_string(),
        };
        w.replace(bare, like)
    };
    line.split_whitespace()
        .map(word)
        .collect::<Vec<_>>()
        .join(" ")
}

fn shapes(text: &str) -> BTreeSet<String> {
    text.lines().map(shape).filter(|s| !s.is_empty()).collect()
}

/// Every line of `documented` is like one that was really printed.
fn is_real(documented: &str, real: &str) {
    let (want, have) = (shapes(documented), shapes(real));
    let not: Vec<_> = want.difference(&have).collect();
    assert!(
        not.is_empty(),
        "the documents show {not:#?}\nreally: {have:#?}"
    );
}

fn regall(arguments: &[&str]) -> String {
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    let done = child::run(command.args(arguments), TIMEOUT);
    // (Other tests make such directories.)
    let others = |line: &str| line.contains("directory is corrupt");
    if !(done.end() == "exit 2" && done.stderr.lines().all(others)) {
        done.must_succeed_at(format_args!("{arguments:?}"));
    }
    done.stdout
}

/// A program with an arena of malloc's, a heap and a stack, that waits.
fn program(folder: &Path) -> PathBuf {
    let (source, program) = (folder.join("app.c"), folder.join("app"));
    let text = "#include <pthread.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
        static void *run(void *p) { *(void **)p = malloc(100); pause(); return p; }\n\
        static void *at[2];\n\
        int main(void) { pthread_t t; at[1] = malloc(1 << 16);\n\
        pthread_create(&t, NULL, run, at); pause(); return 0; }\n";
    fs::write(&source, text).expect("a source");
    let mut gcc = Command::new("gcc");
    gcc.arg("-pthread").arg("-o").arg(&program).arg(&source);
    let done = child::run(&mut gcc, TIMEOUT);
    done.must_succeed();
    program
}

/// The program with the shim on, all of it up.
fn started(folder: &Path, env: &[(&str, &str)]) -> Beside {
    let mut command = Command::new(program(folder));
    Mode::Populate.apply(&mut command);
    command.envs(env.iter().copied());
    let beside = Beside::start(&mut command);
    let began = Instant::now();
    let arena = |pid| {
        let lines = coverage::dump(pid).unwrap_or_default();
        lines.iter().any(|l| l.end - l.start > 60 << 20)
    };
    while !arena(beside.pid()) {
        assert!(began.elapsed() < TIMEOUT, "it never was published");
        std::thread::sleep(Duration::from_millis(20));
    }
    beside
}

#[test]
fn words_for_job_scripts() {
    let block = shown("$ regall env --for openmpi");
    let shim = build::shim().canonicalize().expect("the shim");
    let mut lines = block.lines().peekable();
    let mut commands = 0;
    while let Some(line) = lines.next() {
        let Some(words) = line.strip_prefix("$ regall ") else {
            continue;
        };
        let arguments: Vec<_> = words.split(' ').collect();
        let said = regall(&arguments);
        let said = said.replace(
            shim.to_str().expect("a path"),
            "/opt/regall/lib/libregall.so",
        );
        assert_eq!(said.trim_end(), lines.next().unwrap_or(""), "{line}");
        commands += 1;
    }
    assert_eq!(commands, 3);
}

#[test]
fn settings_and_where_they_come_from() {
    let block = shown("regall config --pin onfault");
    let (line, rows) = block.split_once('\n').expect("lines");
    assert_eq!(line, "$ REGALL_LIMIT=8G regall config --pin onfault");
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    command.args(["config", "--pin", "onfault"]);
    let done = child::run(command.env("REGALL_LIMIT", "8G"), TIMEOUT);
    done.must_succeed();
    is_real(rows, &done.stdout);
}

#[test]
fn coverage_of_a_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let beside = started(folder.path(), &[]);
    let pid = beside.pid().to_string();
    let maps = shown("SIZE  PROT  STATE");
    is_real(&maps, &regall(&["maps", &pid]));
    is_real(&shown("# regall 1 pid"), &regall(&["dump", &pid]));
    is_real(&shown(": ok, 293 mappings"), &regall(&["verify", &pid]));
}

/// A job that has not started must not pass for a job without gaps.
#[test]
fn verify_fails_if_it_finds_too_few_processes() {
    if let Err(why) = private_shm(64) {
        return skip(&format!("a /dev/shm of one's own: {why}"));
    }
    let all = |arguments: &[&str]| {
        let mut command = Command::new(build::regall());
        Mode::Plain.apply(&mut command);
        let done = child::run(command.args(["verify", "--all"]).args(arguments), TIMEOUT);
        (done.end(), done.stdout, done.stderr)
    };
    let nobody = "regall: no process with the shim on\n".to_string();
    for (arguments, end) in [
        (&[][..], "exit 2"),
        (&["--watch", "0.1"], "exit 2"),
        (&["--expect", "1"], "exit 2"),
        (&["--allow-none"], "exit 0"),
        (&["--allow-none", "--watch", "0.1"], "exit 0"),
    ] {
        let said = (end.to_string(), String::new(), nobody.clone());
        assert_eq!(all(arguments), said, "{arguments:?}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let beside = started(folder.path(), &[]);
    for (arguments, end, complaint) in [
        (&[][..], "exit 0", ""),
        (&["--expect", "1"], "exit 0", ""),
        (
            &["--expect", "2"],
            "exit 2",
            "regall: 1 process with the shim on, 2 expected\n",
        ),
    ] {
        let (ended, said, complaints) = all(arguments);
        let ok = format!("{}: ok, ", beside.pid());
        assert!(said.starts_with(&ok), "{arguments:?}: {said}");
        assert_eq!((ended.as_str(), complaints.as_str()), (end, complaint));
    }
}

#[test]
fn top_and_its_objects() {
    let folder = tempfile::tempdir().expect("a folder");
    let _beside = started(folder.path(), &[("OMPI_COMM_WORLD_RANK", "1")]);
    let real = regall(&["top", "--once", "--interval", "0.3"]);
    let head = |text: &str| {
        let line = text.lines().find(|l| l.contains("PID RANK"));
        line.unwrap_or("")
            .split_whitespace()
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    let screen = shown("q quit  Enter detail");
    let (want, have) = (head(&screen), head(&real));
    assert!(
        want.len() > 10 && have.starts_with(&want),
        "{want:?} {have:?}"
    );
    // As many figures in a row as there are columns, but for the mark of the chosen one.
    for row in screen.lines().filter(|l| l.contains(" hpcc ")) {
        let words = row.trim_start_matches('>').split_whitespace().count();
        assert_eq!(words, want.len(), "{row}");
    }
}

#[test]
fn a_report() {
    if missing("mpirun.openmpi") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.txt");
    let mut command = Command::new(build::regall());
    command
        .args(["run", "--pin", "onfault", "--limit", "16M", "--report"])
        .arg(&report);
    command.args([
        "--",
        "mpirun.openmpi",
        "--oversubscribe",
        "--bind-to",
        "none",
    ]);
    command
        .args(["-np", "4"])
        .arg(build::program("ring.openmpi"));
    let done = launch(&mut command, TIMEOUT);
    done.must_succeed();
    let real = fs::read_to_string(&report).expect("a report");
    let shown = shown("4 processes of 4 ranks");
    // The name of a figure is what stands before its numbers.
    let names = |text: &str| {
        let rows = text.lines().filter(|l| l.contains("  "));
        let name = |l: &str| l.split("  ").next().unwrap_or("").to_string();
        rows.map(name).collect::<Vec<_>>()
    };
    let have = names(&real);
    for name in names(&shown) {
        assert!(have.contains(&name), "{name}: {real}");
    }
    let first = |text: &str| text.lines().next().map(str::to_string);
    assert_eq!(first(&shown), first(&real));
    let limited = |text: &str| {
        let line = text
            .lines()
            .find(|l| l.starts_with("limited: "))
            .unwrap_or("");
        shape(line).replace("rank # on # a", "rank # on node a")
    };
    let begins = |text: &str| limited(text).split(" in ").next().unwrap_or("").to_string();
    assert!(begins(&shown).contains("ranges were over"), "{shown}");
    assert_eq!(begins(&shown), begins(&real));
}

/// The tables of make run and make run-copy, of figures that this test makes or gets.
#[test]
fn tables_of_the_two_commands() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut looks = String::new();
    for _ in 0..2 {
        let mut command = Command::new("/bin/true");
        Mode::Populate.apply(&mut command);
        command.env("REGALL_STATS_FILE", folder.path().join("stats.%p.json"));
        let mut process = command.stdin(Stdio::null()).spawn().expect("true");
        let pid = process.id();
        assert!(process.wait().expect("its end").success());
        looks += &format!("{pid} verify 0\n{pid} script 0\n");
    }
    fs::write(folder.path().join("looks"), looks).expect("a file");
    let mut table = Command::new(build::script("run-table"));
    let done = child::run(table.arg(folder.path()).arg("2"), TIMEOUT);
    done.must_succeed();
    let titles = |text: &str| {
        let rows = text
            .lines()
            .filter(|l| l.contains("  ") && !l.starts_with("--"));
        let all = rows.map(|l| l.split("  ").next().unwrap_or("").to_string());
        all.filter(|t| !t.starts_with("excluded no-access"))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        titles(&shown("run-mpi: REGALL_PIN=populate")),
        titles(&done.stdout)
    );

    let figures = folder.path().join("figures.tsv");
    let line = |mpi: &str, setting: &str| format!("{mpi}\treused\t{setting}\t1\t4096\t2.5\n");
    let all = ["none", "huge", "heap"]
        .map(|s| line("openmpi", s))
        .concat();
    fs::write(&figures, all + &line("floor", "floor")).expect("a file");
    let mut report = Command::new(build::root().join("benches/copy-report"));
    report.arg(&figures).arg(folder.path().join("plot.svg"));
    let done = child::run(&mut report, TIMEOUT);
    done.must_succeed();
    let columns = |text: &str| {
        let line = text.lines().find(|l| l.trim_start().starts_with("bytes "));
        line.unwrap_or("")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    };
    let block = shown("memcpy alone / without");
    assert_eq!(columns(&block), columns(&done.stdout));
    assert!(columns(&block).starts_with("bytes without"), "{block}");
}

#[test]
fn verdicts_on_caches() {
    if missing("python3") {
        return;
    }
    let test = build::root().join("benches/caches_test.py");
    child::run(Command::new("python3").arg(test), TIMEOUT).must_succeed();
}

#[test]
fn times_of_the_tests() {
    if missing("python3") {
        return;
    }
    let test = build::root().join("tests/times_test.py");
    child::run(Command::new("python3").arg(test), TIMEOUT).must_succeed();
}

#[test]
fn what_a_machine_allows() {
    let block = shown("In the way: a trial program");
    let mut command = Command::new(build::regall());
    Mode::Plain.apply(&mut command);
    let real = child::run(command.arg("doctor"), TIMEOUT).stdout;
    // A finding's name and what is said of it up to the first figure.
    let begins = |text: &str, name: &str| {
        let line = text.lines().find(|l| l.starts_with(name)).unwrap_or("");
        let said = line.get(32..).unwrap_or("");
        let stop = said
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(said.len());
        said[..stop].to_string()
    };
    for name in ["a trial program", "single copy"] {
        let said = begins(&block, name);
        assert!(said.len() > 5, "{name}: {block}");
        assert_eq!(said, begins(&real, name), "{name}");
    }
    let rows = block
        .lines()
        .filter(|l| !l.starts_with([' ', 'I']) && !l.is_empty());
    for row in rows {
        let name = row.get(..19).unwrap_or(row).trim_end();
        assert!(real.lines().any(|l| l.starts_with(name)), "{name}");
    }
    // What is printed only where something is in the way stands in the sources.
    let sources = ["shim.rs", "locking.rs", "place.rs", "finding.rs"].map(|file| {
        let path = build::root().join("cli/src/doctor").join(file);
        fs::read_to_string(path).expect("a source")
    });
    let block = block.split_whitespace().collect::<Vec<_>>().join(" ");
    for line in real.lines() {
        let long_word = line.split_whitespace().any(|w| w.len() > 40);
        assert!(line.chars().count() <= 80 || long_word, "{line}");
    }
    for words in [
        "see locked memory below",
        "it has 56 MiB (Open MPI) to 114 MiB (MPICH) at its start",
        "--ulimit memlock=-1:-1",
        "who starts the container",
    ] {
        assert!(block.contains(words), "{words}");
        assert!(sources.iter().any(|s| s.contains(words)), "{words}");
    }
}

#[test]
fn shapes_tell_lines_apart() {
    assert_eq!(shape("7f1-7f2  4 KiB r--p x"), shape("1-2 16 MiB r--p x"));
    assert_ne!(shape("1-2 4 KiB r--p x"), shape("1-2 4 KiB rw-p x"));
    assert_eq!(shape("a (12 B): /tmp/x, b"), "a (# U): P, b");
}
