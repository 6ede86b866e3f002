//! ARCHITECTURE.md's table of who may import whom, and what breaks it.
//!
//! The table has the columns "where", "what" and "may import". The first names crates by their
//! folders (`ledger/`) and modules of the shim by their files (`src/track/`, `src/host.rs`); a
//! name without a folder is in that of the one before it. The last names crates and modules of
//! the shim in the same short form (`ledger`, `track`), a crate's modules as `directory::addr`
//! or `directory::{addr, vocab}`, all of them as `everything`, and nobody by a dash.

use crate::house::Root;
use crate::resolve::{Arrow, Place};
use std::collections::BTreeMap;

/// The table: for each wall, which others may be named from within it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// By each crate or module: what it may import.
    rows: BTreeMap<String, Vec<String>>,
}

/// The shim's modules are walls of their own; its name.
const SHIM: &str = "regall";

impl Table {
    /// The first table of `page` that has the three columns.
    ///
    /// # Errors
    /// There is none, or a row that can't be read, in words.
    pub fn parse(page: &str) -> Result<Self, String> {
        let mut lines = page.lines();
        let head = |l: &&str| cells(l) == ["where", "what", "may import"];
        lines
            .find(head)
            .ok_or("no table with the columns where, what, may import")?;
        let mut rows = BTreeMap::new();
        for line in lines.skip(1).take_while(|l| l.starts_with('|')) {
            let [places, _, may] = cells(line)[..] else {
                return Err(format!("not three columns: {line}"));
            };
            let may = imports(may);
            for place in wheres(places) {
                if rows.insert(place.clone(), may.clone()).is_some() {
                    return Err(format!("two rows about {place}"));
                }
            }
        }
        Ok(Self { rows })
    }

    /// Which arrows the table does not allow, and why not. `roots` are the crates.
    pub fn broken<'a>(&self, arrows: &'a [Arrow], roots: &[Root]) -> Vec<(&'a Arrow, String)> {
        let judged = arrows.iter().filter_map(|a| {
            let why = self.why_not(a, roots)?;
            Some((a, why))
        });
        judged.collect()
    }

    fn why_not(&self, arrow: &Arrow, roots: &[Root]) -> Option<String> {
        let from = wall(&arrow.from, roots)?;
        let to = wall(&arrow.to, roots)?;
        if from == to || from == "src" {
            return None;
        }
        // What the shim's root re-exports of other crates its modules name through it.
        if to == "src" && arrow.from.crate_name == SHIM {
            return None;
        }
        let Some(may) = self.rows.get(&from) else {
            return Some(format!("{from} has no row"));
        };
        let allowed = may.iter().any(|m| {
            let mut path = m.split("::");
            let whole = path.next() == Some(&*to);
            m == "everything" || whole && starts(&arrow.to, &path.collect::<Vec<_>>())
        });
        (!allowed).then(|| format!("{from} may not import {to}"))
    }
}

/// Whether the place is in the module that the path names.
fn starts(place: &Place, path: &[&str]) -> bool {
    place.module.iter().zip(path).all(|(a, b)| a == b) && place.module.len() >= path.len()
}

/// What the table calls the place: a crate's folder, or a module of the shim's; `src` for the
/// shim's root.
fn wall(place: &Place, roots: &[Root]) -> Option<String> {
    let root = roots.iter().find(|r| r.name == place.crate_name)?;
    if root.name == SHIM {
        let module = place.module.first().map(String::as_str);
        return Some(module.unwrap_or("src").to_string());
    }
    Some(root.folder.clone())
}

fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(str::trim).collect()
}

/// The places that are named in the first column.
fn wheres(cell: &str) -> Vec<String> {
    let named = cell.split('`').skip(1).step_by(2);
    let short = |n: &str| {
        let n = n.strip_prefix("src/").unwrap_or(n);
        n.trim_end_matches('/').trim_end_matches(".rs").to_string()
    };
    named.map(short).collect()
}

/// What is named in the last column.
fn imports(cell: &str) -> Vec<String> {
    let plain = cell.replace('`', "");
    let mut named = Vec::new();
    let mut rest = plain.as_str();
    while !rest.is_empty() {
        let end = match (rest.find(','), rest.find('{')) {
            (Some(comma), Some(brace)) if brace < comma => {
                let (crate_name, inner) = rest.split_at(brace);
                let (inner, after) = inner[1..].split_once('}').unwrap_or((&inner[1..], ""));
                let each = inner.split(',').map(str::trim);
                named.extend(each.map(|m| format!("{}{m}", crate_name.trim())));
                rest = after.trim_start_matches([',', ' ']);
                continue;
            }
            (Some(comma), _) => comma,
            (None, _) => rest.len(),
        };
        named.push(rest[..end].trim().to_string());
        rest = rest[end..].trim_start_matches([',', ' ']);
    }
    named.retain(|n| !n.is_empty() && n != "–");
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "text
| a | b |
|---|---|
| where | what | may import |
|---|---|---|
| `sys/` | calls | – |
| `ledger/` | a map | `directory::{addr, vocab}`, sys |
| `src/threads.rs`, `helper.rs` | threads | sys |
| `fuzz/` | fuzzers | everything |

| `no/` | not of it | – |";

    fn root(name: &str, folder: &str) -> Root {
        let (name, folder) = (name.to_string(), folder.to_string());
        let file = std::path::PathBuf::new();
        Root { name, folder, file }
    }

    fn place(path: &str) -> Place {
        let mut parts = path.split("::").map(ToString::to_string);
        let crate_name = parts.next().unwrap_or_default();
        let module = parts.collect();
        Place { crate_name, module }
    }

    fn why_not(from: &str, to: &str) -> Option<String> {
        let roots = [
            root("regall", ""),
            root("regall_sys", "sys"),
            root("regall_ledger", "ledger"),
            root("regall_directory", "directory"),
            root("regall_fuzz (elf)", "fuzz"),
        ];
        let (from, to, line) = (place(from), place(to), 1);
        let table = Table::parse(PAGE).unwrap();
        let arrows = [Arrow { from, to, line }];
        let broken = table.broken(&arrows, &roots);
        broken.into_iter().map(|(_, why)| why).next()
    }

    #[test]
    fn what_the_table_allows_is_allowed() {
        for (from, to) in [
            ("regall_ledger::index", "regall_sys::file"),
            ("regall_ledger::index", "regall_directory::addr"),
            ("regall_ledger", "regall_ledger::index"),
            ("regall::helper", "regall_sys"),
            ("regall_fuzz (elf)", "regall::threads"),
            // The roof may name all.
            ("regall", "regall::helper"),
        ] {
            assert_eq!(why_not(from, to), None, "{from} {to}");
        }
    }

    #[test]
    fn what_it_does_not_allow_is_found() {
        let none = |from, to| why_not(from, to).unwrap();
        let said = none("regall_sys", "regall_ledger");
        assert_eq!(said, "sys may not import ledger");
        let said = none("regall_ledger", "regall_directory::layout");
        assert_eq!(said, "ledger may not import directory");
        let said = none("regall::threads", "regall::helper");
        assert_eq!(said, "threads may not import helper");
        assert_eq!(none("regall::track", "regall_sys"), "track has no row");
    }

    #[test]
    fn a_page_without_the_table_is_refused() {
        assert!(Table::parse("| where | what |").is_err());
        let twice = PAGE.replace("`fuzz/`", "`sys/`");
        assert_eq!(Table::parse(&twice).unwrap_err(), "two rows about sys");
    }
}
