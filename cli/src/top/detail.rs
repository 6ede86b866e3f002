//! One process in full, as lines of text.

use regall_directory::layout::{Call, Counter, SETTING_FORKED};
use regall_documents::Counts;

use super::sample::{copied, Sample, PARTS};
use crate::figures::HCA;
use crate::look::Settings;
use crate::units;

/// A line, and whether it is a heading.
pub type Line = (String, bool);

/// Characters in a bar.
const BAR: usize = 30;

/// All there is to say of a process; `there`: whether it still is.
pub fn lines(sample: &Sample, there: bool) -> Vec<Line> {
    let mut text = Text(Vec::new());
    who(&mut text, sample, there);
    memory(&mut text, sample);
    calls(&mut text, sample);
    time(&mut text, sample);
    adapter(&mut text, sample);
    peers(&mut text, sample);
    others(&mut text, sample);
    text.0
}

struct Text(Vec<Line>);

impl Text {
    fn head(&mut self, text: impl Into<String>) {
        if !self.0.is_empty() {
            self.0.push((String::new(), false));
        }
        self.0.push((text.into(), true));
    }

    fn line(&mut self, text: impl Into<String>) {
        self.0.push((text.into(), false));
    }
}

fn who(text: &mut Text, sample: &Sample, there: bool) {
    let f = &sample.figures;
    let rank = sample
        .launched
        .rank
        .map_or(String::new(), |r| format!(", rank {r}"));
    let state = match there {
        true => sample.state(),
        false => "it has ended; this is what was last seen",
    };
    text.head(format!("process {}{rank}: {state}", f.pid));
    text.line(f.header.exe.as_str());
    let settings = f.header.in_force();
    for some in settings.chunks(4) {
        let word = |(name, value): &(&str, String)| format!("{name} {value}");
        text.line(some.iter().map(word).collect::<Vec<_>>().join(", "));
    }
    if f.header.settings & SETTING_FORKED != 0 {
        text.line("forked: what it inherited is left alone");
    }
    text.line(format!(
        "{}, {}, {}, {} in progress",
        units::many(f.mappings, "mapping"),
        units::many(f.entries, "range"),
        units::many(f.regions, "memory region"),
        units::many(f.busy, "call")
    ));
    let (patched, refused) = (f.header.sites_patched, f.header.sites_refused);
    let missed = match f.missed()[..] {
        [] => "nothing".to_string(),
        ref some => some.join(", "),
    };
    text.line(format!(
        "{patched} sites patched, {refused} can't be; the self-test missed {missed}"
    ));
    if f.gave_up() {
        text.line("THE SHIM HAS GIVEN UP: it no longer tracks");
    }
    if f.header.unpublished != 0 {
        let ranges = f.header.unpublished;
        text.line(format!("{ranges} RANGES UNPUBLISHED: /dev/shm is full"));
    }
}

fn memory(text: &mut Text, sample: &Sample) {
    let f = &sample.figures;
    let (registered, excluded) = (f.bytes.registered(), f.bytes.excluded());
    let all = registered.saturating_add(excluded);
    text.head("memory");
    bar(text, "registered", registered, all);
    bar(text, "excluded", excluded, all);
    for (reason, bytes) in &f.bytes.0.reason {
        bar(text, &format!("  {reason}"), *bytes, all);
    }
    let pinned = f.counter(Counter::PinnedBytes);
    match f.budget() {
        Some(budget) => {
            bar(text, "pinned", pinned, budget);
            amount(text, "  of a budget of", budget);
        }
        None => amount(text, "pinned, no budget", pinned),
    }
    columns(text, "pin", &f.bytes.0.pin);
    columns(text, "hca", &f.bytes.0.hca);
}

/// A registrar's own words.
fn columns(text: &mut Text, registrar: &str, sums: &Counts) {
    let word = |(word, bytes): (&String, &u64)| format!("{word} {}", units::bytes(*bytes));
    let words: Vec<_> = sums.iter().map(word).collect();
    text.line(format!("{registrar}: {}", words.join(", ")));
}

fn amount(text: &mut Text, name: &str, bytes: u64) {
    text.line(format!("{name:<20} {:>9}", units::bytes(bytes)));
}

