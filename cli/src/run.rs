//! `regall run`: becomes the command, with the shim in its environment; or waits for it, to
//! report on the whole job.

mod parts;
pub mod waiting;

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use regall_directory::settings::RANKS;

use crate::inherited;
use crate::launcher::Launcher;
use crate::output::{complain, FAILED};
use crate::settings::{Missing, Settings, Variable, MERGE_FILE, STATS_FILE};
use crate::stage::{self, Nodes};
use parts::Parts;
use waiting::waited;

/// As a shell says that there is no such command ...
pub const NOT_FOUND: u8 = 127;
/// ... or that it can't be executed.
pub const NOT_EXECUTABLE: u8 = 126;

pub const EXIT_CODES: &str = after_help!(
    "Exit code: that of the command; with --report, 128 and the signal's number if a signal ended it; 126 if \
     the command can't be executed, or ld.so can't preload the library; 127 if the command or the library is not there; 2 if \
     a flag is wrong: nothing is started then. With --report, signals are passed on to the command. \
     After a second SIGINT or SIGTERM no report is made, and the ranks' files stay.",
    "regall run --pin onfault -- mpirun -np 2 ./app",
    "regall-run"
);

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
    /// Preload a copy of the library that is in each node's own memory, so that nothing is opened
    /// on a shared file system (docs/scale.md)
    #[arg(long)]
    stage: bool,
    /// When the command has ended, write one table of all ranks into FILE (JSON if its name ends in
    /// .json); all nodes must see its folder
    #[arg(long, value_name = "FILE", conflicts_with = "stats_file")]
    report: Option<PathBuf>,
    /// The command and its arguments; -- may stand before it
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes the command; returns only if it can't, or after it has ended with a report.
pub fn run(args: &Args) -> ExitCode {
    let Some((program, arguments)) = args.command.split_first() else {
        return NOT_FOUND.into();
    };
    let staged = match args
        .stage
        .then(|| Staged::of(program, arguments))
        .transpose()
    {
        Ok(staged) => staged.flatten(),
        Err(why) => {
            complain(&format!("{why:#}"));
            return FAILED.into();
        }
    };
    let environment = match &staged {
        Some(staged) => args.settings.environment_of(&staged.copy.path),
        None => args.settings.environment(),
    };
    let mut environment = match environment {
        Ok(environment) => environment,
        Err(why) => {
            complain(&why.to_string());
            return match why {
                Missing::Library(_) => NOT_FOUND.into(),
                Missing::Path(_) => NOT_EXECUTABLE.into(),
            };
        }
    };
    if args.report.is_some() && only_submits(program, arguments) {
        complain(
            "sbatch returns before the job has run, so there would be nothing to report on: add \
             --wait, or have REGALL_STATS_FILE written and use regall report",
        );
        return FAILED.into();
    }
    let parts = args.report.as_deref();
    let parts = match parts
        .map(|report| Parts::new(report, program, arguments))
        .transpose()
    {
        Ok(parts) => parts,
        Err(why) => {
            complain(&format!("{why:#}"));
            return FAILED.into();
        }
    };
    if let Some(parts) = &parts {
        environment.retain(|(name, _)| ![STATS_FILE, MERGE_FILE].contains(name));
        environment.extend(parts.variables());
    }
    become_it(
        command(program, arguments, environment),
        program,
        parts,
        staged,
    )
}

/// What is said where they are not removed.
const COPIES_LEFT: &str = "copies of the library may be left on nodes: regall stage --remove";

/// What is left in the node's memory when it ends: copies of the library.
struct Staged {
    copy: stage::Copy,
    /// The nodes of the ranks, if the command is a launcher, and who this is there.
    nodes: Option<(Nodes, String)>,
}

impl Staged {
    /// None, and says why, if the copies can't be had: then the library is preloaded from where
    /// it is.
    fn of(program: &OsStr, arguments: &[OsString]) -> anyhow::Result<Option<Self>> {
        let launcher = Launcher::of(program);
        let nodes = launcher
            .map(|l| Nodes::of(l, program, arguments))
            .transpose()?;
        let lease = format!("{}.{}", crate::launched::host(), std::process::id());
        let lease = nodes.is_some().then_some(lease);
        let copy = match stage::here(lease.as_deref()) {
            Ok(copy) => copy,
            Err(why) => {
                complain(&format!("the library is not staged: {why:#}"));
                return Ok(None);
            }
        };
        let staged = Self {
            copy,
            nodes: nodes.zip(lease),
        };
        let path = staged.copy.path.as_os_str();
        if !staged.on_nodes(&["--expect".as_ref(), path]) {
            complain("the library is not staged on all nodes, so it is preloaded from where it is");
            staged.remove();
            return Ok(None);
        }
        Ok(Some(staged))
    }

