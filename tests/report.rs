//! A report of a whole job: of both MPIs, with a rank that is killed, and under a limit.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regall_documents::Process;
use regall_tests::child::Outcome;
use regall_tests::mode::{begin, launch};
use regall_tests::{build, missing};
use serde_json::Value;

const TIMEOUT: Duration = Duration::from_secs(120);

fn run(command: &mut Command) -> Outcome {
    launch(command, TIMEOUT)
}

fn json(file: &std::path::Path) -> Value {
    let text = std::fs::read(file).expect("a report");
    serde_json::from_slice(&text).expect("JSON")
}

fn figure<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["figures"].as_array().expect("figures");
    all.iter()
        .find(|f| f["figure"] == name)
        .unwrap_or(&Value::Null)
}

fn four_ranks(launcher: &str, options: &[&str], mpi: &str) {
    if missing(launcher) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.json");
    let mut command = Command::new(build::regall());
    command
        .args(["run", "--report"])
        .arg(&report)
        .args(["--", launcher]);
    command
        .args(options)
        .args(["-np", "4"])
        .arg(build::program(&format!("ring.{mpi}")));
    let done = run(&mut command);
    done.must_succeed();
    assert_eq!(done.regall_lines(), Vec::<&str>::new());
    let report = json(&report);
    assert_eq!(
        (&report["counted"], &report["ranks"]),
        (&4.into(), &4.into()),
        "{report}"
    );
    assert_eq!(report["missing"], Value::Array(Vec::new()));
    for name in ["mappings", "bytes.state.registered", "counters.start_ns"] {
        let f = figure(&report, name);
        let value = |key: &str| f[key].as_u64().unwrap_or(0);
        assert!(
            value("min") > 0 && value("min") <= value("median"),
            "{name}: {f}"
        );
        assert!(value("median") <= value("max"), "{name}: {f}");
    }
    // Its parts are gone.
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        1
    );
}

#[test]
fn four_ranks_of_openmpi() {
    four_ranks(
        "mpirun.openmpi",
        &["--oversubscribe", "--bind-to", "none"],
        "openmpi",
    );
}

#[test]
fn four_ranks_of_mpich() {
    four_ranks("mpiexec.mpich", &[], "mpich");
}

