//! `regall doctor`: what this machine allows, and the command that mends what
//! it does not.

mod checks;

use std::io::Write;

use serde_json::{json, Value};

use crate::print_json;

pub const EXIT_CODES: &str =
    "Exit code: 0 all good, 1 something limits what regall can do, 2 could not look.";

#[derive(clap::Args)]
pub struct Args {
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// How a thing stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// As it should be.
    Good,
    /// It is not there, which is nothing wrong: hardware, optional modules.
    Absent,
    /// It limits what regall can do.
    Limits,
    /// Nobody looked; the finding says why.
    NotChecked,
    /// It should have been possible to look, and was not.
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
    /// The command that mends it.
    pub mend: Option<String>,
}

impl Finding {
    fn new(name: &'static str, standing: Standing, found: impl Into<String>) -> Self {
        Self {
            name,
            standing,
            found: found.into(),
            mend: None,
        }
    }

    fn mend(self, command: impl Into<String>) -> Self {
        Self {
            mend: Some(command.into()),
            ..self
        }
    }

    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "standing": self.standing.word(),
            "found": self.found,
            "mend": self.mend,
        })
    }
}

pub fn doctor(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let findings = checks::all();
    if args.json {
        print_json(&findings.iter().map(Finding::json).collect(), out)?;
    } else {
        for f in &findings {
            writeln!(out, "{:<16} {:<11}  {}", f.name, f.standing.word(), f.found)?;
            if let Some(command) = &f.mend {
                writeln!(out, "{:<16} {:<11}  mend: {command}", "", "")?;
            }
        }
    }
    let any = |s| findings.iter().any(|f| f.standing == s);
    Ok(match (any(Standing::Unknown), any(Standing::Limits)) {
        (true, _) => 2,
        (_, true) => 1,
        _ => 0,
    })
}
