//! `regall maps`: the address space for people, one line for each mapping.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use regall_documents as documents;
use regall_reader::Region;

use crate::look::{look, Look};
use crate::output::print_json;
use crate::regions;
use crate::rows::{rows, Row};
use crate::table::table;
use crate::words::{reason, Key};
use crate::{files, picture, units};

pub const EXIT_CODES: &str = after_help!(
    "Exit code: 0; 2 if the process can't be looked at.",
    "regall maps --svg picture.svg 4711",
    "regall-maps"
);

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
        let written = files::write(file, |out| out.write_all(svg.as_bytes()));
        written.with_context(|| file.display().to_string())?;
    } else if args.json {
        print_json(&told(args.pid, &look, &rows), out)?;
    } else {
        let heads = ["RANGE", " SIZE", "PROT", "STATE", "REASON", "KEYS", "NAME"];
        write!(out, "{}", table(heads, rows.iter().map(shown)))?;
    }
    Ok(0)
}

/// The rows, and the regions of all domains.
fn told(pid: u32, look: &Look, rows: &[Row]) -> documents::Maps {
    let primary = look.header.primary;
    let region = |r: &Region| documents::Region {
        start: format!("{:#x}", r.range.start()),
        end: format!("{:#x}", r.range.end()),
        bytes: r.range.len(),
        domain: r.domain,
        primary: u64::from(r.domain) == primary,
        pd: r.pd,
        access: r.access.to_string(),
        lkey: key(Some(r.lkey)),
        rkey: key(regions::rkey(r)),
    };
    documents::Maps {
        version: documents::VERSION,
        pid,
        rows: rows.iter().map(row_told).collect(),
        regions: look.regions.all().iter().map(region).collect(),
    }
}

fn key(key: Option<u32>) -> Option<String> {
    key.map(|k| Key(Some(k)).to_string())
}

/// A row as people read it.
fn shown(row: &Row) -> [String; 7] {
    let (start, end) = (row.range.start(), row.range.end());
    [
        format!("{start:08x}-{end:08x}"),
        units::bytes(row.range.len()),
        row.mapping.prot.to_string(),
        row.state().to_string(),
        row.reason(),
        keys(row),
        units::printable(&row.mapping.name),
    ]
}

fn keys(row: &Row) -> String {
    match row.region {
        Some(r) => format!("{}/{}", Key(Some(r.lkey)), Key(regions::rkey(r))),
        None => "-".into(),
    }
}

fn row_told(row: &Row) -> documents::Row {
    let entry = row.entry;
    documents::Row {
        start: format!("{:#x}", row.range.start()),
        end: format!("{:#x}", row.range.end()),
        bytes: row.range.len(),
        prot: row.mapping.prot.to_string(),
        state: row.state().to_string(),
        reason: entry
            .filter(|e| !e.attr.registered())
            .map(|e| reason(&e.attr)),
        kind: entry.map(|e| e.attr.kind.word().to_string()),
        pin: entry.map(|e| e.attr.pin.to_string()),
        hca: entry.map(|e| e.attr.hca.to_string()),
        lkey: key(row.region.map(|r| r.lkey)),
        rkey: key(row.region.and_then(regions::rkey)),
        name: row.mapping.name.clone(),
    }
}
