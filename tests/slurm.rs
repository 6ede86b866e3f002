//! Under a real Slurm: tasks on two nodes have the shim and its settings by each way that the
//! documentation names, and nobody else has it.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use regall_tests::child::{self, Outcome};
use regall_tests::slurm::{Cluster, Sleeping, NODES};
use regall_tests::{build, missing};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Two tasks on each node; what they do is wait.
const TASKS: [&str; 4] = ["srun", "-Q", "-N2", "-n4"];

const PROLOG: &str = "@PREFIX@/share/regall/slurm/task-prolog";

/// All of a job's tasks have the shim, with REGALL_PIN=onfault, and nothing is left out.
fn all_have_it(cluster: &Cluster, job: Sleeping) {
    let nodes: Vec<_> = job
        .tasks
        .iter()
        .filter_map(|t| t.variable("SLURMD_NODENAME"))
        .collect();
    assert_eq!(nodes, [NODES[0], NODES[0], NODES[1], NODES[1]]);
    for task in &job.tasks {
        assert_eq!(task.variable("REGALL").as_deref(), Some("1"));
        assert_eq!(task.variable("REGALL_PIN").as_deref(), Some("onfault"));
        let (bytes, locked) = task.mapped(&cluster.shim());
        assert!(bytes > 0 && locked, "{bytes} bytes, locked: {locked}");
    }
    // Two lines from each node: a task a line.
    let said = job.verified();
    let ok = said.lines().filter(|l| l.contains(": ok, ")).count();
    assert_eq!((ok, said.lines().count()), (4, 4), "{said}");
    job.end();
}

/// None of a job's tasks has it.
fn none_has_it(cluster: &Cluster, job: Sleeping) {
    for task in &job.tasks {
        assert_eq!(task.mapped(&cluster.shim()), (0, false));
        assert_eq!(task.variable("LD_PRELOAD"), None);
    }
    job.end();
}

/// A command with a sleeper behind it.
fn sleeper(cluster: &Cluster, words: &[&str]) -> Command {
    let mut command = cluster.command(words);
    command.arg(cluster.sleeper()).arg("600");
    command
}

#[test]
fn run_reaches_both_nodes() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let run = ["regall", "run", "--pin", "onfault", "--"];
    let mut launched = sleeper(&cluster, &[&run[..], &TASKS].concat());
    all_have_it(&cluster, cluster.sleeping(&mut launched, 4));
    // Nothing of what makes it so is Slurm's own doing.
    let mut plain = sleeper(&cluster, &TASKS);
    none_has_it(&cluster, cluster.sleeping(&mut plain, 4));
    // The administrator has done nothing, and the user names the prolog.
    let prolog = PROLOG.replace("@PREFIX@", &cluster.prefix().display().to_string());
    let prolog = format!("--task-prolog={prolog}");
    let mut asked = sleeper(&cluster, &[&TASKS[..], &[&prolog]].concat());
    asked.env("REGALL", "1").env("REGALL_PIN", "onfault");
    all_have_it(&cluster, cluster.sleeping(&mut asked, 4));
}

/// A job script's two ways to start its tasks; the second one without a PATH, as under
/// `sbatch --export=NONE` a user may have none.
const SCRIPT: &str = "#!/bin/sh
#SBATCH -N2 -n4
PATH=@PREFIX@/bin:$PATH
case $2 in
words) srun $(regall env --for srun --pin onfault) \"$1\" 600 ;;
run) env -u PATH @PREFIX@/bin/regall run --pin onfault -- srun \"$1\" 600 ;;
esac
";

#[test]
fn job_scripts_reach_both_nodes() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let script = cluster.script("job", SCRIPT).display().to_string();
    let program = cluster.sleeper().display().to_string();
    for way in ["words", "run"] {
        // NONE is what srun in the script then hands on as well.
        for export in ["--export=ALL", "--export=NONE", "--export=HOME"] {
            let words = ["sbatch", export, &script, &program, way];
            let mut submitted = cluster.command(&words);
            all_have_it(&cluster, cluster.sleeping(&mut submitted, 4));
        }
    }
    // What it can't reach it says.
    let narrow = [
        "regall",
        "run",
        "--",
        "srun",
        "-Q",
        "--export=HOME",
        "/bin/true",
    ];
    let said = cluster.run(&narrow).stderr;
    assert!(
        said.contains("add what regall env --for srun prints"),
        "{said}"
    );
}

