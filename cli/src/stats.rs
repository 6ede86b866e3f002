//! `regall stats`: the counters of one process.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Context;
use regall_directory::layout::{Call, Counter, SETTING_FORKED, SETTING_GAVE_UP};
use regall_directory::vocab::Column;
use regall_reader::Entry;
use serde_json::{json, Map, Value};

use crate::dump::{reason, state};
use crate::look::{look, Look, Settings};
use crate::units;

#[derive(clap::Args)]
pub struct Args {
    /// The process
    pid: u32,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn stats(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let look = look(args.pid).with_context(|| args.pid.to_string())?;
    let all = collect(args.pid, &look);
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &all).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        print(&all, "", out)?;
    }
    Ok(0)
}

/// The HCA registrar's counters.
const HCA: [Counter; 10] = [
    Counter::Domains,
    Counter::Registrations,
    Counter::Deregistrations,
    Counter::Served,
    Counter::Passed,
    Counter::HcaRefused,
    Counter::HcaLimited,
    Counter::HcaBytes,
    Counter::RetiredBytes,
    Counter::HcaNanos,
];

/// All that there is to say, in the order in which it is printed.
fn collect(pid: u32, look: &Look) -> Value {
    let h = &look.header;
    let missed = |c: &&Call| h.selftest_missed >> (**c as u32) & 1 != 0;
    let missed: Vec<_> = Call::ALL.iter().filter(missed).map(|c| c.word()).collect();
    let counter = |c: &Counter| (c.word(), h.counters.get(*c as usize));
    let others = Counter::ALL.iter().filter(|c| !HCA.contains(c));
    json!({
        "pid": pid,
        "exe": h.exe,
        "generation": h.generation,
        "busy": look.busy,
        "mappings": look.mappings.len(),
        "entries": look.entries.len(),
        "regions": look.regions.all().len(),
        "unpublished": h.unpublished,
        "settings": {
            "pin": h.pin(),
            "intercept": h.intercept(),
            "hca_off": h.hca_off(),
            "forked": h.settings & SETTING_FORKED != 0,
            "gave_up": h.settings & SETTING_GAVE_UP != 0,
        },
        "budget_bytes": (h.budget != u64::MAX).then_some(h.budget),
        "sites": { "patched": h.sites_patched, "refused": h.sites_refused },
        "selftest_missed": missed,
        "bytes": bytes(&look.entries),
        "calls": named(Call::ALL.iter().map(|c| (c.word(), h.calls.get(*c as usize)))),
        "counters": named(others.map(counter)),
        "hca": named(HCA.iter().map(counter)),
    })
}

fn named<'a>(all: impl Iterator<Item = (&'static str, Option<&'a u64>)>) -> Value {
    let pair = |(name, n): (&str, Option<&u64>)| (name.to_string(), json!(n.copied()));
    Value::Object(all.map(pair).collect::<Map<_, _>>())
}

/// Bytes by state, by reason, and by each registrar's word.
fn bytes(entries: &[Entry]) -> Value {
    let sum = |word: &dyn Fn(&Entry) -> String| {
        let mut sums = BTreeMap::<String, u64>::new();
        for entry in entries {
            *sums.entry(word(entry)).or_default() += entry.range.len();
        }
        sums
    };
    let column = |c: Column| c.to_string();
    let mut reasons = sum(&|e| reason(&e.attr));
    reasons.remove("-");
    json!({
        "state": sum(&|e| state(&e.attr).to_string()),
        "reason": reasons,
        "pin": sum(&|e| column(e.attr.pin)),
        "hca": sum(&|e| column(e.attr.hca)),
    })
}

/// The same for people: a line a value, without the counters that are 0.
fn print(value: &Value, path: &str, out: &mut impl Write) -> std::io::Result<()> {
    let (section, name) = path.split_once('.').unwrap_or(("", path));
    let counters = matches!(section, "calls" | "counters" | "hca");
    let in_bytes = path.contains("bytes") || name == Counter::RetiredBytes.word();
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                print(field, &format!("{path}{dot}{name}"), out)?;
            }
            Ok(())
        }
        Value::Number(n) if counters && n.as_u64() == Some(0) => Ok(()),
        Value::Number(n) if in_bytes => {
            let bytes = n.as_u64().unwrap_or(0);
            writeln!(out, "{path:<34} {n} ({})", units::bytes(bytes))
        }
        Value::Array(words) if !words.is_empty() => {
            let words: Vec<_> = words.iter().filter_map(Value::as_str).collect();
            writeln!(out, "{path:<34} {}", words.join(" "))
        }
        Value::Array(_) | Value::Null => writeln!(out, "{path:<34} none"),
        Value::String(text) => writeln!(out, "{path:<34} {text}"),
        other => writeln!(out, "{path:<34} {other}"),
    }
}
