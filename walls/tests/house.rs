//! The sources as they are: no cycle, nothing is imported that ARCHITECTURE.md's table does not
//! allow, and no system call is made outside of `sys`.

use regall_walls::graph::Cycle;
use regall_walls::house::{self, Root};
use regall_walls::resolve::Arrow;
use regall_walls::table::Table;
use regall_walls::{graph, kernel};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources() -> (Vec<Arrow>, Vec<Root>) {
    let (world, roots) = house::read(&top()).unwrap();
    assert!(world.crates().count() > 9, "crates are missing");
    let arrows = world.arrows();
    // By the name that its imports have, which is not its package's.
    let to_sys = |a: &&Arrow| a.to.crate_name == "regall_sys";
    assert!(
        arrows.iter().filter(to_sys).count() > 9,
        "imports of sys are missing"
    );
    (arrows, roots)
}

fn none_of(cycles: &[Cycle]) {
    for cycle in cycles {
        println!("{cycle}");
    }
    assert!(cycles.is_empty(), "{} cycles", cycles.len());
}

#[test]
fn no_module_is_in_a_cycle() {
    let (arrows, _) = sources();
    none_of(&graph::cycles_of_siblings(&arrows));
    // With a folder's own file there are some still. A cycle that has become smaller, or has gone,
    // does so in the list, too.
    let list = std::fs::read_to_string(top().join("walls/cycles.txt")).unwrap();
    let (listed, found): (BTreeSet<&str>, _) = (list.lines().collect(), graph::cycles(&arrows));
    let (known, new): (Vec<_>, Vec<_>) = found
        .into_iter()
        .partition(|cycle| listed.contains(&*cycle.summary()));
    none_of(&new);
    let known: BTreeSet<String> = known.iter().map(Cycle::summary).collect();
    let gone: Vec<_> = listed
        .iter()
        .filter(|line| !known.contains(**line))
        .collect();
    assert!(gone.is_empty(), "no such cycle: {gone:?}");
}

#[test]
fn nobody_imports_what_the_table_does_not_allow() {
    let (arrows, roots) = sources();
    let page = std::fs::read_to_string(top().join("ARCHITECTURE.md")).unwrap();
    let broken = Table::parse(&page).unwrap().broken(&arrows, &roots);
    for (arrow, why) in &broken {
        println!("{why}: {arrow}");
    }
    assert!(broken.is_empty(), "{} imports", broken.len());
}

#[test]
fn only_sys_enters_the_kernel() {
    let strays = kernel::strays(&top(), &house::roots(&top()).unwrap()).unwrap();
    for stray in &strays {
        println!("{stray}");
    }
    assert!(strays.is_empty(), "{} system calls", strays.len());
}
