//! Ground truth: strace says of each memory call of a process tree where it was
//! made. After a process's start-up each must have been made by libregall.so.
//!
//! Start-up ends at the first memory call that libregall.so makes: it runs
//! before every other constructor (`-z initfirst`), so what comes before is
//! ld.so's loading of libraries. A thread or forked child begins where its
//! parent was; exec begins anew.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::child::{self, Outcome};
use crate::mode::Mode;

/// The calls that are looked at.
pub const MEMORY: &[&str] = &[
    "mmap",
    "munmap",
    "mremap",
    "mprotect",
    "pkey_mprotect",
    "brk",
    "madvise",
    "shmat",
    "shmdt",
    "remap_file_pages",
    "mlock",
    "mlock2",
    "munlock",
    "mlockall",
    "munlockall",
    "process_madvise",
];
const FAMILY: &[&str] = &["execve", "clone", "clone3", "fork", "vfork"];

/// What one traced process tree did.
#[derive(Debug, Default)]
pub struct Truth {
    /// Memory calls after start-up, by name.
    pub calls: BTreeMap<String, usize>,
    /// Those that did not come from libregall.so: the call and its top frame.
    pub missed: Vec<String>,
    /// Executables in which libregall.so never made a call, each once.
    pub never_active: Vec<String>,
    /// Executables in which it did.
    pub active: Vec<String>,
}

impl Truth {
    /// All memory calls after start-up.
    pub fn total(&self) -> usize {
        self.calls.values().sum()
    }
}

/// Runs `command` in `mode` under strace. What strace itself says goes to files.
pub fn trace(
    command: &[&str],
    env: &[(&str, &str)],
    mode: Mode,
    timeout: Duration,
) -> (Outcome, Truth) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let calls = [MEMORY, FAMILY].concat().join(",");
    let mut strace = Command::new("strace");
    strace
        .args(["-ff", "-k", "-q", "-o"])
        .arg(folder.path().join("t"));
    strace.arg(format!("--trace={calls}")).arg("--signal=none");
    // The shim is for the program, not for strace.
    let mut inner = Command::new("true");
    mode.apply(&mut inner);
    for (name, value) in inner
        .get_envs()
        .chain(env.iter().map(|(n, v)| (n.as_ref(), Some(v.as_ref()))))
    {
        let name = name.to_str().expect("a name");
        match value {
            Some(value) => strace.arg(format!("--env={name}={}", value.to_str().expect("a value"))),
            None => strace.arg(format!("--env={name}")),
        };
    }
    let outcome = child::run(strace.args(command), timeout);
    let truth = read(folder.path());
    if let Some(keep) = std::env::var_os("TESTS_KEEP") {
        let _ = Command::new("cp")
            .arg("-r")
            .arg(folder.path())
            .arg(keep)
            .status();
    }
    (outcome, truth)
}

/// A line of a trace with the place it was made from.
struct Event {
    name: String,
    text: String,
    /// The call's return value, if it is a number and not negative.
    result: Option<u64>,
    top: String,
}

fn events(text: &str) -> Vec<Event> {
    let mut all: Vec<Event> = Vec::new();
    let mut fresh = false;
    for line in text.lines() {
        if let Some(frame) = line.strip_prefix(" > ") {
            if let (true, Some(last)) = (fresh, all.last_mut()) {
                last.top = frame.to_owned();
            }
            fresh = false;
            continue;
        }
        fresh = false;
        let Some((name, _)) = line.split_once('(') else {
            continue;
        };
        if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            continue;
        }
        let result = line
            .rsplit_once(" = ")
            .and_then(|(_, r)| r.split(' ').next()?.parse().ok());
        all.push(Event {
            name: name.into(),
            text: line.into(),
            result,
            top: String::new(),
        });
        fresh = true;
    }
    all
}

