//! How much can be locked, and what that costs.

use std::path::Path;
use std::time::Instant;

use rustix::mm::{madvise, mlock_with, munlock, Advice, MapFlags, MlockFlags};

use super::attempt::{errno, in_child, map, text, READ_WRITE};
use super::batch;
use super::finding::{Finding, Standing::*, Who};
use super::place::{self, limits, read, Container, Place, MEMLOCK};
use crate::units;

/// Memory that is locked for the time it takes.
const SAMPLE: u64 = 8 << 20;

/// Bytes of memory that this machine has.
fn physical() -> Option<u64> {
    place::bytes(&read("/proc/meminfo")?, "MemTotal")
}

/// Bytes up to `most` that a child can lock at once, and the errno for more. Locked when
/// touched, of memory that nobody touches: none is used.
fn most_locked(most: u64) -> [i64; 2] {
    let at = match map(most as usize, READ_WRITE, MapFlags::NORESERVE) {
        Ok(at) => at,
        no => return [-1, errno(no)],
    };
    let lock = |bytes: u64| {
        // SAFETY: memory of this child's own.
        errno(unsafe { mlock_with(at.cast(), bytes as usize, MlockFlags::ONFAULT) })
    };
    let no = lock(most);
    if no == 0 {
        return [most as i64, 0];
    }
    let (mut good, mut bad) = (0, most / 4096);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        // SAFETY: as above; what was locked is not to count.
        let _ = unsafe { munlock(at.cast(), most as usize) };
        if lock(middle * 4096) == 0 {
            good = middle;
        } else {
            bad = middle;
        }
    }
    [(good * 4096) as i64, no]
}

/// Nanoseconds that it takes to lock `bytes` of new memory, with small pages.
fn time_to_lock(bytes: u64) -> i64 {
    let Ok(at) = map(bytes as usize, READ_WRITE, MapFlags::empty()) else {
        return -1;
    };
    // SAFETY: memory of this child's own.
    let _ = unsafe { madvise(at.cast(), bytes as usize, Advice::LinuxNoHugepage) };
    let began = Instant::now();
    // SAFETY: likewise.
    match unsafe { rustix::mm::mlock(at.cast(), bytes as usize) } {
        Ok(()) => began.elapsed().as_nanos() as i64,
        Err(_) => -1,
    }
}

/// How much mlock lets one have, tried.
pub fn mlock(near: &Place) -> Finding {
    let name = "locked memory";
    let Some((soft, hard)) = limits(MEMLOCK) else {
        return Finding::new(name, Unknown, "/proc/self/limits can't be read");
    };
    let amount = |text: &str| text.parse().map_or(text.to_string(), units::bytes);
    let rlimit = format!(
        "RLIMIT_MEMLOCK soft {}, hard {}",
        amount(&soft),
        amount(&hard)
    );
    let most = physical().unwrap_or(1 << 40) / 4096 * 4096;
    let [bytes, no] = match in_child(|| most_locked(most)) {
        Ok([-1, no]) => {
            let found = format!("{rlimit}; no address space to try it in: {}", text(no));
            return Finding::new(name, Unknown, found).mend(Who::You, "ulimit -v unlimited");
        }
        Ok(answers) => answers,
        Err(why) => {
            return Finding::new(name, Limits, format!("{rlimit}; {why}"))
                .effect("nothing can be pinned")
                .mend(Who::You, "REGALL_PIN=off")
        }
    };
    let bytes = bytes as u64;
    let sample = SAMPLE.min(bytes);
    let time = match sample {
        0 => -1,
        _ => in_child(|| [time_to_lock(sample)]).map_or(-1, |[t]| t),
    };
    let per_mib = (time > 0).then(|| time as f64 * (1 << 20) as f64 / sample as f64 / 1e6);
    let cost = per_mib.map(|ms| format!("pinning new memory takes {ms:.2} ms per MiB"));
    let mut finding = if no == 0 {
        Finding::new(name, Good, all(&soft, &rlimit, has_lock_capability()))
    } else {
        let found = format!(
            "mlock takes {} and not more: {} ({rlimit})",
            units::bytes(bytes),
            text(no)
        );
        mend(Finding::new(name, Limits, found), near, &hard)
    };
    finding = finding.measured("lockable_bytes", bytes);
    if let Some(ms) = per_mib {
        finding = finding.measured("pin_ms_per_mib", (ms * 1000.0).round() / 1000.0);
    }
    match (no, cost) {
        (0, Some(cost)) => finding.effect(cost),
        (0, None) => finding,
        (_, cost) => finding.effect(format!(
            "with an adapter, with swap space, or with REGALL_PIN=onfault or populate, what a rank maps beyond that is `limit`: \
             it has 56 MiB (Open MPI) to 114 MiB (MPICH) at its start{}",
            cost.map_or(String::new(), |c| format!("; {c}"))
        )),
    }
}

