//! The library, and a program that is really run with it.

use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use regall_reader::{self as reader, Process};
use regall_settings::Switch;
use regall_sys::folder::{Folder, ROOT};

use super::finding::{Finding, Standing::*, Who};
use crate::examine::{examine, Verdict};
use crate::figures::Tally;
use crate::look::{look, Settings};
use crate::output::without_numbers;
use crate::settings::{preloaded, Missing, Variable};
use crate::{library, units};

/// How long a program may take until it has published itself.
const PATIENCE: Duration = Duration::from_secs(2);

/// Returns what REGALL says in this environment.
pub fn switch() -> Finding {
    let name = "REGALL";
    let value = std::env::var_os(name).unwrap_or_default();
    let shown = units::printable(&value.to_string_lossy()).to_string();
    match Switch::of(value.as_bytes()) {
        Switch::On => Finding::new(name, Good, "1: on in what is started with the library"),
        Switch::Off if value.is_empty() => {
            Finding::new(name, Good, "not set here; regall run sets it")
        }
        Switch::Off => Finding::new(name, Good, format!("{shown}: off here; regall run sets 1")),
        Switch::Unclear => {
            Finding::new(name, Limits, format!("REGALL={shown} in this environment"))
                .effect("only 1 turns it on: what is started without regall run has it off")
                .mend(Who::You, "export REGALL=1")
        }
    }
}

pub fn library() -> Finding {
    let name = library::NAME;
    let Ok(path) = library::find() else {
        return Finding::new(
            name,
            Limits,
            "neither beside this command nor where make install puts it",
        )
        .mend(Who::You, "make && make install # or copy it there");
    };
    let shown = path.display();
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(e) => {
            return Finding::new(
                name,
                Limits,
                format!("{shown}: {}", without_numbers(&e.to_string())),
            )
            .effect("programs run without it")
            .mend(Who::Administrator, format!("sudo chmod a+rx {shown}"))
        }
    };
    let own = env!("REGALL_VERSION");
    let version = version(&bytes).unwrap_or("no version");
    let finding = |standing| Finding::new(name, standing, format!("{shown}, {version}"));
    if version == own {
        finding(Good)
    } else if number(version) == number(own) {
        finding(Good).effect(format!("this command was built apart from it, of {own}"))
    } else {
        finding(Limits)
            .effect(format!(
                "this command is of {own}: what it reads may not be what is written"
            ))
            .mend(Who::You, "make && make install # both of one version")
    }
}

/// What the library calls itself, behind its name.
fn version(bytes: &[u8]) -> Option<&str> {
    const NAME: &[u8] = b"regall ";
    let of_one = |b: &u8| b.is_ascii_alphanumeric() || b" .-+()".contains(b);
    let named = (0..bytes.len()).filter(|&n| bytes[n..].starts_with(NAME));
    let texts = named.filter_map(|n| bytes[n + NAME.len()..].split(|b| *b == 0).next());
    let mut versions = texts.filter(|v| v.first().is_some_and(u8::is_ascii_digit));
    std::str::from_utf8(versions.find(|v| v.iter().all(of_one))?).ok()
}

/// A version without the commit.
fn number(version: &str) -> &str {
    version.split(' ').next().unwrap_or(version)
}

/// A program that runs with the shim on, until this is dropped.
pub struct Trial {
    child: Child,
    /// What the names of its files begin with; none if it is gone.
    files: Option<String>,
    /// Whether it has the shim.
    on: bool,
}

impl Trial {
    /// Starts one, with these settings beside the defaults. `Err`: what is in the way.
    pub fn start(more: &[Variable]) -> Result<Self, String> {
        let environment = preloaded().map_err(|why| why.to_string())?;
        Self::with(environment.iter().chain(more), true)
    }

    /// The same program without the shim.
    pub fn without() -> Result<Self, String> {
        Self::with(std::iter::empty(), false)
    }

    fn with<'a>(environment: impl Iterator<Item = &'a Variable>, on: bool) -> Result<Self, String> {
        let mut command = Command::new("sleep");
        command.arg("60");
        for (name, _) in std::env::vars_os() {
            if name.as_encoded_bytes().starts_with(b"REGALL") {
                command.env_remove(name);
            }
        }
        command
            // Whatever program sleep is here: busybox is left out by default.
            .env("REGALL_ONLY", "*")
            .envs(environment.map(|(name, value)| (*name, value)));
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| format!("sleep: {}", without_numbers(&e.to_string())))?;
        let files = Process::find(child.id())
            .map(|p| format!("{}.{}.{}", p.own_pid, p.start_time, p.namespace));
        let files = files.ok();
        let this = Self { child, files, on };
        this.wait();
        Ok(this)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Until it has come to rest with its account published, or won't.
    fn wait(&self) {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline && !self.sleeps() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Whether it is where it is to be: in its one long system call.
    fn sleeps(&self) -> bool {
        let exe = fs::read_link(format!("/proc/{}/exe", self.pid())).unwrap_or_default();
        let started = Some(exe) != std::env::current_exe().ok();
        let stat = reader::procfs::whole(format!("/proc/{}/stat", self.pid())).unwrap_or_default();
        let behind_name = stat.rsplit(|b| *b == b')').next();
        let asleep = behind_name.is_some_and(|s| s.starts_with(b" S"));
        started && asleep && (!self.on || reader::open(self.pid()).is_ok())
    }

    /// Ends it; what the shim has said.
    pub fn end(mut self) -> Vec<String> {
        let _ = self.child.kill();
        let mut said = Vec::new();
        if let Some(mut pipe) = self.child.stderr.take() {
            let _ = pipe.read_to_end(&mut said);
        }
        let said = String::from_utf8_lossy(&said);
        let lines = said.lines().filter(|l| l.contains("regall"));
        // "regall[123]: warn: text", of which the number says nothing here.
        lines
            .map(|l| match l.split_once("]: ") {
                Some((_, text)) => text.to_string(),
                None => l.to_string(),
            })
            .collect()
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.files.iter().for_each(|name| clean(name));
    }
}

