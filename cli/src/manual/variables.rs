//! The variables, for regall(7), read from docs/variables.md. A test compares that page with
//! what the shim takes (settings/src/lib.rs).

/// The one source.
const PAGE: &str = include_str!("../../../docs/variables.md");

/// A variable that the shim reads.
pub struct Variable {
    /// Its name.
    pub name: &'static str,
    /// What holds without it; empty: nothing.
    pub default: &'static str,
    /// What it is, with code between backticks.
    pub meaning: &'static str,
}

impl Variable {
    /// The variable of a row of the page's table.
    fn of(row: &'static str) -> Option<Self> {
        let mut cells = row.strip_prefix("| ")?.strip_suffix(" |")?.splitn(3, '|');
        let mut next = || Some(cells.next()?.trim());
        let (name, default, meaning) = (next()?, next()?, next()?);
        let name = name.trim_matches('`');
        name.starts_with("REGALL").then_some(Self {
            name,
            default: default.trim_matches('`'),
            meaning,
        })
    }
}

/// All of them, in the page's order.
pub fn all() -> impl Iterator<Item = Variable> {
    PAGE.lines().filter_map(Variable::of)
}

/// How the budget is calculated: the lines of that section, of which some begin with `- `.
pub fn budget() -> impl Iterator<Item = &'static str> {
    let section = PAGE.split("## How the budget is calculated\n").nth(1);
    let section = section.unwrap_or("").split("\n## ").next().unwrap_or("");
    section.lines().filter(|line| !line.is_empty())
}

/// A text of the page without its links: a page of docs/ by its path, all else by its words.
pub fn without_links(text: &str) -> String {
    let (mut all, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once('[') {
        all += before;
        let link = behind.split_once("](").filter(|(w, _)| !w.contains('['));
        let link = link.and_then(|(words, to)| Some((words, to.split_once(')')?.1)));
        let Some((words, after)) = link else {
            all.push('[');
            rest = behind;
            continue;
        };
        if words.ends_with(".md") {
            all += "docs/";
        }
        all += words;
        rest = after;
    }
    all + rest
}

/// Executables that are left out by default, with commas and in lines as the page has them.
pub fn left_out() -> &'static str {
    PAGE.split("\n```").nth(1).unwrap_or("").trim()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const SETTINGS: &str = include_str!("../../../directory/src/settings.rs");
    const CONFIG: &str = include_str!("../../../settings/src/lib.rs");
    const DEFAULTS: &str = include_str!("../../../settings/src/tests.rs");

    /// What is between two marks, wherever both are in that order.
    fn between<'a>(text: &'a str, before: &'a str, behind: char) -> impl Iterator<Item = &'a str> {
        text.split(before)
            .skip(1)
            .filter_map(move |rest| rest.split(behind).next())
    }

    #[test]
    fn every_row_of_the_page_is_read() {
        let rows = PAGE.lines().filter(|l| l.starts_with("| `REGALL"));
        assert_eq!(rows.count(), all().count());
        assert!(all().all(|v| !v.meaning.is_empty() && !v.meaning.ends_with(['.', '|'])));
        let default = |name| all().find(|v| v.name == name).map(|v| v.default);
        assert_eq!(default("REGALL_PIN"), Some("auto"));
        assert_eq!(default("REGALL_LOG_FILE"), Some("stderr"));
        assert_eq!(default("REGALL_ONLY"), Some(""));
        assert!(budget().filter(|l| l.starts_with("- ")).count() >= 3);
        assert!(budget().any(|l| l.contains("RLIMIT_MEMLOCK")));
    }

    #[test]
    fn they_are_what_the_shim_takes() {
        let code = CONFIG.split("#[cfg(test)]").next().unwrap();
        let mut taken: Vec<_> = between(code, "b\"REGALL", '"')
            .map(|rest| format!("REGALL{rest}"))
            // The Python package's: the page says so below its table.
            .filter(|name| name != "REGALL_LIBRARY")
            .collect();
        taken.sort();
        let mut told: Vec<_> = all().map(|v| v.name.to_string()).collect();
        told.sort();
        assert_eq!(taken, told);
        let pairs = between(DEFAULTS, "(\"REGALL_", ')')
            .filter_map(|pair| pair.strip_suffix('"')?.split_once("\", \""))
            .map(|(name, value)| (format!("REGALL_{name}"), value));
        let defaults: BTreeMap<_, _> = pairs.collect();
        assert!(defaults.len() > 10, "{defaults:?}");
        for v in all() {
            if let Some(default) = defaults.get(v.name) {
                assert_eq!(&v.default, default, "{}", v.name);
            }
        }
    }

    #[test]
    fn the_row_of_regall_copy_has_every_mechanism() {
        let row = all().find(|v| v.name == "REGALL_COPY").unwrap();
        for name in regall_directory::settings::MECHANISMS {
            assert!(row.meaning.contains(&format!("`{name}`")), "{name}");
        }
    }

    #[test]
    fn what_is_left_out_is_what_the_shim_leaves_out() {
        let list = between(SETTINGS, "LAUNCHERS: &[u8] = b\"", '"')
            .next()
            .unwrap();
        let names = |text: &str| {
            let all = text.split([',', ' ', '\\', '\n']).filter(|w| !w.is_empty());
            all.map(str::to_string).collect::<Vec<_>>()
        };
        assert!(names(list).len() > 40);
        assert_eq!(names(left_out()), names(list));
    }

    /// But for the one that says whether it is on at all.
    #[test]
    fn each_has_a_flag_of_regall_run() {
        let default = |v: Variable| match (v.name, v.default) {
            ("REGALL_ONLY", "") => "all but launchers and shells",
            (_, "") => "none",
            (_, default) => default,
        };
        let told = all().filter(|v| v.name != "REGALL");
        let flags = crate::settings::Settings::default();
        let flags = flags.all();
        let flags = flags.iter().map(|s| (s.name, s.default));
        assert_eq!(
            told.map(|v| (v.name, default(v)))
                .collect::<BTreeMap<_, _>>(),
            flags.collect()
        );
    }
}