/// As ssh to a machine that has a /dev/shm of its own: what is in $SHM, and a name of its own.
const SSH: &str = "#!/bin/sh
unset REGALL LD_PRELOAD
while [ \"${1#-}\" != \"$1\" ]; do shift; done
shift
exec unshare -m -u --propagation private sh -c 'mount --bind \"$SHM\" /dev/shm; hostname elsewhere; unset SHM; exec sh -c \"$1\"' sh \"$*\"
";

/// Two ranks here and two on another node: two files are left for the report, and none on either.
fn a_file_a_node(launcher: &str, options: &[&str]) {
    // SAFETY: a system call without memory.
    if unsafe { libc::geteuid() } != 0 {
        return regall_tests::skip("another node is made as root");
    }
    if missing(launcher) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (ssh, shm) = (at("ssh"), at("shm"));
    std::fs::write(&ssh, SSH).expect("a script");
    std::fs::set_permissions(&ssh, PermissionsExt::from_mode(0o755)).expect("a mode");
    std::fs::create_dir(&shm).expect("a folder");
    std::fs::set_permissions(&shm, PermissionsExt::from_mode(0o1777)).expect("a mode");
    let job = |report: &Path| {
        let mut command = Command::new(build::regall());
        command.args(["run", "--report"]).arg(report);
        command.args(["--", launcher]).args(options).arg(&ssh);
        // MPICH 4.0 dies of SIGPIPE now and then where all ranks of a node end at once.
        command.args(["-np", "4", "sleep", "0.3"]);
        let running = begin(command.env("SHM", &shm), TIMEOUT);
        // What a job leaves on a node has a name that begins with this.
        let own = format!("{}.", running.pid());
        let done = running.finish();
        done.must_succeed();
        (done, own)
    };
    let (done, first) = job(&at("report.json"));
    assert_eq!(done.regall_lines(), Vec::<&str>::new());
    let report = json(&at("report.json"));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    assert_eq!(report["counted"], 4, "{report}");
    assert_eq!(report["ranks"], 4, "{report}");
    let mut hosts = [host.trim(), "elsewhere"];
    hosts.sort();
    assert_eq!(report["hosts"], serde_json::json!(hosts), "{report}");
    // A report that can't be written leaves its parts.
    std::fs::create_dir(at("kept")).expect("a folder");
    let (done, second) = job(&at("kept"));
    let said = done.regall_lines();
    let (_, parts) = said[0]
        .split_once("the parts stay in ")
        .expect("where they are");
    let files = std::fs::read_dir(parts).expect("parts").flatten();
    let mut files: Vec<_> = files.map(|e| e.file_name()).collect();
    files.sort();
    assert_eq!(
        files,
        hosts.map(|host| std::ffi::OsString::from(format!("{host}.json")))
    );
    let own = std::path::PathBuf::from("/dev/shm/regall-0");
    for there in [own, shm.join("regall-0")] {
        let files = std::fs::read_dir(there.join("statistics")).into_iter();
        let names = files
            .flatten()
            .flatten()
            .map(|e| e.file_name().into_string());
        let left: Vec<_> = names
            .flatten()
            .filter(|name| [&first, &second].iter().any(|own| name.starts_with(*own)))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn a_file_a_node_with_openmpi() {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let hosts = format!("{}:2,elsewhere:2", host.trim());
    let options = ["--host", &hosts, "--mca", "plm_rsh_agent"];
    a_file_a_node("mpirun.openmpi", &options);
}

fn a_file_a_node_with_mpich() {
    let options = [
        "-hosts",
        "localhost,elsewhere",
        "-ppn",
        "2",
        "-launcher-exec",
    ];
    a_file_a_node("mpiexec.mpich", &options);
}

/// At the same time on the same node, whose memory has what both leave: each report is of its own
/// job.
#[test]
fn a_file_a_node_of_two_jobs() {
    let other = std::thread::Builder::new().name("a_file_a_node_with_openmpi".into());
    let other = other.spawn(a_file_a_node_with_openmpi).expect("a thread");
    a_file_a_node_with_mpich();
    other.join().expect("the job of Open MPI");
}

/// As MPICH's launcher, with a rank here and one on another node; asked to have something merged
/// it dies of SIGPIPE at first, before it has done that or after.
const DYING: &str = "#!/bin/sh
while [ \"${1#-}\" != \"$1\" ]; do shift 2; done
export PMI_SIZE=2 ON=$REGALL
unset REGALL
dies() { case \"$*\" in *--merge*) [ \"$WHEN\" = $when ] && [ ! -e \"$SHM/died\" ];; *) false;; esac; }
when=before; if dies \"$@\"; then : >\"$SHM/died\"; kill -PIPE $$; fi
PMI_RANK=0 REGALL=$ON \"$@\"
PMI_RANK=1 unshare -m -u --propagation private sh -c 'mount --bind \"$SHM\" /dev/shm
hostname elsewhere; REGALL=$ON exec \"$@\"' sh \"$@\"
when=after; if dies \"$@\"; then : >\"$SHM/died\"; kill -PIPE $$; fi
";

/// A launcher that dies when it is to merge is asked again, and what is whole is not complained of.
#[test]
fn a_launcher_that_dies_is_asked_again() {
    // SAFETY: a system call without memory.
    if unsafe { libc::geteuid() } != 0 {
        return regall_tests::skip("another node is made as root");
    }
    for when in ["before", "after"] {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let (launcher, shm) = (at("mpiexec.mpich"), at("shm"));
        std::fs::write(&launcher, DYING).expect("a script");
        std::fs::set_permissions(&launcher, PermissionsExt::from_mode(0o755)).expect("a mode");
        std::fs::create_dir(&shm).expect("a folder");
        std::fs::set_permissions(&shm, PermissionsExt::from_mode(0o1777)).expect("a mode");
        let mut command = Command::new(build::regall());
        command.args(["run", "--report"]).arg(at("report.json"));
        command.arg("--").arg(&launcher);
        command.args([
            "-hosts",
            "localhost,elsewhere",
            "-n",
            "2",
            "cat",
            "/dev/null",
        ]);
        let done = run(command.env("SHM", &shm).env("WHEN", when));
        done.must_succeed_at(when);
        assert!(shm.join("died").exists(), "{when}");
        assert_eq!(done.regall_lines(), Vec::<&str>::new(), "{when}");
        let report = json(&at("report.json"));
        assert_eq!(report["counted"], 2, "{when}: {report}");
        assert_eq!(report["missing"], serde_json::json!([]), "{when}: {report}");
    }
}

/// As a launcher would start it: four processes, of which one is killed.
const RANKS: &str = "for r in 0 1 2 3; do
    export PMI_RANK=$r PMI_SIZE=4
    if [ $r = 2 ]; then perl -e 'kill 9, $$'; else perl -e '1'; fi
done 2>/dev/null
exit 5";

fn with_ranks(arguments: &[&str], script: &str) -> (Outcome, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report.txt");
    let mut command = Command::new(build::regall());
    command
        .arg("run")
        .args(arguments)
        .arg("--report")
        .arg(&report);
    let done = run(command.args(["--", "sh", "-c", script]));
    let text = std::fs::read_to_string(report).expect("a report");
    (done, text)
}

#[test]
fn who_was_killed_is_named() {
    let (done, text) = with_ranks(&[], RANKS);
    assert_eq!(done.end(), "exit 5");
    assert!(
        text.starts_with("3 processes of 4 ranks on 1 node\nwrote nothing: rank 2 ("),
        "{text}"
    );
    assert!(
        done.stderr.contains("wrote nothing: rank 2 ("),
        "{}",
        done.stderr
    );
}

#[test]
fn what_was_limited_and_how_to_mend_it() {
    let (_, text) = with_ranks(&["--pin", "onfault", "--limit", "1M"], RANKS);
    assert!(
        text.contains("limited: ranges were over 1 MiB in 3 of 3 processes"),
        "{text}"
    );
    assert!(text.contains("REGALL_LIMIT"), "{text}");
    let (_, text) = with_ranks(&[], RANKS);
    assert!(!text.contains("limited"), "{text}");
}

#[test]
fn signals_reach_the_command() {
    let (done, _) = with_ranks(&[], "kill -9 $$");
    assert_eq!(done.end(), "exit 137");
    let (done, _) = with_ranks(&[], "trap 'exit 3' TERM; kill -TERM $PPID; sleep 9 & wait");
    assert_eq!(done.end(), "exit 3");
    // A signal of a terminal's keys, sent to this process alone by somebody else.
    let (done, _) = with_ranks(&[], "trap 'exit 3' INT; kill -INT $PPID; sleep 9 & wait");
    assert_eq!(done.end(), "exit 3");
    // What nohup has ignored stays ignored, in both.
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP INT; exec \"$@\"", "sh"]);
    command.arg(build::regall()).args(["run", "--report"]);
    command.arg(folder.path().join("report")).args(["--", "sh"]);
    let hang_up = "kill -HUP $PPID $$; kill -INT $PPID $$; exit 3";
    assert_eq!(run(command.args(["-c", hang_up])).end(), "exit 3");
}

/// SIGPIPE and SIGCHLD ignored and a signal blocked come to the command as they came to
/// `regall run`.
#[test]
fn signals_are_handed_on_as_they_are() {
    let start = "import os, signal, sys\n\
                 signal.signal(signal.SIGPIPE, signal.SIG_IGN)\n\
                 signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
                 signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n\
                 os.execv(sys.argv[1], sys.argv[1:])";
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    for how in [
        vec!["run"],
        vec!["run", "--report", report.to_str().expect("a name")],
    ] {
        let started = |words: &[&str]| {
            let mut command = Command::new("python3");
            command.args(["-c", start]).arg(build::regall()).args(&how);
            run(command.arg("--").args(words))
        };
        assert_eq!(started(&["sh", "-c", "exit 3"]).end(), "exit 3", "{how:?}");
        let done = started(&["cat", "/proc/self/status"]);
        let word = |name: &str| {
            let line = done.stdout.lines().find_map(|l| l.strip_prefix(name));
            let hex = line.expect("a line").trim();
            u64::from_str_radix(hex, 16).expect("a number")
        };
        let bit = |signal: i32| 1u64 << (signal - 1);
        let ignored = bit(libc::SIGPIPE) | bit(libc::SIGCHLD);
        assert_eq!(word("SigIgn:") & ignored, ignored, "{}", done.stdout);
        assert_eq!(word("SigBlk:"), bit(libc::SIGUSR2), "{}", done.stdout);
    }
}

/// Executes its arguments with an environment that no shell makes.
const ODD_ENVIRONMENT: &str = "\
import ctypes, os, sys
words = lambda them: (ctypes.c_char_p * (len(them) + 1))(*them, None)
odd = [b'B=1', b'A=1', b'A=2', b'novalue', b'=x', b'REGALL_PIN=off', b'REGALL_PIN=populate', b'PATH=/usr/bin:/bin']
command = [os.fsencode(word) for word in sys.argv[1:]]
ctypes.CDLL(None).execve(command[0], words(command), words(odd))
";

/// Doubles, names without a value and the order come to the command as they are; what a flag says
/// is there once.
#[test]
fn the_environment_is_handed_on_as_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let report = report.to_str().expect("a name");
    for how in [&["run"][..], &["run", "--report", report]] {
        let mut command = Command::new("python3");
        command.args(["-c", ODD_ENVIRONMENT]).arg(build::regall());
        let done =
            run(command
                .args(how)
                .args(["--pin", "onfault", "--", "cat", "/proc/self/environ"]));
        assert_eq!(done.end(), "exit 0", "{how:?}");
        let all: Vec<_> = done.stdout.split_terminator('\0').collect();
        let kept = ["B=1", "A=1", "A=2", "novalue", "=x", "PATH=/usr/bin:/bin"];
        assert_eq!(all.get(..kept.len()), Some(&kept[..]), "{how:?}");
        let pins: Vec<_> = all
            .iter()
            .filter(|v| v.starts_with("REGALL_PIN="))
            .collect();
        assert_eq!(pins, [&"REGALL_PIN=onfault"], "{how:?}");
    }
}

/// A closed standard descriptor comes to the command closed, not as /dev/null.
#[test]
fn closed_descriptors_stay_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report");
    let report = report.to_str().expect("a name");
    for how in [&["run"][..], &["run", "--report", report]] {
        for (fd, close) in ["<&-", ">&-", "2>&-"].iter().enumerate() {
            let start = format!("exec \"$@\" {close}");
            let look = format!("[ ! -e /proc/self/fd/{fd} ] || exit 3");
            let mut command = Command::new("sh");
            command.args(["-c", &start, "sh"]).arg(build::regall());
            let done = run(command.args(how).args(["--", "sh", "-c", &look]));
            assert_eq!(done.end(), "exit 0", "{how:?} {close}");
        }
    }
}

/// Interrupts a job on a terminal by its key. When the command has its SIGINT, it has a later
/// signal handed on to it; then it counts what came before.
const ON_A_TERMINAL: &str = r#"
import os, pty, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
said = b""
try:
    while True:
        some = os.read(terminal, 1000)
        if b"ready" in some:
            os.write(terminal, b"\x03")
        said += some
except OSError:
    pass
print(said.decode().split())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

/// What a key of the terminal sends goes to the whole group, so it is not handed on again.
#[test]
fn a_key_interrupts_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = "trap 'echo int; kill -USR1 $PPID' INT; trap 'exit 3' USR1; echo ready; \
                  while :; do sleep 0.05; done";
    let mut command = Command::new("python3");
    command.args(["-c", ON_A_TERMINAL]).arg(build::regall());
    command
        .args(["run", "--report"])
        .arg(folder.path().join("report"));
    let done = run(command.args(["--", "sh", "-c", script]));
    assert_eq!(done.end(), "exit 3", "{}", done.stderr);
    assert_eq!(done.stdout.matches("int'").count(), 1, "{}", done.stdout);
}

