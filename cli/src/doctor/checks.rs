//! One function a thing that matters, each from files alone: nothing is
//! changed, locked or opened for writing.

use std::ffi::CString;
use std::fs;
use std::path::Path;

use regall_reader::FOLDER_ROOT;

use super::{Finding, Standing};
use crate::{library, units};
use Standing::{Absent, Good, Limits, NotChecked, Unknown};

/// Room for the directories of a node full of ranks.
const SHM_ENOUGH: u64 = 64 << 20;
/// The kernel's default for vm.max_map_count; pinning parts of mappings splits
/// them, so less than this is soon too little.
const MAPS_ENOUGH: u64 = 65530;

/// All of them, in the order in which they matter.
pub fn all() -> Vec<Finding> {
    vec![
        shim(),
        kernel(),
        memlock(),
        cgroup(),
        max_map_count(),
        shm(),
        huge_pages(),
        yama(),
        infiniband(),
        odp(),
        knem(),
    ]
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_string())
}

fn shim() -> Finding {
    match library::find() {
        Ok(path) => Finding::new("libregall.so", Good, path.display().to_string()),
        Err(_) => Finding::new(
            "libregall.so",
            Limits,
            "neither beside this command nor in ../lib of it",
        )
        .mend("cargo build --release"),
    }
}

fn kernel() -> Finding {
    let name = "kernel";
    let Some(release) = read("/proc/sys/kernel/osrelease") else {
        return Finding::new(name, Unknown, "/proc/sys/kernel/osrelease can't be read");
    };
    let mut numbers = release
        .split(['.', '-'])
        .map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 18) {
        return Finding::new(name, Good, release);
    }
    // MADV_DONTNEED on locked memory needs MADV_DONTNEED_LOCKED, 5.18.
    let found =
        format!("{release}: before 5.18, an application's madvise costs an unpin and a pin");
    Finding::new(name, Limits, found)
        .mend("sudo apt-get install -t bookworm-backports linux-image-amd64 # Debian; then reboot")
}

fn memlock() -> Finding {
    const CAP_IPC_LOCK: u32 = 14;
    let name = "RLIMIT_MEMLOCK";
    let limits = read("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|l| l.strip_prefix("Max locked memory"));
    let mut fields = line.unwrap_or_default().split_ascii_whitespace();
    let (Some(soft), Some(hard)) = (fields.next(), fields.next()) else {
        return Finding::new(name, Unknown, "/proc/self/limits can't be read");
    };
    let amount = |text: &str| text.parse().map_or(text.to_string(), units::bytes);
    let found = format!("soft {}, hard {}", amount(soft), amount(hard));
    let status = read("/proc/self/status").unwrap_or_default();
    let caps = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let caps = caps.and_then(|c| u64::from_str_radix(c.trim(), 16).ok());
    if caps.is_some_and(|c| c >> CAP_IPC_LOCK & 1 != 0) {
        return Finding::new(name, Good, format!("{found}; CAP_IPC_LOCK lifts it"));
    }
    match (soft, hard) {
        ("unlimited", _) => Finding::new(name, Good, found),
        (_, "unlimited") => Finding::new(name, Limits, found).mend("ulimit -l unlimited"),
        _ => Finding::new(name, Limits, found).mend(
            "echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/regall.conf \
             # then log in anew; for a service: LimitMEMLOCK=infinity",
        ),
    }
}

fn cgroup() -> Finding {
    let name = "cgroup memory";
    let Some(groups) = read("/proc/self/cgroup") else {
        return Finding::new(name, NotChecked, "/proc/self/cgroup can't be read");
    };
    let limits = groups.lines().flat_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next().unwrap_or(""), parts.next().unwrap_or("/"));
        let (mount, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            c if c.split(',').any(|c| c == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => return Vec::new(),
        };
        // A limit further up binds as well.
        let up = Path::new(path.trim_start_matches('/')).ancestors();
        let files = up.map(|p| Path::new(mount).join(p).join(file));
        files.filter_map(|f| read(f)?.parse::<u64>().ok()).collect()
    });
    // Version 1 writes a number near 2^63 for none.
    match limits.min().filter(|&l| l < 1 << 60) {
        None => Finding::new(name, Good, "no limit"),
        Some(limit) => {
            let found = format!("{}: the budget keeps below it", units::bytes(limit));
            Finding::new(name, Good, found)
        }
    }
}

fn max_map_count() -> Finding {
    let name = "max_map_count";
    let Some(count) = read("/proc/sys/vm/max_map_count").and_then(|c| c.parse::<u64>().ok()) else {
        return Finding::new(name, Unknown, "/proc/sys/vm/max_map_count can't be read");
    };
    match count >= MAPS_ENOUGH {
        true => Finding::new(name, Good, count.to_string()),
        false => Finding::new(name, Limits, count.to_string())
            .mend(format!("sudo sysctl vm.max_map_count={MAPS_ENOUGH}")),
    }
}

