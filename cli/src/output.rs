//! Standard output of commands, and their lines on stderr.

use std::io::{self, ErrorKind, StdoutLock, Write};

use crate::units;

/// Exit code: could not look, or could not do what was asked.
pub const FAILED: u8 = 2;

/// Standard output whose reader may have had enough of it (`head`, say): what is
/// asked for is done all the same, and the exit code is as it would have been.
pub struct Output<'a>(StdoutLock<'a>);

impl Output<'_> {
    /// Locks standard output.
    pub fn new() -> Self {
        Self(io::stdout().lock())
    }
}

impl Write for Output<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.write(bytes) {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(bytes.len()),
            done => done,
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        match self.0.flush() {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()),
            done => done,
        }
    }
}

/// Writes `value` as JSON that people can read, too.
pub fn print_json(value: &impl serde::Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Writes one line to stderr; not being able to is no reason to panic.
pub fn complain(text: &str) {
    let _ = io::stderr().write_all(complaint(text).as_bytes());
}

fn complaint(text: &str) -> String {
    format!("regall: {}\n", units::printable(&without_numbers(text)))
}

/// Returns what std says of errors in words alone: `(os error 2)` tells nobody more than they do.
pub fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut all = parts.next().unwrap_or("").to_string();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => all += rest,
            _ => all = all + " (os error " + part,
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::evil;

    /// A file's name, above all.
    #[test]
    fn what_goes_wrong_commands_no_terminal() {
        evil::is_harmless(&complaint(evil::TEXT));
    }

    #[test]
    fn errors_in_words_alone() {
        let no = std::io::Error::from_raw_os_error(2);
        assert_eq!(
            without_numbers(&format!("a: {no}; b: {no}")),
            "a: No such file or directory; b: No such file or directory"
        );
        for other in ["", "a (b) c", "x (os error y)", "x (os error 2"] {
            assert_eq!(without_numbers(other), other);
        }
    }
}
