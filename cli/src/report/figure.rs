//! Names of a process's figures, and their units.

use crate::units;

/// Says what a figure counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Number,
    Bytes,
    Nanoseconds,
}

impl Unit {
    pub fn word(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Bytes => "bytes",
            Self::Nanoseconds => "ns",
        }
    }

    pub fn show(self, n: u64) -> String {
        match self {
            Self::Number => units::count(n),
            Self::Bytes => units::bytes(n),
            Self::Nanoseconds if n < 1_000_000_000 => format!("{:.1} ms", n as f64 / 1e6),
            Self::Nanoseconds => format!("{:.1} s", n as f64 / 1e9),
        }
    }
}

/// Returns what the figure `name` counts.
pub fn unit(name: &str) -> Unit {
    match group(name) {
        ("bytes.state" | "bytes.reason", _) | ("", "budget_bytes" | "memlock_bytes") => Unit::Bytes,
        ("counters", n) if n.ends_with("_ns") => Unit::Nanoseconds,
        ("counters", n) if n.contains("bytes") || n == "retired" => Unit::Bytes,
        _ => Unit::Number,
    }
}

/// Returns a figure's group, and its name in that.
pub fn group(name: &str) -> (&str, &str) {
    name.rsplit_once('.').unwrap_or(("", name))
}

/// Returns a figure's name as people read it.
pub fn plain(name: &str) -> String {
    let (group, name) = group(name);
    match group {
        "sites" => format!("sites {name}"),
        "bytes.reason" => format!("excluded {name}"),
        "events" => format!("calls {name}"),
        _ => match name.strip_suffix("_ns") {
            Some("hook") => "time in hooks".into(),
            Some("start") => "time at start-up".into(),
            Some("pin") => "time pinning".into(),
            Some("hca") => "time registering".into(),
            Some(other) => format!("time {other}"),
            None => counted(name),
        },
    }
}

/// Returns a counter's name as people read it. Of a mechanism there are two: how often, and bytes.
fn counted(name: &str) -> String {
    let words = name.split('_').filter(|w| *w != "bytes");
    let words = words.collect::<Vec<_>>().join(" ");
    match (words.strip_prefix("copy "), name.ends_with("_bytes")) {
        (Some(mechanism), true) => format!("copied by {mechanism}"),
        (Some(mechanism), false) => format!("copies by {mechanism}"),
        (None, _) => words,
    }
}

/// So many spans are told; the others are counted.
const MOST_SPANS: usize = 16;

/// Returns numbers as spans: `0, 2-5`.
pub fn spans(numbers: &[u64]) -> String {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for &n in numbers {
        match all.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(n) => *last = n,
            _ => all.push((n, n)),
        }
    }
    let shown = all.iter().take(MOST_SPANS).map(|(a, b)| match a == b {
        true => a.to_string(),
        false => format!("{a}-{b}"),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more: u64 = all.iter().skip(MOST_SPANS).map(|(a, b)| b - a + 1).sum();
    match more {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
