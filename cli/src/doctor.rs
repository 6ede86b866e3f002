//! `regall doctor`: what this machine allows, found out by doing it, what that
//! costs, and the line that mends it.

mod adapters;
mod attempt;
mod batch;
mod copying;
mod cores;
mod finding;
mod kernel;
mod locking;
mod mappings;
mod pages;
mod place;
mod pool;
mod promises;
mod shared;
mod shim;
mod text;

use std::io::Write;

use regall_documents as documents;

use crate::output::print_json;
use finding::{Finding, Standing};

pub const EXIT_CODES: &str = after_help!(
    "Exit code: 0 nothing is in the way, 1 something keeps registration \
    or single copy from being complete, 2 wrong use, or something could not be looked at.",
    "regall doctor",
    "regall-doctor"
);

#[derive(clap::Args)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// All of them, in the order in which they matter: what keeps everything from
/// working, what leaves memory out, what makes copies slower, what is seldom needed.
fn all() -> Vec<Finding> {
    let near = place::Place::look();
    let mut all = vec![
        shim::library(),
        shim::trial(),
        shim::switch(),
        kernel::patching(&near),
        kernel::seccomp(&near),
        kernel::advice(),
        locking::mlock(&near),
        locking::cgroup(),
        shared::memory(&near),
        shared::folder(),
        mappings::count(&near),
        promises::overcommit(&near),
        batch::slurm(),
        copying::single_copy(&near),
        copying::yama(&near),
        pages::huge(&near),
        pool::pool(&near),
        cores::dumps(),
        place::user_namespace(),
        near.finding(),
    ];
    all.extend(adapters::all(&near));
    all.push(kernel::dispatch());
    all
}

pub fn doctor(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let findings = all();
    if args.json {
        let told = documents::Doctor {
            version: documents::VERSION,
            findings: findings.iter().map(Finding::told).collect(),
        };
        print_json(&told, out)?;
    } else {
        for finding in &findings {
            finding.print(out)?;
        }
        writeln!(out, "\n{}", text::paragraph(&summary(&findings)))?;
    }
    let any = |s| findings.iter().any(|f| f.standing == s);
    Ok(match (any(Standing::Unknown), any(Standing::Limits)) {
        (true, _) => 2,
        (_, true) => 1,
        _ => 0,
    })
}

fn summary(findings: &[Finding]) -> String {
    let names = |s| {
        let of = findings.iter().filter(move |f| f.standing == s);
        of.map(|f| f.name).collect::<Vec<_>>().join(", ")
    };
    let (limits, unknown) = (names(Standing::Limits), names(Standing::Unknown));
    let mut text = match limits.is_empty() {
        true => "Nothing is in the way.".to_string(),
        false => format!("In the way: {limits}."),
    };
    if !unknown.is_empty() {
        text = match limits.is_empty() {
            true => format!("Could not be looked at: {unknown}."),
            false => format!("{text} Could not be looked at: {unknown}."),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::finding::WIDTH;
    use super::*;

    #[test]
    fn the_last_line_names_what_is_in_the_way() {
        let one = |name, standing| Finding::new(name, standing, "");
        assert_eq!(
            summary(&[one("a", Standing::Good)]),
            "Nothing is in the way."
        );
        let two = [one("a", Standing::Limits), one("b", Standing::Unknown)];
        assert_eq!(summary(&two), "In the way: a. Could not be looked at: b.");
        assert_eq!(summary(&two[1..]), "Could not be looked at: b.");
    }

    #[test]
    fn names_fit_their_column() {
        assert!(all().iter().all(|f| f.name.len() <= WIDTH));
    }
}
