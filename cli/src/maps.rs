//! `regall maps`: the address space for people, a line a mapping.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use regall_directory::addr::PageRange;
use regall_reader::{Entry, Mapping};
use serde_json::{json, Value};

use crate::check::overlapping;
use crate::dump::{reason, state, Key};
use crate::look::{look, Look};
use crate::{picture, units};

#[derive(clap::Args)]
pub struct Args {
    /// The process
    pid: u32,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Draw it into this file instead
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    svg: Option<PathBuf>,
}

/// A mapping, or as much of it as one thing is said of.
pub struct Row<'a> {
    pub range: PageRange,
    pub mapping: &'a Mapping,
    /// `None`: nothing is said of it, a gap.
    pub entry: Option<&'a Entry>,
}

pub fn maps(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let look = look(args.pid).with_context(|| args.pid.to_string())?;
    let rows = rows(&look);
    if let Some(file) = &args.svg {
        let svg = picture::draw(args.pid, &look.header.exe, &rows);
        fs::write(file, svg).with_context(|| file.display().to_string())?;
    } else if args.json {
        let all: Vec<Value> = rows.iter().map(Row::json).collect();
        serde_json::to_writer_pretty(&mut *out, &all).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        table(&rows, out)?;
    }
    Ok(0)
}

/// Mappings cut where entries of different content meet.
fn rows(look: &Look) -> Vec<Row<'_>> {
    let mut rows: Vec<Row> = Vec::new();
    for mapping in &look.mappings {
        let first = rows.len();
        let mut left = Some(mapping.range);
        let mut add = |range: PageRange, entry| {
            let says = |e: Option<&Entry>| e.map(|e| (e.attr.pack(), e.keys));
            let same = rows.get(first..).and_then(|r| r.last());
            let same = same.is_some_and(|r| says(r.entry) == says(entry));
            match rows.last_mut() {
                Some(last) if same => {
                    let joined = PageRange::new(last.range.start(), range.end());
                    last.range = joined.unwrap_or(range);
                }
                _ => rows.push(Row {
                    range,
                    mapping,
                    entry,
                }),
            }
        };
        for entry in overlapping(&look.entries, mapping.range) {
            let Some(rest) = left else { break };
            if let Some(missed) = rest.before(entry.range.start()) {
                add(missed, None);
            }
            if let Some(piece) = mapping.range.intersection(entry.range) {
                add(piece, Some(entry));
            }
            left = rest.after(entry.range.end());
        }
        if let Some(missed) = left {
            add(missed, None);
        }
    }
    rows
}

fn table(rows: &[Row], out: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{:<33} {:>9} {:4} {:<10} {:<11} {:<21} NAME",
        "RANGE", "SIZE", "PROT", "STATE", "REASON", "KEYS"
    )?;
    for row in rows {
        let (start, end) = (row.range.start(), row.range.end());
        let addresses = format!("{start:08x}-{end:08x}");
        let (size, prot) = (units::bytes(row.range.len()), row.mapping.prot);
        let (state, reason, name) = (row.state(), row.reason(), row.mapping.name.as_str());
        let line = format!(
            "{addresses:<33} {size:>9} {prot} {state:<10} {reason:<11} {:<21} {name}",
            row.keys()
        );
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

impl Row<'_> {
    /// `registered`, `excluded` or `gap`.
    pub fn state(&self) -> &'static str {
        self.entry.map_or("gap", |e| state(&e.attr))
    }

    /// Why it is excluded, or `-`.
    pub fn reason(&self) -> String {
        self.entry.map_or("-".into(), |e| reason(&e.attr))
    }

    fn keys(&self) -> String {
        match self.entry.map(|e| (e.lkey(), e.rkey())) {
            Some((Some(l), Some(r))) => format!("{l:#x}/{r:#x}"),
            _ => "-".into(),
        }
    }

    fn json(&self) -> Value {
        let key = |k: Option<u32>| k.map(|k| Key(Some(k)).to_string());
        let entry = self.entry;
        json!({
            "start": format!("{:#x}", self.range.start()),
            "end": format!("{:#x}", self.range.end()),
            "bytes": self.range.len(),
            "prot": self.mapping.prot.to_string(),
            "state": self.state(),
            "reason": entry.filter(|e| !e.attr.registered()).map(|e| reason(&e.attr)),
            "kind": entry.map(|e| e.attr.kind.word()),
            "pin": entry.map(|e| e.attr.pin.to_string()),
            "hca": entry.map(|e| e.attr.hca.to_string()),
            "lkey": entry.and_then(|e| key(e.lkey())),
            "rkey": entry.and_then(|e| key(e.rkey())),
            "name": self.mapping.name,
        })
    }
}
