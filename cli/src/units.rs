//! Numbers as people read and write them, and names as a terminal may see them.

use std::time::Duration;

/// Text of somebody else's as a terminal may see it, in one line: names of files and whatever else
/// a process says of itself can hold the terminal's own commands, or turn the direction in which
/// what follows is read. All such text that is printed for people goes through here.
pub fn printable(text: &str) -> String {
    let turns = |c| matches!(c, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let shown = |c: char| if c.is_control() || turns(c) { '?' } else { c };
    text.chars().map(shown).collect()
}

/// Bytes with a binary unit: `4 KiB`, `1.5 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = larger;
    }
    let decimals = usize::from(value < 10.0 && value.fract() != 0.0);
    format!("{value:.decimals$} {unit}")
}

/// Bytes in five characters at the most: `4K`, `1.5G`, `1023M`.
pub fn short_bytes(n: u64) -> String {
    let long = bytes(n);
    let (number, unit) = long.split_once(' ').unwrap_or((&long, ""));
    let letter: String = unit.chars().take(1).collect();
    number.to_string() + &letter
}

/// A count in six characters at the most: `65530`, `120k`, `3.4M` (powers of 1,000).
pub fn count(n: u64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if n < 100_000 {
        return n.to_string();
    }
    let mut value = n as f64 / 1e3;
    let mut unit = UNITS[0];
    for larger in &UNITS[1..] {
        if value < 1e3 {
            break;
        }
        value /= 1e3;
        unit = larger;
    }
    let decimals = usize::from(value < 10.0);
    format!("{value:.decimals$}{unit}")
}

/// A number of things in words: `1 gap`, `2 gaps`.
pub fn many(n: usize, thing: &str) -> String {
    format!("{n} {thing}{}", if n == 1 { "" } else { "s" })
}

/// A time that was given in seconds, more than 0.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| "not a number")?;
    if value <= 0.0 {
        return Err("must be more than 0".into());
    }
    Duration::try_from_secs_f64(value).map_err(|e| e.to_string())
}

#[cfg(test)]
pub mod evil {
    //! What somebody writes who wants a terminal to do what he says, or others to be believed to
    //! have said it.

    use serde_json::Value;

    /// Sets a title, is red, and begins a line of its own.
    pub const TEXT: &str = "\u{1b}]0;title\u{7}\u{9b}31m\r\nFAKE line\u{202e}";

    /// The same document with that in each text of it.
    pub fn everywhere(document: Value) -> Value {
        match document {
            Value::String(_) => TEXT.into(),
            Value::Array(all) => all.into_iter().map(everywhere).collect(),
            Value::Object(all) => {
                let all = all
                    .into_iter()
                    .map(|(name, value)| (name, everywhere(value)));
                all.collect()
            }
            other => other,
        }
    }

    /// Fails if text that is printed does what [`TEXT`] wants.
    #[track_caller]
    pub fn is_harmless(printed: &str) {
        assert!(printed.contains("title"), "it is not there: {printed:?}");
        let commands = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
        assert!(!printed.chars().any(commands), "{printed:?}");
        assert!(
            !printed.lines().any(|l| l.starts_with("FAKE")),
            "{printed:?}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_command_no_terminal() {
        assert_eq!(
            printable("/lib/\u{1b}]0;x\u{7}\u{1b}[31mé.so"),
            "/lib/?]0;x??[31mé.so"
        );
        assert_eq!(printable("a\u{9b}1m\nb\u{202e}c\u{2028}"), "a?1m?b?c?");
    }

    #[test]
    fn as_people_read_them() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(bytes(132 << 10), "132 KiB");
        assert_eq!(bytes(u64::MAX), "16 EiB");
        assert_eq!(many(0, "gap"), "0 gaps");
        assert_eq!(many(1, "gap"), "1 gap");
    }

    #[test]
    fn short_ones_fit() {
        assert_eq!(short_bytes(0), "0B");
        assert_eq!(short_bytes(3 << 29), "1.5G");
        assert_eq!(short_bytes((1 << 30) - 1), "1024M");
        assert_eq!(count(99_999), "99999");
        assert_eq!(count(123_456), "123k");
        assert_eq!(count(3_440_000), "3.4M");
        let mut n = 1;
        while n < u64::MAX / 3 {
            for n in [n - 1, n, n + 1] {
                assert!(short_bytes(n).len() <= 5, "{n}: {}", short_bytes(n));
                assert!(count(n).len() <= 6, "{n}: {}", count(n));
            }
            n += n / 2 + 1;
        }
    }

    #[test]
    fn times_are_more_than_nothing() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["", "0", "-1", "x", "nan", "inf", "1e300"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