/// A prolog of the site's, of which there can be one only.
const SITE: &str = "#!/bin/sh
echo export SITE=here
exec @PREFIX@/share/regall/slurm/task-prolog
";

#[test]
fn the_prolog_puts_it_into_those_that_ask() {
    let Some(cluster) = Cluster::start(&format!("TaskProlog={PROLOG}\n")) else {
        return;
    };
    let asks = |command: &mut Command| {
        let command = command.env("REGALL", "1").env("REGALL_PIN", "onfault");
        all_have_it(&cluster, cluster.sleeping(command, 4));
    };
    asks(&mut sleeper(&cluster, &TASKS));
    let export = "--export=ALL,REGALL=1,REGALL_PIN=onfault";
    let mut exported = sleeper(&cluster, &[&TASKS[..], &[export]].concat());
    all_have_it(&cluster, cluster.sleeping(&mut exported, 4));
    let mut plain = sleeper(&cluster, &TASKS);
    none_has_it(&cluster, cluster.sleeping(&mut plain, 4));
    let mut off = sleeper(&cluster, &TASKS);
    off.env("REGALL", "0");
    none_has_it(&cluster, cluster.sleeping(&mut off, 4));

    let ours = cluster.shim().display().to_string();
    let preloaded = |before: Option<&str>, words: &[&str]| {
        let mut command = cluster.command(words);
        command.env("REGALL", "1");
        command.envs(before.map(|b| ("LD_PRELOAD", b)));
        // env is no launcher that would become the command: its environment is the task's.
        let done = child::run(
            command.args(["srun", "-Q", "printenv", "LD_PRELOAD"]),
            TIMEOUT,
        );
        done.stdout.trim().to_string()
    };
    assert_eq!(preloaded(None, &[]), ours);
    assert_eq!(preloaded(None, &["regall", "run", "--"]), ours);
    let both = format!("{ours}:libm.so.6 libc.so.6");
    assert_eq!(preloaded(Some("libm.so.6 libc.so.6"), &[]), both);
    let theirs = format!("libm.so.6:{}", build::shim().display());
    assert_eq!(preloaded(Some(&theirs), &[]), theirs);
    let nothing = [
        "srun",
        "-Q",
        "--export=NONE",
        "/bin/grep",
        "-c",
        "libregall",
        "/proc/self/maps",
    ];
    assert_eq!(cluster.run(&nothing).stdout, "0\n");
}

/// It goes with what a site does itself, and with job scripts; and the parts of a report of
/// two nodes, whose processes have the same numbers, are told apart.
#[test]
fn the_prolog_goes_with_others() {
    let Some(cluster) = Cluster::start("TaskProlog=@FOLDER@/site\n") else {
        return;
    };
    cluster.script("site", SITE);
    let text = "#!/bin/sh\n#SBATCH -N2 -n4\nsrun sh -c 'echo $SITE; cat /dev/null'\n";
    let script = cluster.script("job", text).display().to_string();
    let parts = cluster.folder().join("out/parts");
    std::fs::create_dir(&parts).expect("a folder");
    let export = format!(
        "--export=ALL,REGALL=1,REGALL_STATS_FILE={}/%h.%p.json",
        parts.display()
    );
    cluster.done(&["sbatch", "--wait", "-o", "said", &export, &script]);
    let said = std::fs::read_to_string(cluster.folder().join("out/said")).expect("its output");
    assert_eq!(said, "here\n".repeat(4));
    let table = cluster.done(&["regall", "report", &parts.display().to_string()]);
    let first = "4 processes of 4 ranks on 2 nodes\n";
    assert!(table.starts_with(first), "{table}");
}