    /// Runs `regall stage` on all nodes of the ranks.
    fn on_nodes(&self, arguments: &[&OsStr]) -> bool {
        let Some((nodes, lease)) = &self.nodes else {
            return true;
        };
        let Ok(this) = std::env::current_exe() else {
            return false;
        };
        let mut words = vec![
            this.as_os_str(),
            "stage".as_ref(),
            "--lease".as_ref(),
            lease.as_ref(),
        ];
        words.extend(arguments);
        nodes.run(&words).unwrap_or(false)
    }

    /// Whether somebody has to wait for the command's end to remove what is there. A rank becomes
    /// the command: the launcher is not to see another process in its place.
    fn waits(&self) -> bool {
        let rank = || {
            RANKS
                .iter()
                .any(|name| std::env::var_os(OsStr::from_bytes(name)).is_some())
        };
        self.nodes.is_some() || !rank()
    }

    /// Removes the copies that nobody else uses.
    fn remove(self) {
        let gone = self.on_nodes(&["--remove".as_ref()]);
        let lease = self.nodes.as_ref().map(|(_, lease)| lease.clone());
        drop(self);
        if !gone || stage::clear(lease.as_deref()).is_err() {
            complain(COPIES_LEFT);
        }
    }
}

/// The program with its arguments, or, of a launcher, with those that make it hand the
/// environment on.
pub fn command(program: &OsStr, arguments: &[OsString], mut environment: Vec<Variable>) -> Command {
    let arguments = match Launcher::of(program) {
        Some(launcher) => {
            let forwarded = launcher.forward(arguments, &environment);
            forwarded.warning.iter().for_each(|w| complain(w));
            environment.extend(forwarded.environment);
            forwarded.arguments
        }
        None => arguments.to_vec(),
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let options = sanitizer(std::env::var_os(ASAN_OPTIONS));
    for (name, value) in environment.into_iter().chain([(ASAN_OPTIONS, options)]) {
        // In this process's own environment: `Command` would sort all of it, and leave out what
        // has no `=` or a name that came before. (Of doubles ld.so and getenv take different ones.)
        std::env::remove_var(name);
        std::env::set_var(name, value);
    }
    inherited::hand_on(&mut command);
    command
}

/// Executes it, or, for a report, waits for it and gathers its parts.
fn become_it(
    mut command: Command,
    program: &OsStr,
    parts: Option<Parts>,
    staged: Option<Staged>,
) -> ExitCode {
    let failed = match parts.is_some() || staged.as_ref().is_some_and(Staged::waits) {
        false => command.exec(),
        true => {
            let left = parts.as_ref().map(Parts::left);
            let ended = waited(&mut command, left.unwrap_or_else(|| COPIES_LEFT.into()));
            match &ended {
                Ok(ended) if ended.at_once => parts.iter().for_each(|p| complain(&p.left())),
                Ok(_) => parts.into_iter().for_each(Parts::gather),
                Err(_) => parts.iter().for_each(Parts::remove),
            }
            if let Some(staged) = staged.filter(Staged::waits) {
                staged.remove();
            }
            match ended {
                Ok(ended) => return ended.code.into(),
                Err(e) => e,
            }
        }
    };
    complain(&format!("{}: {failed}", program.to_string_lossy()));
    match failed.kind() {
        ErrorKind::NotFound => NOT_FOUND.into(),
        _ => NOT_EXECUTABLE.into(),
    }
}

/// What AddressSanitizer reads.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";

/// Its options with one more: its runtime would end a program in which a preloaded library
/// comes before it, before that library has run. The shim replaces none of its functions.
fn sanitizer(options: Option<OsString>) -> OsString {
    const ANY_ORDER: &str = "verify_asan_link_order=0";
    let mut options = options.unwrap_or_default();
    let text = options.to_string_lossy();
    if text.contains("verify_asan_link_order") {
        return options;
    }
    if !text.is_empty() {
        options.push(":");
    }
    options.push(ANY_ORDER);
    options
}

/// Whether the command returns while the job that it starts is yet to come.
pub fn only_submits(program: &OsStr, arguments: &[OsString]) -> bool {
    let waits = |a: &OsString| a == "-W" || a == "--wait";
    Path::new(program).file_name() == Some(OsStr::new("sbatch")) && !arguments.iter().any(waits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_users_options_for_sanitizers_stay() {
        let with = |options: &str| sanitizer(Some(options.into())).into_string().unwrap();
        let alone = sanitizer(None).into_string().unwrap();
        assert_eq!(alone, "verify_asan_link_order=0");
        assert_eq!(with(""), alone);
        assert_eq!(
            with("detect_leaks=0"),
            "detect_leaks=0:verify_asan_link_order=0"
        );
        assert_eq!(with("verify_asan_link_order=1"), "verify_asan_link_order=1");
    }
}
