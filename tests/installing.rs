//! What is installed works from where it is, and all of it goes again; the Debian
//! package, too.

use std::path::{Path, PathBuf};
use std::process::Command;

use regall_tests::installed::{self, done};
use regall_tests::{build, missing};

/// `make GOAL` with a prefix below `root`, of what is under test.
fn make(goal: &str, root: &Path) {
    installed::make(goal, Path::new("/opt/regall"), root);
}

struct Installed(tempfile::TempDir);

impl Installed {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        make("install", folder.path());
        Self(folder)
    }

    fn prefix(&self) -> PathBuf {
        self.0.path().join("opt/regall")
    }
}

/// All files and links below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => all.extend(files(&entry.path())),
            _ => all.push(entry.path()),
        }
    }
    all
}

/// A program that has the shim, as the installed command starts it.
fn runs_with_the_shim(regall: &Path) {
    let out = done(
        Command::new(regall)
            .args(["run", "--", "grep", "-c", "libregall", "/proc/self/maps"])
            .env_remove("LD_PRELOAD"),
    );
    assert_ne!(out.trim(), "0");
}

#[test]
fn uninstall_leaves_nothing() {
    let installed = Installed::new();
    runs_with_the_shim(&installed.prefix().join("bin/regall"));
    for path in [
        "lib/libregall.so",
        "share/man/man3/regall_lookup.3",
        "share/doc/regall/README.md",
        "share/doc/regall/SECURITY.md",
        "share/doc/regall/THIRD-PARTY-NOTICES",
        "share/doc/regall/sbom.cdx.json",
        "share/doc/regall/docs/troubleshooting.md",
        "share/regall/slurm/task-prolog",
        "share/regall/containers/cdi.json",
        "share/regall/kubernetes/mpijob.yaml",
        "share/regall/slurm/task-epilog",
    ] {
        assert!(installed.prefix().join(path).is_file(), "{path}");
    }
    make("uninstall", installed.0.path());
    assert_eq!(files(installed.0.path()), Vec::<PathBuf>::new());
}

/// `break lock` in gdb means the program's own function.
#[test]
fn debuggers_see_no_names_of_the_library() {
    let installed = Installed::new();
    let library = installed.prefix().join("lib/libregall.so");
    let sections = done(Command::new("readelf").arg("-SW").arg(&library));
    assert!(sections.contains(".dynsym"), "{sections}");
    assert!(
        !sections.contains(".symtab") && !sections.contains(".debug"),
        "{sections}"
    );
}

/// LIBDIR: all that says where the library is says so, and the command finds it.
#[test]
fn libraries_may_lie_elsewhere() {
    let folder = tempfile::tempdir().expect("a folder");
    // One of an earlier installation, which is not the one to take.
    let old = folder.path().join("opt/regall/lib/libregall.so");
    for place in ["lib64", "lib/x86_64-linux-gnu", "own/place"] {
        std::fs::create_dir_all(old.parent().expect("a folder")).expect("a folder");
        std::fs::write(&old, "no library").expect("a file");
        let libraries = format!("LIBDIR=/opt/regall/{place}");
        let make = |goal| {
            installed::make_with(goal, Path::new("/opt/regall"), folder.path(), &[&libraries])
        };
        make("install");
        let prefix = folder.path().join("opt/regall");
        runs_with_the_shim(&prefix.join("bin/regall"));
        let text = |path: &str| std::fs::read_to_string(prefix.join(path)).expect(path);
        let prolog = text("share/regall/slurm/task-prolog");
        assert!(
            prolog.contains(&format!("\"/opt/regall/{place}/libregall.so")),
            "{prolog}"
        );
        let pc = text(&format!("{place}/pkgconfig/regall.pc"));
        assert!(
            pc.contains(&format!("libdir=${{prefix}}/{place}\n")),
            "{pc}"
        );
        let cmake = prefix.join(place).join("cmake/regall");
        let config = text(&format!("{place}/cmake/regall/regall-config.cmake"));
        let include = config
            .split("CMAKE_CURRENT_LIST_DIR}/")
            .nth(2)
            .expect("a path");
        let header = cmake
            .join(include.split('"').next().expect("its end"))
            .join("regall.h");
        assert!(header.is_file(), "{}", header.display());
        make("uninstall");
        assert_eq!(files(folder.path()), std::slice::from_ref(&old));
    }
}

