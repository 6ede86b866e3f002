//! `regall check`: runs a command with REGALL_CHECK=registrations, and says afterwards what its
//! processes left, with names in the stacks.

mod findings;
mod object;
mod records;
mod suppress;
mod text;
mod walk;

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::fd::RawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{bail, Context};
use regall_documents::Check;

use crate::files::{self, Whose};
use crate::output::{complain, FAILED};
use crate::run::waiting::waited;
use crate::run::{self, only_submits, NOT_EXECUTABLE, NOT_FOUND};
use crate::settings::{Missing, Settings, Variable};
use suppress::Suppressions;

pub const EXIT_CODES: &str = after_help!(
    "Exit code: that of the command; 128 and the signal's number if a signal ended it; with --exit \
     CODE, that code if there are errors; 126 and 127 as for regall run. With --read: 0, or CODE if \
     there are errors. 2 if something could not be read.",
    "regall check --exit 9 -- mpirun -np 2 ./app",
    "regall-check"
);

#[derive(clap::Args)]
pub struct Args {
    /// Exit with this code if there are errors [default: REGALL_CHECK_EXIT, or as the command]
    #[arg(long, value_name = "CODE")]
    exit: Option<u8>,
    /// Do not report what this file names [default: REGALL_CHECK_SUPPRESSIONS]
    #[arg(long, value_name = "FILE")]
    suppressions: Option<PathBuf>,
    /// Write the report into this file, not to stderr (JSON if its name ends in .json)
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the report as JSON into FILE, or with --read to stdout
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, conflicts_with = "report")]
    json: Option<Option<PathBuf>>,
    /// Write the report as JSON to this descriptor, which the command does not inherit
    #[arg(long, value_name = "N", conflicts_with_all = ["report", "json"], value_parser = clap::value_parser!(RawFd).range(3..))]
    json_fd: Option<RawFd>,
    /// Report errors alone, as text
    #[arg(long)]
    errors: bool,
    /// Also note memory that was unmapped before its registration was deregistered, although no
    /// request used the registration in between
    #[arg(long)]
    late: bool,
    /// Keep what the processes wrote in this folder, which must not exist yet, and which all nodes
    /// must see
    #[arg(long, value_name = "FOLDER")]
    keep: Option<PathBuf>,
    /// Read what was written before (REGALL_CHECK_FILE, --keep) instead of running a command
    #[arg(long, value_name = "PATH", num_args = 1.., conflicts_with_all = ["command", "keep"])]
    read: Vec<PathBuf>,
    /// The command and its arguments; -- may stand before it
    #[arg(
        trailing_var_arg = true,
        required_unless_present = "read",
        value_name = "COMMAND"
    )]
    command: Vec<OsString>,
}

/// Runs the command, and reports.
pub fn check(args: &Args) -> ExitCode {
    match checked(args) {
        Ok(code) => code.into(),
        Err(e) => {
            complain(&format!("{e:#}"));
            FAILED.into()
        }
    }
}

fn checked(args: &Args) -> anyhow::Result<u8> {
    let exit = match args.exit {
        Some(code) => Some(code),
        None => exit_code(std::env::var_os("REGALL_CHECK_EXIT"))?,
    };
    let from = args.suppressions.clone();
    let from = from.or_else(|| std::env::var_os("REGALL_CHECK_SUPPRESSIONS").map(PathBuf::from));
    let suppressions = from.as_deref().map(Suppressions::read).transpose()?;
    let suppressions = suppressions.unwrap_or_default();
    let command = args.command.split_first();
    if command.is_some_and(|(program, arguments)| only_submits(program, arguments)) {
        bail!("sbatch returns before the job has run: put regall check into the job's script");
    }
    let mixed = matches!(args.json, Some(None)) || args.json_fd.is_some_and(files::is_stdout);
    if command.is_some() && mixed {
        bail!(
            "--json would be mixed with what the command prints: use --json=FILE, or --json-fd=N (as \
             in: regall check --json-fd=3 -- COMMAND 3>&1 >/dev/null | jq)"
        );
    }
    let to = To::of(args)?;
    if !args.read.is_empty() {
        let found = read(&args.read, &suppressions, args.late)?;
        to.report(&found, args.errors)?;
        return Ok(exit_of(&found, exit, 0));
    }
    let Some((program, arguments)) = command else {
        return Ok(NOT_FOUND);
    };
    let mut folder = Folder::make(args.keep.as_deref())?;
    let code = match recorded(program, arguments, &folder)? {
        Ended::With(code) => code,
        Ended::NeverBegan(code) => return Ok(code),
    };
    let found = read(std::slice::from_ref(&folder.path), &suppressions, args.late)?;
    if let Err(e) = to.report(&found, args.errors) {
        // Hours of a job's may be in them.
        folder.kept = true;
        return Err(e.context(format!("the records stay in {}", folder.path.display())));
    }
    Ok(exit_of(&found, exit, code))
}

/// The exit code after a report on `found`; `code` is the command's, `exit` that for errors.
fn exit_of(found: &Check, exit: Option<u8>, code: u8) -> u8 {
    if found.processes.is_empty() {
        complain(
            "no process has left records: none was checked (a static program, or one in which \
             the library stays off)",
        );
        return if code == 0 { FAILED } else { code };
    }
    exit.filter(|_| found.errors > 0).unwrap_or(code)
}

