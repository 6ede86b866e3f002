//! The commands that need no process.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

const REGALL: &str = env!("CARGO_BIN_EXE_regall");

/// A copy of the command in a folder of its own, so that it finds no shim, or
/// the one that the test puts there.
struct Alone(PathBuf);

impl Alone {
    fn new(name: &str) -> Self {
        let folder = format!("regall-alone-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(REGALL, folder.join("regall")).unwrap();
        // For other users, whatever the umask is.
        for path in [folder.join("regall"), folder.clone()] {
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(path, all).unwrap();
        }
        Self(folder)
    }

    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let out = Command::new(self.0.join("regall"))
            .args(arguments)
            .env_remove("LD_PRELOAD")
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn run_without_the_shim() {
    let (code, _, err) = Alone::new("without").run(&["run", "--", "true"]);
    assert_eq!(code, Some(127));
    assert!(err.contains("libregall.so not found"), "{err}");
}

#[test]
fn run_sets_the_environment_and_keeps_the_exit_code() {
    let alone = Alone::new("with");
    let library = alone.0.join("libregall.so");
    // No library, which ld.so says and ignores.
    std::fs::write(&library, "").unwrap();
    let script = "echo $REGALL $REGALL_PIN $REGALL_ON_LIMIT $REGALL_STATS_FILE $LD_PRELOAD; exit 7";
    let (code, out, _) = alone.run(&[
        "run",
        "--pin",
        "onfault",
        "--on-limit=fail",
        "--stats-file",
        "/tmp/%p",
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(code, Some(7));
    let library = library.canonicalize().unwrap();
    assert_eq!(
        out,
        format!("1 onfault fail /tmp/%p {}\n", library.display())
    );
    assert_eq!(alone.run(&["run", "--", "/no/such/thing"]).0, Some(127));
    assert_eq!(alone.run(&["run", "--", "/etc/passwd"]).0, Some(126));
    assert_eq!(alone.run(&["run"]).0, Some(2));
}

/// A value that the shim would refuse would leave the whole job without it.
#[test]
fn a_bad_flag_ends_it_before_anything_starts() {
    let alone = Alone::new("bad");
    std::fs::write(alone.0.join("libregall.so"), "").unwrap();
    let started = alone.0.join("started");
    let file = started.to_str().unwrap();
    for (flag, expected) in [
        ("--limit=10X", "expected bytes with an optional K"),
        ("--pin=foo", "expected auto, onfault, populate or off"),
        ("--share=yes", "expected off, heap or always"),
        ("--copy=cma,cma", "expected auto, off, or a list"),
        ("--hca=a b", "expected adopt, off or a device's name"),
        ("--log=loud", "expected off, error, warn"),
        ("--fork=", "expected inherit or all"),
    ] {
        for (command, end) in [
            ("run", &["--", "touch", file][..]),
            ("env", &["--for=srun"]),
        ] {
            let (code, out, err) = alone.run(&[&[command, flag], end].concat());
            assert_eq!(
                (code, out.as_str()),
                (Some(2), ""),
                "{command} {flag}: {err}"
            );
            assert!(err.contains(expected), "{command} {flag}: {err}");
        }
        assert!(!started.exists(), "{flag}");
    }
    let good = ["run", "--limit=10M", "--copy=cma,map", "--", "touch", file];
    assert_eq!(alone.run(&good).0, Some(0));
    assert!(started.exists());
}

#[test]
fn completions_know_the_values() {
    let alone = Alone::new("pages");
    let (code, _, err) = alone.run(&["pages", alone.0.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    let text = |path| std::fs::read_to_string(alone.0.join("share").join(path)).unwrap();
    let bash = text("bash-completion/completions/regall");
    assert!(
        bash.contains("compgen -W \"auto onfault populate off\""),
        "{bash}"
    );
    let fish = text("fish/vendor_completions.d/regall.fish");
    assert!(fish.contains("-a \"auto\\t''\nonfault\\t''\n"), "{fish}");
    let zsh = text("zsh/site-functions/_regall");
    assert!(zsh.contains("(auto onfault populate off)"), "{zsh}");
}

/// As a launcher that starts ranks through ssh: nothing is known there but what is named.
#[test]
fn what_is_exported_is_named_to_the_launcher() {
    let alone = Alone::new("exported");
    std::fs::write(alone.0.join("libregall.so"), "").unwrap();
    let mpirun = alone.0.join("mpirun.openmpi");
    std::fs::write(
        &mpirun,
        "#!/bin/sh\necho \"$@\" with $REGALL_PIN $REGALL_LIMIT\n",
    )
    .unwrap();
    std::fs::set_permissions(&mpirun, std::fs::Permissions::from_mode(0o755)).unwrap();
    let said = |arguments: &[&str]| {
        let out = Command::new(alone.0.join("regall"))
            .args(arguments)
            .env_remove("LD_PRELOAD")
            .env("REGALL_PIN", "onfault")
            .env("REGALL_LIMIT", "1G")
            .env("REGALL_EXCLUDE", "a,b")
            .output()
            .unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        assert_eq!(out.status.code(), Some(0), "{arguments:?}: {text}");
        text
    };
    let mpirun = mpirun.to_str().unwrap();
    // A flag is stronger than the environment.
    let line = said(&["run", "--limit", "2G", "--", mpirun, "-np", "2", "./app"]);
    let all = "-x REGALL -x LD_PRELOAD -x REGALL_PIN -x REGALL_LIMIT -x REGALL_EXCLUDE \
               -np 2 ./app with onfault 2G\n";
    assert_eq!(line, all);
    let words = said(&["env", "--for", "mpich", "--limit", "2G"]);
    let ours = "-genv REGALL_PIN onfault -genv REGALL_LIMIT 2G -genv REGALL_EXCLUDE a,b\n";
    assert!(words.ends_with(ours), "{words}");
    // srun can't be told a comma; what is exported it hands on itself.
    let words = said(&["env", "--for", "srun"]);
    let ours = ",REGALL_PIN=onfault,REGALL_LIMIT=1G\n";
    assert!(words.ends_with(ours), "{words}");
}

/// By variables of the libraries' own; what the user has set stays, and what is set is said.
#[test]
fn no_caches_tells_the_libraries() {
    let alone = Alone::new("caches");
    std::fs::write(alone.0.join("libregall.so"), "").unwrap();
    let said = |arguments: &[&str]| {
        let out = Command::new(alone.0.join("regall"))
            .args(arguments)
            .env_remove("LD_PRELOAD")
            .env("UCX_MEM_EVENTS", "y")
            .output()
            .unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let err: String = text(out.stderr);
        // ld.so says of each program that the library is none.
        let ours = err.lines().filter(|l| l.starts_with("regall: "));
        (text(out.stdout), ours.collect::<Vec<_>>().join("\n"))
    };
    let script = "echo $UCX_IB_REG_METHODS,$UCX_MEM_EVENTS,$FI_MR_CACHE_MAX_COUNT";
    let shell = |flags: &[&str]| said(&[&["run"], flags, &["--", "sh", "-c", script]].concat());
    assert_eq!(shell(&[]), (",y,\n".into(), String::new()));
    assert_eq!(
        shell(&["--no-caches"]),
        ("direct,y,0\n".into(), String::new())
    );
    let (out, err) = shell(&["--no-caches", "--log=info"]);
    assert_eq!(out, "direct,y,0\n");
    assert!(
        err.starts_with("regall: --no-caches sets UCX_IB_REG_METHODS=direct "),
        "{err}"
    );
    assert!(
        err.ends_with("; as you have set them: UCX_MEM_EVENTS"),
        "{err}"
    );
    for (launcher, word) in [
        ("openmpi", " -x OMPI_MCA_memory=^patcher "),
        ("mpich", " -genv UCX_RCACHE_ENABLE n "),
        ("srun", ",FI_MR_CACHE_MONITOR=disabled,"),
    ] {
        let (words, _) = said(&["env", "--for", launcher, "--no-caches"]);
        assert!(
            words.contains(word) && !words.contains("MEM_EVENTS"),
            "{words}"
        );
        assert!(!said(&["env", "--for", launcher]).0.contains("OMPI_MCA"));
    }
}

/// Of each setting what `regall run` with the same flags hands on.
#[test]
fn config_says_what_holds_and_where_it_comes_from() {
    let said = |flags: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(REGALL);
        command.arg("config").args(flags).env_clear();
        let out = command.envs(variables.iter().copied()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    };
    let table = |flags: &[&str], variables: &[(&str, &str)]| {
        let (code, text, err) = said(flags, variables);
        let row = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        (code, text.lines().map(row).collect::<Vec<_>>(), err)
    };
    let has = |rows: &[String], row: &str| {
        let found = rows.iter().any(|r| r.starts_with(row));
        assert!(found, "no {row}: {rows:#?}");
    };
    // Each variable of the page has a line, and no other.
    let page = include_str!("../../docs/variables.md");
    let names = page.lines().filter_map(|l| l.strip_prefix("| `REGALL"));
    let names = names.filter_map(|l| Some(format!("REGALL{}", l.split_once('`')?.0)));
    let mut names: Vec<_> = names.collect();
    let (code, rows, err) = table(&[], &[]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let mut told: Vec<_> = rows
        .iter()
        .skip(1)
        .filter_map(|r| r.split(' ').next())
        .collect();
    names.sort();
    told.sort();
    assert_eq!(names, told);
    assert!(names.len() > 30);
    has(&rows, "SETTING VALUE FROM MEANING");
    has(&rows, "REGALL 0 default ");
    has(&rows, "REGALL_PIN auto default How memory is locked");
    // A flag wins over the environment.
    let set = [
        ("REGALL", "1"),
        ("REGALL_PIN", "populate"),
        ("REGALL_LIMIT", "8G"),
        ("REGALL_EXCLUDE", ""),
    ];
    let (code, rows, _) = table(&["--pin", "onfault"], &set);
    assert_eq!(code, Some(0));
    has(&rows, "REGALL 1 environment ");
    has(&rows, "REGALL_PIN onfault flag ");
    has(&rows, "REGALL_LIMIT 8G environment ");
    has(&rows, "REGALL_EXCLUDE \"\" environment ");
    has(&rows, "REGALL_HUGE off default ");
    // What is not valid, unless a flag takes its place.
    let bad = [
        ("REGALL", "yes"),
        ("REGALL_PIN", "on"),
        ("REGALL_FORK", "all"),
    ];
    let (code, rows, _) = table(&[], &bad);
    assert_eq!(code, Some(1));
    has(
        &rows,
        "REGALL yes environment not valid (expected 1, 0, off, no or false)",
    );
    has(
        &rows,
        "REGALL_PIN on environment not valid (expected auto, onfault, populate or off)",
    );
    has(
        &rows,
        "REGALL_FORK all environment What a forked child registers",
    );
    let (code, rows, _) = table(&["--pin=off"], &bad[1..]);
    has(&rows, "REGALL_PIN off flag How");
    assert_eq!(code, Some(0));
    // A flag that is not valid is wrong use.
    assert_eq!(said(&["--pin=on"], &[]).0, Some(2));
    let (code, _, err) = table(&[], &[("REGALL_PINN", "off"), ("REGALL_LIBRARY", "/x")]);
    assert_eq!(code, Some(1));
    assert_eq!(
        err,
        "regall: REGALL_PINN is not a variable of regall; ignored\n"
    );
    // Whoever checks the program does nothing else.
    let (_, rows, _) = table(&["--check=registrations", "--pin=populate"], &[]);
    has(&rows, "REGALL_CHECK registrations flag ");
    has(&rows, "REGALL_PIN off check ");
    has(&rows, "REGALL_ON_LIMIT skip check ");
    has(&rows, "REGALL_FORK inherit default ");
    let (_, _, err) = said(&["--no-caches"], &[("UCX_MEM_EVENTS", "y")]);
    assert!(err.starts_with("regall: --no-caches sets "), "{err}");
    // The same for programs.
    let (code, json, _) = said(
        &["--json", "--limit=1G"],
        &[("REGALL_COPY", "cma,cma"), ("REGALL_X", "")],
    );
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let all = json["settings"].as_array().unwrap();
    let one = |name: &str| all.iter().find(|s| s["name"] == name).unwrap();
    assert_eq!((code, all.len()), (Some(1), names.len()));
    assert_eq!(
        (
            &one("REGALL_LIMIT")["value"],
            &one("REGALL_LIMIT")["source"]
        ),
        (&"1G".into(), &"flag".into())
    );
    assert!(one("REGALL_LIMIT")["wrong"].is_null());
    let wrong = one("REGALL_COPY")["wrong"].as_str().unwrap();
    assert!(
        wrong.starts_with("expected auto, off, or a list"),
        "{wrong}"
    );
    assert_eq!(one("REGALL_COPY")["source"], "environment");
    assert_eq!(json["unknown"], serde_json::json!(["REGALL_X"]));
}

#[test]
fn doctor_says_what_is_wrong_and_how_to_mend_it() {
    let alone = Alone::new("doctor");
    let (code, text, _) = alone.run(&["doctor"]);
    assert!(matches!(code, Some(1 | 2)), "{text}");
    assert!(text.contains("mend       you: make"), "{text}");
    assert!(text.contains("\nIn the way: libregall.so"), "{text}");
    let (_, json, _) = alone.run(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let all = json["findings"].as_array().unwrap();
    assert!(all.len() > 8);
    assert_eq!(all[0]["name"], "libregall.so");
    assert_eq!(all[0]["standing"], "limits");
    assert_eq!(all[0]["mend"][0]["who"], "you");
}

/// Of a job in which ranks execute different programs.
#[test]
fn a_report_leaves_processes_out() {
    use regall_documents::{Process, VERSION};
    let alone = Alone::new("some");
    let folder = alone.0.join("job");
    std::fs::create_dir_all(&folder).unwrap();
    for (rank, exe) in [(0, "/a/solver"), (1, "/a/solver"), (2, "/solver/io")] {
        let one = Process {
            version: VERSION,
            pid: 100 + rank as u32,
            exe: exe.into(),
            host: format!("n{rank}"),
            rank: Some(rank),
            ranks: Some(4),
            start_time: rank,
            mappings: 10 + rank,
            ..Process::default()
        };
        let file = folder.join(format!("{rank}.json"));
        std::fs::write(file, serde_json::to_vec(&one).unwrap()).unwrap();
    }
    let folder = folder.to_str().unwrap();
    let most = |filter: &str| {
        let (code, json, err) = alone.run(&["report", "--json", "--filter", filter, folder]);
        assert_eq!((code, err.as_str()), (Some(1), ""), "{filter}");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let figures = json["figures"].as_array().unwrap().iter();
        let most = figures
            .filter(|f| f["figure"] == "mappings")
            .map(|f| f["max"].clone());
        // Who wrote nothing is missing, whoever is left out.
        assert_eq!(json["missing"], serde_json::json!([3]), "{filter}");
        let hosts = json["hosts"].as_array().unwrap().len();
        assert_eq!(json["counted"], hosts, "{filter}");
        (hosts, most.collect::<Vec<_>>())
    };
    assert_eq!(most(""), (3, vec![12.into()]));
    assert_eq!(most("SOLVER"), (2, vec![11.into()]));
    assert_eq!(most("io"), (1, vec![12.into()]));
    assert_eq!(most("solver rank=0"), (1, vec![10.into()]));
    assert_eq!(most("101"), (1, vec![11.into()]));
    let (code, _, err) = alone.run(&["report", "--filter", "nobody", folder]);
    let none = "regall: --filter fits none of 3 processes\n";
    assert_eq!((code, err.as_str()), (Some(2), none));
    // A report that was written has no processes.
    let (_, written, _) = alone.run(&["report", "--json", folder]);
    let file = alone.0.join("written.json");
    std::fs::write(&file, written).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(alone.run(&["report", file]).0, Some(1));
    let (code, out, err) = alone.run(&["report", "--filter", "io", file]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(err.contains("--filter needs their files"), "{err}");
    let (code, _, _) = alone.run(&["report", "--filter", "io", "--merge", "x", folder]);
    assert_eq!(code, Some(2));
}

#[test]
fn wrong_use_is_two() {
    for arguments in [
        &["verify"][..],
        &["verify", "x"],
        &["verify", "--watch", "0", "1"],
        &["frobnicate"],
    ] {
        let out = Command::new(REGALL).args(arguments).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{arguments:?}");
    }
}

/// A user may not look at root's processes; none of the commands takes that for a process
/// without the shim.
#[test]
fn what_may_not_be_looked_at_is_said_so() {
    use std::os::unix::process::CommandExt;
    // SAFETY: no memory, can't fail.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can become another user");
        return;
    }
    let alone = Alone::new("foreign");
    let mut other = Command::new("sleep").arg("60").spawn().unwrap();
    let pid = other.id().to_string();
    let said = [
        &["verify", &pid][..],
        &["peek", &pid, "0x1000", "16"],
        &["maps", &pid],
    ]
    .map(|arguments| {
        let mut command = Command::new(alone.0.join("regall"));
        let out = command
            .args(arguments)
            .uid(65534)
            .gid(65534)
            .output()
            .unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    });
    other.kill().unwrap();
    other.wait().unwrap();
    let line = format!("regall: {pid}: permission denied: it belongs to someone else\n");
    for (code, text) in said {
        assert_eq!((code, text.as_str()), (Some(2), line.as_str()));
    }
}

#[test]
fn help_has_exit_codes_and_an_example_and_fits_a_terminal() {
    let help = |command: &[&str]| {
        let out = Command::new(REGALL)
            .args(command)
            .arg("--help")
            .env_remove("COLUMNS")
            .output();
        let out = out.unwrap();
        assert_eq!(out.status.code(), Some(0), "{command:?}");
        let text = String::from_utf8(out.stdout).unwrap();
        let page =
            ["man regall", &command.concat()].join(if command.is_empty() { "" } else { "-" });
        for words in ["Exit code: ", "Example: ", "Documents: ", &page] {
            assert!(text.contains(words), "{command:?}: no {words}: {text}");
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{command:?}: {line}");
        }
        text
    };
    let all = help(&[]);
    let (_, commands) = all.split_once("Commands:\n").unwrap();
    let lines = commands.lines().take_while(|l| !l.is_empty());
    // Those that begin a line; another has more of a text.
    let names = lines.filter_map(|l| l.strip_prefix("  ").filter(|l| !l.starts_with(' ')));
    let names: Vec<_> = names.filter_map(|l| l.split(' ').next()).collect();
    assert!(names.len() >= 10, "{names:?}");
    for name in names.iter().filter(|n| **n != "help") {
        help(&[name]);
    }
    assert!(help(&["run"]).contains("default: 90%"));
    // -h has what is often used, in the same groups.
    let out = Command::new(REGALL).args(["run", "-h"]).output().unwrap();
    let short = String::from_utf8(out.stdout).unwrap();
    let long = help(&["run"]);
    for words in [
        "\nMemory:\n",
        "\nAdapters:\n",
        "\nLog and statistics:\n",
        "--limit <",
        "--report <",
    ] {
        assert!(
            short.contains(words) && long.contains(words),
            "{words}: {short}"
        );
    }
    for words in [
        "\nMessages between peers:\n",
        "--box-limit <",
        "--revoke-ms <",
    ] {
        assert!(
            !short.contains(words) && long.contains(words),
            "{words}: {short}"
        );
    }
}