/// Reads the files `t.PID` of a traced tree.
pub fn read(folder: &Path) -> Truth {
    let mut files: HashMap<u64, Vec<Event>> = HashMap::new();
    for entry in fs::read_dir(folder).expect("traces").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix("t.").and_then(|p| p.parse().ok()) else {
            continue;
        };
        let text = fs::read(entry.path()).expect("a trace");
        files.insert(pid, events(&String::from_utf8_lossy(&text)));
    }
    let born: Vec<u64> = files
        .values()
        .flatten()
        .filter(|e| is_birth(e))
        .filter_map(|e| e.result)
        .collect();
    let roots: Vec<u64> = files
        .keys()
        .copied()
        .filter(|p| !born.contains(p))
        .collect();
    let mut truth = Truth::default();
    let mut seen = BTreeMap::new();
    for root in roots {
        follow(
            root,
            &files,
            State {
                active: false,
                exe: "?".into(),
            },
            &mut truth,
            &mut seen,
        );
    }
    for (exe, active) in seen {
        if active {
            truth.active.push(exe)
        } else {
            truth.never_active.push(exe)
        }
    }
    truth
}

fn is_birth(event: &Event) -> bool {
    event.name.starts_with("clone") || event.name.ends_with("fork")
}

#[derive(Clone)]
struct State {
    active: bool,
    exe: String,
}

fn follow(
    pid: u64,
    files: &HashMap<u64, Vec<Event>>,
    mut state: State,
    truth: &mut Truth,
    seen: &mut BTreeMap<String, bool>,
) {
    let Some(events) = files.get(&pid) else {
        return;
    };
    for event in events {
        if event.name == "execve" {
            if event.result == Some(0) {
                let exe = event.text.split('"').nth(1).unwrap_or("?");
                state = State {
                    active: false,
                    exe: exe.into(),
                };
                seen.entry(state.exe.clone()).or_default();
            }
        } else if is_birth(event) {
            if let Some(child) = event.result {
                follow(child, files, state.clone(), truth, seen);
            }
        } else if MEMORY.contains(&event.name.as_str()) {
            let ours = event.top.contains("libregall.so(") || event.top.contains("libregall.so [");
            if ours && !state.active {
                state.active = true;
                seen.insert(state.exe.clone(), true);
            }
            if state.active && !event.text.ends_with("= ?") {
                *truth.calls.entry(event.name.clone()).or_default() += 1;
                if !ours {
                    truth.missed.push(format!(
                        "{} {pid}: {} from {}",
                        state.exe, event.text, event.top
                    ));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "execve(\"/bin/x\", [\"x\"], 0x7f /* 3 vars */) = 0\n\
        mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 3, 0) = 0x7f0000000000\n > /usr/lib/ld-linux-x86-64.so.2(mmap+0x1) [0x2]\n";
    const OURS: &str = "mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, -1, 0) = 0x7f0000001000\n\
        \x20> /x/libregall.so(hook+0x12) [0x345]\n > unexpected_backtracing_error [0x0]\n";
    const MISSED: &str =
        "munmap(0x7f0000001000, 8192) = 0\n > /usr/lib/libc.so.6(munmap+0x7) [0x10]\n";

    fn of(files: &[(&str, &[&str])]) -> Truth {
        let folder = tempfile::tempdir().unwrap();
        for (name, parts) in files {
            fs::write(folder.path().join(name), parts.concat()).unwrap();
        }
        read(folder.path())
    }

    #[test]
    fn a_missed_call_is_found() {
        let truth = of(&[("t.10", &[START, OURS, MISSED, OURS])]);
        assert_eq!((truth.total(), truth.missed.len()), (3, 1));
        assert_eq!(truth.active, ["/bin/x"]);
    }

    #[test]
    fn start_up_does_not_count() {
        let truth = of(&[("t.10", &[START, OURS, OURS])]);
        assert_eq!((truth.total(), truth.missed.len()), (2, 0));
    }

    #[test]
    fn a_program_without_the_shim_is_named() {
        let truth = of(&[("t.10", &[START, MISSED])]);
        assert_eq!((truth.total(), truth.never_active.len()), (0, 1));
    }

    #[test]
    fn children_go_on_where_their_parent_was() {
        let birth = "clone(child_stack=NULL, flags=SIGCHLD) = 11\n > /usr/lib/libc.so.6(_Fork+0x7) [0x10]\n";
        let truth = of(&[("t.10", &[START, OURS, birth]), ("t.11", &[MISSED])]);
        assert_eq!(truth.missed.len(), 1);
        let truth = of(&[("t.10", &[START, birth, OURS]), ("t.11", &[MISSED])]);
        assert_eq!(truth.missed.len(), 0);
        let truth = of(&[("t.10", &[START, OURS, birth]), ("t.11", &[START, MISSED])]);
        assert_eq!(truth.missed.len(), 0, "exec begins anew");
    }
}
