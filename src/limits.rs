//! How much may be pinned.
//!
//! A budget in per cent is that part of the least of: this rank's share of physical memory;
//! RLIMIT_MEMLOCK where it binds; and, for the node (MemAvailable) and each cgroup with a limit on
//! the way to the root, what this process has that counts plus its share of what is left. The share
//! is one part for each process of ours in the cgroup, or for each local rank where the launcher is
//! in it. What is left is the limit, less what is charged and can't be reclaimed, less what
//! processes of ours have locked on fault and may not have touched yet (`lazy_bytes` in their
//! directories). It is reckoned anew when a quarter of what was left has been used up, in the call
//! that does so, and at most every 100 ms.
//!
//! Mapped bytes count, not resident ones, because nothing is asked at a page fault. What is held
//! without a lock counts nowhere.

use crate::config::{Environment, Limit};
use crate::groups;
use crate::sys::process::own_parent;
use crate::sys::{self, credentials, file};
use crate::text::number;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering::Relaxed};
use regall_directory::addr::PAGE;
use regall_directory::planted;

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

/// Whether RLIMIT_MEMLOCK is finite, whether it binds this process or not.
pub fn has_memlock() -> bool {
    !matches!(sys::rlimit(libc::RLIMIT_MEMLOCK), Ok((u64::MAX, _)))
}

/// What [`memlock`] said last: whether there is a limit. No system call.
pub fn bound() -> bool {
    BOUND.load(Relaxed)
}

/// Whether there is a limit still, if [`memlock`] has said last that there was one. Where there was none
/// it is not asked: the program's calls that bring one are seen, and what others set shows when the
/// kernel refuses something.
pub fn still_binds() -> bool {
    bound() && memlock().is_some()
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
    credentials::effective().is_ok_and(|set| set & (1 << CAP_IPC_LOCK) != 0)
}

/// Whose share of memory this process has.
static RANKS: AtomicU64 = AtomicU64::new(1);
/// Whether the budget is a part of what is left: then it is looked at again as it fills.
static GROUPED: AtomicBool = AtomicBool::new(false);

/// Whether the budget depends on what others do.
#[inline]
pub fn is_shared() -> bool {
    GROUPED.load(Relaxed)
}

/// What this process may have, in bytes; u64::MAX: no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Budget {
    /// Pinned.
    pub pins: u64,
    /// Resident or registered with an adapter.
    pub all: u64,
}

impl Budget {
    /// No limit.
    pub const NONE: Self = Self {
        pins: u64::MAX,
        all: u64::MAX,
    };
}

/// What this process has, in bytes.
#[derive(Clone, Copy, Default)]
pub struct Held {
    /// Pinned.
    pub pinned: u64,
    /// Pinned, and perhaps not resident yet.
    pub lazy: u64,
}

impl Budget {
    const fn of(bytes: u64) -> Self {
        Self {
            pins: bytes,
            all: bytes,
        }
    }
}

/// The budget at start-up, as [`budget`].
pub fn first_budget(limit: Limit, env: Environment) -> Budget {
    RANKS.store(local_size(env).max(1), Relaxed);
    budget(limit, Held::default())
}

/// The budget that `limit` means here and now, for a process that has `held`.
pub fn budget(limit: Limit, held: Held) -> Budget {
    let percent = match limit {
        Limit::Bytes(bytes) => return Budget::of(planted!("budget-unlimited", u64::MAX, bytes)),
        Limit::Percent(p) => p,
    };
    GROUPED.store(true, Relaxed);
    let share = Share::of(percent, held);
    let mut base = Budget::of(share.percent_of(physical() / share.ranks));
    if let Some(available) = available() {
        share.bound(&mut base, available, &|_| true);
    }
    groups::each(|group| {
        let limit = planted!("cgroup-unlimited", u64::MAX, group.limit);
        let left = limit.saturating_sub(group.used());
        share.bound(&mut base, left, &|pid| group.has(pid));
    });
    if let Some(memlock) = memlock().map(|bytes| share.percent_of(bytes)) {
        base.pins = base.pins.min(memlock);
        base.all = base.all.min(memlock);
    }
    base
}

/// By what this process's share of what is left is reckoned.
struct Share {
    percent: u64,
    /// Ranks on this node, and who has started them (0: it has no number here).
    ranks: u64,
    parent: u64,
    /// Bytes that are charged to this process already, or pinned.
    all: u64,
    pinned: u64,
    /// Pinned bytes that may not be charged yet.
    lazy: u64,
}

impl Share {
    fn of(percent: u64, held: Held) -> Self {
        let there = Resident::read();
        Self {
            percent,
            ranks: RANKS.load(Relaxed),
            parent: own_parent().unwrap_or(0),
            all: there.all().max(held.pinned),
            pinned: held.pinned,
            // What is resident is charged already.
            lazy: held.lazy.saturating_sub(there.all()),
        }
    }

    fn percent_of(&self, bytes: u64) -> u64 {
        match bytes {
            u64::MAX => bytes,
            _ => bytes / 100 * self.percent + bytes % 100 * self.percent / 100,
        }
    }

