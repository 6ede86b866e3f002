// What a build calls itself; shared by the build scripts of the shim and of the
// command. REGALL_VERSION is "0.1.0 (1234567890ab)": the version, and the commit, with a
// + if sources differ from it. REGALL_DATE is that of the commit, for the man pages.
// Nothing of this depends on when or by whom it is built; SOURCE_DATE_EPOCH wins.

use std::path::Path;
use std::process::Command;

/// What the two are made of, and what they are built by.
const SOURCES: &[&str] = &[
    "src",
    "sys",
    "bridge",
    "directory",
    "ledger",
    "uverbs",
    "patch",
    "settings",
    "beside",
    "reader",
    "documents",
    "checking",
    "cli",
    "include",
    "docs/variables.md",
    "build.rs",
    "stamp.rs",
    "Cargo.toml",
    "Cargo.lock",
];

/// Tells cargo; `top` is the top of the tree as seen from the package.
fn stamp(top: &str) {
    let version = std::env::var("CARGO_PKG_VERSION").expect("cargo's version");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    for path in SOURCES {
        println!("cargo:rerun-if-changed={top}/{path}");
    }
    let commit = commit(top).or_else(|| noted(top));
    let label = match &commit {
        Some((commit, _)) => format!("{version} ({commit})"),
        None => version,
    };
    let epoch = std::env::var("SOURCE_DATE_EPOCH").ok();
    let seconds = epoch.or(commit.map(|(_, at)| at));
    let date = seconds.and_then(|s| Some(date(s.trim().parse().ok()?)));
    println!("cargo:rustc-env=REGALL_VERSION={label}");
    println!("cargo:rustc-env=REGALL_DATE={}", date.unwrap_or_default());
}

/// The same of a source archive, which has it in a file (scripts/make-dist).
fn noted(top: &str) -> Option<(String, String)> {
    let text = std::fs::read_to_string(Path::new(top).join(".commit")).ok()?;
    let (name, at) = text.trim().split_once(' ')?;
    Some((name.to_string(), at.to_string()))
}

/// The commit and its time, if the tree is one of git's and not just inside of one.
fn commit(top: &str) -> Option<(String, String)> {
    let found = git(top, &["rev-parse", "--show-toplevel"])?;
    let same = Path::new(&found).canonicalize().ok()? == Path::new(top).canonicalize().ok()?;
    if !same {
        return None;
    }
    // This changes whenever HEAD does.
    if let Some(log) = git(top, &["rev-parse", "--git-path", "logs/HEAD"]) {
        let path = Path::new(top).join(log);
        if path.exists() {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    let name = git(top, &["describe", "--tags", "--always", "--abbrev=12"])?;
    let at = git(top, &["log", "-1", "--format=%ct"])?;
    let changed = git(
        top,
        &[&["diff", "--name-only", "HEAD", "--"][..], SOURCES].concat(),
    );
    let plus = if changed.is_none_or(|c| c.is_empty()) {
        ""
    } else {
        "+"
    };
    Some((format!("{name}{plus}"), at))
}

fn git(top: &str, arguments: &[&str]) -> Option<String> {
    let done = Command::new("git")
        .args(["-C", top])
        .args(arguments)
        .output()
        .ok()?;
    let said = String::from_utf8(done.stdout).ok()?;
    done.status.success().then(|| said.trim().to_string())
}

/// The day of a time in seconds since 1970, UTC: 2026-11-22.
fn date(seconds: i64) -> String {
    let days = seconds.div_euclid(86_400);
    // Years that begin in March, in cycles of 400 years.
    let (days, mut year) = (
        (days + 719_468).rem_euclid(146_097),
        (days + 719_468).div_euclid(146_097) * 400,
    );
    let of_cycle = (days - days / 1_460 + days / 36_524 - days / 146_096) / 365;
    let day = days - (365 * of_cycle + of_cycle / 4 - of_cycle / 100);
    let month = (5 * day + 2) / 153;
    year += of_cycle + i64::from(month >= 10);
    let of_month = day - (153 * month + 2) / 5 + 1;
    format!("{year:04}-{:02}-{of_month:02}", (month + 2) % 12 + 1)
}
