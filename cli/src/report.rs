//! `regall report`: what the processes of a job wrote at their ends (REGALL_STATS_FILE),
//! in one table.

mod advice;
mod alike;
mod columns;
mod distinct;
mod figure;
mod gather;
mod job;
mod kind;
mod merge;
mod others;
mod shown;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;
use regall_documents as documents;

use crate::files;
use crate::output::{complain, print_json, FAILED};
use figure::{group, unit, Unit};
use gather::Gathered;
pub use gather::PATTERN;
use job::Job;
use shown::Shown;

pub const EXIT_CODES: &str = after_help!(
    "The files are those of REGALL_STATS_FILE; in one folder for \
    all nodes, name them %h.%p.json. --merge makes one file of many, also of files that were merged \
    before. The one file may also be a report that regall run --report has written as JSON. Without DIR_OR_FILE it takes what this job has left on this node with \
    REGALL_STATS_FILE=node, and removes that. Files that are not valid are left out and named.\n\nExit code: 0; 1 if a rank \
    wrote nothing (not with --merge); 2 if a file was left out, or no file was found.",
    "regall report /shared/job",
    "regall-report"
);

#[derive(clap::Args)]
pub struct Args {
    /// Files that processes wrote at exit, or folders of them
    #[arg(required_unless_present = "merge", value_name = "DIR_OR_FILE")]
    places: Vec<PathBuf>,
    /// As JSON
    #[arg(long, conflicts_with = "merge")]
    json: bool,
    /// Only processes whose pid, name or rank=N has all of these words
    #[arg(
        long,
        value_name = "WORDS",
        default_value = "",
        conflicts_with = "merge"
    )]
    filter: String,
    /// Merge them into one file, without a table; %h is the host's name, %j the job, %u the user's
    /// number, %d the date
    #[arg(long, value_name = "FILE")]
    merge: Option<PathBuf>,
    /// Do nothing while another process of this job runs on this node with the shim on
    #[arg(long, requires = "merge")]
    last: bool,
    /// Merge what was left on this node with REGALL_STATS_FILE=node:NAME, if anything was; default:
    /// the name in this command's own REGALL_STATS_FILE, else the batch job's number
    #[arg(long, requires = "merge", conflicts_with = "places")]
    name: Option<String>,
}

pub fn report(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    if let Some(pattern) = &args.merge {
        let place = merge::Place::of_this_process(args.name.as_deref());
        let may_be_none = args.last || args.name.is_some();
        return match args.last && place.others_run() {
            true => Ok(0),
            false => place.merge(pattern, &args.places, may_be_none),
        };
    }
    let mut gathered = gather::read(&args.places);
    let written = gathered.report();
    let was_written = written.is_some();
    if was_written && !args.filter.is_empty() {
        bail!(
            "a report that was written has no processes to leave out: --filter needs their files"
        );
    }
    let found = gathered.job.count();
    let report = written.unwrap_or_else(|| some_of(&mut gathered, &args.filter));
    let mut problems = gathered.problems();
    if was_written && report.0.left_out > 0 {
        problems.push(format!(
            "made without {} files that were left out",
            report.0.left_out
        ));
    }
    let empty = report.0.counted == 0;
    match args.json {
        true => print_json(&report.0, out)?,
        false if empty => (),
        false => write!(out, "{report}")?,
    }
    if empty && found > 0 {
        complain(&format!("--filter fits none of {found} processes"));
    } else if empty && was_written {
        complain("a report in which no process has written anything");
    } else if empty && report.0.left_out == 0 {
        let all = args.places.iter();
        all.for_each(|place| complain(&format!("{}: no file of a process's", place.display())));
    }
    problems.iter().for_each(|problem| complain(problem));
    Ok(match () {
        () if report.0.left_out > 0 || empty => FAILED,
        () if !report.0.missing.is_empty() => 1,
        () => 0,
    })
}

/// Returns what is told of the processes that have all of these words. Who wrote nothing is missing
/// in any case.
fn some_of(gathered: &mut Gathered, words: &str) -> Shown {
    if words.is_empty() {
        return of(gathered);
    }
    let missing = gathered.job.missing();
    gathered.job.keep(words);
    let mut report = of(gathered);
    report.0.missing = missing;
    report
}

