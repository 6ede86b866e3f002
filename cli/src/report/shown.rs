//! A job's report as text: one that was just made, or one that was written as JSON.

use std::fmt;
use std::path::PathBuf;

use anyhow::Context;
use regall_documents as documents;
use serde_json::Value;

use super::alike::Groups;
use super::figure::{plain, spans, unit};
use super::gather::is_report;
use crate::files::{self, Whose};
use crate::table::table;
use crate::units;

/// A report that can be printed.
pub struct Shown(pub documents::Report);

/// Reads a report that was written as JSON. None: `places` is something else.
///
/// # Errors
/// It says that it is a report, and is not whole or of another version.
pub fn read(places: &[PathBuf]) -> anyhow::Result<Option<Shown>> {
    let [place] = places else { return Ok(None) };
    let is_file = place.is_file();
    let text = is_file.then(|| files::read(place, Whose::Named, files::LONGEST));
    let Some(Ok(text)) = text else {
        return Ok(None);
    };
    if !is_report(&text) {
        return Ok(None);
    }
    let said = || format!("{}: no report of regall run --report", place.display());
    let value = serde_json::from_slice(&text).with_context(said)?;
    parse(value).with_context(said).map(Some)
}

/// Takes a document in, whoever has written it: its texts command no terminal.
pub fn parse(mut document: Value) -> serde_json::Result<Shown> {
    plain_texts(&mut document);
    serde_json::from_value(document).map(Shown)
}

fn plain_texts(value: &mut Value) {
    match value {
        Value::String(text) => *text = units::printable(text).to_string(),
        Value::Array(all) => all.iter_mut().for_each(plain_texts),
        Value::Object(all) => {
            let old = std::mem::take(all);
            for (name, mut value) in old {
                plain_texts(&mut value);
                all.insert(units::printable(&name).to_string(), value);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => (),
    }
}

impl Shown {
    /// Returns the line that names the ranks which wrote nothing.
    pub fn missing_line(&self) -> String {
        format!(
            "wrote nothing: rank {} (killed, ended by _exit, given up, or without the shim)",
            spans(&self.0.missing)
        )
    }

    /// Writes whose figures these are, and whose are missing.
    fn head(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let told = &self.0;
        let count = |n: u64, one: &str, many: &str| match n {
            1 => format!("1 {one}"),
            n => format!("{n} {many}"),
        };
        write!(f, "{}", count(told.counted, "process", "processes"))?;
        if let Some(size) = told.ranks {
            write!(f, " of {}", count(size, "rank", "ranks"))?;
        }
        writeln!(f, " on {}", count(told.hosts.len() as u64, "node", "nodes"))?;
        if told.children > 0 {
            let children = count(told.children, "child", "children");
            writeln!(f, "{children} of these are not counted")?;
        }
        if !told.missing.is_empty() {
            writeln!(f, "{}", self.missing_line())?;
        }
        Ok(())
    }

    /// Writes a line for each figure.
    fn table(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let rows = self.0.figures.iter().map(|row| {
            let unit = unit(&row.figure);
            let [least, median, most] = [row.min, row.median, row.max].map(|n| unit.show(n));
            let who = row.outlier.clone().unwrap_or_else(|| "-".into());
            [plain(&row.figure), least, median, most, who]
        });
        let heads = ["FIGURE", " MIN", " MEDIAN", " MAX", "OUTLIER"];
        write!(f, "{}", table(heads, rows))
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.head(f)?;
        let told = &self.0;
        if told.counted == 0 {
            return Ok(());
        }
        let groups = Groups {
            alike: told.alike.clone(),
            unlike: told.unlike.clone(),
            different: told.different,
        };
        writeln!(f, "{groups}")?;
        self.table(f)?;
        if !told.advice.is_empty() {
            writeln!(f)?;
        }
        told.advice
            .iter()
            .try_for_each(|line| writeln!(f, "{line}"))
    }
}
