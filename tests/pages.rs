//! The pages of docs/: every line that the shim can print is in troubleshooting.md, and
//! nothing that it can't; the C programs compile and run, and print what is said there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use regall_tests::build;
use regall_tests::child;
use regall_tests::installed;
use regall_tests::mode::Mode;

/// A line that the shim prints: its level and what stands between the values.
#[derive(Debug)]
struct Message {
    level: &'static str,
    parts: Vec<String>,
}

impl Message {
    fn new(level: &'static str, format: &str) -> Self {
        // A backslash at a line's end takes the next line's indentation away.
        let mut lines = format.split("\\\n");
        let first = lines.next().unwrap_or_default().to_string();
        let format = lines.fold(first, |all, line| all + line.trim_start());
        let mut parts = Vec::new();
        let mut rest = format.as_str();
        while let Some((before, behind)) = rest.split_once('{') {
            parts.push(before.to_string());
            rest = behind.split_once('}').map_or("", |(_, rest)| rest);
        }
        parts.push(rest.to_string());
        Self { level, parts }
    }

    /// Whether the page's text is this one, with words where the values are.
    fn is(&self, level: &str, text: &str) -> bool {
        let Some((first, others)) = self.parts.split_first() else {
            return false;
        };
        let Some(mut rest) = text.strip_prefix(first.as_str()) else {
            return false;
        };
        for (n, part) in others.iter().enumerate() {
            let last = n + 1 == others.len();
            let at = match last {
                true if part.is_empty() => Some(rest.len()),
                true => rest
                    .ends_with(part.as_str())
                    .then(|| rest.len() - part.len()),
                false => rest.find(part.as_str()),
            };
            // A value is at least a letter.
            let Some(at) = at.filter(|at| *at > 0) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        level == self.level && rest.is_empty()
    }
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            all.push(path);
        }
    }
    all
}

/// The first string at the beginning of `text`, but for blanks.
fn string(text: &str) -> Option<&str> {
    text.trim_start()
        .strip_prefix('"')?
        .split_once('"')
        .map(|(s, _)| s)
}

/// What the shim's sources print at these levels. Debug and trace are for who knows
/// the sources.
fn messages() -> Vec<Message> {
    const LEVELS: [(&str, &str); 3] = [
        ("log::error!(", "error"),
        ("log::warn!(", "warn"),
        ("log::info!(", "info"),
    ];
    let mut all = Vec::new();
    let folders = ["src", "settings/src"].map(|f| build::root().join(f));
    for path in folders.iter().flat_map(|f| sources(f)) {
        let text = fs::read_to_string(&path).expect("a source");
        for (call, level) in LEVELS {
            for rest in text.split(call).skip(1) {
                let format = string(rest)
                    .unwrap_or_else(|| panic!("{}: {call} without a text", path.display()));
                all.push(Message::new(level, format));
            }
        }
        for rest in text.split("logger::early(").skip(1) {
            let warns = rest.trim_start().strip_prefix("\"warn\",");
            let said = warns.and_then(|rest| rest.trim_start().strip_prefix("format_args!("));
            if let Some(format) = said.and_then(string) {
                all.push(Message::new("warn", format));
            }
        }
        let reasons = [
            "give_up(",
            "give_up_with(self, ",
            "give_up_with(state, ",
            "give_up_with(&guard, ",
        ];
        for rest in reasons.iter().flat_map(|call| text.split(call).skip(1)) {
            if let Some(why) = string(rest) {
                all.push(Message::new("error", &format!("stopped tracking: {why}")));
            }
        }
        // What the settings have to say of a variable.
        let complaints = text.split("for Complaint<'_>").nth(1).unwrap_or("");
        let complaints = complaints.split("\n}\n").next().unwrap_or("");
        for rest in complaints.split("write!(").skip(1) {
            let (_, behind) = rest.split_once("f,").expect("a formatter");
            let format = string(behind).expect("a text");
            let level = if format.ends_with("ignored") {
                "warn"
            } else {
                "error"
            };
            all.push(Message::new(level, format));
        }
    }
    // Its texts are those above.
    all.retain(|m| m.parts != ["stopped tracking: ", ""]);
    all
}

