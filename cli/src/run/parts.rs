//! What `regall run --report` makes its report of: statistics of all ranks, in a folder that all
//! nodes see, as few files as can be.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{bail, Context};

use crate::launcher::Launcher;
use crate::output::complain;
use crate::settings::{Variable, MERGE_FILE, STATS_FILE};
use crate::stage::Nodes;
use crate::{launched, report};

/// What srun has run for each task when it has ended.
const TASK_EPILOG: &str = "SLURM_TASK_EPILOG";

/// The file of a node.
const OF_A_NODE: &str = "%h.json";

/// The folder in which the processes leave what they counted, beside the report: where
/// that can be written from one node, it most often can from all.
pub struct Parts {
    folder: PathBuf,
    report: PathBuf,
    way: Way,
}

/// How the statistics come into the folder. 64,000 ranks are 1,000 files where each node's stay on
/// it until its last rank has ended.
enum Way {
    /// Each rank writes a file of its own there: of one node they are few.
    Ranks,
    /// Behind a node's last task this epilog of srun's makes one file.
    Epilog { name: String, script: PathBuf },
    /// Behind the launcher's end `regall report --merge` does, on each node.
    Nodes { name: String, nodes: Nodes },
}

impl Way {
    fn of(program: &OsStr, arguments: &[OsString]) -> Self {
        let name = name();
        match Launcher::of(program) {
            Some(Launcher::Srun) => match epilog(arguments) {
                Some(script) => Self::Epilog { name, script },
                None => Self::Ranks,
            },
            Some(launcher) if Nodes::are_several(launcher, arguments) => {
                match Nodes::of(launcher, program, arguments) {
                    Ok(nodes) => Self::Nodes { name, nodes },
                    Err(_) => Self::Ranks,
                }
            }
            _ => Self::Ranks,
        }
    }
}

/// What tells this run's statistics from those of others on a node.
fn name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let (pid, now) = (std::process::id(), now.unwrap_or_default().as_secs());
    // (The name is cut if it is too long.)
    format!("{pid}.{now}.{}", launched::host())
}

/// This installation's epilog, unless the user has one.
fn epilog(arguments: &[OsString]) -> Option<PathBuf> {
    let given = |a: &OsString| a.as_encoded_bytes().starts_with(b"--task-epilog");
    if std::env::var_os(TASK_EPILOG).is_some() || arguments.iter().any(given) {
        return None;
    }
    let this = std::env::current_exe().ok()?;
    let script = this
        .parent()?
        .parent()?
        .join("share/regall/slurm/task-epilog");
    script.is_file().then_some(script)
}

impl Parts {
    pub fn new(report: &Path, program: &OsStr, arguments: &[OsString]) -> anyhow::Result<Self> {
        let mut name = report
            .file_name()
            .context("--report needs a file's name")?
            .to_os_string();
        name.push(format!(".{}.d", std::process::id()));
        let beside = match report.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        // Ranks have working directories of their own.
        let beside = beside
            .canonicalize()
            .with_context(|| beside.display().to_string())?;
        let folder = beside.join(name);
        let described = || folder.display().to_string();
        if folder.as_os_str().as_encoded_bytes().contains(&b'%') {
            bail!(
                "{}: a path with a % in it can't hold the report",
                described()
            );
        }
        fs::create_dir(&folder).with_context(described)?;
        let report = beside.join(report.file_name().unwrap_or_default());
        Ok(Self {
            folder,
            report,
            way: Way::of(program, arguments),
        })
    }

    /// What the ranks have to have in their environment.
    pub fn variables(&self) -> Vec<Variable> {
        let under = |name: &str| (STATS_FILE, format!("node:{name}").into());
        match &self.way {
            Way::Ranks => vec![(STATS_FILE, self.folder.join(report::PATTERN).into())],
            Way::Nodes { name, .. } => vec![under(name)],
            Way::Epilog { name, script } => vec![
                under(name),
                (MERGE_FILE, self.folder.join(OF_A_NODE).into()),
                (TASK_EPILOG, script.into()),
            ],
        }
    }

    /// Brings what is on the nodes into the folder. Where all ranks were here, nobody else is
    /// asked.
    fn collect(&self) {
        let Way::Nodes { name, nodes } = &self.way else {
            return;
        };
        let into = self.folder.join(OF_A_NODE);
        if let Err(e) = report::merge_here(&into, name) {
            complain(&format!("{e:#}"));
        }
        if report::is_whole(&self.folder) {
            return;
        }
        let everywhere = || {
            let this = std::env::current_exe()?;
            let options = ["report", "--name", name, "--merge"].map(OsStr::new);
            let words = [&[this.as_os_str()], &options[..], &[into.as_os_str()]].concat();
            nodes.run(&words)
        };
        // A launcher may fail when all is done, or before anything is: MPICH's dies of SIGPIPE now
        // and then, when a node's commands end while it still has something for them. What was
        // merged is not left to be merged again.
        let once = || everywhere().unwrap_or(false) || report::is_whole(&self.folder);
        if !once() && !once() {
            complain(&format!(
                "what ranks counted may be left on nodes, below /dev/shm: regall report --name \
                 {name} --merge FILE on each brings it into a file"
            ));
        }
    }

    /// Makes the report, and says what is wrong with it.
    pub fn gather(self) {
        self.collect();
        match report::write(std::slice::from_ref(&self.folder), &self.report) {
            Ok(said) => said.iter().for_each(|line| complain(line)),
            Err(e) => {
                let (report, folder) = (self.report.display(), self.folder.display());
                complain(&format!("{report}: {e:#}; the parts stay in {folder}"));
                return;
            }
        }
        self.remove();
    }

    /// What is to be said where no report is made.
    pub fn left(&self) -> String {
        let folder = self.folder.display();
        match &self.way {
            Way::Nodes { name, .. } => format!(
                "interrupted: no report; its parts are on nodes, below /dev/shm: regall report \
                 --name {name} --merge FILE on each brings them into a file"
            ),
            _ => format!(
                "interrupted: no report; its parts stay in {folder}: regall report {folder} makes it"
            ),
        }
    }

    pub fn remove(&self) {
        if let Err(e) = fs::remove_dir_all(&self.folder) {
            complain(&format!("{}: {e}", self.folder.display()));
        }
    }
}
