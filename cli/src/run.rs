//! `regall run`: becomes the command, with the shim in its environment.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::complain;
use crate::launcher::Launcher;
use crate::settings::{Missing, Settings};

/// As a shell says that there is no such command ...
const NOT_FOUND: u8 = 127;
/// ... or that it can't be executed.
const NOT_EXECUTABLE: u8 = 126;

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    settings: Settings,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Becomes the command; returns only if it can't.
pub fn run(args: &Args) -> ExitCode {
    let environment = match args.settings.environment() {
        Ok(environment) => environment,
        Err(why) => {
            complain(&why.to_string());
            return match why {
                Missing::Library(_) => NOT_FOUND.into(),
                Missing::Path(_) => NOT_EXECUTABLE.into(),
            };
        }
    };
    let Some((program, arguments)) = args.command.split_first() else {
        return NOT_FOUND.into();
    };
    let arguments = match Launcher::of(program) {
        Some(launcher) => {
            let forwarded = launcher.forward(arguments, &environment);
            forwarded.warning.iter().for_each(|w| complain(w));
            forwarded.arguments
        }
        None => arguments.to_vec(),
    };
    let failed = Command::new(program)
        .args(arguments)
        .envs(environment)
        .exec();
    complain(&format!("{}: {failed}", program.to_string_lossy()));
    match failed.kind() {
        ErrorKind::NotFound => NOT_FOUND.into(),
        _ => NOT_EXECUTABLE.into(),
    }
}
