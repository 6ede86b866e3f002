//! What launchers want to be told, so that ranks on other nodes have a variable.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::bail;

use crate::settings::Variable;

/// A kind of launcher.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Launcher {
    /// Open MPI's mpirun, version 4 (orterun) or 5 (prterun)
    Openmpi,
    /// MPICH's mpiexec (hydra), and those that come from it
    Mpich,
    /// Slurm's srun
    Srun,
}

/// A launcher's arguments with what is ours.
#[derive(PartialEq, Eq, Debug)]
pub struct Forwarded {
    /// All of them.
    pub arguments: Vec<OsString>,
    /// What its own environment needs beside the variables.
    pub environment: Vec<Variable>,
    /// What the user should know.
    pub warning: Option<String>,
}

/// Of Open MPI 4: it refuses `-x` beside it.
const ENV_LIST: &str = "mca_base_env_list";

impl Launcher {
    /// Which launcher a command is; none if it is none that has to be told.
    pub fn of(program: &OsStr) -> Option<Self> {
        let given = Path::new(program).file_name()?.to_str()?.to_string();
        let found = find(program)?;
        let real = found.canonicalize().ok();
        let real = real.as_ref().and_then(|p| p.file_name()?.to_str());
        let names = [given.as_str(), real.unwrap_or("")];
        Self::named(&names).or_else(|| {
            let ambiguous = |n: &&str| matches!(*n, "mpirun" | "mpiexec");
            names.iter().any(ambiguous).then(|| asked(&found))?
        })
    }

    /// By the names of its file.
    fn named(names: &[&str]) -> Option<Self> {
        let any = |words: &[&str]| {
            let has = |name: &&str| words.iter().any(|w| name.contains(w));
            names.iter().any(has)
        };
        if any(&["orterun", "prterun", "openmpi"]) {
            return Some(Self::Openmpi);
        }
        if any(&["hydra", "mpich"]) {
            return Some(Self::Mpich);
        }
        names.contains(&"srun").then_some(Self::Srun)
    }

    /// What it must be told, for a job script.
    pub fn words(self, variables: &[Variable]) -> anyhow::Result<Vec<OsString>> {
        let pairs = variables.iter().map(|(name, value)| (*name, value));
        Ok(match self {
            Self::Openmpi => pairs
                .flat_map(|(name, value)| ["-x".into(), assignment(name, value)])
                .collect(),
            Self::Mpich => pairs.flat_map(genv).collect(),
            Self::Srun => {
                let mut word = OsString::from("--export=ALL");
                for (name, value) in pairs {
                    if value.as_bytes().contains(&b',') {
                        // What is exported already is among all.
                        if std::env::var_os(name).as_ref() == Some(value) {
                            continue;
                        }
                        bail!(
                            "srun --export can't hold the comma in {name}: leave the flag out, \
                             and export {name} in the script, which srun hands on"
                        );
                    }
                    word.push(",");
                    word.push(assignment(name, value));
                }
                vec![word]
            }
        })
    }

    /// Its arguments, such that it hands the variables on, which are in its own
    /// environment, to wherever ranks are started.
    pub fn forward(self, arguments: &[OsString], variables: &[Variable]) -> Forwarded {
        let unchanged = |warning| Forwarded {
            arguments: arguments.to_vec(),
            environment: Vec::new(),
            warning,
        };
        match self {
            // Ranks that are started through ssh have the environment of a login.
            Self::Openmpi if env_list(arguments) => unchanged(Some(format!(
                "{ENV_LIST} is set, so mpirun can't be given -x: name REGALL and LD_PRELOAD there \
                 if ranks run on other nodes"
            ))),
            Self::Openmpi => Forwarded {
                arguments: with_x(arguments, variables),
                environment: Vec::new(),
                warning: None,
            },
            Self::Mpich if narrowed(arguments) => Forwarded {
                arguments: variables
                    .iter()
                    .map(|(name, value)| (*name, value))
                    .flat_map(genv)
                    .chain(arguments.iter().cloned())
                    .collect(),
                environment: Vec::new(),
                warning: None,
            },
            Self::Srun => match Exported::of(arguments, std::env::var(EXPORT_ENV).ok()) {
                // Where its own arguments end, and those of the program begin, is not known.
                Exported::ByArgument(list) if lacks_ours(&list) => unchanged(Some(
                    "srun --export leaves regall's variables out: add what regall env --for srun \
                     prints"
                        .to_string(),
                )),
                Exported::ByVariable(list) if lacks_ours(&list) => Forwarded {
                    arguments: arguments.to_vec(),
                    environment: vec![(EXPORT_ENV, with_ours(&list, variables))],
                    warning: None,
                },
                _ => unchanged(None),
            },
            // It hands on all of its environment.
            Self::Mpich => unchanged(None),
        }
    }
}

/// `NAME=VALUE`
fn assignment(name: &str, value: &OsStr) -> OsString {
    OsString::from_vec([name.as_bytes(), b"=", value.as_bytes()].concat())
}

fn genv((name, value): (&str, &OsString)) -> [OsString; 3] {
    ["-genv".into(), name.into(), value.clone()]
}

