//! Under a real Slurm: tasks on two nodes have the shim and its settings by each way that the
//! documentation names, and nobody else has it.

use std::process::Command;
use std::time::Duration;

use regall_tests::child;
use regall_tests::slurm::{Cluster, Sleeping, NODES};
use regall_tests::{build, missing};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Two tasks on each node; what they do is wait.
const TASKS: [&str; 4] = ["srun", "-Q", "-N2", "-n4"];

/// All of a job's tasks have the shim, with REGALL_PIN=onfault, and nothing is left out.
fn all_have_it(cluster: &Cluster, job: &Sleeping) {
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
        assert!(bytes > 0 && locked, "{} bytes, locked: {locked}", bytes);
    }
    // Two lines from each node: a task a line.
    let said = job.verified();
    let ok = said.lines().filter(|l| l.contains(": ok, ")).count();
    assert_eq!((ok, said.lines().count()), (4, 4), "{said}");
}

/// None of a job's tasks has it, whatever they were told.
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
    let job = cluster.sleeping(&mut sleeper(&cluster, &[&run[..], &TASKS].concat()), 4);
    all_have_it(&cluster, &job);
    job.end();
    // Nothing of what makes it so is Slurm's own doing.
    none_has_it(
        &cluster,
        cluster.sleeping(&mut sleeper(&cluster, &TASKS), 4),
    );
}
