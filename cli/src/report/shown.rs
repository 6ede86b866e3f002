//! A job's report as text: one that was just made, or one that was written as JSON.

use std::fmt;

use anyhow::bail;
use regall_documents as documents;
use serde_json::Value;

use super::alike::Groups;
use super::figure::{plain, spans, unit};
use crate::table::table;
use crate::units;

/// A report that can be printed.
pub struct Shown(pub documents::Report);

/// Bytes of a report at the most: it names 10,000 processes, and 100,000 differences.
const LONGEST: usize = 16 << 20;

/// Takes a report in that was written as JSON, whoever has written it: its texts command no
/// terminal.
///
/// # Errors
/// It is too long, cut off, of another version, or something else.
pub fn parse(text: &[u8]) -> anyhow::Result<Shown> {
    if text.len() > LONGEST {
        bail!("too long");
    }
    let Ok(mut told) = serde_json::from_slice::<documents::Report>(text) else {
        bail!("cut off, or not as regall run --report writes it");
    };
    if told.version != documents::VERSION {
        bail!("of another version");
    }
    plain_report(&mut told);
    Ok(Shown(told))
}

fn plain_text(text: &mut String) {
    *text = units::printable(text).to_string();
}

fn plain_report(told: &mut documents::Report) {
    let plain = |text: &str| units::printable(text).to_string();
    told.hosts = told.hosts.iter().map(|host| plain(host)).collect();
    let libraries = std::mem::take(&mut told.libraries).into_iter();
    told.libraries = libraries.map(|(name, n)| (plain(&name), n)).collect();
    for group in &mut told.alike {
        plain_text(&mut group.exe);
        group.differs.iter_mut().for_each(plain_difference);
    }
    for one in &mut told.unlike {
        plain_text(&mut one.host);
        one.differs.iter_mut().for_each(plain_difference);
    }
    for row in &mut told.figures {
        plain_text(&mut row.figure);
        row.outlier.iter_mut().for_each(plain_text);
    }
    told.advice.iter_mut().for_each(plain_text);
}

fn plain_difference(different: &mut documents::Different) {
    plain_text(&mut different.figure);
    for value in [&mut different.has, &mut different.others] {
        match value {
            Value::String(text) => plain_text(text),
            Value::Array(_) | Value::Object(_) => *value = Value::Null,
            Value::Null | Value::Bool(_) | Value::Number(_) => (),
        }
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
