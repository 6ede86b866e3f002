//! `regall stats`: the counters of a process, or of all.

use std::io::Write;

use anyhow::Context;
use regall_directory::layout::Counter;
use serde_json::Value;

use crate::figures::Figures;
use crate::launched::Launched;
use crate::look::look;
use crate::output::{complain, print_json, FAILED};
use crate::top::{print_all, Sampler};
use crate::units;
use crate::wanted::Wanted;
use crate::words::NO_PROCESS;

pub const EXIT_CODES: &str = after_help!(
    "Exit code: 0; 2 if the process can't be looked at; with --all, if one can't be, or none is found.",
    "regall stats --json 4711",
    "regall-stats"
);

#[derive(clap::Args)]
pub struct Args {
    /// The process
    #[arg(required_unless_present = "all", conflicts_with_all = ["user", "job", "filter"])]
    pid: Option<u32>,
    /// All processes that run with the shim and may be looked at
    #[arg(long, conflicts_with = "pid")]
    all: bool,
    #[command(flatten)]
    wanted: Wanted,
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub fn stats(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let Some(pid) = args.pid.filter(|_| !args.all) else {
        return all(args, out);
    };
    let look = look(pid).with_context(|| pid.to_string())?;
    let all = Figures::of(pid, &look).told(&Launched::of(pid), None);
    if args.json {
        print_json(&all, out)?;
    } else {
        print(&serde_json::to_value(&all)?, "", out)?;
    }
    Ok(0)
}

/// Of all processes that are meant, with an empty line between two.
fn all(args: &Args, out: &mut impl Write) -> anyhow::Result<u8> {
    let round = Sampler::of(&args.wanted)?.round()?;
    let mut rows: Vec<_> = round.samples.iter().collect();
    rows.retain(|sample| sample.fits(args.wanted.filter()));
    if args.json {
        print_all(&rows, out)?;
    } else {
        for (n, row) in rows.iter().enumerate() {
            if n > 0 {
                writeln!(out)?;
            }
            print(&serde_json::to_value(row.told())?, "", out)?;
        }
    }
    round.complain();
    if rows.is_empty() {
        complain(NO_PROCESS);
    }
    Ok(match round.is_whole() && !rows.is_empty() {
        true => 0,
        false => FAILED,
    })
}

/// For people: one value in a line, without the counters that are 0.
fn print(value: &Value, path: &str, out: &mut impl Write) -> std::io::Result<()> {
    let (section, name) = path.split_once('.').unwrap_or(("", path));
    let counters = matches!(section, "events" | "counters");
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
            let words = units::printable(&words.join(" "));
            writeln!(out, "{path:<34} {words}")
        }
        Value::Array(_) | Value::Null => writeln!(out, "{path:<34} none"),
        Value::String(text) => writeln!(out, "{path:<34} {}", units::printable(text)),
        other => writeln!(out, "{path:<34} {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::fixtures::figures;
    use crate::units::evil;

    #[test]
    fn a_process_commands_no_terminal() {
        let told = figures(1, "/bin/a").told(&Launched::UNKNOWN, None);
        let mut told = serde_json::to_value(told).unwrap();
        told["settings"] = [("pin", "auto")].into_iter().collect();
        let mut said = Vec::new();
        print(&evil::everywhere(told), "", &mut said).unwrap();
        evil::is_harmless(&String::from_utf8(said).unwrap());
    }
}
