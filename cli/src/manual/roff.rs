//! Manual pages as text: the few requests of man(7) that ours need.

/// A page on its way.
pub struct Page(String);

impl Page {
    /// `name` in `section`, and its one line; the date is that of the sources.
    pub fn new(name: &str, section: u8, what: &str) -> Self {
        let (title, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
        let mut page = Self(format!(
            ".TH {} {section} \"{}\" \"regall {version}\"\n",
            escaped(&title),
            env!("REGALL_DATE")
        ));
        page.section("NAME");
        page.0 += &format!("{} \\- {}\n", escaped(name), inline(what));
        page
    }

    /// A heading.
    pub fn section(&mut self, title: &str) -> &mut Self {
        self.line(&format!(".SH {}", escaped(title)))
    }

    /// A smaller one.
    pub fn subsection(&mut self, title: &str) -> &mut Self {
        self.line(&format!(".SS \"{}\"", escaped(title)))
    }

    /// A paragraph right below a heading.
    pub fn text(&mut self, text: &str) -> &mut Self {
        self.line(&inline(text))
    }

    /// A paragraph that follows another one.
    pub fn paragraph(&mut self, text: &str) -> &mut Self {
        self.line(".PP").text(text)
    }

    /// A word, and what there is to be said of it.
    pub fn item(&mut self, tag: &str, text: &str) -> &mut Self {
        self.line(".TP").text(tag).text(text)
    }

    /// Lines as they are.
    pub fn code(&mut self, lines: &str) -> &mut Self {
        self.line(".PP").line(".in +4n").line(".nf");
        for line in lines.lines() {
            self.line(&guarded(&escaped(line)));
        }
        self.line(".fi").line(".in")
    }

    /// What is roff already.
    pub fn raw(&mut self, text: &str) -> &mut Self {
        self.0 += text;
        self
    }

    /// All of it, in lines of less than 80 bytes where that changes nothing.
    pub fn finish(self) -> String {
        let mut out = String::new();
        let (mut as_it_is, mut last) = (false, "");
        let lines: Vec<_> = self.0.lines().map(str::trim_end).collect();
        for (n, line) in lines.iter().copied().enumerate() {
            let next = lines.get(n + 1).copied().unwrap_or("");
            let needless = match line {
                ".PP" => heads(last) || next.starts_with(".TP"),
                ".br" => last == ".br",
                "" => !as_it_is,
                _ => false,
            };
            match line {
                _ if needless => continue,
                ".nf" => as_it_is = true,
                ".fi" => as_it_is = false,
                _ => {}
            }
            if as_it_is || line.starts_with('.') || last.starts_with(".TP") {
                out += line;
            } else {
                out += &filled(line);
            }
            out.push('\n');
            last = line;
        }
        out
    }

    fn line(&mut self, line: &str) -> &mut Self {
        self.0 += line;
        self.0.push('\n');
        self
    }
}

/// Text with `code` between backticks, which becomes bold. No line begins with what
/// would be a request.
fn inline(text: &str) -> String {
    let mut out = String::new();
    for (n, part) in text.split('`').enumerate() {
        match n % 2 {
            0 => out += &escaped(part),
            _ => out += &format!("\\fB{}\\fR", escaped(part)),
        }
    }
    guarded(&out)
}

/// As roff prints it. Everything in these pages that is a hyphen to roff is meant as
/// the character that one can type.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out += "\\e",
            '-' => out += "\\-",
            '"' => out += "\\(dq",
            '\'' => out += "\\(aq",
            '^' => out += "\\(ha",
            '~' => out += "\\(ti",
            '`' => out += "\\(ga",
            c => out.push(c),
        }
    }
    out
}

/// Whether a line is a heading.
fn heads(line: &str) -> bool {
    line.starts_with(".SH ") || line.starts_with(".SS ")
}

/// A paragraph in lines, none of which begins with what would be a request.
fn filled(paragraph: &str) -> String {
    let mut out = String::new();
    let mut used = 0;
    for word in paragraph.split(' ') {
        if used > 0 && used + 1 + word.len() >= 80 && !word.starts_with(['.', '\'']) {
            out.push('\n');
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out += word;
        used += word.len();
    }
    out
}

fn guarded(line: &str) -> String {
    match line.starts_with('.') {
        true => format!("\\&{line}"),
        false => line.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_means_something_to_roff_is_only_printed() {
        assert_eq!(inline("a `--b` c\\d"), "a \\fB\\-\\-b\\fR c\\ed");
        assert_eq!(inline(".so evil"), "\\&.so evil");
        assert_eq!(inline("'tis"), "\\(aqtis");
        assert_eq!(inline("`.x`"), "\\fB.x\\fR");
    }

    #[test]
    fn lines_are_filled_with_the_same_words() {
        let text = "some .words of a `long` line; ".repeat(20);
        let one = filled(&inline(&text));
        assert!(
            one.lines().all(|l| l.len() < 90 && !l.starts_with('.')),
            "{one}"
        );
        assert_eq!(one.replace('\n', " "), inline(&text));
    }
}