/// Interrupts `regall run` as often as it is told to, each time when the one before has arrived.
const INTERRUPTING: &str = "
n=0 most=$1
trap 'n=$((n + 1))' INT
sleep 0.01
for i in $(seq $most); do
    kill -INT $PPID
    while [ $n -lt $i ]; do sleep 0.05; done
done
exit 3";

/// The first SIGINT is for the command, and the report is made. Who sends another one does not
/// want to wait for that: the parts are left, from which it can be made.
#[test]
fn the_second_interrupt_leaves_the_parts() {
    let folder = tempfile::tempdir().expect("a folder");
    for times in ["1", "2"] {
        let report = folder.path().join(times);
        let mut command = Command::new(build::regall());
        command.args(["run", "--report"]).arg(&report);
        let done = run(command.args(["--", "sh", "-c", INTERRUPTING, "sh", times]));
        assert_eq!(done.end(), "exit 3", "{}", done.stderr);
        assert_eq!(report.exists(), times == "1", "{}", done.stderr);
        let said = done.regall_lines();
        if times == "1" {
            assert!(said.is_empty(), "{said:?}");
            continue;
        }
        let (_, parts) = said[0].split_once("its parts stay in ").expect("where");
        let (parts, _) = parts.split_once(": regall report").expect("how");
        let done = run(Command::new(build::regall()).arg("report").arg(parts));
        done.must_succeed();
        assert!(done.stdout.contains("MEDIAN"), "{}", done.stdout);
    }
}