fn shm() -> Finding {
    let name = FOLDER_ROOT;
    let Some(free) = free_space(FOLDER_ROOT) else {
        return Finding::new(name, Limits, "not there: nothing can be published")
            .mend("sudo mount -t tmpfs -o mode=1777 tmpfs /dev/shm");
    };
    if !accessible(FOLDER_ROOT, libc::W_OK | libc::X_OK) {
        return Finding::new(name, Limits, "not writable: nothing can be published")
            .mend("sudo chmod 1777 /dev/shm");
    }
    let found = format!("writable, {} free", units::bytes(free));
    match free >= SHM_ENOUGH {
        true => Finding::new(name, Good, found),
        false => Finding::new(name, Limits, found).mend(
            "sudo mount -o remount,size=50% /dev/shm # in a container: docker run --shm-size=1g",
        ),
    }
}

fn huge_pages() -> Finding {
    let name = "huge pages";
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let Some(setting) = read(path) else {
        return Finding::new(name, Absent, "this kernel has no transparent huge pages");
    };
    let found = format!("transparent: {setting}");
    match setting.contains("[never]") {
        false => Finding::new(name, Good, found),
        true => Finding::new(name, Limits, found).mend(format!("echo madvise | sudo tee {path}")),
    }
}

fn yama() -> Finding {
    let name = "Yama";
    let found = match read("/proc/sys/kernel/yama/ptrace_scope").as_deref() {
        None => return Finding::new(name, Good, "not there, so it forbids nothing"),
        Some("0") => return Finding::new(name, Good, "ptrace_scope 0"),
        Some("1") => "ptrace_scope 1: process_vm_readv between ranks needs PR_SET_PTRACER",
        Some("2") => "ptrace_scope 2: process_vm_readv is for administrators only",
        Some("3") => {
            let found = "ptrace_scope 3: process_vm_readv is forbidden until the next boot";
            let command = "echo kernel.yama.ptrace_scope=0 | sudo tee /etc/sysctl.d/90-regall.conf # then reboot";
            return Finding::new(name, Limits, found).mend(command);
        }
        Some(other) => {
            return Finding::new(
                name,
                Unknown,
                format!("ptrace_scope {other}, whatever that is"),
            )
        }
    };
    Finding::new(name, Limits, found).mend("sudo sysctl kernel.yama.ptrace_scope=0")
}

/// Names in a folder, sorted.
fn names(folder: &str) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn infiniband() -> Finding {
    let name = "/dev/infiniband";
    let devices = names("/sys/class/infiniband");
    if devices.is_empty() {
        return Finding::new(name, Absent, "no RDMA device: the pin set alone is active").mend(
            "sudo modprobe rdma_rxe && \
             sudo rdma link add rxe0 type rxe netdev \"$(ip -o route show default | awk '{print $5; exit}')\" # Soft-RoCE",
        );
    }
    let devices = devices.join(", ");
    let nodes = names(name).into_iter().filter(|n| n.starts_with("uverbs"));
    let nodes: Vec<_> = nodes.map(|n| format!("{name}/{n}")).collect();
    if nodes.is_empty() {
        return Finding::new(name, Limits, format!("{devices}, but no uverbs device"))
            .mend("sudo modprobe ib_uverbs");
    }
    match nodes.iter().all(|n| accessible(n, libc::R_OK | libc::W_OK)) {
        true => Finding::new(name, Good, format!("{devices}; {}", nodes.join(", "))),
        false => Finding::new(name, Limits, format!("{devices}, but not accessible"))
            .mend(format!("sudo chmod 666 {}", nodes.join(" "))),
    }
}

fn odp() -> Finding {
    let found = match names("/sys/class/infiniband").is_empty() {
        true => "there is no device",
        false => "only a device that is opened can tell: ibv_devinfo -v | grep -A9 odp",
    };
    Finding::new("ODP", NotChecked, found)
}

fn knem() -> Finding {
    let name = "KNEM";
    let node = "/dev/knem";
    match (fs::exists(node), accessible(node, libc::R_OK | libc::W_OK)) {
        (Ok(true), true) => Finding::new(name, Good, node),
        (Ok(true), false) => Finding::new(name, Limits, format!("{node} is not accessible"))
            .mend(format!("sudo chmod 666 {node}")),
        _ => Finding::new(
            name,
            Absent,
            "not loaded: peers use process_vm_readv or map",
        )
        .mend("sudo modprobe knem # from https://knem.gitlabpages.inria.fr"),
    }
}

fn accessible(path: &str, mode: i32) -> bool {
    let Ok(path) = CString::new(path) else {
        return false;
    };
    // SAFETY: a NUL-terminated path, which access(2) only reads.
    unsafe { libc::access(path.as_ptr(), mode) == 0 }
}

/// Bytes that are free in the file system of `path`.
fn free_space(path: &str) -> Option<u64> {
    let path = CString::new(path).ok()?;
    let mut answer = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a NUL-terminated path, and room for the answer.
    if unsafe { libc::statvfs(path.as_ptr(), answer.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: statvfs succeeded, so it filled the answer in.
    let answer = unsafe { answer.assume_init() };
    Some(answer.f_bavail.saturating_mul(answer.f_frsize))
}
