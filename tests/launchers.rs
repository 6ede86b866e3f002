//! `regall run` and `regall env` with launchers: ranks on other nodes have what
//! those on this one have. The other node is this one, entered through a stand-in
//! for ssh that keeps nothing of the environment.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::mode::{launch, Mode, AS_ROOT};
use regall_tests::{build, missing};

const TIMEOUT: Duration = Duration::from_secs(120);

/// As ssh: options, a host, and a command for the login's shell.
const SSH: &str = "#!/bin/sh
while [ \"${1#-}\" != \"$1\" ]; do shift; done
shift
exec env -i PATH=\"$PATH\" HOME=\"$HOME\" OMPI_ALLOW_RUN_AS_ROOT=1 \
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 sh -c \"$*\"
";

/// Says what the rank has; cat, unlike sh, is no launcher to the shim.
const RANK: &str =
    "echo \"$REGALL,$REGALL_PIN,$LD_PRELOAD\" $(cat /proc/self/maps | grep -c libregall)";

struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let this = Self(folder);
        std::fs::write(this.ssh(), SSH).expect("a script");
        let may = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(this.ssh(), may).expect("permissions");
        this
    }

    fn ssh(&self) -> PathBuf {
        self.0.path().join("ssh")
    }

    /// What makes a launcher start its ranks there.
    fn arguments(&self, launcher: &str) -> Vec<String> {
        let ssh = self.ssh().display().to_string();
        let words = match launcher {
            "mpirun.openmpi" => vec!["--host", "elsewhere:2", "--mca", "plm_rsh_agent", &ssh],
            _ => vec!["-hosts", "elsewhere", "-launcher-exec", &ssh],
        };
        words.into_iter().map(str::to_string).collect()
    }
}

fn run(command: &mut Command) -> Outcome {
    launch(command, TIMEOUT)
}

/// Ranks that have the shim, with REGALL_PIN=onfault.
fn with_the_shim(done: &Outcome) -> usize {
    let line = format!("1,onfault,{} ", build::shim().display());
    let has = |l: &&str| l.strip_prefix(&line).is_some_and(|n| n != "0");
    done.stdout.lines().filter(has).count()
}

/// Without a word of ours nothing arrives, or the tests show nothing.
#[test]
fn the_other_node_knows_nothing() {
    let launcher = "mpirun.openmpi";
    if missing(launcher) {
        return;
    }
    let node = Node::new();
    let mut command = Command::new(launcher);
    command.args(node.arguments(launcher));
    command.args(["-np", "1", "sh", "-c", RANK]);
    Mode::Plain.apply(&mut command);
    command
        .env("REGALL", "1")
        .env("REGALL_PIN", "onfault")
        .env("LD_PRELOAD", build::shim())
        .envs(AS_ROOT);
    let done = child::run(&mut command, TIMEOUT);
    assert_eq!(done.stdout, ",, 0\n", "{}", done.stderr);
}

fn run_reaches(launcher: &str, options: &[&str], parts: &[&str]) {
    if missing(launcher) {
        return;
    }
    let node = Node::new();
    let mut command = Command::new(build::regall());
    command.args(["run", "--pin", "onfault", "--", launcher]);
    command.args(node.arguments(launcher)).args(options);
    for part in parts {
        command.args(part.split_whitespace());
        command.args(["sh", "-c", RANK]);
    }
    let done = run(&mut command);
    let said = format!("{}{}", done.stdout, done.stderr);
    done.must_succeed();
    assert_eq!(with_the_shim(&done), 2, "{said}");
}

#[test]
fn run_reaches_other_nodes_with_openmpi() {
    run_reaches("mpirun.openmpi", &[], &["-np 2"]);
    run_reaches("mpirun.openmpi", &[], &["-np 1", ": -np 1"]);
}

#[test]
fn run_reaches_other_nodes_with_mpich() {
    run_reaches("mpiexec.mpich", &[], &["-np 2"]);
    run_reaches("mpiexec.mpich", &["-genvnone"], &["-np 2"]);
}

fn words_reach(launcher: &str, name: &str) {
    if missing(launcher) {
        return;
    }
    let node = Node::new();
    let regall = build::regall();
    let mut script = Command::new("sh");
    script
        .arg("-c")
        .arg("regall=$1 name=$2; shift 2; launcher=$1; shift; \"$launcher\" $($regall env --for $name --pin onfault) \"$@\"")
        .args(["sh".as_ref(), regall.as_os_str()])
        .args([name, launcher])
        .args(node.arguments(launcher))
        .args(["-np", "2", "sh", "-c", RANK]);
    let done = run(&mut script);
    let said = format!("{}{}", done.stdout, done.stderr);
    assert_eq!(with_the_shim(&done), 2, "{said}");
}

#[test]
fn the_words_for_a_job_script_reach_other_nodes() {
    words_reach("mpirun.openmpi", "openmpi");
    words_reach("mpiexec.mpich", "mpich");
}

/// srun is not here; what it would be given is.
#[test]
fn the_words_for_srun() {
    let regall = build::regall();
    let words = |arguments: &[&str]| {
        let mut command = Command::new(&regall);
        run(command.args(["env", "--for", "srun"]).args(arguments))
    };
    let shim = build::shim();
    let expected = format!(
        "--export=ALL,REGALL=1,LD_PRELOAD={},REGALL_LIMIT=4G,REGALL_HCA=off\n",
        shim.display()
    );
    assert_eq!(words(&["--limit", "4G", "--hca", "off"]).stdout, expected);
    let done = words(&["--exclude", "a,b"]);
    assert_eq!((done.end().as_str(), done.stdout.as_str()), ("exit 2", ""));
    assert!(
        done.stderr.contains("comma in REGALL_EXCLUDE"),
        "{}",
        done.stderr
    );
}

/// What ranks on another node wrote is in the report.
#[test]
fn a_report_has_the_ranks_of_other_nodes() {
    let launcher = "mpirun.openmpi";
    if missing(launcher) {
        return;
    }
    let node = Node::new();
    let report = node.0.path().join("report.txt");
    let mut command = Command::new(build::regall());
    command.args(["run", "--report"]).arg(&report);
    command
        .args(["--", launcher])
        .args(node.arguments(launcher));
    let done = run(command.args(["-np", "2", "cat", "/dev/null"]));
    let text = std::fs::read_to_string(report).unwrap_or_default();
    let expected = "2 processes of 2 ranks on 1 node\n";
    assert!(text.starts_with(expected), "{text}{}", done.stderr);
}