/// A library outside of the prefix is found, too, by its absolute path.
#[test]
fn libraries_may_lie_outside_of_the_prefix() {
    let folder = tempfile::tempdir().expect("a folder");
    let (prefix, place) = (
        folder.path().join("prefix"),
        folder.path().join("libraries"),
    );
    let libraries = format!("LIBDIR={}", place.display());
    let make = |goal| installed::make_with(goal, &prefix, Path::new(""), &[&libraries]);
    make("install");
    runs_with_the_shim(&prefix.join("bin/regall"));
    make("uninstall");
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
}

/// Folders are words of `rm -rf`: what the shell would make something else of is refused.
#[test]
fn folders_that_are_no_plain_paths_are_refused() {
    let asked = |goal: &str, variable: &str, value: &str, exported: bool| {
        let mut make = Command::new("make");
        make.args(["--no-print-directory", "-n", goal, "DESTDIR=/nowhere"])
            .current_dir(build::root())
            .env_remove("MAKEFLAGS");
        match exported {
            true => make.env(variable, value),
            // make(1) reads a dollar sign in a word's value as a reference.
            false => make.arg(format!("{variable}={}", value.replace('$', "$$"))),
        };
        make.output().expect("make")
    };
    for goal in ["install", "uninstall"] {
        for variable in ["PREFIX", "LIBDIR", "PYTHONDIR"] {
            for value in [
                "", "/*", "/a b", " /a", "/a ", "a", "/a;b", "/a$b", "/a'b", "/a\\b", "/a#b",
                "/(a)",
            ] {
                for exported in [false, true] {
                    // Of what is exported a dollar sign is a reference to nothing; what leads a
                    // word's value is no part of it.
                    if value.contains('$') && exported || value.starts_with(' ') && !exported {
                        continue;
                    }
                    let out = asked(goal, variable, value, exported);
                    let said = String::from_utf8_lossy(&out.stderr);
                    assert!(
                        !out.status.success() && out.stdout.is_empty() && said.contains(variable),
                        "{goal} {variable}={value:?}: {said}"
                    );
                }
            }
            let out = asked(goal, variable, "/opt/a-b_c.d+e,f=g@h:i~j%k/é", true);
            assert!(out.status.success(), "{goal} {variable}: {out:?}");
        }
    }
}

/// `cargo build` links the command as usual, where `make` links it statically.
#[test]
fn a_dynamic_command_is_not_installed() {
    let built = tempfile::tempdir().expect("a folder");
    let folder = tempfile::tempdir().expect("a folder");
    let release = built.path().join("release");
    std::fs::create_dir(&release).expect("a folder");
    let program = |name: &str, from: &Path| std::fs::copy(from, release.join(name)).expect(name);
    program(
        "libregall.so",
        &build::target().join("release/libregall.so"),
    );
    program("regall", Path::new("/bin/true"));
    let install = |word: &str| {
        Command::new("make")
            .args(["-s", "install", "PREFIX=/opt/regall", word])
            .arg(format!("PAGES={}", build::regall().display()))
            .arg(format!("DESTDIR={}", folder.path().display()))
            .current_dir(build::root())
            .env("CARGO_TARGET_DIR", built.path())
            .env_remove("MAKEFLAGS")
            .output()
            .expect("make")
    };
    let out = install("STATIC=yes");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success() && said.contains("is not static"),
        "{said}"
    );
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
    assert!(install("STATIC=").status.success());
}

const PROGRAM: &str =
    "#include <regall.h>\nint main(void) { return regall_version() != REGALL_VERSION; }\n";

#[test]
fn pkg_config_finds_it() {
    if missing("pkg-config") {
        return;
    }
    let installed = Installed::new();
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
    std::fs::write(&source, PROGRAM).expect("a source");
    let words = done(
        Command::new("pkg-config")
            .args(["--cflags", "--libs", "regall"])
            .env("PKG_CONFIG_PATH", installed.prefix().join("lib/pkgconfig"))
            .env("PKG_CONFIG_SYSROOT_DIR", installed.0.path()),
    );
    done(
        Command::new("gcc")
            .arg("-o")
            .arg(&program)
            .arg(&source)
            .args(words.split_whitespace()),
    );
    done(Command::new(&program).env("LD_LIBRARY_PATH", installed.prefix().join("lib")));
}

