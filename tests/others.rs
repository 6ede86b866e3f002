//! Programs that are not ours, from Debian: debuggers, profilers, sandboxes, daemons that drop
//! root, dumpers. They must say and do the same of, and with, the shim as without it.
//!
//! Each script of the folder others is run without the shim and with it, on a machine of its
//! own as far as namespaces go (others/machine.sh). Its exit status and what it prints must be
//! the same, and the shim must have been where the script expects it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use regall_tests::child::{self, Outcome};
use regall_tests::mode::Mode;
use regall_tests::{build, skip};

#[path = "others/daemons.rs"]
mod daemons;
#[path = "others/debuggers.rs"]
mod debuggers;
#[path = "others/profilers.rs"]
mod profilers;
#[path = "others/sandboxes.rs"]
mod sandboxes;

/// Of c-tests/others.
const PROGRAMS: [&str; 2] = ["frames", "dumper"];
const TIMEOUT: Duration = Duration::from_secs(120);

/// A script, and what must be here for it.
struct Script {
    name: &'static str,
    /// Commands, by their names or by paths of packages that are unpacked.
    needs: &'static [&'static str],
    /// What the shim says, and rightly so.
    says: &'static [&'static str],
}

impl Script {
    const fn new(name: &'static str, needs: &'static [&'static str]) -> Self {
        Self {
            name,
            needs,
            says: &[],
        }
    }

    /// Runs it without the shim and with it.
    fn same(&self) {
        if let Some(reason) = self.impossible() {
            return skip(&format!("{}: {reason}", self.name));
        }
        let (plain, _) = self.run(Mode::Plain);
        if let Some(reason) = plain.stdout.strip_prefix("SKIP ") {
            return skip(&format!("{}: {}", self.name, reason.trim()));
        }
        plain.must_succeed_at(format_args!("{} without the shim", self.name));
        let (with, mut wrong) = self.run(Mode::Populate);
        wrong.extend(
            with.differences(&plain)
                .into_iter()
                .filter(|d| not_stderr(d)),
        );
        let expected = |line: &String| self.says.iter().any(|says| line.contains(says));
        wrong.extend(with.complaints().into_iter().filter(|l| !expected(l)));
        assert!(
            wrong.is_empty(),
            "{}:\n{}\n--- without the shim:\n{}\n--- with it:\n{}\n--- stderr:\n{}",
            self.name,
            wrong.join("\n"),
            plain.stdout,
            with.stdout,
            with.stderr
        );
    }

    /// Why it can't be run here.
    fn impossible(&self) -> Option<String> {
        // SAFETY: a system call without arguments.
        if unsafe { libc::geteuid() } != 0 {
            return Some("a machine of one's own is for root alone".into());
        }
        let lacks = |need: &&&str| match need.contains('/') {
            true => !unpacked().join(need).exists(),
            false => !build::have(need) && !Path::new("/usr/sbin").join(need).exists(),
        };
        let lacking = self.needs.iter().find(lacks)?;
        Some(format!("{lacking} is not here (scripts/setup test)"))
    }

    /// How it ended, and what it says is wrong.
    fn run(&self, mode: Mode) -> (Outcome, Vec<String>) {
        let folder = tempfile::Builder::new().prefix("others-").tempdir();
        let folder = folder.expect("a folder");
        let here = folder.path().join("here");
        let wrong = folder.path().join("wrong");
        fs::create_dir(&here).expect("a folder");
        // Whoever the programs become can read it.
        for open in [folder.path(), &here] {
            fs::set_permissions(open, Permissions::from_mode(0o755)).expect("permissions");
        }
        let readable = |from: &Path| {
            let to = folder.path().join(from.file_name().expect("a name"));
            fs::copy(from, &to).expect("a copy");
            fs::set_permissions(&to, Permissions::from_mode(0o755)).expect("permissions");
            to
        };
        let shim = readable(&build::shim());
        let bin = folder.path().to_owned();
        for program in PROGRAMS {
            readable(&build::program("others").join(program));
        }

        let mut command = Command::new("unshare");
        Mode::Plain.apply(&mut command);
        command.args(["--mount", "--uts", "--pid", "--net", "--ipc", "--fork"]);
        command.args(["--kill-child", "bash", "-c"]);
        command.arg(r#"exec 3>"$WRONG"; . "$FOLDER/machine.sh"; . "$FOLDER/$NAME.sh""#);
        command.env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        );
        command.env("LC_ALL", "C.UTF-8").env_remove("LD_PRELOAD");
        command.env("NAME", self.name).env("FOLDER", scripts());
        command.env("HERE", &here).env("WRONG", &wrong);
        command.env("BIN", &bin);
        command.env("DEBS", unpacked()).env("SHIM", &shim);
        command.env("LOOK", build::regall());
        command.env("WITH", if mode == Mode::Plain { "" } else { "yes" });
        let mut outcome = child::run(&mut command, TIMEOUT);
        // Both runs have a folder of their own.
        let name = folder.path().to_string_lossy();
        outcome.stdout = outcome.stdout.replace(&*name, "FOLDER");
        let wrong = fs::read_to_string(&wrong).unwrap_or_default();
        (outcome, wrong.lines().map(str::to_owned).collect())
    }
}

/// What a program says on standard error is not compared: most of it has times and numbers of
/// processes in it.
fn not_stderr(difference: &str) -> bool {
    !difference.starts_with("stderr")
}

fn scripts() -> PathBuf {
    build::root().join("tests/others")
}

/// Packages that are not installed: that would start their daemons.
fn unpacked() -> PathBuf {
    build::target().join("unpacked")
}
