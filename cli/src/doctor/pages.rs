//! Huge pages: whether who asks gets one.

use rustix::mm::{madvise, Advice, MapFlags};

use super::attempt::{in_child, map, READ_WRITE};
use super::finding::{Finding, Standing::*};
use super::place::{self, read, Place};
use crate::units;

/// Bytes in a huge page of x86-64.
pub const HUGE_PAGE: usize = 2 << 20;
const FILE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Memory of `bytes` that begins where a huge page can, with or without the wish for
/// them, and touched.
pub fn touched(bytes: usize, huge: bool) -> Option<*mut u8> {
    let at = map(bytes + HUGE_PAGE, READ_WRITE, MapFlags::empty()).ok()?;
    let at = at.wrapping_add(at.align_offset(HUGE_PAGE));
    let advice = if huge {
        Advice::LinuxHugepage
    } else {
        Advice::LinuxNoHugepage
    };
    // SAFETY: within the mapping that was made above.
    let _ = unsafe { madvise(at.cast(), bytes, advice) };
    // SAFETY: likewise, and nobody else knows of it.
    unsafe { at.write_bytes(1, bytes) };
    Some(at)
}

/// Bytes in huge pages that a process has.
pub fn in_huge_pages(pid: &str) -> Option<u64> {
    let smaps = read(format!("/proc/{pid}/smaps_rollup"))?;
    place::bytes(&smaps, "AnonHugePages")
}

pub fn huge(near: &Place) -> Finding {
    let name = "huge pages";
    let Some(setting) = read(FILE) else {
        return Finding::new(name, Absent, "this kernel has no transparent huge pages");
    };
    let tried = in_child(|| {
        let had = touched(2 * HUGE_PAGE, true).and_then(|_| in_huge_pages("self"));
        [had.map_or(-1, |bytes| bytes as i64)]
    });
    let had = tried.map_or(-1, |[bytes]| bytes);
    let shared = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let shared = shared.map_or(String::new(), |s| {
        format!("; shared memory: {}", chosen(&s))
    });
    let found = match had {
        -1 => format!("transparent: {}{shared}", chosen(&setting)),
        _ => format!(
            "transparent: {}{shared}; of 4 MiB that asked, {} are in huge pages",
            chosen(&setting),
            units::bytes(had as u64)
        ),
    };
    let slow =
        "in single copies between ranks the kernel looks up each 4 KiB page (see single copy)";
    if setting.contains("[never]") {
        let line = format!("echo madvise | sudo tee {FILE}");
        return near.mend_host(Finding::new(name, Limits, found).effect(slow), line);
    }
    if had == 0 {
        // They are allowed, and there is no free memory in one piece.
        let line = "echo 1 | sudo tee /proc/sys/vm/compact_memory";
        return near.mend_host(Finding::new(name, Limits, found).effect(slow), line);
    }
    let finding = Finding::new(name, Good, found);
    match had {
        -1 => finding,
        bytes => finding.measured("huge_bytes_of_4mib", bytes),
    }
}

/// The word in brackets.
fn chosen(setting: &str) -> &str {
    let word = setting.split_once('[').and_then(|(_, w)| w.split_once(']'));
    word.map_or(setting, |(word, _)| word)
}