/// Removes what a process that was killed has left, which would stay until the user's next one:
/// its directory and the socket beside it. They are in whichever folder of the user's the shim
/// took: in another user namespace that is not the one that the uid there names.
fn clean(name: &str) {
    let entries = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten();
    for folder in entries(Path::new(reader::FOLDER_ROOT)) {
        let own = folder.metadata().is_ok_and(|m| m.uid() == user());
        let named = Folder::named(folder.file_name().as_encoded_bytes());
        let Some(named) = named.filter(|_| own) else {
            continue;
        };
        for file in entries(&folder.path()) {
            if file.file_name().to_string_lossy().starts_with(name) {
                let _ = fs::remove_file(file.path());
            }
        }
        named.leave(ROOT);
    }
}

/// This user's number.
pub fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// What a program says for which REGALL_SHARE does nothing; `None` if it does what it
/// should, or there is nothing to try it with.
pub fn sharing() -> Option<String> {
    let trial = Trial::start(&[("REGALL_SHARE", "always".into())]).ok()?;
    let settings = look(trial.pid()).ok()?.header.in_force();
    let on = settings
        .into_iter()
        .any(|(name, value)| name == "share" && value == "always");
    let said = trial
        .end()
        .into_iter()
        .find(|line| line.contains("REGALL_SHARE"));
    said.filter(|_| !on).map(|line| format!("{line:?}"))
}

/// A program that is run with the shim on and looked at: all in one.
pub fn trial() -> Finding {
    let name = "a trial program";
    let began = Instant::now();
    if let Err(Missing::Path(why)) = preloaded() {
        return Finding::new(name, Limits, why)
            .effect("regall run and regall check start nothing (exit code 126)")
            .mend(
                Who::You,
                "regall run --stage -- COMMAND # or copy both to a path without them",
            );
    }
    let trial = match Trial::start(&[]) {
        Ok(trial) => trial,
        Err(why) => return Finding::new(name, NotChecked, why),
    };
    let took = began.elapsed();
    let verdict = examine(trial.pid(), false);
    let bytes = look(trial.pid()).map(|look| Tally::of(&look.entries));
    let said = trial.end();
    let limited = bytes.map_or(0, |b| b.over_limit());
    let finding = match verdict {
        Verdict::Good(summary) => {
            let found = format!(
                "started in {} ms: {} registered, {} over the limit, no gap",
                took.as_millis(),
                units::bytes(summary.bytes.registered()),
                units::bytes(limited)
            );
            let fine = said.is_empty() && limited == 0;
            Finding::new(name, if fine { Good } else { Limits }, found)
                .measured("registered_bytes", summary.bytes.registered())
                .measured("limit_bytes", limited)
                .measured("start_ms", took.as_millis() as u64)
        }
        Verdict::Gaps(gaps, _) => {
            let gaps = units::many(gaps.len(), "gap");
            Finding::new(name, Limits, format!("{gaps} in its coverage"))
        }
        Verdict::Failed(why) => {
            let found = match said.first() {
                Some(line) => format!("can't be looked at: {line}"),
                None => format!("can't be looked at: {why}"),
            };
            Finding::new(name, Limits, found)
        }
    };
    match said.first() {
        None if limited > 0 => finding.effect("see locked memory below"),
        None => finding,
        Some(line) => finding.effect(format!("it says {line:?}")).mend(
            Who::You,
            "look that line up in docs/troubleshooting.md, and see what is below",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_told_apart_by_their_number() {
        let library = b"regall x\0nothingregall 0.1.0 (abc+)\0more";
        assert_eq!(version(library), Some("0.1.0 (abc+)"));
        // A text that goes on is another one.
        let library = b"\0regall 0.3.0\"},\"a\":\0regall 0.1.0\0";
        assert_eq!(version(library), Some("0.1.0"));
        assert_eq!(version(b"regall x"), None);
        assert_eq!(number("0.1.0 (abc+)"), "0.1.0");
        assert_eq!(number("0.1.0"), "0.1.0");
    }
}
