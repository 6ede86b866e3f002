//! The workspace: its crates, found from their manifests.

use crate::resolve::World;
use crate::source::{self, Crate};
use std::fs;
use std::path::{Path, PathBuf};

/// A crate's root file, and where it belongs.
#[derive(Clone, Debug)]
pub struct Root {
    /// The name by which others import it; for programs and tests one that nobody imports.
    pub name: String,
    /// The folder of its package, from the workspace's on; empty for the shim's.
    pub folder: String,
    /// Its root file.
    pub file: PathBuf,
}

/// Reads all crates of the workspace in the folder `top`: libraries, programs, tests, examples
/// and fuzz targets.
///
/// # Errors
/// A file that can't be read or parsed, in words.
pub fn read(top: &Path) -> Result<(World, Vec<Root>), String> {
    let roots = roots(top)?;
    let read = |r: &Root| source::read(&r.name, &r.file);
    let crates: Result<Vec<Crate>, String> = roots.iter().map(read).collect();
    Ok((World::new(crates?), roots))
}

/// The root files of all crates.
///
/// # Errors
/// A manifest that can't be read.
pub fn roots(top: &Path) -> Result<Vec<Root>, String> {
    let manifest = text(&top.join("Cargo.toml"))?;
    let members = ["members", "exclude"].map(|key| strings_of(&manifest, key));
    let mut roots = Vec::new();
    for folder in members.into_iter().flatten() {
        let folder = if folder == "." { "" } else { folder.as_str() };
        roots.extend(of_package(top, folder)?);
    }
    Ok(roots)
}

fn of_package(top: &Path, folder: &str) -> Result<Vec<Root>, String> {
    let home = top.join(folder);
    let manifest = text(&home.join("Cargo.toml"))?;
    let (_, package) = manifest
        .split_once("[package]")
        .ok_or(format!("{folder}: no package"))?;
    let name = value_of(package, "name").ok_or(format!("{folder}: a package without a name"))?;
    let workspace = text(&top.join("Cargo.toml"))?;
    let name = imported_as(&workspace, &name).replace('-', "_");
    let mut roots = Vec::new();
    let mut add = |name: String, file: PathBuf| {
        if file.exists() && !roots.iter().any(|r: &Root| r.file == file) {
            let folder = folder.to_string();
            roots.push(Root { name, folder, file });
        }
    };
    add(name.clone(), home.join("src/lib.rs"));
    add(format!("{name} (program)"), home.join("src/main.rs"));
    let paths = manifest.lines().filter_map(|l| value_of(l, "path"));
    // (A folder is a dependency; what lies outside is another package's.)
    let here = paths.filter(|p| p.ends_with(".rs") && !p.starts_with(".."));
    let mut files: Vec<PathBuf> = here.map(|p| home.join(p)).collect();
    if !folder.is_empty() {
        files.extend(sources_in(&home.join("tests")));
        files.extend(sources_in(&home.join("examples")));
    }
    for file in files {
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        add(format!("{name} ({stem})"), file.clone());
    }
    Ok(roots)
}

/// The name by which a package is imported: another one, if the shim's dependencies say so.
fn imported_as(workspace: &str, package: &str) -> String {
    let asked = format!("package = \"{package}\"");
    let mut lines = workspace.lines().filter(|l| l.contains(&asked));
    let renamed = lines.find_map(|l| l.split_once(" = {"));
    renamed.map_or(package, |(key, _)| key).to_string()
}

fn sources_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|e| e.path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "rs"));
    files.sort();
    files
}

fn text(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))
}

/// The string that a key has in a manifest, on the first line that begins with it.
fn value_of(manifest: &str, key: &str) -> Option<String> {
    let rest = |line: &str| {
        Some(
            line.strip_prefix(key)?
                .trim_start()
                .strip_prefix('=')?
                .trim()
                .to_string(),
        )
    };
    let value = manifest.lines().find_map(rest)?;
    Some(value.strip_prefix('"')?.split('"').next()?.to_string())
}

/// The strings of a list in a manifest.
fn strings_of(manifest: &str, key: &str) -> Vec<String> {
    let start = format!("\n{key} = [");
    let Some((_, rest)) = manifest.split_once(&start) else {
        return Vec::new();
    };
    let list = rest.split(']').next().unwrap_or_default();
    let quoted = list.split('"').skip(1).step_by(2);
    quoted.map(ToString::to_string).collect()
}
