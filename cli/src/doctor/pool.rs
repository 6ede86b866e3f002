//! The HugeTLB pool: huge pages that are set aside for who asks for them by MAP_HUGETLB.

use std::fs;

use rustix::mm::{munmap, MapFlags};
use rustix::thread::disable_transparent_huge_pages;

use super::attempt::{errno, fastest, in_child, map, text, time, Failure, READ_WRITE};
use super::finding::{Finding, Standing::*};
use super::pages::HUGE_PAGE;
use super::place::{self, field, read, Place};
use crate::units;

const FILE: &str = "/proc/sys/vm/nr_hugepages";
/// Pages that a pool is begun with: 1 GiB.
const BEGINNING: u64 = 512;

/// A line of /proc/meminfo.
fn counted(name: &str) -> Option<u64> {
    let text = read("/proc/meminfo")?;
    let value = field(&text, name)?;
    value.split(' ').next()?.parse().ok()
}

/// The least time that it takes to have a huge page's bytes of new memory, made with `flags`,
/// nanoseconds; or -1 and the errno.
fn had(flags: MapFlags) -> [i64; 2] {
    let least = fastest(3, || {
        let at = map(HUGE_PAGE, READ_WRITE, flags)?;
        for page in (0..HUGE_PAGE).step_by(4096) {
            // SAFETY: within the mapping that was made above.
            unsafe { at.add(page).write_volatile(1) };
        }
        // SAFETY: likewise, and nobody knows of it any more.
        unsafe { munmap(at.cast(), HUGE_PAGE) }
    });
    least.map_or_else(|no| [-1, errno::<()>(Err(no))], |nanos| [nanos, 0])
}

/// Small pages, for comparison.
fn in_small_pages() -> Option<i64> {
    // For this child and what it starts.
    let tried = in_child(|| match disable_transparent_huge_pages(true) {
        Ok(()) => had(MapFlags::empty()),
        Err(_) => [-1, 0],
    });
    tried.ok().map(|[nanos, _]| nanos).filter(|n| *n >= 0)
}

/// Names of the programs that have pages of the pool, with their processes and bytes: those
/// that we may look at.
fn users() -> Vec<(String, usize, u64)> {
    let mut all: Vec<(String, usize, u64)> = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !pid.starts_with(|c: char| c.is_ascii_digit()) {
            continue;
        }
        let status = read(entry.path().join("status")).unwrap_or_default();
        let bytes = place::bytes(&status, "HugetlbPages").unwrap_or(0);
        let name = field(&status, "Name").unwrap_or("?");
        if bytes == 0 {
            continue;
        }
        match all.iter_mut().find(|(n, _, _)| n == name) {
            Some((_, processes, sum)) => {
                *processes += 1;
                *sum += bytes;
            }
            None => all.push((name.to_string(), 1, bytes)),
        }
    }
    all.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
    all
}

/// Who has pages, in words.
fn used_by() -> String {
    let users = users();
    let word = |(name, processes, bytes): &(String, usize, u64)| {
        let bytes = units::bytes(*bytes);
        match processes {
            1 => format!("{name} (1 process, {bytes})"),
            more => format!("{name} ({more} processes, {bytes})"),
        }
    };
    let words: Vec<_> = users.iter().take(4).map(word).collect();
    match users.len() {
        0 => "no process that can be seen uses any".into(),
        1..=4 => format!("used by {}", words.join(", ")),
        more => format!(
            "used by {} and {} more programs",
            words.join(", "),
            more - 4
        ),
    }
}

/// What makes a pool of so many pages.
fn line(pages: u64) -> String {
    format!("sudo sysctl -w vm.nr_hugepages={pages}")
}

/// There is no pool.
fn without(near: &Place, found: &str) -> Finding {
    let finding = Finding::new(NAME, Absent, format!("{found}: there is none")).effect(
        "regall_alloc takes transparent huge pages instead; programs that insist on MAP_HUGETLB \
         get ENOMEM",
    );
    let line = format!("{} # 1 GiB that nothing else can use", line(BEGINNING));
    near.mend_host(finding, line)
}

/// There is a pool, and a page of it was written to in so many nanoseconds.
fn with(finding: Finding, nanos: i64) -> Finding {
    let small = in_small_pages();
    let against = small.map_or(String::new(), |s| format!(", of small pages {}", time(s)));
    let finding = finding.measured("populate_2mib_ns", nanos).effect(format!(
        "2 MiB of it, written to, take {}{against}; regall_alloc takes of it first, \
             for sizes of whole 2 MiB",
        time(nanos)
    ));
    match small {
        Some(small) => finding.measured("populate_2mib_small_ns", small),
        None => finding,
    }
}

const NAME: &str = "HugeTLB pool";

pub fn pool(near: &Place) -> Finding {
    let Some(pages) = read(FILE).and_then(|n| n.parse::<u64>().ok()) else {
        return Finding::new(NAME, Absent, "this kernel has no MAP_HUGETLB");
    };
    let tried = in_child(|| had(MapFlags::HUGETLB));
    let (found, in_it) = (
        format!("vm.nr_hugepages {pages}"),
        pages.saturating_mul(HUGE_PAGE as u64),
    );
    // Nothing is wrong with that, unless the kernel finds some nevertheless
    // (vm.nr_overcommit_hugepages).
    if pages == 0 && !matches!(tried, Ok([_, 0])) {
        return without(near, &found);
    }
    let free = counted("HugePages_Free").unwrap_or(0);
    let found = format!(
        "{found} ({}), {free} free, {}",
        units::bytes(in_it),
        used_by()
    );
    let finding = |standing| {
        Finding::new(NAME, standing, found.clone())
            .measured("pool_bytes", in_it)
            .measured("free_pages", free)
    };
    let why = match tried {
        Ok([nanos, 0]) => return with(finding(Good), nanos),
        Ok([_, no]) => text(no),
        Err(Failure::Killed(libc::SIGBUS)) => "SIGBUS (a cgroup's limit of huge pages)".into(),
        Err(why) => why.to_string(),
    };
    // What is promised to who has mapped it is as good as had. That is what a pool is for,
    // and no reason to call a node unhealthy.
    let promised = counted("HugePages_Rsvd").unwrap_or(0);
    let full = counted("HugePages_Total").unwrap_or(0) > 0 && free <= promised;
    let finding = finding(if full { Good } else { Limits }).effect(format!(
        "a page of it is not to be had: {why}; regall_alloc takes transparent huge pages instead, \
         programs that insist on MAP_HUGETLB end"
    ));
    if full {
        return finding;
    }
    near.mend_host(finding, line(pages.saturating_mul(2).max(BEGINNING)))
}