/// What mpirun hands on by itself; its --mca is stronger, and would not be than a -x.
const OMPI_MCA: &str = "OMPI_MCA_";

/// Each part between colons is a program with options of its own. A variable that
/// the user has named is the user's.
fn with_x(arguments: &[OsString], variables: &[Variable]) -> Vec<OsString> {
    let mut all = Vec::new();
    for (n, part) in arguments.split(|a| a == ":").enumerate() {
        if n > 0 {
            all.push(":".into());
        }
        let ours = |(name, _): &&Variable| !name.starts_with(OMPI_MCA) && !named_by_x(part, name);
        for (name, _) in variables.iter().filter(ours) {
            all.extend(["-x".into(), OsString::from(name)]);
        }
        all.extend(part.iter().cloned());
    }
    all
}

fn named_by_x(part: &[OsString], name: &str) -> bool {
    let of_x = |pair: &[OsString]| match pair {
        [x, value] if x == "-x" => {
            let rest = value.as_bytes().strip_prefix(name.as_bytes());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
        }
        _ => false,
    };
    part.windows(2).any(of_x)
}

fn env_list(arguments: &[OsString]) -> bool {
    arguments.iter().any(|a| a == ENV_LIST)
        || std::env::var_os(format!("OMPI_MCA_{ENV_LIST}")).is_some()
}

/// Whether hydra is told to hand less than everything on.
fn narrowed(arguments: &[OsString]) -> bool {
    let narrows = |a: &OsString| {
        let word = a.to_str().unwrap_or("").trim_start_matches('-');
        let dashed = a.as_bytes().starts_with(b"-");
        dashed && matches!(word, "genvnone" | "genvlist" | "envnone" | "envlist")
    };
    arguments.iter().any(narrows)
}

/// Has srun export less than all; `sbatch --export` sets it in the job.
const EXPORT_ENV: &str = "SLURM_EXPORT_ENV";

/// What srun is told to export, and where.
enum Exported {
    All,
    ByArgument(String),
    ByVariable(String),
}

impl Exported {
    fn of(arguments: &[OsString], variable: Option<String>) -> Self {
        let mut coming = arguments.iter().map(|a| a.to_str().unwrap_or(""));
        let listed = coming.find_map(|a| Some(a.strip_prefix("--export")?.to_string()));
        let listed = match listed.as_deref() {
            Some("") => coming.next().map(str::to_string),
            Some(value) => value.strip_prefix('=').map(str::to_string),
            None => None,
        };
        match (listed, variable) {
            (Some(list), _) => Self::ByArgument(list),
            (None, Some(list)) => Self::ByVariable(list),
            (None, None) => Self::All,
        }
    }
}

/// Whether a list for srun's --export leaves the shim out.
fn lacks_ours(list: &str) -> bool {
    let has = |word: &str| list.split(',').any(|w| w.split('=').next() == Some(word));
    !(has("ALL") || (has("REGALL") && has("LD_PRELOAD")))
}

/// The list with the names of ours; srun has the values in its environment. What it calls
/// NONE is Slurm's own variables, which any list has.
fn with_ours(list: &str, variables: &[Variable]) -> OsString {
    let theirs = list.split(',').filter(|w| !matches!(*w, "" | "NONE"));
    let ours = variables.iter().map(|(name, _)| *name);
    theirs.chain(ours).collect::<Vec<_>>().join(",").into()
}

/// Whether a word among arguments is the name of a program.
pub fn is_program(word: &OsStr) -> bool {
    !word.as_bytes().starts_with(b"-") && find(word).is_some_and(|file| file.is_file())
}

/// Where a command is, as a shell finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    // As execvp(3) has it: a job that was submitted without an environment may have none.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut all = std::env::split_paths(&path).map(|folder| folder.join(program));
    all.find(|file| file.is_file())
}

/// By what it says itself.
fn asked(program: &Path) -> Option<Launcher> {
    let done = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    by_version(&String::from_utf8_lossy(&done.ok()?.stdout))
}