fn exit_code(value: Option<OsString>) -> anyhow::Result<Option<u8>> {
    let Some(value) = value else { return Ok(None) };
    let code = regall_settings::exit_code(value.as_encoded_bytes());
    let code = code.with_context(|| format!("REGALL_CHECK_EXIT={}", value.to_string_lossy()));
    code.map(Some)
}

/// How a command ended.
enum Ended {
    /// With this code.
    With(u8),
    /// It could not be begun, which has been said.
    NeverBegan(u8),
}

/// Runs the command, whose processes leave their records in `folder`.
fn recorded(program: &OsStr, arguments: &[OsString], folder: &Folder) -> anyhow::Result<Ended> {
    let mut environment = match Settings::default().environment() {
        Ok(environment) => environment,
        Err(why) => {
            complain(&why.to_string());
            return Ok(Ended::NeverBegan(match why {
                Missing::Library(_) => NOT_FOUND,
                Missing::Path(_) => NOT_EXECUTABLE,
            }));
        }
    };
    let ours: [Variable; 2] = [
        ("REGALL_CHECK", "registrations".into()),
        ("REGALL_CHECK_FILE", folder.path.join("%h.%p").into()),
    ];
    environment.retain(|(name, _)| ours.iter().all(|(ours, _)| ours != name));
    environment.extend(ours);
    let left = format!(
        "interrupted: no report; the records stay in {0}: regall check --read {0} makes it",
        folder.path.display()
    );
    match waited(&mut run::command(program, arguments, environment), left) {
        Ok(ended) => Ok(Ended::With(ended.code)),
        Err(e) => {
            complain(&format!("{}: {e}", program.to_string_lossy()));
            Ok(Ended::NeverBegan(match e.kind() {
                ErrorKind::NotFound => NOT_FOUND,
                _ => NOT_EXECUTABLE,
            }))
        }
    }
}

/// Where the processes leave their records: for this user alone, since stacks hold data.
struct Folder {
    path: PathBuf,
    kept: bool,
}

impl Folder {
    fn make(keep: Option<&Path>) -> anyhow::Result<Self> {
        let name = format!("regall-check.{}.d", std::process::id());
        let path = keep.map_or_else(|| PathBuf::from(name), Path::to_path_buf);
        let said = path.display().to_string();
        let made = DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| said.clone())?;
        // Ranks have working directories of their own.
        let path = path.canonicalize().with_context(|| said.clone())?;
        if path.as_os_str().as_encoded_bytes().contains(&b'%') {
            let _ = fs::remove_dir(&path);
            bail!(
                "{}: a path with a % in it can't hold the records",
                path.display()
            );
        }
        Ok(Self {
            path,
            kept: keep.is_some(),
        })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if let Err(e) = fs::remove_dir_all(&self.path) {
            complain(&format!("{}: {e}", self.path.display()));
        }
    }
}

/// Reads files, and the files of folders.
fn read(paths: &[PathBuf], suppressions: &Suppressions, late: bool) -> anyhow::Result<Check> {
    let mut found = Vec::new();
    for path in paths {
        let said = || path.display().to_string();
        if path.is_dir() {
            let owner = fs::metadata(path).with_context(said)?.uid();
            for entry in fs::read_dir(path).with_context(said)? {
                found.push((entry.with_context(said)?.path(), Whose::In(owner)));
            }
        } else {
            found.push((path.clone(), Whose::Named));
        }
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    let mut images = Vec::new();
    for (file, whose) in found {
        let bytes = files::read(&file, whose, files::LONGEST);
        let bytes = bytes.with_context(|| file.display().to_string())?;
        images.extend(records::images(&bytes));
    }
    Ok(findings::of(&images, suppressions, late))
}

/// A report that is to be written.
struct To<'a> {
    place: Place<'a>,
    json: bool,
}

/// Names where a report goes.
enum Place<'a> {
    Stderr,
    Stdout,
    Descriptor(File),
    File(&'a Path),
}

impl<'a> To<'a> {
    /// Makes sure that the report can be written: before the command runs, not after hours. What an
    /// earlier run has left in a file stays until there is a report.
    fn of(args: &'a Args) -> anyhow::Result<Self> {
        let file = args.report.as_deref();
        let (place, json) = match (args.json_fd, &args.json, file) {
            (Some(number), ..) => {
                let file = files::own(number).with_context(|| format!("--json-fd={number}"))?;
                (Place::Descriptor(file), true)
            }
            (None, Some(None), _) => (Place::Stdout, true),
            (None, Some(Some(path)), _) => (Place::File(path), true),
            (None, None, Some(path)) => {
                let json = path.extension().is_some_and(|e| e == "json");
                (Place::File(path), json)
            }
            (None, None, None) => (Place::Stderr, false),
        };
        if let Place::File(path) = place {
            files::can_write(path).with_context(|| path.display().to_string())?;
        }
        Ok(Self { place, json })
    }

    fn report(&self, found: &Check, errors: bool) -> anyhow::Result<()> {
        let text = match self.json {
            true => serde_json::to_string_pretty(found)? + "\n",
            false => text::of(found, errors),
        };
        let text = text.as_bytes();
        let written = match &self.place {
            Place::Stderr => {
                let _ = std::io::stderr().write_all(text);
                Ok(())
            }
            Place::Stdout => std::io::stdout().write_all(text),
            Place::Descriptor(file) => { file }.write_all(text),
            Place::File(path) => {
                let written = files::write(path, |out| out.write_all(text));
                return written.with_context(|| path.display().to_string());
            }
        };
        match written {
            // Whoever has closed it does not want it.
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => Ok(other?),
        }
    }
}
