//! The commands that need no process.

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

#[test]
fn doctor_says_what_is_wrong_and_how_to_mend_it() {
    let alone = Alone::new("doctor");
    let (code, text, _) = alone.run(&["doctor"]);
    assert!(matches!(code, Some(1 | 2)), "{text}");
    assert!(text.contains("mend       you: make"), "{text}");
    assert!(text.contains("\nIn the way: libregall.so"), "{text}");
    let (_, json, _) = alone.run(&["doctor", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let all = json.as_array().unwrap();
    assert!(all.len() > 8);
    assert_eq!(all[0]["name"], "libregall.so");
    assert_eq!(all[0]["standing"], "limits");
    assert_eq!(all[0]["mend"][0]["who"], "you");
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
