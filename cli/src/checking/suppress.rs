//! What is not to be reported: a line each, `[KIND ]function:GLOB` or `[KIND ]module:GLOB`, of
//! any frame of any of a finding's stacks. `#` begins a comment.

use std::path::Path;

use anyhow::{bail, Context};
use regall_checking::record::Kind;
use regall_documents::{Fault, StackFrame};

use crate::files::{self, Whose};

#[derive(Default)]
pub struct Suppressions(Vec<Rule>);

struct Rule {
    kind: Option<String>,
    of_function: bool,
    glob: String,
}

impl Suppressions {
    /// Of a file.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let said = || path.display().to_string();
        let text = files::read(path, Whose::Named, files::LONGEST).with_context(said)?;
        Self::parse(&String::from_utf8_lossy(&text)).with_context(said)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut rules = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let line = without_comment(line).trim();
            if !line.is_empty() {
                rules.push(Rule::parse(line).with_context(|| format!("line {}", n + 1))?);
            }
        }
        Ok(Self(rules))
    }

    /// Whether a finding is named.
    pub fn name(&self, fault: &Fault) -> bool {
        self.0.iter().any(|rule| {
            let kind = rule.kind.as_ref().is_none_or(|kind| *kind == fault.kind);
            let mut frames = fault.stacks.iter().flat_map(|s| &s.frames);
            kind && frames.any(|f| rule.names(f))
        })
    }
}

/// A comment begins with the line or behind a blank: C++ has `#` in names of lambdas.
fn without_comment(line: &str) -> &str {
    let mut before = ' ';
    for (at, c) in line.char_indices() {
        if c == '#' && before.is_whitespace() {
            return &line[..at];
        }
        before = c;
    }
    line
}

/// Kinds of findings.
fn kinds() -> impl Iterator<Item = &'static str> {
    use Kind::*;
    [Used, Twice, Gone, Leaked, Again, ReadOnly, Forked]
        .into_iter()
        .map(Kind::word)
}

impl Rule {
    /// Of a line without its comment. A name may have blanks.
    fn parse(line: &str) -> anyhow::Result<Self> {
        fn of(what: &str) -> Option<(bool, &str)> {
            let function = what.strip_prefix("function:").map(|glob| (true, glob));
            function.or_else(|| what.strip_prefix("module:").map(|glob| (false, glob)))
        }
        let (kind, what) = match (of(line), line.split_once(char::is_whitespace)) {
            (Some(what), _) => (None, Some(what)),
            (None, Some((kind, what))) => (Some(kind), of(what.trim_start())),
            (None, None) => (None, None),
        };
        let Some((of_function, glob)) = what else {
            bail!("expected function:GLOB or module:GLOB, with a kind before it or none");
        };
        if let Some(unknown) = kind.filter(|kind| !kinds().any(|k| k == *kind)) {
            let known: Vec<_> = kinds().collect();
            bail!("no kind {unknown}; there are {}", known.join(", "));
        }
        Ok(Self {
            kind: kind.map(str::to_string),
            of_function,
            glob: glob.to_string(),
        })
    }

    fn names(&self, frame: &StackFrame) -> bool {
        let matches = |name: &str| matches(self.glob.as_bytes(), name.as_bytes());
        if self.of_function {
            return frame.function.as_deref().is_some_and(matches);
        }
        frame.module.as_deref().is_some_and(|path| {
            let name = path.rsplit('/').next().unwrap_or(path);
            matches(path) || matches(name)
        })
    }
}

/// Whether `name` is as `glob` says: `*` is any bytes, `?` any one.
fn matches(glob: &[u8], name: &[u8]) -> bool {
    let (mut g, mut n) = (0, 0);
    // Behind the last star, and how far that has swallowed.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match glob.get(g) {
            Some(b'*') => {
                star = Some((g + 1, n));
                g += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => {
                g += 1;
                n += 1;
            }
            _ => match star {
                Some((behind, from)) => {
                    star = Some((behind, from + 1));
                    (g, n) = (behind, from + 1);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        let yes = |glob: &str, name: &str| matches(glob.as_bytes(), name.as_bytes());
        assert!(yes("ucs_rcache_*", "ucs_rcache_get") && yes("*", "") && yes("a?c", "abc"));
        assert!(yes("*cache*get", "ucs_rcache_forget") && yes("**a", "aba"));
        assert!(!yes("ucs", "ucs_rcache") && !yes("a?c", "ac") && !yes("", "a"));
    }

    #[test]
    fn files() {
        let good = "# ours\n\nfunction:a*\nstale-use module:libx.so*  # why\n";
        assert_eq!(Suppressions::parse(good).unwrap().0.len(), 2);
        for bad in [
            "a*",
            "functions:a",
            "gone b c:d",
            "stale function:a",
            "gone",
        ] {
            assert!(Suppressions::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_with_blanks() {
        let one = |line: &str| Suppressions::parse(line).unwrap().0.remove(0);
        let with = |kind: Option<&str>, line: &str, name: &str| {
            let rule = one(line);
            assert_eq!(
                (rule.kind.as_deref(), rule.glob.as_str()),
                (kind, name),
                "{line}"
            );
        };
        let name = "cache<int, char>::get(void const*, unsigned long)";
        with(None, &format!("function:{name}"), name);
        with(
            Some("gone"),
            &format!("gone  function:{name}  # theirs"),
            name,
        );
        let lambda = "main::{lambda()#1}::operator()";
        with(None, &format!("function:{lambda}"), lambda);
    }
}