/// What an example prints when the installed command starts it with the shim.
fn example(installed: &Installed, program: &mut Command) -> String {
    let words = std::iter::once(program.get_program()).chain(program.get_args());
    let mut run = Command::new(installed.prefix().join("bin/regall"));
    run.args(["run", "--"])
        .args(words)
        .env_remove("LD_PRELOAD")
        .env("LD_LIBRARY_PATH", installed.prefix().join("lib"))
        .env("PYTHONPATH", installed.prefix().join("share/regall/python"))
        .env("PYTHONDONTWRITEBYTECODE", "1");
    done(&mut run)
}

/// What Python must not let happen to its own objects.
const PYTHON_REFUSES: &str = "
import os, sys, regall
R = regall.Region
constant, memory = b'constant', bytearray(b'x' * 200)
def refused(call, *arguments):
    try:
        call(*arguments)
    except BufferError:
        return True
    return False
kept = R.create([memory], R.READ | R.WRITE)
print('held', refused(memory.clear))
print('filled', refused(kept.read_into, [constant]), refused(R.create, [constant], R.WRITE))
print(kept.read_into([bytearray(8)]), constant.decode())
cookie = R.create([memory]).cookie
kept.destroy()
print('stays', refused(memory.clear))
R(cookie).destroy()
print('free', not refused(memory.clear))
memory += b'x' * 200
used = R.create([memory], flags=R.SINGLE_USE)
used.read(8)
used.destroy()
print('free', not refused(memory.clear))
sys.stdout.flush()
memory += b'x' * 200
child = R.create([memory])
if os.fork() == 0:
    try:
        child.destroy()
    except OSError as error:
        print(error.strerror, not refused(memory.clear), flush=True)
    os._exit(0)
os.wait()
print('held', refused(memory.clear), flush=True)
child.destroy()
";

#[test]
fn python_finds_it() {
    let installed = Installed::new();
    let said = example(
        &installed,
        Command::new("/usr/bin/python3").args(["-c", PYTHON_REFUSES]),
    );
    assert_eq!(
        said,
        "held True\nfilled True True\n8 constant\nstays True\nfree True\nfree True\n\
         Operation not permitted True\nheld True\n"
    );
    let folder = installed.prefix().join("share/doc/regall/examples");
    let said = example(
        &installed,
        Command::new("/usr/bin/python3").arg(folder.join("example.py")),
    );
    let wanted = [
        "version 1 active True",
        "registered: REGISTERED True",
        "opted out: OPTED_OUT",
        "opted in: REGISTERED",
        "counters: True True",
        "nowhere: None",
        "among the peers: True",
        "get: hello",
        "put: 5",
        "region: HELLOworld rld",
        "written: 5",
        "it has: Hallo",
        "gone: No such process",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
}

#[test]
fn fortran_finds_it() {
    if missing("gfortran") {
        return;
    }
    let installed = Installed::new();
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("example");
    let at = |path: &str| installed.prefix().join(path);
    done(
        Command::new("gfortran")
            .args(["-std=f2008", "-Wall", "-Werror", "-J"])
            .arg(folder.path())
            .arg("-o")
            .arg(&program)
            .arg(at("include/regall.f90"))
            .arg(at("share/doc/regall/examples/example.f90"))
            .arg("-L")
            .arg(at("lib"))
            .arg("-lregall"),
    );
    let wanted = [
        "version 1 active 1",
        "registered: T",
        "opted out: T",
        "counters: T",
        "get: 32 1.0 2.0 3.0 4.0",
        "region: 32 3.0 4.0 1.0 2.0",
    ];
    let said = example(&installed, &mut Command::new(program));
    assert_eq!(said.lines().collect::<Vec<_>>(), wanted);
}

/// Numbers and structures of regall.h that the other languages write down once more.
#[test]
fn other_languages_say_what_the_header_says() {
    let text = |path: &str| std::fs::read_to_string(build::root().join(path)).expect(path);
    let header = text("include/regall.h");
    let python = text("python/regall/__init__.py");
    let fortran = text("fortran/regall.f90");
    let reasons = header
        .split("enum regall_reason {")
        .nth(1)
        .expect("reasons");
    for line in reasons.split('}').next().expect("their end").lines() {
        let Some((name, number)) = line.trim().trim_end_matches(',').split_once(" = ") else {
            continue;
        };
        let short = name.trim_start_matches("REGALL_");
        assert!(
            python.contains(&format!("    {short} = {number}\n")),
            "{name}"
        );
        assert!(fortran.contains(&format!("{name} = {number}")), "{name}");
    }
    for name in ["range", "stats", "process", "done"] {
        let fields: Vec<_> = header
            .split(&format!("struct regall_{name} {{"))
            .nth(1)
            .and_then(|rest| rest.split("};").next())
            .expect(name)
            .lines()
            .filter_map(|line| line.split(';').next()?.split_whitespace().nth(1))
            .collect();
        assert!(fields.len() >= 3, "{fields:?}");
        let class = format!("class {}{}(_Struct)", name[..1].to_uppercase(), &name[1..]);
        let body = python
            .split(&class)
            .nth(1)
            .and_then(|rest| rest.split("class ").next());
        let body = body.expect(&class);
        let places = fields
            .iter()
            .map(|f| body.find(&format!("\"{f}\"")).expect(f));
        assert!(
            places.clone().zip(places.skip(1)).all(|(a, b)| a < b),
            "{name}"
        );
        let kind = if name == "stats" { "statistics" } else { name };
        let fortran = fortran.split(&format!("bind(c) :: regall_{kind}\n")).nth(1);
        let body = fortran
            .and_then(|rest| rest.split("end type").next())
            .expect(name);
        let words: Vec<_> = body
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|word| fields.contains(word))
            .collect();
        assert_eq!(words, fields, "{name}");
    }
}

