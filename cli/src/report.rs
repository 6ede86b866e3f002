//! `regall report`: what the processes of a job wrote at their ends (REGALL_STATS_FILE),
//! in one table.

mod advice;
mod gather;

use std::fmt;
use std::io::Write;
use std::path::PathBuf;

use regall_documents as documents;

use crate::{complain, print_json, units, FAILED};
use gather::Job;
pub use gather::PATTERN;

pub const EXIT_CODES: &str = after_help!(
    "The files are those of REGALL_STATS_FILE; in one folder for \
    all nodes, name them %h.%p.json.\n\nExit code: 0; 1 if a rank wrote nothing; 2 if a file \
    could not be read, or there is none.",
    "regall report /shared/job",
    "regall-report"
);

#[derive(clap::Args)]
pub struct Args {
    /// Files that processes wrote at exit, or folders of them
    #[arg(required = true, value_name = "DIR_OR_FILE")]
    places: Vec<PathBuf>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn report(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let gathered = gather::read(&args.places);
    let report = Report::of(&gathered.job);
    match args.json {
        true => print_json(&report.told(), out)?,
        false if gathered.job.is_empty() => (),
        false => write!(out, "{report}")?,
    }
    if gathered.job.is_empty() && gathered.problems.is_empty() {
        let all = args.places.iter();
        all.for_each(|place| complain(&format!("{}: no file of a process's", place.display())));
    }
    for problem in &gathered.problems {
        complain(problem);
    }
    Ok(match () {
        () if !gathered.problems.is_empty() || gathered.job.is_empty() => FAILED,
        () if !report.missing.is_empty() => 1,
        () => 0,
    })
}

/// The job's report as text, or as JSON if the file that it is for says so.
pub fn write(places: &[PathBuf], file: &std::path::Path) -> anyhow::Result<Vec<String>> {
    let gathered = gather::read(places);
    let report = Report::of(&gathered.job);
    let text = match file.extension().is_some_and(|e| e == "json") {
        true => serde_json::to_string_pretty(&report.told())? + "\n",
        false => report.to_string(),
    };
    std::fs::write(file, text)?;
    let mut said = gathered.problems;
    if gathered.job.is_empty() {
        said.push(
            "no process with the shim wrote anything: were the ranks shells, static, killed, or had \
             they a bad setting (one line on stderr)?"
                .into(),
        );
    } else if !report.missing.is_empty() {
        said.push(report.missing_line());
    }
    Ok(said)
}

/// What a figure counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Number,
    Bytes,
    Nanoseconds,
}

impl Unit {
    fn word(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Bytes => "bytes",
            Self::Nanoseconds => "ns",
        }
    }

    fn show(self, n: u64) -> String {
        match self {
            Self::Number => units::count(n),
            Self::Bytes => units::bytes(n),
            Self::Nanoseconds if n < 1_000_000_000 => format!("{:.1} ms", n as f64 / 1e6),
            Self::Nanoseconds => format!("{:.1} s", n as f64 / 1e9),
        }
    }
}

/// One figure over all ranks.
struct Row {
    name: String,
    unit: Unit,
    /// Ascending: what each has, and who.
    values: Vec<(u64, String)>,
}

impl Row {
    fn least(&self) -> u64 {
        self.values.first().map_or(0, |(n, _)| *n)
    }

    fn most(&self) -> u64 {
        self.values.last().map_or(0, |(n, _)| *n)
    }

    /// The one in the middle, or what is between the two that are.
    fn median(&self) -> u64 {
        let value = |at: usize| self.values.get(at).map_or(0, |(n, _)| *n);
        let count = self.values.len();
        let (below, above) = (value(count.saturating_sub(1) / 2), value(count / 2));
        below + above.saturating_sub(below) / 2
    }

    /// Who is furthest from the median; nobody if all are the same.
    fn outlier(&self) -> Option<&str> {
        let (median, first, last) = (self.median(), self.values.first()?, self.values.last()?);
        let (below, above) = (median - first.0, last.0 - median);
        let furthest = if above >= below { last } else { first };
        (below + above > 0).then_some(furthest.1.as_str())
    }
}