    /// Bounds `base` by the share of `left` bytes that processes have of which `has` says so.
    fn bound(&self, base: &mut Budget, left: u64, has: &dyn Fn(u64) -> bool) {
        let (mut ours, mut theirs) = (1, 0u64);
        crate::store::each_other(|pid, held| {
            if has(pid) {
                ours += 1;
                theirs = theirs.saturating_add(held);
            }
        });
        // Ranks that have not started yet are where their launcher is. A parent in another
        // PID namespace has no number.
        if self.parent == 0 || has(self.parent) {
            ours = ours.max(self.ranks);
        }
        let left = left.saturating_sub(theirs);
        let share = self.percent_of(left.saturating_sub(self.lazy) / ours);
        base.pins = base.pins.min(self.pinned.saturating_add(share));
        base.all = base.all.min(self.all.saturating_add(share));
    }
}

/// Bytes of this process's that are resident.
struct Resident {
    /// Anonymous memory and tmpfs.
    private: u64,
    /// Pages of files, which are page cache.
    cache: u64,
}

impl Resident {
    #[inline(never)]
    fn read() -> Self {
        let mut buf = [0u8; 3072];
        let text = file::read_small(c"/proc/self/status", &mut buf).unwrap_or(&[]);
        let of = |name: &[u8]| kilobytes(text, name).unwrap_or(0).saturating_mul(1024);
        Self {
            private: of(b"RssAnon:").saturating_add(of(b"RssShmem:")),
            cache: of(b"RssFile:"),
        }
    }

    fn all(&self) -> u64 {
        self.private.saturating_add(self.cache)
    }
}

/// Bytes that the machine has left, with what the kernel can have back at once.
#[inline(never)]
fn available() -> Option<u64> {
    let mut buf = [0u8; 512];
    let text = file::read_small(c"/proc/meminfo", &mut buf).ok()?;
    kilobytes(text, b"MemAvailable:").map(|kb| kb.saturating_mul(1024))
}

/// The number behind `name` at the beginning of a line of a file in /proc.
pub fn kilobytes(text: &[u8], name: &[u8]) -> Option<u64> {
    let mut lines = text.split(|b| *b == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(name))?;
    let digits = value
        .split(|b| !b.is_ascii_digit())
        .find(|d| !d.is_empty())?;
    number(digits)
}

/// Whether the kernel may write memory to swap space, or it can't be told.
pub fn has_swap() -> bool {
    sys::machine().map_or(true, |info| info.totalswap != 0)
}

/// Bytes of memory that a process of this machine and cgroup can have; u64::MAX: not known.
pub fn all_memory() -> u64 {
    physical().min(cgroup())
}

fn physical() -> u64 {
    match sys::machine() {
        Ok(info) => info
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

/// Launchers' variables for the ranks of a node, ...
const LOCAL_SIZES: [&[u8]; 6] = [
    b"OMPI_COMM_WORLD_LOCAL_SIZE",
    b"MPI_LOCALNRANKS",
    b"PALS_LOCAL_SIZE",
    b"LOCAL_WORLD_SIZE",
    b"SLURM_STEP_TASKS_PER_NODE",
    OF_A_BATCH,
];
/// ... of which this one is in the environment of a batch script, too, ...
const OF_A_BATCH: &[u8] = b"SLURM_NTASKS_PER_NODE";
/// ... and for a rank's number, where the launcher tells no more.
const NUMBERS: [&[u8]; 4] = [
    b"PMI_RANK",
    b"PMIX_RANK",
    b"OMPI_COMM_WORLD_RANK",
    b"PALS_RANKID",
];

/// How a process stands to others of its job on this node, by what launchers say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Company {
    /// A rank that has none there.
    Alone,
    /// A rank that has some, or may have.
    Ranks,
    /// No launcher says anything.
    Unknown,
}

/// Of this process. A rank of which nobody tells how many there are is one of several.
pub fn company(env: Environment) -> Company {
    let is_rank = || NUMBERS.iter().any(|name| env.with(name, |_| ()).is_some());
    match told_size(env, |name| name != OF_A_BATCH) {
        Some(1) => Company::Alone,
        Some(_) => Company::Ranks,
        None if is_rank() => Company::Ranks,
        None => Company::Unknown,
    }
}

/// Ranks on this node; 1 if no launcher says.
fn local_size(env: Environment) -> u64 {
    told_size(env, |_| true).unwrap_or(1)
}

/// Ranks on this node, by those of the launchers' variables that `count`.
fn told_size(env: Environment, count: impl Fn(&[u8]) -> bool) -> Option<u64> {
    // Slurm writes "4(x2)" for four tasks on each of two nodes.
    let digits = |v: &[u8]| {
        let n = v.iter().position(|b| !b.is_ascii_digit());
        number(v.get(..n.unwrap_or(v.len())).unwrap_or(&[]))
    };
    let of = |name: &[u8]| env.with(name, digits).flatten().filter(|n| *n > 0);
    // Flux says how many there are, and on how many nodes.
    let flux = || Some(of(b"FLUX_JOB_SIZE")?.div_ceil(of(b"FLUX_JOB_NNODES")?));
    LOCAL_SIZES
        .iter()
        .filter(|name| count(name))
        .find_map(|name| of(name))
        .or_else(flux)
}

/// The memory limit of this process's cgroup, bytes; u64::MAX: none.
fn cgroup() -> u64 {
    let mut least = u64::MAX;
    groups::each(|group| least = least.min(group.limit));
    least
}
