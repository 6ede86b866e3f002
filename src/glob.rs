//! Shell patterns (`*`, `?`, `[a-z]`, `[!a-z]`, backslash) without an allocator
//! and without recursion; `*` matches slashes too, since the names here are
//! whole paths.

/// Whether `text` as a whole matches `pattern`.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, t));
            p += 1;
            continue;
        }
        if let Some(next) = text.get(t).and_then(|c| one(pattern, p, *c)) {
            p = next;
            t += 1;
            continue;
        }
        match retry {
            Some((after, from)) => {
                retry = Some((after, from + 1));
                p = after;
                t = from + 1;
            }
            None => return false,
        }
    }
    pattern.get(p..).unwrap_or(&[]).iter().all(|c| *c == b'*')
}

/// If the element of `pattern` at `p` matches `c`: where the next one begins.
fn one(pattern: &[u8], p: usize, c: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => match set(pattern, p + 1, c) {
            Some((end, hit)) => hit.then_some(end),
            None => (c == b'[').then_some(p + 1),
        },
        b'\\' => match pattern.get(p + 1) {
            Some(&literal) => (literal == c).then_some(p + 2),
            None => (c == b'\\').then_some(p + 1),
        },
        literal => (literal == c).then_some(p + 1),
    }
}

/// A set that begins at `p`, behind its `[`: where it ends and whether `c` is
/// in it. `None` if it is not closed: then the bracket is a bracket. That lets
/// `[heap]` be a set as in any shell; `\[heap]` is the name.
fn set(pattern: &[u8], mut p: usize, c: u8) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(p), Some(b'!' | b'^'));
    p += usize::from(negated);
    let mut hit = false;
    let mut first = true;
    loop {
        let low = *pattern.get(p)?;
        if low == b']' && !first {
            return Some((p + 1, hit != negated));
        }
        first = false;
        if pattern.get(p + 1) == Some(&b'-') && pattern.get(p + 2).is_some_and(|b| *b != b']') {
            let high = *pattern.get(p + 2)?;
            hit |= (low..=high).contains(&c);
            p += 3;
        } else {
            hit |= low == c;
            p += 1;
        }
    }
}

/// Whether any of the comma-separated `patterns` matches `text`. A pattern that
/// is equal to the text matches whatever brackets it has: `[heap]` names the
/// heap.
pub fn matches_any(patterns: &[u8], text: &[u8]) -> bool {
    patterns
        .split(|b| *b == b',')
        .any(|p| !p.is_empty() && (p == text || matches(p, text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns() {
        for (p, t, yes) in [
            ("*", "", true),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZ", false),
            (
                "/usr/lib/*/libc.so.?",
                "/usr/lib/x86_64-linux-gnu/libc.so.6",
                true,
            ),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]x", "]x", true),
            ("[x", "[x", true),
            ("\\[heap]", "[heap]", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(p.as_bytes(), t.as_bytes()), yes, "{p} {t}");
        }
        assert!(matches_any(b"foo,[heap]", b"[heap]"));
        assert!(!matches_any(b"foo,,bar", b""));
    }

    proptest! {
        #[test]
        fn never_panics_and_star_matches_all(p in ".*", t in ".*") {
            let _ = matches(p.as_bytes(), t.as_bytes());
            prop_assert!(matches(b"*", t.as_bytes()));
        }
    }
}
