//! `regall top`: all processes of the node that run with the shim on, live.

mod app;
mod column;
mod detail;
mod metrics;
mod sample;
mod screen;
mod terminal;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use regall_documents as documents;
use serde::{Serialize, Serializer};

use crate::output::{print_json, FAILED};
use crate::units;
use crate::wanted::Wanted;
use app::{App, Choice};
use column::Layout;
use metrics::{Form, Metrics};
use sample::Sample;
pub use sample::Sampler;

pub const EXIT_CODES: &str = after_help!(
    "Exit code: 0, also if there is no process; with --once 2 if one could \
    not be read. The keys are shown below the table; ? explains them.",
    "regall top --once --sort RANK",
    "regall-top"
);

#[derive(clap::Args)]
pub struct Args {
    /// Print the table once as plain text, after one interval
    #[arg(long)]
    once: bool,
    /// As JSON
    #[arg(long, requires = "once")]
    json: bool,
    /// Print metrics in the OpenMetrics format, a time series for each rank
    #[arg(long, requires = "once", conflicts_with = "json")]
    openmetrics: bool,
    /// Write metrics in Prometheus's text format into DIR/regall.prom, for its node exporter
    #[arg(long, value_name = "DIR", requires = "once", conflicts_with_all = ["json", "openmetrics"])]
    textfile: Option<PathBuf>,
    /// Look every SECONDS; rates are over that time
    #[arg(long, value_name = "SECONDS", value_parser = units::seconds, default_value = "1")]
    interval: Duration,
    /// Sort the table by this column
    #[arg(long, value_name = "COLUMN", default_value = "PID")]
    sort: String,
    /// Sort in reverse order
    #[arg(long)]
    reverse: bool,
    #[command(flatten)]
    wanted: Wanted,
    /// Without colours; NO_COLOR does the same
    #[arg(long, visible_alias = "no-color")]
    no_colour: bool,
}

pub fn top(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let choice = args.choice()?;
    let sampler = Sampler::of(&args.wanted)?;
    if args.once {
        return once(args, &choice, sampler, out);
    }
    if !io::stdout().is_terminal() {
        bail!("standard output is not a terminal; --once prints the table as text");
    }
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    let look = screen::Look::new(!args.no_colour && !no_color);
    terminal::show(&mut App::new(choice, args.interval), &look, sampler)?;
    Ok(0)
}

impl Args {
    fn metrics(&self) -> bool {
        self.openmetrics || self.textfile.is_some()
    }

    fn choice(&self) -> anyhow::Result<Choice> {
        let columns = column::all();
        let named = |c: &column::Column| c.head.eq_ignore_ascii_case(&self.sort);
        let Some(sort) = columns.iter().position(named) else {
            let heads: Vec<_> = columns.iter().map(|c| c.head.as_str()).collect();
            bail!("no column {}; there are {}", self.sort, heads.join(", "));
        };
        Ok(Choice {
            sort,
            reversed: self.reverse,
            filter: self.wanted.filter().to_string(),
        })
    }
}

/// The second round is shown: it has rates. Metrics have none.
fn once(
    args: &Args,
    choice: &Choice,
    mut sampler: Sampler,
    out: &mut impl Write,
) -> anyhow::Result<u8> {
    if !args.metrics() {
        sampler.round()?;
        std::thread::sleep(args.interval);
    }
    let round = sampler.round()?;
    let columns = column::all();
    let rows = choice.apply(&columns, &round.samples);
    let processes = || rows.iter().map(|s| s.told());
    if args.metrics() {
        let blind = round.blind.iter().map(|(seen, _)| (seen.uid, 1));
        let unreached = &round.unreached;
        let seen = unreached.unseen.processes.iter().chain(&unreached.left);
        let blind = blind.chain(seen.chain(&round.more).copied());
        let metrics = Metrics::of(processes(), blind);
        match &args.textfile {
            Some(folder) => metrics.write(folder)?,
            None => metrics.print(Form::Open, out)?,
        }
    } else if args.json {
        print_all(&rows, out)?;
    } else {
        print(&columns, &rows, out)?;
    }
    round.complain();
    Ok(if round.is_whole() { 0 } else { FAILED })
}

/// Prints all that is known of processes, for programs.
pub fn print_all(rows: &[&Sample], out: &mut impl Write) -> io::Result<()> {
    print_json(&Told::Document(rows), out)
}

/// The document on processes ([`documents::Top`]), of which one is made at a time.
enum Told<'a> {
    Document(&'a [&'a Sample]),
    Version,
    Processes(&'a [&'a Sample]),
}

impl Serialize for Told<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Document(rows) => to.collect_map([
                ("version", Self::Version),
                ("processes", Self::Processes(rows)),
            ]),
            Self::Version => documents::VERSION.serialize(to),
            Self::Processes(rows) => to.collect_seq(rows.iter().map(|row| row.told())),
        }
    }
}

/// All columns, or as many as the terminal has room for.
fn print(columns: &[column::Column], rows: &[&Sample], out: &mut impl Write) -> io::Result<()> {
    let layout = match ratatui::crossterm::terminal::size() {
        Ok((width, _)) if io::stdout().is_terminal() => Layout::new(columns, 0, width.into()),
        _ => Layout::complete(columns, rows),
    };
    let lines = rows.iter().map(|row| layout.row(row));
    for line in std::iter::once(layout.head()).chain(lines) {
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