/// What is told of a job.
struct Report<'a> {
    job: &'a Job,
    rows: Vec<Row>,
    missing: Vec<u64>,
    advice: Vec<String>,
}

impl<'a> Report<'a> {
    fn of(job: &'a Job) -> Self {
        Self {
            rows: rows(job),
            missing: job.missing(),
            advice: advice::of(job),
            job,
        }
    }

    fn missing_line(&self) -> String {
        format!(
            "wrote nothing: rank {} (killed, ended by _exit, given up, or without the shim)",
            spans(&self.missing)
        )
    }

    fn told(&self) -> documents::Report {
        let figure = |r: &Row| documents::Figure {
            figure: r.name.clone(),
            unit: r.unit.word().to_string(),
            min: r.least(),
            median: r.median(),
            max: r.most(),
            outlier: r.outlier().map(str::to_string),
        };
        documents::Report {
            version: documents::VERSION,
            counted: self.job.ranks.len() as u64,
            ranks: self.job.size,
            hosts: self.job.hosts(),
            children: self.job.children as u64,
            libraries: self.job.libraries(),
            missing: self.missing.clone(),
            figures: self.rows.iter().map(figure).collect(),
            advice: self.advice.clone(),
        }
    }
}

/// `0, 2-5`
fn spans(numbers: &[u64]) -> String {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for &n in numbers {
        match all.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(n) => *last = n,
            _ => all.push((n, n)),
        }
    }
    let shown = all.iter().map(|(a, b)| match a == b {
        true => a.to_string(),
        false => format!("{a}-{b}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

/// Each figure that somebody has, and the two that everybody asks for.
fn rows(job: &Job) -> Vec<Row> {
    let mut figures: Vec<(String, Unit)> = vec![
        ("mappings".into(), Unit::Number),
        ("bytes.state.registered".into(), Unit::Bytes),
    ];
    for reason in job.keys(|p| &p.bytes.reason) {
        figures.push((format!("bytes.reason.{reason}"), Unit::Bytes));
    }
    for call in job.keys(|p| &p.events) {
        figures.push((format!("events.{call}"), Unit::Number));
    }
    for name in job.keys(|p| &p.counters) {
        let unit = match name.as_str() {
            n if n.ends_with("_ns") => Unit::Nanoseconds,
            n if n.contains("bytes") || n == "retired" => Unit::Bytes,
            _ => Unit::Number,
        };
        // As mappings.
        if name != "ranges" {
            figures.push((format!("counters.{name}"), unit));
        }
    }
    figures.push(("sites.refused".into(), Unit::Number));
    figures.push(("budget_bytes".into(), Unit::Bytes));
    let row = |(name, unit): (String, Unit)| {
        let value = |p: &gather::Process| Some((p.figure(&name)?, p.place.clone()));
        let mut values: Vec<_> = job.ranks.iter().filter_map(value).collect();
        values.sort();
        Row { values, name, unit }
    };
    let always = |r: &Row| !["bytes.reason", "events", "counters"].contains(&group(&r.name).0);
    let told = |r: &Row| r.most() > 0 || always(r);
    figures
        .into_iter()
        .map(row)
        .filter(|r| told(r) && !r.values.is_empty())
        .collect()
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.head(f)?;
        if self.job.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        self.table(f)?;
        if !self.advice.is_empty() {
            writeln!(f)?;
        }
        self.advice
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}

impl Report<'_> {
    /// Whose figures these are, and whose are missing.
    fn head(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let job = self.job;
        let count = |n: usize, one: &str, many: &str| match n {
            1 => format!("1 {one}"),
            n => format!("{n} {many}"),
        };
        write!(f, "{}", count(job.ranks.len(), "process", "processes"))?;
        if let Some(size) = job.size {
            write!(f, " of {}", count(size as usize, "rank", "ranks"))?;
        }
        writeln!(f, " on {}", count(job.hosts().len(), "node", "nodes"))?;
        if job.children > 0 {
            writeln!(
                f,
                "{} of these are not counted",
                count(job.children, "child", "children")
            )?;
        }
        if !self.missing.is_empty() {
            writeln!(f, "{}", self.missing_line())?;
        }
        Ok(())
    }

    /// A line a figure, in columns as wide as what stands in them.
    fn table(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut table = vec![["FIGURE", "MIN", "MEDIAN", "MAX", "OUTLIER"].map(String::from)];
        for row in &self.rows {
            let figure = plain(&row.name);
            let show = |n| row.unit.show(n);
            let who = row.outlier().unwrap_or("-").to_string();
            table.push([
                figure,
                show(row.least()),
                show(row.median()),
                show(row.most()),
                who,
            ]);
        }
        let width = |n: usize| {
            table
                .iter()
                .filter_map(|r| r.get(n))
                .map(|c| c.len())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<_> = (0..4).map(width).collect();
        for [figure, least, median, most, who] in &table {
            let &[a, b, c, d] = widths.as_slice() else {
                break;
            };
            writeln!(
                f,
                "{figure:<a$}  {least:>b$}  {median:>c$}  {most:>d$}  {who}"
            )?;
        }
        Ok(())
    }
}

/// A figure's group, and its name in it.
fn group(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

/// A figure's name as people read it.
fn plain(name: &str) -> String {
    let (group, name) = group(name);
    match group {
        "sites" => format!("sites {name}"),
        "bytes.reason" => format!("excluded {name}"),
        "events" => format!("calls {name}"),
        _ => match name.strip_suffix("_ns") {
            Some("hook") => "time in hooks".into(),
            Some("start") => "time at start-up".into(),
            Some("pin") => "time pinning".into(),
            Some("hca") => "time registering".into(),
            Some(other) => format!("time {other}"),
            None => counted(name),
        },
    }
}

/// A counter's name as people read it. Of a mechanism there are two: how often, and bytes.
fn counted(name: &str) -> String {
    let words = name.split('_').filter(|w| *w != "bytes");
    let words = words.collect::<Vec<_>>().join(" ");
    match (words.strip_prefix("copy "), name.ends_with("_bytes")) {
        (Some(mechanism), true) => format!("copied by {mechanism}"),
        (Some(mechanism), false) => format!("copies by {mechanism}"),
        (None, _) => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(values: &[u64]) -> Row {
        let mut values: Vec<_> = values
            .iter()
            .copied()
            .enumerate()
            .map(|(i, n)| (n, format!("rank {i}")))
            .collect();
        values.sort();
        Row {
            name: String::new(),
            unit: Unit::Number,
            values,
        }
    }

    #[test]
    fn the_outlier_is_furthest_from_the_median() {
        let odd = row(&[5, 100, 7]);
        assert_eq!(
            (odd.least(), odd.median(), odd.most(), odd.outlier()),
            (5, 7, 100, Some("rank 1"))
        );
        assert_eq!(row(&[50, 1, 51, 52]).outlier(), Some("rank 1"));
        assert_eq!(row(&[3, 3, 3]).outlier(), None);
        assert_eq!(row(&[9]).outlier(), None);
        assert_eq!(row(&[]).median(), 0);
        assert_eq!(row(&[1, 2, 4, 5]).median(), 3);
        assert_eq!(row(&[10, 20]).median(), 15);
        assert_eq!(row(&[u64::MAX, u64::MAX - 2]).median(), u64::MAX - 1);
        assert_eq!(row(&[4, 6]).outlier(), Some("rank 1"));
    }

    #[test]
    fn no_two_figures_have_one_name() {
        use regall_directory::layout::Counter;
        let all = Counter::ALL
            .iter()
            .map(|c| format!("counters.{}", c.word()));
        let mut names: Vec<_> = all.map(|name| plain(&name)).collect();
        assert!(names.contains(&"pinned total".to_string()), "{names:?}");
        assert!(names.contains(&"copied by cma".to_string()), "{names:?}");
        names.sort();
        assert!(names.windows(2).all(|w| w[0] != w[1]), "{names:?}");
        assert!(names.iter().all(|n| !n.contains("  ") && !n.is_empty()));
    }

    #[test]
    fn numbers_in_a_row_are_one_span() {
        assert_eq!(spans(&[0, 2, 3, 4, 9, 10]), "0, 2-4, 9-10");
        assert_eq!(spans(&[]), "");
    }
}
