//! What is not to be reported: a line each, `[KIND ]function:GLOB` or `[KIND ]module:GLOB`, of
//! any frame of any of a finding's stacks. `#` begins a comment.

use std::fs;
use std::path::Path;

use anyhow::{bail, Context};
use regall_documents::{Fault, StackFrame};

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
        let text = fs::read_to_string(path).with_context(said)?;
        Self::parse(&text).with_context(said)
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut rules = Vec::new();
        for (n, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let (kind, what) = match line.split_once(char::is_whitespace) {
                Some((kind, what)) => (Some(kind.to_string()), what.trim()),
                None => (None, line),
            };
            let (of_function, glob) = match what.split_once(':') {
                Some(("function", glob)) => (true, glob),
                Some(("module", glob)) => (false, glob),
                _ => bail!("line {}: expected function:GLOB or module:GLOB", n + 1),
            };
            rules.push(Rule {
                kind,
                of_function,
                glob: glob.to_string(),
            });
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

impl Rule {
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
        for bad in ["a*", "functions:a", "a b c:d"] {
            assert!(Suppressions::parse(bad).is_err(), "{bad}");
        }
    }
}