/// Merges what processes left on this node under a name, if anything, into `pattern`'s file.
pub fn merge_here(pattern: &Path, name: &str) -> anyhow::Result<u8> {
    merge::Place::of_this_process(Some(name)).merge(pattern, &[], true)
}

/// Whether a folder has statistics of all ranks that there were.
pub fn is_whole(folder: &Path) -> bool {
    let job = gather::read(&[folder.into()]).job;
    job.size.is_some() && job.missing().is_empty()
}

/// The job's report as text, or as JSON if the file that it is for says so.
pub fn write(places: &[PathBuf], file: &Path) -> anyhow::Result<Vec<String>> {
    let gathered = gather::read(places);
    let report = of(&gathered);
    let text = match file.extension().is_some_and(|e| e == "json") {
        true => serde_json::to_string_pretty(&report.0)? + "\n",
        false => report.to_string(),
    };
    files::write(file, |out| out.write_all(text.as_bytes()))?;
    let mut said = gathered.problems();
    if gathered.job.is_empty() {
        said.push(
            "no process with the shim wrote anything: were the ranks shells, static, killed, or had \
             they a bad setting (one line on stderr)?"
                .into(),
        );
    } else if !report.0.missing.is_empty() {
        said.push(report.missing_line());
    }
    Ok(said)
}

/// One figure over all ranks.
struct Row {
    name: String,
    unit: Unit,
    least: u64,
    median: u64,
    most: u64,
    /// Who is furthest from the median; nobody if all are the same.
    outlier: Option<usize>,
}

impl Row {
    /// None: nobody has it.
    fn of(name: String, unit: Unit, values: &[(u64, usize)]) -> Option<Self> {
        let least = *values.iter().min_by_key(|(n, _)| n)?;
        let most = values.iter().fold(least, |most, one| match one.0 > most.0 {
            true => *one,
            false => most,
        });
        let mut sorted: Vec<_> = values.iter().map(|(n, _)| *n).collect();
        let median = median(&mut sorted);
        let (below, above) = (
            median.saturating_sub(least.0),
            most.0.saturating_sub(median),
        );
        let furthest = if above >= below { most } else { least };
        Some(Self {
            name,
            unit,
            least: least.0,
            median,
            most: most.0,
            outlier: (below + above > 0).then_some(furthest.1),
        })
    }
}

/// The one in the middle, or what is between the two that are. They change their places.
fn median(values: &mut [u64]) -> u64 {
    let count = values.len();
    if count == 0 {
        return 0;
    }
    let (smaller, above, _) = values.select_nth_unstable(count / 2);
    let below = match count % 2 {
        1 => *above,
        _ => smaller.iter().copied().max().unwrap_or(*above),
    };
    below + (*above - below) / 2
}

/// Returns what is told of a job.
fn of(gathered: &Gathered) -> Shown {
    let job = &gathered.job;
    let groups = alike::Groups::of(job);
    let figure = |r: Row| documents::Figure {
        unit: r.unit.word().to_string(),
        figure: r.name,
        min: r.least,
        median: r.median,
        max: r.most,
        outlier: r.outlier.map(|at| job.place(at)),
    };
    Shown(documents::Report {
        version: documents::VERSION,
        counted: job.count() as u64,
        ranks: job.size,
        hosts: job.hosts(),
        children: job.children,
        libraries: job.libraries(),
        missing: job.missing(),
        left_out: gathered.left_out,
        alike: groups.alike,
        unlike: groups.unlike,
        different: groups.different,
        figures: rows(job).into_iter().map(figure).collect(),
        advice: advice::of(job),
    })
}

