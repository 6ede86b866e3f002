//! Containers: what `make install` has for runtimes, and ranks that are in one each.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regall_tests::installed::{self, done};
use regall_tests::mode::launch;
use regall_tests::{build, missing};
use serde_json::{json, Value};

/// What is for containers is data, and a hook that runs as the user: none runs as root, on files
/// that an image has made.
#[test]
fn nothing_runs_as_root_for_a_container() {
    let folder = tempfile::tempdir().expect("a folder");
    installed::make("install", &folder.path().join("regall"), Path::new(""));
    let files = fs::read_dir(folder.path().join("regall/share/regall/containers"));
    let files = files.expect("a folder").flatten();
    let mut names: Vec<_> = files.map(|e| e.file_name()).collect();
    names.sort();
    assert_eq!(names, ["cdi.json", "enroot-hook"]);
}

/// How often a program in a container of crun's has the library mapped, if the runtime carries out
/// these edits of a CDI device's.
fn mapped_in_a_container(work: &Path, edits: &Value) -> u32 {
    let bind = |from: &Value, to: &Value, options: &Value| json!({"type": "bind", "source": from, "destination": to, "options": options});
    let mut mounts = vec![
        json!({"destination": "/proc", "type": "proc", "source": "proc"}),
        bind(&json!("/usr"), &json!("/usr"), &json!(["rbind", "ro"])),
    ];
    let list = |name: &str| edits[name].as_array().cloned().unwrap_or_default();
    for m in list("mounts") {
        mounts.push(bind(&m["hostPath"], &m["containerPath"], &m["options"]));
    }
    let env: Vec<_> = [json!("PATH=/usr/bin:/bin")]
        .into_iter()
        .chain(list("env"))
        .collect();
    let kinds = ["pid", "mount", "ipc", "uts"];
    let namespaces: Vec<_> = kinds.iter().map(|kind| json!({"type": kind})).collect();
    let config = json!({
        "ociVersion": "1.0.0",
        "process": {
            "user": {"uid": 0, "gid": 0}, "cwd": "/", "env": env,
            "args": ["sh", "-c", "grep -c libregall /proc/self/maps || :"],
        },
        "root": {"path": "rootfs", "readonly": false},
        "mounts": mounts,
        "linux": {"namespaces": namespaces},
    });
    fs::write(work.join("config.json"), config.to_string()).expect("a file");
    // crun has no use for control groups here, and refuses to start among those of both versions.
    let script = "mount -t cgroup2 cgroup2 /sys/fs/cgroup &&
        exec crun --root \"$PWD/state\" --cgroup-manager=disabled run \"regall-$$\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "--propagation", "private", "bash", "-c", script]);
    let said = done(command.current_dir(work).env_remove("LD_PRELOAD"));
    said.trim().parse().expect("a number")
}

/// What `cdi.json` says is enough for a program in a container.
#[test]
fn a_device_brings_it_into_containers() {
    // SAFETY: a system call without memory.
    if unsafe { libc::geteuid() } != 0 {
        return regall_tests::skip("containers are made as root");
    }
    if missing("crun") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("opt/regall");
    installed::make("install", &prefix, Path::new(""));
    let root = folder.path().join("work/rootfs");
    for name in ["etc", "proc", "usr", "dev", "sys"] {
        fs::create_dir_all(root.join(name)).expect("a folder");
    }
    for name in ["lib", "lib64", "bin", "sbin"] {
        let usr = Path::new("usr").join(name);
        std::os::unix::fs::symlink(usr, root.join(name)).expect("a link");
    }
    let cdi = fs::read_to_string(prefix.join("share/regall/containers/cdi.json"));
    let cdi: Value = serde_json::from_str(&cdi.expect("a file")).expect("JSON");
    let edits = &cdi["devices"][0]["containerEdits"];
    let work = folder.path().join("work");
    assert_eq!(mapped_in_a_container(&work, &Value::Null), 0);
    assert!(mapped_in_a_container(&work, edits) > 0);
}

/// The hook of Enroot's appends to the lists that Enroot gives it, for a container that asks. What
/// an image has in its environment is text, and becomes no second variable.
#[test]
fn enroots_hook_appends() {
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("regall");
    installed::make("install", &prefix, Path::new(""));
    let (environ, mounts) = (folder.path().join("environ"), folder.path().join("mounts"));
    let hook = |before: &str| {
        fs::write(&environ, before).expect("a file");
        fs::write(&mounts, "").expect("a file");
        let mut command = Command::new(prefix.join("share/regall/containers/enroot-hook"));
        command
            .env("ENROOT_ENVIRON", &environ)
            .env("ENROOT_MOUNTS", &mounts);
        done(&mut command);
        let read = |file: &Path| fs::read_to_string(file).expect("a file");
        let after = read(&environ);
        let more = after.strip_prefix(before).expect("what was there");
        (more.to_string(), read(&mounts).lines().count())
    };
    let library = format!("LD_PRELOAD={}/lib/libregall.so", prefix.display());
    assert_eq!(hook("A=REGALL=1\n"), (String::new(), 0));
    assert_eq!(hook("REGALL=1\n"), (format!("{library}\n"), 2));
    assert_eq!(
        hook("REGALL=1\nLD_PRELOAD=/a/libregall.so\n"),
        (String::new(), 2)
    );
    let odd = r"/a b.so\nREGALL_LOG_FILE=/x\c";
    let said = hook(&format!(
        "LD_PRELOAD=/first.so\nREGALL=1\nLD_PRELOAD={odd}\n"
    ));
    assert_eq!(said, (format!("{library}:{odd}\n"), 2));
}

