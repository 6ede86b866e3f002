//! `regall`: runs programs with the shim, and looks at what is registered.
//!
//! Everything is read from /proc and from the processes' directories; the shim
//! is not asked, so a stopped process answers like any other.

/// What stands below a command's options: what is to be known of it and its exit codes, an
/// example, and where the documents are.
macro_rules! after_help {
    ($text:literal, $example:literal, $page:literal) => {
        concat!(
            $text,
            "\n\nExample: ",
            $example,
            "\n\nDocuments: man ",
            $page,
            ", man 7 regall for the variables, share/doc/regall of the installation for the rest"
        )
    };
}

mod answer;
mod caches;
mod check;
mod checking;
mod config;
mod cover;
mod doctor;
mod dump;
mod env;
mod examine;
mod figures;
mod files;
mod inherited;
mod launched;
mod launcher;
mod library;
mod look;
mod manual;
mod maps;
mod output;
mod peek;
mod picture;
mod regions;
mod report;
mod round;
mod rows;
mod run;
mod settings;
mod stage;
mod stats;
mod swap;
mod table;
mod top;
mod units;
mod users;
mod verify;
mod wanted;
mod watch;
mod words;

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use clap::error::ContextKind;
use clap::{CommandFactory, Parser, Subcommand};

use output::{complain, Output, FAILED};

const EXIT_CODES: &str = after_help!(
    "Exit code: 0 done, and nothing is wrong; 2 could not look, or wrong use. Others are in each \
     command's --help; regall run has that of the command that it runs.",
    "regall run -- mpirun -np 2 ./app",
    "regall"
);

#[derive(Parser)]
#[command(name = "regall", version = env!("REGALL_VERSION"), about, max_term_width = 80, after_help = EXIT_CODES)]
/// Keeps the memory of an unmodified MPI program registered, and shows it.
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command with the shim on
    #[command(after_help = run::EXIT_CODES, next_line_help = true)]
    Run(Box<run::Args>),
    /// Print what a job script gives its launcher to put the shim into the ranks
    #[command(after_help = env::EXIT_CODES, next_line_help = true)]
    Env(Box<env::Args>),
    /// Print each setting, its value, where that comes from, and what it is
    #[command(after_help = config::EXIT_CODES, next_line_help = true)]
    Config(Box<config::Args>),
    /// Show a process's address space, one line per mapping
    #[command(after_help = maps::EXIT_CODES)]
    Maps(maps::Args),
    /// Print a process's directory for scripts
    #[command(after_help = dump::EXIT_CODES)]
    Dump(dump::Args),
    /// Check that every byte of processes' memory is registered, or excluded for a named reason
    #[command(after_help = verify::EXIT_CODES)]
    Verify(verify::Args),
    /// Print a process's counters
    #[command(after_help = stats::EXIT_CODES)]
    Stats(stats::Args),
    /// Read a peer's registered memory through the bridge
    #[command(after_help = peek::EXIT_CODES)]
    Peek(peek::Args),
    /// Show all processes of the node that run with the shim on, live
    #[command(after_help = top::EXIT_CODES)]
    Top(top::Args),
    /// Run a command and report what is wrong with its own registrations
    #[command(after_help = checking::EXIT_CODES)]
    Check(checking::Args),
    /// Make one table of what the ranks of a job wrote at exit
    #[command(after_help = report::EXIT_CODES)]
    Report(report::Args),
    /// Copy the library into this node's own memory, and print where
    #[command(after_help = stage::EXIT_CODES)]
    Stage(stage::Args),
    /// Say what this machine allows, and how to mend what it does not
    #[command(after_help = doctor::EXIT_CODES)]
    Doctor(doctor::Args),
    /// Write the manual pages, shell completions and JSON Schemas
    #[command(hide = true)]
    Pages(manual::Args),
}

/// Reads the command line. Of a flag that does not exist, clap advises to put `--` before it: the
/// command to run would have its name.
fn parsed() -> Cli {
    Cli::try_parse().unwrap_or_else(|mut wrong| {
        wrong.remove(ContextKind::Suggested);
        wrong.exit()
    })
}

fn main() -> ExitCode {
    let mut out = BufWriter::with_capacity(1 << 16, Output::new());
    let done = match parsed().command {
        Command::Run(args) => return run::run(&args),
        Command::Check(args) => return checking::check(&args),
        Command::Env(args) => env::env(&args, &mut out),
        Command::Config(args) => config::config(&args, &mut out),
        Command::Maps(args) => maps::maps(&args, &mut out),
        Command::Dump(args) => dump::dump(&args, &mut out),
        Command::Verify(args) => verify::verify(&args, &mut out),
        Command::Stats(args) => stats::stats(&args, &mut out),
        Command::Peek(args) => peek::peek(&args, &mut out),
        Command::Top(args) => top::top(&args, &mut out),
        Command::Report(args) => report::report(&args, &mut out),
        Command::Stage(args) => stage::stage(&args, &mut out),
        Command::Doctor(args) => doctor::doctor(&args, &mut out),
        Command::Pages(args) => manual::pages(&args, Cli::command(), &mut out),
    };
    let done = done.and_then(|code| Ok(out.flush().map(|()| code)?));
    match done {
        Ok(code) => code.into(),
        Err(e) => {
            complain(&format!("{e:#}"));
            FAILED.into()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    /// Each command says what its exit codes are, has an example and names its documents, in
    /// lines of 80 columns.
    #[test]
    fn help_fits_and_is_whole() {
        let mut all = Cli::command();
        all.build();
        let mut commands: Vec<_> = all.get_subcommands().cloned().collect();
        commands.retain(|c| !c.is_hide_set() && c.get_name() != "help");
        commands.push(all);
        assert!(commands.len() > 10);
        for mut command in commands {
            let name = command.get_name().to_string();
            let help = command.render_long_help().to_string();
            for part in ["Exit code: ", "Example: ", "Documents: man regall"] {
                let lines = help.lines().filter(|l| l.starts_with(part));
                assert_eq!(lines.count(), 1, "{name}: {part}");
            }
            for line in help.lines() {
                assert!(line.chars().count() <= 80, "{name}: {line}");
            }
        }
    }
}
