//! `module load regall` with Environment Modules and with Lmod: what is installed is found,
//! works, and is gone again.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use regall_tests::installed::{done, make};
use regall_tests::{build, skip};

/// The variables that a module file may touch, and those that it must not.
const NAMES: &[&str] = &[
    "PATH",
    "MANPATH",
    "PKG_CONFIG_PATH",
    "CMAKE_PREFIX_PATH",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "REGALL",
];

/// A line for each of them, behind a word.
const SHOW: &str = "show() { for n in $NAMES; do echo \"$1 $n=${!n-unset}\"; done; }\n";

const PATH: &str = "/usr/bin:/bin";

#[derive(Clone, Copy, Debug, PartialEq)]
enum System {
    Environment,
    Lmod,
}

impl System {
    /// A bash that has `module`. Both packages can't be installed at once, so scripts/setup
    /// has unpacked them; none if it could not.
    fn shell(self, script: &str) -> Option<Command> {
        let (name, file, define) = match self {
            Self::Environment => (
                "environment-modules",
                "usr/lib/x86_64-linux-gnu/modulecmd.tcl",
                "eval \"$(tclsh8.6 \"$SYSTEM\" bash autoinit)\"\n",
            ),
            Self::Lmod => (
                "lmod",
                "usr/share/lmod/lmod/libexec/lmod",
                "export LMOD_CMD=$SYSTEM\nmodule() { eval \"$(\"$LMOD_CMD\" bash \"$@\")\"; }\n",
            ),
        };
        let system = build::target().join("modules").join(name).join(file);
        if !system.exists() {
            skip(&format!("scripts/setup test could not unpack {name}"));
            return None;
        }
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-ec"])
            .arg(format!("{define}{SHOW}{script}"))
            .env_clear()
            .env("PATH", PATH)
            .env("HOME", "/nowhere")
            .env("LC_ALL", "C.UTF-8")
            .env("SYSTEM", system)
            .env("NAMES", NAMES.join(" "));
        Some(bash)
    }
}

/// What was shown behind a word.
fn shown(said: &str, word: &str) -> BTreeMap<String, String> {
    let lines = said.lines().filter_map(|l| l.strip_prefix(word));
    let pairs = lines.filter_map(|l| l.trim_start().split_once('='));
    pairs.map(|(n, v)| (n.into(), v.into())).collect()
}

/// Everything under test below a folder of its own, where it would be found.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new() -> Self {
        let this = Self(tempfile::tempdir().expect("a folder"));
        make("install", &this.prefix(), Path::new(""));
        this
    }

    fn prefix(&self) -> PathBuf {
        self.0.path().join("opt/regall")
    }

    fn modules(&self) -> PathBuf {
        self.prefix().join("share/regall/modulefiles")
    }
}

/// Loaded, it works; unloaded, all is as it was.
const SESSION: &str = "show before
module use \"$MODULES\"
module load regall
show loaded
echo \"found $(command -v regall)\"
echo \"version $(regall --version)\"
echo \"mapped $(regall run -- grep -c libregall /proc/self/maps)\"
echo \"flags $(pkg-config --cflags regall)\"
echo \"manual $(man -w regall)\"
echo \"others $(man -w man)\"
module help regall 2>&1 | sed 's/^/help /'
module list 2>&1 | sed 's/^/list /'
module unload regall
show after
";

fn session(system: System, installed: &Installed, modules: &Path, manpath: Option<&str>) {
    let Some(mut shell) = system.shell(SESSION) else {
        return;
    };
    shell.env("MODULES", modules);
    shell.envs(manpath.map(|m| ("MANPATH", m)));
    let said = done(&mut shell);
    let told = |word: &str| {
        let mut lines = said.lines().filter_map(|l| l.strip_prefix(word));
        lines.next().unwrap_or("").trim().to_string()
    };
    let prefix = installed.prefix().display().to_string();
    assert_eq!(told("found"), format!("{prefix}/bin/regall"), "{said}");
    let version = done(Command::new(build::regall()).arg("--version"));
    assert_eq!(told("version"), version.trim(), "{said}");
    assert!(told("mapped").parse().is_ok_and(|n: u32| n > 0), "{said}");
    assert_eq!(told("flags"), format!("-I{prefix}/include"), "{said}");
    let manual = format!("{prefix}/share/man/man1/regall.1");
    assert_eq!(told("manual"), manual, "{said}");
    assert!(told("others").starts_with("/usr/share/man/"), "{said}");
    assert!(said.contains("help     regall run -- mpirun"), "{said}");
    assert!(
        said.contains(&format!("regall/{}", number(&version))),
        "{said}"
    );

    let (before, loaded, after) = (
        shown(&said, "before"),
        shown(&said, "loaded"),
        shown(&said, "after"),
    );
    assert_eq!(before.len(), NAMES.len(), "{said}");
    assert_eq!(before, after);
    let front = |name: &str, with: &str| match before[name].as_str() {
        "unset" => with.to_string(),
        there => format!("{with}:{there}"),
    };
    let mut expected = before.clone();
    expected.insert("PATH".into(), front("PATH", &format!("{prefix}/bin")));
    for (name, folder) in [
        ("PKG_CONFIG_PATH", "/lib/pkgconfig"),
        ("CMAKE_PREFIX_PATH", ""),
    ] {
        expected.insert(name.into(), format!("{prefix}{folder}"));
    }
    if manpath.is_some() {
        let with = front("MANPATH", &format!("{prefix}/share/man"));
        expected.insert("MANPATH".into(), with);
    }
    assert_eq!(loaded, expected);
}

