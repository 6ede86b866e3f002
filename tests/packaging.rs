//! What packagers and releases start from: the scripts that pack, what they refuse, and that
//! recipes agree with the sources.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use regall_tests::installed::done;
use regall_tests::{build, skip};

/// A folder of programs for PATH: those of the system that are named, and scripts of ours.
fn programs(folder: &Path, real: &[&str], scripts: &[(&str, &str)]) -> PathBuf {
    let path = folder.join("programs");
    std::fs::create_dir(&path).expect("a folder");
    for name in real {
        let found = done(Command::new("sh").args(["-c", "command -v \"$0\"", name]));
        std::os::unix::fs::symlink(found.trim(), path.join(name)).expect(name);
    }
    for (name, text) in scripts {
        let script = path.join(name);
        std::fs::write(&script, format!("#!/bin/sh\n{text}\n")).expect(name);
        done(Command::new("chmod").arg("+x").arg(&script));
    }
    path
}

/// How a script ended, and all that it said.
fn ended(out: &Output) -> (Option<i32>, String) {
    let text = [&out.stdout[..], &out.stderr[..]].concat();
    (
        out.status.code(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// A release that can't be had is no pass, and hides no failure of another one.
#[test]
fn a_release_that_is_absent_hides_no_failure() {
    let folder = tempfile::tempdir().expect("a folder");
    let release = folder.path().join("target/release");
    std::fs::create_dir_all(&release).expect("a folder");
    for name in ["regall", "libregall.so"] {
        std::fs::write(release.join(name), "").expect(name);
    }
    let path = programs(
        folder.path(),
        &[],
        &[
            ("id", "echo 0"),
            ("apt-get", "echo http://localhost/debian/"),
            (
                "mmdebstrap",
                "case \"$*\" in *absent*) exit 1;; esac\n\
                 for word; do case $word in */releases/*) mkdir -p \"$word\";; esac; done",
            ),
            // Mounting works, and what would be run in the root ends like this.
            ("unshare", "exit 0"),
            ("env", "case \"$*\" in */releases/bad*) exit 3;; esac"),
        ],
    );
    let path = format!(
        "{}:{}",
        path.display(),
        std::env::var("PATH").expect("PATH")
    );
    let tried = |releases: &[&str]| {
        let mut script = Command::new(build::script("try-releases"));
        script.args(releases).env("PATH", &path);
        script.env("CARGO_TARGET_DIR", folder.path().join("target"));
        ended(&script.output().expect("the script"))
    };
    assert_eq!(tried(&["good"]).0, Some(0), "{:?}", tried(&["good"]));
    assert_eq!(tried(&["absent"]).0, Some(77));
    for order in [["bad", "absent"], ["absent", "bad"], ["bad", "good"]] {
        assert_eq!(tried(&order).0, Some(1), "{order:?}");
    }
    let (code, said) = tried(&["good", "absent"]);
    assert!(
        code == Some(77) && said.contains("not to be had: absent"),
        "{said}"
    );
}

/// What was built here, and the C programs, do on Debian 13 (glibc 2.41) what they do without the
/// shim. `make soak` compiles them there, and tries three more releases.
#[test]
fn a_newer_release_of_debian() {
    let programs = build::program("mmap");
    let mut script = Command::new(build::script("try-releases"));
    script
        .arg("--built")
        .arg(programs.parent().expect("a folder"));
    script
        .arg("trixie")
        .env("CARGO_TARGET_DIR", build::target());
    let (code, said) = ended(&script.output().expect("the script"));
    if code == Some(77) {
        return skip(said.lines().last().unwrap_or("it says nothing"));
    }
    assert_eq!(code, Some(0), "{said}");
    println!("{said}");
}

/// A tree that lies in another repository has no commit of its own to archive.
#[test]
fn an_archive_is_of_this_repository_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = r#"set -e
        mkdir -p "$1/inner/scripts"; cp scripts/make-dist "$1/inner/scripts/"; cp Cargo.toml "$1/inner/"
        cd "$1"; git init -q
        git -c user.name=a -c user.email=a@b commit -q --allow-empty -m another
        inner/scripts/make-dist"#;
    let mut bash = Command::new("bash");
    bash.args(["-c", script, "bash"]).arg(folder.path());
    bash.env("CARGO_TARGET_DIR", folder.path().join("target"));
    let (code, said) = ended(&bash.current_dir(build::root()).output().expect("bash"));
    assert!(
        code == Some(1) && said.contains("no git repository"),
        "{said}"
    );
}

/// It names the package that is missing.
#[test]
fn packing_for_debian_says_what_it_needs() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = programs(folder.path(), &["bash", "dirname", "realpath"], &[]);
    let mut script = Command::new("bash");
    script.arg(build::script("make-deb")).env("PATH", path);
    script.env("CARGO_TARGET_DIR", build::target());
    let (code, said) = ended(&script.output().expect("the script"));
    assert!(
        code == Some(1) && said.contains("apt install dpkg-dev"),
        "{said}"
    );
}

/// `install` of Spack's recipe, with a stand-in for Spack, gives a command that works.
#[test]
fn the_recipe_of_spack_installs() {
    let mut script = Command::new(build::script("check-packaging"));
    script.arg("spack").env("CARGO_TARGET_DIR", build::target());
    let said = done(script.env_remove("MAKEFLAGS"));
    assert!(said.contains("spack: installed, and runs"), "{said}");
}

/// What programs of others read directories with can be published: versions, licence, page and
/// documents are there, and what is packed builds.
#[test]
fn the_readers_crates_can_be_published() {
    let mut script = Command::new(build::script("check-packaging"));
    script
        .arg("crates")
        .env("CARGO_TARGET_DIR", build::target());
    let said = done(script.env_remove("MAKEFLAGS"));
    assert!(
        said.contains("regall-reader are packed, and build"),
        "{said}"
    );
}

/// One command puts page, address and date where they belong; without it nothing is ready.
#[test]
fn a_release_is_prepared() {
    if !build::root().join(".git").exists() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let script = r#"set -e
        git ls-files -z | tar --null -T - -c | tar -x -C "$1"
        cd "$1"; git init -q; git add -A
        if scripts/check-packaging release >before; then exit 3; fi
        grep -q 'is no address' before
        scripts/prepare-release https://example.org/regall someone@example.org 2030-02-01 >changes
        scripts/check-packaging release
        sed -i 's/2030-02-01/2030-02-02/' CHANGELOG.md
        if scripts/check-packaging release >after; then exit 4; fi
        sed -i 's/^Version: .*/Version: 7/' packaging/rpm/regall.spec
        if scripts/check-packaging versions >>after; then exit 5; fi
        cat after"#;
    let said = done(
        Command::new("bash")
            .args(["-c", script, "bash"])
            .arg(folder.path())
            .current_dir(build::root()),
    );
    let lines: Vec<_> = said.lines().collect();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        lines[0],
        format!("release: {version} of 2030-02-01, at https://example.org/regall")
    );
    assert!(lines[1].contains("another date"), "{said}");
    assert!(lines[2].contains("has not the version"), "{said}");
}

/// What is built names itself by its sources: of each crate in it.
#[test]
fn the_stamp_knows_every_crate() {
    let text = |path: &Path| std::fs::read_to_string(path).expect("a file");
    let stamp = text(&build::root().join("stamp.rs"));
    let mut crates = vec![build::root().join("cli"), build::root().to_path_buf()];
    let mut at = 0;
    while let Some(folder) = crates.get(at).cloned() {
        let manifest = text(&folder.join("Cargo.toml"));
        let needed = manifest.split("\n[dependencies]").nth(1);
        let needed = needed.unwrap_or("").split("\n[").next().unwrap_or("");
        for path in needed.split("path = \"").skip(1) {
            let path = path.split('"').next().unwrap_or("");
            let path = folder.join(path).canonicalize().expect("a crate");
            if !crates.contains(&path) {
                crates.push(path);
            }
        }
        at += 1;
    }
    assert!(crates.len() > 8, "{crates:?}");
    for folder in crates.iter().filter(|c| *c != build::root()) {
        let name = folder.file_name().and_then(|n| n.to_str()).expect("a name");
        assert!(stamp.contains(&format!("    \"{name}\",\n")), "{name}");
    }
}