/// The page's lines of the shim's own: level and text.
fn told() -> Vec<(String, String)> {
    let page = fs::read_to_string(build::root().join("docs/troubleshooting.md")).expect("the page");
    let mut all = Vec::new();
    for row in page.lines() {
        for level in ["error", "warn", "info"] {
            let Some(cell) = row.strip_prefix(&format!("| {level}: ")) else {
                continue;
            };
            let cell = cell.split(" | ").next().unwrap_or("");
            let texts = cell.split('`').skip(1).step_by(2);
            all.extend(texts.map(|t| (level.to_string(), t.to_string())));
        }
    }
    all
}

#[test]
fn every_message_is_in_the_page_and_no_other() {
    let (messages, told) = (messages(), told());
    assert!(messages.len() > 25, "{}", messages.len());
    let mut wrong = Vec::new();
    for message in &messages {
        if !told.iter().any(|(level, text)| message.is(level, text)) {
            wrong.push(format!("not in the page: {message:?}"));
        }
    }
    for (level, text) in &told {
        if !messages.iter().any(|m| m.is(level, text)) {
            wrong.push(format!("the shim does not say: {level}: {text}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where the command's sentences for people are: what is wrong, and what to do. The doctor's
/// are explained where they stand.
const SENTENCES: [&str; 22] = [
    "cli/src/files.rs",
    "cli/src/run.rs",
    "cli/src/run/parts.rs",
    "cli/src/stage.rs",
    "cli/src/stage/folder.rs",
    "cli/src/stage/nodes.rs",
    "cli/src/stage/users.rs",
    "cli/src/launcher.rs",
    "cli/src/settings.rs",
    "cli/src/report/gather.rs",
    "cli/src/report/advice.rs",
    "cli/src/report/job.rs",
    "cli/src/report/merge.rs",
    "cli/src/peek.rs",
    "cli/src/examine.rs",
    "cli/src/check.rs",
    "cli/src/verify.rs",
    "cli/src/watch.rs",
    "cli/src/top.rs",
    "cli/src/stats.rs",
    "cli/src/maps.rs",
    "reader/src/error.rs",
];

/// What in these files is no message: help, and names that are looked for.
const NO_MESSAGES: [&str; 10] = [
    "Exit code",
    "A cookie for a single use",
    // Examples, and how peek is called.
    "regall ",
    "PMIx Reference RTE",
    "Intel(R) MPI",
    "in {count} of {} processes",
    "{pid}: ok, ",
    "{} not found; looked for",
    "srun --ntasks-per-node",
    "The copy is in ",
];

/// The strings of a Rust source, but for those of its tests, with their lines joined.
fn strings(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or("");
    let lines = source.lines().filter(|l| !l.trim_start().starts_with("//"));
    let text = lines.collect::<Vec<_>>().join("\n");
    let mut all = Vec::new();
    let mut letters = text.chars();
    while letters.by_ref().any(|c| c == '"') {
        let mut one = String::new();
        while let Some(c) = letters.next().filter(|c| *c != '"') {
            match (c, if c == '\\' { letters.next() } else { None }) {
                // A line that goes on in the next one, behind its blanks.
                (_, Some('\n')) => {
                    let rest = letters.as_str();
                    letters = rest.trim_start().chars();
                }
                (_, Some('n')) => one.push('\n'),
                (_, Some(other)) => one.push(other),
                (c, None) => one.push(c),
            }
        }
        all.push(one);
    }
    all
}

/// The longest piece of a format string that stands in it as it is.
fn longest(format: &str) -> &str {
    let pieces = format.split(['{', '}']).step_by(2);
    let longest = pieces.max_by_key(|p| p.len()).unwrap_or("");
    longest.trim_matches([' ', ',', ';', ':', '\n'])
}

/// A source without the table of settings: their help is no message.
fn without_settings(source: &str) -> String {
    let (before, table) = source.split_once("\nsettings! {").unwrap_or((source, ""));
    let behind = table.split_once("\n}").map_or("", |(_, behind)| behind);
    format!("{before}{behind}")
}

#[test]
fn every_sentence_of_the_command_is_in_the_page() {
    let page = fs::read_to_string(build::root().join("docs/troubleshooting.md")).expect("the page");
    let mut sentences = 0;
    let mut missing = Vec::new();
    for file in SENTENCES {
        let source = fs::read_to_string(build::root().join(file)).expect("a source");
        for text in strings(&without_settings(&source)) {
            let piece = longest(&text);
            let message = piece.contains(' ') && piece.len() > 8;
            if !message || NO_MESSAGES.iter().any(|n| text.starts_with(n)) {
                continue;
            }
            sentences += 1;
            if !page.contains(piece) {
                missing.push(format!("{file}: {text}"));
            }
        }
    }
    assert!(sentences > 40, "{sentences}");
    assert!(
        missing.is_empty(),
        "not in the page:\n{}",
        missing.join("\n")
    );
}

#[test]
fn sentences_are_found_in_sources() {
    let source = "// \"no\"\nlet a = \"one \\\n    two \\\"q\\\"\"; b(\"c\");\n\
                  #[cfg(test)]\n\"not this\"";
    assert_eq!(strings(source), ["one two \"q\"", "c"]);
    assert_eq!(longest("{}: a path with {x} in it"), "a path with");
    assert_eq!(without_settings("a\nsettings! {\n\"b c\"\n}\nd"), "a\nd");
    assert_eq!(without_settings("a\nb"), "a\nb");
}

#[test]
fn another_text_or_level_is_noticed() {
    let message = Message::new("warn", "{name} of {what}: errno {n}");
    assert!(message.is("warn", "A of B: errno N"));
    assert!(!message.is("info", "A of B: errno N"));
    for text in [
        "A of B: errno ",
        "A of: errno N",
        " of B: errno N",
        "A of B",
    ] {
        assert!(!message.is("warn", text), "{text}");
    }
    assert!(!Message::new("warn", "as it is").is("warn", "as it is not"));
}

/// Blocks of a page between ``` lines: what the first line says, and the text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut parts = page.split("\n```");
    parts.next();
    while let Some(block) = parts.next() {
        let (kind, text) = block.split_once('\n').unwrap_or((block, ""));
        all.push((kind.to_string(), format!("{text}\n")));
        parts.next();
    }
    all
}

/// Compiles and runs each C program of a page; a block below it that begins with a line
/// `prints:` has what it says.
fn programs_of(page: &str) {
    let text = fs::read_to_string(build::root().join(page)).expect("a page");
    let all = blocks(&text);
    let folder = tempfile::tempdir().expect("a folder");
    let mut programs = 0;
    for (n, (kind, code)) in all.iter().enumerate() {
        if kind != "c" {
            continue;
        }
        if !code.contains("main(") {
            in_an_example(page, code);
            continue;
        }
        programs += 1;
        let (source, program) = (
            folder.path().join("a.c"),
            folder.path().join(format!("a{n}")),
        );
        fs::write(&source, code).expect("a source");
        let mut gcc = Command::new("gcc");
        gcc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"])
            .arg("-I")
            .arg(build::root().join("include"))
            .arg("-o")
            .arg(&program)
            .arg(&source);
        gcc.arg("-L")
            .arg(build::target().join("release"))
            .args(["-lregall", "-ldl"]);
        let done = child::run(&mut gcc, Duration::from_secs(60));
        done.must_succeed_at(format_args!("{page}"));
        // With the shim on, and inert.
        for mode in [Mode::Populate, Mode::Inert] {
            let mut command = Command::new(&program);
            mode.apply(&mut command);
            let done = child::run(&mut command, Duration::from_secs(30));
            let expected = all
                .get(n + 1)
                .and_then(|(_, t)| t.strip_prefix("prints:\n"));
            if let (Mode::Populate, Some(expected)) = (mode, expected) {
                assert_eq!(done.stdout, expected, "{page}: {code}");
            }
            let ends: &[&str] = if mode == Mode::Inert {
                &["exit 0", "exit 1"]
            } else {
                &["exit 0"]
            };
            assert!(
                ends.contains(&done.end().as_str()),
                "{page}: {}: {}",
                done.end(),
                done.stderr
            );
        }
    }
    assert!(programs > 0, "{page} has no program");
}

/// What is shown in part is of an example that the tests compile and run.
fn in_an_example(page: &str, code: &str) {
    let examples = fs::read_dir(build::root().join("examples")).expect("examples");
    let mut paths: Vec<_> = examples.flatten().map(|e| e.path()).collect();
    paths.push(build::root().join("c-tests/bridge/example_region.c"));
    let found = paths.iter().any(|path| {
        let example = fs::read_to_string(path).expect("an example");
        code.lines().all(|line| example.contains(line.trim()))
    });
    assert!(found, "{page}: in no example: {code}");
}

#[test]
fn the_c_pages_programs_run() {
    programs_of("docs/c-interface.md");
}

/// Links within the tree, and within what is installed, lead somewhere.
#[test]
fn links_lead_somewhere() {
    lead_somewhere(
        build::root(),
        &[
            "README.md",
            "ARCHITECTURE.md",
            "SECURITY.md",
            "CONTRIBUTING.md",
        ],
    );
    let folder = tempfile::tempdir().expect("a folder");
    installed::make("install", Path::new("/usr"), folder.path());
    let doc = folder.path().join("usr/share/doc/regall");
    lead_somewhere(&doc, &["README.md", "SECURITY.md"]);
}

/// Who has never seen the project reads these first.
#[test]
fn the_first_pages_are_short() {
    for (page, most) in [("README.md", 1500), ("docs/quick-start.md", 500)] {
        let text = fs::read_to_string(build::root().join(page)).expect(page);
        let words = text.split_whitespace().count();
        assert!(words <= most, "{page}: {words} words");
    }
}

/// The pages of these names, and those in docs beside them.
fn pages_of(root: &Path, names: &[&str]) -> Vec<PathBuf> {
    let mut pages: Vec<_> = names.iter().map(|page| root.join(page)).collect();
    for entry in fs::read_dir(root.join("docs")).expect("docs").flatten() {
        pages.extend(Some(entry.path()).filter(|p| p.extension().is_some_and(|e| e == "md")));
    }
    pages
}

/// The links of these pages, and of those in docs beside them.
fn lead_somewhere(root: &Path, names: &[&str]) {
    let mut links = 0;
    for page in pages_of(root, names) {
        let text = fs::read_to_string(&page).expect("a page");
        for link in links_of(&text).filter(|l| !l.contains("://")) {
            let (file, place) = link.split_once('#').unwrap_or((link, ""));
            let to = match file {
                "" => page.clone(),
                file => page.parent().expect("a folder").join(file),
            };
            assert!(to.exists(), "{}: {link}", page.display());
            if !place.is_empty() {
                let text = fs::read_to_string(&to).expect("a page");
                let found = places(&text).any(|p| p == place);
                assert!(found, "{}: {link}: no such heading", page.display());
            }
            links += 1;
        }
    }
    assert!(links > 10, "{}: {links}", root.display());
}

/// Where the links of a page lead to.
fn links_of(text: &str) -> impl Iterator<Item = &str> {
    let all = text.split("](").skip(1);
    all.filter_map(|rest| rest.split_once(')').map(|(link, _)| link))
}

/// The names by which links reach the headings of a page.
fn places(text: &str) -> impl Iterator<Item = String> + '_ {
    // Every other piece between ``` lines is shown as it is.
    let blocks = text.split("\n```").step_by(2);
    let headings = blocks.flat_map(str::lines).filter(|l| l.starts_with('#'));
    headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

/// The book has every page, and no other.
#[test]
fn the_book_has_every_page() {
    let summary = build::root().join("docs/SUMMARY.md");
    let text = fs::read_to_string(&summary).expect("the summary");
    let mut listed: Vec<_> = links_of(&text)
        .map(|l| build::root().join("docs").join(l))
        .collect();
    let mut pages = pages_of(
        build::root(),
        &["README.md", "ARCHITECTURE.md", "SECURITY.md"],
    );
    pages.extend(
        ["CONTRIBUTING.md", "CHANGELOG.md", "packaging/README.md"]
            .map(|page| build::root().join(page)),
    );
    pages.retain(|page| *page != summary);
    for all in [&mut listed, &mut pages] {
        for path in all.iter_mut() {
            *path = path
                .canonicalize()
                .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        all.sort();
    }
    assert_eq!(listed, pages);
}

#[test]
fn headings_have_names() {
    let page = "# A `b`, c-d\n```\n# no heading\n```\n## x_y: --z (1)\n";
    assert_eq!(places(page).collect::<Vec<_>>(), ["a-b-c-d", "x_y---z-1"]);
    let links = "[a](b.md#c) ![d](e.svg) [f](https://g)";
    assert_eq!(
        links_of(links).collect::<Vec<_>>(),
        ["b.md#c", "e.svg", "https://g"]
    );
}
