//! The sources as they are: no cycle, and nothing is imported that ARCHITECTURE.md's table does
//! not allow.

use regall_walls::graph;
use regall_walls::house::{self, Root};
use regall_walls::resolve::Arrow;
use regall_walls::table::Table;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// What crates still have; those that are not named have nothing. The numbers may fall, never
/// rise: who makes one fall writes down the new one. (A few more than were found last, for
/// changes that cross.)
const RATCHETS: [Ratchet; 1] = [Ratchet {
    crate_name: "regall",
    modules: 20,
    arrows: 98,
    imports: 0,
}];

struct Ratchet {
    crate_name: &'static str,
    /// Modules in cycles, over all levels.
    modules: usize,
    /// Arrows among them.
    arrows: usize,
    /// Pairs of walls of which one imports the other and may not.
    imports: usize,
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources() -> (Vec<Arrow>, Vec<Root>) {
    let (world, roots) = house::read(&top()).unwrap();
    assert!(world.crates().count() > 9, "crates are missing");
    (world.arrows(), roots)
}

/// Fails above the ratchet, and says where it stands below.
fn hold(crate_name: &str, what: &str, found: usize, most: impl Fn(&Ratchet) -> usize) {
    let ratchet = RATCHETS.iter().find(|r| r.crate_name == crate_name);
    let most = ratchet.map_or(0, most);
    assert!(
        found <= most,
        "{crate_name}: {found} {what}, {most} at the most"
    );
    if found < most {
        println!("{crate_name}: {found} {what}; lower the ratchet from {most}");
    }
}

#[test]
fn no_module_is_in_a_cycle() {
    let (arrows, roots) = sources();
    let all = graph::cycles(&arrows);
    for root in &roots {
        let here = all.iter().filter(|c| c.parent.crate_name == root.name);
        let here: Vec<_> = here.inspect(|c| println!("{c}")).collect();
        let modules = here.iter().map(|c| c.members.len()).sum();
        hold(&root.name, "modules in cycles", modules, |r| r.modules);
        let drawn = here.iter().map(|c| c.arrows.len()).sum();
        hold(&root.name, "arrows in cycles", drawn, |r| r.arrows);
    }
}

#[test]
fn nobody_imports_what_the_table_does_not_allow() {
    let (arrows, roots) = sources();
    let page = std::fs::read_to_string(top().join("ARCHITECTURE.md")).unwrap();
    let table = Table::parse(&page).unwrap();
    let broken = table.broken(&arrows, &roots);
    for root in &roots {
        let here = broken
            .iter()
            .filter(|(a, _)| a.from.crate_name == root.name);
        let here = here.inspect(|(arrow, why)| println!("{why}: {arrow}"));
        let pairs: BTreeSet<&String> = here.map(|(_, why)| why).collect();
        hold(
            &root.name,
            "imports that the table does not allow",
            pairs.len(),
            |r| r.imports,
        );
    }
}
