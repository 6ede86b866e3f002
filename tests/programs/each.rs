//! A program in its rows: as without the shim, and every byte accounted for.

use std::collections::HashMap;
use std::sync::Mutex;

use regall_tests::rows::{self, Account, Intercept, Row, USERS};
use regall_tests::{coverage, quiet};

use super::*;

/// What looks at a program's quiet points.
pub fn watcher(program: &str, mode: Mode, user: User) -> Watcher {
    let mut expected = Expected::of(mode);
    expected.limited = matches!(user, User::KiB64 | User::MiB8);
    expected.opted_out = program == "capi"; // it leaves memory out, by regall.h
    match program {
        "many" => frugal(expected),
        "held" => held(expected),
        _ => Watcher::of_coverage(expected),
    }
}

/// As [`Watcher::of_coverage`]; and what the shim has mapped for itself is in proportion
/// to the most mappings that each process has had. (It gives nothing back.)
fn frugal(expected: Expected) -> Watcher {
    let most = Mutex::new(HashMap::new());
    Watcher::new(move |point| {
        let mut problems = quiet::look(point, &expected);
        match coverage::own_memory(point.pid) {
            Ok((mappings, own)) => {
                let mut most = most.lock().expect("the most mappings");
                let most = most.entry(point.pid).or_insert(0);
                *most = mappings.max(*most);
                let mut allowed = (1 << 20) + 200 * *most as u64;
                // The directory of who has more rights than its user has no name, and its reserve.
                if !is_in_folder(point.pid) {
                    allowed += 256 << 20;
                }
                if own > allowed {
                    problems.push(format!("{own} bytes are the shim's, with {most} mappings"));
                }
            }
            Err(why) => problems.push(why),
        }
        problems
    })
}

/// Whether a process's directory is one of its user's files.
fn is_in_folder(pid: u32) -> bool {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"));
    maps.is_ok_and(|maps| maps.contains("/dev/shm/regall-"))
}

/// As [`Watcher::of_coverage`]; but at the point `held` every place for a call in progress is
/// taken (if mlock is one that matters), so nobody can judge coverage: what is claimed of memory
/// must be in the directory.
fn held(expected: Expected) -> Watcher {
    Watcher::new(move |point| {
        if point.label != "held" {
            return quiet::look(point, &expected);
        }
        let mut dump = Command::new(build::regall());
        let done = child::run(dump.args(["dump", &point.pid.to_string()]), TIMEOUT);
        let said = &done.stdout;
        let mut problems = Vec::new();
        if done.end() != "exit 0" {
            problems.push(format!("regall dump: {}: {}", done.end(), done.stderr));
        }
        let busy = if expected.mode.pins() { 256 } else { 0 };
        let head = said.lines().next().unwrap_or_default();
        if !head.ends_with(&format!(" busy {busy}")) {
            problems.push(format!("not {busy} calls: {head}"));
        }
        for claim in &point.claims {
            let tells = |line: &&str| {
                let mut words = line.split(['-', ' ']);
                let mut address = || u64::from_str_radix(words.next()?, 16).ok();
                let (Some(start), Some(end)) = (address(), address()) else {
                    return false;
                };
                start <= claim.start && claim.end <= end
            };
            let line = said.lines().find(tells).unwrap_or("no line");
            let word = if expected.mode.pins() {
                "registered"
            } else {
                "off"
            };
            if !line.split(' ').any(|w| w == word) {
                problems.push(format!("{:x} is not {word}: {line}", claim.start));
            }
        }
        problems
    })
}

/// Rows that can't be run, or are wrong today: of which program, of which user (or all), and why.
const LEFT_OUT: &[(&str, Option<User>, &str)] = &[(
    "address_limit",
    Some(User::Unlimited),
    "who has more rights than its user reserves 256 MiB for its directory: more than the program's RLIMIT_AS",
)];

fn left_out(program: &str, user: User) -> Option<&'static str> {
    let of_this = |(name, whose, _): &&(&str, Option<User>, _)| {
        *name == program && whose.is_none_or(|whose| whose == user)
    };
    LEFT_OUT.iter().find(of_this).map(|(.., why)| *why)
}