/// Each node's tasks leave their statistics in its memory, and its last one's epilog makes one
/// file of them.
#[test]
fn a_report_is_of_one_file_a_node() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let report = cluster.folder().join("out/report.json");
    let file = report.display().to_string();
    let run = ["regall", "run", "--report", &file, "--"];
    let rank = [
        "/bin/sh",
        "-c",
        "cat /dev/null; echo $REGALL_STATS_FILE $SLURM_PROCID; sleep 0.$SLURM_PROCID",
    ];
    let said = cluster.done(&[&run[..], &TASKS, &rank].concat());
    assert_eq!(
        said.lines().filter(|l| l.starts_with("node:")).count(),
        4,
        "{said}"
    );
    let text = std::fs::read_to_string(&report).expect("a report");
    let told: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&told["counted"], &told["left_out"]),
        (&4.into(), &0.into()),
        "{told}"
    );
    assert_eq!(told["hosts"], serde_json::json!(NODES), "{told}");
    assert_eq!(told["missing"], serde_json::json!([]), "{told}");
    // The nodes keep nothing, and the report's folder is gone.
    let look = [
        "srun",
        "-Q",
        "-N2",
        "-n2",
        "sh",
        "-c",
        "ls /dev/shm/regall-*/statistics | wc -l",
    ];
    assert_eq!(cluster.done(&look), "0\n0\n");
    let beside = std::fs::read_dir(cluster.folder().join("out"))
        .expect("a folder")
        .flatten();
    let left: Vec<_> = beside
        .map(|e| e.file_name())
        .filter(|n| n.to_string_lossy().contains(".d"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

/// A job that stages the library, and what its nodes have in the end.
const STAGED: &str = "#!/bin/sh
PATH=@PREFIX@/bin:$PATH
regall run --stage -- srun -Q -N2 -n4 grep -m1 -o '/[^ ]*libregall[^ ]*' /proc/self/maps
srun -Q -N2 -n2 sh -c 'ls /dev/shm/regall-*/library | grep -c libregall'
";

#[test]
fn srun_stages_on_its_nodes() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let script = cluster.script("job", STAGED);
    let job = script.display().to_string();
    let done = cluster.run(&["sbatch", "--wait", "-N2", "-n4", "-o", "said", &job]);
    let said = std::fs::read_to_string(cluster.folder().join("out/said")).unwrap_or_default();
    let lines: Vec<_> = said.lines().collect();
    let staged = |l: &&&str| l.starts_with("/dev/shm/regall-") && l.contains("/library/libregall-");
    assert_eq!(lines.iter().filter(staged).count(), 4, "{said}{done:?}");
    assert_eq!(lines.iter().filter(|l| **l == "0").count(), 2, "{said}");
    // Without an allocation nobody knows which nodes these will be.
    let early = [
        "regall", "run", "--stage", "--", "srun", "-Q", "-N2", "true",
    ];
    let done = cluster.run(&early);
    assert_eq!(done.end(), "exit 2");
    assert!(
        done.stderr.contains("srun has no allocation yet"),
        "{}",
        done.stderr
    );
}

fn ring(mpi: &str, plugin: &str) {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    // To where another user than ours would find it.
    let program = cluster.folder().join("ring");
    std::fs::copy(build::program(&format!("ring.{mpi}")), &program).expect("a copy");
    let report = cluster.folder().join("out/report.json");
    let (program, file) = (program.display().to_string(), report.display().to_string());
    let plugin = format!("--mpi={plugin}");
    let words = [
        "regall", "run", "--report", &file, "--", "srun", "-Q", "-N2", "-n2", &plugin,
    ];
    let said = cluster.done(&[&words[..], &[&program]].concat());
    assert_eq!(said, "ring of 2: 0 errors\n");
    let text = std::fs::read_to_string(report).expect("a report");
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(report["counted"], 2, "{report}");
    assert_eq!(report["ranks"], 2, "{report}");
    assert_eq!(report["hosts"], serde_json::json!(NODES), "{report}");
    assert_eq!(report["missing"], serde_json::json!([]), "{report}");
}

#[test]
fn mpi_openmpi_by_pmix() {
    if !missing("mpicc.openmpi") {
        ring("openmpi", "pmix");
    }
}

#[test]
fn mpi_mpich_by_pmi2() {
    if !missing("mpicc.mpich") {
        ring("mpich", "pmi2");
    }
}

/// An ordinary user's job, submitted under a small RLIMIT_MEMLOCK: the limit of each task in
/// KiB, and the report.
fn limited(settings: &str) -> Option<(Vec<String>, String)> {
    let cluster = Cluster::start(settings)?;
    let script = "ulimit -S -l 64 && exec regall run --pin onfault --report limits.txt -- \
                  srun -Q -N2 -n2 sh -c 'ulimit -S -l; cat /dev/null'";
    let mut command = cluster.command(&[]);
    // SAFETY: a system call without memory.
    if unsafe { libc::geteuid() } == 0 {
        command.args([
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ]);
    }
    let done = child::run(command.args(["sh", "-c", script]), TIMEOUT);
    done.must_succeed_at(cluster.logs());
    let report = std::fs::read_to_string(cluster.folder().join("out/limits.txt"));
    let limits = done.stdout.lines().map(str::to_string).collect();
    Some((limits, report.expect("a report")))
}

/// RLIMIT_MEMLOCK of the nodes' daemons, as `ulimit -l` says it.
fn of_daemons() -> String {
    let done = child::run(Command::new("sh").args(["-c", "ulimit -H -l"]), TIMEOUT);
    done.stdout.trim().to_string()
}

#[test]
fn limits_come_from_the_submitting_host_unless_excepted() {
    let Some((limits, report)) = limited("") else {
        return;
    };
    assert_eq!(limits, ["64", "64"]);
    let told = "RLIMIT_MEMLOCK is 64 KiB: ulimit -l unlimited";
    assert!(report.contains(told), "{report}");
    assert!(
        report.contains("PropagateResourceLimitsExcept=MEMLOCK"),
        "{report}"
    );

    let daemons = of_daemons();
    assert_ne!(daemons, "64");
    let excepted = limited("PropagateResourceLimitsExcept=MEMLOCK\n");
    let (limits, report) = excepted.expect("a second one");
    assert_eq!(limits, [daemons.as_str(), &daemons]);
    assert!(
        report.starts_with("2 processes of 2 ranks on 2 nodes\n"),
        "{report}"
    );
    assert!(!report.contains("RLIMIT_MEMLOCK is 64 KiB"), "{report}");
}

/// sbatch has returned before there is anything to report on.
#[test]
fn a_report_waits_for_the_job() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let report = |options: &[&str]| -> Outcome {
        let words = ["regall", "run", "--report", "report.txt", "--", "sbatch"];
        let job = ["--wrap", "srun -N2 -n2 cat /dev/null", "-N2"];
        cluster.run(&[&words[..], options, &job].concat())
    };
    let done = report(&[]);
    assert_eq!(done.end(), "exit 2", "{done:?}");
    assert!(done.stderr.contains("add --wait"), "{}", done.stderr);
    assert_eq!(cluster.done(&["squeue", "-h"]), "");
    let done = report(&["--wait"]);
    done.must_succeed();
    let text = std::fs::read_to_string(cluster.folder().join("out/report.txt"));
    let text = text.expect("a report");
    assert!(
        text.starts_with("2 processes of 2 ranks on 2 nodes\n"),
        "{text}"
    );
}

