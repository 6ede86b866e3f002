//! How much may be pinned.

use crate::config::{Environment, Limit};
use crate::sys::{self, call, file};
use crate::text::{number, Text};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use regall_directory::addr::PAGE;

/// CAP_IPC_LOCK's bit: RLIMIT_MEMLOCK does not bind who has it.
const CAP_IPC_LOCK: u32 = 14;
/// Inode number of the initial user namespace: only there do capabilities count
/// for locked memory (PROC_USER_INIT_INO in the kernel's proc_ns.h).
const INITIAL_USER_NAMESPACE: u64 = 0xefff_fffd;

/// RLIMIT_MEMLOCK in bytes if it binds this process, else `None`. Which user
/// namespace this is, is remembered: asking costs microseconds, and
/// [`memlock_now`] is asked whenever the kernel has said no.
pub fn memlock() -> Option<u64> {
    let (soft, _) = sys::rlimit(libc::RLIMIT_MEMLOCK).ok()?;
    let binds = soft != u64::MAX && !(capable() && initial_namespace(false));
    BOUND.store(binds, Relaxed);
    binds.then_some(soft)
}

/// What [`memlock`] said last: whether there is a limit. No system call.
pub fn bound() -> bool {
    BOUND.load(Relaxed)
}

static BOUND: AtomicBool = AtomicBool::new(false);

/// As [`memlock`], with nothing remembered.
pub fn memlock_now() -> Option<u64> {
    initial_namespace(true);
    memlock()
}

fn initial_namespace(ask: bool) -> bool {
    /// 0: not asked yet; 1: it is another one; 2: it is the initial one.
    static KNOWN: AtomicU8 = AtomicU8::new(0);
    if ask || KNOWN.load(Relaxed) == 0 {
        let initial = file::stat_path(c"/proc/self/ns/user", false)
            .map_or(true, |s| s.inode == INITIAL_USER_NAMESPACE);
        KNOWN.store(1 + u8::from(initial), Relaxed);
    }
    KNOWN.load(Relaxed) == 2
}

fn capable() -> bool {
    let mut header = [0x2008_0522u32, 0];
    let mut data = [0u32; 6];
    // The kernel's version 3 layouts: two words, and two sets of three.
    call!(libc::SYS_capget, header.as_mut_ptr(), data.as_mut_ptr()).is_ok()
        && data[0] & (1 << CAP_IPC_LOCK) != 0
}

/// The budget in bytes that `limit` means here; u64::MAX: none.
pub fn budget(limit: Limit, env: Environment) -> u64 {
    let percent = match limit {
        Limit::Bytes(bytes) => return bytes,
        Limit::Percent(p) => p,
    };
    let mut base = physical() / local_size(env).max(1);
    base = base.min(cgroup());
    if let Some(memlock) = memlock() {
        base = base.min(memlock);
    }
    if base == u64::MAX {
        base
    } else {
        base / 100 * percent + base % 100 * percent / 100
    }
}

/// Bytes of memory that a process of this machine and cgroup can have; u64::MAX: not known.
pub fn all_memory() -> u64 {
    physical().min(cgroup())
}

fn physical() -> u64 {
    // SAFETY: all zeroes is a valid `struct sysinfo`.
    let mut info: libc::sysinfo = unsafe { core::mem::zeroed() };
    match call!(libc::SYS_sysinfo, &raw mut info) {
        Ok(_) => info
            .totalram
            .saturating_mul(u64::from(info.mem_unit.max(1))),
        Err(_) => u64::MAX,
    }
}

/// Bytes of this process's that are resident, as the kernel last summed them up.
pub fn resident() -> u64 {
    let mut buf = [0u8; 128];
    let pages = file::read_small(c"/proc/self/statm", &mut buf)
        .ok()
        .and_then(|text| text.split(|b| *b == b' ').nth(1).and_then(number));
    pages.unwrap_or(0).saturating_mul(PAGE)
}

/// Ranks on this node, by what launchers put in the environment; 1 if none did.
fn local_size(env: Environment) -> u64 {
    const NAMES: [&[u8]; 5] = [
        b"OMPI_COMM_WORLD_LOCAL_SIZE",
        b"MPI_LOCALNRANKS",
        b"PALS_LOCAL_SIZE",
        b"SLURM_STEP_TASKS_PER_NODE",
        b"SLURM_NTASKS_PER_NODE",
    ];
    let mut ranks = 1;
    for name in NAMES {
        // Slurm writes "4(x2)" for four tasks on each of two nodes.
        let digits = |v: &[u8]| {
            let n = v
                .iter()
                .position(|b| !b.is_ascii_digit())
                .unwrap_or(v.len());
            number(v.get(..n).unwrap_or(&[]))
        };
        if let Some(Some(n)) = env.with(name, digits) {
            if n > 0 {
                ranks = n;
                break;
            }
        }
    }
    ranks
}

/// The memory limit of this process's cgroup, bytes; u64::MAX: none.
fn cgroup() -> u64 {
    let mut buf = [0u8; 1024];
    let Ok(text) = file::read_small(c"/proc/self/cgroup", &mut buf) else {
        return u64::MAX;
    };
    let mut least = u64::MAX;
    for line in text.split(|b| *b == b'\n') {
        let mut fields = line.splitn(3, |b| *b == b':');
        let (Some(_), Some(controllers), Some(path)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let v1 = controllers.split(|b| *b == b',').any(|c| c == b"memory");
        if v1 {
            least = least.min(limit_in(
                b"/sys/fs/cgroup/memory",
                path,
                b"/memory.limit_in_bytes",
            ));
        } else if controllers.is_empty() {
            least = least.min(limit_in(b"/sys/fs/cgroup", path, b"/memory.max"));
        }
    }
    least
}

/// The least limit from `path` up to the root of the hierarchy.
fn limit_in(root: &[u8], path: &[u8], name: &[u8]) -> u64 {
    let mut least = u64::MAX;
    let mut path = path;
    loop {
        let mut file_name = Text::<1024>::new();
        file_name.push(root);
        file_name.push(if path == b"/" { b"" } else { path });
        file_name.push(name);
        let mut buf = [0u8; 32];
        if let Some(Ok(text)) = file_name.as_cstr().map(|p| file::read_small(p, &mut buf)) {
            let digits = text.strip_suffix(b"\n").unwrap_or(text);
            least = least.min(number(digits).unwrap_or(u64::MAX));
        }
        match path.iter().rposition(|b| *b == b'/') {
            Some(cut) if path.len() > 1 => path = path.get(..cut).unwrap_or(&[]),
            _ => return least,
        }
        if path.is_empty() {
            path = b"/";
        }
    }
}
