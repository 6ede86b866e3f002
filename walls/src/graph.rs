//! Arrows between siblings, and cycles among them.

use crate::resolve::{Arrow, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What a folder's own file (`mod.rs`, `lib.rs`) is called among what is in the folder.
pub const OWN_FILE: &str = "mod.rs";

/// Modules that reach each other, all children of the same one, which may be one of them
/// ([`OWN_FILE`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// The parent of them all.
    pub parent: Place,
    /// Their names.
    pub members: BTreeSet<String>,
    /// The arrows among them, each with one line that draws it.
    pub arrows: Vec<Drawn>,
}

/// An arrow between two siblings, and one between modules in them that draws it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// The sibling that names,
    pub from: String,
    /// the one that is named,
    pub to: String,
    /// and where that is written down.
    pub by: Arrow,
}

/// Returns all cycles, of every crate and at every level. Seen from outside, a folder is one module
/// together with what is in it; within, its own file is a module beside the others.
pub fn cycles(arrows: &[Arrow]) -> Vec<Cycle> {
    of_levels(arrows, |_| true)
}

/// Returns the cycles that a folder's own file has no part in.
pub fn cycles_of_siblings(arrows: &[Arrow]) -> Vec<Cycle> {
    of_levels(arrows, |name| name != OWN_FILE)
}

/// Returns the cycles among those modules of each folder whose names `counts` accepts.
fn of_levels(arrows: &[Arrow], counts: impl Fn(&str) -> bool) -> Vec<Cycle> {
    let mut levels: BTreeMap<Place, Vec<Drawn>> = BTreeMap::new();
    for arrow in arrows {
        let drawn = siblings(arrow).filter(|(_, from, to)| counts(from) && counts(to));
        if let Some((parent, from, to)) = drawn {
            let level = levels.entry(parent).or_default();
            if !level.iter().any(|d| d.from == from && d.to == to) {
                let by = arrow.clone();
                level.push(Drawn { from, to, by });
            }
        }
    }
    let found = levels.into_iter();
    found.flat_map(|(p, drawn)| of_level(&p, &drawn)).collect()
}

/// Returns the nearest common ancestor, and the modules in it from one of which to the other it leads.
fn siblings(arrow: &Arrow) -> Option<(Place, String, String)> {
    let (from, to) = (&arrow.from, &arrow.to);
    if from.crate_name != to.crate_name {
        return None;
    }
    let same = from.module.iter().zip(&to.module);
    let common = same.take_while(|(a, b)| a == b).count();
    let parent = Place {
        crate_name: from.crate_name.clone(),
        module: from.module[..common].to_vec(),
    };
    let name = |place: &Place| {
        let below = place.module.get(common);
        below.map_or(OWN_FILE.to_owned(), Clone::clone)
    };
    Some((parent, name(from), name(to)))
}

fn of_level(parent: &Place, drawn: &[Drawn]) -> Vec<Cycle> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for d in drawn {
        next.entry(&d.from).or_default().insert(&d.to);
        next.entry(&d.to).or_default();
    }
    // Few modules: whom each reaches is found one by one.
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|m| (*m, reached(m, &next))).collect();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    let mut cycles = Vec::new();
    for (module, reaches) in &reach {
        if !reaches.contains(module) || done.contains(module) {
            continue;
        }
        let back = |other: &&&str| reach[**other].contains(module);
        let members: BTreeSet<&str> = reaches.iter().filter(back).copied().collect();
        done.extend(&members);
        let within = |d: &&Drawn| members.contains(&*d.from) && members.contains(&*d.to);
        cycles.push(Cycle {
            parent: parent.clone(),
            members: members.iter().map(ToString::to_string).collect(),
            arrows: drawn.iter().filter(within).cloned().collect(),
        });
    }
    cycles
}

fn reached<'a>(from: &str, next: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut left: Vec<&str> = next[from].iter().copied().collect();
    while let Some(module) = left.pop() {
        if found.insert(module) {
            left.extend(&next[module]);
        }
    }
    found
}

impl Cycle {
    /// Returns what a list of exceptions has of it: the folder, and its number of modules.
    pub fn summary(&self) -> String {
        format!("{} {}", self.parent, self.members.len())
    }
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (modules, arrows) = (self.members.len(), self.arrows.len());
        let names: Vec<&str> = self.members.iter().map(String::as_str).collect();
        let names = names.join(" ");
        let parent = &self.parent;
        write!(
            f,
            "{parent}: a cycle of {modules} modules, {arrows} arrows: {names}"
        )?;
        for Drawn { from, to, by } in &self.arrows {
            write!(f, "\n  {from} -> {to}: {by}")?;
        }
        Ok(())
    }
}