/// A rank in a container of crun's: it has the machine's processes and /dev/shm, as ranks of a node
/// must, and a filter that forbids process_vm_readv. What follows `IN_` is for the rank alone.
const RANK: &str = r#"#!/usr/bin/python3
import json, os, sys, tempfile
work, top = sys.argv[1:3]
bundle = tempfile.mkdtemp(dir=work)
os.mkdir(bundle + "/rootfs")
for name in ("lib", "lib64", "bin", "sbin"):
    os.symlink("usr/" + name, bundle + "/rootfs/" + name)
def bound(path, how):
    return {"destination": path, "type": "bind", "source": path, "options": ["rbind", how]}
ours = {n[3:]: v for n, v in os.environ.items() if n.startswith("IN_")}
env = {n: v for n, v in os.environ.items() if not n.startswith("IN_")} | ours
rights = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_SETUID", "CAP_SETGID"]
calls = ["process_vm_readv", "process_vm_writev", "kcmp", "ptrace"]
config = {
    "ociVersion": "1.0.0",
    "process": {"user": {"uid": 0, "gid": 0}, "cwd": "/", "args": sys.argv[3:],
                "env": [n + "=" + v for n, v in env.items()],
                "capabilities": {n: rights for n in ("bounding", "effective", "permitted")}},
    "root": {"path": "rootfs", "readonly": False},
    "mounts": [bound(p, "rw") for p in ("/proc", "/dev", "/sys", "/tmp", work)]
              + [bound(p, "ro") for p in ("/usr", "/etc", top)],
    "linux": {"namespaces": [{"type": "mount"}],
              "seccomp": {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
                          "syscalls": [{"names": calls, "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}},
}
with open(bundle + "/config.json", "w") as file:
    json.dump(config, file)
os.chdir(bundle)
os.execvp("crun", ["crun", "--root", work + "/state", "--cgroup-manager=disabled", "run",
                   os.path.basename(bundle)])
"#;

/// Open MPI's two ranks, each in a container: its own copies are refused there, a line for each.
/// With the library they succeed.
#[test]
fn two_ranks_in_two_containers() {
    // SAFETY: a system call without memory.
    if unsafe { libc::geteuid() } != 0 {
        return regall_tests::skip("containers are made as root");
    }
    let needed = ["crun", "mpirun.openmpi", "mpicc.openmpi"];
    if needed.iter().any(|program| missing(program)) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let rank = folder.path().join("rank");
    std::fs::write(&rank, RANK).expect("a script");
    std::fs::set_permissions(&rank, PermissionsExt::from_mode(0o755)).expect("a mode");
    let statistics = folder.path().join("%p.json");
    let job = |shim: bool| {
        let mut command = Command::new("unshare");
        command.args(["-m", "--propagation", "private", "bash", "-c"]);
        command.arg("mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec \"$@\"");
        command.args(["bash", "mpirun.openmpi", "--oversubscribe"]);
        command.args(["--bind-to", "none", "-np", "2"]);
        command.args(["--mca", "pml", "ob1", "--mca", "btl", "self,vader"]);
        command.arg(&rank).arg(folder.path()).arg(build::target());
        command.arg(build::program("exchange.openmpi")).arg("1");
        if shim {
            command
                .env("IN_REGALL", "1")
                .env("IN_LD_PRELOAD", build::shim())
                .env("IN_REGALL_STATS_FILE", &statistics);
        }
        let done = launch(&mut command, Duration::from_secs(120));
        done.must_succeed();
        let said = format!("{}{}", done.stdout, done.stderr);
        assert!(said.contains("exchange: 2 ranks, 0 errors"), "{said}");
        said.matches("Read -1, expected").count()
    };
    assert!(job(false) > 0, "the containers forbid nothing");
    assert_eq!(job(true), 0);
    let files = std::fs::read_dir(folder.path())
        .expect("a folder")
        .flatten();
    let texts = files.filter_map(|e| std::fs::read_to_string(e.path()).ok());
    let told = texts.filter_map(|t| serde_json::from_str::<serde_json::Value>(&t).ok());
    let copied: Vec<_> = told
        .filter_map(|t| t["counters"]["copy_cma_bytes"].as_u64())
        .collect();
    assert_eq!(copied.len(), 2, "{copied:?}");
    assert!(copied.iter().all(|bytes| *bytes > 8 << 20), "{copied:?}");
}