fn bar(text: &mut Text, name: &str, bytes: u64, of: u64) {
    let share = bytes as f64 / of.max(1) as f64;
    let length = (share * BAR as f64).round() as usize;
    let bar = "#".repeat(length.min(BAR));
    let size = units::bytes(bytes);
    text.line(format!(
        "{name:<20} {size:>9} {:>5.1}% [{bar:<BAR$}]",
        share * 100.0
    ));
}

/// A number in a list of numbers, with what it grows by a second.
fn number(text: &mut Text, name: &str, value: u64, rate: Option<f64>) {
    let rate = match rate {
        Some(rate) if rate > 0.0 => format!(" {rate:>12.1}/s"),
        _ => String::new(),
    };
    text.line(format!("{name:<20} {value:>14}{rate}"));
}

fn calls(text: &mut Text, sample: &Sample) {
    text.head("memory calls handled");
    for call in Call::ALL {
        let rate = sample.rates.as_ref().map(|r| r.calls(*call));
        match sample.figures.calls(*call) {
            0 => {}
            n => number(text, call.word(), n, rate),
        }
    }
}

fn time(text: &mut Text, sample: &Sample) {
    text.head("time in the shim");
    let ms = |c| format!("{:.1} ms", sample.figures.counter(c) as f64 / 1e6);
    text.line(format!(
        "{:<20} {:>14}",
        "start-up",
        ms(Counter::StartNanos)
    ));
    for (counter, name) in PARTS {
        let rate = sample.rates.as_ref().map(|r| r.counter(counter) / 1e6);
        let rate = rate.filter(|r| *r > 0.0);
        let rate = rate.map_or(String::new(), |r| format!(" {r:>9.2} ms/s"));
        text.line(format!("{name:<20} {:>14}{rate}", ms(counter)));
    }
}

fn adapter(text: &mut Text, sample: &Sample) {
    let counters = || HCA.iter().filter(|c| **c != Counter::HcaNanos);
    if counters().all(|c| sample.figures.counter(*c) == 0) {
        return;
    }
    text.head("adapters");
    counters().for_each(|c| counter(text, sample, *c));
}

fn peers(text: &mut Text, sample: &Sample) {
    let mut all = copied().peekable();
    if all.peek().is_some() {
        text.head("copied between peers");
    }
    for (counter, name) in all {
        amount(text, &name, sample.figures.counter(counter));
    }
}

fn others(text: &mut Text, sample: &Sample) {
    text.head("other counters");
    let shown = |c: &Counter| {
        let elsewhere = HCA.contains(c) || copied().any(|(other, _)| other == *c);
        let above = [Counter::StartNanos, Counter::PinnedBytes, Counter::Ranges];
        let above = above.contains(c) || PARTS.iter().any(|(part, _)| part == c);
        !elsewhere && !above && sample.figures.counter(*c) != 0
    };
    let all = Counter::ALL.iter().filter(|c| shown(c));
    all.for_each(|c| counter(text, sample, *c));
}

fn counter(text: &mut Text, sample: &Sample, counter: Counter) {
    let rate = sample.rates.as_ref().map(|r| r.counter(counter));
    let value = sample.figures.counter(counter);
    number(text, counter.word(), value, rate);
}

#[cfg(test)]
mod tests {
    use super::super::sample::fixtures::sample;
    use super::*;

    #[test]
    fn in_eighty_columns_whatever_the_numbers() {
        let mut one = sample(u32::MAX, "/bin/a", 65530);
        one.figures.header.counters = [u64::MAX; regall_directory::layout::COUNTERS];
        one.figures.header.calls.fill(u64::MAX);
        one.figures.header.budget = 1;
        one.figures
            .bytes
            .0
            .reason
            .insert("refused:133".into(), u64::MAX);
        one.launched.rank = Some(u64::MAX);
        let all = lines(&one, false);
        for (line, _) in &all {
            assert!(line.len() <= 100, "{line}");
        }
        assert!(all[0].0.contains("it has ended"));
        let has = |word: &str| all.iter().any(|(l, _)| l.contains(word));
        assert!(has("self-test missed nothing") && has("refused:133"));
        assert!(has("mmap") && has("registering") && has("retired") && !has("PINS"));
    }
}
