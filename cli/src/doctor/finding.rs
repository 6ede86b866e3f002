//! Findings: what `regall doctor` says of one thing, in words and for programs.

use std::io::Write;

use regall_documents as documents;
use serde_json::{Map, Value};

use super::text;

/// Names who can mend a thing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The user, in a shell.
    You,
    /// Root, on this node.
    Administrator,
    /// Whoever starts the container.
    Container,
}

impl Who {
    pub fn word(self) -> &'static str {
        match self {
            Self::You => "you",
            Self::Administrator => "administrator",
            Self::Container => "who starts the container",
        }
    }
}

/// Says how a thing stands.
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

/// Tells what was found of one thing.
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
    pub fn new(name: &'static str, standing: Standing, found: impl Into<String>) -> Self {
        Self {
            name,
            standing,
            found: found.into(),
            effect: None,
            measured: Map::new(),
            mend: Vec::new(),
        }
    }

    pub fn effect(self, effect: impl Into<String>) -> Self {
        Self {
            effect: Some(effect.into()),
            ..self
        }
    }

    pub fn measured(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.measured.insert(name.into(), value.into());
        self
    }

    pub fn mend(mut self, who: Who, line: impl Into<String>) -> Self {
        self.mend.push((who, line.into()));
        self
    }

    pub fn told(&self) -> documents::Finding {
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

    pub fn print(&self, out: &mut impl Write) -> std::io::Result<()> {
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
pub const WIDTH: usize = 18;
