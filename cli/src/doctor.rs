//! `regall doctor`: what this machine allows, found out by doing it, what that
//! costs, and the line that mends it.

mod adapters;
mod attempt;
mod batch;
mod copying;
mod cores;
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
use serde_json::{Map, Value};

use crate::print_json;
use place::Who;

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

/// How a thing stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Everything is as it should be.
    Good,
    /// Optional hardware or a module is not there, and nothing is wrong with that.
    Absent,
    /// What was found limits what regall can do.
    Limits,
    /// Nobody looked; the finding says why.
    NotChecked,
    /// To look failed, though it should have been possible.
    Unknown,
}

impl Standing {
    fn word(self) -> &'static str {
        match self {
            Self::Good => "good",
            Self::Absent => "absent",
            Self::Limits => "limits",
            Self::NotChecked => "not checked",
            Self::Unknown => "unknown",
        }
    }
}

/// What was found of one thing.
pub struct Finding {
    pub name: &'static str,
    pub standing: Standing,
    pub found: String,
    /// What follows from it, as measured here.
    effect: Option<String>,
    /// The figures of it, for programs.
    measured: Map<String, Value>,
    /// Who mends it, and by which line.
    mend: Vec<(Who, String)>,
}

impl Finding {
    fn new(name: &'static str, standing: Standing, found: impl Into<String>) -> Self {
        Self {
            name,
            standing,
            found: found.into(),
            effect: None,
            measured: Map::new(),
            mend: Vec::new(),
        }
    }

    fn effect(self, effect: impl Into<String>) -> Self {
        Self {
            effect: Some(effect.into()),
            ..self
        }
    }

    fn measured(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.measured.insert(name.into(), value.into());
        self
    }

    fn mend(mut self, who: Who, line: impl Into<String>) -> Self {
        self.mend.push((who, line.into()));
        self
    }

    fn told(&self) -> documents::Finding {
        let mend = |(who, line): &(Who, String)| documents::Cure {
            who: who.word().to_string(),
            line: line.clone(),
        };
        documents::Finding {
            name: self.name.to_string(),
            standing: self.standing.word().to_string(),
            found: self.found.clone(),
            effect: self.effect.clone(),
            measured: self.measured.clone(),
            mend: self.mend.iter().map(mend).collect(),
        }
    }

    fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
        let mut line =
            |name: &str, word: &str, text: &str| writeln!(out, "{name:<WIDTH$} {word:<11}  {text}");
        line(self.name, self.standing.word(), &text::wrapped(&self.found))?;
        if let Some(effect) = &self.effect {
            line("", "  effect", &text::wrapped(effect))?;
        }
        // What is absent is nothing wrong.
        let mend = match self.standing {
            Standing::Absent => " to have it",
            _ => "  mend",
        };
        for (who, command) in &self.mend {
            line("", mend, &text::command(who.word(), command))?;
        }
        Ok(())
    }
}

/// Room for the longest name.
const WIDTH: usize = 18;

/// All of them, in the order in which they matter: what keeps everything from
/// working, what leaves memory out, what makes copies slower, what is seldom needed.
fn all() -> Vec<Finding> {
    let near = place::Place::look();
    let mut all = vec![
        shim::library(),
        shim::trial(),
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
