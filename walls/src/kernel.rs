//! Who enters the kernel: `sys` alone, and what must be assembly in the shim's `arch`. Functions of
//! libc's do so, too, and the shim calls none.

use crate::house::Root;
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders, from the workspace's on, whose sources may.
const MAY: [&str; 2] = ["sys", "src/arch"];
/// Macros of assembly.
const ASSEMBLY: [&str; 3] = ["asm", "global_asm", "naked_asm"];
/// Folders of what is part of the shim, which calls no function of libc's but in tests.
const SHIM: [&str; 7] = [
    "bridge",
    "directory",
    "ledger",
    "patch",
    "settings",
    "src",
    "uverbs",
];
/// Files in these that are tests, beside those in a folder of that name.
const TESTS: [&str; 2] = ["tests.rs", "guest.rs"];
/// What the crate libc computes.
const COMPUTED: [&str; 3] = ["major", "makedev", "minor"];
/// Instructions that enter the kernel.
const INSTRUCTIONS: [&str; 2] = ["syscall", "sysenter"];

/// System calls in the sources of `roots` that are none of theirs to make, with their files and
/// lines, in words. `top` is the workspace's folder.
///
/// # Errors
/// A file that can't be read, or is no Rust.
pub fn strays(top: &Path, roots: &[Root]) -> Result<Vec<String>, String> {
    let mut files = BTreeSet::new();
    for root in roots {
        sources(root.file.parent().unwrap_or(top), &mut files);
    }
    let mut found = Vec::new();
    for file in files {
        let short = file.strip_prefix(top).unwrap_or(&file);
        if MAY.iter().any(|folder| short.starts_with(folder)) {
            continue;
        }
        let failed = |e: String| format!("{}: {e}", short.display());
        let text = fs::read_to_string(&file).map_err(|e| failed(e.to_string()))?;
        let mut here = entries(&text).map_err(failed)?;
        let is_test = TESTS.iter().any(|name| file.ends_with(name))
            || short.components().any(|part| part.as_os_str() == "tests");
        if is_test || !SHIM.iter().any(|folder| short.starts_with(folder)) {
            here.retain(|(_, what)| !what.starts_with("libc::"));
        }
        let told = |(line, what)| format!("{}:{line}: {what}", short.display());
        found.extend(here.into_iter().map(told));
    }
    Ok(found)
}

fn sources(folder: &Path, files: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.insert(path);
        }
    }
}

/// The lines of `text` that make a system call, or call a function of libc's behind no
/// `#[cfg(test)]`, and by what.
///
/// # Errors
/// It is no Rust.
pub fn entries(text: &str) -> Result<Vec<(usize, String)>, String> {
    let tokens: TokenStream = text.parse().map_err(|e| format!("{e}"))?;
    let mut found = Vec::new();
    walk(tokens.clone(), &mut found);
    libc(tokens, &mut found);
    found.sort();
    Ok(found)
}

/// Calls of `libc::name(..)`.
fn libc(tokens: TokenStream, found: &mut Vec<(usize, String)>) {
    // Of `libc`, `:`, `:`, name: how many were there.
    let (mut seen, mut name) = (0, String::new());
    let (mut hash, mut test) = (false, false);
    for token in tokens {
        let line = token.span().start().line;
        let was_hash = std::mem::replace(&mut hash, false);
        match token {
            TokenTree::Ident(i) if seen == 3 => (seen, name) = (4, i.to_string()),
            TokenTree::Ident(i) => seen = usize::from(i == "libc"),
            TokenTree::Punct(p) if p.as_char() == ':' && (seen == 1 || seen == 2) => seen += 1,
            TokenTree::Punct(p) => {
                seen = 0;
                hash = p.as_char() == '#';
                // An item without a body.
                test &= p.as_char() != ';';
            }
            TokenTree::Group(g) => {
                let is_call = seen == 4 && g.delimiter() == Delimiter::Parenthesis;
                if is_call && !test && !COMPUTED.contains(&&*name) {
                    found.push((line, format!("libc::{name}()")));
                }
                seen = 0;
                if was_hash {
                    let text = g.stream().to_string().replace(' ', "");
                    test |= text.starts_with("cfg(test") || text.starts_with("cfg(all(test");
                } else if !test {
                    libc(g.stream(), found);
                }
                test &= g.delimiter() != Delimiter::Brace;
            }
            TokenTree::Literal(_) => seen = 0,
        }
    }
}

fn walk(tokens: TokenStream, found: &mut Vec<(usize, String)>) {
    // The name of the macro whose arguments may come next.
    let (mut name, mut called) = (String::new(), false);
    for token in tokens {
        let line = token.span().start().line;
        match token {
            TokenTree::Ident(i) => {
                name = i.to_string();
                called = false;
                if name == "regall_enter" {
                    found.push((line, name.clone()));
                }
            }
            TokenTree::Punct(p) if p.as_char() == '!' && !name.is_empty() => called = true,
            TokenTree::Group(g) => {
                if called && name == "call" {
                    found.push((line, "call!".to_string()));
                }
                if called && ASSEMBLY.contains(&&*name) {
                    instructions(g.stream(), found);
                }
                walk(g.stream(), found);
                (name, called) = (String::new(), false);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => (name, called) = (String::new(), false),
        }
    }
}

fn instructions(tokens: TokenStream, found: &mut Vec<(usize, String)>) {
    for token in tokens {
        let line = token.span().start().line;
        match token {
            TokenTree::Group(g) => instructions(g.stream(), found),
            TokenTree::Literal(text) => {
                let text = text.to_string();
                // (Within a line a new one may be written as \\n.)
                let text = text.replace("\\n", "\n").replace("\\t", " ");
                let code = text.lines().map(|l| l.split("//").next().unwrap_or(""));
                for (n, words) in code.enumerate() {
                    let mut words = words.split(|c: char| !(c.is_alphanumeric() || c == '_'));
                    if let Some(word) = words.find(|w| INSTRUCTIONS.contains(w)) {
                        found.push((line + n, format!("the instruction {word}")));
                    }
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => (),
        }
    }
}
