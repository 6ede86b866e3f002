//! The counters, for regall-stats(1): from the comments where they are numbered.

const LAYOUT: &str = include_str!("../../../directory/src/layout.rs");

/// Each counter's name and what it counts, in the order of their numbers.
pub fn all() -> Vec<(&'static str, String)> {
    let (_, body) = LAYOUT.split_once("\n    Counter {").unwrap_or_default();
    let (body, _) = body.split_once("\n    }").unwrap_or_default();
    let (mut all, mut text) = (Vec::new(), String::new());
    for line in body.lines().map(str::trim) {
        if let Some(comment) = line.strip_prefix("///") {
            text += comment;
        } else if let Some(name) = line.split('"').nth(1) {
            all.push((name, std::mem::take(&mut text).trim().to_string()));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use regall_directory::layout::Counter;

    #[test]
    fn each_is_there_and_said() {
        let all = super::all();
        let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
        let counters: Vec<_> = Counter::ALL.iter().map(|c| c.word()).collect();
        assert_eq!(names, counters);
        let mut texts: Vec<_> = all.iter().map(|(_, text)| text).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), names.len());
        assert!(texts.iter().all(|t| t.len() > 8), "{texts:?}");
    }
}