fn by_version(said: &str) -> Option<Launcher> {
    let any = |words: &[&str]| words.iter().any(|w| said.contains(w));
    if any(&["Open MPI", "OpenRTE", "PRRTE", "PMIx Reference RTE"]) {
        return Some(Launcher::Openmpi);
    }
    any(&["HYDRA", "Hydra", "Intel(R) MPI"]).then_some(Launcher::Mpich)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    fn variables() -> Vec<Variable> {
        vec![("REGALL", "1".into()), ("LD_PRELOAD", "/l.so".into())]
    }

    fn forwarded(launcher: Launcher, arguments: &str) -> (String, bool) {
        let all = launcher.forward(&words(arguments), &variables());
        let line = all.arguments.join(OsStr::new(" "));
        (line.into_string().unwrap(), all.warning.is_some())
    }

    #[test]
    fn each_launcher_has_its_words() {
        let said = |launcher: Launcher| {
            let all = launcher.words(&variables()).unwrap();
            all.join(OsStr::new(" ")).into_string().unwrap()
        };
        assert_eq!(said(Launcher::Openmpi), "-x REGALL=1 -x LD_PRELOAD=/l.so");
        assert_eq!(
            said(Launcher::Mpich),
            "-genv REGALL 1 -genv LD_PRELOAD /l.so"
        );
        assert_eq!(
            said(Launcher::Srun),
            "--export=ALL,REGALL=1,LD_PRELOAD=/l.so"
        );
        let comma = [("REGALL_EXCLUDE", "a,b".into())];
        assert!(Launcher::Srun.words(&comma).is_err());
        assert!(Launcher::Openmpi.words(&comma).is_ok());
    }

    #[test]
    fn open_mpi_is_told_in_each_part() {
        let all = |arguments| forwarded(Launcher::Openmpi, arguments);
        let plain = "-x REGALL -x LD_PRELOAD -np 2 ./app".to_string();
        assert_eq!(all("-np 2 ./app"), (plain, false));
        let two = "-x REGALL -x LD_PRELOAD ./a : -x REGALL -x LD_PRELOAD -np 1 ./b";
        assert_eq!(all("./a : -np 1 ./b"), (two.into(), false));
        let theirs = "-x REGALL -x LD_PRELOAD=/o.so ./a".to_string();
        assert_eq!(all("-x LD_PRELOAD=/o.so ./a"), (theirs, false));
        let like = "-x REGALL -x LD_PRELOAD -x REGALL_PIN ./a".to_string();
        assert_eq!(all("-x REGALL_PIN ./a"), (like, false));
        let own = [("OMPI_MCA_memory", "^patcher".into())];
        let all_of_it = words("--mca memory patcher ./a");
        assert_eq!(with_x(&all_of_it, &own), all_of_it);
        let list = "--mca mca_base_env_list A ./a";
        assert_eq!(all(list), (list.into(), true));
    }

    #[test]
    fn those_that_hand_on_everything_are_left_alone() {
        let hydra = |arguments| forwarded(Launcher::Mpich, arguments);
        assert_eq!(hydra("-np 2 ./a"), ("-np 2 ./a".into(), false));
        let told = "-genv REGALL 1 -genv LD_PRELOAD /l.so -genvnone ./a";
        assert_eq!(hydra("-genvnone ./a"), (told.into(), false));
        for (line, warned) in [
            ("-n 2 ./a", false),
            ("--export=ALL ./a", false),
            ("--export=ALL,X=1 ./a", false),
            ("--export=REGALL,LD_PRELOAD,HOME ./a", false),
            ("--export=NONE ./a", true),
            ("--export HOME ./a", true),
            ("--export", false),
            ("--export=ALL ./a --export=NONE", false),
        ] {
            let srun = forwarded(Launcher::Srun, line);
            assert_eq!(srun, (line.to_string(), warned));
        }
    }

    #[test]
    fn what_a_job_exports_has_ours_too() {
        let lists = |list: &str| {
            let variables = variables();
            lacks_ours(list).then(|| with_ours(list, &variables).into_string().unwrap())
        };
        assert_eq!(lists("NONE").as_deref(), Some("REGALL,LD_PRELOAD"));
        let kept = "HOME,A=1,REGALL,LD_PRELOAD";
        assert_eq!(lists("HOME,A=1").as_deref(), Some(kept));
        assert_eq!(lists("ALL"), None);
        assert_eq!(lists("ALL,A=1"), None);
        assert_eq!(lists(kept), None);
        let by_variable = Exported::of(&words("-n 2 ./a"), Some("NONE".into()));
        assert!(matches!(by_variable, Exported::ByVariable(list) if list == "NONE"));
        let by_argument = Exported::of(&words("--export=A ./a"), Some("NONE".into()));
        assert!(matches!(by_argument, Exported::ByArgument(list) if list == "A"));
    }

    #[test]
    fn launchers_are_known_by_their_files_or_their_words() {
        let named = |names: &[&str]| Launcher::named(names);
        assert_eq!(named(&["mpirun", "orterun"]), Some(Launcher::Openmpi));
        assert_eq!(named(&["mpirun.openmpi", ""]), Some(Launcher::Openmpi));
        assert_eq!(named(&["mpiexec", "mpiexec.hydra"]), Some(Launcher::Mpich));
        assert_eq!(named(&["srun", "srun"]), Some(Launcher::Srun));
        assert_eq!(named(&["mpirun", "mpirun"]), None);
        assert_eq!(named(&["./app", "app"]), None);
        for (said, launcher) in [
            ("mpirun (Open MPI) 5.0.3\n", Some(Launcher::Openmpi)),
            ("mpirun.openmpi (OpenRTE) 4.1.4", Some(Launcher::Openmpi)),
            (
                "HYDRA build details:\n    Version: 4.0.2",
                Some(Launcher::Mpich),
            ),
            ("Intel(R) MPI Library for Linux* OS", Some(Launcher::Mpich)),
            ("something else", None),
        ] {
            assert_eq!(by_version(said), launcher, "{said}");
        }
        assert_eq!(Launcher::of(OsStr::new("/no/such/mpirun")), None);
        assert_eq!(Launcher::of(OsStr::new("sh")), None);
        assert_eq!(Launcher::of(OsStr::new("")), None);
    }
}
