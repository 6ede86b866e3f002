//! Wrong versions of the shim's lines: the table names each, and the library that is installed has
//! nothing of them. `make planted` has each of them noticed.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regall_tests::build;

/// A name and a file of tests/planted.txt.
fn table() -> BTreeSet<(String, String)> {
    let text = fs::read_to_string(build::root().join("tests/planted.txt")).expect("the table");
    let rows = text
        .lines()
        .filter(|l| !l.is_empty() && !l.starts_with('#'));
    let cells = rows.map(|row| row.split('|').map(str::trim).collect::<Vec<_>>());
    cells
        .map(|cells| {
            assert_eq!(cells.len(), 4, "{cells:?}");
            assert!(cells.iter().all(|cell| !cell.is_empty()), "{cells:?}");
            (cells[0].to_owned(), cells[1].to_owned())
        })
        .collect()
}

/// Adds the names that are planted in the sources below `folder`.
fn planted_in(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            planted_in(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = fs::read_to_string(&path).expect("a source");
            let file = path.strip_prefix(build::root()).expect("ours");
            let names = text.split("planted!(").skip(1);
            let names =
                names.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next());
            let file = file.display().to_string();
            found.extend(names.map(|name| (name.to_owned(), file.clone())));
        }
    }
}

fn planted() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let crates = [
        "src",
        "sys/src",
        "directory/src",
        "ledger/src",
        "patch/src",
        "bridge/src",
        "uverbs/src",
    ];
    for folder in crates {
        planted_in(&build::root().join(folder), &mut found);
    }
    found
}

#[test]
fn the_table_is_of_the_sources() {
    let (table, sources) = (table(), planted());
    let unique: BTreeSet<_> = sources.iter().cloned().collect();
    assert_eq!(
        unique.len(),
        sources.len(),
        "one is planted twice: {sources:?}"
    );
    assert_eq!(table, unique);
    assert!(table.len() > 40, "{}", table.len());
}

/// Returns the number by which the shim knows a name (directory/src/planted.rs), as code has it.
fn number(name: &str) -> [u8; 8] {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    name.bytes().fold(0xcbf2_9ce4_8422_2325, step).to_le_bytes()
}

#[test]
fn the_library_has_none_of_them() {
    build::build_planted();
    let mut all: BTreeSet<_> = table().iter().map(|(name, _)| number(name)).collect();
    // The variable's name.
    all.insert(*b"TESTS_PL");
    let found = |file: &Path| {
        let library = fs::read(file).expect("the library");
        let words = library.windows(8).filter_map(|w| all.get(w));
        words.collect::<BTreeSet<_>>().len()
    };
    let (installed, broken) = (found(&build::shim()), found(&build::planted()));
    assert_eq!((installed, broken), (0, all.len()));
}
