//! The environment is read by name alone.

use super::*;
use std::collections::BTreeSet;

/// Variables that launchers set, which the shim looks at (SECURITY.md lists them).
const OF_LAUNCHERS: [&str; 14] = [
    "MPI_LOCALNRANKS",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PALS_LOCAL_SIZE",
    "PALS_RANKID",
    "PMIX_RANK",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_JOB_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_STEP_TASKS_PER_NODE",
];

/// Checks the list against what the sources name, and SECURITY.md against the list.
fn of_the_sources() -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    let of_the_shim = [
        "src",
        "sys/src",
        "bridge/src",
        "directory/src",
        "ledger/src",
        "patch/src",
        "settings/src",
        "uverbs/src",
    ];
    let mut folders = of_the_shim.map(|f| build::root().join(f)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("sources").flatten() {
            if entry.path().file_stem().is_some_and(|name| name == "tests") {
                continue;
            }
            if entry.path().is_dir() {
                folders.push(entry.path());
                continue;
            }
            let text = fs::read_to_string(entry.path()).expect("a source");
            for word in ["getenv", "environ"] {
                let uses = text.lines().filter(|l| !l.trim_start().starts_with("//"));
                let uses = uses
                    .filter(|l| l.contains(word) && !l.contains("environment"))
                    .count();
                let place = entry.path().display().to_string();
                assert!(
                    uses == 0 || text.contains("#[cfg(test)]"),
                    "{place} uses {word}"
                );
            }
            for piece in text.split("b\"").skip(1) {
                let name: String = piece
                    .chars()
                    .take_while(|c| c.is_ascii_uppercase() || *c == '_')
                    .collect();
                if name.len() > 3
                    && name.contains('_')
                    && !name.ends_with('_')
                    && !name.starts_with("REGALL")
                {
                    named.insert(name);
                }
            }
        }
    }
    let launchers: BTreeSet<_> = OF_LAUNCHERS.map(str::to_owned).into_iter().collect();
    named.retain(|n| {
        launchers.contains(n)
            || ["OMPI", "PMI", "SLURM", "PALS", "MPI"].contains(&n.split('_').next().unwrap_or(""))
    });
    assert_eq!(
        named, launchers,
        "SECURITY.md and this list go with the sources"
    );
    let text = fs::read_to_string(build::root().join("SECURITY.md")).expect("SECURITY.md");
    for name in OF_LAUNCHERS {
        assert!(text.contains(name), "SECURITY.md does not name {name}");
    }
    launchers
}

/// The paths that hello names in system calls with these variables, but for those with numbers.
fn paths(env: &[(&str, &str)]) -> BTreeSet<String> {
    let trace = tempfile::NamedTempFile::new().expect("a file");
    let mut command = Command::new("strace");
    Mode::Plain.apply(&mut command);
    command.env_remove("LD_PRELOAD");
    command
        .args(["-f", "-e", "trace=file,connect,bind", "-o"])
        .arg(trace.path())
        .arg("env");
    command
        .arg(format!("LD_PRELOAD={}", build::shim().display()))
        .args(["REGALL=1", "REGALL_PIN=populate"]);
    command.args(env.iter().map(|(name, value)| format!("{name}={value}")));
    let done = child::run(command.arg(build::program("hello")), TIMEOUT);
    assert_eq!(done.end(), "exit 7", "{}", done.stderr);
    assert_eq!(done.regall_lines(), [""; 0], "{env:?}");
    let text = fs::read_to_string(trace.path()).expect("a trace");
    let behind_exec = text
        .rsplit_once("execve(")
        .map_or("", |(_, rest)| rest)
        .to_owned();
    let quoted: BTreeSet<_> = behind_exec
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    // Names of this process in /proc and /dev/shm are its pid's.
    quoted
        .into_iter()
        .filter(|p| !p.contains(|c: char| c.is_ascii_digit()))
        .collect::<BTreeSet<_>>()
}

/// What the sources name in byte strings that could be a variable, and no other.
#[test]
fn the_environment_is_read_by_name_alone() {
    let row = Row::begin(PART, "variables: those that are named, and no other");
    let launchers = of_the_sources();
    // From outside: which files are touched does not depend on any other variable, and
    // nonsense from a launcher changes nothing.
    if regall_tests::missing("strace") {
        return row.skipped("no strace");
    }
    let usual = paths(&[]);
    assert!(usual.iter().any(|p| p == "/proc/self/maps"), "{usual:?}");
    let evil = "/nowhere/evil";
    let others = [
        "HOME",
        "TMPDIR",
        "TMP",
        "TEMP",
        "PWD",
        "SHELL",
        "USER",
        "LOGNAME",
        "XDG_RUNTIME_DIR",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "LANG",
        "LC_ALL",
        "MALLOC_TRACE",
        "GCONV_PATH",
        "NLSPATH",
        "RUST_LOG",
        "RUST_BACKTRACE",
        "DEBUG",
        "IBV_FORK_SAFE",
        "RDMAV_FORK_SAFE",
        "KNEM_DEVICE",
        "SHM_DIR",
        "REGAL_LOG_FILE",
        "XREGALL_LOG_FILE",
        "regall_LOG_FILE",
        "LD_BIND_NOW",
        "DISPLAY",
        "SSH_AUTH_SOCK",
    ];
    let set: Vec<_> = others.iter().map(|name| (*name, evil)).collect();
    assert_eq!(paths(&set), usual, "variables that are none of the shim's");
    // A rank asks whether its peers need a helper.
    let asked = ["/proc/self/uid_map", "/proc/sys/kernel/yama/ptrace_scope"].map(str::to_owned);
    let rank: BTreeSet<_> = usual.iter().cloned().chain(asked).collect();
    for nonsense in [
        "",
        "x",
        "-1",
        "0",
        "99999999999999999999999",
        "4(x2),%n%s",
        evil,
    ] {
        let set: Vec<_> = OF_LAUNCHERS.iter().map(|name| (*name, nonsense)).collect();
        let named = match nonsense {
            "0" => &rank,
            _ => &usual,
        };
        assert_eq!(&paths(&set), named, "launchers' variables are {nonsense:?}");
    }
    row.passed(format!(
        "{} of launchers; {} others make no difference",
        launchers.len(),
        others.len()
    ));
}