/// Each figure that somebody has, and the two that everybody asks for.
fn rows(job: &Job) -> Vec<Row> {
    let row = |name: String| {
        let column = job.figure(&name)?;
        let value = |at| Some((column.get(at).get()?, at));
        // All of them are the same as the first.
        let least = match job.same(column) {
            Some(_) => 1,
            None => usize::MAX,
        };
        let values: Vec<_> = job.ranks().take(least).filter_map(value).collect();
        let unit = unit(&name);
        Row::of(name, unit, &values)
    };
    let always = |r: &Row| !["bytes.reason", "events", "counters"].contains(&group(&r.name).0);
    let told = |r: &Row| r.most > 0 || always(r);
    job.figures()
        .into_iter()
        .filter_map(row)
        .filter(told)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::figure::{plain, spans};
    use super::*;

    fn row(values: &[u64]) -> Option<Row> {
        let values: Vec<_> = (values.iter().copied().zip(0..)).collect();
        Row::of(String::new(), Unit::Number, &values)
    }

    /// Whatever a process writes as its statistics, also as merged ones.
    #[test]
    fn a_process_commands_no_terminal() {
        use crate::units::evil::{self, everywhere};
        use serde_json::{from_value, json, to_value};
        let mut one = documents::Process {
            version: documents::VERSION,
            library: Some("x".into()),
            selftest_missed: vec!["x".into()],
            unpublished: 3,
            ..documents::Process::default()
        };
        let mut job = Job::default();
        for (n, merged) in (0..8).zip([false, true].into_iter().cycle()) {
            one.rank = Some(n);
            one.mappings = 1 << (8 * (n % 2));
            let mut told = everywhere(to_value(&one).unwrap());
            let name = format!("{}{n}", evil::TEXT);
            for path in [
                "/settings",
                "/bytes/reason",
                "/bytes/state",
                "/events",
                "/counters",
            ] {
                let value = if path == "/settings" {
                    json!(name)
                } else {
                    json!(n)
                };
                let there = told.pointer_mut(path).unwrap();
                *there = json!({ name.as_str(): value });
            }
            let told: documents::Process = from_value(told).unwrap();
            match merged {
                false => job.add(told).unwrap(),
                true => {
                    let mut part = Job::default();
                    part.add(told).unwrap();
                    part.settle();
                    let mut part = to_value(part.merged()).unwrap();
                    let hosts = part["hosts"].take();
                    part["hosts"] = everywhere(hosts);
                    let kinds = part["kinds"].take();
                    part["kinds"] = everywhere(kinds);
                    part["kinds"][0]["settings"] = json!({ name.as_str(): name });
                    job.add_merged(from_value(part).unwrap()).unwrap();
                }
            }
        }
        job.settle();
        let mut gathered = Gathered::default();
        gathered.job = job;
        let said = of(&gathered).to_string();
        assert!(
            said.contains("settings") || said.contains("title"),
            "{said}"
        );
        evil::is_harmless(&said);
        // So it is when it has been written and is read again.
        let written = everywhere(to_value(&of(&gathered).0).unwrap());
        let written = shown::parse(written.to_string().as_bytes()).unwrap();
        evil::is_harmless(&written.to_string());
    }

    #[test]
    fn the_outlier_is_furthest_from_the_median() {
        let odd = row(&[5, 100, 7]).unwrap();
        assert_eq!(
            (odd.least, odd.median, odd.most, odd.outlier),
            (5, 7, 100, Some(1))
        );
        let outlier = |values: &[u64]| row(values).unwrap().outlier;
        assert_eq!(outlier(&[50, 1, 51, 52]), Some(1));
        assert_eq!(outlier(&[3, 3, 3]), None);
        assert_eq!(outlier(&[9]), None);
        assert_eq!(outlier(&[4, 6]), Some(1));
        assert!(row(&[]).is_none());
        let median = |values: &[u64]| row(values).unwrap().median;
        assert_eq!(median(&[5, 1, 4, 2]), 3);
        assert_eq!(median(&[10, 20]), 15);
        assert_eq!(median(&[u64::MAX, u64::MAX - 2]), u64::MAX - 1);
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
        let odd: Vec<_> = (0..40).map(|n| n * 2).collect();
        assert!(
            spans(&odd).ends_with(", 28, 30 and 24 more"),
            "{}",
            spans(&odd)
        );
    }
}
