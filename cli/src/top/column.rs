//! The table's columns: what they show, how they sort, how they are written.
//! Screen and `--once` share them.

use std::cmp::Ordering;

use regall_directory::layout::Counter;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::sample::{copied, Sample};
use crate::units;

/// One column.
pub struct Column {
    /// What stands above it, and what `--sort` takes.
    pub head: String,
    /// What it shows, in words.
    pub help: String,
    width: usize,
    /// Text begins at the left, numbers end at the right.
    left: bool,
    value: Source,
}

/// Where a column's values come from.
enum Source {
    Of(fn(&Sample) -> Value),
    Copied(Counter),
}

/// A value in the table.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Sorted as text.
    Text(String),
    /// Not too large a number to be written out.
    Number(Option<u64>),
    /// A number that is shortened where it has to be.
    Count(Option<u64>),
    /// Bytes, shortened.
    Bytes(Option<u64>),
    /// A rate per second.
    Rate(Option<f64>),
    /// Per cent.
    Percent(Option<f64>),
}

/// The executable's column takes what room there is.
const EXE: &str = "EXE";
const EXE_LEAST: usize = 12;

/// All columns, the most important ones first.
pub fn all() -> Vec<Column> {
    let mut all = of_process();
    all.extend(of_figures());
    all.extend(copied().map(|(counter, name)| Column {
        help: format!("bytes copied between peers by {name}"),
        head: format!("BY-{}", name.to_uppercase()),
        width: name.len() + 3,
        left: false,
        value: Source::Copied(counter),
    }));
    all
}

/// Who it is, and what it has mapped.
fn of_process() -> Vec<Column> {
    use Value::{Bytes, Number, Text};
    vec![
        of("PID", 7, "the process", |s| {
            Number(Some(s.figures.pid.into()))
        }),
        of("RANK", 4, "its MPI rank, if a launcher started it", |s| {
            Number(s.launched.rank)
        }),
        text(EXE, EXE_LEAST, "its executable", |s| Text(s.name().into())),
        text("S", 1, STATES, |s| Text(letter(s).into())),
        of("MAPS", 5, "its mappings", |s| {
            Number(Some(s.figures.mappings as u64))
        }),
        of("REG", 5, "bytes registered", |s| {
            Bytes(Some(s.figures.bytes.registered()))
        }),
        of("EXCL", 5, "bytes excluded, for whatever reason", |s| {
            Bytes(Some(s.figures.bytes.excluded()))
        }),
        of(
            "LIMIT",
            5,
            "bytes excluded because they are over the limit",
            |s| Bytes(Some(s.figures.bytes.over_limit())),
        ),
    ]
}

/// What the shim has done for it.
fn of_figures() -> Vec<Column> {
    use Value::{Bytes, Count, Percent, Rate};
    vec![
        of("PINNED", 6, "bytes pinned (locked in memory)", |s| {
            Bytes(Some(s.figures.counter(Counter::PinnedBytes)))
        }),
        of("EV/S", 6, "memory calls handled, a second", |s| {
            Rate(s.rates.as_ref().map(|r| r.events()))
        }),
        of(
            "SHIM%",
            5,
            "time in the shim, in per cent of one CPU",
            |s| Percent(s.rates.as_ref().map(|r| r.shim())),
        ),
        of(
            "SERVED",
            6,
            "registrations served without a system call",
            |s| Count(Some(s.figures.counter(Counter::Served))),
        ),
        of(
            "PASSED",
            6,
            "registrations passed on to the real call",
            |s| Count(Some(s.figures.counter(Counter::Passed))),
        ),
        of("HCA", 5, "bytes registered with adapters", |s| {
            Bytes(Some(s.figures.counter(Counter::HcaBytes)))
        }),
        of("UNUSED", 6, "bytes resident, never touched", |s| {
            Bytes(Some(s.figures.counter(Counter::AheadBytes)))
        }),
        of("BUDGET", 6, "the most that may be pinned", |s| {
            Bytes(s.figures.budget())
        }),
    ]
}

/// The columns that stay where they are while the others move.
pub const FIXED: usize = 4;

const STATES: &str = "state: R running, S sleeping, D waiting, T stopped, ! shim gave up";

