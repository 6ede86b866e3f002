//! What Python's unittest says with -v.

use std::collections::BTreeMap;

/// Each test and how it ended: `ok`, `skipped`, `FAIL`, `ERROR`.
pub type Results = BTreeMap<String, String>;

/// Reads them.
pub fn results(text: &str) -> Results {
    let mut all = Results::new();
    let mut test = None;
    for line in text.lines() {
        // `testName (module.Class.testName) ... ok`, or a docstring between.
        if let Some((name, rest)) = line.split_once(" (") {
            if name.starts_with("test") && !name.contains(' ') {
                test = rest.split_once(')').map(|(id, _)| id.to_owned());
            }
        }
        if let (Some(id), Some((_, end))) = (&test, line.rsplit_once(" ... ")) {
            let word = end.split([' ', ':']).next().unwrap_or("");
            if !word.is_empty() {
                all.insert(id.clone(), word.to_owned());
                test = None;
            }
        }
    }
    all
}
