//! A command on each node of a job, once: by the launcher that is about to start the ranks.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{bail, Context};

use crate::launcher::{self, Launcher};

/// How a launcher reaches the nodes.
pub struct Nodes {
    words: Vec<OsString>,
}

/// Options that say which nodes there are and how they are reached, each with a value or more.
const OPENMPI: [(&str, usize); 13] = [
    ("-H", 1),
    ("-host", 1),
    ("--host", 1),
    ("-hostfile", 1),
    ("--hostfile", 1),
    ("-machinefile", 1),
    ("--machinefile", 1),
    ("--prefix", 1),
    ("-mca", 2),
    ("--mca", 2),
    ("--prtemca", 2),
    ("--allow-run-as-root", 0),
    ("--enable-recovery", 0),
];
const MPICH: [(&str, usize); 9] = [
    ("-host", 1),
    ("-hosts", 1),
    ("-f", 1),
    ("-hostfile", 1),
    ("-machinefile", 1),
    ("-launcher", 1),
    ("-launcher-exec", 1),
    ("-iface", 1),
    ("-rmk", 1),
];

/// What batch systems other than Slurm, and hydra's own settings, tell launchers of nodes by.
const BATCH: [&str; 8] = [
    "HYDRA_HOST_FILE",
    "HYDRA_RMK",
    "PBS_NODEFILE",
    "LSB_HOSTS",
    "LSB_MCPU_HOSTS",
    "PE_HOSTFILE",
    "COBALT_NODEFILE",
    "LOADL_HOSTFILE",
];

impl Nodes {
    /// Those of a command that starts ranks.
    pub fn of(launcher: Launcher, program: &OsStr, arguments: &[OsString]) -> anyhow::Result<Self> {
        let variable = |name: &str| std::env::var(name).ok();
        let mut words = vec![program.to_os_string()];
        match launcher {
            Launcher::Srun => {
                let (Some(_), Some(nodes)) = (variable("SLURM_JOB_ID"), slurm_nodes()) else {
                    bail!(
                        "srun has no allocation yet: start it within one (salloc, sbatch), or put \
                         regall run --stage behind it: srun ... regall run --stage -- COMMAND"
                    );
                };
                let options = ["--quiet", "--overlap", "--mpi=none", "--input=none"];
                words.extend(options.map(OsString::from));
                words.extend(
                    [format!("--nodes={nodes}"), format!("--ntasks={nodes}")].map(OsString::from),
                );
                words.extend(["--ntasks-per-node=1", "--export=ALL"].map(OsString::from));
            }
            Launcher::Openmpi => {
                words.extend(among(arguments, &OPENMPI));
                let once = ["--map-by", "ppr:1:node", "--bind-to", "none"];
                words.extend(once.map(OsString::from));
            }
            Launcher::Mpich => {
                let options = among(arguments, &MPICH);
                let count = hosts(&options).or_else(slurm_nodes).unwrap_or(1);
                words.extend(options);
                words.extend(["-ppn", "1", "-n"].map(OsString::from));
                words.push(count.to_string().into());
            }
        }
        Ok(Self { words })
    }

    /// Whether the job may have more nodes than this one, and [`Nodes::of`] has them all: there is
    /// one program, and what else can name nodes to MPICH's launcher is not there.
    pub fn are_several(launcher: Launcher, arguments: &[OsString]) -> bool {
        if arguments.iter().any(|a| a == ":") {
            return false;
        }
        let by_batch_system = || BATCH.iter().any(|name| std::env::var_os(name).is_some());
        let allocated = slurm_nodes().is_some_and(|n| n > 1);
        match launcher {
            Launcher::Openmpi => {
                let options = among(arguments, &OPENMPI);
                let names = |word: &OsString| OPENMPI.iter().take(7).any(|(name, _)| word == name);
                allocated || options.iter().any(names) || by_batch_system()
            }
            Launcher::Mpich => match hosts(&among(arguments, &MPICH)) {
                Some(count) => count > 1,
                None => allocated && !by_batch_system(),
            },
            Launcher::Srun => allocated,
        }
    }