/// As a launcher whose nodes do not answer when they are asked for what their ranks counted.
const NODES_THAT_HANG: &str = "#!/bin/sh
case \"$*\" in
*--merge*)
    exec 2>/dev/null
    kill -INT $PPID
    sleep 3
    ;;
esac
";

/// When the command has ended, a signal is meant for `regall run`, which is ended by it.
#[test]
fn the_report_can_be_interrupted() {
    let folder = tempfile::tempdir().expect("a folder");
    let (launcher, report) = (
        folder.path().join("mpirun.openmpi"),
        folder.path().join("report"),
    );
    std::fs::write(&launcher, NODES_THAT_HANG).expect("a script");
    std::fs::set_permissions(&launcher, PermissionsExt::from_mode(0o755)).expect("a mode");
    let mut command = Command::new(build::regall());
    command.args(["run", "--report"]).arg(&report).arg("--");
    let done = run(command.arg(&launcher).args(["--host", "a,b", "true"]));
    assert_eq!(done.end(), "signal 2", "{}", done.stderr);
    let said = done.regall_lines();
    assert!(said[0].contains("its parts are on nodes"), "{said:?}");
    assert!(!report.exists());
}

/// What is written as JSON can be read again, alone.
#[test]
fn a_report_that_was_written_is_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let mut job = Command::new(build::regall());
    job.args(["run", "--report"]).arg(at("job.json"));
    job.args(["perl", "-e", "fork; wait"]);
    run(&mut job).must_succeed();
    let report = |options: &[&str], names: &[&str]| {
        let mut command = Command::new(build::regall());
        command.arg("report").args(options);
        run(command.args(names.iter().map(|name| at(name))))
    };
    let shown = report(&[], &["job.json"]);
    shown.must_succeed();
    assert!(
        shown.stdout.starts_with("2 processes on 1 node\nalike: "),
        "{shown:?}"
    );
    let again = report(&["--json"], &["job.json"]);
    assert_eq!(
        again.stdout,
        std::fs::read_to_string(at("job.json")).expect("it")
    );
    // A rank that wrote nothing is missing in it as in what it was made of.
    let text = again.stdout.replace("\"missing\": []", "\"missing\": [3]");
    std::fs::write(at("less.json"), &text).expect("a file");
    let less = report(&[], &["less.json"]);
    assert_eq!(less.end(), "exit 1");
    assert!(less.stdout.contains("wrote nothing: rank 3 ("), "{less:?}");
    let other = text.replacen("\"version\": 1", "\"version\": 99", 1);
    std::fs::write(at("other.json"), other).expect("a file");
    let other = report(&[], &["other.json"]);
    assert_eq!(other.end(), "exit 2");
    assert!(other.stderr.contains("of another version"), "{other:?}");
    // However it comes.
    for how in [
        "$R report /dev/stdin <job.json",
        "cat job.json | $R report /dev/stdin",
        "exec 7<job.json; $R report /dev/fd/7",
    ] {
        let mut command = Command::new("sh");
        command.current_dir(folder.path()).args(["-c", how]);
        let done = run(command.env("R", build::regall()));
        assert_eq!(done.stdout, shown.stdout, "{how}: {}", done.stderr);
    }
    let two = report(&[], &["job.json", "less.json"]);
    assert_eq!(two.end(), "exit 2");
    assert!(
        two.stderr
            .contains("a report of a job, which is shown if it is named alone"),
        "{two:?}"
    );
    std::fs::write(at("cut.json"), &text[..text.len() / 2]).expect("a file");
    let cut = report(&[], &["cut.json"]);
    assert_eq!(cut.end(), "exit 2");
    assert!(
        cut.stderr.contains("no report of a job: cut off"),
        "{cut:?}"
    );
}