fn of(head: &str, width: usize, help: &str, value: fn(&Sample) -> Value) -> Column {
    Column {
        head: head.into(),
        help: help.into(),
        width,
        left: false,
        value: Source::Of(value),
    }
}

fn text(head: &str, width: usize, help: &str, value: fn(&Sample) -> Value) -> Column {
    Column {
        left: true,
        ..of(head, width, help, value)
    }
}

fn letter(sample: &Sample) -> char {
    match sample.figures.gave_up() {
        true => '!',
        false => sample.launched.state,
    }
}

impl Column {
    /// The column's value for a process.
    pub fn value(&self, sample: &Sample) -> Value {
        match self.value {
            Source::Of(value) => value(sample),
            Source::Copied(counter) => Value::Bytes(Some(sample.figures.counter(counter))),
        }
    }

    /// Which of two comes first: what there is most of, and the smaller of names.
    pub fn order(&self, a: &Sample, b: &Sample) -> Ordering {
        let order = self.value(a).order(&self.value(b));
        match self.ascending() {
            true => order,
            false => order.reverse(),
        }
    }

    /// Whether the smallest comes first.
    pub fn ascending(&self) -> bool {
        self.left || matches!(self.head.as_str(), "PID" | "RANK")
    }
}

impl Value {
    /// What is not known comes last in ascending order.
    fn order(&self, other: &Self) -> Ordering {
        let known = |n: &Option<u64>| n.map_or((1, 0), |n| (0, n));
        match (self, other) {
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            (Self::Number(a), Self::Number(b)) => known(a).cmp(&known(b)),
            (Self::Count(a), Self::Count(b)) | (Self::Bytes(a), Self::Bytes(b)) => a.cmp(b),
            (Self::Rate(a), Self::Rate(b)) | (Self::Percent(a), Self::Percent(b)) => {
                let known = |n: &Option<f64>| n.unwrap_or(-1.0);
                known(a).total_cmp(&known(b))
            }
            _ => Ordering::Equal,
        }
    }
}

impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(Some(n)) => write!(f, "{n}"),
            Self::Count(Some(n)) => f.write_str(&units::count(*n)),
            Self::Bytes(Some(n)) => f.write_str(&units::short_bytes(*n)),
            Self::Rate(Some(n)) if *n > 0.0 && *n < 10.0 => write!(f, "{n:.1}"),
            Self::Rate(Some(n)) => f.write_str(&units::count(n.round() as u64)),
            Self::Percent(Some(n)) if *n < 99.95 => write!(f, "{n:.1}"),
            Self::Percent(Some(n)) => f.write_str(&units::count(n.round() as u64)),
            _ => f.write_str("-"),
        }
    }
}

/// Columns in a line of a certain width.
pub struct Layout<'a> {
    columns: Vec<(&'a Column, usize)>,
}

impl<'a> Layout<'a> {
    /// As many as there is room for: those that always stand there, then the
    /// others without the first `skip`.
    pub fn new(columns: &'a [Column], skip: usize, room: usize) -> Self {
        let fixed = columns.iter().take(FIXED);
        let moving = columns.iter().skip(FIXED + skip);
        let mut chosen: Vec<_> = fixed.chain(moving).map(|c| (c, c.width)).collect();
        let width = |chosen: &[(&Column, usize)]| {
            let gaps = chosen.len().saturating_sub(1);
            chosen.iter().map(|(_, w)| w).sum::<usize>() + gaps
        };
        while chosen.len() > 1 && width(&chosen) > room {
            chosen.pop();
        }
        let spare = room.saturating_sub(width(&chosen));
        if let Some((_, exe)) = chosen.iter_mut().find(|(c, _)| c.head == EXE) {
            *exe += spare;
        }
        Self { columns: chosen }
    }

    /// All columns, the executable's as wide as the widest of `samples`.
    pub fn complete(columns: &'a [Column], samples: &[&Sample]) -> Self {
        let names = samples.iter().map(|s| s.name().width());
        let widest = names.max().unwrap_or(0).max(EXE_LEAST);
        let width = |c: &Column| if c.head == EXE { widest } else { c.width };
        Self {
            columns: columns.iter().map(|c| (c, width(c))).collect(),
        }
    }

    /// The line above the table.
    pub fn head(&self) -> String {
        self.line(|c| c.head.clone())
    }

