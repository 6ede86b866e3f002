//! REGALL_CHECK finds what is wrong with a program's own registrations, and no error in what is
//! right.

use super::*;
use serde_json::Value;

/// The programs of c-tests/rdma that run here.
pub const LISTED: &[&str] = &["stale"];

/// A case of `stale`, what is found in it, and functions that stand in the stacks.
type Case = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

const CASES: &[Case] = &[
    (
        "two-hooks",
        &["stale-use"],
        &["cache_get", "hooked_by_other", "anon_at", "one_sided"],
    ),
    (
        "external-event",
        &["stale-use"],
        &["cache_get", "external_event", "one_sided"],
    ),
    (
        "brk",
        &["stale-use"],
        &["cache_get", "heap_shrinks", "one_sided"],
    ),
    (
        "discarded",
        &["stale-use"],
        &["cache_get", "discarded", "one_sided"],
    ),
    (
        "replaced",
        &["stale-use"],
        &["cache_get", "replaced", "one_sided"],
    ),
    (
        "moved",
        &["stale-use"],
        &["cache_get", "moved", "one_sided"],
    ),
    (
        "received",
        &["stale-use"],
        &["cache_get", "received", "message"],
    ),
    ("twice", &["deregistered-twice"], &["twice", "main"]),
    (
        "leak",
        &["never-deregistered", "never-deregistered"],
        &["cache_get", "leaks", "main"],
    ),
    (
        "again",
        &["registered-twice"],
        &["registered_again", "main"],
    ),
    ("not-writable", &["not-writable"], &["not_writable"]),
    ("late", &["gone"], &["cache_get", "hooked_by_cache"]),
    (
        "protected",
        &["gone"],
        &["cache_get", "protected_for_a_while"],
    ),
    ("right", &[], &[]),
    ("shared", &[], &[]),
];

/// What older kernels refuse: taking pages away by process_madvise.
const BY_PROCESS_MADVISE: &[Case] = &[
    (
        "advised-itself",
        &["stale-use"],
        &["cache_get", "advised_itself", "one_sided"],
    ),
    ("advised-elsewhere", &[], &[]),
];

fn checked(command: &mut Command, file: &Path) {
    command.env("REGALL_CHECK", "registrations");
    command.env("REGALL_CHECK_FILE", file);
}

/// What `regall check` makes of what processes left.
fn read(folder: &Path, flags: &[&str]) -> Value {
    let mut command = Command::new(build::regall());
    command.args(["check", "--json"]).args(flags);
    command.arg("--read").arg(folder);
    let done = child::run(&mut command, TIMEOUT);
    done.must_succeed();
    serde_json::from_str(&done.stdout).expect("JSON")
}

fn list<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of[name].as_array().into_iter().flatten()
}

fn functions(finding: &Value) -> Vec<&str> {
    let frames = list(finding, "stacks").flat_map(|s| list(s, "frames"));
    frames.filter_map(|f| f["function"].as_str()).collect()
}

/// Each wrong cache is found, with both sides' functions, and nothing in those that are right.
pub fn finds() -> Checked {
    found_in(CASES)
}

/// So is one that misses process_madvise.
pub fn finds_process_madvise() -> Checked {
    found_in(BY_PROCESS_MADVISE)
}

fn found_in(cases: &[Case]) -> Checked {
    let folder = tempfile::tempdir().expect("a folder");
    for (case, ..) in cases {
        let mut command = Command::new(build::program("rdma/stale"));
        command.arg(case);
        let plain = (*case != "twice").then(|| {
            Mode::Plain.apply(&mut command);
            child::run(&mut command, TIMEOUT)
        });
        Mode::Off.apply(&mut command);
        checked(&mut command, &folder.path().join(case));
        let done = child::run(&mut command, TIMEOUT);
        // The data is as wrong as it is without.
        if let Some(plain) = plain {
            assert_eq!(done.differences(&plain), Vec::<String>::new(), "{case}");
        }
    }
    let found = read(folder.path(), &["--late"]);
    let mut processes: Vec<_> = list(&found, "processes").collect();
    let mut cases = cases.to_vec();
    // (As the files were read.)
    cases.sort_by_key(|(case, ..)| *case);
    assert_eq!(processes.len(), cases.len(), "{found:#}");
    for ((case, kinds, names), process) in cases.into_iter().zip(processes.drain(..)) {
        let here = |f: &&Value| list(f, "pids").any(|pid| *pid == process["pid"]);
        let mine: Vec<_> = list(&found, "findings").filter(here).collect();
        let of: Vec<_> = mine.iter().filter_map(|f| f["kind"].as_str()).collect();
        assert_eq!(of, kinds, "{case}: {mine:#?}");
        let seen: Vec<_> = mine.iter().copied().flat_map(functions).collect();
        for name in names {
            assert!(
                seen.contains(name),
                "{case}: no {name} in {seen:?}: {mine:#?}"
            );
        }
        let ours = mine.iter().flat_map(|f| list(f, "stacks"));
        let mut ours = ours.flat_map(|s| list(s, "frames"));
        let shims = |f: &Value| {
            f["module"]
                .as_str()
                .is_some_and(|m| m.contains("libregall"))
        };
        assert!(!ours.any(shims), "{case}: {mine:#?}");
    }
    Ok(())
}

