//! `regall maps`: the address space for people, a line a mapping.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use regall_directory::addr::PageRange;
use regall_reader::{Entry, Mapping, Region};
use serde_json::{json, Value};

use crate::check::overlapping;
use crate::dump::{reason, state, Key};
use crate::look::{look, Look};
use crate::regions::{self, pieces};
use crate::{picture, print_json, units};

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
    /// The primary domain's region that holds it.
    region: Option<&'a Region>,
}

pub fn maps(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let look = look(args.pid).with_context(|| args.pid.to_string())?;
    let rows = rows(&look);
    if let Some(file) = &args.svg {
        let svg = picture::draw(&picture::Subject {
            pid: args.pid,
            exe: &look.header.exe,
            rows: &rows,
            regions: &look.regions,
        });
        fs::write(file, svg).with_context(|| file.display().to_string())?;
    } else if args.json {
        print_json(&json(args.pid, &look, &rows), out)?;
    } else {
        table(&rows, out)?;
    }
    Ok(0)
}

/// Mappings cut where entries of different content meet, and where regions of
/// the primary domain begin and end.
fn rows(look: &Look) -> Vec<Row<'_>> {
    let mut rows = Rows(Vec::new());
    for mapping in &look.mappings {
        let first = rows.0.len();
        let mut add = |range, entry| {
            for (range, region) in pieces(range, look.regions.primary()) {
                let row = Row {
                    range,
                    mapping,
                    entry,
                    region,
                };
                rows.add(row, first);
            }
        };
        let mut left = Some(mapping.range);
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
    rows.0
}

struct Rows<'a>(Vec<Row<'a>>);

impl<'a> Rows<'a> {
    /// Adds a row, or joins it to the last one from number `first` on that says
    /// the same.
    fn add(&mut self, row: Row<'a>, first: usize) {
        let own = self.0.get_mut(first..).and_then(|r| r.last_mut());
        match own.filter(|last| last.says() == row.says()) {
            Some(last) => {
                let joined = PageRange::new(last.range.start(), row.range.end());
                last.range = joined.unwrap_or(row.range);
            }
            None => self.0.push(row),
        }
    }
}

/// The rows, and the regions of all domains.
fn json(pid: u32, look: &Look, rows: &[Row]) -> Value {
    let primary = look.header.primary;
    let region = |r: &Region| {
        json!({
            "start": format!("{:#x}", r.range.start()),
            "end": format!("{:#x}", r.range.end()),
            "bytes": r.range.len(),
            "domain": r.domain,
            "primary": u64::from(r.domain) == primary,
            "pd": r.pd,
            "access": r.access.to_string(),
            "lkey": key(Some(r.lkey)),
            "rkey": key(regions::rkey(r)),
        })
    };
    json!({
        "pid": pid,
        "mappings": rows.iter().map(Row::json).collect::<Vec<_>>(),
        "regions": look.regions.all().iter().map(region).collect::<Vec<_>>(),
    })
}

fn key(key: Option<u32>) -> Option<String> {
    key.map(|k| Key(Some(k)).to_string())
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

#[cfg(test)]
impl<'a> Row<'a> {
    /// A whole mapping, of which one thing is said.
    pub fn new(mapping: &'a Mapping, entry: Option<&'a Entry>) -> Self {
        Self {
            range: mapping.range,
            mapping,
            entry,
            region: None,
        }
    }
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

    /// What rows that are one have in common.
    fn says(&self) -> (Option<u64>, Option<(u64, u64)>) {
        let region = self.region.map(|r| (r.generation, r.id));
        (self.entry.map(|e| e.attr.pack()), region)
    }

    fn keys(&self) -> String {
        match self.region {
            Some(r) => format!("{}/{}", Key(Some(r.lkey)), Key(regions::rkey(r))),
            None => "-".into(),
        }
    }

    fn json(&self) -> Value {
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
            "lkey": key(self.region.map(|r| r.lkey)),
            "rkey": key(self.region.and_then(regions::rkey)),
            "name": self.mapping.name,
        })
    }
}