#[test]
fn cmake_finds_it() {
    if missing("cmake") {
        return;
    }
    let installed = Installed::new();
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("a.c"), PROGRAM).expect("a source");
    let configure = |wanted: &str| {
        let lists = format!(
            "cmake_minimum_required(VERSION 3.10)\nproject(a C)\n\
             find_package(regall {wanted} REQUIRED)\nadd_executable(a a.c)\n\
             target_link_libraries(a PRIVATE regall::regall)\n"
        );
        std::fs::write(at("CMakeLists.txt"), lists).expect("a list");
        let mut command = Command::new("cmake");
        command
            .arg("-S")
            .arg(folder.path())
            .arg("-B")
            .arg(at("build"));
        command.arg(format!(
            "-DCMAKE_PREFIX_PATH={}",
            installed.prefix().display()
        ));
        command
    };
    for wanted in ["0.2", "1", "0.1.999"] {
        let out = configure(wanted).output().expect("cmake");
        assert!(!out.status.success(), "{wanted} was found");
    }
    for wanted in ["0", "0.1", ""] {
        done(&mut configure(wanted));
    }
    done(Command::new("cmake").arg("--build").arg(at("build")));
    done(&mut Command::new(at("build/a")));
}

#[test]
fn manual_pages_are_clean() {
    let installed = Installed::new();
    let pages = files(&installed.prefix().join("share/man"));
    assert!(pages.len() > 20);
    if !missing("mandoc") {
        for page in &pages {
            let mut lint = Command::new("mandoc");
            lint.args(["-T", "lint", "-W", "warning"]).arg(page);
            assert_eq!(done(&mut lint), "");
        }
    }
    if !missing("man") {
        for page in &pages {
            let mut man = Command::new("man");
            man.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"])
                .arg(page);
            man.env("LC_ALL", "C.UTF-8")
                .current_dir(installed.prefix().join("share/man"));
            let out = man.output().expect("man");
            assert_eq!(
                String::from_utf8_lossy(&out.stderr),
                "",
                "{}",
                page.display()
            );
            assert!(out.stdout.len() > 300, "{}", page.display());
        }
    }
}