/// A test that ends, in whatever way, leaves nobody's job behind.
#[test]
fn nothing_is_left() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut command = sleeper(&cluster, &TASKS);
    let tasks = cluster.sleeping(&mut command, 4).abandoned();
    let folder = cluster.folder().display().to_string();
    assert!(!named_in_a_command(&folder).is_empty());
    drop(cluster);
    let began = Instant::now();
    loop {
        let left = named_in_a_command(&folder);
        let running = tasks.iter().filter(|pid| alive(**pid)).count();
        if left.is_empty() && running == 0 && !Path::new(&folder).exists() {
            return;
        }
        assert!(
            began.elapsed() < Duration::from_secs(20),
            "{left:?}, {running} tasks"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Processes that have a text in their command lines or environments.
fn named_in_a_command(text: &str) -> Vec<String> {
    let numbers = std::fs::read_dir("/proc").expect("/proc").flatten();
    let names = numbers.filter_map(|e| e.file_name().into_string().ok());
    let pids = names.filter(|n| n.parse::<u32>().is_ok_and(|n| n != std::process::id()));
    let has = |pid: &String| {
        ["cmdline", "environ"].iter().any(|file| {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).contains(text)
        })
    };
    pids.filter(has).collect()
}

fn alive(pid: u32) -> bool {
    std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|p| p.ends_with("sleeper"))
}