/// The exit code is the program's, or another one where there are errors that nobody has named.
pub fn exits() -> Checked {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = folder.path().join("rules");
    fs::write(&rules, "stale-use function:cache_*\n").expect("a file");
    let rules = rules.display().to_string();
    let run = |flags: &[&str], case: &str| {
        let mut command = Command::new(build::regall());
        Mode::Plain.apply(&mut command);
        command.current_dir(folder.path()).arg("check").args(flags);
        command
            .arg("--")
            .arg(build::program("rdma/stale"))
            .arg(case);
        child::run(&mut command, TIMEOUT)
    };
    let wrong = run(&["--exit", "9"], "replaced");
    assert_eq!(wrong.end(), "exit 9", "{}", wrong.stderr);
    assert!(
        wrong.stderr.contains("1 error, 0 notes"),
        "{}",
        wrong.stderr
    );
    let named = run(&["--exit", "9", "--suppressions", &rules], "replaced");
    assert_eq!(named.end(), "exit 0", "{}", named.stderr);
    assert!(named.stderr.contains("1 suppressed"), "{}", named.stderr);
    // Nothing but the rules is left behind.
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    Ok(())
}

/// Nothing is reported of other people's programs, whose caches are right.
pub fn others_are_right() -> Checked {
    need("ib_write_bw")?;
    need("mpirun.openmpi")?;
    let folder = tempfile::tempdir().expect("a folder");
    let pattern = folder.path().join("%p");
    let server = [
        "ib_write_bw",
        "-d",
        "rxe0",
        "-x",
        "0",
        "-n",
        "100",
        "-F",
        "-s",
        "65536",
    ];
    let client = [&server[..], &["localhost"]].concat();
    let ready = || listens(18515);
    let (at_server, at_client, _) =
        pair_of(&server, &client, Mode::Off, ready, |c| checked(c, &pattern));
    well(&[&at_server, &at_client]);
    let mut command = ranks("openmpi", &[], "fabric", Mode::Off);
    command.env(CACHED.0, CACHED.1);
    checked(&mut command, &pattern);
    child::run(&mut command, TIMEOUT).must_succeed();
    let found = read(folder.path(), &[]);
    assert_eq!(found["findings"], serde_json::json!([]), "{found:#}");
    assert!(found["late"].as_u64() > Some(0), "{found:#}");
    for exe in ["ib_write_bw", "fabric.openmpi"] {
        let of = |p: &&Value| p["exe"].as_str().is_some_and(|e| e.ends_with(exe));
        let registered = |p: &Value| p["counts"]["registered"].as_u64() > Some(0);
        let them: Vec<_> = list(&found, "processes").filter(of).collect();
        assert!(
            them.len() == 2 && them.iter().all(|p| registered(p)),
            "{found:#}"
        );
    }
    Ok(())
}

/// UCX's own registration cache: nothing to report where its hooks see what is unmapped; where they
/// do not, messages have other bytes, and each rank's use of a stale key is found. Without its
/// hooks (UCX_MEM_EVENTS=n) UCX keeps no cache, so nothing goes stale.
pub fn caches_of_ucx() -> Checked {
    need("mpirun.mpich")?;
    let folder = tempfile::tempdir().expect("a folder");
    for (label, way, cache, events, stale) in [
        ("seen", "", "rcache", "y", false),
        ("unseen", "raw", "rcache", "y", true),
        ("no-hooks", "raw", "rcache,direct", "n", false),
    ] {
        let records = folder.path().join(label);
        fs::create_dir(&records).expect("a folder");
        let mut command = ranks("mpich", &[], "remapped", Mode::Off);
        command.arg(way).env(CACHED.0, cache);
        command.env("UCX_MEM_EVENTS", events);
        checked(&mut command, &records.join("%p"));
        let done = child::run(&mut command, TIMEOUT);
        done.must_succeed();
        // The first message of all is right.
        let wrong = if stale { "7 of 8" } else { "0 of 8" };
        assert_eq!(
            done.stdout,
            format!("{wrong} messages with other bytes\n"),
            "{label}"
        );
        let found = read(&records, &[]);
        assert_eq!(
            found["errors"].as_u64() > Some(0),
            stale,
            "{label}: {found:#}"
        );
        if !stale {
            assert_eq!(found["findings"], serde_json::json!([]), "{label}");
            continue;
        }
        let errors = list(&found, "findings").filter(|f| f["kind"] == "stale-use");
        let seen: Vec<_> = errors.flat_map(functions).collect();
        for name in ["ucs_rcache_get", "main", "uct_rc_verbs_ep_get_zcopy"] {
            assert!(seen.contains(&name), "no {name} in {seen:?}: {found:#}");
        }
    }
    Ok(())
}
