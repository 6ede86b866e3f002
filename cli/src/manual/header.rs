//! regall(3), from the comments of include/regall.h: there they are read by those who
//! write C, and here by everybody else.

use super::roff::Page;

const HEADER: &str = include_str!("../../../include/regall.h");

/// A comment, and the declarations that it is about.
pub struct Topic {
    /// The comment's paragraphs.
    pub text: Vec<String>,
    /// The lines below it, up to the next comment or an empty line.
    pub code: String,
}

impl Topic {
    /// The functions that it declares.
    pub fn functions(&self) -> Vec<&'static str> {
        functions(&self.code)
    }
}

/// The names in front of an opening bracket at the beginning of a declaration.
fn functions(code: &str) -> Vec<&'static str> {
    let name = |line: &str| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        let starts = line.starts_with(|c: char| c.is_ascii_alphabetic());
        (starts && name.starts_with("regall_")).then(|| name.to_string())
    };
    let found = code.lines().filter_map(name);
    found
        .filter_map(|n| HEADER.find(&n).and_then(|at| HEADER.get(at..at + n.len())))
        .collect()
}

/// The page, and the names under which it can be found.
pub fn page() -> (String, Vec<&'static str>) {
    let (intro, topics) = read();
    let mut page = Page::new(
        "regall",
        3,
        "ask libregall.so what is registered, and keep memory in or out",
    );
    page.section("SYNOPSIS").code("#include <regall.h>");
    for topic in topics.iter().filter(|t| !t.functions().is_empty()) {
        page.code(&declarations(&topic.code));
    }
    page.paragraph("Link with `-lregall` (`pkg-config --cflags --libs regall`).");
    page.section("DESCRIPTION");
    for (n, paragraph) in intro.iter().enumerate() {
        match n {
            0 => page.text(paragraph),
            _ => page.paragraph(paragraph),
        };
    }
    let mut names = Vec::new();
    for topic in &topics {
        let functions = topic.functions();
        let heading = match functions.as_slice() {
            [] => topic.code.lines().next().map(title).unwrap_or_default(),
            all => all
                .iter()
                .map(|f| format!("{f}()"))
                .collect::<Vec<_>>()
                .join(", "),
        };
        page.subsection(&heading);
        for (n, paragraph) in topic.text.iter().enumerate() {
            let returned = paragraph.starts_with("0, or ");
            let text = match returned {
                true => format!("Returns {paragraph}"),
                false => paragraph.clone(),
            };
            match n {
                0 => page.text(&text),
                _ => page.paragraph(&text),
            };
        }
        page.code(&topic.code);
        names.extend(functions);
    }
    page.section("SEE ALSO").text("`regall`(1), `regall`(7)");
    (page.finish(), names)
}

/// `struct regall_stats {` without its bracket, or a constant's name.
fn title(line: &str) -> String {
    let words = line.trim_end_matches(" {").split_whitespace();
    words
        .filter(|w| *w != "#define")
        .take(2)
        .collect::<Vec<_>>()
        .join(" ")
        .trim_end_matches(|c: char| c.is_ascii_digit() || c == 'u')
        .trim_end()
        .to_string()
}

/// Only the functions of a topic that has structures, too.
fn declarations(code: &str) -> String {
    let is = |line: &&str| !functions(line).is_empty() || line.starts_with("\t\t");
    code.lines().filter(is).collect::<Vec<_>>().join("\n")
}

/// The comment at the top, and all others with what is below them.
pub fn read() -> (Vec<String>, Vec<Topic>) {
    let mut topics = Vec::new();
    let mut rest = HEADER;
    while let Some(behind) = comment(rest) {
        let Some((comment, below)) = behind.split_once("*/\n") else {
            break;
        };
        // A comment may be followed by another one: one for each declaration.
        let end = ["\n\n", "\n/* "].iter().filter_map(|m| below.find(m)).min();
        let code = below.get(..end.unwrap_or(below.len())).unwrap_or(below);
        topics.push(Topic {
            text: paragraphs(comment),
            code: code.to_string(),
        });
        // The newline before the next comment stays.
        rest = below.get(code.len()..).unwrap_or("");
    }
    let mut intro = Vec::new();
    if !topics.is_empty() {
        intro = topics.remove(0).text;
    }
    // "regall.h: what ..."
    if let Some(first) = intro.first_mut() {
        let what = first
            .split_once(": ")
            .map_or(first.as_str(), |(_, what)| what);
        let mut letters = what.chars();
        let capital = letters.next().into_iter().flat_map(char::to_uppercase);
        *first = capital.chain(letters).collect();
    }
    intro.retain(|p| !p.starts_with("SPDX"));
    (intro, topics)
}

/// What is behind the next opening of a comment at the beginning of a line.
fn comment(text: &str) -> Option<&str> {
    let at_once = text.strip_prefix("/* ");
    at_once.or_else(|| Some(text.split_once("\n/* ")?.1))
}

/// Without the stars, and a new one before what is returned.
fn paragraphs(comment: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    for line in comment.lines() {
        let line = line
            .trim()
            .trim_start_matches("* ")
            .trim_start_matches('*')
            .trim();
        let new = line.is_empty() || line.starts_with("0, or ") || line.starts_with("SPDX");
        if new && all.last().is_some_and(|p| !p.is_empty()) {
            all.push(String::new());
        }
        let Some(last) = all.last_mut() else { continue };
        if !line.is_empty() {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(line);
        }
    }
    all.retain(|p| !p.is_empty());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is declared is in the page, and what is said of it.
    #[test]
    fn nothing_of_the_header_is_left_out() {
        let (page, names) = page();
        let function = |l: &&str| l.starts_with("int regall_") || l.starts_with("int64_t regall_");
        let declared = HEADER.lines().filter(function);
        assert_eq!(names.len(), declared.count(), "{names:?}");
        let plain = page
            .replace("\\-", "-")
            .replace("\\(dq", "\"")
            .replace("\\(aq", "'");
        for line in HEADER.lines().filter(function) {
            assert_eq!(plain.matches(line.trim()).count(), 2, "{line}");
        }
        let filled = plain.replace('\n', " ");
        for word in [
            "-EOPNOTSUPP",
            "explicit huge pages where the system",
            "REGALL_OPTED_OUT = 5",
            "uint64_t resyncs",
            "#define REGALL_HELD_HCA 2u",
        ] {
            assert!(filled.contains(word), "{word}");
        }
        assert!(!plain.contains("SPDX") && !plain.contains("__cplusplus"));
    }
}
