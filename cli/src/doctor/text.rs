//! Findings in lines that fit a terminal.

/// Columns of a terminal.
const COLUMNS: usize = 80;
/// Where what is found of a thing begins, behind its name and how it stands.
const TEXT: usize = 32;
/// Where a command begins that has no room behind who runs it.
const COMMAND: usize = 4;

/// The lines of a text that begins in column [`TEXT`]; all but the first with its indentation.
pub fn wrapped(text: &str) -> String {
    lines(text.split_whitespace(), TEXT, "").join("\n")
}

/// The lines of a text that begins in the first column.
pub fn paragraph(text: &str) -> String {
    lines(text.split_whitespace(), 0, "").join("\n")
}

/// A command, behind who runs it: in the same line if there is room, else below, in lines that a
/// shell takes for one.
pub fn command(who: &str, line: &str) -> String {
    let short = format!("{who}: {line}");
    if TEXT + short.chars().count() <= COLUMNS {
        return short;
    }
    let (command, comment) = split(line);
    let mut all = vec![format!("{who}:")];
    let indent = |line: String| " ".repeat(COMMAND) + line.trim_start();
    let words = words(command);
    all.extend(
        lines(words.into_iter(), COMMAND, " \\")
            .into_iter()
            .map(indent),
    );
    let comment = comment.split_whitespace();
    let comment = lines(comment, COMMAND + 2, "").into_iter();
    all.extend(comment.map(|l| indent(format!("# {}", l.trim_start()))));
    all.join("\n")
}

/// A command, and the comment behind it.
fn split(line: &str) -> (&str, &str) {
    line.split_once(" # ").unwrap_or((line, ""))
}

/// A command's words. What stands between quotes is one, blanks and all.
fn words(command: &str) -> Vec<&str> {
    let (mut quote, mut begun, mut all) = (None, 0, Vec::new());
    for (at, c) in command.char_indices() {
        match (quote, c) {
            (None, '\'' | '"') => quote = Some(c),
            (Some(q), c) if q == c => quote = None,
            (None, ' ') => {
                all.extend(command.get(begun..at));
                begun = at + 1;
            }
            _ => (),
        }
    }
    all.extend(command.get(begun..));
    all.retain(|w| !w.is_empty());
    all
}

/// Words in lines, each but the first with `indent` blanks before it and each but the last with
/// `end` behind it.
fn lines<'a>(words: impl Iterator<Item = &'a str>, indent: usize, end: &str) -> Vec<String> {
    let room = COLUMNS - indent - end.len();
    let mut all: Vec<String> = Vec::new();
    for word in words {
        match all.last_mut() {
            Some(last) if last.trim_start().chars().count() + 1 + word.chars().count() <= room => {
                last.push(' ');
                last.push_str(word);
            }
            Some(last) => {
                last.push_str(end);
                all.push(" ".repeat(indent) + word);
            }
            None => all.push(word.to_string()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_fit_their_columns() {
        let text = "word ".repeat(40);
        let all = wrapped(&text);
        let lines: Vec<_> = all.lines().collect();
        assert_eq!(lines.len(), 5);
        assert!(lines[0].len() <= COLUMNS - TEXT && lines[0].starts_with("word"));
        for line in &lines[1..] {
            assert!(line.starts_with(&(" ".repeat(TEXT) + "word")) && line.len() <= COLUMNS);
        }
        assert_eq!(wrapped("short"), "short");
    }

    #[test]
    fn a_shell_takes_the_lines_of_a_command_for_one() {
        assert_eq!(command("you", "make # here"), "you: make # here");
        let long = format!(
            "printf '%s|' 'a  b' {} \"c  d\" # {}",
            "x ".repeat(60),
            "y ".repeat(60)
        );
        let said = command("you", &long);
        let (who, lines) = said.split_once('\n').unwrap();
        assert_eq!(who, "you:");
        assert!(lines.lines().count() > 3, "{lines}");
        assert!(lines.lines().all(|l| l.len() <= COLUMNS), "{lines}");
        let run = |script: &str| {
            let done = std::process::Command::new("sh")
                .args(["-c", script])
                .output()
                .unwrap();
            String::from_utf8(done.stdout).unwrap()
        };
        assert_eq!(run(lines), run(&long));
        assert!(run(lines).ends_with("x|c  d|"), "{}", run(lines));
    }
}