#[test]
fn shells_complete() {
    let installed = Installed::new();
    let share = installed.prefix().join("share");
    let bash = share.join("bash-completion/completions/regall");
    let offered = |words: &[&str]| {
        let script = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                      _regall regall \"${@: -1}\" \"${@: -2:1}\"; echo \"${COMPREPLY[@]}\"";
        let mut shell = Command::new("bash");
        shell.args(["-c", script, "bash"]).arg(&bash);
        done(shell.args(words))
    };
    assert_eq!(offered(&["regall", "ver"]), "verify\n");
    let values = offered(&["regall", "run", "--pin", ""]);
    assert_eq!(values, "auto onfault populate off\n");
    if !missing("zsh") {
        done(
            Command::new("zsh")
                .arg("-n")
                .arg(share.join("zsh/site-functions/_regall")),
        );
    }
    if !missing("fish") {
        let file = share.join("fish/vendor_completions.d/regall.fish");
        let home = tempfile::tempdir().expect("a folder");
        let script = "source $argv[1]; complete -C 'regall ver'; complete -C 'regall run --pin on'";
        let mut fish = Command::new("fish");
        fish.args(["--no-config", "-c", script])
            .arg(file)
            .env("HOME", home.path());
        let offered = done(&mut fish);
        let mut words = offered.lines().filter_map(|l| l.split('\t').next());
        assert_eq!(
            (words.next(), words.next()),
            (Some("verify"), Some("onfault"))
        );
    }
}

/// Installed into a root of its own, run, and purged; and packed twice, it is the same.
#[test]
fn the_debian_package() {
    if missing("dpkg-buildpackage") || missing("dh") {
        return;
    }
    let pack = || {
        let mut make = Command::new(build::script("make-deb"));
        make.env("CARGO_TARGET_DIR", build::target());
        let path = PathBuf::from(done(make.env_remove("MAKEFLAGS")).trim());
        let bytes = std::fs::read(&path).expect("the package");
        (path, bytes)
    };
    let (package, bytes) = pack();
    assert!(pack().1 == bytes, "packed twice, it is not the same");
    if !missing("lintian") {
        let mut lintian = Command::new("lintian");
        lintian.args(["--allow-root", "--fail-on", "error,warning"]);
        done(lintian.arg(&package));
    }
    // What has been packed is kept from the next one.
    let folder = tempfile::tempdir().expect("a folder");
    let kept = folder.path().join("regall.deb");
    std::fs::copy(package, &kept).expect("a copy");
    let root = folder.path().join("root");
    std::fs::create_dir_all(root.join("var/lib/dpkg/info")).expect("folders");
    std::fs::create_dir_all(root.join("var/lib/dpkg/updates")).expect("folders");
    std::fs::write(root.join("var/lib/dpkg/status"), "").expect("a file");
    let dpkg = |arguments: &[&str]| {
        let mut dpkg = Command::new("dpkg");
        dpkg.arg(format!("--root={}", root.display()));
        // (There is no shell in that root to run scripts with.)
        dpkg.args(["--force-not-root", "--force-depends", "--log=/dev/null"])
            .arg("--force-script-chrootless")
            .args(arguments);
        done(&mut dpkg)
    };
    dpkg(&["-i", kept.to_str().expect("a path")]);
    let version = done(Command::new(root.join("usr/bin/regall")).arg("--version"));
    assert_eq!(
        version,
        done(Command::new(build::regall()).arg("--version"))
    );
    runs_with_the_shim(&root.join("usr/bin/regall"));
    let text = |path: &str| std::fs::read_to_string(root.join(path)).expect(path);
    let prolog = text("usr/share/regall/slurm/task-prolog");
    assert!(prolog.contains("\"/usr/lib/libregall.so"), "{prolog}");
    let number = version.split(' ').nth(1).expect("a version");
    let module = text(&format!("usr/share/regall/modulefiles/regall/{number}"));
    assert!(module.contains("set prefix {/usr}"), "{module}");
    let library = std::fs::read(root.join("usr/lib/libregall.so")).expect("the library");
    let wanted = version.trim().as_bytes();
    assert!(
        library.windows(wanted.len()).any(|w| w == wanted),
        "{version} is not in the library"
    );
    // As root's Python leaves it.
    let cache = root.join("usr/lib/python3/dist-packages/regall/__pycache__");
    std::fs::create_dir(&cache).expect("a folder");
    std::fs::write(cache.join("__init__.cpython-311.pyc"), "").expect("a file");
    dpkg(&["--purge", "regall"]);
    assert_eq!(files(&root.join("usr")), Vec::<PathBuf>::new());
    assert!(!root.join("usr/share/doc/regall").exists());
}
