//! vm.overcommit_memory: whether the kernel promises more memory than it has, and what a
//! process takes of its promises by having the shim.

use std::ops::ControlFlow;

use regall_reader::procfs;
use rustix::mm::{munmap, MapFlags};

use super::attempt::{errno, in_child, map, text, READ_WRITE};
use super::finding::{Finding, Standing::*};
use super::place::{self, read, Place};
use super::shim::{sharing, Trial};
use crate::units;

const FILE: &str = "/proc/sys/vm/overcommit_memory";

/// A line of /proc/meminfo, bytes.
fn counted(name: &str) -> Option<u64> {
    place::bytes(&read("/proc/meminfo")?, name)
}

/// Bytes of private memory that a process can map at once, to the MiB and `most` at the most;
/// and the errno for more. None of it is touched.
fn most_mapped(most: u64) -> [i64; 2] {
    let mapped = |bytes: u64| {
        let at = map(bytes as usize, READ_WRITE, MapFlags::empty());
        // SAFETY: memory of this child's own, which nothing is in.
        errno(at.and_then(|at| unsafe { munmap(at.cast(), bytes as usize) }))
    };
    let no = mapped(most);
    if no == 0 {
        return [most as i64, 0];
    }
    let (mut good, mut bad) = (0, most >> 20);
    while bad - good > 1 {
        let middle = good + (bad - good) / 2;
        match mapped(middle << 20) {
            0 => good = middle,
            _ => bad = middle,
        }
    }
    [(good << 20) as i64, no]
}

/// Bytes of `pid`'s that count as promised (`ac` in its smaps).
fn promised(pid: u32) -> Option<u64> {
    let (mut sum, mut size) = (0u64, 0);
    let each = |line: &[u8]| {
        let line = String::from_utf8_lossy(line);
        if let Some(kilobytes) = line.strip_prefix("Size:") {
            size = place::in_bytes(kilobytes).unwrap_or(0);
        } else if let Some(flags) = line.strip_prefix("VmFlags:") {
            if flags.split(' ').any(|f| f == "ac") {
                sum += size;
            }
        }
        ControlFlow::Continue(())
    };
    procfs::each_line(format!("/proc/{pid}/smaps"), usize::MAX, each).ok()?;
    Some(sum)
}

/// What the same program takes more with the shim on.
fn taken_by_the_shim() -> Option<u64> {
    let without = Trial::without().ok()?;
    let with = Trial::start(&[]).ok()?;
    let (with, without) = (promised(with.pid())?, promised(without.pid())?);
    Some(with.saturating_sub(without))
}

pub fn overcommit(near: &Place) -> Finding {
    let name = "overcommit";
    let Some(mode) = read(FILE) else {
        return Finding::new(name, Unknown, format!("{FILE} can't be read"));
    };
    let found = format!("vm.overcommit_memory {mode}");
    let taken = taken_by_the_shim();
    let more = taken.map_or(String::new(), |bytes| {
        format!(
            "a process with the shim maps {} more, nearly all of it for its stack, which is \
             grown to its limit if that is 64 MiB or less",
            units::bytes(bytes)
        )
    });
    let with = |finding: Finding| match taken {
        Some(bytes) => finding.measured("shim_bytes", bytes),
        None => finding,
    };
    if mode != "2" {
        let found =
            format!("{found}: the kernel does not count memory that is mapped and not used");
        return with(Finding::new(name, Good, found));
    }
    let (limit, all) = (counted("CommitLimit"), counted("Committed_AS"));
    let most = match in_child(|| most_mapped(limit.unwrap_or(1 << 40))) {
        Ok([bytes, 0]) => format!("a process could map {}", units::bytes(bytes as u64)),
        Ok([bytes, no]) => {
            let bytes = units::bytes(bytes as u64);
            format!("a process could map {bytes} and not more: {}", text(no))
        }
        Err(why) => why.to_string(),
    };
    let amount = |bytes: Option<u64>| bytes.map_or("?".into(), units::bytes);
    let found = format!(
        "{found}: the kernel counts memory when it is mapped, {} of {} so far; {most}",
        amount(all),
        amount(limit)
    );
    let said = sharing().map_or(String::new(), |said| format!("; REGALL_SHARE=heap: {said}"));
    let finding = with(Finding::new(name, Limits, found)).effect(format!("{more}{said}"));
    near.mend_host(finding, "sudo sysctl -w vm.overcommit_memory=0")
}
