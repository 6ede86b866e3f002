//! Prints what the plan's test sees: cycles, and imports that the table does not allow.

use regall_walls::table::Table;
use regall_walls::{graph, house};
use std::path::Path;

fn main() -> Result<(), String> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (world, roots) = house::read(&top)?;
    let arrows = world.arrows();
    for cycle in graph::cycles(&arrows) {
        println!("{cycle}");
    }
    let page = std::fs::read_to_string(top.join("ARCHITECTURE.md")).map_err(|e| e.to_string())?;
    for (arrow, why) in Table::parse(&page)?.broken(&arrows, &roots) {
        println!("{why}: {arrow}");
    }
    Ok(())
}