#[test]
fn files_that_are_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let report = |name: &str| {
        let done = run(Command::new(build::regall()).arg("report").arg(at(name)));
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
        (done.end(), done.stderr)
    };
    let other = "not the JSON object that REGALL_STATS_FILE has written";
    for (name, text, why) in [
        ("empty", "", "empty: it ended"),
        ("cut", "{\"pid\":1,\"coun", "cut off: it ended"),
        ("other", "[1]", other),
        ("text", "hello", other),
        ("deep", &"[".repeat(9000), other),
    ] {
        std::fs::write(at(name), text).expect("a file");
        let (end, said) = report(name);
        assert_eq!(end, "exit 2");
        let words = format!("no statistics of a process: {why}");
        assert!(said.contains(&words), "{said}");
        assert!(!said.contains(" column "), "a parser's words: {said}");
    }
    // Nobody writes to the one, and the other has no end.
    let made = Command::new("mkfifo").arg(at("pipe")).status();
    assert!(made.is_ok_and(|s| s.success()));
    let (end, said) = report("pipe");
    assert!(
        end == "exit 2" && said.contains("a process: empty"),
        "{said}"
    );
    let (end, said) = report("/dev/zero");
    assert!(end == "exit 2" && said.contains("no file"), "{said}");
    // A shell's <(...) is a pipe, too.
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "{ sleep 0.1; echo '[1]'; } | \"$0\" report /dev/stdin",
    ]);
    let done = run(command.arg(build::regall()));
    assert!(done.stderr.contains(other), "{}", done.stderr);
    let (end, said) = report("nowhere");
    assert_eq!(end, "exit 2");
    assert!(said.contains("nowhere: No such file"), "{said}");
    std::fs::create_dir(at("bare")).expect("a folder");
    let done = run(Command::new(build::regall()).arg("report").arg(at("bare")));
    assert_eq!((done.end().as_str(), done.stdout.as_str()), ("exit 2", ""));
    let line = format!("regall: {}: no file of a process's\n", at("bare").display());
    assert_eq!(done.stderr, line);
    let mut made_up = Process {
        version: regall_documents::VERSION,
        pid: 1,
        host: "\u{1b}[2J".into(),
        ..Process::default()
    };
    made_up.counters.insert("served".into(), u64::MAX);
    let mut write = |name: &str| {
        let text = serde_json::to_string(&made_up).expect("JSON");
        std::fs::write(at(name), text).expect("a file");
        made_up.version += 1;
    };
    write("made up");
    write("of another version");
    let (end, said) = report("of another version");
    assert_eq!(end, "exit 2");
    assert!(said.contains("statistics of another version (2)"), "{said}");
    let done = run(Command::new(build::regall())
        .arg("report")
        .arg(at("made up")));
    assert_eq!(
        (done.end().as_str(), done.stdout.contains('\u{1b}')),
        ("exit 0", false)
    );
}
