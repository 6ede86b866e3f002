//! Containers: the hooks of `make install` under a runtime, and ranks that are in one each.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use regall_tests::installed::{self, done};
use regall_tests::mode::launch;
use regall_tests::{build, missing};

/// Containers of crun's with the hook, in the folder that is the working directory: how often a
/// program in it has the library mapped.
const CONTAINERS: &str = r#"
set -e
# crun has no use for control groups here, and refuses to start among those of both versions.
mount -t cgroup2 cgroup2 /sys/fs/cgroup
prefix=$1
mkdir -p rootfs/etc rootfs/proc rootfs/usr rootfs/dev rootfs/sys tmp
for l in lib lib64 bin sbin; do ln -sfn usr/$l rootfs/$l; done
# container NAME [VARIABLE]: mappings of the library in a program of a container's.
container() {
    cat >config.json <<END
{
    "ociVersion": "1.0.0",
    "process": {
        "user": {"uid": 0, "gid": 0}, "cwd": "/", "args": ["grep", "-c", "libregall", "/proc/self/maps"],
        "env": ["PATH=/usr/bin:/bin"${2:+, \"$2\"}]
    },
    "root": {"path": "rootfs", "readonly": false},
    "mounts": [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/usr", "type": "bind", "source": "/usr", "options": ["rbind", "ro"]}
    ],
    "linux": {"namespaces": [{"type": "pid"}, {"type": "mount"}, {"type": "ipc"}, {"type": "uts"}]},
    "hooks": {"createContainer": [{"path": "$prefix/share/regall/containers/oci-hook", "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=$PWD/tmp"]}]}
}
END
    echo "$1: $(crun --root "$PWD/state" --cgroup-manager=disabled run "regall-$1-$$" 2>said)"
}
container without
container with REGALL=1
# The image's own list is kept.
echo /usr/lib/libnone.so >rootfs/etc/ld.so.preload
container listed REGALL=1
cat rootfs/etc/ld.so.preload
# A link could lead out of the container.
rm -rf "rootfs${prefix%%/regall}"
mkdir -p "rootfs$(dirname "${prefix%%/regall}")" outside
ln -s "$PWD/outside" "rootfs${prefix%%/regall}"
container linked REGALL=1
ls outside
# The hook leaves nothing of its own, on whichever way it ends.
ls tmp
"#;

/// The hook brings what is installed into the containers that ask for it, and into no other one,
/// and out of none.
#[test]
fn the_hook_brings_it_into_containers() {
    // SAFETY: a system call without memory.
    if unsafe { libc::geteuid() } != 0 {
        return regall_tests::skip("the hook is run as root");
    }
    if missing("crun") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let prefix = folder.path().join("opt/regall");
    installed::make("install", &prefix, Path::new(""));
    let work = folder.path().join("work");
    std::fs::create_dir(&work).expect("a folder");
    let mut command = Command::new("unshare");
    command
        .args([
            "-m",
            "--propagation",
            "private",
            "bash",
            "-c",
            CONTAINERS,
            "bash",
        ])
        .arg(&prefix)
        .current_dir(&work)
        .env_remove("LD_PRELOAD");
    let said = done(&mut command);
    let told = std::fs::read_to_string(work.join("said")).unwrap_or_default();
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 5, "{said}{told}");
    assert_eq!(lines[0], "without: 0", "{told}");
    assert!(
        !lines[1].ends_with(": 0") && lines[1].starts_with("with: "),
        "{said}{told}"
    );
    assert_eq!(lines[2], lines[1].replace("with", "listed"), "{told}");
    assert_eq!(lines[3..], ["/usr/lib/libnone.so", "linked: 0"], "{told}");
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