    /// A process's line.
    pub fn row(&self, sample: &Sample) -> String {
        self.line(|c| c.value(sample).to_string())
    }

    fn line(&self, word: impl Fn(&Column) -> String) -> String {
        let cell = |(c, width): &(&Column, usize)| fit(&word(c), *width, c.left);
        let cells: Vec<_> = self.columns.iter().map(cell).collect();
        cells.join(" ")
    }
}

/// Text that takes exactly `width` places, cut if it has to be.
fn fit(text: &str, width: usize, left: bool) -> String {
    let mut all = String::new();
    let mut room = width;
    for c in text.chars() {
        let places = c.width().unwrap_or(0);
        if places > room {
            all.extend(std::iter::repeat_n(' ', room));
            return all;
        }
        room -= places;
        all.push(c);
    }
    let blank = " ".repeat(room);
    match left {
        true => all + &blank,
        false => blank + &all,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::fixtures::sample;
    use super::*;

    #[test]
    fn text_is_made_to_fit() {
        assert_eq!(fit("ab", 4, true), "ab  ");
        assert_eq!(fit("ab", 4, false), "  ab");
        assert_eq!(fit("abcdef", 4, true), "abcd");
        assert_eq!(fit("日本語", 5, true), "日本 ");
        assert_eq!(fit("x", 0, true), "");
    }

    #[test]
    fn eighty_columns_have_what_matters() {
        let columns = all();
        let layout = Layout::new(&columns, 0, 79);
        let head = layout.head();
        assert_eq!(head.width(), 79);
        let heads: Vec<_> = head.split_whitespace().collect();
        let expected = "PID RANK EXE S MAPS REG EXCL LIMIT PINNED EV/S SHIM% SERVED";
        assert_eq!(heads.join(" "), expected);
        let row = layout.row(&sample(
            4_194_304,
            "/a/b/a-name-that-is-too-long-for-it",
            65530,
        ));
        assert_eq!(row.width(), 79);
        assert!(row.starts_with("4194304    - a-name-that-"), "{row}");
    }

    #[test]
    fn no_two_columns_have_one_name() {
        let mut heads: Vec<_> = all().into_iter().map(|c| c.head).collect();
        assert!(heads.contains(&"BY-CMA".to_string()), "{heads:?}");
        heads.sort();
        assert!(heads.windows(2).all(|w| w[0] != w[1]), "{heads:?}");
    }

    #[test]
    fn any_width_will_do() {
        let columns = all();
        let one = sample(1, "x", 1);
        for room in 0..200 {
            for skip in 0..30 {
                let layout = Layout::new(&columns, skip, room);
                assert_eq!(layout.head().width(), layout.row(&one).width());
                assert!(room < 7 || layout.head().width() <= room, "{room} {skip}");
            }
        }
    }

    #[test]
    fn the_most_comes_first_and_the_smallest_name() {
        let columns = all();
        let by = |head: &str| columns.iter().find(|c| c.head == head).unwrap();
        let (few, many) = (sample(2, "b", 5), sample(1, "a", 100));
        assert_eq!(by("MAPS").order(&few, &many), Ordering::Greater);
        assert_eq!(by("PID").order(&few, &many), Ordering::Greater);
        assert_eq!(by("EXE").order(&many, &few), Ordering::Less);
        let mut ranked = sample(3, "c", 1);
        ranked.launched.rank = Some(9);
        assert_eq!(by("RANK").order(&ranked, &few), Ordering::Less);
        assert_eq!(by("EV/S").order(&ranked, &few), Ordering::Equal);
    }

    #[test]
    fn numbers_are_short() {
        let said = |v: Value| v.to_string();
        assert_eq!(said(Value::Rate(Some(0.0))), "0");
        assert_eq!(said(Value::Rate(Some(1.25))), "1.2");
        assert_eq!(said(Value::Rate(Some(123_456.0))), "123k");
        assert_eq!(said(Value::Rate(None)), "-");
        assert_eq!(said(Value::Percent(Some(99.96))), "100");
        assert_eq!(said(Value::Percent(Some(f64::INFINITY))), "18E");
        assert_eq!(said(Value::Bytes(Some(u64::MAX))), "16E");
    }
}