/// What it says where all memory can be locked, and what others get if that is for a
/// capability of this process's.
fn all(soft: &str, rlimit: &str, capable: bool) -> String {
    match soft.parse() {
        Ok(bytes) if capable => format!(
            "all memory can be locked, because this process has CAP_IPC_LOCK; an ordinary user \
             can lock {} ({rlimit})",
            units::bytes(bytes)
        ),
        _ => format!("all memory can be locked ({rlimit})"),
    }
}

/// Whether RLIMIT_MEMLOCK does not bind this process.
fn has_lock_capability() -> bool {
    const IPC_LOCK: u64 = 1 << 14;
    let status = read("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"));
    let set = line.and_then(|l| u64::from_str_radix(l.trim(), 16).ok());
    set.is_some_and(|set| set & IPC_LOCK != 0)
}

/// Who raises the limit, and how.
fn mend(finding: Finding, near: &Place, hard: &str) -> Finding {
    let mut finding = finding;
    if hard == "unlimited" {
        finding = finding.mend(Who::You, "ulimit -l unlimited # where ranks are started");
    }
    if near.container == Some(Container::Kubernetes) {
        return finding.mend(Who::Administrator, unit("containerd"));
    }
    if matches!(near.container, Some(Container::Docker | Container::Podman)) {
        return near.mend(finding, "--ulimit memlock=-1:-1", "");
    }
    if batch::present() {
        finding = finding
            .mend(
                Who::Administrator,
                "PropagateResourceLimitsExcept=MEMLOCK # in slurm.conf; then scontrol reconfigure",
            )
            .mend(Who::Administrator, unit("slurmd"));
    }
    if hard == "unlimited" {
        return finding;
    }
    finding
        .mend(
            Who::Administrator,
            "printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' | sudo tee \
             /etc/security/limits.d/rdma.conf # then log in again",
        )
        .mend(
            Who::Administrator,
            "LimitMEMLOCK=infinity # under [Service] of what starts ranks: systemctl edit ssh",
        )
}

/// The line that lifts the limit of a daemon, and of what it starts.
fn unit(service: &str) -> String {
    let folder = format!("/etc/systemd/system/{service}.service.d");
    format!(
        "sudo mkdir -p {folder} && printf '[Service]\\nLimitMEMLOCK=infinity\\n' | sudo tee \
         {folder}/memlock.conf && sudo systemctl daemon-reload && sudo systemctl restart {service}"
    )
}

/// The memory limit of this process's control group.
pub fn cgroup() -> Finding {
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
        Some(limit) => Finding::new(name, Good, units::bytes(limit))
            .measured("limit_bytes", limit)
            .effect(format!(
                "{} may be pinned by default (90 %), and what is pinned can't be reclaimed",
                units::bytes(limit / 10 * 9)
            )),
    }
}

#[cfg(test)]
mod tests {
    use super::all;

    #[test]
    fn root_hears_what_others_get() {
        let said = all("8388608", "RLIMIT", true);
        assert!(
            said.contains("CAP_IPC_LOCK; an ordinary user can lock 8 MiB"),
            "{said}"
        );
        for said in [
            all("unlimited", "RLIMIT", true),
            all("8388608", "RLIMIT", false),
        ] {
            assert_eq!(said, "all memory can be locked (RLIMIT)");
        }
    }
}
