//! Which module a path leads to.

use crate::source::{Crate, ModulePath, Named};
use std::collections::BTreeMap;
use std::fmt;

/// A module of some crate of the workspace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The crate's name.
    pub crate_name: String,
    /// The module in it.
    pub module: ModulePath,
}

/// One module names another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Arrow {
    /// Who names,
    pub from: Place,
    /// whom,
    pub to: Place,
    /// in which line of its file.
    pub line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.crate_name)?;
        self.module.iter().try_for_each(|m| write!(f, "::{m}"))
    }
}

impl fmt::Display for Arrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, to, line } = self;
        write!(f, "{from} names {to} in line {line}")
    }
}

/// The crates of the workspace, by the names that paths have for them.
pub struct World {
    crates: BTreeMap<String, Crate>,
}

/// Re-exports that lead on to each other without end are cut after so many.
const HOPS: usize = 32;

impl World {
    /// Of these crates.
    pub fn new(crates: Vec<Crate>) -> Self {
        let by_name = |c: Crate| (c.name.clone(), c);
        Self {
            crates: crates.into_iter().map(by_name).collect(),
        }
    }

    /// The crates.
    pub fn crates(&self) -> impl Iterator<Item = &Crate> {
        self.crates.values()
    }

    /// All arrows between different modules, each with the first line that draws it.
    pub fn arrows(&self) -> Vec<Arrow> {
        let mut first: BTreeMap<(Place, Place), usize> = BTreeMap::new();
        for (from, named) in self.all_named() {
            for to in self.visited(&from, &named.path) {
                let lines = first.entry((from.clone(), to)).or_insert(named.line);
                *lines = named.line.min(*lines);
            }
        }
        let arrow = |((from, to), line)| Arrow { from, to, line };
        let drawn = first.into_iter().map(arrow);
        drawn.filter(|a| a.from != a.to).collect()
    }

    fn all_named(&self) -> impl Iterator<Item = (Place, &Named)> {
        self.crates.values().flat_map(|c| {
            let own = c.modules.iter().filter(|(_, module)| !module.borrowed);
            own.flat_map(|(path, module)| {
                let from = Place {
                    crate_name: c.name.clone(),
                    module: path.clone(),
                };
                let all = module.named.iter();
                let all = all.chain(module.imports.values()).chain(&module.globs);
                all.map(move |named| (from.clone(), named))
            })
        })
    }

    /// The modules that `path`, named in `from`, leads to: the one that defines what it names,
    /// and those that re-export it on the way.
    pub fn visited(&self, from: &Place, path: &[String]) -> Vec<Place> {
        let mut seen = Vec::new();
        self.follow(from, path, HOPS, &mut seen);
        seen
    }

    /// Follows a path from its first segment. Where it ends, if that is in one of our crates.
    fn follow(
        &self,
        from: &Place,
        path: &[String],
        hops: usize,
        seen: &mut Vec<Place>,
    ) -> Option<End> {
        let (first, rest) = path.split_first()?;
        let mut at = from.clone();
        match first.as_str() {
            "crate" => at.module.clear(),
            "self" => (),
            "super" => drop(at.module.pop()),
            name => match self.step(&at, name, hops) {
                Some(Step::Into(End { at, item: false })) => {
                    return Some(self.descend(at, rest, hops, seen));
                }
                Some(Step::Into(end)) => {
                    seen.push(end.at.clone());
                    return Some(end);
                }
                Some(Step::Here) => return None,
                // (A lone name is a variable's, or made known by `use`.)
                None if !rest.is_empty() && self.crates.contains_key(name) => {
                    at.crate_name = name.to_string();
                    at.module.clear();
                }
                None => return None,
            },
        }
        Some(self.descend(at, rest, hops, seen))
    }

    /// Follows the segments that are left from the module `at` on.
    fn descend(&self, mut at: Place, rest: &[String], hops: usize, seen: &mut Vec<Place>) -> End {
        for (n, name) in rest.iter().enumerate() {
            if name == "super" {
                at.module.pop();
                continue;
            }
            let item = true;
            match self.step(&at, name, hops) {
                Some(Step::Into(to)) if self.is_child(&at, &to) => at = to.at,
                Some(Step::Into(to)) => {
                    // A re-export: who names it needs the module that re-exports it, too.
                    seen.push(at);
                    if !to.item {
                        return self.descend(to.at, &rest[n + 1..], hops, seen);
                    }
                    seen.push(to.at.clone());
                    return to;
                }
                // What nobody defines here is made by a macro.
                Some(Step::Here) | None => {
                    seen.push(at.clone());
                    return End { at, item };
                }
            }
        }
        seen.push(at.clone());
        End { at, item: false }
    }

    fn is_child(&self, parent: &Place, of: &End) -> bool {
        let (below, above) = (&of.at.module, &parent.module);
        !of.item
            && parent.crate_name == of.at.crate_name
            && below.len() == above.len() + 1
            && below.starts_with(above)
    }

    /// What `name` is in the scope of the module `at`.
    fn step(&self, at: &Place, name: &str, hops: usize) -> Option<Step> {
        let hops = hops.checked_sub(1)?;
        let krate = self.crates.get(&at.crate_name)?;
        let module = krate.modules.get(&at.module)?;
        let mut child = at.clone();
        child.module.push(name.to_string());
        if krate.modules.contains_key(&child.module) {
            let (at, item) = (child, false);
            return Some(Step::Into(End { at, item }));
        }
        if module.items.contains(name) {
            return Some(Step::Here);
        }
        if let Some(import) = module.imports.get(name) {
            // `use libc;` names itself.
            if import.path.len() == 1 && import.path[0] == name {
                return None;
            }
            let to = self.follow(at, &import.path, hops, &mut Vec::new());
            return Some(to.map_or(Step::Here, Step::Into));
        }
        for glob in &module.globs {
            let of = self.follow(at, &glob.path, hops, &mut Vec::new());
            let Some(of) = of.filter(|of| of.at != *at).map(|of| of.at) else {
                continue;
            };
            match self.step(&of, name, hops) {
                Some(Step::Here) => return Some(Step::Into(End { at: of, item: true })),
                Some(into) => return Some(into),
                None => (),
            }
        }
        None
    }
}

/// Where a path ends: at a module, or at an item of it.
struct End {
    at: Place,
    item: bool,
}

/// Where a name leads.
enum Step {
    /// To a module or an item that is defined elsewhere, or a child module.
    Into(End),
    /// Nowhere else: it is an item of the module, or of a crate that is not ours.
    Here,
}
