//! Any environment: settings are taken or refused, patterns match or do not, and whatever is
//! said about it fits on a line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use regall::config::{Complaint, Config, Environment, Problem};
use regall::glob;
use regall::text::Text;
use std::ffi::CString;

// Strings that end with 0, as the kernel has them.
fuzz_target!(|data: &[u8]| {
    let strings: Vec<_> = data
        .split(|b| *b == 0)
        .map(|s| CString::new(s).expect("without 0"))
        .collect();
    let mut pointers: Vec<_> = strings.iter().map(|s| s.as_ptr()).collect();
    pointers.push(std::ptr::null());
    // SAFETY: C strings and a NULL behind them, which outlive it.
    let env = unsafe { Environment::new(pointers.as_ptr()) };
    let mut config = Config::new();
    let mut count = 0;
    env.each(|name, value| {
        count += 1;
        assert!(!name.contains(&b'='));
        let mut first = None;
        env.with(name, |value| first = Some(value.to_vec()));
        assert!(first.is_some());
        if let Err(problem) = config.set(name, value) {
            let said = Complaint {
                name,
                value,
                problem,
            };
            let line: Text<512> = Text::of(format_args!("{said}"));
            assert!(!line.was_cut() && !line.as_bytes().contains(&b'\n'));
            assert!(problem != Problem::Name || !name.starts_with(b"REGALL_PIN\0"));
        } else if name != b"REGALL" && name != b"REGALL_ONLY" {
            // What was taken once is taken again, and is the same.
            let mut other = Config::new();
            assert_eq!(other.set(name, value), Ok(()));
        }
    });
    assert_eq!(count, strings.len());
    let patterns = config.exclude.as_bytes();
    for text in &strings {
        let text = text.as_bytes();
        let any = glob::matches_any(patterns, text);
        let each = patterns.split(|b| *b == b',').filter(|p| !p.is_empty());
        assert_eq!(any, { each }.any(|p| p == text || glob::matches(p, text)));
    }
    for pair in strings.windows(2) {
        pattern(pair[0].as_bytes(), pair[1].as_bytes());
    }
});

/// As a slow matcher, which tries everything, has it.
fn pattern(pattern: &[u8], text: &[u8]) {
    if pattern.len() > 24 || text.len() > 24 {
        glob::matches(pattern, text);
        return;
    }
    let plain = !pattern.iter().any(|b| b"*?[\\".contains(b));
    if plain {
        assert_eq!(glob::matches(pattern, text), pattern == text);
    }
    // A star takes anything: it is enough that some end of the text matches.
    let star = [b"*", pattern].concat();
    let some_end = (0..=text.len()).any(|n| glob::matches(pattern, &text[n..]));
    assert_eq!(glob::matches(&star, text), some_end);
}
