//! The harness: runs programs with and without the shim and looks at them from
//! outside. It shares no code with the shim, the directory crate or the command
//! line; what it knows of them is their documented output.

pub mod apart;
pub mod beside;
pub mod build;
pub mod child;
pub mod coverage;
pub mod dashboard;
pub mod devices;
pub mod differ;
pub mod figures;
pub mod filter;
pub mod fits;
pub mod guest;
pub mod installed;
pub mod many;
pub mod mode;
pub mod onlooker;
pub mod procfs;
pub mod quiet;
pub mod rows;
pub mod screen;
pub mod sequence;
pub mod slurm;
pub mod soak;
pub mod truth;
pub mod unittest;

/// Whether a test may take its time: in `make test-all` and `make soak`. In `make test` it makes a
/// few of its rounds.
pub fn thorough() -> bool {
    std::env::var("NEXTEST_PROFILE").is_ok_and(|profile| profile != "default")
}

/// Returns the number that a variable of the environment has: TESTS_SEED, say.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Prints why a test is not run; scripts/run-tests counts these lines.
pub fn skip(reason: &str) {
    println!("SKIPPED: {reason}");
    note("TESTS_SKIPS", reason);
}

/// Prints what is tried again; scripts/run-tests shows it in its last lines.
pub fn again(what: &str) {
    println!("TRIED AGAIN: {what}");
    note("TESTS_AGAIN", what);
}

/// Leaves a line of this test's in the folder that a variable names, if it does.
fn note(variable: &str, text: &str) {
    let Some(folder) = std::env::var_os(variable) else {
        return;
    };
    let name = std::thread::current()
        .name()
        .unwrap_or("?")
        .replace(':', "_");
    let line = format!("{}: {text}\n", name.replace("__", "::"));
    let _ = std::fs::write(std::path::Path::new(&folder).join(name), line);
}

/// Notes how long something took, as scripts/timed does.
pub fn stage(name: &str, took: std::time::Duration) {
    if let Some(file) = std::env::var_os("TESTS_STAGES") {
        let line = format!("{name}\t{:.1}\n", took.as_secs_f64());
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file);
        let _ = file.and_then(|mut file| std::io::Write::write_all(&mut file, line.as_bytes()));
    }
}

/// Whether `command` is missing; if so, says that the test is skipped for it.
pub fn missing(command: &str) -> bool {
    let missing = !build::have(command);
    if missing {
        skip(&format!("{command} is not installed"));
    }
    missing
}