    /// Runs it once on each, without the shim, and says whether it went well on all.
    pub fn run(&self, command: &[&OsStr]) -> anyhow::Result<bool> {
        let (program, arguments) = self.words.split_first().context("no launcher")?;
        let mut all = Command::new(program);
        // (This process has the command's in its own environment.)
        all.env_remove("REGALL");
        all.args(arguments)
            .args(command)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        Ok(all.status()?.success())
    }
}

fn slurm_nodes() -> Option<usize> {
    let names = ["SLURM_JOB_NUM_NODES", "SLURM_NNODES"];
    names
        .iter()
        .find_map(|name| std::env::var(name).ok()?.parse().ok())
}

/// The options of a list among a launcher's arguments, before the program.
fn among(arguments: &[OsString], options: &[(&str, usize)]) -> Vec<OsString> {
    let mut found = Vec::new();
    let mut rest = arguments;
    let mut value = false;
    while let Some((word, tail)) = rest.split_first() {
        rest = tail;
        // What stands behind an option may be its value, and a program of that name be there
        // (`--map-by node`).
        let program = !value && launcher::is_program(word);
        value = word.as_encoded_bytes().starts_with(b"-");
        match options.iter().find(|(name, _)| word == *name) {
            Some((_, values)) => {
                let values = (*values).min(tail.len());
                found.push(word.clone());
                found.extend(tail.iter().take(values).cloned());
                rest = tail.get(values..).unwrap_or(&[]);
                value = false;
            }
            None if program => break,
            None => (),
        }
    }
    found
}

/// How many hosts MPICH's options name.
fn hosts(options: &[OsString]) -> Option<usize> {
    let pair = options.windows(2).find_map(|pair| match pair {
        [name, value] => {
            Some((name.to_str()?, value)).filter(|(n, _)| MPICH.iter().take(5).any(|(m, _)| m == n))
        }
        _ => None,
    });
    let (name, value) = pair?;
    let list = match name {
        "-host" | "-hosts" => value.to_str()?.split(',').count(),
        _ => {
            let text = std::fs::read_to_string(Path::new(value)).ok()?;
            let lines = text.lines().map(str::trim);
            lines
                .filter(|l| !l.is_empty() && !l.starts_with('#'))
                .count()
        }
    };
    Some(list.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn what_names_nodes_is_taken_over() {
        let taken = |text: &str| {
            let all = among(&words(text), &OPENMPI).join(OsStr::new(" "));
            all.into_string().unwrap()
        };
        assert_eq!(taken("-np 4 --host a:2,b:2 -x A sh -H x"), "--host a:2,b:2");
        assert_eq!(
            taken("--mca plm_rsh_agent ssh -np 2 sh"),
            "--mca plm_rsh_agent ssh"
        );
        assert_eq!(taken("--map-by sh --host a -np 1 sh -H x"), "--host a");
        assert_eq!(taken("--hostfile"), "--hostfile");
        assert_eq!(hosts(&words("-hosts a,b,c")), Some(3));
        assert_eq!(hosts(&words("-launcher ssh")), None);
    }

    #[test]
    fn several_nodes_are_those_that_somebody_names() {
        let openmpi = |text: &str| Nodes::are_several(Launcher::Openmpi, &words(text));
        assert!(openmpi("-np 4 --host a:2,b:2 ./a") && openmpi("-hostfile f ./a"));
        assert!(!openmpi("--host a:2 -np 2 ./a : --host b -np 1 ./b"));
        let mpich = |text: &str| Nodes::are_several(Launcher::Mpich, &words(text));
        assert!(mpich("-hosts a,b -n 4 ./a") && !mpich("-hosts a -n 4 ./a"));
    }
}