/// What is wrong with a program in a row, which is to be as `plain`.
fn differs_in(row: Row, program: &str, account: &Account, plain: &Outcome) -> Vec<String> {
    let file = build::program(program);
    let command = account.command(&file, row.user, Some(row));
    let mut command = command.expect("a user whose plain run there is");
    // Sites that can't be patched are covered in strict mode alone.
    let covered = match row.intercept {
        Intercept::Symbols => false,
        Intercept::Patch => program != "strict",
        Intercept::Strict => true,
    };
    let watcher = covered.then(|| watcher(program, row.mode(), row.user));
    if let Some(watcher) = &watcher {
        command.env("QUIET_SOCKET", watcher.socket());
    }
    let other = child::run(&mut command, TIMEOUT);
    let gives_up = plain.stdout.contains("needed ");
    let mut problems = other.differences(plain);
    if let Some(watcher) = watcher {
        let findings = watcher.finish();
        if findings.looks == 0 && problems.is_empty() && !gives_up {
            problems.push("it has no quiet point".into());
        }
        if program == "strict" && other.stderr.contains("no Syscall User Dispatch") {
            println!("coverage of sites that can't be patched: no Syscall User Dispatch here");
        } else {
            problems.extend(findings.problems);
        }
    }
    if !problems.is_empty() {
        problems.truncate(12);
        problems.insert(0, format!("{row:?}; shim: {:?}", other.regall_lines()));
    }
    problems
}

/// How many rows a program runs in.
fn count(program: &str) -> usize {
    match program {
        _ if thorough() => rows::MOST,
        // To look at its 60,000 mappings takes half a minute in each.
        "many" => 1,
        _ => rows::FEW,
    }
}

/// Runs a program without the shim, once as each user, with the shim there and off, and in its rows.
/// TESTS_ROWS has those of all rows run in which all of its words are (`Strict,Populate`).
pub fn in_rows(program: &str) {
    let file = build::program(program);
    let account = Account::new(&file);
    let mut problems = Vec::new();
    let mut reasons = Vec::new();
    let rows = match std::env::var("TESTS_ROWS") {
        Err(_) => rows::of(program, count(program)),
        Ok(words) => {
            let all = rows::all().into_iter();
            let named = |row: &Row| {
                words
                    .split(',')
                    .all(|word| format!("{row:?}").contains(word))
            };
            all.filter(named).collect()
        }
    };
    assert!(!rows.is_empty(), "no row has all words of TESTS_ROWS");
    for user in USERS {
        let rows: Vec<_> = rows
            .iter()
            .filter(|row| row.user == user)
            .copied()
            .collect();
        if rows.is_empty() {
            continue;
        }
        if let Some(why) = left_out(program, user) {
            reasons.push(format!("{} rows of {user:?}: {why}", rows.len()));
            continue;
        }
        let Ok(mut command) = account.command(&file, user, None) else {
            reasons.push(format!(
                "{} rows of {user:?}: RLIMIT_MEMLOCK can't be raised",
                rows.len()
            ));
            continue;
        };
        let plain = child::run(&mut command, TIMEOUT);
        assert_ne!(plain.end(), "time-out", "{program} alone");
        // What gives up as another user is to give up in the same way.
        assert!(
            user != User::Root || !plain.stdout.contains("needed "),
            "{program} can't run here: {}",
            plain.stdout
        );
        if let Some(why) = plain.stdout.strip_prefix("skip: ") {
            reasons.push(format!("{} rows of {user:?}: {}", rows.len(), why.trim()));
            continue;
        }
        if plain.stdout.starts_with("userfaultfd: ") {
            reasons.push(format!(
                "{} rows of {user:?}: userfaultfd is not there, or not for everybody",
                rows.len()
            ));
            continue;
        }
        if user == User::Root {
            let inert = run(program, &[], Mode::Inert);
            let said = inert.regall_lines();
            problems.extend(
                inert
                    .differences(&plain)
                    .into_iter()
                    .map(|p| format!("inert: {p}")),
            );
            problems.extend((!said.is_empty()).then(|| format!("an inert shim says {said:?}")));
        }
        for row in rows {
            problems.extend(differs_in(row, program, &account, &plain));
        }
    }
    if !reasons.is_empty() {
        skip(&format!("{program}: {}", reasons.join("; ")));
    }
    let count = problems.len();
    assert!(
        count == 0,
        "{program}: {count} problems\n{}",
        problems.join("\n")
    );
}