/// `0.1.0` of `regall 0.1.0 (commit)`.
fn number(version: &str) -> &str {
    version.split_whitespace().nth(1).expect("a version")
}

#[test]
fn environment_modules_load_it() {
    let installed = Installed::new();
    let modules = installed.modules();
    session(System::Environment, &installed, &modules, None);
    let manpath = Some("/usr/share/man");
    session(System::Environment, &installed, &modules, manpath);
}

#[test]
fn lmod_loads_it() {
    let installed = Installed::new();
    let modules = installed.modules();
    session(System::Lmod, &installed, &modules, None);
    session(System::Lmod, &installed, &modules, Some("/usr/share/man"));
}

/// Where somebody has copied that file alone.
#[test]
fn lmod_loads_the_file_that_is_in_tcl() {
    let installed = Installed::new();
    let version = done(Command::new(build::regall()).arg("--version"));
    let alone = installed.0.path().join("modules");
    std::fs::create_dir_all(alone.join("regall")).expect("a folder");
    let file = Path::new("regall").join(number(&version));
    std::fs::copy(installed.modules().join(&file), alone.join(&file)).expect("a copy");
    session(System::Lmod, &installed, &alone, None);
}

/// A distribution's package: what is in /usr was found before, and is found afterwards.
#[test]
fn nothing_is_taken_from_usr() {
    let root = tempfile::tempdir().expect("a folder");
    make("install", Path::new("/usr"), root.path());
    for system in [System::Environment, System::Lmod] {
        let script = "show before\nmodule use \"$MODULES\"\nmodule load regall\nshow loaded\n\
                      module list 2>&1 | sed 's/^/list /'\nmodule unload regall\nshow after\n";
        let Some(mut shell) = system.shell(script) else {
            continue;
        };
        shell.env("MODULES", root.path().join("usr/share/regall/modulefiles"));
        let said = done(&mut shell);
        assert!(said.contains("regall/"), "{system:?}: {said}");
        let before = shown(&said, "before");
        assert_eq!(before["PATH"], PATH);
        assert_eq!(before, shown(&said, "loaded"), "{system:?}");
        assert_eq!(before, shown(&said, "after"), "{system:?}");
    }
}

/// Whoever installs, the module files and the prolog are for everyone.
#[test]
fn everyone_can_read_them() {
    let root = tempfile::tempdir().expect("a folder");
    let script = "umask 077 && exec make -s install PREFIX=/opt/regall DESTDIR=\"$1\"";
    done(
        Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(root.path())
            .current_dir(build::root())
            .env("CARGO_TARGET_DIR", build::target())
            .env_remove("MAKEFLAGS")
            .env_remove("MAKELEVEL"),
    );
    let share = root.path().join("opt/regall/share/regall");
    let version = done(Command::new(build::regall()).arg("--version"));
    let lua = format!("modulefiles/regall/{}.lua", number(&version));
    for (file, wanted) in [
        (format!("modulefiles/regall/{}", number(&version)), 0o644),
        (lua, 0o644),
        ("slurm/task-prolog".to_string(), 0o755),
        ("slurm/task-epilog".to_string(), 0o755),
        ("slurm".to_string(), 0o755),
        ("modulefiles/regall".to_string(), 0o755),
    ] {
        let mode = std::fs::metadata(share.join(&file))
            .expect(&file)
            .permissions();
        assert_eq!(mode.mode() & 0o777, wanted, "{file}");
    }
}
